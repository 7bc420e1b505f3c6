//! What compressing, decompressing and naming a codec can refuse, with the values that decided it.

use core::error::Error;
use core::fmt;

use crate::codec::Codec;
use crate::encodings::Encoding;

/// The object would be larger than the room that the caller gave for it.
///
/// Also returned for a page that zstd finds incompressible, whatever the room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoesNotFit;

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the compressed page is larger than the room given for it")
    }
}

impl Error for DoesNotFit {}

/// Why a codec cannot work in the memory it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScratchError {
    /// The slice is shorter than the codec's working memory.
    TooSmall {
        /// Bytes the codec needs.
        needed_bytes: usize,
        /// Bytes it was given.
        given_bytes: usize,
    },
    /// libzstd would not build a context in memory of the size it asked for itself.
    Refused {
        /// Bytes offered to libzstd, aligned as it wants them.
        given_bytes: usize,
    },
}

impl fmt::Display for ScratchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { needed_bytes, given_bytes } => {
                write!(f, "the codec needs {needed_bytes} bytes of scratch, {given_bytes} given")
            }
            Self::Refused { given_bytes } => {
                write!(f, "libzstd refused a context in {given_bytes} bytes of scratch")
            }
        }
    }
}

impl Error for ScratchError {}

/// Why an object is not a page in its encoding. The page's content is unspecified afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// The object ends before the page is complete.
    Truncated,
    /// The page is complete and bytes of the object remain.
    TrailingBytes,
    /// The object describes more than one page of data.
    TooLong,
    /// A copy reaches back before the start of the page, or by zero bytes.
    BadDistance {
        /// The distance, in bytes.
        distance: usize,
        /// Bytes of the page decoded before the copy.
        decoded_bytes: usize,
    },
    /// A header, section length or padding field contradicts the format or another field.
    Malformed(&'static str),
    /// libzstd rejects the block.
    Libzstd {
        /// libzstd's error code (`ZSTD_ErrorCode`, `zstd_errors.h`).
        code: u32,
    },
    /// The decompressor was built over less scratch than this encoding needs.
    NoScratch {
        /// The object's encoding.
        encoding: Encoding,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the object ends before the page is complete"),
            Self::TrailingBytes => f.write_str("bytes remain after the page is complete"),
            Self::TooLong => f.write_str("the object describes more than one page"),
            Self::BadDistance { distance, decoded_bytes } => {
                write!(f, "a copy from {distance} bytes back, with {decoded_bytes} bytes decoded")
            }
            Self::Malformed(field) => write!(f, "malformed {field}"),
            Self::Libzstd { code } => write!(f, "libzstd rejects the block, error code {code}"),
            Self::NoScratch { encoding } => {
                write!(f, "the decompressor has no scratch for {}", encoding.name())
            }
        }
    }
}

impl Error for DecodeError {}

/// A codec name that is not one of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownCodec;

impl fmt::Display for UnknownCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown codec; the codecs are ")?;
        for (nth, codec) in Codec::ALL.iter().enumerate() {
            let separator = if nth == 0 { "" } else { ", " };
            write!(f, "{separator}{}", codec.name())?;
        }
        f.write_str(" (zstd is zstd-1; levels go up to zstd-19)")
    }
}

impl Error for UnknownCodec {}

/// A number that no encoding has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownEncoding(
    /// The number.
    pub u8,
);

impl fmt::Display for UnknownEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no encoding has the number {}", self.0)
    }
}

impl Error for UnknownEncoding {}

//! The codecs: names that users type, formats of their objects, and how each compresses.

use core::fmt;
use core::str::FromStr;

use crate::backend::Backend;
use crate::encodings::Encoding;
use crate::error::{DoesNotFit, ScratchError, UnknownCodec};
use crate::page_lz::Effort;
use crate::pbpm::Alignment;
use crate::wkv::Prediction;
use crate::{Page, lz4, lzo, lzrw, page_lz, pbpm, wk4x4, wkdm, wkv, zstd};

/// A codec with its level: how a page is compressed. Several codecs may share an [`Encoding`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Codec {
    /// LZ4 block format, greedy search.
    Lz4,
    /// zstd at a level.
    Zstd(ZstdLevel),
    /// WKv, ramfold's word codec, with strides or without.
    Wkv(Prediction),
    /// The page LZ, ramfold's codec for cold pages: copies and literals in codes of fixed tables.
    PageLz(Effort),
    /// LZO1X-1 (Oberhumer).
    Lzo,
    /// LZRW1-A (Williams 1991).
    Lzrw,
    /// WKdm (Wilson, Kaplan, Smaragdakis 1999).
    Wkdm,
    /// WK4x4, of the same authors.
    Wk4x4,
    /// PBPM (Yang, Dick, Lekatsas, Chakradhar 2010) with one of its alignments.
    Pbpm(Alignment),
}

impl Codec {
    /// The codecs to list in help texts and to try in a comparison. Levels of zstd other than
    /// these are accepted by name.
    pub const ALL: &[Codec] = &[
        Codec::Lz4,
        Codec::Zstd(ZstdLevel::FASTEST),
        Codec::Zstd(ZstdLevel::DENSER),
        Codec::Wkv(Prediction::Strides),
        Codec::Wkv(Prediction::Zeros),
        Codec::PageLz(Effort::Full),
        Codec::PageLz(Effort::Fast),
        Codec::Lzo,
        Codec::Lzrw,
        Codec::Wkdm,
        Codec::Wk4x4,
        Codec::Pbpm(Alignment::Unaligned),
        Codec::Pbpm(Alignment::SeparateTapes),
        Codec::Pbpm(Alignment::SingleTape),
    ];

    /// The canonical name, which [`Codec::from_name`] reads back.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Zstd(level) => level.codec_name(),
            Codec::Wkv(Prediction::Strides) => "wkv",
            Codec::Wkv(Prediction::Zeros) => "wkv-words",
            Codec::PageLz(Effort::Full) => "page-lz",
            Codec::PageLz(Effort::Fast) => "page-lz-fast",
            Codec::Lzo => "lzo",
            Codec::Lzrw => "lzrw1-a",
            Codec::Wkdm => "wkdm",
            Codec::Wk4x4 => "wk4x4",
            Codec::Pbpm(Alignment::Unaligned) => "pbpm",
            Codec::Pbpm(Alignment::SeparateTapes) => "pbpm-separate",
            Codec::Pbpm(Alignment::SingleTape) => "pbpm-single",
        }
    }

    /// The codec of that name, or `None`. `zstd` alone is level 1.
    pub fn from_name(name: &str) -> Option<Codec> {
        if name == "zstd" {
            return Some(Codec::Zstd(ZstdLevel::FASTEST));
        }
        Codec::with_every_level().find(|codec| codec.name() == name)
    }

    /// Bytes of scratch that a compressor needs.
    pub(crate) fn scratch_bytes(self) -> usize {
        match self {
            Codec::Lz4 => lz4::SCRATCH_BYTES,
            Codec::Zstd(level) => zstd::compress_scratch_bytes(level),
            Codec::Wkv(_) => wkv::COMPRESS_SCRATCH_BYTES,
            Codec::PageLz(_) => page_lz::COMPRESS_SCRATCH_BYTES,
            Codec::Lzo => lzo::SCRATCH_BYTES,
            Codec::Lzrw => lzrw::SCRATCH_BYTES,
            Codec::Wkdm => wkdm::SCRATCH_BYTES,
            Codec::Wk4x4 => wk4x4::SCRATCH_BYTES,
            Codec::Pbpm(_) => pbpm::SCRATCH_BYTES,
        }
    }

    /// The codec's number, which [`Codec::from_number`] reads back: that of its encoding, and in
    /// the upper byte the level of zstd, the alignment of PBPM, the prediction of WKv or the effort
    /// of the page LZ.
    pub(crate) const fn number(self) -> u16 {
        let variant = match self {
            Codec::Zstd(level) => level.get() as u16,
            Codec::Pbpm(alignment) => alignment as u16,
            Codec::Wkv(prediction) => prediction as u16,
            Codec::PageLz(effort) => effort as u16,
            _ => 0,
        };
        self.encoding() as u16 | variant << 8
    }

    /// The codec with that number, or `None`.
    pub(crate) fn from_number(number: u16) -> Option<Codec> {
        Codec::with_every_level().find(|codec| codec.number() == number)
    }

    fn with_every_level() -> impl Iterator<Item = Codec> {
        let levels = (1..).map_while(ZstdLevel::new).map(Codec::Zstd);
        Codec::ALL.iter().copied().chain(levels)
    }

    /// The format of the objects.
    pub const fn encoding(self) -> Encoding {
        match self {
            Codec::Lz4 => Encoding::Lz4,
            Codec::Zstd(_) => Encoding::Zstd,
            Codec::Wkv(_) => Encoding::Wkv,
            Codec::PageLz(_) => Encoding::PageLz,
            Codec::Lzo => Encoding::Lzo,
            Codec::Lzrw => Encoding::Lzrw,
            Codec::Wkdm => Encoding::Wkdm,
            Codec::Wk4x4 => Encoding::Wk4x4,
            Codec::Pbpm(_) => Encoding::Pbpm,
        }
    }
}

/// A codec and the scratch that it works in.
pub(crate) enum Prepared<'a> {
    Lz4(&'a mut [u8; lz4::SCRATCH_BYTES]),
    Zstd(zstd::Encoder<'a>),
    Wkv(Prediction, &'a mut [u8; wkv::COMPRESS_SCRATCH_BYTES]),
    PageLz(Effort, &'a mut [u8; page_lz::COMPRESS_SCRATCH_BYTES]),
    Lzo(&'a mut [u8; lzo::SCRATCH_BYTES]),
    Lzrw(&'a mut [u8; lzrw::SCRATCH_BYTES]),
    Wkdm(&'a mut [u8; wkdm::SCRATCH_BYTES]),
    Wk4x4(&'a mut [u8; wk4x4::SCRATCH_BYTES]),
    Pbpm(Alignment, &'a mut [u8; pbpm::SCRATCH_BYTES]),
}

impl<'a> Prepared<'a> {
    /// The codec, over the front of `scratch`.
    pub(crate) fn new(codec: Codec, scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let too_small = ScratchError::TooSmall {
            needed_bytes: codec.scratch_bytes(),
            given_bytes: scratch.len(),
        };
        Ok(match codec {
            Codec::Lz4 => Prepared::Lz4(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Zstd(level) => Prepared::Zstd(zstd::Encoder::new(level, scratch)?),
            Codec::Wkv(prediction) => {
                Prepared::Wkv(prediction, scratch.first_chunk_mut().ok_or(too_small)?)
            }
            Codec::PageLz(effort) => {
                Prepared::PageLz(effort, scratch.first_chunk_mut().ok_or(too_small)?)
            }
            Codec::Lzo => Prepared::Lzo(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Lzrw => Prepared::Lzrw(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Wkdm => Prepared::Wkdm(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Wk4x4 => Prepared::Wk4x4(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Pbpm(alignment) => {
                Prepared::Pbpm(alignment, scratch.first_chunk_mut().ok_or(too_small)?)
            }
        })
    }

    /// As [`Compressor::compress`](crate::Compressor::compress).
    pub(crate) fn compress(
        &mut self,
        page: &Page,
        backend: Backend,
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        match self {
            Prepared::Lz4(scratch) => lz4::compress(page, scratch, out),
            Prepared::Zstd(encoder) => encoder.compress(page, out),
            Prepared::Wkv(prediction, scratch) => {
                wkv::compress(page, *prediction, backend, scratch, out)
            }
            Prepared::PageLz(effort, scratch) => {
                page_lz::compress(page, *effort, backend, scratch, out)
            }
            Prepared::Lzo(scratch) => lzo::compress(page, backend, scratch, out),
            Prepared::Lzrw(scratch) => lzrw::compress(page, scratch, out),
            Prepared::Wkdm(scratch) => wkdm::compress(page, scratch, out),
            Prepared::Wk4x4(scratch) => wk4x4::compress(page, scratch, out),
            Prepared::Pbpm(alignment, scratch) => {
                pbpm::compress(page, *alignment, backend, scratch, out)
            }
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        Codec::from_name(name).ok_or(UnknownCodec)
    }
}

/// A compression level of zstd, 1 to 19. From 11 on, a compressor's scratch more than doubles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZstdLevel(u8);

/// The name of each level's codec, level 1 first.
const ZSTD_NAMES: [&str; 19] = [
    "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9",
    "zstd-10", "zstd-11", "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17",
    "zstd-18", "zstd-19",
];

impl ZstdLevel {
    /// Level 1, what `zstd` without a number means.
    pub const FASTEST: ZstdLevel = ZstdLevel(1);
    /// Level 3, libzstd's own default.
    const DENSER: ZstdLevel = ZstdLevel(3);

    /// The level of that number, or `None` outside 1 to 19.
    pub const fn new(level: u8) -> Option<ZstdLevel> {
        if level >= 1 && level as usize <= ZSTD_NAMES.len() { Some(ZstdLevel(level)) } else { None }
    }

    /// The number.
    pub(crate) const fn get(self) -> u8 {
        self.0
    }

    fn codec_name(self) -> &'static str {
        ZSTD_NAMES.get(usize::from(self.0).wrapping_sub(1)).copied().unwrap_or("zstd")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_read_back() {
        for &codec in Codec::ALL {
            assert_eq!(Codec::from_name(codec.name()), Some(codec));
            assert_eq!(codec.name().parse(), Ok(codec));
            assert_eq!(codec.to_string(), codec.name());
            assert_eq!(Codec::from_number(codec.number()), Some(codec));
        }
        for number in 1..=19 {
            let level = ZstdLevel::new(number).unwrap();
            let codec = Codec::Zstd(level);
            assert_eq!(codec.name(), std::format!("zstd-{number}"));
            assert_eq!(Codec::from_name(codec.name()), Some(codec));
            assert_eq!(Codec::from_number(codec.number()), Some(codec));
        }
        assert_eq!(Codec::from_number(0), None);
        assert_eq!(Codec::from_name("zstd"), Codec::from_name("zstd-1"));
    }

    #[test]
    fn unknown_names_and_levels_are_refused() {
        for name in
            ["", "LZ4", "zstd-", "zstd-0", "zstd-20", "zstd-01", "zstd-+1", "lz4-1", " wkdm", "raw"]
        {
            assert_eq!(Codec::from_name(name), None, "{name:?}");
            assert_eq!(name.parse::<Codec>(), Err(UnknownCodec));
        }
        assert_eq!(ZstdLevel::new(0), None);
        assert_eq!(ZstdLevel::new(20), None);
        let message = UnknownCodec.to_string();
        for codec in Codec::ALL {
            assert!(message.contains(codec.name()), "{message}");
        }
    }
}

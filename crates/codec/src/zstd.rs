//! zstd: a length, then the content of one compressed block (RFC 8878, section 3.1.1.2.3), without
//! frame or block header, without dictionary and without history.
//!
//! The two bytes in front hold the content's length, which is less than that of the page (or of the
//! [cluster](crate::cluster)). A block does not tell where it ends: its last bit stream is read
//! from the end backwards, and with bytes appended it may decode to another page. The length costs
//! two bytes, a frame with a block would cost ten.

use crate::PAGE_SIZE;
use crate::arch::libzstd::{self, CompressContext, DecompressContext};
use crate::codec::ZstdLevel;
use crate::error::{DecodeError, DoesNotFit, ScratchError};

/// The longest block libzstd may write on its way to an object of `size` bytes
/// (`ZSTD_COMPRESSBOUND`).
const fn block_bytes_max(size: usize) -> usize {
    const { assert!(crate::cluster::BYTES_MAX < 128 << 10) };
    size + (size >> 8) + (((128 << 10) - size) >> 11)
}

/// Bytes in front of the block.
const HEADER: usize = 2;
/// They hold a length that is less than the largest cluster's.
const _: () = assert!(crate::cluster::BYTES_MAX - 1 < 1 << (8 * HEADER));

/// Bytes of scratch that [`Encoder::new`] needs at `level`.
pub(crate) fn compress_scratch_bytes(level: ZstdLevel) -> usize {
    cluster_scratch_bytes(level, PAGE_SIZE)
}

/// Bytes of scratch that an encoder needs for clusters of `size` bytes.
pub(crate) fn cluster_scratch_bytes(level: ZstdLevel, size: usize) -> usize {
    block_bytes_max(size) + libzstd::CONTEXT_ALIGN - 1
        + libzstd::compress_context_bytes(level.get(), size)
}

/// Bytes of scratch that [`Decoder::new`] needs.
pub(crate) fn decompress_scratch_bytes() -> usize {
    libzstd::CONTEXT_ALIGN - 1 + libzstd::decompress_context_bytes()
}

/// Compresses pages, or clusters of one size, at one level.
pub(crate) struct Encoder<'a> {
    context: CompressContext<'a>,
    /// libzstd's entropy coders need spare room. With a block of full size to write to, whether an
    /// object fits depends on its length alone, and its bytes do not depend on the room.
    block: &'a mut [u8],
}

impl<'a> Encoder<'a> {
    /// An encoder of pages in the first [`compress_scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter.
    pub(crate) fn new(
        level: ZstdLevel,
        scratch: &'a mut [u8],
    ) -> Result<Encoder<'a>, ScratchError> {
        Encoder::of_clusters(level, PAGE_SIZE, scratch)
    }

    /// The same for clusters of `size` bytes, with [`cluster_scratch_bytes`] of `scratch`.
    pub(crate) fn of_clusters(
        level: ZstdLevel,
        size: usize,
        scratch: &'a mut [u8],
    ) -> Result<Encoder<'a>, ScratchError> {
        let given_bytes = scratch.len();
        let needed_bytes = cluster_scratch_bytes(level, size);
        let too_small = ScratchError::TooSmall { needed_bytes, given_bytes };
        if given_bytes < needed_bytes {
            return Err(too_small);
        }
        let (block, rest) = scratch.split_at_mut_checked(block_bytes_max(size)).ok_or(too_small)?;
        Ok(Encoder { context: CompressContext::new(level.get(), size, rest)?, block })
    }

    /// Compresses `page` into `out` and returns the object's length.
    ///
    /// # Errors
    /// [`DoesNotFit`] when the object would be longer than `out`, when libzstd finds that the page
    /// does not compress, or when it is not of the encoder's size.
    pub(crate) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, DoesNotFit> {
        let length = self.context.compress(page, self.block)?;
        // libzstd gives up on a page before its block is as long as the page.
        if length >= page.len() {
            return Err(DoesNotFit);
        }
        let block = self.block.get(..length).ok_or(DoesNotFit)?;
        let (header, place) =
            out.get_mut(..HEADER + length).ok_or(DoesNotFit)?.split_at_mut(HEADER);
        header.copy_from_slice(&(length as u16).to_le_bytes());
        place.copy_from_slice(block);
        Ok(HEADER + length)
    }
}

/// Decompresses pages, or clusters, of any level.
pub(crate) struct Decoder<'a> {
    context: DecompressContext<'a>,
}

impl<'a> Decoder<'a> {
    /// A decoder in the first [`decompress_scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter.
    pub(crate) fn new(scratch: &'a mut [u8]) -> Result<Decoder<'a>, ScratchError> {
        let given_bytes = scratch.len();
        let needed_bytes = decompress_scratch_bytes();
        if given_bytes < needed_bytes {
            return Err(ScratchError::TooSmall { needed_bytes, given_bytes });
        }
        Ok(Decoder { context: DecompressContext::new(scratch)? })
    }

    /// Decompresses `object` into `page`.
    ///
    /// # Errors
    /// [`DecodeError`] unless `object` is one valid block of the length it states, and decodes to
    /// exactly as much as `page` holds.
    pub(crate) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), DecodeError> {
        let (header, block) = object.split_first_chunk::<HEADER>().ok_or(DecodeError::Truncated)?;
        let length = usize::from(u16::from_le_bytes(*header));
        if length >= page.len() {
            return Err(DecodeError::Malformed("zstd block length"));
        }
        if block.len() < length {
            return Err(DecodeError::Truncated);
        }
        if block.len() > length {
            return Err(DecodeError::TrailingBytes);
        }
        self.context.decompress(block, page)
    }
}

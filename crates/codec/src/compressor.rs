//! Compressing with any codec, over scratch that the caller owns.

use crate::backend::Backend;
use crate::codec::Codec;
use crate::error::{DoesNotFit, ScratchError};
use crate::page_lz::Effort;
use crate::pbpm::Alignment;
use crate::wkv::Prediction;
use crate::{Page, lz4, lzo, lzrw, page_lz, pbpm, wk4x4, wkdm, wkv, zstd};

/// Enough scratch for any codec at any level, for static arrays. 112 KiB are enough for every codec
/// in [`Codec::ALL`] and for zstd up to level 10; [`compress_scratch_bytes`] is exact.
pub const MAX_COMPRESS_SCRATCH_BYTES: usize = 288 << 10;

/// Bytes of scratch that [`Compressor::new`] needs for `codec`. Alignment and contents do not
/// matter.
pub fn compress_scratch_bytes(codec: Codec) -> usize {
    match codec {
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

/// Compresses pages, one at a time, with one codec.
///
/// Equal pages give equal objects, whatever was compressed before and however much room there is
/// beyond the object's length.
pub struct Compressor<'a> {
    codec: Codec,
    backend: Backend,
    engine: Engine<'a>,
}

enum Engine<'a> {
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

impl<'a> Compressor<'a> {
    /// A compressor that works in the first [`compress_scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter than that.
    pub fn new(codec: Codec, scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let too_small = ScratchError::TooSmall {
            needed_bytes: compress_scratch_bytes(codec),
            given_bytes: scratch.len(),
        };
        let engine = match codec {
            Codec::Lz4 => Engine::Lz4(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Zstd(level) => Engine::Zstd(zstd::Encoder::new(level, scratch)?),
            Codec::Wkv(prediction) => {
                Engine::Wkv(prediction, scratch.first_chunk_mut().ok_or(too_small)?)
            }
            Codec::PageLz(effort) => {
                Engine::PageLz(effort, scratch.first_chunk_mut().ok_or(too_small)?)
            }
            Codec::Lzo => Engine::Lzo(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Lzrw => Engine::Lzrw(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Wkdm => Engine::Wkdm(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Wk4x4 => Engine::Wk4x4(scratch.first_chunk_mut().ok_or(too_small)?),
            Codec::Pbpm(alignment) => {
                Engine::Pbpm(alignment, scratch.first_chunk_mut().ok_or(too_small)?)
            }
        };
        Ok(Compressor { codec, backend: Backend::best(), engine })
    }

    /// The same with other instructions than the best available. The objects are the same.
    pub fn with_backend(self, backend: Backend) -> Self {
        Compressor { backend, ..self }
    }

    /// The codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Compresses `page` into the front of `out` and returns the object's length in bytes. What
    /// `out` holds behind the object, or after an error, is unspecified.
    ///
    /// `out` may have any length. Limit it to the length that is worth storing: encoders give up as
    /// soon as they know that the object will be longer.
    ///
    /// # Errors
    /// [`DoesNotFit`] when the object would be longer than `out`, and for pages that zstd finds
    /// incompressible.
    pub fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize, DoesNotFit> {
        match &mut self.engine {
            Engine::Lz4(scratch) => lz4::compress(page, scratch, out),
            Engine::Zstd(encoder) => encoder.compress(page, out),
            Engine::Wkv(prediction, scratch) => {
                wkv::compress(page, *prediction, self.backend, scratch, out)
            }
            Engine::PageLz(effort, scratch) => {
                page_lz::compress(page, *effort, self.backend, scratch, out)
            }
            Engine::Lzo(scratch) => lzo::compress(page, self.backend, scratch, out),
            Engine::Lzrw(scratch) => lzrw::compress(page, scratch, out),
            Engine::Wkdm(scratch) => wkdm::compress(page, scratch, out),
            Engine::Wk4x4(scratch) => wk4x4::compress(page, scratch, out),
            Engine::Pbpm(alignment, scratch) => {
                pbpm::compress(page, *alignment, self.backend, scratch, out)
            }
        }
    }
}

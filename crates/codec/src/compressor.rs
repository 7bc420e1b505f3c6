//! Compressing with any codec, over scratch that the caller owns.

use crate::Page;
use crate::backend::Backend;
use crate::codec::{Codec, Prepared};
use crate::error::{DoesNotFit, ScratchError};

/// Enough scratch for any codec at any level, for static arrays. 112 KiB are enough for every codec
/// in [`Codec::ALL`] and for zstd up to level 10; [`compress_scratch_bytes`] is exact.
pub const MAX_COMPRESS_SCRATCH_BYTES: usize = 288 << 10;

/// Bytes of scratch that [`Compressor::new`] needs for `codec`. Alignment and contents do not
/// matter.
pub fn compress_scratch_bytes(codec: Codec) -> usize {
    codec.scratch_bytes()
}

/// Compresses pages, one at a time, with one codec.
///
/// Equal pages give equal objects, whatever was compressed before and however much room there is
/// beyond the object's length.
pub struct Compressor<'a> {
    codec: Codec,
    backend: Backend,
    prepared: Prepared<'a>,
}

impl<'a> Compressor<'a> {
    /// A compressor that works in the first [`compress_scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter than that.
    pub fn new(codec: Codec, scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let prepared = Prepared::new(codec, scratch)?;
        Ok(Compressor { codec, backend: Backend::best(), prepared })
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
        self.prepared.compress(page, self.backend, out)
    }
}

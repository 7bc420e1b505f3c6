//! Decompressing any encoding, over scratch that the caller owns.

use crate::backend::Backend;
use crate::encodings::Encoding;
use crate::error::{DecodeError, ScratchError};
use crate::{Page, pbpm, zstd};

/// Enough scratch for every encoding, for static arrays; [`decompress_scratch_bytes`] is exact.
pub const MAX_DECOMPRESS_SCRATCH_BYTES: usize = 120 << 10;

/// Tapes of the word codecs and of the page LZ, at the front of the scratch; libzstd's context
/// follows.
pub(crate) const TAPE_BYTES: usize = pbpm::SCRATCH_BYTES;

/// Bytes of scratch that a [`Decompressor`] needs to decode `encoding`. Scratch for several
/// encodings is the largest of theirs, not the sum. Alignment and contents do not matter.
pub fn decompress_scratch_bytes(encoding: Encoding) -> usize {
    encoding.scratch_bytes()
}

/// Decompresses objects of every encoding that it has scratch for.
pub struct Decompressor<'a> {
    backend: Backend,
    tapes: Option<&'a mut [u8; TAPE_BYTES]>,
    zstd: Option<zstd::Decoder<'a>>,
}

impl<'a> Decompressor<'a> {
    /// A decompressor of the encodings whose [`decompress_scratch_bytes`] are at most the length
    /// of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::Refused`] if libzstd does not accept its part.
    pub fn new(scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let Some((tapes, rest)) = scratch.split_first_chunk_mut() else {
            return Ok(Decompressor { backend: Backend::best(), tapes: None, zstd: None });
        };
        // Without scratch for it libzstd is not called: Miri could not.
        let zstd = if !rest.is_empty() && rest.len() >= zstd::decompress_scratch_bytes() {
            Some(zstd::Decoder::new(rest)?)
        } else {
            None
        };
        Ok(Decompressor { backend: Backend::best(), tapes: Some(tapes), zstd })
    }

    /// The same with other instructions than the best available.
    pub fn with_backend(self, backend: Backend) -> Self {
        Decompressor { backend, ..self }
    }

    /// Decompresses `object` into `page`.
    ///
    /// # Errors
    /// [`DecodeError`] when `object` is not a page in `encoding`, or when there is no scratch for
    /// `encoding`. The content of `page` is unspecified then.
    pub fn decompress(
        &mut self,
        encoding: Encoding,
        object: &[u8],
        page: &mut Page,
    ) -> Result<(), DecodeError> {
        encoding.decompress(object, self, page)
    }

    /// The instructions that it uses.
    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    pub(crate) fn zstd(&mut self) -> Option<&mut zstd::Decoder<'a>> {
        self.zstd.as_mut()
    }

    /// The part of the tapes that a codec works with.
    pub(crate) fn tapes<const BYTES: usize>(&mut self) -> Option<&mut [u8; BYTES]> {
        self.tapes.as_mut()?.first_chunk_mut()
    }
}

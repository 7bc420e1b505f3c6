//! libzstd over memory that the caller owns.
//!
//! Only static contexts are used (`ZSTD_initStaticCCtx`, `ZSTD_initStaticDCtx`): libzstd keeps all
//! its state in the workspace it is given and has no allocator, so nothing here reaches malloc.
//!
//! Pages are compressed by the block functions rather than the frame ones: a frame adds ten bytes
//! (magic number, header, block header), and its decoder would read empty and skippable frames
//! after it too.

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use zstd_sys as c;

use crate::error::{DecodeError, DoesNotFit, ScratchError};

/// libzstd wants eight; a cache line keeps its tables from straddling one.
pub(crate) const CONTEXT_ALIGN: usize = 64;

fn parameters(level: u8, size: usize) -> c::ZSTD_parameters {
    // SAFETY: a pure function of its integer arguments; every level is clamped to a valid one.
    let c_params = unsafe { c::ZSTD_getCParams(c_int::from(level), size as u64, 0) };
    c::ZSTD_parameters {
        cParams: c_params,
        fParams: c::ZSTD_frameParameters { contentSizeFlag: 0, checksumFlag: 0, noDictIDFlag: 1 },
    }
}

/// Bytes of workspace that a compression context of `level` needs, for blocks of `size` bytes only.
pub(crate) fn compress_context_bytes(level: u8, size: usize) -> usize {
    // SAFETY: a pure function of its argument, which `ZSTD_getCParams` made valid.
    unsafe { c::ZSTD_estimateCCtxSize_usingCParams(parameters(level, size).cParams) }
}

/// Bytes of workspace that a decompression context needs.
pub(crate) fn decompress_context_bytes() -> usize {
    // SAFETY: returns a constant.
    unsafe { c::ZSTD_estimateDCtxSize() }
}

fn is_error(result: usize) -> bool {
    // SAFETY: a pure function of its integer argument.
    unsafe { c::ZSTD_isError(result) != 0 }
}

/// The first `bytes` of `scratch` from an aligned address on.
fn workspace(scratch: &mut [u8], bytes: usize) -> Result<&mut [u8], ScratchError> {
    let given_bytes = scratch.len();
    let skip = scratch.as_ptr().align_offset(CONTEXT_ALIGN);
    let too_small = ScratchError::TooSmall { needed_bytes: bytes + CONTEXT_ALIGN - 1, given_bytes };
    scratch.get_mut(skip..).and_then(|rest| rest.get_mut(..bytes)).ok_or(too_small)
}

/// A compression context inside `'a` memory.
pub(crate) struct CompressContext<'a> {
    context: NonNull<c::ZSTD_CCtx>,
    parameters: c::ZSTD_parameters,
    /// Bytes of a block.
    size: usize,
    workspace: PhantomData<&'a mut [u8]>,
}

// SAFETY: the context is plain memory reached through this value alone (the workspace is borrowed
// mutably for 'a), and libzstd without multithreading keeps nothing per thread.
unsafe impl Send for CompressContext<'_> {}

impl<'a> CompressContext<'a> {
    pub(crate) fn new(level: u8, size: usize, scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let workspace = workspace(scratch, compress_context_bytes(level, size))?;
        let given_bytes = workspace.len();
        // SAFETY: pointer and length are those of a slice that stays mutably borrowed for as long
        // as the context can be used, by the lifetime of the value built below.
        let context = unsafe { c::ZSTD_initStaticCCtx(workspace.as_mut_ptr().cast(), given_bytes) };
        Ok(CompressContext {
            context: NonNull::new(context).ok_or(ScratchError::Refused { given_bytes })?,
            parameters: parameters(level, size),
            size,
            workspace: PhantomData,
        })
    }

    /// Compresses `page`, of the size that was told, as one block into `out` and returns its
    /// length.
    pub(crate) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, DoesNotFit> {
        if page.len() != self.size {
            return Err(DoesNotFit);
        }
        // SAFETY: `context` came from ZSTD_initStaticCCtx and its workspace is still borrowed; no
        // dictionary is passed, which null and 0 say.
        let begun = unsafe {
            c::ZSTD_compressBegin_advanced(
                self.context.as_ptr(),
                ptr::null(),
                0,
                self.parameters,
                page.len() as u64,
            )
        };
        debug_assert!(!is_error(begun), "the workspace has the size libzstd asked for");
        if is_error(begun) {
            return Err(DoesNotFit);
        }
        // SAFETY: `context` as above. `out` and `page` are live slices passed with their own
        // lengths. The context keeps a pointer to `page` as its history, but the next
        // ZSTD_compressBegin_advanced invalidates that history before anything reads it.
        let length = unsafe {
            c::ZSTD_compressBlock(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                page.as_ptr().cast(),
                page.len(),
            )
        };
        // 0 is libzstd's word for a block that does not compress.
        if length == 0 || is_error(length) { Err(DoesNotFit) } else { Ok(length) }
    }
}

/// A decompression context inside `'a` memory.
pub(crate) struct DecompressContext<'a> {
    context: NonNull<c::ZSTD_DCtx>,
    workspace: PhantomData<&'a mut [u8]>,
}

// SAFETY: as for CompressContext.
unsafe impl Send for DecompressContext<'_> {}

impl<'a> DecompressContext<'a> {
    pub(crate) fn new(scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let workspace = workspace(scratch, decompress_context_bytes())?;
        let given_bytes = workspace.len();
        // SAFETY: pointer and length are those of a slice that stays mutably borrowed for as long
        // as the context can be used, by the lifetime of the value built below.
        let context = unsafe { c::ZSTD_initStaticDCtx(workspace.as_mut_ptr().cast(), given_bytes) };
        Ok(DecompressContext {
            context: NonNull::new(context).ok_or(ScratchError::Refused { given_bytes })?,
            workspace: PhantomData,
        })
    }

    /// Decompresses `object`, one block, into `page`, which it fills.
    pub(crate) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), DecodeError> {
        // SAFETY: `context` came from ZSTD_initStaticDCtx and its workspace is still borrowed. This
        // forgets the history of earlier blocks, so no pointer to an earlier page is followed.
        let begun = unsafe { c::ZSTD_decompressBegin(self.context.as_ptr()) };
        check(begun)?;
        // SAFETY: `context` as above; `page` and `object` are live slices passed with their own
        // lengths, and do not overlap since one of them is borrowed mutably.
        let length = unsafe {
            c::ZSTD_decompressBlock(
                self.context.as_ptr(),
                page.as_mut_ptr().cast(),
                page.len(),
                object.as_ptr().cast(),
                object.len(),
            )
        };
        if check(length)? == page.len() { Ok(()) } else { Err(DecodeError::Truncated) }
    }
}

fn check(result: usize) -> Result<usize, DecodeError> {
    if is_error(result) {
        // libzstd returns its error codes negated.
        Err(DecodeError::Libzstd { code: result.wrapping_neg() as u32 })
    } else {
        Ok(result)
    }
}

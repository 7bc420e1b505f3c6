//! libzstd.

use std::ffi::{c_int, c_uint, c_void};

use anyhow::{Result, ensure};
use libloading::Library;
use ramfold_codec::{PAGE_SIZE, Page};

use super::super::{OBJECT_BYTES_MAX, Object, Room, Subject, Written};
use super::{function, load};

type ZstdMake = unsafe extern "C" fn() -> *mut c_void;
type ZstdFree = unsafe extern "C" fn(*mut c_void) -> usize;
type ZstdCompress =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const c_void, usize, c_int) -> usize;
type ZstdDecompress =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const c_void, usize) -> usize;
type ZstdIsError = unsafe extern "C" fn(usize) -> c_uint;

/// `ZSTD_compressCCtx` and `ZSTD_decompressDCtx`.
pub(super) struct Zstd {
    name: &'static str,
    level: c_int,
    compress: ZstdCompress,
    decompress: ZstdDecompress,
    is_error: ZstdIsError,
    compress_context: *mut c_void,
    decompress_context: *mut c_void,
    free_compress: ZstdFree,
    free_decompress: ZstdFree,
    _library: Library,
}

impl Zstd {
    pub(super) fn open(name: &'static str, level: c_int) -> Result<Zstd> {
        let library = load("libzstd.so.1", "libzstd1")?;
        // SAFETY: the types are those of zstd.h, and the functions that make contexts take nothing.
        let zstd = unsafe {
            Zstd {
                name,
                level,
                compress: function(&library, "ZSTD_compressCCtx")?,
                decompress: function(&library, "ZSTD_decompressDCtx")?,
                is_error: function(&library, "ZSTD_isError")?,
                compress_context: function::<ZstdMake>(&library, "ZSTD_createCCtx")?(),
                decompress_context: function::<ZstdMake>(&library, "ZSTD_createDCtx")?(),
                free_compress: function(&library, "ZSTD_freeCCtx")?,
                free_decompress: function(&library, "ZSTD_freeDCtx")?,
                _library: library,
            }
        };
        let made = !zstd.compress_context.is_null() && !zstd.decompress_context.is_null();
        ensure!(made, "libzstd makes no contexts");
        Ok(zstd)
    }

    fn length(&self, result: usize) -> Option<usize> {
        // SAFETY: it takes any number.
        (unsafe { (self.is_error)(result) } == 0).then_some(result)
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        // SAFETY: made by the functions that belong to these; null is allowed.
        unsafe {
            (self.free_compress)(self.compress_context);
            (self.free_decompress)(self.decompress_context);
        }
    }
}

impl Subject for Zstd {
    fn name(&self) -> &str {
        self.name
    }

    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written> {
        // SAFETY: lengths are the slices'.
        let result = unsafe {
            (self.compress)(
                self.compress_context,
                out.as_mut_ptr().cast(),
                OBJECT_BYTES_MAX,
                page.as_ptr().cast(),
                PAGE_SIZE,
                self.level,
            )
        };
        self.length(result).and_then(Written::plain)
    }

    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()> {
        // SAFETY: lengths are the slices'.
        let result = unsafe {
            (self.decompress)(
                self.decompress_context,
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                object.bytes.as_ptr().cast(),
                object.bytes.len(),
            )
        };
        ensure!(self.length(result) == Some(PAGE_SIZE), "ZSTD_decompressDCtx says {result}");
        Ok(())
    }
}

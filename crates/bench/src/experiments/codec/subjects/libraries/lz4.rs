//! liblz4.

use std::ffi::{c_char, c_int, c_void};

use anyhow::{Result, ensure};
use libloading::Library;
use ramfold_codec::{PAGE_SIZE, Page};

use super::super::{OBJECT_BYTES_MAX, Object, Room, Subject, Written};
use super::{function, load};

type Lz4Size = unsafe extern "C" fn() -> c_int;
type Lz4Compress =
    unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int;
type Lz4Decompress = unsafe extern "C" fn(*const c_char, *mut c_char, c_int, c_int) -> c_int;

/// `LZ4_compress_fast_extState` at its usual speed, and `LZ4_decompress_safe`.
pub(super) struct Lz4 {
    name: &'static str,
    compress: Lz4Compress,
    decompress: Lz4Decompress,
    state: Vec<u64>,
    _library: Library,
}

impl Lz4 {
    pub(super) fn open(name: &'static str) -> Result<Lz4> {
        let library = load("liblz4.so.1", "liblz4-1")?;
        // SAFETY: the types are those of lz4.h.
        let (size, compress, decompress) = unsafe {
            (
                function::<Lz4Size>(&library, "LZ4_sizeofState")?,
                function(&library, "LZ4_compress_fast_extState")?,
                function(&library, "LZ4_decompress_safe")?,
            )
        };
        // SAFETY: it takes nothing.
        let state_bytes = unsafe { size() } as usize;
        Ok(Lz4 {
            name,
            compress,
            decompress,
            state: vec![0; state_bytes.div_ceil(8)],
            _library: library,
        })
    }
}

impl Subject for Lz4 {
    fn name(&self) -> &str {
        self.name
    }

    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written> {
        // SAFETY: the state is as large as asked for and aligned to 8 bytes; lengths are the
        // slices'.
        let length = unsafe {
            (self.compress)(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_SIZE as c_int,
                OBJECT_BYTES_MAX as c_int,
                1,
            )
        };
        usize::try_from(length).ok().filter(|&length| length > 0).and_then(Written::plain)
    }

    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()> {
        // SAFETY: lengths are the slices'.
        let length = unsafe {
            (self.decompress)(
                object.bytes.as_ptr().cast(),
                page.as_mut_ptr().cast(),
                object.bytes.len() as c_int,
                PAGE_SIZE as c_int,
            )
        };
        ensure!(length == PAGE_SIZE as c_int, "LZ4_decompress_safe says {length}");
        Ok(())
    }
}

//! liblzo2.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::ptr;

use anyhow::{Result, ensure};
use libloading::Library;
use ramfold_codec::{PAGE_SIZE, Page};

use super::super::{Object, Room, Subject, Written};
use super::{function, load};

type LzoInit = unsafe extern "C" fn(
    c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;
type LzoCode =
    unsafe extern "C" fn(*const u8, c_ulong, *mut u8, *mut c_ulong, *mut c_void) -> c_int;

/// What the header's `lzo_init` macro tells the library: its version and the sizes of C's types.
const LZO_VERSION: c_uint = 0x20a0;
/// `LZO1X_1_MEM_COMPRESS`: 16,384 pointers.
const LZO_WORK_WORDS: usize = 16384;
/// A safe decoder says how long the page is; this is what it may write.
const LZO_OK: c_int = 0;

/// `lzo1x_1_compress` and `lzo1x_decompress_safe`.
pub(super) struct Lzo {
    name: &'static str,
    compress: LzoCode,
    decompress: LzoCode,
    work: Vec<u64>,
    _library: Library,
}

impl Lzo {
    pub(super) fn open(name: &'static str) -> Result<Lzo> {
        let library = load("liblzo2.so.2", "liblzo2-2")?;
        // SAFETY: the types are those of lzo/lzoconf.h and lzo/lzo1x.h, on a 64-bit Linux.
        let (init, compress, decompress) = unsafe {
            (
                function::<LzoInit>(&library, "__lzo_init_v2")?,
                function(&library, "lzo1x_1_compress")?,
                function(&library, "lzo1x_decompress_safe")?,
            )
        };
        // SAFETY: sizes of short, int, long, lzo_uint32_t, lzo_uint, a dictionary's entry, char *,
        // void *, and of the callback (-1: not looked at).
        let status = unsafe { init(LZO_VERSION, 2, 4, 8, 4, 8, 8, 8, 8, -1) };
        ensure!(status == LZO_OK, "lzo_init says {status}");
        Ok(Lzo { name, compress, decompress, work: vec![0; LZO_WORK_WORDS], _library: library })
    }
}

impl Subject for Lzo {
    fn name(&self) -> &str {
        self.name
    }

    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written> {
        let mut length = 0;
        // SAFETY: `out` has more room than lzo1x_1 ever takes for a page (4,096 + 4,096 / 16 + 67),
        // and the work memory is as large as it wants.
        let status = unsafe {
            (self.compress)(
                page.as_ptr(),
                PAGE_SIZE as c_ulong,
                out.as_mut_ptr(),
                &raw mut length,
                self.work.as_mut_ptr().cast(),
            )
        };
        (status == LZO_OK).then_some(length as usize).and_then(Written::plain)
    }

    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()> {
        let mut length = PAGE_SIZE as c_ulong;
        // SAFETY: lengths are the slices'.
        let status = unsafe {
            (self.decompress)(
                object.bytes.as_ptr(),
                object.bytes.len() as c_ulong,
                page.as_mut_ptr(),
                &raw mut length,
                ptr::null_mut(),
            )
        };
        ensure!(
            status == LZO_OK && length == PAGE_SIZE as c_ulong,
            "lzo1x_decompress_safe says {status}, {length} bytes"
        );
        Ok(())
    }
}

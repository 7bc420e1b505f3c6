//! The C libraries, as peers: loaded when they are on the machine, never linked.
//!
//! Each is called the way a store of pages would call it: one call a page, state made once.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;
use ramfold_codec::{PAGE_SIZE, Page};

use super::{OBJECT_BYTES_MAX, Object, Room, Subject, Written};

/// The peers of this file.
pub(crate) const NAMES: &[&str] = &[LIBLZ4, LIBLZO2, LIBZSTD_1, LIBZSTD_3];

const LIBLZ4: &str = "liblz4";
const LIBLZO2: &str = "liblzo2";
const LIBZSTD_1: &str = "libzstd-1";
const LIBZSTD_3: &str = "libzstd-3";

/// Loads the library behind this name.
pub(crate) fn open(name: &'static str) -> Result<Box<dyn Subject>> {
    Ok(match name {
        LIBLZ4 => Box::new(Lz4::open()?),
        LIBLZO2 => Box::new(Lzo::open()?),
        LIBZSTD_1 => Box::new(Zstd::open(name, 1)?),
        LIBZSTD_3 => Box::new(Zstd::open(name, 3)?),
        _ => bail!("there is no library {name:?}"),
    })
}

fn load(file: &str, package: &str) -> Result<Library> {
    // SAFETY: these libraries do nothing when they are loaded.
    unsafe { Library::new(file) }.with_context(|| format!("the Debian package {package} has it"))
}

/// A function of a library that stays loaded.
///
/// # Safety
/// `T` must be the type of the function of that name.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: by the caller's word.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map(|symbol| *symbol).with_context(|| format!("the library lacks {name}"))
}

type Lz4Size = unsafe extern "C" fn() -> c_int;
type Lz4Compress =
    unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int;
type Lz4Decompress = unsafe extern "C" fn(*const c_char, *mut c_char, c_int, c_int) -> c_int;

/// `LZ4_compress_fast_extState` at its usual speed, and `LZ4_decompress_safe`.
struct Lz4 {
    compress: Lz4Compress,
    decompress: Lz4Decompress,
    state: Vec<u64>,
    _library: Library,
}

impl Lz4 {
    fn open() -> Result<Lz4> {
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
        Ok(Lz4 { compress, decompress, state: vec![0; state_bytes.div_ceil(8)], _library: library })
    }
}

impl Subject for Lz4 {
    fn name(&self) -> &str {
        LIBLZ4
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
struct Lzo {
    compress: LzoCode,
    decompress: LzoCode,
    work: Vec<u64>,
    _library: Library,
}

impl Lzo {
    fn open() -> Result<Lzo> {
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
        Ok(Lzo { compress, decompress, work: vec![0; LZO_WORK_WORDS], _library: library })
    }
}

impl Subject for Lzo {
    fn name(&self) -> &str {
        LIBLZO2
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

type ZstdMake = unsafe extern "C" fn() -> *mut c_void;
type ZstdFree = unsafe extern "C" fn(*mut c_void) -> usize;
type ZstdCompress =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const c_void, usize, c_int) -> usize;
type ZstdDecompress =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const c_void, usize) -> usize;
type ZstdIsError = unsafe extern "C" fn(usize) -> c_uint;

/// `ZSTD_compressCCtx` and `ZSTD_decompressDCtx`.
struct Zstd {
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
    fn open(name: &'static str, level: c_int) -> Result<Zstd> {
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

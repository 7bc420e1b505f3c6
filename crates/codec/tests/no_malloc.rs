//! No codec reaches the C library's allocator: not for a context, not for a page, not for a bad
//! object.
//!
//! The test binary's own `malloc` and its kin take the place of glibc's, count, and pass on.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod corpus;

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use ramfold_codec::{
    Codec, Compressor, Decompressor, MAX_COMPRESS_SCRATCH_BYTES, MAX_DECOMPRESS_SCRATCH_BYTES,
    PAGE_SIZE, Page,
};

thread_local! {
    // Constant and without a destructor, so that using it allocates nothing.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    fn __libc_free(memory: *mut c_void);
}

// SAFETY (all five): the names are malloc's own on purpose; each call goes on to glibc with the
// caller's arguments, so every promise of the caller and to the caller is glibc's.
#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: as above.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: as above.
    unsafe { __libc_calloc(items, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: as above; that `memory` came from malloc is the caller's promise.
    unsafe { __libc_realloc(memory, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    count();
    // SAFETY: as above; that `out` can be written is the caller's promise.
    unsafe {
        *out = __libc_memalign(align, size);
        if (*out).is_null() { 12 } else { 0 }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(memory: *mut c_void) {
    count();
    // SAFETY: as above; that `memory` came from malloc is the caller's promise.
    unsafe { __libc_free(memory) }
}

fn calls_of(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

#[test]
fn the_count_sees_allocations() {
    let calls = calls_of(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(calls, 2, "one malloc, one free");
}

#[test]
fn no_codec_allocates() {
    let pages: Vec<Page> = corpus::pages(5, 2).into_iter().map(|(_, page)| page).collect();
    let mut scratch = vec![0; MAX_COMPRESS_SCRATCH_BYTES];
    let mut scratch_back = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let high_levels = ["zstd-9", "zstd-19"].map(|name| name.parse().expect("a codec's name"));
    for &codec in Codec::ALL.iter().chain(&high_levels) {
        let mut compressed = 0;
        let calls = calls_of(|| {
            let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
            let mut decompressor = Decompressor::new(&mut scratch_back).expect("accepted");
            let mut out = [0; PAGE_SIZE];
            let mut back = [0; PAGE_SIZE];
            for page in &pages {
                let Ok(length) = compressor.compress(page, &mut out) else { continue };
                let result = decompressor.decompress(codec.encoding(), &out[..length], &mut back);
                assert!(result.is_ok() && back == *page);
                compressed += 1;
                out[length / 2] ^= 0x10;
                let _ = decompressor.decompress(codec.encoding(), &out[..length], &mut back);
                let _ = decompressor.decompress(codec.encoding(), page, &mut back);
            }
        });
        assert!(compressed > pages.len() / 2, "{codec}: {compressed} pages");
        assert_eq!(calls, 0, "{codec} reached the allocator");
    }
}

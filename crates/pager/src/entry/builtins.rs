//! What compilers call without being asked, and what libzstd refers to and never calls here.
//!
//! The library imports nothing: a program, a tracer or a sanitizer may have a `memcpy` of its own,
//! which counts, checks or records, and would be called in the middle of a fault. The names are
//! hidden: they bind the library's own calls and nobody else's.

use core::arch::global_asm;

use ramfold_sys::bytes;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}

/// Makes a function of this library known to its own object files by a name of the C library's.
macro_rules! named {
    ($name:literal, $function:path) => {
        global_asm!(
            ".pushsection .text",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",%function"),
            concat!($name, ":"),
            ".cfi_startproc",
            jump!(),
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            sym $function,
        );
    };
}

named!("memcpy", bytes::copy);
named!("memmove", bytes::copy);
named!("memset", bytes::fill);
named!("memcmp", bytes::compare);
named!("bcmp", bytes::compare);
named!("strlen", bytes::length);
// libzstd is given all its memory.
named!("malloc", nothing);
named!("calloc", nothing);
named!("free", nothing);
// Its tracing is off where these answer 0.
named!("ZSTD_trace_compress_begin", nothing);
named!("ZSTD_trace_compress_end", nothing);
named!("ZSTD_trace_decompress_begin", nothing);
named!("ZSTD_trace_decompress_end", nothing);

extern "C" fn nothing() -> usize {
    0
}

//! Page codecs: one 4,096-byte page in, an object of at most about that size out, and back.
//!
//! The crate runs inside other programs' processes, on threads that libc does not know. So it is
//! `no_std`, allocates nothing, makes no system call and touches no thread-local storage: working
//! memory is a byte slice that the caller owns, sized by [`compress_scratch_bytes`] and
//! [`decompress_scratch_bytes`].
//!
//! | | |
//! |---|---|
//! | [`Codec`], [`Encoding`] | what a user chooses by name, and the format of an object |
//! | [`Compressor`], [`Decompressor`] | the two entry points, each over a caller's scratch |
//! | [`Choice`], [`Chosen`], [`Auto`] | one codec for all pages, or one for each page |
//! | [`same_filled`] | the test that comes before any codec |
//! | [`Backend`] | which instructions the processor has |
//! | [`cluster`] | several pages of a file as one object |
//! | [`encodings`] | the numbers of all forms in which pages and clusters are stored |
//!
//! Each format has a module: LZ4, LZO1X, LZRW1-A, zstd, WKdm, WK4x4, PBPM, WKv and the page LZ.
//! `docs/codecs.md` has their byte layouts.
//!
//! Whatever bytes a decoder is given, it returns a page or a [`DecodeError`]; it never panics and
//! never reads or writes outside the slices it was handed. A page or an error is all that is
//! promised for a damaged object: finding every damaged bit is the work of the store's checksum.
//!
//! `unsafe` is confined to `arch`, where the C library zstd is called and vector instructions are
//! used; [`Backend`] says which.

#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
// Where there is no vector code, what is made for it is left over.
#![cfg_attr(
    not(any(
        target_arch = "x86_64",
        all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"),
    )),
    allow(dead_code, unused_imports)
)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)]
mod arch;
mod auto;
mod backend;
mod bits;
mod choice;
pub mod cluster;
mod codec;
mod compressor;
mod decompressor;
pub mod encodings;
mod error;
mod lz;
mod lz4;
mod lzo;
mod lzrw;
#[cfg(test)]
mod numbers;
pub mod page_lz;
// The same for the one codec whose vector code is for one processor only.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
pub mod pbpm;
mod same_filled;
mod scratch;
mod wk;
mod wk4x4;
pub mod wkdm;
pub mod wkv;
mod zstd;

pub use auto::{Auto, Objective};
pub use backend::Backend;
pub use choice::{Choice, Chosen};
pub use codec::{Codec, ZstdLevel};
pub use compressor::{Compressor, MAX_COMPRESS_SCRATCH_BYTES, compress_scratch_bytes};
pub use decompressor::{Decompressor, MAX_DECOMPRESS_SCRATCH_BYTES, decompress_scratch_bytes};
pub use encodings::Encoding;
pub use error::{DecodeError, DoesNotFit, ScratchError, UnknownCodec, UnknownEncoding};
pub use same_filled::same_filled;

/// Bytes in a page. Formats, scratch sizes and position types all rest on it.
pub const PAGE_SIZE: usize = 4096;

/// The uncompressed bytes of one page.
pub type Page = [u8; PAGE_SIZE];

/// 32-bit words in a page, the unit of WKdm and PBPM.
const PAGE_WORDS: usize = PAGE_SIZE / 4;

//! `ramfold mount`: a file system in user space (FUSE) that shows a directory, SOURCE, at another
//! place.
//!
//! [`mount`] makes and ends the mount, `fs` answers the kernel's requests by the same requests to
//! SOURCE, and `file` is where all data of files goes through, into a compressed cache and out of
//! it.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

mod file;
mod fs;
pub mod mount;

pub use file::{
    AccessNotes, COMPRESSED_SHARE_MAX, Config, FileCacheError, FileKey, Statistics, View,
};

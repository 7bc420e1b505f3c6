//! The only module with `unsafe`: calls into the C library zstd, behind safe types.

pub(crate) mod libzstd;

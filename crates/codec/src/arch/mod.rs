//! The only module with `unsafe`: calls into the C library zstd, and vector instructions, behind safe
//! types.

pub(crate) mod libzstd;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

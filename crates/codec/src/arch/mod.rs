//! The only module with `unsafe`: calls into the C library zstd, and vector instructions, behind
//! safe types.

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
pub(crate) mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kernels;
mod lanes;
pub(crate) mod libzstd;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

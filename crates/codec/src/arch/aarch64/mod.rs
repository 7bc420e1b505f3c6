//! Vector instructions of AArch64: NEON, which every processor has that this is compiled for.
//!
//! The page LZ has no decoder of its own here: the shifts that make the one for x86-64 faster
//! AArch64 has anyway, and what copies by vectors would gain could not be measured.

mod lz;
mod same_filled;
mod wkv;

pub(crate) use lz::LZ;
pub(crate) use same_filled::SAME_FILLED;
pub(crate) use wkv::KERNELS as WKV;

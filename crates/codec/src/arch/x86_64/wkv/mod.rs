//! WKv's kernels.

mod avx2;
mod avx512;

use super::{Avx2, Avx512};
use crate::wkv::{ByteSet, Kernels};

impl Avx2 {
    pub(crate) fn wkv(self) -> &'static Kernels {
        &avx2::KERNELS
    }
}

impl Avx512 {
    pub(crate) fn wkv(self) -> &'static Kernels {
        &avx512::KERNELS
    }
}

/// From the bits of 32 bytes each.
#[inline]
fn byte_set(eighths: [u32; 8]) -> ByteSet {
    let (pairs, _) = eighths.as_chunks::<2>();
    core::array::from_fn(|nth| u64::from(pairs[nth][0]) | u64::from(pairs[nth][1]) << 32)
}

//! WKv's kernels.

mod avx2;
mod avx512;

use super::{Avx2, Avx512};
use crate::wkv::{ByteSet, Kernels, LANES};

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

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// A bit for each lane below `count`.
#[inline]
fn first_lanes(count: usize) -> u16 {
    if count < LANES { (1 << count) - 1 } else { u16::MAX }
}

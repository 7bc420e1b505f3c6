//! Registers of AVX-512: to load and store them, with bounds checked.

use core::arch::x86_64::*;

/// A vector of eight-bit, sixteen-bit or 32-bit elements at `at`, counted in bytes.
///
/// # Panics
/// When it is not within `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(bytes: &[u8], at: usize) -> __m512i {
    let from = &bytes[at..at + 64];
    // SAFETY: 64 bytes are there.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_half(bytes: &[u8], at: usize) -> __m256i {
    let from = &bytes[at..at + 32];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(bytes: &mut [u8], at: usize, vector: __m512i) {
    let to = &mut bytes[at..at + 64];
    // SAFETY: 64 bytes are there.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_half(bytes: &mut [u8], at: usize, vector: __m256i) {
    let to = &mut bytes[at..at + 32];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) }
}

//! Registers of AVX2: to load and store them, with bounds checked, and to make masks of lanes and
//! shuffles of masks.

use core::arch::x86_64::*;

use crate::arch::lanes::SHUFFLES;

/// Lanes of a register, which is half of sixteen words.
pub(super) const HALF: usize = 8;

/// A shuffle for bytes, in the lower half.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn shuffle(table: &[[u8; HALF]; 256], mask: u8) -> __m128i {
    // SAFETY: eight bytes are there.
    unsafe { _mm_loadl_epi64(table[usize::from(mask)].as_ptr().cast()) }
}

/// A vector at `at`, counted in bytes.
///
/// # Panics
/// When it is not within `bytes`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8], at: usize) -> __m256i {
    let from = &bytes[at..at + 32];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_half(bytes: &[u8], at: usize) -> __m128i {
    let from = &bytes[at..at + 16];
    // SAFETY: sixteen bytes are there.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_quarter(bytes: &[u8], at: usize) -> __m128i {
    let from = &bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { _mm_loadl_epi64(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(bytes: &mut [u8], at: usize, vector: __m256i) {
    let to = &mut bytes[at..at + 32];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_half(bytes: &mut [u8], at: usize, vector: __m128i) {
    let to = &mut bytes[at..at + 16];
    // SAFETY: sixteen bytes are there.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_quarter(bytes: &mut [u8], at: usize, vector: __m128i) {
    let to = &mut bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { _mm_storel_epi64(to.as_mut_ptr().cast(), vector) }
}

/// A bit for each lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn mask_of(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

/// All ones in the lanes whose bits are set.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lanes_of(mask: u8) -> __m256i {
    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let mask = _mm256_set1_epi32(i32::from(mask));
    _mm256_cmpeq_epi32(_mm256_and_si256(mask, bits), bits)
}

/// The words whose bits are set, side by side.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn close(words: __m256i, mask: u8) -> __m256i {
    let order = _mm256_cvtepu8_epi32(shuffle(&SHUFFLES.close, mask));
    _mm256_permutevar8x32_epi32(words, order)
}

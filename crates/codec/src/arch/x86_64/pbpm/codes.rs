//! Codes of two and four bits, packed and unpacked.

use core::arch::x86_64::*;

use crate::arch::x86_64::avx2::{load, load_half, store, store_half};
use crate::pbpm::{Codes, SCALAR_CODES};

/// Only to be had with proof that the instructions are there.
pub(super) static CODES: Codes = Codes {
    // SAFETY: of this and the following: the processor has the instructions.
    pack_twos: |codes, packed| unsafe { pack_twos(codes, packed) },
    // SAFETY: as above.
    unpack_twos: |packed, codes| unsafe { unpack_twos(packed, codes) },
    // SAFETY: as above.
    pack_fours: |codes, packed| unsafe { pack_fours(codes, packed) },
    // SAFETY: as above.
    unpack_fours: |packed, codes| unsafe { unpack_fours(packed, codes) },
};

/// By lane, how far the four codes of a byte are from its low end.
#[inline]
#[target_feature(enable = "avx2")]
fn places() -> __m256i {
    _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)
}

#[target_feature(enable = "avx2")]
fn pack_twos(codes: &[u8], packed: &mut [u8]) {
    let (packed, packed_rest) = packed.as_chunks_mut::<8>();
    let (groups, _) = codes.as_chunks::<32>();
    for (packed, codes) in packed.iter_mut().zip(groups) {
        let codes = _mm256_sllv_epi32(load(codes, 0), places());
        let codes = _mm256_or_si256(codes, _mm256_shuffle_epi32::<0b00_00_11_10>(codes));
        let codes = _mm256_or_si256(codes, _mm256_shuffle_epi32::<0b00_00_00_01>(codes));
        let high = _mm256_extracti128_si256::<1>(codes);
        let both = _mm_unpacklo_epi32(_mm256_castsi256_si128(codes), high);
        *packed = _mm_cvtsi128_si64(both).to_le_bytes();
    }
    (SCALAR_CODES.pack_twos)(&codes[32 * packed.len()..], packed_rest);
}

#[target_feature(enable = "avx2")]
fn unpack_twos(packed: &[u8], codes: &mut [u8]) {
    let (packed, packed_rest) = packed.as_chunks::<8>();
    let (groups, _) = codes.as_chunks_mut::<32>();
    let both = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (packed, codes) in packed.iter().zip(groups) {
        let packed = _mm256_castsi128_si256(_mm_cvtsi64_si128(i64::from_le_bytes(*packed)));
        let shifted = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(packed, both), places());
        store(codes, 0, _mm256_and_si256(shifted, _mm256_set1_epi8(0b11)));
    }
    (SCALAR_CODES.unpack_twos)(packed_rest, &mut codes[32 * packed.len()..]);
}

#[target_feature(enable = "avx2")]
fn pack_fours(codes: &[u8], packed: &mut [u8]) {
    let (packed, packed_rest) = packed.as_chunks_mut::<16>();
    let (groups, _) = codes.as_chunks::<32>();
    for (packed, codes) in packed.iter_mut().zip(groups) {
        let codes = load(codes, 0);
        let codes = _mm256_or_si256(codes, _mm256_srli_epi64(codes, 28));
        let order = _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0);
        let codes = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(codes, order));
        store_half(packed, 0, codes);
    }
    (SCALAR_CODES.pack_fours)(&codes[32 * packed.len()..], packed_rest);
}

#[target_feature(enable = "avx2")]
fn unpack_fours(packed: &[u8], codes: &mut [u8]) {
    let (packed, packed_rest) = packed.as_chunks::<16>();
    let (groups, _) = codes.as_chunks_mut::<32>();
    for (packed, codes) in packed.iter().zip(groups) {
        let words = _mm256_cvtepu32_epi64(load_half(packed, 0));
        let shifted = _mm256_or_si256(words, _mm256_slli_epi64(words, 28));
        store(codes, 0, _mm256_and_si256(shifted, _mm256_set1_epi8(0b1111)));
    }
    (SCALAR_CODES.unpack_fours)(packed_rest, &mut codes[32 * packed.len()..]);
}

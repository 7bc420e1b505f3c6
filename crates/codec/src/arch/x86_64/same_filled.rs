//! Comparing a page with one word, several vectors between two branches.

use core::arch::x86_64::*;

use super::{Avx2, Avx512};
use crate::Page;
use crate::same_filled::Compare;

impl Avx2 {
    pub(crate) fn same_filled(self) -> Compare {
        // SAFETY: `self` is proof that the instructions are there.
        |page, word| unsafe { compare_avx2(page, word) }
    }
}

impl Avx512 {
    pub(crate) fn same_filled(self) -> Compare {
        // SAFETY: `self` is proof that the instructions are there.
        |page, word| unsafe { compare_avx512(page, word) }
    }
}

#[target_feature(enable = "avx2")]
fn compare_avx2(page: &Page, word: u64) -> bool {
    let wanted = _mm256_set1_epi64x(word.cast_signed());
    page.as_chunks::<256>().0.iter().all(|block| {
        let mut differences = _mm256_setzero_si256();
        for vector in block.as_chunks::<32>().0 {
            // SAFETY: 32 bytes are there.
            let vector = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
            differences = _mm256_or_si256(differences, _mm256_xor_si256(vector, wanted));
        }
        _mm256_testz_si256(differences, differences) == 1
    })
}

#[target_feature(enable = "avx512f")]
fn compare_avx512(page: &Page, word: u64) -> bool {
    let wanted = _mm512_set1_epi64(word.cast_signed());
    page.as_chunks::<512>().0.iter().all(|block| {
        let mut differences = _mm512_setzero_si512();
        for vector in block.as_chunks::<64>().0 {
            // SAFETY: 64 bytes are there.
            let vector = unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) };
            differences = _mm512_or_si512(differences, _mm512_xor_si512(vector, wanted));
        }
        _mm512_test_epi64_mask(differences, differences) == 0
    })
}

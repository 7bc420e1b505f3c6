//! Comparing long copies with what they copy, 32 or 64 bytes between two branches.

use core::arch::x86_64::*;

use super::{Avx2, Avx512};
use crate::Page;
use crate::lz::{self, Compare};

impl Avx2 {
    pub(crate) fn lz(self) -> Compare {
        // SAFETY: `self` is proof that the instructions are there.
        |page, earlier, later, end| unsafe { compare_avx2(page, earlier, later, end) }
    }
}

impl Avx512 {
    pub(crate) fn lz(self) -> Compare {
        // SAFETY: `self` is proof that the instructions are there.
        |page, earlier, later, end| unsafe { compare_avx512(page, earlier, later, end) }
    }
}

#[target_feature(enable = "avx2,bmi1")]
fn compare_avx2(page: &Page, earlier: usize, later: usize, end: usize) -> usize {
    let (Some(from), Some(to)) = (page.get(earlier..), page.get(later..end)) else { return 0 };
    let mut length = 0;
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks().0) {
        let different = different_32(from, to);
        if different != 0 {
            return length + different.trailing_zeros() as usize;
        }
        length += 32;
    }
    length + lz::compare(page, earlier + length, later + length, end)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1")]
fn compare_avx512(page: &Page, earlier: usize, later: usize, end: usize) -> usize {
    let (Some(from), Some(to)) = (page.get(earlier..), page.get(later..end)) else { return 0 };
    let mut length = 0;
    // Few copies are longer, and the answer for 64 bytes takes more time to come.
    if let (Some((first, from)), Some((first_to, to))) =
        (from.split_first_chunk(), to.split_first_chunk())
    {
        let different = different_32(first, first_to);
        if different != 0 {
            return different.trailing_zeros() as usize;
        }
        length = 32;
        for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks().0) {
            let different = different_64(from, to);
            if different != 0 {
                return length + different.trailing_zeros() as usize;
            }
            length += 64;
        }
    }
    length + compare_avx2(page, earlier + length, later + length, end)
}

/// A bit for each byte that is not the same.
#[inline]
#[target_feature(enable = "avx2")]
fn different_32(from: &[u8; 32], to: &[u8; 32]) -> u32 {
    // SAFETY: 32 bytes are there.
    let [from, to] = [from, to].map(|bytes| unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) });
    !_mm256_movemask_epi8(_mm256_cmpeq_epi8(from, to)).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn different_64(from: &[u8; 64], to: &[u8; 64]) -> u64 {
    // SAFETY: 64 bytes are there.
    let [from, to] = [from, to].map(|bytes| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) });
    _mm512_cmpneq_epi8_mask(from, to)
}

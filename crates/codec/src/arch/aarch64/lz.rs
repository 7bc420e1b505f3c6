//! Comparing long copies with what they copy, sixteen bytes between two branches.

use core::arch::aarch64::*;

use crate::Page;
use crate::lz::{self, Compare};

// SAFETY: the instructions are there.
pub(crate) static LZ: Compare =
    |page, earlier, later, end| unsafe { compare(page, earlier, later, end) };

#[target_feature(enable = "neon")]
fn compare(page: &Page, earlier: usize, later: usize, end: usize) -> usize {
    let (Some(from), Some(to)) = (page.get(earlier..), page.get(later..end)) else { return 0 };
    let mut length = 0;
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks().0) {
        let different = !same(from, to);
        if different != 0 {
            return length + (different.trailing_zeros() / 4) as usize;
        }
        length += 16;
    }
    length + lz::compare(page, earlier + length, later + length, end)
}

/// Four bits for each byte, set where it is the same.
#[inline]
#[target_feature(enable = "neon")]
fn same(from: &[u8; 16], to: &[u8; 16]) -> u64 {
    // SAFETY: sixteen bytes are there.
    let [from, to] = [from, to].map(|bytes| unsafe { vld1q_u8(bytes.as_ptr()) });
    let same = vreinterpretq_u16_u8(vceqq_u8(from, to));
    vget_lane_u64::<0>(vreinterpret_u64_u8(vshrn_n_u16::<4>(same)))
}

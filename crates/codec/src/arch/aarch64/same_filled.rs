//! Comparing a page with one word, sixteen vectors between two branches.

use core::arch::aarch64::*;

use crate::Page;
use crate::same_filled::Compare;

// SAFETY: the instructions are there.
pub(crate) static SAME_FILLED: Compare = |page, word| unsafe { compare(page, word) };

#[target_feature(enable = "neon")]
fn compare(page: &Page, word: u64) -> bool {
    let wanted = vreinterpretq_u8_u64(vdupq_n_u64(word));
    page.as_chunks::<256>().0.iter().all(|block| {
        let mut differences = vdupq_n_u8(0);
        for vector in block.as_chunks::<16>().0 {
            // SAFETY: sixteen bytes are there.
            let vector = unsafe { vld1q_u8(vector.as_ptr()) };
            differences = vorrq_u8(differences, veorq_u8(vector, wanted));
        }
        vmaxvq_u8(differences) == 0
    })
}

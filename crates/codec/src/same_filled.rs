//! The test for a page that is one repeated word. Such a page needs no object.

use crate::Page;
use crate::backend::Backend;

/// Words whose differences are collected before one branch. They are in four lanes, which become
/// vector registers: with one lane the compiler makes a branch for each word, at 60 % of the speed.
const BLOCK: usize = 32;
const LANES: usize = 4;

/// Whether a page is a word repeated.
pub(crate) type Compare = fn(&Page, u64) -> bool;

/// The word, little-endian, if the page is one 64-bit word repeated 512 times.
///
/// For most other pages the first two words decide. The word has 64 bits rather than 32 because
/// arrays of `double` and of pointers repeat with that period, which covers all shorter ones.
#[inline]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    if words[0] != words[1] {
        return None;
    }
    same_filled_by(page, Backend::best())
}

/// The same, with these instructions.
fn same_filled_by(page: &Page, backend: Backend) -> Option<u64> {
    let word = u64::from_le_bytes(page.as_chunks().0[0]);
    backend.same_filled()(page, word).then_some(word)
}

/// Without vector instructions of our own.
pub(crate) const SCALAR: Compare = |page, word| {
    let (words, _) = page.as_chunks::<8>();
    words.as_chunks::<BLOCK>().0.iter().all(|block| {
        let mut differences = [0; LANES];
        for lanes in block.as_chunks::<LANES>().0 {
            for (difference, &bytes) in differences.iter_mut().zip(lanes) {
                *difference |= u64::from_le_bytes(bytes) ^ word;
            }
        }
        differences == [0; LANES]
    })
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    fn filled(word: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        for chunk in page.chunks_exact_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    #[test]
    fn one_word_repeated() {
        for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0x2020_2020_2020_2020, 1 << 63] {
            assert_eq!(same_filled(&filled(word)), Some(word));
            for backend in Backend::available() {
                assert_eq!(same_filled_by(&filled(word), backend), Some(word), "{backend:?}");
            }
        }
    }

    #[test]
    fn any_single_flipped_bit_is_seen() {
        for word in [0, 0x0123_4567_89ab_cdef] {
            let mut page = filled(word);
            for bit in (0..PAGE_SIZE * 8).step_by(if cfg!(miri) { 2731 } else { 1 }) {
                page[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(same_filled(&page), None, "bit {bit}");
                for backend in Backend::available() {
                    assert_eq!(same_filled_by(&page, backend), None, "bit {bit}, {backend:?}");
                }
                page[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

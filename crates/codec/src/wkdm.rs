//! WKdm: a word codec with a direct-mapped dictionary (Wilson, Kaplan and Smaragdakis, USENIX
//! 1999), in the format of `wk`.
//!
//! A word's slot is [`SLOT`] of its bits 10 to 17. It takes every word that is not zero.

use crate::Page;
use crate::error::{DecodeError, DoesNotFit};
use crate::wk::{self, Dictionary, key_of};

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize = wk::SCRATCH_BYTES;

/// Dictionary slot of a word, by its bits 10 to 17.
///
/// Sixteen runs, each a permutation of the sixteen slots, so that words up to 16 KiB apart, as
/// pointers into a small heap are, do not displace each other; shuffled, so that no larger stride
/// falls on one slot only. The numbers are `bits::shuffled_runs` of 16.
#[rustfmt::skip]
pub const SLOT: [u8; 256] = [
    12, 15, 14, 9, 8, 3, 7, 11, 10, 2, 6, 5, 0, 13, 4, 1, 2, 3, 9, 4, 13, 11, 6, 12, 14, 5, 8, 15,
    10, 0, 7, 1, 9, 1, 0, 3, 10, 13, 2, 11, 6, 4, 12, 8, 14, 5, 15, 7, 10, 2, 15, 6, 12, 4, 13, 5,
    14, 11, 7, 1, 8, 0, 3, 9, 2, 3, 10, 7, 9, 11, 1, 8, 5, 15, 4, 0, 12, 14, 6, 13, 10, 1, 2, 15,
    12, 8, 9, 0, 6, 11, 14, 4, 3, 13, 7, 5, 3, 2, 1, 5, 15, 12, 7, 13, 10, 9, 6, 0, 4, 14, 11, 8,
    11, 6, 5, 2, 7, 14, 12, 1, 10, 15, 9, 4, 8, 13, 0, 3, 7, 13, 6, 8, 11, 1, 5, 2, 9, 4, 12, 0, 15,
    3, 14, 10, 10, 4, 15, 2, 5, 1, 3, 13, 7, 8, 12, 14, 9, 6, 0, 11, 15, 1, 2, 0, 12, 10, 13, 6, 11,
    9, 7, 4, 3, 8, 5, 14, 3, 5, 9, 11, 7, 6, 4, 0, 14, 2, 15, 1, 13, 12, 8, 10, 11, 0, 9, 5, 2, 8,
    4, 7, 3, 15, 10, 12, 6, 14, 13, 1, 9, 3, 14, 0, 1, 8, 4, 10, 13, 15, 12, 11, 5, 2, 7, 6, 15, 4,
    9, 5, 10, 13, 11, 0, 1, 7, 2, 12, 14, 3, 6, 8, 7, 13, 0, 3, 11, 10, 8, 9, 4, 15, 1, 5, 14, 12,
    2, 6,
];

/// The dictionary, as long as a slot number can say, which spares a check on each use. Slots from
/// 16 on stay unused.
struct DirectMapped([u32; 256]);

#[inline]
fn slot_of(word: u32) -> u8 {
    SLOT[key_of(word)]
}

impl Dictionary for DirectMapped {
    const EMPTY: Self = DirectMapped([0; 256]);

    #[inline]
    fn look_up(&mut self, word: u32) -> (u8, u32) {
        let slot = slot_of(word);
        let entry = &mut self.0[usize::from(slot)];
        let difference = word ^ *entry;
        *entry = word;
        (slot, difference)
    }

    #[inline]
    fn miss(&mut self, word: u32) {
        self.0[usize::from(slot_of(word))] = word;
    }

    #[inline]
    fn hit(&mut self, slot: u8, make: impl FnOnce(u32) -> u32) -> u32 {
        let entry = &mut self.0[usize::from(slot)];
        *entry = make(*entry);
        *entry
    }
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    wk::compress::<DirectMapped>(page, scratch, out)
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the sections do not have the lengths that tags and header call for, when
/// padding is not zero, or when a sparse object's places are not in order.
pub(crate) fn decompress(
    object: &[u8],
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    wk::decompress::<DirectMapped>(object, scratch, page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_its_rule() {
        assert_eq!(SLOT, crate::bits::shuffled_runs(16));
    }
}

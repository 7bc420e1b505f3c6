//! WK4x4: WKdm with a dictionary of four sets of four ways (Wilson, Kaplan and Smaragdakis, USENIX
//! 1999), in the format of `wk`.
//!
//! A word's set is [`SLOT`] of its bits 10 to 17, modulo 4. Within a set the entries are ordered
//! from the latest to the one longest unused. The way that differs least from the word is compared,
//! as exclusive or, the latest of equal ones; a slot number is 4 * set + way. Then the word, or on
//! a miss the word in the place of the last entry, moves to the front. The decoder replays the
//! moves.

use crate::Page;
use crate::error::{DecodeError, DoesNotFit};
use crate::wk::{self, Dictionary, key_of};
use crate::wkdm::SLOT;

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize = wk::SCRATCH_BYTES;

const SETS: usize = 4;
const WAYS: usize = 4;

struct SetAssociative([[u32; WAYS]; SETS]);

#[inline]
fn set_of(word: u32) -> usize {
    usize::from(SLOT[key_of(word)]) % SETS
}

/// Moves the entries before `way` one back, over it, and puts `word` first.
#[inline]
fn move_to_front(ways: &mut [u32; WAYS], way: usize, word: u32) {
    let [first, second, third, fourth] = *ways;
    *ways = [
        word,
        if way >= 1 { first } else { second },
        if way >= 2 { second } else { third },
        if way >= 3 { third } else { fourth },
    ];
}

impl Dictionary for SetAssociative {
    const EMPTY: Self = SetAssociative([[0; WAYS]; SETS]);

    #[inline]
    fn look_up(&mut self, word: u32) -> (u8, u32) {
        let set = set_of(word);
        let ways = &mut self.0[set];
        let (mut way, mut difference) = (0, word ^ ways[0]);
        for (nth, known) in ways.iter().enumerate().skip(1) {
            let nearer = (word ^ known) < difference;
            way = if nearer { nth } else { way };
            difference = if nearer { word ^ known } else { difference };
        }
        let is_miss = difference > wk::LOW_MASK;
        way = if is_miss { WAYS - 1 } else { way };
        move_to_front(ways, way, word);
        ((WAYS * set + way) as u8, difference)
    }

    #[inline]
    fn miss(&mut self, word: u32) {
        move_to_front(&mut self.0[set_of(word)], WAYS - 1, word);
    }

    #[inline]
    fn hit(&mut self, slot: u8, make: impl FnOnce(u32) -> u32) -> u32 {
        let (set, way) = (usize::from(slot) / WAYS % SETS, usize::from(slot) % WAYS);
        let ways = &mut self.0[set];
        let word = make(ways[way]);
        move_to_front(ways, way, word);
        word
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
    wk::compress::<SetAssociative>(page, scratch, out)
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
    wk::decompress::<SetAssociative>(object, scratch, page)
}

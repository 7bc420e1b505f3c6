//! What has to be done one word after the other where all else is done by vectors: each word meets
//! the dictionary as the words before it have left it.
//!
//! No step takes a branch, and none waits for more than the last word of its set, or the entry that
//! its word is made of. On heap pages of ten programs the longest such chain has 180 to 360 of up
//! to 950 words where they are looked up, and 5 to 110 where they are recalled. The loops are
//! functions of their own, so that the vector code around them takes no registers from them.

use core::hint::select_unpredictable;

use super::{SETS, set_of};

/// The set of each word.
#[inline(never)]
pub(crate) fn assign(words: &[[u8; 4]], sets: &mut [u8]) {
    for (word, set) in words.iter().zip(sets) {
        *set = set_of(u32::from_le_bytes(*word));
    }
}

/// Two entries: the newer one in the lower half.
type Entries = u64;

/// Looks a word up: its difference from the nearer entry, which is 0 for a full match, whether that
/// entry is the newer one (the older if they are equal), and what is left when the word has
/// entered, as all but full matches do.
#[inline]
fn look_up(entries: Entries, word: u32) -> (u32, bool, Entries) {
    let to_newer = word ^ entries as u32;
    let to_older = word ^ (entries >> 32) as u32;
    let entered = entries << 32 | u64::from(word);
    // Each entry for itself: the lesser difference would be known later.
    let left = select_unpredictable(to_newer == 0, entries, entered);
    let left = select_unpredictable(to_older == 0, entries, left);
    (to_newer.min(to_older), to_newer < to_older, left)
}

/// Turns each word into its difference from the nearer entry of its set, and notes 1 if that is the
/// newer one.
#[inline(never)]
pub(crate) fn find(words: &mut [[u8; 4]], sets: &[u8], newer: &mut [u8]) {
    let mut dictionary = [0; SETS];
    for ((word, set), is_newer) in words.iter_mut().zip(sets).zip(newer) {
        let entries = &mut dictionary[usize::from(*set) % SETS];
        let found = look_up(*entries, u32::from_le_bytes(*word));
        (*word, *is_newer, *entries) = (found.0.to_le_bytes(), u8::from(found.1), found.2);
    }
}

/// The same for words of one set, whose entries need not go through memory.
#[inline(never)]
pub(crate) fn find_in_one(words: &mut [[u8; 4]], newer: &mut [u8]) {
    let mut entries = 0;
    for (word, is_newer) in words.iter_mut().zip(newer) {
        let found = look_up(entries, u32::from_le_bytes(*word));
        (*word, *is_newer, entries) = (found.0.to_le_bytes(), u8::from(found.1), found.2);
    }
}

/// Entries, and among them slots for what is no entry.
pub(crate) const SLOTS: usize = 32;
/// Always zero.
pub(crate) const EMPTY: u8 = 16;
/// Never read.
pub(crate) const IGNORED: u8 = 17;

/// Makes words of their data, which has zeros for all that is known from the dictionary: by word,
/// from which slot it is known, and to which slot the word goes.
#[inline(never)]
pub(crate) fn recall(words: &mut [[u8; 4]], known: &[[u8; 4]], from: &[u8], to: &[u8]) {
    let mut slots = [0u32; SLOTS];
    for (((word, known), from), to) in words.iter_mut().zip(known).zip(from).zip(to) {
        let entry = slots[usize::from(*from) % SLOTS];
        let value = entry & u32::from_le_bytes(*known) | u32::from_le_bytes(*word);
        *word = value.to_le_bytes();
        slots[usize::from(*to) % SLOTS] = value;
    }
}

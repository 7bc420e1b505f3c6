//! WKdm: a word codec with a direct-mapped dictionary (Wilson, Kaplan and Smaragdakis, USENIX
//! 1999).
//!
//! The page is read as 1,024 little-endian words. A dictionary of 16 words, zero at first, is
//! indexed by [`SLOT`] over bits 10 to 17 of the word. Each word gets a two-bit tag:
//!
//! | tag | case | what else is stored | dictionary |
//! |---|---|---|---|
//! | 0 | the word is zero | | |
//! | 1 | its slot agrees in the upper 22 bits | slot, the low 10 bits | the slot takes the word |
//! | 2 | miss | the word | the slot takes the word |
//! | 3 | its slot holds the word | slot | |
//!
//! Tags, missed words, slots and low bits go to separate sections, laid out in `docs/codecs.md`. A
//! page with at most [`SPARSE_WORDS_MAX`] non-zero words is stored as those words and their places
//! instead, which is always shorter than its tags would be.
//!
//! The first pass lists the words that are not zero; the second handles those alone. Compressing
//! takes no branch on a word: each case is computed and stored at its cursor, and kept by advancing
//! the cursor. On heap pages, where tags are close to random, mispredicted branches cost more than
//! that.

use crate::bits::{
    CodeTape, PlaceTape, count_two_bit_codes, deinterleave_four_bit, deinterleave_two_bit,
    interleave_four_bit, interleave_two_bit, list_nonzero_codes, list_nonzero_words,
};
use crate::error::{DecodeError, DoesNotFit};
use crate::{PAGE_WORDS, Page};

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub const SCRATCH_BYTES: usize = 2 * PAGE_WORDS + 2 * PAGE_WORDS + 2 * LOW_TAPE + 4 * PAGE_WORDS;

/// One low part an entry; rounded up to whole groups of three.
const LOW_TAPE: usize = PAGE_WORDS.next_multiple_of(LOWS_A_WORD);

struct Tapes<'a> {
    tags: &'a mut CodeTape,
    slots: &'a mut CodeTape,
    places: &'a mut PlaceTape,
    lows: &'a mut [[u8; 2]; LOW_TAPE],
    misses: &'a mut [[u8; 4]; PAGE_WORDS],
}

impl<'a> Tapes<'a> {
    #[inline]
    fn carve(scratch: &'a mut [u8; SCRATCH_BYTES]) -> Option<Tapes<'a>> {
        let (tags, rest) = scratch.split_first_chunk_mut()?;
        let (slots, rest) = rest.split_first_chunk_mut()?;
        let (places, rest) = rest.split_first_chunk_mut::<{ 2 * PAGE_WORDS }>()?;
        let (lows, misses) = rest.split_first_chunk_mut::<{ 2 * LOW_TAPE }>()?;
        Some(Tapes {
            tags,
            slots,
            places: places.as_chunks_mut().0.first_chunk_mut()?,
            lows: lows.as_chunks_mut().0.first_chunk_mut()?,
            misses: misses.as_chunks_mut().0.first_chunk_mut()?,
        })
    }
}

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

/// Non-zero words up to which a page is stored as places and words.
pub const SPARSE_WORDS_MAX: usize = 43;

/// The first byte of an object says which form it has.
const FORM_DENSE: u8 = 0;
const FORM_SPARSE: u8 = 1;

const HEADER: usize = 8;
const TAGS: usize = PAGE_WORDS / 4;
const MISSES_AT: usize = HEADER + TAGS;
const SPARSE_HEADER: usize = 2;
const SPARSE_PAIR: usize = 6;

// The largest sparse object is shorter than the shortest dense one, so choosing by the number of
// words never makes an object longer.
const _: () = assert!(SPARSE_HEADER + SPARSE_WORDS_MAX * SPARSE_PAIR < MISSES_AT);

const ZERO: u8 = 0;
const PARTIAL: u8 = 1;
const MISS: u8 = 2;
const EXACT: u8 = 3;

const TAGS_A_WORD: usize = 16;
const SLOTS_A_WORD: usize = 8;
const LOWS_A_WORD: usize = 3;

const LOW_BITS: u32 = 10;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;

#[inline]
fn slot_of(word: u32) -> u8 {
    SLOT[usize::from((word >> LOW_BITS) as u8)]
}

/// The dictionary, as long as a slot number can say, which spares a check on each use. Slots from
/// 16 on stay unused.
type Dictionary = [u32; 256];

/// Cursors of the three tapes in one number, so that a tag moves all of them with one addition.
#[derive(Clone, Copy)]
struct Cursors(u64);

impl Cursors {
    const WIDTH: u32 = 16;

    const fn new(miss_count: u64, slot_count: u64, low_count: u64) -> Cursors {
        Cursors(miss_count | slot_count << Self::WIDTH | low_count << (2 * Self::WIDTH))
    }

    /// By tag, how many entries a word adds to each tape.
    const STEP: [Cursors; 4] = [
        Cursors::new(0, 0, 0),
        Cursors::new(0, 1, 1),
        Cursors::new(1, 0, 0),
        Cursors::new(0, 1, 0),
    ];

    #[inline]
    fn advance(&mut self, tag: u8) {
        self.0 += Self::STEP[usize::from(tag) & 3].0;
    }

    #[inline]
    fn misses(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline]
    fn slots(self) -> usize {
        usize::from((self.0 >> Self::WIDTH) as u16)
    }

    #[inline]
    fn lows(self) -> usize {
        usize::from((self.0 >> (2 * Self::WIDTH)) as u16)
    }
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub fn compress(
    page: &Page,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let Tapes { tags, slots, places, lows, misses } = Tapes::carve(scratch).ok_or(DoesNotFit)?;
    let nonzero_count = list_nonzero_words(page, places);
    if nonzero_count <= SPARSE_WORDS_MAX {
        return compress_sparse(page, &places[..nonzero_count], out);
    }
    let words = page.as_chunks::<4>().0;
    tags.fill(ZERO);
    let mut dictionary: Dictionary = [0; 256];
    let mut cursors = Cursors::new(0, 0, 0);
    for places in places[..nonzero_count].chunks(64) {
        for place in places {
            let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
            let bytes = words[place];
            let word = u32::from_le_bytes(bytes);
            let slot = slot_of(word);
            let difference = word ^ dictionary[usize::from(slot)];
            let is_exact = u8::from(difference == 0);
            let is_partial = u8::from(difference <= LOW_MASK);
            let tag = MISS - is_partial + (EXACT - PARTIAL) * is_exact;
            tags[place] = tag;
            // A cursor is below the number of words read; the remainders tell the compiler.
            slots[cursors.slots() % PAGE_WORDS] = slot;
            lows[cursors.lows() % PAGE_WORDS] = (word as u16).to_le_bytes();
            misses[cursors.misses() % PAGE_WORDS] = bytes;
            cursors.advance(tag);
            dictionary[usize::from(slot)] = word;
        }
        if MISSES_AT + 4 * cursors.misses() > out.len() {
            return Err(DoesNotFit);
        }
    }

    let (miss_count, slot_count, low_count) = (cursors.misses(), cursors.slots(), cursors.lows());
    let slots_at = MISSES_AT + 4 * miss_count;
    let lows_at = slots_at + 4 * slot_count.div_ceil(SLOTS_A_WORD);
    let end = lows_at + 4 * low_count.div_ceil(LOWS_A_WORD);
    let object = out.get_mut(..end).ok_or(DoesNotFit)?;

    let header = [u16::from(FORM_DENSE), slots_at as u16, lows_at as u16, end as u16];
    for (bytes, field) in object[..HEADER].as_chunks_mut().0.iter_mut().zip(header) {
        *bytes = field.to_le_bytes();
    }
    let groups = tags.as_chunks::<TAGS_A_WORD>().0;
    for (bytes, group) in object[HEADER..MISSES_AT].as_chunks_mut().0.iter_mut().zip(groups) {
        *bytes = interleave_two_bit(*group).to_le_bytes();
    }
    object[MISSES_AT..slots_at].copy_from_slice(misses[..miss_count].as_flattened());
    // What fills the last group up is zero, not what an earlier page left on the tape.
    slots[slot_count..slot_count.next_multiple_of(SLOTS_A_WORD)].fill(0);
    lows[low_count..low_count.next_multiple_of(LOWS_A_WORD)].fill([0; 2]);
    let groups = slots.as_chunks::<SLOTS_A_WORD>().0;
    for (bytes, group) in object[slots_at..lows_at].as_chunks_mut().0.iter_mut().zip(groups) {
        *bytes = interleave_four_bit(*group).to_le_bytes();
    }
    let groups = lows.as_chunks::<LOWS_A_WORD>().0;
    for (bytes, group) in object[lows_at..].as_chunks_mut().0.iter_mut().zip(groups) {
        let [first, second, third] = group.map(|low| u32::from(u16::from_le_bytes(low)) & LOW_MASK);
        *bytes = (first | second << LOW_BITS | third << (2 * LOW_BITS)).to_le_bytes();
    }
    Ok(end)
}

fn compress_sparse(page: &Page, places: &[[u8; 2]], out: &mut [u8]) -> Result<usize, DoesNotFit> {
    let end = SPARSE_HEADER + places.len() * SPARSE_PAIR;
    let object = out.get_mut(..end).ok_or(DoesNotFit)?;
    let (header, pairs) = object.split_at_mut(SPARSE_HEADER);
    header.copy_from_slice(&[FORM_SPARSE, places.len() as u8]);
    let words = page.as_chunks::<4>().0;
    for (pair, place) in pairs.as_chunks_mut::<SPARSE_PAIR>().0.iter_mut().zip(places) {
        let [p0, p1] = *place;
        let [w0, w1, w2, w3] = words[usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS];
        *pair = [p0, p1, w0, w1, w2, w3];
    }
    Ok(end)
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the sections do not have the lengths that tags and header call for, when
/// padding is not zero, or when a sparse object's places are not in order.
pub fn decompress(
    object: &[u8],
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let (&[form, count], pairs) = object.split_first_chunk().ok_or(DecodeError::Truncated)?;
    match (form, count) {
        (FORM_DENSE, 0) => decompress_dense(object, scratch, page),
        (FORM_SPARSE, _) => decompress_sparse(usize::from(count), pairs, page),
        _ => Err(DecodeError::Malformed("WKdm form")),
    }
}

/// The `nth` 16-bit field of the header.
#[inline]
fn field(object: &[u8], nth: usize) -> Result<u16, DecodeError> {
    let bytes = object.as_chunks::<2>().0.get(nth).ok_or(DecodeError::Truncated)?;
    Ok(u16::from_le_bytes(*bytes))
}

fn decompress_dense(
    object: &[u8],
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let (_, sections) = object.split_at_checked(HEADER).ok_or(DecodeError::Truncated)?;
    let (tags, sections) = sections.split_first_chunk::<TAGS>().ok_or(DecodeError::Truncated)?;

    // The tags alone give the length of every section. The header must agree, and so must the
    // object; after this no cursor can run past its section.
    let [_, partial_count, miss_count, exact_count] = count_two_bit_codes(tags);
    let slot_count = partial_count + exact_count;
    let slots_at = MISSES_AT + 4 * miss_count;
    let lows_at = slots_at + 4 * slot_count.div_ceil(SLOTS_A_WORD);
    let end = lows_at + 4 * partial_count.div_ceil(LOWS_A_WORD);
    for (nth, at) in [slots_at, lows_at, end].into_iter().enumerate() {
        if usize::from(field(object, 1 + nth)?) != at {
            return Err(DecodeError::Malformed("WKdm section offset"));
        }
    }
    if object.len() < end {
        return Err(DecodeError::Truncated);
    }
    if object.len() > end {
        return Err(DecodeError::TrailingBytes);
    }
    let (misses, sections) = sections.split_at(slots_at - MISSES_AT);
    let (packed_slots, packed_lows) = sections.split_at(lows_at - slots_at);
    let misses = misses.as_chunks::<4>().0;

    let Tapes { tags: tag_tape, slots, places, lows, .. } =
        Tapes::carve(scratch).ok_or(DecodeError::Truncated)?;
    for (bytes, group) in tags.as_chunks().0.iter().zip(tag_tape.as_chunks_mut().0) {
        *group = deinterleave_two_bit(u32::from_le_bytes(*bytes));
    }
    unpack_slots(packed_slots, slot_count, slots)?;
    unpack_lows(packed_lows, partial_count, lows)?;

    page.fill(0);
    let words = page.as_chunks_mut::<4>().0;
    let nonzero_count = list_nonzero_codes(tag_tape, places);
    let mut dictionary: Dictionary = [0; 256];
    let (mut miss_at, mut slot_at, mut low_at) = (0usize, 0usize, 0usize);
    for place in &places[..nonzero_count] {
        let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
        let tag = tag_tape[place];
        // One branch, because a predicted miss need not wait for the dictionary. Exact and partial
        // matches share a path: telling them apart by a branch is slower (1.1 against 1.3 GB/s on
        // the heap of a compiler).
        let word = if tag == MISS {
            let word = u32::from_le_bytes(misses.get(miss_at).copied().unwrap_or_default());
            miss_at += 1;
            dictionary[usize::from(slot_of(word))] = word;
            word
        } else {
            let slot = usize::from(slots[slot_at % PAGE_WORDS]);
            let low = u32::from(u16::from_le_bytes(lows[low_at % PAGE_WORDS]));
            let is_partial = u32::from(tag == PARTIAL);
            let from_low = LOW_MASK & is_partial.wrapping_neg();
            let word = dictionary[slot] & !from_low | low & from_low;
            slot_at += 1;
            low_at += is_partial as usize;
            dictionary[slot] = word;
            word
        };
        words[place] = word.to_le_bytes();
    }
    Ok(())
}

/// Unpacks whole groups; `packed` holds `slot_count` slots rounded up to a group.
fn unpack_slots(packed: &[u8], slot_count: usize, slots: &mut CodeTape) -> Result<(), DecodeError> {
    let groups = slots.as_chunks_mut::<SLOTS_A_WORD>().0;
    for (bytes, group) in packed.as_chunks().0.iter().zip(groups) {
        *group = deinterleave_four_bit(u32::from_le_bytes(*bytes));
    }
    let padded = slot_count.next_multiple_of(SLOTS_A_WORD);
    if slots[slot_count..padded].iter().any(|&slot| slot != 0) {
        return Err(DecodeError::Malformed("WKdm slot padding"));
    }
    Ok(())
}

/// Unpacks whole groups; `packed` holds `low_count` low parts rounded up to a group.
fn unpack_lows(
    packed: &[u8],
    low_count: usize,
    lows: &mut [[u8; 2]; LOW_TAPE],
) -> Result<(), DecodeError> {
    let mut spare_bits = 0;
    for (bytes, group) in packed.as_chunks().0.iter().zip(lows.as_chunks_mut::<LOWS_A_WORD>().0) {
        let word = u32::from_le_bytes(*bytes);
        for (nth, low) in group.iter_mut().enumerate() {
            *low = ((word >> (LOW_BITS * nth as u32) & LOW_MASK) as u16).to_le_bytes();
        }
        spare_bits |= word >> (LOW_BITS * LOWS_A_WORD as u32);
    }
    let padded = low_count.next_multiple_of(LOWS_A_WORD);
    if spare_bits != 0 || lows[low_count..padded].iter().any(|&low| low != [0; 2]) {
        return Err(DecodeError::Malformed("WKdm low-bit padding"));
    }
    Ok(())
}

fn decompress_sparse(count: usize, pairs: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    if count > SPARSE_WORDS_MAX {
        return Err(DecodeError::Malformed("WKdm sparse word count"));
    }
    if pairs.len() < count * SPARSE_PAIR {
        return Err(DecodeError::Truncated);
    }
    if pairs.len() > count * SPARSE_PAIR {
        return Err(DecodeError::TrailingBytes);
    }
    page.fill(0);
    let words = page.as_chunks_mut::<4>().0;
    let mut next_place = 0;
    for &[place_low, place_high, ref word @ ..] in pairs.as_chunks::<SPARSE_PAIR>().0 {
        let place = usize::from(u16::from_le_bytes([place_low, place_high]));
        if place < next_place || *word == [0; 4] {
            return Err(DecodeError::Malformed("WKdm sparse pair"));
        }
        *words.get_mut(place).ok_or(DecodeError::TooLong)? = *word;
        next_place = place + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_its_rule() {
        assert_eq!(SLOT, crate::bits::shuffled_runs(16));
    }
}

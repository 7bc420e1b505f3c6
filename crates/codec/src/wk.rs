//! The format that WKdm and WK4x4 share (Wilson, Kaplan and Smaragdakis, USENIX 1999). They differ
//! in their [`Dictionary`] alone.
//!
//! The page is read as 1,024 little-endian words. Each gets a two-bit tag, against a dictionary of
//! 16 words seen before:
//!
//! | tag | case | what else is stored |
//! |---|---|---|
//! | 0 | the word is zero | |
//! | 1 | an entry agrees in the upper 22 bits | slot, the low 10 bits |
//! | 2 | miss | the word |
//! | 3 | an entry is the word | slot |
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
use crate::scratch::Carver;
use crate::{PAGE_WORDS, Page};

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize =
    2 * PAGE_WORDS + 2 * PAGE_WORDS + 2 * LOW_TAPE + 4 * PAGE_WORDS;

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
        let mut carver = Carver(scratch);
        Some(Tapes {
            tags: carver.bytes()?,
            slots: carver.bytes()?,
            places: carver.numbers()?,
            lows: carver.numbers()?,
            misses: carver.numbers()?,
        })
    }
}

/// Non-zero words up to which a page is stored as places and words.
const SPARSE_WORDS_MAX: usize = 43;

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
pub(crate) const LOW_MASK: u32 = (1 << LOW_BITS) - 1;

/// What the codecs differ in: 16 words that were read before, and where in them to look.
pub(crate) trait Dictionary {
    /// The dictionary at the start of a page: zeros.
    const EMPTY: Self;

    /// The slot of the entry nearest to a word, and the exclusive or of both: 0 when the entry is
    /// that word, at most [`LOW_MASK`] when it agrees in the upper bits. Then takes the word in.
    fn look_up(&mut self, word: u32) -> (u8, u32);

    /// Takes in a word that was not found.
    fn miss(&mut self, word: u32);

    /// The word made of the entry in this slot, which is taken in again. Slots are below 16.
    fn hit(&mut self, slot: u8, make: impl FnOnce(u32) -> u32) -> u32;
}

/// The number, below 256, by which a dictionary places a word: what is left of its upper 22 bits.
#[inline]
pub(crate) fn key_of(word: u32) -> usize {
    usize::from((word >> LOW_BITS) as u8)
}

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
pub(crate) fn compress<D: Dictionary>(
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
    let mut dictionary = D::EMPTY;
    let mut cursors = Cursors::new(0, 0, 0);
    for places in places[..nonzero_count].chunks(64) {
        for place in places {
            let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
            let bytes = words[place];
            let word = u32::from_le_bytes(bytes);
            let (slot, difference) = dictionary.look_up(word);
            let is_exact = u8::from(difference == 0);
            let is_partial = u8::from(difference <= LOW_MASK);
            let tag = MISS - is_partial + (EXACT - PARTIAL) * is_exact;
            tags[place] = tag;
            // A cursor is below the number of words read; the remainders tell the compiler.
            slots[cursors.slots() % PAGE_WORDS] = slot;
            lows[cursors.lows() % PAGE_WORDS] = (word as u16).to_le_bytes();
            misses[cursors.misses() % PAGE_WORDS] = bytes;
            cursors.advance(tag);
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
pub(crate) fn decompress<D: Dictionary>(
    object: &[u8],
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let (&[form, count], pairs) = object.split_first_chunk().ok_or(DecodeError::Truncated)?;
    match (form, count) {
        (FORM_DENSE, 0) => decompress_dense::<D>(object, scratch, page),
        (FORM_SPARSE, _) => decompress_sparse(usize::from(count), pairs, page),
        _ => Err(DecodeError::Malformed("WK form")),
    }
}

/// The `nth` 16-bit field of the header.
#[inline]
fn field(object: &[u8], nth: usize) -> Result<u16, DecodeError> {
    let bytes = object.as_chunks::<2>().0.get(nth).ok_or(DecodeError::Truncated)?;
    Ok(u16::from_le_bytes(*bytes))
}

fn decompress_dense<D: Dictionary>(
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
            return Err(DecodeError::Malformed("WK section offset"));
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
    let mut dictionary = D::EMPTY;
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
            dictionary.miss(word);
            word
        } else {
            let slot = slots[slot_at % PAGE_WORDS];
            let low = u32::from(u16::from_le_bytes(lows[low_at % PAGE_WORDS]));
            let is_partial = u32::from(tag == PARTIAL);
            let from_low = LOW_MASK & is_partial.wrapping_neg();
            slot_at += 1;
            low_at += is_partial as usize;
            dictionary.hit(slot, |known| known & !from_low | low & from_low)
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
        return Err(DecodeError::Malformed("WK slot padding"));
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
        return Err(DecodeError::Malformed("WK low-bit padding"));
    }
    Ok(())
}

fn decompress_sparse(count: usize, pairs: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    if count > SPARSE_WORDS_MAX {
        return Err(DecodeError::Malformed("WK sparse word count"));
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
            return Err(DecodeError::Malformed("WK sparse pair"));
        }
        *words.get_mut(place).ok_or(DecodeError::TooLong)? = *word;
        next_place = place + 1;
    }
    Ok(())
}

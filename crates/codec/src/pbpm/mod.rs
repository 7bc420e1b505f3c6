//! PBPM: pattern-based partial match, the codec of CRAMES (Yang, Dick, Lekatsas and Chakradhar,
//! *High-performance operating system controlled online memory compression*, ACM TECS 9(4), 2010),
//! sections 4.1 to 4.4, table I and algorithm 1.
//!
//! The page is read as 1,024 little-endian words, each written as four symbols, highest byte first:
//! `z` a zero byte, `m` a byte that equals the dictionary entry's, `x` any byte. The first pattern
//! of this list that a word fits decides:
//!
//! | test | code | index | data | dictionary |
//! |---|---|---|---|---|
//! | `zzzz` | `00` | | | |
//! | `zzzx` | `1100` | | low byte | |
//! | `zxzx` | `1111` | | bytes 0 and 2 | |
//! | `mmmm` | `10` | 4 bits | | |
//! | `mmmx` | `1110` | 4 bits | low byte | takes the word |
//! | `mmxx` | `1101` | 4 bits | low two bytes | takes the word |
//! | `xxxx` | `01` | | the word | takes the word |
//!
//! The dictionary has 16 entries, zero at first, in eight sets of two ways. What the paper leaves
//! open, and the choices made here:
//!
//! - *The third byte*, which chooses the set through [`SET`], is the third from the low end, bits
//!   16 to 23. Section 4.1 gives the reason: the patterns that hashing leaves to consider are
//!   `mmmm`, `mmmx`, `mmxx` and `xmxx`, "only the third byte matches", and that byte is the one all
//!   four share. It also makes every word that could match in its upper half fall in the same set.
//! - *Age* is that of insertion: a full match inserts nothing in algorithm 1, so it renews nothing.
//!   The first insertion into a set goes to way 0, then the ways take turns.
//! - Of two ways that match, the one that differs less is named: the smaller exclusive or with the
//!   word, way 0 if they are equal. An index is `2 * set + way`.
//!
//! Codes, indices and data have tapes of their own (section 4.3): `T_code1` holds the first two
//! bits of each code, `T_code2` the last two of the long ones. The data tape comes first, in one of
//! the three [`Alignment`]s of section 4.4; the others are packed as figure 3 shows and appended.
//! `docs/codecs.md` has the byte layout.

mod data;

use self::data::{DataTape, SeparateTapes, SingleTape, Unaligned};

use crate::bits::{
    CodeTape, PlaceTape, count_two_bit_codes, deinterleave_four_bit, deinterleave_two_bit,
    interleave_four_bit, interleave_two_bit, list_nonzero_codes, list_nonzero_words,
};
use crate::error::{DecodeError, DoesNotFit};
use crate::scratch::Carver;
use crate::{PAGE_WORDS, Page};

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub const SCRATCH_BYTES: usize = 5 * PAGE_WORDS + data::ROOM;

/// How data of one, two and four bytes is laid out: the variants of section 4.4 of the paper. An
/// object says in its header which it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Alignment {
    /// One tape, in the order of the words, whatever that makes of alignment: the fastest where
    /// misaligned access is cheap, as on x86-64 and AArch64.
    Unaligned = 0,
    /// A tape for each of the three sizes, the longest first.
    SeparateTapes = 1,
    /// One tape of words, each of them four single bytes, two pairs or one word.
    SingleTape = 2,
}

impl Alignment {
    /// All of them.
    pub const ALL: &[Alignment] =
        &[Alignment::Unaligned, Alignment::SeparateTapes, Alignment::SingleTape];
}

/// Dictionary set of a word, by its bits 16 to 23.
///
/// The paper has "random indices" (section 4.1). These are 32 runs, each a permutation of the eight
/// sets, so that neighbouring values never meet; `bits::shuffled_runs` of 8.
#[rustfmt::skip]
pub const SET: [u8; 256] = [
    2, 4, 5, 7, 0, 6, 3, 1, 7, 0, 1, 6, 5, 4, 3, 2, 0, 2, 3, 6, 7, 4, 1, 5, 2, 0, 6, 7, 3, 5, 4, 1,
    4, 0, 7, 6, 2, 5, 1, 3, 1, 5, 6, 3, 7, 0, 2, 4, 0, 4, 2, 6, 5, 7, 1, 3, 3, 2, 0, 7, 4, 6, 1, 5,
    3, 2, 0, 7, 5, 1, 6, 4, 6, 5, 4, 2, 1, 0, 3, 7, 1, 2, 3, 7, 5, 4, 0, 6, 1, 2, 6, 0, 7, 4, 3, 5,
    5, 0, 2, 7, 1, 6, 3, 4, 3, 7, 0, 2, 6, 1, 4, 5, 3, 2, 1, 5, 6, 4, 7, 0, 5, 1, 4, 0, 2, 7, 6, 3,
    6, 7, 3, 0, 2, 5, 4, 1, 1, 7, 4, 0, 3, 2, 5, 6, 5, 6, 7, 1, 3, 4, 0, 2, 3, 6, 1, 2, 0, 5, 7, 4,
    3, 6, 7, 2, 5, 1, 0, 4, 0, 4, 7, 1, 5, 6, 3, 2, 3, 4, 5, 2, 7, 6, 1, 0, 1, 0, 4, 7, 3, 6, 5, 2,
    0, 5, 3, 6, 2, 4, 1, 7, 2, 1, 3, 4, 7, 5, 6, 0, 2, 7, 6, 4, 1, 0, 5, 3, 2, 0, 5, 3, 4, 1, 6, 7,
    4, 7, 6, 1, 5, 0, 2, 3, 6, 3, 7, 0, 1, 2, 4, 5, 7, 3, 5, 6, 4, 1, 2, 0, 0, 3, 5, 2, 7, 1, 4, 6,
];

/// Where the header has the alignment, above the length of the data.
const ALIGNMENT_SHIFT: u32 = 13;
const DATA_LENGTH_MASK: u16 = (1 << ALIGNMENT_SHIFT) - 1;

const HEADER: usize = 2;
/// One first code a word, four to a byte.
const CODES1: usize = PAGE_WORDS / 4;

const CODES_A_WORD: usize = 16;
const INDICES_A_WORD: usize = 8;

/// First codes.
const ZZZZ: u8 = 0b00;
const XXXX: u8 = 0b01;
const MMMM: u8 = 0b10;
const LONG: u8 = 0b11;
/// Second codes, after `LONG`.
const ZZZX: u8 = 0b00;
const MMXX: u8 = 0b01;
const MMMX: u8 = 0b10;
const ZXZX: u8 = 0b11;

#[inline]
fn set_of(word: u32) -> u8 {
    // The mask repeats, for the compiler, what the table says.
    SET[usize::from((word >> 16) as u8)] & 7
}

/// What a pattern adds to the tapes and does to the dictionary, in one number: the entries it adds
/// to each tape in fields of 16 bits, where one addition advances all cursors, and above them its
/// codes.
#[derive(Clone, Copy)]
struct Pattern(u64);

impl Pattern {
    const CODE2: u32 = 16;
    const INDEX: u32 = 32;
    const CODES: u32 = 48;
    /// Set if the word enters the dictionary.
    const ENTERS: u32 = 52;

    const fn new(code1: u8, code2: u8, data_bytes: u64, enters: bool) -> Pattern {
        let is_long = code1 == LONG;
        let has_index = code1 == MMMM || (is_long && (code2 == MMXX || code2 == MMMX));
        Pattern(
            data_bytes
                | (is_long as u64) << Self::CODE2
                | (has_index as u64) << Self::INDEX
                | (code1 as u64 | (code2 as u64) << 2) << Self::CODES
                | (enters as u64) << Self::ENTERS,
        )
    }

    #[inline]
    fn data_bytes(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline]
    fn codes2(self) -> usize {
        usize::from((self.0 >> Self::CODE2) as u16)
    }

    #[inline]
    fn indices(self) -> usize {
        usize::from((self.0 >> Self::INDEX) as u16)
    }

    #[inline]
    fn code1(self) -> u8 {
        (self.0 >> Self::CODES) as u8 & 3
    }

    #[inline]
    fn code2(self) -> u8 {
        (self.0 >> (Self::CODES + 2)) as u8 & 3
    }

    #[inline]
    fn enters(self) -> bool {
        self.0 >> Self::ENTERS & 1 != 0
    }
}

const ZZZX_PATTERN: Pattern = Pattern::new(LONG, ZZZX, 1, false);
const ZXZX_PATTERN: Pattern = Pattern::new(LONG, ZXZX, 2, false);
const MMMM_PATTERN: Pattern = Pattern::new(MMMM, 0, 0, false);
const MMMX_PATTERN: Pattern = Pattern::new(LONG, MMMX, 1, true);
const MMXX_PATTERN: Pattern = Pattern::new(LONG, MMXX, 2, true);
const XXXX_PATTERN: Pattern = Pattern::new(XXXX, 0, 4, true);

/// Where the next entry of each tape goes: the sum of the patterns so far.
struct Cursors(Pattern);

impl Cursors {
    const START: Cursors = Cursors(Pattern(0));

    #[inline]
    fn advance(&mut self, pattern: Pattern) {
        // The codes add up to nonsense in the upper 16 bits, where no cursor is.
        self.0 = Pattern(self.0.0.wrapping_add(pattern.0));
    }
}

/// The dictionary of both directions.
struct Dictionary {
    words: [u32; 16],
    /// Bit `s` is the way of set `s` that the next word to enter replaces.
    oldest: u32,
}

impl Dictionary {
    const EMPTY: Dictionary = Dictionary { words: [0; 16], oldest: 0 };

    #[inline]
    fn enter(&mut self, set: u8, word: u32, pattern: Pattern) {
        // A branch, although it is hard to predict: the processor goes on with a guess, where a
        // place computed from the pattern would make each look-up wait for the word before it
        // (measured 20 % slower).
        if pattern.enters() {
            let way = (self.oldest >> set) as usize & 1;
            self.words[(2 * usize::from(set) + way) & 15] = word;
            self.oldest ^= 1 << set;
        }
    }
}

struct Tapes<'a> {
    codes1: &'a mut CodeTape,
    codes2: &'a mut CodeTape,
    indices: &'a mut CodeTape,
    places: &'a mut PlaceTape,
    data: &'a mut [u8; data::ROOM],
}

impl<'a> Tapes<'a> {
    #[inline]
    fn carve(scratch: &'a mut [u8; SCRATCH_BYTES]) -> Option<Tapes<'a>> {
        let mut carver = Carver(scratch);
        Some(Tapes {
            codes1: carver.bytes()?,
            codes2: carver.bytes()?,
            indices: carver.bytes()?,
            places: carver.numbers()?,
            data: carver.bytes()?,
        })
    }
}

/// The pattern of a word that is not zero. `difference` is that to the nearer entry of its set:
/// compared as numbers, a full match is smaller than any `mmmx`, which is smaller than any `mmxx`.
#[inline]
fn pattern_of(word: u32, difference: u32) -> Pattern {
    // By closeness of the match, for words without a zero pattern, for zxzx and for zzzx.
    #[rustfmt::skip]
    const PATTERNS: [Pattern; 12] = [
        MMMM_PATTERN, MMMX_PATTERN, MMXX_PATTERN, XXXX_PATTERN,
        ZXZX_PATTERN, ZXZX_PATTERN, ZXZX_PATTERN, ZXZX_PATTERN,
        ZZZX_PATTERN, ZZZX_PATTERN, ZZZX_PATTERN, ZZZX_PATTERN,
    ];
    let matched = usize::from(difference != 0)
        + usize::from(difference > 0xff)
        + usize::from(difference > 0xffff);
    let zeros = usize::from(word & ZXZX_ZEROS == 0) + usize::from(word <= 0xff);
    PATTERNS[matched + 4 * zeros]
}

/// The bytes that are zero in `zxzx`.
const ZXZX_ZEROS: u32 = 0xff00_ff00;

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub fn compress(
    page: &Page,
    alignment: Alignment,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    match alignment {
        Alignment::Unaligned => compress_with::<Unaligned<'_>>(page, scratch, out),
        Alignment::SeparateTapes => compress_with::<SeparateTapes<'_>>(page, scratch, out),
        Alignment::SingleTape => compress_with::<SingleTape<'_>>(page, scratch, out),
    }
}

fn compress_with<'a, D: DataTape<'a>>(
    page: &Page,
    scratch: &'a mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let Tapes { codes1, codes2, indices, places, data } =
        Tapes::carve(scratch).ok_or(DoesNotFit)?;
    let nonzero_count = list_nonzero_words(page, places);
    codes1.fill(ZZZZ);
    let mut data = D::empty(data);
    let words = page.as_chunks::<4>().0;
    let mut dictionary = Dictionary::EMPTY;
    let mut cursors = Cursors::START;
    for places in places[..nonzero_count].chunks(64) {
        for place in places {
            let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
            let word = u32::from_le_bytes(words[place]);
            let set = set_of(word);
            let first = (2 * usize::from(set)) & 14;
            let to_way_0 = word ^ dictionary.words[first];
            let to_way_1 = word ^ dictionary.words[first + 1];
            let way = u8::from(to_way_1 < to_way_0);
            let pattern = pattern_of(word, to_way_0.min(to_way_1));
            // Bytes 0 and 2 of a zxzx side by side; other words keep their low bytes.
            let is_zxzx = u32::from(word & ZXZX_ZEROS == 0);
            let value = word | (word >> 8) & is_zxzx.wrapping_neg();

            codes1[place] = pattern.code1();
            // The cursors are bounded by the number of words read; the remainders tell the
            // compiler.
            codes2[cursors.0.codes2() % PAGE_WORDS] = pattern.code2();
            indices[cursors.0.indices() % PAGE_WORDS] = 2 * set + way;
            data.put(value, pattern.data_bytes());
            cursors.advance(pattern);
            dictionary.enter(set, word, pattern);
        }
        if D::HEADER + cursors.0.data_bytes() + CODES1 > out.len() {
            return Err(DoesNotFit);
        }
    }

    let data_bytes = data.len();
    let (code2_count, index_count) = (cursors.0.codes2(), cursors.0.indices());
    let codes1_at = D::HEADER + data_bytes;
    let codes2_at = codes1_at + CODES1;
    let indices_at = codes2_at + 4 * code2_count.div_ceil(CODES_A_WORD);
    let end = indices_at + 4 * index_count.div_ceil(INDICES_A_WORD);
    let object = out.get_mut(..end).ok_or(DoesNotFit)?;

    let header = (D::ALIGNMENT as u16) << ALIGNMENT_SHIFT | data_bytes as u16;
    object[..D::HEADER].fill(0);
    object[..HEADER].copy_from_slice(&header.to_le_bytes());
    data.write(&mut object[D::HEADER..codes1_at]);
    pack_codes(codes1, &mut object[codes1_at..codes2_at]);
    // What fills the last word up is zero, not what an earlier page left on the tape.
    codes2[code2_count..code2_count.next_multiple_of(CODES_A_WORD)].fill(0);
    pack_codes(codes2, &mut object[codes2_at..indices_at]);
    indices[index_count..index_count.next_multiple_of(INDICES_A_WORD)].fill(0);
    let groups = indices.as_chunks().0;
    for (bytes, group) in object[indices_at..].as_chunks_mut().0.iter_mut().zip(groups) {
        *bytes = interleave_four_bit(*group).to_le_bytes();
    }
    Ok(end)
}

#[inline]
fn pack_codes(codes: &CodeTape, packed: &mut [u8]) {
    for (bytes, group) in packed.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0) {
        *bytes = interleave_two_bit(*group).to_le_bytes();
    }
}

#[inline]
fn unpack_codes(packed: &[u8], codes: &mut CodeTape) {
    for (bytes, group) in packed.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        *group = deinterleave_two_bit(u32::from_le_bytes(*bytes));
    }
}

/// How a word with a long code is put together.
struct Assembly {
    /// Bits taken from the dictionary entry.
    known: u32,
    /// Bits taken from the data tape.
    data: u32,
    /// Bits taken from the data tape one byte higher up: the second byte of `zxzx`.
    spread: u32,
    pattern: Pattern,
}

/// By second code.
const ASSEMBLIES: [Assembly; 4] = [
    Assembly { known: 0, data: 0xff, spread: 0, pattern: ZZZX_PATTERN },
    Assembly { known: 0xffff_0000, data: 0xffff, spread: 0, pattern: MMXX_PATTERN },
    Assembly { known: 0xffff_ff00, data: 0xff, spread: 0, pattern: MMMX_PATTERN },
    Assembly { known: 0, data: 0xff, spread: 0xff_0000, pattern: ZXZX_PATTERN },
];

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the tapes do not have the lengths that codes and header call for, when
/// padding is not zero, or when the header names no alignment.
pub fn decompress(
    object: &[u8],
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let header = object.first_chunk::<HEADER>().ok_or(DecodeError::Truncated)?;
    match u16::from_le_bytes(*header) >> ALIGNMENT_SHIFT {
        0 => decompress_with::<Unaligned<'_>>(object, scratch, page),
        1 => decompress_with::<SeparateTapes<'_>>(object, scratch, page),
        2 => decompress_with::<SingleTape<'_>>(object, scratch, page),
        _ => Err(DecodeError::Malformed("PBPM alignment")),
    }
}

fn decompress_with<'a, D: DataTape<'a>>(
    object: &[u8],
    scratch: &'a mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let Tapes { codes1, codes2, indices, places, data } =
        Tapes::carve(scratch).ok_or(DecodeError::Truncated)?;

    let (header, tapes) = object.split_at_checked(D::HEADER).ok_or(DecodeError::Truncated)?;
    let (header, padding) = header.split_first_chunk().ok_or(DecodeError::Truncated)?;
    if padding.iter().any(|&byte| byte != 0) {
        return Err(DecodeError::Malformed("PBPM header padding"));
    }
    let data_bytes = usize::from(u16::from_le_bytes(*header) & DATA_LENGTH_MASK);
    let (data_tape, tapes) = tapes.split_at_checked(data_bytes).ok_or(DecodeError::Truncated)?;
    let (packed1, tapes) = tapes.split_first_chunk::<CODES1>().ok_or(DecodeError::Truncated)?;

    // The codes give the length of every other tape; after these checks no cursor can run past its
    // tape's end.
    let [_, xxxx_count, mmmm_count, code2_count] = count_two_bit_codes(packed1);
    unpack_codes(packed1, codes1);
    let packed2_bytes = 4 * code2_count.div_ceil(CODES_A_WORD);
    let (packed2, packed_indices) =
        tapes.split_at_checked(packed2_bytes).ok_or(DecodeError::Truncated)?;
    unpack_codes(packed2, codes2);
    if codes2[code2_count..4 * packed2_bytes].iter().any(|&code| code != 0) {
        return Err(DecodeError::Malformed("PBPM second-code padding"));
    }
    let count = |code| codes2[..code2_count].iter().filter(|&&c| c == code).count();
    let [zzzx_count, mmxx_count, mmmx_count] = [ZZZX, MMXX, MMMX].map(count);
    let zxzx_count = code2_count - zzzx_count - mmxx_count - mmmx_count;
    let counts = [zzzx_count + mmmx_count, zxzx_count + mmxx_count, xxxx_count];
    if data_bytes != D::len_of(counts) {
        return Err(DecodeError::Malformed("PBPM data length"));
    }
    let index_count = mmmm_count + mmxx_count + mmmx_count;
    let index_bytes = 4 * index_count.div_ceil(INDICES_A_WORD);
    if packed_indices.len() < index_bytes {
        return Err(DecodeError::Truncated);
    }
    if packed_indices.len() > index_bytes {
        return Err(DecodeError::TrailingBytes);
    }
    for (bytes, group) in packed_indices.as_chunks().0.iter().zip(indices.as_chunks_mut().0) {
        *group = deinterleave_four_bit(u32::from_le_bytes(*bytes));
    }
    if indices[index_count..2 * index_bytes].iter().any(|&index| index != 0) {
        return Err(DecodeError::Malformed("PBPM index padding"));
    }
    let mut data = D::read(data, data_tape, counts)?;

    page.fill(0);
    let words = page.as_chunks_mut::<4>().0;
    let nonzero_count = list_nonzero_codes(codes1, places);
    let mut dictionary = Dictionary::EMPTY;
    let (mut code2_at, mut index_at) = (0usize, 0usize);
    for place in &places[..nonzero_count] {
        let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
        let index = usize::from(indices[index_at % PAGE_WORDS]) & 15;
        // Branches by the first code, because a predicted miss need not wait for the dictionary;
        // the four long codes, which alternate, share a path without any.
        let word = match codes1[place] {
            XXXX => {
                let value = data.take(4);
                dictionary.enter(set_of(value), value, XXXX_PATTERN);
                value
            }
            MMMM => {
                index_at += 1;
                dictionary.words[index]
            }
            _ => {
                let code2 = codes2[code2_at % PAGE_WORDS];
                let assembly = &ASSEMBLIES[usize::from(code2) & 3];
                let value = data.take(assembly.pattern.data_bytes());
                let word = (dictionary.words[index] & assembly.known)
                    | (value & assembly.data)
                    | ((value << 8) & assembly.spread);
                code2_at += 1;
                index_at += assembly.pattern.indices();
                dictionary.enter(set_of(word), word, assembly.pattern);
                word
            }
        };
        words[place] = word.to_le_bytes();
    }
    data.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_its_rule() {
        assert_eq!(SET, crate::bits::shuffled_runs(8));
    }
}

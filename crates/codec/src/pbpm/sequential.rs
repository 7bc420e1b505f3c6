//! One word after the other, in plain code: what vectors are checked against, and the way of all
//! that have none.

use super::SETS;
use super::data::DataTape;
use super::kind::{
    DATA, ENTERING, INDEXED, LONG, MMMM, MMMX, MMXX, XXXX, ZXZX, ZXZX_ZEROS, ZZZX, ZZZZ,
};
use super::set_of;
use super::tapes::{Lengths, Tapes};
use crate::bits::{list_nonzero_codes, list_nonzero_words};
use crate::{PAGE_WORDS, Page};

/// What a pattern adds to the tapes and does to the dictionary, in one number: the entries it adds
/// to each tape in fields of 16 bits, where one addition advances all cursors, and above them its
/// codes.
#[derive(Clone, Copy)]
struct Pattern(u64);

impl Pattern {
    const SECOND: u32 = 16;
    const INDEX: u32 = 32;
    const KIND: u32 = 48;
    /// Set if the word enters the dictionary.
    const ENTERS: u32 = 52;

    const fn of(kind: u8) -> Pattern {
        Pattern(
            DATA[kind as usize].count_ones() as u64
                | ((kind & 3 == LONG) as u64) << Self::SECOND
                | ((INDEXED >> kind & 1) as u64) << Self::INDEX
                | (kind as u64) << Self::KIND
                | ((ENTERING >> kind & 1) as u64) << Self::ENTERS,
        )
    }

    #[inline]
    fn data_bytes(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline]
    fn seconds(self) -> usize {
        usize::from((self.0 >> Self::SECOND) as u16)
    }

    #[inline]
    fn indices(self) -> usize {
        usize::from((self.0 >> Self::INDEX) as u16)
    }

    #[inline]
    fn first(self) -> u8 {
        (self.0 >> Self::KIND) as u8 & 3
    }

    #[inline]
    fn second(self) -> u8 {
        (self.0 >> (Self::KIND + 2)) as u8 & 3
    }

    #[inline]
    fn enters(self) -> bool {
        self.0 >> Self::ENTERS & 1 != 0
    }
}

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
    words: [u32; 2 * SETS],
    /// Bit `s` is the way of set `s` that the next word to enter replaces.
    oldest: u32,
}

impl Dictionary {
    const EMPTY: Dictionary = Dictionary { words: [0; 2 * SETS], oldest: 0 };

    #[inline]
    fn enter(&mut self, set: u8, word: u32) {
        let way = (self.oldest >> set) as usize & 1;
        self.words[(2 * usize::from(set) + way) & 15] = word;
        self.oldest ^= 1 << set;
    }
}

/// The pattern of a word that is not zero. `difference` is that to the nearer entry of its set:
/// compared as numbers, a full match is smaller than any `mmmx`, which is smaller than any `mmxx`.
#[inline]
fn pattern_of(word: u32, difference: u32) -> Pattern {
    // By closeness of the match, for words without a zero pattern, for zxzx and for zzzx.
    #[rustfmt::skip]
    const PATTERNS: [Pattern; 12] = [
        Pattern::of(MMMM), Pattern::of(MMMX), Pattern::of(MMXX), Pattern::of(XXXX),
        Pattern::of(ZXZX), Pattern::of(ZXZX), Pattern::of(ZXZX), Pattern::of(ZXZX),
        Pattern::of(ZZZX), Pattern::of(ZZZX), Pattern::of(ZZZX), Pattern::of(ZZZX),
    ];
    let matched = usize::from(difference != 0)
        + usize::from(difference > 0xff)
        + usize::from(difference > 0xffff);
    let zeros = usize::from(word & ZXZX_ZEROS == 0) + usize::from(word <= 0xff);
    PATTERNS[matched + 4 * zeros]
}

/// Puts a page on its tapes.
pub(super) fn write<'a, D: DataTape<'a>>(
    page: &Page,
    tapes: &mut Tapes<'_>,
    data: &mut D,
) -> Lengths {
    let nonzero_count = list_nonzero_words(page, tapes.places);
    tapes.first.fill(ZZZZ);
    let words = page.as_chunks::<4>().0;
    let mut dictionary = Dictionary::EMPTY;
    let mut cursors = Cursors::START;
    for place in &tapes.places[..nonzero_count] {
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

        tapes.first[place] = pattern.first();
        // The cursors are bounded by the number of words read; the remainders tell the compiler.
        tapes.second[cursors.0.seconds() % PAGE_WORDS] = pattern.second();
        tapes.indices[cursors.0.indices() % PAGE_WORDS] = 2 * set + way;
        data.put(value, pattern.data_bytes());
        cursors.advance(pattern);
        // A branch, although it is hard to predict: the processor goes on with a guess, where a
        // place computed from the pattern would make each look-up wait for the word before it
        // (measured 20 % slower).
        if pattern.enters() {
            dictionary.enter(set, word);
        }
    }
    Lengths { second: cursors.0.seconds(), indices: cursors.0.indices() }
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
    Assembly { known: 0, data: 0xff, spread: 0, pattern: Pattern::of(ZZZX) },
    Assembly { known: 0xffff_0000, data: 0xffff, spread: 0, pattern: Pattern::of(MMXX) },
    Assembly { known: 0xffff_ff00, data: 0xff, spread: 0, pattern: Pattern::of(MMMX) },
    Assembly { known: 0, data: 0xff, spread: 0xff_0000, pattern: Pattern::of(ZXZX) },
];

/// Takes a page from its tapes. `false` when an index names an entry that is not of the word's set.
pub(super) fn read<'a, D: DataTape<'a>>(
    tapes: &mut Tapes<'_>,
    data: &mut D,
    page: &mut Page,
) -> bool {
    page.fill(0);
    let words = page.as_chunks_mut::<4>().0;
    let firsts = tapes.first.first_chunk().unwrap_or(&[0; PAGE_WORDS]);
    let nonzero_count = list_nonzero_codes(firsts, tapes.places);
    let mut dictionary = Dictionary::EMPTY;
    let mut strangers = false;
    let (mut second_at, mut index_at) = (0usize, 0usize);
    for place in &tapes.places[..nonzero_count] {
        let place = usize::from(u16::from_le_bytes(*place)) % PAGE_WORDS;
        let index = tapes.indices[index_at % PAGE_WORDS] & 15;
        let entry = dictionary.words[usize::from(index)];
        // Branches by the first code, because a predicted miss need not wait for the dictionary;
        // the four long codes, which alternate, share a path without any.
        let word = match tapes.first[place] {
            XXXX => {
                let word = data.take(4);
                dictionary.enter(set_of(word), word);
                word
            }
            MMMM => {
                index_at += 1;
                entry
            }
            _ => {
                let second = tapes.second[second_at % PAGE_WORDS];
                let assembly = &ASSEMBLIES[usize::from(second) & 3];
                let value = data.take(assembly.pattern.data_bytes());
                let word = (entry & assembly.known)
                    | (value & assembly.data)
                    | ((value << 8) & assembly.spread);
                second_at += 1;
                index_at += assembly.pattern.indices();
                if assembly.pattern.enters() {
                    let set = set_of(word);
                    strangers |= index >> 1 != set;
                    dictionary.enter(set, word);
                }
                word
            }
        };
        words[place] = word.to_le_bytes();
    }
    !strangers
}

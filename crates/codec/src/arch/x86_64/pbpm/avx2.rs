//! With AVX2: 32 words are worked on at once, four registers, or one of a byte for each. Shuffles
//! by tables close gaps and open them: of words and codes by eight, of data by two words.

use core::arch::x86_64::*;

use crate::arch::lanes::{NONE, SHUFFLES, first_lanes};
use crate::arch::x86_64::avx2::{
    HALF, close, lanes_of, load, load_quarter, mask_of, shuffle, store, store_quarter,
};
use crate::pbpm::{
    ASKING, DATA, EMPTY, IGNORED, INDEXED, Kernels, LONG, Lengths, List, MMMM, MMMX, MMXX, Tape,
    Tapes, Unaligned, Words, XXXX, ZXZX, ZXZX_ZEROS, ZZZX, assign, find, recall,
};
use crate::{PAGE_WORDS, Page};

/// Only to be had with proof that the instructions are there.
pub(super) static KERNELS: Kernels = Kernels {
    // SAFETY: of this and the following: the processor has the instructions.
    write: |page, tapes, data| unsafe { write(page, tapes, data) },
    // SAFETY: as above.
    read: |tapes, data, page| unsafe { read(tapes, data, page) },
    codes: &super::codes::CODES,
};

/// Words that are worked on at once.
const BLOCK: usize = 32;

/// By eight words those that ask the dictionary: bit *w* stands for word *w*.
type Asking = [u8; PAGE_WORDS / HALF];

/// By the kinds of two words, the first in the lower half: how their data is put side by side.
struct Pieces {
    close: [[u8; 8]; 256],
    open: [[u8; 8]; 256],
    bytes: [u8; 256],
}

static PIECES: Pieces = {
    let mut pieces = Pieces { close: [[NONE; 8]; 256], open: [[NONE; 8]; 256], bytes: [0; 256] };
    let mut kinds = 0;
    while kinds < 256 {
        let mask = DATA[kinds & 15] | DATA[kinds >> 4] << 4;
        pieces.close[kinds] = SHUFFLES.close[mask as usize];
        pieces.open[kinds] = SHUFFLES.open[mask as usize];
        pieces.bytes[kinds] = mask.count_ones() as u8;
        kinds += 1;
    }
    pieces
};

/// By kind, all ones for those in a set of kinds.
const fn members(set: u16) -> [u8; 32] {
    let mut members = [0; 32];
    let mut kind = 0;
    while kind < 32 {
        members[kind] = if set >> (kind % 16) & 1 == 1 { u8::MAX } else { 0 };
        kind += 1;
    }
    members
}

/// A bit for each byte that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits_of(bytes: __m256i) -> u32 {
    _mm256_movemask_epi8(bytes) as u32
}

/// All ones in the bytes whose bits are set.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_of(bits: u32) -> __m256i {
    let (low, high) = (0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
    let order = _mm256_setr_epi64x(0, low, 2 * low, high);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), order);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// The low bytes of 32 words.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    // Packing works within halves of a register: this puts the fours of bytes in order.
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Eight bytes each, in the lower halves.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(bytes: __m256i) -> [__m128i; 4] {
    let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)]
}

/// Puts the bytes whose bits are set at `at`, side by side.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn put(bytes: __m256i, bits: u32, tape: &mut Tape, at: &mut usize) {
    for (eight, mask) in eights(bytes).into_iter().zip(bits.to_le_bytes()) {
        store_quarter(tape, *at, _mm_shuffle_epi8(eight, shuffle(&SHUFFLES.close, mask)));
        *at += mask.count_ones() as usize;
    }
}

/// Takes a byte for each bit that is set, zeros for the others.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn take(bits: u32, tape: &Tape, at: &mut usize) -> __m256i {
    let [a, b, c, d] = bits.to_le_bytes().map(|mask| {
        let eight = load_quarter(tape, *at);
        *at += mask.count_ones() as usize;
        _mm_shuffle_epi8(eight, shuffle(&SHUFFLES.open, mask))
    });
    _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b))
}

/// The kinds of each two words, as [`Pieces`] has them.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(kinds: __m256i) -> [u16; BLOCK / 2] {
    let pairs = _mm256_maddubs_epi16(kinds, _mm256_set1_epi16(0x1001));
    let mut numbers = [0; BLOCK / 2];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_storeu_si256(numbers.as_mut_ptr().cast(), pairs) };
    numbers
}

/// Which way of each set the next word takes: with every word that enters it is the other.
struct Ways {
    /// By set, all ones if it is way 1.
    next: __m256i,
}

impl Ways {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Ways {
        Ways { next: _mm256_setzero_si256() }
    }

    /// A bit for each word: the way that it takes, or would if it entered.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn enter(&mut self, sets: __m256i, entering: u32) -> u32 {
        // In the lane of each set its words: those whose set has the bits that the lane's number
        // has.
        let having = [
            _mm256_slli_epi16::<7>(sets),
            _mm256_slli_epi16::<6>(sets),
            _mm256_slli_epi16::<5>(sets),
        ];
        let lacking = [
            _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0),
            _mm256_setr_epi32(-1, -1, 0, 0, -1, -1, 0, 0),
            _mm256_setr_epi32(-1, -1, -1, -1, 0, 0, 0, 0),
        ];
        let mut members = _mm256_set1_epi32(-1);
        for (having, lacking) in having.into_iter().zip(lacking) {
            let alike = _mm256_xor_si256(_mm256_set1_epi32(bits_of(having) as i32), lacking);
            members = _mm256_and_si256(members, alike);
        }
        // By word, whether an odd number has entered up to it.
        let mut odd = _mm256_and_si256(members, _mm256_set1_epi32(entering as i32));
        odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<1>(odd));
        odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<2>(odd));
        odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<4>(odd));
        odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<8>(odd));
        odd = _mm256_xor_si256(odd, _mm256_slli_epi32::<16>(odd));
        let before = _mm256_xor_si256(self.next, _mm256_slli_epi32::<1>(odd));
        self.next = _mm256_xor_si256(self.next, _mm256_srai_epi32::<31>(odd));
        let ways = _mm256_and_si256(before, members);
        let high = _mm256_extracti128_si256::<1>(ways);
        let ways = _mm_or_si128(_mm256_castsi256_si128(ways), high);
        let ways = _mm_or_si128(ways, _mm_unpackhi_epi64(ways, ways));
        (_mm_cvtsi128_si32(ways) | _mm_extract_epi32::<1>(ways)) as u32
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn write(page: &Page, tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>) -> Lengths {
    let [list, _] = &mut tapes.lists;
    let asking = ask(page);
    let count = gather(page, &asking, list.words);
    assign(&list.words[..count], list.slots);
    find(&mut list.words[..count], list.slots, list.notes);
    note(count, list);
    emit(page, &asking, tapes, data)
}

/// Which words ask the dictionary.
#[inline]
#[target_feature(enable = "avx2")]
fn ask(page: &Page) -> Asking {
    let zeros = _mm256_set1_epi32(ZXZX_ZEROS as i32);
    let mut asking = [0; PAGE_WORDS / HALF];
    for (nth, asking) in asking.iter_mut().enumerate() {
        let known = _mm256_and_si256(load(page, 32 * nth), zeros);
        *asking = !mask_of(_mm256_cmpeq_epi32(known, _mm256_setzero_si256()));
    }
    asking
}

/// Lists the words that ask, and returns their number.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn gather(page: &Page, asking: &Asking, words: &mut Words) -> usize {
    let words = words.as_flattened_mut();
    let mut count = 0;
    for (nth, &asking) in asking.iter().enumerate() {
        store(words, 4 * count, close(load(page, 32 * nth), asking));
        count += asking.count_ones() as usize;
    }
    count
}

/// Notes kinds and indices of words that were looked up.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn note(count: usize, list: &mut List<'_>) {
    let kind = |kind: u8| _mm256_set1_epi32(i32::from(kind));
    let (full, three, half, none) = (kind(MMMM), kind(MMMX), kind(MMXX), kind(XXXX));
    let zero = _mm256_setzero_si256();
    let mut ways = Ways::new();
    for at in (0..count).step_by(BLOCK) {
        let mut kinds = [zero; 4];
        for (quarter, kinds) in kinds.iter_mut().enumerate() {
            let difference = load(list.words.as_flattened(), 4 * at + 32 * quarter);
            let is_half = _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(difference), zero);
            let is_three = _mm256_cmpeq_epi32(_mm256_srli_epi32::<8>(difference), zero);
            let is_full = _mm256_cmpeq_epi32(difference, zero);
            *kinds = _mm256_blendv_epi8(none, half, is_half);
            *kinds = _mm256_blendv_epi8(*kinds, three, is_three);
            *kinds = _mm256_blendv_epi8(*kinds, full, is_full);
        }
        let kinds = low_bytes(kinds);
        let is_full = bits_of(_mm256_cmpeq_epi8(kinds, _mm256_set1_epi8(MMMM as i8)));
        let sets = load(list.slots, at);
        let next = bytes_of(ways.enter(sets, !is_full & first_lanes(count - at) as u32));
        // The older entry is where the next goes.
        let ways = _mm256_and_si256(next, _mm256_set1_epi8(1));
        let ways = _mm256_xor_si256(ways, load(list.notes, at));
        let indices = _mm256_or_si256(_mm256_add_epi8(sets, sets), ways);
        store(list.notes, at, _mm256_or_si256(kinds, _mm256_slli_epi16::<4>(indices)));
    }
}

/// Puts on the tapes what is known of all words.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn emit(page: &Page, asking: &Asking, tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>) -> Lengths {
    let [list, _] = &tapes.lists;
    let zero = _mm256_setzero_si256();
    let (zzzx, zxzx) = (_mm256_set1_epi32(i32::from(ZZZX)), _mm256_set1_epi32(i32::from(ZXZX)));
    let (low_bits, high_bits) = (_mm256_set1_epi8(0b11), _mm256_set1_epi8(0b1111));
    let is_indexed = load(&const { members(INDEXED) }, 0);
    let mut lengths = Lengths::default();
    let mut next = 0;
    for (nth, asking) in asking.as_chunks().0.iter().enumerate() {
        // What does not ask is zzzz, zzzx or zxzx.
        let mut not_asking = [zero; 4];
        for (quarter, kinds) in not_asking.iter_mut().enumerate() {
            let words = load(page, 4 * BLOCK * nth + 32 * quarter);
            let is_zzzx = _mm256_cmpeq_epi32(_mm256_srli_epi32::<8>(words), zero);
            let is_zero = _mm256_cmpeq_epi32(words, zero);
            *kinds = _mm256_andnot_si256(is_zero, _mm256_blendv_epi8(zxzx, zzzx, is_zzzx));
        }
        let asking = u32::from_le_bytes(*asking);
        let not_asking = _mm256_andnot_si256(bytes_of(asking), low_bytes(not_asking));
        let notes = _mm256_or_si256(not_asking, take(asking, list.notes, &mut next));

        let kinds = _mm256_and_si256(notes, high_bits);
        let firsts = _mm256_and_si256(notes, low_bits);
        store(tapes.first, BLOCK * nth, firsts);
        let long = bits_of(_mm256_cmpeq_epi8(firsts, _mm256_set1_epi8(LONG as i8)));
        let seconds = _mm256_and_si256(_mm256_srli_epi16::<2>(notes), low_bits);
        put(seconds, long, tapes.second, &mut lengths.second);
        let indexed = bits_of(_mm256_shuffle_epi8(is_indexed, kinds));
        let indices = _mm256_and_si256(_mm256_srli_epi16::<4>(notes), high_bits);
        put(indices, indexed, tapes.indices, &mut lengths.indices);
        for (quarter, kinds) in pairs(kinds).as_chunks::<4>().0.iter().enumerate() {
            let words = load(page, 4 * BLOCK * nth + 32 * quarter);
            for (pair, &kinds) in eights(words).into_iter().zip(kinds) {
                let kinds = kinds as u8;
                let pieces = _mm_shuffle_epi8(pair, shuffle(&PIECES.close, kinds));
                store_quarter(data.tape, data.at, pieces);
                data.at += usize::from(PIECES.bytes[usize::from(kinds)]);
            }
        }
    }
    lengths
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn read(tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>, page: &mut Page) -> bool {
    let asking = spread(tapes, data, page);
    let [list, List { words: known, slots: sets, .. }] = &mut tapes.lists;
    // Not before the page is whole: to load what was stored just now in pieces takes long.
    let count = gather(page, &asking, list.words);
    assign(&list.words[..count], *sets);
    plan(count, list, sets, known);
    // Where indices were noted are slots now.
    recall(&mut list.words[..count], *known, list.notes, list.slots);
    join(list.words, &asking, page);
    assign(&list.words[..count], *sets);
    are_of_their_sets(count, list.slots, sets)
}

/// Takes from the tapes the words that do not ask, and what is known of the others.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn spread(tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>, page: &mut Page) -> Asking {
    let [list, _] = &mut tapes.lists;
    let is_indexed = load(&const { members(INDEXED) }, 0);
    let is_asking = load(&const { members(ASKING) }, 0);
    let mut asking = [0; PAGE_WORDS / HALF];
    let (mut second, mut index, mut count) = (0, 0, 0);
    for (nth, asking) in asking.as_chunks_mut().0.iter_mut().enumerate() {
        let firsts = load(tapes.first, BLOCK * nth);
        let long = bits_of(_mm256_cmpeq_epi8(firsts, _mm256_set1_epi8(LONG as i8)));
        let seconds = take(long, tapes.second, &mut second);
        let kinds = _mm256_or_si256(firsts, _mm256_slli_epi16::<2>(seconds));
        let indexed = bits_of(_mm256_shuffle_epi8(is_indexed, kinds));
        let indices = take(indexed, tapes.indices, &mut index);
        let asks = bits_of(_mm256_shuffle_epi8(is_asking, kinds));
        let notes = _mm256_or_si256(kinds, _mm256_slli_epi16::<4>(indices));
        put(notes, asks, list.notes, &mut count);
        *asking = asks.to_le_bytes();
        for (pair, kinds) in pairs(kinds).into_iter().enumerate() {
            let kinds = kinds as u8;
            let pieces = load_quarter(data.tape, data.at);
            let words = _mm_shuffle_epi8(pieces, shuffle(&PIECES.open, kinds));
            store_quarter(page, 4 * BLOCK * nth + 8 * pair, words);
            data.at += usize::from(PIECES.bytes[usize::from(kinds)]);
        }
    }
    asking
}

/// By word, from which slot of the dictionary what is known of it, and to which it goes.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn plan(count: usize, list: &mut List<'_>, sets: &Tape, known: &mut Words) {
    let high_bits = _mm256_set1_epi8(0b1111);
    // By the low three bits of those kinds that ask.
    let known_of = _mm256_setr_epi32(0, 0, -1, !0xff, 0, 0, 0, !0xffff);
    const { assert!(XXXX & 7 == 1 && MMMM & 7 == 2 && MMMX & 7 == 3 && MMXX & 7 == 7) };
    let mut ways = Ways::new();
    for at in (0..count).step_by(BLOCK) {
        let notes = load(list.notes, at);
        let kinds = _mm256_and_si256(notes, high_bits);
        let indices = _mm256_and_si256(_mm256_srli_epi16::<4>(notes), high_bits);
        let none = _mm256_cmpeq_epi8(kinds, _mm256_set1_epi8(XXXX as i8));
        let full = _mm256_cmpeq_epi8(kinds, _mm256_set1_epi8(MMMM as i8));
        let halved = _mm256_and_si256(_mm256_srli_epi16::<1>(indices), _mm256_set1_epi8(0b111));
        let sets = _mm256_blendv_epi8(halved, load(sets, at), none);
        let next = bytes_of(ways.enter(sets, !bits_of(full) & first_lanes(count - at) as u32));
        let way = _mm256_and_si256(next, _mm256_set1_epi8(1));
        let to = _mm256_or_si256(_mm256_add_epi8(sets, sets), way);
        let to = _mm256_blendv_epi8(to, _mm256_set1_epi8(IGNORED as i8), full);
        store(list.slots, at, to);
        let from = _mm256_blendv_epi8(indices, _mm256_set1_epi8(EMPTY as i8), none);
        store(list.notes, at, from);
        for (quarter, kinds) in eights(kinds).into_iter().enumerate() {
            let here = _mm256_permutevar8x32_epi32(known_of, _mm256_cvtepu8_epi32(kinds));
            store(known.as_flattened_mut(), 4 * at + 32 * quarter, here);
        }
    }
}

/// Is each word that entered of the set it entered?
#[inline]
#[target_feature(enable = "avx2")]
fn are_of_their_sets(count: usize, slots: &Tape, sets: &Tape) -> bool {
    let mut strangers = 0;
    for at in (0..count).step_by(BLOCK) {
        let (slots, sets) = (load(slots, at), load(sets, at));
        let ignored = _mm256_cmpeq_epi8(slots, _mm256_set1_epi8(IGNORED as i8));
        let differ = _mm256_xor_si256(_mm256_add_epi8(sets, sets), slots);
        let differ = _mm256_and_si256(differ, _mm256_set1_epi8(0b1110));
        let alike = _mm256_cmpeq_epi8(differ, _mm256_setzero_si256());
        strangers |= !bits_of(_mm256_or_si256(ignored, alike)) & first_lanes(count - at) as u32;
    }
    strangers == 0
}

/// Puts words where they asked.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn join(words: &Words, asking: &Asking, page: &mut Page) {
    let words = words.as_flattened();
    let mut next = 0;
    for (nth, &asking) in asking.iter().enumerate() {
        let order = _mm256_cvtepu8_epi32(shuffle(&SHUFFLES.open, asking));
        let opened = _mm256_permutevar8x32_epi32(load(words, 4 * next), order);
        let here = _mm256_blendv_epi8(load(page, 32 * nth), opened, lanes_of(asking));
        store(page, 32 * nth, here);
        next += asking.count_ones() as usize;
    }
}

//! With AVX-512: 64 words are worked on at once, four registers, or one of a byte for each.

use core::arch::x86_64::*;

use crate::arch::lanes::first_lanes;
use crate::arch::x86_64::avx512::{load, store};
use crate::pbpm::{
    ASKING, DATA, EMPTY, IGNORED, INDEXED, Kernels, LONG, Lengths, List, MMMM, MMMX, MMXX, SET,
    Tapes, Unaligned, Words, XXXX, ZXZX, ZXZX_ZEROS, ZZZX, find, find_in_one, recall,
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
const BLOCK: usize = 64;

/// By block the words that ask the dictionary: bit *w* stands for word *w*.
type Asking = [u64; PAGE_WORDS / BLOCK];

/// A block's words, sixteen in each.
type Block = [__m512i; 4];

/// A block of `bytes`, at `at`, counted in bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_block(bytes: &[u8], at: usize) -> Block {
    let bytes = &bytes[at..at + 4 * BLOCK];
    [load(bytes, 0), load(bytes, 64), load(bytes, 128), load(bytes, 192)]
}

/// The masks of a block's registers in one.
#[inline]
fn joined([a, b, c, d]: [__mmask16; 4]) -> u64 {
    u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
}

/// Sixteen bytes, four times.
#[inline]
#[target_feature(enable = "avx512f")]
fn table(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: sixteen bytes are there.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Which of the kinds are in a set of kinds.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn among(set: u16, kinds: __m512i) -> u64 {
    let members = _mm512_broadcast_i32x4(_mm_maskz_set1_epi8(set, -1));
    _mm512_movepi8_mask(_mm512_shuffle_epi8(members, kinds))
}

/// Of each register of a block, by byte: is it data?
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn data_bytes(kinds: __m512i) -> [u64; 4] {
    let data = _mm512_shuffle_epi8(table(&DATA), kinds);
    // Four bits of each two bytes side by side.
    let data = _mm512_maddubs_epi16(data, _mm512_set1_epi16(0x1001));
    let data = _mm512_cvtepi16_epi8(data);
    let mut masks = [0; 4];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_storeu_si256(masks.as_mut_ptr().cast(), data) };
    masks
}

/// The table [`SET`].
struct Sets(Block);

impl Sets {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load() -> Sets {
        Sets(load_block(&SET, 0))
    }

    /// The sets of a block's words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn of(&self, [a, b, c, d]: &Block) -> __m512i {
        let Sets([first, second, third, fourth]) = self;
        // The third of each four bytes.
        let (fours, step) = (_mm512_set1_epi32(0x0e0a_0602), _mm512_set1_epi32(0x1010_1010));
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        let thirds = _mm512_add_epi8(fours, _mm512_mullo_epi32(lanes, step));
        let low = _mm512_permutex2var_epi8(*a, thirds, *b);
        let high = _mm512_permutex2var_epi8(*c, thirds, *d);
        let bytes = _mm512_mask_blend_epi32(0xff00, low, high);
        let below_128 = _mm512_permutex2var_epi8(*first, bytes, *second);
        let above = _mm512_permutex2var_epi8(*third, bytes, *fourth);
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), below_128, above)
    }
}

/// Which way of each set the next word takes: with every word that enters it is the other.
struct Ways {
    /// By set, all ones if it is way 1.
    next: __m512i,
}

impl Ways {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Ways {
        Ways { next: _mm512_setzero_si512() }
    }

    /// A bit for each word: the way that it takes, or would if it entered.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn enter(&mut self, sets: __m512i, entering: u64) -> u64 {
        // In the lane of each set its words: those whose set has the bits that the lane's number
        // has.
        let lacking = [
            _mm512_setr_epi64(-1, 0, -1, 0, -1, 0, -1, 0),
            _mm512_setr_epi64(-1, -1, 0, 0, -1, -1, 0, 0),
            _mm512_setr_epi64(-1, -1, -1, -1, 0, 0, 0, 0),
        ];
        let mut members = _mm512_set1_epi64(-1);
        for (bit, lacking) in lacking.into_iter().enumerate() {
            let having = _mm512_test_epi8_mask(sets, _mm512_set1_epi8(1 << bit));
            let alike = _mm512_xor_si512(_mm512_set1_epi64(having as i64), lacking);
            members = _mm512_and_si512(members, alike);
        }
        // By word, whether an odd number has entered up to it.
        let mut odd = _mm512_and_si512(members, _mm512_set1_epi64(entering as i64));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<1>(odd));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<2>(odd));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<4>(odd));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<8>(odd));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<16>(odd));
        odd = _mm512_xor_si512(odd, _mm512_slli_epi64::<32>(odd));
        let before = _mm512_xor_si512(self.next, _mm512_slli_epi64::<1>(odd));
        self.next = _mm512_xor_si512(self.next, _mm512_srai_epi64::<63>(odd));
        _mm512_reduce_or_epi64(_mm512_and_si512(before, members)) as u64
    }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt"
)]
fn write(page: &Page, tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>) -> Lengths {
    let [mixed, low] = &mut tapes.lists;
    let (asking, counts) = list(page, mixed, low);
    let sets = &*mixed.slots;
    find(&mut mixed.words[..counts.mixed], sets, mixed.notes);
    find_in_one(&mut low.words[..counts.low], low.notes);
    note(counts.mixed, mixed);
    note(counts.low, low);
    emit(page, &asking, tapes, data)
}

/// The words of the set that zero is in, to which half of the words belong on pages of pointers and
/// small numbers, have a list of their own: see [`find_in_one`].
struct Counts {
    mixed: usize,
    low: usize,
}

/// Lists the words that ask the dictionary, and their sets.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
fn list(page: &Page, mixed: &mut List<'_>, low: &mut List<'_>) -> ([Asking; 2], Counts) {
    let zeros = _mm512_set1_epi32(ZXZX_ZEROS as i32);
    let sets_of = Sets::load();
    let low_set = _mm512_set1_epi8(SET[0] as i8);
    low.slots.fill(SET[0]);
    let mut asking = [[0; PAGE_WORDS / BLOCK]; 2];
    let [mixed_asking, low_asking] = &mut asking;
    let mut counts = Counts { mixed: 0, low: 0 };
    for (nth, (mixed_asking, low_asking)) in mixed_asking.iter_mut().zip(low_asking).enumerate() {
        let words = load_block(page, 4 * BLOCK * nth);
        let asking = joined(words.map(|words| _mm512_test_epi32_mask(words, zeros)));
        let sets = sets_of.of(&words);
        *low_asking = _mm512_mask_cmpeq_epi8_mask(asking, sets, low_set);
        *mixed_asking = asking & !*low_asking;
        store(mixed.slots, counts.mixed, _mm512_maskz_compress_epi8(*mixed_asking, sets));
        put(&words, *mixed_asking, mixed.words, &mut counts.mixed);
        put(&words, *low_asking, low.words, &mut counts.low);
    }
    (asking, counts)
}

/// Lists some words of a block.
#[inline]
#[target_feature(enable = "avx512f,popcnt")]
fn put(block: &Block, mask: u64, list: &mut Words, count: &mut usize) {
    for (quarter, &words) in block.iter().enumerate() {
        let mask = (mask >> (16 * quarter)) as u16;
        store(list.as_flattened_mut(), 4 * *count, _mm512_maskz_compress_epi32(mask, words));
        *count += mask.count_ones() as usize;
    }
}

/// Notes kinds and indices of words that were looked up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
fn note(count: usize, list: &mut List<'_>) {
    let upper_half = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let upper_three = _mm512_set1_epi32(0xffff_ff00u32 as i32);
    let mut ways = Ways::new();
    for at in (0..count).step_by(BLOCK) {
        let differences = load_block(list.words.as_flattened(), 4 * at);
        let full = joined(differences.map(|lanes| _mm512_testn_epi32_mask(lanes, lanes)));
        let three = joined(differences.map(|lanes| _mm512_testn_epi32_mask(lanes, upper_three)));
        let half = joined(differences.map(|lanes| _mm512_testn_epi32_mask(lanes, upper_half)));
        let kinds = _mm512_mask_set1_epi8(_mm512_set1_epi8(XXXX as i8), half, MMXX as i8);
        let kinds = _mm512_mask_set1_epi8(kinds, three, MMMX as i8);
        let kinds = _mm512_mask_set1_epi8(kinds, full, MMMM as i8);
        let sets = load(list.slots, at);
        let next = ways.enter(sets, !full & first_lanes(count - at));
        // The older entry is where the next goes.
        let ways = _mm512_xor_si512(_mm512_maskz_set1_epi8(next, 1), load(list.notes, at));
        let indices = _mm512_or_si512(_mm512_add_epi8(sets, sets), ways);
        store(list.notes, at, _mm512_or_si512(kinds, _mm512_slli_epi16(indices, 4)));
    }
}

/// Puts on the tapes what is known of all words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
fn emit(
    page: &Page,
    [mixed_asking, low_asking]: &[Asking; 2],
    tapes: &mut Tapes<'_>,
    data: &mut Unaligned<'_>,
) -> Lengths {
    let [mixed, low_list] = &tapes.lists;
    let low = _mm512_set1_epi32(0xff);
    let (low_bits, high_bits) = (_mm512_set1_epi8(0b11), _mm512_set1_epi8(0b1111));
    let mut lengths = Lengths::default();
    let (mut next_mixed, mut next_low) = (0, 0);
    for (nth, (&mixed_asking, &low_asking)) in mixed_asking.iter().zip(low_asking).enumerate() {
        let words = load_block(page, 4 * BLOCK * nth);
        // What does not ask is zzzz, zzzx or zxzx.
        let nonzero = joined(words.map(|words| _mm512_test_epi32_mask(words, words)));
        let larger = joined(words.map(|words| _mm512_cmpgt_epu32_mask(words, low)));
        let not_asking = _mm512_maskz_set1_epi8(nonzero, ZZZX as i8);
        let not_asking = _mm512_mask_set1_epi8(not_asking, larger, ZXZX as i8);
        let notes = load(mixed.notes, next_mixed);
        let notes = _mm512_mask_expand_epi8(not_asking, mixed_asking, notes);
        next_mixed += mixed_asking.count_ones() as usize;
        let low_notes = load(low_list.notes, next_low);
        let notes = _mm512_mask_expand_epi8(notes, low_asking, low_notes);
        next_low += low_asking.count_ones() as usize;

        let kinds = _mm512_and_si512(notes, high_bits);
        let firsts = _mm512_and_si512(notes, low_bits);
        store(tapes.first, BLOCK * nth, firsts);
        let long = _mm512_cmpeq_epi8_mask(firsts, _mm512_set1_epi8(LONG as i8));
        let seconds = _mm512_and_si512(_mm512_srli_epi16(notes, 2), low_bits);
        store(tapes.second, lengths.second, _mm512_maskz_compress_epi8(long, seconds));
        lengths.second += long.count_ones() as usize;
        let indexed = among(INDEXED, kinds);
        let indices = _mm512_and_si512(_mm512_srli_epi16(notes, 4), high_bits);
        store(tapes.indices, lengths.indices, _mm512_maskz_compress_epi8(indexed, indices));
        lengths.indices += indexed.count_ones() as usize;
        for (words, mask) in words.into_iter().zip(data_bytes(kinds)) {
            store(data.tape, data.at, _mm512_maskz_compress_epi8(mask, words));
            data.at += mask.count_ones() as usize;
        }
    }
    lengths
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt"
)]
fn read(tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>, page: &mut Page) -> bool {
    let (asking, count) = spread(tapes, data, page);
    let [list, List { words: known, .. }] = &mut tapes.lists;
    plan(count, list, known);
    // Where indices were noted are slots now.
    recall(&mut list.words[..count], *known, list.notes, list.slots);
    join(list.words, &asking, page);
    are_of_their_sets(count, list)
}

/// Takes from the tapes the words that do not ask, and what is known of the others, whose number is
/// returned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
fn spread(tapes: &mut Tapes<'_>, data: &mut Unaligned<'_>, page: &mut Page) -> (Asking, usize) {
    let [list, _] = &mut tapes.lists;
    let words = list.words.as_flattened_mut();
    let mut asking = [0; PAGE_WORDS / BLOCK];
    let (mut second, mut index, mut count) = (0, 0, 0);
    for (nth, asking) in asking.iter_mut().enumerate() {
        let firsts = load(tapes.first, BLOCK * nth);
        let long = _mm512_cmpeq_epi8_mask(firsts, _mm512_set1_epi8(LONG as i8));
        let seconds = _mm512_maskz_expand_epi8(long, load(tapes.second, second));
        second += long.count_ones() as usize;
        let kinds = _mm512_or_si512(firsts, _mm512_slli_epi16(seconds, 2));
        let indexed = among(INDEXED, kinds);
        let indices = _mm512_maskz_expand_epi8(indexed, load(tapes.indices, index));
        index += indexed.count_ones() as usize;
        *asking = among(ASKING, kinds);
        let notes = _mm512_or_si512(kinds, _mm512_slli_epi16(indices, 4));
        store(list.notes, count, _mm512_maskz_compress_epi8(*asking, notes));
        for (quarter, mask) in data_bytes(kinds).into_iter().enumerate() {
            let values = _mm512_maskz_expand_epi8(mask, load(data.tape, data.at));
            data.at += mask.count_ones() as usize;
            store(page, 4 * BLOCK * nth + 64 * quarter, values);
            let asking = (*asking >> (16 * quarter)) as u16;
            store(words, 4 * count, _mm512_maskz_compress_epi32(asking, values));
            count += asking.count_ones() as usize;
        }
    }
    (asking, count)
}

/// By word, from which slot of the dictionary what is known of it, and to which it goes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,popcnt")]
fn plan(count: usize, list: &mut List<'_>, known: &mut Words) {
    let sets_of = Sets::load();
    let mut ways = Ways::new();
    let high_bits = _mm512_set1_epi8(0b1111);
    for at in (0..count).step_by(BLOCK) {
        let notes = load(list.notes, at);
        let kinds = _mm512_and_si512(notes, high_bits);
        let indices = _mm512_and_si512(_mm512_srli_epi16(notes, 4), high_bits);
        let none = _mm512_cmpeq_epi8_mask(kinds, _mm512_set1_epi8(XXXX as i8));
        let full = _mm512_cmpeq_epi8_mask(kinds, _mm512_set1_epi8(MMMM as i8));
        let words = load_block(list.words.as_flattened(), 4 * at);
        let twice = _mm512_and_si512(indices, _mm512_set1_epi8(0b1110));
        let sets = sets_of.of(&words);
        let twice = _mm512_mask_add_epi8(twice, none, sets, sets);
        let sets = _mm512_srli_epi16(twice, 1);
        let next = ways.enter(sets, !full & first_lanes(count - at));
        let to = _mm512_or_si512(twice, _mm512_maskz_set1_epi8(next, 1));
        store(list.slots, at, _mm512_mask_set1_epi8(to, full, IGNORED as i8));
        store(list.notes, at, _mm512_mask_set1_epi8(indices, none, EMPTY as i8));
        for (quarter, data) in data_bytes(kinds).into_iter().enumerate() {
            let here = _mm512_movm_epi8(!data);
            store(known.as_flattened_mut(), 4 * at + 64 * quarter, here);
        }
    }
}

/// Is each word that entered of the set it entered?
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,popcnt")]
fn are_of_their_sets(count: usize, list: &List<'_>) -> bool {
    let sets_of = Sets::load();
    let mut strangers = 0;
    for at in (0..count).step_by(BLOCK) {
        let sets = sets_of.of(&load_block(list.words.as_flattened(), 4 * at));
        let slots = load(list.slots, at);
        let entered = !_mm512_cmpeq_epi8_mask(slots, _mm512_set1_epi8(IGNORED as i8));
        let differ = _mm512_xor_si512(_mm512_add_epi8(sets, sets), slots);
        let differ = _mm512_test_epi8_mask(differ, _mm512_set1_epi8(0b1110));
        strangers |= differ & entered & first_lanes(count - at);
    }
    strangers == 0
}

/// Puts words where they asked.
#[inline]
#[target_feature(enable = "avx512f,popcnt")]
fn join(words: &Words, asking: &Asking, page: &mut Page) {
    let words = words.as_flattened();
    let mut next = 0;
    for (nth, &asking) in asking.iter().enumerate() {
        for quarter in 0..4 {
            let at = 4 * BLOCK * nth + 64 * quarter;
            let asking = (asking >> (16 * quarter)) as u16;
            let here = load(page, at);
            store(page, at, _mm512_mask_expand_epi32(here, asking, load(words, 4 * next)));
            next += asking.count_ones() as usize;
        }
    }
}

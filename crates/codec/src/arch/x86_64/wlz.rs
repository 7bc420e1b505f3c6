//! WLZ's literals, eight at a time.
//!
//! One comparison with each dictionary tells eight words apart; shuffles by a table of 256 then close
//! the gaps in each stream, or open them.

use core::arch::x86_64::*;

use super::Avx2;
use crate::wlz::{
    Classified, Dictionary, GROUP, HALF_BITS, Literals, MULTIPLIER, PARTIAL_BITS, SLOTS, Sources,
    Streams,
};

/// By a mask of eight: where each wanted element comes from.
struct Shuffles {
    /// The elements whose bit is set, side by side: as two bytes each, and as numbers.
    pack_pairs: [[u8; 16]; 256],
    pack: [[u8; 8]; 256],
    /// Elements that lie side by side, each to a bit that is set; 0x80 makes zeros of the others.
    spread_pairs: [[u8; 16]; 256],
    spread: [[u8; 8]; 256],
}

static SHUFFLES: Shuffles = {
    const NONE: u8 = 0x80;
    let mut table = Shuffles {
        pack_pairs: [[NONE; 16]; 256],
        pack: [[NONE; 8]; 256],
        spread_pairs: [[NONE; 16]; 256],
        spread: [[NONE; 8]; 256],
    };
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut nth) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                table.pack[mask][nth] = bit as u8;
                table.pack_pairs[mask][2 * nth] = 2 * bit as u8;
                table.pack_pairs[mask][2 * nth + 1] = 2 * bit as u8 + 1;
                table.spread[mask][bit] = nth as u8;
                table.spread_pairs[mask][2 * bit] = 2 * nth as u8;
                table.spread_pairs[mask][2 * bit + 1] = 2 * nth as u8 + 1;
                nth += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
};

/// As [`crate::wlz`]'s scalar `classify`.
pub(crate) fn classify(
    _: Avx2,
    literals: &Literals,
    count: usize,
    partials: &Dictionary,
    halves: &Dictionary,
    streams: &mut Streams<'_>,
) -> Classified {
    // SAFETY: the first argument proves that the instructions are there.
    unsafe { classify_avx2(literals, count, partials, halves, streams) }
}

/// As [`crate::wlz`]'s scalar `expand`.
pub(crate) fn expand(_: Avx2, sources: &Sources<'_>, literals: &mut Literals) {
    // SAFETY: the first argument proves that the instructions are there.
    unsafe { expand_avx2(sources, literals) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn load_8<const N: usize>(from: &[u32; N]) -> (__m256i, __m256i) {
    const { assert!(N == 16) };
    // SAFETY: sixteen words are there.
    unsafe {
        let from = from.as_ptr().cast::<__m256i>();
        (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)))
    }
}

/// Of sixteen words those with these numbers.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn look_up((low, high): (__m256i, __m256i), slots: __m256i) -> __m256i {
    let from_low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, slots));
    let from_high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, slots));
    // Bit 3 of the number chooses, as the sign.
    let choice = _mm256_castsi256_ps(_mm256_slli_epi32(slots, 28));
    _mm256_castps_si256(_mm256_blendv_ps(from_low, from_high, choice))
}

/// The low halves of eight words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn low_halves(words: __m256i) -> __m128i {
    let words = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(words, words);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b00_00_10_00))
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn mask_of(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn table_16(table: &[[u8; 16]; 256], mask: u8) -> __m128i {
    // SAFETY: sixteen bytes are there.
    unsafe { _mm_loadu_si128(table[usize::from(mask)].as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn table_8(table: &[[u8; 8]; 256], mask: u8) -> __m128i {
    // SAFETY: eight bytes are there.
    unsafe { _mm_loadl_epi64(table[usize::from(mask)].as_ptr().cast()) }
}

/// `N` bytes of a stream from its element `at` on; `None` behind its end.
#[inline]
fn place<T, const N: usize>(stream: &mut [T], at: usize) -> Option<*mut T> {
    let elements = N / size_of::<T>();
    stream.get_mut(at..)?.get_mut(..elements).map(<[T]>::as_mut_ptr)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn classify_avx2(
    literals: &Literals,
    count: usize,
    partials: &Dictionary,
    halves: &Dictionary,
    streams: &mut Streams<'_>,
) -> Classified {
    let partial_keys = load_8(&partials.keys);
    let half_keys = load_8(&halves.keys);
    let multiplier = _mm256_set1_epi32(MULTIPLIER as i32);
    let one = _mm256_set1_epi32(1);
    let low_bits = _mm256_set1_epi32((1 << PARTIAL_BITS) - 1);
    let zero = _mm256_setzero_si256();
    let (mut partial_slots, mut half_slots) = (zero, zero);
    let mut found = Classified::default();
    for group in 0..count.div_ceil(GROUP) {
        let Some(words) = literals[GROUP * group..].first_chunk::<GROUP>() else { break };
        // SAFETY: eight words are there.
        let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
        let partial = _mm256_srli_epi32(words, PARTIAL_BITS as i32);
        let half = _mm256_srli_epi32(words, HALF_BITS as i32);
        let partial_slot = _mm256_srli_epi32(_mm256_mullo_epi32(partial, multiplier), 28);
        let half_slot = _mm256_srli_epi32(_mm256_mullo_epi32(half, multiplier), 28);
        let is_zero = _mm256_cmpeq_epi32(words, zero);
        let has_partial = _mm256_cmpeq_epi32(look_up(partial_keys, partial_slot), partial);
        let has_half = _mm256_cmpeq_epi32(look_up(half_keys, half_slot), half);
        // Of the last group a part may be none.
        let left = count - GROUP * group;
        let there = if left < GROUP { (1u8 << left) - 1 } else { u8::MAX };
        let zeros = mask_of(is_zero);
        let in_partial = mask_of(has_partial) & !zeros & there;
        let in_half = mask_of(has_half) & !mask_of(has_partial) & !zeros & there;
        let missed = there & !(zeros | in_partial | in_half);
        streams.classes[group] = [in_partial | missed, in_half | missed];

        let used = |lanes: u8, slots: __m256i| {
            _mm256_and_si256(lanes_of(lanes), _mm256_sllv_epi32(one, slots))
        };
        partial_slots = _mm256_or_si256(partial_slots, used(in_partial, partial_slot));
        half_slots = _mm256_or_si256(half_slots, used(in_half, half_slot));

        let values = _mm256_slli_epi32(partial_slot, PARTIAL_BITS as i32);
        let values = low_halves(_mm256_or_si256(values, _mm256_and_si256(words, low_bits)));
        let values = _mm_shuffle_epi8(values, table_16(&SHUFFLES.pack_pairs, in_partial));
        let pack_halves = table_16(&SHUFFLES.pack_pairs, in_half);
        let lows = _mm_shuffle_epi8(low_halves(words), pack_halves);
        let slots = _mm_shuffle_epi8(low_halves(half_slot), pack_halves);
        let slots = _mm_packus_epi16(slots, _mm_setzero_si128());
        let order = _mm256_cvtepu8_epi32(table_8(&SHUFFLES.pack, missed));
        let misses = _mm256_permutevar8x32_epi32(words, order);
        // Streams have room for a group more than a page has words.
        let places = (
            place::<_, 16>(&mut streams.partials[..], found.partials),
            place::<_, 16>(&mut streams.halves[..], found.halves),
            place::<_, 8>(&mut streams.half_slots[..], found.halves),
            place::<_, 32>(&mut streams.misses[..], found.misses),
        );
        let (Some(to_partials), Some(to_halves), Some(to_slots), Some(to_misses)) = places else {
            break;
        };
        // SAFETY: `place` has checked that so many bytes are there.
        unsafe {
            _mm_storeu_si128(to_partials.cast(), values);
            _mm_storeu_si128(to_halves.cast(), lows);
            _mm_storel_epi64(to_slots.cast(), slots);
            _mm256_storeu_si256(to_misses.cast(), misses);
        }
        found.partials += in_partial.count_ones() as usize;
        found.halves += in_half.count_ones() as usize;
        found.misses += missed.count_ones() as usize;
    }
    found.partial_slots = joined(partial_slots);
    found.half_slots = joined(half_slots);
    found
}

/// All ones in the lanes whose bits are set.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn lanes_of(mask: u8) -> __m256i {
    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let mask = _mm256_set1_epi32(i32::from(mask));
    _mm256_cmpeq_epi32(_mm256_and_si256(mask, bits), bits)
}

/// The bits of all lanes in one.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn joined(lanes: __m256i) -> u16 {
    let mut words = [0u32; 8];
    // SAFETY: eight words are there.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), lanes) };
    words.iter().fold(0, |all, word| all | *word as u16)
}

/// The elements of a stream that vector loads read: all of it, and zeros where a load goes on behind
/// its end.
struct Window<const N: usize>([u8; N]);

impl<const N: usize> Window<N> {
    /// `N` bytes from element `at` on, of elements of `SIZE` bytes.
    #[inline]
    fn of<'a, const SIZE: usize>(&'a mut self, stream: &'a [[u8; SIZE]], at: usize) -> &'a [u8; N] {
        let bytes = stream.as_flattened().get(SIZE * at..).unwrap_or_default();
        match bytes.first_chunk() {
            Some(bytes) => bytes,
            None => {
                self.0.fill(0);
                self.0[..bytes.len()].copy_from_slice(bytes);
                &self.0
            }
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn expand_avx2(sources: &Sources<'_>, literals: &mut Literals) {
    let partial_keys = load_8::<SLOTS>(sources.partial_keys);
    let half_keys = load_8::<SLOTS>(sources.half_keys);
    let low_bits = _mm256_set1_epi32((1 << PARTIAL_BITS) - 1);
    let (mut partial_at, mut half_at, mut miss_at) = (0, 0, 0);
    let (mut pairs, mut half_pairs) = (Window([0; 16]), Window([0; 16]));
    let (mut nibbles, mut words) = (Window([0; 8]), Window([0; 32]));
    let slots_of_two = sources.half_slots.as_chunks::<1>().0;
    for (group, &[low, high]) in sources.classes.iter().enumerate() {
        let (in_partial, in_half, missed) = (low & !high, high & !low, low & high);
        // SAFETY: as many bytes are there as are loaded.
        let (values, halves, slots, misses) = unsafe {
            (
                _mm_loadu_si128(pairs.of(sources.partials, partial_at).as_ptr().cast()),
                _mm_loadu_si128(half_pairs.of(sources.halves, half_at).as_ptr().cast()),
                _mm_loadl_epi64(nibbles.of(slots_of_two, half_at / 2).as_ptr().cast()),
                _mm256_loadu_si256(words.of(sources.misses, miss_at).as_ptr().cast()),
            )
        };
        let values = _mm_shuffle_epi8(values, table_16(&SHUFFLES.spread_pairs, in_partial));
        let values = _mm256_cvtepu16_epi32(values);
        let keys = look_up(partial_keys, _mm256_srli_epi32(values, PARTIAL_BITS as i32));
        let from_partials = _mm256_or_si256(keys, _mm256_and_si256(values, low_bits));

        // Two slots a byte, made one a byte; from an odd one on, the first is not wanted.
        let mask = _mm_set1_epi8(15);
        let even = _mm_and_si128(slots, mask);
        let odd = _mm_and_si128(_mm_srli_epi16(slots, 4), mask);
        let slots = _mm_unpacklo_epi8(even, odd);
        let slots = if half_at % 2 == 1 { _mm_srli_si128(slots, 1) } else { slots };
        let slots = _mm_shuffle_epi8(slots, table_8(&SHUFFLES.spread, in_half));
        let keys = look_up(half_keys, _mm256_cvtepu8_epi32(slots));
        let lows = _mm_shuffle_epi8(halves, table_16(&SHUFFLES.spread_pairs, in_half));
        let from_halves = _mm256_or_si256(keys, _mm256_cvtepu16_epi32(lows));

        let order = _mm256_cvtepu8_epi32(table_8(&SHUFFLES.spread, missed));
        let from_misses = _mm256_permutevar8x32_epi32(misses, order);

        let group_words = _mm256_or_si256(
            _mm256_or_si256(
                _mm256_and_si256(lanes_of(in_partial), from_partials),
                _mm256_and_si256(lanes_of(in_half), from_halves),
            ),
            _mm256_and_si256(lanes_of(missed), from_misses),
        );
        let Some(to) = literals.get_mut(GROUP * group..).and_then(<[_]>::first_chunk_mut::<GROUP>)
        else {
            break;
        };
        // SAFETY: eight words are there.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), group_words) };
        partial_at += in_partial.count_ones() as usize;
        half_at += in_half.count_ones() as usize;
        miss_at += missed.count_ones() as usize;
    }
}

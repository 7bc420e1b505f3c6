//! With AVX-512: a vector of the page is a register, and closing gaps is an instruction.

use core::arch::x86_64::*;

use super::byte_set;
use crate::Page;
use crate::arch::kernels::wkv_kernels;
use crate::arch::lanes::{first_lanes, u16_at, u32_at};
use crate::arch::x86_64::avx512::{load, load_half, store, store_half};
use crate::wkv::{
    ByteOf, ByteSet, Bytes, CANDIDATES, Candidates, Classified, Codes, Counts, Cover,
    DISTANCE_COUNT, DistanceCounts, Distances, ESCAPE, Gathered, HISTORY, Halves, Kernels, Keys,
    LANES, Literals, MULTIPLIER, Masks, PARTIAL_BITS, Resolved, SAMPLED, Sections, Signatures,
    Streams, Strides, VECTORS, distance_of, search_highest,
};

/// Only to be had with proof that the instructions are there.
pub(super) static KERNELS: Kernels = wkv_kernels!();

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bitalg,bmi1,bmi2,lzcnt,popcnt")]
fn strides(page: &Page, signatures: &mut Signatures) -> Strides {
    sign(page, signatures);
    let candidates = best(&correlate(signatures));
    let covers = coverage(signatures, candidates.numbers());
    Strides::of(&candidates, &covers, |cover, covered| {
        let gains = _mm512_subs_epu8(load(cover, 0), load(covered, 0));
        let sums = _mm512_sad_epu8(gains, _mm512_setzero_si512());
        _mm512_reduce_add_epi64(sums) as u32
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn sign(page: &Page, signatures: &mut Signatures) {
    let multiplier = _mm512_set1_epi32(MULTIPLIER as i32);
    let one = _mm512_set1_epi32(1);
    let (history, signatures) = signatures.split_at_mut(HISTORY);
    history.fill(0);
    let (vectors, _) = signatures.as_chunks_mut::<LANES>();
    for (vector, to) in vectors.iter_mut().enumerate() {
        let words = load(page, 64 * vector);
        let hashes = _mm512_srli_epi32(_mm512_mullo_epi32(words, multiplier), 24);
        let hashes = _mm512_or_si512(hashes, one);
        let bytes = _mm512_maskz_cvtepi32_epi8(_mm512_test_epi32_mask(words, words), hashes);
        // SAFETY: sixteen bytes are there.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bytes) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn correlate(signatures: &Signatures) -> DistanceCounts {
    let zero = _mm512_setzero_si512();
    let mut starts = [0; SAMPLED.len()];
    let mut now = [zero; SAMPLED.len()];
    for ((now, start), block) in now.iter_mut().zip(&mut starts).zip(SAMPLED) {
        *start = HISTORY + block;
        // A zero agrees with nothing: no signature is 2.
        let block = load(signatures, *start);
        *now =
            _mm512_mask_mov_epi8(block, _mm512_testn_epi8_mask(block, block), _mm512_set1_epi8(2));
    }
    let one = _mm512_set1_epi8(1);
    // Counts of 64 bytes by eights, each in the lowest sixteen bits of its 64.
    let agreeing = |number: usize| {
        let distance = usize::from(distance_of(number as u8));
        let mut agreeing = zero;
        for (block, start) in now.iter().zip(starts) {
            let same = _mm512_cmpeq_epi8_mask(*block, load(signatures, start - distance));
            agreeing = _mm512_mask_add_epi8(agreeing, same, agreeing, one);
        }
        _mm512_sad_epu8(agreeing, zero)
    };
    let mut counts = [0; DISTANCE_COUNT];
    for (nth, counts) in counts.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // Four distances side by side are added up at once.
        let low = _mm512_or_si512(agreeing(4 * nth), _mm512_slli_epi64(agreeing(4 * nth + 1), 16));
        let high =
            _mm512_or_si512(agreeing(4 * nth + 2), _mm512_slli_epi64(agreeing(4 * nth + 3), 16));
        let four = _mm512_or_si512(low, _mm512_slli_epi64(high, 32));
        let four =
            _mm256_add_epi16(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
        let four = _mm_add_epi16(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
        let four = _mm_add_epi16(four, _mm_unpackhi_epi64(four, four));
        let four = _mm_cvtsi128_si64(four) as u64;
        *counts = [four as u16, (four >> 16) as u16, (four >> 32) as u16, (four >> 48) as u16];
    }
    counts
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn best(counts: &DistanceCounts) -> Candidates {
    let ranks = Candidates::ranks(counts);
    // SAFETY: 64 numbers of sixteen bits are there.
    let (mut low, mut high) = unsafe {
        let from = ranks.as_ptr();
        (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(32).cast()))
    };
    let all = _mm_set1_epi8(-1);
    Candidates::highest(|| {
        let most = _mm512_max_epu16(low, high);
        let most =
            _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
        let most = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        // There is an instruction for the least of eight only.
        let most = !(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(most, all))) as u16);
        let everywhere = _mm512_set1_epi16(most as i16);
        low = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(low, everywhere), low);
        high = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(high, everywhere), high);
        most
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bitalg")]
fn coverage(signatures: &Signatures, numbers: &[u8]) -> [Cover; CANDIDATES] {
    let mut same = [[0u64; VECTORS / 4]; CANDIDATES];
    for (same, &number) in same.iter_mut().zip(numbers) {
        let distance = usize::from(distance_of(number));
        for (block, same) in same.iter_mut().enumerate() {
            let now = load(signatures, HISTORY + 64 * block);
            let back = load(signatures, HISTORY + 64 * block - distance);
            *same = _mm512_mask_cmpeq_epi8_mask(_mm512_test_epi8_mask(now, now), now, back);
        }
    }
    let mut covers = [[0; VECTORS]; CANDIDATES];
    for ((cover, same), &number) in covers.iter_mut().zip(&same).zip(numbers) {
        for (same, cover) in same.as_chunks::<8>().0.iter().zip(cover.as_chunks_mut::<32>().0) {
            // SAFETY: 64 bytes are there.
            let masks = unsafe { _mm512_loadu_si512(same.as_ptr().cast()) };
            store_half(cover, 0, _mm512_cvtepi16_epi8(_mm512_popcnt_epi16(masks)));
        }
        cover[..usize::from(distance_of(number)).div_ceil(LANES)].fill(0);
    }
    covers
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn gather(
    page: &Page,
    distances: &Distances,
    masks: &mut Masks,
    literals: &mut Literals<'_>,
) -> Gathered {
    let mut gathered = Gathered::default();
    let mut vectors = 0;
    let all_words = literals.words.as_flattened_mut();
    let all_predicted = literals.predicted.as_flattened_mut();
    for (vector, &distance) in distances.iter().enumerate() {
        let words = load(page, 64 * vector);
        let predicted = predicted(page, vector, distance);
        let mask = _mm512_cmpneq_epi32_mask(words, predicted);
        let at = 4 * gathered.literals;
        store(all_words, at, _mm512_maskz_compress_epi32(mask, words));
        store(all_predicted, at, _mm512_maskz_compress_epi32(mask, predicted));
        gathered.literals += mask.count_ones() as usize;
        masks[vectors] = mask.to_le_bytes();
        vectors += usize::from(mask != 0);
        gathered.vectors |= u64::from(mask != 0) << vector;
    }
    gathered
}

/// What a vector of the page is predicted to be.
#[inline]
#[target_feature(enable = "avx512f")]
fn predicted(page: &Page, vector: usize, distance: u8) -> __m512i {
    let start = 64 * vector;
    // Distance 0 would be the vector itself: nothing of it is loaded.
    let mask = if distance == 0 { 0 } else { u16::MAX };
    let from = &page[start - 4 * usize::from(distance)..][..64];
    // SAFETY: 64 bytes are there.
    unsafe { _mm512_maskz_loadu_epi32(mask, from.as_ptr().cast()) }
}

/// The lanes of two vectors, one after the other, that are `distance` before those of the next.
#[inline]
#[target_feature(enable = "avx512f")]
fn shifted(distance: u8) -> __m512i {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let first = LANES - usize::from(distance) % LANES;
    _mm512_add_epi32(lanes, _mm512_set1_epi32(first as i32))
}

/// What [`predicted`] gives, where the page has just been stored, vector by vector. A load that
/// takes from two stores would wait until both are in the cache: so two vectors are loaded as they
/// were stored.
#[inline]
#[target_feature(enable = "avx512f")]
fn predicted_from_stored(page: &Page, vector: usize, distance: u8) -> __m512i {
    let order = shifted(distance);
    let distance = usize::from(distance);
    let mask = if distance == 0 { 0 } else { u16::MAX };
    let later = vector - distance / LANES;
    let earlier = later - usize::from(!distance.is_multiple_of(LANES));
    _mm512_maskz_permutex2var_epi32(mask, load(page, 64 * earlier), order, load(page, 64 * later))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_keys(keys: &Keys) -> __m512i {
    // SAFETY: sixteen words are there.
    unsafe { _mm512_loadu_si512(keys.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn classify(
    literals: &Literals<'_>,
    count: usize,
    keys: &Keys,
    streams: &mut Streams<'_>,
) -> Classified {
    let keys = load_keys(keys);
    let multiplier = _mm512_set1_epi32(MULTIPLIER as i32);
    let low = _mm512_set1_epi32((1 << PARTIAL_BITS) - 1);
    let upper_half = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let mut used = _mm512_setzero_si512();
    let mut found = Classified::default();
    let (words, predicted) = (literals.words.as_flattened(), literals.predicted.as_flattened());
    let (values, misses) = (streams.values.as_flattened_mut(), streams.misses.as_flattened_mut());
    let planes = streams.value_plane.iter_mut().zip(streams.other_plane.iter_mut());
    for (group, (value_plane, other_plane)) in planes.enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let words = load(words, 64 * group);
        let predicted = load(predicted, 64 * group);
        let zeros = _mm512_testn_epi32_mask(words, words);
        let differ = _mm512_xor_si512(words, predicted);
        let halves = _mm512_testn_epi32_mask(differ, upper_half) & !zeros & there;
        let key = _mm512_srli_epi32(words, PARTIAL_BITS);
        let slots = _mm512_srli_epi32(_mm512_mullo_epi32(key, multiplier), 28);
        let in_slots = _mm512_permutexvar_epi32(slots, keys);
        let known = _mm512_cmpeq_epi32_mask(in_slots, _mm512_andnot_si512(low, words));
        let partials = known & !halves & !zeros & there;
        let missed = there & !(zeros | halves | partials);
        *value_plane = (halves | partials).to_le_bytes();
        *other_plane = (halves | missed).to_le_bytes();

        // The slot above the low bits, or the lower half as it is.
        let stored =
            _mm512_or_si512(_mm512_slli_epi32(slots, PARTIAL_BITS), _mm512_and_si512(words, low));
        let stored = _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(stored, halves, words));
        let stored = _mm256_maskz_compress_epi16(halves | partials, stored);
        store_half(values, 2 * found.values, stored);
        found.values += (halves | partials).count_ones() as usize;
        store(misses, 4 * found.misses, _mm512_maskz_compress_epi32(missed, words));
        found.misses += missed.count_ones() as usize;
        let bits = _mm512_sllv_epi32(_mm512_set1_epi32(1), slots);
        used = _mm512_mask_or_epi32(used, partials, used, bits);
    }
    found.slots = _mm512_reduce_or_epi32(used) as u16;
    found
}

#[target_feature(enable = "avx512f,avx512bw,bmi1,bmi2,lzcnt,popcnt")]
fn highest(counts: &Counts, sampled: u16) -> (ByteSet, ByteSet) {
    // SAFETY: 256 numbers of sixteen bits are there.
    let counts: [_; 8] = core::array::from_fn(|eighth| unsafe {
        _mm512_loadu_si512(counts.as_ptr().add(32 * eighth).cast())
    });
    search_highest(
        sampled,
        |least| {
            let least = _mm512_set1_epi16(least as i16);
            byte_set(counts.map(|counts| _mm512_cmpgt_epu16_mask(counts, least)))
        },
        |least| {
            let least = _mm512_set1_epi16(least as i16);
            byte_set(counts.map(|counts| _mm512_cmpeq_epu16_mask(counts, least)))
        },
    )
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt"
)]
fn pack(
    bytes: &[u8],
    count: usize,
    table: &Codes,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> usize {
    let code_of: [_; 4] = core::array::from_fn(|quarter| load(&table.of, 64 * quarter));
    let [first, second, third, fourth] = code_of;
    let escape = _mm512_set1_epi8(ESCAPE as i8);
    // The second code of each two above the first.
    let weights = _mm512_set1_epi16(0x1001);
    let mut escaped = 0;
    for at in (0..count).step_by(64) {
        let left = count - at;
        let there = if left < 64 { (1u64 << left) - 1 } else { u64::MAX };
        let here = load(bytes, at);
        let below_128 = _mm512_permutex2var_epi8(first, here, second);
        let above = _mm512_permutex2var_epi8(third, here, fourth);
        let codes_here = _mm512_mask_mov_epi8(below_128, _mm512_movepi8_mask(here), above);
        let codes_here = _mm512_maskz_mov_epi8(there, codes_here);
        let escaping = _mm512_cmpeq_epi8_mask(codes_here, escape);
        store(escapes, escaped, _mm512_maskz_compress_epi8(escaping, here));
        escaped += escaping.count_ones() as usize;
        let pairs = _mm512_maddubs_epi16(codes_here, weights);
        store_half(codes, at / 2, _mm512_cvtepi16_epi8(pairs));
    }
    escaped
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn unpack(
    codes: &Bytes,
    escapes: &Bytes,
    count: usize,
    byte_of: &ByteOf,
    bytes: &mut Bytes,
) -> usize {
    // SAFETY: sixteen bytes are there.
    let byte_of = unsafe { _mm_loadu_si128(byte_of.as_ptr().cast()) };
    let byte_of = _mm512_broadcast_i32x4(byte_of);
    let escape = _mm512_set1_epi8(ESCAPE as i8);
    let mut escaped = 0;
    for at in (0..count).step_by(64) {
        let left = count - at;
        let there = if left < 64 { (1u64 << left) - 1 } else { u64::MAX };
        let pairs = _mm512_cvtepu8_epi16(load_half(codes, at / 2));
        let pairs = _mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4));
        let codes_here = _mm512_and_si512(pairs, escape);
        let escaping = _mm512_mask_cmpeq_epi8_mask(there, codes_here, escape);
        let known = _mm512_shuffle_epi8(byte_of, codes_here);
        let here = _mm512_mask_expand_epi8(known, escaping, load(escapes, escaped));
        store(bytes, at, here);
        escaped += escaping.count_ones() as usize;
    }
    escaped
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt")]
fn resolve(
    sections: &Sections<'_>,
    count: usize,
    keys: &Keys,
    literals: &mut Bytes,
    halves: &mut Halves,
) -> Resolved {
    let keys = load_keys(keys);
    let low = _mm512_set1_epi32((1 << PARTIAL_BITS) - 1);
    let mut used = Resolved::default();
    let (halves, _) = halves.as_chunks_mut::<2>();
    for (group, halves) in halves.iter_mut().enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let valued = u16_at(sections.value_plane, 2 * group) & there;
        let other = u16_at(sections.other_plane, 2 * group) & there;
        let missed = other & !valued;
        *halves = (valued & other).to_le_bytes();
        let stored = load_half(sections.values, 2 * used.values);
        let stored = _mm512_maskz_expand_epi32(valued, _mm512_cvtepu16_epi32(stored));
        let in_slots = _mm512_permutexvar_epi32(_mm512_srli_epi32(stored, PARTIAL_BITS), keys);
        let partials = _mm512_or_si512(in_slots, _mm512_and_si512(stored, low));
        let misses = _mm512_maskz_expand_epi32(missed, load(sections.misses, 4 * used.misses));
        let words =
            _mm512_mask_mov_epi32(_mm512_or_si512(stored, misses), valued & !other, partials);
        store(literals, 64 * group, words);
        used.values += valued.count_ones() as usize;
        used.misses += missed.count_ones() as usize;
    }
    used
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn scatter(
    sections: &Sections<'_>,
    distances: &Distances,
    literals: &Bytes,
    halves: &Halves,
    page: &mut Page,
) -> usize {
    let upper_half = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let mut taken = 0;
    let (mut last, mut before) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for (vector, (&distance, mask)) in distances.iter().zip(sections.literals()).enumerate() {
        let halves = u32_at(halves, taken / 8) >> (taken % 8);
        let halves = _pdep_u32(halves, u32::from(mask)) as u16;
        // What was stored just now is at hand: to wait for it to be loaded takes longer.
        let predicted = if (LANES..2 * LANES).contains(&usize::from(distance)) {
            _mm512_permutex2var_epi32(before, shifted(distance), last)
        } else {
            predicted_from_stored(page, vector, distance)
        };
        let words = _mm512_mask_expand_epi32(predicted, mask, load(literals, 4 * taken));
        let upper = _mm512_and_si512(predicted, upper_half);
        let words = _mm512_mask_or_epi32(words, halves, words, upper);
        (before, last) = (last, words);
        store(page, 64 * vector, words);
        taken += mask.count_ones() as usize;
    }
    taken
}

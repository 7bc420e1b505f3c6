//! With AVX2: a vector of the page is two registers, and shuffles by a table of 256 close gaps and
//! open them.

use core::arch::x86_64::*;

use super::byte_set;
use crate::Page;
use crate::arch::kernels::wkv_kernels;
use crate::arch::lanes::{SHUFFLES, first_lanes, u16_at};
use crate::arch::x86_64::avx2::{
    HALF, close, lanes_of, load, load_half, load_quarter, mask_of, shuffle, store, store_half,
    store_quarter,
};
use crate::wkv::{
    ByteOf, ByteSet, Bytes, CANDIDATES, Candidates, Classified, Codes, Counts, Cover,
    DISTANCE_COUNT, DistanceCounts, Distances, ESCAPE, Gathered, HISTORY, Halves, Kernels, Keys,
    LANES, Literals, MULTIPLIER, Masks, PARTIAL_BITS, Resolved, SAMPLED, Sections, Signatures,
    Streams, Strides, VECTORS, distance_of, search_highest,
};

/// Only to be had with proof that the instructions are there.
pub(super) static KERNELS: Kernels = wkv_kernels!();

/// A shuffle for pairs of bytes from one for bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn pairwise(shuffle: __m128i) -> __m128i {
    let twice = _mm_unpacklo_epi8(shuffle, shuffle);
    // 2n and 2n + 1; a zero stays one.
    let doubled = _mm_add_epi8(twice, _mm_and_si128(twice, _mm_set1_epi8(0x0f)));
    _mm_add_epi8(doubled, _mm_set1_epi16(0x0100))
}

/// The low halves of eight words.
#[inline]
#[target_feature(enable = "avx2")]
fn low_halves(words: __m256i) -> __m128i {
    let words = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(words, words);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b00_00_10_00))
}

type TwoVectors = (__m256i, __m256i);

#[target_feature(enable = "avx2")]
fn load_keys(keys: &Keys) -> TwoVectors {
    // SAFETY: sixteen words are there.
    unsafe {
        let from = keys.as_ptr().cast::<__m256i>();
        (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)))
    }
}

/// Of sixteen words those with these numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up((low, high): TwoVectors, slots: __m256i) -> __m256i {
    let from_low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, slots));
    let from_high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, slots));
    // Bit 3 of the number chooses, as the sign.
    let choice = _mm256_castsi256_ps(_mm256_slli_epi32(slots, 28));
    _mm256_castps_si256(_mm256_blendv_ps(from_low, from_high, choice))
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn strides(page: &Page, signatures: &mut Signatures) -> Strides {
    sign(page, signatures);
    let candidates = best(&correlate(signatures));
    let mut covers = [[0; VECTORS]; CANDIDATES];
    for (cover, &number) in covers.iter_mut().zip(candidates.numbers()) {
        *cover = coverage(signatures, distance_of(number));
    }
    Strides::of(&candidates, &covers, |cover, covered| {
        let gains = |at| {
            let gains = _mm256_subs_epu8(load(cover, at), load(covered, at));
            _mm256_sad_epu8(gains, _mm256_setzero_si256())
        };
        sum(_mm256_add_epi64(gains(0), gains(32))) as u32
    })
}

/// Of four.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(numbers: __m256i) -> u64 {
    let two = _mm_add_epi64(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    (_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1)) as u64
}

#[inline]
#[target_feature(enable = "avx2")]
fn sign(page: &Page, signatures: &mut Signatures) {
    let multiplier = _mm256_set1_epi32(MULTIPLIER as i32);
    let (one, zero) = (_mm256_set1_epi32(1), _mm256_setzero_si256());
    // Packing works within halves of a register: this puts the fours of bytes in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let (history, signatures) = signatures.split_at_mut(HISTORY);
    history.fill(0);
    for at in (0..signatures.len()).step_by(32) {
        let hashes = |nth: usize| {
            let words = load(page, 4 * at + 32 * nth);
            let hashes = _mm256_srli_epi32(_mm256_mullo_epi32(words, multiplier), 24);
            _mm256_andnot_si256(_mm256_cmpeq_epi32(words, zero), _mm256_or_si256(hashes, one))
        };
        let first = _mm256_packus_epi32(hashes(0), hashes(1));
        let second = _mm256_packus_epi32(hashes(2), hashes(3));
        let bytes = _mm256_packus_epi16(first, second);
        store(signatures, at, _mm256_permutevar8x32_epi32(bytes, order));
    }
}

/// Signatures at `at`, with zeros made into what no signature is.
#[inline]
#[target_feature(enable = "avx2")]
fn wanted(signatures: &Signatures, at: usize) -> __m256i {
    let now = load(signatures, at);
    let zeros = _mm256_cmpeq_epi8(now, _mm256_setzero_si256());
    _mm256_or_si256(now, _mm256_and_si256(zeros, _mm256_set1_epi8(2)))
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn correlate(signatures: &Signatures) -> DistanceCounts {
    let zero = _mm256_setzero_si256();
    let mut starts = [0; SAMPLED.len()];
    let mut now = [(zero, zero); SAMPLED.len()];
    for ((now, start), block) in now.iter_mut().zip(&mut starts).zip(SAMPLED) {
        *start = HISTORY + block;
        *now = (wanted(signatures, *start), wanted(signatures, *start + 32));
    }
    let mut counts = [0; DISTANCE_COUNT];
    for (number, count) in counts.iter_mut().enumerate() {
        let distance = usize::from(distance_of(number as u8));
        let mut agreeing = zero;
        for ((low, high), start) in now.iter().zip(starts) {
            let at = start - distance;
            let low = _mm256_cmpeq_epi8(*low, load(signatures, at));
            let high = _mm256_cmpeq_epi8(*high, load(signatures, at + 32));
            agreeing = _mm256_sub_epi8(agreeing, _mm256_add_epi8(low, high));
        }
        *count = sum(_mm256_sad_epu8(agreeing, zero)) as u16;
    }
    counts
}

#[inline]
#[target_feature(enable = "avx2")]
fn best(counts: &DistanceCounts) -> Candidates {
    let ranks = Candidates::ranks(counts);
    // SAFETY: 64 numbers of sixteen bits are there.
    let mut ranks: [_; 4] = core::array::from_fn(|quarter| unsafe {
        _mm256_loadu_si256(ranks.as_ptr().add(16 * quarter).cast())
    });
    let all = _mm_set1_epi8(-1);
    Candidates::highest(|| {
        let [a, b, c, d] = ranks;
        let most = _mm256_max_epu16(_mm256_max_epu16(a, b), _mm256_max_epu16(c, d));
        let most = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        // There is an instruction for the least of eight only.
        let most = !(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(most, all))) as u16);
        let everywhere = _mm256_set1_epi16(most as i16);
        ranks =
            ranks.map(|ranks| _mm256_andnot_si256(_mm256_cmpeq_epi16(ranks, everywhere), ranks));
        most
    })
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn coverage(signatures: &Signatures, distance: u8) -> Cover {
    let distance = usize::from(distance);
    let mut cover = [0; VECTORS];
    for (nth, two) in cover.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let at = HISTORY + 32 * nth;
        let same = _mm256_cmpeq_epi8(wanted(signatures, at), load(signatures, at - distance));
        let same = _mm256_movemask_epi8(same) as u32;
        *two = [(same & 0xffff).count_ones() as u8, (same >> 16).count_ones() as u8];
    }
    cover[..distance.div_ceil(LANES)].fill(0);
    cover
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
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
        let mut mask = 0u16;
        for half in 0..2 {
            let words = load(page, 64 * vector + 32 * half);
            let predicted = predicted(page, vector, half, distance);
            let differ = !mask_of(_mm256_cmpeq_epi32(words, predicted));
            let at = 4 * gathered.literals;
            store(all_words, at, close(words, differ));
            store(all_predicted, at, close(predicted, differ));
            gathered.literals += differ.count_ones() as usize;
            mask |= u16::from(differ) << (HALF * half);
        }
        masks[vectors] = mask.to_le_bytes();
        vectors += usize::from(mask != 0);
        gathered.vectors |= u64::from(mask != 0) << vector;
    }
    gathered
}

/// What half a vector of the page is predicted to be.
#[inline]
#[target_feature(enable = "avx2")]
fn predicted(page: &Page, vector: usize, half: usize, distance: u8) -> __m256i {
    let back = load(page, 64 * vector + 32 * half - 4 * usize::from(distance));
    let none = _mm256_set1_epi8(if distance == 0 { -1 } else { 0 });
    _mm256_andnot_si256(none, back)
}

/// The same where the page has just been stored, half vector by half vector. A load that takes from
/// two stores would wait until both are in the cache: so two halves are loaded as they were stored.
#[inline]
#[target_feature(enable = "avx2")]
fn predicted_from_stored(page: &Page, vector: usize, half: usize, distance: u8) -> __m256i {
    let start = LANES * vector + HALF * half - usize::from(distance);
    let (at, first) = (start / HALF, start % HALF);
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let order = _mm256_add_epi32(lanes, _mm256_set1_epi32(first as i32));
    let earlier = _mm256_permutevar8x32_epi32(load(page, 32 * at), order);
    let later = load(page, 32 * (at + usize::from(first != 0)));
    let later = _mm256_permutevar8x32_epi32(later, order);
    let from_later = _mm256_cmpgt_epi32(order, _mm256_set1_epi32(HALF as i32 - 1));
    let none = _mm256_set1_epi8(if distance == 0 { -1 } else { 0 });
    _mm256_andnot_si256(none, _mm256_blendv_epi8(earlier, later, from_later))
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn classify(
    literals: &Literals<'_>,
    count: usize,
    keys: &Keys,
    streams: &mut Streams<'_>,
) -> Classified {
    let keys = load_keys(keys);
    let multiplier = _mm256_set1_epi32(MULTIPLIER as i32);
    let one = _mm256_set1_epi32(1);
    let low = _mm256_set1_epi32((1 << PARTIAL_BITS) - 1);
    let zero = _mm256_setzero_si256();
    let mut used = zero;
    let mut found = Classified::default();
    let (words, predicted) = (literals.words.as_flattened(), literals.predicted.as_flattened());
    let (values, misses) = (streams.values.as_flattened_mut(), streams.misses.as_flattened_mut());
    let value_plane = streams.value_plane.as_flattened_mut();
    let other_plane = streams.other_plane.as_flattened_mut();
    for group in 0..count.div_ceil(HALF) {
        let left = count - HALF * group;
        let there = if left < HALF { (1u8 << left) - 1 } else { u8::MAX };
        let words = load(words, 32 * group);
        let predicted = load(predicted, 32 * group);
        let zeros = mask_of(_mm256_cmpeq_epi32(words, zero));
        let differ = _mm256_srli_epi32(_mm256_xor_si256(words, predicted), 16);
        let half_lanes = _mm256_cmpeq_epi32(differ, zero);
        let halves = mask_of(half_lanes) & !zeros & there;
        let key = _mm256_srli_epi32(words, PARTIAL_BITS as i32);
        let slots = _mm256_srli_epi32(_mm256_mullo_epi32(key, multiplier), 28);
        let known = _mm256_cmpeq_epi32(look_up(keys, slots), _mm256_andnot_si256(low, words));
        let partials = mask_of(known) & !halves & !zeros & there;
        let missed = there & !(zeros | halves | partials);
        value_plane[group] = halves | partials;
        other_plane[group] = halves | missed;

        // The slot above the low bits, or the lower half as it is.
        let stored = _mm256_or_si256(
            _mm256_slli_epi32(slots, PARTIAL_BITS as i32),
            _mm256_and_si256(words, low),
        );
        let stored = low_halves(_mm256_blendv_epi8(stored, words, half_lanes));
        let order = pairwise(shuffle(&SHUFFLES.close, halves | partials));
        store_half(values, 2 * found.values, _mm_shuffle_epi8(stored, order));
        found.values += (halves | partials).count_ones() as usize;
        store(misses, 4 * found.misses, close(words, missed));
        found.misses += missed.count_ones() as usize;
        let bits = _mm256_and_si256(lanes_of(partials), _mm256_sllv_epi32(one, slots));
        used = _mm256_or_si256(used, bits);
    }
    let mut lanes = [0u32; HALF];
    // SAFETY: eight words are there.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), used) };
    found.slots = lanes.iter().fold(0, |all, lane| all | *lane as u16);
    found
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn highest(counts: &Counts, sampled: u16) -> (ByteSet, ByteSet) {
    // Two lists of sixteen counts for 32 bytes, in the order that packing puts right.
    // SAFETY: 256 numbers of sixteen bits are there.
    let counts: [_; 8] = core::array::from_fn(|eighth| unsafe {
        let from = counts.as_ptr().add(32 * eighth).cast::<__m256i>();
        let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
        (_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31))
    });
    let bytes_where = |lanes: [(__m256i, __m256i); 8]| {
        let eighths =
            lanes.map(|(low, high)| _mm256_movemask_epi8(_mm256_packs_epi16(low, high)) as u32);
        byte_set(eighths)
    };
    // Counts are far below the sign.
    search_highest(
        sampled,
        |least| {
            let least = _mm256_set1_epi16(least as i16);
            bytes_where(counts.map(|(low, high)| {
                (_mm256_cmpgt_epi16(low, least), _mm256_cmpgt_epi16(high, least))
            }))
        },
        |least| {
            let least = _mm256_set1_epi16(least as i16);
            bytes_where(counts.map(|(low, high)| {
                (_mm256_cmpeq_epi16(low, least), _mm256_cmpeq_epi16(high, least))
            }))
        },
    )
}

/// Bytes of a register.
const BYTES: usize = 32;

/// All ones in the first `count` bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn first_bytes(count: usize) -> __m256i {
    static ENDS: [u8; 2 * BYTES] = {
        let mut ends = [0; 2 * BYTES];
        let mut at = 0;
        while at < BYTES {
            ends[at] = u8::MAX;
            at += 1;
        }
        ends
    };
    load(&ENDS, BYTES - count.min(BYTES))
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn pack(
    bytes: &[u8],
    count: usize,
    table: &Codes,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> usize {
    let escape = _mm256_set1_epi8(ESCAPE as i8);
    // What to compare with, and what to take off the escape code when it is that.
    let mut known = [(_mm256_setzero_si256(), _mm256_setzero_si256()); ESCAPE as usize];
    for (known, (code, byte)) in known.iter_mut().zip(table.frequent()) {
        *known = (_mm256_set1_epi8(byte as i8), _mm256_set1_epi8((ESCAPE - code) as i8));
    }
    // The second code of each two above the first.
    let weights = _mm256_set1_epi16(0x1001);
    let mut escaped = 0;
    for at in (0..count).step_by(BYTES) {
        let here = load(bytes, at);
        let codes_here = known.iter().fold(escape, |codes, &(byte, less)| {
            let less = _mm256_and_si256(_mm256_cmpeq_epi8(here, byte), less);
            _mm256_sub_epi8(codes, less)
        });
        let codes_here = _mm256_and_si256(codes_here, first_bytes(count - at));
        let escaping = _mm256_movemask_epi8(_mm256_cmpeq_epi8(codes_here, escape)) as u32;
        for (nth, escaping) in escaping.to_le_bytes().into_iter().enumerate() {
            let order = shuffle(&SHUFFLES.close, escaping);
            let these = _mm_shuffle_epi8(load_quarter(bytes, at + HALF * nth), order);
            store_quarter(escapes, escaped, these);
            escaped += escaping.count_ones() as usize;
        }
        let pairs = _mm256_maddubs_epi16(codes_here, weights);
        let pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0b00_00_10_00);
        store_half(codes, at / 2, _mm256_castsi256_si128(pairs));
    }
    escaped
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn unpack(
    codes: &Bytes,
    escapes: &Bytes,
    count: usize,
    byte_of: &ByteOf,
    bytes: &mut Bytes,
) -> usize {
    let byte_of = _mm256_broadcastsi128_si256(load_half(byte_of, 0));
    let escape = _mm256_set1_epi8(ESCAPE as i8);
    let mut escaped = 0;
    let mut next_escapes = |escaping: u8| {
        let order = shuffle(&SHUFFLES.open, escaping);
        let these = _mm_shuffle_epi8(load_quarter(escapes, escaped), order);
        escaped += escaping.count_ones() as usize;
        these
    };
    for at in (0..count).step_by(BYTES) {
        let pairs = _mm256_cvtepu8_epi16(load_half(codes, at / 2));
        let pairs = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4));
        let codes_here = _mm256_and_si256(pairs, escape);
        let is_escape = _mm256_cmpeq_epi8(codes_here, escape);
        let is_escape = _mm256_and_si256(is_escape, first_bytes(count - at));
        let known = _mm256_shuffle_epi8(byte_of, codes_here);
        let [a, b, c, d] = (_mm256_movemask_epi8(is_escape) as u32).to_le_bytes();
        let low = _mm_unpacklo_epi64(next_escapes(a), next_escapes(b));
        let high = _mm_unpacklo_epi64(next_escapes(c), next_escapes(d));
        let here = _mm256_blendv_epi8(known, _mm256_set_m128i(high, low), is_escape);
        store(bytes, at, here);
    }
    escaped
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn resolve(
    sections: &Sections<'_>,
    count: usize,
    keys: &Keys,
    literals: &mut Bytes,
    halves: &mut Halves,
) -> Resolved {
    let keys = load_keys(keys);
    let low = _mm256_set1_epi32((1 << PARTIAL_BITS) - 1);
    let mut used = Resolved::default();
    for (group, halves) in halves.iter_mut().enumerate().take(count.div_ceil(8)) {
        let there = first_lanes(count - 8 * group) as u8;
        let valued = sections.value_plane[group] & there;
        let other = sections.other_plane[group] & there;
        let missed = other & !valued;
        *halves = valued & other;
        let stored = load_half(sections.values, 2 * used.values);
        let order = pairwise(shuffle(&SHUFFLES.open, valued));
        let stored = _mm256_cvtepu16_epi32(_mm_shuffle_epi8(stored, order));
        let in_slots = look_up(keys, _mm256_srli_epi32(stored, PARTIAL_BITS as i32));
        let partials = _mm256_or_si256(in_slots, _mm256_and_si256(stored, low));
        let order = _mm256_cvtepu8_epi32(shuffle(&SHUFFLES.open, missed));
        let misses = load(sections.misses, 4 * used.misses);
        let misses = _mm256_permutevar8x32_epi32(misses, order);
        let words = _mm256_or_si256(
            _mm256_or_si256(
                _mm256_and_si256(lanes_of(valued & !other), partials),
                _mm256_and_si256(lanes_of(valued & other), stored),
            ),
            _mm256_and_si256(lanes_of(missed), misses),
        );
        store(literals, 32 * group, words);
        used.values += valued.count_ones() as usize;
        used.misses += missed.count_ones() as usize;
    }
    used
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn scatter(
    sections: &Sections<'_>,
    distances: &Distances,
    literals: &Bytes,
    halves: &Halves,
    page: &mut Page,
) -> usize {
    let upper_half = _mm256_set1_epi32(0xffff_0000u32 as i32);
    let mut taken = 0;
    for (vector, (&distance, mask)) in distances.iter().zip(sections.literals()).enumerate() {
        for (half, mask) in mask.to_le_bytes().into_iter().enumerate() {
            let halves = u16_at(halves, taken / 8) >> (taken % 8);
            let halves = _pdep_u32(u32::from(halves), u32::from(mask)) as u8;
            let predicted = predicted_from_stored(page, vector, half, distance);
            let order = _mm256_cvtepu8_epi32(shuffle(&SHUFFLES.open, mask));
            let words = _mm256_permutevar8x32_epi32(load(literals, 4 * taken), order);
            let upper = _mm256_and_si256(predicted, _mm256_and_si256(lanes_of(halves), upper_half));
            let words = _mm256_or_si256(words, upper);
            let words = _mm256_blendv_epi8(predicted, words, lanes_of(mask));
            store(page, 64 * vector + 32 * half, words);
            taken += mask.count_ones() as usize;
        }
    }
    taken
}

//! The kernels that compress.

use core::arch::aarch64::*;
use core::array::from_fn;

use super::registers::*;
use crate::Page;
use crate::arch::lanes::{SHUFFLES, first_lanes};
use crate::wkv::{
    ByteSet, Bytes, CANDIDATES, Candidates, Classified, Codes, Counts, Cover, DISTANCE_COUNT,
    DistanceCounts, Distances, ESCAPE, Gathered, HISTORY, Keys, LANES, Literals, MULTIPLIER, Masks,
    PARTIAL_BITS, SAMPLED, Signatures, Streams, Strides, VECTORS, distance_of, search_highest,
};

#[target_feature(enable = "neon")]
pub(super) fn strides(page: &Page, signatures: &mut Signatures) -> Strides {
    sign(page, signatures);
    let candidates = best(&correlate(signatures));
    let mut covers = [[0; VECTORS]; CANDIDATES];
    for (cover, &number) in covers.iter_mut().zip(candidates.numbers()) {
        *cover = coverage(signatures, distance_of(number));
    }
    Strides::of(&candidates, &covers, |cover, covered| {
        // A gain is sixteen at most.
        let gains = (0..VECTORS).step_by(BYTES).fold(vdupq_n_u8(0), |gains, at| {
            vaddq_u8(gains, vqsubq_u8(load(cover, at), load(covered, at)))
        });
        u32::from(vaddlvq_u8(gains))
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn sign(page: &Page, signatures: &mut Signatures) {
    let multiplier = vdupq_n_u32(MULTIPLIER);
    let (history, signatures) = signatures.split_at_mut(HISTORY);
    history.fill(0);
    for vector in 0..VECTORS {
        let words = load_vector(page, 4 * LANES * vector);
        let hashes = high_bytes(words.map(|words| vmulq_u32(words, multiplier)));
        let zeros = low_bytes(words.map(|words| vceqzq_u32(words)));
        let odd = vorrq_u8(hashes, vdupq_n_u8(1));
        store(signatures, LANES * vector, vbicq_u8(odd, zeros));
    }
}

/// Signatures at `at`, with zeros made into what no signature is.
#[inline]
#[target_feature(enable = "neon")]
fn wanted(signatures: &Signatures, at: usize) -> uint8x16_t {
    let now = load(signatures, at);
    vorrq_u8(now, vandq_u8(vceqzq_u8(now), vdupq_n_u8(2)))
}

#[inline]
#[target_feature(enable = "neon")]
fn correlate(signatures: &Signatures) -> DistanceCounts {
    let starts = SAMPLED.map(|block| HISTORY + block);
    let now = starts.map(|start| from_fn::<_, 4, _>(|nth| wanted(signatures, start + BYTES * nth)));
    from_fn(|number| {
        let distance = usize::from(distance_of(number as u8));
        let mut agreeing = vdupq_n_u8(0);
        for (block, start) in now.iter().zip(starts) {
            for (nth, now) in block.iter().enumerate() {
                let back = load(signatures, start + BYTES * nth - distance);
                // All ones is one less than nothing.
                agreeing = vsubq_u8(agreeing, vceqq_u8(*now, back));
            }
        }
        vaddlvq_u8(agreeing)
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn best(counts: &DistanceCounts) -> Candidates {
    let ranks = Candidates::ranks(counts);
    let (eights, _) = ranks.as_chunks::<8>();
    // SAFETY: eight numbers of sixteen bits are there.
    let mut ranks: [_; DISTANCE_COUNT / 8] =
        from_fn(|nth| unsafe { vld1q_u16(eights[nth].as_ptr()) });
    Candidates::highest(|| {
        let most = ranks.into_iter().fold(vdupq_n_u16(0), |most, ranks| vmaxq_u16(most, ranks));
        let most = vmaxvq_u16(most);
        ranks = ranks.map(|ranks| vbicq_u16(ranks, vceqq_u16(ranks, vdupq_n_u16(most))));
        most
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn coverage(signatures: &Signatures, distance: u8) -> Cover {
    let distance = usize::from(distance);
    let mut cover = from_fn(|vector| {
        let at = HISTORY + LANES * vector;
        let same = vceqq_u8(wanted(signatures, at), load(signatures, at - distance));
        vaddvq_u8(vandq_u8(same, vdupq_n_u8(1)))
    });
    cover[..distance.div_ceil(LANES)].fill(0);
    cover
}

#[target_feature(enable = "neon")]
pub(super) fn gather(
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
        let words = load_vector(page, 4 * LANES * vector);
        let predicted = predicted(page, vector, distance);
        let mask = !mask_of(from_fn(|quarter| vceqq_u32(words[quarter], predicted[quarter])));
        close(predicted, mask, all_predicted, gathered.literals);
        gathered.literals = close(words, mask, all_words, gathered.literals);
        masks[vectors] = mask.to_le_bytes();
        vectors += usize::from(mask != 0);
        gathered.vectors |= u64::from(mask != 0) << vector;
    }
    gathered
}

/// What a vector of the page is predicted to be.
#[inline]
#[target_feature(enable = "neon")]
fn predicted(page: &Page, vector: usize, distance: u8) -> Vector {
    let none = vdupq_n_u32(if distance == 0 { u32::MAX } else { 0 });
    let back = load_vector(page, 4 * (LANES * vector - usize::from(distance)));
    back.map(|words| vbicq_u32(words, none))
}

#[target_feature(enable = "neon")]
pub(super) fn classify(
    literals: &Literals<'_>,
    count: usize,
    keys: &Keys,
    streams: &mut Streams<'_>,
) -> Classified {
    let keys = load_keys(keys);
    let multiplier = vdupq_n_u32(MULTIPLIER);
    let low = vdupq_n_u32((1 << PARTIAL_BITS) - 1);
    let mut used = [vdupq_n_u32(0); 4];
    let mut found = Classified::default();
    let (words, predicted) = (literals.words.as_flattened(), literals.predicted.as_flattened());
    let (values, misses) = (streams.values.as_flattened_mut(), streams.misses.as_flattened_mut());
    let planes = streams.value_plane.iter_mut().zip(streams.other_plane.iter_mut());
    for (group, (value_plane, other_plane)) in planes.enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let words = load_vector(words, 4 * LANES * group);
        let predicted = load_vector(predicted, 4 * LANES * group);
        let zeros = mask_of(words.map(|words| vceqzq_u32(words)));
        let half_lanes = from_fn(|quarter| {
            vcltq_u32(veorq_u32(words[quarter], predicted[quarter]), vdupq_n_u32(1 << 16))
        });
        let halves = mask_of(half_lanes) & !zeros & there;
        let slots = words.map(|words| {
            let keys = vshrq_n_u32::<{ PARTIAL_BITS as i32 }>(words);
            vshrq_n_u32::<28>(vmulq_u32(keys, multiplier))
        });
        let known = mask_of(from_fn(|quarter| {
            vceqq_u32(look_up(keys, slots[quarter]), vbicq_u32(words[quarter], low))
        }));
        let partials = known & !halves & !zeros & there;
        let missed = there & !(zeros | halves | partials);
        *value_plane = (halves | partials).to_le_bytes();
        *other_plane = (halves | missed).to_le_bytes();

        // The slot above the low bits, or the lower half as it is.
        let stored = from_fn(|quarter| {
            let partial = vsliq_n_u32::<{ PARTIAL_BITS as i32 }>(words[quarter], slots[quarter]);
            vbslq_u32(half_lanes[quarter], words[quarter], partial)
        });
        let valued = (halves | partials).to_le_bytes();
        for (stored, valued) in low_halves(stored).into_iter().zip(valued) {
            let order = pairwise(shuffle(&SHUFFLES.close, valued));
            store(values, 2 * found.values, vqtbl1q_u8(stored, order));
            found.values += valued.count_ones() as usize;
        }
        found.misses = close(words, missed, misses, found.misses);
        let partial_lanes = lanes_of(partials);
        used = from_fn(|quarter| {
            let bits = vshlq_u32(vdupq_n_u32(1), vreinterpretq_s32_u32(slots[quarter]));
            vorrq_u32(used[quarter], vandq_u32(bits, partial_lanes[quarter]))
        });
    }
    found.slots = any_of(used) as u16;
    found
}

/// The lower halves of sixteen words, eight to a register.
#[inline]
#[target_feature(enable = "neon")]
fn low_halves([a, b, c, d]: Vector) -> [uint8x16_t; 2] {
    [(a, b), (c, d)].map(|(a, b)| {
        vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)))
    })
}

/// The bits that any of the words has.
#[inline]
#[target_feature(enable = "neon")]
fn any_of([a, b, c, d]: Vector) -> u32 {
    let words = vorrq_u32(vorrq_u32(a, b), vorrq_u32(c, d));
    let two = vreinterpretq_u64_u32(words);
    let two = vgetq_lane_u64::<0>(two) | vgetq_lane_u64::<1>(two);
    two as u32 | (two >> 32) as u32
}

#[target_feature(enable = "neon")]
pub(super) fn highest(counts: &Counts, sampled: u16) -> (ByteSet, ByteSet) {
    // No count is compared with what is not far below 255: a sample has some 500 bytes at most, and
    // a sixteenth of them is the most that is looked for. So larger counts may all be 255.
    debug_assert!(sampled < 16 * 255);
    let (sixteens, _) = counts.as_chunks::<16>();
    let counts: [[_; 4]; 4] = from_fn(|quarter| {
        from_fn(|nth| {
            let from = sixteens[4 * quarter + nth].as_ptr();
            // SAFETY: sixteen numbers of sixteen bits are there.
            let (low, high) = unsafe { (vld1q_u16(from), vld1q_u16(from.add(8))) };
            vqmovn_high_u16(vqmovn_u16(low), high)
        })
    });
    search_highest(
        sampled,
        |least| {
            let least = vdupq_n_u8(least as u8);
            counts.map(|quarter| mask_of_registers(quarter.map(|counts| vcgtq_u8(counts, least))))
        },
        |least| {
            let least = vdupq_n_u8(least as u8);
            counts.map(|quarter| mask_of_registers(quarter.map(|counts| vceqq_u8(counts, least))))
        },
    )
}

#[target_feature(enable = "neon")]
pub(super) fn pack(
    bytes: &[u8],
    count: usize,
    table: &Codes,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> usize {
    let [first, second, third, fourth] = from_fn(|quarter| load_table(&table.of, 64 * quarter));
    let escape = vdupq_n_u8(ESCAPE);
    let mut escaped = 0;
    for at in (0..count).step_by(BYTES) {
        let here = load(bytes, at);
        // A look-up leaves what is beyond its 64 bytes as it was.
        let below = |number| vsubq_u8(here, vdupq_n_u8(number));
        let codes_here = vqtbl4q_u8(first, here);
        let codes_here = vqtbx4q_u8(codes_here, second, below(64));
        let codes_here = vqtbx4q_u8(codes_here, third, below(128));
        let codes_here = vqtbx4q_u8(codes_here, fourth, below(192));
        let codes_here = vandq_u8(codes_here, first_bytes(count - at));
        let escaping = mask_of_bytes(vceqq_u8(codes_here, escape)).to_le_bytes();
        for (here, escaping) in [vget_low_u8(here), vget_high_u8(here)].into_iter().zip(escaping) {
            store_half(escapes, escaped, vtbl1_u8(here, shuffle(&SHUFFLES.close, escaping)));
            escaped += escaping.count_ones() as usize;
        }
        // The second code of each two above the first.
        let pairs = vreinterpretq_u16_u8(codes_here);
        store_half(codes, at / 2, vmovn_u16(vsraq_n_u16::<4>(pairs, pairs)));
    }
    escaped
}

//! The kernels that decompress.

use core::arch::aarch64::*;
use core::array::from_fn;

use super::registers::*;
use crate::Page;
use crate::arch::lanes::{NONE, SHUFFLES, first_lanes, u16_at, u32_at};
use crate::wkv::{
    ByteOf, Bytes, Distances, ESCAPE, Halves, Keys, LANES, PARTIAL_BITS, Resolved, Sections,
};

/// The same where the page has just been stored, register by register. A load that takes from two
/// stores would wait until both are in the cache: so registers are loaded as they were stored, and
/// words taken from two of them. Of the fifth, which may not be stored yet, none is when they begin
/// with a register.
#[inline]
#[target_feature(enable = "neon")]
fn predicted_from_stored(page: &Page, vector: usize, distance: u8) -> Vector {
    let (start, none) = match distance {
        0 => (0, NONE),
        _ => (LANES * vector - usize::from(distance), 0),
    };
    let order = vaddq_u8(numbers(), vdupq_n_u8((4 * (start % QUARTER)) as u8));
    let order = vorrq_u8(order, vdupq_n_u8(none));
    let stored = &page[BYTES * (start / QUARTER)..][..5 * BYTES];
    let stored: [_; 5] = from_fn(|nth| load(stored, BYTES * nth));
    from_fn(|quarter| {
        let two = uint8x16x2_t(stored[quarter], stored[quarter + 1]);
        vreinterpretq_u32_u8(vqtbl2q_u8(two, order))
    })
}

#[target_feature(enable = "neon")]
pub(super) fn unpack(
    codes: &Bytes,
    escapes: &Bytes,
    count: usize,
    byte_of: &ByteOf,
    bytes: &mut Bytes,
) -> usize {
    let byte_of = load(byte_of, 0);
    let escape = vdupq_n_u8(ESCAPE);
    let mut escaped = 0;
    for at in (0..count).step_by(BYTES) {
        let pairs = vmovl_u8(load_half(codes, at / 2));
        let pairs = vorrq_u16(pairs, vshlq_n_u16::<4>(pairs));
        let codes_here = vandq_u8(vreinterpretq_u8_u16(pairs), escape);
        let is_escape = vandq_u8(vceqq_u8(codes_here, escape), first_bytes(count - at));
        let [low, high] = mask_of_bytes(is_escape).to_le_bytes().map(|escaping| {
            let order = shuffle(&SHUFFLES.open, escaping);
            let these = vtbl1_u8(load_half(escapes, escaped), order);
            escaped += escaping.count_ones() as usize;
            these
        });
        let known = vqtbl1q_u8(byte_of, codes_here);
        store(bytes, at, vbslq_u8(is_escape, vcombine_u8(low, high), known));
    }
    escaped
}

#[target_feature(enable = "neon")]
pub(super) fn resolve(
    sections: &Sections<'_>,
    count: usize,
    keys: &Keys,
    literals: &mut Bytes,
    halves: &mut Halves,
) -> Resolved {
    let keys = load_keys(keys);
    let low = vdupq_n_u32((1 << PARTIAL_BITS) - 1);
    let mut used = Resolved::default();
    let (halves, _) = halves.as_chunks_mut::<2>();
    for (group, halves) in halves.iter_mut().enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let valued = u16_at(sections.value_plane, 2 * group) & there;
        let other = u16_at(sections.other_plane, 2 * group) & there;
        *halves = (valued & other).to_le_bytes();
        let [first, second] = valued.to_le_bytes().map(|valued| {
            let order = pairwise(shuffle(&SHUFFLES.open, valued));
            let stored = vqtbl1q_u8(load(sections.values, 2 * used.values), order);
            used.values += valued.count_ones() as usize;
            vreinterpretq_u16_u8(stored)
        });
        let stored = [
            vmovl_u16(vget_low_u16(first)),
            vmovl_high_u16(first),
            vmovl_u16(vget_low_u16(second)),
            vmovl_high_u16(second),
        ];
        let misses = open(sections.misses, &mut used.misses, other & !valued);
        let partial_lanes = lanes_of(valued & !other);
        let words = from_fn(|quarter| {
            let stored = stored[quarter];
            let in_slots = look_up(keys, vshrq_n_u32::<{ PARTIAL_BITS as i32 }>(stored));
            let partials = vbslq_u32(low, stored, in_slots);
            vbslq_u32(partial_lanes[quarter], partials, vorrq_u32(stored, misses[quarter]))
        });
        store_vector(literals, 4 * LANES * group, words);
    }
    used
}

#[target_feature(enable = "neon")]
pub(super) fn scatter(
    sections: &Sections<'_>,
    distances: &Distances,
    literals: &Bytes,
    halves: &Halves,
    page: &mut Page,
) -> usize {
    let lower_half = vdupq_n_u32(0xffff);
    let mut taken = 0;
    for (vector, (&distance, mask)) in distances.iter().zip(sections.literals()).enumerate() {
        let predicted = predicted_from_stored(page, vector, distance);
        let mut halves = (u32_at(halves, taken / 8) >> (taken % 8)) as u16;
        let counts = counts_of_quarters(mask);
        let words = from_fn(|quarter| {
            let mask = mask >> (QUARTER * quarter);
            let words = shuffled(load(literals, 4 * taken), &OPEN, mask);
            // Of a half the lower half, else the word; nothing where no literal is.
            let whole = vorrq_u32(vmvnq_u32(lanes_of_quarter(halves)), lower_half);
            let from_literals = shuffled(vreinterpretq_u8_u32(whole), &OPEN, mask);
            taken += counts[quarter];
            halves >>= counts[quarter];
            let predicted = vreinterpretq_u8_u32(predicted[quarter]);
            vreinterpretq_u32_u8(vbslq_u8(from_literals, words, predicted))
        });
        store_vector(page, 4 * LANES * vector, words);
    }
    taken
}

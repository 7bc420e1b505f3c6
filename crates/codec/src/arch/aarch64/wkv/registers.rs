//! Registers of NEON: to load and store them, with bounds checked; masks of lanes, and shuffles
//! that close and open gaps.

use core::arch::aarch64::*;
use core::array::from_fn;

use crate::arch::lanes::{NONE, SHUFFLES};
use crate::wkv::{Keys, LANES};

/// Bytes of a register.
pub(super) const BYTES: usize = 16;
/// Words of a register.
pub(super) const QUARTER: usize = 4;

/// Sixteen words.
pub(super) type Vector = [uint32x4_t; LANES / QUARTER];

/// By a mask of four: where each byte comes from when words are moved.
pub(super) type WordShuffles = [[u8; BYTES]; 1 << QUARTER];

/// The words whose bit is set, side by side.
pub(super) static CLOSE: WordShuffles = of_words(&SHUFFLES.close);
/// Words that lie side by side, each to a bit that is set, and zeros between them.
pub(super) static OPEN: WordShuffles = of_words(&SHUFFLES.open);

const fn of_words(of_elements: &[[u8; 8]; 256]) -> WordShuffles {
    let mut table = [[NONE; BYTES]; 1 << QUARTER];
    let mut mask = 0;
    while mask < table.len() {
        let mut byte = 0;
        while byte < BYTES {
            let element = of_elements[mask][byte / 4];
            if element != NONE {
                table[mask][byte] = 4 * element + byte as u8 % 4;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// Sixteen bytes at `at`.
///
/// # Panics
/// When they are not within `bytes`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let from = &bytes[at..at + BYTES];
    // SAFETY: sixteen bytes are there.
    unsafe { vld1q_u8(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_half(bytes: &[u8], at: usize) -> uint8x8_t {
    let from = &bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { vld1_u8(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_vector(bytes: &[u8], at: usize) -> Vector {
    let from = &bytes[at..at + 4 * LANES];
    from_fn(|quarter| vreinterpretq_u32_u8(load(from, BYTES * quarter)))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store(bytes: &mut [u8], at: usize, vector: uint8x16_t) {
    let to = &mut bytes[at..at + BYTES];
    // SAFETY: sixteen bytes are there.
    unsafe { vst1q_u8(to.as_mut_ptr(), vector) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_half(bytes: &mut [u8], at: usize, half: uint8x8_t) {
    let to = &mut bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { vst1_u8(to.as_mut_ptr(), half) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_vector(bytes: &mut [u8], at: usize, words: Vector) {
    let to = &mut bytes[at..at + 4 * LANES];
    for (quarter, words) in words.into_iter().enumerate() {
        store(to, BYTES * quarter, vreinterpretq_u8_u32(words));
    }
}

/// The numbers from 0 on.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn numbers() -> uint8x16_t {
    load(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 0)
}

/// The lowest byte of each word.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn low_bytes([a, b, c, d]: Vector) -> uint8x16_t {
    let low = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    let high = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
    vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// The highest byte of each word.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn high_bytes([a, b, c, d]: Vector) -> uint8x16_t {
    let low = vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    let high = vuzp2q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
    vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// Of bytes that are all ones or zero, in each eight the bit of its place.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bits(bytes: uint8x16_t) -> uint8x16_t {
    vandq_u8(bytes, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)))
}

/// A bit for each byte that is all ones.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn mask_of_bytes(bytes: uint8x16_t) -> u16 {
    let bits = bits(bytes);
    let bits = vpaddq_u8(bits, bits);
    let bits = vpaddq_u8(bits, bits);
    vgetq_lane_u16::<0>(vreinterpretq_u16_u8(vpaddq_u8(bits, bits)))
}

/// The same of 64 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn mask_of_registers(bytes: [uint8x16_t; 4]) -> u64 {
    let [a, b, c, d] = bytes.map(|bytes| bits(bytes));
    let bits = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(bits, bits)))
}

/// A bit for each word that is all ones.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn mask_of(words: Vector) -> u16 {
    mask_of_bytes(low_bytes(words))
}

/// All ones in the words whose bits are set.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn lanes_of(mask: u16) -> Vector {
    from_fn(|quarter| lanes_of_quarter(mask >> (QUARTER * quarter)))
}

/// All ones in the four words whose bits are set.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn lanes_of_quarter(mask: u16) -> uint32x4_t {
    const BITS: [u32; QUARTER] = [1, 2, 4, 8];
    // SAFETY: four words are there.
    let bits = unsafe { vld1q_u32(BITS.as_ptr()) };
    vtstq_u32(vdupq_n_u32(u32::from(mask)), bits)
}

/// How many bits are set in each four. In plain registers: there is an instruction only for
/// vectors, and going there and back would take longer.
#[inline]
pub(super) fn counts_of_quarters(mask: u16) -> [usize; 4] {
    let twos = mask - (mask >> 1 & 0x5555);
    let fours = (twos & 0x3333) + (twos >> 2 & 0x3333);
    from_fn(|quarter| usize::from(fours >> (QUARTER * quarter) & 15))
}

/// Four words moved by the shuffle for the lowest four bits of `mask`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn shuffled(words: uint8x16_t, table: &WordShuffles, mask: u16) -> uint8x16_t {
    vqtbl1q_u8(words, load(&table[usize::from(mask) % table.len()], 0))
}

/// Stores the words whose bits are set side by side, the first as the word number `count`. Returns
/// the number of the next.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn close(words: Vector, mask: u16, to: &mut [u8], mut count: usize) -> usize {
    let counts = counts_of_quarters(mask);
    for (quarter, words) in words.into_iter().enumerate() {
        let words = vreinterpretq_u8_u32(words);
        store(to, 4 * count, shuffled(words, &CLOSE, mask >> (QUARTER * quarter)));
        count += counts[quarter];
    }
    count
}

/// Words that lie side by side, the first of them number `count`, to where bits are set; zeros
/// between them. Counts them.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn open(from: &[u8], count: &mut usize, mask: u16) -> Vector {
    let counts = counts_of_quarters(mask);
    from_fn(|quarter| {
        let words = shuffled(load(from, 4 * *count), &OPEN, mask >> (QUARTER * quarter));
        *count += counts[quarter];
        vreinterpretq_u32_u8(words)
    })
}

/// A shuffle for eight bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn shuffle(table: &[[u8; 8]; 256], mask: u8) -> uint8x8_t {
    load_half(&table[usize::from(mask)], 0)
}

/// A shuffle for pairs of bytes from one for bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pairwise(shuffle: uint8x8_t) -> uint8x16_t {
    // 2n in the lower byte and 2n + 1 in the upper one; of `NONE` both are beyond all bytes.
    let doubled = vqadd_u8(shuffle, shuffle);
    let twice = vcombine_u8(vzip1_u8(doubled, doubled), vzip2_u8(doubled, doubled));
    vorrq_u8(twice, vreinterpretq_u8_u16(vdupq_n_u16(0x0100)))
}

pub(super) type Table = uint8x16x4_t;

/// 64 bytes at `at`.
///
/// # Panics
/// When they are not within `bytes`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_table(bytes: &[u8], at: usize) -> Table {
    let from = &bytes[at..at + 4 * BYTES];
    // SAFETY: 64 bytes are there.
    unsafe { vld1q_u8_x4(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_keys(keys: &Keys) -> Table {
    // SAFETY: sixteen words are there.
    unsafe { vld1q_u8_x4(keys.as_ptr().cast()) }
}

/// Of sixteen words those with these numbers.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up(words: Table, numbers: uint32x4_t) -> uint32x4_t {
    let first_bytes = vmulq_u32(numbers, vdupq_n_u32(0x0404_0404));
    let bytes = vaddq_u32(first_bytes, vdupq_n_u32(0x0302_0100));
    vreinterpretq_u32_u8(vqtbl4q_u8(words, vreinterpretq_u8_u32(bytes)))
}

/// All ones in the first `count` bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn first_bytes(count: usize) -> uint8x16_t {
    vcltq_u8(numbers(), vdupq_n_u8(count.min(BYTES) as u8))
}

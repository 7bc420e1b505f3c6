//! A checksum of AES rounds. Eight lanes of 16 bytes each run
//!
//! ```text
//! lane = round(lane) ^ next 16 bytes
//! ```
//!
//! over every eighth 16 bytes of the object, then go through two more rounds each, are run into one
//! another, and that through three more. A round is a permutation, so a change within 16 bytes
//! always changes the 128-bit state, and goes unnoticed only by the cut to 32 bits. The two rounds
//! spread each lane's change over the whole of it: with none, two flipped bits in different lanes
//! undid each other in one of 255 pairs at the same place. No secret is involved: this finds
//! damage, not forgery.

use core::arch::x86_64::{
    __cpuid, __m128i, _mm_aesenc_si128, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_set_epi64x,
};

const LANES: usize = 8;
const PIECE: usize = 16;
const BLOCK: usize = LANES * PIECE;

/// Where the lanes begin: digits of pi.
const SEEDS: [[u64; 2]; LANES] = [
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
    [0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89],
    [0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c],
    [0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917],
    [0x9216_d5d9_8979_fb1b, 0xd131_0ba6_98df_b5ac],
    [0x2ffd_72db_d01a_dfb7, 0xb8e1_afed_6a26_7e96],
    [0xba7c_9045_f12c_7f99, 0x24a1_9947_b391_6cf7],
    [0x0801_f2e2_858e_fc16, 0x6369_20d8_7157_4e69],
];

/// Proof that the processor has AES instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HasAes(());

impl HasAes {
    pub(super) fn detect() -> Option<HasAes> {
        /// Leaf 1, register ECX: AESNI.
        const AES_BIT: u32 = 1 << 25;
        // The instructions use SSE registers, which every x86-64 kernel saves.
        let leaf_max = __cpuid(0).eax;
        (leaf_max >= 1 && __cpuid(1).ecx & AES_BIT != 0).then_some(HasAes(()))
    }

    #[inline]
    pub(super) fn checksum(self, bytes: &[u8]) -> u32 {
        // SAFETY: the processor has the instructions: `self` is only made where they were found.
        unsafe { checksum(bytes) }
    }
}

#[target_feature(enable = "aes")]
fn load(bytes: &[u8; PIECE]) -> __m128i {
    // SAFETY: 16 readable bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// All of 1 to 15 bytes, some of them twice: a copy of odd length would cost more than the rest.
fn short(bytes: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        [u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last))]
    } else {
        let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
        [u64::from(at(0)), u64::from(at(1)) << 8 | u64::from(at(2))]
    }
}

#[target_feature(enable = "aes")]
fn checksum(bytes: &[u8]) -> u32 {
    let mut lanes = [_mm_set_epi64x(0, 0); LANES];
    for (lane, [low, high]) in lanes.iter_mut().zip(SEEDS) {
        *lane = _mm_set_epi64x(high as i64, low as i64);
    }
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        for (lane, piece) in lanes.iter_mut().zip(block.as_chunks::<PIECE>().0) {
            *lane = _mm_aesenc_si128(*lane, load(piece));
        }
    }
    let (pieces, end) = rest.as_chunks::<PIECE>();
    for (lane, piece) in lanes.iter_mut().zip(pieces) {
        *lane = _mm_aesenc_si128(*lane, load(piece));
    }
    if !end.is_empty() {
        // The last 16 bytes, some of them for a second time; or all there are.
        let last = match bytes.last_chunk::<PIECE>() {
            Some(last) => load(last),
            None => {
                let [low, high] = short(end);
                _mm_set_epi64x(high as i64, low as i64)
            }
        };
        // The last lane: at most seven whole pieces came after the last block.
        lanes[LANES - 1] = _mm_aesenc_si128(lanes[LANES - 1], last);
    }
    for (lane, [low, high]) in lanes.iter_mut().zip(SEEDS) {
        let seed = _mm_set_epi64x(high as i64, low as i64);
        *lane = _mm_aesenc_si128(_mm_aesenc_si128(*lane, seed), seed);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let left = _mm_aesenc_si128(_mm_aesenc_si128(a, e), _mm_aesenc_si128(b, f));
    let right = _mm_aesenc_si128(_mm_aesenc_si128(c, g), _mm_aesenc_si128(d, h));
    // The length tells a short last piece from one that ends in zeros.
    let len = _mm_set_epi64x(0, bytes.len() as i64);
    let mut all = _mm_aesenc_si128(left, right);
    all = _mm_aesenc_si128(all, len);
    all = _mm_aesenc_si128(all, len);
    all = _mm_aesenc_si128(all, len);
    _mm_cvtsi128_si32(all) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication of polynomials over GF(2) modulo x^8 + x^4 + x^3 + x + 1 (FIPS 197, 4.2).
    fn multiply(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = a << 1 ^ if a & 0x80 != 0 { 0x1b } else { 0 };
            b >>= 1;
        }
        product
    }

    /// FIPS 197, 5.1.1: the inverse, then an affine map.
    fn substitute(byte: u8) -> u8 {
        let inverse = (0..=255).find(|&x| multiply(byte, x) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, n| sum ^ inverse.rotate_left(n))
    }

    /// FIPS 197, 5.1: SubBytes, ShiftRows, MixColumns, AddRoundKey.
    fn round(state: [u8; 16], key: [u8; 16]) -> [u8; 16] {
        let shifted: [u8; 16] = std::array::from_fn(|i| substitute(state[(i + 4 * (i % 4)) % 16]));
        std::array::from_fn(|i| {
            let column = &shifted[i / 4 * 4..][..4];
            let at = |n: usize| column[(i + n) % 4];
            multiply(at(0), 2) ^ multiply(at(1), 3) ^ at(2) ^ at(3) ^ key[i]
        })
    }

    /// The checksum as its definition reads.
    fn naive(bytes: &[u8]) -> u32 {
        let seeds = SEEDS.map(|[low, high]| {
            let mut lane = [0; 16];
            lane[..8].copy_from_slice(&low.to_le_bytes());
            lane[8..].copy_from_slice(&high.to_le_bytes());
            lane
        });
        let mut lanes = seeds;
        for (i, piece) in bytes.chunks(16).enumerate() {
            let mut padded = [0; 16];
            if piece.len() < 16 && bytes.len() > 16 {
                padded.copy_from_slice(&bytes[bytes.len() - 16..]);
            } else if piece.len() < 16 {
                let part = match piece.len() {
                    8.. => 8,
                    4..8 => 4,
                    _ => 0,
                };
                padded[..part].copy_from_slice(&piece[..part]);
                padded[8..8 + part].copy_from_slice(&piece[piece.len() - part..]);
                if part == 0 {
                    padded[0] = piece[0];
                    padded[8] = piece.get(2).copied().unwrap_or(0);
                    padded[9] = piece.get(1).copied().unwrap_or(0);
                }
            } else {
                padded.copy_from_slice(piece);
            }
            let lane = if piece.len() < 16 { 7 } else { i % 8 };
            lanes[lane] = round(lanes[lane], padded);
        }
        for (lane, seed) in lanes.iter_mut().zip(seeds) {
            *lane = round(round(*lane, seed), seed);
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let left = round(round(a, e), round(b, f));
        let right = round(round(c, g), round(d, h));
        let mut len = [0; 16];
        len[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let all = (0..3).fold(round(left, right), |state, _| round(state, len));
        u32::from_le_bytes(all[..4].try_into().unwrap())
    }

    #[test]
    fn the_naive_round_is_that_of_the_standard() {
        // FIPS 197, appendix B: the start of rounds 1 and 2, and the key of round 1.
        let state = 0x193d_e3be_a0f4_e22b_9ac6_8d2a_e9f8_4808_u128.to_be_bytes();
        let key = 0xa0fa_fe17_8854_2cb1_23a3_3939_2a6c_7605_u128.to_be_bytes();
        let next = 0xa49c_7ff2_689f_352b_6b5b_ea43_026a_5049_u128.to_be_bytes();
        assert_eq!(round(state, key), next);
    }

    #[test]
    fn equals_the_naive_version() {
        let Some(has_aes) = HasAes::detect() else { return };
        let bytes: Vec<u8> =
            (0..600u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for len in (1..=600).filter(|len| len % 37 == 0 || (110..150).contains(len) || *len < 20) {
            assert_eq!(has_aes.checksum(&bytes[..len]), naive(&bytes[..len]), "{len}");
        }
    }
}

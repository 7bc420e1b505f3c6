//! The seal: a 32-bit checksum over an object's bytes, tied to the key and the encoding it was
//! stored under, so that a changed, stale or swapped object is noticed before it is handed out.
//!
//! ```text
//! seal = checksum(bytes) ^ key_part(key) ^ encoding_part(encoding)
//! ```
//!
//! The parts are joined by exclusive or, so that moving an object to another key needs no look at
//! its bytes: see [`moved`].

use crate::Key;
use crate::index::{CHECK_BITS, SPILLED_CHECK_BITS};
use crate::spill::UnitRange;

/// Odd, so that multiplication maps 32-bit words one to one: keys that differ in their low 32 bits
/// only, and any two encodings, never have the same part.
const KEY_LOW: u32 = 0x9e37_79b1;
const KEY_HIGH: u64 = 0xc2b2_ae3d_27d4_eb4f;
const ENCODING: u32 = 0x85eb_ca77;

fn key_part(key: Key) -> u32 {
    (key as u32).wrapping_mul(KEY_LOW) ^ ((key >> 32).wrapping_mul(KEY_HIGH) >> 32) as u32
}

/// The seal of an object whose bytes have this checksum.
#[inline]
pub(crate) fn seal(key: Key, encoding: u8, checksum: u32) -> u32 {
    checksum ^ key_part(key) ^ u32::from(encoding).wrapping_mul(ENCODING)
}

/// What an object's seal changes by (exclusive or) when it moves from one key to another.
pub(crate) fn moved(from: Key, to: Key) -> u32 {
    key_part(from) ^ key_part(to)
}

/// The check of a pattern that lies in the entry itself: as a seal, cut to its highest bits.
#[inline]
pub(crate) fn pattern_check(key: Key, pattern: u32) -> u32 {
    (pattern.wrapping_mul(ENCODING) ^ key_part(key)) >> (u32::BITS - CHECK_BITS)
}

/// As [`moved`], for the check of a pattern.
pub(crate) fn pattern_moved(from: Key, to: Key) -> u32 {
    moved(from, to) >> (u32::BITS - CHECK_BITS)
}

/// The check of a place in the spill file, which lies in the entry beside it. The bytes at that
/// place have a tag of 128 bits of their own; this check tells that the place is the key's, and
/// detects every single flipped bit.
pub(crate) fn spilled_check(key: Key, place: UnitRange, encoding: u8) -> u32 {
    let bits = u64::from(place.first) | u64::from(place.count) << 32 | u64::from(encoding) << 40;
    fold(bits) ^ fold(u64::from(key_part(key)))
}

/// As [`moved`], for the check of a place in the spill file.
pub(crate) fn spilled_moved(from: Key, to: Key) -> u32 {
    fold(u64::from(moved(from, to)))
}

/// Exclusive or of the pieces of [`SPILLED_CHECK_BITS`]: each bit counts in one bit of the result.
fn fold(mut bits: u64) -> u32 {
    let mut folded = 0;
    while bits != 0 {
        folded ^= bits & ((1 << SPILLED_CHECK_BITS) - 1);
        bits >>= SPILLED_CHECK_BITS;
    }
    folded as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_seal_is_the_seal_of_the_new_key() {
        for (from, to) in [(0, 1), (5, u64::MAX), (1 << 40, 1 << 33), (9, 9)] {
            assert_eq!(seal(from, 3, 77) ^ moved(from, to), seal(to, 3, 77));
        }
    }

    #[test]
    fn a_pattern_check_moves_and_sees_every_bit() {
        for key in [0, 1, 1 << 40, u64::MAX] {
            for pattern in [0, 1, u32::MAX, 0x1234_5678] {
                let check = pattern_check(key, pattern);
                assert_eq!(check ^ pattern_moved(key, 77), pattern_check(77, pattern));
                for bit in 0..32 {
                    assert_ne!(pattern_check(key, pattern ^ 1 << bit), check, "{pattern:x} {bit}");
                }
            }
        }
    }

    #[test]
    fn the_check_of_a_spilled_place_moves_and_sees_every_bit() {
        let check_of = |key, bits: u64| {
            let place = UnitRange { first: bits as u32, count: (bits >> 32 & 0x7f) as u8 };
            spilled_check(key, place, (bits >> 39 & 0xf) as u8)
        };
        for key in [0, 1, 1 << 40, u64::MAX] {
            for bits in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
                let check = check_of(key, bits);
                assert!(check < 1 << SPILLED_CHECK_BITS);
                assert_eq!(check ^ spilled_moved(key, 77), check_of(77, bits));
                for bit in 0..43 {
                    assert_ne!(check_of(key, bits ^ 1 << bit), check, "{bits:x} {bit}");
                }
            }
        }
    }

    #[test]
    fn neighbouring_keys_and_all_encodings_have_seals_of_their_own() {
        let mut seals: Vec<u32> = (0..1000).map(|key| seal(key, 1, 5)).collect();
        seals.extend((2..16).map(|encoding| seal(0, encoding, 5)));
        seals.sort_unstable();
        seals.dedup();
        assert_eq!(seals.len(), 1014);
    }

    #[test]
    fn the_high_half_of_the_key_counts() {
        assert_ne!(seal(1 << 32, 1, 5), seal(0, 1, 5));
        assert_ne!(seal(1 << 63, 1, 5), seal(0, 1, 5));
    }
}

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
use crate::index::CHECK_BITS;

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

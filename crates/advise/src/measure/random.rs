//! Random numbers for samples.

use std::hash::{BuildHasher, RandomState};

/// Random numbers by xorshift64*. Each sequence begins at another place, so that two measurements
/// have different samples.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        // The standard library has a random number of the system's in each of these.
        Random(RandomState::new().hash_one(0) | 1)
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        ((u128::from(number) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_the_range() {
        let mut random = Random::new();
        let mut counts = [0u32; 10];
        (0..10_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!((random.below(1), random.below(0)), (0, 0));
        assert!((0..100).any(|_| random.below(u64::MAX) > u64::MAX / 2));
    }
}

//! Reproducible pseudo-random numbers: everything the program does follows from one seed.

/// Increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number out of several; the order of the words matters.
pub(crate) fn mix(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(GAMMA, |state, &word| finish(state.rotate_left(23) ^ word.wrapping_add(GAMMA)))
}

/// SplitMix64: small, fast, and any state is a good state.
#[derive(Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        finish(self.state)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// An index in `0..bound` with probability about proportional to `1 / (index + 1)`, the Zipf
    /// law with exponent 1 in its continuous form.
    pub(crate) fn zipf(&mut self, bound: usize) -> usize {
        let unit = (self.word() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = (bound as f64 + 1.0).powf(unit) - 1.0;
        (rank as usize).min(bound.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b) = (Rng::new(5), Rng::new(5));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Rng::new(5).word(), Rng::new(6).word());
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert!((0..1000).all(|_| (3..=5).contains(&rng.between(3, 5))));
        assert!((0..1000).all(|_| rng.zipf(9) < 9));
    }

    #[test]
    fn zipf_prefers_low_indices() {
        let mut rng = Rng::new(2);
        let low = (0..10_000).filter(|_| rng.zipf(1000) < 10).count();
        assert!((2_500..5_000).contains(&low), "{low}");
    }

    #[test]
    fn mix_depends_on_order() {
        assert_ne!(mix(&[1, 2]), mix(&[2, 1]));
        assert_ne!(mix(&[0]), mix(&[0, 0]));
    }
}

//! Seeded pseudo-random numbers: the same sequence on every machine.

/// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of
/// 64-bit words whose output bits all depend on all input bits.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A sequence of random numbers, by SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence that `seed` determines.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound` by multiplication (the bias is below bound / 2^64).
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// The next `count` bytes; each takes a word of the sequence.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf-distributed ranks `0..count`: rank k has weight (k + 1)^-exponent.
///
/// Rejection-inversion after W. Hörmann and G. Derflinger, "Rejection-inversion
/// to generate variates from monotone discrete distributions", ACM TOMACS 6(3),
/// 1996. Exact, no table, about 1.1 tries a number.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: usize,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    squeeze: f64,
}

impl Zipf {
    /// `exponent` must not be 1 (the integral is then a logarithm, which is not
    /// implemented) and `count` at least 1.
    pub(crate) fn new(count: usize, exponent: f64) -> Self {
        assert!(count > 0 && exponent > 0.0 && exponent != 1.0, "count {count}, {exponent}");
        let mut zipf =
            Self { count, exponent, integral_first: 0.0, integral_last: 0.0, squeeze: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(count as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    pub(crate) fn sample(&self, random: &mut Random) -> usize {
        loop {
            let area =
                self.integral_last + random.unit() * (self.integral_first - self.integral_last);
            let place = self.inverse(area);
            let rank = place.round().clamp(1.0, self.count as f64);
            if rank - place <= self.squeeze || area >= self.integral(rank + 0.5) - self.weight(rank)
            {
                return rank as usize - 1;
            }
        }
    }

    fn weight(&self, place: f64) -> f64 {
        place.powf(-self.exponent)
    }

    /// Integral of the weight, up to a constant.
    fn integral(&self, place: f64) -> f64 {
        place.powf(1.0 - self.exponent) / (1.0 - self.exponent)
    }

    fn inverse(&self, area: f64) -> f64 {
        (area * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_frequencies_match_their_weights() {
        const COUNT: usize = 50;
        const SAMPLES: usize = 400_000;
        for exponent in [0.99, 0.5, 1.2] {
            let zipf = Zipf::new(COUNT, exponent);
            let mut random = Random::new(7);
            let mut seen = [0u32; COUNT];
            for _ in 0..SAMPLES {
                seen[zipf.sample(&mut random)] += 1;
            }
            let weights: Vec<f64> = (1..=COUNT).map(|rank| (rank as f64).powf(-exponent)).collect();
            let sum: f64 = weights.iter().sum();
            // Chi-square with 49 degrees of freedom: 99.99 % lie below 96.
            let chi_square: f64 = weights
                .iter()
                .zip(seen)
                .map(|(weight, seen)| {
                    let expected = weight / sum * SAMPLES as f64;
                    (f64::from(seen) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi_square < 96.0, "exponent {exponent}: chi-square {chi_square}");
        }
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(1);
        let single = Zipf::new(1, 0.99);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((0.0..1.0).contains(&random.unit()));
            assert_eq!(single.sample(&mut random), 0);
        }
    }
}

//! How small all pages become together, and the chance that this is not small enough.
//!
//! What a cap must hold is the sum of many objects. Paper 004 (section 6.3) takes the distribution
//! of single pages' ratios and convolves it with itself once for each page: the sum of many pages
//! that do not depend on each other is so sure that exceeding a target a little above the mean has
//! a chance of 10^-158. [`independent_log10_chance`] computes that. Two things are left out there,
//! and they are what decides:
//!
//! - neighbours are alike: a program's pages come as arrays and heaps. So blocks of neighbouring
//!   pages are sampled, and it is the blocks that are taken to be independent;
//! - the mean itself is known from a sample.
//!
//! [`Blocks::chance_above`] has both. Neither knows what the program will store later.

/// So many blocks at least have to be sampled before a chance is stated: the sum is taken to be
/// normally distributed.
pub const BLOCKS_MIN: usize = 30;

/// Charged sizes of blocks of neighbouring pages, a sample of all.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// Of each block: bytes that a page is charged in the mean.
    means: Vec<f64>,
    pages: usize,
}

impl Blocks {
    /// A block was sampled: bytes that each of its pages is charged.
    pub fn note(&mut self, bytes: &[f64]) {
        if !bytes.is_empty() {
            self.means.push(bytes.iter().sum::<f64>() / bytes.len() as f64);
            self.pages += bytes.len();
        }
    }

    /// Blocks sampled.
    pub fn len(&self) -> usize {
        self.means.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.means.is_empty()
    }

    /// Bytes that a page is charged, in the mean; `None` without a sample.
    pub fn mean_bytes(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.means.iter().sum::<f64>() / self.len() as f64)
    }

    /// The standard deviation of the mean of `pages` pages about the sample's mean: of what is not
    /// in the sample, and of the sample. `None` where too few blocks were sampled.
    pub fn deviation_of_mean(&self, pages: f64) -> Option<f64> {
        let mean = self.mean_bytes().filter(|_| self.len() >= BLOCKS_MIN)?;
        let squares: f64 = self.means.iter().map(|block| (block - mean).powi(2)).sum();
        let variance = squares / (self.len() as f64 - 1.0);
        let sampled = self.len() as f64;
        let all = (pages * sampled / self.pages as f64).max(sampled);
        Some((variance * (1.0 / sampled - 1.0 / all)).sqrt())
    }

    /// The chance that `pages` pages are charged more than `bytes` each in the mean.
    pub fn chance_above(&self, bytes: f64, pages: f64) -> Option<f64> {
        let (mean, deviation) = (self.mean_bytes()?, self.deviation_of_mean(pages)?);
        Some(match deviation {
            0.0 => f64::from(mean > bytes),
            deviation => ln_upper_tail((bytes - mean) / deviation).exp(),
        })
    }
}

/// Paper 004's chance that the mean of `pages` independent pages is above `target`, as a power of
/// ten. `sizes`: of single pages, each as often as it was seen. The tail of the repeated
/// convolution is had from its saddle point (Lugannani and Rice, 1980), as numbers this small are
/// no sum of floating point. Negative infinity where it cannot be: no page is so large.
///
/// # Panics
/// Without a size.
pub fn independent_log10_chance(sizes: &[(f64, u64)], pages: u64, target: f64) -> f64 {
    let total: u64 = sizes.iter().map(|(_, count)| count).sum();
    assert!(total > 0, "no size was seen");
    let weights: Vec<(f64, f64)> = sizes
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|&(size, count)| (size, count as f64 / total as f64))
        .collect();
    let mean: f64 = weights.iter().map(|(size, weight)| size * weight).sum();
    let greatest = weights.iter().map(|&(size, _)| size).fold(f64::NEG_INFINITY, f64::max);
    if target >= greatest {
        // All pages are of the greatest size, which is not above the target.
        return f64::NEG_INFINITY;
    }
    let n = pages as f64;
    let tilt = tilt_to(&weights, target);
    let Moments { cumulant, variance, .. } = moments(&weights, tilt);
    // The saddle is in the middle of the distribution: the chance is near a half, and the terms
    // below cancel out.
    if (tilt * (n * variance).sqrt()).abs() < 1e-3 {
        let deviation = (moments(&weights, 0.0).variance / n).sqrt();
        return ln_upper_tail((target - mean) / deviation) / std::f64::consts::LN_10;
    }
    let r = (2.0 * n * (tilt * target - cumulant)).max(0.0).sqrt() * tilt.signum();
    let u = tilt * (n * variance).sqrt();
    let ln_density = -r * r / 2.0 - (2.0 * std::f64::consts::PI).sqrt().ln();
    let part = (ln_upper_tail(r) - ln_density).exp() + 1.0 / u - 1.0 / r;
    ((ln_density + part.max(f64::MIN_POSITIVE).ln()) / std::f64::consts::LN_10).min(0.0)
}

/// Of a distribution that is tilted by `exp(tilt * size)`.
struct Moments {
    /// Logarithm of the mean of `exp(tilt * size)`.
    cumulant: f64,
    mean: f64,
    variance: f64,
}

fn moments(weights: &[(f64, f64)], tilt: f64) -> Moments {
    let most = weights.iter().map(|(size, _)| tilt * size).fold(f64::NEG_INFINITY, f64::max);
    let tilted =
        || weights.iter().map(move |&(size, weight)| (size, weight * (tilt * size - most).exp()));
    let sum: f64 = tilted().map(|(_, weight)| weight).sum();
    let mean = tilted().map(|(size, weight)| size * weight).sum::<f64>() / sum;
    let squares: f64 = tilted().map(|(size, weight)| (size - mean).powi(2) * weight).sum();
    Moments { cumulant: sum.ln() + most, mean, variance: squares / sum }
}

/// The tilt by which the mean becomes the target, which is below the greatest size. The mean grows
/// with the tilt.
fn tilt_to(weights: &[(f64, f64)], target: f64) -> f64 {
    let greatest = weights.iter().map(|(size, _)| size.abs()).fold(1e-9, f64::max);
    let mut high = 1.0 / greatest;
    while moments(weights, high).mean < target && high < 1e6 / greatest {
        high *= 2.0;
    }
    let mut low = -1.0 / greatest;
    while moments(weights, low).mean > target && low > -1e6 / greatest {
        low *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if moments(weights, middle).mean < target { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Logarithm of the chance that a normally distributed figure is more than `z` deviations above its
/// mean.
pub fn ln_upper_tail(z: f64) -> f64 {
    let density = -z * z / 2.0 - (2.0 * std::f64::consts::PI).sqrt().ln();
    if z > 4.0 {
        // Laplace's continued fraction, from its end.
        let fraction = (1..=60).rev().fold(z, |below, nth| z + f64::from(nth) / below);
        return density - fraction.ln();
    }
    if z < -4.0 {
        return (-ln_upper_tail(-z).exp()).ln_1p();
    }
    // The series z + z^3/3 + z^5/(3*5) + ...
    let (mut term, mut sum, mut nth) = (z, z, 1.0);
    while term.abs() > 1e-18 && nth < 400.0 {
        nth += 2.0;
        term *= z * z / nth;
        sum += term;
    }
    (0.5 - density.exp() * sum).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(one: f64, other: f64, part: f64) -> bool {
        (one / other - 1.0).abs() < part
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (z, chance) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457),
            (-1.0, 0.841_344_746_068_543),
            (1.644_853_626_951_47, 0.05),
            (3.9, 4.809_634_401_760_3e-5),
            (4.1, 2.065_750_691_254_7e-5),
            (6.0, 9.865_876_450_377e-10),
            (20.0, 2.753_624_118_606_2e-89),
        ] {
            assert!(
                is_near(ln_upper_tail(z).exp(), chance, 1e-6),
                "{z} {}",
                ln_upper_tail(z).exp()
            );
        }
        assert!(ln_upper_tail(-10.0).abs() < 1e-20);
    }

    /// Chances of each sum, by convolving as many times as there are pages.
    fn convolved(sizes: &[(f64, u64)], pages: u64) -> Vec<f64> {
        let total: u64 = sizes.iter().map(|(_, count)| count).sum();
        let mut sums = vec![1.0];
        for _ in 0..pages {
            let longest = sizes.iter().map(|(size, _)| *size as usize).max().unwrap();
            let mut next = vec![0.0; sums.len() + longest];
            for (sum, chance) in sums.iter().enumerate() {
                for &(size, count) in sizes {
                    next[sum + size as usize] += chance * count as f64 / total as f64;
                }
            }
            sums = next;
        }
        sums
    }

    #[test]
    fn the_saddle_point_is_the_convolution() {
        // Sizes of pages in units of 64 bytes: empty ones, dense ones, some that do not compress.
        let sizes =
            [(1.0, 30), (9.0, 10), (17.0, 25), (18.0, 5), (30.0, 10), (64.0, 8), (41.0, 12)];
        let pages = 200;
        let sums = convolved(&sizes, pages);
        for target in [12.0, 18.0, 20.0, 22.0, 25.0, 30.0, 45.0] {
            let first = (target * pages as f64) as usize + 1;
            // Half of a unit: sums are whole numbers, and the saddle point knows of none.
            let target = target + 0.5 / pages as f64;
            let exact = sums[first..].iter().sum::<f64>().log10();
            let found = independent_log10_chance(&sizes, pages, target);
            assert!((exact - found).abs() < 0.01 + exact.abs() * 1e-3, "{target} {exact} {found}");
        }
    }

    #[test]
    fn paper_004s_target_is_never_missed_by_independent_pages() {
        // Section 6.3: in the mean 43.8 %, the target 50 %, 16,384 pages. The paper's distribution
        // is a figure; one of that mean and of any plausible width gives a chance below 10^-100.
        let sizes = [(5.0, 20), (30.0, 25), (45.0, 20), (60.0, 20), (85.0, 10), (100.0, 5)];
        let total = sizes.iter().map(|(_, count)| count).sum::<u64>() as f64;
        let mean = sizes.iter().map(|(size, count)| size * *count as f64).sum::<f64>() / total;
        assert!((42.0..45.0).contains(&mean), "{mean}");
        let log10 = independent_log10_chance(&sizes, 16_384, mean + 6.2);
        assert!((-300.0..-100.0).contains(&log10), "{log10}");
        // Within 2 % of the mean: as good as sure.
        assert!(independent_log10_chance(&sizes, 16_384, mean * 1.02) < -3.0);
    }

    #[test]
    fn what_cannot_be_has_no_chance() {
        let sizes = [(10.0, 1), (20.0, 1)];
        assert_eq!(independent_log10_chance(&sizes, 100, 20.0), f64::NEG_INFINITY);
        assert!(independent_log10_chance(&sizes, 100, 9.0) > -1e-9);
        assert!((independent_log10_chance(&sizes, 100, 15.0) - 0.5f64.log10()).abs() < 0.03);
        assert_eq!(independent_log10_chance(&[(10.0, 5)], 100, 10.0), f64::NEG_INFINITY);
    }

    #[test]
    fn neighbours_that_are_alike_make_the_sum_less_sure() {
        // A page is 1,000 or 3,000 bytes: in one case each by itself, in the other as its whole
        // block.
        let mixed: Vec<[f64; 16]> = (0..64)
            .map(|block| {
                std::array::from_fn(|page| [1e3, 3e3][(page * 7 + block * 3 + page / 5) % 2])
            })
            .collect();
        let alike: Vec<[f64; 16]> = (0..64).map(|block| [[1e3, 3e3][block % 2]; 16]).collect();
        let chance = |blocks: &[[f64; 16]]| {
            let mut sample = Blocks::default();
            blocks.iter().for_each(|block| sample.note(block));
            assert!(is_near(sample.mean_bytes().unwrap(), 2e3, 0.05));
            sample.chance_above(2.2e3, 1e6).unwrap()
        };
        assert!(chance(&mixed) < 1e-3, "{}", chance(&mixed));
        assert!((0.02..0.3).contains(&chance(&alike)), "{}", chance(&alike));
    }

    #[test]
    fn with_too_few_blocks_nothing_is_stated() {
        let mut sample = Blocks::default();
        assert_eq!((sample.mean_bytes(), sample.is_empty()), (None, true));
        for block in 0..BLOCKS_MIN {
            assert_eq!(sample.chance_above(1e3, 1e6), None);
            sample.note(&[500.0 + block as f64, 1500.0]);
        }
        assert!(sample.chance_above(1e3, 1e6).unwrap() > 0.9);
        // All pages were sampled: nothing is left to chance.
        assert_eq!(sample.chance_above(2e3, 2.0 * BLOCKS_MIN as f64), Some(0.0));
    }
}

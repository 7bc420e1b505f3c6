//! Latencies, counted in buckets that grow with the value: four to each doubling, so a quantile
//! read from them is right within 25 %.

use core::sync::atomic::{AtomicU64, Ordering};

/// Buckets to each doubling, as a power of two.
const SPLIT_BITS: u32 = 2;
/// Values from 2^36 ns (69 s) on share the last bucket.
const BUCKETS: usize = 35 << SPLIT_BITS;

/// Counts of nanoseconds. Lives in memory shared between processes; zeroed memory is an empty
/// histogram.
#[repr(C)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
}

impl Histogram {
    /// Counts a value, in nanoseconds.
    pub fn record(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what this histogram counted to `sum` (as [`Quantiles`] reads it).
    pub fn add_to(&self, sum: &mut Quantiles) {
        for (total, count) in sum.counts.iter_mut().zip(&self.counts) {
            *total += count.load(Ordering::Relaxed);
        }
    }

    /// Moves all counts to another histogram.
    pub(crate) fn drain_into(&self, other: &Histogram) {
        for (from, to) in self.counts.iter().zip(&other.counts) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// The sum of histograms, ready to be asked.
#[derive(Clone)]
pub struct Quantiles {
    counts: [u64; BUCKETS],
}

impl Default for Quantiles {
    fn default() -> Self {
        Quantiles { counts: [0; BUCKETS] }
    }
}

impl Quantiles {
    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper ends of the buckets that hold something, ascending, and how many values they hold.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, &count)| (upper_end(index), count))
    }

    /// The value below which the fraction `q` (0 to 1) of the values lies: the upper end of its
    /// bucket. Zero when nothing was counted.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = (q * self.count() as f64) as u64;
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if count > 0 && seen >= rank {
                return upper_end(index);
            }
        }
        0
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << SPLIT_BITS);
    let doubling = ns.ilog2() - SPLIT_BITS;
    let within = (ns >> doubling) as usize & ((1 << SPLIT_BITS) - 1);
    (((doubling as usize) << SPLIT_BITS) | within).min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> u64 {
    let doubling = bucket >> SPLIT_BITS;
    let within = bucket & ((1 << SPLIT_BITS) - 1);
    (((1 << SPLIT_BITS) + within + 1) as u64) << doubling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for exponent in 2..36 {
            for ns in [1u64 << exponent, (1 << exponent) + 1, (3 << exponent) / 2] {
                let end = upper_end(bucket(ns));
                assert!(ns < end && end as f64 <= ns as f64 * 1.25 + 4.0, "{ns} below {end}");
            }
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let session = crate::owned::tests::session();
        let histogram = &session.retired_fault_ns;
        for ns in 1..=10_000 {
            histogram.record(ns);
        }
        let mut sum = Quantiles::default();
        histogram.add_to(&mut sum);
        assert_eq!(sum.count(), 10_000);
        for (q, want) in [(0.5, 5_000.0), (0.99, 9_900.0)] {
            let got = sum.quantile_ns(q) as f64;
            assert!((0.99 * want..=1.27 * want).contains(&got), "quantile {q}: {got}");
        }
        assert_eq!(Quantiles::default().quantile_ns(0.5), 0);
    }
}

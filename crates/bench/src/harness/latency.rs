//! A histogram of durations with a bounded relative error.

use serde::{Deserialize, Serialize};

/// Values below this are counted exactly; above, each power of two is cut into
/// half as many buckets, so a quantile is at most 1/32 above the truth.
const EXACT: u64 = 64;
const BUCKET_COUNT: usize = 60 * (EXACT as usize / 2);

/// Counts of nanoseconds, 15 KiB whatever the number of values.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total_count: u64,
    max_ns: u64,
}

/// The largest value of a bucket, in nanoseconds, and how many values lie in it.
pub(crate) type Bucket = (u64, u64);

/// Quantiles of a histogram, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKET_COUNT], total_count: 0, max_ns: 0 }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.total_count += 1;
        self.max_ns = self.max_ns.max(nanoseconds);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total_count += other.total_count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Values recorded.
    pub(crate) fn count(&self) -> u64 {
        self.total_count
    }

    /// `None` when nothing was recorded.
    pub(crate) fn latency(&self) -> Option<Latency> {
        (self.total_count > 0).then(|| Latency {
            p50_ns: self.quantile(0.5),
            p90_ns: self.quantile(0.9),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max_ns,
        })
    }

    /// The buckets that hold something, ascending.
    pub(crate) fn buckets(&self) -> Vec<Bucket> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, &count)| (upper_bound(index).min(self.max_ns), count)).collect()
    }

    /// The largest value of the bucket that holds the quantile.
    fn quantile(&self, fraction: f64) -> u64 {
        let wanted = (fraction * self.total_count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_bound(index).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let shift = value.ilog2() - EXACT.ilog2() + 1;
    (u64::from(shift) * (EXACT / 2) + (value >> shift)) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let half = EXACT as usize / 2;
    if bucket < EXACT as usize {
        return bucket as u64;
    }
    let shift = bucket / half - 1;
    let next = u128::try_from(bucket - shift * half + 1).unwrap_or(u128::MAX) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut previous = None;
        let values = (0..5000u64).chain((5..64).flat_map(|bit| {
            let power = 1u64 << bit;
            [power - 1, power, power + power / 3]
        }));
        let mut sorted: Vec<u64> = values.chain([u64::MAX]).collect();
        sorted.sort_unstable();
        for value in sorted {
            let index = bucket(value);
            assert!(index < BUCKET_COUNT, "{value} falls outside");
            let bound = upper_bound(index);
            assert!(bound >= value, "{value} above its bucket's bound {bound}");
            assert!(bound - value <= value / 32, "{value}: bound {bound}");
            assert!(previous <= Some(index), "{value} goes back");
            previous = Some(index);
        }
    }

    #[test]
    fn quantiles_of_a_ramp() {
        let mut histogram = Histogram::default();
        let mut second = Histogram::default();
        for value in 1..=1000u64 {
            if value % 2 == 0 { &mut histogram } else { &mut second }.record(value);
        }
        histogram.merge(&second);
        let latency = histogram.latency().unwrap();
        assert!((500..=516).contains(&latency.p50_ns), "{latency:?}");
        assert!((990..=1000).contains(&latency.p99_ns), "{latency:?}");
        assert_eq!(latency.max_ns, 1000);
        let buckets = histogram.buckets();
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        assert_eq!((buckets[0], buckets.last().unwrap().0), ((1, 1), 1000));
        assert!(buckets.is_sorted_by(|one, other| one.0 < other.0));
        assert_eq!(Histogram::default().latency(), None);
    }
}

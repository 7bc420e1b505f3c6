//! How often each reuse distance was seen.
//!
//! Distances are counted in buckets, 128 to an octave, so that a distance is known to within 0.8 %
//! whatever it is, and those below 256 exactly. Counts are weights: one access to a page that was
//! picked with the chance `R` stands for `1/R` of them.
//!
//! Pages are divided into [`GROUPS`] groups by a hash. Each group's count is an estimate of its
//! own, and by how much they differ tells how far the whole may be off ([`super::super::curve`]).

use crate::{PageNumber, hash};

/// Groups of pages whose counts are kept apart.
pub const GROUPS: usize = 16;
/// Buckets to an octave, as a power of two.
const PART_BITS: u32 = 7;

/// Accesses by reuse distance.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// A group's weights by bucket.
    groups: Vec<Vec<f64>>,
    /// A group's first accesses to a page.
    cold: [f64; GROUPS],
    /// The longest distance.
    longest: u64,
    /// Accesses, those that were not looked at too, where their number is known.
    accesses: Option<f64>,
}

/// Accesses whose distances lie together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    /// The shortest and the longest of the distances.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// How many accesses.
    pub(crate) weight: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            groups: vec![Vec::new(); GROUPS],
            cold: [0.0; GROUPS],
            longest: 0,
            accesses: None,
        }
    }
}

impl Histogram {
    /// The group of a page.
    pub fn group(page: PageNumber) -> usize {
        // Of other bits of the hash than those by which pages are picked: the highest, or, for a
        // trace that is a sample, the lowest.
        (hash(page) >> (u64::BITS / 2) & (GROUPS as u64 - 1)) as usize
    }

    /// An access with that distance, at least 1, which stands for `weight` accesses; `None` is the
    /// first one.
    pub fn note(&mut self, group: usize, distance: Option<u64>, weight: f64) {
        let Some(distance) = distance else {
            self.cold[group] += weight;
            return;
        };
        self.longest = self.longest.max(distance);
        let bucket = bucket(distance);
        let weights = &mut self.groups[group];
        if weights.len() <= bucket {
            weights.resize(bucket + 1, 0.0);
        }
        weights[bucket] += weight;
    }

    /// So many accesses there were, looked at or not.
    pub fn set_accesses(&mut self, accesses: f64) {
        self.accesses = Some(accesses);
    }

    /// All accesses, those that were not looked at too.
    pub fn accesses(&self) -> f64 {
        self.accesses.unwrap_or_else(|| self.weight_of(None))
    }

    /// First accesses to a page, of one group, or of all.
    pub(crate) fn cold_of(&self, group: Option<usize>) -> f64 {
        group.map_or_else(|| self.cold.iter().sum(), |group| self.cold[group])
    }

    /// What was noted, by its weights.
    pub(crate) fn weight_of(&self, group: Option<usize>) -> f64 {
        let warm: f64 = self.of(group).iter().flatten().sum();
        self.cold_of(group) + warm
    }

    fn of(&self, group: Option<usize>) -> &[Vec<f64>] {
        group.map_or(&self.groups[..], |group| &self.groups[group..=group])
    }

    /// The buckets in which there is something, in growing order. Of one group, or of all.
    pub(crate) fn buckets(&self, group: Option<usize>) -> Vec<Bucket> {
        let groups = self.of(group);
        let len = groups.iter().map(Vec::len).max().unwrap_or(0);
        let weight = |bucket: usize| groups.iter().filter_map(|group| group.get(bucket)).sum();
        let bucket = |index| Bucket {
            first: last_of(index - 1) + 1,
            last: last_of(index).min(self.longest),
            weight: weight(index),
        };
        (1..len).map(bucket).filter(|bucket| bucket.weight > 0.0).collect()
    }
}

fn bucket(distance: u64) -> usize {
    let shift = (u64::BITS - distance.leading_zeros()).saturating_sub(PART_BITS + 1);
    ((u64::from(shift) << PART_BITS) + (distance >> shift)) as usize
}

/// The greatest distance of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> PART_BITS).saturating_sub(1);
    let first = (bucket - (shift << PART_BITS)) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 0;
        for bucket_index in 0..40 << PART_BITS {
            assert_eq!(bucket(next), bucket_index);
            assert_eq!(bucket(last_of(bucket_index)), bucket_index);
            next = last_of(bucket_index) + 1;
        }
    }

    #[test]
    fn a_bucket_is_at_most_a_128th_wide() {
        for distance in (0..50).map(|shift| (1u64 << shift) * 3) {
            let last = last_of(bucket(distance));
            assert!(last >= distance && last - distance <= distance / 128, "{distance} {last}");
        }
    }

    #[test]
    fn pages_of_a_sample_are_in_all_groups() {
        let mut pages = [0; GROUPS];
        for page in (0..64_000).filter(|&page| crate::is_sampled(page, 64)) {
            pages[Histogram::group(page)] += 1;
        }
        assert!(pages.iter().all(|count| (20..200).contains(count)), "{pages:?}");
    }

    #[test]
    fn accesses_that_were_not_looked_at_count() {
        let mut histogram = Histogram::default();
        histogram.note(0, Some(7), 10.0);
        histogram.note(3, Some(7), 10.0);
        histogram.note(3, None, 10.0);
        assert_eq!((histogram.accesses(), histogram.cold_of(None)), (30.0, 10.0));
        let bucket = |weight| [Bucket { first: 7, last: 7, weight }];
        assert_eq!(histogram.buckets(None), bucket(20.0));
        assert_eq!(histogram.buckets(Some(3)), bucket(10.0));
        histogram.set_accesses(35.0);
        assert_eq!(histogram.accesses(), 35.0);
    }
}

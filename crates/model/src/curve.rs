//! Faults by the memory that is resident: F(m) of paper 003, which it writes as the number of disk
//! accesses.
//!
//! A curve is a list of points with straight lines between them. It never rises with the memory: a
//! measurement that does is flattened, as no program faults more for having more memory under a
//! policy that keeps the most recently used pages.

use crate::PageNumber;
use crate::reuse::Histogram;
use crate::reuse::histogram::{Bucket, GROUPS};

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Pages resident.
    pub pages: f64,
    /// Faults, as many as the unit of the curve says: of a run, or in a second.
    pub faults: f64,
}

/// Faults by resident pages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissCurve {
    points: Vec<Point>,
    /// Faults that no memory spares: first accesses.
    cold: f64,
    /// Accesses, of which the faults are a part.
    accesses: f64,
}

/// A figure, and what it lies within with a chance of 90 %.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// It is below this with a chance of 5 %.
    pub low: f64,
    /// It is above this with a chance of 5 %.
    pub high: f64,
}

/// Student's t for 14 degrees of freedom, 90 % between both sides: of the groups, two are used up
/// by their mean and slope.
const T_14: f64 = 1.761;

impl MissCurve {
    /// From points in any order. `cold`: faults at any size, which the points include.
    ///
    /// # Panics
    /// If a number is not finite or is negative.
    pub fn new(points: impl IntoIterator<Item = Point>, cold: f64, accesses: f64) -> MissCurve {
        let mut points: Vec<Point> = points.into_iter().collect();
        let is_number = |number: f64| number.is_finite() && number >= 0.0;
        let all = points.iter().flat_map(|point| [point.pages, point.faults]);
        assert!(all.chain([cold, accesses]).all(is_number), "a number of faults or pages is none");
        points.sort_by(|one, other| one.pages.total_cmp(&other.pages));
        let mut least = f64::INFINITY;
        for point in &mut points {
            least = least.min(point.faults);
            point.faults = least.max(cold);
        }
        points.dedup_by(|later, earlier| {
            let is_same = later.pages == earlier.pages;
            if is_same {
                earlier.faults = later.faults;
            }
            is_same
        });
        MissCurve { points, cold, accesses }
    }

    /// Faults become fewer within a bucket, from one page below its shortest distance on: as many
    /// pages as the distance hold the page.
    fn of_buckets(buckets: &[Bucket], cold: f64, accesses: f64) -> MissCurve {
        let mut faults = cold + buckets.iter().map(|bucket| bucket.weight).sum::<f64>();
        let mut points = vec![Point { pages: 0.0, faults }];
        for bucket in buckets {
            points.push(Point { pages: bucket.first as f64 - 1.0, faults });
            faults = (faults - bucket.weight).max(cold);
            points.push(Point { pages: bucket.last as f64, faults });
        }
        MissCurve::new(points, cold, accesses)
    }

    /// Faults with this many pages resident.
    pub fn faults(&self, pages: f64) -> f64 {
        let after = self.points.partition_point(|point| point.pages <= pages);
        match (after.checked_sub(1).map(|index| self.points[index]), self.points.get(after)) {
            (None, None) => 0.0,
            (None, Some(first)) => first.faults,
            (Some(last), None) => last.faults,
            (Some(before), Some(after)) => {
                let part = (pages - before.pages) / (after.pages - before.pages);
                before.faults + part * (after.faults - before.faults)
            }
        }
    }

    /// Accesses that fault, as a part of all; 0 without any access.
    pub fn miss_ratio(&self, pages: f64) -> f64 {
        if self.accesses > 0.0 { (self.faults(pages) / self.accesses).min(1.0) } else { 0.0 }
    }

    /// First accesses, which fault at any size.
    pub fn cold(&self) -> f64 {
        self.cold
    }

    /// The points, in the order of their pages.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Pages above which nothing is gained.
    pub fn need_pages(&self) -> f64 {
        let least = self.points.last().map_or(0.0, |last| last.faults);
        self.points.iter().find(|point| point.faults <= least).map_or(0.0, |point| point.pages)
    }
}

/// A curve from sampled pages, of which is known how far off it may be.
///
/// The groups of pages are estimates that do not depend on one another, so their spread says how
/// far off their sum may be. And the number of accesses is known: where the weights do not add up
/// to it, the sample has too many accesses or too few, and faults are changed by as much of the
/// difference as they follow the weights from group to group (a regression estimate). A page that
/// is accessed all the time and is in the sample by luck changes the weights and no faults; with
/// accesses that are all alike, faults follow them one to one.
#[derive(Clone, Debug)]
pub struct SampledCurve {
    whole: MissCurve,
    groups: Vec<MissCurve>,
    /// What each group's accesses came to.
    weights: [f64; GROUPS],
}

impl SampledCurve {
    /// From the reuse distances of a part of the pages.
    pub fn from_reuse(histogram: &Histogram) -> SampledCurve {
        let accesses = histogram.accesses();
        let weights: [f64; GROUPS] = std::array::from_fn(|group| histogram.weight_of(Some(group)));
        let group = |group| {
            let buckets = histogram.buckets(Some(group));
            MissCurve::of_buckets(&buckets, histogram.cold_of(Some(group)), weights[group])
        };
        let groups: Vec<MissCurve> = (0..GROUPS).map(group).collect();
        let raw =
            MissCurve::of_buckets(&histogram.buckets(None), histogram.cold_of(None), accesses);
        let cold = regress(groups.iter().map(MissCurve::cold), &weights, accesses).value;
        let point = |point: &Point| {
            let faults = groups.iter().map(|group| group.faults(point.pages));
            Point { pages: point.pages, faults: regress(faults, &weights, accesses).value }
        };
        let whole = MissCurve::new(raw.points.iter().map(point), cold, accesses);
        SampledCurve { whole, groups, weights }
    }

    /// The curve itself.
    pub fn curve(&self) -> &MissCurve {
        &self.whole
    }

    /// Faults with this many pages resident.
    pub fn faults(&self, pages: f64) -> Estimate {
        let of_groups = self.groups.iter().map(|group| group.faults(pages));
        let estimate = regress(of_groups, &self.weights, self.whole.accesses);
        // The curve was made to fall.
        let value = self.whole.faults(pages);
        let shift = value - estimate.value;
        let low = (estimate.low + shift).max(self.whole.cold.min(value));
        Estimate { value, low, high: estimate.high + shift }
    }
}

/// The sum of the groups' faults, had the weights added up to the accesses.
fn regress(
    faults: impl Iterator<Item = f64> + Clone,
    weights: &[f64; GROUPS],
    accesses: f64,
) -> Estimate {
    let count = GROUPS as f64;
    let (sum, weight) = (faults.clone().sum::<f64>(), weights.iter().sum::<f64>());
    let (mean, mean_weight) = (sum / count, weight / count);
    let deviations = || {
        faults.clone().zip(weights).map(|(faults, weight)| (faults - mean, weight - mean_weight))
    };
    let together: f64 = deviations().map(|(faults, weight)| faults * weight).sum();
    let of_weights: f64 = deviations().map(|(_, weight)| weight * weight).sum();
    let slope = if of_weights > 0.0 { (together / of_weights).clamp(0.0, 1.0) } else { 0.0 };
    let rest: f64 = deviations().map(|(faults, weight)| (faults - slope * weight).powi(2)).sum();
    let within = T_14 * (rest / (count - 2.0) * count).sqrt();
    let value = (sum + slope * (accesses - weight)).max(0.0);
    Estimate { value, low: (value - within).max(0.0), high: value + within }
}

/// Faults of a trace by a memory that drops the least recently used page, one size at a time: what
/// curves are held against.
pub fn faults_of_lru(trace: impl IntoIterator<Item = PageNumber>, pages: u64) -> u64 {
    let mut stack = crate::reuse::StackDistances::default();
    let is_fault = |&page: &PageNumber| stack.access(page).is_none_or(|distance| distance > pages);
    trace.into_iter().filter(is_fault).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reuse::StackDistances;

    fn exact(trace: &[u64]) -> Histogram {
        let (mut stack, mut histogram) = (StackDistances::default(), Histogram::default());
        for &page in trace {
            histogram.note(Histogram::group(page), stack.access(page), 1.0);
        }
        histogram
    }

    #[test]
    fn a_loop_faults_always_until_it_fits() {
        let trace: Vec<u64> = (0..100 * 200).map(|nth| nth % 200).collect();
        let sampled = SampledCurve::from_reuse(&exact(&trace));
        let curve = sampled.curve();
        assert_eq!(curve.faults(0.0), 20_000.0);
        assert_eq!(curve.faults(199.0), 20_000.0);
        assert_eq!(curve.faults(200.0), 200.0);
        assert_eq!(curve.miss_ratio(1e9), 0.01);
        assert_eq!((curve.need_pages(), curve.cold()), (200.0, 200.0));
    }

    #[test]
    fn what_rises_is_flattened() {
        let point = |pages, faults| Point { pages, faults };
        let points = [point(30.0, 40.0), point(10.0, 50.0), point(20.0, 60.0), point(40.0, 1.0)];
        let curve = MissCurve::new(points, 5.0, 100.0);
        let at =
            [0.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 99.0].map(|pages| curve.faults(pages));
        assert_eq!(at, [50.0, 50.0, 50.0, 50.0, 45.0, 40.0, 22.5, 5.0, 5.0]);
        assert_eq!(curve.need_pages(), 40.0);
    }

    #[test]
    fn without_an_access_there_is_no_fault() {
        let sampled = SampledCurve::from_reuse(&Histogram::default());
        let curve = sampled.curve();
        assert_eq!((curve.faults(7.0), curve.miss_ratio(7.0), curve.need_pages()), (0.0, 0.0, 0.0));
    }

    #[test]
    #[should_panic(expected = "is none")]
    fn what_is_no_number_is_refused() {
        MissCurve::new([Point { pages: f64::NAN, faults: 0.0 }], 0.0, 0.0);
    }
}

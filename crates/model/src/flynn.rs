//! Flynn's law of page misses, by which paper 003 (section 3.3) finds all sizes from two.
//!
//! ```text
//! F(V) = h 10^(-z V)        V: memory, as a part of the footprint
//! ```
//!
//! Two measurements determine it (the paper's footnote 3): `z = log10(F1 / F2) / (V2 - V1)` and
//! `h = F1 10^(z V1)`. Beyond `V = 1` the program has all of its memory: only first accesses fault,
//! which the law knows nothing of.

use crate::curve::{MissCurve, Point};

/// A program's faults by the part of its footprint that is resident.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flynn {
    /// Faults without memory.
    pub h: f64,
    /// How fast they become fewer: by ten times for each `1/z` of the footprint.
    pub z: f64,
}

/// Points of a curve that is drawn from the law.
const POINTS: u32 = 200;

impl Flynn {
    /// From faults at two sizes, each a part of the footprint. `None` where the law does not fit:
    /// the greater memory must have fewer faults, and some.
    pub fn from_two(one: (f64, f64), other: (f64, f64)) -> Option<Flynn> {
        let (less, more) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let ((v1, f1), (v2, f2)) = (less, more);
        let fits = v1 >= 0.0 && v1 < v2 && f2 > 0.0 && f1 > f2 && f1.is_finite() && v2.is_finite();
        fits.then(|| {
            let z = (f1 / f2).log10() / (v2 - v1);
            Flynn { h: f1 * 10f64.powf(z * v1), z }
        })
    }

    /// Faults with this part of the footprint resident.
    pub fn faults(&self, part: f64) -> f64 {
        if part >= 1.0 { 0.0 } else { self.h * 10f64.powf(-self.z * part.max(0.0)) }
    }

    /// The curve of a program with this footprint, beside its first accesses.
    pub fn curve(&self, footprint_pages: f64, cold: f64) -> MissCurve {
        let point = |nth: u32| {
            let part = f64::from(nth) / f64::from(POINTS);
            Point { pages: part * footprint_pages, faults: cold + self.faults(part) }
        };
        MissCurve::new((0..=POINTS).map(point), cold, cold + self.h)
    }
}

/// A compressed level of paper 003 under Flynn's law, in parts of the footprint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trade {
    /// [`Flynn::z`].
    pub z: f64,
    /// What an access to the disk that is spared is worth, in accesses that become slower
    /// ([`crate::equations::gain_factor`]).
    pub k: f64,
    /// A page's bytes over those that its object is charged.
    pub r: f64,
}

impl Trade {
    /// Whether even the smallest compressed area pays.
    pub fn small_areas_pay(&self) -> bool {
        self.k * (self.r - 1.0) > 1.0
    }

    /// Overhead and Gain of condition 7 with an area of this part of the footprint, both divided by
    /// the faults without one. They do not depend on the memory as long as not all fits.
    pub fn overhead_and_gain(&self, area: f64) -> (f64, f64) {
        let overhead = 10f64.powf(self.z * area) - 1.0;
        (overhead, self.k * (1.0 - 10f64.powf(-self.z * (self.r - 1.0) * area)))
    }

    /// The area for which Gain less Overhead is greatest; `None` where none pays.
    pub fn best_area(&self) -> Option<f64> {
        self.small_areas_pay().then(|| (self.k * (self.r - 1.0)).log10() / (self.z * self.r))
    }

    /// The area above which Overhead is greater than Gain; `None` where no area pays. Gain less
    /// Overhead rises from 0 and then falls, so there is one such area.
    pub fn break_even_area(&self) -> Option<f64> {
        let mut low = self.best_area()?;
        let pays = |area| {
            let (overhead, gain) = self.overhead_and_gain(area);
            overhead <= gain
        };
        // Gain is at most k.
        let mut high = (1.0 + self.k).log10() / self.z + low;
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if pays(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_sizes_tell_all_others() {
        let law = Flynn { h: 5_000_000.0, z: 3.5 };
        let found = Flynn::from_two((0.9, law.faults(0.9)), (0.5, law.faults(0.5))).unwrap();
        assert!((found.h / law.h - 1.0).abs() < 1e-9 && (found.z - law.z).abs() < 1e-9);
        let curve = found.curve(1000.0, 40.0);
        for pages in [0.0, 130.0, 500.0, 995.0] {
            let law = 40.0 + law.faults(pages / 1000.0);
            assert!((curve.faults(pages) / law - 1.0).abs() < 1e-2, "{pages}");
        }
        assert_eq!(curve.faults(1000.0), 40.0);
    }

    #[test]
    fn what_does_not_fall_is_not_fitted() {
        for (one, other) in [
            ((0.5, 100.0), (0.6, 100.0)),
            ((0.5, 100.0), (0.6, 110.0)),
            ((0.5, 100.0), (0.6, 0.0)),
            ((0.5, 100.0), (0.5, 90.0)),
            ((0.5, f64::INFINITY), (0.6, 90.0)),
            ((f64::NAN, 100.0), (0.6, 90.0)),
        ] {
            assert_eq!(Flynn::from_two(one, other), None, "{one:?} {other:?}");
        }
    }

    proptest! {
        #[test]
        fn the_best_area_is_the_best(z in 0.5..8f64, k in 0.1..2000f64, r in 1.05..8f64) {
            let trade = Trade { z, k, r };
            let net = |area| {
                let (overhead, gain) = trade.overhead_and_gain(area);
                gain - overhead
            };
            let areas = (1..2000).map(|nth| f64::from(nth) / 1000.0 / z);
            match (trade.best_area(), trade.break_even_area()) {
                (Some(best), Some(even)) => {
                    prop_assert!(best < even);
                    for area in areas {
                        prop_assert!(net(area) <= net(best) * (1.0 + 1e-9) + 1e-9);
                        prop_assert!((net(area) > 0.0) == (area < even) || (area - even).abs() < 1e-6);
                    }
                }
                (best, even) => {
                    prop_assert_eq!((best, even), (None, None));
                    prop_assert!(areas.into_iter().all(|area| net(area) <= 1e-9));
                }
            }
        }
    }
}

//! How many different pages a program touches in a window of time, and what that says of its
//! faults.
//!
//! A running program cannot be traced access by access. What can be had of it is which pages were
//! touched since a moment, at several later ones. The footprint `fp(t)` is the mean number of pages
//! touched in a window of length `t`. A memory that holds `c` pages holds what was touched in a
//! window with `fp(t) = c`, so a page comes to it as often as the footprint grows there:
//!
//! ```text
//! faults in a second with c pages = fp'(t)   where fp(t) = c
//! ```
//!
//! (Xiang, Ding, Luo and Bao, "HOTL: a higher order theory of locality", ASPLOS 2013.) The
//! footprint of any program is concave: a longer window adds no more in its last second than a
//! shorter one. What was measured is made so, by the mean of neighbouring slopes that rise.

use crate::curve::{MissCurve, Point};

/// Pages touched by the length of the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footprint {
    /// From one point to the next: seconds, and pages a second, of which none is greater than the
    /// one before.
    slopes: Vec<(f64, f64)>,
}

impl Footprint {
    /// From windows that were looked at: their length in seconds, and the pages touched. Windows of
    /// the same length count as their mean.
    ///
    /// # Panics
    /// If a number is not finite or is negative.
    pub fn from_windows(windows: impl IntoIterator<Item = (f64, f64)>) -> Footprint {
        let mut windows: Vec<(f64, f64)> = windows.into_iter().collect();
        let is_number = |number: &f64| number.is_finite() && *number >= 0.0;
        assert!(
            windows.iter().all(|(seconds, pages)| is_number(seconds) && is_number(pages)),
            "a window's length or pages are none"
        );
        windows.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Blocks of segments with their mean slope, merged while a later one is steeper.
        let mut blocks: Vec<(f64, f64)> = Vec::new();
        let (mut last_seconds, mut last_pages) = (0.0, 0.0);
        for same_length in windows.chunk_by(|one, other| one.0 == other.0) {
            let seconds = same_length[0].0;
            let pages =
                same_length.iter().map(|(_, pages)| pages).sum::<f64>() / same_length.len() as f64;
            if seconds > last_seconds {
                blocks.push((seconds - last_seconds, pages - last_pages));
                (last_seconds, last_pages) = (seconds, pages);
            }
            while let [.., (seconds, pages), (later_seconds, later_pages)] = blocks[..]
                && later_pages * seconds > pages * later_seconds
            {
                blocks.truncate(blocks.len() - 2);
                blocks.push((seconds + later_seconds, pages + later_pages));
            }
        }
        let slope = |(seconds, pages): (f64, f64)| (seconds, (pages / seconds).max(0.0));
        Footprint { slopes: blocks.into_iter().map(slope).collect() }
    }

    /// Pages touched in a window of this many seconds.
    pub fn pages(&self, seconds: f64) -> f64 {
        let mut left = seconds;
        let mut pages = 0.0;
        for &(length, slope) in &self.slopes {
            pages += slope * length.min(left);
            left -= length;
            if left <= 0.0 {
                break;
            }
        }
        pages
    }

    /// The longest window, in seconds.
    pub fn seconds(&self) -> f64 {
        self.slopes.iter().map(|(seconds, _)| seconds).sum()
    }

    /// Faults in a second by resident pages. Above the greatest footprint that was seen nothing is
    /// known but that there are no more faults than there.
    pub fn curve(&self) -> MissCurve {
        let mut pages = 0.0;
        let point = |&(seconds, slope): &(f64, f64)| {
            let first = pages;
            pages += seconds * slope;
            // The slope is the mean over the segment: that of its middle.
            [Point { pages: (first + pages) / 2.0, faults: slope }, Point { pages, faults: slope }]
        };
        let mut points: Vec<Point> = self.slopes.iter().flat_map(point).collect();
        // The middle alone counts where another segment follows.
        let last = points.pop();
        let mut middles: Vec<Point> = points.into_iter().step_by(2).collect();
        middles.extend(last);
        let accesses = middles.first().map_or(0.0, |first| first.faults);
        MissCurve::new(middles, 0.0, accesses)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::curve::faults_of_lru;

    #[test]
    fn a_loop_touches_as_many_pages_as_it_has() {
        // 100 pages a second, 300 in all.
        let windows = (1..=10).map(|second| (f64::from(second), f64::from(second.min(3)) * 100.0));
        let footprint = Footprint::from_windows(windows);
        assert_eq!(footprint.pages(2.5), 250.0);
        assert_eq!((footprint.pages(3.0), footprint.pages(99.0)), (300.0, 300.0));
        assert_eq!(footprint.seconds(), 10.0);
        let curve = footprint.curve();
        assert_eq!(curve.faults(100.0), 100.0);
        assert_eq!(curve.faults(300.0), 0.0);
    }

    #[test]
    fn without_a_window_nothing_is_known() {
        let footprint = Footprint::from_windows([]);
        assert_eq!((footprint.pages(1.0), footprint.seconds()), (0.0, 0.0));
        assert_eq!(footprint.curve().faults(10.0), 0.0);
    }

    /// Numbers that look random, the same in each run.
    fn random(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn faults_are_those_of_a_memory_of_that_size() {
        // Half of the accesses go to a tenth of 2,000 pages. A second is 1,000 accesses.
        let mut state = 7;
        let trace: Vec<u64> = (0..200_000)
            .map(|_| {
                let pages = if random(&mut state).is_multiple_of(2) { 200 } else { 2000 };
                random(&mut state) % pages
            })
            .collect();
        let windows = (0..40).flat_map(|start| {
            let trace = &trace[start * 4000..];
            [50, 100, 200, 500, 1000, 2000, 4000, 8000, 16_000].map(|length| {
                let mut pages = trace[..length].to_vec();
                pages.sort_unstable();
                pages.dedup();
                (length as f64 / 1000.0, pages.len() as f64)
            })
        });
        let curve = Footprint::from_windows(windows).curve();
        for pages in [150, 300, 600, 1000, 1500, 1800] {
            let exact = faults_of_lru(trace.iter().copied(), pages) as f64 / trace.len() as f64;
            let found = curve.faults(pages as f64) / 1000.0;
            assert!((exact - found).abs() < 0.05, "{pages}: {exact} {found}");
        }
    }

    proptest! {
        #[test]
        fn the_footprint_is_concave_and_never_falls(
            windows in prop::collection::vec((0.0..100f64, 0.0..1e6f64), 1..30),
        ) {
            let footprint = Footprint::from_windows(windows);
            let slopes = footprint.slopes.iter().map(|(_, slope)| *slope);
            prop_assert!(slopes.clone().zip(slopes.skip(1)).all(|(one, next)| next <= one * (1.0 + 1e-9)));
            prop_assert!(footprint.slopes.iter().all(|(_, slope)| *slope >= 0.0));
        }
    }
}

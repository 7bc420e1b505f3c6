//! Pages that are gone over together, time after time: loops over arrays, streams, scans.
//!
//! Drawn each by itself, the accesses of such pages would be as many and in no order, and a
//! simulation would see no stream. But that neighbours are touched together shows, whenever both
//! are watched. Where it does, and for most touches, the accesses that are not seen are thought to
//! come at a steady distance from the last that was: that keeps neighbours together. The distance
//! is the mean of the pages around, which are gone over in the same passes.
//!
//! A watch that begins at any moment ends with the next pass. So how long watches last says how far
//! apart passes are: half of that where they come at a steady distance `P`, all of it where they
//! come at random. With the coefficients of variation of watches, `V`, and of passes, `C`:
//!
//! ```text
//! mean watch = P (1 + C^2) / 2       V^2 = 1/3 where C = 0,  1 where C = 1
//! ```
//!
//! Where all touches follow each other at multiples of one distance, and that is not shorter than
//! the watches, it is that of the passes.

use super::timeline::{Interval, Kind};
use crate::{BLOCK_PAGES, PageNumber};

/// Neighbours are touched together when the one follows the other within this part of the time for
/// which it was watched. Of two pages that were taken together and are accessed at random
/// that is one pair in fifteen, however often they are accessed at the moment.
const TOGETHER_SHARE: f64 = 1.0 / 8.0;
/// So many touches of a block at least must show whether a watched neighbour follows, and in so
/// large a part of them it must.
const TOUCHES_MIN: u32 = 3;
const TOGETHER_MIN: f64 = 0.5;
/// The run is divided into so many parts, each with passes of its own distance, where as many
/// touches were seen in it.
const EPOCHS: usize = 32;
const EPOCH_TOUCHES_MIN: usize = 16;
/// How far from a multiple of their distance touches may be, as a part of it.
const NEAR: f64 = 0.1;
/// Of the watches as many are not longer than what counts as the longest, and of the touches as
/// many must be at a multiple.
const LONG_PERCENT: usize = 90;
/// A period that is not steady is thought to be one close by that is, where it is at most so many
/// times as long or as short.
const NEAR_TIMES: f64 = 2.5;
/// So many passes, at most, may have gone by between two touches.
const MULTIPLES_MAX: u32 = 1000;

/// A page and its intervals.
pub(super) type Place = (PageNumber, (u32, u32));

/// Finds pages that are gone over together, and says so in their intervals. `places`: in the order
/// of pages.
pub(super) fn find(places: &[Place], intervals: &mut [Interval], end_us: u64) {
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let mut first = 0;
    for block in places.chunk_by(|one, other| one.0 / BLOCK_PAGES == other.0 / BLOCK_PAGES) {
        let last = first + block.len();
        if is_gone_over(block, intervals) {
            let continues = groups.last().is_some_and(|group| {
                group.1 == first
                    && places[first - 1].0 / BLOCK_PAGES + 1 == block[0].0 / BLOCK_PAGES
            });
            match groups.last_mut().filter(|_| continues) {
                Some(group) => group.1 = last,
                None => groups.push((first, last)),
            }
        }
        first = last;
    }
    for (first, last) in groups {
        let pages = &places[first..last];
        let epochs = Epochs::of(pages, intervals, end_us);
        for (nth, &(_, (start, end))) in pages.iter().enumerate() {
            let place = nth as f64 / pages.len() as f64;
            for interval in &mut intervals[start as usize..end as usize] {
                if matches!(interval.kind, Kind::Unwatched { .. }) {
                    let middle_us = interval.from_us.midpoint(interval.to_us);
                    let Period { period_us, is_steady } = epochs.period(middle_us);
                    let phase = (!is_steady).then_some(place);
                    interval.kind = Kind::Passes { period_us, phase };
                }
            }
        }
    }
}

/// Do the pages of a block follow one another, whenever it can be seen?
fn is_gone_over(block: &[Place], intervals: &[Interval]) -> bool {
    let of = |place: &Place| &intervals[place.1.0 as usize..place.1.1 as usize];
    let (mut seen, mut together) = (0, 0);
    for pair in block.windows(2) {
        for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let touches = of(one).iter().filter(|interval| interval.is_touched());
            for touch in touches {
                let others = of(other);
                let next = others.partition_point(|interval| interval.to_us < touch.to_us);
                let Some(next) = others.get(next).filter(|next| next.is_watch()) else { continue };
                if next.from_us < touch.to_us {
                    seen += 1;
                    let after_us = (next.to_us - touch.to_us) as f64;
                    let within_us = (next.to_us - next.from_us) as f64 * TOGETHER_SHARE;
                    together += u32::from(next.is_touched() && after_us <= within_us);
                }
            }
        }
    }
    seen >= TOUCHES_MIN && f64::from(together) >= TOGETHER_MIN * f64::from(seen)
}

/// A watch that ended with a touch.
#[derive(Clone, Copy, Debug)]
struct Touch {
    watched_us: f64,
    /// Since the event before it.
    apart_us: f64,
}

/// Time from pass to pass.
#[derive(Clone, Copy, Debug)]
struct Period {
    period_us: f64,
    /// It is always the same: from a touch on it is known when each pass comes to a page. Otherwise
    /// all pages are thought to be gone over in the order of their numbers.
    is_steady: bool,
}

impl Period {
    /// Where a period is not steady, another that is may be meant.
    fn is_near(self, other: Period) -> bool {
        let times = self.period_us / other.period_us;
        (1.0 / NEAR_TIMES..NEAR_TIMES).contains(&times)
    }
}

/// Of the watches that end in a part of the run.
#[derive(Clone, Debug, Default)]
struct Watches {
    touches: Vec<Touch>,
    /// Of all watches, touched or not.
    watched_us: f64,
}

impl Watches {
    fn add(&mut self, other: &Watches) {
        self.touches.extend(&other.touches);
        self.watched_us += other.watched_us;
    }

    /// `before`: that of the part of the run before this one, which is kept where it fits.
    fn period(&mut self, before: Option<Period>) -> Period {
        if self.touches.is_empty() {
            return Period { period_us: f64::INFINITY, is_steady: false };
        }
        let before_us = before.filter(|before| before.is_steady).map(|before| before.period_us);
        let steady_us = self.steady_period_us(before_us);
        let period_us = steady_us.unwrap_or_else(|| self.mean_period_us()).max(1.0);
        Period { period_us, is_steady: steady_us.is_some() }
    }

    /// From how long watches last.
    fn mean_period_us(&self) -> f64 {
        let count = self.touches.len() as f64;
        let mean = self.touches.iter().map(|touch| touch.watched_us).sum::<f64>() / count;
        let squares: f64 = self.touches.iter().map(|touch| touch.watched_us.powi(2)).sum();
        let variation = (squares / count / (mean * mean).max(f64::MIN_POSITIVE) - 1.0).max(0.0);
        let of_passes = ((variation - 1.0 / 3.0) * 1.5).clamp(0.0, 1.0);
        2.0 * (self.watched_us / count) / (1.0 + of_passes)
    }

    /// The longest distance of which all distances from touch to touch are multiples. No watch is
    /// longer, and the longest are half of it at least.
    fn steady_period_us(&mut self, before_us: Option<f64>) -> Option<f64> {
        let count = self.touches.len();
        self.touches.sort_by(|one, other| one.watched_us.total_cmp(&other.watched_us));
        let longest_us = self.touches[(count - 1) * LONG_PERCENT / 100].watched_us;
        self.touches.sort_by(|one, other| one.apart_us.total_cmp(&other.apart_us));
        // The shortest say most: a small error is a small part of a pass.
        let shortest = &self.touches[..count.div_ceil(2)];
        let apart_us = shortest[shortest.len() / 2].apart_us;
        let bounds = longest_us * (1.0 - NEAR)..longest_us * (2.0 + NEAR);
        let fits = |&period_us: &f64| {
            let off = |touch: &Touch| (touch.apart_us / period_us).fract();
            let is_multiple = |touch: &&Touch| off(touch).min(1.0 - off(touch)) < NEAR;
            let count = shortest.iter().filter(is_multiple).count();
            count * 100 >= shortest.len() * LONG_PERCENT
        };
        let before_us = before_us.filter(|&period_us| period_us > bounds.start);
        let first = (apart_us / bounds.end).ceil().max(1.0) as u32;
        let longest_first = (first..first + MULTIPLES_MAX)
            .map(|multiple| apart_us / f64::from(multiple))
            .take_while(|&period_us| period_us > bounds.start);
        before_us.into_iter().chain(longest_first).find(fits)
    }
}

/// How far apart passes are, over the run.
struct Epochs {
    length_us: f64,
    periods: [Period; EPOCHS],
}

impl Epochs {
    fn of(pages: &[Place], intervals: &[Interval], end_us: u64) -> Epochs {
        let length_us = (end_us as f64 / EPOCHS as f64).max(1.0);
        let place = |time_us: u64| ((time_us as f64 / length_us) as usize).min(EPOCHS - 1);
        let mut watches: [Watches; EPOCHS] = std::array::from_fn(|_| Watches::default());
        for &(_, (start, end)) in pages {
            let mut unwatched_us = 0.0;
            for interval in &intervals[start as usize..end as usize] {
                let watched_us = (interval.to_us - interval.from_us) as f64;
                let Kind::Watched { is_touched } = interval.kind else {
                    unwatched_us = watched_us;
                    continue;
                };
                let of_epoch = &mut watches[place(interval.to_us)];
                of_epoch.watched_us += watched_us;
                if is_touched {
                    let apart_us = watched_us + unwatched_us;
                    of_epoch.touches.push(Touch { watched_us, apart_us });
                }
                unwatched_us = 0.0;
            }
        }
        // Where too little was seen, with what is around it.
        let mut before = None;
        let found: [Period; EPOCHS] = std::array::from_fn(|nth: usize| {
            let mut sum = watches[nth].clone();
            for distance in 1..EPOCHS {
                if sum.touches.len() >= EPOCH_TOUCHES_MIN {
                    break;
                }
                for other in [nth.checked_sub(distance), Some(nth + distance)] {
                    if let Some(other) = other.and_then(|other| watches.get(other)) {
                        sum.add(other);
                    }
                }
            }
            *before.insert(sum.period(before))
        });
        let periods = std::array::from_fn(|nth: usize| {
            let mut steady: Vec<usize> = (0..EPOCHS).filter(|&at| found[at].is_steady).collect();
            steady.sort_by_key(|at| at.abs_diff(nth));
            let near = steady.iter().map(|&at| found[at]).find(|other| found[nth].is_near(*other));
            near.filter(|_| !found[nth].is_steady).unwrap_or(found[nth])
        });
        Epochs { length_us, periods }
    }

    fn period(&self, time_us: u64) -> Period {
        self.periods[((time_us as f64 / self.length_us) as usize).min(EPOCHS - 1)]
    }
}

//! Pages that are gone over together, time after time: loops over arrays, streams, scans, and what
//! collects garbage.
//!
//! Drawn each by itself, the accesses of such pages would be as many and in no order, and a
//! simulation would see no stream. But that neighbours are touched together shows, whenever both
//! are watched. Where it does, and for most touches, each touch says where a pass was at that
//! time. From all touches of such pages a [`Sweep`] is made: how many passes were done by when.
//! It is one of these:
//!
//! - Passes follow one another, each takes all the time until the next: a loop over an array. From
//!   one touch to the next the pass has come as much farther as their places differ, and by as many
//!   whole passes as the time between them says.
//! - Passes are short, and far apart: a scan now and then, or a collector. Touches come in groups.
//!
//! How far apart passes are follows from how long watches last: a watch that begins at any moment
//! ends with the next pass. That is half of the distance where passes come at a steady distance
//! `P`, all of it where they come at random. With the coefficients of variation of watches, `V`,
//! and of passes, `C`:
//!
//! ```text
//! mean watch = P (1 + C^2) / 2       V^2 = 1/3 where C = 0,  1 where C = 1
//! ```

use super::timeline::{Interval, Kind};
use crate::{BLOCK_PAGES, PageNumber};

/// Neighbours are touched together when the one follows the other within this part of the time for
/// which it was watched. Of two pages that were taken together and are accessed at random
/// that is one pair in fifteen, however often they are accessed at the moment.
const TOGETHER_SHARE: f64 = 1.0 / 8.0;
/// So many touches of a block, or of it and its neighbours, must show whether a watched neighbour
/// follows, and in so large a part of them it must.
const TOUCHES_MIN: u32 = 3;
const TOGETHER_MIN: f64 = 0.5;
/// Blocks on each side that are asked where a block has too few touches.
const NEIGHBOURS: u64 = 2;
/// The run is divided into so many parts, each with passes of its own distance, where as many
/// touches were seen in it.
const EPOCHS: usize = 32;
const EPOCH_TOUCHES_MIN: usize = 16;
/// Touches that are farther apart than this part of the distance of passes are of different ones,
/// where passes are short. As many touches must be in a pass on average, and all passes together
/// must take as small a part of the time.
const APART_SHARE: f64 = 1.0 / 8.0;
const SHORT_TOUCHES_MIN: usize = 4;
const SHORT_SHARE: f64 = 0.5;
/// What has as small a part of the touches of the usual pass is none.
const FEW_SHARE: usize = 8;
/// Passes on each side of one by which it is known how far apart they are there.
const AROUND: usize = 5;
/// A page that is accessed for another reason is touched far from where the pass is: so many
/// touches that follow within this part of the distance of passes tell.
const FOLLOWING: usize = 8;
const SOON_SHARE: f64 = 0.25;
/// A place that is as near as that has been passed.
const ROUNDING: f64 = 1e-9;

/// A page and its intervals.
pub(super) type Place = (PageNumber, (u32, u32));

/// Passes over pages that lie one behind the other.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// When so many passes were done. In the order of both; in between it is on the straight line.
    knots: Vec<(u64, f64)>,
}

impl Sweep {
    /// The first time after `after_us` that a pass comes to a place, which is from 0 to 1.
    pub(super) fn next(&self, place: f64, after_us: u64) -> Option<u64> {
        let later = self.knots.partition_point(|knot| knot.0 <= after_us);
        let wanted = (self.done(later, after_us) - place + ROUNDING).floor() + 1.0 + place;
        let nth = later + self.knots[later..].partition_point(|knot| knot.1 < wanted);
        let &(to_us, to) = self.knots.get(nth)?;
        let (from_us, from) = nth.checked_sub(1).map_or((to_us, to), |nth| self.knots[nth]);
        let part = if to > from { (wanted - from) / (to - from) } else { 1.0 };
        let time_us = from_us + (part * (to_us - from_us) as f64).ceil() as u64;
        Some(time_us.max(after_us + 1))
    }

    /// How many passes were done at a time, which is before the knot `later`.
    fn done(&self, later: usize, at_us: u64) -> f64 {
        let before = later.checked_sub(1).map(|nth| self.knots[nth]);
        match (before, self.knots.get(later)) {
            (Some((from_us, from)), Some(&(to_us, to))) => {
                from + (to - from) * (at_us - from_us) as f64 / (to_us - from_us) as f64
            }
            (Some((_, done)), None) | (None, Some(&(_, done))) => done,
            (None, None) => 0.0,
        }
    }

    /// Adds a pass that touches show.
    fn add(&mut self, from_us: u64, to_us: u64, touches: &[Touch]) {
        let done = self.knots.last().map_or(0.0, |knot| knot.1);
        self.push(from_us, done);
        for touch in touches {
            let place = done + touch.place;
            // Those that come in no order say no more than that there was a pass.
            if self.knots.last().is_some_and(|knot| knot.1 < place) {
                self.push(touch.at_us, place);
            }
        }
        self.push(to_us.max(from_us + 1), done + 1.0);
    }

    /// Adds passes like one before, when nothing was watched.
    fn add_unseen(&mut self, (from_us, to_us): (u64, u64), count: u64, apart_us: f64) {
        for nth in 1..=count {
            let later_us = (nth as f64 * apart_us) as u64;
            self.add(from_us + later_us, to_us + later_us, &[]);
        }
    }

    fn push(&mut self, at_us: u64, done: f64) {
        let (last_us, last) = self.knots.last().copied().unwrap_or_default();
        self.knots.push((at_us.max(last_us), done.max(last)));
    }
}

/// Finds pages that are gone over together, and says so in their intervals. `places`: in the order
/// of pages.
pub(super) fn find(places: &[Place], intervals: &mut [Interval], end_us: u64) -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    for (first, last) in groups(places, intervals) {
        let pages = &places[first..last];
        let touches = touches(pages, intervals);
        let epochs = Epochs::of(pages, intervals, end_us);
        for (nth, &(_, (start, end))) in pages.iter().enumerate() {
            let mut touched_us = None;
            for interval in &mut intervals[start as usize..end as usize] {
                if interval.is_touched() {
                    touched_us = Some(interval.to_us);
                }
                if matches!(interval.kind, Kind::Unwatched { .. }) {
                    let period_us = epochs.period_us(interval.from_us);
                    // The touch was the pass.
                    let rest = |touched_us: u64| touched_us + (period_us / 2.0) as u64;
                    interval.kind = Kind::Passes {
                        sweep: sweeps.len() as u32,
                        place: nth as f64 / pages.len() as f64,
                        from_us: touched_us.map_or(0, rest),
                    };
                }
            }
        }
        let short = short_passes(&touches, &epochs, end_us);
        sweeps.push(short.unwrap_or_else(|| long_passes(&touches, &epochs, end_us)));
    }
    sweeps
}

/// Pages, by their place among all, that are gone over together.
fn groups(places: &[Place], intervals: &[Interval]) -> Vec<(usize, usize)> {
    let block_of = |place: &Place| place.0 / BLOCK_PAGES;
    let blocks: Vec<&[Place]> =
        places.chunk_by(|one, other| block_of(one) == block_of(other)).collect();
    let seen: Vec<Together> = blocks.iter().map(|block| together(block, intervals)).collect();
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let mut first = 0;
    for (nth, block) in blocks.iter().enumerate() {
        let own = block_of(&block[0]);
        let mut sum = seen[nth];
        if sum.seen < TOUCHES_MIN {
            let near = nth.saturating_sub(NEIGHBOURS as usize)..blocks.len();
            let near = near.take_while(|&other| block_of(&blocks[other][0]) <= own + NEIGHBOURS);
            for other in near.filter(|&other| {
                other != nth && block_of(&blocks[other][0]).abs_diff(own) <= NEIGHBOURS
            }) {
                sum.seen += seen[other].seen;
                sum.together += seen[other].together;
            }
        }
        let last = first + block.len();
        if sum.is_gone_over() {
            let continues = groups
                .last()
                .is_some_and(|group| group.1 == first && block_of(&places[first - 1]) + 1 == own);
            match groups.last_mut().filter(|_| continues) {
                Some(group) => group.1 = last,
                None => groups.push((first, last)),
            }
        }
        first = last;
    }
    groups
}

/// Of touches of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Together {
    /// Those at which a neighbour was watched.
    seen: u32,
    /// Those of them that the neighbour was touched with.
    together: u32,
}

impl Together {
    fn is_gone_over(self) -> bool {
        self.seen >= TOUCHES_MIN && f64::from(self.together) >= TOGETHER_MIN * f64::from(self.seen)
    }
}

/// Do the pages of a block follow one another, whenever it can be seen?
fn together(block: &[Place], intervals: &[Interval]) -> Together {
    let of = |place: &Place| &intervals[place.1.0 as usize..place.1.1 as usize];
    let mut found = Together::default();
    for pair in block.windows(2) {
        for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let touches = of(one).iter().filter(|interval| interval.is_touched());
            for touch in touches {
                let others = of(other);
                let next = others.partition_point(|interval| interval.to_us < touch.to_us);
                let Some(next) = others.get(next).filter(|next| next.is_watch()) else { continue };
                if next.from_us < touch.to_us {
                    found.seen += 1;
                    let after_us = (next.to_us - touch.to_us) as f64;
                    let within_us = (next.to_us - next.from_us) as f64 * TOGETHER_SHARE;
                    found.together += u32::from(next.is_touched() && after_us <= within_us);
                }
            }
        }
    }
    found
}

/// A touch of a page.
#[derive(Clone, Copy, Debug)]
struct Touch {
    at_us: u64,
    /// The page's place among those that are gone over together, from 0 to 1.
    place: f64,
}

/// All touches, in the order of time.
fn touches(pages: &[Place], intervals: &[Interval]) -> Vec<Touch> {
    let mut touches: Vec<Touch> = Vec::new();
    for (nth, &(_, (start, end))) in pages.iter().enumerate() {
        let place = nth as f64 / pages.len() as f64;
        let touched = intervals[start as usize..end as usize].iter();
        let touched = touched.filter(|interval| interval.is_touched());
        touches.extend(touched.map(|interval| Touch { at_us: interval.to_us, place }));
    }
    touches.sort_by_key(|touch| touch.at_us);
    touches
}

/// Passes that follow one another, in the direction that fits better.
fn long_passes(touches: &[Touch], epochs: &Epochs, end_us: u64) -> Sweep {
    let back: Vec<Touch> =
        touches.iter().map(|touch| Touch { place: 1.0 - touch.place, ..*touch }).collect();
    let (forwards, misfit) = followed(touches, epochs, end_us);
    let (backwards, misfit_back) = followed(&back, epochs, end_us);
    if misfit <= misfit_back { forwards } else { backwards }
}

/// Passes that follow one another, and by how much the touches come at other times than they would
/// at an even pace, in passes.
fn followed(touches: &[Touch], epochs: &Epochs, end_us: u64) -> (Sweep, f64) {
    let mut sweep = Sweep::default();
    let mut misfit = 0.0;
    let mut last: Option<(Touch, f64)> = None;
    for (nth, touch) in touches.iter().enumerate() {
        if is_ahead(touch, &touches[nth + 1..], epochs) {
            // As much as at no pace at all, in the mean.
            misfit += 0.25;
            continue;
        }
        let Some((before, done)) = last else {
            // As it would have come there from the beginning.
            let early = touch.at_us as f64 / epochs.period_us(touch.at_us / 2);
            let done = early.ceil() + touch.place;
            sweep.push(0, (done - early).max(0.0));
            sweep.push(touch.at_us, done);
            last = Some((*touch, done));
            continue;
        };
        let expected = epochs.passes(before.at_us, touch.at_us);
        let farther = (touch.place - before.place).rem_euclid(1.0);
        let more = farther + (expected - farther).round();
        misfit += (more - expected).abs();
        if more > 0.0 {
            sweep.push(touch.at_us, done + more);
            last = Some((*touch, done + more));
        }
    }
    if let Some((touch, done)) = last.filter(|(touch, _)| touch.at_us < end_us) {
        sweep.push(end_us, done + epochs.passes(touch.at_us, end_us));
    }
    (sweep, misfit)
}

/// Whether a touch is of a page that the pass comes to later, by what follows it.
fn is_ahead(touch: &Touch, following: &[Touch], epochs: &Epochs) -> bool {
    let soon_us = (epochs.period_us(touch.at_us) * SOON_SHARE) as u64;
    let soon = following.iter().take(FOLLOWING);
    let soon = soon.take_while(|other| other.at_us - touch.at_us < soon_us);
    let (mut count, mut behind) = (0, 0);
    for other in soon {
        count += 1;
        behind += usize::from((other.place - touch.place).rem_euclid(1.0) > 0.5);
    }
    2 * behind > count
}

/// Passes that are short and far apart; `None` where touches do not come in groups.
fn short_passes(touches: &[Touch], epochs: &Epochs, end_us: u64) -> Option<Sweep> {
    let is_same = |one: &Touch, other: &Touch| {
        let apart_us = (other.at_us - one.at_us) as f64;
        apart_us <= epochs.period_us(one.at_us) * APART_SHARE
    };
    let mut passes: Vec<&[Touch]> = touches.chunk_by(is_same).collect();
    // A few pages are accessed for another reason.
    let mut counts: Vec<usize> = passes.iter().map(|pass| pass.len()).collect();
    counts.sort_unstable();
    let usual = counts.get(counts.len() / 2)?;
    passes.retain(|pass| pass.len() * FEW_SHARE > *usual);
    let bounds = |pass: &[Touch]| Some((pass.first()?.at_us, pass.last()?.at_us));
    let took_us: u64 = passes.iter().filter_map(|pass| bounds(pass)).map(|at| at.1 - at.0).sum();
    let (first, last) = (passes.first()?, passes.last()?);
    let all_us = bounds(last)?.1 - bounds(first)?.0;
    let is_short = touches.len() >= SHORT_TOUCHES_MIN * passes.len()
        && took_us as f64 <= SHORT_SHARE * all_us as f64;
    if !is_short {
        return None;
    }
    let mut sweep = Sweep::default();
    let began_us: Vec<u64> = passes.iter().map(|pass| pass[0].at_us).collect();
    let mut before: Option<(u64, u64)> = None;
    for (nth, pass) in passes.iter().enumerate() {
        let (from_us, to_us) = bounds(pass)?;
        if let Some(before) = before {
            let apart_us = (from_us - before.0) as f64;
            let count = (apart_us / usual_us(&began_us, nth)?).round().max(1.0);
            sweep.add_unseen(before, count as u64 - 1, apart_us / count);
        }
        sweep.add(from_us, to_us, pass);
        before = Some((from_us, to_us));
    }
    let usual_us = usual_us(&began_us, passes.len())?;
    let count = (end_us - before?.0) as f64 / usual_us;
    sweep.add_unseen(before?, count as u64, usual_us);
    Some(sweep)
}

/// How far apart passes usually are around one of them: nearly all of them are seen.
fn usual_us(began_us: &[u64], nth: usize) -> Option<f64> {
    let first = nth.saturating_sub(AROUND);
    let around = &began_us[first..(nth + AROUND).min(began_us.len())];
    let mut apart_us: Vec<u64> = around.windows(2).map(|pair| pair[1] - pair[0]).collect();
    apart_us.sort_unstable();
    Some(*apart_us.get(apart_us.len() / 2)?.max(&1) as f64)
}

/// Of the watches that end in a part of the run.
#[derive(Clone, Debug, Default)]
struct Watches {
    /// How long those lasted that a touch has ended.
    touched_us: Vec<f64>,
    /// Of all watches, touched or not.
    watched_us: f64,
}

impl Watches {
    fn add(&mut self, other: &Watches) {
        self.touched_us.extend(&other.touched_us);
        self.watched_us += other.watched_us;
    }

    /// From pass to pass, by how long watches last.
    fn period_us(&self) -> f64 {
        if self.touched_us.is_empty() {
            return f64::INFINITY;
        }
        let count = self.touched_us.len() as f64;
        let mean = self.touched_us.iter().sum::<f64>() / count;
        let squares: f64 = self.touched_us.iter().map(|watched_us| watched_us.powi(2)).sum();
        let variation = (squares / count / (mean * mean).max(f64::MIN_POSITIVE) - 1.0).max(0.0);
        let of_passes = ((variation - 1.0 / 3.0) * 1.5).clamp(0.0, 1.0);
        (2.0 * (self.watched_us / count) / (1.0 + of_passes)).max(1.0)
    }
}

/// How far apart passes are, over the run.
struct Epochs {
    length_us: f64,
    periods_us: [f64; EPOCHS],
}

impl Epochs {
    fn of(pages: &[Place], intervals: &[Interval], end_us: u64) -> Epochs {
        let length_us = (end_us as f64 / EPOCHS as f64).max(1.0);
        let mut watches: [Watches; EPOCHS] = std::array::from_fn(|_| Watches::default());
        let all = pages.iter().flat_map(|&(_, (start, end))| start as usize..end as usize);
        for interval in all.map(|nth| &intervals[nth]) {
            let Kind::Watched { is_touched } = interval.kind else { continue };
            let watched_us = (interval.to_us - interval.from_us) as f64;
            let of_epoch = &mut watches[epoch(interval.to_us, length_us)];
            of_epoch.watched_us += watched_us;
            if is_touched {
                of_epoch.touched_us.push(watched_us);
            }
        }
        // Where too little was seen, with what is around it.
        let periods_us = std::array::from_fn(|nth: usize| {
            let mut sum = watches[nth].clone();
            for distance in 1..EPOCHS {
                if sum.touched_us.len() >= EPOCH_TOUCHES_MIN {
                    break;
                }
                for other in [nth.checked_sub(distance), Some(nth + distance)] {
                    if let Some(other) = other.and_then(|other| watches.get(other)) {
                        sum.add(other);
                    }
                }
            }
            sum.period_us()
        });
        Epochs { length_us, periods_us }
    }

    fn period_us(&self, at_us: u64) -> f64 {
        self.periods_us[epoch(at_us, self.length_us)]
    }

    /// How many passes there are from one time to another.
    fn passes(&self, from_us: u64, to_us: u64) -> f64 {
        let (from, to) = (epoch(from_us, self.length_us), epoch(to_us, self.length_us));
        let border = |nth: usize| nth as f64 * self.length_us;
        let within = |nth: usize| {
            let begin = (from_us as f64).max(border(nth));
            let end = if nth == to { to_us as f64 } else { border(nth + 1) };
            (end - begin).max(0.0) / self.periods_us[nth]
        };
        (from..=to).map(within).sum()
    }
}

fn epoch(at_us: u64, length_us: f64) -> usize {
    ((at_us as f64 / length_us) as usize).min(EPOCHS - 1)
}

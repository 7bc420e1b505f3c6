//! Pages that are gone over together, time after time: loops over arrays, streams, scans, and what
//! collects garbage.
//!
//! Drawn each by itself, the accesses of such pages would be as many and in no order, and a
//! simulation would see no stream. But that neighbours are touched together shows, whenever both
//! are watched. Where it does, and for most touches, each touch says where a pass was at that
//! time, and all touches together when each pass came to each page ([`Sweep`]):
//!
//! - Passes are short, and far apart: a scan now and then, or a collector. Touches come in groups,
//!   whose distance is that of passes. A pass goes over the pages in their order, against it, or,
//!   where touches show neither, in an order of its own in which only blocks stay together.
//! - Passes follow one another, each takes all the time until the next: a loop over an array. From
//!   one touch to the next the pass has come as much farther as their places differ, and by as many
//!   whole passes as the time between them says. Pages of which touches fit neither direction are
//!   left as they are.
//!
//! How far apart passes are that follow one another follows from how long watches last: a watch
//! that begins at any moment ends with the next pass. That is half of the distance where passes
//! come at a steady distance `P`, all of it where they come at random. With the coefficients of
//! variation of watches, `V`, and of passes, `C`:
//!
//! ```text
//! mean watch = P (1 + C^2) / 2       V^2 = 1/3 where C = 0,  1 where C = 1
//! ```
//!
//! While a page of them is watched and not touched, no pass comes to the end.

use super::sweep::Sweep;
use super::timeline::{self, Interval, Kind};
use crate::{BLOCK_PAGES, PageNumber, hash};

/// Neighbours are touched together when the one follows the other within this part of the time for
/// which it was watched. Of two pages that were taken together and are accessed at random
/// that is one pair in fifteen, however often they are accessed at the moment.
const TOGETHER_SHARE: f64 = 1.0 / 8.0;
/// So many touches of a block, or of it and its neighbours, must show whether a watched neighbour
/// follows, and in so large a part of them it must.
const TOUCHES_MIN: u32 = 3;
const TOGETHER_MIN: f64 = 0.5;
/// Blocks on each side that are asked where a block has too few touches.
const NEIGHBOURS: usize = 2;
/// The run is divided into so many parts, each with passes of its own distance, where as many
/// touches were seen in it.
const EPOCHS: usize = 32;
const EPOCH_TOUCHES_MIN: usize = 16;
/// Touches that are farther apart than this part of the distance of passes are of different ones,
/// where passes are short. As many touches must be in a pass on average, and all passes together
/// must take as small a part of the time.
const APART_SHARE: f64 = 1.0 / 8.0;
const SHORT_TOUCHES_MIN: usize = 4;
const SHORT_SHARE: f64 = 0.25;
/// The order of a pass is that of the pages, or the reverse, if this part of its successive touches
/// follows it.
const IN_ORDER: f64 = 0.75;
/// How far touches of passes that follow one another may be from where they would be at an even
/// pace, in passes, on average. At random it is a quarter.
const MISFIT_MAX: f64 = 0.15;
/// So many touches must show the order of passes. Of fewer it is thought to be that of the pages.
const PAIRS_MIN: u32 = 8;
/// Short passes are about as far apart as watches say. Otherwise touches come in groups by chance,
/// or because the agent watches pages in groups.
const TIMES_APART: std::ops::RangeInclusive<f64> = 0.6..=2.0;
/// Of pages of a block in a pass in no order: how far apart they are, in passes.
const NEIGHBOUR: f64 = 1e-7;
/// What has as small a part of the touches of the usual pass is none.
const FEW_SHARE: usize = 8;
/// Passes on each side of one by which it is known how far apart they are there.
const AROUND: usize = 5;
/// A page that is accessed for another reason is touched far from where the pass is: so many
/// touches that follow within this part of the distance of passes tell.
const FOLLOWING: usize = 8;
const SOON_SHARE: f64 = 0.25;

/// A page and its intervals.
pub(super) type Place = (PageNumber, (u32, u32));

/// Finds pages that are gone over together, and says so in their intervals. `places`: in the order
/// of pages.
pub(super) fn find(places: &[Place], intervals: &mut [Interval], end_us: u64) -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    for (first, last) in groups(places, intervals) {
        let pages = &places[first..last];
        let seen = Seen::of(pages, intervals, end_us);
        let found = seen.short_passes().or_else(|| seen.long_passes());
        let Some((sweep, order)) = found else { continue };
        for (nth, &(page, (start, end))) in pages.iter().enumerate() {
            let place = order.place(among(nth, pages.len()), page);
            let mut touched_us = None;
            for interval in &mut intervals[start as usize..end as usize] {
                if interval.is_touched() {
                    touched_us = Some(interval.to_us);
                }
                if matches!(interval.kind, Kind::Unwatched { .. }) {
                    // The touch was the pass.
                    let rest_us = (seen.epochs.period_us(interval.from_us) / 2.0) as u64;
                    let from_us = touched_us.map_or(0, |touched| touched.saturating_add(rest_us));
                    interval.kind = Kind::Passes { sweep: sweeps.len() as u32, place, from_us };
                }
            }
        }
        sweeps.push(sweep);
    }
    sweeps
}

/// The place of a page among so many, between 0 and 1.
fn among(nth: usize, pages: usize) -> f64 {
    (nth as f64 + 0.5) / pages as f64
}

/// In which order a pass comes to pages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Forwards,
    Backwards,
    /// In none that shows: a collector that follows references, for example.
    Scattered,
}

impl Order {
    /// The place in a pass of a page that has such a place among all pages.
    fn place(self, among: f64, page: PageNumber) -> f64 {
        match self {
            Order::Scattered => {
                let within = (page % BLOCK_PAGES) as f64 * NEIGHBOUR;
                timeline::part(hash(page / BLOCK_PAGES)).mul_add(0.99, 0.005) + within
            }
            _ => self.along(among),
        }
    }

    /// The same of an order that follows that of the pages.
    fn along(self, among: f64) -> f64 {
        if self == Order::Backwards { 1.0 - among } else { among }
    }
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
            let near = nth.saturating_sub(NEIGHBOURS)..(nth + NEIGHBOURS + 1).min(blocks.len());
            for other in near.filter(|&other| other != nth) {
                if block_of(&blocks[other][0]).abs_diff(own) > NEIGHBOURS as u64 {
                    continue;
                }
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
pub(super) struct Touch {
    pub(super) at_us: u64,
    /// The page's place among those that are gone over together, between 0 and 1.
    pub(super) place: f64,
    /// The block that it is in.
    pub(super) block: u64,
}

/// What was seen of pages that are gone over together.
struct Seen {
    /// All touches, in the order of time.
    touches: Vec<Touch>,
    watched: Watched,
    epochs: Epochs,
    end_us: u64,
}

impl Seen {
    fn of(pages: &[Place], intervals: &[Interval], end_us: u64) -> Seen {
        let mut touches: Vec<Touch> = Vec::new();
        let mut watches: Vec<(u64, u64)> = Vec::new();
        for (nth, &(page, (start, end))) in pages.iter().enumerate() {
            let (place, block) = (among(nth, pages.len()), page / BLOCK_PAGES);
            let all = &intervals[start as usize..end as usize];
            for &Interval { from_us, to_us, .. } in all.iter().filter(|one| one.is_watch()) {
                watches.push((from_us, to_us));
            }
            let touched = all.iter().filter(|interval| interval.is_touched());
            touches.extend(touched.map(|one| Touch { at_us: one.to_us, place, block }));
        }
        touches.sort_by_key(|touch| touch.at_us);
        let epochs = Epochs::of(pages, intervals, end_us);
        Seen { touches, watched: Watched::of(watches), epochs, end_us }
    }

    /// Passes that follow one another, in the direction that fits better. `None`: too little was
    /// seen, or it fits neither.
    fn long_passes(&self) -> Option<(Sweep, Order)> {
        if self.touches.len() < TOUCHES_MIN as usize {
            return None;
        }
        let [forwards, backwards] = [Order::Forwards, Order::Backwards].map(|order| {
            let (sweep, misfit) = self.followed(order);
            (misfit, sweep, order)
        });
        let (misfit, sweep, order) = if forwards.0 <= backwards.0 { forwards } else { backwards };
        (misfit <= MISFIT_MAX * self.touches.len() as f64).then_some((sweep, order))
    }

    /// Passes that follow one another, and by how much the touches come at other times than they
    /// would at an even pace, in passes.
    fn followed(&self, order: Order) -> (Sweep, f64) {
        let Seen { epochs, end_us, .. } = self;
        let touches: Vec<Touch> = self
            .touches
            .iter()
            .map(|touch| Touch { place: order.along(touch.place), ..*touch })
            .collect();
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
            let expected = self.passes(before.at_us, touch.at_us);
            let farther = (touch.place - before.place).rem_euclid(1.0);
            let more = farther + (expected - farther).round();
            misfit += (more - expected).abs();
            if more > 0.0 {
                sweep.push(touch.at_us, done + more);
                last = Some((*touch, done + more));
            }
        }
        if let Some((touch, done)) = last.filter(|(touch, _)| touch.at_us < *end_us) {
            sweep.push(*end_us, done + self.passes(touch.at_us, *end_us));
        }
        (sweep, misfit)
    }

    /// How many passes there were from one time to another. At most one, if a page was watched all
    /// the time and not touched.
    fn passes(&self, from_us: u64, to_us: u64) -> f64 {
        let passes = self.epochs.passes(from_us, to_us);
        if self.watched.covers(from_us, to_us) { passes.min(1.0) } else { passes }
    }

    /// Passes that are short and far apart; `None` where touches do not come in groups.
    fn short_passes(&self) -> Option<(Sweep, Order)> {
        let Seen { touches, epochs, end_us, .. } = self;
        let is_same = |one: &Touch, other: &Touch| {
            let apart_us = (other.at_us - one.at_us) as f64;
            apart_us <= epochs.period_us(one.at_us) * APART_SHARE
        };
        let mut passes: Vec<&[Touch]> = touches.chunk_by(is_same).collect();
        // A few pages are accessed for another reason.
        let mut counts: Vec<usize> = passes.iter().map(|pass| pass.len()).collect();
        counts.sort_unstable();
        let usual = *counts.get(counts.len() / 2)?;
        passes.retain(|pass| pass.len() * FEW_SHARE > usual);
        let bounds: Vec<(u64, u64)> =
            passes.iter().map(|pass| (pass[0].at_us, pass[pass.len() - 1].at_us)).collect();
        let took_us: u64 = bounds.iter().map(|(from_us, to_us)| to_us - from_us).sum();
        let (&first, &last) = (bounds.first()?, bounds.last()?);
        let is_short = touches.len() >= SHORT_TOUCHES_MIN * passes.len()
            && took_us as f64 <= SHORT_SHARE * (last.1 - first.0) as f64;
        let usual_us: Vec<f64> =
            (0..=bounds.len()).map(|nth| usual_us(&bounds, nth)).collect::<Option<_>>()?;
        let middle = bounds.len() / 2;
        let of_said = usual_us[middle] / epochs.period_us(bounds[middle].0);
        if !is_short || !TIMES_APART.contains(&of_said) {
            return None;
        }
        let order = order_of(&passes);
        let was_none = |from_us, to_us| self.watched.covers(from_us, to_us);
        let mut sweep = Sweep::default();
        let early = (first.0 as f64 / usual_us[0]).floor();
        let from_us = first.0.saturating_sub((early * usual_us[0]) as u64);
        sweep.add_unseen(from_us, first.1 - first.0, early as u64, usual_us[0], was_none);
        let mut before: Option<(u64, u64)> = None;
        for (nth, (pass, &(from_us, to_us))) in passes.iter().zip(&bounds).enumerate() {
            if let Some((before_us, before_to_us)) = before {
                let all_us = (from_us - before_us) as f64;
                let count = (all_us / usual_us[nth]).round().max(1.0);
                let (apart_us, took_us) = (all_us / count, before_to_us - before_us);
                let next_us = before_us.saturating_add(apart_us as u64);
                sweep.add_unseen(next_us, took_us, count as u64 - 1, apart_us, was_none);
            }
            let shown = pass.iter().filter(|_| order != Order::Scattered);
            let shown = shown.map(|touch| Touch { place: order.along(touch.place), ..*touch });
            sweep.add(from_us, to_us, shown);
            before = Some((from_us, to_us));
        }
        let apart_us = usual_us[bounds.len()];
        let count = (end_us.saturating_sub(last.0) as f64 / apart_us) as u64;
        let next_us = last.0.saturating_add(apart_us as u64);
        sweep.add_unseen(next_us, last.1 - last.0, count, apart_us, was_none);
        Some((sweep, order))
    }
}

/// When some page was watched and not touched.
struct Watched {
    /// Beginnings of watches, in order, and the latest end of those that have begun.
    until_us: Vec<(u64, u64)>,
}

impl Watched {
    fn of(mut watches: Vec<(u64, u64)>) -> Watched {
        watches.sort_unstable();
        let mut latest_us = 0;
        for (_, to_us) in &mut watches {
            latest_us = latest_us.max(*to_us);
            *to_us = latest_us;
        }
        Watched { until_us: watches }
    }

    /// Whether a watch began before and ended behind.
    fn covers(&self, from_us: u64, to_us: u64) -> bool {
        let begun = self.until_us.partition_point(|watch| watch.0 < from_us);
        begun.checked_sub(1).is_some_and(|last| self.until_us[last].1 > to_us)
    }
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

/// The order of touches within passes. Neighbours follow each other in any.
fn order_of(passes: &[&[Touch]]) -> Order {
    let (mut count, mut up) = (0u32, 0u32);
    for pair in passes.iter().flat_map(|pass| pass.windows(2)) {
        if pair[0].block != pair[1].block {
            count += 1;
            up += u32::from(pair[0].place < pair[1].place);
        }
    }
    match f64::from(up) / f64::from(count) {
        _ if count < PAIRS_MIN => Order::Forwards,
        up if up >= IN_ORDER => Order::Forwards,
        up if up <= 1.0 - IN_ORDER => Order::Backwards,
        _ => Order::Scattered,
    }
}

/// How far apart passes usually are around one of them: nearly all of them are seen.
fn usual_us(passes: &[(u64, u64)], nth: usize) -> Option<f64> {
    let around = &passes[nth.saturating_sub(AROUND)..(nth + AROUND).min(passes.len())];
    let mut apart_us: Vec<u64> = around.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    apart_us.sort_unstable();
    Some(*apart_us.get(apart_us.len() / 2)?.max(&1) as f64)
}

/// Of the watches that end in a part of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Watches {
    /// Of those that a touch has ended: how many, how long they lasted, and the squares of that.
    touches: usize,
    touched_us: f64,
    squares: f64,
    /// How long all lasted, touched or not.
    watched_us: f64,
}

impl Watches {
    fn add(&mut self, other: Watches) {
        self.touches += other.touches;
        self.touched_us += other.touched_us;
        self.squares += other.squares;
        self.watched_us += other.watched_us;
    }

    /// From pass to pass, by how long watches last.
    fn period_us(&self) -> f64 {
        if self.touches == 0 {
            return f64::INFINITY;
        }
        let count = self.touches as f64;
        let mean = self.touched_us / count;
        let squares = self.squares / count / (mean * mean).max(f64::MIN_POSITIVE);
        let of_passes = ((squares - 1.0 - 1.0 / 3.0) * 1.5).clamp(0.0, 1.0);
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
                of_epoch.touches += 1;
                of_epoch.touched_us += watched_us;
                of_epoch.squares += watched_us * watched_us;
            }
        }
        // Where too little was seen, with what is around it.
        let periods_us = std::array::from_fn(|nth: usize| {
            let mut sum = watches[nth];
            for distance in 1..EPOCHS {
                if sum.touches >= EPOCH_TOUCHES_MIN {
                    break;
                }
                for other in [nth.checked_sub(distance), Some(nth + distance)] {
                    if let Some(&other) = other.and_then(|other| watches.get(other)) {
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

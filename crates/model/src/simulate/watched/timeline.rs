//! A page's events as intervals of which is known what can happen in them.

use super::{Event, What};
use crate::hash;

/// Watches on each side of an interval that say how often the page is accessed in it.
const WATCHES: usize = 2;
/// Touches that are added to those that were seen.
const TOUCHES_LEAST: f64 = 0.5;
/// What is usual counts as so many times as much as was watched at most.
const USUAL_TIMES: f64 = 4.0;
/// No accesses follow each other faster, as far as anything here is concerned: a fault takes as
/// long.
const MEAN_US_MIN: f64 = 20.0;

/// A time for which one thing is known of a page. Begins after `from_us`, ends with `to_us`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub from_us: u64,
    pub to_us: u64,
    pub kind: Kind,
}

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// No access before the end.
    Watched {
        /// At the end there is one.
        is_touched: bool,
    },
    /// Perhaps accesses, so far apart on average: as was seen before it, and behind it.
    Unwatched { before_us: f64, behind_us: f64 },
    /// Accesses so far apart: see [`super::passes`]. `phase`: all that is known is when in a pass.
    /// `None`: they are counted from the beginning of the interval.
    Passes { period_us: f64, phase: Option<f64> },
}

/// All that is known of a page.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Timeline {
    /// In the order of time. What lies between two is not in the page's life, or nothing happens
    /// there.
    pub intervals: Vec<Interval>,
    /// From when until when the page exists.
    pub lives: Vec<(u64, Option<u64>)>,
    usual_us: Option<f64>,
}

/// Of watches: how long they were together, and how many ended with a touch.
#[derive(Clone, Copy, Debug)]
struct Watch {
    watched_us: u64,
    is_touched: bool,
}

/// From the events of one page, in the order of time. `usual_us`: how long its block is watched
/// until it is touched. `last_us`: the last event of all pages.
pub(super) fn of_page(
    events: impl Iterator<Item = Event>,
    usual_us: Option<f64>,
    last_us: u64,
) -> Timeline {
    let mut timeline = Timeline { usual_us, ..Timeline::default() };
    let mut life: Vec<Event> = Vec::new();
    for event in events {
        match event.what {
            What::Gone => {
                timeline.close(&life, Some(event.time_us), last_us);
                life.clear();
            }
            What::Appeared if !life.is_empty() => {
                // It was gone in between, unseen.
                timeline.close(&life, Some(event.time_us), last_us);
                life = vec![event];
            }
            _ => life.push(event),
        }
    }
    timeline.close(&life, None, last_us);
    timeline
}

impl Timeline {
    /// Adds a life of the page.
    fn close(&mut self, life: &[Event], gone_us: Option<u64>, last_us: u64) {
        let Some(first) = life.first() else { return };
        // Not before it was given back last.
        let ended_us = self.lives.last().and_then(|life| life.1).unwrap_or(0);
        let began_us = began_us(first).max(ended_us);
        self.lives.push((began_us, gone_us));
        let watches: Vec<Watch> = life.iter().filter_map(|event| watch(event.what)).collect();
        let mut at_us = began_us;
        let mut seen = 0;
        for event in life {
            let end_us = event.time_us;
            if let Some(Watch { watched_us, is_touched }) = watch(event.what) {
                let start_us = end_us.saturating_sub(watched_us).max(at_us);
                self.push_unwatched(at_us, start_us, &watches, seen);
                self.push(start_us, end_us, Kind::Watched { is_touched });
                seen += 1;
            } else if matches!(event.what, What::Accessed) {
                self.push(at_us, end_us, Kind::Watched { is_touched: true });
            }
            at_us = at_us.max(end_us);
        }
        self.close_last(life, &watches, at_us, gone_us.unwrap_or(last_us));
    }

    /// Behind the last event: a page that was touched is watched again after a while, as long as
    /// the time before, and was not touched since then.
    fn close_last(&mut self, life: &[Event], watches: &[Watch], at_us: u64, end_us: u64) {
        let Some(last) = life.last() else { return };
        let unwatched_us = match last.what {
            What::Accessed | What::Appeared | What::Gone | What::Ended => 0,
            What::Untouched { .. } => end_us.saturating_sub(at_us),
            What::Touched { watched_us } => {
                let before_us = life.len().checked_sub(2).map_or(at_us, |nth| life[nth].time_us);
                last.time_us.saturating_sub(watched_us).saturating_sub(before_us)
            }
        };
        let end_us = end_us.min(at_us.saturating_add(unwatched_us));
        self.push_unwatched(at_us, end_us, watches, watches.len());
    }

    /// `seen`: so many of the watches were before this.
    fn push_unwatched(&mut self, from_us: u64, to_us: u64, watches: &[Watch], seen: usize) {
        let mean_us = |watches: &[Watch]| mean_us(watches, self.usual_us);
        let before = mean_us(&watches[seen.saturating_sub(WATCHES)..seen]);
        let behind = mean_us(&watches[seen..watches.len().min(seen + WATCHES)]);
        let known = before.or(behind);
        if let Some(known) = known {
            let kind = Kind::Unwatched {
                before_us: before.unwrap_or(known),
                behind_us: behind.unwrap_or(known),
            };
            self.push(from_us, to_us, kind);
        }
    }

    fn push(&mut self, from_us: u64, to_us: u64, kind: Kind) {
        let touches_at_once = kind == Kind::Watched { is_touched: true };
        if to_us > from_us
            || touches_at_once && self.lives.last().is_some_and(|life| life.0 < to_us)
        {
            self.intervals.push(Interval { from_us, to_us, kind });
        }
    }
}

/// When a life began: of a page that was there before it was first seen, as early as it was
/// watched.
fn began_us(first: &Event) -> u64 {
    first.time_us - watch(first.what).map_or(0, |watch| watch.watched_us.min(first.time_us))
}

fn watch(what: What) -> Option<Watch> {
    match what {
        What::Touched { watched_us } => Some(Watch { watched_us, is_touched: true }),
        What::Untouched { watched_us } => Some(Watch { watched_us, is_touched: false }),
        What::Accessed | What::Appeared | What::Gone | What::Ended => None,
    }
}

/// The time until a touch that is usual for some pages. `None` without a watch.
pub(super) fn usual_us(events: impl Iterator<Item = Event>) -> Option<f64> {
    let (mut watched_us, mut touches) = (0.0, 0.0);
    for watch in events.filter_map(|event| watch(event.what)) {
        watched_us += watch.watched_us as f64;
        touches += f64::from(watch.is_touched);
    }
    (watched_us > 0.0).then(|| watched_us / f64::max(touches, TOUCHES_LEAST))
}

/// The mean time until an access. Of a few watches that would be all time that was watched by the
/// touches, but the inverse of that, which is how often pages are accessed, is too great on
/// average: twice as great for two. With one more watch, of the usual length, and half a touch it
/// is right for any number of them; as long as what is usual is no more than some times as long as
/// these: the page may be used in another way now. `None` without a watch.
fn mean_us(watches: &[Watch], usual_us: Option<f64>) -> Option<f64> {
    if watches.is_empty() {
        return None;
    }
    let watched: f64 = watches.iter().map(|watch| watch.watched_us as f64).sum();
    let touches = watches.iter().filter(|watch| watch.is_touched).count() as f64;
    let usual = usual_us.unwrap_or(0.0).min(USUAL_TIMES * watched);
    Some(((watched + usual) / (touches + TOUCHES_LEAST)).max(MEAN_US_MIN))
}

impl Interval {
    pub(super) fn is_watch(&self) -> bool {
        matches!(self.kind, Kind::Watched { .. })
    }

    pub(super) fn is_touched(&self) -> bool {
        self.kind == Kind::Watched { is_touched: true }
    }

    /// The first pass after `after_us`, where there is one in this interval.
    pub(super) fn passed(&self, after_us: u64, period_us: f64, phase: Option<f64>) -> Option<u64> {
        let first = phase.map_or(self.from_us as f64, |phase| phase * period_us);
        let passed = ((after_us as f64 - first) / period_us).floor() + 1.0;
        let time = first + (passed * period_us).ceil();
        let time_us = (time as u64).max(after_us + 1);
        (time < self.to_us as f64 && time_us < self.to_us).then_some(time_us)
    }

    /// The first access after `after_us`, where there is one in this interval.
    pub(super) fn drawn(
        &self,
        seed: u64,
        after_us: u64,
        before_us: f64,
        behind_us: f64,
    ) -> Option<u64> {
        // The same moment for all draws of an interval.
        let length = (self.to_us - self.from_us) as f64;
        let change_us = self.from_us as f64 + part(hash(seed_of(self))) * length;
        let after = after_us as f64;
        let draw = -(1.0 - part(seed)).ln();
        let until_change = (change_us - after).max(0.0);
        // What is left of the draw where the mean changes on the way.
        let time = if draw * before_us <= until_change {
            after + draw * before_us
        } else {
            after + until_change + (draw - until_change / before_us) * behind_us
        };
        let time_us = time.ceil().max(after + 1.0);
        (time_us < self.to_us as f64).then_some(time_us as u64)
    }
}

fn seed_of(interval: &Interval) -> u64 {
    interval.from_us.rotate_left(32) ^ interval.to_us
}

/// A number from 0 to 1, without 1, from bits.
fn part(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

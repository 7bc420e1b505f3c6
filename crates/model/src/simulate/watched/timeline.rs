//! A page's events as intervals of which is known what can happen in them.

use super::{Event, What};

/// An interval in which nobody watches a page is divided into parts, and the rate of accesses is
/// looked up for each. This is the least length of a part.
const PART_US: u64 = 100_000;
/// The greatest number of parts of all pages, not counting the first part of each interval.
const PARTS_MAX: u128 = 1 << 20;

/// The length of a part, for a run that has this many pages and ends at `end_us`.
pub(super) fn part_us(pages: usize, end_us: u64) -> u64 {
    let most = u128::from(end_us) * pages as u128 / PARTS_MAX;
    PART_US.max(u64::try_from(most).unwrap_or(u64::MAX))
}

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
    /// Perhaps accesses, so far apart on average.
    Unwatched { mean_us: f64 },
    /// Accesses by passes ([`super::passes`]) at this place, and none before `from_us`.
    Passes { sweep: u32, place: f64, from_us: u64 },
}

/// All that is known of a page.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Timeline {
    /// In the order of time. What lies between two is not in the page's life, or nothing happens
    /// there.
    pub intervals: Vec<Interval>,
    /// From when until when the page exists.
    pub lives: Vec<(u64, Option<u64>)>,
}

/// A page was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    pub end_us: u64,
    pub watched_us: u64,
    /// A touch has ended it.
    pub is_touched: bool,
}

impl Watch {
    pub(super) fn began_us(&self) -> u64 {
        self.end_us.saturating_sub(self.watched_us)
    }
}

/// How far apart accesses to the page are on average, at a moment; and for how long that is said.
#[derive(Clone, Copy)]
pub(super) struct MeanAt<'a> {
    pub(super) mean_us: &'a dyn Fn(u64) -> Option<f64>,
    pub(super) part_us: u64,
}

/// From the events of one page, in the order of time. `last_us`: the last event of all pages.
pub(super) fn of_page(
    events: impl Iterator<Item = Event>,
    mean_at: MeanAt<'_>,
    last_us: u64,
) -> Timeline {
    let mut timeline = Timeline::default();
    let mut life: Vec<Event> = Vec::new();
    for event in events {
        match event.what {
            What::Gone => {
                timeline.close(&life, Some(event.time_us), last_us, mean_at);
                life.clear();
            }
            What::Appeared if !life.is_empty() => {
                // It was gone in between, unseen.
                timeline.close(&life, Some(event.time_us), last_us, mean_at);
                life = vec![event];
            }
            _ => life.push(event),
        }
    }
    timeline.close(&life, None, last_us, mean_at);
    timeline
}

impl Timeline {
    /// Adds a life of the page.
    fn close(&mut self, life: &[Event], gone_us: Option<u64>, last_us: u64, mean_at: MeanAt<'_>) {
        let Some(first) = life.first() else { return };
        // Not before it was given back last.
        let ended_us = self.lives.last().and_then(|life| life.1).unwrap_or(0);
        let began_us = began_us(first).max(ended_us);
        self.lives.push((began_us, gone_us));
        let mut at_us = began_us;
        for event in life {
            let end_us = event.time_us;
            if let Some(Watch { watched_us, is_touched, .. }) = watch(event) {
                let start_us = end_us.saturating_sub(watched_us).max(at_us);
                self.push_unwatched(at_us, start_us, mean_at);
                self.push(start_us, end_us, Kind::Watched { is_touched });
            } else if matches!(event.what, What::Accessed) {
                self.push(at_us, end_us, Kind::Watched { is_touched: true });
            }
            at_us = at_us.max(end_us);
        }
        // A page that is watched when its process ends has an event that says so: behind the last
        // event nobody watches. Of one whose accesses are all known there is no other.
        if life.iter().all(|event| event.what != What::Accessed) {
            self.push_unwatched(at_us, gone_us.unwrap_or(last_us), mean_at);
        }
    }

    fn push_unwatched(&mut self, from_us: u64, to_us: u64, mean_at: MeanAt<'_>) {
        let length_us = to_us.saturating_sub(from_us);
        let parts = (length_us / mean_at.part_us).max(1);
        let border = |nth| if nth == parts { to_us } else { from_us + length_us / parts * nth };
        for nth in 0..parts {
            let (from_us, to_us) = (border(nth), border(nth + 1));
            if let Some(mean_us) = (mean_at.mean_us)(from_us.midpoint(to_us)) {
                self.push(from_us, to_us, Kind::Unwatched { mean_us });
            }
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
    first.time_us - watch(first).map_or(0, |watch| watch.watched_us.min(first.time_us))
}

pub(super) fn watch(event: &Event) -> Option<Watch> {
    let end_us = event.time_us;
    match event.what {
        What::Touched { watched_us } => Some(Watch { end_us, watched_us, is_touched: true }),
        What::Untouched { watched_us } => Some(Watch { end_us, watched_us, is_touched: false }),
        What::Accessed | What::Appeared | What::Gone | What::Ended => None,
    }
}

impl Interval {
    pub(super) fn is_watch(&self) -> bool {
        matches!(self.kind, Kind::Watched { .. })
    }

    pub(super) fn is_touched(&self) -> bool {
        self.kind == Kind::Watched { is_touched: true }
    }

    /// The first access after `after_us`, where there is one in this interval.
    pub(super) fn drawn(&self, seed: u64, after_us: u64, mean_us: f64) -> Option<u64> {
        let after = after_us as f64;
        let time_us = (after - (1.0 - part(seed)).ln() * mean_us).ceil().max(after + 1.0);
        let is_in = time_us < self.to_us as f64 && time_us as u64 > after_us;
        is_in.then_some(time_us as u64)
    }
}

/// A number from 0 to 1, without 1, from bits.
pub(super) fn part(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

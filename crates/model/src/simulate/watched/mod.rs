//! Pages that were watched now and then, and what is known of their future at any time.
//!
//! A page that is watched is out of the program's memory: its next access shows, and how long it
//! was not accessed before. Then it is left alone for a while, in which it may be accessed unseen.
//! So of each page there are times for which all is known, and others for which it is not:
//!
//! | interval | what is known |
//! |---|---|
//! | from the beginning of a watch to the event that ends it | not accessed; a touch ends it |
//! | from an event to the next watch | perhaps accessed: by chance, as watches say |
//! | from `Gone` to `Appeared` | the page does not exist |
//!
//! In an interval without a watch accesses are drawn: each follows the one before after a time that
//! is distributed exponentially, for that is what the time until a touch says of accesses that do
//! not depend on one another. Its mean is put together from watches of all pages, of those nearby
//! and of the page ([`rates`]). What is drawn depends on the page and the time alone, so it is the
//! same in each simulation. Pages that are gone over together stay together ([`passes`]).

mod passes;
mod places;
mod rates;
mod sweep;
mod timeline;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use self::rates::Rates;
use self::sweep::Sweep;
use self::timeline::{Interval, Kind, MeanAt};
use crate::{BLOCK_PAGES, PROCESS_SHIFT, PageNumber, hash, page_of_process};

/// So many times as many pages as were seen there may have been.
const UNSEEN_MAX: f64 = 4.0;
/// In the number of a page that was given back and has come again.
const AGAIN: PageNumber = 1 << 63;

/// What happened to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It was accessed. All of its accesses are among the events.
    Accessed,
    /// It was accessed, the first time since it is watched. Before that, since the event before, it
    /// may have been accessed unseen.
    Touched {
        /// How long it was watched. Microseconds.
        watched_us: u64,
    },
    /// It was seen to be there, which it was not at the look before: its first access.
    Appeared,
    /// It was given back.
    Gone,
    /// It was not accessed while it was watched, and is not watched any more.
    Untouched {
        /// How long it was watched. Microseconds.
        watched_us: u64,
    },
    /// Its process has ended, and all pages of that are gone.
    Ended,
}

/// What happened to a page, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the beginning of the trace.
    pub time_us: u64,
    /// The page.
    pub page: PageNumber,
    /// What happened.
    pub what: What,
}

impl Event {
    /// Whether the program accessed the page.
    pub fn is_access(self) -> bool {
        matches!(self.what, What::Accessed | What::Touched { .. } | What::Appeared)
    }
}

/// Which pages events are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// One page in this many.
    pub one_in: u64,
    /// Pages that are sampled together: one aligned block of so many of each aligned group of
    /// `one_in` blocks. 1: each page by its hash.
    pub block_pages: u64,
}

impl Sampling {
    /// The page's place in an address space that has the sampled pages alone. Neighbours in a block
    /// stay neighbours, and so do the blocks of neighbouring groups.
    pub fn dense(self, page: PageNumber) -> PageNumber {
        if self.block_pages <= 1 {
            return page;
        }
        let (process, within) = (page >> PROCESS_SHIFT, page & ((1 << PROCESS_SHIFT) - 1));
        let group = within / self.block_pages / self.one_in.max(1);
        page_of_process(process, group * self.block_pages + within % self.block_pages)
    }
}

/// A page's life: when it came to be, and when it was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The page, in the dense address space.
    pub page: PageNumber,
    /// Its first access. Microseconds.
    pub from_us: u64,
    /// `None`: it was there to the end.
    pub to_us: Option<u64>,
}

/// What is known of the sampled pages over time.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    one_in: f64,
    end_us: u64,
    /// Of each page of the dense address space: where its intervals are in `intervals`.
    places: HashMap<PageNumber, (u32, u32)>,
    intervals: Vec<Interval>,
    sweeps: Arc<[Sweep]>,
    /// Of each page of the dense address space: its number in the events.
    names: HashMap<PageNumber, PageNumber>,
    lives: Vec<Life>,
}

impl Activity {
    /// From events in any order. `end_us`: when the watch ended; the last event, if that is later.
    pub fn new(
        events: impl IntoIterator<Item = Event>,
        sampling: Sampling,
        end_us: u64,
    ) -> Activity {
        let mut ended: HashMap<PageNumber, u64> = HashMap::new();
        let mut last_us = 0;
        let mut events: Vec<(PageNumber, Event)> = events
            .into_iter()
            .inspect(|event| last_us = last_us.max(event.time_us))
            .filter(|event| {
                if event.what == What::Ended {
                    ended.insert(event.page >> PROCESS_SHIFT, event.time_us);
                }
                event.what != What::Ended
            })
            .map(|event| (sampling.dense(event.page), event))
            .collect();
        events.sort_by_key(|(page, event)| (*page, event.time_us));
        let mut activity = Activity {
            one_in: sampling.one_in.max(1) as f64,
            end_us: end_us.max(last_us),
            ..Activity::default()
        };
        let watches = events.iter();
        let rates =
            Rates::new(watches.filter_map(|(page, event)| Some((*page, timeline::watch(event)?))));
        let pages = events.chunk_by(|one, other| one.0 == other.0).count();
        let part_us = timeline::part_us(pages, activity.end_us);
        for of_page in events.chunk_by(|one, other| one.0 == other.0) {
            let ended_us = ended.get(&(of_page[0].1.page >> PROCESS_SHIFT)).copied();
            activity.add(of_page, ended_us, &rates, part_us, last_us);
        }
        activity.lives.sort_by_key(|life| (life.from_us, life.page));
        let mut places: Vec<passes::Place> =
            activity.places.iter().map(|(&page, &place)| (page, place)).collect();
        places.sort_unstable();
        activity.sweeps = passes::find(&places, &mut activity.intervals, activity.end_us).into();
        activity
    }

    /// Adds a page of the dense address space. `ended_us`: when its process ended.
    fn add(
        &mut self,
        events: &[(PageNumber, Event)],
        ended_us: Option<u64>,
        rates: &Rates,
        part_us: u64,
        last_us: u64,
    ) {
        let (page, first) = events[0];
        self.names.insert(page, first.page);
        let is_before = |time_us: u64| ended_us.is_none_or(|ended_us| time_us < ended_us);
        let place = rates.place(page);
        let events = events.iter().map(|(_, event)| *event);
        let gone = ended_us.map(|time_us| Event { time_us, what: What::Gone, ..first });
        let events = events.filter(|event| is_before(event.time_us)).chain(gone);
        let mean_us = |at_us| rates.mean_us(page, place, at_us);
        let mean_at = MeanAt { mean_us: &mean_us, part_us };
        let timeline = timeline::of_page(events, mean_at, last_us);
        let start = self.intervals.len() as u32;
        self.intervals.extend(timeline.intervals);
        self.places.insert(page, (start, self.intervals.len() as u32));
        let life = |(from_us, to_us)| Life { page, from_us, to_us };
        self.lives.extend(timeline.lives.into_iter().map(life));
    }

    /// One page in this many is in here.
    pub fn one_in(&self) -> f64 {
        self.one_in
    }

    /// When the watch ended. Microseconds.
    pub fn end_us(&self) -> u64 {
        self.end_us
    }

    /// Pages in here.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The lives of all pages, in the order in which they began.
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// The number in the events of a page of the dense address space.
    pub fn name(&self, page: PageNumber) -> Option<PageNumber> {
        self.names.get(&page).copied()
    }

    /// When the page is accessed next after a time, in microseconds. `None`: not any more.
    pub fn next_access(&self, page: PageNumber, after_us: u64) -> Option<u64> {
        let &(start, end) = self.places.get(&page)?;
        let intervals = &self.intervals[start as usize..end as usize];
        let first = intervals.partition_point(|interval| interval.to_us <= after_us);
        for interval in &intervals[first..] {
            let from_us = interval.from_us.max(after_us);
            let found = match interval.kind {
                Kind::Watched { is_touched } => is_touched.then_some(interval.to_us),
                Kind::Passes { sweep, place, from_us: earliest_us } => self.sweeps[sweep as usize]
                    .next(place, from_us.max(earliest_us))
                    .filter(|&time_us| time_us < interval.to_us),
                Kind::Unwatched { mean_us } => {
                    interval.drawn(hash(page ^ from_us << 20), from_us, mean_us)
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// All accesses in the order of time, those that are drawn included: when, and to which page.
    /// Those to a page that follow each other within `gap_us` are one. A page that was given back
    /// and comes again has another number.
    pub fn accesses(&self, gap_us: u64) -> impl Iterator<Item = (u64, PageNumber)> + '_ {
        let mut seen = HashSet::new();
        let mut next: BinaryHeap<Reverse<(u64, usize, PageNumber)>> = BinaryHeap::new();
        for (nth, life) in self.lives.iter().enumerate() {
            let is_first = seen.insert(life.page);
            let name = if is_first { life.page } else { AGAIN | nth as PageNumber };
            next.push(Reverse((life.from_us, nth, name)));
        }
        std::iter::from_fn(move || {
            let Reverse((time_us, nth, name)) = next.pop()?;
            let life = self.lives[nth];
            let later = self.next_access(life.page, time_us.saturating_add(gap_us.max(1) - 1));
            if let Some(later) = later.filter(|&later| life.to_us.is_none_or(|to| later < to)) {
                next.push(Reverse((later.max(time_us + 1), nth, name)));
            }
            Some((time_us, name))
        })
    }

    /// How many pages came to be in a time, those that are not sampled included.
    pub fn born_pages(&self, from_us: u64, to_us: u64) -> f64 {
        let before = |time_us| self.lives.partition_point(|life| life.from_us <= time_us);
        before(to_us).saturating_sub(before(from_us)) as f64 * self.one_in
    }

    /// How many pages there were at most at a time, those that are not sampled included.
    pub fn need_pages(&self) -> f64 {
        let mut changes: Vec<(u64, i64)> = Vec::with_capacity(2 * self.lives.len());
        for life in &self.lives {
            changes.push((life.from_us, 1));
            changes.extend(life.to_us.map(|to_us| (to_us, -1)));
        }
        // What is given back at the same moment is gone first.
        changes.sort_unstable();
        let (mut pages, mut most) = (0i64, 0i64);
        for (_, change) in changes {
            pages += change;
            most = most.max(pages);
        }
        most as f64 * self.one_in
    }

    /// Scales the sample to a program that had `pages` pages at most. Pages that came and went
    /// between two looks of the agent were not seen; those that were seen stand for them.
    pub fn of_pages(mut self, pages: f64) -> Activity {
        let seen = self.need_pages();
        if seen > 0.0 && pages > seen {
            self.one_in *= (pages / seen).min(UNSEEN_MAX);
        }
        self
    }

    /// Without one of `of` parts of its blocks: an estimate of the whole from the others.
    pub fn without(&self, nth: u64, of: u64) -> Activity {
        let of = of.max(2);
        let is_in = |page: PageNumber| page / BLOCK_PAGES % of != nth % of;
        let dense = |page: PageNumber| {
            let (block, within) = (page / BLOCK_PAGES, page % BLOCK_PAGES);
            let left_out = block / of + u64::from(block % of > nth % of);
            (block - left_out) * BLOCK_PAGES + within
        };
        let mut pages: Vec<_> = self.places.iter().filter(|(page, _)| is_in(**page)).collect();
        pages.sort_unstable();
        let share = self.places.len() as f64 / f64::max(pages.len() as f64, 1.0);
        let mut part = Activity {
            one_in: self.one_in * share.max(1.0),
            end_us: self.end_us,
            sweeps: Arc::clone(&self.sweeps),
            ..Activity::default()
        };
        for (&page, &(start, end)) in pages {
            let first = part.intervals.len() as u32;
            part.intervals.extend(&self.intervals[start as usize..end as usize]);
            part.places.insert(dense(page), (first, part.intervals.len() as u32));
            part.names.extend(self.names.get(&page).map(|&name| (dense(page), name)));
        }
        let lives = self.lives.iter().filter(|life| is_in(life.page));
        part.lives = lives.map(|life| Life { page: dense(life.page), ..*life }).collect();
        part
    }
}

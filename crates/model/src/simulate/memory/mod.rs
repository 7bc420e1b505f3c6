//! ramfold's own policy in programs. What to do is decided by the code that the agent runs
//! (`ramfold-policy`): which pages streams have left behind, whether those or others are taken
//! first, which are passed by, how far a stream is read ahead. This module has the program's
//! memory, in place of the kernel: which pages are there, the hand that goes round them, staging,
//! and objects, of one size ([`Alike`]) or as [`Objects`] says.
//!
//! What it leaves out: threads at once, forks, changes of mappings, the spill file, and how long
//! anything takes. A page is compressed as soon as memory is above the mark.
//!
//! A miniature has one page in so many of a program. Each of its pages counts as so many, so all
//! that is measured in bytes is as in the agent; what is measured in pages (batches, staging, what
//! streams have brought in) is as much smaller.

mod objects;
mod take;

use std::collections::{BTreeSet, HashMap, VecDeque};

use ramfold_codec::{Objective, PAGE_SIZE};
use ramfold_policy::memory::back_off::BackOff;
use ramfold_policy::memory::probation::Probation;
use ramfold_policy::memory::refaults::Refaults;
use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::rounds::BATCH_PAGES;
use ramfold_policy::memory::stream::Streams;
use ramfold_policy::memory::victims::{VictimKind, Victims};
use ramfold_policy::memory::watermarks::Watermarks;

pub use self::objects::{Alike, Fit, Objects};
use self::take::{BATCH_SHARE, Step, Sweep};
use super::{Access, Policy};
use crate::{BLOCK_PAGES, PageNumber};

/// A stream of a miniature that has not gone on for so many faults is over.
const STREAM_FAULTS_SAMPLED: u32 = 64;
/// Of more pages than this none stands for the others.
const ONE_IN_MAX: f64 = 4_294_967_296.0;
/// Reclaim that rests is tried again when the program has grown by as much as the cap / this, as
/// `monitor/cap.rs` has it.
const RETRY_SHARE: u64 = 16;
/// As the agent's staging (`monitor/activation.rs`): its part of the cap, and how many pages it
/// holds.
const STAGING_SHARE: usize = 64;
const STAGING_PAGES: std::ops::RangeInclusive<usize> = 64..=4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the program's memory.
    Memory,
    /// Taken, not compressed yet, as the `number`th of all.
    Staging { number: u64 },
    /// An object, charged so much.
    Store { charged: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    mark: Reuse,
}

/// What the simulated program has, and where.
pub struct Memory<O = Alike> {
    /// The cap's, and those that hold now.
    cap_marks: Watermarks,
    marks: Watermarks,
    /// What a page of this memory counts as: that of a miniature as so many.
    page_bytes: u64,
    one_in: f64,
    objects: O,
    entries: HashMap<PageNumber, Entry>,
    present: BTreeSet<PageNumber>,
    /// Pages in the order in which they were taken, from the oldest on. Some have come back since.
    staging: VecDeque<PageNumber>,
    /// Pages taken so far.
    taken: u64,
    /// Pages in staging that have not come back.
    staged: u64,
    stored: u64,
    /// What the store charges for these.
    stored_bytes: u64,
    /// Of the pages that were brought back, those that were in staging still; and those that were
    /// put back because they do not compress.
    second_chances: u64,
    refused: u64,
    /// What else counts.
    other_bytes: u64,
    victims: Box<Victims>,
    probation: Box<Probation>,
    streams: Streams,
    sweep: Sweep,
    /// There was nothing to take, and it is not tried again before something changes.
    is_stuck: bool,
    back_off: BackOff,
    retried_bytes: u64,
    /// Where time is known.
    now_ns: Option<u64>,
}

impl<O> std::fmt::Debug for Memory<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Memory { staged, stored, sweep, .. } = self;
        write!(
            f,
            "Memory({} present, {staged} staged, {stored} stored, {sweep:?})",
            self.present.len()
        )
    }
}

/// What a memory has come to so far, in its own pages, and in bytes of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Pages that the program has uncompressed.
    pub present: u64,
    /// Pages that wait to be compressed.
    pub staged: u64,
    /// Objects, and what they are charged.
    pub stored: u64,
    /// What these are charged, in bytes.
    pub stored_bytes: u64,
    /// Pages taken so far.
    pub taken: u64,
    /// Pages that came back from staging so far.
    pub second_chances: u64,
    /// Pages that were put back because they do not compress.
    pub refused: u64,
}

impl Memory {
    /// A cap, and what each object is charged, both in bytes.
    pub fn new(cap_bytes: u64, object_bytes: u64) -> Memory {
        Memory::with(Alike(object_bytes), cap_bytes, 1.0)
    }
}

impl<O: Objects> Memory<O> {
    /// With objects of any size. `cap_bytes`: of the whole program, of which one page in `one_in`
    /// is here.
    pub fn with(objects: O, cap_bytes: u64, one_in: f64) -> Memory<O> {
        let one_in = if one_in.is_finite() { one_in.clamp(1.0, ONE_IN_MAX) } else { 1.0 };
        let cap_marks = Watermarks::for_cap(cap_bytes.max(PAGE_SIZE as u64));
        let mut memory = Memory {
            cap_marks,
            marks: cap_marks,
            page_bytes: (PAGE_SIZE as f64 * one_in) as u64,
            one_in,
            objects,
            entries: HashMap::new(),
            present: BTreeSet::new(),
            staging: VecDeque::new(),
            taken: 0,
            staged: 0,
            stored: 0,
            stored_bytes: 0,
            second_chances: 0,
            refused: 0,
            other_bytes: 0,
            victims: Box::new(Victims::NEW),
            probation: Box::new(Probation::NEW),
            streams: if one_in > 1.0 {
                Streams::of_sample(BLOCK_PAGES)
            } else {
                Streams::default()
            },
            sweep: Sweep::default(),
            is_stuck: false,
            back_off: BackOff::default(),
            retried_bytes: 0,
            now_ns: None,
        };
        memory.victims.set_cap(memory.cap_pages() as u64);
        memory
    }

    fn cap_pages(&self) -> usize {
        (self.cap_marks.cap / self.page_bytes) as usize
    }

    /// Pages taken by one step: neighbours, of which a miniature has as long runs as the program.
    /// Only where that is much of its memory it takes fewer.
    fn batch_pages(&self) -> usize {
        let least = self.scaled(BATCH_PAGES);
        (self.cap_pages() / BATCH_SHARE).clamp(least, BATCH_PAGES.max(least))
    }

    /// To what cost pages are compressed. The last batch of a miniature is worth more than the
    /// program's: on average both go as far.
    fn low_mark(&self) -> u64 {
        let more = (self.batch_pages() - self.scaled(BATCH_PAGES)) as u64 / 2;
        (self.marks.low + more / 2 * self.page_bytes).min(self.marks.high)
    }

    /// So many pages of the program, in pages of this memory.
    fn scaled(&self, pages: usize) -> usize {
        ((pages as f64 / self.one_in) as usize).max(1)
    }

    /// What it costs now.
    pub fn cost_bytes(&self) -> u64 {
        let pages = self.present.len() as u64 + self.staged;
        pages * self.page_bytes + self.objects_bytes() + self.other_bytes
    }

    /// What all objects of the program are charged.
    fn objects_bytes(&self) -> u64 {
        (self.stored_bytes as f64 * self.one_in) as u64
    }

    /// What else counts below the cap: the agent's own memory, tables, free slots of the pool.
    pub fn set_other_bytes(&mut self, bytes: u64) {
        self.other_bytes = bytes;
    }

    /// Time passes. `outruns`: the program has just grown so fast that the marks are lower.
    pub fn set_time(&mut self, now_ns: u64, outruns: bool) {
        self.now_ns = Some(now_ns);
        self.marks = self.cap_marks.beside(0, outruns);
    }

    /// Marks of the cap.
    pub fn cap_marks(&self) -> Watermarks {
        self.cap_marks
    }

    /// There was nothing left to take when it was tried last, and the marks are passed.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// What it has come to.
    pub fn state(&self) -> State {
        State {
            present: self.present.len() as u64,
            staged: self.staged,
            stored: self.stored,
            stored_bytes: self.objects_bytes(),
            taken: self.taken,
            second_chances: self.second_chances,
            refused: self.refused,
        }
    }

    /// Whether room must be made for what the program grows by.
    pub fn is_full(&self) -> bool {
        self.cost_bytes() + self.page_bytes > self.marks.low
    }

    /// What to compress for, by what is known of how soon pages come back. `best` is given the
    /// objects, how many pages are out, and how many the cap holds.
    pub(super) fn best_objective_of(
        &mut self,
        best: impl FnOnce(&mut O, u64, &Refaults, u64) -> Objective,
    ) -> Objective {
        let (out, cap_pages) = (self.stored, self.cap_pages() as u64);
        best(&mut self.objects, out, &self.victims.refaults, cap_pages)
    }

    /// What says how large objects are.
    pub fn objects(&self) -> &O {
        &self.objects
    }

    /// The same, to change.
    pub fn objects_mut(&mut self) -> &mut O {
        &mut self.objects
    }

    /// Whether an access to the page is a fault.
    pub fn is_out(&self, page: PageNumber) -> bool {
        self.entries.get(&page).is_some_and(|entry| entry.place != Place::Memory)
    }

    /// What the store charges for the page, where it is there.
    pub fn charged(&self, page: PageNumber) -> Option<u32> {
        match self.entries.get(&page)?.place {
            Place::Store { charged } => Some(charged),
            Place::Memory | Place::Staging { .. } => None,
        }
    }

    /// The page's object, where it has one, is charged so much from now on: it was compressed once
    /// more.
    pub fn recharge(&mut self, page: PageNumber, bytes: u32) {
        if let Some(Entry { place: Place::Store { charged }, .. }) = self.entries.get_mut(&page) {
            self.stored_bytes = self.stored_bytes - u64::from(*charged) + u64::from(bytes);
            *charged = bytes;
        }
    }

    /// The program gives a page back.
    pub fn drop_page(&mut self, page: PageNumber) {
        match self.entries.remove(&page).map(|entry| entry.place) {
            Some(Place::Memory) => {
                self.present.remove(&page);
            }
            // Its place in the queue is passed over.
            Some(Place::Staging { .. }) => self.staged -= 1,
            Some(Place::Store { charged }) => self.forget_object(charged),
            None => {}
        }
    }

    fn forget_object(&mut self, charged: u32) {
        self.stored -= 1;
        self.stored_bytes -= u64::from(charged);
    }

    /// Pages that come with the one that is asked for.
    fn bring_window(&mut self, page: PageNumber) -> u32 {
        if self.one_in > 1.0 {
            self.streams.end_older(STREAM_FAULTS_SAMPLED);
        }
        let window = self.streams.window_at(page);
        if window.pages == 1 {
            self.bring(page, false);
            self.streams.note_brought(1, 0);
            return 0;
        }
        // As many as the program would have room for: a miniature has that of some of its streams.
        let free = self.marks.hard.saturating_sub(self.cost_bytes() + PAGE_SIZE as u64);
        let most = window.pages.min(1 + (free / PAGE_SIZE as u64) as usize);
        let (mut brought, mut steps, mut last) = (0, 0, 0);
        while brought < most && steps < 2 * most {
            let next = page.wrapping_add_signed(window.stride * steps as i64);
            match self.entries.get(&next).map(|entry| entry.place) {
                Some(Place::Memory) => {}
                Some(_) => {
                    self.bring(next, true);
                    self.probation.push(next, window.stride, 1);
                    brought += 1;
                    last = steps;
                }
                None => break,
            }
            steps += 1;
        }
        self.streams.note_brought(brought, last);
        brought as u32 - 1
    }

    fn bring(&mut self, page: PageNumber, is_streamed: bool) {
        self.victims.note_returned(page);
        let entry = self.entries.get_mut(&page).expect("a page that has left");
        match entry.place {
            Place::Staging { .. } => {
                self.staged -= 1;
                self.second_chances += 1;
            }
            Place::Store { charged } => {
                self.stored -= 1;
                self.stored_bytes -= u64::from(charged);
            }
            Place::Memory => unreachable!("the page is in memory"),
        }
        entry.place = Place::Memory;
        let stays_out = is_streamed && self.victims.preferred() == VictimKind::Streamed;
        let returned = entry.mark.returned(self.sweep.rounds.number());
        entry.mark = if stays_out { Reuse::default() } else { returned };
        self.present.insert(page);
        self.objects.note_back(page);
    }

    /// As the agent does: takes pages when there are none in staging, compresses the oldest above
    /// the mark.
    pub fn make_room(&mut self) {
        let near = self.scaled(BATCH_PAGES) as u64 * self.page_bytes;
        if self.cost_bytes() + near <= self.marks.high || !self.may_take() {
            return;
        }
        let staging_pages = self.cap_marks.cap as usize / PAGE_SIZE / STAGING_SHARE;
        let most = self.scaled(staging_pages.clamp(*STAGING_PAGES.start(), *STAGING_PAGES.end()));
        let half =
            most.div_ceil(2).max(if self.one_in > 1.0 { self.batch_pages() } else { 1 }) as u64;
        let low = self.low_mark();
        if self.staged == 0 {
            while self.staged < half && self.take_next() != Step::Nothing {}
        }
        if self.cost_bytes() <= self.marks.high {
            self.is_stuck = false;
            self.back_off.reset();
            return;
        }
        while self.cost_bytes() > low {
            if !self.compress_oldest() && !self.fill_staging(half) {
                return self.rest();
            }
        }
        self.is_stuck = false;
        self.back_off.reset();
    }

    /// There is nothing more to take. As the agent, it rests for a while, or until the program has
    /// grown; without a clock until the next time.
    fn rest(&mut self) {
        self.is_stuck = true;
        if let Some(now_ns) = self.now_ns {
            self.back_off.begin(now_ns);
            let growth = self.back_off.growth_bytes((self.marks.cap - self.marks.high) / 4);
            let growth = growth.min(self.marks.cap / RETRY_SHARE);
            self.retried_bytes = self.cost_bytes() + growth;
        }
    }

    /// Where there was nothing to take: is it tried again?
    fn may_take(&mut self) -> bool {
        if !self.is_stuck {
            return true;
        }
        let is_late = self.now_ns.is_none_or(|now_ns| self.back_off.is_over(now_ns, false));
        let tries = is_late || self.cost_bytes() >= self.retried_bytes;
        if tries {
            self.is_stuck = false;
            self.sweep.rounds.encourage();
        }
        tries
    }

    fn fill_staging(&mut self, most: u64) -> bool {
        while self.staged < most {
            if self.take_next() == Step::Nothing {
                break;
            }
        }
        self.staged > 0
    }

    fn compress_oldest(&mut self) -> bool {
        while let Some(page) = self.staging.pop_front() {
            let oldest = self.taken - self.staging.len() as u64;
            // One that was given back is not there at all.
            let Some(entry) = self.entries.get_mut(&page) else { continue };
            if entry.place != (Place::Staging { number: oldest }) {
                continue;
            }
            self.staged -= 1;
            match self.objects.compress(page) {
                Fit::Charged(charged) => {
                    entry.place = Place::Store { charged };
                    self.stored += 1;
                    self.stored_bytes += u64::from(charged);
                    self.sweep.rounds.note_stored();
                }
                Fit::Stays => {
                    *entry = Entry { place: Place::Memory, mark: Reuse::INCOMPRESSIBLE };
                    self.refused += 1;
                    self.present.insert(page);
                    self.objects.note_back(page);
                }
            }
            return true;
        }
        false
    }
}

impl<O: Objects> Policy for Memory<O> {
    fn access(&mut self, page: PageNumber) -> Access {
        match self.entries.get(&page).map(|entry| entry.place) {
            Some(Place::Memory) => Access::Hit,
            Some(Place::Staging { .. } | Place::Store { .. }) => {
                let ahead = self.bring_window(page);
                self.make_room();
                Access::Fault { ahead }
            }
            None => {
                let entry = Entry { place: Place::Memory, mark: Reuse::default() };
                self.entries.insert(page, entry);
                self.present.insert(page);
                self.make_room();
                Access::First
            }
        }
    }
}

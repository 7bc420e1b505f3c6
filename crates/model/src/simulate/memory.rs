//! ramfold's own policy in programs. What to do is decided by the code that the agent runs
//! (`ramfold-policy`): which pages streams have left behind, whether those or others are taken
//! first, which are passed by, how far a stream is read ahead. This module has the program's
//! memory, in place of the kernel: which pages are there, the hand that goes round them, staging,
//! and objects of one size.
//!
//! What it leaves out: threads at once, forks, changes of mappings, recompression, the spill file,
//! and how long anything takes. A page is compressed as soon as memory is above the mark.

use std::collections::{BTreeSet, HashMap, VecDeque};

use ramfold_codec::PAGE_SIZE;
use ramfold_policy::memory::probation::Probation;
use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::stream::Streams;
use ramfold_policy::memory::victims::{VictimChoice, VictimKind, Victims};
use ramfold_policy::memory::watermarks::Watermarks;

use super::{Access, Policy};
use crate::PageNumber;

/// As the agent's sweep (`take/sweep.rs`): pages taken by one step; the part of the cap in which
/// pages of streams wait, and the number of them that wait in any case.
const BATCH_PAGES: usize = 32;
const PROBATION_SHARE: usize = 16;
const PROBATION_PAGES_MIN: usize = 128;
/// A trial takes a page so far from the last, as a part of the cap.
const TRIAL_PLACES: u64 = 64;
/// As the agent's staging (`monitor/activation.rs`): its part of the cap, and how many pages it
/// holds.
const STAGING_SHARE: usize = 64;
const STAGING_PAGES: std::ops::RangeInclusive<usize> = 64..=4096;
/// Rounds of the hand, one after the other, that found nothing to take before it is tolerant.
const FRUITLESS_ROUNDS_MAX: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the program's memory.
    Memory,
    /// Taken, not compressed yet, as the `number`th of all.
    Staging { number: u64 },
    /// An object.
    Store,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    mark: Reuse,
}

/// What the simulated program has, and where.
pub struct Memory {
    marks: Watermarks,
    /// What a page in the store is charged.
    object_bytes: u64,
    entries: HashMap<PageNumber, Entry>,
    present: BTreeSet<PageNumber>,
    /// Pages in the order in which they were taken, from the oldest on. Some have come back since.
    staging: VecDeque<PageNumber>,
    /// Pages taken so far.
    taken: u64,
    /// Pages in staging that have not come back.
    staged: u64,
    stored: u64,
    victims: Box<Victims>,
    probation: Box<Probation>,
    streams: Streams,
    hand: PageNumber,
    tried: PageNumber,
    round: u32,
    taken_in_round: u64,
    fruitless_rounds: u32,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Memory { staged, stored, round, .. } = self;
        write!(
            f,
            "Memory({} present, {staged} staged, {stored} stored, {round})",
            self.present.len()
        )
    }
}

/// What one step of taking pages came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Taken,
    Passed,
    Nothing,
}

impl Memory {
    /// A cap, and what each object is charged, both in bytes.
    pub fn new(cap_bytes: u64, object_bytes: u64) -> Memory {
        let mut victims = Box::new(Victims::NEW);
        victims.set_cap(cap_bytes / PAGE_SIZE as u64);
        Memory {
            marks: Watermarks::for_cap(cap_bytes.max(PAGE_SIZE as u64)),
            object_bytes,
            entries: HashMap::new(),
            present: BTreeSet::new(),
            staging: VecDeque::new(),
            taken: 0,
            staged: 0,
            stored: 0,
            victims,
            probation: Box::new(Probation::NEW),
            streams: Streams::default(),
            hand: 0,
            tried: 0,
            round: 0,
            taken_in_round: 0,
            fruitless_rounds: 0,
        }
    }

    fn cap_pages(&self) -> usize {
        self.marks.cap as usize / PAGE_SIZE
    }

    /// What it costs now.
    pub(super) fn cost_bytes(&self) -> u64 {
        let pages = self.present.len() as u64 + self.staged;
        pages * PAGE_SIZE as u64 + self.stored * self.object_bytes
    }

    /// Pages that come with the one that is asked for.
    fn bring_window(&mut self, page: PageNumber) -> u32 {
        let window = self.streams.window_at(page);
        if window.pages == 1 {
            self.bring(page, false);
            self.streams.note_brought(1, 0);
            return 0;
        }
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
            Place::Staging { .. } => self.staged -= 1,
            Place::Store => self.stored -= 1,
            Place::Memory => unreachable!("the page is in memory"),
        }
        entry.place = Place::Memory;
        let stays_out = is_streamed && self.victims.preferred() == VictimKind::Streamed;
        entry.mark = if stays_out { Reuse::default() } else { entry.mark.returned(self.round) };
        self.present.insert(page);
    }

    /// As the agent does: takes pages when there are none in staging, compresses the oldest above
    /// the mark.
    fn make_room(&mut self) {
        if self.cost_bytes() + (BATCH_PAGES * PAGE_SIZE) as u64 <= self.marks.high {
            return;
        }
        let most =
            (self.cap_pages() / STAGING_SHARE).clamp(*STAGING_PAGES.start(), *STAGING_PAGES.end());
        if self.staged == 0 {
            while self.staged < most as u64 / 2 && self.take_next() != Step::Nothing {}
        }
        if self.cost_bytes() <= self.marks.high {
            return;
        }
        while self.cost_bytes() > self.marks.low {
            if !self.compress_oldest() && !self.fill_staging(most as u64 / 2) {
                return;
            }
        }
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
            let entry = self.entries.get_mut(&page).expect("a page that was taken");
            if entry.place == (Place::Staging { number: oldest }) {
                entry.place = Place::Store;
                self.staged -= 1;
                self.stored += 1;
                return true;
            }
        }
        false
    }

    /// As `take_next` of the agent's sweep.
    fn take_next(&mut self) -> Step {
        let limit = (self.cap_pages() / PROBATION_SHARE).max(PROBATION_PAGES_MIN);
        let streamed = self.probation.beyond(limit);
        if let Some((first, pages)) = streamed {
            let choice = self.victims.choose();
            if choice.kind == VictimKind::Streamed {
                return self.take_streamed(first, if choice.is_trial { 1 } else { pages }, choice);
            }
            if choice.is_trial {
                return self.try_page(choice);
            }
            while self.probation.beyond(2 * limit).is_some() {
                self.probation.drop_oldest();
            }
        }
        let kind = if streamed.is_some() { VictimKind::Swept } else { VictimKind::SweptAlone };
        let step = self.sweep(VictimChoice { kind, is_trial: false });
        match (step, self.probation.beyond(limit)) {
            (Step::Nothing, Some((first, pages))) => {
                let choice = VictimChoice { kind: VictimKind::Streamed, is_trial: false };
                self.take_streamed(first, pages, choice)
            }
            (step, _) => step,
        }
    }

    fn take_streamed(&mut self, first: PageNumber, pages: usize, choice: VictimChoice) -> Step {
        let run = first..first + pages as u64;
        let is_here = |page: &PageNumber| self.present.contains(page);
        let out = run.clone().take_while(|page| !is_here(page)).count();
        if out > 0 {
            self.probation.skip(out);
            return Step::Passed;
        }
        let tolerant = self.fruitless_rounds > 0;
        let spared = run.clone().take_while(|&page| self.passes_by(page, tolerant)).count();
        if spared > 0 {
            self.probation.skip(spared);
            return Step::Passed;
        }
        let taken = self.take_run(run, tolerant);
        self.victims.note_taken(first, taken, choice);
        self.probation.skip(taken);
        Step::Taken
    }

    /// Takes one page somewhere, a good way behind the last that was.
    fn try_page(&mut self, choice: VictimChoice) -> Step {
        self.tried += (self.cap_pages() as u64 / TRIAL_PLACES).max(1);
        let found = self.present.range(self.tried..).next().or_else(|| self.present.first());
        let Some(&page) = found else { return Step::Passed };
        self.tried = page;
        if is_spared(self.entries[&page].mark, false) {
            return Step::Passed;
        }
        self.take(page);
        self.victims.note_taken(page, 1, choice);
        self.probation.skip(1);
        Step::Taken
    }

    /// Takes a batch at the hand, or passes some pages by.
    fn sweep(&mut self, choice: VictimChoice) -> Step {
        let Some(&first) = self.present.range(self.hand..).next() else {
            self.round = self.round.wrapping_add(1);
            let is_fruitless = self.taken_in_round == 0;
            self.fruitless_rounds = if is_fruitless { self.fruitless_rounds + 1 } else { 0 };
            (self.hand, self.taken_in_round) = (0, 0);
            let gives_up = self.fruitless_rounds > FRUITLESS_ROUNDS_MAX || self.present.is_empty();
            if gives_up {
                self.fruitless_rounds = 0;
            }
            return if gives_up { Step::Nothing } else { Step::Passed };
        };
        let tolerant = self.fruitless_rounds > 0;
        if self.passes_by(first, tolerant) {
            self.hand = first + 1;
            return Step::Passed;
        }
        let taken = self.take_run(first..first + BATCH_PAGES as u64, tolerant);
        self.victims.note_taken(first, taken, choice);
        self.taken_in_round += taken as u64;
        self.hand = first + taken as u64;
        Step::Taken
    }

    /// Takes the first page of a run and those behind it that are present and not spared.
    fn take_run(&mut self, run: std::ops::Range<PageNumber>, tolerant: bool) -> usize {
        let is_next = |(nth, page): &(usize, PageNumber)| {
            let is_here = self.present.contains(page);
            is_here && (*nth == 0 || !is_spared(self.entries[page].mark, tolerant))
        };
        let pages: Vec<PageNumber> =
            (0..).zip(run).take(BATCH_PAGES).take_while(is_next).map(|(_, page)| page).collect();
        pages.iter().for_each(|&page| self.take(page));
        pages.len()
    }

    fn take(&mut self, page: PageNumber) {
        self.present.remove(&page);
        let entry = self.entries.get_mut(&page).expect("a page in memory");
        self.taken += 1;
        let place = Place::Staging { number: self.taken };
        *entry = Entry { place, mark: entry.mark.taken(self.round) };
        self.staging.push_back(page);
        self.staged += 1;
    }

    /// Is the page to be left alone this time? Takes one off its mark.
    fn passes_by(&mut self, page: PageNumber, tolerant: bool) -> bool {
        let Some(entry) = self.entries.get_mut(&page).filter(|entry| entry.place == Place::Memory)
        else {
            return false;
        };
        let mark = entry.mark;
        entry.mark = mark.passed().unwrap_or(mark);
        is_spared(mark, tolerant)
    }
}

/// Does a mark say to leave a page alone?
fn is_spared(mark: Reuse, tolerant: bool) -> bool {
    mark.passed().is_some() && !(tolerant && mark.compresses())
}

impl Policy for Memory {
    fn access(&mut self, page: PageNumber) -> Access {
        match self.entries.get(&page).map(|entry| entry.place) {
            Some(Place::Memory) => Access::Hit,
            Some(Place::Staging { .. } | Place::Store) => {
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

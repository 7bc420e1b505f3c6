//! The program of the model: its threads, its address space, and what of both is under way.

use core::ops::Range;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::uffd::Event;

use super::ModelChild;
use super::memory::{Access, Mapped, check, content};

/// Pages of an area, which is mapped, moved and unmapped as a whole.
pub(crate) const AREA_PAGES: usize = 32;
/// Areas of address space, in a row with as much between them.
const AREAS: usize = 10;
const BASE: usize = 1 << 40;

/// What a page holds, by a number: zero is zeros.
pub(super) type Tag = u64;

/// A sequence of numbers that depends on its seed alone (xorshift64*).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// `true` once in `n` on average.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) thread: usize,
    pub(super) page: usize,
    pub(super) write: bool,
    pub(super) write_protected: bool,
    pub(super) is_read: bool,
}

/// What a thread of the program is doing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    Nothing,
    /// So many accesses, one page after another in one direction.
    Access {
        area: usize,
        page: usize,
        left: usize,
        downwards: bool,
        write: bool,
    },
    /// The area is unmapped, and that is to be told.
    Unmapped {
        area: usize,
    },
    Moved {
        from: usize,
        to: usize,
    },
    /// It is told that the area was moved; that the old place is unmapped is next.
    LeftBehind {
        area: usize,
    },
    /// Pages are about to be dropped.
    Drops {
        start: usize,
        pages: usize,
        /// MADV_FREE: only if the kernel needs the memory.
        lazily: bool,
    },
    /// It is in fork(2).
    Forks,
    /// It is one of the agent's, and touches pages as the program would.
    OfAgent,
}

#[derive(Clone)]
pub(super) struct Thread {
    pub(super) doing: Doing,
    pub(super) waits_for_fault: bool,
    /// Its event is not read yet.
    pub(super) waits_for_event: bool,
    pub(super) areas: Vec<usize>,
    pub(super) last_tag: Tag,
}

/// The address space, its program, and the userfaultfd.
pub(crate) struct State {
    pub(super) random: Random,
    pub(super) threads: Vec<Thread>,
    pub(super) free_areas: Vec<usize>,
    pub(super) pages: BTreeMap<usize, Mapped>,
    /// What the program must find.
    pub(super) truth: BTreeMap<usize, Tag>,
    pub(super) faults: VecDeque<Fault>,
    pub(super) events: VecDeque<(usize, Event<ModelChild>)>,
    /// Changes whose event is not read.
    pub(super) changing: usize,
    pub(super) staging: Range<usize>,
    /// Slots of staging that hold a page.
    pub(super) staged: Vec<bool>,
    pub(super) changes_often: bool,
    /// Accesses that were made, and faults that were read.
    pub accesses: u64,
    pub faults_read: u64,
    /// Times a thread of the agent had to let others go on.
    pub(super) yields: usize,
    /// The kernel tells of forks.
    pub tells_of_forks: bool,
    /// Those that have no agent.
    pub(super) children: Vec<Rc<RefCell<State>>>,
    /// The program is to come to an end: no thread begins anything new.
    pub is_ending: bool,
}

pub(super) fn start_of(area: usize) -> usize {
    BASE + 2 * area * AREA_PAGES * PAGE_SIZE
}

pub(super) fn range_of(area: usize) -> Range<usize> {
    start_of(area)..start_of(area) + AREA_PAGES * PAGE_SIZE
}

pub(super) fn pages_in(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    range.clone().step_by(PAGE_SIZE)
}

impl State {
    /// A program of `threads` threads that has nothing mapped yet.
    pub(super) fn new(seed: u64, threads: usize, staging: Range<usize>) -> State {
        let thread = |nth| Thread {
            // Behind those of the program comes one of the agent's.
            doing: if nth == threads { Doing::OfAgent } else { Doing::Nothing },
            waits_for_fault: false,
            waits_for_event: false,
            areas: Vec::new(),
            last_tag: (nth as u64 + 1) << 40,
        };
        State {
            random: Random::new(seed),
            threads: (0..=threads).map(thread).collect(),
            free_areas: (0..AREAS).collect(),
            pages: BTreeMap::new(),
            truth: BTreeMap::new(),
            faults: VecDeque::new(),
            events: VecDeque::new(),
            changing: 0,
            staged: vec![false; staging.len() / PAGE_SIZE],
            staging,
            changes_often: seed.is_multiple_of(2),
            accesses: 0,
            faults_read: 0,
            yields: 0,
            tells_of_forks: false,
            children: Vec::new(),
            is_ending: false,
        }
    }

    fn is_registered(&self, area: usize) -> bool {
        pages_in(&range_of(area)).any(|page| self.pages[&page].is_registered)
    }

    /// A step of a thread of the program that can go on; `false` where none can.
    pub(crate) fn step(&mut self) -> bool {
        if !self.staged.is_empty() && self.random.once_in(16) {
            let slot = self.staging.start + self.random.below(self.staged.len()) * PAGE_SIZE;
            self.read_from_outside(slot);
        }
        let runnable = |thread: &Thread| {
            let is_free = !thread.waits_for_fault && !thread.waits_for_event;
            let is_runnable = match thread.doing {
                Doing::Forks | Doing::OfAgent => false,
                Doing::Nothing => !self.is_ending,
                _ => true,
            };
            is_free && is_runnable
        };
        let threads: Vec<_> =
            (0..self.threads.len()).filter(|&nth| runnable(&self.threads[nth])).collect();
        if threads.is_empty() {
            return false;
        }
        let thread = threads[self.random.below(threads.len())];
        self.threads[thread].doing = match self.threads[thread].doing {
            Doing::Nothing => self.begin(thread),
            Doing::Access { area, page, left, downwards, write } => {
                if self.access(thread, page, write) {
                    next_access(area, page, left, downwards, write)
                } else {
                    self.threads[thread].doing
                }
            }
            Doing::Unmapped { area } => {
                self.tell(thread, Event::Unmap(range_of(area)), Doing::Nothing)
            }
            Doing::Moved { from, to } => {
                let len = AREA_PAGES * PAGE_SIZE;
                let event = Event::Remap { from: start_of(from), to: start_of(to), len };
                self.tell(thread, event, Doing::LeftBehind { area: from })
            }
            Doing::LeftBehind { area } => {
                self.tell(thread, Event::Unmap(range_of(area)), Doing::Nothing)
            }
            Doing::Drops { start, pages, lazily } => {
                self.drop_pages(start..start + pages * PAGE_SIZE, lazily);
                Doing::Nothing
            }
            doing @ (Doing::Forks | Doing::OfAgent) => doing,
        };
        true
    }

    pub(super) fn read_event(&mut self) -> Option<Event<ModelChild>> {
        if let Some(fault) = self.faults.iter_mut().find(|fault| !fault.is_read) {
            fault.is_read = true;
            let Fault { page, write, write_protected, .. } = *fault;
            self.faults_read += 1;
            return Some(Event::Pagefault { address: page, write, write_protected, thread: 0 });
        }
        // Who has made a change may be late to tell of it: the queue is in the order of that.
        let (thread, event) = self.events.pop_front()?;
        self.changing -= 1;
        self.threads[thread].waits_for_event = false;
        if let Event::Fork(child) = &event {
            child.begin();
        }
        Some(event)
    }

    /// Threads whose event was read drop their pages.
    pub(super) fn finish_drops(&mut self) {
        for thread in 0..self.threads.len() {
            if let (Doing::Drops { start, pages, lazily }, false) =
                (self.threads[thread].doing, self.threads[thread].waits_for_event)
            {
                self.drop_pages(start..start + pages * PAGE_SIZE, lazily);
                self.threads[thread].doing = Doing::Nothing;
            }
        }
    }

    pub(super) fn tell(&mut self, thread: usize, event: Event<ModelChild>, next: Doing) -> Doing {
        self.events.push_back((thread, event));
        self.threads[thread].waits_for_event = true;
        next
    }

    fn begin(&mut self, thread: usize) -> Doing {
        let count = self.threads[thread].areas.len();
        if count == 0 || count < 3 && self.random.once_in(12) {
            if self.free_areas.is_empty() {
                return Doing::Nothing;
            }
            let area = self.take_free_area();
            self.make_anonymous(area);
            self.threads[thread].areas.push(area);
            return Doing::Nothing;
        }
        let nth = self.random.below(count);
        let area = self.threads[thread].areas[nth];
        // Changes of the address space are rare, or not.
        let kinds = if self.changes_often { 14 } else { 50 };
        match self.random.below(kinds) {
            0 => self.unmap(thread, nth),
            // It is one mapping.
            1 | 2 if !self.free_areas.is_empty() && self.is_alike(&range_of(area)) => {
                self.remap(thread, nth)
            }
            kind @ 3..=5 if !self.is_accessed(area) => {
                let (start, pages) = self.part_of(area);
                let (range, lazily) = (start..start + pages * PAGE_SIZE, kind == 5);
                // The mapping is locked from the look at its registration on.
                if !self.is_registered(area) {
                    self.drop_pages(range, lazily);
                    return Doing::Nothing;
                }
                self.changing += 1;
                let doing = Doing::Drops { start, pages, lazily };
                self.tell(thread, Event::Remove(range), doing)
            }
            6 => {
                let (start, pages) = self.part_of(area);
                let access = match self.random.below(4) {
                    0 => Access::None,
                    1 => Access::Read,
                    _ => Access::Write,
                };
                // All of it is usual, and puts an end to differences.
                let range = if access == Access::Write {
                    range_of(area)
                } else {
                    start..start + pages * PAGE_SIZE
                };
                self.protect(range, access);
                Doing::Nothing
            }
            8 if self.tells_of_forks && self.changing == 0 => self.clone_past_libc(thread),
            7 => {
                self.take_free();
                Doing::Nothing
            }
            kind => {
                let area = if self.random.once_in(4) { self.area_of_any() } else { area };
                if self.is_dropped(area) {
                    return Doing::Nothing;
                }
                let page = start_of(area) + self.random.below(AREA_PAGES) * PAGE_SIZE;
                let left = if kind % 2 == 0 { 1 } else { 1 + self.random.below(AREA_PAGES) };
                let downwards = kind % 5 == 0;
                Doing::Access { area, page, left, downwards, write: kind % 3 == 0 }
            }
        }
    }

    fn part_of(&mut self, area: usize) -> (usize, usize) {
        let first = self.random.below(AREA_PAGES);
        let pages = 1 + self.random.below(AREA_PAGES - first);
        (start_of(area) + first * PAGE_SIZE, pages)
    }

    /// Threads share memory, too.
    fn area_of_any(&mut self) -> usize {
        let areas: Vec<_> = self.threads.iter().flat_map(|thread| thread.areas.clone()).collect();
        areas[self.random.below(areas.len())]
    }

    /// Who reads what another thread drops finds one thing or the other: programs leave that.
    fn is_dropped(&self, area: usize) -> bool {
        let range = range_of(area);
        let drops = |thread: &Thread| match thread.doing {
            Doing::Drops { start, .. } => range.contains(&start),
            _ => false,
        };
        self.threads.iter().any(drops)
    }

    fn is_accessed(&self, area: usize) -> bool {
        let accesses = |thread: &Thread| match thread.doing {
            Doing::Access { area: accessed, .. } => accessed == area,
            _ => false,
        };
        self.threads.iter().any(accesses)
    }

    /// Often the one that was freed last, as the kernel gives it.
    fn take_free_area(&mut self) -> usize {
        let last = self.free_areas.len() - 1;
        let nth = if self.random.once_in(2) { last } else { self.random.below(last + 1) };
        self.free_areas.remove(nth)
    }

    fn unmap(&mut self, thread: usize, nth: usize) -> Doing {
        let area = self.threads[thread].areas.swap_remove(nth);
        let is_told = self.is_registered(area);
        for page in pages_in(&range_of(area)) {
            self.pages.remove(&page);
            self.truth.remove(&page);
        }
        // Others may map something there from now on.
        self.free_areas.push(area);
        if !is_told {
            return Doing::Nothing;
        }
        self.changing += 1;
        Doing::Unmapped { area }
    }

    fn remap(&mut self, thread: usize, nth: usize) -> Doing {
        let to = self.take_free_area();
        let from = std::mem::replace(&mut self.threads[thread].areas[nth], to);
        let is_told = self.is_registered(from);
        for (old, new) in pages_in(&range_of(from)).zip(pages_in(&range_of(to))) {
            let mapped = self.pages.remove(&old).unwrap();
            self.pages.insert(new, mapped);
            let tag = self.truth.remove(&old).unwrap();
            self.truth.insert(new, tag);
        }
        self.free_areas.push(from);
        if !is_told {
            return Doing::Nothing;
        }
        self.changing += 2;
        Doing::Moved { from, to }
    }

    /// An access of the program's; `false` when it waits for its fault.
    fn access(&mut self, thread: usize, page: usize, write: bool) -> bool {
        // Another thread has unmapped it: a signal, and the thread goes on elsewhere.
        // So is one that it may not touch.
        let Some(mapped) = self.pages.get_mut(&page).filter(|mapped| mapped.allows(write)) else {
            return true;
        };
        let is_missing = mapped.content.is_none() && !mapped.is_zero_page;
        let is_protected = write && mapped.is_protected && !is_missing;
        if is_missing && mapped.is_registered || is_protected {
            let fault =
                Fault { thread, page, write, write_protected: is_protected, is_read: false };
            self.faults.push_back(fault);
            self.threads[thread].waits_for_fault = true;
            return false;
        }
        if is_missing {
            mapped.content = Some(content(0));
        }
        if write {
            self.threads[thread].last_tag += 1 << 8 | 7;
            let tag = self.threads[thread].last_tag;
            mapped.content = Some(content(tag));
            mapped.is_zero_page = false;
            mapped.was_shared = false;
            mapped.is_free = false;
            self.truth.insert(page, tag);
        } else {
            check(mapped, self.truth[&page], page);
        }
        self.accesses += 1;
        true
    }

    /// At the end: touches the first missing page, as a thread of its own. `false` where none is.
    pub(crate) fn touch_missing(&mut self) -> bool {
        let missing = self.pages.iter().find(|(_, mapped)| {
            mapped.is_registered && mapped.content.is_none() && !mapped.is_zero_page
        });
        let Some((&page, _)) = missing else { return false };
        self.protect(page..page + PAGE_SIZE, Access::Write);
        self.threads[0].doing =
            Doing::Access { area: 0, page, left: 1, downwards: false, write: false };
        true
    }

    /// Does a thread wait, or is anything half done?
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = |thread: &Thread| {
            matches!(thread.doing, Doing::Nothing | Doing::OfAgent)
                && !thread.waits_for_event
                && !thread.waits_for_fault
        };
        self.threads.iter().all(is_idle)
    }

    pub(crate) fn describe(&self) -> String {
        let threads: Vec<_> = { self.threads.iter() }
            .map(|thread| (thread.doing, thread.waits_for_fault, thread.waits_for_event))
            .collect();
        let (faults, events) = (&self.faults, &self.events);
        format!("{threads:x?}; faults {faults:x?}; events {events:x?}; changing {}", self.changing)
    }
}

fn next_access(area: usize, page: usize, left: usize, downwards: bool, write: bool) -> Doing {
    let range = range_of(area);
    let next = if downwards { page.wrapping_sub(PAGE_SIZE) } else { page + PAGE_SIZE };
    if left == 1 || !range.contains(&next) {
        return Doing::Nothing;
    }
    Doing::Access { area, page: next, left: left - 1, downwards, write }
}

//! The program of the model: its threads, its address space, and what of both is under way.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use ramfold_sys::uffd::{Event, Partial};
use ramfold_sys::{Errno, PAGE_SIZE};

/// Pages of an area, which is mapped, moved and unmapped as a whole.
pub(crate) const AREA_PAGES: usize = 32;
/// Areas of address space, in a row with as much between them.
const AREAS: usize = 10;
const BASE: usize = 1 << 40;

/// What a page holds, by a number: zero is zeros.
type Tag = u64;

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

/// The content that a tag stands for: same-filled, incompressible, or between.
pub(super) fn content(tag: Tag) -> Box<[u8; PAGE_SIZE]> {
    let mut page = Box::new([0; PAGE_SIZE]);
    let mut random = Random::new(tag);
    for (nth, word) in page.chunks_exact_mut(8).enumerate() {
        let value = match tag % 8 {
            _ if tag == 0 => 0,
            0 => tag,
            1 => random.next(),
            _ if nth % 16 == 0 => tag.wrapping_add(nth as u64),
            _ => tag,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    page
}

/// A page of address space that is mapped.
#[derive(Default)]
pub(super) struct Mapped {
    pub(super) is_registered: bool,
    pub(super) is_protected: bool,
    /// The kernel's page of zeros is mapped.
    pub(super) is_zero_page: bool,
    pub(super) content: Option<Box<[u8; PAGE_SIZE]>>,
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
    },
}

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
    pub(super) events: VecDeque<(usize, Event)>,
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
            doing: Doing::Nothing,
            waits_for_fault: false,
            waits_for_event: false,
            areas: Vec::new(),
            last_tag: (nth as u64 + 1) << 40,
        };
        State {
            random: Random::new(seed),
            threads: (0..threads).map(thread).collect(),
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
            is_ending: false,
        }
    }

    fn make_anonymous(&mut self, area: usize) {
        for page in pages_in(&range_of(area)) {
            self.pages.insert(page, Mapped::default());
            self.truth.insert(page, 0);
        }
    }

    fn is_registered(&self, area: usize) -> bool {
        pages_in(&range_of(area)).any(|page| self.pages[&page].is_registered)
    }

    /// A step of a thread of the program that can go on; `false` where none can.
    pub(crate) fn step(&mut self) -> bool {
        let runnable = |thread: &Thread| {
            let is_free = !thread.waits_for_fault && !thread.waits_for_event;
            is_free && !(self.is_ending && matches!(thread.doing, Doing::Nothing))
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
            Doing::Drops { start, pages } => {
                for page in pages_in(&(start..start + pages * PAGE_SIZE)) {
                    let mapped = self.pages.get_mut(&page).unwrap();
                    mapped.content = None;
                    mapped.is_zero_page = false;
                    mapped.is_protected = false;
                    self.truth.insert(page, 0);
                }
                Doing::Nothing
            }
        };
        true
    }

    fn tell(&mut self, thread: usize, event: Event, next: Doing) -> Doing {
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
        let kinds = if self.changes_often { 12 } else { 40 };
        match self.random.below(kinds) {
            0 => self.unmap(thread, nth),
            1 | 2 if !self.free_areas.is_empty() => self.remap(thread, nth),
            3 | 4 => {
                let first = self.random.below(AREA_PAGES);
                let pages = 1 + self.random.below(AREA_PAGES - first);
                let start = start_of(area) + first * PAGE_SIZE;
                let doing = Doing::Drops { start, pages };
                if self.is_registered(area) {
                    self.changing += 1;
                    let event = Event::Remove(start..start + pages * PAGE_SIZE);
                    self.tell(thread, event, doing);
                }
                doing
            }
            kind => {
                let page = start_of(area) + self.random.below(AREA_PAGES) * PAGE_SIZE;
                let left = if kind % 2 == 0 { 1 } else { 1 + self.random.below(AREA_PAGES) };
                let downwards = kind % 5 == 0;
                Doing::Access { area, page, left, downwards, write: kind % 3 == 0 }
            }
        }
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
        let mapped = self.pages.get_mut(&page).unwrap();
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
            self.truth.insert(page, tag);
        } else {
            check(mapped, self.truth[&page], page);
        }
        self.accesses += 1;
        true
    }

    /// Reads each page of the program's, or says which are missing.
    pub(crate) fn check_all(&self) -> usize {
        let mut missing = 0;
        for (page, mapped) in &self.pages {
            if mapped.content.is_some() || mapped.is_zero_page {
                check(mapped, self.truth[page], *page);
            } else if mapped.is_registered {
                missing += 1;
            } else {
                assert_eq!(self.truth[page], 0, "{page:#x} is missing, and nobody is asked for it");
            }
        }
        missing
    }

    /// At the end: touches the first missing page, as a thread of its own. `false` where none is.
    pub(crate) fn touch_missing(&mut self) -> bool {
        let missing = self.pages.iter().find(|(_, mapped)| {
            mapped.is_registered && mapped.content.is_none() && !mapped.is_zero_page
        });
        let Some((&page, _)) = missing else { return false };
        self.threads[0].doing =
            Doing::Access { area: 0, page, left: 1, downwards: false, write: false };
        true
    }

    /// Does a thread wait, or is anything half done?
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = |thread: &Thread| {
            matches!(thread.doing, Doing::Nothing)
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

    /// Pages of the program's that are in memory.
    pub(crate) fn resident_pages(&self) -> usize {
        self.pages.values().filter(|mapped| mapped.content.is_some()).count()
    }

    /// Areas that are mapped and not registered yet.
    pub(crate) fn unregistered_areas(&self) -> Vec<Range<usize>> {
        let areas = (0..AREAS).map(range_of);
        let is_fresh = |range: &Range<usize>| {
            self.pages.get(&range.start).is_some_and(|mapped| !mapped.is_registered)
        };
        areas.filter(is_fresh).collect()
    }

    pub(super) fn wake(&mut self, range: &Range<usize>) {
        for fault in self.faults.iter().filter(|fault| range.contains(&fault.page)) {
            self.threads[fault.thread].waits_for_fault = false;
        }
        self.faults.retain(|fault| !range.contains(&fault.page));
    }

    pub(super) fn is_staging(&self, address: usize) -> bool {
        self.staging.contains(&address)
    }

    pub(super) fn slot(&mut self, address: usize) -> &mut bool {
        &mut self.staged[(address - self.staging.start) / PAGE_SIZE]
    }

    pub(super) fn fill(
        &mut self,
        dst: usize,
        len: usize,
        mut with: impl FnMut(&mut Mapped, usize),
    ) -> Result<(), Partial> {
        let fail = |done, errno| Err(Partial { done, errno });
        if self.changing > 0 {
            return fail(0, Errno::AGAIN);
        }
        for done in (0..len).step_by(PAGE_SIZE) {
            match self.pages.get_mut(&(dst + done)) {
                Some(mapped) if !mapped.is_registered => return fail(done, Errno::NOENT),
                None => return fail(done, Errno::NOENT),
                Some(mapped) if mapped.content.is_some() || mapped.is_zero_page => {
                    return fail(done, Errno::EXIST);
                }
                Some(mapped) => with(mapped, done),
            }
        }
        Ok(())
    }

    pub(super) fn has_page(&mut self, address: usize) -> bool {
        if self.is_staging(address) {
            return *self.slot(address);
        }
        self.pages
            .get(&address)
            .is_some_and(|mapped| mapped.content.is_some() || mapped.is_zero_page)
    }

    /// Moves one page.
    ///
    /// # Safety
    /// One side is staging, which can be read and written.
    pub(super) unsafe fn move_page(&mut self, dst: usize, src: usize) -> Result<(), Errno> {
        if self.has_page(dst) {
            return Err(Errno::EXIST);
        }
        if !self.has_page(src) {
            return Err(Errno::NOENT);
        }
        if self.is_staging(dst) {
            let mapped = self.pages.get_mut(&src).ok_or(Errno::NOENT)?;
            // The page of zeros is not moved.
            let Some(page) = mapped.content.take() else { return Err(Errno::NOENT) };
            mapped.is_protected = false;
            // SAFETY: by the caller's word.
            unsafe { (dst as *mut [u8; PAGE_SIZE]).write(*page) };
            *self.slot(dst) = true;
        } else {
            let mapped = self.pages.get_mut(&dst).ok_or(Errno::NOENT)?;
            if !mapped.is_registered {
                return Err(Errno::NOENT);
            }
            // SAFETY: by the caller's word.
            mapped.content = Some(Box::new(unsafe { (src as *const [u8; PAGE_SIZE]).read() }));
            *self.slot(src) = false;
            self.wake(&(dst..dst + PAGE_SIZE));
        }
        Ok(())
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

fn check(mapped: &Mapped, tag: Tag, page: usize) {
    let found = mapped.content.as_deref().unwrap_or(&[0; PAGE_SIZE]);
    assert!(*found == *content(tag), "wrong bytes at {page:#x}, which must hold {tag:#x}");
}

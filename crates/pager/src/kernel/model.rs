//! A model of the kernel's side of userfaultfd, with a program whose threads use the memory.
//!
//! Everything happens in one thread, in an order that a seed decides. A call of the agent's may be
//! preceded by steps of the program, which need nothing of the agent's. What Linux 6.18 does that
//! matters here (fs/userfaultfd.c, mm/userfaultfd.c):
//!
//! - faults are handed out before events;
//! - from before a change until its event is read, COPY, MOVE and the like say EAGAIN; the change
//!   itself is made first, but for MADV_DONTNEED, which drops the pages after the event was read;
//! - of two threads' changes the later may be told first;
//! - mremap tells of the move, and then of the unmapping of the old place;
//! - MOVE may move pages that it does not count, and say EEXIST.

use core::ops::Range;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ramfold_sys::pagemap::{PageRegion, Pages, Scanned};
use ramfold_sys::uffd::{Event, Partial, count_all_moved};
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::thread::Timespec;

use super::{Kernel, OpenError};
use crate::agent::Agent;

/// Pages of an area, which is mapped, moved and unmapped as a whole.
pub const AREA_PAGES: usize = 32;
/// Areas of address space, in a row with as much between them.
const AREAS: usize = 10;
/// More than a run can need.
const YIELDS_MAX: usize = 100_000;
const BASE: usize = 1 << 40;

/// What a page holds, by a number: zero is zeros.
type Tag = u64;

/// A sequence of numbers that depends on its seed alone (xorshift64*).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// `true` once in `n` on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The content that a tag stands for: same-filled, incompressible, or between.
fn content(tag: Tag) -> Box<[u8; PAGE_SIZE]> {
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
struct Mapped {
    is_registered: bool,
    is_protected: bool,
    /// The kernel's page of zeros is mapped.
    is_zero_page: bool,
    content: Option<Box<[u8; PAGE_SIZE]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    thread: usize,
    page: usize,
    write: bool,
    write_protected: bool,
    is_read: bool,
}

/// What a thread of the program is doing.
#[derive(Clone, Copy, Debug)]
enum Doing {
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

struct Thread {
    doing: Doing,
    waits_for_fault: bool,
    /// Its event is not read yet.
    waits_for_event: bool,
    areas: Vec<usize>,
    last_tag: Tag,
}

/// The address space, its program, and the userfaultfd.
pub struct State {
    random: Random,
    threads: Vec<Thread>,
    free_areas: Vec<usize>,
    pages: BTreeMap<usize, Mapped>,
    /// What the program must find.
    truth: BTreeMap<usize, Tag>,
    faults: VecDeque<Fault>,
    events: VecDeque<(usize, Event)>,
    /// Changes whose event is not read.
    changing: usize,
    staging: Range<usize>,
    /// Slots of staging that hold a page.
    staged: Vec<bool>,
    changes_often: bool,
    /// Accesses that were made, and faults that were read.
    pub accesses: u64,
    pub faults_read: u64,
    /// Times a thread of the agent had to let others go on.
    yields: usize,
    /// The program is to come to an end: no thread begins anything new.
    pub is_ending: bool,
}

/// What of the agent's is modelled. A copy is the same model.
#[derive(Clone)]
pub struct Model {
    state: Rc<RefCell<State>>,
    others: Rc<RefCell<Option<Others>>>,
}

/// What the other threads of the agent do when one yields.
type Others = Box<dyn Fn()>;

fn start_of(area: usize) -> usize {
    BASE + 2 * area * AREA_PAGES * PAGE_SIZE
}

fn range_of(area: usize) -> Range<usize> {
    start_of(area)..start_of(area) + AREA_PAGES * PAGE_SIZE
}

fn pages_in(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    range.clone().step_by(PAGE_SIZE)
}

impl State {
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
    pub fn step(&mut self) -> bool {
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
    pub fn check_all(&self) -> usize {
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
    pub fn touch_missing(&mut self) -> bool {
        let missing = self.pages.iter().find(|(_, mapped)| {
            mapped.is_registered && mapped.content.is_none() && !mapped.is_zero_page
        });
        let Some((&page, _)) = missing else { return false };
        self.threads[0].doing =
            Doing::Access { area: 0, page, left: 1, downwards: false, write: false };
        true
    }

    /// Does a thread wait, or is anything half done?
    pub fn is_idle(&self) -> bool {
        let is_idle = |thread: &Thread| {
            matches!(thread.doing, Doing::Nothing)
                && !thread.waits_for_event
                && !thread.waits_for_fault
        };
        self.threads.iter().all(is_idle)
    }

    pub fn describe(&self) -> String {
        let threads: Vec<_> = { self.threads.iter() }
            .map(|thread| (thread.doing, thread.waits_for_fault, thread.waits_for_event))
            .collect();
        let (faults, events) = (&self.faults, &self.events);
        format!("{threads:x?}; faults {faults:x?}; events {events:x?}; changing {}", self.changing)
    }

    /// Pages of the program's that are in memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.values().filter(|mapped| mapped.content.is_some()).count()
    }

    /// Areas that are mapped and not registered yet.
    pub fn unregistered_areas(&self) -> Vec<Range<usize>> {
        let areas = (0..AREAS).map(range_of);
        let is_fresh = |range: &Range<usize>| {
            self.pages.get(&range.start).is_some_and(|mapped| !mapped.is_registered)
        };
        areas.filter(is_fresh).collect()
    }

    fn wake(&mut self, range: &Range<usize>) {
        for fault in self.faults.iter().filter(|fault| range.contains(&fault.page)) {
            self.threads[fault.thread].waits_for_fault = false;
        }
        self.faults.retain(|fault| !range.contains(&fault.page));
    }

    fn is_staging(&self, address: usize) -> bool {
        self.staging.contains(&address)
    }

    fn slot(&mut self, address: usize) -> &mut bool {
        &mut self.staged[(address - self.staging.start) / PAGE_SIZE]
    }

    fn fill(
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

    fn has_page(&mut self, address: usize) -> bool {
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
    unsafe fn move_page(&mut self, dst: usize, src: usize) -> Result<(), Errno> {
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

impl Model {
    /// A program of `threads` threads that has nothing mapped yet. `staging`: memory of the agent's that
    /// pages are moved to.
    pub fn new(seed: u64, threads: usize, staging: Range<usize>) -> Model {
        let thread = |nth| Thread {
            doing: Doing::Nothing,
            waits_for_fault: false,
            waits_for_event: false,
            areas: Vec::new(),
            last_tag: (nth as u64 + 1) << 40,
        };
        let state = State {
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
        };
        Model { state: Rc::new(RefCell::new(state)), others: Rc::default() }
    }

    pub fn state(&self) -> std::cell::RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Says what others do when a thread of the agent yields.
    pub fn set_others(&self, others: Option<Others>) {
        *self.others.borrow_mut() = others;
    }

    /// Before a call of the agent's the program may have gone on.
    fn enter(&self) -> std::cell::RefMut<'_, State> {
        let mut state = self.state();
        while state.random.once_in(3) && state.step() {}
        state
    }
}

impl Kernel for Model {
    fn open(_agent: &Agent) -> Result<(Model, bool), OpenError> {
        Err(OpenError::System("a model is made by its test", Errno::NOSYS))
    }

    fn read_event(&self) -> Result<Option<Event>, Errno> {
        let mut state = self.enter();
        if let Some(fault) = state.faults.iter_mut().find(|fault| !fault.is_read) {
            fault.is_read = true;
            let Fault { page, write, write_protected, .. } = *fault;
            state.faults_read += 1;
            return Ok(Some(Event::Pagefault { address: page, write, write_protected, thread: 0 }));
        }
        // Who has made a change may be late to tell of it: the queue is in the order of that.
        let Some((thread, event)) = state.events.pop_front() else { return Ok(None) };
        state.changing -= 1;
        state.threads[thread].waits_for_event = false;
        Ok(Some(event))
    }

    fn wait(&self, other: Option<BorrowedFd<'_>>, _patience: Timespec) -> bool {
        let state = self.enter();
        let has_message =
            state.faults.iter().any(|fault| !fault.is_read) || !state.events.is_empty();
        // A read of the spill file takes the time that it takes.
        let short = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        has_message
            || other.is_some_and(|other| {
                poll(&mut [PollFd::new(&other, PollFlags::IN)], Some(&short)) != Ok(0)
            })
    }

    fn is_changing(&self) -> bool {
        self.enter().changing > 0
    }

    fn keep_open(&self) {}

    fn register(&self, range: Range<usize>, _mode: u64) -> Result<(), Errno> {
        let mut state = self.enter();
        if state.is_staging(range.start) {
            pages_in(&range).for_each(|page| *state.slot(page) = false);
            return Ok(());
        }
        // It passes over holes.
        let mut any = false;
        for page in pages_in(&range) {
            if let Some(mapped) = state.pages.get_mut(&page) {
                mapped.is_registered = true;
                any = true;
            }
        }
        if any { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut state = self.enter();
        if state.is_staging(range.start) {
            return Ok(());
        }
        for page in pages_in(&range) {
            if let Some(mapped) = state.pages.get_mut(&page) {
                mapped.is_registered = false;
                mapped.is_protected = false;
            }
        }
        state.wake(&range);
        Ok(())
    }

    fn is_registered_anonymous(&self, range: Range<usize>) -> Result<bool, Errno> {
        let state = self.enter();
        if state.changing > 0 {
            return Err(Errno::AGAIN);
        }
        Ok(pages_in(&range)
            .all(|page| state.pages.get(&page).is_some_and(|mapped| mapped.is_registered)))
    }

    fn release_other(&self, _address: usize) -> bool {
        false
    }

    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        let copied = unsafe { self.copy_without_wake(dst, src, len) };
        let done = copied.map_or_else(|partial| partial.done, |()| len);
        if done > 0 {
            self.state().wake(&(dst..dst + done));
        }
        copied
    }

    unsafe fn copy_without_wake(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<(), Partial> {
        self.enter().fill(dst, len, |mapped, at| {
            // SAFETY: by the caller's word.
            let page = unsafe { src.add(at).cast::<[u8; PAGE_SIZE]>().read() };
            mapped.content = Some(Box::new(page));
        })
    }

    fn zeropage_without_wake(&self, dst: usize, len: usize) -> Result<(), Partial> {
        self.enter().fill(dst, len, |mapped, _| mapped.is_zero_page = true)
    }

    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), Partial> {
        let counted = {
            let mut state = self.enter();
            if state.changing > 0 {
                return Err(Partial { done: 0, errno: Errno::AGAIN });
            }
            let uncounted = state.random.once_in(8).then(|| state.random.below(len / PAGE_SIZE));
            let mut counted = Ok(());
            for done in (0..len).step_by(PAGE_SIZE) {
                // SAFETY: by the caller's word.
                if let Err(errno) = unsafe { state.move_page(dst + done, src + done) } {
                    counted = Err(Partial { done, errno });
                    break;
                }
                // It had to try again, passes over the count of what it has moved, and finds it there.
                if uncounted == Some(done / PAGE_SIZE) {
                    counted = Err(Partial { done, errno: Errno::EXIST });
                    break;
                }
            }
            counted
        };
        match counted {
            Err(partial) if partial.done > 0 || partial.errno == Errno::EXIST => {
                count_all_moved(|page| Ok(self.state().has_page(page)), dst, src, len, partial)
            }
            counted => counted,
        }
    }

    fn write_protect(&self, range: Range<usize>, protect: bool) -> Result<(), Errno> {
        let mut state = self.enter();
        if state.changing > 0 {
            return Err(Errno::AGAIN);
        }
        for page in pages_in(&range) {
            let mapped = state.pages.get_mut(&page).filter(|mapped| mapped.is_registered);
            let mapped = mapped.ok_or(Errno::NOENT)?;
            mapped.is_protected = protect && (mapped.content.is_some() || mapped.is_zero_page);
        }
        if !protect {
            state.wake(&range);
        }
        Ok(())
    }

    fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter().wake(&range);
        Ok(())
    }

    fn present(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno> {
        let state = self.enter();
        let is_wanted = |mapped: &Mapped| match pages {
            Pages::All => mapped.content.is_some(),
            Pages::Unprotected => mapped.content.is_some() && !mapped.is_protected,
            Pages::Zeros => mapped.is_zero_page,
        };
        let (mut count, mut found) = (0, 0);
        for (&page, mapped) in state.pages.range(range.clone()) {
            if !is_wanted(mapped) {
                continue;
            }
            let page = page as u64;
            if count > 0 && runs[count - 1].end == page {
                runs[count - 1].end += PAGE_SIZE as u64;
            } else if count == runs.len() {
                return Ok(Scanned { runs: count, end: page as usize });
            } else {
                runs[count] =
                    PageRegion { start: page, end: page + PAGE_SIZE as u64, categories: 0 };
                count += 1;
            }
            found += 1;
            if found == most {
                return Ok(Scanned { runs: count, end: page as usize + PAGE_SIZE });
            }
        }
        Ok(Scanned { runs: count, end: range.end })
    }

    fn is_exclusive(&self, _address: usize) -> bool {
        true
    }

    fn empty_pages(&self, address: usize, most: usize) -> Result<usize, Errno> {
        let mut state = self.enter();
        Ok((0..most).take_while(|nth| !state.has_page(address + nth * PAGE_SIZE)).count())
    }

    fn empty_ahead(&self, address: usize, stride: isize, most: usize) -> Result<u64, Errno> {
        let mut state = self.enter();
        let mut empty = 0;
        for nth in 0..most.min(64) {
            let distance = stride * (nth as isize + 1) * PAGE_SIZE as isize;
            let page = address.wrapping_add_signed(distance);
            if !state.has_page(page) {
                empty |= 1 << nth;
            }
        }
        Ok(empty)
    }

    fn yield_now(&self) {
        let mut state = self.state();
        state.step();
        state.yields += 1;
        assert!(state.yields < YIELDS_MAX, "a thread waits for ever: {}", state.describe());
        drop(state);
        if let Some(others) = &*self.others.borrow() {
            others();
        }
    }

    fn populate(&self, address: usize, _write: bool) -> Result<(), Errno> {
        // A missing page would be a fault of this thread.
        if self.enter().has_page(address) { Ok(()) } else { Err(Errno::FAULT) }
    }
}

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
//! - MOVE may move pages that it does not count, and say EEXIST;
//! - somebody who reads the process's memory leaves pages of zeros in staging;
//! - MOVE wants one mapping that may be read and written (EINVAL), and pages that no fork has made
//!   shared, or that were written to since (EBUSY);
//! - mprotect tells nobody, MADV_FREE as MADV_DONTNEED does, and its pages go later, or never;
//! - a clone waits until its event is read.

mod child;
mod family;
pub(crate) mod maps;
mod memory;
pub(crate) mod proc;
mod program;
pub(crate) mod time;
pub(crate) mod uring;

use core::ops::Range;
use std::cell::{OnceCell, RefCell, RefMut};
use std::rc::Rc;

use ramfold_sys::pagemap::{PageRegion, Pages, Scanned};
use ramfold_sys::uffd::{Event, Partial, count_all_moved};
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::fd::BorrowedFd;
use rustix::thread::Timespec;

pub(crate) use child::ModelChild;
use memory::Mapped;
use program::pages_in;
pub(crate) use program::{Random, State};

use super::{ForkedChild, Kernel, OpenError};
use crate::agent::Agent;

/// More than a run can need.
const YIELDS_MAX: usize = 100_000;
/// Another thread of the agent goes on before one in so many calls of a thread that does not hold
/// the lock.
const OTHERS_RARELY: usize = 6;
const OTHERS_AT_CLOCK: usize = 12;

/// What of the agent's is modelled. A copy is the same model.
#[derive(Clone)]
pub(crate) struct Model {
    state: Rc<RefCell<State>>,
    others: Rc<OnceCell<Others>>,
    own: Rc<OnceCell<Own>>,
}

/// What the other threads of the agent do when one lets them go on.
type Others = Box<dyn Fn()>;

/// The agent's own memory: in RAM, and all that is writable.
type Own = Box<dyn Fn() -> [u64; 2]>;

thread_local! {
    static RUNNING: RefCell<Option<Model>> = const { RefCell::new(None) };
}

/// The model of the simulation that this thread runs.
fn running() -> Option<Model> {
    RUNNING.with_borrow(Clone::clone)
}

/// A thread of the agent sleeps for so long at most; `false` where there is no simulation.
pub(crate) fn sleep(ns: u64) -> bool {
    let Some(model) = running() else { return false };
    model.pass(ns);
    model.let_others();
    true
}

/// So much has happened without a call to the kernel that others have gone on.
fn look_at_clock() {
    if let Some(model) = running()
        && model.state().random.once_in(OTHERS_AT_CLOCK)
    {
        model.let_others();
    }
}

impl Model {
    /// A program of `threads` threads that has nothing mapped yet. `staging`: memory of the agent's
    /// that pages are moved to.
    pub(crate) fn new(seed: u64, threads: usize, staging: Range<usize>) -> Model {
        let state = State::new(seed, threads, staging);
        let model = Model {
            state: Rc::new(RefCell::new(state)),
            others: Rc::default(),
            own: Rc::default(),
        };
        time::begin();
        RUNNING.set(Some(model.clone()));
        model
    }

    /// The simulation is over.
    pub(crate) fn end() {
        time::end();
        RUNNING.set(None);
    }

    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Says what others do when a thread of the agent lets them go on.
    pub(crate) fn set_others(&self, others: Others) {
        assert!(self.others.set(others).is_ok());
    }

    /// Says what the agent has of its own.
    pub(crate) fn set_own(&self, own: Own) {
        assert!(self.own.set(own).is_ok());
    }

    /// So much time passes. Nobody is kept from a processor for long between the event of
    /// MADV_DONTNEED and the dropping: the agent relies on that ([`crate::take::dropped`]).
    pub(crate) fn pass(&self, ns: u64) {
        self.state().finish_drops();
        time::pass(ns);
    }

    fn let_others(&self) {
        if let Some(others) = self.others.get() {
            others();
        }
    }

    /// Before a call of the agent's the program and the agent's other threads may have gone on.
    fn enter(&self) -> RefMut<'_, State> {
        if self.state().random.once_in(OTHERS_RARELY) {
            self.let_others();
        }
        let mut state = self.state();
        while state.random.once_in(3) && state.step() {}
        state
    }

    fn memory(&self) -> proc::Memory {
        // Reclaim asks every few pages.
        if self.state().random.once_in(2) {
            self.let_others();
        }
        let [resident, writable] = self.own.get().map_or([0; 2], |own| own());
        let state = self.enter();
        let mapped_bytes = state.mapped_bytes();
        proc::Memory {
            mapped_bytes,
            anonymous_bytes: state.resident_bytes() + resident,
            shared_bytes: 0,
            writable_bytes: mapped_bytes + writable,
        }
    }
}

impl Kernel for Model {
    type Child = ModelChild;

    fn open(_agent: &Agent) -> Result<(Model, bool), OpenError> {
        // That of a forked child.
        let model = running().ok_or(OpenError::System("there is no model", Errno::NOSYS))?;
        Ok((model, false))
    }

    fn read_event(&self) -> Result<Option<Event<ModelChild>>, Errno> {
        Ok(self.enter().read_event())
    }

    fn wait(&self, other: Option<BorrowedFd<'_>>, _patience: Timespec) -> bool {
        let state = self.enter();
        // A read of the spill file takes the time that it takes.
        other.is_some()
            || state.faults.iter().any(|fault| !fault.is_read)
            || !state.events.is_empty()
    }

    fn is_changing(&self) -> bool {
        self.enter().changing > 0
    }

    fn keep_open(&self) {}

    fn register(&self, range: Range<usize>, _mode: u64) -> Result<(), Errno> {
        let mut state = self.enter();
        if state.is_staging(range.start) {
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
            // To give its frames up, which is not modelled.
            pages_in(&range).for_each(|page| *state.slot(page) = false);
            return Ok(());
        }
        state.unregister(&range);
        Ok(())
    }

    fn is_registered_anonymous(&self, range: Range<usize>) -> Result<bool, Errno> {
        let state = self.enter();
        if state.changing > 0 {
            return Err(Errno::AGAIN);
        }
        Ok(state.is_registered_alike(&range))
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
        // SAFETY: by the caller's word.
        unsafe { self.enter().copy(dst, src, len) }
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
            // A page is locked, or changes in that instant.
            if state.random.once_in(32) {
                return Err(Partial { done: 0, errno: Errno::AGAIN });
            }
            if !state.can_move(&(dst..dst + len), &(src..src + len)) {
                return Err(Partial { done: 0, errno: Errno::INVAL });
            }
            let uncounted = state.random.once_in(8).then(|| state.random.below(len / PAGE_SIZE));
            let mut counted = Ok(());
            for done in (0..len).step_by(PAGE_SIZE) {
                // SAFETY: by the caller's word.
                if let Err(errno) = unsafe { state.move_page(dst + done, src + done) } {
                    counted = Err(Partial { done, errno });
                    break;
                }
                // It had to try again, passes over the count of what it has moved, and finds it
                // there.
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

    fn is_exclusive(&self, address: usize) -> bool {
        let mut state = self.enter();
        let is_shared = state.pages.get(&address).is_some_and(|mapped| mapped.was_shared);
        // A relative may have made its own copy since, or be gone.
        !is_shared || state.random.once_in(2)
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
        self.let_others();
    }

    fn populate(&self, address: usize, write: bool) -> Result<(), Errno> {
        drop(self.enter());
        loop {
            if let Some(populated) = self.state().populate(address, write) {
                return populated;
            }
            while self.state().agent_waits() {
                self.yield_now();
            }
        }
    }
}

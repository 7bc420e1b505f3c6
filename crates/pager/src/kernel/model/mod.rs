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

mod program;

use core::ops::Range;
use std::cell::RefCell;
use std::rc::Rc;

use ramfold_sys::pagemap::{PageRegion, Pages, Scanned};
use ramfold_sys::uffd::{Event, Partial, count_all_moved};
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::thread::Timespec;

pub(crate) use program::{AREA_PAGES, Random, State};
use program::{Fault, Mapped, pages_in};

use super::{Kernel, OpenError};
use crate::agent::Agent;

/// More than a run can need.
const YIELDS_MAX: usize = 100_000;

/// What of the agent's is modelled. A copy is the same model.
#[derive(Clone)]
pub(crate) struct Model {
    state: Rc<RefCell<State>>,
    others: Rc<RefCell<Option<Others>>>,
}

/// What the other threads of the agent do when one yields.
type Others = Box<dyn Fn()>;

impl Model {
    /// A program of `threads` threads that has nothing mapped yet. `staging`: memory of the agent's that
    /// pages are moved to.
    pub(crate) fn new(seed: u64, threads: usize, staging: Range<usize>) -> Model {
        let state = State::new(seed, threads, staging);
        Model { state: Rc::new(RefCell::new(state)), others: Rc::default() }
    }

    pub(crate) fn state(&self) -> std::cell::RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Says what others do when a thread of the agent yields.
    pub(crate) fn set_others(&self, others: Option<Others>) {
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

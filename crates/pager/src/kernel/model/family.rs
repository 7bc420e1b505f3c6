//! Forks of the model's program.

use core::ops::Range;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::uffd::Event;

use super::ModelChild;
use super::program::{Doing, Random, State, Thread, pages_in};

impl State {
    /// A thread begins to fork, if one can.
    pub(crate) fn begin_fork(&mut self) -> Option<usize> {
        let can = |thread: &Thread| {
            matches!(thread.doing, Doing::Nothing) && !thread.waits_for_event && !self.is_ending
        };
        let thread = self.threads.iter().position(can)?;
        self.threads[thread].doing = Doing::Forks;
        Some(thread)
    }

    /// Is there no change that the handler has not read of? What a child has of one is not covered
    /// (docs/design/forks.md).
    pub(crate) fn is_told_all(&self) -> bool {
        self.changing == 0
    }

    /// In the parent or the child: the address space was copied.
    pub(crate) fn share_all(&mut self) {
        for mapped in self.pages.values_mut() {
            mapped.was_shared = mapped.content.is_some();
        }
    }

    /// The thread goes on, in the parent.
    pub(crate) fn end_fork(&mut self, thread: usize) {
        self.threads[thread].doing = Doing::Nothing;
    }

    /// In the child, which has the forking thread alone, and nothing registered. `seed`: it goes on
    /// in an order of its own.
    pub(crate) fn begin_child(&mut self, thread: usize, seed: u64) {
        self.random = Random::new(seed);
        for nth in 0..self.threads.len() {
            if let Doing::Drops { start, pages, .. } = self.threads[nth].doing {
                self.leave_dropped(start..start + pages * PAGE_SIZE);
            }
        }
        let areas = self.threads.iter().flat_map(|thread| thread.areas.clone()).collect();
        let of_agent = self.threads.pop();
        let mut forking = self.threads.swap_remove(thread);
        forking.areas = areas;
        // No content is that of a page of the parent's.
        forking.last_tag |= seed << 48;
        self.threads = [forking].into_iter().chain(of_agent).collect();
        self.faults.clear();
        self.events.clear();
        self.children.clear();
    }

    /// In a child with an agent nothing is registered.
    pub(crate) fn unregister_all(&mut self) {
        for mapped in self.pages.values_mut() {
            mapped.is_registered = false;
            mapped.is_protected = false;
        }
    }

    /// The system call itself, which the kernel tells of. The child begins when that is read.
    pub(super) fn clone_past_libc(&mut self, thread: usize) -> Doing {
        const CHILDREN_MAX: usize = 3;
        if self.children.len() == CHILDREN_MAX {
            return Doing::Nothing;
        }
        self.share_all();
        let seed = self.random.next() % (1 << 12);
        let mut child = State {
            random: self.random.clone(),
            threads: self.threads.clone(),
            free_areas: self.free_areas.clone(),
            pages: self.pages.clone(),
            truth: self.truth.clone(),
            faults: VecDeque::new(),
            events: VecDeque::new(),
            changing: 0,
            staging: 0..0,
            staged: Vec::new(),
            changes_often: self.changes_often,
            accesses: 0,
            faults_read: 0,
            yields: 0,
            tells_of_forks: true,
            children: Vec::new(),
            is_ending: false,
        };
        child.begin_child(thread, seed);
        child.threads[0].doing = Doing::Forks;
        let child = Rc::new(RefCell::new(child));
        self.children.push(Rc::clone(&child));
        self.changing += 1;
        self.tell(thread, Event::Fork(ModelChild::new(child)), Doing::Nothing)
    }

    /// One of the children goes on.
    pub(crate) fn step_child(&mut self) {
        if !self.children.is_empty() {
            let child = self.random.below(self.children.len());
            let mut child = self.children[child].borrow_mut();
            child.step();
            child.step_child();
        }
    }

    /// All children come to an end, and have what they must. Returns how many there were.
    pub(crate) fn finish_children(&mut self) -> usize {
        let mut count = self.children.len();
        for child in &self.children {
            let mut child = child.borrow_mut();
            child.is_ending = true;
            while child.step() {}
            assert!(child.is_idle(), "a child waits for ever: {}", child.describe());
            assert_eq!(child.check_all(), 0);
            count += child.finish_children();
        }
        count
    }

    /// The descriptor is closed.
    pub(super) fn close(&mut self) {
        self.unregister_all();
        self.tells_of_forks = false;
        self.faults.clear();
        // Whoever it tells of is on its own as well.
        drop(core::mem::take(&mut self.events));
        self.changing = 0;
        for thread in &mut self.threads {
            thread.waits_for_fault = false;
            thread.waits_for_event = false;
        }
    }

    /// The thread that was about to drop these pages is not in this process. Those in memory stay;
    /// what was taken out is forgotten by now.
    pub(super) fn leave_dropped(&mut self, range: Range<usize>) {
        for page in pages_in(&range) {
            if self.pages[&page].content.is_none() {
                self.truth.insert(page, 0);
            }
        }
    }
}

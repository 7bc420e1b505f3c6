//! The upper level: pages of files, as they are, in the kernel's page cache over the mount.
//!
//! The kernel does not say which of them it still has, nor which of them are read. What is known is
//! what it was given. So pages are dropped in the order in which they were given, but those that
//! have been asked for again and again stay longer, and the kernel gets fewer others for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ramfold_sys::PAGE_SIZE;

use super::page_times::PageTimes;
use super::{CachedFile, Shared, locked};

/// Pages that were given for the first time have this part of the level at least.
const YOUNG_PART: u64 = 4;
/// What is dropped at once, as a part of the level: to be told to drop anything of a file makes the
/// kernel ask for its attributes.
const DROPPED_PART: u64 = 32;
/// Who gives more by this part than the level may have, and by a request, waits a little, having
/// answered: dropping is slower than reading small files. No longer: what is dropped may wait for
/// an answer, too.
const FAR_PART: u64 = 32;
const FAR_PAGES: u64 = 256;
const PATIENCE: Duration = Duration::from_millis(10);

/// What the kernel has been told to drop.
pub(crate) trait Kernel: Send {
    /// Drops these bytes of a file from its page cache, and waits for that.
    fn drop_pages(&mut self, node: u64, bytes: Range<u64>);
}

pub(super) struct KernelLevel {
    state: Mutex<State>,
    /// When each page was given last.
    latest: PageTimes,
    /// Most pages the level may have.
    limit: AtomicU64,
    over: Condvar,
    /// What was too much is being dropped.
    taken: Condvar,
}

#[derive(Default)]
struct State {
    /// Pages that were given for the first time.
    young: Queue,
    /// Pages that are asked for again and again.
    frequent: Queue,
    /// How often pages were given.
    times: u32,
    dropped_pages: u64,
    /// There is somebody who drops what is too much.
    is_served: bool,
    stopping: bool,
}

#[derive(Default)]
struct Queue {
    given: VecDeque<Given>,
    pages: u64,
}

/// Pages of a file that were given at once.
struct Given {
    file: Weak<CachedFile>,
    /// The first one (40 bits), and how many (24).
    pages: u64,
    /// Of which data of the file.
    data: u32,
    time: u32,
}

impl Given {
    fn new(file: &Arc<CachedFile>, pages: &Range<u64>, time: u32) -> Given {
        let count = pages.end - pages.start;
        Given {
            file: Arc::downgrade(file),
            pages: pages.start << 24 | count,
            data: file.data(),
            time,
        }
    }

    /// The file, unless the kernel has nothing of these pages any more: nobody knows the file, or
    /// it was changed and read again since.
    fn file(&self) -> Option<Arc<CachedFile>> {
        self.file.upgrade().filter(|file| !file.is_dropped(self.data))
    }

    fn pages(&self) -> Range<u64> {
        let first = self.pages >> 24;
        first..first + self.count()
    }

    fn count(&self) -> u64 {
        self.pages & 0xff_ffff
    }
}

impl Queue {
    fn push(&mut self, given: Given) {
        self.pages += given.count();
        self.given.push_back(given);
    }

    fn pop(&mut self) -> Option<Given> {
        let given = self.given.pop_front()?;
        self.pages -= given.count();
        Some(given)
    }
}

impl KernelLevel {
    /// A level of at most so many bytes, and of none until it has a limit.
    pub(super) fn new(memory_bytes: u64) -> KernelLevel {
        KernelLevel {
            state: Mutex::default(),
            latest: PageTimes::new(memory_bytes / PAGE_SIZE as u64),
            limit: AtomicU64::new(0),
            over: Condvar::new(),
            taken: Condvar::new(),
        }
    }

    pub(super) fn set_limit_bytes(&self, bytes: u64) {
        self.limit.store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Most bytes of files that it can have.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().pages() * PAGE_SIZE as u64
    }

    /// What remembering them takes.
    pub(super) fn remembering_bytes(&self) -> u64 {
        let state = self.lock();
        let entries = (state.young.given.capacity() + state.frequent.given.capacity()) as u64;
        entries * size_of::<Given>() as u64 + self.latest.bytes()
    }

    pub(super) fn dropped_pages(&self) -> u64 {
        self.lock().dropped_pages
    }

    /// The kernel has these pages now.
    pub(super) fn note_given(&self, file: &Arc<CachedFile>, pages: Range<u64>, is_frequent: bool) {
        let mut state = self.lock();
        state.times = state.times.wrapping_add(1);
        let given = Given::new(file, &pages, state.times);
        for page in pages {
            self.latest.note(file.name_of(page), state.times);
        }
        if is_frequent {
            state.frequent.push(given)
        } else {
            state.young.push(given)
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if state.pages() <= limit {
            return;
        }
        self.over.notify_one();
        let far = limit + limit / FAR_PART + FAR_PAGES;
        let is_far_over =
            |state: &mut State| state.is_served && !state.stopping && state.pages() > far;
        // That it wakes late, or has dropped too little meanwhile, is as well.
        drop(self.taken.wait_timeout_while(state, PATIENCE, is_far_over));
    }

    /// Looks whether there is too much now.
    pub(super) fn limit_changed(&self) {
        // Whoever has found it in order by the limit before waits from here on.
        drop(self.lock());
        self.over.notify_one();
    }

    /// Has the kernel drop what is too much, until [`Self::stop`]: what a thread of its own does,
    /// since dropping waits for pages that are just being read, and they wait for the threads that
    /// read.
    pub(super) fn run(&self, mut kernel: impl Kernel, shared: &Shared) {
        self.lock().is_served = true;
        loop {
            let mut state = self.lock();
            while !state.stopping && state.pages() <= self.limit.load(Ordering::Relaxed) {
                state = self.over.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stopping {
                return;
            }
            let given = state.take_excess(self.limit.load(Ordering::Relaxed));
            drop(state);
            self.taken.notify_all();
            let mut dropped = 0;
            for (file, pages) in merged(self.not_given_since(given)) {
                dropped += pages.end - pages.start;
                for page in pages.clone() {
                    shared.balance.note_dropped(file.name_of(page));
                }
                let page = PAGE_SIZE as u64;
                kernel.drop_pages(file.node(), pages.start * page..pages.end * page);
            }
            self.lock().dropped_pages += dropped;
            shared.rebalance();
            shared.make_room();
        }
    }

    /// Without pages that were given once more since.
    fn not_given_since(
        &self,
        taken: Vec<(Arc<CachedFile>, Given)>,
    ) -> Vec<(Arc<CachedFile>, Range<u64>)> {
        let mut pages = Vec::with_capacity(taken.len());
        for (file, given) in taken {
            let latest = |page: u64| self.latest.get(file.name_of(page));
            let is_later = |page: &u64| latest(*page).is_some_and(|time| time != given.time);
            let mut rest = given.pages();
            while let Some(first) = rest.find(|page| !is_later(page)) {
                let end = (first + 1..rest.end).find(is_later).unwrap_or(rest.end);
                pages.push((Arc::clone(&file), first..end));
                rest = end..rest.end;
            }
        }
        pages
    }

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.over.notify_all();
        self.taken.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn pages(&self) -> u64 {
        self.young.pages + self.frequent.pages
    }

    /// What has to go for the level to be somewhat below its limit.
    fn take_excess(&mut self, limit: u64) -> Vec<(Arc<CachedFile>, Given)> {
        let target = limit - limit / DROPPED_PART;
        let mut taken = Vec::new();
        while self.pages() > target {
            let young_first = self.young.pages > limit / YOUNG_PART;
            let next = if young_first { self.young.pop() } else { self.frequent.pop() };
            let Some(given) = next.or_else(|| self.young.pop()) else { break };
            if let Some(file) = given.file() {
                taken.push((file, given));
            }
        }
        taken
    }
}

/// Puts neighbours together.
fn merged(mut given: Vec<(Arc<CachedFile>, Range<u64>)>) -> Vec<(Arc<CachedFile>, Range<u64>)> {
    given.sort_by_key(|(file, pages)| (Arc::as_ptr(file), pages.start));
    let mut merged: Vec<(Arc<CachedFile>, Range<u64>)> = Vec::with_capacity(given.len());
    for (file, pages) in given {
        match merged.last_mut() {
            Some((last, range)) if Arc::ptr_eq(last, &file) && pages.start <= range.end => {
                range.end = range.end.max(pages.end);
            }
            _ => merged.push((file, pages)),
        }
    }
    merged
}

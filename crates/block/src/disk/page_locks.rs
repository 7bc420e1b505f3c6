//! Locks of pages. A request that changes a page, or follows its reference to a shared object, has
//! its lock; one that reads or changes a page of a cluster has that of all its pages. Many pages
//! share a lock, so that a disk of any size has few.

use ramfold_sys::sync::{Mutex, MutexGuard};

/// Two of as many pages that are used at the same time mostly have locks of their own.
const COUNT: usize = 256;

/// On a cache line of its own, for locks are used in parallel.
#[derive(Default)]
#[repr(align(64))]
struct Line(LockWord);

struct LockWord(Mutex<()>);

impl Default for LockWord {
    fn default() -> Self {
        LockWord(Mutex::new(()))
    }
}

pub(super) struct PageLocks {
    lines: Box<[Line; COUNT]>,
    /// Neighbours that share a lock.
    pages_each: u64,
}

/// The lock of a page, held.
pub(super) struct PageLock<'a> {
    _guard: MutexGuard<'a, ()>,
    line: usize,
}

/// The lock of a second page.
pub(super) enum SecondLock<'a> {
    /// It is the same as the first page's.
    Same,
    /// It is held too.
    Own { _guard: MutexGuard<'a, ()> },
}

impl PageLocks {
    pub(super) const BYTES: usize = size_of::<[Line; COUNT]>();

    /// Locks, each of which `pages_each` neighbours share; the first is at a multiple of that.
    pub(super) fn new(pages_each: u64) -> PageLocks {
        PageLocks { lines: Box::new(std::array::from_fn(|_| Line::default())), pages_each }
    }

    fn line(&self, block: u64) -> usize {
        let unit = block / self.pages_each;
        // Requests in order from several places far apart, at multiples of a power of two.
        (unit ^ unit >> 8 ^ unit >> 16) as usize % COUNT
    }

    pub(super) fn lock(&self, block: u64) -> PageLock<'_> {
        let line = self.line(block);
        PageLock { _guard: self.lines[line].0.0.lock(), line }
    }

    /// Waits for everybody who has the lock of one of these pages now.
    pub(super) fn pass(&self, blocks: &std::ops::Range<u64>) {
        if blocks.end - blocks.start >= COUNT as u64 {
            self.lines.iter().for_each(|line| drop(line.0.0.lock()));
        } else {
            blocks.clone().for_each(|block| drop(self.lock(block)));
        }
    }

    /// The lock of a second page, if that is free: a thread that has a page's lock does not wait
    /// for another.
    pub(super) fn try_second(&self, first: &PageLock<'_>, block: u64) -> Option<SecondLock<'_>> {
        let line = self.line(block);
        if line == first.line {
            return Some(SecondLock::Same);
        }
        self.lines[line].0.0.try_lock().map(|guard| SecondLock::Own { _guard: guard })
    }
}

//! Which pages are written back and leave, when the memory runs short: the keeper's part.
//!
//! The oldest go first. How old a page is is known to a part of the cache: an age begins with each
//! look at all marks, of which there is one for each batch and for each part that leaves, and after
//! a number of writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::config::{BackingConfig, BackingError};
use super::marks::{AGES, DIRTY};
use super::place::Chunk;
use super::write_back::AfterError;
use super::{GROUP, Shared, chunk};
use crate::disk::DiskError;
use crate::disk::keeper::Outlet;
use crate::disk::workspace::{Needs, Workspaces};

/// What is left of the pool when pages leave, as a part of it.
const FREE_PART: usize = 16;
/// Pages that leave at once, as a part of the cache.
const LEAVING_PART: u64 = 32;
const LEAVING_MIN: u64 = 16;
/// Pages of a list, of which there are two, for each byte of memory.
const BYTES_PER_LISTED: u64 = 8 << 10;
const LISTED_MIN: u64 = 256;

/// How many blocks a list has room for.
pub(super) fn list_capacity(memory_bytes: u64) -> usize {
    (memory_bytes / BYTES_PER_LISTED).max(LISTED_MIN) as usize
}

pub(super) struct Cleaner {
    shared: Arc<Shared>,
    own: Workspaces,
    chunk: Box<Chunk>,
    list: Vec<u64>,
    batch_percent: u64,
    clean_above_percent: u64,
}

/// Which pages are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Dirty,
    Clean,
}

impl Cleaner {
    pub(super) fn new(
        shared: &Arc<Shared>,
        config: &BackingConfig,
        capacity: usize,
    ) -> Result<Cleaner, BackingError> {
        let codec = config.codec;
        let own = Workspaces::new(1, Needs::of_pages(codec))
            .map_err(|source| DiskError::Codec { codec, source })?;
        Ok(Cleaner {
            shared: Arc::clone(shared),
            own,
            chunk: chunk(),
            list: Vec::with_capacity(capacity),
            batch_percent: config.batch_percent.into(),
            clean_above_percent: config.clean_above_percent.into(),
        })
    }

    /// Whether dirty pages take more of the memory than they may.
    fn is_dirty(&self) -> bool {
        let Shared { inner, marks, .. } = &*self.shared;
        let (dirty, pages) =
            (marks.dirty.load(Ordering::Relaxed), marks.pages.load(Ordering::Relaxed).max(1));
        let pool = inner.room.pool_bytes(&inner.store).max(1) as f64;
        let full = inner.store.pool_claimed_bytes() as f64 / pool;
        dirty as f64 / pages as f64 * full > self.clean_above_percent as f64 / 100.0
    }

    fn is_full(&self) -> bool {
        let inner = &self.shared.inner;
        let pool_bytes = inner.room.pool_bytes(&inner.store);
        inner.store.pool_claimed_bytes() + pool_bytes / FREE_PART > pool_bytes
    }

    /// Writes the oldest dirty pages, as far as they can be. Whether any were.
    fn write_batch(&mut self) -> bool {
        let pages = self.shared.marks.pages.load(Ordering::Relaxed);
        self.list_oldest(Which::Dirty, (pages * self.batch_percent / 100).max(1));
        self.list.sort_unstable();
        let mut workspace = self.own.take();
        let (written, result) =
            self.shared.write_list(&mut workspace, &mut self.chunk, &self.list, AfterError::GoOn);
        self.shared.counters.batches.add(u64::from(written > 0));
        if written > 0 && result.is_ok() {
            self.shared.note_all_is_well();
        }
        written > 0
    }

    /// Lets the oldest clean pages leave. Whether any did.
    fn evict(&mut self) -> bool {
        let pages = self.shared.marks.pages.load(Ordering::Relaxed);
        self.list_oldest(Which::Clean, (pages / LEAVING_PART).max(LEAVING_MIN));
        let mut left = 0;
        for &block in &self.list {
            let lock = self.shared.inner.locks.lock(block);
            if self.shared.mark_of(&lock, block).is_some_and(|mark| mark & DIRTY == 0) {
                self.shared.remove(&lock, block);
                left += 1;
            }
        }
        self.shared.counters.evicted.add(left);
        left > 0
    }

    /// Lists the oldest pages: `count` of them at most, and no more than the list has room for.
    fn list_oldest(&mut self, which: Which, count: u64) {
        self.list.clear();
        let count = count.min(self.list.capacity() as u64);
        let Shared { inner, marks, .. } = &*self.shared;
        marks.begin_age();
        let mut ages = [0u64; AGES];
        let is_meant = |mark: u8| (mark & DIRTY != 0) == (which == Which::Dirty);
        for_each_group(inner, |group| {
            inner.store.neighbours(group, |pages| {
                for block in group..group + GROUP {
                    if !pages.contains(block) {
                        continue;
                    }
                    let mark = pages.mark(block);
                    let grown = marks.grow_old(mark);
                    if grown != mark {
                        pages.set_mark(block, grown);
                    }
                    if is_meant(mark) {
                        ages[usize::from(marks.distance(grown)).min(AGES - 1)] += 1;
                    }
                }
            });
        });
        marks.end_look();
        // All that are older than some age, and some of that age.
        let mut left = count;
        let mut youngest = 0;
        for (age, &pages) in ages.iter().enumerate().rev() {
            youngest = age;
            if pages >= left {
                break;
            }
            left -= pages;
        }
        let list = &mut self.list;
        for_each_group(inner, |group| {
            inner.store.neighbours(group, |pages| {
                for block in group..group + GROUP {
                    let mark = pages.mark(block);
                    if list.len() as u64 == count || !is_meant(mark) || !pages.contains(block) {
                        continue;
                    }
                    let age = usize::from(marks.distance(mark));
                    if age > youngest || age == youngest && left > 0 {
                        left -= u64::from(age == youngest);
                        list.push(block);
                    }
                }
            });
        });
    }
}

fn for_each_group(inner: &crate::disk::Inner, mut each: impl FnMut(u64)) {
    let mut place = 0;
    while let Some((group, next)) = inner.store.group_from(place) {
        place = next;
        each(group);
    }
}

impl Outlet for Cleaner {
    fn make_room(&mut self, is_waited_for: bool) -> bool {
        let mut gained = false;
        loop {
            let is_cleaning = self.is_dirty() && self.write_batch();
            let is_wanted = is_waited_for && !gained || self.is_full();
            // A flush may have written what this batch wanted to.
            let mut leave = || self.evict() || (self.write_batch(), self.evict()).1;
            if is_wanted && leave() {
                gained = true;
                self.shared.inner.compact();
                self.shared.inner.keeping.serve(true);
            } else if !is_cleaning {
                break;
            }
        }
        gained
    }
}

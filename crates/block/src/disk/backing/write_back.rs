//! How pages get into the backing.
//!
//! A page is written like this: under its lock it is copied and marked as being written; without a
//! lock it is written; under its lock again it is clean, unless it has changed meanwhile. The lock
//! of its region is held all the time, so that of two writes of a page the later one comes later,
//! and what is trimmed does not come back. A dirty page does not leave the cache.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use rustix::io::Errno;

use super::marks::{DIRTY, Hinted, READ, WRITING};
use super::place::{CHUNK_PAGES, Chunk};
use super::statistics::BackingStatistics;
use super::{BackedDisk, GROUP, Lost, PAGE, Shared, Workspace};
use crate::disk::page_locks::PageLock;
use crate::{DeviceError, Zeroing};

/// Pages of a region.
const REGION_PAGES: u64 = 256;
/// Regions far apart share locks.
const LOCKS: usize = 64;
const _: () = assert!(REGION_PAGES.is_multiple_of(CHUNK_PAGES));
/// Bytes that are trimmed at once.
const TRIM_PAGES: u64 = 1 << 18;

/// Who writes to a region of the backing.
pub(super) struct Regions(Box<[ramfold_sys::sync::Mutex<()>; LOCKS]>);

type RegionLock<'a> = ramfold_sys::sync::MutexGuard<'a, ()>;

impl Regions {
    pub(super) const BYTES: usize = size_of::<[ramfold_sys::sync::Mutex<()>; LOCKS]>();

    pub(super) fn new() -> Regions {
        Regions(Box::new(std::array::from_fn(|_| ramfold_sys::sync::Mutex::new(()))))
    }

    fn lock(&self, block: u64) -> RegionLock<'_> {
        self.0[(block / REGION_PAGES) as usize % LOCKS].lock()
    }

    /// The locks of all regions of a range, in the order of the locks.
    fn lock_all(&self, blocks: &Range<u64>) -> [Option<RegionLock<'_>>; LOCKS] {
        let (first, last) = (blocks.start / REGION_PAGES, (blocks.end - 1) / REGION_PAGES);
        let is_meant = |number: usize| {
            let ahead = (number + LOCKS - first as usize % LOCKS) % LOCKS;
            first + ahead as u64 <= last
        };
        std::array::from_fn(|number| is_meant(number).then(|| self.0[number].lock()))
    }
}

/// A flush that is under way: there is one at a time.
pub(super) struct Flush {
    /// Blocks to be written: never more than it has room for.
    list: Vec<u64>,
    /// Where they may be. Taken before the first group is looked at: groups share hints.
    hinted: Hinted,
}

/// What the syncs of the backing have come to. There is one sync at a time: of those that a failed
/// write of the system concerns it tells one alone.
#[derive(Default)]
pub(super) struct Syncs {
    failed: u64,
    /// One has failed, and no flush has said so.
    is_unsaid: bool,
}

/// What has a sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncOf {
    Flush,
    Request,
}

impl Flush {
    pub(super) fn new(capacity: usize) -> Flush {
        Flush { list: Vec::with_capacity(capacity), hinted: Hinted::new() }
    }
}

/// Whether a list of blocks is written on after an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterError {
    Stop,
    GoOn,
}

impl Shared {
    /// Writes the dirty pages of a range, which a request has changed.
    pub(super) fn write_range(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        let mut workspace = self.inner.workspaces.take();
        let number = workspace.number;
        let mut chunk = self.buffers[number].lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = blocks.start;
        while at < blocks.end {
            let end = ((at / CHUNK_PAGES + 1) * CHUNK_PAGES).min(blocks.end);
            self.write_run(&mut workspace, &mut chunk, at..end)?;
            at = end;
        }
        Ok(())
    }

    /// Writes those of some blocks, in their order, that are dirty. Returns how many were, and the
    /// first error.
    pub(super) fn write_list(
        &self,
        workspace: &mut Workspace,
        chunk: &mut Chunk,
        list: &[u64],
        after_error: AfterError,
    ) -> (u64, Result<(), DeviceError>) {
        let (mut written, mut result) = (0, Ok(()));
        let mut at = 0;
        while let Some(&first) = list.get(at) {
            let end = (first / CHUNK_PAGES + 1) * CHUNK_PAGES;
            let follows = |(nth, &block): (usize, &u64)| block == first + nth as u64 && block < end;
            let count = list[at..].iter().enumerate().take_while(|&pair| follows(pair)).count();
            at += count.max(1);
            match self.write_run(workspace, chunk, first..first + count as u64) {
                Ok(more) => written += more,
                Err(error) => {
                    result = result.and(Err(error));
                    if after_error == AfterError::Stop {
                        break;
                    }
                }
            }
        }
        (written, result)
    }

    /// Writes the dirty pages of a range within a region, each contiguous part at once. Returns how
    /// many there were.
    fn write_run(
        &self,
        workspace: &mut Workspace,
        chunk: &mut Chunk,
        blocks: Range<u64>,
    ) -> Result<u64, DeviceError> {
        let _region = self.regions.lock(blocks.start);
        let (pages, _) = chunk.0.as_chunks_mut::<PAGE>();
        let (mut written, mut at) = (0, blocks.start);
        while at < blocks.end {
            let mut count = 0;
            while at + count < blocks.end {
                match self.begin_writing(workspace, at + count, &mut pages[count as usize]) {
                    Ok(true) => count += 1,
                    Ok(false) => break,
                    Err(error) => {
                        self.end_writing(at..at + count, false);
                        return Err(error);
                    }
                }
            }
            if count > 0 {
                let bytes = pages[..count as usize].as_flattened();
                let result = self.place.write(at * PAGE as u64, bytes);
                self.end_writing(at..at + count, result.is_ok());
                self.note("cannot write to", result)?;
                self.counters.backing_writes.add(1);
                self.counters.written_back.add(count);
            }
            written += count;
            at += count + 1;
        }
        Ok(written)
    }

    /// Copies a page if it is dirty.
    fn begin_writing(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &mut [u8; PAGE],
    ) -> Result<bool, DeviceError> {
        let lock = self.inner.locks.lock(block);
        let Some(mark) = self.mark_of(&lock, block).filter(|mark| mark & DIRTY != 0) else {
            return Ok(false);
        };
        if !self.cached(workspace, block, page)? {
            return Ok(false);
        }
        self.inner.store.set_mark(block, mark | WRITING);
        Ok(true)
    }

    fn end_writing(&self, blocks: Range<u64>, is_written: bool) {
        for block in blocks {
            let lock = self.inner.locks.lock(block);
            let Some(mark) = self.mark_of(&lock, block) else { continue };
            if mark & WRITING != 0 {
                let kept = if is_written { !(DIRTY | WRITING) } else { !WRITING };
                self.inner.store.set_mark(block, mark & kept);
                if is_written {
                    self.marks.dirty.fetch_sub(1, Ordering::Relaxed);
                }
            }
            if !is_written {
                self.marks.note_dirty(block);
            }
        }
    }

    /// Has all that was written durable in the backing.
    pub(super) fn flush(&self) -> Result<(), DeviceError> {
        let failed = self.failed_syncs();
        self.write_dirty(AfterError::Stop, &mut |_| {})?;
        self.sync_of(SyncOf::Flush, failed)?;
        self.note_all_is_well();
        Ok(())
    }

    /// Has the pages of a range in the backing, and durable.
    pub(super) fn write_range_durably(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        let failed = self.failed_syncs();
        self.write_range(blocks)?;
        self.sync_of(SyncOf::Request, failed)
    }

    /// Writes all pages that are dirty now. Calls `each` from time to time.
    fn write_dirty(
        &self,
        after_error: AfterError,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), DeviceError> {
        let mut flush = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        self.counters.flushes.add(1);
        let (mut place, mut result) = (0, Ok(()));
        let Flush { list, hinted } = &mut *flush;
        self.marks.take_hints(hinted);
        loop {
            list.clear();
            while list.len() + GROUP as usize <= list.capacity()
                && let Some((group, next)) = self.inner.store.group_from(place)
            {
                place = next;
                if hinted.has(group) {
                    self.list_dirty(group, list);
                }
            }
            if list.is_empty() {
                return result;
            }
            let done = self.write_listed(list, after_error);
            each(self.dirty_bytes());
            if done.is_err() {
                // Of what was not tried, or could not be written, too.
                self.marks.put_back(hinted);
                if after_error == AfterError::Stop {
                    return done;
                }
            }
            result = result.and(done);
        }
    }

    fn write_listed(&self, list: &mut [u64], after: AfterError) -> Result<(), DeviceError> {
        list.sort_unstable();
        let mut workspace = self.inner.workspaces.take();
        let number = workspace.number;
        let mut chunk = self.buffers[number].lock().unwrap_or_else(PoisonError::into_inner);
        self.write_list(&mut workspace, &mut chunk, list, after).1
    }

    fn list_dirty(&self, group: u64, list: &mut Vec<u64>) {
        self.inner.store.neighbours(group, |pages| {
            for block in group..group + GROUP {
                if pages.mark(block) & DIRTY != 0 && pages.contains(block) {
                    list.push(block);
                }
            }
        });
    }

    fn syncs(&self) -> MutexGuard<'_, Syncs> {
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many syncs have failed so far.
    fn failed_syncs(&self) -> u64 {
        self.syncs().failed
    }

    /// Has what is in the backing durable.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        let failed = self.failed_syncs();
        self.sync_of(SyncOf::Request, failed)
    }

    /// `failed`: how many syncs had failed before that was written which is to be durable.
    fn sync_of(&self, of: SyncOf, failed: u64) -> Result<(), DeviceError> {
        let mut syncs = self.syncs();
        let mut result = self.place.sync();
        if result.is_err() {
            syncs.failed += 1;
            syncs.is_unsaid = true;
            // The system forgets what it could not write: all that is still here is written again.
            self.soil_all();
        }
        let is_said_here = of == SyncOf::Flush && std::mem::take(&mut syncs.is_unsaid);
        if syncs.failed != failed || is_said_here {
            // It may have been this one's data that another sync has failed for.
            result = result.and(Err(Errno::IO));
        }
        drop(syncs);
        self.note("cannot make data durable in", result)
    }

    /// Makes all pages dirty that a write brought. What is being written is so too: the system may
    /// have forgotten it already.
    fn soil_all(&self) {
        let mut place = 0;
        while let Some((group, next)) = self.inner.store.group_from(place) {
            place = next;
            for block in group..group + GROUP {
                let lock = self.inner.locks.lock(block);
                let brought = self.mark_of(&lock, block).filter(|mark| mark & READ == 0);
                let Some(mark) = brought else { continue };
                self.inner.store.set_mark(block, (mark | DIRTY) & !WRITING);
                if mark & DIRTY == 0 {
                    self.marks.dirty.fetch_add(1, Ordering::Relaxed);
                }
                self.marks.note_dirty(block);
            }
        }
    }

    /// Makes whole pages zeros, in the backing first; or trims them.
    pub(super) fn clear_pages(
        &self,
        blocks: Range<u64>,
        zeroing: Option<Zeroing>,
    ) -> Result<(), DeviceError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let part = at..(at + TRIM_PAGES).min(blocks.end);
            let _regions = self.regions.lock_all(&part);
            let offset = part.start * PAGE as u64;
            let bytes = (part.end * PAGE as u64).min(self.size_bytes) - offset;
            let done = match zeroing {
                Some(zeroing) => self.place.zero(offset, bytes, zeroing),
                None => self.place.trim(offset, bytes),
            };
            match done {
                Err(Errno::OPNOTSUPP) if is_fast(zeroing) => return Err(DeviceError::NotFast),
                result => self.note("cannot write zeros to", result)?,
            }
            // Reads that came before must not put pages there any more, and requests that have read
            // a page under its lock have put it there when they give the lock up.
            self.counters.trims.add(1);
            self.inner.locks.pass(&part);
            self.remove_pages(part.clone());
            at = part.end;
        }
        Ok(())
    }

    fn remove_pages(&self, blocks: Range<u64>) {
        let store = &self.inner.store;
        store.for_each_group(blocks.start, blocks.end - blocks.start, |group, live| {
            for block in (0..GROUP).filter(|nth| live >> nth & 1 != 0).map(|nth| group + nth) {
                if blocks.contains(&block) {
                    let lock = self.inner.locks.lock(block);
                    self.remove(&lock, block);
                }
            }
        });
    }

    /// Removes a page from the cache.
    pub(super) fn remove(&self, lock: &PageLock<'_>, block: u64) {
        let Some(mark) = self.mark_of(lock, block) else { return };
        self.marks.leaves(mark);
        self.inner.remove_page(lock, block);
        self.marks.pages.fetch_sub(1, Ordering::Relaxed);
        if mark & DIRTY != 0 {
            self.marks.dirty.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether zeros are asked for only where they take less time than a write.
pub(super) fn is_fast(zeroing: Option<Zeroing>) -> bool {
    zeroing.is_some_and(|zeroing| zeroing.fast)
}

impl BackedDisk {
    /// Writes everything to the backing, at the end. `left` is told now and then how many bytes are
    /// left. Errors do not keep other pages from being written.
    ///
    /// # Errors
    /// [`Lost`]: what is not in the backing.
    pub fn write_out(&self, mut left: impl FnMut(u64)) -> Result<(), Lost> {
        if self.shared.is_read_only {
            return Ok(());
        }
        self.shared.marks.note_all();
        let mut attempt = || {
            let written = self.shared.write_dirty(AfterError::GoOn, &mut left);
            written.and(self.shared.sync())
        };
        // What a failed sync forgot is dirty again.
        let result = attempt().or_else(|_| attempt());
        let lost = self.shared.dirty_bytes();
        let error = match result {
            Ok(()) if lost == 0 => {
                self.shared.note_all_is_well();
                return Ok(());
            }
            Ok(()) => DeviceError::Failed(format!("pages for {} were left", self.shared.name)),
            Err(error) => error,
        };
        let reason = match self.shared.trouble_now() {
            Some(errno) => format!("cannot write to {}: {errno}", self.shared.name),
            None => error.to_string(),
        };
        Err(Lost { bytes: lost, reason })
    }

    /// Bytes that are in the cache and not in the backing.
    pub fn dirty_bytes(&self) -> u64 {
        self.shared.dirty_bytes()
    }

    /// What has happened so far.
    pub fn backing_statistics(&self) -> BackingStatistics {
        self.shared.statistics()
    }
}

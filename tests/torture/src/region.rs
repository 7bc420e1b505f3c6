//! A region: a stretch of anonymous private memory, a lock, and the records of what it holds.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::check;
use crate::content::{Content, PageBytes};
use crate::current;
use crate::fail;
use crate::memory::{Mapping, PAGE, Span, unmap};
use crate::operations::Outcome;
use crate::table::{Activity, RegionShape};
use crate::world::World;

/// What only the holder of the lock needs to know of a region.
pub(crate) struct Form {
    /// The region was mapped in one piece and nothing has been done to a part of it since, so
    /// that the kernel has no reason to see it as several mappings.
    pub uniform: bool,
}

pub(crate) struct Region {
    index: usize,
    lock: Mutex<Form>,
}

impl Region {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, lock: Mutex::new(Form { uniform: true }) }
    }

    pub(crate) fn lock<'w>(&'w self, world: &'w World) -> RegionGuard<'w> {
        let form = match self.lock.try_lock() {
            Ok(form) => form,
            Err(TryLockError::WouldBlock) => {
                let _waiting = current::during(Activity::Waiting);
                match self.lock.lock() {
                    Ok(form) => form,
                    Err(_) => fail!("the lock of region {} is poisoned", self.index),
                }
            }
            Err(TryLockError::Poisoned(_)) => {
                fail!("the lock of region {} is poisoned", self.index)
            }
        };
        RegionGuard { world, index: self.index, form }
    }
}

/// A region whose lock is held: its memory and its records are the holder's alone.
pub(crate) struct RegionGuard<'w> {
    world: &'w World,
    index: usize,
    form: MutexGuard<'w, Form>,
}

impl RegionGuard<'_> {
    pub(crate) fn world(&self) -> &World {
        self.world
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    fn shape(&self) -> &RegionShape {
        &self.world.table.records.shapes[self.index]
    }

    pub(crate) fn pages(&self) -> usize {
        self.shape().pages.load(SeqCst) as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.shape().capacity.load(SeqCst) as usize
    }

    pub(crate) fn address(&self) -> usize {
        self.shape().address.load(SeqCst) as usize
    }

    pub(crate) fn uniform(&self) -> bool {
        self.form.uniform
    }

    /// Says that a part of the region may have become a mapping of its own.
    pub(crate) fn split(&mut self) {
        self.form.uniform = false;
    }

    pub(crate) fn span(&self, first: usize, pages: usize) -> Span<'_> {
        assert!(first + pages <= self.pages());
        // SAFETY: the region's pages are mapped, and its lock, which is held for the borrow,
        // keeps other threads away. Pages taken away within `reshape` are not asked for.
        unsafe { Span::new(self.address() + first * PAGE, pages * PAGE) }
    }

    pub(crate) fn content(&self, page: usize) -> Content {
        check::content(self.world.table.records, self.index, page)
    }

    /// Notes in the region's history that the running operation works on these pages.
    pub(crate) fn remember(&self, first: usize, pages: usize) {
        let thread = current::thread().unwrap_or(0);
        self.world.table.remember(self.index, thread, first, pages);
        current::beat();
    }

    /// The content of the page's next full write.
    pub(crate) fn next(&self, page: usize) -> Content {
        Content::full(self.index, page, self.next_version(page))
    }

    fn next_version(&self, page: usize) -> u64 {
        check::slot(self.world.table.records, self.index, page).sequence.load(SeqCst) / 2 + 1
    }

    /// Marks pages as being written: until `close`, children do not look at them.
    fn open(&mut self, first: usize, pages: usize) {
        for page in first..first + pages {
            let slot = check::slot(self.world.table.records, self.index, page);
            if slot.sequence.fetch_or(1, SeqCst) & 1 != 0 {
                fail!("page {page} of region {} is being written twice at once", self.index);
            }
        }
        fence(SeqCst);
    }

    fn close(&mut self, page: usize, content: Content) {
        fence(SeqCst);
        let slot = check::slot(self.world.table.records, self.index, page);
        slot.content.store(content.bits(), SeqCst);
        slot.sequence.fetch_add(1, SeqCst);
    }

    /// Lets `change` write pages, after which they have the contents it returns.
    pub(crate) fn change<R>(
        &mut self,
        first: usize,
        pages: usize,
        change: impl FnOnce(Span<'_>) -> (Vec<Content>, R),
    ) -> R {
        self.open(first, pages);
        let (contents, result) = change(self.span(first, pages));
        assert_eq!(contents.len(), pages);
        for (at, content) in contents.into_iter().enumerate() {
            self.close(first + at, content);
        }
        result
    }

    /// Says that pages have become zeros.
    pub(crate) fn zeroed(&mut self, first: usize, pages: usize) {
        for page in first..first + pages {
            let content = Content::zero(self.index, page, self.next_version(page));
            self.open(page, 1);
            self.close(page, content);
        }
    }

    /// Writes a page from end to end.
    pub(crate) fn write_full(&mut self, page: usize) {
        self.write_content(page, self.next(page));
    }

    pub(crate) fn write_content(&mut self, page: usize, content: Content) {
        let mut bytes = PageBytes::zeroed();
        content.fill(self.world.recipe, &mut bytes);
        self.open(page, 1);
        self.span(page, 1).store(&bytes.0);
        self.close(page, content);
        current::beat();
    }

    /// Writes a part of a page, or all of it when it has had enough partial writes.
    pub(crate) fn write_partial(&mut self, page: usize) {
        let Some(content) = self.content(page).overlaid() else {
            return self.write_full(page);
        };
        let overlay = content.last_overlay(self.world.recipe);
        let mut bytes = PageBytes::zeroed();
        overlay.fill(&mut bytes.0[..overlay.bytes]);
        self.open(page, 1);
        let span = self.span(page, 1).part(overlay.offset, overlay.bytes);
        span.store(&bytes.0[..overlay.bytes]);
        self.close(page, content);
        current::beat();
    }

    pub(crate) fn fill(&mut self) {
        for page in 0..self.pages() {
            self.write_full(page);
        }
    }

    pub(crate) fn check(&self, first: usize, pages: usize) {
        for page in first..first + pages {
            let records = self.world.table.records;
            check::page(self.world, records, self.index, page, self.span(page, 1));
        }
    }

    pub(crate) fn check_all(&self) {
        self.check(0, self.pages());
    }

    /// The bytes that the pages must hold.
    pub(crate) fn expected(&self, first: usize, pages: usize) -> Vec<u8> {
        (first..first + pages).flat_map(|page| self.bytes_of(self.content(page)).0).collect()
    }

    fn bytes_of(&self, content: Content) -> PageBytes {
        let mut bytes = PageBytes::zeroed();
        content.fill(self.world.recipe, &mut bytes);
        bytes
    }

    /// Gives pages new contents by whatever way `route` takes to get the bytes there.
    ///
    /// `route` may write all of them or, when the machine lacks the way, any part; in that case
    /// the bytes are stored instead, so that a run has the same contents everywhere.
    pub(crate) fn rewrite_by(
        &mut self,
        first: usize,
        pages: usize,
        route: impl FnOnce(Span<'_>, &[u8]) -> Outcome,
    ) -> Outcome {
        let contents: Vec<Content> = (first..first + pages).map(|page| self.next(page)).collect();
        let bytes: Vec<u8> =
            contents.iter().flat_map(|&content| self.bytes_of(content).0).collect();
        let outcome = self.change(first, pages, |span| {
            let outcome = route(span, &bytes);
            if outcome.is_err() {
                span.store(&bytes);
            }
            (contents, outcome)
        });
        self.check(first, pages);
        outcome
    }

    /// Takes the bytes of pages out by whatever way `route` takes, and compares them.
    pub(crate) fn export_by(
        &self,
        first: usize,
        pages: usize,
        name: &str,
        route: impl FnOnce(Span<'_>, &mut [u8]) -> Outcome,
    ) -> Outcome {
        let mut bytes = vec![0xdb; pages * PAGE];
        route(self.span(first, pages), &mut bytes)?;
        self.compare(first, &bytes, name);
        Ok(())
    }

    /// Compares bytes that left the pages from `first` on by the way `name`.
    pub(crate) fn compare(&self, first: usize, bytes: &[u8], name: &str) {
        let records = self.world.table.records;
        for (at, bytes) in bytes.chunks_exact(PAGE).enumerate() {
            check::copied(self.world, records, self.index, first + at, bytes, name);
        }
    }

    /// Does something to the region's mapping. Children forked meanwhile leave the region alone.
    pub(crate) fn reshape<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        if self.shape().sequence.fetch_add(1, SeqCst) & 1 != 0 {
            fail!("region {} is being reshaped twice at once", self.index);
        }
        fence(SeqCst);
        let result = change(self);
        fence(SeqCst);
        self.shape().sequence.fetch_add(1, SeqCst);
        result
    }

    /// Records where the region lies now. Pages that are new must be `zeroed` by the caller.
    pub(crate) fn place(&mut self, address: usize, pages: usize) {
        assert!(pages <= self.capacity());
        self.shape().address.store(address as u64, SeqCst);
        self.shape().pages.store(pages as u64, SeqCst);
    }

    /// Moves the region to fresh memory of `pages` pages by copying; to be called in `reshape`.
    ///
    /// The pages of `hole` are not mapped any more. They and pages that are new read as zeros
    /// afterwards.
    pub(crate) fn rebuild(&mut self, hole: Range<usize>, pages: usize) {
        let fresh = match Mapping::anonymous(pages * PAGE) {
            Ok(fresh) => fresh,
            Err(errno) => fail!("mmap of {pages} pages gave {errno}"),
        };
        let (old, old_pages) = (self.address(), self.pages());
        let is_kept = |page: &usize| *page < old_pages && !hole.contains(page);
        let mut bytes = PageBytes::zeroed();
        for page in (0..pages).filter(is_kept) {
            // SAFETY: the caller says that the page is mapped; the lock is held.
            let source = unsafe { Span::new(old + page * PAGE, PAGE) };
            source.load(&mut bytes.0);
            fresh.span().page(page).store(&bytes.0);
        }
        for range in [0..hole.start, hole.end..old_pages] {
            if range.is_empty() {
                continue;
            }
            // SAFETY: these pages are the region's, which does not name them any more below.
            if let Err(errno) = unsafe { unmap(old + range.start * PAGE, range.len() * PAGE) } {
                fail!("munmap of {} pages gave {errno}", range.len());
            }
        }
        let (address, _) = fresh.release();
        self.place(address, pages);
        self.form.uniform = true;
        for page in 0..pages {
            if !is_kept(&page) {
                self.zeroed(page, 1);
            }
        }
    }

    /// Says that the region was mapped anew in one piece.
    pub(crate) fn mapped_whole(&mut self) {
        self.form.uniform = true;
    }

    /// A hash of the region's bytes as they are in memory.
    pub(crate) fn hash(&self) -> u64 {
        let mut bytes = PageBytes::zeroed();
        let mut state = self.pages() as u64;
        for page in 0..self.pages() {
            self.span(page, 1).load(&mut bytes.0);
            current::beat();
            for word in bytes.0.as_chunks::<8>().0 {
                state = (state.rotate_left(5) ^ u64::from_ne_bytes(*word))
                    .wrapping_mul(0x517c_c1b7_2722_0a95);
            }
        }
        state
    }
}

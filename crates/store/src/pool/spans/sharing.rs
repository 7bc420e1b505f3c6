//! Spans whose pages a relative by fork shares: a write to such a page makes the kernel copy it.

use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::Spans;
use crate::pool::classes::CLASS_COUNT;

/// The bits of [`SpanHeader::written`](super::SpanHeader) that hold the number of a fork.
const FORK_MASK: u32 = 0xffff;

/// Spans that each side of a fork may take to avoid copies.
const SPARE_SPANS: u32 = 2 * CLASS_COUNT as u32;

impl Spans {
    /// All pages are shared with a relative from now on: a write makes the kernel copy the page.
    /// The child of a fork (`is_child`) may take [`SPARE_SPANS`] of its own; a parent that goes on
    /// forking gets no more, or it would leave a page behind for each object.
    pub(crate) fn begin_sharing(&self, is_child: bool) {
        let next = (self.fork.load(Ordering::Relaxed) + 1) & FORK_MASK;
        self.fork.store(next.max(1), Ordering::Relaxed);
        if !self.sharing.swap(true, Ordering::Relaxed) || is_child {
            self.spare_spans.store(SPARE_SPANS, Ordering::Relaxed);
        }
    }

    /// No page is shared any more. Returns whether one was.
    pub(crate) fn end_sharing(&self) -> bool {
        self.sharing.swap(false, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_sharing(&self) -> bool {
        self.sharing.load(Ordering::Relaxed)
    }

    /// Whether a span may be taken to avoid a copy. Each such span leaves others less full.
    pub(crate) fn take_spare_span(&self) -> bool {
        let less = |count: u32| count.checked_sub(1);
        self.spare_spans.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Whether no page of the span is shared: it was taken into use after the last fork, or no page
    /// of the pool is shared.
    ///
    /// # Safety
    /// As [`Self::header`].
    pub(crate) unsafe fn is_own(&self, span: u32) -> bool {
        // SAFETY: passed on to the caller.
        let since = unsafe { self.header(span) }.since.load(Ordering::Relaxed);
        !self.is_sharing() || u32::from(since) == self.fork.load(Ordering::Relaxed)
    }

    /// Whether a write to these bytes makes the kernel copy a page that a relative shares. `len` is
    /// 1 to [`PAGE_SIZE`].
    ///
    /// # Safety
    /// As [`Self::header`].
    pub(crate) unsafe fn is_shared(&self, span: u32, offset: usize, len: usize) -> bool {
        // SAFETY: passed on to the caller.
        if unsafe { self.is_own(span) } {
            return false;
        }
        // SAFETY: as above.
        let header = unsafe { self.header(span) };
        let written = self.written_since_fork(header.written.load(Ordering::Relaxed));
        let shared = header.resident.load(Ordering::Relaxed) & !written;
        Self::pages_of(offset, len) & shared != 0
    }

    /// Counts the copies for bytes that are written to: `len` is 1 to [`PAGE_SIZE`].
    ///
    /// # Safety
    /// The caller owns these bytes.
    #[inline]
    pub(crate) unsafe fn write(&self, span: u32, offset: usize, len: usize) {
        if self.fork.load(Ordering::Relaxed) != 0 {
            let copied = self.note_written(span, Self::pages_of(offset, len));
            self.copied_pages.fetch_add(copied, Ordering::Relaxed);
        }
    }

    /// Notes that pages are written to. Returns how many of them were not since the last fork.
    #[cold]
    pub(super) fn note_written(&self, span: u32, pages: u16) -> usize {
        let fork = self.fork.load(Ordering::Relaxed);
        let noted = |note| Some(u32::from(self.written_since_fork(note) | pages) << 16 | fork);
        // SAFETY: the owner's spans are below the frontier.
        let header = unsafe { self.header(span) };
        let before = header.written.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted);
        (pages & !self.written_since_fork(before.unwrap_or(0))).count_ones() as usize
    }

    /// The pages, as a map, that [`SpanHeader::written`] names if it is of the last fork.
    #[inline]
    fn written_since_fork(&self, note: u32) -> u16 {
        let is_of_last = note & FORK_MASK == self.fork.load(Ordering::Relaxed);
        if is_of_last { (note >> 16) as u16 } else { 0 }
    }

    /// The pages, as a map, of bytes that reach over two at most.
    #[inline]
    pub(super) fn pages_of(offset: usize, len: usize) -> u16 {
        (1 << (offset / PAGE_SIZE)) | (1 << ((offset + len - 1) / PAGE_SIZE))
    }

    /// Pages that were copied since this was last asked.
    pub(crate) fn take_copied_pages(&self) -> usize {
        self.copied_pages.swap(0, Ordering::Relaxed)
    }
}

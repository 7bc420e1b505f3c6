//! Spans: runs of 64 KiB, each with a header kept apart from it, that are in use, ready (free, with
//! memory behind every page) or bare (free, the memory given back).
//!
//! The ready spans are the reserve: compressing a page must not depend on memory that is not there
//! at that moment (the deadlock of CRAMES, paper 004 section 5), so spans are populated ahead, by
//! [`Spans::refill`], and a store takes a span without asking the system for anything.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use ramfold_sys::mem::Reservation;
use ramfold_sys::sync::{Mutex, MutexGuard};
use ramfold_sys::{Errno, PAGE_SIZE};

use super::classes::{CLASS_COUNT, SPAN_BYTES, SPAN_PAGES};
use super::memory::{GrowingArray, Zeroed, populate};

/// No span: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// All pages of a span, as a map.
const ALL_PAGES: u16 = u16::MAX;

/// Where [`SpanHeader::written`] has the number of a fork.
const FORK_MASK: u32 = 0xffff;

/// Spans that each side of a fork may take to avoid copies.
const SPARE_SPANS: u32 = 2 * CLASS_COUNT as u32;

/// Spans populated by one call into the kernel: 1 MiB.
const REFILL_SPANS: u32 = 16;

/// What is known of a span. Every field belongs to whoever owns the span: the slot list of its
/// class (under that list's lock) while it is in use, else the list of free spans. They are
/// atomics only so that a look without the lock, for a guess, is sound.
#[derive(Default)]
pub(crate) struct SpanHeader {
    /// Next in the list the span is in: ready, bare, or its class's spans of one fullness.
    pub next: AtomicU32,
    /// Previous in its class's list; not kept for free spans.
    pub previous: AtomicU32,
    /// Slots in use.
    pub used: AtomicU16,
    /// Slots used at least once: those from here on have never been touched.
    pub fresh: AtomicU16,
    /// First freed slot, plus one; 0 for none. The others are linked inside the slots.
    pub freed: AtomicU16,
    /// Pages with memory behind them. Valid for free spans too.
    pub resident: AtomicU16,
    /// Pages written to since a fork, as a map, above the number of that fork.
    written: AtomicU32,
    /// Number of the last fork before the span was taken into use.
    since: AtomicU16,
    /// Size class. Fixed while the span is in use.
    pub class: AtomicU8,
}

// SAFETY: atomics only, for which zero is a value.
unsafe impl Zeroed for SpanHeader {}

const _: () = assert!(size_of::<SpanHeader>() == 24);

/// Why there is no span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSpan {
    /// The reservation is used up.
    Full,
    /// The system refused memory.
    NoMemory(Errno),
}

struct FreeSpans {
    /// First ready span.
    ready: u32,
    /// First bare span.
    bare: u32,
    /// Spans from here on have never been used, and have no access rights yet.
    frontier: u32,
    /// Spans being populated by a refill now.
    populating: u32,
}

/// A reservation cut into spans.
pub(crate) struct Spans {
    memory: Reservation,
    headers: GrowingArray<SpanHeader>,
    span_count_max: u32,
    /// How many ready spans are kept.
    ready_target: AtomicU32,
    /// Held for the whole of a refill, which lets go of `free` while the kernel works. Comes
    /// before `free`.
    refilling: Mutex<()>,
    free: Mutex<FreeSpans>,
    // Changed under `free`, read without it.
    ready_count: AtomicU32,
    used_count: AtomicU32,
    // Changed by the spans' owners.
    resident_pages: AtomicUsize,
    reserve_misses: AtomicU64,
    release_failures: AtomicU64,
    /// Number of the last fork, from 1 on; its upper half is zero. Zero: there was none.
    fork: AtomicU32,
    /// A relative has pages of that time still.
    sharing: AtomicBool,
    /// Spans that may be taken for no other reason than to spare copies.
    spare_spans: AtomicU32,
    /// Pages that the kernel has copied since, and nobody has asked for yet.
    copied_pages: AtomicUsize,
}

impl Spans {
    /// Reserves address space for as many whole spans as `bytes_max` holds, and plans to keep
    /// `reserve_bytes` (rounded up to spans) of it ready. Takes no memory yet.
    pub(crate) fn new(bytes_max: usize, reserve_bytes: usize) -> Result<Spans, Errno> {
        let span_count_max = bytes_max / SPAN_BYTES;
        let spans = Spans {
            memory: Reservation::new(span_count_max * SPAN_BYTES)?,
            headers: GrowingArray::new(span_count_max)?,
            span_count_max: span_count_max as u32,
            ready_target: AtomicU32::new(0),
            refilling: Mutex::new(()),
            free: Mutex::new(FreeSpans { ready: NONE, bare: NONE, frontier: 0, populating: 0 }),
            ready_count: AtomicU32::new(0),
            used_count: AtomicU32::new(0),
            resident_pages: AtomicUsize::new(0),
            reserve_misses: AtomicU64::new(0),
            release_failures: AtomicU64::new(0),
            fork: AtomicU32::new(0),
            sharing: AtomicBool::new(false),
            spare_spans: AtomicU32::new(0),
            copied_pages: AtomicUsize::new(0),
        };
        spans.set_reserve(reserve_bytes);
        Ok(spans)
    }

    /// Changes how many bytes, rounded up to spans, are kept ready. What is ready beyond them is
    /// used up.
    pub(crate) fn set_reserve(&self, bytes: usize) {
        let spans = bytes.div_ceil(SPAN_BYTES).min(self.span_count_max as usize);
        self.ready_target.store(spans as u32, Ordering::Relaxed);
    }

    fn ready_target(&self) -> u32 {
        self.ready_target.load(Ordering::Relaxed)
    }

    /// The header of a span that has been in use at least once.
    ///
    /// # Safety
    /// `span` must have come from [`Self::take`], or be below [`Self::frontier`].
    #[inline]
    pub(crate) unsafe fn header(&self, span: u32) -> &SpanHeader {
        // SAFETY: headers grow before their spans are handed out.
        unsafe { self.headers.get_unchecked(span as usize) }
    }

    /// Spans that have ever been handed out are below this.
    #[inline]
    pub(crate) fn frontier(&self) -> u32 {
        self.headers.len() as u32
    }

    /// The memory of a span from `offset` on.
    ///
    /// # Safety
    /// `span` as for [`Self::header`], and `offset` at most [`SPAN_BYTES`].
    #[inline]
    pub(crate) unsafe fn at(&self, span: u32, offset: usize) -> *mut u8 {
        debug_assert!(span < self.frontier() && offset <= SPAN_BYTES);
        // SAFETY: inside the reservation, by the caller.
        unsafe { self.memory.as_ptr().add(span as usize * SPAN_BYTES + offset) }
    }

    /// Takes a free span: one of the reserve, or else (counted as a miss) a bare one, whose pages
    /// get memory as they are touched.
    pub(crate) fn take(&self) -> Result<u32, NoSpan> {
        let mut free = self.free.lock();
        let span = if free.ready != NONE {
            let span = free.ready;
            // SAFETY: spans in the lists are below the frontier.
            free.ready = unsafe { self.header(span) }.next.load(Ordering::Relaxed);
            self.ready_count.fetch_sub(1, Ordering::Relaxed);
            span
        } else {
            let span = self.take_bare(&mut free, 1)?.0;
            self.reserve_misses.fetch_add(1, Ordering::Relaxed);
            span
        };
        self.used_count.fetch_add(1, Ordering::Relaxed);
        // SAFETY: taken above.
        let since = unsafe { &self.header(span).since };
        since.store(self.fork.load(Ordering::Relaxed) as u16, Ordering::Relaxed);
        Ok(span)
    }

    /// Takes a bare span, or up to `count_max` neighbouring ones where there never were any.
    fn take_bare(&self, free: &mut FreeSpans, count_max: u32) -> Result<(u32, u32), NoSpan> {
        if free.bare != NONE {
            let span = free.bare;
            // SAFETY: spans in the lists are below the frontier.
            free.bare = unsafe { self.header(span) }.next.load(Ordering::Relaxed);
            return Ok((span, 1));
        }
        let first = free.frontier;
        let count = count_max.min(self.span_count_max - first);
        if count == 0 {
            return Err(NoSpan::Full);
        }
        // Access rights come span by span, not all at once: a program that locks all its memory
        // (mlockall) makes the kernel populate everything accessible.
        let (offset, len) = (first as usize * SPAN_BYTES, count as usize * SPAN_BYTES);
        self.memory.commit(offset, len).map_err(NoSpan::NoMemory)?;
        self.headers.grow((first + count) as usize).map_err(NoSpan::NoMemory)?;
        free.frontier += count;
        Ok((first, count))
    }

    /// Takes back a span that has no slot in use. It joins the reserve if that is short and the
    /// span has all its pages; else its memory goes back to the system.
    ///
    /// # Safety
    /// The caller owns the span, came by it through [`Self::take`], and no reference into it is
    /// alive.
    pub(crate) unsafe fn give(&self, span: u32) {
        // SAFETY: it came from `take`.
        let resident = unsafe { self.header(span) }.resident.load(Ordering::Relaxed);
        if resident == ALL_PAGES && self.ready_count.load(Ordering::Relaxed) < self.ready_target() {
            let mut free = self.free.lock();
            if self.ready_count.load(Ordering::Relaxed) + free.populating < self.ready_target() {
                // SAFETY: owned, and all its pages are there.
                unsafe { self.push_ready(&mut free, span) };
                self.used_count.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
        if resident != 0 {
            // SAFETY: nobody relies on what a span without used slots holds (the caller).
            match unsafe { self.memory.release(span as usize * SPAN_BYTES, SPAN_BYTES) } {
                Ok(()) => self.set_resident(span, 0),
                // The program may have locked all its memory. The pages stay counted where they
                // are and serve the span's next user.
                Err(_) => {
                    self.release_failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let mut free = self.free.lock();
        // SAFETY: the span is owned.
        unsafe { self.push_bare(&mut free, span) };
        self.used_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Safety
    /// The caller owns `span`, and all its pages have memory.
    unsafe fn push_ready(&self, free: &mut FreeSpans, span: u32) {
        // SAFETY: owned spans are below the frontier.
        unsafe { self.header(span) }.next.store(free.ready, Ordering::Relaxed);
        free.ready = span;
        self.ready_count.fetch_add(1, Ordering::Relaxed);
    }

    /// # Safety
    /// The caller owns `span`.
    unsafe fn push_bare(&self, free: &mut FreeSpans, span: u32) {
        // SAFETY: owned spans are below the frontier.
        unsafe { self.header(span) }.next.store(free.bare, Ordering::Relaxed);
        free.bare = span;
    }

    /// Notes which pages of a span have memory, by its owner.
    fn set_resident(&self, span: u32, pages: u16) {
        // SAFETY: the owner's spans are below the frontier.
        let header = unsafe { self.header(span) };
        let before = header.resident.load(Ordering::Relaxed).count_ones() as usize;
        header.resident.store(pages, Ordering::Relaxed);
        let after = pages.count_ones() as usize;
        if after >= before {
            self.resident_pages.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.resident_pages.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Makes sure that memory is behind the bytes `offset..offset + len` of a span, and counts it.
    ///
    /// # Safety
    /// The caller owns the span and these bytes, of which `len` is 1 to [`PAGE_SIZE`]; they may be
    /// overwritten.
    #[inline]
    pub(crate) unsafe fn touch(&self, span: u32, offset: usize, len: usize) {
        let pages = Self::pages_of(offset, len);
        // SAFETY: the owner's spans are below the frontier.
        let resident = unsafe { self.header(span) }.resident.load(Ordering::Relaxed);
        if resident & pages != pages {
            // SAFETY: bytes of the span that are the caller's to overwrite.
            unsafe {
                self.at(span, offset).write_volatile(0);
                self.at(span, offset + len - 1).write_volatile(0);
            }
            self.set_resident(span, resident | pages);
            // What was not there is not copied.
            self.note_written(span, pages & !resident);
        }
    }

    /// All pages are shared with a relative from now on: a write makes the kernel copy one.
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

    /// May a span be taken to spare a copy? Each one that is leaves others less full.
    pub(crate) fn take_spare_span(&self) -> bool {
        let less = |count: u32| count.checked_sub(1);
        self.spare_spans.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Was the span taken into use after the last fork, if any page is shared?
    ///
    /// # Safety
    /// As [`Self::header`].
    pub(crate) unsafe fn is_own(&self, span: u32) -> bool {
        // SAFETY: passed on to the caller.
        let since = unsafe { self.header(span) }.since.load(Ordering::Relaxed);
        !self.is_sharing() || u32::from(since) == self.fork.load(Ordering::Relaxed)
    }

    /// Would the kernel copy a page that a relative has too if these bytes were written to? `len`
    /// is 1 to [`PAGE_SIZE`].
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

    /// Returns how many of the pages were not written to since the last fork.
    #[cold]
    fn note_written(&self, span: u32, pages: u16) -> usize {
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
    fn pages_of(offset: usize, len: usize) -> u16 {
        (1 << (offset / PAGE_SIZE)) | (1 << ((offset + len - 1) / PAGE_SIZE))
    }

    /// Pages that were copied since this was last asked.
    pub(crate) fn take_copied_pages(&self) -> usize {
        self.copied_pages.swap(0, Ordering::Relaxed)
    }

    /// The pages of a span that begin at `offset` or later, as a map.
    fn pages_from(offset: usize) -> u16 {
        ALL_PAGES.checked_shl(offset.div_ceil(PAGE_SIZE) as u32).unwrap_or(0)
    }

    /// Whether there is memory behind whole pages from `offset` on.
    ///
    /// # Safety
    /// The caller owns the span.
    pub(crate) unsafe fn has_pages_from(&self, span: u32, offset: usize) -> bool {
        // SAFETY: the owner's spans are below the frontier.
        let resident = unsafe { self.header(span) }.resident.load(Ordering::Relaxed);
        resident & Self::pages_from(offset) != 0
    }

    /// Gives back the memory behind the whole pages of a span from `offset` on.
    ///
    /// # Safety
    /// The caller owns the span and its bytes from `offset` on, which hold nothing.
    pub(crate) unsafe fn release_from(&self, span: u32, offset: usize) {
        let first = offset.next_multiple_of(PAGE_SIZE);
        // SAFETY: nobody relies on what these bytes hold (the caller).
        match unsafe { self.memory.release(span as usize * SPAN_BYTES + first, SPAN_BYTES - first) }
        {
            Ok(()) => {
                // SAFETY: the owner's spans are below the frontier.
                let resident = unsafe { self.header(span) }.resident.load(Ordering::Relaxed);
                self.set_resident(span, resident & !Self::pages_from(offset));
            }
            // As in `give`.
            Err(_) => {
                self.release_failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Fills the reserve up, as far as the reservation goes.
    ///
    /// # Errors
    /// The system's refusal. What was populated before stays; the rest is for a later call.
    pub(crate) fn refill(&self) -> Result<(), Errno> {
        let _refilling = self.refilling.lock();
        loop {
            let mut free = self.free.lock();
            let ready = self.ready_count.load(Ordering::Relaxed) + free.populating;
            let missing = self.ready_target().saturating_sub(ready);
            if missing == 0 {
                return Ok(());
            }
            let (first, count) = match self.take_bare(&mut free, missing.min(REFILL_SPANS)) {
                Ok(taken) => taken,
                Err(NoSpan::Full) => return Ok(()),
                Err(NoSpan::NoMemory(errno)) => return Err(errno),
            };
            free.populating += count;
            drop(free);
            let (offset, len) = (first as usize * SPAN_BYTES, count as usize * SPAN_BYTES);
            // SAFETY: the spans were taken above, nobody else uses them.
            let populated = unsafe { populate(&self.memory, offset, len) };
            if populated.is_ok() {
                (first..first + count).for_each(|span| self.set_resident(span, ALL_PAGES));
            } else {
                for span in first..first + count {
                    // Some pages may have come before the refusal.
                    let offset = span as usize * SPAN_BYTES;
                    // SAFETY: as above; they hold nothing.
                    if unsafe { self.memory.release(offset, SPAN_BYTES) }.is_err() {
                        self.release_failures.fetch_add(1, Ordering::Relaxed);
                        self.set_resident(span, ALL_PAGES);
                    }
                }
            }
            let mut free = self.free.lock();
            free.populating -= count;
            // In this order the lowest address is taken first.
            for span in (first..first + count).rev() {
                // SAFETY: taken above and given up here, ready only if populated.
                unsafe {
                    match populated {
                        Ok(()) => self.push_ready(&mut free, span),
                        Err(_) => self.push_bare(&mut free, span),
                    }
                }
            }
            populated?;
        }
    }

    /// Whether a refill is due: the spans in use have reached 7/8 of those that have memory (the
    /// fill ratio of paper 004 section 5), or, of a large pool, half the reserve has gone.
    #[inline]
    pub(crate) fn reserve_low(&self) -> bool {
        let ready = self.ready_count.load(Ordering::Relaxed);
        let used = self.used_count.load(Ordering::Relaxed);
        ready < self.ready_target().div_ceil(2)
            && ready <= (used + ready) / 8
            && used + ready < self.span_count_max
    }

    /// Bytes that have memory behind them, the reserve included.
    #[inline]
    pub(crate) fn resident_bytes(&self) -> usize {
        self.resident_pages.load(Ordering::Relaxed) * PAGE_SIZE
    }

    /// Bytes that may be written to, memory behind them or not: never less than before.
    pub(crate) fn writable_bytes(&self) -> usize {
        self.frontier() as usize * SPAN_BYTES
    }

    /// Bytes that the headers take.
    pub(crate) fn header_bytes(&self) -> usize {
        self.headers.resident_bytes()
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.span_count_max as usize * SPAN_BYTES
    }

    pub(crate) fn ready_count(&self) -> u32 {
        self.ready_count.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn used_count(&self) -> u32 {
        self.used_count.load(Ordering::Relaxed)
    }

    pub(crate) fn reserve_misses(&self) -> u64 {
        self.reserve_misses.load(Ordering::Relaxed)
    }

    pub(crate) fn release_failures(&self) -> u64 {
        self.release_failures.load(Ordering::Relaxed)
    }

    /// Addresses of the spans and of their headers.
    pub(crate) fn ranges(&self) -> [core::ops::Range<usize>; 2] {
        [self.memory.guarded_range(), self.headers.range()]
    }

    /// Keeps everybody from taking or giving a span.
    pub(crate) fn pause(&self) -> PausedSpans<'_> {
        let refilling = self.refilling.lock();
        PausedSpans { _refilling: refilling, _free: self.free.lock() }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.refilling.reset_after_fork();
            self.free.reset_after_fork();
        }
    }
}

pub(crate) struct PausedSpans<'a> {
    _refilling: MutexGuard<'a, ()>,
    _free: MutexGuard<'a, FreeSpans>,
}

#[cfg(test)]
impl Spans {
    /// Checks the headers, the lists of free spans and the kernel's view of the memory against one
    /// another, given which spans are in use.
    pub(crate) fn audit(&self, in_use: &std::collections::BTreeSet<u32>) {
        let free = self.free.lock();
        // SAFETY: below the frontier.
        let header = |span| unsafe { self.header(span) };
        let walk = |first: u32| {
            let next = |&span: &u32| match header(span).next.load(Ordering::Relaxed) {
                NONE => None,
                next => Some(next),
            };
            std::iter::successors((first != NONE).then_some(first), next).collect::<Vec<u32>>()
        };
        let (ready, bare) = (walk(free.ready), walk(free.bare));
        assert_eq!(ready.len() as u32, self.ready_count());
        assert_eq!(in_use.len() as u32, self.used_count());
        assert_eq!(free.populating, 0);
        assert_eq!(free.frontier, self.frontier());
        let mut all: Vec<u32> = ready.iter().chain(&bare).chain(in_use).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..free.frontier).collect::<Vec<u32>>());

        let resident = |span| header(span).resident.load(Ordering::Relaxed);
        assert!(ready.iter().all(|&span| resident(span) == ALL_PAGES));
        if self.release_failures() == 0 {
            assert!(bare.iter().all(|&span| resident(span) == 0));
        }
        let mut pages = 0;
        let kernel = crate::tests::present_pages(&self.memory.guarded_range());
        // A guard page stands before the first span.
        for (span, kernel) in (0..free.frontier).zip(kernel[1..].chunks(SPAN_PAGES)) {
            let map = kernel.iter().rev().fold(0, |map, &page| map << 1 | u16::from(page));
            assert_eq!(map, resident(span), "span {span}");
            pages += resident(span).count_ones() as usize;
        }
        assert_eq!(pages, kernel.iter().filter(|&&page| page).count());
        assert_eq!(self.resident_bytes(), pages * PAGE_SIZE);
    }
}

const _: () = assert!(SPAN_PAGES == ALL_PAGES.count_ones() as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(count: usize, reserve: usize) -> Spans {
        Spans::new(count * SPAN_BYTES, reserve * SPAN_BYTES).unwrap()
    }

    #[test]
    fn the_reserve_is_taken_first_and_refilled_last() {
        let s = spans(8, 3);
        assert_eq!(s.resident_bytes(), 0);
        s.refill().unwrap();
        assert_eq!((s.ready_count(), s.resident_bytes()), (3, 3 * SPAN_BYTES));
        let taken: Vec<u32> = (0..8).map(|_| s.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(s.reserve_misses(), 5);
        assert_eq!(s.take(), Err(NoSpan::Full));
        assert_eq!(s.resident_bytes(), 3 * SPAN_BYTES);
        s.refill().unwrap();
        assert_eq!(s.ready_count(), 0);
        for span in taken {
            // SAFETY: taken above.
            unsafe { s.give(span) };
        }
        // The three that had memory are the reserve again.
        assert_eq!((s.ready_count(), s.used_count()), (3, 0));
        assert_eq!(s.resident_bytes(), 3 * SPAN_BYTES);
    }

    #[test]
    fn spans_beyond_the_reserve_lose_their_memory() {
        let s = spans(4, 1);
        s.refill().unwrap();
        let (a, b) = (s.take().unwrap(), s.take().unwrap());
        // SAFETY: both were taken.
        unsafe {
            s.touch(b, 4000, 200);
            *s.at(b, 4100) = 9;
            assert_eq!(s.resident_bytes(), SPAN_BYTES + 2 * PAGE_SIZE);
            s.give(a);
            s.give(b);
            assert_eq!(s.resident_bytes(), SPAN_BYTES);
            let again = [s.take().unwrap(), s.take().unwrap()];
            assert_eq!(again, [a, b]);
            assert_eq!(*s.at(b, 4100), 0);
        }
    }

    #[test]
    fn a_refill_is_due_at_seven_eighths() {
        let s = spans(100, 8);
        assert!(s.reserve_low());
        s.refill().unwrap();
        for _ in 0..6 {
            s.take().unwrap();
            assert!(!s.reserve_low());
        }
        // 7 of the 8 that have memory are in use.
        s.take().unwrap();
        assert!(s.reserve_low());
        s.refill().unwrap();
        assert_eq!((s.used_count(), s.ready_count()), (7, 8));
        for _ in 0..6 {
            assert!(!s.reserve_low());
            s.take().unwrap();
        }
        // 13 of 15, and 14 of 15.
        assert!(!s.reserve_low());
        s.take().unwrap();
        assert!(s.reserve_low());
        // Of a large pool half the reserve is enough.
        for _ in 0..40 {
            s.take().unwrap();
        }
        s.refill().unwrap();
        for _ in 0..4 {
            s.take().unwrap();
            assert!(!s.reserve_low());
        }
        s.take().unwrap();
        assert!(s.reserve_low());
    }

    #[test]
    fn without_a_reserve_none_is_due() {
        let s = spans(2, 0);
        s.take().unwrap();
        assert!(!s.reserve_low());
        s.refill().unwrap();
        assert_eq!(s.resident_bytes(), 0);
    }
}

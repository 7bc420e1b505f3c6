//! Spans: runs of 64 KiB, each with a header kept apart from it, that are in use, ready (free, with
//! memory behind every page) or bare (free, the memory given back).
//!
//! The ready spans are the reserve: compressing a page must not depend on memory that is not there
//! at that moment (the deadlock of CRAMES, paper 004 section 5), so spans are populated ahead, by
//! [`Spans::refill`], and a store takes a span without asking the system for anything.

mod prepared;
mod reserve;
mod sharing;

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use ramfold_sys::mem::Reservation;
use ramfold_sys::sync::{Mutex, MutexGuard};
use ramfold_sys::{Errno, PAGE_SIZE};

use super::classes::{SPAN_BYTES, SPAN_PAGES};
use super::memory::{GrowingArray, Zeroed};

/// No span: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// All pages of a span, as a map.
const ALL_PAGES: u16 = u16::MAX;

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

/// What [`Config::metadata_bytes_max`](crate::Config) tells users of a span's cost rests on it.
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
    /// Spans that may be in use or ready, together.
    limit: AtomicU32,
    /// How many ready spans are kept.
    ready_target: AtomicU32,
    /// Whether spans are taken from the reserve only.
    is_prepared_only: AtomicBool,
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
    /// Whether a relative by fork still has pages of that time.
    sharing: AtomicBool,
    /// Spans that may still be taken only to avoid copies.
    spare_spans: AtomicU32,
    /// Pages that the kernel has copied since [`Spans::take_copied_pages`] was last called.
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
            limit: AtomicU32::new(span_count_max as u32),
            ready_target: AtomicU32::new(0),
            is_prepared_only: AtomicBool::new(false),
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
        } else if self.is_prepared_only() {
            self.reserve_misses.fetch_add(1, Ordering::Relaxed);
            return Err(NoSpan::Full);
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
        let left = self.limit().saturating_sub(self.claimed_count() + free.populating);
        let count_max = count_max.min(left);
        if count_max == 0 {
            return Err(NoSpan::Full);
        }
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
        let keeps = |populating| {
            self.is_prepared_only()
                || self.ready_count.load(Ordering::Relaxed) + populating < self.ready_target()
        };
        if resident == ALL_PAGES && keeps(0) {
            let mut free = self.free.lock();
            if keeps(free.populating) {
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

    /// Spans in use and ready: no others have memory, or will have without being taken first.
    pub(crate) fn claimed_count(&self) -> u32 {
        self.used_count() + self.ready_count()
    }

    /// Sets how many spans may be in use or ready. What is there stays.
    pub(crate) fn set_limit(&self, spans: u32) {
        self.limit.store(spans.min(self.span_count_max), Ordering::Relaxed);
    }

    fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
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

/// [`SpanHeader::resident`] and the other maps have a bit for each page of a span.
const _: () = assert!(SPAN_PAGES == ALL_PAGES.count_ones() as usize);

#[cfg(test)]
mod tests;

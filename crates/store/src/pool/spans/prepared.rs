//! Spans of a store that never asks the system for memory: the reserve is all that is taken from.

use core::sync::atomic::Ordering;

use ramfold_sys::Errno;

use super::{NONE, SPAN_BYTES, Spans};

impl Spans {
    /// From now on spans are taken from the reserve only, and go back there when they are empty.
    /// All spans get access rights and headers, so that taking one makes no system call.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn prepare_only(&self) -> Result<(), Errno> {
        // Where this is not allowed, the process has not locked its memory either.
        let _ = self.memory.lock_when_populated();
        let _refilling = self.refilling.lock();
        let mut free = self.free.lock();
        let first = free.frontier;
        if first < self.span_count_max {
            let count = (self.span_count_max - first) as usize;
            self.memory.commit(first as usize * SPAN_BYTES, count * SPAN_BYTES)?;
            self.headers.grow(self.span_count_max as usize)?;
            free.frontier = self.span_count_max;
            for span in (first..self.span_count_max).rev() {
                // SAFETY: never handed out.
                unsafe { self.push_bare(&mut free, span) };
            }
        }
        self.is_prepared_only.store(true, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_prepared_only(&self) -> bool {
        self.is_prepared_only.load(Ordering::Relaxed)
    }

    /// Whether fewer spans are in use or ready than may be.
    pub(crate) fn may_grow(&self) -> bool {
        self.claimed_count() < self.limit()
    }

    /// Gives back the memory of what is ready beyond twice the reserve. For a thread that may wait.
    pub(crate) fn release_surplus(&self) {
        let _refilling = self.refilling.lock();
        while self.ready_count() > 2 * self.ready_target().max(1) {
            let mut free = self.free.lock();
            let span = free.ready;
            if span == NONE {
                return;
            }
            // SAFETY: spans in the lists are below the frontier.
            free.ready = unsafe { self.header(span) }.next.load(Ordering::Relaxed);
            self.ready_count.fetch_sub(1, Ordering::Relaxed);
            drop(free);
            // SAFETY: taken from the list above; it holds nothing.
            let released =
                unsafe { self.memory.release_locked(span as usize * SPAN_BYTES, SPAN_BYTES) };
            if released.is_ok() {
                self.set_resident(span, 0);
            }
            let mut free = self.free.lock();
            // SAFETY: taken above, with all pages unless they were released.
            unsafe {
                match released {
                    Ok(()) => self.push_bare(&mut free, span),
                    Err(_) => self.push_ready(&mut free, span),
                }
            }
            if released.is_err() {
                self.release_failures.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

//! The reserve: spans that have memory before they are needed.

use core::sync::atomic::Ordering;

use ramfold_sys::Errno;

use super::{ALL_PAGES, NoSpan, SPAN_BYTES, Spans};
use crate::pool::memory::populate;

/// Spans populated by one call into the kernel: 1 MiB.
const REFILL_SPANS: u32 = 16;

impl Spans {
    /// Changes how many bytes, rounded up to spans, are kept ready. What is ready beyond them is
    /// used up.
    pub(crate) fn set_reserve(&self, bytes: usize) {
        let spans = bytes.div_ceil(SPAN_BYTES).min(self.span_count_max as usize);
        self.ready_target.store(spans as u32, Ordering::Relaxed);
    }

    pub(super) fn ready_target(&self) -> u32 {
        self.ready_target.load(Ordering::Relaxed)
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
    /// Of a pool that has nothing but the reserve, half of that has gone.
    #[inline]
    pub(crate) fn reserve_low(&self) -> bool {
        let ready = self.ready_count.load(Ordering::Relaxed);
        let used = self.used_count.load(Ordering::Relaxed);
        ready < self.ready_target().div_ceil(2)
            && (ready <= (used + ready) / 8 || self.is_prepared_only())
            && used + ready < self.limit()
    }
}

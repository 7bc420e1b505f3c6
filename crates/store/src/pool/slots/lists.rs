//! The spans of one class, in a list for each fullness.

use core::sync::atomic::Ordering;

use super::{CANDIDATES, FULLNESS_STEPS, Ground, NONE, Slot, at};

/// A class's spans.
pub(super) struct Lists {
    /// First span of each fullness that has a free slot. Full spans are in no list.
    pub(super) heads: [u32; FULLNESS_STEPS],
    /// Slots in use, of all spans.
    pub(super) used_slots: u64,
    /// Spans, full ones included.
    pub(super) span_count: u32,
}

impl Lists {
    #[inline]
    pub(super) fn fullest(&self) -> Option<u32> {
        self.heads.iter().rev().copied().find(|&span| span != NONE)
    }

    /// A span and those behind it in the list of its fullness; none from [`NONE`] on.
    ///
    /// # Safety
    /// `first` is in a list of the ground's, whose lock is held for as long as the walk is used.
    pub(super) unsafe fn walk(on: Ground<'_>, first: u32) -> impl Iterator<Item = u32> {
        let some = |span: u32| (span != NONE).then_some(span);
        core::iter::successors(some(first), move |&span| {
            // SAFETY: spans in the lists are in use.
            some(unsafe { on.spans.header(span) }.next.load(Ordering::Relaxed))
        })
    }

    /// The fullest span whose next slot can be written to without a copy of a page that a relative
    /// has too, among the first few of each fullness.
    ///
    /// # Safety
    /// `on` is this list's ground.
    #[inline]
    pub(super) unsafe fn fullest_own(&self, on: Ground<'_>) -> Option<u32> {
        if !on.spans.is_sharing() {
            return self.fullest();
        }
        let bytes = usize::from(on.class.slot_bytes);
        self.heads.iter().rev().find_map(|&head| {
            // SAFETY: a span of this list; those in the lists are in use.
            unsafe { Self::walk(on, head) }.take(CANDIDATES).find(|&span| unsafe {
                let header = on.spans.header(span);
                let freed = header.freed.load(Ordering::Relaxed).checked_sub(1);
                let number = freed.unwrap_or_else(|| header.fresh.load(Ordering::Relaxed));
                !on.spans.is_shared(span, usize::from(number) * bytes, bytes)
            })
        })
    }

    /// Takes a free slot of a span.
    ///
    /// # Safety
    /// `span` is in use by this list's class, not full, and in the list of its fullness or empty.
    #[inline]
    pub(super) unsafe fn take_slot(&mut self, on: Ground<'_>, span: u32) -> Slot {
        // SAFETY: spans in the lists are in use.
        let header = unsafe { on.spans.header(span) };
        let freed = header.freed.load(Ordering::Relaxed);
        let number = match freed.checked_sub(1) {
            Some(number) => {
                // SAFETY: a freed slot begins with the number of the next one.
                let next = unsafe { at(on, Slot { span, number }).cast::<u16>().read() };
                header.freed.store(next, Ordering::Relaxed);
                number
            }
            None => {
                let number = header.fresh.load(Ordering::Relaxed);
                debug_assert!(number < on.class.slots);
                header.fresh.store(number + 1, Ordering::Relaxed);
                let bytes = usize::from(on.class.slot_bytes);
                // SAFETY: the slot was never used, and is ours from here on.
                unsafe { on.spans.touch(span, usize::from(number) * bytes, bytes) };
                number
            }
        };
        // SAFETY: the span was in the list of its fullness.
        unsafe { self.set_used(on, span, header.used.load(Ordering::Relaxed) + 1) };
        self.used_slots += 1;
        Slot { span, number }
    }

    /// Takes a freed slot with a number below `end`.
    ///
    /// # Safety
    /// As [`Self::take_slot`], or the span is full.
    pub(super) unsafe fn take_freed_below(
        &mut self,
        on: Ground<'_>,
        span: u32,
        end: u16,
    ) -> Option<Slot> {
        // SAFETY: spans in the lists are in use.
        let header = unsafe { on.spans.header(span) };
        let mut before: Option<u16> = None;
        let mut freed = header.freed.load(Ordering::Relaxed);
        while let Some(number) = freed.checked_sub(1) {
            // SAFETY: a freed slot begins with the number of the next one.
            let next = unsafe { at(on, Slot { span, number }).cast::<u16>().read() };
            if number < end {
                match before {
                    None => header.freed.store(next, Ordering::Relaxed),
                    // SAFETY: a freed slot, whose first bytes are the list's.
                    Some(number) => unsafe {
                        at(on, Slot { span, number }).cast::<u16>().write(next);
                    },
                }
                // SAFETY: with a freed slot it was in the list of its fullness.
                unsafe { self.set_used(on, span, header.used.load(Ordering::Relaxed) + 1) };
                self.used_slots += 1;
                return Some(Slot { span, number });
            }
            before = Some(number);
            freed = next;
        }
        None
    }

    /// Takes all free slots of a span, if all objects lie before them and there is memory behind
    /// them, so that the span counts as full. Returns the number of the first.
    ///
    /// # Safety
    /// `span` is in the list of its fullness.
    pub(super) unsafe fn hold_end(&mut self, on: Ground<'_>, span: u32) -> Option<u16> {
        // SAFETY: spans in the lists are in use.
        let header = unsafe { on.spans.header(span) };
        let end = header.used.load(Ordering::Relaxed);
        let mut freed = header.freed.load(Ordering::Relaxed);
        while let Some(number) = freed.checked_sub(1) {
            if number < end {
                return None;
            }
            // SAFETY: a freed slot begins with the number of the next one.
            freed = unsafe { at(on, Slot { span, number }).cast::<u16>().read() };
        }
        // SAFETY: as above.
        if !unsafe {
            on.spans.has_pages_from(span, usize::from(end) * usize::from(on.class.slot_bytes))
        } {
            return None;
        }
        header.freed.store(0, Ordering::Relaxed);
        header.fresh.store(on.class.slots, Ordering::Relaxed);
        // SAFETY: in the list of its fullness.
        unsafe { self.set_used(on, span, on.class.slots) };
        Some(end)
    }

    /// Gives back what [`Self::hold_end`] took. `true` if no slot of the span is in use: then it is
    /// the caller's.
    ///
    /// # Safety
    /// `end` is what `hold_end` returned for this span, and nothing was given back since.
    pub(super) unsafe fn give_back_end(&mut self, on: Ground<'_>, span: u32, end: u16) -> bool {
        // SAFETY: the slots held keep it in use.
        let header = unsafe { on.spans.header(span) };
        header.fresh.store(end, Ordering::Relaxed);
        let left = header.used.load(Ordering::Relaxed) - (on.class.slots - end);
        // SAFETY: full, or in the list of its fullness since a slot of it was freed.
        unsafe { self.set_used(on, span, left) };
        if left == 0 {
            self.span_count -= 1;
        }
        left == 0
    }

    /// Notes how many slots of a span are in use, and moves it to the list of its fullness; to no
    /// list when it is full or empty.
    ///
    /// # Safety
    /// `span` is in use by this list's class, and in the list of its fullness unless it is full.
    #[inline]
    pub(super) unsafe fn set_used(&mut self, on: Ground<'_>, span: u32, now: u16) {
        // SAFETY: in use.
        let header = unsafe { on.spans.header(span) };
        let before = header.used.load(Ordering::Relaxed);
        header.used.store(now, Ordering::Relaxed);
        let list = |used| (used != 0 && used != on.class.slots).then(|| on.class.fullness(used));
        let (from, to) = (list(before), list(now));
        if from != to {
            // SAFETY: it was in the list of its fullness; then it is in none.
            unsafe {
                if let Some(fullness) = from {
                    self.unlink(on, span, fullness);
                }
                if let Some(fullness) = to {
                    self.link(on, span, fullness);
                }
            }
        }
    }

    /// # Safety
    /// `span` is in use by this list's class and in no list.
    unsafe fn link(&mut self, on: Ground<'_>, span: u32, fullness: usize) {
        let head = core::mem::replace(&mut self.heads[fullness], span);
        // SAFETY: spans in use have headers.
        unsafe {
            let header = on.spans.header(span);
            header.next.store(head, Ordering::Relaxed);
            header.previous.store(NONE, Ordering::Relaxed);
            if head != NONE {
                on.spans.header(head).previous.store(span, Ordering::Relaxed);
            }
        }
    }

    /// # Safety
    /// `span` is in the list of this fullness.
    unsafe fn unlink(&mut self, on: Ground<'_>, span: u32, fullness: usize) {
        // SAFETY: spans in the lists have headers.
        unsafe {
            let header = on.spans.header(span);
            let next = header.next.load(Ordering::Relaxed);
            let previous = header.previous.load(Ordering::Relaxed);
            if previous == NONE {
                self.heads[fullness] = next;
            } else {
                on.spans.header(previous).next.store(next, Ordering::Relaxed);
            }
            if next != NONE {
                on.spans.header(next).previous.store(previous, Ordering::Relaxed);
            }
        }
    }
}

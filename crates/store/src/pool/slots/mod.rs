//! The slots of one size: spans cut into equal slots, sorted by how full they are.

mod lists;

use core::sync::atomic::Ordering;

use ramfold_sys::sync::{Mutex, MutexGuard};

use lists::Lists;

use super::classes::{Class, FULLNESS_STEPS};
use super::spans::{NONE, NoSpan, Spans};

/// How many spans are considered as the target of an object.
const CANDIDATES: usize = 8;

/// A slot: its span and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub span: u32,
    pub number: u16,
}

/// The spans of one class. On a cache line of its own, for classes are used in parallel.
#[repr(align(64))]
pub(crate) struct SlotList {
    lists: Mutex<Lists>,
}

/// What a slot list works on: its class, and where its spans come from.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub spans: &'a Spans,
    pub class: &'static Class,
    pub class_number: u8,
}

impl SlotList {
    pub(crate) const fn new() -> Self {
        SlotList {
            lists: Mutex::new(Lists {
                heads: [NONE; FULLNESS_STEPS],
                used_slots: 0,
                span_count: 0,
            }),
        }
    }

    /// Takes a slot of the fullest span that has one, or of a new span. All its bytes have memory
    /// behind them.
    ///
    /// # Safety
    /// Every call on this list must be given the same ground.
    #[inline]
    pub(crate) unsafe fn alloc(&self, on: Ground<'_>) -> Result<Slot, NoSpan> {
        {
            let mut lists = self.lists.lock();
            let shared = || lists.fullest().filter(|_| !on.spans.take_spare_span());
            // SAFETY: this list's ground.
            if let Some(span) = unsafe { lists.fullest_own(on) }.or_else(shared) {
                // SAFETY: a span in this list, whose lock is held.
                return Ok(unsafe { lists.take_slot(on, span) });
            }
        }
        // Without the lock, for this may ask the system for memory.
        let new = match on.spans.take() {
            Ok(new) => new,
            Err(refusal) => {
                let mut lists = self.lists.lock();
                let span = lists.fullest().ok_or(refusal)?;
                // SAFETY: as above.
                return Ok(unsafe { lists.take_slot(on, span) });
            }
        };
        let mut lists = self.lists.lock();
        // SAFETY: as above.
        if let Some(span) = unsafe { lists.fullest_own(on) } {
            // Another thread was faster with a new span, or freed a slot.
            // SAFETY: as above.
            let slot = unsafe { lists.take_slot(on, span) };
            drop(lists);
            // SAFETY: just taken, and never used.
            unsafe { on.spans.give(new) };
            return Ok(slot);
        }
        // SAFETY: just taken.
        let header = unsafe { on.spans.header(new) };
        header.used.store(0, Ordering::Relaxed);
        header.fresh.store(0, Ordering::Relaxed);
        header.freed.store(0, Ordering::Relaxed);
        header.class.store(on.class_number, Ordering::Relaxed);
        lists.span_count += 1;
        // SAFETY: a span of ours, which is in no list while it is empty.
        Ok(unsafe { lists.take_slot(on, new) })
    }

    /// Takes a slot only if there is one in the spans the class already has. `own`: only one whose
    /// pages no relative shares.
    ///
    /// # Safety
    /// As [`Self::alloc`].
    pub(crate) unsafe fn alloc_here(&self, on: Ground<'_>, own: bool) -> Option<Slot> {
        let mut lists = self.lists.lock();
        // SAFETY: this list's ground.
        let span = if own { unsafe { lists.fullest_own(on) } } else { lists.fullest() }?;
        // SAFETY: a span in this list, whose lock is held.
        Some(unsafe { lists.take_slot(on, span) })
    }

    /// Takes a slot that is better for the object of `than`: in a fuller span (of equally full
    /// ones, in one with a lower number); or, if its span is the fullest and the object lies behind
    /// as many slots as are in use, nearer to the span's start, so that [`Self::trim`] finds the
    /// end free. Each move makes the spans less alike or brings the object nearer to the start, so
    /// moving comes to an end.
    ///
    /// # Safety
    /// As [`Self::alloc`], and `than` must be a used slot of this list, of the caller's.
    pub(crate) unsafe fn alloc_better(&self, on: Ground<'_>, than: Slot) -> Option<Slot> {
        // SAFETY: the span of `than` is in use.
        if !unsafe { on.spans.is_own(than.span) } {
            return None;
        }
        let mut lists = self.lists.lock();
        // SAFETY: `than` and the spans in the lists are in use.
        let header = |span| unsafe { on.spans.header(span) };
        let used = |span| header(span).used.load(Ordering::Relaxed);
        let mut best = than.span;
        // The first few are enough: whichever is chosen fills up, and is the fullest from then on.
        // SAFETY: a span of this list, whose lock is held.
        for next in unsafe { Lists::walk(on, lists.fullest()?) }.take(CANDIDATES) {
            // SAFETY: as above.
            if (used(next), best) > (used(best), next) && unsafe { on.spans.is_own(next) } {
                best = next;
            }
        }
        if best != than.span {
            // SAFETY: any span but that came from this list, whose lock is held.
            return Some(unsafe { lists.take_slot(on, best) });
        }
        let end = used(best);
        // SAFETY: in use by this list; a span with a freed slot is in the list of its fullness.
        (than.number >= end).then(|| unsafe { lists.take_freed_below(on, best, end) }).flatten()
    }

    /// Gives back the memory behind the free slots at the end of each span whose objects all lie
    /// before them. Holds the lock for one span at a time, and not during the system call.
    ///
    /// # Safety
    /// As [`Self::alloc`].
    pub(crate) unsafe fn trim(&self, on: Ground<'_>) {
        for fullness in 0..FULLNESS_STEPS {
            // Once objects have been moved together there are no more than a few.
            for place in 0..CANDIDATES {
                let mut lists = self.lists.lock();
                // SAFETY: a span of this list, whose lock is held.
                let mut walk = unsafe { Lists::walk(on, lists.heads[fullness]) };
                let Some(span) = walk.nth(place) else { break };
                // SAFETY: a span in the list of its fullness, whose lock is held.
                let Some(end) = (unsafe { lists.hold_end(on, span) }) else { continue };
                drop(lists);
                let offset = usize::from(end) * usize::from(on.class.slot_bytes);
                // SAFETY: no slot from `end` on is in use, nor can be, until they are given back.
                unsafe { on.spans.release_from(span, offset) };
                // SAFETY: held above.
                if unsafe { self.lists.lock().give_back_end(on, span, end) } {
                    // SAFETY: in no list and without a used slot, the span is ours alone.
                    unsafe { on.spans.give(span) };
                }
            }
        }
    }

    /// Gives a slot back, and its span if that was the last.
    ///
    /// # Safety
    /// As [`Self::alloc`]; the slot came from this list, and the caller gives up all use of it.
    #[inline]
    pub(crate) unsafe fn free(&self, on: Ground<'_>, slot: Slot) {
        let mut lists = self.lists.lock();
        // SAFETY: the slot's span is in use.
        let header = unsafe { on.spans.header(slot.span) };
        let used = header.used.load(Ordering::Relaxed);
        let Some(left) = used.checked_sub(1) else {
            // Only a damaged entry can free a slot twice. The spans stay as they are.
            return;
        };
        lists.used_slots -= 1;
        if left > 0 {
            // SAFETY: the slot is free now: its first bytes are the list's, and have memory.
            unsafe { at(on, slot).cast::<u16>().write(header.freed.load(Ordering::Relaxed)) };
            header.freed.store(slot.number + 1, Ordering::Relaxed);
        }
        // SAFETY: a span with a free slot is in the list of its fullness.
        unsafe { lists.set_used(on, slot.span, left) };
        if left == 0 {
            lists.span_count -= 1;
            drop(lists);
            // SAFETY: in no list and without a used slot, the span is ours alone.
            unsafe { on.spans.give(slot.span) };
        }
    }

    /// Slots in use and spans they are in.
    pub(crate) fn counts(&self) -> (u64, u32) {
        let lists = self.lists.lock();
        (lists.used_slots, lists.span_count)
    }

    pub(crate) fn pause(&self) -> PausedList<'_> {
        PausedList { _lists: self.lists.lock() }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.lists.reset_after_fork() };
    }
}

pub(crate) struct PausedList<'a> {
    _lists: MutexGuard<'a, Lists>,
}

/// First byte of a slot.
///
/// # Safety
/// The slot's span must be in use, by the class of `on`.
#[inline]
pub(crate) unsafe fn at(on: Ground<'_>, slot: Slot) -> *mut u8 {
    let offset = usize::from(slot.number) * usize::from(on.class.slot_bytes);
    // SAFETY: slots lie inside their span (asserted over all classes at compile time).
    unsafe { on.spans.at(slot.span, offset) }
}

#[cfg(test)]
mod tests;

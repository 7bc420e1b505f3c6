//! The slots of one size: spans cut into equal slots, sorted by how full they are.

use core::sync::atomic::Ordering;

use ramfold_sys::sync::{Mutex, MutexGuard};

use super::classes::{Class, FULLNESS_STEPS};
use super::spans::{NONE, NoSpan, Spans};

/// How many spans are looked at for one to move an object to.
const CANDIDATES: usize = 8;

/// A slot: its span and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub span: u32,
    pub number: u16,
}

struct Lists {
    /// First span of each fullness that has a free slot. Full spans are in no list.
    heads: [u32; FULLNESS_STEPS],
    used_slots: u64,
    span_count: u32,
}

/// The spans of one class. On a cache line of its own, for classes are used in parallel.
#[repr(align(64))]
pub(crate) struct SlotList {
    lists: Mutex<Lists>,
}

/// What a slot list works on: where its spans come from, and what its class is.
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
            if let Some(span) = lists.fullest() {
                // SAFETY: a span in this list, whose lock is held.
                return Ok(unsafe { lists.take_slot(on, span) });
            }
        }
        // Without the lock, for this may ask the system for memory.
        let new = on.spans.take()?;
        let mut lists = self.lists.lock();
        if let Some(span) = lists.fullest() {
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
        // SAFETY: a span of ours that is in no list yet; then one of this list's.
        unsafe {
            lists.link(on, new, 0);
            Ok(lists.take_slot(on, new))
        }
    }

    /// Takes a slot only if there is one in the spans the class already has.
    ///
    /// # Safety
    /// As [`Self::alloc`].
    pub(crate) unsafe fn alloc_here(&self, on: Ground<'_>) -> Option<Slot> {
        let mut lists = self.lists.lock();
        let span = lists.fullest()?;
        // SAFETY: a span in this list, whose lock is held.
        Some(unsafe { lists.take_slot(on, span) })
    }

    /// Takes a slot in a span that is fuller than `than` (at equal fullness: that has a lower
    /// number), if there is one and the class could do with fewer spans. Each move leaves the spans
    /// less alike, so moving ends.
    ///
    /// # Safety
    /// As [`Self::alloc`], and `than` must be a span of this list with a used slot of the
    /// caller's.
    pub(crate) unsafe fn alloc_in_fuller(&self, on: Ground<'_>, than: u32) -> Option<Slot> {
        let mut lists = self.lists.lock();
        // SAFETY: `than` and the spans in the lists are in use.
        let header = |span| unsafe { on.spans.header(span) };
        let used = |span| header(span).used.load(Ordering::Relaxed);
        let slots = u64::from(on.class.slots);
        if u64::from(lists.span_count) * slots - lists.used_slots < slots {
            // However the objects lie, they need all the spans.
            return None;
        }
        let mut best = than;
        let mut next = lists.fullest()?;
        // The first few are enough: whichever is chosen fills up, and is the fullest from then on.
        for _ in 0..CANDIDATES {
            if next == NONE {
                break;
            }
            if (used(next), best) > (used(best), next) {
                best = next;
            }
            next = header(next).next.load(Ordering::Relaxed);
        }
        // SAFETY: any span but `than` came from this list, whose lock is held.
        (best != than).then(|| unsafe { lists.take_slot(on, best) })
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
        let before = on.class.fullness(used);
        let was_full = used == on.class.slots;
        lists.used_slots -= 1;
        if left == 0 {
            if !was_full {
                // SAFETY: a span with a free slot is in the list of its fullness.
                unsafe { lists.unlink(on, slot.span, before) };
            }
            lists.span_count -= 1;
            drop(lists);
            // SAFETY: in no list and without a used slot, the span is ours alone.
            unsafe { on.spans.give(slot.span) };
            return;
        }
        // SAFETY: the slot is free now: its first bytes are the list's, and have memory.
        unsafe { at(on, slot).cast::<u16>().write(header.freed.load(Ordering::Relaxed)) };
        header.freed.store(slot.number + 1, Ordering::Relaxed);
        header.used.store(left, Ordering::Relaxed);
        let after = on.class.fullness(left);
        if was_full || before != after {
            // SAFETY: a full span is in no list, any other in that of its fullness.
            unsafe {
                if !was_full {
                    lists.unlink(on, slot.span, before);
                }
                lists.link(on, slot.span, after);
            }
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

#[cfg(test)]
impl SlotList {
    /// Checks the lists, the spans' headers and the links in freed slots against the slots that
    /// are in use, by span.
    pub(crate) fn audit(
        &self,
        on: Ground<'_>,
        in_use: &std::collections::BTreeMap<u32, std::collections::BTreeSet<u16>>,
    ) {
        let lists = self.lists.lock();
        assert_eq!(lists.span_count as usize, in_use.len());
        assert_eq!(lists.used_slots as usize, in_use.values().map(|slots| slots.len()).sum());
        for (&span, slots) in in_use {
            // SAFETY: the span has slots in use.
            let header = unsafe { on.spans.header(span) };
            assert_eq!(header.class.load(Ordering::Relaxed), on.class_number);
            assert_eq!(usize::from(header.used.load(Ordering::Relaxed)), slots.len());
            let fresh = header.fresh.load(Ordering::Relaxed);
            assert!(fresh <= on.class.slots);
            let mut seen = slots.clone();
            let mut freed = header.freed.load(Ordering::Relaxed);
            while let Some(number) = freed.checked_sub(1) {
                assert!(seen.insert(number), "slot {number} is free and in use, or free twice");
                // SAFETY: a freed slot holds the next one's number.
                freed = unsafe { at(on, Slot { span, number }).cast::<u16>().read() };
            }
            assert!(seen.into_iter().eq(0..fresh), "a slot of span {span} is lost");
        }
        let mut listed = 0;
        for (fullness, &head) in lists.heads.iter().enumerate() {
            let (mut span, mut previous) = (head, NONE);
            while span != NONE {
                // SAFETY: spans in the lists are in use.
                let header = unsafe { on.spans.header(span) };
                let used = header.used.load(Ordering::Relaxed);
                assert_eq!(on.class.fullness(used), fullness);
                assert!(used < on.class.slots && in_use.contains_key(&span));
                assert_eq!(header.previous.load(Ordering::Relaxed), previous);
                listed += 1;
                previous = span;
                span = header.next.load(Ordering::Relaxed);
            }
        }
        let full = in_use.values().filter(|slots| slots.len() == usize::from(on.class.slots));
        assert_eq!(listed + full.count(), in_use.len());
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

impl Lists {
    #[inline]
    fn fullest(&self) -> Option<u32> {
        self.heads.iter().rev().copied().find(|&span| span != NONE)
    }

    /// Takes a free slot of a span in one of the lists.
    ///
    /// # Safety
    /// `span` is in the list of its fullness.
    #[inline]
    unsafe fn take_slot(&mut self, on: Ground<'_>, span: u32) -> Slot {
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
        let used = header.used.load(Ordering::Relaxed);
        header.used.store(used + 1, Ordering::Relaxed);
        self.used_slots += 1;
        let (before, after) = (on.class.fullness(used), on.class.fullness(used + 1));
        let full = used + 1 == on.class.slots;
        if full || before != after {
            // SAFETY: the span was in the list of its fullness.
            unsafe {
                self.unlink(on, span, before);
                if !full {
                    self.link(on, span, after);
                }
            }
        }
        Slot { span, number }
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

#[cfg(test)]
mod tests {
    use super::super::classes::{CLASSES, PAGE_CLASS, SPAN_BYTES};
    use super::*;

    fn with_list(class: usize, spans: usize, test: impl FnOnce(&SlotList, Ground<'_>)) {
        let spans = Spans::new(spans * SPAN_BYTES, 0).unwrap();
        let on = Ground { spans: &spans, class: &CLASSES[class], class_number: class as u8 };
        test(&SlotList::new(), on);
        assert_eq!(spans.used_count(), 0);
        assert_eq!(spans.resident_bytes(), 0);
    }

    #[test]
    fn every_slot_of_every_class_is_apart_from_the_others_and_comes_back() {
        for class in 0..CLASSES.len() {
            with_list(class, 2, |list, on| {
                let bytes = usize::from(on.class.slot_bytes);
                // SAFETY: one ground; slots are filled while owned, and freed once.
                unsafe {
                    let mut slots = Vec::new();
                    while let Ok(slot) = list.alloc(on) {
                        at(on, slot).write_bytes(slots.len() as u8, bytes);
                        slots.push(slot);
                    }
                    assert_eq!(slots.len(), 2 * usize::from(on.class.slots));
                    assert_eq!(list.counts(), (slots.len() as u64, 2));
                    for (i, &slot) in slots.iter().enumerate() {
                        let content = std::slice::from_raw_parts(at(on, slot), bytes);
                        assert!(content.iter().all(|&b| b == i as u8));
                    }
                    slots.into_iter().rev().for_each(|slot| list.free(on, slot));
                }
                assert_eq!(list.counts(), (0, 0));
            });
        }
    }

    #[test]
    fn a_fresh_span_costs_only_the_pages_touched() {
        with_list(PAGE_CLASS, 1, |list, on| {
            // SAFETY: one ground; slots freed once.
            unsafe {
                let a = list.alloc(on).unwrap();
                assert_eq!(on.spans.resident_bytes(), 4096);
                let b = list.alloc(on).unwrap();
                assert_eq!(on.spans.resident_bytes(), 8192);
                list.free(on, a);
                assert_eq!(list.alloc(on), Ok(a));
                assert_eq!(on.spans.resident_bytes(), 8192);
                list.free(on, a);
                list.free(on, b);
            }
        });
    }

    #[test]
    fn the_fullest_span_is_used_first() {
        with_list(PAGE_CLASS, 3, |list, on| {
            // SAFETY: one ground; slots freed once.
            unsafe {
                let slots: Vec<_> = (0..48).map(|_| list.alloc(on).unwrap()).collect();
                assert!(list.alloc(on).is_err());
                let mut kept: Vec<_> = Vec::new();
                for slot in slots {
                    // Leave 2 of span 0, 14 of span 1, 9 of span 2.
                    if slot.number < [2, 14, 9][slot.span as usize] {
                        kept.push(slot);
                    } else {
                        list.free(on, slot);
                    }
                }
                for span in [1, 1, 2, 2, 2] {
                    let slot = list.alloc(on).unwrap();
                    assert_eq!(slot.span, span);
                    kept.push(slot);
                }
                // From the emptiest an object can move, to the emptiest none.
                assert_eq!(list.alloc_in_fuller(on, 2), None);
                let moved = list.alloc_in_fuller(on, 0).unwrap();
                assert_eq!(moved.span, 2);
                kept.push(moved);
                kept.into_iter().for_each(|slot| list.free(on, slot));
                assert!(list.alloc_here(on).is_none());
            }
        });
    }
}

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

    /// Takes a slot for an object of `than` that would serve better: in a fuller span (at equal
    /// fullness: that has a lower number); or, if its span is the fullest, nearer to the span's start
    /// than the objects there need, so that [`Self::trim`] finds the end free. Each move leaves the spans
    /// less alike or the object nearer to the start, so moving ends.
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

    /// Gives back the memory behind free slots at the ends of spans, where no object lies between them.
    /// Holds the lock for one span at a time, and not during the call into the system.
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

    /// A span and those behind it in the list of its fullness; none from [`NONE`] on.
    ///
    /// # Safety
    /// `first` is in a list of the ground's, whose lock is held for as long as the walk is used.
    unsafe fn walk(on: Ground<'_>, first: u32) -> impl Iterator<Item = u32> {
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
    unsafe fn fullest_own(&self, on: Ground<'_>) -> Option<u32> {
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
        // SAFETY: the span was in the list of its fullness.
        unsafe { self.set_used(on, span, header.used.load(Ordering::Relaxed) + 1) };
        self.used_slots += 1;
        Slot { span, number }
    }

    /// Takes a freed slot with a number below `end`.
    ///
    /// # Safety
    /// As [`Self::take_slot`], or the span is full.
    unsafe fn take_freed_below(&mut self, on: Ground<'_>, span: u32, end: u16) -> Option<Slot> {
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

    /// If all objects of a span lie before its free slots, and there is memory behind those: takes all
    /// of them, so that the span counts as full, and returns the number of the first.
    ///
    /// # Safety
    /// `span` is in the list of its fullness.
    unsafe fn hold_end(&mut self, on: Ground<'_>, span: u32) -> Option<u16> {
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
    unsafe fn give_back_end(&mut self, on: Ground<'_>, span: u32, end: u16) -> bool {
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

    /// Notes how many slots of a span are in use, and moves it to the list of its fullness: to none
    /// when it is full or empty.
    ///
    /// # Safety
    /// `span` is in use by this list's class, and in the list of its fullness unless it is full.
    #[inline]
    unsafe fn set_used(&mut self, on: Ground<'_>, span: u32, now: u16) {
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
                assert_eq!(list.alloc_better(on, Slot { span: 2, number: 0 }), None);
                let moved = list.alloc_better(on, Slot { span: 0, number: 0 }).unwrap();
                assert_eq!(moved.span, 2);
                kept.push(moved);
                kept.into_iter().for_each(|slot| list.free(on, slot));
                assert!(list.alloc_here(on, true).is_none());
            }
        });
    }
    #[test]
    fn slots_can_be_freed_and_taken_while_an_end_is_held() {
        with_list(PAGE_CLASS, 1, |list, on| {
            // SAFETY: one ground; slots freed once.
            unsafe {
                let mut slots: Vec<_> = (0..6).map(|_| list.alloc(on).unwrap()).collect();
                let span = slots[0].span;
                list.free(on, slots.pop().unwrap());
                let end = list.lists.lock().hold_end(on, span).unwrap();
                assert_eq!(end, 5);
                // No slot is left, but those that are freed now.
                assert!(list.alloc_here(on, true).is_none());
                list.free(on, slots.remove(1));
                assert_eq!(list.alloc_here(on, true).unwrap().number, 1);
                assert!(list.alloc_here(on, true).is_none());
                slots.into_iter().for_each(|slot| list.free(on, slot));
                on.spans.release_from(span, 5 * 4096);
                assert!(!list.lists.lock().give_back_end(on, span, end));
                assert_eq!(on.spans.resident_bytes(), 5 * 4096);
                list.free(on, Slot { span, number: 1 });
                // The last slot in use is freed meanwhile: the span goes back.
                let slot = list.alloc(on).unwrap();
                let next = list.alloc(on).unwrap();
                assert_eq!((slot.number, next.number), (0, 1));
                list.free(on, next);
                let end = list.lists.lock().hold_end(on, span).unwrap();
                list.free(on, slot);
                on.spans.release_from(span, 4096);
                assert!(list.lists.lock().give_back_end(on, span, end));
                on.spans.give(span);
            }
            assert_eq!(list.counts(), (0, 0));
        });
    }
}

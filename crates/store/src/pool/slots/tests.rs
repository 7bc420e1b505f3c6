//! Checks and tests of slots.

use super::*;
use crate::pool::classes::{CLASSES, PAGE_CLASS, SPAN_BYTES};

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

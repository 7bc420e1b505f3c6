//! The trace of what happens to objects.

use std::collections::HashMap;

use super::{MIB, Random, content, store_of};
use crate::object_trace::{KIND_COMPACT, KIND_MOVE, KIND_PUT};
use crate::{Event, ObjectRing, Recorder, Store, TraceError, events};

/// A store whose objects are recorded.
fn recorded(ring: &'static ObjectRing, pool_bytes: usize) -> Store {
    ring.want();
    let mut store = store_of(pool_bytes, 0);
    store.record_objects(Recorder::of(ring));
    store
}

/// Follows a trace: the lengths of what is there, by place, where originals and copies are one
/// each.
fn follow(words: impl IntoIterator<Item = u64>) -> HashMap<u64, usize> {
    let mut there = HashMap::new();
    for event in events(words) {
        match event.unwrap() {
            Event::Put { place, len } => assert_eq!(there.insert(place, len), None),
            Event::Free { place } => assert!(there.remove(&place).is_some()),
            Event::Move { from, to } => {
                let len = there[&from];
                assert_eq!(there.insert(to, len), None);
            }
            Event::Compact | Event::End { .. } => {}
        }
    }
    there
}

fn change(store: &Store, keys: core::ops::Range<u64>, random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let key = keys.start + random.below(keys.end - keys.start);
        if random.below(3) == 0 {
            store.invalidate(key);
        } else {
            let len = 1 + random.below(4096) as usize;
            store.store_object(key, 3, &content(random.below(1 << 40), len)).unwrap();
        }
    }
}

#[test]
fn a_trace_says_what_is_in_the_pool() {
    static RING: ObjectRing = ObjectRing::new();
    let store = recorded(&RING, 64 * MIB);
    assert!(!RING.is_used());
    let (mut moved, mut compactions) = (0, 0);
    let mut words = Vec::new();
    // All parts together are more than the ring has room for; two are much less.
    const PARTS: usize = 14;
    let end_of_part = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, end_of_part) = (&store, &end_of_part);
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                for _ in 0..PARTS {
                    let keys = thread * 1000..(thread + 1) * 1000;
                    change(store, keys, &mut random, 10_000);
                    end_of_part.wait();
                }
            });
        }
        for _ in 0..PARTS {
            // Each before a compaction, so that nobody waits for all of it.
            for _ in 0..4 {
                words.extend(RING.take());
                moved += store.compact(|| true);
                compactions += 1;
            }
            end_of_part.wait();
        }
    });
    for key in 0..2500 {
        store.invalidate(key);
    }
    moved += store.compact(|| true);
    words.extend(RING.take());
    assert!(RING.is_used() && !RING.has_more());
    assert!(moved > 0 && words.len() > 1 << 19, "{moved} {}", words.len());
    let recorded = events(words.iter().copied()).filter(|event| *event == Ok(Event::Compact));
    assert_eq!(recorded.count(), compactions + 1);
    let there = follow(words);
    let statistics = store.statistics();
    assert_eq!(there.len() as u64, statistics.slots);
    assert_eq!(there.values().sum::<usize>() as u64, statistics.object_bytes);
}

#[test]
fn what_came_before_the_ring_was_full_is_there_and_nothing_after() {
    static RING: ObjectRing = ObjectRing::new();
    let store = recorded(&RING, 64 * MIB);
    let mut put = 0;
    while !RING.has_more() || put < 600_000 {
        store.store_object(put % 100, 1, &put.to_ne_bytes()).unwrap();
        put += 1;
    }
    let first: Vec<u64> = RING.take().collect();
    assert_eq!(first.len(), 1 << 19);
    follow(first);
    // There is room again, but what was recorded now would not fit what came before.
    store.store_object(1000, 1, &[1; 500]).unwrap();
    assert_eq!(RING.take().count(), 0);
    assert!(RING.has_more());
}

#[test]
fn one_process_records_the_first_that_has_an_object() {
    static RING: ObjectRing = ObjectRing::new();
    let idle = recorded(&RING, MIB);
    let (first, second) = (recorded(&RING, MIB), recorded(&RING, MIB));
    second.store_object(1, 1, &[1; 500]).unwrap();
    first.store_object(1, 1, &[1; 600]).unwrap();
    idle.store_object(1, 1, &[1; 600]).unwrap();
    second.store_object(2, 1, &[1; 500]).unwrap();
    let there = follow(RING.take());
    assert_eq!(there.into_values().collect::<Vec<_>>(), [500, 500]);
}

#[test]
fn a_forked_child_does_not_record() {
    static RING: ObjectRing = ObjectRing::new();
    let store = recorded(&RING, MIB);
    store.store_object(1, 1, &[1; 500]).unwrap();
    // SAFETY: nobody else uses the store.
    unsafe { store.reset_locks_after_fork() };
    store.store_object(2, 1, &[1; 500]).unwrap();
    assert_eq!(follow(RING.take()).len(), 1);
}

#[test]
fn what_is_no_event_is_told() {
    let read = |words: &[u64]| events(words.to_vec()).last();
    let object = 77 << 13 | 500;
    assert_eq!(read(&[KIND_PUT | object]), Some(Ok(Event::Put { place: 77, len: 500 })));
    let end = Event::end_word(false);
    assert_eq!(read(&[end]), Some(Ok(Event::End { whole: false })));
    assert_eq!(read(&[end | 1]), Some(Ok(Event::End { whole: true })));
    let compact = KIND_COMPACT;
    let put = KIND_PUT | 77 << 13;
    for bad in [0, object, put, compact | 1, put | 5000, end | 2, 1 << 60] {
        assert_eq!(read(&[KIND_COMPACT, bad]), Some(Err(TraceError(1))), "{bad:#x}");
    }
    let moves = [KIND_MOVE | object, KIND_COMPACT];
    assert_eq!(read(&moves), Some(Err(TraceError(0))));
    // Cut off.
    assert_eq!(read(&moves[..1]), None);
}

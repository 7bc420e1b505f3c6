//! The trace of what happens to objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{MIB, Random, content, store_of};
use crate::object_trace::{HEAD_WORDS, KIND_COMPACT, KIND_MOVE, KIND_PUT, MAGIC};
use crate::{Event, Recorder, Store, TRACE_HEAD_BYTES, TraceError, events, words_asked};

/// A file's words, for as long as the test lives.
fn words(count: usize) -> &'static [AtomicU64] {
    Vec::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn plain(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

fn bytes(head: [u64; HEAD_WORDS]) -> [u8; TRACE_HEAD_BYTES] {
    let bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.try_into().unwrap()
}

fn head(words: &[AtomicU64]) -> Result<u64, TraceError> {
    words_asked(&bytes(*plain(words).first_chunk().unwrap()))
}

/// Follows a trace: the lengths of what is there, by place, where originals and copies are one each.
fn follow(words: &[AtomicU64]) -> HashMap<u64, usize> {
    let mut there = HashMap::new();
    for event in events(plain(words).into_iter().skip(HEAD_WORDS)) {
        match event.unwrap() {
            Event::Put { place, len } => assert_eq!(there.insert(place, len), None),
            Event::Free { place } => assert!(there.remove(&place).is_some()),
            Event::Move { from, to } => {
                let len = there[&from];
                assert_eq!(there.insert(to, len), None);
            }
            Event::Compact => {}
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
    let words = words(1 << 20);
    assert_eq!(head(words), Ok(0));
    let mut store = store_of(64 * MIB, MIB);
    store.record_objects(Recorder::begin(words).unwrap());
    assert!(Recorder::begin(words).is_none(), "it has begun");
    assert_eq!(head(words), Ok(0));
    let mut moved = 0;
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let store = &store;
            scope.spawn(move || {
                let keys = thread * 1000..(thread + 1) * 1000;
                change(store, keys, &mut Random::new(thread + 1), 20_000);
            });
        }
        moved = store.compact(|| true);
    });
    for key in 0..2500 {
        store.invalidate(key);
    }
    moved += store.compact(|| true);
    assert!(moved > 0);
    let there = follow(words);
    let statistics = store.statistics();
    assert_eq!(there.len() as u64, statistics.slots);
    assert_eq!(there.values().sum::<usize>() as u64, statistics.object_bytes);
    let compactions = events(plain(words).into_iter().skip(HEAD_WORDS))
        .filter(|event| *event == Ok(Event::Compact));
    assert_eq!(compactions.count(), 2);
}

#[test]
fn a_full_file_keeps_what_came_first() {
    let words = words(HEAD_WORDS + 100);
    let guard = &words[HEAD_WORDS + 90..];
    let mut store = store_of(MIB, 0);
    store.record_objects(Recorder::begin(&words[..HEAD_WORDS + 90]).unwrap());
    for key in 0..200 {
        store.store_object(key, 1, &[1; 500]).unwrap();
    }
    assert_eq!(head(words), Ok(200));
    assert_eq!(follow(words).len(), 90);
    assert!(plain(guard).iter().all(|&word| word == 0));
}

#[test]
fn a_forked_child_does_not_record() {
    let words = words(1000);
    let mut store = store_of(MIB, 0);
    store.record_objects(Recorder::begin(words).unwrap());
    store.store_object(1, 1, &[1; 500]).unwrap();
    // SAFETY: nobody else uses the store.
    unsafe { store.reset_locks_after_fork() };
    store.store_object(2, 1, &[1; 500]).unwrap();
    assert_eq!(follow(words).len(), 1);
}

#[test]
fn what_is_no_trace_is_told() {
    assert_eq!(words_asked(&bytes([1, 2, 0, 0, 0, 0, 0, 0])), Err(TraceError::NoTrace));
    assert_eq!(words_asked(&bytes([MAGIC, 2, 0, 0, 0, 0, 0, 9])), Err(TraceError::NoTrace));
    assert_eq!(words_asked(&bytes([MAGIC, 2, 0, 0, 0, 0, 0, 0])), Ok(2));
    let read = |words: &[u64]| events(words.to_vec()).last();
    let object = 77 << 13 | 500;
    assert_eq!(read(&[KIND_PUT | object]), Some(Ok(Event::Put { place: 77, len: 500 })));
    for bad in [object, KIND_PUT | 77 << 13, KIND_COMPACT | 1, KIND_PUT | 77 << 13 | 5000, 1 << 60]
    {
        assert_eq!(read(&[KIND_COMPACT, bad]), Some(Err(TraceError::Damaged(1))), "{bad:#x}");
    }
    let moves = [KIND_MOVE | object, KIND_COMPACT];
    assert_eq!(read(&moves), Some(Err(TraceError::Damaged(0))));
    // Cut off.
    assert_eq!(read(&moves[..1]), None);
    assert_eq!(read(&[KIND_COMPACT, 0, 1 << 60]), Some(Ok(Event::Compact)));
}

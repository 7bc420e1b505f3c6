//! Pages that change together are seen together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::{MIB, Random, store_of, test_duration, test_seed};
use crate::{Key, Loaded, StoreError, StoredWhen};

const CLUSTERS: u64 = 40;
const PAGES: u64 = 16;

/// Pieces of one object: how many, and of which version, stand in each.
fn pieces(version: u64, count: usize) -> Vec<(u8, Vec<u8>)> {
    (0..count)
        .map(|piece| {
            let words = [version, count as u64, piece as u64];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            (1 + piece as u8 % 15, bytes.repeat(1 + version as usize % 100))
        })
        .collect()
}

fn words(loaded: Loaded<'_>) -> [u64; 3] {
    let Loaded::Object { bytes, .. } = loaded else { panic!("{loaded:?}") };
    std::array::from_fn(|word| u64::from_le_bytes(bytes[8 * word..][..8].try_into().unwrap()))
}

#[test]
fn all_pieces_of_one_object_or_none() {
    let store = store_of(16 * MIB, MIB / 4);
    let stop = AtomicBool::new(false);
    let (started, duration) = (Instant::now(), test_duration());
    thread::scope(|scope| {
        for thread in 0..2 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut random = Random::new(test_seed() + thread);
                let mut version = thread;
                while !stop.load(Ordering::Relaxed) {
                    version += 2;
                    let first = random.below(CLUSTERS) * PAGES;
                    let objects = pieces(version, random.below(PAGES + 1) as usize);
                    let lent: Vec<_> = objects.iter().map(|(e, b)| (*e, &b[..])).collect();
                    store.replace_neighbours(first, PAGES as usize, &lent, version as u8).unwrap();
                    if version % 1024 < 2 {
                        store.compact(|| true);
                    }
                }
            });
        }
        let mut random = Random::new(test_seed() + 2);
        let mut whole = 0;
        while started.elapsed() < duration || whole == 0 {
            let first = random.below(CLUSTERS) * PAGES;
            store.neighbours(first, |neighbours| {
                let Some(head) = neighbours.load(first).unwrap().map(words) else {
                    assert!((first..first + PAGES).all(|key| !neighbours.contains(key)));
                    return;
                };
                let [version, count, _] = head;
                assert_eq!(neighbours.mark(first), version as u8);
                for piece in 1..PAGES {
                    let found = neighbours.load(first + piece).unwrap().map(words);
                    assert_eq!(found, (piece < count).then_some([version, count, piece]));
                }
                whole += 1;
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    store.audit();
    for cluster in 0..CLUSTERS {
        store.replace_neighbours(cluster * PAGES, PAGES as usize, &[], 0).unwrap();
    }
    store.audit();
    assert_eq!((store.statistics().pages(), store.statistics().slots), (0, 0));
}

#[test]
fn objects_that_are_exchanged_keep_the_marks_of_their_keys() {
    let store = store_of(MIB, 0);
    for key in 8..12 {
        store.exchange_object(key, 3, &[key as u8; 100], key as u8).unwrap();
    }
    let objects = pieces(5, 4);
    let lent: Vec<_> = objects.iter().map(|(e, b)| (*e, &b[..])).collect();
    store.exchange_neighbours(8, &lent, StoredWhen::Now).unwrap();
    store.neighbours(8, |neighbours| {
        for (key, (encoding, bytes)) in (8..).zip(&objects) {
            assert_eq!(neighbours.mark(key), key as u8);
            assert_eq!(neighbours.encoding(key), Some(*encoding));
            assert!(matches!(
                neighbours.load(key),
                Ok(Some(Loaded::Object { bytes: found, .. })) if found == bytes
            ));
        }
        assert!(!neighbours.contains(7) && !neighbours.contains(12));
    });
    let error = store.exchange_neighbours(62, &lent, StoredWhen::Now).unwrap_err();
    assert!(matches!(error, StoreError::NotNeighbours { .. }), "{error}");
    let page = [7; 4096];
    store.exchange_neighbours(0, &[], StoredWhen::AsBefore).unwrap();
    // A mebibyte has no room for them beside what is there.
    let filled = (64..512)
        .step_by(64)
        .try_for_each(|first| store.replace_neighbours(first, 64, &[(1, &page[..]); 64], 0));
    assert!(filled.is_err());
    let full = [(1, &page[..]); 4];
    for first in (1024..).step_by(4) {
        if store.exchange_neighbours(first, &full, StoredWhen::Now).is_err() {
            break;
        }
    }
    assert!(store.exchange_neighbours(8, &full, StoredWhen::AsBefore).is_err());
    assert_eq!(store.load(8, words).unwrap(), Some([5, 4, 0]));
    store.audit();
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let store = store_of(MIB, 0);
    let page = [7; 4096];
    let whole = vec![(1, &page[..]); 16];
    let refused = |first: Key, count, objects: &[(u8, &[u8])]| {
        let error = store.replace_neighbours(first, count, objects, 3).unwrap_err();
        assert!(matches!(error, StoreError::NotNeighbours { .. }), "{error}");
    };
    refused(60, 16, &whole);
    refused(0, 65, &whole);
    refused(0, 4, &whole);
    let none = store.replace_neighbours(0, 16, &[(0, &page[..])], 3).unwrap_err();
    assert!(matches!(none, StoreError::Encoding { .. }), "{none}");

    let mut first = 0;
    while store.replace_neighbours(first, 16, &whole, 5).is_ok() {
        first += 16;
    }
    // The objects that found room before one did not are gone.
    store.audit();
    let stored = store.statistics().objects;
    assert_eq!(stored, first);
    let error = store.replace_neighbours(0, 16, &whole, 6).unwrap_err();
    assert!(matches!(error, StoreError::PoolFull { .. }), "{error}");
    assert_eq!((store.mark(0), store.statistics().objects), (5, stored));
    // What is given up leaves room, and a mark.
    store.replace_neighbours(0, 16, &[], 9).unwrap();
    assert_eq!((store.mark(0), store.statistics().objects), (9, stored - 16));
    store.replace_neighbours(first, 16, &whole, 1).unwrap();
    store.neighbours(0, |neighbours| {
        neighbours.forget_ghost(0);
        neighbours.forget_ghost(1);
        assert_eq!(neighbours.mark(0), 0);
    });
    store.neighbours(first, |neighbours| {
        neighbours.forget_ghost(first);
        assert!(neighbours.contains(first));
    });
    assert_eq!(store.statistics().ghosts, 0);
    store.audit();
}

#[test]
fn groups_are_gone_through_one_after_the_other() {
    let store = store_of(4 * MIB, 0);
    let groups = [0, 64, 1 << 40, 1 << 63, u64::MAX - 63];
    for group in groups {
        store.replace_neighbours(group + 3, 4, &[(9, &[1, 2, 3])], 1).unwrap();
    }
    let mut found = Vec::new();
    let mut place = 0;
    while let Some((group, next)) = store.group_from(place) {
        found.push(group);
        place = next;
        store.neighbours(group, |neighbours| {
            let encodings = [2, 3, 4].map(|offset| neighbours.encoding(group + offset));
            assert_eq!(encodings, [None, Some(9), None]);
        });
    }
    found.sort_unstable();
    assert_eq!(found, groups);
}

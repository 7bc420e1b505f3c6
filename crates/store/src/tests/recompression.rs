//! Objects that stay out become smaller.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::{MIB, Page, content, goes_on, store_of, use_pages};
use crate::{Denser, Key, Recompressed, Recompression, Store, StoredWhen, Together};

/// Makes half of an object, under another encoding; of two of three.
#[derive(Default)]
pub(super) struct Halves(Vec<u8>);

impl Denser for Halves {
    fn applies_to(&self, encoding: u8) -> bool {
        encoding < 8
    }

    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
        assert!(self.applies_to(encoding));
        if object.len() == 1 || object.len().is_multiple_of(3) {
            return None;
        }
        self.0 = object[..object.len() / 2].to_vec();
        Some((encoding + 8, &self.0))
    }
}

impl Page {
    /// What becomes of it by [`Halves`], if something does.
    pub(super) fn denser(&self) -> Option<Page> {
        match self {
            Page::Object { encoding, bytes } if Halves::default().applies_to(*encoding) => {
                let mut halves = Halves::default();
                let (encoding, bytes) = halves.denser(*encoding, bytes)?;
                Some(Page::Object { encoding, bytes: bytes.to_vec() })
            }
            _ => None,
        }
    }
}

fn object(key: Key, len: usize) -> Page {
    Page::Object { encoding: 1 + (key % 7) as u8, bytes: content(key, len) }
}

/// A whole round: objects that were tried, and bytes that were spared.
fn round(recompression: &mut Recompression, store: &Store) -> (u64, usize) {
    recompression.begin_round(store);
    let (mut tried, mut spared) = (0, 0);
    loop {
        let has_more = recompression.has_more(store);
        let step = recompression.step(store, &mut Halves::default());
        assert!(has_more || step == Recompressed::Round, "{step:?}");
        match step {
            Recompressed::Round => return (tried, spared),
            Recompressed::Stayed => tried += 1,
            Recompressed::Replaced { bytes_before, bytes_after } => {
                tried += 1;
                spared += bytes_before - bytes_after;
            }
        }
    }
}

fn loaded(store: &Store, key: Key) -> Option<Page> {
    store.load(key, Page::keep).unwrap()
}

#[test]
fn what_stays_for_a_round_becomes_smaller_once() {
    let store = store_of(16 * MIB, 0);
    let mut recompression = Recompression::START;
    for key in 0..640 {
        object(key, 1000).store(&store, key).unwrap();
    }
    store.set_mark(5, 77);
    store.store_same_filled(6, 1).unwrap();
    store.store_same_filled(7, 1 << 40).unwrap();
    // Nothing is known to be old yet.
    assert_eq!(round(&mut recompression, &store), (0, 0));
    // What was stored since is not, nor are its neighbours.
    object(3, 1000).store(&store, 3 + 64).unwrap();
    let before = store.statistics();
    assert_eq!(round(&mut recompression, &store), (638 - 64, (638 - 64) * 500));
    store.audit();
    let s = store.statistics();
    assert_eq!(s.object_bytes, before.object_bytes - (638 - 64) * 500);
    assert_eq!((s.objects, s.same_filled), (638, 2));
    assert_eq!(round(&mut recompression, &store), (63 + 1, 64 * 500));
    assert_eq!(round(&mut recompression, &store), (0, 0));
    for key in (0..640).filter(|key| ![6, 7, 67].contains(key)) {
        assert_eq!(loaded(&store, key), object(key, 1000).denser(), "{key}");
    }
    assert_eq!(store.mark(5), 77);
    assert_eq!(loaded(&store, 7), Some(Page::SameFilled(1 << 40)));
    store.audit();
}

/// Puts two neighbours together where a group has them.
struct Pairs<'a> {
    store: &'a Store,
    groups: Vec<Key>,
    is_full: bool,
}

impl Denser for Pairs<'_> {
    fn applies_to(&self, encoding: u8) -> bool {
        encoding < 8
    }

    fn denser(&mut self, _: u8, _: &[u8]) -> Option<(u8, &[u8])> {
        None
    }

    fn put_together(&mut self, group: Key) -> Together {
        self.groups.push(group);
        if !self.store.contains(group + 1) {
            return Together::Nothing;
        }
        if self.is_full {
            return Together::NoRoom;
        }
        let pair = [(9, &[1; 300][..]), (9, &[2; 300])];
        self.store.exchange_neighbours(group, &pair, StoredWhen::AsBefore).unwrap();
        Together::Tried
    }
}

#[test]
fn cold_groups_are_offered_once() {
    let store = store_of(16 * MIB, 0);
    let mut recompression = Recompression::START;
    let mut pairs = Pairs { store: &store, groups: Vec::new(), is_full: false };
    for key in (0..256).chain([64 * 9]) {
        object(key, 1000).store(&store, key).unwrap();
    }
    let mut offered = |is_full| {
        pairs.is_full = is_full;
        recompression.begin_round(&store);
        let mut before = 0;
        while recompression.step(&store, &mut pairs) != Recompressed::Round {
            // One step, one group that takes time; none after there was no room.
            let now = pairs.groups.iter().filter(|&&group| group != 576).count();
            assert!(now <= before + 1);
            before = now;
        }
        std::mem::take(&mut pairs.groups)
    };
    assert_eq!(offered(false), []);
    // One of them has become warm.
    object(140, 900).store(&store, 140).unwrap();
    // Where there is no room it is tried again.
    assert_eq!(offered(true), [0]);
    assert_eq!(offered(false), [0, 64, 128, 192, 576]);
    assert_eq!(offered(false), []);
    object(3, 700).store(&store, 3).unwrap();
    assert_eq!(offered(false), []);
    assert_eq!(offered(false), [0]);
    for group in [0, 64, 128, 192] {
        assert_eq!(
            loaded(&store, group + 1),
            Some(Page::Object { encoding: 9, bytes: vec![2; 300] })
        );
        assert_eq!(loaded(&store, group + 2), Some(object(group + 2, 1000)));
    }
    store.audit();
}

#[test]
fn neighbours_of_what_cannot_become_smaller_are_tried_when_something_was_stored() {
    let store = store_of(16 * MIB, 0);
    let mut recompression = Recompression::START;
    for key in 0..64 {
        object(key, 999).store(&store, key).unwrap();
    }
    round(&mut recompression, &store);
    assert_eq!(round(&mut recompression, &store), (4, 0));
    assert_eq!(round(&mut recompression, &store), (0, 0));
    object(0, 1000).store(&store, 0).unwrap();
    assert_eq!(round(&mut recompression, &store), (0, 0));
    assert_eq!(round(&mut recompression, &store), (64, 500));
}

#[test]
fn what_changes_while_it_is_compressed_stays_as_it_was_changed() {
    /// Changes the page under it.
    struct Meanwhile<'a>(&'a Store, u64);
    impl Denser for Meanwhile<'_> {
        fn applies_to(&self, encoding: u8) -> bool {
            encoding < 8
        }

        fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
            self.1 += 1;
            match self.1 {
                1 => drop(self.0.invalidate(0)),
                // The slot is free for the next of its size, which has the very same entry.
                2 => {
                    self.0.take(64, |_| ()).unwrap();
                    self.0.store_object(64, encoding, &[7; 1000]).unwrap();
                }
                3 => drop(self.0.rekey_range(128, 1000, 1).unwrap()),
                _ => {}
            }
            Some((encoding + 8, if object.len() > 1 { &[1] } else { &[2] }))
        }
    }
    let store = store_of(16 * MIB, 0);
    let mut recompression = Recompression::START;
    for key in [0, 64, 128, 192] {
        store.store_object(key, 1, &[key as u8; 1000]).unwrap();
    }
    recompression.begin_round(&store);
    recompression.begin_round(&store);
    let mut with = Meanwhile(&store, 0);
    for _ in 0..3 {
        assert_eq!(recompression.step(&store, &mut with), Recompressed::Stayed);
    }
    let last = Recompressed::Replaced { bytes_before: 1000, bytes_after: 1 };
    assert_eq!(recompression.step(&store, &mut with), last);
    assert_eq!(recompression.step(&store, &mut with), Recompressed::Round);
    let page = |byte| Some(Page::Object { encoding: 1, bytes: vec![byte; 1000] });
    assert_eq!([0, 64, 128].map(|key| loaded(&store, key)), [None, page(7), None]);
    assert_eq!(loaded(&store, 1000), page(128));
    assert_eq!(loaded(&store, 192), Some(Page::Object { encoding: 9, bytes: vec![1] }));
    store.audit();
}

#[test]
fn damaged_objects_are_left_for_whoever_loads_them() {
    let store = store_of(16 * MIB, 0);
    let mut recompression = Recompression::START;
    for key in 0..8 {
        object(key, 1000).store(&store, key).unwrap();
    }
    store.flip_bit(4, 500);
    round(&mut recompression, &store);
    assert_eq!(round(&mut recompression, &store), (7, 7 * 500));
    assert!(store.load(4, |_| ()).is_err());
}

#[test]
fn a_full_pool_ends_the_round() {
    let store = store_of(MIB, 0);
    let mut recompression = Recompression::START;
    let stored = (0..).take_while(|&key| object(key, 1000).store(&store, key).is_ok()).count();
    recompression.begin_round(&store);
    recompression.begin_round(&store);
    // There is no span for the first object of another size.
    assert_eq!(recompression.step(&store, &mut Halves::default()), Recompressed::Round);
    assert!((0..stored as Key).all(|key| loaded(&store, key) == Some(object(key, 1000))));
    assert_eq!(store.statistics().rejects.pool_full, 1);
    store.audit();
}

#[test]
fn threads_store_and_load_while_everything_becomes_smaller() {
    let store = store_of(64 * MIB, MIB);
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let version_of = |version: u64| object(version, 100 + (version % 2000) as usize);
    let mut replaced = 0u64;
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, stop, steps) = (&store, &stop, &steps);
            scope.spawn(move || {
                use_pages(store, thread, 90, 500, stop, steps, version_of, |key, expected| {
                    let found = loaded(store, key);
                    let denser = expected.as_ref().and_then(Page::denser);
                    assert!(found == expected || found.is_some() && found == denser);
                });
            });
        }
        let started = Instant::now();
        let mut recompression = Recompression::START;
        while goes_on(started, replaced >= 100) {
            recompression.begin_round(&store);
            loop {
                match recompression.step(&store, &mut Halves::default()) {
                    Recompressed::Replaced { .. } => replaced += 1,
                    Recompressed::Stayed => {}
                    Recompressed::Round => break,
                }
            }
            store.compact(|| true);
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} steps, {replaced} replaced", steps.load(Ordering::Relaxed));
    assert!(replaced >= 100);
    store.audit();
}

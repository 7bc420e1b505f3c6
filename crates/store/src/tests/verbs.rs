//! What each verb promises, one by one.

use super::{MIB, Page, forget_ghosts, store_of};
use crate::{Config, EntryKind, Key, Loaded, Rejects, Store, StoreError};

fn word(store: &Store, key: Key) -> Option<u64> {
    store
        .load(key, |loaded| match loaded {
            Loaded::SameFilled(word) => word,
            Loaded::Object { .. } | Loaded::Spilled(_) => panic!("an object"),
        })
        .unwrap()
}

#[test]
fn same_filled_pages_cost_no_object_unless_the_halves_differ() {
    let store = store_of(MIB, 0);
    for (key, value) in [(0, 0), (1, u64::MAX), (2, 0x1234_5678_1234_5678)] {
        store.store_same_filled(key, value).unwrap();
        assert_eq!(word(&store, key), Some(value));
    }
    assert_eq!(store.statistics().slots, 0);
    store.store_same_filled(3, 1).unwrap();
    assert_eq!(word(&store, 3), Some(1));
    let s = store.statistics();
    assert_eq!((s.same_filled, s.objects, s.slots, s.object_bytes), (4, 0, 1, 8));
    assert_eq!(s.pool_used_bytes, 16);
    store.audit();
}

#[test]
fn a_store_replaces_what_was_there_and_frees_it() {
    let store = store_of(MIB, 0);
    for page in [
        Page::Object { encoding: 3, bytes: vec![1; 4096] },
        Page::Object { encoding: 15, bytes: vec![2; 100] },
        Page::SameFilled(5),
        Page::SameFilled(0),
        Page::Object { encoding: 1, bytes: vec![3; 1] },
    ] {
        page.store(&store, 42).unwrap();
        assert_eq!(store.load(42, Page::keep).unwrap(), Some(page));
        assert_eq!(store.statistics().pages(), 1);
        assert!(store.statistics().slots <= 1);
        store.audit();
    }
}

#[test]
fn an_object_that_is_there_already_stays_where_it_is() {
    let store = store_of(MIB, 0);
    let place = || {
        store.load(42, |loaded| match loaded {
            Loaded::Object { bytes, .. } => bytes.as_ptr(),
            Loaded::SameFilled(_) | Loaded::Spilled(_) => panic!("no object"),
        })
    };
    store.store_object(42, 3, &[1; 1000]).unwrap();
    let first = place().unwrap();
    store.store_object(42, 3, &[1; 1000]).unwrap();
    assert_eq!(place().unwrap(), first);
    // Another encoding or another byte is another object.
    store.store_object(42, 4, &[1; 1000]).unwrap();
    let second = place().unwrap();
    assert_ne!(second, first);
    store.store_object(42, 4, &[2; 1000]).unwrap();
    assert_eq!(
        store.load(42, Page::keep).unwrap(),
        Some(Page::Object { encoding: 4, bytes: vec![2; 1000] })
    );
    // One that is damaged is replaced.
    store.flip_bit(42, 100);
    store.store_object(42, 4, &[2; 1000]).unwrap();
    assert_eq!(
        store.load(42, Page::keep).unwrap(),
        Some(Page::Object { encoding: 4, bytes: vec![2; 1000] })
    );
    store.audit();
}

#[test]
fn marks_follow_a_page_until_it_is_invalidated() {
    let store = store_of(MIB, 0);
    assert_eq!((store.set_mark(7, 0), store.statistics().ghosts), (0, 0));
    assert_eq!((store.set_mark(7, 8), store.mark(7), store.contains(7)), (0, 8, false));
    assert_eq!(store.statistics().ghosts, 1);
    store.store_same_filled(7, 0).unwrap();
    assert_eq!((store.set_mark(7, 9), store.mark(7)), (8, 9));
    store.store_object(7, 1, b"page").unwrap();
    assert_eq!(store.mark(7), 9);
    assert!(store.take(7, |_| ()).unwrap().is_some());
    assert!(!store.contains(7));
    assert_eq!(store.take(7, |_| ()).unwrap(), None);
    assert_eq!(store.statistics().ghosts, 1);
    assert_eq!((store.set_mark(7, 200), store.mark(7)), (9, 200));
    store.store_object(7, 1, b"page").unwrap();
    assert_eq!((store.mark(7), store.statistics().ghosts), (200, 0));
    assert!(store.discard(7, 3));
    assert!(!store.discard(7, 4));
    assert_eq!((store.mark(7), store.statistics().ghosts), (3, 1));
    store.store_object(7, 1, b"page").unwrap();
    assert!(store.invalidate(7));
    assert_eq!(store.mark(7), 0);
    store.store_object(7, 1, b"page").unwrap();
    assert_eq!(store.mark(7), 0);
    store.take(7, |_| ()).unwrap();
    assert!(!store.invalidate(7));
    assert_eq!(store.statistics().leaves, 0);
}

#[test]
fn forgotten_ghosts_free_their_leaves() {
    let store = store_of(MIB, 0);
    for key in 0..300 {
        store.store_same_filled(key, 0).unwrap();
        if key != 70 {
            store.take(key, |_| ()).unwrap();
        }
    }
    assert_eq!(store.statistics().leaves, 5);
    assert_eq!(forget_ghosts(&store), 299);
    let s = store.statistics();
    assert_eq!((s.leaves, s.ghosts, s.same_filled), (1, 0, 1));
    store.audit();
}

#[test]
fn arguments_out_of_range_are_refused_and_counted() {
    let store = store_of(MIB, 0);
    store.store_object(1, 1, b"kept").unwrap();
    let refusals = [
        store.store_object(1, 0, b"x"),
        store.store_object(1, 16, b"x"),
        store.store_object(1, 1, b""),
        store.store_object(1, 1, &[0; 4097]),
    ];
    assert_eq!(refusals[0], Err(StoreError::Encoding { encoding: 0, encoding_max: 15 }));
    assert_eq!(refusals[3], Err(StoreError::ObjectLength { len: 4097, len_max: 4096 }));
    assert!(refusals.iter().all(Result::is_err));
    assert_eq!(store.statistics().rejects, Rejects { argument: 4, ..Rejects::default() });
    assert_eq!(
        store.load(1, |l| matches!(l, Loaded::Object { bytes: b"kept", .. })),
        Ok(Some(true))
    );
    assert_eq!(refusals[3].unwrap_err().to_string(), "an object of 4097 bytes is outside 1..=4096");
}

#[test]
fn configurations_out_of_range_are_refused() {
    let good =
        Config { pool_bytes_max: MIB, reserve_bytes: 0, metadata_bytes_max: MIB, spill: None };
    assert!(Store::new(&good).is_ok());
    for bad in [
        Config { pool_bytes_max: 65535, ..good },
        Config { pool_bytes_max: (1 << 39) + 1, ..good },
        Config { reserve_bytes: MIB + 1, ..good },
        Config { metadata_bytes_max: MIB - 1, ..good },
        Config { metadata_bytes_max: usize::MAX, ..good },
    ] {
        assert!(matches!(Store::new(&bad), Err(StoreError::Config { .. })), "{bad:?}");
    }
}

#[test]
fn a_store_of_the_largest_size_can_be_moved() {
    let config = Config {
        pool_bytes_max: 1 << 39,
        reserve_bytes: 0,
        metadata_bytes_max: 1 << 32,
        spill: None,
    };
    let store = Store::new(&config).unwrap();
    store.store_object(1, 1, b"page").unwrap();
    let moved = Box::new(store);
    assert!(moved.contains(1));
}

#[test]
fn ranges_of_any_size_are_invalidated_to_the_key() {
    for spread in [1, 3, 64, 1000, 1 << 40] {
        for (first, count) in [(0, 10), (5, 60), (63, 2), (64, 64), (10, 10_000), (1, u64::MAX)] {
            let store = store_of(4 * MIB, 0);
            let keys: Vec<Key> = (0..500).map(|i| i * spread).collect();
            keys.iter().for_each(|&key| store.store_object(key, 1, b"page").unwrap());
            let last = first + (count - 1);
            let inside = |key: Key| (first..=last).contains(&key);
            let expected = keys.iter().filter(|&&key| inside(key)).count();
            assert_eq!(store.invalidate_range(first, count), expected as u64);
            assert!(keys.iter().all(|&key| store.contains(key) != inside(key)));
            store.audit();
        }
    }
    let store = store_of(MIB, 0);
    store.store_same_filled(Key::MAX, 0).unwrap();
    assert_eq!(store.invalidate_range(Key::MAX, 0), 0);
    assert_eq!(store.invalidate_range(Key::MAX, 100), 1);
}

#[test]
fn rekeyed_pages_verify_under_their_new_keys() {
    for shift in [64, 128, 6400, 1, 63, 65, 1 << 40, (1 << 50) + 7] {
        let store = store_of(16 * MIB, 0);
        let pages: Vec<Page> = (0..300)
            .map(|i| match i % 4 {
                0 => Page::SameFilled(i * 0x1_0000_0001),
                1 => Page::SameFilled(i),
                2 => Page::Object { encoding: 2, bytes: vec![i as u8; 4096] },
                _ => Page::Object { encoding: 2, bytes: vec![i as u8; 50 + i as usize] },
            })
            .collect();
        let from = 1000;
        let (to, count) = (from + 300 + shift, 300);
        for (key, page) in (from..).zip(&pages) {
            page.store(&store, key).unwrap();
            store.set_mark(key, key as u8);
        }
        store.take(from + 9, |_| ()).unwrap();
        // Neighbours and what lies at the other end.
        store.store_object(from - 1, 1, b"before").unwrap();
        store.store_object(to + 50, 1, b"dropped").unwrap();
        store.store_object(to + count, 1, b"behind").unwrap();
        assert_eq!(store.rekey_range(from, to, count), Ok(299));
        for (i, page) in (0..).zip(&pages) {
            assert!(!store.contains(from + i));
            assert_eq!(store.mark(to + i), (from + i) as u8);
            let expected = (i != 9).then_some(page);
            assert_eq!(store.load(to + i, Page::keep).unwrap().as_ref(), expected);
        }
        assert!(store.contains(from - 1) && store.contains(to + count));
        assert_eq!(store.statistics().pages(), 301);
        store.audit();
    }
}

#[test]
fn rekeying_refuses_what_it_cannot_do() {
    let store = store_of(MIB, 0);
    store.store_same_filled(10, 0).unwrap();
    let overlap = |from, to, count| Err(StoreError::RangesOverlap { from, to, count });
    assert_eq!(store.rekey_range(10, 10, 1), overlap(10, 10, 1));
    assert_eq!(store.rekey_range(10, 19, 10), overlap(10, 19, 10));
    assert_eq!(store.rekey_range(19, 10, 10), overlap(19, 10, 10));
    assert_eq!(store.rekey_range(10, 20, 10), Ok(1));
    assert!(store.contains(20));
    let beyond = |first, count| Err(StoreError::RangeBeyondEnd { first, count });
    assert_eq!(store.rekey_range(20, Key::MAX, 2), beyond(Key::MAX, 2));
    assert_eq!(store.rekey_range(20, 0, u64::MAX), beyond(20, u64::MAX));
    assert_eq!(store.rekey_range(20, Key::MAX, 1), Ok(1));
    assert_eq!(store.rekey_range(Key::MAX, 5, 0), Ok(0));
    assert!(store.contains(Key::MAX));
}

#[test]
fn for_each_may_take_what_it_sees() {
    let store = store_of(16 * MIB, MIB);
    for i in 0..2000u64 {
        store.store_object(i * i, 4, &i.to_le_bytes()).unwrap();
    }
    let mut seen = 0;
    store.for_each(|key, kind| {
        assert_eq!(kind, EntryKind::Object { encoding: 4, len: 8 });
        assert!(store.take(key, |_| ()).unwrap().is_some());
        store.invalidate(key);
        seen += 1;
    });
    assert_eq!((seen, store.statistics().leaves), (2000, 0));
    store.audit();
}

#[test]
fn an_unwinding_reader_changes_nothing() {
    let store = store_of(MIB, 0);
    store.store_object(3, 1, b"page").unwrap();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = store.take(3, |_| -> u8 { panic!("the reader's own fault") });
    }));
    assert!(unwound.is_err());
    assert_eq!(
        store.take(3, Page::keep).unwrap(),
        Some(Page::Object { encoding: 1, bytes: b"page".to_vec() })
    );
    store.audit();
}

//! Full pools, full indexes: a refusal with its reason, nothing lost, and all well afterwards.

use super::{MIB, Page, Random, content, store_of};
use crate::{Config, Key, Store, StoreError};

#[test]
fn a_full_pool_refuses_and_keeps_everything() {
    let pool_bytes_max = MIB / 2 + 100;
    let store = store_of(pool_bytes_max, 0);
    let mut random = Random::new(3);
    for round in 0..3 {
        let mut stored = Vec::new();
        let mut refused = 0;
        for key in 0..4000u64 {
            let len = random.object_len();
            let page = Page::Object { encoding: 1, bytes: content(key + round, len) };
            match page.store(&store, key) {
                Ok(()) => stored.push((key, page)),
                Err(StoreError::PoolFull { len: l, pool_total_bytes, pool_bytes_max }) => {
                    assert_eq!((l, pool_bytes_max), (len, MIB / 2));
                    assert!(pool_total_bytes <= pool_bytes_max);
                    assert!(!store.contains(key));
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 3000);
        // One more in each round before, below.
        assert_eq!(store.statistics().rejects.pool_full, refused * (round + 1) + round);
        store.audit();
        // Of a pool that small only the classes' last spans are not full.
        assert!(store.statistics().object_bytes > 3 * MIB as u64 / 10);
        for (key, page) in &stored {
            assert_eq!(store.load(*key, Page::keep).unwrap().as_ref(), Some(page));
        }
        // A refused replacement leaves the old page.
        let (key, old) = &stored[0];
        assert!(store.store_object(*key, 1, &[1; 4096]).is_err());
        assert_eq!(store.load(*key, Page::keep).unwrap().as_ref(), Some(old));
        assert!(store.store_same_filled(5000, 0).is_ok());
        assert_eq!(store.invalidate_range(0, 10_000), stored.len() as u64 + 1);
        let s = store.statistics();
        assert_eq!((s.pool_total_bytes, s.spans), (0, 0));
        random = Random::new(3);
    }
}

#[test]
fn the_last_span_is_usable_to_the_last_slot() {
    let store = store_of(MIB, MIB);
    store.refill_reserve().unwrap();
    let pages = (MIB / 4096) as u64;
    for _ in 0..3 {
        (0..pages).for_each(|key| store.store_object(key, 1, &[7; 4096]).unwrap());
        let full = store.store_object(pages, 1, &[7; 4096]);
        assert!(matches!(full, Err(StoreError::PoolFull { .. })));
        let s = store.statistics();
        assert_eq!((s.pool_used_bytes, s.pool_total_bytes), (MIB as u64, MIB as u64));
        assert_eq!((s.pool_fragmentation_bytes, s.reserve_misses), (0, 0));
        // There is nothing left for a refill.
        store.refill_reserve().unwrap();
        assert!(!store.reserve_low());
        assert_eq!(store.invalidate_range(0, u64::MAX), pages);
        assert_eq!(store.statistics().pool_reserve_bytes, MIB as u64);
    }
}

#[test]
fn a_full_index_refuses_within_its_limit_and_keeps_everything() {
    for (reserve_bytes, limit) in
        [(0, MIB), (0, 2 * MIB), (MIB, 2 * MIB), (0, 3 * MIB), (0, 5 * MIB), (MIB, 11 * MIB)]
    {
        let config = Config {
            pool_bytes_max: 64 * MIB,
            reserve_bytes,
            metadata_bytes_max: limit,
            spill: None,
        };
        let store = Store::new(&config).unwrap();
        let mut count = 0u64;
        let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let error = loop {
            match store.store_object(spread(count), 1, b"a lonely page") {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
            if store.reserve_low() {
                store.refill_reserve().unwrap();
            }
        };
        assert!(count as usize * 630 > limit - 128 * 1024, "{count} of {limit}");
        let StoreError::MetadataFull { metadata_bytes, metadata_bytes_max } = error else {
            panic!("{error}");
        };
        assert_eq!(metadata_bytes_max, limit);
        assert!(metadata_bytes <= limit, "{metadata_bytes} of {limit}");
        assert_eq!(store.statistics().rejects.metadata_full, 1);
        assert_eq!(store.statistics().slots, count, "the refused object was freed");
        store.audit();
        // A page in a leaf that is there still has room.
        let neighbour = spread(5) ^ 1;
        store.store_object(neighbour, 1, b"not alone").unwrap();
        assert!((0..count).all(|i| store.contains(spread(i))));
        // Room for one leaf is enough for a move within a range, not for one that needs two.
        store.invalidate(spread(7));
        store.store_object(spread(count), 1, b"in the freed leaf").unwrap();
        let moved = store.rekey_range(spread(3), spread(3) ^ 1 << 40, 1);
        assert!(matches!(moved, Err(StoreError::MetadataFull { .. })));
        assert!(store.contains(spread(3)));
        assert_eq!(store.invalidate_range(0, u64::MAX), count + 1);
        store.audit();
    }
}

#[test]
fn a_move_that_finds_no_leaf_leaves_each_page_under_one_key() {
    let config =
        Config { pool_bytes_max: MIB, reserve_bytes: 0, metadata_bytes_max: MIB, spill: None };
    let store = Store::new(&config).unwrap();
    let leaves = 13 * 128;
    // One page in each leaf, all leaves but ten in use: moved by half a group none of them needs
    // more than one leaf, which is there before its old one is free.
    let from = 1 << 40;
    for i in 0..leaves - 10 {
        store.store_object(from + i * 64 + 5, 1, &i.to_le_bytes()).unwrap();
        store.store_object(from + i * 64 + 60, 1, &i.to_le_bytes()).unwrap();
    }
    // Moved by 32, the two pages of a leaf go to two leaves, of which the next leaf's pages use
    // one again.
    assert_eq!(store.rekey_range(from, 32, leaves * 64), Ok(2 * (leaves - 10)));
    store.audit();
    store.invalidate_range(0, 1 << 50);
    // Two pages far apart in every other leaf: each leaf becomes two.
    let pages: Vec<Key> = (0..leaves - 10).flat_map(|i| [i * 128 + 5, i * 128 + 60]).collect();
    pages.iter().for_each(|&key| store.store_object(from + key, 1, b"page").unwrap());
    let result = store.rekey_range(from, 32, 1 << 30);
    assert!(matches!(result, Err(StoreError::MetadataFull { .. })));
    for &key in &pages {
        assert!(store.contains(from + key) != store.contains(32 + key));
        let place = if store.contains(from + key) { from + key } else { 32 + key };
        assert_eq!(store.load(place, |_| ()), Ok(Some(())));
    }
    store.audit();
}

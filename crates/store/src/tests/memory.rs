//! The memory a store takes, and gives back.

use super::{MIB, Random, present_bytes, store_of};
use crate::{Config, Store};

fn resident_bytes(store: &Store) -> usize {
    let ranges = store.memory_ranges();
    present_bytes(&ranges.pool) + ranges.metadata.iter().map(present_bytes).sum::<usize>()
}

#[test]
fn memory_goes_back_when_spans_empty() {
    let reserve_bytes = MIB;
    let store = store_of(64 * MIB, reserve_bytes);
    let empty = resident_bytes(&store);
    assert!(empty <= 64 << 10, "{empty}");
    assert_eq!(empty, store.cost_bytes());
    store.refill_reserve().unwrap();
    let ready = resident_bytes(&store);
    let mut random = Random::new(1);
    let page = [1; 4096];
    for _ in 0..2 {
        for key in 0..20_000 {
            store.store_object(key, 1, &page[..random.object_len()]).unwrap();
        }
        let s = store.statistics();
        assert!(s.pool_total_bytes > 20 * MIB as u64);
        assert_eq!(s.cost_bytes(), resident_bytes(&store) as u64);
        assert_eq!(store.invalidate_range(0, 20_000), 20_000);
        store.refill_reserve().unwrap();
        let after = resident_bytes(&store);
        assert_eq!(after, store.cost_bytes());
        assert_eq!(present_bytes(&store.memory_ranges().pool), reserve_bytes);
        // Headers of spans, group numbers and the packed tables stay: less than 1 % of it.
        assert!(after <= ready + 200 * 1024, "{after} {ready}");
        store.audit();
    }
}

#[test]
fn a_reserve_keeps_stores_from_asking_the_system() {
    let store = store_of(64 * MIB, 4 * MIB);
    store.refill_reserve().unwrap();
    let pool = store.memory_ranges().pool;
    assert_eq!(present_bytes(&pool), 4 * MIB);
    let mut random = Random::new(2);
    let mut stored = 0;
    for key in 0.. {
        let len = random.object_len();
        store.store_object(key, 1, &[2; 4096][..len]).unwrap();
        stored += len;
        if store.statistics().pool_reserve_bytes < MIB as u64 / 2 {
            break;
        }
    }
    // All of it went into memory that was there.
    assert_eq!(store.statistics().reserve_misses, 0);
    assert_eq!(present_bytes(&pool), 4 * MIB);
    assert!(stored > MIB, "{stored}");
    assert!(store.reserve_low());
    store.refill_reserve().unwrap();
    assert!(!store.reserve_low());
    store.audit();
}

#[test]
fn without_a_reserve_only_touched_pages_cost() {
    let store = store_of(64 * MIB, 0);
    store.store_object(1, 1, &[1; 100]).unwrap();
    let s = store.statistics();
    assert_eq!((s.pool_total_bytes, s.reserve_misses), (4096, 2));
    store.store_object(2, 1, &[1; 4096]).unwrap();
    assert_eq!(store.statistics().pool_total_bytes, 8192);
    store.invalidate(1);
    store.invalidate(2);
    assert_eq!(store.statistics().pool_total_bytes, 0);
    store.audit();
}

#[test]
fn metadata_stays_below_16_bytes_a_page() {
    let config = Config {
        pool_bytes_max: 1024 * MIB,
        reserve_bytes: 0,
        metadata_bytes_max: 64 * MIB,
        spill: None,
    };
    let store = Store::new(&config).unwrap();
    let pages = 1 << 20;
    // Of 1200-byte objects 54 share a span's header; these make 4096, so add the header's share.
    for key in 0..pages {
        store.store_object(key, 1, &key.to_le_bytes()).unwrap();
        if store.reserve_low() {
            store.refill_reserve().unwrap();
        }
    }
    let seal_and_header = 4.0 + 20.0 / 54.0;
    let bytes = store.statistics().metadata_bytes as f64 / pages as f64 + seal_and_header;
    assert!((12.0..13.5).contains(&bytes), "{bytes}");
    assert_eq!(store.invalidate_range(0, pages), pages);
    let left = store.statistics().metadata_bytes;
    assert!(left < 512 << 10, "{left}");
    assert_eq!(store.cost_bytes(), resident_bytes(&store));
}

#[test]
fn lonely_pages_stay_within_what_the_configuration_says() {
    let config = Config {
        pool_bytes_max: 256 * MIB,
        reserve_bytes: 0,
        metadata_bytes_max: 64 * MIB,
        spill: None,
    };
    let store = Store::new(&config).unwrap();
    let pages = 60_000;
    for key in 0..pages {
        store.store_object(key * 64, 1, &key.to_le_bytes()).unwrap();
        if store.reserve_low() {
            store.refill_reserve().unwrap();
        }
    }
    let bytes = store.statistics().metadata_bytes as f64 / pages as f64;
    assert!(bytes < 630.0, "{bytes}");
    // Tables that have become too large shrink in the housekeeping.
    for key in 0..pages {
        if key % 100 != 0 {
            store.invalidate(key * 64);
        }
    }
    let before = store.statistics().metadata_bytes;
    while store.reserve_low() {
        store.refill_reserve().unwrap();
    }
    let after = store.statistics().metadata_bytes;
    assert!(after + 500_000 < before, "{before} {after}");
    assert!((0..pages).all(|key| store.contains(key * 64) == (key % 100 == 0)));
    store.audit();
}

#[test]
fn compaction_gives_back_what_random_frees_left() {
    let store = store_of(64 * MIB, 0);
    let mut random = Random::new(9);
    let mut lens = vec![0; 20_000];
    for (key, len) in lens.iter_mut().enumerate() {
        *len = 600 + random.below(1400) as usize;
        store.store_object(key as u64, 1, &super::content(key as u64, *len)).unwrap();
    }
    for (key, len) in lens.iter_mut().enumerate() {
        if random.below(2) == 0 {
            store.invalidate(key as u64);
            *len = 0;
        }
    }
    let before = store.statistics();
    assert!(before.allocated_per_compressed().unwrap() > 1.8);
    let moved = store.compact(|| true);
    assert!(moved > 0 && moved < before.objects);
    let after = store.statistics();
    assert_eq!((after.objects, after.object_bytes), (before.objects, before.object_bytes));
    assert!(after.allocated_per_compressed().unwrap() < 1.05, "{after:?}");
    store.audit();
    for (key, len) in lens.into_iter().enumerate() {
        let loaded = store.load(key as u64, super::Page::keep).unwrap();
        let expected = (len != 0)
            .then(|| super::Page::Object { encoding: 1, bytes: super::content(key as u64, len) });
        assert_eq!(loaded, expected);
    }
    // It comes to an end.
    let again: Vec<u64> = (0..20).map(|_| store.compact(|| true)).collect();
    assert_eq!(again.last(), Some(&0), "{again:?}");
}

#[test]
fn compaction_that_is_stopped_again_and_again_comes_to_an_end_too() {
    let store = store_of(64 * MIB, 0);
    let mut random = Random::new(9);
    for key in 0..20_000 {
        store.store_object(key, 1, &super::content(key, 1000)).unwrap();
    }
    for key in (0..20_000).filter(|_| random.below(2) == 0) {
        store.invalidate(key);
    }
    // The leaves of all, with a stop after each; several times round, as one call would go.
    for _ in 0..4 * 20_000 / 64 {
        store.compact(|| false);
    }
    let after = store.statistics();
    assert!(after.allocated_per_compressed().unwrap() < 1.1, "{after:?}");
}

/// Locks or unlocks what is accessible of some addresses, as a program that locks all its memory
/// does; whether the kernel let us.
#[cfg(target_arch = "x86_64")]
fn lock(range: &std::ops::Range<usize>, locked: bool) -> bool {
    use ramfold_sys::{Errno, raw};
    const MLOCK: usize = 149;
    const MUNLOCK: usize = 150;
    let call = if locked { MLOCK } else { MUNLOCK };
    // SAFETY: locking changes no content.
    match raw::check(unsafe { raw::syscall2(call, range.start, range.len()) }) {
        Ok(_) => true,
        // The inaccessible part has nothing to lock, which comes after the rest was.
        Err(Errno::NOMEM) => true,
        Err(errno) => {
            println!("no test of locked memory: {errno}");
            false
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn locked_memory_stays_counted_and_is_used_again() {
    // Small enough for the limit of an ordinary user, 8 MiB.
    let config =
        Config { pool_bytes_max: MIB, reserve_bytes: 0, metadata_bytes_max: 16 * MIB, spill: None };
    let store = Store::new(&config).unwrap();
    let ranges = store.memory_ranges();
    let [.., tables] = &ranges.metadata;
    // Enough groups for tables of two pages.
    let lonely = 18_000;
    for round in 0..3 {
        for key in 0..lonely {
            store.store_same_filled(key * 64, 0).unwrap_or_else(|e| panic!("{round} {e}"));
            if key == lonely / 2 && !lock(tables, true) {
                return;
            }
        }
        // Tables of one page could not be given back when they grew, with all that was in them.
        for key in 0..150 {
            store.store_object((1 << 40) + key, 1, &[key as u8; 4096]).unwrap();
        }
        if !lock(&ranges.pool, true) {
            return;
        }
        assert_eq!(store.invalidate_range(0, u64::MAX), lonely + 150);
        let s = store.statistics();
        if s.release_failures == 0 {
            println!("no test of locked memory: over the limit");
            return;
        }
        assert_eq!((s.spans, s.pool_used_bytes), (0, 0));
        assert_eq!(s.pool_fragmentation_bytes, s.pool_total_bytes);
        assert!(s.pool_total_bytes >= 150 * 4096, "{s:?}");
        store.audit();
        assert!(lock(&ranges.pool, false) && lock(tables, false));
    }
    assert_eq!(resident_bytes(&store), store.cost_bytes());
}

//! Content and mark together; the limit of the pool.

use super::{MIB, store_of};
use crate::{Loaded, Replaced, StoreError};

#[test]
fn content_and_mark_are_exchanged_together() {
    let store = store_of(4 * MIB, 0);
    assert_eq!(store.exchange_object(5, 3, b"five", 7), Ok(Replaced::Nothing));
    let look = |loaded: Loaded<'_>, mark| {
        (matches!(loaded, Loaded::Object { encoding: 3, bytes: b"five" }), mark)
    };
    assert_eq!(store.load_marked(5, look), Ok(Some((true, 7))));
    assert_eq!(store.exchange_pattern(5, 0x0102_0304, 9), Ok(Replaced::Object));
    let look =
        |loaded: Loaded<'_>, mark| (loaded == Loaded::SameFilled(0x0102_0304_0102_0304), mark);
    assert_eq!(store.load_marked(5, look), Ok(Some((true, 9))));
    let pattern = Replaced::Pattern { pattern: 0x0102_0304, mark: 9 };
    assert_eq!(store.exchange_word(5, 1 << 40, 0), Ok(pattern));
    let look = |loaded: Loaded<'_>, mark| (loaded == Loaded::SameFilled(1 << 40), mark);
    assert_eq!(store.load_marked(5, look), Ok(Some((true, 0))));
    assert_eq!(store.remove(5), Replaced::Object);
    assert_eq!(store.remove(5), Replaced::Nothing);
    assert_eq!(store.load_marked(5, |_, _| ()), Ok(None));
    store.audit();
    assert_eq!(store.statistics().slots, 0);
}

#[test]
fn what_cannot_be_exchanged_stays() {
    let store = store_of(4 * MIB, 0);
    store.exchange_object(5, 3, b"five", 7).unwrap();
    assert!(matches!(store.exchange_object(5, 3, &[], 1), Err(StoreError::ObjectLength { .. })));
    assert!(matches!(store.exchange_object(5, 0, b"x", 1), Err(StoreError::Encoding { .. })));
    store.limit_pool(0);
    let full = store.exchange_object(5, 3, &[1; 4096], 1);
    assert!(matches!(full, Err(StoreError::PoolFull { .. })));
    assert_eq!(store.load_marked(5, |_, mark| mark), Ok(Some(7)));
    store.audit();
}

#[test]
fn a_pool_has_no_more_spans_than_it_is_limited_to() {
    let store = store_of(8 * MIB, MIB / 2);
    store.refill_reserve().unwrap();
    store.limit_pool(MIB);
    let fill = |from: u64| {
        (from..from + 4096)
            .take_while(|&key| store.exchange_object(key, 1, &[7; 4096], 0).is_ok())
            .count()
    };
    assert_eq!(fill(0), MIB / 4096);
    assert_eq!(store.pool_claimed_bytes(), MIB);
    // The index may have something to fill; the pool, at its limit, has not.
    store.refill_reserve().unwrap();
    assert!(!store.reserve_low(), "there is nothing to fill");
    assert_eq!(store.pool_claimed_bytes(), MIB);
    // What is there stays when the limit falls, and the pool grows when it rises.
    store.limit_pool(MIB / 2);
    assert_eq!(store.statistics().objects, 256);
    store.limit_pool(2 * MIB);
    assert_eq!(fill(4096), MIB / 4096);
    store.audit();
    store.invalidate_range(0, 10_000);
    assert!(store.pool_claimed_bytes() <= MIB);
    store.audit();
}

#[test]
fn groups_that_have_something_are_shown() {
    let store = store_of(4 * MIB, 0);
    for key in [0, 1, 63, 64, 200, 1 << 40] {
        store.exchange_pattern(key, 1, 0).unwrap();
    }
    let shown = |first, count| {
        let mut shown = Vec::new();
        store.for_each_group(first, count, |group, live| shown.push((group, live)));
        shown.sort_unstable();
        shown
    };
    let whole = [(0, 1 << 63 | 3), (64, 1), (192, 1 << 8), (1 << 40, 1)];
    assert_eq!(shown(0, u64::MAX), whole);
    assert_eq!(shown(100, 30), [(64, 1)]);
    assert_eq!(shown(256, 1000), []);
    assert_eq!(shown(5, 0), []);
    assert_eq!(store.live_of_group(63), 1 << 63 | 3);
    assert_eq!(store.live_of_group(130), 0);
}

//! A store that uses prepared memory only.

use super::*;
use crate::StoreError;

/// What is memory of the process's changes only when the reserve is refilled or released.
#[test]
fn nothing_is_asked_of_the_system_between_refills() {
    let store = store_of(8 * MIB, MIB);
    store.use_prepared_memory_only().unwrap();
    store.refill_reserve().unwrap();
    let ranges = store.memory_ranges();
    let present =
        || present_bytes(&ranges.pool) + ranges.metadata.iter().map(present_bytes).sum::<usize>();
    let before = present();
    assert_eq!(store.cost_bytes(), before);
    let object = |key: Key, len: usize| vec![key as u8; len];
    let mut stored = Vec::new();
    let mut refused = false;
    // Far apart, near, and of all lengths; those of 4,096 bytes have seals of their own.
    for nth in 0..20_000u64 {
        let key = if nth % 3 == 0 { nth * 4096 } else { nth };
        let len = if nth % 7 == 0 { 4096 } else { 1 + (nth as usize * 131) % 3000 };
        match store.store_object(key, 9, &object(key, len)) {
            Ok(()) => stored.push((key, len)),
            Err(StoreError::PoolFull { .. }) => refused = true,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused && stored.len() > 200);
    assert!(store.reserve_low() && store.may_grow());
    assert_eq!(present(), before);
    for &(key, len) in &stored {
        let is_right = |loaded: Loaded<'_>| matches!(loaded, Loaded::Object { encoding: 9, bytes } if bytes == object(key, len));
        assert_eq!(store.load(key, is_right).unwrap(), Some(true));
    }
    store.audit();

    // More memory comes with the next refill.
    store.refill_reserve().unwrap();
    assert!(present() > before);
    store.store_object(1 << 40, 9, &object(3, 3000)).unwrap();
    // What objects leave is ready for others, and goes back when it is asked for.
    let most = present();
    store.invalidate(1 << 40);
    stored.iter().for_each(|&(key, _)| assert!(store.invalidate(key)));
    store.compact(|| true);
    assert_eq!(present(), most);
    store.audit();
    store.set_reserve(64 << 10);
    store.release_surplus();
    assert!(present() < most, "{} of {most}", present());
    store.audit();
    assert_eq!(store.cost_bytes(), present());
}

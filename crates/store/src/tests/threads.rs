//! Many threads: each on keys of its own that a model follows, and all on shared keys whose
//! contents say what they are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::{MIB, Page, Random, content, forget_ghosts, store_of, test_duration, test_seed};
use crate::{Key, Loaded, Store};

const SHARED_FIRST: Key = 1 << 40;
const SHARED_COUNT: u64 = 500;

/// A content that says of which key and version it is, in its length, encoding and bytes.
fn shared_content(key: Key, version: u64) -> (u8, Vec<u8>) {
    let mut bytes = Vec::from(key.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.extend(content(key ^ version << 20, (version % 2000) as usize));
    (1 + (version % 15) as u8, bytes)
}

fn check_shared(key: Key, loaded: Loaded<'_>) {
    match loaded {
        Loaded::SameFilled(word) => assert_eq!(word >> 32, key & 0xffff_ffff),
        Loaded::Object { encoding, bytes } => {
            let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let expected = shared_content(key, version);
            assert_eq!((encoding, bytes), (expected.0, &expected.1[..]));
        }
        Loaded::Spilled(spilled) => panic!("{spilled:?}"),
    }
}

fn shared_step(store: &Store, random: &mut Random) {
    let key = SHARED_FIRST + random.below(SHARED_COUNT);
    match random.below(10) {
        0..4 => {
            let (encoding, bytes) = shared_content(key, random.below(1 << 40));
            store.store_object(key, encoding, &bytes).unwrap();
        }
        4 => store.store_same_filled(key, key << 32 | random.below(1 << 32)).unwrap(),
        5..7 => drop(store.load(key, |loaded| check_shared(key, loaded)).unwrap()),
        7..9 => drop(store.take(key, |loaded| check_shared(key, loaded)).unwrap()),
        _ => {
            store.invalidate(key);
        }
    }
}

fn own_step(store: &Store, own: &mut HashMap<Key, Page>, first: Key, random: &mut Random) {
    let key = first + random.below(3000);
    match random.below(10) {
        0..5 => {
            let page = Page::any(random);
            page.store(store, key).unwrap();
            own.insert(key, page);
        }
        5..7 => assert_eq!(store.load(key, Page::keep).unwrap().as_ref(), own.get(&key)),
        7..9 => assert_eq!(store.take(key, Page::keep).unwrap(), own.remove(&key)),
        _ => {
            let count = random.below(40).min(first + 3000 - key);
            let expected = (key..key + count).filter(|key| own.remove(key).is_some()).count();
            assert_eq!(store.invalidate_range(key, count), expected as u64);
        }
    }
}

/// Runs `threads` threads for a while, with one that keeps house meanwhile.
fn run(store: &Store, threads: u64, seed: u64) {
    let (start, duration) = (Instant::now(), test_duration());
    let done = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (done, steps) = (&done, &steps);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 1000 + thread);
                    let mut own = HashMap::new();
                    // Neighbours in the same groups as the other threads', and some alone.
                    let first = thread * 3000;
                    while !done.load(Ordering::Relaxed) {
                        for _ in 0..100 {
                            own_step(store, &mut own, first, &mut random);
                            shared_step(store, &mut random);
                        }
                        steps.fetch_add(200, Ordering::Relaxed);
                    }
                    for (key, page) in &own {
                        assert_eq!(store.load(*key, Page::keep).unwrap().as_ref(), Some(page));
                    }
                    let live = store.invalidate_range(first, 3000);
                    assert_eq!(live, own.len() as u64);
                })
            })
            .collect();
        let mut random = Random::new(seed);
        while start.elapsed() < duration {
            match random.below(8) {
                0 => drop(store.compact(|| true)),
                1 => store.for_each(|key, _| {
                    if key >= SHARED_FIRST {
                        store.load(key, |loaded| check_shared(key, loaded)).unwrap();
                    }
                }),
                2 => drop(store.invalidate_range(SHARED_FIRST + random.below(400), 1 << 30)),
                3 => drop(forget_ghosts(store)),
                4 => drop(store.pause()),
                5 => assert!(store.statistics().objects < 1_000_000),
                _ => store.refill_reserve().unwrap(),
            }
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    store.audit();
    for key in SHARED_FIRST..SHARED_FIRST + SHARED_COUNT {
        store.take(key, |loaded| check_shared(key, loaded)).unwrap();
    }
    forget_ghosts(store);
    store.audit();
    let s = store.statistics();
    assert_eq!((s.pages(), s.ghosts, s.leaves, s.slots, s.spans), (0, 0, 0, 0, 0));
    println!("{} steps of {threads} threads from seed {seed}", steps.into_inner());
}

#[test]
fn four_threads() {
    let store = store_of(64 * MIB, 4 * MIB);
    store.refill_reserve().unwrap();
    run(&store, 4, test_seed());
}

#[test]
fn sixty_four_threads_without_a_reserve() {
    run(&store_of(512 * MIB, 0), 64, test_seed());
}

#[test]
fn ranges_move_beside_other_threads() {
    let store = store_of(64 * MIB, MIB);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random::new(thread + 50);
                // Not whole groups: the ends are shared with the other threads'.
                let base = thread * 1000;
                let mut at = base;
                let other = base + (1 << 30) + 17;
                let pages: Vec<Page> = (0..1000).map(|_| Page::any(&mut random)).collect();
                for (key, page) in (at..).zip(&pages) {
                    page.store(store, key).unwrap();
                }
                while start.elapsed() < test_duration() {
                    let to = if at == base { other } else { base };
                    assert_eq!(store.rekey_range(at, to, 1000), Ok(1000));
                    at = to;
                    for (key, page) in (at..).zip(&pages) {
                        assert_eq!(store.load(key, Page::keep).unwrap().as_ref(), Some(page));
                    }
                }
            });
        }
    });
    assert_eq!(store.statistics().pages(), 4000);
    store.audit();
}

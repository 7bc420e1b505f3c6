//! Random operations on a store and on a map, from a seed, compared after each.

use std::collections::BTreeMap;
use std::time::Instant;

use super::recompression::Halves;
use super::spill_file::Spilling;
use super::{MIB, Page, Random, content, forget_ghosts, goes_on, store_of, test_seed};
use crate::{
    Choose, EntryKind, Key, Loaded, Recompressed, Recompression, SpillCounts, SpillError, Store,
    StoreError,
};

/// What is known of a key: its page, or that it was taken; and its mark.
#[derive(Clone, Debug)]
struct Known {
    page: Option<Page>,
    mark: u8,
}

/// A store, with or without a spill file.
enum World {
    Pool(Box<Store>),
    Spilling(Box<Spilling>),
}

impl World {
    fn store(&self) -> &Store {
        match self {
            World::Pool(store) => store,
            World::Spilling(spilling) => &spilling.store,
        }
    }

    fn keep(&self, loaded: Loaded<'_>) -> Page {
        match self {
            World::Pool(_) => Page::keep(loaded),
            World::Spilling(spilling) => spilling.keep(loaded),
        }
    }

    /// One of the things that are done in the background.
    fn spill(&mut self, random: &mut Random) {
        let World::Spilling(spilling) = self else { return };
        let Spilling { store, spill, cipher, .. } = &mut **spilling;
        let done = match random.below(8) {
            0..3 => spill.write(store, cipher, Choose::Oldest).map(drop),
            3 => spill.write(store, cipher, Choose::Raw).map(drop),
            4 => spill.finish(store),
            5 => spill.clean(store, cipher).map(drop),
            6 => spill.rest(store),
            _ => {
                spill.release_empty(store);
                Ok(())
            }
        };
        match done {
            Ok(()) | Err(SpillError::Full | SpillError::Write { .. } | SpillError::Read { .. }) => {
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn audit(&self) {
        match self {
            World::Pool(store) => store.audit(),
            World::Spilling(spilling) => spilling.audit(),
        }
    }
}

struct Model {
    known: BTreeMap<Key, Known>,
    recompression: Recompression,
    replaced: u64,
}

impl Model {
    fn new() -> Model {
        Model { known: BTreeMap::new(), recompression: Recompression::START, replaced: 0 }
    }

    /// Makes cold objects smaller, some or all, and finds out which.
    fn recompress(&mut self, store: &Store, random: &mut Random) {
        if random.below(3) != 0 {
            self.recompression.begin_round(store);
        }
        let mut replaced = 0;
        for _ in 0..random.below(3000) {
            match self.recompression.step(store, &mut Halves::default()) {
                Recompressed::Replaced { .. } => replaced += 1,
                Recompressed::Stayed => {}
                Recompressed::Round => break,
            }
        }
        self.replaced += replaced;
        store.for_each(|key, kind| {
            let found = match kind {
                EntryKind::Object { encoding, .. } | EntryKind::Spilled { encoding } => encoding,
                _ => return,
            };
            if let Some(page) = self.known.get_mut(&key).and_then(|known| known.page.as_mut())
                && !matches!(page, Page::Object { encoding, .. } if *encoding == found)
            {
                *page = page.denser().unwrap();
                replaced -= 1;
            }
        });
        assert_eq!(replaced, 0);
    }

    fn replace_neighbours(&mut self, store: &Store, random: &mut Random, key: Key) {
        let count = 1 + random.below((64 - key % 64).min(20));
        let objects: Vec<_> = (0..random.below(count.min(17) + 1))
            .map(|_| (1 + random.below(15) as u8, content(random.next(), random.object_len())))
            .collect();
        let lent: Vec<_> =
            objects.iter().map(|(encoding, bytes)| (*encoding, &bytes[..])).collect();
        let mark = if random.below(2) == 0 { 0 } else { random.next() as u8 };
        match store.replace_neighbours(key, count as usize, &lent, mark) {
            Ok(()) => {
                self.remove(key, key + (count - 1));
                for ((encoding, bytes), key) in objects.into_iter().zip(key..=key + (count - 1)) {
                    let page = Some(Page::Object { encoding, bytes });
                    self.known.insert(key, Known { page, mark: 0 });
                }
                match self.known.get_mut(&key) {
                    Some(known) => known.mark = mark,
                    // No room for a ghost is the one excuse.
                    None if mark != 0 && store.mark(key) == mark => {
                        self.known.insert(key, Known { page: None, mark });
                    }
                    None => assert_eq!(store.mark(key), 0),
                }
            }
            Err(StoreError::PoolFull { .. } | StoreError::MetadataFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn mark(&self, key: Key) -> u8 {
        self.known.get(&key).map_or(0, |known| known.mark)
    }

    fn page(&self, key: Key) -> Option<&Page> {
        self.known.get(&key).and_then(|known| known.page.as_ref())
    }

    fn keys(&self, first: Key, last: Key) -> Vec<Key> {
        self.known.range(first..=last).map(|(&key, _)| key).collect()
    }

    fn live(&self, first: Key, last: Key) -> u64 {
        self.known.range(first..=last).filter(|(_, known)| known.page.is_some()).count() as u64
    }

    fn remove(&mut self, first: Key, last: Key) -> u64 {
        let live = self.live(first, last);
        self.keys(first, last).iter().for_each(|key| drop(self.known.remove(key)));
        live
    }

    fn rekey(&mut self, from: Key, to: Key, count: u64) -> u64 {
        let last = from + (count - 1);
        self.remove(to, to + (count - 1));
        let live = self.live(from, last);
        for key in self.keys(from, last) {
            let known = self.known.remove(&key).unwrap();
            self.known.insert(to + (key - from), known);
        }
        live
    }

    fn compare_all(&self, world: &World) {
        let store = world.store();
        let mut seen = BTreeMap::new();
        store.for_each(|key, kind| assert!(seen.insert(key, kind).is_none(), "{key:#x} twice"));
        assert!(seen.keys().eq(self.known.keys()));
        let (mut objects, mut same_filled, mut ghosts, mut bytes, mut slots) = (0, 0, 0, 0, 0);
        let mut spilled = 0;
        for (key, known) in &self.known {
            let expected = match &known.page {
                Some(Page::Object { encoding, .. })
                    if matches!(seen[key], EntryKind::Spilled { .. }) =>
                {
                    spilled += 1;
                    assert_eq!(seen[key], EntryKind::Spilled { encoding: *encoding });
                    continue;
                }
                None => EntryKind::Ghost,
                Some(Page::SameFilled(_)) => EntryKind::SameFilled,
                Some(Page::Object { encoding, bytes }) => {
                    EntryKind::Object { encoding: *encoding, len: bytes.len() }
                }
            };
            assert_eq!(seen[key], expected);
            match &known.page {
                None => ghosts += 1,
                Some(Page::SameFilled(word)) => {
                    same_filled += 1;
                    if *word as u32 != (*word >> 32) as u32 {
                        bytes += 8;
                        slots += 1;
                    }
                }
                Some(Page::Object { bytes: object, .. }) => {
                    objects += 1;
                    slots += 1;
                    bytes += object.len() as u64;
                }
            }
        }
        let s = store.statistics();
        assert_eq!((s.objects, s.same_filled, s.ghosts), (objects, same_filled, ghosts));
        assert_eq!(s.spilled, spilled);
        assert_eq!((s.object_bytes, s.slots), (bytes, slots));
        world.audit();
    }
}

/// Keys in clusters: dense, lonely, at the ends of groups and of the key space.
fn any_key(random: &mut Random) -> Key {
    let cluster = random.below(8);
    let small = random.below(150);
    match cluster {
        0..4 => random.below(1500),
        4 => (1 << 35) + random.below(200) * 64 + small % 2,
        5 => random.below(40) << 52 | small,
        6 => Key::MAX - small,
        _ => 5_000_000 + random.below(30_000),
    }
}

fn any_count(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 1 << random.below(64),
        1 => random.below(5000),
        _ => random.below(100),
    }
}

fn step(world: &mut World, model: &mut Model, random: &mut Random) {
    if random.below(50) == 0 {
        world.spill(random);
    }
    let store = world.store();
    let key = any_key(random);
    match random.below(100) {
        0..2 => model.replace_neighbours(store, random, key),
        2..40 => {
            let page = Page::any(random);
            match page.store(store, key) {
                Ok(()) => {
                    let mark = model.mark(key);
                    model.known.insert(key, Known { page: Some(page), mark });
                }
                // The key keeps what it had.
                Err(StoreError::PoolFull { .. } | StoreError::MetadataFull { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        40..43 => store.neighbours(key, |neighbours| {
            for key in key & !63..=key | 63 {
                assert_eq!(neighbours.mark(key), model.mark(key));
                assert_eq!(neighbours.contains(key), model.page(key).is_some());
                // What lies in the spill file is read without a lock.
                match neighbours.load(key).unwrap() {
                    Some(Loaded::Spilled(_)) => assert!(model.page(key).is_some()),
                    loaded => assert_eq!(loaded.map(Page::keep).as_ref(), model.page(key)),
                }
            }
            assert_eq!(neighbours.load(key ^ 64), Ok(None));
        }),
        43..55 => {
            let loaded = store.load(key, |loaded| world.keep(loaded)).unwrap();
            assert_eq!(loaded.as_ref(), model.page(key));
        }
        55..65 => {
            let mark = random.next() as u8;
            let live = model.page(key).is_some();
            assert_eq!(store.discard(key, mark), live);
            if live {
                model.known.insert(key, Known { page: None, mark });
            }
        }
        65..75 => {
            let taken = store.take(key, |loaded| world.keep(loaded)).unwrap();
            let expected = model.known.get_mut(&key).and_then(|known| known.page.take());
            assert_eq!(taken, expected);
        }
        75..80 => {
            let live = model.remove(key, key) == 1;
            assert_eq!(store.contains(key), live);
            assert_eq!(store.invalidate(key), live);
        }
        80..90 => {
            assert_eq!(store.mark(key), model.mark(key));
            let mark = random.next() as u8;
            assert_eq!(store.set_mark(key, mark), model.mark(key));
            let known = model.known.get_mut(&key);
            match known {
                Some(known) => known.mark = mark,
                // No room for a ghost is the one excuse.
                None if store.mark(key) == mark && mark != 0 => {
                    model.known.insert(key, Known { page: None, mark });
                }
                None => assert_eq!(store.mark(key), 0),
            }
        }
        90..95 => {
            let count = any_count(random);
            // The large ones seldom, or nothing would be left to work on.
            let count = if random.below(20) == 0 { count } else { count % 200 };
            let live = match count {
                0 => 0,
                _ => model.remove(key, key.saturating_add(count - 1)),
            };
            assert_eq!(store.invalidate_range(key, count), live);
        }
        95..98 => {
            let (to, count) = (any_key(random), any_count(random));
            let end = |first: Key| count == 0 || first.checked_add(count - 1).is_some();
            match store.rekey_range(key, to, count) {
                Ok(moved) if count == 0 => assert_eq!(moved, 0),
                Ok(moved) => assert_eq!(moved, model.rekey(key, to, count)),
                Err(StoreError::RangesOverlap { .. }) => assert!(key.abs_diff(to) < count),
                Err(StoreError::RangeBeyondEnd { first, .. }) => assert!(!end(first)),
                Err(error) => panic!("{error}"),
            }
        }
        98 => {
            match random.below(10) {
                0 => drop(store.compact(|| true)),
                1 => return model.recompress(store, random),
                _ => {}
            }
            if store.reserve_low() {
                store.refill_reserve().unwrap();
            }
        }
        _ => {
            if random.below(100) == 0 {
                let ghosts = model.known.values().filter(|known| known.page.is_none()).count();
                assert_eq!(forget_ghosts(store), ghosts as u64);
                model.known.retain(|_, known| known.page.is_some());
            }
        }
    }
}

/// For a while, and until something was made smaller and `enough` has happened.
fn run(world: &mut World, seed: u64, enough: impl Fn(&World) -> bool) {
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut model = Model::new();
    let mut steps = 0u64;
    while goes_on(started, model.replaced > 0 && enough(world)) {
        for _ in 0..5000 {
            step(world, &mut model, &mut random);
        }
        steps += 5000;
        model.compare_all(world);
    }
    let store = world.store();
    // Everything can still be taken, and then nothing is left.
    for (key, known) in &model.known {
        assert_eq!(store.take(*key, |loaded| world.keep(loaded)).unwrap(), known.page);
    }
    assert_eq!(store.invalidate_range(0, u64::MAX), 0);
    store.invalidate(Key::MAX);
    store.audit();
    let s = store.statistics();
    assert_eq!((s.pages(), s.ghosts, s.leaves, s.slots), (0, 0, 0, 0));
    assert_eq!(s.pool_total_bytes, s.pool_reserve_bytes);
    println!("{steps} steps from seed {seed}, {} objects made smaller", model.replaced);
    assert!(model.replaced > 0);
}

#[test]
fn agrees_with_a_map() {
    let store = store_of(64 * MIB, MIB);
    store.refill_reserve().unwrap();
    run(&mut World::Pool(Box::new(store)), test_seed(), |_| true);
}

#[test]
fn agrees_with_a_map_without_a_reserve() {
    run(&mut World::Pool(Box::new(store_of(64 * MIB, 0))), test_seed() + 1, |_| true);
}

#[test]
fn agrees_with_a_map_while_the_pool_is_full() {
    let mut world = World::Pool(Box::new(store_of(MIB, MIB / 4)));
    let was_full = |world: &World| world.store().statistics().rejects.pool_full > 0;
    run(&mut world, test_seed() + 2, was_full);
    assert!(was_full(&world));
}

#[test]
fn agrees_with_a_map_while_pages_go_to_a_spill_file() {
    run_spilling(Spilling::new(64 * MIB, 64 << 10, 512), test_seed() + 3);
}

#[test]
fn agrees_with_a_map_while_the_spill_file_is_full() {
    run_spilling(Spilling::new(MIB, 64 << 10, 16), test_seed() + 4);
}

#[test]
fn agrees_with_a_map_while_the_disk_fails() {
    let spilling = Spilling::new(2 * MIB, 64 << 10, 64);
    spilling.medium.lock().unwrap().fails_one_in = 5;
    run_spilling(spilling, test_seed() + 5);
}

fn run_spilling(spilling: Spilling, seed: u64) {
    let mut world = World::Spilling(Box::new(spilling));
    let counts = |world: &World| match world {
        World::Pool(_) => unreachable!(),
        World::Spilling(spilling) => spilling.spill.counts(),
    };
    let enough = |counts: SpillCounts| counts.pages_written > 500 && counts.pages_moved > 0;
    run(&mut world, seed, |world| enough(counts(world)));
    let counts = counts(&world);
    println!("{counts:?}");
    assert!(enough(counts), "{counts:?}");
}

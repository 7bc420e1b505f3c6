use std::collections::BTreeMap;

use super::*;

/// Clusters without data, in the order of their keys.
#[derive(Default)]
struct Model(BTreeMap<u64, (Option<ClusterSize>, History)>);

impl Clusters for Model {
    fn history(&self, first: u64, size: ClusterSize) -> Option<History> {
        let (found, history) = self.0.get(&first)?;
        (*found == Some(size)).then_some(*history)
    }

    fn set_history(&mut self, first: u64, history: History) {
        self.0.get_mut(&first).unwrap().1 = history;
    }

    fn evict(&mut self, first: u64, size: ClusterSize, ghost: History) {
        let evicted = self.0.insert(first, (None, ghost));
        assert_eq!(evicted.unwrap().0, Some(size));
    }

    fn group_from(&self, place: u32) -> Option<(u64, u32)> {
        let (key, _) = self.0.range(u64::from(place) << 6..).next()?;
        Some((key & !63, (key >> 6) as u32 + 1))
    }

    fn update_group(
        &mut self,
        group: u64,
        mut each: impl FnMut(u64, Option<ClusterSize>, History) -> Option<History>,
    ) {
        for key in group..=group | 63 {
            let Some((size, history)) = self.0.get_mut(&key) else { continue };
            match each(key, *size, *history) {
                Some(changed) => *history = changed,
                None if size.is_none() => drop(self.0.remove(&key)),
                None => {}
            }
        }
    }
}

/// A cache that holds so many clusters of four pages.
struct Cache {
    clusters: Model,
    replacement: Replacement,
    room: usize,
    stored: usize,
}

impl Cache {
    fn new(room: usize) -> Cache {
        let (clusters, replacement) = (Model::default(), Replacement::default());
        Cache { clusters, replacement, room, stored: 0 }
    }

    /// Reads a cluster: whether it was there. If not, it is stored.
    fn read(&mut self, nth: u64) -> bool {
        let (first, size) = (nth * 4, ClusterSize::Four);
        if let Some(history) = self.clusters.history(first, size) {
            self.clusters.set_history(first, history.read());
            return true;
        }
        while self.stored >= self.room {
            let evicted = self.replacement.evict_some(&mut self.clusters) as usize / 4;
            assert!(evicted > 0);
            self.stored -= evicted;
        }
        let before = self.clusters.0.get(&first).map_or(History::NEW, |(_, history)| *history);
        let history = self.replacement.history_for(before, size);
        self.clusters.0.insert(first, (Some(size), history));
        if let Some(mut sweep) = self.replacement.stored(&mut self.clusters, first, size, history) {
            sweep.run(&self.clusters);
            self.replacement.swept(sweep);
        }
        self.stored += 1;
        false
    }

    fn hits(&mut self, clusters: impl Iterator<Item = u64>) -> usize {
        clusters.filter(|&nth| self.read(nth)).count()
    }
}

#[test]
fn a_scan_leaves_what_is_read_again() {
    let mut cache = Cache::new(1000);
    for _ in 0..4 {
        cache.hits(0..700);
    }
    assert_eq!(cache.hits(0..700), 700);
    // Ten times as much as there is room for.
    assert_eq!(cache.hits(10_000..20_000), 0);
    let left = cache.hits(0..700);
    assert!(left > 650, "{left}");
}

#[test]
fn what_comes_back_stays() {
    let mut cache = Cache::new(1000);
    for _ in 0..3 {
        cache.hits(0..950);
    }
    // More is read in between than the queue holds when there is a main queue.
    let mut hits = 0;
    for round in 0..20 {
        hits = cache.hits(5000..5300);
        cache.hits(10_000 + 1000 * round..10_600 + 1000 * round);
    }
    assert!(hits > 250, "{hits}");
    assert!(cache.replacement.counts().returned_pages > 0);
}

#[test]
fn a_part_of_a_loop_that_does_not_fit_is_there() {
    let mut cache = Cache::new(1000);
    let hits = (0..20).map(|_| cache.hits(0..1500)).collect::<Vec<_>>();
    // By strict age none would be. (667 of 1,000 could be.)
    assert!(hits[10..].iter().sum::<usize>() / 10 > 300, "{hits:?}");
}

#[test]
fn what_is_stored_again_and_again_has_few_places_in_the_queue() {
    let mut cache = Cache::new(usize::MAX);
    for round in 0..100 {
        assert_eq!(cache.hits(0..100), 0, "{round}");
        cache.clusters.0.clear();
    }
    let places = |cache: &Cache| cache.replacement.probation.len();
    assert!(places(&cache) <= 2 * SWEEP_LEN_MIN, "{}", places(&cache));
    // In the order in which they were stored last.
    assert_eq!(cache.hits(50..150), 0);
    let mut sweep = Sweep(mem::take(&mut cache.replacement.probation));
    sweep.run(&cache.clusters);
    cache.replacement.swept(sweep);
    let expected: Vec<_> = (50..150).map(|nth| (nth * 4, ClusterSize::Four)).collect();
    assert_eq!(cache.replacement.probation, expected);
    assert_eq!(cache.replacement.probation_pages, 400);
}

#[test]
fn what_is_stored_while_the_queue_is_swept_comes_behind_it() {
    let mut cache = Cache::new(usize::MAX);
    cache.hits(0..10);
    let mut sweep = Sweep(mem::take(&mut cache.replacement.probation));
    cache.hits(10..12);
    sweep.run(&cache.clusters);
    cache.replacement.swept(sweep);
    let expected: Vec<_> = (0..12).map(|nth| (nth * 4, ClusterSize::Four)).collect();
    assert_eq!(cache.replacement.probation, expected);
    assert_eq!(cache.replacement.probation_pages, 48);
}

#[test]
fn one_ghost_of_four_enters_the_main_queue_as_long_as_it_is_remembered() {
    let mut replacement = Replacement::default();
    let mut of = |history| replacement.history_for(history, ClusterSize::Sixteen);
    let ghost = History::ghost(0);
    let returned: Vec<_> = (0..8).map(|_| of(ghost).is_main()).collect();
    assert_eq!(returned, [false, false, false, true, false, false, false, true]);
    assert_eq!(of(History::ghost(8)), History::NEW);
    assert_eq!(of(History::NEW), History::NEW);
    assert_eq!(replacement.counts(), Counts { evicted_pages: 0, returned_pages: 8 * 16 });
}

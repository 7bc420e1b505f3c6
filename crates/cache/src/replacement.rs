//! The replacement policy over the store.

use std::sync::{Mutex, MutexGuard};

use ramfold_codec::cluster::ClusterSize;
use ramfold_policy::files::history::History;
use ramfold_policy::files::replacement::{Clusters, Counts, Replacement as Policy};
use ramfold_store::{Key, Store};

use crate::{clusters, locked};

/// Decides which clusters leave the store, from any thread.
#[derive(Default)]
pub(crate) struct Replacement {
    policy: Mutex<Policy>,
}

/// The store, as the policy sees it.
struct StoredClusters<'a>(&'a Store);

impl Clusters for StoredClusters<'_> {
    fn history(&self, first: u64, size: ClusterSize) -> Option<History> {
        clusters::history_of(self.0, first, size)
    }

    fn set_history(&mut self, first: u64, history: History) {
        self.0.set_mark(first, history.bits());
    }

    fn evict(&mut self, first: u64, size: ClusterSize, ghost: History) {
        clusters::evict(self.0, first, size, ghost);
    }

    fn group_from(&self, place: u32) -> Option<(u64, u32)> {
        self.0.group_from(place)
    }

    fn update_group(
        &mut self,
        group: u64,
        each: impl FnMut(u64, Option<ClusterSize>, History) -> Option<History>,
    ) {
        clusters::update_group(self.0, group, each);
    }
}

impl Replacement {
    /// Whether a cluster that is not stored was evicted shortly before.
    pub(crate) fn has_just_left(&self, store: &Store, first: Key) -> bool {
        let history = History::from_bits(store.mark(first));
        history.is_ghost() && self.lock().has_just_left(history)
    }

    /// How much was evicted shortly before, as a part of what there is; at most 1.
    pub(crate) fn just_left(&self) -> f64 {
        self.lock().just_left()
    }

    /// The history for a cluster that is about to be stored.
    pub(crate) fn history_for(&self, store: &Store, first: Key, size: ClusterSize) -> History {
        let before = History::from_bits(store.mark(first));
        self.lock().history_for(before, size)
    }

    /// Notes that a cluster was stored with that history.
    pub(crate) fn stored(&self, store: &Store, first: Key, size: ClusterSize, history: History) {
        let sweep = self.lock().stored(&mut StoredClusters(store), first, size, history);
        if let Some(mut sweep) = sweep {
            // Nobody waits meanwhile.
            sweep.run(&StoredClusters(store));
            self.lock().swept(sweep);
        }
    }

    /// Forgets ghosts, in up to this number of groups.
    pub(crate) fn forget_ghosts(&self, store: &Store, groups: usize) {
        self.lock().forget_ghosts(&mut StoredClusters(store), groups);
    }

    /// Evicts some clusters that lie together, and returns how many pages they had; 0 if there are
    /// none.
    pub(crate) fn evict_some(&self, store: &Store) -> u64 {
        self.lock().evict_some(&mut StoredClusters(store))
    }

    /// What became of clusters so far.
    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts()
    }

    fn lock(&self) -> MutexGuard<'_, Policy> {
        locked(&self.policy)
    }
}

#[cfg(test)]
mod tests {
    use ramfold_store::Config;

    use super::*;
    use crate::clusters::{Object, Workspace};

    /// A store that holds so many clusters of four pages, all of the same length.
    struct Pool {
        store: Store,
        replacement: Replacement,
        room: usize,
        stored: usize,
    }

    impl Pool {
        fn new(room: usize) -> Pool {
            let config = Config {
                pool_bytes_max: 16 << 20,
                reserve_bytes: 0,
                metadata_bytes_max: 16 << 20,
                spill: None,
            };
            let store = Store::new(&config).unwrap();
            Pool { store, replacement: Replacement::default(), room, stored: 0 }
        }

        /// Reads a cluster: whether it was there. If not, it is stored.
        fn read(&mut self, nth: u64) -> bool {
            let (first, size) = (nth * 4, ClusterSize::Four);
            if Workspace::new().find(&self.store, first).unwrap().is_some() {
                return true;
            }
            while self.stored >= self.room {
                let evicted = self.replacement.evict_some(&self.store) as usize / 4;
                assert!(evicted > 0);
                self.stored -= evicted;
            }
            let history = self.replacement.history_for(&self.store, first, size);
            clusters::put(&self.store, first, size, Object::SameFilled(nth), history).unwrap();
            self.replacement.stored(&self.store, first, size, history);
            self.stored += 1;
            false
        }

        fn hits(&mut self, clusters: impl Iterator<Item = u64>) -> usize {
            clusters.filter(|&nth| self.read(nth)).count()
        }
    }

    /// A test of the policy's, on purpose: it holds with the store as the policy's memory too.
    #[test]
    fn a_scan_leaves_what_is_read_again() {
        let mut pool = Pool::new(1000);
        for _ in 0..4 {
            pool.hits(0..700);
        }
        assert_eq!(pool.hits(0..700), 700);
        // Ten times as much as there is room for.
        assert_eq!(pool.hits(10_000..20_000), 0);
        let left = pool.hits(0..700);
        assert!(left > 650, "{left}");
    }

    /// What a level has lost is set beside what has left it: both are of the same clusters.
    #[test]
    fn as_much_has_just_left_as_is_found_to_have() {
        let mut pool = Pool::new(1000);
        let mut read = 0;
        for (clusters, expected) in
            [(1000, 0..=0), (20, 20..=20), (500, 200..=520), (3000, 200..=520)]
        {
            pool.hits(read..read + clusters);
            read += clusters;
            let left = |nth: &u64| pool.replacement.has_just_left(&pool.store, nth * 4);
            let found = (0..read).filter(left).count();
            assert!(expected.contains(&found), "{found} of {read}");
            let told = pool.replacement.just_left() * pool.stored as f64;
            assert_eq!(told.round() as usize, found);
        }
    }

    #[test]
    fn scans_alone_leave_no_more_than_some_ages_of_ghosts() {
        let mut pool = Pool::new(1000);
        assert_eq!(pool.hits(0..30_000), 0);
        let ghosts = pool.store.statistics().ghosts;
        assert!((1000..5000).contains(&ghosts), "{ghosts}");
        pool.replacement.forget_ghosts(&pool.store, usize::MAX);
        pool.replacement.forget_ghosts(&pool.store, usize::MAX);
        assert_eq!(pool.store.statistics().ghosts, 0);
    }

    #[test]
    fn everything_can_leave_and_ghosts_are_forgotten() {
        let mut pool = Pool::new(1000);
        for _ in 0..3 {
            pool.hits(0..1000);
        }
        pool.hits(2000..2400);
        while pool.replacement.evict_some(&pool.store) > 0 {}
        assert_eq!(pool.store.statistics().objects, 0);
        pool.stored = 0;
        // Others come, and what left long ago is forgotten as the hand goes by.
        for round in 1..20 {
            for _ in 0..3 {
                pool.hits(10_000 * round..10_000 * round + 900);
            }
        }
        let ghosts = pool.store.statistics().ghosts;
        assert!(ghosts < 6000, "{ghosts}");
    }
}

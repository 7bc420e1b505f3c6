//! Which clusters leave the pool when there is no more room.
//!
//! What is read for the first time waits in a queue. When it comes to the front it has been read again
//! meanwhile, and moves to the main part, or it leaves. So a scan pushes out what scans have brought, and
//! of the main part nothing, as long as the queue is a tenth of the pool. A hand goes round the main part,
//! group by group; what was read since it last came by is spared, up to three times. (As S3-FIFO: Yang and
//! others, SOSP 2023, with a clock for its main queue.) What leaves is remembered for a while, and of what is
//! read again then every fourth belongs to the main part at once. Were it all, a loop over more than there is
//! room for would change the whole of the main part each time it comes round, and never find anything.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::sync::{Mutex, MutexGuard};

use ramfold_codec::cluster::ClusterSize;
use ramfold_store::{Key, Store};

use super::mark::Mark;
use super::{clusters, locked};

/// What the queue has at least, as a part of the main part: then it gives before that does.
const MAIN_PER_QUEUE: u64 = 9;
/// Ages for which what has left is remembered: until as much has been stored as twice what there is.
const REMEMBERED_AGES: u8 = 8;
const AGES_PER_POOL: u64 = 4;
/// Of what returns one in so many goes to the main part.
const RETURNS_PER_KNOWN: u64 = 4;
/// Groups that the hand looks at for one cluster that leaves, before the queue has to give.
const HAND_PATIENCE: usize = 1024;
/// Places in the queue that are worth looking through for those whose clusters are gone.
const SWEPT_MIN: usize = 1024;

#[derive(Default)]
pub struct Replacement {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Key, ClusterSize)>,
    /// Pages of the clusters in the queue, and those that are gone but for their place in it.
    queue_pages: u64,
    /// So many places are looked through for those whose clusters are gone.
    sweep_at: usize,
    /// Where ghosts are to be looked for that are too old.
    ghost_hand: u32,
    /// As the hand found in its last round, and what has come and left since.
    main_pages: u64,
    /// Where the hand is; the pages it has found in this round, and those that have come meanwhile.
    hand: u32,
    found_pages: u64,
    come_pages: u64,
    age: u32,
    stored_in_age: u64,
    /// Pages that have left in this age and in the one before.
    left_in_ages: [u64; 2],
    returns: u64,
    left_pages: u64,
    returned_pages: u64,
}

/// What became of clusters, in pages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Have left the pool.
    pub left_pages: u64,
    /// Of those, were stored again while they were remembered.
    pub returned_pages: u64,
}

impl Replacement {
    /// Whether a cluster that is not stored has left in this age or in the one before.
    pub fn has_just_left(&self, store: &Store, first: Key) -> bool {
        let mark = Mark::from_bits(store.mark(first));
        mark.is_ghost() && mark.ages_since(self.lock().age) <= 1
    }

    /// How much has left in these ages, as a part of what there is; at most as much.
    pub fn just_left(&self) -> f64 {
        let state = self.lock();
        let left: u64 = state.left_in_ages.iter().sum();
        let there_is = state.queue_pages + state.main_pages;
        (left as f64 / there_is.max(1) as f64).min(1.0)
    }

    /// The mark for a cluster that is about to be stored.
    pub fn mark_for(&self, store: &Store, first: Key, size: ClusterSize) -> Mark {
        let before = Mark::from_bits(store.mark(first));
        let mut state = self.lock();
        if before.is_ghost() && before.ages_since(state.age) < REMEMBERED_AGES {
            state.returned_pages += size.pages() as u64;
            state.returns += 1;
            if state.returns.is_multiple_of(RETURNS_PER_KNOWN) {
                return Mark::KNOWN;
            }
        }
        Mark::NEW
    }

    /// Notes that a cluster has been stored with that mark.
    pub fn stored(&self, store: &Store, first: Key, size: ClusterSize, mark: Mark) {
        let pages = size.pages() as u64;
        let mut state = self.lock();
        if mark.is_main() {
            state.come_to_main(pages);
        } else {
            state.queue.push_back((first, size));
            state.queue_pages += pages;
        }
        state.stored_in_age += pages;
        if state.stored_in_age > (state.queue_pages + state.main_pages) / AGES_PER_POOL {
            state.stored_in_age = 0;
            state.age = state.age.wrapping_add(1);
            state.left_in_ages = [0, state.left_in_ages[0]];
        }
        // Each group comes by before its ghosts' ages come round: there are hardly more groups than clusters here and
        // as many remembered.
        state.forget_ghosts(store, 1, REMEMBERED_AGES);
        if state.queue.len() > state.sweep_at.max(SWEPT_MIN) {
            let queue = mem::take(&mut state.queue);
            drop(state);
            self.sweep(store, queue);
        }
    }

    /// Forgets what has left, in some groups.
    pub fn forget_ghosts(&self, store: &Store, groups: usize) {
        self.lock().forget_ghosts(store, groups, 0);
    }

    /// Drops places in the queue whose clusters are gone, or have a later one. Nobody waits meanwhile; what leaves is
    /// taken from the main part.
    fn sweep(&self, store: &Store, queue: VecDeque<(Key, ClusterSize)>) {
        let mut seen = HashSet::new();
        let is_alive = |&(first, size): &(Key, ClusterSize)| {
            seen.insert(first)
                && clusters::mark_of(store, first, size).is_some_and(|mark| !mark.is_main())
        };
        let alive: Vec<_> = queue.into_iter().rev().filter(is_alive).collect();
        let mut state = self.lock();
        alive.into_iter().for_each(|place| state.queue.push_front(place));
        state.queue_pages = state.queue.iter().map(|(_, size)| size.pages() as u64).sum();
        state.sweep_at = 2 * state.queue.len();
    }

    /// Lets some clusters leave, as many as lie together, and returns how many pages they had; 0 if none is
    /// left.
    pub fn let_some_leave(&self, store: &Store) -> u64 {
        let mut state = self.lock();
        let from_main = state.queue_pages * MAIN_PER_QUEUE < state.main_pages;
        let mut left = if from_main { state.some_from_main(store) } else { 0 };
        if left == 0 {
            left = state.one_from_queue(store);
        }
        if left == 0 {
            left = state.some_from_main(store);
        }
        state.left_pages += left;
        state.left_in_ages[0] += left;
        left
    }

    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts { left_pages: state.left_pages, returned_pages: state.returned_pages }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn one_from_queue(&mut self, store: &Store) -> u64 {
        while let Some((first, size)) = self.queue.pop_front() {
            let pages = size.pages() as u64;
            self.queue_pages -= pages;
            match clusters::mark_of(store, first, size) {
                // It is gone, or has been stored again and is known.
                None => {}
                Some(mark) if mark.is_main() => {}
                Some(mark) if mark.uses() > 0 => {
                    store.set_mark(first, mark.promoted().bits());
                    self.come_to_main(pages);
                }
                Some(_) => {
                    clusters::remove(store, first, size, Mark::ghost(self.age));
                    return pages;
                }
            }
        }
        0
    }

    /// Forgets ghosts of so many ages and more, in the next groups.
    fn forget_ghosts(&mut self, store: &Store, groups: usize, ages: u8) {
        for _ in 0..groups {
            let Some((group, next)) = store.group_from(self.ghost_hand) else {
                self.ghost_hand = 0;
                return;
            };
            self.ghost_hand = next;
            clusters::in_group(store, group, |_, size, mark| {
                (size.is_some() || mark.ages_since(self.age) < ages).then_some(mark)
            });
        }
    }

    fn come_to_main(&mut self, pages: u64) {
        self.main_pages += pages;
        self.come_pages += pages;
    }

    /// What the hand finds in the next group where it finds anything.
    fn some_from_main(&mut self, store: &Store) -> u64 {
        for _ in 0..HAND_PATIENCE {
            let Some((group, next)) = store.group_from(self.hand) else {
                // Of those that have come, some have been found, too.
                self.main_pages = self.found_pages + self.come_pages;
                (self.hand, self.found_pages, self.come_pages) = (0, 0, 0);
                if self.main_pages == 0 {
                    return 0;
                }
                continue;
            };
            self.hand = next;
            let (mut victims, mut pages) = (Vec::new(), 0);
            clusters::in_group(store, group, |key, size, mark| match size {
                None => (mark.ages_since(self.age) < REMEMBERED_AGES).then_some(mark),
                Some(size) if mark.is_main() && mark.uses() == 0 => {
                    victims.push((key, size));
                    Some(mark)
                }
                Some(size) if mark.is_main() => {
                    pages += size.pages() as u64;
                    Some(mark.spared())
                }
                Some(_) => Some(mark),
            });
            self.found_pages += pages;
            let mut left = 0;
            for (key, size) in victims {
                clusters::remove(store, key, size, Mark::ghost(self.age));
                left += size.pages() as u64;
            }
            if left > 0 {
                self.main_pages = self.main_pages.saturating_sub(left);
                return left;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use ramfold_store::Config;

    use super::super::clusters::{Object, Workspace};
    use super::*;

    /// A pool that holds so many clusters of four pages, all of the same length.
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
                let left = self.replacement.let_some_leave(&self.store) as usize / 4;
                assert!(left > 0);
                self.stored -= left;
            }
            let mark = self.replacement.mark_for(&self.store, first, size);
            clusters::put(&self.store, first, size, Object::SameFilled(nth), mark).unwrap();
            self.replacement.stored(&self.store, first, size, mark);
            self.stored += 1;
            false
        }

        fn hits(&mut self, clusters: impl Iterator<Item = u64>) -> usize {
            clusters.filter(|&nth| self.read(nth)).count()
        }
    }

    #[test]
    fn a_scan_leaves_what_is_read_again() {
        let mut pool = Pool::new(1000);
        for _ in 0..4 {
            pool.hits(0..700);
        }
        assert_eq!(pool.hits(0..700), 700);
        // Ten times as much as there is room for.
        assert_eq!(pool.hits(10_000..20_000), 0);
        let kept = pool.hits(0..700);
        assert!(kept > 650, "{kept}");
    }

    #[test]
    fn what_comes_back_stays() {
        let mut pool = Pool::new(1000);
        for _ in 0..3 {
            pool.hits(0..950);
        }
        // More is read in between than the queue holds when there is a main part.
        let mut hits = 0;
        for round in 0..20 {
            hits = pool.hits(5000..5300);
            pool.hits(10_000 + 1000 * round..10_600 + 1000 * round);
        }
        assert!(hits > 250, "{hits}");
        assert!(pool.replacement.counts().returned_pages > 0);
    }

    #[test]
    fn a_part_of_a_loop_that_does_not_fit_is_there() {
        let mut pool = Pool::new(1000);
        let hits = (0..20).map(|_| pool.hits(0..1500)).collect::<Vec<_>>();
        // By strict age none would be. (667 of 1,000 could be.)
        assert!(hits[10..].iter().sum::<usize>() / 10 > 300, "{hits:?}");
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
    fn what_is_stored_again_and_again_has_few_places_in_the_queue() {
        let mut pool = Pool::new(usize::MAX);
        for round in 0..100 {
            assert_eq!(pool.hits(0..100), 0, "{round}");
            pool.store.invalidate_range(0, 400);
        }
        let places = |pool: &Pool| pool.replacement.lock().queue.len();
        assert!(places(&pool) <= 2 * SWEPT_MIN, "{}", places(&pool));
        // In the order in which they were stored last.
        assert_eq!(pool.hits(50..150), 0);
        let queue = mem::take(&mut pool.replacement.lock().queue);
        pool.replacement.sweep(&pool.store, queue);
        let state = pool.replacement.lock();
        let expected: Vec<_> = (50..150).map(|nth| (nth * 4, ClusterSize::Four)).collect();
        assert_eq!(state.queue, expected);
        assert_eq!(state.queue_pages, 400);
    }

    #[test]
    fn everything_can_leave_and_ghosts_are_forgotten() {
        let mut pool = Pool::new(1000);
        for _ in 0..3 {
            pool.hits(0..1000);
        }
        pool.hits(2000..2400);
        while pool.replacement.let_some_leave(&pool.store) > 0 {}
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

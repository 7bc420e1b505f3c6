//! Which clusters leave the compressed cache when there is no more room.
//!
//! A cluster that is read for the first time enters the probationary queue. When it comes to the
//! front it moves to the main queue if it has been read again meanwhile, else it is evicted. So a
//! scan pushes out what scans have brought, and nothing of the main queue, as long as the
//! probationary queue is a tenth of all. A hand goes round the main queue, group by group; what was
//! read since the hand passed last is spared, up to three times. (As S3-FIFO: Yang and others, SOSP
//! 2023, with a clock for its main queue.)
//!
//! What was evicted is remembered for a while as a ghost. Of the ghosts that are read again, every
//! fourth enters the main queue at once. If all did, a loop over more than there is room for would
//! change the whole main queue on each turn, and never find anything.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::mem;

use ramfold_codec::cluster::ClusterSize;

use super::history::History;

/// The probationary queue's least size, as a part of the main queue: above it, it gives first.
const MAIN_PER_PROBATION: u64 = 9;
/// Ages for which ghosts are remembered: until twice as much has been stored as there is.
const REMEMBERED_AGES: u8 = 8;
const _: () = assert!(REMEMBERED_AGES < History::AGES, "older ghosts would count as young ones");
const AGES_PER_CACHE: u64 = 4;
/// Of the ghosts that return, one in so many enters the main queue.
const RETURNS_PER_MAIN: u64 = 4;
/// Groups that the hand looks at for one cluster before the probationary queue has to give.
const HAND_GROUPS_MAX: usize = 1024;
/// Least length of the probationary queue that is worth sweeping.
const SWEEP_LEN_MIN: usize = 1024;

/// The clusters of a cache, and the ghosts of those that left. Keys are numbers of pages;
/// neighbouring clusters and ghosts form groups.
pub trait Clusters {
    /// The history of a cluster, if one of this size begins at this key.
    fn history(&self, first: u64, size: ClusterSize) -> Option<History>;

    /// Notes the history of the cluster that begins at this key.
    fn set_history(&mut self, first: u64, history: History);

    /// Removes a cluster and leaves a ghost with this history.
    fn evict(&mut self, first: u64, size: ClusterSize, ghost: History);

    /// The first group at this place or behind it, and the place behind that. Places begin with 0.
    fn group_from(&self, place: u32) -> Option<(u64, u32)>;

    /// Calls `each` with all clusters and ghosts (without a size) of a group, and notes the
    /// histories that it returns. A ghost for which it returns `None` is forgotten.
    fn update_group(
        &mut self,
        group: u64,
        each: impl FnMut(u64, Option<ClusterSize>, History) -> Option<History>,
    );
}

/// A place in the probationary queue.
type Place = (u64, ClusterSize);

/// Decides which clusters leave.
#[derive(Debug, Default)]
pub struct Replacement {
    probation: VecDeque<Place>,
    /// Pages of the clusters in the probationary queue, gone ones included.
    probation_pages: u64,
    /// The queue is swept when it is longer than this.
    sweep_len: usize,
    /// Where too old ghosts are looked for next.
    ghost_place: u32,
    /// As the hand found in its last round, and what has come and left since.
    main_pages: u64,
    /// Where the hand is; pages found in this round, and those that have come meanwhile.
    hand: u32,
    found_pages: u64,
    come_pages: u64,
    age: u32,
    stored_in_age: u64,
    /// Pages evicted in this age and in the one before.
    evicted_in_ages: [u64; 2],
    returns: u64,
    counts: Counts,
}

/// What became of clusters, in pages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Evicted.
    pub evicted_pages: u64,
    /// Of those, stored again while they were remembered.
    pub returned_pages: u64,
}

/// The probationary queue, taken out to be swept while others go on.
#[derive(Debug)]
#[must_use = "the queue is gone until `swept` has it back"]
pub struct Sweep(VecDeque<Place>);

impl Sweep {
    /// Drops places whose clusters are gone, or have a later place.
    pub fn run(&mut self, clusters: &impl Clusters) {
        let mut seen = BTreeSet::new();
        let is_alive = |&(first, size): &Place| {
            seen.insert(first)
                && clusters.history(first, size).is_some_and(|history| !history.is_main())
        };
        // The last place of a cluster is the one that counts.
        let alive: Vec<Place> = mem::take(&mut self.0).into_iter().rev().filter(is_alive).collect();
        self.0 = alive.into_iter().rev().collect();
    }
}

impl Replacement {
    /// Whether a cluster of this history was evicted in this age or in the one before.
    pub fn has_just_left(&self, history: History) -> bool {
        history.is_ghost() && history.ages_since(self.age) <= 1
    }

    /// How much was evicted in these ages, as a part of what there is; at most 1.
    pub fn just_left(&self) -> f64 {
        let evicted: u64 = self.evicted_in_ages.iter().sum();
        let there_is = self.probation_pages + self.main_pages;
        (evicted as f64 / there_is.max(1) as f64).min(1.0)
    }

    /// The history of a cluster that is about to be stored. `before`: what its key has.
    pub fn history_for(&mut self, before: History, size: ClusterSize) -> History {
        if before.is_ghost() && before.ages_since(self.age) < REMEMBERED_AGES {
            self.counts.returned_pages += size.pages() as u64;
            self.returns += 1;
            if self.returns.is_multiple_of(RETURNS_PER_MAIN) {
                return History::RETURNING;
            }
        }
        History::NEW
    }

    /// Notes that a cluster was stored with that history. Returns the probationary queue where it
    /// is worth sweeping; until [`Self::swept`] has it back, clusters leave the main queue.
    pub fn stored(
        &mut self,
        clusters: &mut impl Clusters,
        first: u64,
        size: ClusterSize,
        history: History,
    ) -> Option<Sweep> {
        let pages = size.pages() as u64;
        if history.is_main() {
            self.come_to_main(pages);
        } else {
            self.probation.push_back((first, size));
            self.probation_pages += pages;
        }
        self.stored_in_age += pages;
        if self.stored_in_age > (self.probation_pages + self.main_pages) / AGES_PER_CACHE {
            self.stored_in_age = 0;
            self.age = self.age.wrapping_add(1);
            self.evicted_in_ages = [0, self.evicted_in_ages[0]];
        }
        // Each group is looked at before its ghosts' ages wrap around: there are hardly more groups
        // than clusters here and as many ghosts.
        self.forget_older(clusters, 1, REMEMBERED_AGES);
        let is_long = self.probation.len() > self.sweep_len.max(SWEEP_LEN_MIN);
        is_long.then(|| Sweep(mem::take(&mut self.probation)))
    }

    /// Takes the probationary queue back. What was stored meanwhile comes behind it.
    pub fn swept(&mut self, sweep: Sweep) {
        sweep.0.into_iter().rev().for_each(|place| self.probation.push_front(place));
        self.probation_pages = self.probation.iter().map(|(_, size)| size.pages() as u64).sum();
        self.sweep_len = 2 * self.probation.len();
    }

    /// Forgets ghosts, in up to this number of groups.
    pub fn forget_ghosts(&mut self, clusters: &mut impl Clusters, groups: usize) {
        self.forget_older(clusters, groups, 0);
    }

    /// Evicts some clusters that lie together, and returns how many pages they had; 0 if there are
    /// none.
    pub fn evict_some(&mut self, clusters: &mut impl Clusters) -> u64 {
        let from_main = self.probation_pages * MAIN_PER_PROBATION < self.main_pages;
        let mut evicted = if from_main { self.some_from_main(clusters) } else { 0 };
        if evicted == 0 {
            evicted = self.one_from_probation(clusters);
        }
        if evicted == 0 {
            evicted = self.some_from_main(clusters);
        }
        self.counts.evicted_pages += evicted;
        self.evicted_in_ages[0] += evicted;
        evicted
    }

    /// What became of clusters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn one_from_probation(&mut self, clusters: &mut impl Clusters) -> u64 {
        while let Some((first, size)) = self.probation.pop_front() {
            let pages = size.pages() as u64;
            self.probation_pages -= pages;
            match clusters.history(first, size) {
                // It is gone, or was stored again and is in the main queue.
                None => {}
                Some(history) if history.is_main() => {}
                Some(history) if history.reads() > 0 => {
                    clusters.set_history(first, history.promoted());
                    self.come_to_main(pages);
                }
                Some(_) => {
                    clusters.evict(first, size, History::ghost(self.age));
                    return pages;
                }
            }
        }
        0
    }

    /// Forgets ghosts of at least this many ages, in the next groups.
    fn forget_older(&mut self, clusters: &mut impl Clusters, groups: usize, ages: u8) {
        for _ in 0..groups {
            let Some((group, next)) = clusters.group_from(self.ghost_place) else {
                self.ghost_place = 0;
                return;
            };
            self.ghost_place = next;
            let age = self.age;
            clusters.update_group(group, |_, size, history| {
                (size.is_some() || history.ages_since(age) < ages).then_some(history)
            });
        }
    }

    fn come_to_main(&mut self, pages: u64) {
        self.main_pages += pages;
        self.come_pages += pages;
    }

    /// What the hand finds in the next group where it finds anything.
    fn some_from_main(&mut self, clusters: &mut impl Clusters) -> u64 {
        for _ in 0..HAND_GROUPS_MAX {
            let Some((group, next)) = clusters.group_from(self.hand) else {
                // Some of those that have come were found, too.
                self.main_pages = self.found_pages + self.come_pages;
                (self.hand, self.found_pages, self.come_pages) = (0, 0, 0);
                if self.main_pages == 0 {
                    return 0;
                }
                continue;
            };
            self.hand = next;
            let (mut victims, mut pages, age) = (Vec::new(), 0, self.age);
            clusters.update_group(group, |key, size, history| match size {
                None => (history.ages_since(age) < REMEMBERED_AGES).then_some(history),
                Some(size) if history.is_main() && history.reads() == 0 => {
                    victims.push((key, size));
                    Some(history)
                }
                Some(size) if history.is_main() => {
                    pages += size.pages() as u64;
                    Some(history.spared())
                }
                Some(_) => Some(history),
            });
            self.found_pages += pages;
            let mut evicted = 0;
            for (key, size) in victims {
                clusters.evict(key, size, History::ghost(age));
                evicted += size.pages() as u64;
            }
            if evicted > 0 {
                self.main_pages = self.main_pages.saturating_sub(evicted);
                return evicted;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests;

//! ramfold's cache of files: which clusters leave is decided by [`Replacement`], the same code that
//! `ramfold mount` runs.

use std::collections::BTreeMap;

use ramfold_codec::cluster::ClusterSize;
use ramfold_policy::files::history::History;
use ramfold_policy::files::replacement::{Clusters, Replacement};

use super::{Access, Policy};
use crate::PageNumber;

/// Pages to a group, as a power of two: neighbours that the hand looks at together.
const GROUP_BITS: u32 = 6;

/// A cache of clusters of one page each.
#[derive(Debug)]
pub struct Files {
    clusters: Pages,
    replacement: Replacement,
    pages_max: usize,
    pages: usize,
}

impl Files {
    /// Room for `pages_max` pages, at least one.
    pub fn new(pages_max: usize) -> Files {
        Files {
            clusters: Pages::default(),
            replacement: Replacement::default(),
            pages_max: pages_max.max(1),
            pages: 0,
        }
    }
}

impl Policy for Files {
    fn access(&mut self, page: PageNumber) -> Access {
        let before = self.clusters.find(page);
        if let Some((Some(_), history)) = before {
            self.clusters.set_history(page, history.read());
            return Access::Hit;
        }
        while self.pages >= self.pages_max {
            let evicted = self.replacement.evict_some(&mut self.clusters) as usize;
            assert!(evicted > 0, "a full cache has something to evict");
            self.pages -= evicted;
        }
        let (_, history) = before.unwrap_or((None, History::NEW));
        let history = self.replacement.history_for(history, ClusterSize::One);
        let was_there = self.clusters.insert(page, history);
        self.pages += 1;
        let sweep = self.replacement.stored(&mut self.clusters, page, ClusterSize::One, history);
        if let Some(mut sweep) = sweep {
            sweep.run(&self.clusters);
            self.replacement.swept(sweep);
        }
        if was_there { Access::Fault { ahead: 0 } } else { Access::First }
    }
}

/// A cluster's size, `None` where it has left, and what is remembered of it.
type Entry = (Option<ClusterSize>, History);

/// Clusters and ghosts in the order of their numbers, by groups.
#[derive(Debug, Default)]
struct Pages {
    groups: BTreeMap<u64, BTreeMap<PageNumber, Entry>>,
    /// The groups in the order in which they came, which is the hand's.
    numbers: Vec<u64>,
    /// Pages that were ever there.
    seen: std::collections::HashSet<PageNumber>,
}

impl Pages {
    fn find(&self, page: PageNumber) -> Option<Entry> {
        self.groups.get(&(page >> GROUP_BITS))?.get(&page).copied()
    }

    fn entry(&mut self, page: PageNumber) -> &mut Entry {
        let group = self.groups.get_mut(&(page >> GROUP_BITS));
        group.and_then(|group| group.get_mut(&page)).expect("the cluster is there")
    }

    /// Returns whether the page was ever there before.
    fn insert(&mut self, page: PageNumber, history: History) -> bool {
        let number = page >> GROUP_BITS;
        let numbers = &mut self.numbers;
        let group = self.groups.entry(number).or_insert_with(|| {
            numbers.push(number);
            BTreeMap::new()
        });
        group.insert(page, (Some(ClusterSize::One), history));
        !self.seen.insert(page)
    }
}

impl Clusters for Pages {
    fn history(&self, first: u64, size: ClusterSize) -> Option<History> {
        self.find(first).filter(|(found, _)| *found == Some(size)).map(|(_, history)| history)
    }

    fn set_history(&mut self, first: u64, history: History) {
        self.entry(first).1 = history;
    }

    fn evict(&mut self, first: u64, _size: ClusterSize, ghost: History) {
        *self.entry(first) = (None, ghost);
    }

    fn group_from(&self, place: u32) -> Option<(u64, u32)> {
        let number = self.numbers.get(place as usize)?;
        Some((*number, place + 1))
    }

    fn update_group(
        &mut self,
        group: u64,
        mut each: impl FnMut(u64, Option<ClusterSize>, History) -> Option<History>,
    ) {
        let Some(clusters) = self.groups.get_mut(&group) else { return };
        clusters.retain(|&page, (size, history)| {
            let changed = each(page, *size, *history);
            *history = changed.unwrap_or(*history);
            changed.is_some() || size.is_some()
        });
    }
}

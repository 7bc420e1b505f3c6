//! What left the index.

use super::LEAF_ENTRIES;
use super::entry::Holding;

/// What left the index, to be freed when the shard is unlocked.
pub(crate) struct Removed {
    holdings: [Option<Holding>; LEAF_ENTRIES],
    count: usize,
}

impl Removed {
    pub(crate) fn new() -> Self {
        Removed { holdings: [const { None }; LEAF_ENTRIES], count: 0 }
    }

    pub(super) fn push(&mut self, holding: Option<Holding>) {
        if holding.is_some()
            && let Some(place) = self.holdings.get_mut(self.count)
        {
            *place = holding;
            self.count += 1;
        }
    }

    /// Hands each to `free`.
    pub(crate) fn free(&mut self, free: impl FnMut(Holding)) {
        self.holdings[..self.count].iter_mut().filter_map(Option::take).for_each(free);
        self.count = 0;
    }
}

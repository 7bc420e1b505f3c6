//! Ranges of keys, and all keys.

use super::Store;
use crate::index::{LEAF_ENTRIES, Removed, last_key};
use crate::{Key, StoreError};

/// What a key's entry is, in [`Store::for_each`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// The page is one word 512 times.
    SameFilled,
    /// An object in the pool.
    Object {
        /// The encoding that it was stored under, 1 to 15.
        encoding: u8,
        /// Compressed bytes, 1 to 4096.
        len: usize,
    },
    /// An object in the spill file.
    Spilled {
        /// The encoding that it was stored under, 1 to 15.
        encoding: u8,
    },
    /// The page was taken.
    Ghost,
    /// The store never writes such an entry: loading the page is an error.
    Damaged,
}

impl Store {
    /// Forgets the pages of `count` keys from `first` (those beyond the last key do not exist), and
    /// returns how many could have been loaded. The cost follows what is stored, not the range. A
    /// page stored meanwhile may or may not be forgotten.
    pub fn invalidate_range(&self, first: Key, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let last = last_key(first, count).unwrap_or(Key::MAX);
        let mut removed = Removed::new();
        let mut live = 0;
        for (group_first, group_last) in self.index.groups_between(first, last) {
            let (from, to) = (group_first.max(first), group_last.min(last));
            live += self.index.remove_in_group(from, (to - from) as usize + 1, &mut removed);
            removed.free(|holding| self.free_holding(holding));
        }
        live
    }

    /// Moves what is under `count` keys from `from`, marks and ghosts too, to the keys from `to`;
    /// what was under those is forgotten. Returns how many pages moved that can be loaded.
    ///
    /// The move goes on 64 pages at a time: other threads should not use either range meanwhile.
    ///
    /// # Errors
    /// [`StoreError::RangesOverlap`] and [`StoreError::RangeBeyondEnd`]: nothing was changed.
    /// [`StoreError::MetadataFull`] and [`StoreError::NoMemory`]: the move is incomplete, every
    /// page is under either its old or its new key.
    pub fn rekey_range(&self, from: Key, to: Key, count: u64) -> Result<u64, StoreError> {
        if count == 0 {
            return Ok(0);
        }
        let beyond_end = |first| StoreError::RangeBeyondEnd { first, count };
        let from_last = last_key(from, count).ok_or(beyond_end(from))?;
        let to_last = last_key(to, count).ok_or(beyond_end(to))?;
        if from <= to_last && to <= from_last {
            return Err(StoreError::RangesOverlap { from, to, count });
        }
        self.invalidate_range(to, count);
        let mut removed = Removed::new();
        let mut live = 0;
        for (group_first, group_last) in self.index.groups_between(from, from_last) {
            let mut first = group_first.max(from);
            let last = group_last.min(from_last);
            // The 64 pages have at most two groups at the other end.
            loop {
                let target = to + (first - from);
                let room = LEAF_ENTRIES - target as usize % LEAF_ENTRIES;
                let count = room.min((last - first) as usize + 1);
                let result = self.index.move_in_group(
                    first,
                    target,
                    count,
                    &mut removed,
                    |content, a, b| {
                        self.reseal(content, a, b);
                    },
                );
                removed.free(|holding| self.free_holding(holding));
                live += result.map_err(|refusal| self.no_entry(refusal))?;
                if last - first < count as u64 {
                    break;
                }
                first += count as u64;
            }
        }
        Ok(live)
    }

    /// Calls `f` with every key that is here or a ghost, in no order. No lock is held while `f`
    /// runs, so it may call the store. A key that is here from before the call until after it is
    /// seen once, unless it is rekeyed.
    pub fn for_each(&self, mut f: impl FnMut(Key, EntryKind)) {
        for number in self.index.leaf_numbers() {
            self.index.read_leaf(number, &mut f);
        }
    }
}

//! Compaction: objects are moved together, so that spans become empty.

use core::sync::atomic::Ordering;

use super::Store;
use crate::index::{LEAF_ENTRIES, Removed};

/// Objects that compaction moves under one lock.
const COMPACTED_AT_ONCE: usize = 8;
/// Which span is the fullest shows while objects move: the first pass moves nearly all of them, the
/// second a twentieth of that, the third a few.
const COMPACTION_PASSES: usize = 3;

/// A leaf's objects are offered in parts of this size, none left over.
const _: () = assert!(LEAF_ENTRIES.is_multiple_of(COMPACTED_AT_ONCE));

impl Store {
    /// Moves objects of each class together, so that spans become empty and their memory goes back
    /// to the system. Returns how many objects moved. It goes over the index until there is nothing
    /// to gain, three times at most, and stops when `go_on`, asked after each 64 pages, says
    /// `false`. It pays when [`Statistics::pool_fragmentation_bytes`](crate::Statistics) has grown.
    /// A load of one of these pages waits no longer than eight objects take to be copied.
    pub fn compact(&self, mut go_on: impl FnMut() -> bool) -> u64 {
        self.pool.recorder.compact();
        let mut total = 0;
        for _ in 0..COMPACTION_PASSES {
            let (moved, whole) = self.compact_once(&mut go_on);
            self.pool.trim();
            total += moved;
            if moved == 0 || !whole {
                break;
            }
        }
        total
    }

    /// One pass over all leaves, from where the last one was told to stop. Returns how many objects
    /// moved, and whether it came to the end.
    fn compact_once(&self, go_on: &mut impl FnMut() -> bool) -> (u64, bool) {
        let mut removed = Removed::new();
        let mut moved = 0;
        let all = self.index.leaf_numbers();
        let from = self.compacted_to.load(Ordering::Relaxed).min(all.end);
        for number in (from..all.end).chain(all.start..from) {
            for first in (0..LEAF_ENTRIES).step_by(COMPACTED_AT_ONCE) {
                let offsets = first..first + COMPACTED_AT_ONCE;
                moved += self.index.replace_in_leaf(number, offsets, &mut removed, |object| {
                    self.pool.move_to_better(object)
                });
                removed.free(|holding| self.free_holding(holding));
            }
            if !go_on() {
                self.compacted_to.store(number + 1, Ordering::Relaxed);
                return (moved, false);
            }
        }
        (moved, true)
    }
}

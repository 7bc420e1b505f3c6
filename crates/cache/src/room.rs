//! Making room: clusters leave until the cache is within its limit.

use std::time::{Duration, Instant};

use crate::{Cache, Owner, PAGE, locked};

/// Room that is made at once, and free memory within the pool that is worth bringing together, as a
/// part of the limit.
const ROOM_PART: u64 = 64;
/// When the store's tables have this part of the limit, ghosts are forgotten earlier; in so many
/// groups of 64 pages at once.
const TABLES_PART: u64 = 4;
const GROUPS_AT_ONCE: usize = 256;
/// How long bringing free memory together may take at a time.
const COMPACTION_TURN: Duration = Duration::from_millis(5);

impl<O: Owner> Cache<O> {
    /// Evicts clusters until store and tables ([`Cache::stored_bytes`]) are within a limit.
    pub fn make_room(&self, limit_bytes: u64) {
        if self.metadata_bytes() > limit_bytes / TABLES_PART {
            self.replacement.forget_ghosts(&self.store, GROUPS_AT_ONCE);
        }
        if self.stored_bytes() > limit_bytes {
            let _only = locked(&self.making_room);
            // Nobody may come by again for long, and one turn of compaction may not do.
            let mut before = u64::MAX;
            while self.stored_bytes() > limit_bytes && self.stored_bytes() < before {
                before = self.stored_bytes();
                self.evict_to(limit_bytes - limit_bytes / ROOM_PART);
            }
        }
    }

    fn evict_to(&self, limit_bytes: u64) {
        loop {
            let statistics = self.store.statistics();
            let used = statistics.pool_used_bytes + statistics.metadata_bytes;
            let Some(excess) = used.checked_sub(limit_bytes).filter(|&excess| excess > 0) else {
                if statistics.pool_fragmentation_bytes > limit_bytes / ROOM_PART {
                    let started = Instant::now();
                    self.store.compact(|| started.elapsed() < COMPACTION_TURN);
                }
                return;
            };
            // At the worst, nothing has been compressed.
            let pages = excess / PAGE + 1;
            let mut evicted = 0;
            while evicted < pages {
                match self.replacement.evict_some(&self.store) {
                    0 => return,
                    some => evicted += some,
                }
            }
        }
    }
}

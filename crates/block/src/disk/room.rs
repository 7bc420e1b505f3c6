//! The limit of the memory: what the store and the tables beside it may take.

use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_store::Store;

use super::config::Plan;

/// The part of the memory that is not taken for what only takes less time with it.
const SPARE_PART: usize = 16;

pub(super) struct Room {
    memory_bytes: usize,
    margin_bytes: usize,
    /// Buffers and tables that are not the store's.
    own_bytes: AtomicUsize,
}

impl Room {
    pub(super) fn new(plan: &Plan, own_bytes: usize) -> Room {
        Room {
            memory_bytes: plan.memory_bytes,
            margin_bytes: plan.margin_bytes,
            own_bytes: AtomicUsize::new(own_bytes),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub(super) fn own_bytes(&self) -> usize {
        self.own_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add_own(&self, bytes: usize) {
        self.own_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What the pool may have, beside the index and all else as they are now.
    pub(super) fn pool_bytes(&self, store: &Store) -> usize {
        let beside = self.own_bytes() + store.metadata_bytes();
        self.memory_bytes.saturating_sub(beside + self.margin_bytes)
    }

    /// To be asked before something is stored. The pool may have what the tables leave; and when
    /// it has all that, only pages that are there are written again (`is_new` tells whether one is
    /// not), since the index may need memory for others.
    pub(super) fn admits(&self, store: &Store, is_new: impl FnOnce() -> bool) -> bool {
        let pool_bytes = self.pool_bytes(store);
        store.limit_pool(pool_bytes);
        let over = store.pool_claimed_bytes().saturating_sub(pool_bytes);
        over <= self.margin_bytes / 2 || !is_new()
    }

    /// Whether there is room that nothing waits for.
    pub(super) fn has_to_spare(&self, store: &Store) -> bool {
        self.has(store, self.memory_bytes / SPARE_PART)
    }

    /// Whether a table may grow by `bytes`.
    pub(super) fn has(&self, store: &Store, bytes: usize) -> bool {
        store.pool_claimed_bytes() + bytes <= self.pool_bytes(store)
    }
}

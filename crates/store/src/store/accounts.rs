//! What the store costs and holds, where its memory lies, and its reserve.

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::Store;
use crate::StoreError;
use crate::pool::SPAN_BYTES;
use crate::spill::Space;
use crate::statistics::{Rejects, Statistics};

/// Where a store's memory lies: addresses, the guard pages around included. Nobody else's memory is
/// in these ranges.
#[derive(Clone, Debug)]
pub struct MemoryRanges {
    /// The pool: objects.
    pub pool: Range<usize>,
    /// The index and all tables.
    pub metadata: [Range<usize>; 10],
}

impl Store {
    /// Whether [`Self::refill_reserve`] is due: the spans in use have reached 7/8 of those that
    /// have memory, or half the reserve has gone, or a table of the index should grow. Cheap.
    #[inline]
    pub fn reserve_low(&self) -> bool {
        self.pool.spans().reserve_low() || self.index.reserve_low()
    }

    /// Fills up the reserve and does the index's housekeeping: what would else be asked of the
    /// system in the middle of a store. To be called at the start, and when [`Self::reserve_low`]
    /// says so, from a place that can wait. At the pool's limit there is nothing to fill.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`]: what could be had is there; later calls try again.
    pub fn refill_reserve(&self) -> Result<(), StoreError> {
        let pool = self.pool.refill();
        let index = self.index.refill();
        pool.map_err(|errno| StoreError::NoMemory { part: "the reserve of the pool", errno })?;
        index.map_err(|errno| StoreError::NoMemory { part: "the reserve of the index", errno })
    }

    /// From now on nothing is asked of the system where something is stored, loaded or removed: a
    /// store that the system needs when it has no memory must not wait for memory. The index gets
    /// all its memory here ([`Config::metadata_bytes_max`](crate::Config) of it); objects lie in
    /// memory that [`Self::refill_reserve`] has prepared, and are refused where there is none
    /// ([`StoreError::PoolFull`]). What they leave is ready for others, until
    /// [`Self::release_surplus`].
    ///
    /// # Errors
    /// [`StoreError::NoMemory`].
    pub fn use_prepared_memory_only(&self) -> Result<(), StoreError> {
        let index = self.index.prepare_only();
        index.map_err(|errno| StoreError::NoMemory { part: "the index", errno })?;
        let pool = self.pool.prepare_only();
        pool.map_err(|errno| StoreError::NoMemory { part: "the pool's tables", errno })
    }

    /// Gives back what is ready beyond twice the reserve. Only after
    /// [`Self::use_prepared_memory_only`] there is any; from a place that can wait.
    pub fn release_surplus(&self) {
        self.pool.spans().release_surplus();
    }

    /// Whether the pool may have more memory than it has.
    pub fn may_grow(&self) -> bool {
        self.pool.spans().may_grow()
    }

    /// Bytes the store costs now: [`Statistics::cost_bytes`] without taking a lock.
    #[inline]
    pub fn cost_bytes(&self) -> usize {
        self.pool.spans().resident_bytes() + self.metadata_bytes()
    }

    /// Bytes of the store's mappings that may be written to, memory behind them or not.
    pub fn writable_bytes(&self) -> usize {
        self.pool.spans().writable_bytes() + self.metadata_bytes()
    }

    /// Replaces [`Config::reserve_bytes`](crate::Config::reserve_bytes).
    pub fn set_reserve(&self, bytes: usize) {
        self.pool.spans().set_reserve(bytes);
    }

    /// Sets how many bytes the pool may have from now on, rounded down to spans of 64 KiB and
    /// within [`Config::pool_bytes_max`](crate::Config::pool_bytes_max). It keeps what it has.
    pub fn limit_pool(&self, bytes: usize) {
        self.pool.spans().set_limit(u32::try_from(bytes / SPAN_BYTES).unwrap_or(u32::MAX));
    }

    /// Bytes of the pool's spans that are in use or in reserve: what the pool costs at most until
    /// it takes another span. Cheap.
    #[inline]
    pub fn pool_claimed_bytes(&self) -> usize {
        self.pool.spans().claimed_count() as usize * SPAN_BYTES
    }

    /// Bytes of the pool that the kernel has copied since the last call, because they were shared
    /// after a fork and were written to. An estimate: the store does not see what a relative by
    /// fork has copied or freed.
    pub fn take_copied_bytes(&self) -> usize {
        self.pool.spans().take_copied_pages() * PAGE_SIZE
    }

    /// Bytes of the pool behind objects that fill a page. With a spill file they are the next to be
    /// written to it.
    #[inline]
    pub fn raw_bytes(&self) -> usize {
        self.pool.page_bytes()
    }

    /// Bytes of memory behind the index and all tables.
    pub fn metadata_bytes(&self) -> usize {
        self.index.resident_bytes() + self.pool.metadata_bytes() + self.space.resident_bytes()
    }

    /// Counts everything. Takes each lock in turn.
    pub fn statistics(&self) -> Statistics {
        let entries = self.index.counts();
        let leaves = self.index.leaf_counts();
        let pool = self.pool.counts();
        let spans = self.pool.spans();
        let pool_total_bytes = spans.resident_bytes() as u64;
        let metadata_reserve_bytes = u64::from(leaves.reserve_spans) * SPAN_BYTES as u64;
        let pool_reserve_bytes = u64::from(spans.ready_count()) * SPAN_BYTES as u64;
        Statistics {
            objects: entries.objects,
            same_filled: entries.same_filled,
            ghosts: entries.ghosts,
            object_bytes: entries.object_bytes,
            spilled: entries.spilled,
            spilled_bytes: entries.spilled_units * Space::UNIT_BYTES,
            slots: pool.used_slots,
            pool_used_bytes: pool.used_bytes,
            // Other threads may have changed the one between the reading of the others.
            pool_fragmentation_bytes: pool_total_bytes
                .saturating_sub(pool.used_bytes + pool_reserve_bytes),
            pool_reserve_bytes,
            pool_total_bytes,
            metadata_bytes: self.metadata_bytes() as u64,
            metadata_reserve_bytes,
            leaves: leaves.leaves,
            spans: u64::from(pool.span_count),
            reserve_misses: spans.reserve_misses() + leaves.reserve_misses,
            release_failures: spans.release_failures() + leaves.release_failures,
            rejects: Rejects {
                argument: self.reject_argument.load(Ordering::Relaxed),
                pool_full: self.reject_pool_full.load(Ordering::Relaxed),
                metadata_full: self.reject_metadata_full.load(Ordering::Relaxed),
                no_memory: self.reject_no_memory.load(Ordering::Relaxed),
            },
        }
    }

    /// Where the store's memory lies.
    pub fn memory_ranges(&self) -> MemoryRanges {
        let [pool, headers, seals, marks, freed_later] = self.pool.ranges();
        let [leaves, leaf_headers, groups, stamps, tables] = self.index.ranges();
        let segments = self.space.range();
        MemoryRanges {
            pool,
            metadata: [
                headers,
                seals,
                marks,
                freed_later,
                leaves,
                leaf_headers,
                groups,
                stamps,
                tables,
                segments,
            ],
        }
    }
}

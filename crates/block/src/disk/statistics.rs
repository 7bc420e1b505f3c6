//! What a disk holds, costs, and has done.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clusters::Clusters;
use super::workspace::Counters;
use super::{Inner, PAGE};

/// Counts of a disk. While requests are served they may be off by what happens meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DiskStatistics {
    /// Size of the disk.
    pub size_bytes: u64,
    /// Most memory that it may take.
    pub memory_bytes: u64,
    /// Memory that it takes: `pool_bytes`, `metadata_bytes` and `buffer_bytes`.
    pub cost_bytes: u64,
    /// Pages that are not zeros.
    pub pages: u64,
    /// Pages that are one word repeated, other than zero: they have no object.
    pub same_filled_pages: u64,
    /// Pages that refer to an object which others refer to, or did.
    pub deduplicated_pages: u64,
    /// Objects that such pages refer to.
    pub shared_objects: u64,
    /// Clusters: four pages each that are compressed together.
    pub clusters: u64,
    /// Objects in memory; a cluster is four of them.
    pub objects: u64,
    /// Pages in memory that are stored as they are, since they do not compress.
    pub incompressible_pages: u64,
    /// Bytes of the objects in memory.
    pub compressed_bytes: u64,
    /// Memory for objects: with what is free between them and what is kept ready.
    pub pool_bytes: u64,
    /// Of these, what is free between objects.
    pub pool_fragmentation_bytes: u64,
    /// Of these, what is kept ready.
    pub pool_reserve_bytes: u64,
    /// Memory of the index and of the tables of deduplication.
    pub metadata_bytes: u64,
    /// Of these, those of deduplication.
    pub dedup_bytes: u64,
    /// Memory for codecs and requests under way.
    pub buffer_bytes: u64,
    /// Objects in the spill file.
    pub spilled_objects: u64,
    /// Bytes that they take there.
    pub spilled_bytes: u64,
    /// Objects that were compressed once more.
    pub recompressed: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes that they had.
    pub written_bytes: u64,
    /// Pages that were equal to another when they were written.
    pub deduplicated_writes: u64,
    /// Comparisons of pages for deduplication that found them unequal.
    pub unequal_comparisons: u64,
    /// Write requests for which there was no room.
    pub no_room_errors: u64,
}

impl Inner {
    pub(super) fn statistics(&self) -> DiskStatistics {
        let store = self.store.statistics();
        let dedup_bytes = self.dedup.as_ref().map_or(0, |dedup| dedup.bytes() as u64);
        let own_bytes = self.room.own_bytes() as u64;
        let shared_objects =
            self.dedup.as_ref().map_or(0, |dedup| u64::from(dedup.shares.in_use()));
        let references = self.references.load(Ordering::Relaxed);
        let sum = |counter: fn(&Counters) -> &AtomicU64| self.workspaces.sum(counter);
        DiskStatistics {
            size_bytes: self.size_bytes,
            memory_bytes: self.room.memory_bytes() as u64,
            // From the same look as its parts: the keeper changes them meanwhile.
            cost_bytes: own_bytes + store.cost_bytes(),
            pages: (store.objects + store.spilled + store.same_filled)
                .saturating_sub(shared_objects),
            same_filled_pages: store.same_filled.saturating_sub(references),
            deduplicated_pages: references,
            shared_objects,
            clusters: self.clusters.as_ref().map_or(0, Clusters::count),
            objects: store.objects,
            incompressible_pages: (self.store.raw_bytes() / PAGE) as u64,
            compressed_bytes: store.object_bytes,
            pool_bytes: store.pool_total_bytes,
            pool_fragmentation_bytes: store.pool_fragmentation_bytes,
            pool_reserve_bytes: store.pool_reserve_bytes,
            metadata_bytes: store.metadata_bytes + dedup_bytes,
            dedup_bytes,
            buffer_bytes: own_bytes.saturating_sub(dedup_bytes),
            spilled_objects: store.spilled,
            spilled_bytes: store.spilled_bytes,
            recompressed: self.recompressed.load(Ordering::Relaxed),
            reads: sum(|counters| &counters.reads),
            read_bytes: sum(|counters| &counters.bytes_read),
            writes: sum(|counters| &counters.writes),
            written_bytes: sum(|counters| &counters.bytes_written),
            deduplicated_writes: sum(|counters| &counters.shared_writes),
            unequal_comparisons: sum(|counters| &counters.unequal),
            no_room_errors: sum(|counters| &counters.no_room),
        }
    }
}

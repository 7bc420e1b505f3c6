//! What the store holds and costs.

/// Counts of a store, exact when no other thread changes it meanwhile.
///
/// `pool_total_bytes = pool_used_bytes + pool_fragmentation_bytes + pool_reserve_bytes`, and
/// `pool_total_bytes + metadata_bytes` is the memory the kernel charges for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Pages stored as objects.
    pub objects: u64,
    /// Pages stored as one repeated word.
    pub same_filled: u64,
    /// Pages that were taken and are remembered.
    pub ghosts: u64,
    /// Compressed bytes: the objects, and 8 for each same-filled word that is not a repeated
    /// 32-bit pattern. Without seals.
    pub object_bytes: u64,
    /// Pages whose objects are in the spill file.
    pub spilled: u64,
    /// Bytes of the spill file that they take, encryption and rounding included.
    pub spilled_bytes: u64,
    /// Slots in use.
    pub slots: u64,
    /// Slots in use times their sizes.
    pub pool_used_bytes: u64,
    /// Memory behind spans that are in use but not behind used slots: free slots, ends of spans;
    /// and memory of free spans that the system would not take back.
    pub pool_fragmentation_bytes: u64,
    /// Memory of free spans kept ready.
    pub pool_reserve_bytes: u64,
    /// Memory behind all spans.
    pub pool_total_bytes: u64,
    /// Memory behind the index (its reserve included) and the tables of the pool.
    pub metadata_bytes: u64,
    /// Memory of free leaf spans kept ready: part of `metadata_bytes`.
    pub metadata_reserve_bytes: u64,
    /// Leaves of the index in use, 512 bytes for up to 64 pages each.
    pub leaves: u64,
    /// Spans in use.
    pub spans: u64,
    /// Times that a span was needed and the reserve was empty, of the pool or the index.
    pub reserve_misses: u64,
    /// Times that the system would not take memory back (a program that locks its memory).
    pub release_failures: u64,
    /// Refused stores.
    pub rejects: Rejects,
}

/// Refused stores, by reason. Each store counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejects {
    /// The object's length or the encoding was out of range.
    pub argument: u64,
    /// No slot for the object, and no span left to cut one from.
    pub pool_full: u64,
    /// No leaf for the entry, or a shard's table at its largest.
    pub metadata_full: u64,
    /// The system refused memory.
    pub no_memory: u64,
}

impl Statistics {
    /// Bytes the store costs.
    pub fn cost_bytes(&self) -> u64 {
        self.pool_total_bytes + self.metadata_bytes
    }
}

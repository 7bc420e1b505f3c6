//! What a cache before a disk has done.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{PAGE, Shared};
use crate::disk::DiskStatistics;

/// Counts of a cache before a disk. While requests are served they may be off by what happens
/// meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BackingStatistics {
    /// Size of the device.
    pub size_bytes: u64,
    /// Most memory that the cache may take.
    pub memory_bytes: u64,
    /// Memory that it takes: `pool_bytes`, `metadata_bytes` and `buffer_bytes`.
    pub cost_bytes: u64,
    /// Pages in the cache.
    pub pages: u64,
    /// Of these, those that are not in the backing.
    pub dirty_pages: u64,
    /// Bytes of these: what is lost if the server is killed.
    pub dirty_bytes: u64,
    /// Pages in the cache that are one word repeated: they have no object.
    pub same_filled_pages: u64,
    /// Pages in the cache that are stored as they are, since they do not compress.
    pub incompressible_pages: u64,
    /// Bytes of the objects.
    pub compressed_bytes: u64,
    /// Memory for objects: with what is free between them and what is kept ready.
    pub pool_bytes: u64,
    /// Memory of the index.
    pub metadata_bytes: u64,
    /// Memory for codecs, lists and requests under way.
    pub buffer_bytes: u64,
    /// Pages read that were in the cache, due to a write.
    pub hits_of_writes: u64,
    /// Pages read that were in the cache, due to another read or to a prefetch.
    pub hits_of_reads: u64,
    /// Pages read that were not in the cache.
    pub misses: u64,
    /// Pages that a client had brought into the cache before it read them.
    pub prefetched_pages: u64,
    /// Reads of the backing.
    pub backing_reads: u64,
    /// Contiguous writes of the backing.
    pub backing_writes: u64,
    /// Pages that these had.
    pub written_back_pages: u64,
    /// Batches of the oldest dirty pages that were written to make the cache clean.
    pub batches: u64,
    /// Pages that left the cache.
    pub evicted_pages: u64,
    /// Flushes, those at the end too.
    pub flushes: u64,
    /// Times that a request waited for room in the cache.
    pub room_waits: u64,
    /// Reads of the backing that failed.
    pub read_errors: u64,
    /// Writes of the backing that failed, or could not be made durable.
    pub write_errors: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes that they had.
    pub written_bytes: u64,
}

/// A count that several threads add to.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds; returns what it was.
    pub(super) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::SeqCst)
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits_of_writes: Counter,
    pub(super) hits_of_reads: Counter,
    pub(super) misses: Counter,
    pub(super) prefetched: Counter,
    pub(super) backing_reads: Counter,
    pub(super) backing_writes: Counter,
    pub(super) written_back: Counter,
    pub(super) batches: Counter,
    pub(super) evicted: Counter,
    pub(super) flushes: Counter,
    pub(super) waits: Counter,
    pub(super) read_errors: Counter,
    pub(super) write_errors: Counter,
    pub(super) reads: Counter,
    pub(super) bytes_read: Counter,
    pub(super) writes: Counter,
    pub(super) bytes_written: Counter,
    /// Ranges that were trimmed.
    pub(super) trims: Counter,
    /// Pages written since the keeper was last called.
    pub(super) pages_since_call: Counter,
}

impl Shared {
    pub(super) fn statistics(&self) -> BackingStatistics {
        let memory: DiskStatistics = self.inner.statistics();
        let counters = &self.counters;
        let dirty_pages = self.marks.dirty.load(Ordering::Relaxed);
        BackingStatistics {
            size_bytes: self.size_bytes,
            memory_bytes: memory.memory_bytes,
            cost_bytes: memory.cost_bytes,
            pages: self.marks.pages.load(Ordering::Relaxed),
            dirty_pages,
            dirty_bytes: dirty_pages * PAGE as u64,
            same_filled_pages: memory.same_filled_pages,
            incompressible_pages: memory.incompressible_pages,
            compressed_bytes: memory.compressed_bytes,
            pool_bytes: memory.pool_bytes,
            metadata_bytes: memory.metadata_bytes,
            buffer_bytes: memory.buffer_bytes,
            hits_of_writes: counters.hits_of_writes.get(),
            hits_of_reads: counters.hits_of_reads.get(),
            misses: counters.misses.get(),
            prefetched_pages: counters.prefetched.get(),
            backing_reads: counters.backing_reads.get(),
            backing_writes: counters.backing_writes.get(),
            written_back_pages: counters.written_back.get(),
            batches: counters.batches.get(),
            evicted_pages: counters.evicted.get(),
            flushes: counters.flushes.get(),
            room_waits: counters.waits.get(),
            read_errors: counters.read_errors.get(),
            write_errors: counters.write_errors.get(),
            reads: counters.reads.get(),
            read_bytes: counters.bytes_read.get(),
            writes: counters.writes.get(),
            written_bytes: counters.bytes_written.get(),
        }
    }
}

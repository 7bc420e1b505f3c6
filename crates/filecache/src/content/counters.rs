//! What has happened, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts for one thing, from any thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Files that the kernel reads in SOURCE by itself.
#[derive(Debug, Default)]
pub struct PassthroughCounters {
    /// That are open so now.
    pub files: Counter,
    /// How often one was opened so.
    pub opens: Counter,
}

/// Since the start.
#[derive(Default)]
pub struct Counters {
    /// Reads that the kernel could not answer from its page cache.
    pub reads: Counter,
    pub read_pages: Counter,
    /// Pages of those reads that were in the pool.
    pub pool_hit_pages: Counter,
    /// Pages of those reads that came from SOURCE.
    pub miss_pages: Counter,
    /// What was read from SOURCE for them.
    pub source_reads: Counter,
    pub source_read_bytes: Counter,
    pub source_read_ns: Counter,
    /// Clusters that were decompressed for them.
    pub decompressions: Counter,
    pub decompress_ns: Counter,
    pub compress_ns: Counter,
    pub compressed_pages: Counter,
    /// What those took then.
    pub compressed_to_bytes: Counter,
    pub incompressible_pages: Counter,
    /// Not compressed, because the file's last clusters did not shrink.
    pub hopeless_pages: Counter,
    /// Not compressed, because SOURCE gives them in order faster than the pool would.
    pub fast_pages: Counter,
    /// Not compressed, because too many waited already.
    pub busy_pages: Counter,
    /// Compressed, and not stored because the file was changed meanwhile.
    pub outdated_pages: Counter,
    /// Compressed, and not stored because there was no room.
    pub no_room_pages: Counter,
    /// Found damaged, and read from SOURCE instead.
    pub damaged_clusters: Counter,
    /// Files that were found changed behind the mount.
    pub changes_behind: Counter,
}

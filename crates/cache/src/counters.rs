//! What has happened, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts for one thing, from any thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts so many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts so many fewer.
    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// The count now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Since the start. [`Statistics`](crate::Statistics) says what each means.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hit_pages: Counter,
    pub(crate) miss_pages: Counter,
    pub(crate) backing_reads: Counter,
    pub(crate) backing_read_bytes: Counter,
    pub(crate) backing_read_ns: Counter,
    pub(crate) decompressions: Counter,
    pub(crate) decompress_ns: Counter,
    pub(crate) compress_ns: Counter,
    pub(crate) compressed_pages: Counter,
    pub(crate) compressed_to_bytes: Counter,
    pub(crate) incompressible_pages: Counter,
    pub(crate) skipped_pages: Counter,
    pub(crate) fast_pages: Counter,
    pub(crate) busy_pages: Counter,
    pub(crate) outdated_pages: Counter,
    pub(crate) no_room_pages: Counter,
    pub(crate) damaged_clusters: Counter,
}

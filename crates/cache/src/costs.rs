//! What reads and compression cost, for whoever decides how much memory the cache has.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has happened since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Reads that found all of their pages in the cache.
    pub hit_reads: u64,
    /// The time of those, and their pages.
    pub hits: Cost,
    /// The time of reads of backings, and those of their pages that were asked for.
    pub misses: Cost,
    /// All pages of those reads.
    pub read_pages: u64,
    /// CPU time of compression, and its pages.
    pub compressions: Cost,
    /// Pages that were asked for, and had been evicted shortly before.
    pub lost_pages: u64,
}

/// How long something took, and for how many pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: u64,
    /// Pages that were had for it.
    pub pages: u64,
}

/// Adds costs up, from any thread.
#[derive(Default)]
pub(crate) struct CostMeter {
    hit_reads: AtomicU64,
    hits: CostSum,
    misses: CostSum,
    read_pages: AtomicU64,
    compressions: CostSum,
    lost_pages: AtomicU64,
}

#[derive(Default)]
struct CostSum {
    ns: AtomicU64,
    pages: AtomicU64,
}

impl CostSum {
    fn add(&self, ns: u64, pages: u64) {
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    fn take(&self) -> Cost {
        Cost { ns: take(&self.ns), pages: take(&self.pages) }
    }
}

fn take(count: &AtomicU64) -> u64 {
    count.swap(0, Ordering::Relaxed)
}

impl CostMeter {
    /// A read has found all of its pages in the cache.
    pub(crate) fn add_hit(&self, ns: u64, pages: u64) {
        self.hit_reads.fetch_add(1, Ordering::Relaxed);
        self.hits.add(ns, pages);
    }

    /// A read of a backing, for `asked_for` of its pages.
    pub(crate) fn add_miss(&self, ns: u64, asked_for: u64, read: u64) {
        self.misses.add(ns, asked_for);
        self.read_pages.fetch_add(read, Ordering::Relaxed);
    }

    /// Pages were compressed.
    pub(crate) fn add_compression(&self, ns: u64, pages: u64) {
        self.compressions.add(ns, pages);
    }

    /// Pages are asked for that had been evicted shortly before.
    pub(crate) fn add_lost(&self, pages: u64) {
        self.lost_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// What has come since this was called last.
    pub(crate) fn take(&self) -> Costs {
        Costs {
            hit_reads: take(&self.hit_reads),
            hits: self.hits.take(),
            misses: self.misses.take(),
            read_pages: take(&self.read_pages),
            compressions: self.compressions.take(),
            lost_pages: take(&self.lost_pages),
        }
    }
}

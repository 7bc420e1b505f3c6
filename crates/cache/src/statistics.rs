//! What the cache holds and what has happened.

use crate::{Cache, Counter, Owner, clusters};

/// Bytes and counts of objects are of now, the rest is since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The pool's slots in use.
    pub pool_used_bytes: u64,
    /// What else there is of the pool's spans.
    pub pool_fragmentation_bytes: u64,
    /// Both.
    pub pool_total_bytes: u64,
    /// The store's tables.
    pub metadata_bytes: u64,
    /// Compressed objects in the pool.
    pub object_bytes: u64,
    /// Pages asked for that were in the cache.
    pub hit_pages: u64,
    /// Pages asked for that were not.
    pub miss_pages: u64,
    /// Reads of backings, for missing pages and the rest of their clusters.
    pub backing_reads: u64,
    /// Bytes of those.
    pub backing_read_bytes: u64,
    /// The time of those.
    pub backing_read_ns: u64,
    /// Clusters that were decompressed for reads.
    pub decompressions: u64,
    /// Time in the codec's decoder.
    pub decompress_ns: u64,
    /// CPU time in the codec's encoder, of all threads together.
    pub compress_ns: u64,
    /// Pages that were compressed and stored.
    pub compressed_pages: u64,
    /// Bytes that they were compressed to.
    pub compressed_to_bytes: u64,
    /// Pages that did not shrink by a sixteenth.
    pub incompressible_pages: u64,
    /// Pages that were not compressed, because the engine refused the work. That says nothing
    /// about their data: their owner is not backed off from.
    pub refused_pages: u64,
    /// Pages that were not tried, because others of their owner did not shrink.
    pub skipped_pages: u64,
    /// Pages that were not compressed, because the backing gives them in order faster than the
    /// store would.
    pub fast_pages: u64,
    /// Pages that were not compressed, because too many waited already.
    pub busy_pages: u64,
    /// Pages that were not stored, because their owner's data has changed meanwhile.
    pub outdated_pages: u64,
    /// Pages that were compressed, and not stored because there was no room.
    pub no_room_pages: u64,
    /// Pages that were evicted.
    pub evicted_pages: u64,
    /// Of those, pages that were stored again while they were remembered.
    pub returned_pages: u64,
    /// Clusters that were found damaged and removed.
    pub damaged_clusters: u64,
}

/// What is counted as it happens. [`Statistics`] says what each means.
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
    pub(crate) refused_pages: Counter,
    pub(crate) skipped_pages: Counter,
    pub(crate) fast_pages: Counter,
    pub(crate) busy_pages: Counter,
    pub(crate) outdated_pages: Counter,
    pub(crate) no_room_pages: Counter,
    pub(crate) damaged_clusters: Counter,
}

impl<O: Owner> Cache<O> {
    /// What there is and has been, as far as it is known already.
    pub fn statistics(&self) -> Statistics {
        let (store, counters) = (self.store.statistics(), &self.counters);
        let replacement = self.replacement.counts();
        Statistics {
            pool_used_bytes: store.pool_used_bytes,
            pool_fragmentation_bytes: store.pool_fragmentation_bytes,
            pool_total_bytes: store.pool_total_bytes,
            metadata_bytes: store.metadata_bytes,
            object_bytes: store.object_bytes,
            hit_pages: counters.hit_pages.get(),
            miss_pages: counters.miss_pages.get(),
            backing_reads: counters.backing_reads.get(),
            backing_read_bytes: counters.backing_read_bytes.get(),
            backing_read_ns: counters.backing_read_ns.get(),
            decompressions: counters.decompressions.get(),
            decompress_ns: counters.decompress_ns.get(),
            compress_ns: counters.compress_ns.get(),
            compressed_pages: counters.compressed_pages.get(),
            compressed_to_bytes: counters.compressed_to_bytes.get(),
            incompressible_pages: counters.incompressible_pages.get(),
            refused_pages: counters.refused_pages.get(),
            skipped_pages: counters.skipped_pages.get(),
            fast_pages: counters.fast_pages.get(),
            busy_pages: counters.busy_pages.get(),
            outdated_pages: counters.outdated_pages.get(),
            no_room_pages: counters.no_room_pages.get(),
            evicted_pages: replacement.evicted_pages,
            returned_pages: replacement.returned_pages,
            damaged_clusters: counters.damaged_clusters.get(),
        }
    }

    /// Pages that are stored. Goes over all of them: a microsecond for each 256 KiB.
    pub fn count_pages(&self) -> u64 {
        let (mut pages, mut place) = (0, 0);
        while let Some((group, next)) = self.store.group_from(place) {
            clusters::update_group(&self.store, group, |_, size, history| {
                pages += size.map_or(0, |size| size.pages() as u64);
                Some(history)
            });
            place = next;
        }
        pages
    }
}

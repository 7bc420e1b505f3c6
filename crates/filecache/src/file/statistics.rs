//! What the cache holds and what has happened, for people and programs to look at.

use ramfold_sys::PAGE_SIZE;
use serde::Serialize;

use super::Shared;

/// Amounts are of now, the rest since the mount was made. `docs/reference/statistics.md` says what
/// each means.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Statistics {
    /// `--memory`: both levels, and what ramfold needs for them.
    pub memory_bytes: u64,
    /// What all of that takes now.
    pub cost_bytes: u64,
    /// Pages that the kernel has been given and not been told to drop.
    pub kernel_bytes: u64,
    /// How much that may be now.
    pub kernel_bytes_max: u64,
    /// The pool's slots in use.
    pub pool_used_bytes: u64,
    /// What else there is of the pool's spans.
    pub pool_fragmentation_bytes: u64,
    /// Both.
    pub pool_total_bytes: u64,
    /// The store's tables.
    pub metadata_bytes: u64,
    /// Clusters that wait to be compressed or were read last, and buffers of reads.
    pub staging_bytes: u64,
    /// What pool and metadata may take now.
    pub compressed_bytes_max: u64,
    /// Objects in the pool.
    pub compressed_bytes: u64,
    /// Pages in the lower level; 0 in a glance.
    pub pages_stored: u64,
    /// Their bytes / `compressed_bytes`; 0 in a glance.
    pub compression_ratio: f64,
    /// Files that anything is remembered of.
    pub files_known: u64,
    /// Inodes that the kernel knows.
    pub inodes_known: u64,
    /// What the table of them takes.
    pub inode_bytes: u64,
    /// Anonymous memory of the server beside all that is counted.
    pub other_bytes: u64,
    /// Requests of the kernel.
    pub reads: u64,
    /// Pages that they were answered with.
    pub pages_read: u64,
    /// Pages asked for that were in the lower level.
    pub pool_hit_pages: u64,
    /// Pages asked for that were not.
    pub pool_miss_pages: u64,
    /// Reads of SOURCE for those, and for the rest of their clusters.
    pub source_reads: u64,
    /// Bytes of those reads.
    pub source_read_bytes: u64,
    /// The time of those reads.
    pub source_read_ns: u64,
    /// Clusters that were decompressed for reads.
    pub decompressions: u64,
    /// Time in the codec's decoder.
    pub decompress_ns: u64,
    /// CPU time in the codec's encoder, of all threads together.
    pub compress_ns: u64,
    /// Pages that were compressed and stored.
    pub pages_compressed: u64,
    /// Bytes that they were compressed to.
    pub pages_compressed_to_bytes: u64,
    /// Pages that did not shrink by a sixteenth.
    pub rejected_incompressible_pages: u64,
    /// Pages that were not compressed, since the engine refused the work.
    pub rejected_refused_pages: u64,
    /// Pages that were not tried, since others of the file had not shrunk.
    pub rejected_hopeless_pages: u64,
    /// Pages that SOURCE gives faster, in order, than the lower level would.
    pub rejected_fast_pages: u64,
    /// Pages that were not compressed because too many waited.
    pub rejected_busy_pages: u64,
    /// Pages that were not stored because the file was changed meanwhile.
    pub rejected_outdated_pages: u64,
    /// Pages that were compressed, and not stored because there was no room.
    pub rejected_no_room_pages: u64,
    /// Pages that have left the lower level for want of room.
    pub pages_left: u64,
    /// Of those, pages that were stored again while they were remembered.
    pub pages_returned: u64,
    /// Pages that the kernel was told to drop.
    pub kernel_dropped_pages: u64,
    /// Clusters that were found damaged, removed, and read from SOURCE.
    pub damaged_clusters: u64,
    /// Times that a file was found changed behind the mount.
    pub changes_behind: u64,
    /// Files that are open now and that the kernel reads in SOURCE by itself.
    pub passthrough_files: u64,
    /// Times that a file was opened so.
    pub passthrough_opens: u64,
}

impl Statistics {
    /// Pages that were read and not stored, for whatever reason.
    pub fn rejected_pages(&self) -> u64 {
        self.rejected_incompressible_pages
            + self.rejected_refused_pages
            + self.rejected_hopeless_pages
            + self.rejected_fast_pages
            + self.rejected_busy_pages
            + self.rejected_outdated_pages
            + self.rejected_no_room_pages
    }
}

impl Shared {
    pub(super) fn statistics(&self, pages_stored: u64) -> Statistics {
        let (cache, counters) = (self.cache.statistics(), &self.counters);
        let ratio = match cache.object_bytes {
            0 => 0.0,
            bytes => (pages_stored * PAGE_SIZE as u64) as f64 / bytes as f64,
        };
        Statistics {
            memory_bytes: self.config.memory_bytes,
            cost_bytes: self.cost_bytes(),
            kernel_bytes: self.kernel.bytes(),
            kernel_bytes_max: self.kernel.limit_bytes(),
            pool_used_bytes: cache.pool_used_bytes,
            pool_fragmentation_bytes: cache.pool_fragmentation_bytes,
            pool_total_bytes: cache.pool_total_bytes,
            metadata_bytes: cache.metadata_bytes,
            staging_bytes: self.cache.staging_bytes() as u64,
            compressed_bytes_max: self.compressed_bytes_max(),
            compressed_bytes: cache.object_bytes,
            pages_stored,
            compression_ratio: ratio,
            files_known: self.known.len() as u64,
            inodes_known: self.inodes.inodes(),
            inode_bytes: self.inodes.bytes(),
            other_bytes: self.other_bytes(),
            reads: counters.reads.get(),
            pages_read: counters.read_pages.get(),
            pool_hit_pages: cache.hit_pages,
            pool_miss_pages: cache.miss_pages,
            source_reads: cache.backing_reads,
            source_read_bytes: cache.backing_read_bytes,
            source_read_ns: cache.backing_read_ns,
            decompressions: cache.decompressions,
            decompress_ns: cache.decompress_ns,
            compress_ns: cache.compress_ns,
            pages_compressed: cache.compressed_pages,
            pages_compressed_to_bytes: cache.compressed_to_bytes,
            rejected_incompressible_pages: cache.incompressible_pages,
            rejected_refused_pages: cache.refused_pages,
            rejected_hopeless_pages: cache.skipped_pages,
            rejected_fast_pages: cache.fast_pages,
            rejected_busy_pages: cache.busy_pages,
            rejected_outdated_pages: cache.outdated_pages,
            rejected_no_room_pages: cache.no_room_pages,
            pages_left: cache.evicted_pages,
            pages_returned: cache.returned_pages,
            kernel_dropped_pages: self.kernel.dropped_pages(),
            damaged_clusters: cache.damaged_clusters,
            changes_behind: counters.changes_behind.get(),
            passthrough_files: self.passthrough.files.get(),
            passthrough_opens: self.passthrough.opens.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/statistics.md");
        let docs = std::fs::read_to_string(path).unwrap();
        let fields = serde_json::to_value(Statistics::default()).unwrap();
        for field in fields.as_object().unwrap().keys() {
            assert!(docs.contains(&format!("`{field}`")), "{field} is not in {path}");
        }
    }
}

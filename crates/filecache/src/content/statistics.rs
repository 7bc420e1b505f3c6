//! What the cache holds and what has happened, for people and programs to look at.

use ramfold_codec::PAGE_SIZE;
use serde::Serialize;

use super::{Shared, clusters};

/// Amounts are of now, the rest since the mount was made. `docs/filecache.md` says what each means.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Statistics {
    pub memory_bytes: u64,
    pub cost_bytes: u64,
    pub kernel_bytes: u64,
    pub kernel_bytes_max: u64,
    pub pool_used_bytes: u64,
    pub pool_fragmentation_bytes: u64,
    pub pool_total_bytes: u64,
    pub metadata_bytes: u64,
    pub staging_bytes: u64,
    pub compressed_bytes_max: u64,
    pub compressed_bytes: u64,
    pub pages_stored: u64,
    pub compression_ratio: f64,
    pub files_known: u64,
    pub inodes_known: u64,
    pub inode_bytes: u64,
    pub other_bytes: u64,
    pub reads: u64,
    pub pages_read: u64,
    pub pool_hit_pages: u64,
    pub pool_miss_pages: u64,
    pub source_reads: u64,
    pub source_read_bytes: u64,
    pub source_read_ns: u64,
    pub decompressions: u64,
    pub decompress_ns: u64,
    pub compress_ns: u64,
    pub pages_compressed: u64,
    pub pages_compressed_to_bytes: u64,
    pub rejected_incompressible_pages: u64,
    pub rejected_hopeless_pages: u64,
    pub rejected_fast_pages: u64,
    pub rejected_busy_pages: u64,
    pub rejected_outdated_pages: u64,
    pub rejected_no_room_pages: u64,
    pub pages_left: u64,
    pub pages_returned: u64,
    pub kernel_dropped_pages: u64,
    pub damaged_clusters: u64,
    pub changes_behind: u64,
    pub passthrough_files: u64,
    pub passthrough_opens: u64,
}

impl Shared {
    pub(super) fn statistics(&self, pages_stored: u64) -> Statistics {
        let store = self.store.statistics();
        let left = self.replacement.counts();
        let counters = &self.counters;
        let ratio = match store.object_bytes {
            0 => 0.0,
            bytes => (pages_stored * PAGE_SIZE as u64) as f64 / bytes as f64,
        };
        Statistics {
            memory_bytes: self.config.memory_bytes,
            cost_bytes: self.cost_bytes(),
            kernel_bytes: self.kernel.bytes(),
            kernel_bytes_max: self.kernel.limit_bytes(),
            pool_used_bytes: store.pool_used_bytes,
            pool_fragmentation_bytes: store.pool_fragmentation_bytes,
            pool_total_bytes: store.pool_total_bytes,
            metadata_bytes: store.metadata_bytes,
            staging_bytes: self.staging_bytes() as u64,
            compressed_bytes_max: self.compressed_bytes_max(),
            compressed_bytes: store.object_bytes,
            pages_stored,
            compression_ratio: ratio,
            files_known: super::locked(&self.known).len() as u64,
            inodes_known: self.inodes.inodes(),
            inode_bytes: self.inodes.bytes(),
            other_bytes: self.other_bytes(),
            reads: counters.reads.get(),
            pages_read: counters.read_pages.get(),
            pool_hit_pages: counters.pool_hit_pages.get(),
            pool_miss_pages: counters.miss_pages.get(),
            source_reads: counters.source_reads.get(),
            source_read_bytes: counters.source_read_bytes.get(),
            source_read_ns: counters.source_read_ns.get(),
            decompressions: counters.decompressions.get(),
            decompress_ns: counters.decompress_ns.get(),
            compress_ns: counters.compress_ns.get(),
            pages_compressed: counters.compressed_pages.get(),
            pages_compressed_to_bytes: counters.compressed_to_bytes.get(),
            rejected_incompressible_pages: counters.incompressible_pages.get(),
            rejected_hopeless_pages: counters.hopeless_pages.get(),
            rejected_fast_pages: counters.fast_pages.get(),
            rejected_busy_pages: counters.busy_pages.get(),
            rejected_outdated_pages: counters.outdated_pages.get(),
            rejected_no_room_pages: counters.no_room_pages.get(),
            pages_left: left.left_pages,
            pages_returned: left.returned_pages,
            kernel_dropped_pages: self.kernel.dropped_pages(),
            damaged_clusters: counters.damaged_clusters.get(),
            changes_behind: counters.changes_behind.get(),
            passthrough_files: self.passthrough.files.get(),
            passthrough_opens: self.passthrough.opens.get(),
        }
    }

    /// Goes over all that is stored.
    pub(super) fn pages_stored(&self) -> u64 {
        let (mut pages, mut place) = (0, 0);
        while let Some((group, next)) = self.store.group_from(place) {
            clusters::in_group(&self.store, group, |_, size, mark| {
                pages += size.map_or(0, |size| size.pages() as u64);
                Some(mark)
            });
            place = next;
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/filecache.md");
        let docs = std::fs::read_to_string(path).unwrap();
        let fields = serde_json::to_value(Statistics::default()).unwrap();
        for field in fields.as_object().unwrap().keys() {
            assert!(docs.contains(&format!("`{field}`")), "{field} is not in {path}");
        }
    }
}

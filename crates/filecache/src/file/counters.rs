//! What has happened beside the lower level, counted.

use ramfold_cache::Counter;

/// Files that the kernel reads in SOURCE by itself.
#[derive(Debug, Default)]
pub(crate) struct PassthroughCounters {
    /// That are open so now.
    pub files: Counter,
    /// How often one was opened so.
    pub opens: Counter,
}

/// Since the start.
#[derive(Default)]
pub(super) struct Counters {
    /// Reads that the kernel could not answer from its page cache.
    pub reads: Counter,
    pub read_pages: Counter,
    /// Files that were found changed behind the mount.
    pub changes_behind: Counter,
}

//! For a trace of reads: which pages of which files are read through the mount.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Which file this is, whatever its name and wherever it is mounted. The generation tells files
/// apart that had the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Device of the file system that the file is on.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Generation of the inode; 0 where the file system has none.
    pub generation: u64,
}

/// Is called with the pages of each read that reaches the cache, by the thread that reads. Reads
/// that the kernel answers from its page cache over the mount do not.
#[derive(Clone)]
pub struct AccessNotes(pub Arc<dyn Fn(FileKey, Range<u64>) + Send + Sync>);

impl fmt::Debug for AccessNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessNotes").finish_non_exhaustive()
    }
}

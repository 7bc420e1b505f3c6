//! What a front end implements.

use std::io;
use std::ops::Range;

use crate::{CachedPages, DamagedCluster, RefusedCluster};

/// What pages belong to: a file, a block device. The cache keeps references to it as long as
/// clusters of it wait to be compressed.
pub trait Owner: Send + Sync + 'static {
    /// What the cache keeps of it.
    fn pages(&self) -> &CachedPages;

    /// Its size as it is known now, in bytes.
    fn size_bytes(&self) -> u64;

    /// Calls `store` if its data is of this version, and sees to it that the data does not change
    /// meanwhile. Returns whether it has called it. It must not wait: where somebody is changing
    /// the data, it is not of this version for long.
    fn store_if_current(&self, version: Version, store: impl FnOnce()) -> bool;

    /// Is told, during a read, where each of the pages that are asked for is found.
    fn note_lookup(&self, pages: Range<u64>, level: Level) {
        let _ = (pages, level);
    }

    /// Is told that a cluster was found damaged. It was removed; its pages are read from the
    /// backing again.
    fn note_damaged(&self, damaged: &DamagedCluster);

    /// Is told that the engine does not compress a cluster of its data, the first time that this
    /// happens in the cache. The cluster is not stored; it is tried again when it is read again.
    fn note_refused(&self, refused: &RefusedCluster);
}

/// Which data an owner has. A front end gives another number whenever the data may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(pub u64);

/// Where a page is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In the cache.
    Cache,
    /// Not in the cache: it is read from the backing.
    Backing,
}

/// Where the bytes of pages come from that are not in the cache.
pub trait Backing {
    /// Fills `buffer`, which begins at a page as `offset` (in bytes) does. Where the owner's data
    /// ends within the buffer, the rest of it is filled with zeros.
    ///
    /// # Errors
    /// What the device or file system says, whatever was read before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Filled>;
}

/// What a read of a backing gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Bytes that the owner has. Fewer than asked for are the end of its data.
    pub bytes: usize,
    /// The bytes came from no other cache, so that the time it took says how fast the backing is.
    pub is_uncached: bool,
}

//! What can go wrong, with the values and limits that say why.

use ramfold_sys::Errno;
use thiserror::Error;

use crate::Key;

/// Why something could not be stored, or the store not be set up. What the store held before is
/// still there, unchanged, unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The object is empty or longer than a page.
    #[error("an object of {len} bytes is outside 1..={len_max}")]
    ObjectLength {
        /// Its length, in bytes.
        len: usize,
        /// The longest that is allowed.
        len_max: usize,
    },

    /// The encoding's number is 0 or has more than four bits.
    #[error("encoding {encoding} is outside 1..={encoding_max}")]
    Encoding {
        /// The number.
        encoding: u8,
        /// The largest that is allowed.
        encoding_max: u8,
    },

    /// No slot for the object and no span left to cut one from.
    #[error(
        "the pool has no room for an object of {len} bytes: {pool_total_bytes} of at most \
         {pool_bytes_max} bytes are in use"
    )]
    PoolFull {
        /// The object's length, in bytes.
        len: usize,
        /// Memory behind the pool, in bytes.
        pool_total_bytes: usize,
        /// Most memory that the pool may have, in bytes.
        pool_bytes_max: usize,
    },

    /// No leaf for the entry, or a shard's table at its largest.
    #[error("the index is full: {metadata_bytes} of at most {metadata_bytes_max} bytes are in use")]
    MetadataFull {
        /// Memory behind the index, in bytes.
        metadata_bytes: usize,
        /// Most memory that the index may have, in bytes.
        metadata_bytes_max: usize,
    },

    /// The system refused memory or address space.
    #[error("the system gave no memory for {part}: {errno}")]
    NoMemory {
        /// What it was for.
        part: &'static str,
        /// The system's answer.
        errno: Errno,
    },

    /// A range of keys cannot be moved onto itself.
    #[error("{count} keys from {from:#x} and {count} keys from {to:#x} overlap")]
    RangesOverlap {
        /// First key to move.
        from: Key,
        /// First key to move to.
        to: Key,
        /// Keys in either range.
        count: u64,
    },

    /// There are not that many keys from the first on.
    #[error("{count} keys from {first:#x} go beyond the last key")]
    RangeBeyondEnd {
        /// First key.
        first: Key,
        /// Keys that were asked for.
        count: u64,
    },

    /// The keys are of two groups of 64, or there are more objects than keys.
    #[error("{objects} objects cannot be stored under {count} keys of one group from {first:#x}")]
    NotNeighbours {
        /// First key.
        first: Key,
        /// Keys.
        count: usize,
        /// Objects.
        objects: usize,
    },

    /// A limit of the configuration is out of range.
    #[error("{field} is {value}, outside {min}..={max}")]
    Config {
        /// Its name.
        field: &'static str,
        /// What it was set to.
        value: usize,
        /// The least that is allowed.
        min: usize,
        /// The most that is allowed.
        max: usize,
    },
}

/// Why a page's content could not be handed out. The entry stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The object is not the one that was stored under this key: its bytes changed, or it is
    /// another key's.
    #[error(
        "the object of key {key:#x} is damaged: encoding {encoding}, {len} bytes, checksum stored \
         {stored:#010x}, computed {computed:#010x}"
    )]
    Checksum {
        /// The page's key.
        key: Key,
        /// The encoding in its entry.
        encoding: u8,
        /// The object's length in the entry, in bytes.
        len: usize,
        /// The seal beside the object.
        stored: u32,
        /// The seal that the bytes should have.
        computed: u32,
    },

    /// The entry names a place where no object can be.
    #[error("the entry of key {key:#x} is damaged: it reads {entry:#018x}")]
    Entry {
        /// The page's key.
        key: Key,
        /// The entry's bits.
        entry: u64,
    },
}

//! What can go wrong, with the values and limits that say why.

use ramfold_sys::Errno;
use thiserror::Error;

use crate::Key;

/// Why something could not be stored, or the store not be set up. What the store held before is
/// still there, unchanged, unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("an object of {len} bytes is outside 1..={len_max}")]
    ObjectLength { len: usize, len_max: usize },

    #[error("encoding {encoding} is outside 1..={encoding_max}")]
    Encoding { encoding: u8, encoding_max: u8 },

    /// No slot for the object and no span left to cut one from.
    #[error(
        "the pool has no room for an object of {len} bytes: {pool_total_bytes} of at most \
         {pool_bytes_max} bytes are in use"
    )]
    PoolFull { len: usize, pool_total_bytes: usize, pool_bytes_max: usize },

    /// No leaf for the entry, or a shard's table at its largest.
    #[error("the index is full: {metadata_bytes} of at most {metadata_bytes_max} bytes are in use")]
    MetadataFull { metadata_bytes: usize, metadata_bytes_max: usize },

    /// The system refused memory or address space.
    #[error("the system gave no memory for {part}: {errno}")]
    NoMemory { part: &'static str, errno: Errno },

    #[error("{count} keys from {from:#x} and {count} keys from {to:#x} overlap")]
    RangesOverlap { from: Key, to: Key, count: u64 },

    #[error("{count} keys from {first:#x} go beyond the last key")]
    RangeBeyondEnd { first: Key, count: u64 },

    #[error("{objects} objects cannot be stored under {count} keys of one group from {first:#x}")]
    NotNeighbours { first: Key, count: usize, objects: usize },

    #[error("{field} is {value}, outside {min}..={max}")]
    Config { field: &'static str, value: usize, min: usize, max: usize },
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
    Checksum { key: Key, encoding: u8, len: usize, stored: u32, computed: u32 },

    /// The entry names a place where no object can be.
    #[error("the entry of key {key:#x} is damaged: it reads {entry:#018x}")]
    Entry { key: Key, entry: u64 },
}

//! Where compressed pages are kept: a [`Store`] maps a page's [`Key`] to a same-filled word or to
//! an object (compressed bytes and the number of their encoding).
//!
//! The store runs inside other people's processes, on threads that libc does not know. It therefore
//! has no heap, no libc and no thread-local storage: its memory comes from address space of its
//! own, its locks are futex words, and nothing it does while it holds a lock can panic.
//!
//! From the bottom up: `pool` cuts spans of 64 KiB into equal slots and hands them out by size;
//! `index` finds a page's entry; `seal` is the checksum that ties the two together; `store` joins
//! them under the verbs store, load and invalidate; `neighbours` reads and changes the pages of a
//! group together; `recompression` makes old objects smaller; `spill` moves the oldest to a file.
//! `object_trace` records what becomes of objects, for [`Allocator`]s to replay. `docs/store.md`
//! has the layouts.
//!
//! `unsafe` is in `pool`, `index` and `spill`, and in the reset of locks after a fork.

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod allocator;
mod error;
#[allow(unsafe_code)]
mod index;
mod neighbours;
mod object_trace;
#[allow(unsafe_code)]
mod pool;
mod recompression;
mod seal;
#[allow(unsafe_code)]
mod spill;
mod statistics;
mod store;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use allocator::{Allocator, Footprint};
pub use error::{LoadError, StoreError};
pub use neighbours::{Neighbours, StoredWhen};
pub use object_trace::{Event, ObjectRing, Recorder, TRACE_MAGIC, TraceError, events};
pub use pool::{Object, Pool, charged_bytes};
pub use recompression::{Denser, Recompressed, Recompression, Together};
pub use spill::{
    Choose, Claims, Disk, KEY_BYTES, SEGMENT_BYTES_MAX, Spill, SpillCipher, SpillCounts,
    SpillError, SpillMemory, SpillWriter, Spilled,
};
pub use statistics::{Rejects, Statistics};
pub use store::{Config, EntryKind, Loaded, MemoryRanges, Paused, Replaced, SpillShape, Store};

/// The name of a page. Neighbouring pages should have neighbouring keys: 64 of them share a leaf of
/// the index. A page number (address / 4096) is a good key.
pub type Key = u64;

/// Longest object, in bytes: a page stored raw.
pub const OBJECT_BYTES_MAX: usize = 4096;

/// The codecs' pages are the system's, and fit an object as they are.
const _: () = assert!(
    OBJECT_BYTES_MAX == ramfold_codec::PAGE_SIZE && OBJECT_BYTES_MAX == ramfold_sys::PAGE_SIZE
);

/// Largest number of an encoding that an object is stored under; 0 is the store's own.
pub(crate) const ENCODING_MAX: u8 = (1 << ramfold_codec::encodings::BITS) - 1;

//! The store: the index and the pool under the verbs store, load and invalidate.

mod accounts;
mod compaction;
mod config;
#[allow(unsafe_code)]
mod fork;
mod marked;
mod ranges;
mod verbs;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use accounts::MemoryRanges;
pub use config::{Config, SpillShape};
pub use fork::Paused;
pub use marked::Replaced;
pub use ranges::EntryKind;
pub use verbs::Loaded;

use ramfold_codec::encodings::WORD;

use crate::index::{Content, Holding, Index, Locked, NoEntry, View};
use crate::object_trace::Recorder;
use crate::pool::{Checksum, NoSpan, Object, ObjectRef, Pool};
use crate::seal::{moved, pattern_check, pattern_moved, seal, spilled_check, spilled_moved};
use crate::spill::{Extent, Space, Spilled};
use crate::{Key, LoadError, StoreError};

/// Least memory for the index, in bytes.
const METADATA_BYTES_MIN: usize = 1 << 20;
/// It has room for a span of leaves, of which an index needs at least one.
const _: () = assert!(crate::index::leaves_bytes(METADATA_BYTES_MIN) >= crate::pool::SPAN_BYTES);

/// The index's share of the reserve. A page of 64 neighbours costs 8 bytes of leaf to about 1,200
/// of object, a lonely one 512.
const RESERVE_BYTES_PER_LEAF_BYTE: usize = 32;

/// Pages' contents by key. All methods may be called from many threads at once; each says which
/// locks it holds where that matters to the caller.
///
/// Lock order, outermost first; a thread takes at most one lock of a line, but two shards in the
/// order of their numbers:
///
/// 1. the segments of the spill file
/// 2. a shard of the index (64)
/// 3. the packed tables; the list of leaves; a size class (97); the array of whole-page seals; the
///    array of group numbers
/// 4. a refill of leaves, a refill of spans
/// 5. the free leaf spans, the free spans of the pool
///
/// Only `load` and `take` run the caller's code under a lock (a shard's).
pub struct Store {
    pub(crate) index: Index,
    pool: Pool,
    pub(crate) space: Space,
    checksum: Checksum,
    metadata_bytes_max: usize,
    /// The leaf that compaction goes on with.
    compacted_to: AtomicU32,
    reject_argument: AtomicU64,
    reject_pool_full: AtomicU64,
    reject_metadata_full: AtomicU64,
    reject_no_memory: AtomicU64,
}

const _: () = {
    const fn is_shared_by_threads<T: Send + Sync>() {}
    is_shared_by_threads::<Store>();
    // Small enough to be made on a thread's stack of 64 KiB.
    assert!(size_of::<Store>() <= 16 << 10);
};

impl Store {
    /// Reserves address space for an empty store. It holds no memory but a few pages until
    /// something is stored; call [`Self::refill_reserve`] to have the reserve there from the start.
    ///
    /// # Errors
    /// [`StoreError::Config`] for limits out of range; [`StoreError::NoMemory`] if the address
    /// space is limited.
    pub fn new(config: &Config) -> Result<Store, StoreError> {
        config.check()?;
        let Config { pool_bytes_max, reserve_bytes, metadata_bytes_max, spill } = *config;
        let no_memory = |part| move |errno| StoreError::NoMemory { part, errno };
        Ok(Store {
            index: Index::new(metadata_bytes_max, reserve_bytes / RESERVE_BYTES_PER_LEAF_BYTE)
                .map_err(no_memory("the address space of the index"))?,
            pool: Pool::new(pool_bytes_max, reserve_bytes)
                .map_err(no_memory("the address space of the pool"))?,
            space: Space::new(spill).map_err(no_memory("the address space of the spill file"))?,
            checksum: Checksum::detect(),
            metadata_bytes_max,
            compacted_to: AtomicU32::new(0),
            reject_argument: AtomicU64::new(0),
            reject_pool_full: AtomicU64::new(0),
            reject_metadata_full: AtomicU64::new(0),
            reject_no_memory: AtomicU64::new(0),
        })
    }

    /// Has `recorder` told of each object that is stored, moved or freed from now on.
    pub fn record_objects(&mut self, recorder: Recorder) {
        self.pool.recorder = recorder;
    }

    /// Begins a new age. Of two objects that were stored in different ages the store knows which is
    /// older; of two of the same age it does not. Each batch that is spilled begins an age too.
    pub fn begin_age(&self) {
        self.index.begin_age();
    }

    /// Copies an object into the pool, sealed as this key's.
    #[inline]
    pub(crate) fn put_sealed(
        &self,
        key: Key,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<Object, NoSpan> {
        self.pool.put(bytes, seal(key, encoding, self.checksum.of(bytes)))
    }

    /// The same for a page that is to be stored, which counts where it is refused.
    #[inline]
    pub(crate) fn put(&self, key: Key, encoding: u8, bytes: &[u8]) -> Result<Object, StoreError> {
        self.put_sealed(key, encoding, bytes).map_err(|refusal| {
            self.reject(match refusal {
                NoSpan::Full => StoreError::PoolFull {
                    len: bytes.len(),
                    pool_total_bytes: self.pool.spans().resident_bytes(),
                    pool_bytes_max: self.pool.spans().bytes_max(),
                },
                NoSpan::NoMemory(errno) => StoreError::NoMemory { part: "an object", errno },
            })
        })
    }

    /// Writes an entry and frees what it replaces; or, without a place for it, its own object.
    #[inline]
    fn set(&self, key: Key, content: Content) -> Result<(), StoreError> {
        let mut entry = self.index.lock(key);
        let result = entry.set(content);
        drop(entry);
        match result {
            Ok(replaced) => {
                self.free(replaced);
                Ok(())
            }
            Err((content, refusal)) => {
                self.free(content);
                Err(self.reject(self.no_entry(refusal)))
            }
        }
    }

    /// Ties a content to another key.
    fn reseal(&self, content: &mut Content, from: Key, to: Key) {
        match content {
            Content::Object { object, .. } => self.pool.reseal(object, moved(from, to)),
            Content::SameFilled { check, .. } => *check ^= pattern_moved(from, to),
            Content::Spilled { check, .. } => *check ^= spilled_moved(from, to),
            Content::Empty | Content::Ghost => {}
        }
    }

    #[inline]
    pub(crate) fn free(&self, content: Content) {
        if let Some(holding) = content.into_holding() {
            self.free_holding(holding);
        }
    }

    #[inline]
    fn free_holding(&self, holding: Holding) {
        match holding {
            Holding::Slot(object) => self.pool.free(object),
            Holding::Extent(extent) => self.space.free(extent),
        }
    }

    /// An object's bytes, checked against its seal as those of this key; `None` if they are not.
    pub(crate) fn checked<'a>(
        &'a self,
        key: Key,
        encoding: u8,
        object: ObjectRef<'a>,
    ) -> Option<&'a [u8]> {
        let (bytes, stored) = self.pool.get(object)?;
        (seal(key, encoding, self.checksum.of(bytes)) == stored).then_some(bytes)
    }

    /// Puts an object in the spill file in the place of one that [`Index::visit_leaf`] showed; or
    /// frees its extent, if something else has been stored meanwhile. Returns whether it is in
    /// place.
    pub(crate) fn settle(
        &self,
        key: Key,
        bits: u64,
        since: Option<u32>,
        extent: Extent,
        encoding: u8,
    ) -> bool {
        let check = spilled_check(key, extent.place(), encoding);
        self.replace(key, bits, since, Content::Spilled { extent, encoding, check })
    }

    /// Replaces what a key had by `content`, if the entry is as [`Index::visit_leaf`] showed it
    /// and, for an object in the pool, nothing has been stored in its leaf since the age `since`
    /// began. Otherwise frees `content`. Returns whether it is in place.
    pub(crate) fn replace(
        &self,
        key: Key,
        bits: u64,
        since: Option<u32>,
        content: Content,
    ) -> bool {
        let mut entry = self.index.lock(key);
        let result = entry.replace(bits, since, content);
        drop(entry);
        let replaced = result.is_ok();
        match result {
            Ok(freed) | Err(freed) => self.free(freed),
        }
        replaced
    }

    #[cold]
    pub(crate) fn no_entry(&self, refusal: NoEntry) -> StoreError {
        match refusal {
            NoEntry::Full => StoreError::MetadataFull {
                metadata_bytes: self.index.resident_bytes(),
                metadata_bytes_max: self.metadata_bytes_max,
            },
            NoEntry::NoMemory(errno) => StoreError::NoMemory { part: "an entry", errno },
        }
    }

    /// Counts a refused store.
    #[cold]
    pub(crate) fn reject(&self, error: StoreError) -> StoreError {
        let counter = match error {
            StoreError::PoolFull { .. } => &self.reject_pool_full,
            StoreError::MetadataFull { .. } => &self.reject_metadata_full,
            StoreError::NoMemory { .. } => &self.reject_no_memory,
            _ => &self.reject_argument,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// What an entry says, with the object checked against its seal.
    #[inline]
    pub(crate) fn verify<'a>(
        &'a self,
        key: Key,
        entry: &'a Locked<'_>,
    ) -> Result<Option<Loaded<'a>>, LoadError> {
        let damaged = || LoadError::Entry { key, entry: entry.bits() };
        let (object, encoding) = match entry.view() {
            View::Empty | View::Ghost => return Ok(None),
            View::SameFilled { pattern, check } => {
                if check != pattern_check(key, pattern) {
                    return Err(damaged());
                }
                let word = u64::from(pattern) << 32 | u64::from(pattern);
                return Ok(Some(Loaded::SameFilled(word)));
            }
            View::Object { object, encoding } => (object, encoding),
            View::Spilled { place, encoding, check } => {
                let sequence = self.space.sequence(place).ok_or_else(damaged)?;
                if check != spilled_check(key, place, encoding) {
                    return Err(damaged());
                }
                return Ok(Some(Loaded::Spilled(Spilled::new(place, encoding, sequence))));
            }
            View::Damaged => return Err(damaged()),
        };
        let (bytes, stored) = self.pool.get(object).ok_or_else(damaged)?;
        let computed = seal(key, encoding, self.checksum.of(bytes));
        if computed != stored {
            return Err(LoadError::Checksum { key, encoding, len: bytes.len(), stored, computed });
        }
        Ok(Some(if encoding == WORD {
            let word = bytes.try_into().map_err(|_| damaged())?;
            Loaded::SameFilled(u64::from_le_bytes(word))
        } else {
            Loaded::Object { encoding, bytes }
        }))
    }
}

#[cfg(test)]
impl Store {
    /// Checks everything the store knows against everything else and against the kernel.
    pub(crate) fn audit(&self) {
        let entries = self.index.audit();
        self.pool.audit(entries.values().filter_map(|entry| entry.object()));
        self.space.audit(entries.values().filter_map(|entry| entry.spilled_place()));
        let s = self.statistics();
        assert_eq!(
            s.pool_total_bytes,
            s.pool_used_bytes + s.pool_fragmentation_bytes + s.pool_reserve_bytes
        );
        assert_eq!(s.cost_bytes(), self.cost_bytes() as u64);
        let ranges = self.memory_ranges();
        let metadata: usize = ranges.metadata.iter().map(crate::tests::present_bytes).sum();
        assert_eq!(s.metadata_bytes, metadata as u64);
        assert_eq!(s.pool_total_bytes, crate::tests::present_bytes(&ranges.pool) as u64);
    }

    /// Flips a bit of what is stored: of the seal (the first 32) or the bytes behind it.
    pub(crate) fn flip_bit(&self, key: Key, bit: usize) {
        match self.index.lock(key).view() {
            View::Object { object, .. } => self.pool.flip_bit(object, bit),
            view => panic!("{view:?} has no bits"),
        }
    }

    pub(crate) fn flip_entry_bit(&self, key: Key, bit: u32) {
        self.index.flip_entry_bit(key, bit);
    }

    /// Moves an entry as `rekey_range` does, but forgets to tie it to its new key.
    pub(crate) fn rekey_wrongly(&self, from: Key, to: Key) {
        self.index
            .move_in_group(from, to, 1, &mut crate::index::Removed::new(), |_, _, _| ())
            .unwrap();
    }
}

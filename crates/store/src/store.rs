//! The store: the index and the pool under the verbs store, load and invalidate.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::PAGE_SIZE;

use crate::index::{
    Content, Holding, Index, LEAF_ENTRIES, Locked, NoEntry, PausedIndex, Removed, View,
    WORD_ENCODING, last_key,
};
use crate::object_trace::Recorder;
use crate::pool::{
    Checksum, NoSpan, Object, ObjectRef, POOL_BYTES_LIMIT, PausedPool, Pool, SPAN_BYTES,
};
use crate::seal::{moved, pattern_check, pattern_moved, seal, spilled_check, spilled_moved};
use crate::spill::{Extent, PausedSpace, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Space, Spilled};
use crate::statistics::{Rejects, Statistics};
use crate::{Key, LoadError, StoreError};

/// Least memory for the index, in bytes.
const METADATA_BYTES_MIN: usize = 1 << 20;

/// The index's share of the reserve. A page of 64 neighbours costs 8 bytes of leaf to about 1,200
/// of object, a lonely one 512.
const RESERVE_BYTES_PER_LEAF_BYTE: usize = 32;

/// Objects that compaction moves under one lock.
const COMPACTED_AT_ONCE: usize = 8;
/// Which span is the fullest shows while objects move: the first pass moves nearly all of them, the
/// second a twentieth of that, the third a few.
const COMPACTION_PASSES: usize = 3;

/// Limits of a store. Address space is taken for all of it at once, memory as it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most memory for objects, in bytes: 64 KiB to 512 GiB, rounded down to spans of 64 KiB.
    pub pool_bytes_max: usize,
    /// Memory that [`Store::refill_reserve`] keeps ready for objects, in bytes, rounded up to
    /// spans; and 1/32 of it, but at least a span, for the index. With 0 a span's memory comes
    /// from the system page by page, and goes back as soon as the span is empty.
    pub reserve_bytes: usize,
    /// Most memory for the index, in bytes, at least 1 MiB. A page costs 8 to 10 bytes if its
    /// neighbours are stored too, up to 630 if it is alone. The pool's own tables (20 bytes, of raw
    /// pages 84, for each span of 64 KiB) come on top.
    pub metadata_bytes_max: usize,
    /// A file for what the pool has no room for; see [`crate::Spill`].
    pub spill: Option<SpillShape>,
}

/// How a spill file is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillShape {
    /// Bytes that are written at once, and whose room is used again when all in it has gone: a power
    /// of two, 64 KiB to 4 MiB.
    pub segment_bytes: usize,
    /// Segments that the file has at most: as many as make 256 GiB, or fewer. Each costs 16 bytes of
    /// memory once it is used.
    pub segment_count_max: usize,
}

/// A page's content, lent by [`Store::load`] and [`Store::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// The page is this word 512 times.
    SameFilled(u64),
    /// The bytes that were stored, under that encoding.
    Object { encoding: u8, bytes: &'a [u8] },
    /// They are to be read from the spill file; see [`crate::SpillCipher::open`].
    Spilled(Spilled),
}

/// What a key's entry is, in [`Store::for_each`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    SameFilled,
    Object {
        encoding: u8,
        /// Compressed bytes.
        len: usize,
    },
    /// An object in the spill file.
    Spilled {
        encoding: u8,
    },
    /// The page was taken.
    Ghost,
    /// The entry's bits are none the store writes: loading is an error.
    Damaged,
}

/// Where a store's memory lies: addresses, the guard pages around included. Nobody else's memory is
/// in these ranges.
#[derive(Clone, Debug)]
pub struct MemoryRanges {
    pub pool: Range<usize>,
    pub metadata: [Range<usize>; 10],
}

/// Pages' contents by key. All methods may be called from many threads at once; see each for what
/// it holds meanwhile.
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

fn in_range(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), StoreError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(StoreError::Config { field, value, min, max })
    }
}

impl Store {
    /// Reserves address space for an empty store. It holds no memory but a few pages until
    /// something is stored; call [`Self::refill_reserve`] to have the reserve there from the start.
    ///
    /// # Errors
    /// [`StoreError::Config`] for limits out of range; [`StoreError::NoMemory`] if the address
    /// space is limited.
    pub fn new(config: &Config) -> Result<Store, StoreError> {
        let Config { pool_bytes_max, reserve_bytes, metadata_bytes_max, spill } = *config;
        in_range("pool_bytes_max", pool_bytes_max, SPAN_BYTES, POOL_BYTES_LIMIT)?;
        in_range("reserve_bytes", reserve_bytes, 0, pool_bytes_max)?;
        in_range("metadata_bytes_max", metadata_bytes_max, METADATA_BYTES_MIN, POOL_BYTES_LIMIT)?;
        if let Some(SpillShape { segment_bytes, segment_count_max }) = spill {
            let (min, max) = (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
            in_range("segment_bytes", segment_bytes, min, max)?;
            if !segment_bytes.is_power_of_two() {
                let value = segment_bytes;
                return Err(StoreError::Config { field: "segment_bytes", value, min, max });
            }
            let most = Space::bytes_limit() / segment_bytes;
            in_range("segment_count_max", segment_count_max, 1, most)?;
        }
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

    /// Makes a store in memory of the caller's choice. The store may be moved while nobody else
    /// uses it.
    ///
    /// # Safety
    /// `place` is valid for writing a `Store` and aligned for it.
    ///
    /// # Errors
    /// As [`Self::new`]; then nothing is written.
    pub unsafe fn init_at(place: NonNull<Store>, config: &Config) -> Result<(), StoreError> {
        let store = Store::new(config)?;
        // SAFETY: valid and aligned, by the caller.
        unsafe { place.write(store) };
        Ok(())
    }

    /// From here on a trace is made of what happens to objects.
    pub fn record_objects(&mut self, recorder: Recorder) {
        self.pool.recorder = recorder;
    }

    /// Stores a page as an object of 1 to 4096 bytes under an encoding of 1 to 15. It replaces what
    /// was there, unless that is the very same: so memory that is shared with a forked relative
    /// stays shared. The key's mark stays.
    ///
    /// # Errors
    /// [`StoreError::ObjectLength`], [`StoreError::Encoding`]; [`StoreError::PoolFull`],
    /// [`StoreError::MetadataFull`] or [`StoreError::NoMemory`]. The key then still has what it
    /// had.
    pub fn store_object(&self, key: Key, encoding: u8, object: &[u8]) -> Result<(), StoreError> {
        self.check_object(encoding, object)?;
        if self.has(key, Loaded::Object { encoding, bytes: object }) {
            return Ok(());
        }
        let object = self.put(key, encoding, object)?;
        self.set(key, Content::Object { object, encoding })
    }

    /// Whether this is what the key has.
    fn has(&self, key: Key, content: Loaded<'_>) -> bool {
        let entry = self.index.lock(key);
        matches!(self.verify(key, &entry), Ok(Some(found)) if found == content)
    }

    /// Stores a page that is one word 512 times over. A word whose halves are equal lies in the
    /// entry and cannot fail for want of pool memory; any other is an object of 8 bytes.
    ///
    /// # Errors
    /// As [`Self::store_object`].
    pub fn store_same_filled(&self, key: Key, word: u64) -> Result<(), StoreError> {
        if word as u32 == (word >> 32) as u32 {
            let pattern = word as u32;
            let check = pattern_check(key, pattern);
            return self.set(key, Content::SameFilled { pattern, check });
        }
        let bytes = word.to_le_bytes();
        let object = self.put(key, WORD_ENCODING, &bytes)?;
        self.set(key, Content::Object { object, encoding: WORD_ENCODING })
    }

    /// Lends a page's content to `f`, verified, and returns what `f` does; `None` if the page is
    /// not here (a ghost is not). The entry stays.
    ///
    /// A lock is held while `f` runs, so `f` must be short and must not call the store. If it
    /// unwinds nothing has changed.
    ///
    /// # Errors
    /// [`LoadError`] if the content is not what was stored; `f` is not called.
    pub fn load<R>(
        &self,
        key: Key,
        f: impl FnOnce(Loaded<'_>) -> R,
    ) -> Result<Option<R>, LoadError> {
        let entry = self.index.lock(key);
        Ok(self.verify(key, &entry)?.map(f))
    }

    /// Where in the spill file a page's object is, if it is there. What is damaged is told by
    /// [`Self::load`].
    pub fn spilled(&self, key: Key) -> Option<Spilled> {
        let entry = self.index.lock(key);
        match entry.view() {
            View::Spilled { .. } => match self.verify(key, &entry) {
                Ok(Some(Loaded::Spilled(spilled))) => Some(spilled),
                _ => None,
            },
            _ => None,
        }
    }

    /// Like [`Self::load`], but the page is a ghost afterwards, with the mark it had, and its
    /// object is freed.
    ///
    /// # Errors
    /// As [`Self::load`]; the entry stays.
    pub fn take<R>(
        &self,
        key: Key,
        f: impl FnOnce(Loaded<'_>) -> R,
    ) -> Result<Option<R>, LoadError> {
        let mut entry = self.index.lock(key);
        let Some(loaded) = self.verify(key, &entry)? else { return Ok(None) };
        let result = f(loaded);
        let taken = entry.take();
        drop(entry);
        self.free(taken);
        Ok(Some(result))
    }

    /// Whether the page can be loaded.
    pub fn contains(&self, key: Key) -> bool {
        self.index.lock(key).is_live()
    }

    /// Forgets a page, its ghost and its mark; whether it could have been loaded.
    pub fn invalidate(&self, key: Key) -> bool {
        let mut entry = self.index.lock(key);
        let live = entry.is_live();
        let removed = entry.remove();
        drop(entry);
        self.free(removed);
        live
    }

    /// Forgets the pages of `count` keys from `first` (those beyond the last key do not exist), and
    /// returns how many could have been loaded. The cost follows what is stored, not the range. A
    /// page stored meanwhile may or may not be forgotten.
    pub fn invalidate_range(&self, first: Key, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let last = last_key(first, count).unwrap_or(Key::MAX);
        let mut removed = Removed::new();
        let mut live = 0;
        for (group_first, group_last) in self.index.groups_between(first, last) {
            let (from, to) = (group_first.max(first), group_last.min(last));
            live += self.index.remove_in_group(from, (to - from) as usize + 1, &mut removed);
            removed.free(|holding| self.free_holding(holding));
        }
        live
    }

    /// Moves what is under `count` keys from `from`, marks and ghosts too, to the keys from `to`;
    /// what was under those is forgotten. Returns how many pages moved that can be loaded.
    ///
    /// The move goes on 64 pages at a time: other threads should not use either range meanwhile.
    ///
    /// # Errors
    /// [`StoreError::RangesOverlap`] and [`StoreError::RangeBeyondEnd`]: nothing was changed.
    /// [`StoreError::MetadataFull`] and [`StoreError::NoMemory`]: the move is incomplete, every
    /// page is under either its old or its new key.
    pub fn rekey_range(&self, from: Key, to: Key, count: u64) -> Result<u64, StoreError> {
        if count == 0 {
            return Ok(0);
        }
        let beyond_end = |first| StoreError::RangeBeyondEnd { first, count };
        let from_last = last_key(from, count).ok_or(beyond_end(from))?;
        let to_last = last_key(to, count).ok_or(beyond_end(to))?;
        if from <= to_last && to <= from_last {
            return Err(StoreError::RangesOverlap { from, to, count });
        }
        self.invalidate_range(to, count);
        let mut removed = Removed::new();
        let mut live = 0;
        for (group_first, group_last) in self.index.groups_between(from, from_last) {
            let mut first = group_first.max(from);
            let last = group_last.min(from_last);
            // The 64 pages have at most two groups at the other end.
            loop {
                let target = to + (first - from);
                let room = LEAF_ENTRIES - target as usize % LEAF_ENTRIES;
                let count = room.min((last - first) as usize + 1);
                let result = self.index.move_in_group(
                    first,
                    target,
                    count,
                    &mut removed,
                    |content, a, b| {
                        self.reseal(content, a, b);
                    },
                );
                removed.free(|holding| self.free_holding(holding));
                live += result.map_err(|refusal| self.no_entry(refusal))?;
                if last - first < count as u64 {
                    break;
                }
                first += count as u64;
            }
        }
        Ok(live)
    }

    /// The page's mark: a byte the owner may use, which follows the page through store and take
    /// until it is invalidated. 0 if nothing is known of the page.
    pub fn mark(&self, key: Key) -> u8 {
        self.index.lock(key).mark()
    }

    /// Sets the page's mark, and returns the one before. A page that nothing is known of becomes a
    /// ghost by that, unless the mark is 0 or there is no memory for its entry.
    pub fn set_mark(&self, key: Key, mark: u8) -> u8 {
        self.index.lock(key).set_mark(mark)
    }

    /// Frees a page's object unread: the page is a ghost with this mark afterwards. `false` if it
    /// was not here; then nothing changes.
    pub fn discard(&self, key: Key, mark: u8) -> bool {
        let mut entry = self.index.lock(key);
        let live = entry.is_live();
        if live {
            entry.set_mark(mark);
        }
        let taken = entry.take();
        drop(entry);
        self.free(taken);
        live
    }

    /// Calls `f` with every key that is here or a ghost, in no order. No lock is held while `f`
    /// runs, so it may call the store. A key that is here from before the call until after it is
    /// seen once, unless it is rekeyed.
    pub fn for_each(&self, mut f: impl FnMut(Key, Kind)) {
        for number in self.index.leaf_numbers() {
            self.index.read_leaf(number, &mut f);
        }
    }

    /// Forgets all ghosts, and returns how many there were. Leaves without live pages go back to
    /// the system.
    pub fn forget_ghosts(&self) -> u64 {
        self.index.leaf_numbers().map(|number| self.index.forget_ghosts_in_leaf(number)).sum()
    }

    /// Begins a new age: which of two objects was stored earlier is known if ages lie between them. Each
    /// batch that is spilled begins one, too.
    pub fn begin_age(&self) {
        self.index.begin_age();
    }

    /// Moves objects of each class together, so that their spans empty and memory goes back, and returns
    /// how many moved. Goes over the index until there is nothing to gain, a few times; after each 64
    /// pages `go_on` is asked. Worth it when [`Statistics::pool_fragmentation_bytes`] has grown. A load
    /// of one of these pages waits no longer than eight objects take to be copied.
    pub fn compact(&self, mut go_on: impl FnMut() -> bool) -> u64 {
        self.pool.recorder.compact();
        let mut total = 0;
        for _ in 0..COMPACTION_PASSES {
            let (moved, whole) = self.compact_once(&mut go_on);
            self.pool.trim();
            total += moved;
            if moved == 0 || !whole {
                break;
            }
        }
        total
    }

    /// One pass, from where the last one was told to stop: how many objects moved, and whether it went all round.
    fn compact_once(&self, go_on: &mut impl FnMut() -> bool) -> (u64, bool) {
        let mut removed = Removed::new();
        let mut moved = 0;
        let all = self.index.leaf_numbers();
        let from = self.compacted_to.load(Ordering::Relaxed).min(all.end);
        for number in (from..all.end).chain(all.start..from) {
            for first in (0..LEAF_ENTRIES).step_by(COMPACTED_AT_ONCE) {
                let offsets = first..first + COMPACTED_AT_ONCE;
                moved += self.index.replace_in_leaf(number, offsets, &mut removed, |object| {
                    self.pool.move_to_better(object)
                });
                removed.free(|holding| self.free_holding(holding));
            }
            if !go_on() {
                self.compacted_to.store(number + 1, Ordering::Relaxed);
                return (moved, false);
            }
        }
        (moved, true)
    }

    /// Whether [`Self::refill_reserve`] is due: the spans in use have reached 7/8 of those that
    /// have memory, or half the reserve has gone, or a table of the index should grow. Cheap.
    #[inline]
    pub fn reserve_low(&self) -> bool {
        self.pool.spans().reserve_low() || self.index.reserve_low()
    }

    /// Fills up the reserve and does the index's housekeeping: what would else be asked of the
    /// system in the middle of a store. To be called at the start, and when [`Self::reserve_low`]
    /// says so, from a place that can wait. At the pool's limit there is nothing to fill.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`]: what could be had is there; later calls try again.
    pub fn refill_reserve(&self) -> Result<(), StoreError> {
        let pool = self.pool.refill();
        let index = self.index.refill();
        pool.map_err(|errno| StoreError::NoMemory { part: "the reserve of the pool", errno })?;
        index.map_err(|errno| StoreError::NoMemory { part: "the reserve of the index", errno })
    }

    /// Bytes the store costs now: [`Statistics::cost_bytes`] without taking a lock.
    #[inline]
    pub fn cost_bytes(&self) -> usize {
        self.pool.spans().resident_bytes() + self.metadata_bytes()
    }

    /// Bytes of the store's mappings that may be written to, memory behind them or not.
    pub fn writable_bytes(&self) -> usize {
        self.pool.spans().writable_bytes() + self.metadata_bytes()
    }

    /// After a fork, in the parent and in the child (`is_child`): the pool's memory is shared now.
    pub fn begin_sharing(&self, is_child: bool) {
        self.pool.spans().begin_sharing(is_child);
    }

    /// Replaces [`Config::reserve_bytes`].
    pub fn set_reserve(&self, bytes: usize) {
        self.pool.spans().set_reserve(bytes);
    }

    /// Nothing is shared any more.
    pub fn end_sharing(&self) {
        self.pool.end_sharing();
    }

    /// Bytes of the pool that the kernel has copied, since this was last asked, because a fork had made
    /// them shared and they were written to. An estimate: it is not known what a relative has copied or
    /// given up.
    pub fn take_copied_bytes(&self) -> usize {
        self.pool.spans().take_copied_pages() * PAGE_SIZE
    }

    /// Bytes of the pool behind objects that fill a page: with a spill file they are about to go there.
    #[inline]
    pub fn raw_bytes(&self) -> usize {
        self.pool.page_bytes()
    }

    /// Bytes of its tables.
    pub fn metadata_bytes(&self) -> usize {
        self.index.resident_bytes() + self.pool.metadata_bytes() + self.space.resident_bytes()
    }

    /// Counts everything. Takes each lock in turn.
    pub fn statistics(&self) -> Statistics {
        let entries = self.index.counts();
        let leaves = self.index.leaf_counts();
        let pool = self.pool.counts();
        let spans = self.pool.spans();
        let pool_total_bytes = spans.resident_bytes() as u64;
        let metadata_reserve_bytes = u64::from(leaves.reserve_spans) * SPAN_BYTES as u64;
        let pool_reserve_bytes = u64::from(spans.ready_count()) * SPAN_BYTES as u64;
        Statistics {
            objects: entries.objects,
            same_filled: entries.same_filled,
            ghosts: entries.ghosts,
            object_bytes: entries.object_bytes,
            spilled: entries.spilled,
            spilled_bytes: entries.spilled_units * Space::UNIT_BYTES,
            slots: pool.used_slots,
            pool_used_bytes: pool.used_bytes,
            // Other threads may have changed the one between the reading of the others.
            pool_fragmentation_bytes: pool_total_bytes
                .saturating_sub(pool.used_bytes + pool_reserve_bytes),
            pool_reserve_bytes,
            pool_total_bytes,
            metadata_bytes: self.metadata_bytes() as u64,
            metadata_reserve_bytes,
            leaves: leaves.leaves,
            spans: u64::from(pool.span_count),
            reserve_misses: spans.reserve_misses() + leaves.reserve_misses,
            release_failures: spans.release_failures() + leaves.release_failures,
            rejects: Rejects {
                argument: self.reject_argument.load(Ordering::Relaxed),
                pool_full: self.reject_pool_full.load(Ordering::Relaxed),
                metadata_full: self.reject_metadata_full.load(Ordering::Relaxed),
                no_memory: self.reject_no_memory.load(Ordering::Relaxed),
            },
        }
    }

    /// Where the store's memory lies.
    pub fn memory_ranges(&self) -> MemoryRanges {
        let [pool, headers, seals, marks, freed_later] = self.pool.ranges();
        let [leaves, leaf_headers, groups, stamps, tables] = self.index.ranges();
        let segments = self.space.range();
        MemoryRanges {
            pool,
            metadata: [
                headers,
                seals,
                marks,
                freed_later,
                leaves,
                leaf_headers,
                groups,
                stamps,
                tables,
                segments,
            ],
        }
    }

    /// Waits until no thread is in the middle of changing the store, and keeps all out until the
    /// result is dropped: to be held around a fork, and dropped in parent and child. The thread
    /// that holds it must not call the store. An operation of another thread that is between two
    /// steps costs the child at most a slot and a span.
    pub fn pause(&self) -> Paused<'_> {
        let (space, index) = (self.space.pause(), self.index.pause());
        Paused { _space: space, _index: index, _pool: self.pool.pause() }
    }

    /// Makes all locks unlocked, in the child of a fork. What is recorded stays the parent's.
    ///
    /// # Safety
    /// To be called by the only thread of the child, which uses no guard or [`Paused`] of before
    /// the fork; and no other thread was inside the store at the fork, or the forking thread held
    /// [`Self::pause`].
    pub unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.space.reset_lock_after_fork();
            self.index.reset_locks_after_fork();
            self.pool.reset_locks_after_fork();
        }
        self.pool.recorder.stop();
    }

    /// Copies an object into the pool, sealed as this key's.
    pub(crate) fn put_sealed(
        &self,
        key: Key,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<Object, NoSpan> {
        self.pool.put(bytes, seal(key, encoding, self.checksum.of(bytes)))
    }

    /// The same for a page that is to be stored, which counts where it is refused.
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

    pub(crate) fn free(&self, content: Content) {
        if let Some(holding) = content.into_holding() {
            self.free_holding(holding);
        }
    }

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

    /// Puts an object in the spill file in the place of one that [`Index::visit_leaf`] showed; or frees
    /// its room, if something else has been stored meanwhile. Says whether it is in place.
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

    /// Writes an entry that says what it said when [`Index::visit_leaf`] showed it, and, if that was an object
    /// in the pool, in whose leaf nothing has been stored since `since` began; or frees the content. Says
    /// which.
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
        Ok(Some(if encoding == WORD_ENCODING {
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
        self.index.move_in_group(from, to, 1, &mut Removed::new(), |_, _, _| ()).unwrap();
    }
}

/// Keeps all threads out of a store; see [`Store::pause`].
pub struct Paused<'a> {
    _space: PausedSpace<'a>,
    _index: PausedIndex<'a>,
    _pool: PausedPool<'a>,
}

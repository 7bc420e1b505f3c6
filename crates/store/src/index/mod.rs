//! The index: from a key to its entry. The key's upper bits (its group) name a leaf of 64 entries;
//! a hash of the group names the shard whose table knows the leaf.
//!
//! All of a group lies in one shard, so one lock guards a run of 64 pages. Entries own the objects
//! they name: an entry is read and written under its shard's lock only.

mod counts;
mod entry;
mod leaves;
mod locked;
mod moves;
mod removed;
mod stamp;
mod table;
mod walk;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use counts::{Counts, LeafCounts};
use entry::Entry;
pub(crate) use entry::{CHECK_BITS, Content, Holding, SPILLED_CHECK_BITS, View};
pub(crate) use leaves::LEAF_ENTRIES;
use leaves::{LeafId, Leaves, PausedLeaves};
pub(crate) use locked::Locked;
pub(crate) use removed::Removed;
pub(crate) use stamp::Stamp;
use table::{NoPlace, PausedTables, SHARD_COUNT, Table, Tables, hash, shard_of};

use crate::Key;
use crate::pool::NoSpan;

/// Bits of a key below its group.
const GROUP_SHIFT: u32 = LEAF_ENTRIES.trailing_zeros();

/// Why an entry could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEntry {
    /// No leaf is left, or the shard's table is at its largest.
    Full,
    /// The system refused memory.
    NoMemory(Errno),
}

impl From<NoPlace> for NoEntry {
    fn from(refusal: NoPlace) -> Self {
        match refusal {
            NoPlace::Full => NoEntry::Full,
            NoPlace::NoMemory(errno) => NoEntry::NoMemory(errno),
        }
    }
}

impl From<NoSpan> for NoEntry {
    fn from(refusal: NoSpan) -> Self {
        match refusal {
            NoSpan::Full => NoEntry::Full,
            NoSpan::NoMemory(errno) => NoEntry::NoMemory(errno),
        }
    }
}

struct Shard {
    table: Table,
    counts: Counts,
}

/// On a cache line of its own, for shards are used in parallel.
#[repr(align(64))]
struct ShardLock(Mutex<Shard>);

pub(crate) struct Index {
    shards: [ShardLock; SHARD_COUNT],
    tables: Tables,
    leaves: Leaves,
    /// Shards whose tables should grow or shrink when there is time, as a map.
    adjustments_due: AtomicU64,
    /// What leaves are stamped with when an object is stored in them. Begins at 1.
    clock: AtomicU32,
}

/// A group and where to look for it.
#[derive(Clone, Copy)]
struct Group {
    number: u64,
    hash: u64,
}

impl Group {
    #[inline]
    fn new(number: u64) -> Group {
        Group { number, hash: hash(number) }
    }

    #[inline]
    fn of(key: Key) -> Group {
        Group::new(key >> GROUP_SHIFT)
    }

    fn shard(self) -> usize {
        shard_of(self.hash)
    }
}

#[inline]
fn offset(key: Key) -> usize {
    (key % LEAF_ENTRIES as u64) as usize
}

/// Last key of `count` (at least 1) from `first`; `None` if that is beyond the last key.
pub(crate) fn last_key(first: Key, count: u64) -> Option<Key> {
    first.checked_add(count.checked_sub(1)?)
}

/// The part of an index's memory that leaves get, in bytes: the rest is for what stands beside
/// them. A leaf of 512 bytes has 8 of group number and some of table: a place takes 16, and a table
/// that grows when 3/4 full is at least 3/16 full afterwards (growing by four, as small ones do).
/// That is 18 % of the leaves, and 80 KiB of smallest tables.
pub(crate) const fn leaves_bytes(bytes_max: usize) -> usize {
    bytes_max / 16 * 13
}

impl Index {
    /// An index whose leaves, group numbers and tables stay within `bytes_max`. Takes 16 KiB of
    /// memory for the smallest tables.
    pub(crate) fn new(bytes_max: usize, reserve_bytes: usize) -> Result<Index, Errno> {
        let leaves = Leaves::new(leaves_bytes(bytes_max), reserve_bytes)?;
        let leaf_count_max = leaves.spans().bytes_max() / leaves::LEAF_BYTES;
        Ok(Index {
            shards: core::array::from_fn(|number| {
                let table = Table::new(number as u8);
                ShardLock(Mutex::new(Shard { table, counts: Counts::default() }))
            }),
            tables: Tables::new(leaf_count_max)?,
            leaves,
            adjustments_due: AtomicU64::new(0),
            clock: AtomicU32::new(1),
        })
    }

    #[inline]
    fn find_leaf(&self, shard: &Shard, group: Group) -> Option<(usize, LeafId)> {
        let at = self.tables.find(&shard.table, group.number, group.hash)?;
        Some((at, self.tables.slot(&shard.table, at).leaf?))
    }

    /// A group's place in the table and leaf. A leaf that was added has no entry yet: the caller
    /// puts one before it unlocks the shard.
    #[inline]
    fn find_or_add_leaf(
        &self,
        shard: &mut Shard,
        group: Group,
    ) -> Result<(usize, LeafId), NoEntry> {
        match self.find_leaf(shard, group) {
            Some(found) => Ok(found),
            None => self.add_leaf(shard, group),
        }
    }

    #[cold]
    fn add_leaf(&self, shard: &mut Shard, group: Group) -> Result<(usize, LeafId), NoEntry> {
        self.tables.make_room(&mut shard.table)?;
        let leaf = self.leaves.alloc(group.number)?;
        let at = self.tables.insert(&mut shard.table, group.number, group.hash, leaf);
        self.note_adjustment(&shard.table, group);
        Ok((at, leaf))
    }

    /// Gets all memory that the index may ever take.
    pub(crate) fn prepare_only(&self) -> Result<(), Errno> {
        for shard in &self.shards {
            self.tables.enlarge(&mut shard.0.lock().table)?;
        }
        self.tables.fix();
        self.leaves.prepare_only()
    }

    fn note_adjustment(&self, table: &Table, group: Group) {
        let bit = 1 << group.shard();
        if self.tables.is_adjustment_due(table)
            && self.adjustments_due.load(Ordering::Relaxed) & bit == 0
        {
            self.adjustments_due.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Overwrites an entry of the leaf at a place of the table, and returns what it was.
    #[inline]
    fn put(&self, shard: &mut Shard, at: usize, leaf: LeafId, offset: usize, new: Entry) -> Entry {
        // SAFETY: the shard that names the leaf is locked, and no other reference is alive.
        let place = &mut unsafe { self.leaves.get_mut(leaf) }[offset % LEAF_ENTRIES];
        let old = core::mem::replace(place, new);
        shard.counts.subtract(old);
        shard.counts.add(new);
        let change = i32::from(!new.is_empty()) - i32::from(!old.is_empty());
        if change != 0 {
            self.tables.add_live(&mut shard.table, at, change);
        }
        old
    }

    /// Takes a leaf without entries out of the table; the caller frees it.
    #[inline]
    fn remove_if_empty(&self, shard: &mut Shard, at: usize) -> bool {
        let slot = self.tables.slot(&shard.table, at);
        if slot.live != 0 || slot.leaf.is_none() {
            return false;
        }
        self.tables.remove(&mut shard.table, at);
        self.note_adjustment(&shard.table, Group::new(slot.group));
        true
    }

    /// Fills up the reserve of leaves and resizes tables that are due.
    pub(crate) fn refill(&self) -> Result<(), Errno> {
        self.leaves.refill()?;
        let mut due = self.adjustments_due.swap(0, Ordering::Relaxed);
        while due != 0 {
            let number = due.trailing_zeros() as usize;
            let adjusted = self.tables.adjust(&mut self.shards[number].0.lock().table);
            if let Err(errno) = adjusted {
                self.adjustments_due.fetch_or(due, Ordering::Relaxed);
                return Err(errno);
            }
            due &= due - 1;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn reserve_low(&self) -> bool {
        self.leaves.reserve_low() || self.adjustments_due.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shards.iter().for_each(|shard| counts.add_all(&shard.0.lock().counts));
        counts
    }

    /// Bytes of leaves, tables and what describes them that have memory.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.leaves.resident_bytes() + self.tables.resident_bytes()
    }

    /// Leaves in use, their reserve in bytes, and stores that found the reserve empty.
    pub(crate) fn leaf_counts(&self) -> LeafCounts {
        let spans = self.leaves.spans();
        LeafCounts {
            leaves: self.leaves.count(),
            reserve_spans: spans.ready_count(),
            reserve_misses: spans.reserve_misses(),
            release_failures: spans.release_failures(),
        }
    }

    /// Addresses of everything the index has.
    pub(crate) fn ranges(&self) -> [Range<usize>; 5] {
        let [leaves, headers, groups, stamps] = self.leaves.ranges();
        [leaves, headers, groups, stamps, self.tables.range()]
    }

    pub(crate) fn pause(&self) -> PausedIndex<'_> {
        PausedIndex {
            _shards: self.shards.each_ref().map(|shard| shard.0.lock()),
            _tables: self.tables.pause(),
            _leaves: self.leaves.pause(),
        }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`], for all locks of the index.
    pub(crate) unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.shards.iter().for_each(|shard| shard.0.reset_after_fork());
            self.tables.reset_lock_after_fork();
            self.leaves.reset_locks_after_fork();
        }
    }
}

#[cfg(test)]
impl Index {
    /// Checks tables, leaves, counts and the kernel's view of their memory against one another,
    /// and returns the bits of every entry that is not empty.
    pub(crate) fn audit(&self) -> std::collections::BTreeMap<Key, Entry> {
        let mut entries = std::collections::BTreeMap::new();
        let mut leaves = std::collections::BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.0.lock();
            let mut counts = Counts::default();
            for slot in self.tables.audit(&shard.table) {
                let leaf = slot.leaf.expect("a leaf");
                assert!(leaves.insert(leaf.number(), slot.group).is_none(), "a leaf of two groups");
                let mut live = 0;
                // SAFETY: the shard is locked.
                let leaf = unsafe { self.leaves.get(leaf) };
                for (offset, &entry) in (0..).zip(leaf) {
                    let key = (slot.group << GROUP_SHIFT) + offset;
                    if !entry.is_empty() {
                        live += 1;
                        counts.add(entry);
                        entries.insert(key, entry);
                    }
                }
                assert_eq!(slot.live, live);
                assert_ne!(live, 0, "a leaf without entries");
            }
            assert_eq!(shard.counts, counts);
        }
        self.leaves.audit(&leaves);
        assert_eq!(self.tables.resident_bytes(), crate::tests::present_bytes(&self.tables.range()));
        entries
    }

    /// Flips a bit of a key's entry.
    pub(crate) fn flip_entry_bit(&self, key: Key, bit: u32) {
        let locked = self.lock(key);
        let (_, leaf, _) = locked.find().expect("a leaf");
        // SAFETY: the shard is locked.
        let entries = unsafe { self.leaves.get_mut(leaf) };
        entries[offset(key)].flip_bit(bit);
    }
}

pub(crate) struct PausedIndex<'a> {
    _shards: [MutexGuard<'a, Shard>; SHARD_COUNT],
    _tables: PausedTables<'a>,
    _leaves: PausedLeaves<'a>,
}

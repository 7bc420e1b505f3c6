//! The index: from a key to its entry. The key's upper bits (its group) name a leaf of 64 entries;
//! a hash of the group names the shard whose table knows the leaf.
//!
//! All of a group lies in one shard, so one lock guards a run of 64 pages. Entries own the objects
//! they name: an entry is read and written under its shard's lock only.

mod entry;
mod leaves;
mod table;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use entry::Entry;
pub(crate) use entry::{CHECK_BITS, Content, Holding, SPILLED_CHECK_BITS, View, WORD_ENCODING};
pub(crate) use leaves::LEAF_ENTRIES;
use leaves::{Leaf, LeafId, Leaves, PausedLeaves};
use table::{NoPlace, PausedTables, SHARD_COUNT, Table, Tables, hash, shard_of};

use crate::pool::{NoSpan, Object, ObjectRef};
use crate::{Key, Kind};

const GROUP_SHIFT: u32 = LEAF_ENTRIES.trailing_zeros();

/// What the entries say, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub objects: u64,
    pub same_filled: u64,
    pub ghosts: u64,
    /// Bytes of objects and 64-bit words in the pool, without seals.
    pub object_bytes: u64,
    /// Objects in the spill file.
    pub spilled: u64,
    /// Units of the spill file that they take.
    pub spilled_units: u64,
}

impl Counts {
    #[inline]
    fn add(&mut self, entry: Entry) {
        self.objects += u64::from(entry.is_object());
        self.same_filled += u64::from(entry.is_same_filled());
        self.ghosts += u64::from(entry.is_ghost());
        self.object_bytes += entry.object_len() as u64;
        self.spilled += u64::from(entry.is_spilled());
        self.spilled_units += entry.spilled_units();
    }

    #[inline]
    fn subtract(&mut self, entry: Entry) {
        self.objects = self.objects.wrapping_sub(u64::from(entry.is_object()));
        self.same_filled = self.same_filled.wrapping_sub(u64::from(entry.is_same_filled()));
        self.ghosts = self.ghosts.wrapping_sub(u64::from(entry.is_ghost()));
        self.object_bytes = self.object_bytes.wrapping_sub(entry.object_len() as u64);
        self.spilled = self.spilled.wrapping_sub(u64::from(entry.is_spilled()));
        self.spilled_units = self.spilled_units.wrapping_sub(entry.spilled_units());
    }

    fn add_all(&mut self, other: &Counts) {
        self.objects += other.objects;
        self.same_filled += other.same_filled;
        self.ghosts += other.ghosts;
        self.object_bytes += other.object_bytes;
        self.spilled += other.spilled;
        self.spilled_units += other.spilled_units;
    }
}

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

/// What left the index, to be freed when the shard is unlocked.
pub(crate) struct Removed {
    holdings: [Option<Holding>; LEAF_ENTRIES],
    count: usize,
}

impl Removed {
    pub(crate) fn new() -> Self {
        Removed { holdings: [const { None }; LEAF_ENTRIES], count: 0 }
    }

    fn push(&mut self, holding: Option<Holding>) {
        if holding.is_some()
            && let Some(place) = self.holdings.get_mut(self.count)
        {
            *place = holding;
            self.count += 1;
        }
    }

    pub(crate) fn free(&mut self, free: impl FnMut(Holding)) {
        self.holdings[..self.count].iter_mut().filter_map(Option::take).for_each(free);
        self.count = 0;
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

impl Index {
    /// An index whose leaves, group numbers and tables stay within `bytes_max`. Takes 16 KiB of
    /// memory for the smallest tables.
    pub(crate) fn new(bytes_max: usize, reserve_bytes: usize) -> Result<Index, Errno> {
        // Beside each leaf of 512 bytes stand 8 of group number and some of table: a place takes
        // 16, and a table that grows when 3/4 full is at least 3/16 full afterwards (growing by
        // four, as small ones do). That is 18 % of the leaves, and 80 KiB of smallest tables.
        let leaves = Leaves::new(bytes_max / 16 * 13, reserve_bytes)?;
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

    /// Locks a key's entry.
    #[inline]
    pub(crate) fn lock(&self, key: Key) -> Locked<'_> {
        let group = Group::of(key);
        let shard = self.shards[group.shard()].0.lock();
        let found = self.find_leaf(&shard, group);
        Locked {
            index: self,
            group,
            offset: offset(key),
            found,
            shard,
            emptied: EmptiedLeaf { leaves: &self.leaves, leaf: None },
        }
    }

    /// Removes the entries of `count` keys from `first`, which are all of one group, into
    /// `removed`, and returns how many were live.
    pub(crate) fn remove_in_group(&self, first: Key, count: usize, removed: &mut Removed) -> u64 {
        let group = Group::of(first);
        let mut shard = self.shards[group.shard()].0.lock();
        let Some((at, leaf)) = self.find_leaf(&shard, group) else { return 0 };
        let mut live = 0;
        for offset in offset(first)..(offset(first) + count).min(LEAF_ENTRIES) {
            let old = self.put(&mut shard, at, leaf, offset, Entry::EMPTY);
            live += u64::from(old.is_live());
            // SAFETY: it was overwritten.
            removed.push(unsafe { old.into_content() }.into_holding());
        }
        if self.remove_if_empty(&mut shard, at) {
            drop(shard);
            self.leaves.free(leaf);
        }
        live
    }

    /// Moves the entries of `count` keys from `from`, which are all of one group, to the keys from
    /// `to`, again of one group; calls `reseal` with each content, its old and its new key. What
    /// was under the new keys goes into `removed`. Returns how many live entries moved.
    ///
    /// # Errors
    /// If there is no leaf for the new keys; then nothing has changed.
    pub(crate) fn move_in_group(
        &self,
        from: Key,
        to: Key,
        count: usize,
        removed: &mut Removed,
        mut reseal: impl FnMut(&mut Content, Key, Key),
    ) -> Result<u64, NoEntry> {
        let (source, target) = (Group::of(from), Group::of(to));
        let mut pair = self.lock_pair(source.shard(), target.shard());
        let Some((_, source_leaf)) = self.find_leaf(pair.source(), source) else { return Ok(0) };
        // SAFETY: the leaf's shard is locked, and nothing changes it while this is read.
        let entries = unsafe { self.leaves.get(source_leaf) };
        let offsets = offset(from)..(offset(from) + count).min(LEAF_ENTRIES);
        if !entries[offsets].iter().any(|entry| !entry.is_empty()) {
            return Ok(0);
        }
        let (target_at, target_leaf) = self.find_or_add_leaf(pair.target(), target)?;
        // If both are in one table, the new leaf may have moved the other's place in it.
        let Some((source_at, _)) = self.find_leaf(pair.source(), source) else { return Ok(0) };
        let mut live = 0;
        for i in 0..count as u64 {
            let (from, to) = (from + i, to + i);
            // SAFETY: as above.
            let entry = unsafe { self.leaves.get(source_leaf) }[offset(from)];
            if entry.is_empty() {
                continue;
            }
            live += u64::from(entry.is_live());
            let mark = entry.mark();
            // SAFETY: under both locks the entry is overwritten below, so the content is ours.
            let mut content = unsafe { entry.into_content() };
            reseal(&mut content, from, to);
            self.stamp(target_leaf, &content);
            let moved = Entry::new(content, mark);
            let replaced = self.put(pair.target(), target_at, target_leaf, offset(to), moved);
            // SAFETY: it was overwritten.
            removed.push(unsafe { replaced.into_content() }.into_holding());
            self.put(pair.source(), source_at, source_leaf, offset(from), Entry::EMPTY);
        }
        if self.remove_if_empty(pair.source(), source_at) {
            drop(pair);
            self.leaves.free(source_leaf);
        }
        Ok(live)
    }

    /// The groups between two (both included) that may have a leaf. A small range is walked
    /// through; of a large one the leaves are, so that it costs what is in the index.
    pub(crate) fn groups_between(&self, first: Key, last: Key) -> Groups<'_> {
        let (first, last) = (first >> GROUP_SHIFT, last >> GROUP_SHIFT);
        let leaves_end = self.leaves.end();
        // A look at a leaf's number costs a sixteenth of a lock and a search.
        let by_leaf = last - first > u64::from(leaves_end / 16) + 16;
        let (next, end) = if by_leaf { (0, u64::from(leaves_end)) } else { (first, last + 1) };
        Groups { index: self, by_leaf, first, last, next, end }
    }

    /// The numbers of leaves, for [`Self::read_leaf`], [`Self::visit_leaf`], [`Self::stamp_of`] and
    /// [`Self::replace_in_leaf`].
    pub(crate) fn leaf_numbers(&self) -> Range<u32> {
        0..self.leaves.end()
    }

    /// The first key of the group that has the next leaf from a number on, and the number behind that.
    pub(crate) fn group_from(&self, number: u32) -> Option<(Key, u32)> {
        (number..self.leaves.end())
            .find_map(|number| Some((self.leaves.group(number)? << GROUP_SHIFT, number + 1)))
    }

    /// What a leaf says: the keys that are not empty.
    pub(crate) fn read_leaf(&self, number: u32, mut each: impl FnMut(Key, Kind)) {
        let Some((group, leaf)) = self.leaf_by_number(number, |_, _, leaf| {
            // SAFETY: the shard is locked; the entries are copied.
            *unsafe { self.leaves.get(leaf) }
        }) else {
            return;
        };
        for (offset, entry) in (0..).zip(leaf) {
            let key = (group << GROUP_SHIFT) + offset;
            // SAFETY: objects are not looked into.
            match unsafe { entry.view() } {
                View::Empty => {}
                View::Ghost => each(key, Kind::Ghost),
                View::SameFilled { .. } | View::Object { encoding: WORD_ENCODING, .. } => {
                    each(key, Kind::SameFilled);
                }
                View::Object { object, encoding } => {
                    each(key, Kind::Object { encoding, len: object.len() });
                }
                View::Spilled { encoding, .. } => each(key, Kind::Spilled { encoding }),
                View::Damaged => each(key, Kind::Damaged),
            }
        }
    }

    /// Calls `each` with the entries at some offsets of a leaf, under its shard's lock: key, bits (which
    /// [`Locked::replace`] wants) and view, as long as it says `true`.
    pub(crate) fn visit_leaf(
        &self,
        number: u32,
        offsets: Range<usize>,
        mut each: impl FnMut(Key, u64, View<'_>) -> bool,
    ) {
        self.leaf_by_number(number, |_, group, leaf| {
            // SAFETY: the shard is locked.
            let entries = unsafe { self.leaves.get(leaf) };
            for offset in offsets {
                let Some(entry) = entries.get(offset) else { break };
                let key = (group.number << GROUP_SHIFT) + offset as u64;
                // SAFETY: nothing changes the entry while its shard is locked.
                if !each(key, entry.bits(), unsafe { entry.view() }) {
                    break;
                }
            }
        });
    }

    /// Begins a new age, and returns its number: what is stored from now on is stamped with it, or
    /// with a later one.
    pub(crate) fn begin_age(&self) -> u32 {
        let next = |clock: u32| Some(if clock >= Stamp::CLOCK_MAX { 1 } else { clock + 1 });
        match self.clock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(before) | Err(before) => next(before).unwrap_or(1),
        }
    }

    pub(crate) fn age(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// When an object was last stored in the leaf of this number.
    pub(crate) fn stamp_of(&self, number: u32) -> Stamp {
        Stamp(self.leaves.stamp(number).map_or(0, |stamp| stamp.load(Ordering::Relaxed)))
    }

    /// Notes what was found out of a leaf (no object of it is in the pool, or none that fills a page, or
    /// none that could be smaller), where the stamp is still the one that was seen before.
    pub(crate) fn change_stamp(&self, number: u32, seen: Stamp, to: Stamp) {
        if let Some(stamp) = self.leaves.stamp(number) {
            // Otherwise something was stored meanwhile, and it is to be looked at again.
            let _ = stamp.compare_exchange(seen.0, to.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// This is about to be stored in a leaf, whose shard is locked: notes when, if it is an object proper.
    #[inline]
    fn stamp(&self, leaf: LeafId, content: &Content) {
        if let Content::Object { object, encoding } = content
            && *encoding != WORD_ENCODING
            && let Some(stamp) = self.leaves.stamp(leaf.number())
        {
            let before = Stamp(stamp.load(Ordering::Relaxed));
            let is_raw = object.as_ref().len() == crate::OBJECT_BYTES_MAX;
            let now = Stamp::new(self.age(), is_raw || before.has_raw());
            if now != before {
                stamp.store(now.0, Ordering::Relaxed);
            }
        }
    }

    /// Offers the objects at some offsets of a leaf to `better`, which may return another of the same
    /// content to take its place; those replaced go into `removed`. Returns how many were.
    pub(crate) fn replace_in_leaf(
        &self,
        number: u32,
        offsets: Range<usize>,
        removed: &mut Removed,
        mut better: impl FnMut(ObjectRef<'_>) -> Option<Object>,
    ) -> u64 {
        let replaced = self.leaf_by_number(number, |_, _, leaf| {
            let mut replaced = 0;
            // SAFETY: the shard is locked, and this is the only reference.
            for place in &mut unsafe { self.leaves.get_mut(leaf) }[offsets] {
                // SAFETY: the entry is changed only below, when the look is over.
                let new = match unsafe { place.view() } {
                    View::Object { object, encoding } => {
                        better(object).map(|object| Content::Object { object, encoding })
                    }
                    _ => None,
                };
                if let Some(content) = new {
                    let old = core::mem::replace(place, Entry::new(content, place.mark()));
                    // SAFETY: it was overwritten.
                    removed.push(unsafe { old.into_content() }.into_holding());
                    replaced += 1;
                }
            }
            replaced
        });
        replaced.map_or(0, |(_, replaced)| replaced)
    }

    /// Removes the ghosts of a leaf, and returns how many there were.
    pub(crate) fn forget_ghosts_in_leaf(&self, number: u32) -> u64 {
        let mut emptied = None;
        let forgotten = self.leaf_by_number(number, |shard, group, leaf| {
            let mut forgotten = 0;
            for offset in 0..LEAF_ENTRIES {
                // SAFETY: the shard is locked.
                if unsafe { self.leaves.get(leaf) }[offset].is_ghost()
                    && let Some((at, _)) = self.find_leaf(shard, group)
                {
                    self.put(shard, at, leaf, offset, Entry::EMPTY);
                    forgotten += 1;
                    if self.remove_if_empty(shard, at) {
                        emptied = Some(leaf);
                        break;
                    }
                }
            }
            forgotten
        });
        if let Some(leaf) = emptied {
            self.leaves.free(leaf);
        }
        forgotten.map_or(0, |(_, forgotten)| forgotten)
    }

    /// Calls `f` with the leaf of this number, if there is one, under its shard's lock, and returns
    /// its group and the result.
    fn leaf_by_number<R>(
        &self,
        number: u32,
        f: impl FnOnce(&mut Shard, Group, LeafId) -> R,
    ) -> Option<(u64, R)> {
        let group = Group::new(self.leaves.group(number)?);
        let mut shard = self.shards[group.shard()].0.lock();
        let (_, leaf) = self.find_leaf(&shard, group)?;
        // The leaf may have become another group's in the meantime.
        (leaf.number() == number).then(|| (group.number, f(&mut shard, group, leaf)))
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

    /// Locks two shards, which may be the same, the lower number first.
    fn lock_pair(&self, source: usize, target: usize) -> ShardPair<'_> {
        let lock = |number: usize| self.shards[number].0.lock();
        if source == target {
            return ShardPair { source: lock(source), target: None };
        }
        if source < target {
            let source = lock(source);
            ShardPair { source, target: Some(lock(target)) }
        } else {
            let target = lock(target);
            ShardPair { source: lock(source), target: Some(target) }
        }
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

/// When an object was last stored in a leaf, by the index's clock; whether one has been since that fills
/// a page; and whether none has been since all were made as small as they can be. 0: no object of it is
/// in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) const NOTHING: Stamp = Stamp(0);
    const RAW: u32 = 1;
    const DENSE: u32 = 2;
    const CLOCK_SHIFT: u32 = 2;
    const CLOCK_MAX: u32 = u32::MAX >> Stamp::CLOCK_SHIFT;

    fn new(clock: u32, has_raw: bool) -> Stamp {
        Stamp(clock << Stamp::CLOCK_SHIFT | if has_raw { Stamp::RAW } else { 0 })
    }

    pub(crate) fn has_raw(self) -> bool {
        self.0 & Stamp::RAW != 0
    }

    pub(crate) fn without_raw(self) -> Stamp {
        Stamp(self.0 & !Stamp::RAW)
    }

    pub(crate) fn is_dense(self) -> bool {
        self.0 & Stamp::DENSE != 0
    }

    pub(crate) fn as_dense(self) -> Stamp {
        Stamp(self.0 | Stamp::DENSE)
    }

    /// Ages since then.
    pub(crate) fn age(self, now: u32) -> u32 {
        now.wrapping_sub(self.0 >> Stamp::CLOCK_SHIFT) & Stamp::CLOCK_MAX
    }

    /// Whether it was before an age began.
    pub(crate) fn is_before(self, age: u32, now: u32) -> bool {
        self.age(now) > Stamp::new(age, false).age(now)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafCounts {
    pub leaves: u64,
    pub reserve_spans: u32,
    pub reserve_misses: u64,
    pub release_failures: u64,
}

pub(crate) struct PausedIndex<'a> {
    _shards: [MutexGuard<'a, Shard>; SHARD_COUNT],
    _tables: PausedTables<'a>,
    _leaves: PausedLeaves<'a>,
}

struct ShardPair<'a> {
    source: MutexGuard<'a, Shard>,
    /// `None` if it is the source.
    target: Option<MutexGuard<'a, Shard>>,
}

impl ShardPair<'_> {
    fn source(&mut self) -> &mut Shard {
        &mut self.source
    }

    fn target(&mut self) -> &mut Shard {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
}

/// A leaf that left its table, freed when the shard is unlocked.
struct EmptiedLeaf<'a> {
    leaves: &'a Leaves,
    leaf: Option<LeafId>,
}

impl Drop for EmptiedLeaf<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(leaf) = self.leaf.take() {
            self.leaves.free(leaf);
        }
    }
}

/// A key's entry, its shard locked.
pub(crate) struct Locked<'a> {
    index: &'a Index,
    group: Group,
    offset: usize,
    /// The group's place in the table and its leaf, if it has one.
    found: Option<(usize, LeafId)>,
    // Dropped, and so unlocked, before `emptied` is.
    shard: MutexGuard<'a, Shard>,
    emptied: EmptiedLeaf<'a>,
}

impl Locked<'_> {
    #[inline]
    fn find(&self) -> Option<(usize, LeafId, Entry)> {
        let (at, leaf) = self.found?;
        // SAFETY: the leaf's shard is locked.
        let entries: &Leaf = unsafe { self.index.leaves.get(leaf) };
        Some((at, leaf, entries[self.offset % LEAF_ENTRIES]))
    }

    #[inline]
    fn entry(&self) -> Entry {
        self.find().map_or(Entry::EMPTY, |(_, _, entry)| entry)
    }

    /// Overwrites the entry that `find` returned.
    #[inline]
    fn put(&mut self, at: usize, leaf: LeafId, old: Entry, new: Entry) -> Content {
        self.index.put(&mut self.shard, at, leaf, self.offset, new);
        if new.is_empty() && self.index.remove_if_empty(&mut self.shard, at) {
            self.emptied.leaf = Some(leaf);
            self.found = None;
        }
        // SAFETY: it was overwritten.
        unsafe { old.into_content() }
    }

    /// Goes on to another entry of the group, with the same lock; `false` if the key is of another one.
    pub(crate) fn turn_to(&mut self, key: Key) -> bool {
        let is_here = key >> GROUP_SHIFT == self.group.number;
        if is_here {
            self.offset = offset(key);
        }
        is_here
    }

    /// What the entry says.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: entries change only through a mutable borrow of the lock.
        unsafe { self.entry().view() }
    }

    /// The entry's bits, for a report.
    pub(crate) fn bits(&self) -> u64 {
        self.entry().bits()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.entry().is_live()
    }

    /// Writes the entry, keeping the mark, and returns what was there.
    ///
    /// # Errors
    /// With the content that found no place, if the group needs a leaf and there is none.
    #[inline]
    pub(crate) fn set(&mut self, content: Content) -> Result<Content, (Content, NoEntry)> {
        let (at, leaf) = match self.found {
            Some(found) => found,
            None => match self.index.add_leaf(&mut self.shard, self.group) {
                Ok(added) => *self.found.insert(added),
                Err(refusal) => return Err((content, refusal)),
            },
        };
        self.index.stamp(leaf, &content);
        // SAFETY: the leaf's shard is locked.
        let old = unsafe { self.index.leaves.get(leaf) }[self.offset % LEAF_ENTRIES];
        Ok(self.put(at, leaf, old, Entry::new(content, old.mark())))
    }

    /// Writes an entry that says what it said when [`Index::visit_leaf`] showed it. The same bits alone do
    /// not tell of an object in the pool: another can come to the slot it had. So nothing may have been
    /// stored in its leaf since `since` began. Returns what was there, or the content that is not wanted.
    pub(crate) fn replace(
        &mut self,
        bits: u64,
        since: Option<u32>,
        content: Content,
    ) -> Result<Content, Content> {
        let now = self.index.age();
        let is_left_alone = |stamp: Stamp| since.is_none_or(|since| stamp.is_before(since, now));
        match self.find() {
            Some((at, leaf, old))
                if old.says(bits) && is_left_alone(self.index.stamp_of(leaf.number())) =>
            {
                Ok(self.put(at, leaf, old, Entry::new(content, old.mark())))
            }
            _ => Err(content),
        }
    }

    /// Turns a live entry into a ghost, keeping the mark, and returns what was there.
    #[inline]
    pub(crate) fn take(&mut self) -> Content {
        match self.find() {
            Some((at, leaf, old)) if old.is_live() => {
                self.put(at, leaf, old, Entry::new(Content::Ghost, old.mark()))
            }
            _ => Content::Empty,
        }
    }

    /// Empties the entry, mark and all, and returns what was there.
    #[inline]
    pub(crate) fn remove(&mut self) -> Content {
        match self.find() {
            Some((at, leaf, old)) if !old.is_empty() => self.put(at, leaf, old, Entry::EMPTY),
            _ => Content::Empty,
        }
    }

    /// The entry's mark, 0 if it is empty.
    pub(crate) fn mark(&self) -> u8 {
        self.entry().mark()
    }

    /// Sets the mark, and returns the one before. An empty entry becomes a ghost where the mark is
    /// not 0 and there is room for it.
    pub(crate) fn set_mark(&mut self, mark: u8) -> u8 {
        let old = self.entry();
        if old.is_empty() && (mark == 0 || self.set(Content::Ghost).is_err()) {
            return 0;
        }
        if let Some((at, leaf, entry)) = self.find() {
            self.index.put(&mut self.shard, at, leaf, self.offset, entry.with_mark(mark));
        }
        old.mark()
    }
}

/// See [`Index::groups_between`].
pub(crate) struct Groups<'a> {
    index: &'a Index,
    by_leaf: bool,
    first: u64,
    last: u64,
    next: u64,
    end: u64,
}

impl Iterator for Groups<'_> {
    /// First and last key of the group.
    type Item = (Key, Key);

    fn next(&mut self) -> Option<(Key, Key)> {
        while self.next < self.end {
            let number = self.next;
            self.next += 1;
            let group = if self.by_leaf {
                match self.index.leaves.group(number as u32) {
                    Some(group) if (self.first..=self.last).contains(&group) => group,
                    _ => continue,
                }
            } else {
                number
            };
            let first = group << GROUP_SHIFT;
            return Some((first, first + (LEAF_ENTRIES as u64 - 1)));
        }
        None
    }
}

//! The shards' hash tables: from a group of 64 keys to its leaf. Open addressing with linear
//! probing; a removal shifts what follows back, so there are no tombstones.
//!
//! A shard has at most one table, so each size of each shard has an address of its own in one
//! reservation: growing means populating the next one, moving over, and giving the old one back.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ramfold_sys::mem::Reservation;
use ramfold_sys::sync::{Mutex, MutexGuard};
use ramfold_sys::{Errno, PAGE_SIZE};

use super::leaves::LeafId;
use crate::pool::memory::populate;

pub(crate) const SHARD_COUNT: usize = 64;
const SHARD_BITS: u32 = SHARD_COUNT.trailing_zeros();

/// A place in a table.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Slot {
    /// The keys' common part, key / 64. Valid if there is a leaf.
    pub group: u64,
    /// `None` where the place is free.
    pub leaf: Option<LeafId>,
    /// Entries of the leaf that are not empty, 1 to 64 whenever the shard is unlocked.
    pub live: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

/// Table sizes: 16 places, 64 (both packed, several shards to a page), 256 (a page), 512, 1024...
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(u8);

impl Level {
    pub(super) const SMALLEST: Level = Level(0);
    const PACKED: u8 = 2;

    const fn places_log2(self) -> u32 {
        match self.0 {
            0 => 4,
            1 => 6,
            level => 6 + level as u32,
        }
    }

    pub(super) const fn places(self) -> usize {
        1 << self.places_log2()
    }

    const fn bytes(self) -> usize {
        self.places() * size_of::<Slot>()
    }

    /// Where the tables of this size begin; one follows the other by shard.
    const fn offset(self) -> usize {
        let mut offset = 0;
        let mut level = 0;
        while level < self.0 {
            offset += SHARD_COUNT * Level(level).bytes();
            level += 1;
        }
        offset
    }

    pub(super) fn up(self) -> Level {
        Level(self.0 + 1)
    }

    /// Where to go from here when a table is less than an eighth full: to one less than half full.
    fn down(self) -> Level {
        Level(match self.0 {
            0..=2 => self.0.saturating_sub(1),
            3 => 2,
            level => level - 2,
        })
    }
}

/// Spreads the groups: neighbours go to different shards and far places.
#[inline]
pub(super) fn hash(group: u64) -> u64 {
    let h = group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The shard is the hash's highest bits.
#[inline]
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARD_BITS)) as usize
}

/// The place is the bits below.
#[inline]
fn home(hash: u64, level: Level) -> usize {
    ((hash << SHARD_BITS) >> (u64::BITS - level.places_log2())) as usize
}

/// A shard's table, as the shard knows it.
pub(super) struct Table {
    shard: u8,
    level: Level,
    used: u32,
    /// Levels whose memory could not be given back, as a map: they are zero, and still counted.
    stuck: u32,
}

impl Table {
    pub(super) fn new(shard: u8) -> Table {
        Table { shard, level: Level::SMALLEST, used: 0, stuck: 0 }
    }

    fn is_due_to_grow(&self) -> bool {
        self.used as usize * 4 > self.level.places() * 3
    }

    fn is_due_to_shrink(&self) -> bool {
        self.level.0 >= Level::PACKED && self.used as usize * 8 < self.level.places()
    }

    #[cfg(test)]
    fn used(&self) -> u32 {
        self.used
    }
}

/// Why a group could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The table is at its largest.
    Full,
    /// The system refused memory for a larger one.
    NoMemory(Errno),
}

/// The memory of all shards' tables.
pub(super) struct Tables {
    memory: Reservation,
    level_max: Level,
    /// Whether the second packed level has memory; the first always has.
    second_level: Mutex<bool>,
    resident_bytes: AtomicUsize,
    /// All tables stay at their largest.
    is_fixed: AtomicBool,
}

impl Tables {
    /// Tables that hold `groups_max` groups, even if some shards get four times their share.
    pub(super) fn new(groups_max: usize) -> Result<Tables, Errno> {
        let places = groups_max.div_ceil(SHARD_COUNT) * 4;
        let mut level_max = Level(Level::PACKED);
        while level_max.places() < places {
            level_max = level_max.up();
        }
        let memory = Reservation::new(level_max.up().offset())?;
        let first = SHARD_COUNT * Level::SMALLEST.bytes();
        const { assert!((SHARD_COUNT * Level::SMALLEST.bytes()).is_multiple_of(PAGE_SIZE)) };
        memory.commit(0, first)?;
        // SAFETY: nobody knows the memory yet.
        unsafe { populate(&memory, 0, first)? };
        Ok(Tables {
            memory,
            level_max,
            second_level: Mutex::new(false),
            resident_bytes: AtomicUsize::new(first),
            is_fixed: AtomicBool::new(false),
        })
    }

    /// Makes a table as large as it can be.
    pub(super) fn enlarge(&self, table: &mut Table) -> Result<(), Errno> {
        if table.level < self.level_max { self.resize(table, self.level_max) } else { Ok(()) }
    }

    /// From now on all tables stay as large as they are.
    pub(super) fn fix(&self) {
        self.is_fixed.store(true, Ordering::Relaxed);
    }

    fn is_fixed(&self) -> bool {
        self.is_fixed.load(Ordering::Relaxed)
    }

    fn offset(table: &Table, level: Level) -> usize {
        level.offset() + usize::from(table.shard) * level.bytes()
    }

    fn places<'a>(&'a self, table: &'a Table) -> &'a [Slot] {
        let places = self.start(table, table.level);
        // SAFETY: the current level's memory is there, zero at first, where every place is free
        // (`prepare`); nobody else uses it while the shard's lock, which guards `table`, is held.
        unsafe { core::slice::from_raw_parts(places, table.level.places()) }
    }

    fn places_mut<'a>(&'a self, table: &'a mut Table) -> &'a mut [Slot] {
        let places = self.start(table, table.level);
        // SAFETY: as in `places`; `table` is borrowed mutably, so this is the only reference.
        unsafe { core::slice::from_raw_parts_mut(places, table.level.places()) }
    }

    fn start(&self, table: &Table, level: Level) -> *mut Slot {
        // SAFETY: the reservation has room for all levels up to `level_max`.
        unsafe { self.memory.as_ptr().add(Self::offset(table, level)).cast() }
    }

    /// Where a group is.
    #[inline]
    pub(super) fn find(&self, table: &Table, group: u64, hash: u64) -> Option<usize> {
        let places = self.places(table);
        let mask = places.len() - 1;
        let mut at = home(hash, table.level) & mask;
        // There is always a free place, which ends the search; the bound is for a damaged table.
        for _ in 0..places.len() {
            let slot = places.get(at)?;
            slot.leaf?;
            if slot.group == group {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// What is at a place that [`Self::find`] or [`Self::insert`] named, with no insertion or
    /// removal since.
    #[inline]
    pub(super) fn slot(&self, table: &Table, at: usize) -> Slot {
        self.places(table).get(at).copied().unwrap_or_default()
    }

    /// Changes the number of live entries noted at a place, and returns it.
    #[inline]
    pub(super) fn add_live(&self, table: &mut Table, at: usize, change: i32) -> u32 {
        match self.places_mut(table).get_mut(at) {
            Some(slot) => {
                slot.live = slot.live.wrapping_add_signed(change);
                slot.live
            }
            None => 0,
        }
    }

    /// Makes sure that a group can be inserted.
    pub(super) fn make_room(&self, table: &mut Table) -> Result<(), NoPlace> {
        let (used, places) = (table.used as usize + 1, table.level.places());
        if used * 8 <= places * 7 {
            return Ok(());
        }
        let refusal = if table.level < self.level_max {
            match self.resize(table, table.level.up()) {
                Ok(()) => return Ok(()),
                Err(errno) => NoPlace::NoMemory(errno),
            }
        } else {
            NoPlace::Full
        };
        // Slower, but correct as long as one place stays free.
        if used < places { Ok(()) } else { Err(refusal) }
    }

    /// Adds a group that is not there. [`Self::make_room`] must have succeeded since the last
    /// insertion.
    pub(super) fn insert(&self, table: &mut Table, group: u64, hash: u64, leaf: LeafId) -> usize {
        let level = table.level;
        table.used += 1;
        put(self.places_mut(table), level, hash, Slot { group, leaf: Some(leaf), live: 0 })
    }

    /// Removes the group at a place.
    pub(super) fn remove(&self, table: &mut Table, at: usize) {
        let level = table.level;
        let places = self.places_mut(table);
        let mask = places.len() - 1;
        let (mut hole, mut at) = (at & mask, at & mask);
        for _ in 0..places.len() {
            at = (at + 1) & mask;
            let slot = places[at & mask];
            if slot.leaf.is_none() {
                break;
            }
            // It may fill the hole unless its home lies between the hole and itself.
            let home = home(hash(slot.group), level);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                places[hole] = slot;
                hole = at;
            }
        }
        places[hole] = Slot::default();
        table.used = table.used.saturating_sub(1);
        if table.used == 0 && table.level.0 >= Level::PACKED && !self.is_fixed() {
            // The smallest always has memory, so this cannot fail.
            let _ = self.resize(table, Level::SMALLEST);
        }
    }

    /// Whether [`Self::adjust`] has something to do.
    #[inline]
    pub(super) fn is_adjustment_due(&self, table: &Table) -> bool {
        !self.is_fixed()
            && (table.is_due_to_grow() && table.level < self.level_max || table.is_due_to_shrink())
    }

    /// Grows a table ahead of need, or shrinks one that has become far too large.
    pub(super) fn adjust(&self, table: &mut Table) -> Result<(), Errno> {
        if table.is_due_to_grow() && table.level < self.level_max {
            self.resize(table, table.level.up())
        } else if table.is_due_to_shrink() {
            self.resize(table, table.level.down())
        } else {
            Ok(())
        }
    }

    /// Moves a table to another size, which must have room for it.
    fn resize(&self, table: &mut Table, level: Level) -> Result<(), Errno> {
        self.prepare(table, level)?;
        let old = table.level;
        // SAFETY: the two levels' memory does not overlap; both are this shard's, whose lock is
        // held; `prepare` made the new one accessible and zero.
        let (from, to) = unsafe {
            (
                core::slice::from_raw_parts_mut(self.start(table, old), old.places()),
                core::slice::from_raw_parts_mut(self.start(table, level), level.places()),
            )
        };
        for slot in from.iter().filter(|slot| slot.leaf.is_some()) {
            put(to, level, hash(slot.group), *slot);
        }
        if old.0 < Level::PACKED {
            from.fill(Slot::default());
        } else {
            // SAFETY: the table has moved out, and `from` is not used again before `prepare`.
            match unsafe { self.memory.release(Self::offset(table, old), old.bytes()) } {
                Ok(()) => {
                    self.resident_bytes.fetch_sub(old.bytes(), Ordering::Relaxed);
                }
                // The program may have locked its memory.
                Err(_) => {
                    from.fill(Slot::default());
                    table.stuck |= 1 << old.0;
                }
            }
        }
        table.level = level;
        Ok(())
    }

    /// Puts zeroed memory behind a shard's table of this size.
    fn prepare(&self, table: &mut Table, level: Level) -> Result<(), Errno> {
        let (offset, bytes) = match level.0 {
            0 => return Ok(()),
            1 => {
                let mut done = self.second_level.lock();
                if *done {
                    return Ok(());
                }
                // All shards at once, for their tables share pages.
                let bytes = SHARD_COUNT * level.bytes();
                self.memory.commit(level.offset(), bytes)?;
                // SAFETY: nobody uses the level before it is marked.
                unsafe { populate(&self.memory, level.offset(), bytes)? };
                self.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
                *done = true;
                return Ok(());
            }
            _ => (Self::offset(table, level), level.bytes()),
        };
        if table.stuck & (1 << level.0) != 0 {
            table.stuck &= !(1 << level.0);
            return Ok(());
        }
        self.memory.commit(offset, bytes)?;
        // SAFETY: the shard's table of this size, which is not in use, under the shard's lock.
        if let Err(errno) = unsafe { populate(&self.memory, offset, bytes) } {
            // SAFETY: as above.
            if unsafe { self.memory.release(offset, bytes) }.is_err() {
                // Counted whole, though some of it may be missing.
                self.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
                table.stuck |= 1 << level.0;
            }
            return Err(errno);
        }
        self.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn range(&self) -> core::ops::Range<usize> {
        self.memory.guarded_range()
    }

    pub(super) fn pause(&self) -> PausedTables<'_> {
        PausedTables { _second_level: self.second_level.lock() }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(super) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.second_level.reset_after_fork() };
    }
}

#[cfg(test)]
impl Tables {
    /// The places of a table that have a leaf, each checked to be found.
    pub(super) fn audit(&self, table: &Table) -> Vec<Slot> {
        let slots: Vec<Slot> =
            self.places(table).iter().filter(|slot| slot.leaf.is_some()).copied().collect();
        assert_eq!(table.used() as usize, slots.len());
        for slot in &slots {
            let hash = hash(slot.group);
            assert_eq!(shard_of(hash), usize::from(table.shard));
            let at = self.find(table, slot.group, hash).expect("a place");
            assert_eq!(self.slot(table, at).leaf, slot.leaf);
        }
        slots
    }
}

pub(super) struct PausedTables<'a> {
    _second_level: MutexGuard<'a, bool>,
}

/// Puts a slot into the first free place from its home on; there is one.
fn put(places: &mut [Slot], level: Level, hash: u64, slot: Slot) -> usize {
    let mask = places.len() - 1;
    let mut at = home(hash, level) & mask;
    for _ in 0..places.len() {
        if places[at & mask].leaf.is_none() {
            break;
        }
        at = (at + 1) & mask;
    }
    places[at & mask] = slot;
    at & mask
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn insert(tables: &Tables, table: &mut Table, group: u64, leaf: u32) -> Result<(), NoPlace> {
        tables.make_room(table)?;
        tables.insert(table, group, hash(group), LeafId::new(leaf));
        Ok(())
    }

    fn check(tables: &Tables, table: &Table, model: &BTreeMap<u64, u32>) {
        assert_eq!(table.used() as usize, model.len());
        for (&group, &leaf) in model {
            let at = tables.find(table, group, hash(group)).unwrap();
            assert_eq!(tables.slot(table, at).leaf, Some(LeafId::new(leaf)));
        }
    }

    #[test]
    fn agrees_with_a_map_while_it_grows_and_shrinks() {
        let tables = Tables::new(1 << 16).unwrap();
        let first = tables.resident_bytes();
        let mut table = Table::new(5);
        let mut model = BTreeMap::new();
        let mut seed = 1u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for target in [10, 100, 3000, 40, 900, 0, 5] {
            while model.len() != target {
                let group = random() % 4096;
                if model.len() < target && !model.contains_key(&group) {
                    insert(&tables, &mut table, group, group as u32 * 3).unwrap();
                    model.insert(group, group as u32 * 3);
                } else if model.len() > target && model.remove(&group).is_some() {
                    let at = tables.find(&table, group, hash(group)).unwrap();
                    tables.remove(&mut table, at);
                    assert_eq!(tables.find(&table, group, hash(group)), None);
                }
            }
            check(&tables, &table, &model);
            while tables.is_adjustment_due(&table) {
                tables.adjust(&mut table).unwrap();
                check(&tables, &table, &model);
            }
            assert!(table.level == Level::SMALLEST || table.level.places() <= 8 * target.max(8));
        }
        // Only the two packed levels stay.
        assert_eq!(tables.resident_bytes(), first + SHARD_COUNT * Level(1).bytes());
    }

    #[test]
    fn a_wrapping_cluster_survives_removals() {
        // All groups whose home is one of the last two places of the smallest table.
        let groups: Vec<u64> =
            (0..).filter(|&g| home(hash(g), Level::SMALLEST) >= 14).take(12).collect();
        for first in 0..groups.len() {
            let tables = Tables::new(100).unwrap();
            let mut table = Table::new(0);
            for &g in &groups {
                insert(&tables, &mut table, g, g as u32).unwrap();
            }
            assert_eq!(table.level, Level::SMALLEST);
            let mut model: BTreeMap<u64, u32> = groups.iter().map(|&g| (g, g as u32)).collect();
            for i in 0..groups.len() {
                let group = groups[(first + i * 5) % groups.len()];
                let at = tables.find(&table, group, hash(group)).unwrap();
                tables.remove(&mut table, at);
                model.remove(&group);
                check(&tables, &table, &model);
            }
        }
    }

    #[test]
    fn the_largest_table_fills_to_the_last_place_but_one() {
        let tables = Tables::new(64).unwrap();
        let mut table = Table::new(63);
        let mut count = 0;
        let refusal = loop {
            match insert(&tables, &mut table, count, 1) {
                Ok(()) => count += 1,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((refusal, count), (NoPlace::Full, 255));
        assert!(tables.find(&table, 1000, hash(1000)).is_none());
        assert!((0..count).all(|g| tables.find(&table, g, hash(g)).is_some()));
    }

    #[test]
    fn levels_follow_one_another() {
        let mut level = Level::SMALLEST;
        for _ in 0..20 {
            assert_eq!(level.up().offset(), level.offset() + SHARD_COUNT * level.bytes());
            assert!(level.up().places() > level.places());
            assert!(level.down().places() * 2 > level.places() / 8 || level.0 < 2);
            level = level.up();
        }
        assert!((2..20).all(|l| Level(l).bytes().is_multiple_of(PAGE_SIZE)));
    }

    #[test]
    fn shards_share_evenly() {
        let mut counts = [0; SHARD_COUNT];
        for stride in [1u64, 64, 4096, 1 << 20] {
            (0..64_000).for_each(|i| counts[shard_of(hash(i * stride))] += 1);
        }
        assert!(counts.iter().all(|&c| (3400..4600).contains(&c)), "{counts:?}");
    }
}

//! Leaves: the entries of 64 neighbouring keys, 512 bytes each, and beside them which 64 keys.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use super::entry::Entry;
use crate::pool::memory::GrowingArray;
use crate::pool::slots::{self, Ground, PausedList, Slot, SlotList};
use crate::pool::spans::{NoSpan, PausedSpans, Spans};
use crate::pool::{Class, SPAN_BYTES};

/// Keys in a group, entries in a leaf.
pub(crate) const LEAF_ENTRIES: usize = 64;
/// A key is split into group and offset by shifting.
const _: () = assert!(LEAF_ENTRIES.is_power_of_two());
pub(crate) const LEAF_BYTES: usize = LEAF_ENTRIES * size_of::<Entry>();

static LEAF: Class = Class::of(LEAF_BYTES);
/// A span has no room besides its leaves, so that a leaf's number tells its place.
const _: () = assert!(SPAN_BYTES.is_multiple_of(LEAF_BYTES));
const LEAVES_PER_SPAN: u32 = (SPAN_BYTES / LEAF_BYTES) as u32;

/// A leaf's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafId(NonZeroU32);

impl LeafId {
    pub(super) fn new(number: u32) -> LeafId {
        LeafId(NonZeroU32::MIN.saturating_add(number))
    }

    pub(super) fn number(self) -> u32 {
        self.0.get() - 1
    }
}

pub(super) type Leaf = [Entry; LEAF_ENTRIES];

pub(super) struct Leaves {
    spans: Spans,
    list: SlotList,
    /// The group of each leaf in use, plus one; else 0. A walk over all keys, or over a large
    /// range, goes through the leaves by this array, whatever the tables do meanwhile.
    groups: GrowingArray<AtomicU64>,
    /// When an object was last stored in each leaf: see [`super::Stamp`]. Written under the shard's
    /// lock.
    stamps: GrowingArray<AtomicU32>,
    /// Held while these arrays grow.
    growing: Mutex<()>,
}

impl Leaves {
    pub(super) fn new(bytes_max: usize, reserve_bytes: usize) -> Result<Leaves, Errno> {
        let leaves_max = bytes_max / SPAN_BYTES * LEAVES_PER_SPAN as usize;
        Ok(Leaves {
            spans: Spans::new(bytes_max, reserve_bytes)?,
            list: SlotList::new(),
            groups: GrowingArray::new(leaves_max)?,
            stamps: GrowingArray::new(leaves_max)?,
            growing: Mutex::new(()),
        })
    }

    fn ground(&self) -> Ground<'_> {
        Ground { spans: &self.spans, class: &LEAF, class_number: 0 }
    }

    fn slot(leaf: LeafId) -> Slot {
        Slot {
            span: leaf.number() / LEAVES_PER_SPAN,
            number: (leaf.number() % LEAVES_PER_SPAN) as u16,
        }
    }

    /// Grows `groups` and `stamps` so that all leaves up to the last span have one.
    fn grow_arrays(&self) -> Result<(), Errno> {
        let _growing = self.growing.lock();
        let leaves = (self.spans.frontier() * LEAVES_PER_SPAN) as usize;
        self.stamps.grow(leaves)?;
        self.groups.grow(leaves)
    }

    /// A leaf for a group, with all entries empty.
    pub(super) fn alloc(&self, group: u64) -> Result<LeafId, NoSpan> {
        // SAFETY: the list has one ground.
        let slot = unsafe { self.list.alloc(self.ground())? };
        let leaf = LeafId::new(slot.span * LEAVES_PER_SPAN + u32::from(slot.number));
        // SAFETY: the leaf was taken above and is nobody else's; zero bytes are empty entries.
        unsafe { self.start(leaf).write_bytes(0, 1) };
        if leaf.number() as usize >= self.groups.len()
            && let Err(errno) = self.grow_arrays()
        {
            self.free(leaf);
            return Err(NoSpan::NoMemory(errno));
        }
        if let Some(stamp) = self.stamp(leaf.number()) {
            stamp.store(0, Ordering::Relaxed);
        }
        if let Some(place) = self.groups.get(leaf.number() as usize) {
            place.store(group + 1, Ordering::Release);
        }
        Ok(leaf)
    }

    /// Frees a leaf, which no table names any more.
    pub(super) fn free(&self, leaf: LeafId) {
        if let Some(place) = self.groups.get(leaf.number() as usize) {
            place.store(0, Ordering::Release);
        }
        // SAFETY: leaves come from this list; its group's shard gave this one up.
        unsafe { self.list.free(self.ground(), Self::slot(leaf)) };
    }

    fn start(&self, leaf: LeafId) -> *mut Leaf {
        // SAFETY: leaves have slots of this list.
        unsafe { slots::at(self.ground(), Self::slot(leaf)).cast() }
    }

    /// A leaf's entries, to read.
    ///
    /// # Safety
    /// The caller holds the lock of the shard whose table names the leaf, for as long as the
    /// result is used.
    #[inline]
    pub(super) unsafe fn get(&self, leaf: LeafId) -> &Leaf {
        // SAFETY: initialised by `alloc`, aligned to 512 bytes, guarded by the shard's lock.
        unsafe { &*self.start(leaf) }
    }

    /// A leaf's entries, to change.
    ///
    /// # Safety
    /// As [`Self::get`], and no other reference to the leaf is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The shard's lock stands for the mutable borrow.
    pub(super) unsafe fn get_mut(&self, leaf: LeafId) -> &mut Leaf {
        // SAFETY: as in `get`.
        unsafe { &mut *self.start(leaf) }
    }

    /// One more than the largest number a leaf ever had.
    pub(super) fn end(&self) -> u32 {
        self.groups.len() as u32
    }

    /// The group whose leaf has this number, if one has.
    pub(super) fn group(&self, number: u32) -> Option<u64> {
        self.groups.get(number as usize)?.load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn stamp(&self, number: u32) -> Option<&AtomicU32> {
        self.stamps.get(number as usize)
    }

    pub(super) fn refill(&self) -> Result<(), Errno> {
        self.spans.refill()?;
        self.grow_arrays()
    }

    /// Gets the memory of all leaves there can be.
    pub(super) fn prepare_only(&self) -> Result<(), Errno> {
        self.spans.prepare_only()?;
        self.spans.set_reserve(self.spans.bytes_max());
        self.refill()
    }

    pub(super) fn reserve_low(&self) -> bool {
        self.spans.reserve_low()
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.spans.resident_bytes()
            + self.spans.header_bytes()
            + self.groups.resident_bytes()
            + self.stamps.resident_bytes()
    }

    /// Leaves in use.
    pub(super) fn count(&self) -> u64 {
        self.list.counts().0
    }

    pub(super) fn spans(&self) -> &Spans {
        &self.spans
    }

    pub(super) fn ranges(&self) -> [core::ops::Range<usize>; 4] {
        let [spans, headers] = self.spans.ranges();
        [spans, headers, self.groups.range(), self.stamps.range()]
    }

    pub(super) fn pause(&self) -> PausedLeaves<'_> {
        PausedLeaves {
            _growing: self.growing.lock(),
            _list: self.list.pause(),
            _spans: self.spans.pause(),
        }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(super) unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.growing.reset_after_fork();
            self.list.reset_lock_after_fork();
            self.spans.reset_locks_after_fork();
        }
    }
}

#[cfg(test)]
impl Leaves {
    /// Checks the leaves' slots, the group numbers and the kernel's view of the memory against the
    /// leaves there are and their groups.
    pub(super) fn audit(&self, leaves: &std::collections::BTreeMap<u32, u64>) {
        use std::collections::{BTreeMap, BTreeSet};

        let mut in_use = BTreeMap::<u32, BTreeSet<u16>>::new();
        for (&number, &group) in leaves {
            assert_eq!(self.group(number), Some(group));
            let slot = Self::slot(LeafId::new(number));
            in_use.entry(slot.span).or_default().insert(slot.number);
        }
        let marked = (0..self.end()).filter(|&number| self.group(number).is_some()).count();
        assert_eq!(marked, leaves.len());
        self.list.audit(self.ground(), &in_use);
        self.spans.audit(&in_use.keys().copied().collect());
        let present: usize = self.ranges().iter().map(crate::tests::present_bytes).sum();
        assert_eq!(self.resident_bytes(), present);
    }
}

pub(super) struct PausedLeaves<'a> {
    _growing: MutexGuard<'a, ()>,
    _list: PausedList<'a>,
    _spans: PausedSpans<'a>,
}

//! Which parts of the spill file are in use.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::sync::{Mutex, MutexGuard};

use super::extent::{Extent, FIRST_BITS, UNIT_BYTES, UnitRange};
use crate::SpillShape;
use crate::pool::memory::{GrowingArray, Zeroed};

/// [`Segment::written_units`] of a segment that no entry refers to.
const FREE: u32 = 0;
/// [`Segment::written_units`] of a segment that is being written: no entry refers to it yet.
const WRITING: u32 = u32::MAX;

/// What is known of a segment.
struct Segment {
    /// The number of the write that filled it: part of the nonce of all its objects.
    sequence: AtomicU64,
    /// Units of extents that entries refer to.
    live_units: AtomicU32,
    /// [`FREE`], [`WRITING`], or the number of units written.
    written_units: AtomicU32,
}

// SAFETY: atomics only, for which zero is a value.
unsafe impl Zeroed for Segment {}

pub(crate) struct Space {
    segments: GrowingArray<Segment>,
    /// 0 where there is no spill file.
    segment_units: u32,
    segment_count_max: u32,
    /// Held while `segments` grows, and from the end of a write until the entries of all its
    /// objects refer to it: a fork copies all of that or none.
    changing: Mutex<()>,
}

impl Space {
    pub(crate) const UNIT_BYTES: u64 = UNIT_BYTES as u64;

    /// Longest spill file.
    pub(crate) const fn bytes_limit() -> usize {
        UNIT_BYTES << FIRST_BITS
    }

    pub(crate) fn new(shape: Option<SpillShape>) -> Result<Space, Errno> {
        let count = shape.map_or(0, |shape| shape.segment_count_max);
        Ok(Space {
            segments: GrowingArray::new(count)?,
            segment_units: shape.map_or(0, |shape| (shape.segment_bytes / UNIT_BYTES) as u32),
            segment_count_max: count as u32,
            changing: Mutex::new(()),
        })
    }

    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_units as usize * UNIT_BYTES
    }

    /// The segment that a place is in.
    pub(super) fn segment_number(&self, place: UnitRange) -> Option<u32> {
        place.first.checked_div(self.segment_units)
    }

    fn segment_of(&self, place: UnitRange) -> Option<&Segment> {
        self.get(self.segment_number(place)?)
    }

    fn get(&self, number: u32) -> Option<&Segment> {
        self.segments.get(number as usize)
    }

    /// First unit of a segment.
    pub(super) fn first_unit(&self, number: u32) -> u32 {
        number * self.segment_units
    }

    /// Notes that a segment is going to be written.
    ///
    /// # Errors
    /// Where there is no memory to do so.
    pub(super) fn open(&self, number: u32, sequence: u64) -> Result<(), Errno> {
        if number >= self.segment_count_max {
            return Err(Errno::INVAL);
        }
        let _changing = self.changing.lock();
        if number as usize >= self.segments.len() {
            self.segments.grow(number as usize + 1)?;
        }
        let segment = self.get(number).ok_or(Errno::NOMEM)?;
        segment.sequence.store(sequence, Ordering::Relaxed);
        segment.written_units.store(WRITING, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the segment is written and that `units` of it belong to extents; extents that no
    /// entry takes are freed afterwards. While the result lives no fork copies the space.
    pub(super) fn close(&self, number: u32, units: u32) -> PausedSpace<'_> {
        let changing = self.changing.lock();
        if let Some(segment) = self.get(number) {
            segment.live_units.store(units, Ordering::Relaxed);
            segment.written_units.store(units, Ordering::Release);
        }
        PausedSpace { _changing: changing }
    }

    /// Notes that the segment was not written.
    pub(super) fn abandon(&self, number: u32) {
        if let Some(segment) = self.get(number) {
            segment.written_units.store(FREE, Ordering::Relaxed);
        }
    }

    /// Frees an extent.
    pub(crate) fn free(&self, extent: Extent) {
        let place = extent.place();
        let units = u32::from(place.count);
        if let Some(segment) = self.segment_of(place) {
            // A damaged entry can free units that are not its own: the count stops at zero.
            let less = |live: u32| Some(live.saturating_sub(units));
            let _ = segment.live_units.fetch_update(Ordering::Release, Ordering::Relaxed, less);
        }
    }

    /// The number of the write that filled the segment of this place.
    pub(crate) fn sequence(&self, place: UnitRange) -> Option<u64> {
        Some(self.segment_of(place)?.sequence.load(Ordering::Acquire))
    }

    /// Calls `release` with each segment without live units, and forgets it.
    pub(super) fn release_empty(&self, mut release: impl FnMut(u32)) {
        for number in self.segments() {
            if self.usage(number).is_some_and(|usage| usage.live_units == 0) {
                self.abandon(number);
                release(number);
            }
        }
    }

    /// How much of a segment is in use; `None` if it is free or being written.
    pub(super) fn usage(&self, number: u32) -> Option<Usage> {
        let segment = self.get(number)?;
        match segment.written_units.load(Ordering::Acquire) {
            FREE | WRITING => None,
            written_units => {
                let live_units = segment.live_units.load(Ordering::Acquire);
                Some(Usage { written_units, live_units })
            }
        }
    }

    pub(super) fn segments(&self) -> core::ops::Range<u32> {
        0..self.segments.len() as u32
    }

    /// To be called in a forked child: forgets the segments that the parent was writing.
    pub(super) fn forget_writing(&self) {
        for number in self.segments() {
            if let Some(segment) = self.get(number)
                && segment.written_units.load(Ordering::Relaxed) == WRITING
            {
                self.abandon(number);
            }
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.segments.resident_bytes()
    }

    pub(crate) fn range(&self) -> core::ops::Range<usize> {
        self.segments.range()
    }

    pub(crate) fn pause(&self) -> PausedSpace<'_> {
        PausedSpace { _changing: self.changing.lock() }
    }

    /// # Safety
    /// As [`Mutex::reset_after_fork`].
    pub(crate) unsafe fn reset_lock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.changing.reset_after_fork() };
    }
}

/// Units of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub written_units: u32,
    pub live_units: u32,
}

/// Keeps a fork from copying the space in the middle of a change.
pub(crate) struct PausedSpace<'a> {
    _changing: MutexGuard<'a, ()>,
}

#[cfg(test)]
impl Space {
    pub(crate) fn used_segments(&self) -> usize {
        let used =
            |number: &u32| self.get(*number).unwrap().written_units.load(Ordering::Relaxed) != FREE;
        self.segments().filter(used).count()
    }

    /// Checks the live units of each segment against the extents that there are.
    pub(crate) fn audit(&self, places: impl Iterator<Item = UnitRange>) {
        let mut live = vec![0; self.segments.len()];
        let mut taken = std::collections::BTreeSet::new();
        for place in places {
            live[(place.first / self.segment_units) as usize] += u32::from(place.count);
            assert!(taken.insert(place), "{place:?} twice");
        }
        for (place, next) in taken.iter().zip(taken.iter().skip(1)) {
            assert!(place.first + u32::from(place.count) <= next.first, "two objects in one place");
        }
        for (number, live) in (0..).zip(live) {
            match self.usage(number) {
                Some(usage) => assert_eq!(usage.live_units, live, "segment {number}"),
                None => assert_eq!(live, 0, "segment {number} is free or being written"),
            }
        }
    }
}

//! Where in the spill file a page's object lies.

use core::ops::Range;

/// Extents begin and end at multiples of this many bytes. A pool's slots are multiples of 16;
/// coarser units here leave bits of the entry for a check, and waste a fiftieth of an average
/// object.
pub(crate) const UNIT_BYTES: usize = 64;

/// Bits that the number of an extent's first unit takes: files of up to 256 GiB.
pub(crate) const FIRST_BITS: u32 = 32;
/// Bits that its length in units takes.
pub(crate) const COUNT_BITS: u32 = 7;

/// A part of the spill file, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitRange {
    pub first: u32,
    pub count: u8,
}

impl UnitRange {
    /// Its bytes in the file.
    pub(crate) fn file_range(self) -> Range<u64> {
        let first = u64::from(self.first) * UNIT_BYTES as u64;
        first..first + u64::from(self.count) * UNIT_BYTES as u64
    }
}

/// The right to a part of the spill file. One that is dropped, not freed, is room lost.
#[must_use]
#[derive(Debug)]
pub(crate) struct Extent(UnitRange);

impl Extent {
    /// # Safety
    /// The caller owns these units of the file and gives them to the extent.
    pub(crate) unsafe fn new(place: UnitRange) -> Extent {
        Extent(place)
    }

    pub(crate) fn place(&self) -> UnitRange {
        self.0
    }
}

/// The place of an object in the spill file, lent by [`crate::Store::load`] to a caller that reads
/// it from there. Two of one key are equal only if the object and its place are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spilled {
    place: UnitRange,
    encoding: u8,
    /// The number of the write that put it there.
    sequence: u64,
}

impl Spilled {
    pub(crate) fn new(place: UnitRange, encoding: u8, sequence: u64) -> Spilled {
        Spilled { place, encoding, sequence }
    }

    pub(super) fn place(self) -> UnitRange {
        self.place
    }

    pub(super) fn sequence(self) -> u64 {
        self.sequence
    }

    /// The encoding that the object is in.
    pub fn encoding(self) -> u8 {
        self.encoding
    }

    /// The bytes of the file that the object lies in, encrypted.
    pub fn file_range(self) -> Range<u64> {
        self.place.file_range()
    }
}

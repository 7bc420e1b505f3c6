//! What the entries of a shard say, counted.

use super::entry::Entry;

/// What the entries say, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects in the pool.
    pub objects: u64,
    /// Pages that are one repeated word.
    pub same_filled: u64,
    /// Pages that were taken.
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
    pub(super) fn add(&mut self, entry: Entry) {
        self.objects += u64::from(entry.is_object());
        self.same_filled += u64::from(entry.is_same_filled());
        self.ghosts += u64::from(entry.is_ghost());
        self.object_bytes += entry.object_len() as u64;
        self.spilled += u64::from(entry.is_spilled());
        self.spilled_units += entry.spilled_units();
    }

    #[inline]
    pub(super) fn subtract(&mut self, entry: Entry) {
        self.objects = self.objects.wrapping_sub(u64::from(entry.is_object()));
        self.same_filled = self.same_filled.wrapping_sub(u64::from(entry.is_same_filled()));
        self.ghosts = self.ghosts.wrapping_sub(u64::from(entry.is_ghost()));
        self.object_bytes = self.object_bytes.wrapping_sub(entry.object_len() as u64);
        self.spilled = self.spilled.wrapping_sub(u64::from(entry.is_spilled()));
        self.spilled_units = self.spilled_units.wrapping_sub(entry.spilled_units());
    }

    pub(super) fn add_all(&mut self, other: &Counts) {
        self.objects += other.objects;
        self.same_filled += other.same_filled;
        self.ghosts += other.ghosts;
        self.object_bytes += other.object_bytes;
        self.spilled += other.spilled;
        self.spilled_units += other.spilled_units;
    }
}

/// What the leaves cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafCounts {
    /// Leaves in use.
    pub leaves: u64,
    /// Free spans of leaves that have memory.
    pub reserve_spans: u32,
    /// Times that a leaf needed a span and the reserve was empty.
    pub reserve_misses: u64,
    /// Times that the system did not take memory back.
    pub release_failures: u64,
}

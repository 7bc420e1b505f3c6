//! A batch: the objects that are written to the file at once. They lie one behind another in a
//! buffer of a segment's length, none over its end, so that each is in one piece and costs one
//! read.

use ramfold_sys::mem::Reservation;
use ramfold_sys::{Errno, PAGE_SIZE};

use super::SpillError;
use super::cipher::{HEADER_BYTES, SpillCipher, units_of};
use super::extent::UNIT_BYTES;
use crate::spill::extent::{Extent, UnitRange};
use crate::{Key, Store};

/// An object in a batch, and its key.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Item {
    pub(super) key: Key,
    /// The entry that named the object when it was copied.
    pub(super) bits: u64,
    /// Its first unit in the batch.
    first: u32,
    count: u8,
    pub(super) encoding: u8,
}

/// A segment's worth of memory, and what is in it.
pub(super) struct Batch<'m> {
    memory: &'m SpillMemory,
    /// Which half of it.
    half: usize,
    segment_bytes: usize,
    item_count: usize,
    units: u32,
    /// The segment that it goes to, and the number of that write.
    segment: u32,
    sequence: u64,
    /// The age that began with the batch: of objects that were in the pool, those in whose leaf
    /// something has been stored since are not settled.
    age: u32,
}

/// Memory for two batches: while one is written the other is filled.
pub struct SpillMemory {
    memory: Reservation,
    segment_bytes: usize,
}

fn items_max(segment_bytes: usize) -> usize {
    segment_bytes / UNIT_BYTES
}

impl SpillMemory {
    /// Reserves address space for segments of that many bytes; memory comes when it is used.
    ///
    /// # Errors
    /// `ENOMEM` when there is no address space.
    pub fn new(segment_bytes: usize) -> Result<SpillMemory, Errno> {
        let items_bytes =
            (items_max(segment_bytes) * size_of::<Item>()).next_multiple_of(PAGE_SIZE);
        let memory = Reservation::new(2 * (segment_bytes + items_bytes))?;
        memory.commit(0, memory.len())?;
        Ok(SpillMemory { memory, segment_bytes })
    }

    /// Addresses, the guard pages around included.
    pub fn range(&self) -> core::ops::Range<usize> {
        self.memory.guarded_range()
    }

    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    fn half_bytes(&self) -> usize {
        self.memory.len() / 2
    }
}

impl Item {
    /// Its place in the file, if it was listed ([`Batch::list`]).
    pub(super) fn place(&self) -> UnitRange {
        UnitRange { first: self.first, count: self.count }
    }
}

impl<'m> Batch<'m> {
    /// # Safety
    /// Nobody else uses this half (0 or 1) of the memory.
    pub(super) unsafe fn new(memory: &'m SpillMemory, half: usize) -> Batch<'m> {
        let segment_bytes = memory.segment_bytes;
        Batch {
            memory,
            half,
            segment_bytes,
            item_count: 0,
            units: 0,
            segment: 0,
            sequence: 0,
            age: 0,
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: both halves lie in the memory.
        unsafe { self.memory.memory.as_ptr().add(self.half * self.memory.half_bytes()) }
    }

    /// Empties the batch and makes it one for a segment.
    pub(super) fn begin(&mut self, segment: u32, sequence: u64, age: u32) {
        self.clear();
        (self.segment, self.sequence, self.age) = (segment, sequence, age);
    }

    pub(super) fn segment(&self) -> u32 {
        self.segment
    }

    pub(super) fn age(&self) -> u32 {
        self.age
    }

    pub(super) fn is_empty(&self) -> bool {
        self.item_count == 0
    }

    /// The whole buffer.
    fn buffer(&mut self) -> &mut [u8] {
        self.parts().0
    }

    fn parts(&mut self) -> (&mut [u8], &mut [Item]) {
        let (bytes, items) = (self.segment_bytes, items_max(self.segment_bytes));
        // SAFETY: committed memory of ours behind one another, aligned to pages; items may be made
        // of any bytes. Only this borrow leads to either.
        unsafe {
            let start = self.start();
            let items = core::slice::from_raw_parts_mut(start.add(bytes).cast::<Item>(), items);
            (core::slice::from_raw_parts_mut(start, bytes), items)
        }
    }

    /// Copies an object in. `false` if there is no room.
    pub(super) fn push(&mut self, key: Key, bits: u64, encoding: u8, object: &[u8]) -> bool {
        let count = units_of(object.len());
        let (first, item_count) = (self.units, self.item_count);
        let (buffer, items) = self.parts();
        let start = first as usize * UNIT_BYTES;
        let (Some(extent), Some(item)) =
            (buffer.get_mut(start..start + count * UNIT_BYTES), items.get_mut(item_count))
        else {
            return false;
        };
        let (header, rest) = extent.split_at_mut(HEADER_BYTES);
        let [low, high] = (object.len() as u16).to_le_bytes();
        header.copy_from_slice(&[low, high, encoding, 0]);
        let (place, room) = rest.split_at_mut(object.len());
        place.copy_from_slice(object);
        room.fill(0);
        *item = Item { key, bits, first, count: count as u8, encoding };
        self.units += count as u32;
        self.item_count += 1;
        true
    }

    /// Lists an object that lies in the file, for [`Self::listed`]. `false` if there is no room.
    pub(super) fn list(&mut self, key: Key, bits: u64, place: UnitRange, encoding: u8) -> bool {
        let item_count = self.item_count;
        let Some(item) = self.parts().1.get_mut(item_count) else { return false };
        *item = Item { key, bits, first: place.first, count: place.count, encoding };
        self.item_count += 1;
        true
    }

    /// The buffer, and what was listed since the batch was begun or settled.
    pub(super) fn listed(&mut self) -> (&mut [u8], &[Item]) {
        let item_count = self.item_count;
        let (buffer, items) = self.parts();
        (buffer, &items[..item_count])
    }

    pub(super) fn clear(&mut self) {
        (self.item_count, self.units) = (0, 0);
    }

    /// Encrypts the objects.
    pub(super) fn seal(&mut self, cipher: &SpillCipher, first_unit: u32) -> Result<(), SpillError> {
        let (sequence, item_count) = (self.sequence, self.item_count);
        let (buffer, items) = self.parts();
        for item in &items[..item_count] {
            let start = item.first as usize * UNIT_BYTES;
            let extent = &mut buffer[start..start + usize::from(item.count) * UNIT_BYTES];
            cipher.seal(sequence, first_unit + item.first, extent)?;
        }
        // The rest of the last page has bytes of an earlier batch, encrypted for another segment.
        let end = self.units as usize * UNIT_BYTES;
        let written = end.next_multiple_of(PAGE_SIZE);
        self.buffer()[end..written].fill(0);
        Ok(())
    }

    /// The bytes to write: whole pages.
    pub(super) fn sealed_bytes(&mut self) -> &[u8] {
        let written = (self.units as usize * UNIT_BYTES).next_multiple_of(PAGE_SIZE);
        &self.buffer()[..written]
    }

    /// Makes the entries of the objects, which are written, name their new places, except entries
    /// that may have changed meanwhile. Returns how many do. For an object that was moved in the
    /// file (`is_moved`) an equal entry is enough: its old place is given to no other object before
    /// its segment is free.
    pub(super) fn settle(&mut self, store: &Store, is_moved: bool) -> u64 {
        let _changing = store.space.close(self.segment, self.units);
        let first_unit = store.space.first_unit(self.segment);
        let mut settled = 0;
        let (since, item_count) = ((!is_moved).then_some(self.age), self.item_count);
        for item in &self.parts().1[..item_count] {
            // SAFETY: the segment is ours, and each part of it is given to one object.
            let extent = unsafe {
                Extent::new(UnitRange { first: first_unit + item.first, count: item.count })
            };
            settled += u64::from(store.settle(item.key, item.bits, since, extent, item.encoding));
        }
        self.item_count = 0;
        settled
    }

    /// Gives the memory back to the system until the batch is used again.
    pub(super) fn release(&mut self) {
        let half = self.memory.half_bytes();
        // Where the program has locked its memory it stays.
        // SAFETY: nothing is in the batch.
        let _ = unsafe { self.memory.memory.release(self.half * half, half) };
    }
}

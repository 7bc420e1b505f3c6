//! The spill file: where objects go that the pool has no room for.
//!
//! The oldest objects leave the pool as they are, compressed, in batches that are written at once
//! (paper 001: a page is never split over two buffers, so that reading it is one access to the
//! disk; a read changes nothing in the cache). From then on their entries name a place in the file.
//! The file is divided into segments of a batch each, written from the start. A segment's room is
//! used again when all its objects have been freed, and `clean` moves what is left of segments that
//! are nearly empty.
//!
//! No lock is held during a write. Afterwards each entry is compared with what it was when its
//! object was copied: one that has changed keeps its object, and the copy is forgotten. Where
//! writing fails all objects stay where they were.
//!
//! This module knows no file: a [`Disk`] writes and reads, and [`Claims`] tell which segments are
//! this store's, since several processes may share a file.

mod batch;
mod cipher;
mod clean;
mod extent;
mod file;
mod fill;
mod space;

use core::ops::Range;

use ramfold_sys::Errno;
use thiserror::Error;

use batch::Batch;
pub use batch::SpillMemory;
pub use cipher::{KEY_BYTES, SpillCipher};
pub use extent::Spilled;
pub(crate) use extent::{COUNT_BITS, Extent, FIRST_BITS, UnitRange};
pub use file::SpillWriter;
pub(crate) use space::{PausedSpace, Space};

use crate::{Store, StoreError};

/// The shortest segment, in bytes: room for a few objects.
pub(crate) const SEGMENT_BYTES_MIN: usize = 64 << 10;
/// The longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: usize = 4 << 20;

const _: () = {
    // An object and what seals it fit the shortest segment: it is written in one piece.
    assert!(cipher::units_of(crate::OBJECT_BYTES_MAX) * extent::UNIT_BYTES <= SEGMENT_BYTES_MIN);
    // Writes are of whole pages, from the start of a segment on.
    assert!(SEGMENT_BYTES_MIN.is_multiple_of(ramfold_sys::PAGE_SIZE));
    // An object's place in a batch and the units of a batch are 32-bit numbers.
    assert!(SEGMENT_BYTES_MAX / extent::UNIT_BYTES <= u32::MAX as usize);
};

/// Writes and reads the spill file. Offsets and lengths of writes are in bytes, whole pages.
pub trait Disk {
    /// Begins to write. At most one write is under way.
    ///
    /// # Safety
    /// The bytes stay where they are, unchanged, until [`Self::finish_write`] has returned.
    unsafe fn begin_write(&mut self, offset: u64, bytes: &[u8]);

    /// Waits until the write is done.
    ///
    /// # Errors
    /// Why not all of it was written.
    fn finish_write(&mut self) -> Result<(), Errno>;

    /// Reads whole pages. Bytes behind the end of the file are zeros.
    ///
    /// # Errors
    /// Why not all of it could be read.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno>;
}

/// Divides the segments of a file among the stores that share it.
pub trait Claims {
    /// Takes a free segment; `None` where the file has none.
    fn claim(&mut self) -> Option<u32>;

    /// Gives back a segment.
    fn release(&mut self, segment: u32);

    /// Gives back all segments of this store but those for which `is_used` returns `true`.
    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool);

    /// A number that no other write under this key has: it is part of the nonce.
    fn next_sequence(&mut self) -> u64;
}

/// What went wrong with the spill file. Nothing that is in RAM is lost by it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpillError {
    /// All segments are in use.
    #[error("the spill file is full: all of its segments are in use")]
    Full,

    /// A batch could not be written.
    #[error("cannot write {len} bytes at offset {offset} of the spill file: {errno}")]
    Write {
        /// Where in the file, in bytes.
        offset: u64,
        /// Bytes.
        len: usize,
        /// The disk's answer.
        errno: Errno,
    },

    /// A segment could not be read.
    #[error("cannot read {len} bytes at offset {offset} of the spill file: {errno}")]
    Read {
        /// Where in the file, in bytes.
        offset: u64,
        /// Bytes.
        len: usize,
        /// The disk's answer.
        errno: Errno,
    },

    /// The bytes there are not those that were written: their authentication code does not fit.
    #[error(
        "bytes {} to {} of the spill file are not what was written there",
        range.start,
        range.end
    )]
    Damaged {
        /// Where in the file, in bytes.
        range: Range<u64>,
    },

    /// An object could not be encrypted.
    #[error("the object for unit {first} of the spill file cannot be encrypted")]
    Cipher {
        /// Its first unit of 64 bytes in the file.
        first: u32,
    },

    /// There is no memory for the table of segments.
    #[error("the system gave no memory to account for a segment: {0}")]
    NoMemory(Errno),
}

/// Which objects are written to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choose {
    /// Those that were stored longest ago, and those that fill a page.
    Oldest,
    /// Those that fill a page: in the pool they save nothing.
    Raw,
}

/// What a [`Spill`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillCounts {
    /// Pages whose objects have left the pool.
    pub pages_written: u64,
    /// Pages whose objects were moved in the file, to make room.
    pub pages_moved: u64,
    /// Bytes written, with copies of objects that were freed or replaced meanwhile.
    pub bytes_written: u64,
    /// Writes that succeeded.
    pub writes: u64,
}

/// Writes a store's objects to a file. A store has one of it; reading does not need it.
pub struct Spill<'m, D, C> {
    disk: D,
    claims: C,
    /// While one is written the other is filled.
    batches: [Batch<'m>; 2],
    /// Which one is filled next.
    next: usize,
    /// The other one is being written.
    under_way: Option<UnderWay>,
    /// The leaf to look at next, and the entry in it.
    hand: (u32, usize),
    /// Leaves that were visited for the batch that is being filled.
    looked_at: usize,
    /// Ages for which nothing may have been stored in a leaf.
    least_age: u32,
    /// A segment that is kept as the target of [`Self::clean`] when all others are full.
    spare: Option<u32>,
    counts: SpillCounts,
}

struct UnderWay {
    /// Which of the batches it is.
    half: usize,
    /// Leaves that it was filled from, the ones before the hand. Its objects are in the pool, too,
    /// until the batch is settled.
    leaves: usize,
    offset: u64,
    len: usize,
    /// Its objects were in the file already.
    is_moved: bool,
}

impl<'m, D: Disk, C: Claims> Spill<'m, D, C> {
    /// A spill that has the memory to itself.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_memory(
        store: &Store,
        memory: &'m mut SpillMemory,
        disk: D,
        claims: C,
    ) -> Result<Self, StoreError> {
        // SAFETY: it is borrowed exclusively.
        unsafe { Spill::new(store, memory, disk, claims) }
    }

    /// A spill of `store` that works in `memory`.
    ///
    /// # Errors
    /// [`StoreError::Config`] when the store has a spill file of other segments, or none.
    ///
    /// # Safety
    /// Nobody else uses the memory.
    pub unsafe fn new(
        store: &Store,
        memory: &'m SpillMemory,
        disk: D,
        claims: C,
    ) -> Result<Self, StoreError> {
        let (segment_bytes, wanted) = (store.space.segment_bytes(), memory.segment_bytes());
        if segment_bytes != wanted {
            let (field, min) = ("the length of a segment", segment_bytes);
            return Err(StoreError::Config { field, value: wanted, min, max: min });
        }
        // SAFETY: nobody else uses either half (the caller).
        let batches = unsafe { [Batch::new(memory, 0), Batch::new(memory, 1)] };
        Ok(Spill {
            disk,
            claims,
            batches,
            next: 0,
            under_way: None,
            hand: (0, 0),
            looked_at: 0,
            least_age: 0,
            spare: None,
            counts: SpillCounts::default(),
        })
    }

    /// Fills a batch, waits until the one before is written, and begins to write it. Where the file
    /// is full, segments are cleaned first. `false` if there was nothing to write.
    ///
    /// # Errors
    /// Why the batch before was not written, or why this one cannot be. Its objects stay in the
    /// pool.
    pub fn write(
        &mut self,
        store: &Store,
        cipher: &SpillCipher,
        choose: Choose,
    ) -> Result<bool, SpillError> {
        if self.spare.is_none() {
            self.spare = self.claim(store);
        }
        let segment = match self.claim(store) {
            Some(segment) => segment,
            None if self.clean(store, cipher)? => self.claim(store).ok_or(SpillError::Full)?,
            None => return Err(SpillError::Full),
        };
        self.begin(store, segment)?;
        if let Err(error) = self.fill(store, choose) {
            self.give_up(store, segment);
            return Err(error);
        }
        self.send(store, cipher, false)
    }

    /// Waits until the batch under way is written.
    ///
    /// # Errors
    /// Why it was not. Its objects stay where they were.
    pub fn finish(&mut self, store: &Store) -> Result<(), SpillError> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        let written = self.disk.finish_write();
        self.close(store, under_way, written)
    }

    /// Settles the batch that was written, or gives its segment back.
    fn close(
        &mut self,
        store: &Store,
        under_way: UnderWay,
        written: Result<(), Errno>,
    ) -> Result<(), SpillError> {
        let UnderWay { half, offset, len, is_moved, .. } = under_way;
        let batch = &mut self.batches[half];
        match written {
            Ok(()) => {
                let pages = batch.settle(store, is_moved);
                self.counts.writes += 1;
                self.counts.bytes_written += len as u64;
                if is_moved {
                    self.counts.pages_moved += pages;
                } else {
                    self.counts.pages_written += pages;
                }
                Ok(())
            }
            Err(errno) => {
                let segment = batch.segment();
                self.give_up(store, segment);
                Err(SpillError::Write { offset, len, errno })
            }
        }
    }

    /// To be called in a forked child, which has a copy of its parent's store: gives back the
    /// segments that the parent kept or was writing.
    pub fn begin_child(&mut self, store: &Store) {
        store.space.forget_writing();
        self.claims.retain(&mut |segment| store.space.usage(segment).is_some());
    }

    /// Gives back the segments whose objects have all been freed.
    pub fn release_empty(&mut self, store: &Store) {
        let claims = &mut self.claims;
        store.space.release_empty(|segment| claims.release(segment));
    }

    /// Gives back the memory of the buffers until they are needed again.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn rest(&mut self, store: &Store) -> Result<(), SpillError> {
        self.finish(store)?;
        self.batches.iter_mut().for_each(Batch::release);
        Ok(())
    }

    /// What was done so far.
    pub fn counts(&self) -> SpillCounts {
        self.counts
    }

    /// Bytes that are being written.
    pub fn bytes_under_way(&self) -> usize {
        self.under_way.as_ref().map_or(0, |batch| batch.len)
    }

    /// Gives back a segment to which nothing was written.
    fn give_up(&mut self, store: &Store, segment: u32) {
        store.space.abandon(segment);
        self.claims.release(segment);
    }

    fn claim(&mut self, store: &Store) -> Option<u32> {
        if let Some(segment) = self.claims.claim() {
            return Some(segment);
        }
        self.release_empty(store);
        self.claims.claim()
    }

    /// Begins a batch for this segment.
    fn begin(&mut self, store: &Store, segment: u32) -> Result<(), SpillError> {
        let sequence = self.claims.next_sequence();
        if let Err(errno) = store.space.open(segment, sequence) {
            self.claims.release(segment);
            return Err(SpillError::NoMemory(errno));
        }
        self.batches[self.next].begin(segment, sequence, store.index.begin_age());
        Ok(())
    }

    /// Begins to write the batch, if anything is in it.
    fn send(
        &mut self,
        store: &Store,
        cipher: &SpillCipher,
        is_moved: bool,
    ) -> Result<bool, SpillError> {
        let batch = &mut self.batches[self.next];
        let segment = batch.segment();
        let first_unit = store.space.first_unit(segment);
        let sealed = if batch.is_empty() { Ok(()) } else { batch.seal(cipher, first_unit) };
        let empty = batch.is_empty();
        let before = self.under_way.take().map(|before| (before, self.disk.finish_write()));
        let failed = before.as_ref().is_some_and(|(_, written)| written.is_err());
        let begun = !empty && sealed.is_ok() && !failed;
        if begun {
            let offset = u64::from(first_unit) * Space::UNIT_BYTES;
            let half = self.next;
            let bytes = self.batches[half].sealed_bytes();
            let (leaves, len) = (self.looked_at, bytes.len());
            self.under_way = Some(UnderWay { half, leaves, offset, len, is_moved });
            // SAFETY: the batch is not touched before `finish_write` has waited for the write.
            unsafe { self.disk.begin_write(offset, bytes) };
            self.next = 1 - half;
        } else {
            self.give_up(store, segment);
        }
        // The batch before is settled while the disk writes this one.
        let closed = match before {
            Some((before, written)) => self.close(store, before, written),
            None => Ok(()),
        };
        sealed.and(closed).map(|()| begun)
    }
}

#[cfg(test)]
impl<D, C> Spill<'_, D, C> {
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.is_some()
    }
}

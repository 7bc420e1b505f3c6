//! The spill file: where objects go that the pool has no room for.
//!
//! The oldest objects leave the pool as they are, compressed, in batches that are written at once
//! (paper 001: a page is never split over two buffers, so that reading it is one access to the disk; a
//! read changes nothing in the cache). From then on their entries name a place in the file. The file is
//! divided into segments of a batch each, written from the start; a segment's room is used again when
//! all that was in it has gone, and `clean` moves what is left of segments that are nearly empty.
//!
//! A write goes on without a lock. It is known afterwards whether an entry still says what it said: an
//! entry that has changed meanwhile keeps its object, and the copy is forgotten. Where writing fails
//! all stay where they were.
//!
//! This module knows no file: a [`Disk`] writes and reads, and [`Claims`] say which segments are this
//! store's, for several processes may share a file.

mod batch;
mod cipher;
mod extent;
mod file;
mod space;

use core::ops::Range;

use ramfold_codec::encodings::WORD;
use ramfold_sys::Errno;
use thiserror::Error;

pub use batch::SpillMemory;
use batch::{Batch, Item};
pub use cipher::{KEY_BYTES, SpillCipher};
pub use extent::Spilled;
pub(crate) use extent::{COUNT_BITS, Extent, FIRST_BITS, Place};
pub use file::SpillWriter;
pub(crate) use space::{PausedSpace, Space};

use crate::index::{LEAF_ENTRIES, Stamp, View};
use crate::{OBJECT_BYTES_MAX, Store, StoreError};

/// Segments have at least so many bytes: a few objects.
pub(crate) const SEGMENT_BYTES_MIN: usize = 64 << 10;
/// And at most so many.
pub const SEGMENT_BYTES_MAX: usize = 4 << 20;

/// Entries looked at under one hold of a lock: at most that many objects are copied meanwhile.
const ENTRIES_AT_ONCE: usize = 8;

/// Of the leaves that hold objects, the oldest one in so many are written next.
const OLDEST_SHARE: u32 = 8;

/// Segments whose rest is moved together at most.
const CLEANED_AT_ONCE: usize = 16;

/// Where the bytes go. Offsets and lengths are whole pages when writing.
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

    /// Reads whole pages. What lies behind the end of the file is zeros.
    ///
    /// # Errors
    /// Why not all of it could be read.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno>;
}

/// Whose segments are whose.
pub trait Claims {
    /// Takes a segment that is nobody's; `None` where the file has no more room.
    fn claim(&mut self) -> Option<u32>;

    /// Gives back a segment.
    fn release(&mut self, segment: u32);

    /// Gives back all segments but those for which this is true.
    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool);

    /// A number that no write under this key has had or will have.
    fn next_sequence(&mut self) -> u64;
}

/// What went wrong with the spill file. Nothing that is in RAM is lost by it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpillError {
    /// All segments are in use.
    #[error("the spill file is full: all of its segments are in use")]
    Full,

    #[error("cannot write {len} bytes at offset {offset} of the spill file: {errno}")]
    Write { offset: u64, len: usize, errno: Errno },

    #[error("cannot read {len} bytes at offset {offset} of the spill file: {errno}")]
    Read { offset: u64, len: usize, errno: Errno },

    /// What is there is not what was written: its authentication code does not fit.
    #[error("bytes {} to {} of the spill file are not what was written there", range.start, range.end)]
    Damaged { range: Range<u64> },

    #[error("the object for unit {first} of the spill file cannot be encrypted")]
    Cipher { first: u32 },

    #[error("the system gave no memory to account for a segment: {0}")]
    NoMemory(Errno),
}

/// Which objects are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choose {
    /// Those that were stored longest ago, and those that fill a page.
    Oldest,
    /// Those that fill a page: in the pool they save nothing.
    Raw,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillCounts {
    /// Pages whose objects have left the pool.
    pub pages_written: u64,
    /// Pages whose objects were moved in the file, to make room.
    pub pages_moved: u64,
    /// Bytes written, what did not count in the end included.
    pub bytes_written: u64,
    /// Writes that were done.
    pub writes: u64,
}

/// Writes a store's objects to a file. One for a store; reading needs none.
pub struct Spill<'m, D, C> {
    disk: D,
    claims: C,
    /// One is written while the other is filled.
    batches: [Batch<'m>; 2],
    /// Which one is filled next.
    next: usize,
    /// The other one is being written.
    under_way: Option<UnderWay>,
    /// The leaf to look at next, and the entry in it.
    hand: (u32, usize),
    /// Leaves that were looked at for the batch that is being filled.
    looked_at: usize,
    /// Ages since which a leaf must have been left alone.
    least_age: u32,
    /// A segment that is kept to move things to when all others are full.
    spare: Option<u32>,
    counts: SpillCounts,
}

struct UnderWay {
    /// Which of the batches it is.
    half: usize,
    /// Leaves that it was filled from, those before the hand: what it holds is in the pool, too, until it is
    /// settled.
    leaves: usize,
    offset: u64,
    len: usize,
    /// It was in the file already.
    is_moved: bool,
}

impl<'m, D: Disk, C: Claims> Spill<'m, D, C> {
    /// With memory that is nobody else's.
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

    /// # Errors
    /// When the store has a spill file of other segments, or none.
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

    /// Fills a batch and begins to write it, when the one before is done. Where the file is full, room is
    /// made first: see [`Self::clean`]. `false` if there was nothing to write.
    ///
    /// # Errors
    /// Why that was not written, or why this cannot be. Its objects stay in the pool.
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

    /// Waits for what is being written.
    ///
    /// # Errors
    /// Why it was not. Its objects stay where they were.
    pub fn finish(&mut self, store: &Store) -> Result<(), SpillError> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        let written = self.disk.finish_write();
        self.close(store, under_way, written)
    }

    /// Settles what was written, or forgets it.
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

    /// Where segments are nearly empty: moves what is left of several into one. Says whether there was
    /// something to gain.
    ///
    /// # Errors
    /// Why something could not be read or written. It stays where it was.
    pub fn clean(&mut self, store: &Store, cipher: &SpillCipher) -> Result<bool, SpillError> {
        self.finish(store)?;
        let Some(victims) = self.victims(store) else { return Ok(false) };
        let segment = self.spare.take().or_else(|| self.claim(store)).ok_or(SpillError::Full)?;
        self.begin(store, segment)?;
        if let Err(error) = self.copy_rest(store, cipher, &victims) {
            self.give_up(store, segment);
            return Err(error);
        }
        self.send(store, cipher, true)?;
        self.finish(store)?;
        self.release_empty(store);
        self.spare = self.claims.claim();
        Ok(true)
    }

    /// In a forked child, which has a copy of its parent's store: gives back what the parent had in hand
    /// or was writing.
    pub fn begin_child(&mut self, store: &Store) {
        store.space.forget_writing();
        self.claims.retain(&mut |segment| store.space.usage(segment).is_some());
    }

    /// Gives back the segments in which nothing is left.
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

    pub fn counts(&self) -> SpillCounts {
        self.counts
    }

    /// Bytes that are being written.
    pub fn bytes_under_way(&self) -> usize {
        self.under_way.as_ref().map_or(0, |batch| batch.len)
    }

    /// Nothing was written to a segment after all.
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
        // While the disk is busy again.
        let closed = match before {
            Some((before, written)) => self.close(store, before, written),
            None => Ok(()),
        };
        sealed.and(closed).map(|()| begun)
    }

    /// Copies objects from the pool into the batch until it is full, or all leaves were looked at but those
    /// that the batch before was filled from.
    ///
    /// # Errors
    /// Why that one was not written.
    fn fill(&mut self, store: &Store, choose: Choose) -> Result<(), SpillError> {
        let leaves = store.index.leaf_numbers();
        let under_way = |spill: &Self| spill.under_way.as_ref().map_or(0, |batch| batch.leaves);
        if under_way(self) >= leaves.len() {
            self.finish(store)?;
        }
        // Of one that it ended in there is a part left.
        let mut left = leaves.len() - under_way(self) + usize::from(self.hand.1 > 0);
        self.looked_at = 0;
        while left > 0 {
            self.looked_at += 1;
            if self.hand.0 >= leaves.end {
                self.hand = (0, 0);
            }
            if self.hand == (0, 0) || self.looked_at == 1 {
                self.least_age = least_age(store);
            }
            if !self.copy_leaf(store, choose) {
                break;
            }
            self.hand = (self.hand.0 + 1, 0);
            left -= 1;
        }
        Ok(())
    }

    /// Copies what is left in the leaf at the hand into the batch. `false` when the batch is full: the hand is
    /// at what found no room then, for what did is in the pool until it is written.
    fn copy_leaf(&mut self, store: &Store, choose: Choose) -> bool {
        let (number, begin) = self.hand;
        let stamp = store.index.stamp_of(number);
        let batch = &mut self.batches[self.next];
        let age = stamp.age(batch.age());
        let all = choose == Choose::Oldest && age >= self.least_age;
        // What was stored since the batch was begun could not be settled.
        if stamp == Stamp::NOTHING || age == 0 || !(all || stamp.has_raw()) {
            return true;
        }
        let (mut found, mut room) = (begin > 0, true);
        for first in (begin..LEAF_ENTRIES).step_by(ENTRIES_AT_ONCE) {
            let offsets = first..(first + ENTRIES_AT_ONCE).min(LEAF_ENTRIES);
            store.index.visit_leaf(number, offsets, |key, bits, view| {
                let View::Object { object, encoding } = view else { return true };
                if encoding == WORD || !(all || object.len() == OBJECT_BYTES_MAX) {
                    return true;
                }
                found = true;
                // One that is damaged stays, for whoever loads it to be told.
                if let Some(bytes) = store.checked(key, encoding, object) {
                    room = batch.push(key, bits, encoding, bytes);
                }
                if !room {
                    self.hand.1 = key as usize % LEAF_ENTRIES;
                }
                room
            });
            if !room {
                return false;
            }
        }
        // Those in the batch are still in the pool: that they have left is found next time round.
        if !found {
            let to = if all { Stamp::NOTHING } else { stamp.without_raw() };
            store.index.change_stamp(number, stamp, to);
        }
        true
    }

    /// The segments with the least in them, as many as fit into one with all that is left in them;
    /// `None` where none would be gained.
    fn victims(&self, store: &Store) -> Option<[Option<u32>; CLEANED_AT_ONCE]> {
        let mut victims = [None; CLEANED_AT_ONCE];
        let mut units = [u32::MAX; CLEANED_AT_ONCE];
        for number in store.space.segments() {
            let Some(usage) = store.space.usage(number) else { continue };
            // The emptiest so far, in order.
            let place = units.partition_point(|&units| units <= usage.live_units);
            if usage.live_units > 0 && place < CLEANED_AT_ONCE {
                victims[place..].rotate_right(1);
                units[place..].rotate_right(1);
                (victims[place], units[place]) = (Some(number), usage.live_units);
            }
        }
        let room = (store.space.segment_bytes() / Space::UNIT_BYTES as usize) as u32;
        let (mut total, mut count) = (0, 0);
        while count < CLEANED_AT_ONCE && units[count] < room && total + units[count] <= room {
            total += units[count];
            count += 1;
        }
        victims[count..].fill(None);
        (count >= 2).then_some(victims)
    }

    /// Copies what is left in some segments of the file into the batch.
    fn copy_rest(
        &mut self,
        store: &Store,
        cipher: &SpillCipher,
        victims: &[Option<u32>],
    ) -> Result<(), SpillError> {
        let (one, other) = self.batches.split_at_mut(1);
        let (batch, rest) = match self.next {
            0 => (&mut one[0], &mut other[0]),
            _ => (&mut other[0], &mut one[0]),
        };
        rest.clear();
        let is_victim = |place| victims.contains(&store.space.segment_number(place));
        for number in store.index.leaf_numbers() {
            store.index.visit_leaf(number, 0..LEAF_ENTRIES, |key, bits, view| match view {
                View::Spilled { place, encoding, .. } if is_victim(place) => {
                    // What finds no room stays where it is.
                    rest.list(key, bits, place, encoding)
                }
                _ => true,
            });
        }
        for &victim in victims.iter().flatten() {
            let Some(usage) = store.space.usage(victim) else { continue };
            let first_unit = store.space.first_unit(victim);
            let offset = u64::from(first_unit) * Space::UNIT_BYTES;
            let len = (usage.written_units as usize * Space::UNIT_BYTES as usize)
                .next_multiple_of(ramfold_sys::PAGE_SIZE);
            let (buffer, listed) = rest.listed();
            let bytes = &mut buffer[..len];
            self.disk.read(offset, bytes).map_err(|errno| SpillError::Read {
                offset,
                len,
                errno,
            })?;
            let here = |item: &&Item| store.space.segment_number(item.place()) == Some(victim);
            for item in listed.iter().filter(here) {
                let (place, range) = (item.place(), item.place().file_range());
                let extent = bytes
                    .get_mut((range.start - offset) as usize..(range.end - offset) as usize)
                    .ok_or(SpillError::Damaged { range })?;
                let Some(sequence) = store.space.sequence(place) else { continue };
                let spilled = Spilled::new(place, item.encoding, sequence);
                batch.push(item.key, item.bits, item.encoding, cipher.open(spilled, extent)?);
            }
        }
        Ok(())
    }
}

/// The age that one in [`OLDEST_SHARE`] of the leaves that hold objects has reached.
fn least_age(store: &Store) -> u32 {
    /// Four for each doubling.
    const STEPS: usize = 32 * 4;
    let step_of = |age: u32| {
        let log = age.max(1).ilog2();
        let rest = if log < 2 { 0 } else { age >> (log - 2) & 3 };
        (log * 4 + rest) as usize
    };
    let first_of = |step: usize| {
        let (log, rest) = ((step / 4) as u32, (step % 4) as u32);
        if log < 2 { 1 << log } else { 1 << log | rest << (log - 2) }
    };
    let now = store.index.age();
    let mut counts = [0u32; STEPS];
    let mut total = 0;
    for number in store.index.leaf_numbers() {
        let stamp = store.index.stamp_of(number);
        if stamp != Stamp::NOTHING {
            counts[step_of(stamp.age(now))] += 1;
            total += 1;
        }
    }
    let mut older = 0;
    for step in (0..STEPS).rev() {
        older += counts[step];
        if older > total / OLDEST_SHARE {
            return first_of(step);
        }
    }
    1
}

#[cfg(test)]
impl<D, C> Spill<'_, D, C> {
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.is_some()
    }
}

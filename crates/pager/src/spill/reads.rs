//! Reads of the spill file, several at a time, while the fault handler goes on.
//!
//! A page of a stream is read with those ahead of it, as far as they lie near it in the file: they
//! were written one behind another. What was read is believed only if the store says afterwards
//! what it said before.

use core::ops::Range;

use ramfold_policy::memory::stream::WINDOW_MAX;
use ramfold_store::Spilled;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::fd::AsFd;

use super::{ReadError, SpillAccess};
use crate::kernel::uring::Ring;
use crate::page::PageNumber;

/// Reads at a time.
const READS_MAX: usize = 16;
/// Of these, so many are for pages that somebody waits for.
const KEPT_FOR_FAULTS: usize = 8;
/// Longest read: what a window of pages takes that do not compress.
const READ_BYTES_MAX: usize = 144 << 10;
/// Most bytes that objects which are read together lie in.
const WANTED_BYTES_MAX: usize = READ_BYTES_MAX - 2 * PAGE_SIZE;
/// Pages that lie further apart in the file are not read together.
const GAP_BYTES_MAX: usize = 16 << 10;
/// Faults that wait for a read to become free.
const WAITING_MAX: usize = 32;
/// A read that fails is tried so many times before the program is told.
const ATTEMPTS: usize = 3;

/// A buffer for each read, and one for [`SpillAccess::read_now`].
pub(super) const BUFFERS_BYTES: usize = (READS_MAX + 1) * READ_BYTES_MAX;

/// A page and where its object was when the read began.
pub(super) type Wanted = (PageNumber, Spilled);

/// One read.
struct Read {
    pages: [Option<Wanted>; WINDOW_MAX],
    count: usize,
    /// The bytes of the file that the objects lie in; once it has begun, those that are read.
    range: Range<u64>,
    /// When its fault's message was read; `None` if it is of pages ahead only.
    started_ns: Option<u64>,
    /// It was made at once.
    done: bool,
}

/// The reads that are under way.
#[derive(Default)]
pub(crate) struct Reads {
    /// `None` until the first read, or where io_uring is not allowed.
    ring: Option<Ring>,
    has_tried: bool,
    reads: [Option<Read>; READS_MAX],
    waiting: [usize; WAITING_MAX],
    waiting_count: usize,
}

/// What was read.
pub(crate) struct Finished {
    pub pages: [Option<Wanted>; WINDOW_MAX],
    pub started_ns: Option<u64>,
    index: usize,
    offset: u64,
}

impl Reads {
    /// How many there are.
    pub(crate) fn under_way(&self) -> usize {
        self.reads.iter().flatten().count()
    }

    /// What tells that a read is done; `None` where none is under way.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref().filter(|ring| ring.under_way() > 0)
    }

    /// Reads that were made at once are done before anybody waits.
    pub(crate) fn is_done(&self) -> bool {
        self.reads.iter().flatten().any(|read| read.done)
    }

    /// Is this page being read?
    pub(crate) fn has(&self, page: PageNumber) -> bool {
        let is = |wanted: &Option<Wanted>| wanted.is_some_and(|(wanted, _)| wanted == page);
        self.reads.iter().flatten().any(|read| read.pages[..read.count].iter().any(is))
    }

    /// A page that is read twice at the same time, if one is.
    #[cfg(test)]
    pub(crate) fn read_twice(&self) -> Option<PageNumber> {
        let reads = self.reads.iter().flatten();
        let pages: Vec<_> =
            reads.flat_map(|read| read.pages.into_iter().flatten()).map(|(page, _)| page).collect();
        let again = |(nth, page): (usize, &PageNumber)| pages[..nth].contains(page);
        pages.iter().enumerate().find(|&place| again(place)).map(|(_, &page)| page)
    }

    /// Begins a list of pages to read together, with the page of a fault; `None` if there are too
    /// many reads.
    pub(crate) fn begin(&mut self, first: Wanted, started_ns: u64) -> Option<usize> {
        self.begin_with(first, Some(started_ns))
    }

    /// Begins a list of pages ahead; `None` if the reads left are kept for faults.
    pub(crate) fn begin_ahead(&mut self, first: Wanted) -> Option<usize> {
        let free = self.reads.iter().filter(|read| read.is_none()).count();
        if free > KEPT_FOR_FAULTS { self.begin_with(first, None) } else { None }
    }

    fn begin_with(&mut self, first: Wanted, started_ns: Option<u64>) -> Option<usize> {
        let index = self.reads.iter().position(Option::is_none)?;
        let mut pages = [None; WINDOW_MAX];
        pages[0] = Some(first);
        let range = first.1.file_range();
        self.reads[index] = Some(Read { pages, count: 1, range, started_ns, done: false });
        Some(index)
    }

    /// Adds a page to the list, if it lies near the others in the file.
    pub(crate) fn add(&mut self, index: usize, wanted: Wanted) -> bool {
        let Some(read) = &mut self.reads[index] else { return false };
        let range = wanted.1.file_range();
        let both = read.range.start.min(range.start)..read.range.end.max(range.end);
        let gap = (len(&both)).saturating_sub(len(&read.range) + len(&range));
        if len(&both) > WANTED_BYTES_MAX || gap > GAP_BYTES_MAX || read.count == WINDOW_MAX {
            return false;
        }
        read.pages[read.count] = Some(wanted);
        read.count += 1;
        read.range = both;
        true
    }

    /// Begins to read what is in a list.
    pub(crate) fn submit(&mut self, access: &SpillAccess, index: usize) {
        if !self.has_tried {
            self.has_tried = true;
            self.ring = Ring::new(READS_MAX as u32).ok();
        }
        let Some(read) = &mut self.reads[index] else { return };
        read.range = access.file.whole(read.range.clone());
        let (offset, len) = (read.range.start, len(&read.range));
        let buffer = buffer(access, index);
        if let Some(ring) = &mut self.ring {
            // SAFETY: the buffer is this read's until its completion was seen, and the file stays
            // open as long as the process lives.
            let begun =
                unsafe { ring.read(access.file.as_fd(), offset, buffer, len, index as u64) };
            if begun.is_ok() {
                return;
            }
        }
        // Read when its completion is asked for.
        read.done = true;
    }

    /// A read that is done, if any is. Its pages are then this caller's to bring in.
    ///
    /// # Errors
    /// For a page: why it cannot be read.
    pub(crate) fn finish(
        &mut self,
        access: &SpillAccess,
    ) -> Result<Option<Finished>, (PageNumber, ReadError)> {
        let completion = self.ring.as_mut().and_then(Ring::complete);
        let (index, bytes_read) = match completion {
            Some(completion) => (completion.token as usize, completion.result.unwrap_or(0)),
            None => {
                match self.reads.iter().position(|read| read.as_ref().is_some_and(|r| r.done)) {
                    Some(index) => (index, 0),
                    None => return Ok(None),
                }
            }
        };
        let Some(read) = self.reads.get_mut(index).and_then(Option::take) else { return Ok(None) };
        if bytes_read < len(&read.range)
            && let Err(errno) = read_at(access, index, read.range.clone())
        {
            let page = read.pages[0].map_or(0, |(page, _)| page);
            return Err((page, ReadError::System(errno)));
        }
        let Read { pages, started_ns, range, .. } = read;
        Ok(Some(Finished { pages, started_ns, index, offset: range.start }))
    }

    /// A fault for which there was no read free is to try again when one is. `false` if too many
    /// wait.
    pub(crate) fn wait(&mut self, address: usize) -> bool {
        let place = self.waiting.get_mut(self.waiting_count);
        let has_room = place.is_some();
        if let Some(place) = place {
            *place = address;
            self.waiting_count += 1;
        }
        has_room
    }

    /// Those that wait, who do so no longer.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = usize> + use<> {
        let waiting = self.waiting;
        waiting.into_iter().take(core::mem::take(&mut self.waiting_count))
    }
}

impl Finished {
    /// The object of one of the pages, decrypted.
    ///
    /// # Errors
    /// If it is not what was written there.
    pub(crate) fn open<'b>(
        &self,
        access: &'b SpillAccess,
        spilled: Spilled,
    ) -> Result<&'b [u8], ReadError> {
        open_at(access, self.index, self.offset, spilled)
    }
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

fn buffer(access: &SpillAccess, index: usize) -> *mut u8 {
    // SAFETY: there is a buffer for each read.
    unsafe { access.buffers.as_ptr().add(index * READ_BYTES_MAX) }
}

/// Reads into a buffer, waiting for it.
fn read_at(access: &SpillAccess, index: usize, range: Range<u64>) -> Result<(), Errno> {
    // SAFETY: the buffer is the caller's, and long enough.
    let bytes = unsafe { core::slice::from_raw_parts_mut(buffer(access, index), len(&range)) };
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = access.file.read_at(range.start, bytes);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn open_at(
    access: &SpillAccess,
    index: usize,
    offset: u64,
    spilled: Spilled,
) -> Result<&[u8], ReadError> {
    let range = spilled.file_range();
    let start = (range.start - offset) as usize;
    // SAFETY: the object lies in what was read into the buffer, which is the caller's until the
    // next read takes it, and no other reference to this part of it is alive.
    let extent =
        unsafe { core::slice::from_raw_parts_mut(buffer(access, index).add(start), len(&range)) };
    let opened = access.cipher.open(spilled, extent);
    opened.map_err(ReadError::Spill)
}

impl SpillAccess {
    /// Reads an object at once, for somebody who can wait, and lends it to `f`.
    ///
    /// # Errors
    /// What is to be said about it.
    pub(crate) fn read_now<R>(
        &self,
        spilled: Spilled,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, ReadError> {
        let range = self.file.whole(spilled.file_range());
        let offset = range.start;
        read_at(self, READS_MAX, range).map_err(ReadError::System)?;
        open_at(self, READS_MAX, offset, spilled).map(f)
    }
}

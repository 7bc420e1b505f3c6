//! The shared table: all that the program must not lose when its own memory goes wrong.
//!
//! It lies in a memfd mapped `MAP_SHARED`, which a pager of anonymous private memory leaves alone,
//! which children see as it is now (not as it was at the fork), and which the watchdog, a process
//! of its own, can read when every thread here is stuck.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::errno::Errno;
use crate::memory::Mapping;

/// Threads that can be told apart, the coordinator included.
pub(crate) const THREADS_MAX: usize = 65;
/// Operations remembered for each region.
pub(crate) const HISTORY: usize = 48;
/// Counters on each page of the counter region.
pub(crate) const COUNTERS_PER_PAGE: usize = 4;

const MAGIC: u64 = 0x746f_7274_7572_6531;

#[repr(C)]
pub(crate) struct Header {
    magic: u64,
    regions: u64,
    slots: u64,
    counters: u64,
    /// Not 0 when somebody has begun to report a failure.
    pub failing: AtomicU32,
    /// Set by the watchdog, and a futex: the program shall end as one that hangs.
    pub give_up: AtomicU32,
    /// Signals handled so far.
    pub signals: AtomicU64,
    /// Pages compared so far, by all threads and children.
    pub pages_checked: AtomicU64,
    /// Children that were forked.
    pub children: AtomicU64,
}

/// What a thread is doing, for the watchdog.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// The slot is not in use, or its thread has nothing to do.
    Idle = 0,
    Working = 1,
    /// Waits for another thread, whose own slot shows whether it gets on.
    Waiting = 2,
}

#[repr(C)]
pub(crate) struct ThreadSlot {
    pub heartbeat: AtomicU64,
    /// Operations begun by this thread.
    pub turns: AtomicU64,
    pub operation: AtomicU32,
    pub activity: AtomicU32,
    pub tid: AtomicU32,
}

/// Where a region lies. Written under the region's lock only; `sequence` is odd meanwhile.
#[repr(C)]
pub(crate) struct RegionShape {
    pub sequence: AtomicU64,
    pub address: AtomicU64,
    pub pages: AtomicU64,
    /// Index of the region's first page slot, and how many it has: fixed.
    pub first_slot: AtomicU64,
    pub capacity: AtomicU64,
}

/// What a page holds. `sequence` is odd while the page is being written, and only grows.
#[repr(C)]
pub(crate) struct PageSlot {
    pub sequence: AtomicU64,
    pub content: AtomicU64,
}

/// Bounds for a counter in tortured memory: it has at least what was completed and at most what
/// was started.
#[repr(C)]
pub(crate) struct CounterSlot {
    pub started: AtomicU64,
    pub completed: AtomicU64,
}

#[repr(C)]
pub(crate) struct HistoryEntry {
    /// Operation (16 bits), thread (16 bits), the thread's turn (32 bits).
    pub what: AtomicU64,
    /// First page (32 bits), pages (32 bits).
    pub range: AtomicU64,
}

#[repr(C)]
pub(crate) struct RegionHistory {
    pub next: AtomicU64,
    pub entries: [HistoryEntry; HISTORY],
}

/// How many of each kind of record there are.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub regions: usize,
    pub slots: usize,
    pub counters: usize,
}

struct Layout {
    threads: usize,
    histories: usize,
    shapes: usize,
    slots: usize,
    counters: usize,
    bytes: usize,
}

impl Layout {
    fn of(sizes: Sizes) -> Self {
        let threads = size_of::<Header>().next_multiple_of(64);
        let histories = threads + THREADS_MAX * size_of::<ThreadSlot>();
        let shapes = histories + sizes.regions * size_of::<RegionHistory>();
        let slots = shapes + sizes.regions * size_of::<RegionShape>();
        let counters = slots + sizes.slots * size_of::<PageSlot>();
        let bytes = counters + sizes.counters * size_of::<CounterSlot>();
        Self { threads, histories, shapes, slots, counters, bytes }
    }
}

/// The part of the table that says what memory holds. A snapshot has the same three arrays.
#[derive(Clone, Copy)]
pub(crate) struct Records<'t> {
    pub shapes: &'t [RegionShape],
    pub slots: &'t [PageSlot],
    pub counters: &'t [CounterSlot],
}

impl Records<'_> {
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { regions: self.shapes.len(), slots: self.slots.len(), counters: self.counters.len() }
    }

    /// Bytes that `carve` needs.
    pub(crate) fn bytes(sizes: Sizes) -> usize {
        sizes.regions * size_of::<RegionShape>()
            + sizes.slots * size_of::<PageSlot>()
            + sizes.counters * size_of::<CounterSlot>()
    }

    /// Lays the arrays out over zeroed shared memory.
    pub(crate) fn carve(mapping: &Mapping, sizes: Sizes) -> Records<'_> {
        assert!(mapping.bytes() >= Self::bytes(sizes));
        let shapes = mapping.address();
        let slots = shapes + sizes.regions * size_of::<RegionShape>();
        let counters = slots + sizes.slots * size_of::<PageSlot>();
        // SAFETY: the assertion above gives the room; the records are made of atomics only, for
        // which all bit patterns are valid; the mapping outlives the borrow.
        unsafe {
            Records {
                shapes: records(shapes, sizes.regions),
                slots: records(slots, sizes.slots),
                counters: records(counters, sizes.counters),
            }
        }
    }
}

/// # Safety
/// `count` records of type `T`, made of atomics only, lie from `address` for `'t`.
unsafe fn records<'t, T>(address: usize, count: usize) -> &'t [T] {
    // SAFETY: by the contract of this function.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), count) }
}

pub(crate) struct Table {
    pub header: &'static Header,
    pub threads: &'static [ThreadSlot],
    pub histories: &'static [RegionHistory],
    pub records: Records<'static>,
}

impl Table {
    /// Makes the table. The descriptor is for the watchdog and is inherited by exec.
    pub(crate) fn create(sizes: Sizes) -> Result<(Self, OwnedFd), Errno> {
        let layout = Layout::of(sizes);
        // SAFETY: the name is a C string.
        let raw = unsafe { libc::memfd_create(c"torture-table".as_ptr(), 0) };
        if raw < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the descriptor was made just now and is owned by nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a plain system call on an open descriptor.
        if unsafe { libc::ftruncate(raw, layout.bytes as libc::off_t) } != 0 {
            return Err(Errno::last());
        }
        let (address, _) = Mapping::file(raw, layout.bytes, libc::MAP_SHARED)?.release();
        let header: *mut Header = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the mapping has room for a header and nobody else knows of it yet.
        unsafe {
            (*header).magic = MAGIC;
            (*header).regions = sizes.regions as u64;
            (*header).slots = sizes.slots as u64;
            (*header).counters = sizes.counters as u64;
        }
        // SAFETY: the mapping was given up above, so it stays for good, and has `layout.bytes`.
        Ok((unsafe { Self::at(address, sizes) }, descriptor))
    }

    /// Maps a table made by another process.
    pub(crate) fn attach(descriptor: &OwnedFd) -> Result<Self, Errno> {
        // SAFETY: all bit patterns are valid for the C structure; fstat fills it in.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        if unsafe { libc::fstat(descriptor.as_raw_fd(), &mut status) } != 0 {
            return Err(Errno::last());
        }
        let bytes = status.st_size as usize;
        if bytes < size_of::<Header>() {
            return Err(Errno(libc::EINVAL));
        }
        let mapping = Mapping::file(descriptor.as_raw_fd(), bytes, libc::MAP_SHARED)?;
        let header: *const Header = std::ptr::with_exposed_provenance(mapping.address());
        // SAFETY: the mapping has room for a header, whose constant fields were written before
        // the descriptor was handed over.
        let (magic, sizes) = unsafe {
            (
                (*header).magic,
                Sizes {
                    regions: (*header).regions as usize,
                    slots: (*header).slots as usize,
                    counters: (*header).counters as usize,
                },
            )
        };
        if magic != MAGIC || Layout::of(sizes).bytes != bytes {
            return Err(Errno(libc::EINVAL));
        }
        let (address, _) = mapping.release();
        // SAFETY: the mapping was given up, so it stays for good; its size was checked.
        Ok(unsafe { Self::at(address, sizes) })
    }

    /// # Safety
    /// A table of these sizes is mapped at `address` for good.
    unsafe fn at(address: usize, sizes: Sizes) -> Self {
        let layout = Layout::of(sizes);
        // SAFETY: by the contract of this function; all records are made of atomics, and the
        // header's plain fields are not written any more.
        unsafe {
            Self {
                header: &*std::ptr::with_exposed_provenance(address),
                threads: records(address + layout.threads, THREADS_MAX),
                histories: records(address + layout.histories, sizes.regions),
                records: Records {
                    shapes: records(address + layout.shapes, sizes.regions),
                    slots: records(address + layout.slots, sizes.slots),
                    counters: records(address + layout.counters, sizes.counters),
                },
            }
        }
    }

    /// Remembers that a thread's present operation touches these pages.
    pub(crate) fn remember(&self, region: usize, thread: usize, first: usize, pages: usize) {
        let slot = &self.threads[thread];
        let history = &self.histories[region];
        let index = history.next.fetch_add(1, SeqCst) as usize % HISTORY;
        let entry = &history.entries[index];
        let operation = u64::from(slot.operation.load(SeqCst));
        let turn = slot.turns.load(SeqCst) & 0xffff_ffff;
        entry.what.store(operation << 48 | (thread as u64) << 32 | turn, SeqCst);
        entry.range.store((first as u64) << 32 | pages as u64 & 0xffff_ffff, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_sees_the_same_table() {
        let sizes = Sizes { regions: 3, slots: 100, counters: 8 };
        let (table, descriptor) = Table::create(sizes).unwrap();
        let other = Table::attach(&descriptor).unwrap();
        table.records.slots[99].content.store(7, SeqCst);
        table.records.counters[7].started.store(8, SeqCst);
        table.threads[THREADS_MAX - 1].tid.store(9, SeqCst);
        assert_eq!(other.records.slots[99].content.load(SeqCst), 7);
        assert_eq!(other.records.counters[7].started.load(SeqCst), 8);
        assert_eq!(other.threads[THREADS_MAX - 1].tid.load(SeqCst), 9);
        assert_eq!(other.records.shapes.len(), 3);
    }

    #[test]
    fn strangers_are_refused() {
        // SAFETY: the name is a C string.
        let raw = unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: made just now.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        assert!(Table::attach(&descriptor).is_err());
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::ftruncate(raw, 1 << 16) }, 0);
        assert!(Table::attach(&descriptor).is_err());
    }
}

//! A compressed cache before a file or a block device: the system of paper 001.
//!
//! Pages lie in the memory of a disk ([`Inner`]) as they do without a backing, but for what a
//! missing page means: it is in the backing, at its place there, uncompressed. Writes put pages
//! into the cache. They are dirty until they are in the backing; the oldest are written there in
//! batches, in the order of their places, and the oldest that are not dirty leave. Reads use what
//! is there; with shared paths they put pages there too.
//!
//! | module | what it holds |
//! |---|---|
//! | `config`, `statistics` | what is asked for; what has happened |
//! | `place`, `swap_place` | the file or block device; the same where swap waits for it |
//! | `marks` | what is known of a page: whether it is dirty, how old it is |
//! | `pages`, `prefetch` | how pages are read and changed; how they come before they are read |
//! | `write_back` | how pages get into the backing |
//! | `cleaner` | which pages are written back and leave when the memory runs short |
//!
//! Locks, in the order in which a thread may take them: the flush's, one of a region (who writes to
//! the backing there has it), one of a page. Nobody waits for room with any of them.

mod cleaner;
mod config;
mod marks;
mod pages;
mod place;
mod prefetch;
mod statistics;
mod swap_place;
#[cfg(test)]
mod tests;
mod write_back;

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::keeper::{Keeper, PATIENCE};
use super::runs::Runs;
use super::workspace::{Workspace, Workspaces};
use super::{DiskConfig, GROUP, Inner, PAGE, Part, ZEROS, parts};
use crate::kernel::Backing;
use crate::{BlockDevice, DeviceError, Durability, Extent, Zeroing};
use cleaner::Cleaner;
pub use config::{BackingConfig, BackingError, Lost, Paths, Tell};
use marks::{Hinted, Marks};
use place::{Chunk, FilePlace, Place};
pub use statistics::BackingStatistics;
use statistics::Counters;
use swap_place::SwapPlace;
use write_back::{Flush, Regions, Syncs, is_fast};

/// A compressed cache before a file or a block device.
pub struct BackedDisk {
    shared: Arc<Shared>,
    /// Ends when it is dropped.
    _keeper: Keeper,
}

/// What requests and the keeper share.
struct Shared {
    inner: Arc<Inner>,
    place: Box<dyn Place>,
    name: String,
    size_bytes: u64,
    is_read_only: bool,
    write_through: bool,
    reads_fill: bool,
    marks: Marks,
    regions: Regions,
    flush: Mutex<Flush>,
    syncs: Mutex<Syncs>,
    /// One for each workspace.
    buffers: Box<[Mutex<Box<Chunk>>]>,
    trouble: Trouble,
    counters: Counters,
}

impl BackedDisk {
    /// Opens the backing and makes a cache before it.
    ///
    /// # Errors
    /// [`BackingError`]: why there can be none.
    pub fn new(config: &BackingConfig) -> Result<BackedDisk, BackingError> {
        let place = FilePlace::open(config)?;
        let size_bytes = place.bytes();
        let place: Box<dyn Place> = match config.for_swap {
            true => Box::new(SwapPlace::new(place, &config.path)?),
            false => Box::new(place),
        };
        BackedDisk::before(place, size_bytes, config)
    }

    fn before(
        place: Box<dyn Place>,
        size_bytes: u64,
        config: &BackingConfig,
    ) -> Result<BackedDisk, BackingError> {
        for (name, percent) in [
            ("the batch", config.batch_percent),
            ("the share of dirty pages where cleaning begins", config.clean_above_percent),
        ] {
            if !(1..=100).contains(&percent) {
                return Err(BackingError::Percent { name, percent });
            }
        }
        let disk = DiskConfig {
            codec: config.codec,
            deduplicate: false,
            clusters: false,
            threads: config.threads.max(1),
            for_swap: config.for_swap,
            ..DiskConfig::new(size_bytes.next_multiple_of(PAGE as u64), config.memory_bytes)
        };
        let list = cleaner::list_capacity(config.memory_bytes);
        let other_bytes = (disk.threads + 1) * size_of::<Chunk>()
            + Workspaces::bytes_each(disk.needs())
            + 2 * list * size_of::<u64>()
            + Marks::BYTES
            + Hinted::BYTES
            + Regions::BYTES
            + size_of::<Shared>();
        let inner = Arc::new(Inner::new(&disk, None, Some(other_bytes))?);
        let shared = Arc::new(Shared {
            inner: Arc::clone(&inner),
            place,
            name: config.path.display().to_string(),
            size_bytes,
            is_read_only: config.read_only,
            write_through: config.write_through,
            reads_fill: config.paths == Paths::Shared,
            marks: Marks::new(),
            regions: Regions::new(),
            flush: Mutex::new(Flush::new(list)),
            syncs: Mutex::default(),
            buffers: (0..disk.threads).map(|_| Mutex::new(chunk())).collect(),
            trouble: Trouble { now: Mutex::default(), tell: config.tell.clone() },
            counters: Counters::default(),
        });
        let cleaner = Cleaner::new(&shared, config, list)?;
        let keeper = Keeper::start(&inner, disk.recompress_after, Some(Box::new(cleaner)))?;
        Ok(BackedDisk { shared, _keeper: keeper })
    }

    /// What its data lies in.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn backing(&self) -> io::Result<Backing> {
        let Shared { place, size_bytes, write_through, is_read_only, .. } = &*self.shared;
        let file = place.file().ok_or(io::ErrorKind::Unsupported)?;
        Backing::of(file, *size_bytes, *write_through, *is_read_only)
    }
}

fn chunk() -> Box<Chunk> {
    Box::new(Chunk([0; place::CHUNK_BYTES]))
}

/// Whether the backing fails.
struct Trouble {
    now: Mutex<Option<Errno>>,
    tell: Option<Tell>,
}

impl Shared {
    /// Counts and tells of an error of the backing.
    fn note(&self, what: &str, result: Result<(), Errno>) -> Result<(), DeviceError> {
        let Err(errno) = result else { return Ok(()) };
        self.counters.write_errors.add(1);
        let mut now = self.trouble.now.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = now.replace(errno) == Some(errno);
        drop(now);
        if let (Some(tell), false) = (&self.trouble.tell, is_known) {
            let advice = match errno {
                Errno::NOSPC | Errno::DQUOT => "make room there",
                _ => "see to the disk",
            };
            tell(&format!(
                "{what} {}: {errno}; {} bytes that are not there stay in memory: {advice} before \
                 this ends",
                self.name,
                self.dirty_bytes()
            ));
        }
        Err(self.error(what, errno))
    }

    /// Tells that the backing has all again, where it had failed before.
    fn note_all_is_well(&self) {
        let mut now = self.trouble.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.take().is_some()
            && let Some(tell) = &self.trouble.tell
        {
            tell(&format!("{} can be written again", self.name));
        }
    }

    fn error(&self, what: &str, errno: Errno) -> DeviceError {
        match errno {
            Errno::NOSPC | Errno::DQUOT => DeviceError::NoRoom,
            errno => DeviceError::Failed(format!("{what} {}: {errno}", self.name)),
        }
    }

    fn trouble_now(&self) -> Option<Errno> {
        *self.trouble.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirty_bytes(&self) -> u64 {
        self.marks.dirty.load(Ordering::Relaxed) * PAGE as u64
    }

    /// Does something that needs room, again after there is some.
    fn with_room(
        &self,
        mut attempt: impl FnMut(&mut Workspace) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        loop {
            let evicted = self.counters.evicted.get();
            let done = attempt(&mut self.inner.workspaces.take());
            match done {
                // Without the workspace, so that others go on meanwhile.
                Err(DeviceError::NoRoom) => self.wait_for_room(evicted)?,
                done => return done,
            }
        }
    }

    /// Waits until the cache has room. `evicted`: how many pages had left when it had none.
    fn wait_for_room(&self, evicted: u64) -> Result<(), DeviceError> {
        self.counters.waits.add(1);
        let mut in_vain = 0;
        loop {
            match self.inner.keeping.wait_for_room(PATIENCE) {
                Some(true) => return Ok(()),
                // The backing takes its time.
                None => {}
                // There may have been some before the wait began.
                Some(false) if self.counters.evicted.get() != evicted => return Ok(()),
                // As long as the backing is well, pages leave sooner or later.
                Some(false) if self.trouble_now().is_none() && in_vain < ROUNDS_IN_VAIN => {
                    in_vain += 1;
                }
                Some(false) => {
                    return Err(self.trouble_now().map_or(DeviceError::NoRoom, |errno| {
                        self.error("cannot write to", errno)
                    }));
                }
            }
        }
    }

    /// Calls the keeper from time to time.
    fn call_keeper(&self, pages: u64) {
        self.marks.count_written(pages);
        let before = self.counters.pages_since_call.add(pages);
        if self.inner.store.reserve_low() || before + pages >= PAGES_BETWEEN_CALLS {
            self.counters.pages_since_call.reset();
            self.inner.keeping.call();
        }
    }

    fn write(
        &self,
        offset: u64,
        mut data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        if self.is_read_only {
            return Err(DeviceError::ReadOnly);
        }
        let bytes = data.len() as u64;
        for Part { block, from, bytes } in parts(offset, bytes) {
            let (part, rest) = data.split_at(bytes);
            data = rest;
            self.with_room(|workspace| self.put_part(workspace, block, from, part))?;
        }
        self.counters.writes.add(1);
        self.counters.bytes_written.add(bytes);
        self.call_keeper(bytes.div_ceil(PAGE as u64));
        self.settle(offset, bytes, durability)
    }

    /// Has the pages of a range in the backing, and all durable, where that is asked for.
    fn settle(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), DeviceError> {
        if durability == Durability::AtOnce && bytes > 0 {
            let end = (offset + bytes).div_ceil(PAGE as u64);
            return self.write_range_durably(offset / PAGE as u64..end);
        }
        self.write_through(offset, offset + bytes, durability)
    }

    fn write_through(&self, from: u64, to: u64, until: Durability) -> Result<(), DeviceError> {
        if from == to || !self.write_through && until == Durability::AtFlush {
            return Ok(());
        }
        self.write_range(from / PAGE as u64..to.div_ceil(PAGE as u64))
    }

    /// Makes a range zeros, or trims it.
    fn clear(
        &self,
        offset: u64,
        bytes: u64,
        zeroing: Option<Zeroing>,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        if self.is_read_only {
            return Err(DeviceError::ReadOnly);
        }
        let end = offset + bytes;
        let whole = self.whole_pages(offset, bytes);
        if whole.is_empty() {
            if is_fast(zeroing) {
                return Err(DeviceError::NotFast);
            }
            self.write_zeros(offset, end)?;
            return self.settle(offset, bytes, durability);
        }
        let (first, last) = (whole.start * PAGE as u64, (whole.end * PAGE as u64).min(end));
        self.clear_pages(whole, zeroing)?;
        for (from, to) in [(offset, first), (last, end)] {
            self.write_zeros(from, to)?;
            self.write_through(from, to, durability)?;
        }
        if durability == Durability::AtOnce { self.sync() } else { Ok(()) }
    }

    fn write_zeros(&self, offset: u64, end: u64) -> Result<(), DeviceError> {
        parts(offset, end - offset).try_for_each(|Part { block, from, bytes }| {
            self.with_room(|workspace| self.put_part(workspace, block, from, &ZEROS[..bytes]))
        })
    }

    /// The whole pages of a range; a page that the device ends in is whole up to there.
    fn whole_pages(&self, offset: u64, bytes: u64) -> Range<u64> {
        let end = offset + bytes;
        let last =
            if end == self.size_bytes { end.div_ceil(PAGE as u64) } else { end / PAGE as u64 };
        offset.div_ceil(PAGE as u64)..last
    }

    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let cached = |bytes| Extent { bytes, is_allocated: true, is_zero: false };
        // A range of the backing that has been looked at, and whether it is data.
        let mut known: (Range<u64>, bool) = (0..0, true);
        let mut runs = Runs::new(each);
        let mut live = (u64::MAX, 0);
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let block = at / PAGE as u64;
            if live.0 != block / GROUP {
                live = (block / GROUP, self.inner.store.live_of_group(block));
                // What has left the cache since is in the backing: that is looked at afterwards.
                known = (0..0, true);
            }
            let page_end = ((block + 1) * PAGE as u64).min(end);
            let extent = if live.1 >> (block % GROUP) & 1 != 0 {
                cached(page_end - at)
            } else {
                if !known.0.contains(&at) {
                    known = match self.place.next_data(at) {
                        Some(data) if data.start <= at => (at..data.end.max(at + 1), true),
                        Some(data) => (at..data.start, false),
                        None => (at..u64::MAX, false),
                    };
                }
                let bytes = known.0.end.min(page_end) - at;
                Extent { bytes, is_allocated: known.1, is_zero: !known.1 }
            };
            at += extent.bytes;
            runs.add(extent)?;
        }
        runs.end()
    }
}

/// So often a write waits for room that does not come though nothing has failed.
const ROUNDS_IN_VAIN: u32 = 8;
/// Pages that are written between two calls of the keeper.
const PAGES_BETWEEN_CALLS: u64 = 256;

impl BlockDevice for BackedDisk {
    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.shared.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.shared.write(offset, data, durability)
    }

    fn trim(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), DeviceError> {
        self.shared.clear(offset, bytes, None, durability)
    }

    fn zero(
        &self,
        offset: u64,
        bytes: u64,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.shared.clear(offset, bytes, Some(zeroing), durability)
    }

    /// Writes all to the backing that is not there, and has it durable.
    fn flush(&self) -> Result<(), DeviceError> {
        if self.shared.is_read_only { Ok(()) } else { self.shared.flush() }
    }

    /// Brings pages of the range into the cache: 16 MiB at most, and no more than fill a quarter of
    /// its pool.
    fn prefetch(
        &self,
        offset: u64,
        bytes: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        self.shared.prefetch(offset, bytes, goes_on)
    }

    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        let _ = self.shared.extents(offset, bytes, each);
        Ok(())
    }
}

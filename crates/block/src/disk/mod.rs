//! A disk in RAM, its data compressed.
//!
//! Pages of 4 KiB lie in a [`Store`] under their number. A page of zeros has no entry there, and
//! one that is another word repeated has no object; one that does not compress is an object as it
//! is; and pages that are equal refer to one object. What has not been written for a while is
//! compressed once more, for density, or leaves for the spill file. One limit covers all memory.
//!
//! | module | what it holds |
//! |---|---|
//! | `config`, `statistics` | what the disk is asked to be; what it has become |
//! | `pages` | how one page is read and written |
//! | `clusters` | four pages that are used in order, as one object |
//! | `dedup` | where equal pages are found, and how many refer to one object |
//! | `workspace`, `page_locks` | what a request works with; who changes a page |
//! | `random` | keys |
//! | `room` | the limit of the memory |
//! | `keeper`, `recompress`, `spill` | the thread that looks after the disk, and what it does |
//! | `filler` | a thread that has memory ready, where the keeper must not wait for it |
//! | `backing` | the same memory as a cache before a file or a block device |

mod backing;
mod clusters;
mod config;
mod dedup;
mod filler;
mod keeper;
mod page_locks;
mod pages;
mod random;
mod recompress;
mod room;
mod runs;
mod spill;
mod statistics;
#[cfg(test)]
mod tests;
mod workspace;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ramfold_codec::{PAGE_SIZE as PAGE, Page};
use ramfold_store::{Config, Store};

pub use backing::{BackedDisk, BackingConfig, BackingError, BackingStatistics, Lost, Paths, Tell};
use clusters::{Clusters, UNIT};
pub use config::{DiskConfig, DiskError, SpillConfig};
use dedup::{Dedup, PageHash};
use keeper::{Keeper, Keeping};
use page_locks::PageLocks;
use room::Room;
use runs::Runs;
use spill::SpillFile;
pub use statistics::DiskStatistics;
use workspace::{Workspaces, add};

use crate::{BlockDevice, DeviceError, Durability, Extent, Zeroing};

/// Keys of the store's groups, which [`Store::live_of_group`] shows together.
const GROUP: u64 = 64;
const ZEROS: Page = [0; PAGE];
/// Requests of a workspace between two calls of the keeper.
const WRITES_BETWEEN_CALLS: u64 = 512;

/// A disk in RAM, its data compressed. Everything is gone when it is dropped.
pub struct Disk {
    inner: Arc<Inner>,
    /// Ends when it is dropped.
    _keeper: Keeper,
}

/// What requests and the keeper share.
struct Inner {
    store: Store,
    size_bytes: u64,
    pages: u64,
    dedup: Option<Dedup>,
    clusters: Option<Clusters>,
    locks: PageLocks,
    workspaces: Workspaces,
    room: Room,
    spill: Option<SpillFile>,
    keeping: Keeping,
    recompressed: AtomicU64,
    /// Pages that refer to shared objects.
    references: AtomicU64,
    for_swap: bool,
    /// Somebody else makes room too, and needs the locks of pages for it.
    has_outlet: bool,
}

impl Disk {
    /// Makes a disk that reads as zeros.
    ///
    /// # Errors
    /// [`DiskError`]: why there can be none of this size in this memory.
    pub fn new(config: DiskConfig) -> Result<Disk, DiskError> {
        let hash =
            if config.deduplicate { Some(PageHash::new().map_err(DiskError::Key)?) } else { None };
        Disk::with_hash(config, hash)
    }

    fn with_hash(config: DiskConfig, hash: Option<PageHash>) -> Result<Disk, DiskError> {
        let recompress_after = config.recompress_after;
        let inner = Arc::new(Inner::new(&config, hash, None)?);
        let keeper = Keeper::start(&inner, recompress_after, None)?;
        Ok(Disk { inner, _keeper: keeper })
    }

    /// What the disk holds, costs, and has done.
    pub fn statistics(&self) -> DiskStatistics {
        self.inner.statistics()
    }
}

impl Inner {
    /// Memory, tables and buffers; `outlet`: bytes of the memory that an outlet has.
    fn new(
        config: &DiskConfig,
        hash: Option<PageHash>,
        outlet: Option<usize>,
    ) -> Result<Inner, DiskError> {
        let other_bytes = outlet.unwrap_or(0);
        let plan = config.plan(other_bytes)?;
        let spill = config
            .spill
            .as_ref()
            .map(|spill| SpillFile::new(spill, config.memory_bytes))
            .transpose()?;
        let threads = config.threads.max(1);
        let (codec, needs) = (config.codec, config.needs());
        let workspaces =
            Workspaces::new(threads, needs).map_err(|source| DiskError::Codec { codec, source })?;
        let store = Store::new(&Config {
            pool_bytes_max: plan.memory_bytes,
            reserve_bytes: plan.reserve_bytes,
            metadata_bytes_max: plan.index_bytes_max,
            spill: spill.as_ref().map(SpillFile::shape),
        })?;
        if config.for_swap {
            store.use_prepared_memory_only()?;
        }
        let dedup = hash.map(|hash| Dedup::new(hash, plan.pages, plan.objects_max));
        if let Some(dedup) = dedup.as_ref().filter(|_| config.for_swap) {
            dedup.prepare();
        }
        let clusters = needs.has_clusters.then(|| Clusters::new(plan.pages, config.memory_bytes));
        let own_bytes = threads * Workspaces::bytes_each(needs)
            + recompress::bytes(config.recompress_after, needs.has_clusters)
            + config.cluster_bytes()
            + dedup.as_ref().map_or(0, Dedup::bytes)
            + spill.as_ref().map_or(0, SpillFile::memory_bytes)
            + PageLocks::BYTES
            + size_of::<Inner>()
            + other_bytes;
        let room = Room::new(&plan, own_bytes);
        store.limit_pool(room.pool_bytes(&store));
        store.refill_reserve()?;
        Ok(Inner {
            store,
            size_bytes: config.size_bytes,
            pages: plan.pages,
            dedup,
            clusters,
            locks: PageLocks::new(if needs.has_clusters { UNIT } else { 1 }),
            workspaces,
            room,
            spill,
            keeping: Keeping::default(),
            recompressed: AtomicU64::new(0),
            references: AtomicU64::new(0),
            for_swap: config.for_swap,
            has_outlet: outlet.is_some(),
        })
    }
}

/// A part of a request that lies in one page.
struct Part {
    block: u64,
    /// First byte in the page.
    from: usize,
    bytes: usize,
}

/// A range of bytes, page by page.
fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let (mut at, end) = (offset, offset + bytes);
    std::iter::from_fn(move || {
        let from = (at % PAGE as u64) as usize;
        let bytes = (end - at).min((PAGE - from) as u64) as usize;
        let part = Part { block: at / PAGE as u64, from, bytes };
        at += bytes as u64;
        (bytes > 0).then_some(part)
    })
}

impl Inner {
    fn read(&self, offset: u64, mut buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut workspace = self.workspaces.take();
        let workspace = &mut *workspace;
        let bytes = buffer.len() as u64;
        for Part { block, from, bytes } in parts(offset, bytes) {
            let (part, rest) = std::mem::take(&mut buffer).split_at_mut(bytes);
            buffer = rest;
            if let Ok(page) = <&mut Page>::try_from(&mut *part) {
                self.read_page(workspace, block, None, page)?;
            } else {
                self.read_part(workspace, block, from, part)?;
            }
        }
        self.note_read(workspace, offset, bytes);
        let counters = self.workspaces.counters(workspace);
        add(&counters.reads, 1);
        add(&counters.bytes_read, bytes);
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> Result<(), DeviceError> {
        let mut workspace = self.workspaces.take();
        let workspace = &mut *workspace;
        let bytes = data.len() as u64;
        let (mut at, mut written) = (offset, Ok(()));
        while let Some(Part { block, from, bytes }) = parts(at, data.len() as u64).next() {
            if let Some(unit) = self.cluster_at(at, data) {
                match self.overwrite_cluster(workspace, block, unit) {
                    Ok(false) => {}
                    Ok(true) => {
                        (at, data) = (at + unit.len() as u64, &data[unit.len()..]);
                        continue;
                    }
                    Err(error) => {
                        written = Err(error);
                        break;
                    }
                }
            }
            let (part, rest) = data.split_at(bytes);
            (at, data) = (at + bytes as u64, rest);
            written = match <&Page>::try_from(part) {
                Ok(page) => self.write_page(workspace, block, page),
                Err(_) => self.write_part(workspace, block, from, part),
            };
            if written.is_err() {
                break;
            }
        }
        self.note_written(offset, bytes);
        let counters = self.workspaces.counters(workspace);
        add(&counters.writes, 1);
        add(&counters.bytes_written, bytes);
        if written == Err(DeviceError::NoRoom) {
            add(&counters.no_room, 1);
        }
        let writes = counters.writes.load(std::sync::atomic::Ordering::Relaxed);
        if self.store.reserve_low() || writes.is_multiple_of(WRITES_BETWEEN_CALLS) {
            self.keeping.call();
        }
        written
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let end = offset + bytes;
        let (first, last) = (offset.next_multiple_of(PAGE as u64), end / PAGE as u64 * PAGE as u64);
        // The parts of pages at either end; a range within one page is one part.
        let ends = if first <= last {
            [(offset, first - offset), (last, end - last)]
        } else {
            [(offset, bytes), (end, 0)]
        };
        if first < last {
            self.remove_pages(first / PAGE as u64..last / PAGE as u64)?;
        }
        let mut workspace = self.workspaces.take();
        for Part { block, from, bytes } in ends.iter().flat_map(|&(at, bytes)| parts(at, bytes)) {
            self.write_part(&mut workspace, block, from, &ZEROS[..bytes])?;
        }
        Ok(())
    }

    fn remove_pages(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        if self.clusters.is_some() {
            return self.remove_units(blocks);
        }
        self.for_each_live(&blocks, |block| self.remove_page(&self.locks.lock(block), block));
        Ok(())
    }

    /// Calls `each` with the pages of a range that have something. It may remove them.
    fn for_each_live(&self, blocks: &Range<u64>, each: impl Fn(u64)) {
        self.store.for_each_group(blocks.start, blocks.end - blocks.start, |group, live| {
            let live = (0..GROUP).filter(|nth| live >> nth & 1 != 0).map(|nth| group + nth);
            live.filter(|block| blocks.contains(block)).for_each(&each);
        });
    }

    /// Hands runs of pages that are there, or are not, to `each`.
    fn runs(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut runs = Runs::new(each);
        let mut live = (u64::MAX, 0);
        for Part { block, bytes, .. } in parts(offset, bytes) {
            if live.0 != block / GROUP {
                live = (block / GROUP, self.store.live_of_group(block));
            }
            let is_allocated = live.1 >> (block % GROUP) & 1 != 0;
            runs.add(Extent { bytes: bytes as u64, is_allocated, is_zero: !is_allocated })?;
        }
        runs.end()
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.inner.write(offset, data)
    }

    fn trim(&self, offset: u64, bytes: u64, _: Durability) -> Result<(), DeviceError> {
        self.inner.clear(offset, bytes)
    }

    /// Pages of zeros take no memory, so that to write them is to trim.
    fn zero(&self, offset: u64, bytes: u64, _: Zeroing, _: Durability) -> Result<(), DeviceError> {
        self.inner.clear(offset, bytes)
    }

    /// Nothing outlives the disk.
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        let _ = self.inner.runs(offset, bytes, each);
        Ok(())
    }
}

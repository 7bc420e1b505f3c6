//! Clusters: four pages that are used in order and have become cold, as one object.
//!
//! A *unit* is four pages, of which the first has a number that is a multiple of four. Once its
//! pages are cold they are compressed together, if requests have used it whole lately: its object
//! is smaller than those of four pages, and takes longer to read a single page from. The object is
//! cut into four pieces, one under the key of each page, so that a page is there if its key is:
//!
//! ```text
//! all pieces, one after the other:   [ format 1 | pieces 1 | object ... ]
//! ```
//!
//! Each piece keeps the mark of its page, by which equal pages are found. A write to a page of a
//! cluster makes four pages of it first, and so does the second request that reads a part of it. A
//! write of all four replaces it. All pages of a unit have one lock ([`super::page_locks`]): its
//! holder finds all pieces of one object, or none.

mod maker;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_codec::encodings::{CLUSTER_REST, RAW, of_cluster};
use ramfold_codec::{Objective, Page, ZstdLevel, same_filled};
use ramfold_store::{Loaded, Replaced, StoreError, StoredWhen};

use super::pages::{New, failed};
use super::workspace::{COMPRESSED_BYTES_MAX, Coder, Workspace};
use super::{Inner, PAGE};
pub(super) use maker::Maker;

use crate::DeviceError;

const SIZE: ClusterSize = ClusterSize::Four;
/// Pages of a unit.
pub(super) const UNIT: u64 = SIZE.pages() as u64;
const BYTES: usize = SIZE.bytes();
const CODEC: ClusterCodec = ClusterCodec::Zstd(ZstdLevel::FASTEST);
const HEADER: usize = 2;
const FIRST: u8 = of_cluster(SIZE);
/// Bytes of the disk's memory for each bit: with more bits there would be more than clusters.
const MEMORY_BYTES_EACH: u64 = 512;

/// Units of which the end of the last read of a part is known; others share these places.
const READ_ENDS: usize = 256;

/// Whether an object is a part of a cluster.
pub(super) fn is_piece(encoding: u8) -> bool {
    encoding == FIRST || encoding == CLUSTER_REST
}

/// The encoding of a page's piece.
fn piece_at(block: u64) -> u8 {
    if block.is_multiple_of(UNIT) { FIRST } else { CLUSTER_REST }
}

/// The first page of a page's unit.
fn first_of(block: u64) -> u64 {
    block / UNIT * UNIT
}

/// What a disk knows of its clusters.
pub(super) struct Clusters {
    /// For each unit whether the last request that used it used it whole. Units that are far apart
    /// may share a bit: no more depends on it than how well a page is stored.
    whole: Box<[AtomicU64]>,
    /// For units, each of which shares it with many: where the last read of a part of one ended.
    read_ends: Box<[AtomicU64; READ_ENDS]>,
    /// Clusters that there are.
    count: AtomicU64,
}

impl Clusters {
    pub(super) fn new(pages: u64, memory_bytes: u64) -> Clusters {
        let words = Clusters::words(pages, memory_bytes);
        Clusters {
            whole: (0..words).map(|_| AtomicU64::new(0)).collect(),
            read_ends: Box::new([const { AtomicU64::new(0) }; READ_ENDS]),
            count: AtomicU64::new(0),
        }
    }

    fn words(pages: u64, memory_bytes: u64) -> usize {
        pages.div_ceil(UNIT).min(memory_bytes / MEMORY_BYTES_EACH).div_ceil(64).max(1) as usize
    }

    /// Bytes that it takes.
    pub(super) fn bytes(pages: u64, memory_bytes: u64) -> usize {
        (Clusters::words(pages, memory_bytes) + READ_ENDS) * size_of::<AtomicU64>()
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn bit(&self, unit: u64) -> (&AtomicU64, u64) {
        (&self.whole[(unit / 64 % self.whole.len() as u64) as usize], 1 << (unit % 64))
    }

    fn is_used_whole(&self, unit: u64) -> bool {
        let (word, bit) = self.bit(unit);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether a read of a part of a unit begins where the unit does, or where the last such read
    /// of it ended, and is not that read once more. Notes where this one ends.
    fn goes_on(&self, unit: u64, offset: u64, bytes: u64) -> bool {
        let end = &self.read_ends[unit as usize % READ_ENDS];
        let last_end = end.swap(offset + bytes, Ordering::Relaxed);
        let is_again = last_end == offset + bytes;
        !is_again && (unit * BYTES as u64 >= offset || last_end == offset)
    }

    /// Notes how a request uses a unit. Whether the last one used it whole.
    fn note(&self, unit: u64, whole: bool) -> bool {
        let (word, bit) = self.bit(unit);
        let was_whole = word.load(Ordering::Relaxed) & bit != 0;
        match (was_whole, whole) {
            (false, true) => drop(word.fetch_or(bit, Ordering::Relaxed)),
            (true, false) => drop(word.fetch_and(!bit, Ordering::Relaxed)),
            _ => {}
        }
        was_whole
    }
}

/// The units of a range of bytes, and whether it has all of each.
fn units(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, bool)> {
    let each = BYTES as u64;
    let end = offset + bytes;
    (offset / each..end.div_ceil(each))
        .map(move |unit| (unit, unit * each >= offset && (unit + 1) * each <= end))
}

/// Where a request finds a cluster.
pub(super) struct ClusterRoom {
    /// The unit that `content` was read from by this request.
    unit: Option<u64>,
    content: Box<[u8; BYTES]>,
    /// The pieces one after the other; or what the pages were compressed to.
    object: Box<[u8; BYTES]>,
}

impl ClusterRoom {
    pub(super) fn new() -> ClusterRoom {
        ClusterRoom { unit: None, content: Box::new([0; BYTES]), object: Box::new([0; BYTES]) }
    }

    pub(super) fn bytes() -> usize {
        2 * BYTES
    }

    /// A request begins.
    pub(super) fn forget(&mut self) {
        self.unit = None;
    }

    fn page(&self, block: u64) -> &Page {
        &self.content.as_chunks().0[(block % UNIT) as usize]
    }

    /// Decompresses the first `len` bytes of `object`, which are all pieces of a cluster.
    fn decompress(&mut self, coder: &mut Coder, len: usize, first: u64) -> Result<(), DeviceError> {
        self.unit = None;
        let object = self.object[..len].split_first_chunk::<HEADER>();
        let (&[format, pieces], object) = object.ok_or_else(|| broken(first))?;
        if u64::from(pieces) != UNIT {
            return Err(broken(first));
        }
        coder.decompress_cluster(format, object, &mut self.content[..]).map_err(failed)?;
        self.unit = Some(first / UNIT);
        Ok(())
    }
}

/// Stores the pages of a cluster, as often as it is called.
type Storing<'a> = dyn Fn() -> Result<Replaced, StoreError> + 'a;

fn broken(first: u64) -> DeviceError {
    failed(format_args!("the pieces of the cluster at page {first} do not belong together"))
}

impl Inner {
    /// Reads a page that is in a cluster. The caller has the unit's lock.
    pub(super) fn read_from_cluster(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &mut Page,
    ) -> Result<(), DeviceError> {
        let room = self.load_cluster(workspace, block)?;
        *page = *room.page(block);
        Ok(())
    }

    /// Copies a page that this request has read along with its unit. Whether it has.
    pub(super) fn read_again(workspace: &Workspace, block: u64, page: &mut Page) -> bool {
        let room = workspace.cluster.as_ref().filter(|room| room.unit == Some(block / UNIT));
        room.inspect(|room| *page = *room.page(block)).is_some()
    }

    /// Whether a page in a cluster is this one. The caller has the unit's lock.
    pub(super) fn is_in_cluster(&self, workspace: &mut Workspace, block: u64, page: &Page) -> bool {
        self.load_cluster(workspace, block).is_ok_and(|room| room.page(block) == page)
    }

    /// Decompresses the cluster that a page is in. The caller has the unit's lock.
    fn load_cluster<'w>(
        &self,
        workspace: &'w mut Workspace,
        block: u64,
    ) -> Result<&'w mut ClusterRoom, DeviceError> {
        let first = first_of(block);
        let Workspace { coder, cluster, .. } = workspace;
        let room = cluster.as_mut().ok_or_else(|| broken(first))?;
        let mut len = 0;
        self.store.neighbours(first, |pages| {
            for key in first..first + UNIT {
                match pages.load(key).map_err(failed)? {
                    Some(Loaded::Object { encoding, bytes }) if encoding == piece_at(key) => {
                        let place = room.object[len..].get_mut(..bytes.len());
                        place.ok_or_else(|| broken(first))?.copy_from_slice(bytes);
                        len += bytes.len();
                    }
                    _ => return Err(broken(first)),
                }
            }
            Ok(())
        })?;
        room.decompress(coder, len, first)?;
        Ok(room)
    }

    /// Makes pages of the cluster that a page is in, if it is in one. The caller has the unit's
    /// lock.
    pub(super) fn open_cluster(
        &self,
        workspace: &mut Workspace,
        block: u64,
    ) -> Result<(), DeviceError> {
        if !self.has_piece(block) {
            return Ok(());
        }
        self.make_pages(workspace, block, |store| self.store_with_room(block, store))
    }

    /// Makes pages of the cluster that a page is in, and has `with_room` store them. The caller has
    /// the unit's lock.
    fn make_pages(
        &self,
        workspace: &mut Workspace,
        block: u64,
        with_room: impl FnOnce(&Storing<'_>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.load_cluster(workspace, block)?;
        let Workspace { coder, cluster: Some(room), .. } = workspace else {
            return Err(broken(first_of(block)));
        };
        let ClusterRoom { content, object, .. } = &mut **room;
        let objects = compress_pages(coder, content.as_chunks().0, object);
        let first = first_of(block);
        with_room(&|| self.put_pages(first, &objects))?;
        self.count_one_less();
        Ok(())
    }

    /// Puts four objects in place of a cluster.
    fn put_pages(&self, first: u64, objects: &[(u8, &[u8])]) -> Result<Replaced, StoreError> {
        let put = self.store.exchange_neighbours(first, objects, StoredWhen::Now);
        put.map(|()| Replaced::Object)
    }

    fn count_one_less(&self) {
        if let Some(clusters) = &self.clusters {
            clusters.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a page is in a cluster, or in what damage has left of one.
    pub(super) fn has_piece(&self, block: u64) -> bool {
        let first = first_of(block);
        self.clusters.as_ref().is_some_and(|clusters| clusters.count() > 0)
            && self.store.neighbours(first, |pages| {
                (first..first + UNIT).any(|key| pages.encoding(key).is_some_and(is_piece))
            })
    }

    /// The data for a unit that begins at byte `at`, if there is data for all of it and it is a
    /// cluster.
    pub(super) fn cluster_at<'d>(&self, at: u64, data: &'d [u8]) -> Option<&'d [u8; BYTES]> {
        let data = data.first_chunk().filter(|_| at.is_multiple_of(BYTES as u64))?;
        self.has_piece(at / PAGE as u64).then_some(data)
    }

    /// Writes all pages of a unit that begins at a page; `false` where it is no cluster by now.
    pub(super) fn overwrite_cluster(
        &self,
        workspace: &mut Workspace,
        first: u64,
        data: &[u8; BYTES],
    ) -> Result<bool, DeviceError> {
        let pages = data.as_chunks::<PAGE>().0;
        let news: [New<'_>; UNIT as usize] =
            std::array::from_fn(|nth| self.prepare(first + nth as u64, &pages[nth]));
        let needs_object = |nth: usize| {
            same_filled(&pages[nth]).is_none()
                && !self.may_be_equal(&news[nth])
                && !news[..nth].iter().any(|before| before.is_like(&news[nth]))
        };
        let alone: [bool; UNIT as usize] = std::array::from_fn(needs_object);
        if alone.contains(&false) {
            let _lock = self.locks.lock(first);
            if !self.has_piece(first) {
                return Ok(false);
            }
            if self.load_cluster(workspace, first).is_ok_and(|room| *room.content == *data) {
                // It is written as it was.
                return Ok(true);
            }
        }
        let Workspace { coder, cluster: Some(room), .. } = &mut *workspace else {
            return Ok(false);
        };
        room.unit = None;
        let objects = compress_pages(coder, pages, &mut room.object);
        let lock = self.locks.lock(first);
        if !self.has_piece(first) {
            return Ok(false);
        }
        self.store_with_room(first, || self.put_pages(first, &objects))?;
        self.count_one_less();
        for (key, new) in (first..).zip(&news) {
            self.store.set_mark(key, self.mark_for(new));
            self.note_object(new);
        }
        drop(lock);
        for nth in (0..UNIT as usize).filter(|&nth| !alone[nth]) {
            // It is written: this only has it take less.
            let _ = self.write_page(workspace, first + nth as u64, &pages[nth]);
        }
        Ok(true)
    }

    /// Removes pages, where there are clusters. Whole units come first: a cluster of which a part
    /// is removed needs room for its pages.
    pub(super) fn remove_units(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        let (first, last) = (blocks.start.next_multiple_of(UNIT), blocks.end / UNIT * UNIT);
        let ends = if first < last {
            self.for_each_live(&(first..last), |block| {
                let lock = self.locks.lock(block);
                if self.has_piece(block) {
                    self.count_one_less();
                    let unit = first_of(block)..first_of(block) + UNIT;
                    unit.for_each(|block| self.remove_page(&lock, block));
                } else {
                    self.remove_page(&lock, block);
                }
            });
            [blocks.start..first, last..blocks.end]
        } else {
            // At the border of two units, or within one.
            let border = first.clamp(blocks.start, blocks.end);
            [blocks.start..border, border..blocks.end]
        };
        for pages in ends.into_iter().filter(|pages| !pages.is_empty()) {
            let mut workspace = self.workspaces.take();
            let lock = self.locks.lock(pages.start);
            self.open_cluster(&mut workspace, pages.start)?;
            pages.for_each(|block| self.remove_page(&lock, block));
        }
        Ok(())
    }

    /// Notes which units a write has used.
    pub(super) fn note_written(&self, offset: u64, bytes: u64) {
        let Some(clusters) = &self.clusters else { return };
        for (unit, whole) in units(offset, bytes) {
            clusters.note(unit, whole);
        }
    }

    /// Notes which units a read has used. A cluster that is read in parts again becomes pages where
    /// there is room to spare, unless the parts are read in order.
    pub(super) fn note_read(&self, workspace: &mut Workspace, offset: u64, bytes: u64) {
        let Some(clusters) = &self.clusters else { return };
        for (unit, whole) in units(offset, bytes) {
            if !whole && clusters.goes_on(unit, offset, bytes) {
                continue;
            }
            let (was_whole, first) = (clusters.note(unit, whole), unit * UNIT);
            if whole && !was_whole {
                self.store.try_again(first);
            }
            if whole || was_whole || !self.has_piece(first) {
                continue;
            }
            let _lock = self.locks.lock(first);
            if self.room.has_to_spare(&self.store) && self.has_piece(first) {
                // Where there is no room for pages it stays what it is.
                let _ = self.make_pages(workspace, first, |store| match store() {
                    Ok(_) => Ok(()),
                    Err(error) => Err(failed(error)),
                });
            }
        }
    }
}

/// Compresses the pages of a unit into `places`; those that do not shrink are stored as they are.
fn compress_pages<'o>(
    coder: &mut Coder,
    pages: &'o [Page],
    places: &'o mut [u8; BYTES],
) -> [(u8, &'o [u8]); UNIT as usize] {
    let mut objects = [(RAW, &[][..]); UNIT as usize];
    let places = places.as_chunks_mut::<PAGE>().0;
    for ((page, place), object) in pages.iter().zip(places).zip(&mut objects) {
        let made = coder.compress(page, Objective::Speed, &mut place[..COMPRESSED_BYTES_MAX]);
        *object = match made {
            Some((encoding, len)) => (encoding, &place[..len]),
            None => (RAW, &page[..]),
        };
    }
    objects
}

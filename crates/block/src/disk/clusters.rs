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
//! Each piece keeps the mark of its page, by which equal pages are found. Whoever changes a page of
//! a cluster makes four pages of it first, and so does the second request that reads a part of it.
//! All pages of a unit have one lock ([`super::page_locks`]): who has it finds all pieces of one
//! object, or none.

use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_codec::encodings::{CLUSTER_REST, RAW, of_cluster};
use ramfold_codec::{Encoding, Objective, Page, ScratchError, ZstdLevel};
use ramfold_engine::{ClusterCompressor, ClusterDecompressor};
use ramfold_store::{Key, Loaded, Replaced, charged_bytes};

use super::pages::{SHARED, failed};
use super::workspace::{COMPRESSED_BYTES_MAX, Coder, Workspace};
use super::{GROUP, Inner, PAGE};
use crate::DeviceError;

const SIZE: ClusterSize = ClusterSize::Four;
/// Pages of a unit.
pub(super) const UNIT: u64 = SIZE.pages() as u64;
const BYTES: usize = SIZE.bytes();
const CODEC: ClusterCodec = ClusterCodec::Zstd(ZstdLevel::FASTEST);
const HEADER: usize = 2;
const FIRST: u8 = of_cluster(SIZE);
/// A cluster must be smaller than its pages by this part of them.
const WORTH_PART: usize = 16;
/// One bit for so many bytes of the disk's memory: more would be more than there are clusters.
const MEMORY_BYTES_EACH: u64 = 512;

/// Whether an object is a part of a cluster.
pub(super) fn is_piece(encoding: u8) -> bool {
    encoding == FIRST || encoding == CLUSTER_REST
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
    /// Clusters that there are.
    count: AtomicU64,
}

impl Clusters {
    pub(super) fn new(pages: u64, memory_bytes: u64) -> Clusters {
        let words = Clusters::words(pages, memory_bytes);
        Clusters {
            whole: (0..words).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
        }
    }

    fn words(pages: u64, memory_bytes: u64) -> usize {
        pages.div_ceil(UNIT).min(memory_bytes / MEMORY_BYTES_EACH).div_ceil(64).max(1) as usize
    }

    /// Bytes that it takes.
    pub(super) fn bytes(pages: u64, memory_bytes: u64) -> usize {
        Clusters::words(pages, memory_bytes) * size_of::<AtomicU64>()
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
    /// Where the last read ended.
    read_end: u64,
    content: Box<[u8; BYTES]>,
    /// The pieces one after the other; or what the pages were compressed to.
    object: Box<[u8; BYTES]>,
    decompressor: ClusterDecompressor,
}

impl ClusterRoom {
    pub(super) fn new() -> ClusterRoom {
        ClusterRoom {
            unit: None,
            read_end: 0,
            content: Box::new([0; BYTES]),
            object: Box::new([0; BYTES]),
            decompressor: ClusterDecompressor::new(),
        }
    }

    pub(super) fn bytes() -> usize {
        2 * BYTES + ClusterDecompressor::bytes()
    }

    /// A request begins.
    pub(super) fn forget(&mut self) {
        self.unit = None;
    }

    fn page(&self, block: u64) -> &Page {
        &self.content.as_chunks().0[(block % UNIT) as usize]
    }

    /// Decompresses the first `len` bytes of `object`, which are all pieces of a cluster.
    fn decompress(&mut self, len: usize, first: u64) -> Result<(), DeviceError> {
        self.unit = None;
        let object = self.object[..len].split_first_chunk::<HEADER>();
        let encoding = object.and_then(|(&[format, _], rest)| {
            Encoding::try_from(format).ok().map(|encoding| (encoding, rest))
        });
        let (encoding, object) = encoding.ok_or_else(|| broken(first))?;
        self.decompressor.decompress(encoding, object, &mut self.content[..]).map_err(failed)?;
        self.unit = Some(first / UNIT);
        Ok(())
    }
}

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
        let room = workspace.cluster.as_mut().ok_or_else(|| broken(first))?;
        let mut len = 0;
        self.store.neighbours(first, |pages| {
            for key in first..first + UNIT {
                match pages.load(key).map_err(failed)? {
                    Some(Loaded::Object { encoding, bytes }) if is_piece(encoding) => {
                        let place = room.object[len..].get_mut(..bytes.len());
                        place.ok_or_else(|| broken(first))?.copy_from_slice(bytes);
                        len += bytes.len();
                    }
                    _ => return Err(broken(first)),
                }
            }
            Ok(())
        })?;
        room.decompress(len, first)?;
        Ok(room)
    }

    /// Makes pages of the cluster that a page is in, if it is in one. The caller has the unit's
    /// lock.
    pub(super) fn open_cluster(
        &self,
        workspace: &mut Workspace,
        block: u64,
    ) -> Result<(), DeviceError> {
        let Some(clusters) = self.clusters.as_ref().filter(|clusters| clusters.count() > 0) else {
            return Ok(());
        };
        if !self.has_piece(block) {
            return Ok(());
        }
        self.load_cluster(workspace, block)?;
        let Workspace { coder, cluster: Some(room), .. } = workspace else {
            return Err(broken(first_of(block)));
        };
        let ClusterRoom { content, object, .. } = &mut **room;
        let pages: &[Page] = content.as_chunks().0;
        let mut objects = [(RAW, &[][..]); UNIT as usize];
        let places = object.as_chunks_mut::<PAGE>().0;
        for ((page, place), object) in pages.iter().zip(places).zip(&mut objects) {
            let made = coder.compress(page, Objective::Speed, &mut place[..COMPRESSED_BYTES_MAX]);
            *object = match made {
                Some((encoding, len)) => (encoding, &place[..len]),
                None => (RAW, &page[..]),
            };
        }
        let first = first_of(block);
        let store = || self.store.exchange_neighbours(first, &objects).map(|()| Replaced::Object);
        self.store_with_room(block, store)?;
        clusters.count.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a page is in a cluster.
    pub(super) fn has_piece(&self, block: u64) -> bool {
        self.store.neighbours(block, |pages| pages.encoding(block)).is_some_and(is_piece)
    }

    /// All pages of a page's unit are about to be removed, by who has its lock.
    pub(super) fn forget_cluster(&self, block: u64) {
        if let Some(clusters) = self.clusters.as_ref().filter(|clusters| clusters.count() > 0)
            && self.has_piece(first_of(block))
        {
            clusters.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes which units a write has used.
    pub(super) fn note_written(&self, offset: u64, bytes: u64) {
        let Some(clusters) = &self.clusters else { return };
        for (unit, whole) in units(offset, bytes) {
            clusters.note(unit, whole);
        }
    }

    /// Notes which units a read has used. A cluster that is read in parts again becomes pages,
    /// unless the parts are read in order.
    pub(super) fn note_read(&self, workspace: &mut Workspace, offset: u64, bytes: u64) {
        let (Some(clusters), Some(room)) = (&self.clusters, &mut workspace.cluster) else { return };
        let is_next = std::mem::replace(&mut room.read_end, offset + bytes) == offset;
        let read_unit = room.unit;
        for (unit, whole) in units(offset, bytes) {
            if !whole && (is_next || unit * BYTES as u64 >= offset) {
                continue;
            }
            if !clusters.note(unit, whole) && !whole && read_unit == Some(unit) {
                let first = unit * UNIT;
                let _lock = self.locks.lock(first);
                // Where there is no room for pages it stays what it is.
                let _ = self.open_cluster(workspace, first);
            }
        }
    }
}

/// What clusters are made with.
pub(super) struct Maker {
    compressor: ClusterCompressor,
    content: Box<[u8; BYTES]>,
    /// The pages' objects, then the cluster's.
    object: Box<[u8; BYTES]>,
}

impl Maker {
    pub(super) fn new() -> Result<Maker, ScratchError> {
        Ok(Maker {
            compressor: ClusterCompressor::new(CODEC, SIZE)?,
            content: Box::new([0; BYTES]),
            object: Box::new([0; BYTES]),
        })
    }

    pub(super) fn bytes() -> usize {
        2 * BYTES + ClusterCompressor::bytes(CODEC, SIZE)
    }

    /// Makes clusters of a group's units that are used whole. Whether there were any.
    pub(super) fn make_clusters(&mut self, inner: &Inner, coder: &mut Coder, group: Key) -> bool {
        let Some(clusters) = inner.clusters.as_ref().filter(|_| group < SHARED) else {
            return false;
        };
        let units = (group..group + GROUP).step_by(UNIT as usize);
        let units = units.filter(|first| clusters.is_used_whole(first / UNIT));
        units.filter(|&first| self.make(inner, clusters, coder, first).is_some()).count() > 0
    }

    /// Makes a cluster of the unit that begins at a page, if it has four objects and takes less
    /// then.
    fn make(
        &mut self,
        inner: &Inner,
        clusters: &Clusters,
        coder: &mut Coder,
        first: u64,
    ) -> Option<()> {
        let _lock = inner.locks.lock(first);
        let Maker { compressor, content, object } = self;
        let places = object.as_chunks_mut::<PAGE>().0;
        let mut found = [(0, 0); UNIT as usize];
        inner.store.neighbours(first, |pages| {
            for ((key, place), found) in (first..).zip(&mut *places).zip(&mut found) {
                match pages.load(key) {
                    Ok(Some(Loaded::Object { encoding, bytes })) if !is_piece(encoding) => {
                        place[..bytes.len()].copy_from_slice(bytes);
                        *found = (encoding, bytes.len());
                    }
                    // One that is damaged stays, so that who reads it is told.
                    _ => return None,
                }
            }
            Some(())
        })?;
        let pages = content.as_chunks_mut::<PAGE>().0;
        let mut bytes_before = 0;
        for (((encoding, len), place), page) in found.into_iter().zip(&*places).zip(pages) {
            coder.decompress(encoding, &place[..len], page).ok()?;
            bytes_before += charged_bytes(len);
        }
        let bytes_max = (bytes_before - bytes_before / WORTH_PART).min(object.len());
        let len = compressor.compress(&content[..], &mut object[HEADER..bytes_max]).ok()?;
        object[..HEADER].copy_from_slice(&[CODEC.encoding().into(), UNIT as u8]);
        let (object, count) = (&object[..HEADER + len], UNIT as usize);
        let cut = |nth: usize| object.len() * nth / count;
        let pieces: [_; UNIT as usize] = std::array::from_fn(|nth| {
            (if nth == 0 { FIRST } else { CLUSTER_REST }, &object[cut(nth)..cut(nth + 1)])
        });
        let bytes_after: usize = pieces.iter().map(|(_, piece)| charged_bytes(piece.len())).sum();
        if bytes_after > bytes_max || pieces.iter().any(|(_, piece)| piece.len() < HEADER) {
            return None;
        }
        // Before: who has the lock next must see that there are some.
        clusters.count.fetch_add(1, Ordering::Relaxed);
        let made = inner.store.exchange_neighbours(first, &pieces);
        if made.is_err() {
            clusters.count.fetch_sub(1, Ordering::Relaxed);
        }
        made.ok()
    }
}

//! What the cache keeps of one owner: its keys in the store, and how it is read.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use ramfold_codec::ZstdLevel;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_store::Key;

use crate::backoff::Backoff;
use crate::clusters::{self, DamagedCluster, Object, first_key};
use crate::keys::Keys;
use crate::{Cache, Owner, PAGE, PageName, Version};

/// A read of at least this length is of somebody who reads in order.
const LONG_READ_BYTES: usize = 64 << 10;
/// So many more long reads than short ones make an owner one that is read in order.
const IN_ORDER: u8 = 4;
/// Nanoseconds that a byte takes in order from the store, where it comes again: 1 to decompress and
/// copy it, and as much for having compressed it before (measured; LZ4, two processors).
const FROM_STORE_NS_PER_BYTE: f64 = 2.0;

/// What the cache keeps of one owner. There can be hundreds of thousands of them.
#[derive(Debug)]
pub struct CachedPages {
    id: u64,
    /// Held for reading while clusters are looked for under them, so that they do not become
    /// another owner's.
    keys: RwLock<Option<Keys>>,
    /// Long reads more than short ones, of late.
    in_order: AtomicU8,
    /// Where it was read last, in groups of pages.
    last_group: AtomicU64,
    pub(crate) backoff: Backoff,
}

impl CachedPages {
    /// `id`: a number that hardly any other owner has, for [`PageName`]s.
    pub fn new(id: u64) -> CachedPages {
        CachedPages {
            id,
            keys: RwLock::new(None),
            in_order: AtomicU8::new(0),
            last_group: AtomicU64::new(u64::MAX),
            backoff: Backoff::default(),
        }
    }

    /// The name of a page, by its number.
    pub fn name_of(&self, page: u64) -> PageName {
        PageName::new(self.id, page)
    }

    pub(crate) fn keys(&self) -> RwLockReadGuard<'_, Option<Keys>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how long a read was.
    pub(crate) fn note_read(&self, len: usize) {
        let before = self.in_order.load(Ordering::Relaxed);
        let now = if len >= LONG_READ_BYTES {
            (before + 1).min(2 * IN_ORDER)
        } else {
            before.saturating_sub(1)
        };
        if now != before {
            self.in_order.store(now, Ordering::Relaxed);
        }
    }

    /// Whether a read, by its group of pages, is next to the last one or in the same place.
    pub(crate) fn is_near(&self, group: u64) -> bool {
        self.last_group.swap(group, Ordering::Relaxed).abs_diff(group) <= 1
    }

    fn is_read_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed) >= IN_ORDER
    }
}

impl<O: Owner> Cache<O> {
    /// Forgets what is stored of these pages, and of those that are in a cluster with them.
    pub fn forget(&self, of: &CachedPages, pages: Range<u64>) {
        let keys = of.keys();
        let Some(keys) = *keys else { return };
        let unit = ClusterSize::Sixteen.pages() as u64;
        let end = pages.end.min(keys.pages());
        let range = keys.range(pages.start / unit * unit..end.next_multiple_of(unit));
        self.store.invalidate_range(range.start, range.end - range.start);
    }

    /// Forgets an owner: what is stored of it, and its keys. Nothing of it may be stored any more.
    pub fn forget_owner(&self, of: &CachedPages) {
        let mut keys = of.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = keys.take() {
            self.give_back(keys);
        }
    }

    fn give_back(&self, keys: Keys) {
        let range = keys.range(0..u64::MAX);
        self.store.invalidate_range(range.start, range.end - range.start);
        self.keys.give_back(keys);
    }

    /// Stores a cluster, if its owner's data is still of this version.
    pub(crate) fn put(
        &self,
        owner: &O,
        version: Version,
        page: u64,
        size: ClusterSize,
        object: Object<'_>,
    ) {
        let store = || self.put_current(owner, page, size, object);
        if !owner.store_if_current(version, store) {
            self.counters.outdated_pages.add(size.pages() as u64);
        }
    }

    fn put_current(&self, owner: &O, page: u64, size: ClusterSize, object: Object<'_>) {
        let pages = size.pages() as u64;
        let Some(key) = self.key_of(owner, page, size) else {
            return self.counters.no_room_pages.add(pages);
        };
        let history = self.replacement.history_for(&self.store, key, size);
        match clusters::put(&self.store, key, size, object, history) {
            Ok(()) => {
                self.replacement.stored(&self.store, key, size, history);
                self.counters.compressed_pages.add(pages);
                self.counters.compressed_to_bytes.add(object.bytes());
            }
            Err(_) => self.counters.no_room_pages.add(pages),
        }
    }

    /// The key of a cluster that begins at a page, from keys that the owner has or gets.
    fn key_of(&self, owner: &O, page: u64, size: ClusterSize) -> Option<Key> {
        let of = owner.pages();
        let last = page + size.pages() as u64 - 1;
        if let Some(keys) = *of.keys()
            && keys.key(last).is_some()
        {
            return keys.key(page);
        }
        let pages = owner.size_bytes().div_ceil(PAGE).max(last + 1);
        let taken = self.keys.take(pages)?;
        let mut keys = of.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(too_few) = keys.replace(taken) {
            // The owner has grown: what is stored of its beginning is few pages.
            self.give_back(too_few);
        }
        taken.key(page)
    }

    /// Whether the backing gives in order what the owner has faster than the cache would.
    pub(crate) fn is_backing_faster(&self, of: &CachedPages) -> bool {
        self.config.codec.is_none()
            && of.is_read_in_order()
            && !self.speed.is_slow()
            && self.speed.ns_per_byte() < FROM_STORE_NS_PER_BYTE
    }

    /// How clusters are compressed now.
    pub(crate) fn codec(&self) -> ClusterCodec {
        let for_backing = match self.speed.is_slow() {
            true => ClusterCodec::Zstd(ZstdLevel::FASTEST),
            false => ClusterCodec::Lz4,
        };
        self.config.codec.unwrap_or(for_backing)
    }

    /// Pages that are compressed as one, where a read is near the last one or not.
    pub(crate) fn unit(&self, of: &CachedPages, is_near: bool) -> ClusterSize {
        if let Some(size) = self.config.cluster {
            return size;
        }
        // Whoever wants one page waits for its whole cluster, which is worth it where the rest is
        // asked for next, or where waiting for the backing is worse.
        if is_near || of.is_read_in_order() || self.speed.is_slow() {
            ClusterSize::Four
        } else {
            ClusterSize::One
        }
    }

    #[cold]
    pub(crate) fn remove_damaged(&self, owner: &O, key: Key, damaged: &DamagedCluster) {
        self.counters.damaged_clusters.add(1);
        owner.note_damaged(damaged);
        let first = first_key(key, ClusterSize::Sixteen);
        self.store.invalidate_range(first, ClusterSize::Sixteen.pages() as u64);
    }
}

//! The clusters that were read last, uncompressed.
//!
//! Whoever goes through a file by single pages, forwards or backwards, asks for the rest of a
//! cluster next. With this it is not decompressed once for each page, nor read from the backing
//! again while it waits to be compressed.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ramfold_codec::PAGE_SIZE;
use ramfold_codec::cluster::ClusterSize;

use crate::{Owner, Version, locked};

/// When four threads go through files of their own, one cluster in ten is replaced by another's
/// before its thread has gone through it.
const PLACES: usize = 32;
const _: () = assert!(PLACES.is_power_of_two(), "a page's place is some bits of its name");

pub(crate) struct Recent<O> {
    places: [Mutex<Option<RecentCluster<O>>>; PLACES],
    bytes: AtomicUsize,
}

struct RecentCluster<O> {
    /// As long as this is there its address is no other owner's.
    owner: Weak<O>,
    version: Version,
    pages: Range<u64>,
    bytes: Box<[u8]>,
    is_frequent: bool,
}

/// What was copied.
pub(crate) struct Copied {
    pub(crate) pages: u64,
    /// As it was when the cluster was added.
    pub(crate) is_frequent: bool,
}

impl<O> Default for Recent<O> {
    fn default() -> Recent<O> {
        Recent { places: [const { Mutex::new(None) }; PLACES], bytes: AtomicUsize::new(0) }
    }
}

impl<O: Owner> Recent<O> {
    /// What they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// All clusters that a page may be in have the same place.
    fn place(&self, owner: &O, page: u64) -> &Mutex<Option<RecentCluster<O>>> {
        let group = page / ClusterSize::Sixteen.pages() as u64;
        &self.places[owner.pages().name_of(group).place_among(PLACES)]
    }

    /// Adds a cluster of this version. `is_frequent`: it had been read again before.
    pub(crate) fn add(
        &self,
        owner: &Arc<O>,
        version: Version,
        pages: Range<u64>,
        cluster: &[u8],
        is_frequent: bool,
    ) {
        let mut place = locked(self.place(owner, pages.start));
        let mut bytes = place.take().map_or_else(Box::default, |replaced| replaced.bytes);
        if bytes.len() == cluster.len() {
            bytes.copy_from_slice(cluster);
        } else {
            self.bytes.fetch_add(cluster.len(), Ordering::Relaxed);
            self.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
            bytes = cluster.into();
        }
        let owner = Arc::downgrade(owner);
        *place = Some(RecentCluster { owner, version, pages, bytes, is_frequent });
    }

    /// Copies pages of a cluster from `page` on, as many as `into` has room for, if the cluster is
    /// here and of this version.
    pub(crate) fn copy(
        &self,
        owner: &O,
        version: Version,
        page: u64,
        into: &mut [u8],
    ) -> Option<Copied> {
        let place = locked(self.place(owner, page));
        let is_it = |cluster: &&RecentCluster<O>| {
            ptr::eq(cluster.owner.as_ptr(), owner)
                && cluster.version == version
                && cluster.pages.contains(&page)
        };
        let cluster = place.as_ref().filter(is_it)?;
        let found = &cluster.bytes[(page - cluster.pages.start) as usize * PAGE_SIZE..];
        let count = found.len().min(into.len());
        into[..count].copy_from_slice(&found[..count]);
        let pages = (count / PAGE_SIZE) as u64;
        Some(Copied { pages, is_frequent: cluster.is_frequent })
    }
}

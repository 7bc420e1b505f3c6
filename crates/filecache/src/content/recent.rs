//! The clusters that were read last, as they are.
//!
//! Whoever goes through a file by single pages, forwards or backwards, asks for the rest of a cluster next. With this
//! it is not decompressed once for each page, nor read from SOURCE again while it waits to be compressed.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ramfold_codec::PAGE_SIZE;
use ramfold_codec::cluster::ClusterSize;

use super::{Content, Ticket, locked};

/// When four go through files of their own, one cluster in ten is replaced by another's before it has been gone through.
const PLACES: usize = 32;

#[derive(Default)]
pub struct Recent {
    places: [Mutex<Option<Kept>>; PLACES],
    bytes: AtomicUsize,
}

struct Kept {
    /// Whose it is. As long as this is there its address is no other's.
    content: Weak<Content>,
    ticket: Ticket,
    pages: Range<u64>,
    bytes: Box<[u8]>,
    is_in_use: bool,
}

/// What was copied.
pub struct Copied {
    pub pages: u64,
    /// What the cluster was kept with.
    pub is_in_use: bool,
}

impl Recent {
    /// What they take.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// All clusters that a page may be in have the same place.
    fn place(&self, content: &Content, page: u64) -> &Mutex<Option<Kept>> {
        let group = page / ClusterSize::Sixteen.pages() as u64;
        &self.places[content.name_of(group).place_among(PLACES)]
    }

    /// Keeps a cluster that was read under a ticket. `is_in_use`: it had been read again before.
    pub fn keep(
        &self,
        content: &Arc<Content>,
        ticket: Ticket,
        pages: Range<u64>,
        cluster: &[u8],
        is_in_use: bool,
    ) {
        let mut place = locked(self.place(content, pages.start));
        let mut bytes = place.take().map_or_else(Box::default, |kept| kept.bytes);
        if bytes.len() == cluster.len() {
            bytes.copy_from_slice(cluster);
        } else {
            self.bytes.fetch_add(cluster.len(), Ordering::Relaxed);
            self.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
            bytes = cluster.into();
        }
        let content = Arc::downgrade(content);
        *place = Some(Kept { content, ticket, pages, bytes, is_in_use });
    }

    /// Copies pages of a cluster from `page` on, as many as `into` has room for, if the cluster was kept and may still
    /// be read under this ticket.
    pub fn copy(
        &self,
        content: &Content,
        ticket: Ticket,
        page: u64,
        into: &mut [u8],
    ) -> Option<Copied> {
        let place = locked(self.place(content, page));
        let is_it = |kept: &&Kept| {
            ptr::eq(kept.content.as_ptr(), content)
                && kept.ticket == ticket
                && kept.pages.contains(&page)
        };
        let kept = place.as_ref().filter(is_it)?;
        let found = &kept.bytes[(page - kept.pages.start) as usize * PAGE_SIZE..];
        let count = found.len().min(into.len());
        into[..count].copy_from_slice(&found[..count]);
        Some(Copied { pages: (count / PAGE_SIZE) as u64, is_in_use: kept.is_in_use })
    }
}

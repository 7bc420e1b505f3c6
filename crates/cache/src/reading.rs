//! A read: pages that are stored are decompressed into place, the rest is read from the backing.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ramfold_codec::PAGE_SIZE;
use ramfold_codec::cluster::{BYTES_MAX, ClusterSize};
use ramfold_store::Key;

use crate::backlog::Origin;
use crate::buffer::with_buffer;
use crate::clusters::Workspace;
use crate::{Backing, Cache, CachedPages, Filled, Level, Owner, PAGE, Version};

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::new());
}

/// What is to be read, and what is known of its owner.
#[derive(Debug)]
pub struct Request<'a, O> {
    /// Whose pages they are.
    pub owner: &'a Arc<O>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// The version of the owner's data from here on; `None` where what is read must not be kept.
    pub version: Option<Version>,
    /// The owner's size in bytes, seen before the version.
    pub size_bytes: u64,
}

/// A read whose bytes are there.
pub struct Reading<'a, O: Owner> {
    cache: &'a Cache<O>,
    owner: &'a Arc<O>,
    pages: &'a CachedPages,
    /// The page that the buffer begins with.
    first: u64,
    buffer: &'a mut [u8],
    /// Bytes and pages that are asked for.
    bytes: Range<u64>,
    asked_for: Range<u64>,
    /// Under which what is read may be kept.
    version: Option<Version>,
    /// Whether it is next to the last read of the owner.
    is_near: bool,
    /// Clusters, as ranges of pages, that were not stored.
    missing: Vec<Range<u64>>,
    /// Clusters that are larger than those that the owner is read by, and were read more than once.
    too_large: Vec<Range<u64>>,
    /// Where the owner's data ends, if that was seen.
    end: Option<u64>,
    /// Where it ended before anything was looked for.
    size_before: u64,
    /// Whether something was stored: that has zeros behind the end, and the owner may have grown
    /// since.
    found: bool,
    /// Where there is nothing of it any more.
    empty_from: u64,
    /// Whether something was found that had been read again before.
    is_frequent: bool,
    /// How many of the bytes that are asked for there are.
    count: u64,
}

impl<O: Owner> Cache<O> {
    /// Reads bytes, and calls `then` with them, or with what the backing says.
    pub fn read<R>(
        &self,
        request: &Request<'_, O>,
        backing: &impl Backing,
        then: impl FnOnce(io::Result<Reading<'_, O>>) -> R,
    ) -> R {
        let unit = BYTES_MAX as u64;
        let bytes = request.offset..request.offset.saturating_add(request.len as u64);
        let aligned = bytes.start / unit * unit..bytes.end.next_multiple_of(unit);
        let pages = request.owner.pages();
        with_buffer((aligned.end - aligned.start) as usize, |buffer| {
            let mut reading = Reading {
                cache: self,
                owner: request.owner,
                pages,
                first: aligned.start / PAGE,
                buffer,
                asked_for: bytes.start / PAGE..bytes.end.div_ceil(PAGE),
                version: request.version,
                is_near: pages.is_near(bytes.start / unit),
                missing: Vec::new(),
                too_large: Vec::new(),
                end: None,
                size_before: request.size_bytes,
                found: false,
                empty_from: u64::MAX,
                is_frequent: false,
                count: 0,
                bytes,
            };
            match reading.fill(backing) {
                Ok(()) => {
                    // Once: the owner may shrink or grow at any time.
                    reading.count = reading.available();
                    pages.note_read(request.len);
                    then(Ok(reading))
                }
                Err(error) => then(Err(error)),
            }
        })
    }
}

impl<O: Owner> Reading<'_, O> {
    /// The bytes: fewer than asked for where the owner's data ends.
    pub fn bytes(&self) -> &[u8] {
        let start = (self.bytes.start - self.first * PAGE) as usize;
        &self.buffer[start..start + self.count as usize]
    }

    /// Pages that the bytes are in.
    pub fn pages(&self) -> Range<u64> {
        self.bytes.start / PAGE..(self.bytes.start + self.count).div_ceil(PAGE)
    }

    /// Whether some of it had been read again and again.
    pub fn is_frequent(&self) -> bool {
        self.is_frequent
    }

    /// Has what was missing compressed, to be called when the reader has its answer. `spare_bytes`:
    /// memory within the cache's limit that is not filled; it is asked for only where that matters.
    pub fn keep(&self, spare_bytes: impl FnOnce() -> usize) {
        let Some(version) = self.version else { return };
        let cache = self.cache;
        // A page of a large cluster costs all of it each time: what was read in order before, and
        // is read by pages again and again now, is cut into smaller ones.
        let unit = self.unit().pages();
        let mut parts = Vec::new();
        for cluster in &self.too_large {
            let firsts = cluster.clone().step_by(unit);
            parts.extend(firsts.filter_map(|first| self.worth_trying(first..first + unit as u64)));
        }
        cache.backlog.offer(self.owner, version, Origin::Store, &parts, 0);
        // Most reads find everything, and have nothing to ask for below.
        if self.missing.is_empty() {
            return;
        }
        if !self.is_of_known_size() {
            return cache.counters.outdated_pages.add(self.missing_pages());
        }
        if cache.is_backing_faster(self.pages) {
            return cache.counters.fast_pages.add(self.missing_pages());
        }
        let missing: Vec<_> =
            self.missing.iter().filter_map(|cluster| self.worth_trying(cluster.clone())).collect();
        let origin = Origin::Backing { ns_per_byte: cache.speed.ns_per_byte() };
        let taken = cache.backlog.offer(self.owner, version, origin, &missing, spare_bytes());
        let refused: usize = missing[taken..].iter().map(|(_, cluster)| cluster.len()).sum();
        cache.counters.busy_pages.add((refused / PAGE_SIZE) as u64);
    }

    /// Fills the buffer's part for the pages that are asked for.
    fn fill(&mut self, backing: &impl Backing) -> io::Result<()> {
        let started = Instant::now();
        let cache = self.cache;
        let pages = self.asked_for.clone();
        let hits = self.look_up();
        if self.missing.is_empty() {
            cache.costs.add_hit(started.elapsed().as_nanos() as u64, hits);
        }
        cache.counters.hit_pages.add(hits);
        cache.counters.miss_pages.add((pages.end - pages.start).saturating_sub(hits));
        self.read_missing(backing)
    }

    /// Looks for the pages in the cache, and returns how many were found.
    fn look_up(&mut self) -> u64 {
        let pages = self.asked_for.clone();
        let (mut page, mut hits) = (pages.start, 0);
        let of = self.pages;
        let keys = of.keys();
        while page < pages.end {
            let key = keys.and_then(|keys| keys.key(page));
            let found = match (self.copy_recent(page), key) {
                (Some(next), _) => Some(next),
                (None, Some(key)) => self.load(key, page),
                (None, None) => None,
            };
            let (next, level) = match found {
                Some(next) => (next, Level::Cache),
                None => {
                    let cluster = self.cluster_around(page);
                    self.note_lost(keys.and_then(|keys| keys.key(cluster.start)), &cluster);
                    let next = cluster.end;
                    self.missing.push(cluster);
                    (next, Level::Backing)
                }
            };
            let looked_up = page..next.min(pages.end);
            if level == Level::Cache {
                hits += looked_up.end - looked_up.start;
            }
            self.owner.note_lookup(looked_up, level);
            page = next;
        }
        hits
    }

    /// Counts the pages of a missing cluster that would be here if there were a little more memory.
    fn note_lost(&self, key: Option<Key>, cluster: &Range<u64>) {
        let cache = self.cache;
        if let Some(key) = key
            && cache.replacement.has_just_left(&cache.store, key)
            && !cache.is_backing_faster(self.pages)
        {
            cache.costs.add_lost(self.asked_for_of(cluster).count() as u64);
        }
    }

    /// Under which recent clusters are of use, where they are.
    fn recent_version(&self) -> Option<Version> {
        self.version.filter(|_| self.is_near)
    }

    /// Copies what is asked for of the cluster that a page is in, if it was read just before, and
    /// returns the page behind.
    fn copy_recent(&mut self, page: u64) -> Option<u64> {
        let version = self.recent_version()?;
        let place = self.place(page..self.asked_for.end);
        let (owner, recent) = (self.owner, &self.cache.recent);
        let copied = recent.copy(owner, version, page, &mut self.buffer[place])?;
        self.found = true;
        self.is_frequent |= copied.is_frequent;
        Some(page + copied.pages)
    }

    /// Leaves a cluster for whoever asks for the rest of it.
    fn add_recent(&self, pages: &Range<u64>, is_frequent: bool) {
        let is_all = self.asked_for.start <= pages.start && pages.end <= self.asked_for.end;
        if let Some(version) = self.recent_version().filter(|_| !is_all) {
            let cluster = &self.buffer[self.place(pages.clone())];
            self.cache.recent.add(self.owner, version, pages.clone(), cluster, is_frequent);
        }
    }

    /// Decompresses the cluster that a page is in, if it is stored, and returns the page behind it.
    fn load(&mut self, key: Key, page: u64) -> Option<u64> {
        let cache = self.cache;
        WORKSPACE.with_borrow_mut(|workspace| {
            let loaded = workspace.find(&cache.store, key).and_then(|found| {
                let Some(found) = found else { return Ok(None) };
                let started = Instant::now();
                let first = page - (key - found.first);
                let pages = first..first + found.size.pages() as u64;
                let place = self.place(pages.clone());
                workspace.decompress(&found, &mut self.buffer[place])?;
                self.found = true;
                cache.counters.decompressions.add(1);
                cache.counters.decompress_ns.add(started.elapsed().as_nanos() as u64);
                let is_frequent = found.history.reads() > 1;
                self.is_frequent |= is_frequent;
                self.add_recent(&pages, is_frequent);
                let end = pages.end;
                if found.size > self.unit() && is_frequent {
                    self.too_large.push(pages);
                }
                Ok(Some(end))
            });
            loaded.unwrap_or_else(|damaged| {
                cache.remove_damaged(self.owner, key, &damaged);
                None
            })
        })
    }

    /// Pages that are compressed as one.
    fn unit(&self) -> ClusterSize {
        self.cache.unit(self.pages, self.is_near)
    }

    /// Pages of the cluster that a page is in, where none is stored.
    fn cluster_around(&self, page: u64) -> Range<u64> {
        let unit = self.unit().pages() as u64;
        let first = page / unit * unit;
        first..first + unit
    }

    /// Where pages lie in the buffer.
    fn place(&self, pages: Range<u64>) -> Range<usize> {
        (pages.start - self.first) as usize * PAGE_SIZE
            ..(pages.end - self.first) as usize * PAGE_SIZE
    }

    /// Those of some pages that are asked for.
    fn asked_for_of(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start.max(self.asked_for.start)..pages.end.min(self.asked_for.end)
    }

    /// Reads what was not stored from the backing, neighbours at once.
    fn read_missing(&mut self, backing: &impl Backing) -> io::Result<()> {
        let mut rest = &self.missing.clone()[..];
        while let Some(first) = rest.first() {
            let count = 1 + rest.windows(2).take_while(|pair| pair[0].end == pair[1].start).count();
            let pages = first.start..rest[count - 1].end;
            rest = &rest[count..];
            let asked_for = self.asked_for_of(&pages);
            match self.read_pages(backing, pages.clone()) {
                // It may be about a page that nobody has asked for.
                Err(_) if asked_for != pages => {
                    self.missing.retain(|cluster| !pages.contains(&cluster.start));
                    self.read_pages(backing, asked_for)?;
                }
                result => result?,
            }
        }
        if self.is_of_known_size() {
            self.missing.iter().for_each(|cluster| self.add_recent(cluster, false));
        }
        Ok(())
    }

    fn read_pages(&mut self, backing: &impl Backing, pages: Range<u64>) -> io::Result<()> {
        let cache = self.cache;
        let started = Instant::now();
        let place = self.place(pages.clone());
        let wanted = place.len();
        let under_way = cache.speed.begin();
        let filled = backing.read(pages.start * PAGE, &mut self.buffer[place]);
        cache.speed.end();
        let Filled { bytes, is_uncached } = filled?;
        let ns = started.elapsed().as_nanos() as u64;
        cache.counters.backing_reads.add(1);
        cache.counters.backing_read_bytes.add(bytes as u64);
        cache.counters.backing_read_ns.add(ns);
        if is_uncached && bytes > 0 {
            cache.speed.note(ns, bytes as u64, under_way);
        }
        let asked_for = self.asked_for_of(&pages).count() as u64;
        cache.costs.add_miss(ns, asked_for, pages.end - pages.start);
        if bytes == 0 {
            self.empty_from = self.empty_from.min(pages.start * PAGE);
        } else if bytes < wanted {
            self.end = Some(pages.start * PAGE + bytes as u64);
        }
        Ok(())
    }

    /// The owner's size as this read found it; what it did not find out is as it was last seen.
    fn size(&self) -> u64 {
        let seen = || self.owner.size_bytes().min(self.empty_from);
        let size = self.end.unwrap_or_else(seen);
        if self.found { size.min(self.size_before) } else { size }
    }

    /// How many of the bytes that are asked for there are, now.
    fn available(&self) -> u64 {
        self.size().min(self.bytes.end).saturating_sub(self.bytes.start)
    }

    /// Whether the data ended where it had ended when it was looked at. What is behind another end,
    /// which somebody is just making, may be part of it at once.
    fn is_of_known_size(&self) -> bool {
        self.size() == self.size_before
    }

    /// Pages of the clusters that were missing.
    fn missing_pages(&self) -> u64 {
        let within = self.missing.iter().filter(|cluster| self.is_within(cluster));
        within.map(|pages| pages.end - pages.start).sum()
    }

    /// Whether any of a cluster is within the owner's data.
    fn is_within(&self, pages: &Range<u64>) -> bool {
        pages.start * PAGE < self.size()
    }

    /// A cluster's first page and its bytes, if compressing it is worth trying.
    fn worth_trying(&self, pages: Range<u64>) -> Option<(u64, &[u8])> {
        if !self.is_within(&pages) {
            return None;
        }
        if !self.pages.backoff.is_due() {
            self.cache.counters.skipped_pages.add(pages.end - pages.start);
            return None;
        }
        Some((pages.start, &self.buffer[self.place(pages)]))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::tests::{Disk, config};

    #[test]
    fn an_owner_that_grows_meanwhile_has_no_zeros_of_what_is_stored() {
        let cache = Cache::new(config(16 << 20)).unwrap();
        let disk = Disk::new(Vec::new());
        disk.size.store(9000, Ordering::Relaxed);
        let mut reading = Reading {
            cache: &cache,
            owner: &disk,
            pages: disk.pages(),
            first: 0,
            buffer: &mut [],
            bytes: 0..8192,
            asked_for: 0..2,
            version: None,
            is_near: false,
            missing: Vec::new(),
            too_large: Vec::new(),
            end: None,
            size_before: 5000,
            found: false,
            empty_from: u64::MAX,
            is_frequent: false,
            count: 0,
        };
        assert_eq!(reading.size(), 9000);
        reading.found = true;
        assert_eq!(reading.size(), 5000);
        reading.end = Some(20_000);
        assert_eq!(reading.size(), 5000);
    }
}

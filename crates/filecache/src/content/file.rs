//! One file's content.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Instant;

use ramfold_codec::cluster::{BYTES_MAX, ClusterCodec, ClusterSize};
use ramfold_codec::{PAGE_SIZE, ZstdLevel};

use super::balance::Level;
use super::clusters::{self, Damaged, Object, Workspace, first_key};
use super::compression::Origin;
use super::keys::Keys;
use super::page_times::PageName;
use super::source::By;
use super::writers::Writers;
use super::{Shared, Source, Stamp, locked, with_buffer};

const PAGE: u64 = PAGE_SIZE as u64;

/// What is known of the file's times and size is believed for so long, in milliseconds.
const BELIEVED_MS: u64 = 100;
/// A file that was changed behind the mount so shortly before it was looked at can be changed again without a trace,
/// where the kernel's clock has coarse ticks (10 ms at most). What is read of it is not kept.
const FRESH_NS: i128 = 20_000_000;
/// Instead of when it was looked at: it is to be looked at again before anything of it is kept.
const NOT_BELIEVED: u64 = 0;
/// What was written through the mount is on its way to the disk for so long, in milliseconds: the kernel writes
/// after 30 s.
const DIRTY_MS: u64 = 40_000;
/// A read of so many bytes is of somebody who goes through the file in order.
const LONG_READ_BYTES: usize = 64 << 10;
/// So many more long reads than short ones make a file one that is read in order.
const IN_ORDER: u32 = 4;
/// Nanoseconds that a byte takes in order from the lower level, where it comes again: 1 to decompress and copy it, and
/// as much for having compressed it before (measured; LZ4, two processors).
const FROM_POOL_NS_PER_BYTE: f64 = 2.0;
/// After so many doublings of clusters that are passed by, no more.
const HOPE_MAX: u32 = 6;

/// Which file this is, whatever its name and wherever it is mounted. The generation tells files apart that
/// had the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub device: u64,
    pub inode: u64,
    pub generation: u64,
}

/// A file's content as long as it is known: shared by all handles of the inode.
///
/// The lock on what was seen is held while a file is changed, so of two changes one comes after the other. Lock
/// order: this one, the keys, the store's; those of the recent clusters come last.
pub struct Content {
    key: FileKey,
    shared: Arc<Shared>,
    /// The kernel's number for it.
    node: AtomicU64,
    seen: Mutex<Seen>,
    /// How often something was found changed that had not been changed through the mount.
    changes_behind: AtomicU64,
    /// How often it is open for writing through the mount.
    own_writers: AtomicU32,
    /// Grows by one when a change through the mount begins and when it ends, and when what is stored begins and has
    /// ended to be forgotten after one behind it: odd meanwhile. What was read under another number is outdated.
    epoch: AtomicU64,
    /// Grows whenever bytes of the file have become others.
    data: AtomicU32,
    /// What it was when the kernel last read something of the file.
    read_data: AtomicU32,
    size: AtomicU64,
    looked_at_ms: AtomicU64,
    dirty_until_ms: AtomicU64,
    /// Held for reading while clusters are looked for under them, so that they do not become another file's.
    keys: RwLock<Option<Keys>>,
    in_order: AtomicU32,
    /// Where it was read last, in groups of pages.
    read_last: AtomicU64,
    hope: Hope,
}

/// What was seen of the file in SOURCE.
#[derive(Debug, Default)]
struct Seen {
    /// After the last change through the mount, or when last looked at. Nothing at first, and when a look at
    /// the file failed.
    stamp: Option<Stamp>,
    /// The last change that it shows was made through the mount.
    is_own: bool,
    /// Those who write the file behind the mount.
    writers: Writers,
}

/// What an operation changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Owner, mode, times, names, extended attributes.
    Attributes,
    /// These bytes, and the size where they end behind the end of the file.
    Bytes(Range<u64>),
    /// Anything: size, and all bytes.
    All,
}

/// The right to keep what is read from now on, as long as the file is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct Ticket {
    epoch: u64,
}

/// Whether it is worth compressing more of the file: after clusters that did not shrink ever more are passed by.
#[derive(Default)]
struct Hope {
    failures: AtomicU32,
    pass_by: AtomicU32,
}

impl Hope {
    /// Whether to try the next one.
    fn is_due(&self) -> bool {
        let next = |left: u32| left.checked_sub(1);
        self.pass_by.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err()
    }

    fn note(&self, shrank: bool) {
        let failures = match shrank {
            true => 0,
            false => (self.failures.load(Ordering::Relaxed) + 1).min(HOPE_MAX),
        };
        self.failures.store(failures, Ordering::Relaxed);
        self.pass_by.store((1 << failures) - 1, Ordering::Relaxed);
    }
}

thread_local! {
    static WORKSPACE: std::cell::RefCell<Workspace> = std::cell::RefCell::new(Workspace::new());
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Content {
    pub(super) fn new(key: FileKey, shared: Arc<Shared>) -> Content {
        Content {
            key,
            shared,
            node: AtomicU64::new(0),
            seen: Mutex::default(),
            changes_behind: AtomicU64::new(0),
            own_writers: AtomicU32::new(0),
            epoch: AtomicU64::new(0),
            data: AtomicU32::new(0),
            read_data: AtomicU32::new(0),
            size: AtomicU64::new(0),
            looked_at_ms: AtomicU64::new(NOT_BELIEVED),
            dirty_until_ms: AtomicU64::new(0),
            keys: RwLock::new(None),
            in_order: AtomicU32::new(0),
            read_last: AtomicU64::new(u64::MAX),
            hope: Hope::default(),
        }
    }

    /// The kernel's number for the file, once it has one.
    pub fn node(&self) -> u64 {
        self.node.load(Ordering::Relaxed)
    }

    /// For noting what has become of a page.
    pub(super) fn name_of(&self, page: u64) -> PageName {
        PageName::new(self.key.inode ^ self.key.device.rotate_left(32) ^ self.key.generation, page)
    }

    /// The file has lost its last name: when it is closed, nothing of it is worth keeping.
    pub fn note_nameless(&self) {
        locked(&self.shared.nameless).push(self.key);
    }

    /// Nobody knows it any more.
    pub(super) fn end(&self) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = keys.take() {
            self.give_back(keys);
        }
    }

    fn give_back(&self, keys: Keys) {
        let range = keys.range(0..u64::MAX);
        self.shared.store.invalidate_range(range.start, range.end - range.start);
        self.shared.keys.give_back(keys);
    }

    pub fn set_node(&self, node: u64) {
        self.node.store(node, Ordering::Relaxed);
    }

    /// Reads up to `len` bytes at `offset` and hands them to `reply`. Fewer bytes than asked for mean the end of
    /// the file. Afterwards the kernel is taken to have the pages.
    ///
    /// # Errors
    /// `reply` gets what SOURCE says.
    pub fn read<R>(
        self: &Arc<Self>,
        source: &Source,
        offset: u64,
        len: usize,
        reply: impl FnOnce(io::Result<&[u8]>) -> R,
    ) -> R {
        let counters = &self.shared.counters;
        counters.reads.add(1);
        let end = offset.saturating_add(len as u64);
        // Behind what is known to be its end the file may have grown: a short answer would be taken for the end.
        let ticket = self.look(source.as_fd(), end > self.size.load(Ordering::Relaxed));
        let size_before = self.size.load(Ordering::Acquire);
        // If that is the size after a change, what was read before the change is not to be looked for any more.
        let ticket = ticket.filter(|ticket| self.epoch.load(Ordering::Acquire) == ticket.epoch);
        let aligned =
            offset / BYTES_MAX as u64 * BYTES_MAX as u64..end.next_multiple_of(BYTES_MAX as u64);
        with_buffer((aligned.end - aligned.start) as usize, |buffer| {
            let mut reading = Reading {
                content: self,
                first: aligned.start / PAGE,
                buffer,
                asked_for: offset / PAGE..end.div_ceil(PAGE),
                ticket,
                is_near: self.is_near(offset / BYTES_MAX as u64),
                missing: Vec::new(),
                too_large: Vec::new(),
                end_of_file: None,
                found: false,
                empty_from: u64::MAX,
                keep: false,
                size_before,
            };
            if let Err(error) = reading.fill(source) {
                return reply(Err(error));
            }
            let size = reading.size();
            let count = size.min(end).saturating_sub(offset) as usize;
            let start = (offset - aligned.start) as usize;
            let result = reply(Ok(&reading.buffer[start..start + count]));
            // The reader goes on meanwhile.
            let pages = offset / PAGE..(offset + count as u64).div_ceil(PAGE);
            counters.read_pages.add(pages.end - pages.start);
            if !pages.is_empty() {
                self.read_data.store(self.data(), Ordering::Relaxed);
                self.shared.kernel.given(self, pages, reading.keep);
            }
            self.note_read(len);
            reading.offer();
            result
        })
    }

    /// To be called around every operation `f` that changes data, size, times or attributes of the file through
    /// the mount. `source` is any descriptor of the file, O_PATH too; without one it is not known afterwards
    /// whether the file was changed behind the mount at the same time.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn change<T>(
        &self,
        source: Option<BorrowedFd<'_>>,
        changed: Changed,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut seen = locked(&self.seen);
        let look = || source.and_then(|source| Stamp::of(source).ok());
        self.compare(&mut seen, look());
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let result = f();
        // A failed operation may have changed something all the same.
        seen.stamp = look();
        seen.is_own = true;
        match changed {
            Changed::Attributes => {}
            Changed::Bytes(bytes) => {
                self.note_written(bytes.start / PAGE..bytes.end.div_ceil(PAGE))
            }
            Changed::All => self.note_written(0..u64::MAX),
        }
        self.note_size(seen.stamp);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// How often the file was changed behind the mount, as far as it shows in its times and size. Whoever keeps
    /// something of the file keeps this number with it, and drops it when the number is another.
    pub fn changes_behind(&self, source: BorrowedFd<'_>) -> u64 {
        // Whoever is changing it, which may take long, has compared by himself.
        if self.epoch.load(Ordering::Acquire).is_multiple_of(2) {
            self.compare_open(&mut locked(&self.seen), source);
        }
        self.changes_behind.load(Ordering::Relaxed)
    }

    /// The file is read elsewhere from now on: what is stored of it is forgotten, and the kernel
    /// drops what it has cached of it.
    pub fn forget_all(&self) {
        let _seen = locked(&self.seen);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.forget(0..u64::MAX);
        self.note_new_data();
        self.read_data.store(self.data(), Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    fn seen_at_rest(&self) -> Option<std::sync::MutexGuard<'_, Seen>> {
        match self.seen.try_lock() {
            Ok(seen) => Some(seen),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn compare(&self, seen: &mut Seen, now: Option<Stamp>) {
        if seen.stamp.is_some() && seen.stamp != now {
            seen.writers.note_change();
            self.changes_behind.fetch_add(1, Ordering::Relaxed);
            self.shared.counters.changes_behind.add(1);
            // What is still stored meanwhile may be read, but is not to be stored again.
            self.epoch.fetch_add(1, Ordering::AcqRel);
            self.forget(0..u64::MAX);
            self.note_new_data();
            // Whoever sees the epoch that begins is not to believe what was seen in the last one.
            self.looked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        let is_own = seen.is_own && seen.stamp == now;
        let is_believed = now.is_some_and(|stamp| is_own || stamp.age_ns() >= FRESH_NS);
        (seen.stamp, seen.is_own) = (now, is_own);
        self.note_size(now);
        let looked_at_ms = if is_believed { self.shared.now_ms().max(1) } else { NOT_BELIEVED };
        self.looked_at_ms.store(looked_at_ms, Ordering::Relaxed);
    }

    /// The same with a descriptor that is not one of O_PATH.
    fn compare_open(&self, seen: &mut Seen, source: BorrowedFd<'_>) {
        self.compare(seen, Stamp::of(source).ok());
        let Some(stamp) = seen.stamp else { return };
        if seen.writers.look(source, &stamp, self.is_open_for_writing()) {
            // What the kernel has may be old. Nothing is kept here.
            self.changes_behind.fetch_add(1, Ordering::Relaxed);
            self.epoch.fetch_add(2, Ordering::AcqRel);
        }
        if seen.writers.changes_unseen() {
            self.looked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
        }
    }

    /// It is opened for writing through the mount.
    pub fn note_writer(&self) {
        self.own_writers.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_writer_gone(&self) {
        self.own_writers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it is, so that it may be mapped and its pages be changed without anybody being told.
    pub fn is_open_for_writing(&self) -> bool {
        self.own_writers.load(Ordering::Relaxed) > 0
    }

    fn note_size(&self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp {
            // After the epoch that it belongs to has begun.
            self.size.store(stamp.size(), Ordering::Release);
        }
    }

    fn note_written(&self, pages: Range<u64>) {
        self.forget(pages);
        self.note_new_data();
        self.dirty_until_ms.store(self.shared.now_ms() + DIRTY_MS, Ordering::Relaxed);
    }

    fn note_new_data(&self) {
        self.data.fetch_add(1, Ordering::Relaxed);
    }

    /// Which data the file has.
    pub(super) fn data(&self) -> u32 {
        self.data.load(Ordering::Relaxed)
    }

    /// Whether the kernel has dropped by itself what it had of such data: it does when it reads a file again that
    /// was changed (FUSE_AUTO_INVAL_DATA).
    pub(super) fn is_dropped(&self, data: u32) -> bool {
        (self.read_data.load(Ordering::Relaxed).wrapping_sub(data) as i32) > 0
    }

    /// A program has written these bytes through the kernel's page cache, which keeps them.
    pub fn note_kept(self: &Arc<Self>, bytes: Range<u64>) {
        if !bytes.is_empty() {
            self.shared.kernel.given(self, bytes.start / PAGE..bytes.end.div_ceil(PAGE), false);
        }
    }

    /// Looks whether the file was changed behind the mount, at times or now. `None` where what is read now must not
    /// be kept.
    fn look(&self, source: BorrowedFd<'_>, now: bool) -> Option<Ticket> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let looked_at = self.looked_at_ms.load(Ordering::Relaxed);
        let age_ms = self.shared.now_ms().saturating_sub(looked_at);
        if !now && looked_at != NOT_BELIEVED && age_ms < BELIEVED_MS {
            return epoch.is_multiple_of(2).then_some(Ticket { epoch });
        }
        // The size that somebody is just changing would be a wrong end of the file.
        let seen = if now { Some(locked(&self.seen)) } else { self.seen_at_rest() };
        let Some(mut seen) = seen else {
            // Somebody else is looking, or stores something: what is found changed then, or at the next look, outdates
            // what is read now. Or is changing the file.
            let is_at_rest = looked_at != NOT_BELIEVED && epoch.is_multiple_of(2);
            return is_at_rest.then_some(Ticket { epoch });
        };
        self.compare_open(&mut seen, source);
        let is_believed = self.looked_at_ms.load(Ordering::Relaxed) != NOT_BELIEVED;
        is_believed.then(|| Ticket { epoch: self.epoch.load(Ordering::Acquire) })
    }

    fn keys(&self) -> RwLockReadGuard<'_, Option<Keys>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is stored of these pages, and of those that are in a cluster with them.
    fn forget(&self, pages: Range<u64>) {
        let keys = self.keys();
        let Some(keys) = *keys else { return };
        let unit = ClusterSize::Sixteen.pages() as u64;
        let end = pages.end.min(keys.pages());
        let range = keys.range(pages.start / unit * unit..end.next_multiple_of(unit));
        self.shared.store.invalidate_range(range.start, range.end - range.start);
    }

    /// Stores a cluster that was read under a ticket.
    pub(super) fn store(&self, ticket: Ticket, page: u64, size: ClusterSize, object: Object<'_>) {
        let (shared, pages) = (&self.shared, size.pages() as u64);
        // Nobody changes the file while it is held.
        let Some(_seen) = self.seen_at_rest() else {
            return shared.counters.outdated_pages.add(pages);
        };
        if self.epoch.load(Ordering::Acquire) != ticket.epoch {
            return shared.counters.outdated_pages.add(pages);
        }
        let Some(key) = self.key_of(page, size) else {
            return shared.counters.no_room_pages.add(pages);
        };
        let mark = shared.replacement.mark_for(&shared.store, key, size);
        match clusters::put(&shared.store, key, size, object, mark) {
            Ok(()) => {
                shared.replacement.stored(&shared.store, key, size, mark);
                shared.counters.compressed_pages.add(pages);
                shared.counters.compressed_to_bytes.add(object.bytes());
            }
            Err(_) => shared.counters.no_room_pages.add(pages),
        }
    }

    /// The key of a cluster that begins at a page, from keys that the file has or gets.
    fn key_of(&self, page: u64, size: ClusterSize) -> Option<u64> {
        let last = page + size.pages() as u64 - 1;
        if let Some(keys) = *self.keys()
            && keys.key(last).is_some()
        {
            return keys.key(page);
        }
        let pages = self.size.load(Ordering::Relaxed).div_ceil(PAGE).max(last + 1);
        let taken = self.shared.keys.take(pages)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(too_few) = keys.replace(taken) {
            // The file has grown: what is stored of its beginning is few pages.
            self.give_back(too_few);
        }
        taken.key(page)
    }

    pub(super) fn note_compressed(&self, shrank: bool) {
        self.hope.note(shrank);
    }

    fn note_read(&self, len: usize) {
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
    fn is_near(&self, group: u64) -> bool {
        self.read_last.swap(group, Ordering::Relaxed).abs_diff(group) <= 1
    }

    fn is_read_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed) >= IN_ORDER
    }

    /// Whether SOURCE gives in order what the file has faster than the lower level would.
    pub(super) fn is_faster_from_source(&self) -> bool {
        self.shared.config.codec.is_none()
            && self.is_read_in_order()
            && !self.shared.source_speed.is_slow()
            && self.shared.source_speed.ns_per_byte() < FROM_POOL_NS_PER_BYTE
    }

    /// How they are compressed.
    pub(super) fn codec(&self) -> ClusterCodec {
        let slow = self.shared.source_speed.is_slow();
        let as_source_is =
            if slow { ClusterCodec::Zstd(ZstdLevel::FASTEST) } else { ClusterCodec::Lz4 };
        self.shared.config.codec.unwrap_or(as_source_is)
    }

    #[cold]
    fn remove_damaged(&self, key: u64, damaged: &Damaged) {
        self.shared.counters.damaged_clusters.add(1);
        // Nobody is left to tell when standard error is closed.
        let _ =
            writeln!(io::stderr(), "ramfold: {damaged}; what it held is read from the file again");
        let first = first_key(key, ClusterSize::Sixteen);
        self.shared.store.invalidate_range(first, ClusterSize::Sixteen.pages() as u64);
    }

    fn by(&self) -> By {
        let is_dirty = self.dirty_until_ms.load(Ordering::Relaxed) > self.shared.now_ms();
        if is_dirty { By::PageCache } else { By::Direct }
    }
}

/// A read under way.
struct Reading<'a> {
    content: &'a Arc<Content>,
    /// The page of the file that the buffer begins with.
    first: u64,
    buffer: &'a mut [u8],
    asked_for: Range<u64>,
    /// Under which what is read may be kept.
    ticket: Option<Ticket>,
    /// Whether it is next to the last read of the file.
    is_near: bool,
    /// Clusters, as ranges of pages, that were not stored.
    missing: Vec<Range<u64>>,
    /// Clusters that are larger than those that the file is read by, and were read more than once.
    too_large: Vec<Range<u64>>,
    /// Where the file ends, if that was seen.
    end_of_file: Option<u64>,
    /// Where it ended before anything was looked for.
    size_before: u64,
    /// Whether something was stored: that has zeros behind the end, and the file may have grown since.
    found: bool,
    /// Where there is nothing of it any more.
    empty_from: u64,
    /// Whether the kernel does well to keep it.
    keep: bool,
}

impl Reading<'_> {
    /// Fills the buffer's part for these pages.
    fn fill(&mut self, source: &Source) -> io::Result<()> {
        let started = Instant::now();
        let shared = &self.content.shared;
        let pages = self.asked_for.clone();
        let (mut page, mut hits) = (pages.start, 0);
        let keys = self.content.keys();
        while page < pages.end {
            let key = keys.and_then(|keys| keys.key(page));
            let found = match (self.copy_recent(page), key) {
                (Some(next), _) => Some(next),
                (None, Some(key)) => self.load(key, page)?,
                (None, None) => None,
            };
            let next = match found {
                Some(next) => {
                    hits += next.min(pages.end) - page;
                    next
                }
                None => {
                    let cluster = self.cluster_around(page);
                    if let Some(key) = keys.and_then(|keys| keys.key(cluster.start))
                        && shared.replacement.has_just_left(&shared.store, key)
                        && !self.content.is_faster_from_source()
                    {
                        shared.balance.lost(self.asked_for_of(&cluster).count() as u64);
                    }
                    let next = cluster.end;
                    self.missing.push(cluster);
                    next
                }
            };
            let from = if found.is_some() { Level::Lower } else { Level::Source };
            for page in page..next.min(pages.end) {
                shared.balance.asked_for(self.content.name_of(page), from);
            }
            page = next;
        }
        drop(keys);
        if self.missing.is_empty() {
            shared.balance.hits_took(started.elapsed().as_nanos() as u64, hits);
        }
        shared.counters.pool_hit_pages.add(hits);
        shared.counters.miss_pages.add((pages.end - pages.start).saturating_sub(hits));
        self.read_missing(source)
    }

    /// Under which recent clusters are of use, where they are.
    fn recent_ticket(&self) -> Option<Ticket> {
        self.ticket.filter(|_| self.is_near)
    }

    /// Copies what is asked for of the cluster that a page is in, if it was read just before, and returns the page behind.
    fn copy_recent(&mut self, page: u64) -> Option<u64> {
        let ticket = self.recent_ticket()?;
        let place = self.place(page..self.asked_for.end);
        let (content, recent) = (self.content, &self.content.shared.recent);
        let copied = recent.copy(content, ticket, page, &mut self.buffer[place])?;
        self.found = true;
        self.keep |= copied.is_in_use;
        Some(page + copied.pages)
    }

    /// Leaves a cluster for whoever asks for the rest of it.
    fn keep_recent(&self, pages: &Range<u64>, is_in_use: bool) {
        let is_all = self.asked_for.start <= pages.start && pages.end <= self.asked_for.end;
        if let Some(ticket) = self.recent_ticket().filter(|_| !is_all) {
            let cluster = &self.buffer[self.place(pages.clone())];
            let recent = &self.content.shared.recent;
            recent.keep(self.content, ticket, pages.clone(), cluster, is_in_use);
        }
    }

    /// Decompresses the cluster that a page is in, if it is stored, and returns the page behind it.
    fn load(&mut self, key: u64, page: u64) -> io::Result<Option<u64>> {
        let shared = &self.content.shared;
        WORKSPACE.with_borrow_mut(|workspace| {
            let loaded = workspace.find(&shared.store, key).and_then(|found| {
                let Some(found) = found else { return Ok(None) };
                let started = Instant::now();
                let first = page - (key - found.first);
                let pages = first..first + found.size.pages() as u64;
                let place = self.place(pages.clone());
                workspace.decompress(&found, &mut self.buffer[place])?;
                self.found = true;
                shared.counters.decompressions.add(1);
                shared.counters.decompress_ns.add(started.elapsed().as_nanos() as u64);
                let is_in_use = found.mark.uses() > 1;
                self.keep |= is_in_use;
                self.keep_recent(&pages, is_in_use);
                let end = pages.end;
                if found.size > self.unit() && is_in_use {
                    self.too_large.push(pages);
                }
                Ok(Some(end))
            });
            Ok(loaded.unwrap_or_else(|damaged| {
                self.content.remove_damaged(key, &damaged);
                None
            }))
        })
    }

    /// Pages that are compressed as one.
    fn unit(&self) -> ClusterSize {
        let (content, shared) = (self.content, &self.content.shared);
        if let Some(size) = shared.config.cluster {
            return size;
        }
        // Who wants one page waits for its whole cluster, which is worth it where the rest is asked for next, or where
        // to wait for SOURCE is worse.
        if self.is_near || content.is_read_in_order() || shared.source_speed.is_slow() {
            ClusterSize::Four
        } else {
            ClusterSize::One
        }
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

    /// Reads what was not stored from SOURCE, neighbours at once.
    fn read_missing(&mut self, source: &Source) -> io::Result<()> {
        let mut rest = &self.missing.clone()[..];
        while let Some(first) = rest.first() {
            let count = 1 + rest.windows(2).take_while(|pair| pair[0].end == pair[1].start).count();
            let pages = first.start..rest[count - 1].end;
            rest = &rest[count..];
            let asked_for = self.asked_for_of(&pages);
            match self.read_pages(source, pages.clone()) {
                // It may be about a page that nobody has asked for.
                Err(_) if asked_for != pages => {
                    self.missing.retain(|cluster| !pages.contains(&cluster.start));
                    self.read_pages(source, asked_for)?;
                }
                result => result?,
            }
        }
        if self.is_of_known_size() {
            self.missing.iter().for_each(|cluster| self.keep_recent(cluster, false));
        }
        Ok(())
    }

    fn read_pages(&mut self, source: &Source, pages: Range<u64>) -> io::Result<()> {
        let shared = &self.content.shared;
        let started = Instant::now();
        let place = self.place(pages.clone());
        let (wanted, by) = (place.len(), self.content.by());
        let under_way = shared.source_speed.begin();
        let count = source.read(pages.start * PAGE, &mut self.buffer[place], by);
        shared.source_speed.end();
        let count = count?;
        let ns = started.elapsed().as_nanos() as u64;
        shared.counters.source_reads.add(1);
        shared.counters.source_read_bytes.add(count as u64);
        shared.counters.source_read_ns.add(ns);
        if by == By::Direct && count > 0 {
            shared.source_speed.note(ns, count as u64, under_way);
        }
        let asked_for = self.asked_for_of(&pages).count() as u64;
        shared.balance.misses_took(ns, asked_for, pages.end - pages.start);
        if count == 0 {
            self.empty_from = self.empty_from.min(pages.start * PAGE);
        } else if count < wanted {
            self.end_of_file = Some(pages.start * PAGE + count as u64);
        }
        Ok(())
    }

    /// The file's size as this read found it; what it did not find out is as it was last seen.
    fn size(&self) -> u64 {
        let seen = || self.content.size.load(Ordering::Relaxed).min(self.empty_from);
        let size = self.end_of_file.unwrap_or_else(seen);
        if self.found { size.min(self.size_before) } else { size }
    }

    /// Whether the file ended where it had ended when it was looked at. What is behind another end, which somebody is
    /// just making, may be part of it at once.
    fn is_of_known_size(&self) -> bool {
        self.size() == self.size_before
    }

    /// Has what was read from SOURCE compressed.
    fn offer(&self) {
        let Some(ticket) = self.ticket else { return };
        let (content, shared) = (self.content, &self.content.shared);
        if shared.balance.compressed_bytes_max() == 0 {
            return;
        }
        // A page of a large cluster costs all of it each time: what was read in order before, and is read by pages
        // again and again now, is cut into smaller ones.
        let unit = self.unit().pages();
        let mut parts = Vec::new();
        for cluster in &self.too_large {
            let firsts = cluster.clone().step_by(unit);
            parts.extend(firsts.filter_map(|first| self.hopeful(first..first + unit as u64)));
        }
        shared.compression.offer(content, ticket, Origin::Pool, &parts, 0);
        // Most reads find everything, and have nothing to ask for below.
        if self.missing.is_empty() {
            return;
        }
        if !self.is_of_known_size() {
            return shared.counters.outdated_pages.add(self.missing_pages());
        }
        if content.is_faster_from_source() {
            return shared.counters.fast_pages.add(self.missing_pages());
        }
        let missing: Vec<_> =
            self.missing.iter().filter_map(|cluster| self.hopeful(cluster.clone())).collect();
        let origin = Origin::Source { ns_per_byte: shared.source_speed.ns_per_byte() };
        let taken =
            shared.compression.offer(content, ticket, origin, &missing, shared.spare_bytes());
        let refused: usize = missing[taken..].iter().map(|(_, cluster)| cluster.len()).sum();
        shared.counters.busy_pages.add((refused / PAGE_SIZE) as u64);
    }

    /// Pages of the clusters that were missing.
    fn missing_pages(&self) -> u64 {
        let within = self.missing.iter().filter(|cluster| self.is_within(cluster));
        within.map(|pages| pages.end - pages.start).sum()
    }

    /// Whether any of a cluster is within the file.
    fn is_within(&self, pages: &Range<u64>) -> bool {
        pages.start * PAGE < self.size()
    }

    /// A cluster's first page and its bytes, if compressing it is worth trying.
    fn hopeful(&self, pages: Range<u64>) -> Option<(u64, &[u8])> {
        if !self.is_within(&pages) {
            return None;
        }
        if !self.content.hope.is_due() {
            self.content.shared.counters.hopeless_pages.add(pages.end - pages.start);
            return None;
        }
        Some((pages.start, &self.buffer[self.place(pages)]))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_grows_meanwhile_has_no_zeros_of_what_is_stored() {
        let contents = super::super::Contents::new(super::super::Config {
            memory_bytes: 16 << 20,
            compressed_share: None,
            codec: None,
            cluster: None,
            synchronous: true,
        });
        let content = contents.unwrap().of(FileKey { device: 1, inode: 1, generation: 0 });
        content.size.store(9000, Ordering::Relaxed);
        let mut reading = Reading {
            content: &content,
            first: 0,
            buffer: &mut [],
            asked_for: 0..2,
            ticket: None,
            is_near: false,
            missing: Vec::new(),
            too_large: Vec::new(),
            end_of_file: None,
            size_before: 5000,
            found: false,
            empty_from: u64::MAX,
            keep: false,
        };
        assert_eq!(reading.size(), 9000);
        reading.found = true;
        assert_eq!(reading.size(), 5000);
        reading.end_of_file = Some(20_000);
        assert_eq!(reading.size(), 5000);
    }

    /// Two that read at once both keep what they read, though only one of them looks.
    #[test]
    fn who_cannot_look_because_another_does_keeps_what_it_reads() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        thread::sleep(Duration::from_millis(25));
        let contents = super::super::Contents::new(super::super::tests::config(16 << 20)).unwrap();
        let content = contents.of(FileKey { device: 1, inode: 1, generation: 0 });
        content.note_writer();
        let first = content.look(file.as_fd(), true).unwrap();
        thread::sleep(Duration::from_millis(BELIEVED_MS + 10));
        let looking = locked(&content.seen);
        assert_eq!(content.look(file.as_fd(), false), Some(first));
        content.looked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
        assert_eq!(content.look(file.as_fd(), false), None);
        drop(looking);
        content.change(None, Changed::All, || Ok(())).unwrap();
        assert_ne!(content.look(file.as_fd(), true), Some(first));
    }

    #[test]
    fn what_was_passed_by_is_tried_again_whoever_asks() {
        let hope = Hope::default();
        for failures in 1..=HOPE_MAX + 1 {
            hope.note(false);
            let passed_by = (0..).take_while(|_| !hope.is_due()).count();
            assert_eq!(passed_by, (1 << failures.min(HOPE_MAX)) - 1);
        }
        // Of several at once none counts below nothing.
        for _ in 0..10_000 {
            hope.pass_by.store(1, Ordering::Relaxed);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| hope.is_due());
                }
            });
            assert!(hope.is_due());
        }
        hope.note(true);
        assert!(hope.is_due());
    }
}

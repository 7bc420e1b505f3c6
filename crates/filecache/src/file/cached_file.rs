//! One file: what is remembered of it, and reading it.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ramfold_cache::{
    Backing, CachedPages, DamagedCluster, Filled, Level, Owner, PageName, RefusedCluster, Request,
    Version,
};
use ramfold_sys::PAGE_SIZE;

use super::freshness::{NOT_BELIEVED, Seen};
use super::source_file::By;
use super::{AccessNotes, FileKey, Shared, SourceFile};

const PAGE: u64 = PAGE_SIZE as u64;

/// A file as long as it is known: shared by all handles of the inode.
///
/// The lock on what was seen is held while a file is changed, so of two changes one comes after the
/// other. Lock order: this one, then those of the lower level.
pub(crate) struct CachedFile {
    key: FileKey,
    pub(super) shared: Arc<Shared>,
    /// The kernel's number for it.
    node: AtomicU64,
    /// What the lower level keeps of it.
    pub(super) pages: CachedPages,
    pub(super) seen: Mutex<Seen>,
    /// How often something was found changed that had not been changed through the mount.
    pub(super) changes_behind: AtomicU64,
    /// How often it is open for writing through the mount.
    own_writers: AtomicU32,
    /// Grows by one when a change through the mount begins and when it ends, and when what is
    /// stored begins and has ended to be forgotten after one behind it: odd meanwhile. What was
    /// read under another number is outdated.
    pub(super) version: AtomicU64,
    /// Grows whenever bytes of the file have become others.
    pub(super) data: AtomicU32,
    /// What it was when the kernel last read something of the file.
    pub(super) data_read: AtomicU32,
    pub(super) size: AtomicU64,
    pub(super) checked_at_ms: AtomicU64,
    pub(super) dirty_until_ms: AtomicU64,
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile").field("key", &self.key).finish_non_exhaustive()
    }
}

impl CachedFile {
    pub(super) fn new(key: FileKey, shared: Arc<Shared>) -> CachedFile {
        CachedFile {
            key,
            shared,
            node: AtomicU64::new(0),
            pages: CachedPages::new(key.inode ^ key.device.rotate_left(32) ^ key.generation),
            seen: Mutex::default(),
            changes_behind: AtomicU64::new(0),
            own_writers: AtomicU32::new(0),
            version: AtomicU64::new(0),
            data: AtomicU32::new(0),
            data_read: AtomicU32::new(0),
            size: AtomicU64::new(0),
            checked_at_ms: AtomicU64::new(NOT_BELIEVED),
            dirty_until_ms: AtomicU64::new(0),
        }
    }

    /// The kernel's number for the file, once it has one.
    pub(crate) fn node(&self) -> u64 {
        self.node.load(Ordering::Relaxed)
    }

    pub(crate) fn set_node(&self, node: u64) {
        self.node.store(node, Ordering::Relaxed);
    }

    /// For noting what has become of a page.
    pub(super) fn name_of(&self, page: u64) -> PageName {
        self.pages.name_of(page)
    }

    /// The file has lost its last name: when it is closed, nothing of it is worth keeping.
    pub(crate) fn note_nameless(&self) {
        self.shared.known.note_nameless(self.key);
    }

    /// Nobody knows it any more.
    pub(super) fn end(&self) {
        self.shared.cache.forget_owner(&self.pages);
    }

    /// It is opened for writing through the mount.
    pub(crate) fn note_writer(&self) {
        self.own_writers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_writer_gone(&self) {
        self.own_writers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it is, so that it may be mapped and its pages be changed without anybody being told.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        self.own_writers.load(Ordering::Relaxed) > 0
    }

    /// Reads up to `len` bytes at `offset` and hands them to `reply`. Fewer bytes than asked for
    /// mean the end of the file. Afterwards the kernel is taken to have the pages.
    ///
    /// # Errors
    /// `reply` gets what SOURCE says.
    pub(crate) fn read<R>(
        self: &Arc<Self>,
        source: &SourceFile,
        offset: u64,
        len: usize,
        reply: impl FnOnce(io::Result<&[u8]>) -> R,
    ) -> R {
        let (shared, counters) = (&self.shared, &self.shared.counters);
        counters.reads.add(1);
        let end = offset.saturating_add(len as u64);
        // Behind what is known to be its end the file may have grown: a short answer would be taken
        // for the end.
        let version = self.check(source.as_fd(), end > self.size.load(Ordering::Relaxed));
        let size_bytes = self.size.load(Ordering::Acquire);
        // If that is the size after a change, what was read before the change is not to be looked
        // for any more.
        let version = version.filter(|version| self.version.load(Ordering::Acquire) == version.0);
        let request = Request { owner: self, offset, len, version, size_bytes };
        let backing = FileBacking { file: self, source };
        shared.cache.read(&request, &backing, |reading| {
            let reading = match reading {
                Ok(reading) => reading,
                Err(error) => return reply(Err(error)),
            };
            let result = reply(Ok(reading.bytes()));
            // The reader goes on meanwhile.
            let pages = reading.pages();
            counters.read_pages.add(pages.end - pages.start);
            if !pages.is_empty() {
                if let Some(AccessNotes(note)) = &shared.accesses {
                    note(self.key, pages.clone());
                }
                self.data_read.store(self.data(), Ordering::Relaxed);
                shared.kernel.note_given(self, pages, reading.is_frequent());
            }
            if shared.balance.compressed_bytes_max() > 0 {
                reading.keep(|| shared.spare_bytes());
            }
            result
        })
    }

    /// The kernel's page cache has these bytes now, which were not read from here: a program has
    /// written them, or had them read ahead.
    pub(crate) fn note_cached_by_kernel(self: &Arc<Self>, bytes: Range<u64>) {
        if !bytes.is_empty() {
            let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
            self.shared.kernel.note_given(self, pages, false);
        }
    }

    /// How the file is read in SOURCE.
    fn by(&self) -> By {
        let is_dirty = self.dirty_until_ms.load(Ordering::Relaxed) > self.shared.now_ms();
        if is_dirty { By::PageCache } else { By::Direct }
    }
}

/// A file of SOURCE, read by an open descriptor.
struct FileBacking<'a> {
    file: &'a CachedFile,
    source: &'a SourceFile,
}

impl Backing for FileBacking<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Filled> {
        let by = self.file.by();
        let bytes = self.source.read(offset, buffer, by)?;
        Ok(Filled { bytes, is_uncached: by == By::Direct })
    }
}

impl Owner for CachedFile {
    fn pages(&self) -> &CachedPages {
        &self.pages
    }

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn store_if_current(&self, version: Version, store: impl FnOnce()) -> bool {
        // Nobody changes the file while it is held.
        let Some(_seen) = self.seen_at_rest() else { return false };
        let is_current = self.version.load(Ordering::Acquire) == version.0;
        if is_current {
            store();
        }
        is_current
    }

    fn note_lookup(&self, pages: Range<u64>, level: Level) {
        for page in pages {
            self.shared.balance.note_asked_for(self.name_of(page), level);
        }
    }

    fn note_damaged(&self, damaged: &DamagedCluster) {
        // Nobody is left to tell when standard error is closed.
        let _ =
            writeln!(io::stderr(), "ramfold: {damaged}; what it held is read from the file again");
    }

    fn note_refused(&self, refused: &RefusedCluster) {
        let _ = writeln!(
            io::stderr(),
            "ramfold: {refused}; data like this stays uncompressed and is read from the file again \
             (rejected_refused_pages of --stats counts it)"
        );
    }
}

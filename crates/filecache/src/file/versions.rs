//! Changing a file: what was read of it before is outdated.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::stamp::Stamp;
use super::{CachedFile, locked};

const PAGE: u64 = PAGE_SIZE as u64;

/// What was written through the mount is on its way to the disk for so long, in milliseconds: the
/// kernel writes after 30 s.
const DIRTY_MS: u64 = 40_000;

/// What an operation changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Owner, mode, times, names, extended attributes.
    Attributes,
    /// These bytes, and the size where they end behind the end of the file.
    Bytes(Range<u64>),
    /// Anything: size, and all bytes.
    All,
}

impl CachedFile {
    /// To be called around every operation `f` that changes data, size, times or attributes of the
    /// file through the mount. `source` is any descriptor of the file, O_PATH too; without one it
    /// is not known afterwards whether the file was changed behind the mount at the same time.
    ///
    /// # Errors
    /// Those of `f`.
    pub(crate) fn change<T>(
        &self,
        source: Option<BorrowedFd<'_>>,
        changed: Changed,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut seen = locked(&self.seen);
        let stamp = || source.and_then(|source| Stamp::of(source).ok());
        self.compare(&mut seen, stamp());
        self.version.fetch_add(1, Ordering::AcqRel);
        let result = f();
        // A failed operation may have changed something all the same.
        seen.note_own(stamp());
        match changed {
            Changed::Attributes => {}
            Changed::Bytes(bytes) => {
                self.note_written(bytes.start / PAGE..bytes.end.div_ceil(PAGE))
            }
            Changed::All => self.note_written(0..u64::MAX),
        }
        self.note_size(seen.stamp());
        self.version.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// The file is read elsewhere from now on: what is stored of it is forgotten, and the kernel
    /// drops what it has cached of it.
    pub(crate) fn forget_all(&self) {
        let _seen = locked(&self.seen);
        self.version.fetch_add(1, Ordering::AcqRel);
        self.forget(0..u64::MAX);
        self.note_new_data();
        self.data_read.store(self.data(), Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn note_written(&self, pages: Range<u64>) {
        self.forget(pages);
        self.note_new_data();
        self.dirty_until_ms.store(self.shared.now_ms() + DIRTY_MS, Ordering::Relaxed);
    }

    /// Forgets what is stored of these pages.
    pub(super) fn forget(&self, pages: Range<u64>) {
        self.shared.cache.forget(&self.pages, pages);
    }

    pub(super) fn note_size(&self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp {
            // After the version that it belongs to has begun.
            self.size.store(stamp.size(), Ordering::Release);
        }
    }

    pub(super) fn note_new_data(&self) {
        self.data.fetch_add(1, Ordering::Relaxed);
    }

    /// Which data the file has.
    pub(super) fn data(&self) -> u32 {
        self.data.load(Ordering::Relaxed)
    }

    /// Whether the kernel has dropped by itself what it had of such data: it does when it reads a
    /// file again that was changed (FUSE_AUTO_INVAL_DATA).
    pub(super) fn is_dropped(&self, data: u32) -> bool {
        (self.data_read.load(Ordering::Relaxed).wrapping_sub(data) as i32) > 0
    }
}

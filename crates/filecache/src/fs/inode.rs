//! One file of SOURCE that the kernel knows, and how it is found again.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::{FileType, Generation, INodeNo};
use ramfold_sys::file_server::FileHandle;
use rustix::fs::{OFlags, Statx, makedev};

use super::attributes::file_type;
use super::clock::Positioned;
use super::passthrough::Opens;
use super::removed::Removed;
use super::source_mounts::{SourceMount, SourceMounts};
use crate::file::{CachedFile, FileCache, FileKey, allocated};

/// A file of SOURCE that the kernel knows. There can be millions of them.
#[derive(Debug)]
pub(crate) struct Inode {
    pub number: INodeNo,
    pub kind: FileType,
    /// Has been used since the hand came by.
    used: AtomicBool,
    /// Where it is in the clock.
    position: AtomicU32,
    generation: u32,
    device: u32,
    inode: u64,
    mount: Arc<SourceMount>,
    locator: Locator,
    /// Holds a file without a name, which its handle does not find when the system has dropped it.
    held: OnceLock<OwnedFd>,
    /// How often the kernel was told of it. Changed with the table locked.
    pub(super) lookups: AtomicU64,
    /// Owner, group and mode as the kernel was told last, as one number.
    told: AtomicU32,
    /// Once it has been open, or changed.
    open: OnceLock<Box<OpenState>>,
}

/// How a file is, or was, open.
#[derive(Debug)]
pub(crate) struct OpenState {
    cached: OnceLock<Arc<CachedFile>>,
    /// [`CachedFile::changes_behind`] when the kernel's cache was last known to be right.
    cached_at: AtomicU64,
    /// The kernel has had it open through its page cache, and may have pages of it.
    pub was_cached: AtomicBool,
    /// The kernel is about to be told to drop them.
    pub is_to_be_dropped: AtomicBool,
    pub opens: Opens,
}

impl Default for OpenState {
    fn default() -> OpenState {
        OpenState {
            cached: OnceLock::new(),
            cached_at: AtomicU64::new(u64::MAX),
            was_cached: AtomicBool::new(false),
            is_to_be_dropped: AtomicBool::new(false),
            opens: Opens::default(),
        }
    }
}

/// What each takes by itself.
pub(super) const INODE_BYTES: usize = allocated::<Inode>();

const _: () = assert!(INODE_BYTES <= 128, "it is what a known file costs");

/// Which inode this is as long as it exists. The same file in two mounts is two inodes: what may be
/// done with it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey {
    pub mount: u64,
    /// As the kernel has it: 12 bits, and 20 bits.
    pub device: u32,
    pub inode: u64,
}

/// How a file is found again.
#[derive(Debug)]
pub(crate) enum Locator {
    Handle(FileHandle),
    Descriptor(OwnedFd),
}

/// A descriptor of O_PATH.
#[derive(Debug)]
pub(crate) enum PathFd<'a> {
    Opened(OwnedFd),
    Held(BorrowedFd<'a>),
}

impl AsFd for PathFd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PathFd::Opened(fd) => fd.as_fd(),
            PathFd::Held(fd) => *fd,
        }
    }
}

impl InodeKey {
    pub(crate) fn of(stat: &Statx) -> InodeKey {
        InodeKey {
            mount: stat.stx_mnt_id,
            device: stat.stx_dev_major << 20 | stat.stx_dev_minor,
            inode: stat.stx_ino,
        }
    }
}

impl Inode {
    /// One that the kernel is told of for the first time.
    pub(crate) fn at(
        number: INodeNo,
        key: InodeKey,
        kind: FileType,
        mount: Arc<SourceMount>,
        locator: Locator,
        generation: u32,
    ) -> Inode {
        Inode {
            number,
            kind,
            used: AtomicBool::new(false),
            position: AtomicU32::new(u32::MAX),
            generation,
            device: key.device,
            inode: key.inode,
            mount,
            locator,
            held: OnceLock::new(),
            lookups: AtomicU64::new(1),
            told: AtomicU32::new(0),
            open: OnceLock::new(),
        }
    }

    /// Whether it is found by a descriptor, which it has all the time.
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(self.locator, Locator::Descriptor(_))
    }

    /// Whether it is held because it has no name any more.
    pub(crate) fn is_held_nameless(&self) -> bool {
        self.held.get().is_some()
    }

    /// What its handle takes beside it.
    pub(crate) fn handle_bytes(&self) -> usize {
        match &self.locator {
            Locator::Handle(handle) => handle.heap_bytes(),
            Locator::Descriptor(_) => 0,
        }
    }

    /// A file that the kernel is told of, found by its handle where there is one.
    ///
    /// # Errors
    /// `EIO` when it is of no known type.
    pub(crate) fn new(
        number: u64,
        key: InodeKey,
        stat: &Statx,
        mount: Arc<SourceMount>,
        handle: Option<FileHandle>,
        file: OwnedFd,
    ) -> io::Result<Inode> {
        // A number that comes again is another inode by its generation. A handle has the file
        // system's own generation in it; without one, when the file was made is the best there is.
        let mut hasher = DefaultHasher::new();
        match &handle {
            Some(handle) => handle.hash(&mut hasher),
            None => (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec).hash(&mut hasher),
        }
        let locator = match handle {
            Some(handle) => Locator::Handle(handle),
            None => Locator::Descriptor(file),
        };
        // The kernel keeps 32 bits of it, and compares all.
        let generation = hasher.finish() as u32;
        Ok(Inode::at(INodeNo(number), key, file_type(stat)?, mount, locator, generation))
    }

    /// # Errors
    /// `ESTALE` when the file is there no more.
    pub(crate) fn find(&self) -> io::Result<PathFd<'_>> {
        match (&self.locator, self.held.get()) {
            (Locator::Descriptor(fd), _) | (_, Some(fd)) => Ok(PathFd::Held(fd.as_fd())),
            (Locator::Handle(handle), None) => {
                Ok(PathFd::Opened(self.mount.open(handle, OFlags::PATH | OFlags::NOFOLLOW)?))
            }
        }
    }

    /// Opens it for more than looking at it.
    ///
    /// # Errors
    /// `ESTALE` when the file is there no more; what open(2) says.
    pub(crate) fn open(&self, mounts: &SourceMounts, flags: OFlags) -> io::Result<OwnedFd> {
        match (&self.locator, self.held.get()) {
            (Locator::Descriptor(fd), _) | (_, Some(fd)) => {
                mounts.descriptors().open(fd.as_fd(), flags)
            }
            (Locator::Handle(handle), None) => self.mount.open(handle, flags),
        }
    }

    /// Is it this file, and not one that had its number before?
    pub(crate) fn is_of<'a>(
        &self,
        key: InodeKey,
        handle: impl FnOnce() -> Option<&'a FileHandle>,
    ) -> bool {
        self.key() == key
            && match &self.locator {
                // What is held keeps its number.
                Locator::Descriptor(..) => true,
                Locator::Handle(own) => handle() == Some(own),
            }
    }

    pub(crate) fn key(&self) -> InodeKey {
        InodeKey { mount: self.mount.id(), device: self.device, inode: self.inode }
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(u64::from(self.generation))
    }

    /// It is to be forgotten later than what is not used.
    pub(crate) fn note_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Holds a file that has lost its last name.
    pub(crate) fn hold(&self, file: OwnedFd, removed: &Removed) {
        if matches!(self.locator, Locator::Handle(..)) {
            removed.note_held();
            // Another thread may have been first.
            let _ = self.held.set(file);
        }
    }

    /// Tells the cache that the file has lost its last name.
    pub(crate) fn note_nameless(&self) {
        if let Some(cached) = self.open.get().and_then(|open| open.cached.get()) {
            cached.note_nameless();
        }
    }

    pub(crate) fn cached_file(&self, cache: &FileCache) -> &Arc<CachedFile> {
        self.open_state().cached.get_or_init(|| {
            cache.file(FileKey {
                device: u64::from(self.device),
                inode: self.inode,
                generation: u64::from(self.generation),
            })
        })
    }

    /// The kernel is told of its attributes.
    pub(crate) fn note_told(&self, stat: &Statx) {
        self.told.store(owner_and_mode(stat), Ordering::Relaxed);
    }

    /// Whether the kernel was last told of this owner, group and mode.
    pub(crate) fn was_told(&self, stat: &Statx) -> bool {
        self.told.load(Ordering::Relaxed) == owner_and_mode(stat)
    }

    /// The mount it is in, where it is found by its handle.
    pub(crate) fn mount(&self) -> Option<&SourceMount> {
        matches!(self.locator, Locator::Handle(_)).then_some(&*self.mount)
    }

    /// As statx(2) has it.
    pub(crate) fn device(&self) -> u64 {
        device_number(self.device)
    }

    /// What the kernel has cached of it is not to be believed when it is opened next.
    pub(crate) fn note_not_cached(&self) {
        self.open_state().cached_at.store(u64::MAX, Ordering::Relaxed);
    }

    pub(crate) fn open_state(&self) -> &OpenState {
        self.open.get_or_init(Box::default)
    }

    /// Is what the kernel has cached of it as old as this? It is from now on.
    pub(crate) fn was_cached_at(&self, changes_behind: u64) -> bool {
        self.open_state().cached_at.swap(changes_behind, Ordering::Relaxed) == changes_behind
    }
}

/// As statx(2) has it, of a device as an [`InodeKey`] has it.
pub(super) fn device_number(device: u32) -> u64 {
    makedev(device >> 20, device & 0xf_ffff)
}

fn owner_and_mode(stat: &Statx) -> u32 {
    let mut hasher = DefaultHasher::new();
    (stat.stx_uid, stat.stx_gid, stat.stx_mode).hash(&mut hasher);
    hasher.finish() as u32
}

impl Positioned for Arc<Inode> {
    fn position(&self) -> usize {
        self.position.load(Ordering::Relaxed) as usize
    }

    fn set_position(&self, position: usize) {
        self.position.store(position as u32, Ordering::Relaxed);
    }

    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

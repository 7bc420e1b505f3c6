//! Passthrough (FUSE_PASSTHROUGH, Linux 6.9): the kernel reads a file of SOURCE by itself and does
//! not ask ramfold.
//!
//! It is for files that gain nothing here, because SOURCE has them in RAM or gives them as fast as
//! ramfold would. What is read of them is in SOURCE's page cache, and nowhere else.
//!
//! The kernel's rules (fs/fuse/iomode.c): an inode that is open through the kernel's page cache
//! cannot be opened in passthrough mode, nor the other way round; the open would fail with EIO. All
//! that have an inode open in passthrough mode have the same backing file. So how an inode is
//! opened is decided when nobody has it open (the server's view of that lasts longer than the
//! kernel's: from before the answer to OPEN until after RELEASE), and who comes later follows.
//!
//! Only who opens a file for reading alone begins passthrough. Who opens such a file otherwise
//! meanwhile gets FOPEN_PASSTHROUGH with FOPEN_DIRECT_IO: reads and writes come here and are done
//! in SOURCE at once, as whoever does them, so that set-id bits, quotas and limits are as
//! elsewhere; only mappings are SOURCE's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackingId, FileType, FopenFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::inode::Inode;
use super::speed_probe::SourceSpeed;
use crate::file::PassthroughCounters;

/// Makes a descriptor of SOURCE known to the kernel as a backing file.
pub(super) type Register<'a> = &'a dyn Fn(BorrowedFd<'_>) -> io::Result<BackingId>;

/// How an inode is open.
#[derive(Debug, Default)]
pub(crate) struct Opens(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// In passthrough mode as long as there is one, which is never without opens.
    backing: Option<Arc<BackingId>>,
    /// It was open for reading and writing: by somebody who reads what he writes, which the
    /// kernel's page cache over the mount does faster than requests.
    is_read_by_writers: bool,
    /// It was open for reading and writing in passthrough mode. A mapping made then is SOURCE's own
    /// and may have outlived the descriptor; what is written to it changes no times as long as its
    /// page is dirty. So nothing of the file may be cached until the kernel forgets the inode,
    /// which it does not while a mapping is there.
    may_be_mapped: bool,
}

impl Opens {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open of an inode, until it is dropped.
#[derive(Debug)]
pub(super) struct Opened {
    inode: Arc<Inode>,
    backing: Option<Arc<BackingId>>,
    counters: Arc<PassthroughCounters>,
    pub flags: OpenedFlags,
    /// It is the first.
    pub begins_passthrough: bool,
}

/// Where reads and writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenedFlags {
    /// Through the kernel's page cache and [`crate::file`].
    Cached,
    /// To SOURCE, and the kernel does not ask. What is asked for all the same (readahead(2)) is
    /// read in SOURCE.
    Passthrough,
    /// To SOURCE, by requests; mappings are SOURCE's own.
    PassthroughByRequests,
}

impl OpenedFlags {
    pub(super) fn is_passthrough(self) -> bool {
        self != OpenedFlags::Cached
    }

    pub(super) fn fuse(self) -> FopenFlags {
        match self {
            // fuser adds FOPEN_PASSTHROUGH itself.
            OpenedFlags::Cached | OpenedFlags::Passthrough => FopenFlags::empty(),
            OpenedFlags::PassthroughByRequests => FopenFlags::FOPEN_DIRECT_IO,
        }
    }
}

impl Opened {
    pub(super) fn backing(&self) -> Option<Arc<BackingId>> {
        self.backing.clone()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut state = self.inode.open_state().opens.lock();
        state.count -= 1;
        let last = if state.count == 0 { state.backing.take() } else { None };
        drop(state);
        if last.is_some() {
            self.counters.files.subtract(1);
        }
    }
}

/// Decides which files are passed through.
#[derive(Debug)]
pub(super) struct Passthrough {
    /// Nothing was asked for that rules it out, and this process may do it.
    is_wanted: bool,
    /// The kernel does it.
    is_possible: AtomicBool,
    speed: SourceSpeed,
    counters: Arc<PassthroughCounters>,
}

impl Passthrough {
    pub(super) fn new(
        is_wanted: bool,
        speed: SourceSpeed,
        counters: Arc<PassthroughCounters>,
    ) -> Self {
        Passthrough { is_wanted, is_possible: AtomicBool::new(false), speed, counters }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// The kernel has said that it does it.
    pub(super) fn allow(&self) {
        self.is_possible.store(true, Ordering::Relaxed);
    }

    /// One more open of an inode, of which `source` is a descriptor. `seems_fast`: SOURCE's reads
    /// of late say so.
    ///
    /// # Errors
    /// `EBUSY` for reading and appending to a file that can only be appended to, as long as others
    /// have it open in passthrough mode: a mapping could change what is there.
    pub(super) fn open(
        &self,
        inode: &Arc<Inode>,
        source: BorrowedFd<'_>,
        flags: OFlags,
        is_append_only: bool,
        seems_fast: bool,
        register: Register<'_>,
    ) -> io::Result<Opened> {
        let access = flags & OFlags::ACCMODE;
        let is_direct = flags.contains(OFlags::DIRECT);
        let reads_and_writes = access == OFlags::RDWR;
        let is_plain_read = access == OFlags::RDONLY && !is_direct;
        let mut state = inode.open_state().opens.lock();
        let is_passed_through = state.backing.is_some() || state.may_be_mapped;
        if is_passed_through && is_append_only && reads_and_writes {
            return Err(Errno::BUSY.into());
        }
        if state.count == 0 && self.is_possible.load(Ordering::Relaxed) {
            let begins = || is_plain_read && !state.is_read_by_writers;
            if state.may_be_mapped || begins() && self.gains_nothing(inode, source, seems_fast) {
                state.backing = self.register(source, register);
            }
        }
        state.count += 1;
        state.is_read_by_writers |= reads_and_writes;
        state.may_be_mapped |= reads_and_writes && state.backing.is_some();
        let backing = state.backing.clone();
        let begins_passthrough = backing.is_some() && state.count == 1;
        if backing.is_some() {
            self.counters.opens.add(1);
            if begins_passthrough {
                self.counters.files.add(1);
            }
        }
        let flags = match (&backing, is_plain_read) {
            (None, _) => OpenedFlags::Cached,
            (Some(_), true) => OpenedFlags::Passthrough,
            (Some(_), false) => OpenedFlags::PassthroughByRequests,
        };
        drop(state);
        let (inode, counters) = (Arc::clone(inode), Arc::clone(&self.counters));
        Ok(Opened { inode, backing, counters, flags, begins_passthrough })
    }

    fn register(&self, source: BorrowedFd<'_>, register: Register<'_>) -> Option<Arc<BackingId>> {
        match register(source) {
            Ok(backing) => Some(Arc::new(backing)),
            Err(error) => {
                // Where this process lacks CAP_SYS_ADMIN no other file can be either.
                if error.kind() == io::ErrorKind::PermissionDenied {
                    self.is_possible.store(false, Ordering::Relaxed);
                }
                None
            }
        }
    }

    fn gains_nothing(&self, inode: &Inode, source: BorrowedFd<'_>, seems_fast: bool) -> bool {
        // Handles are of local file systems, where it does not matter as whom SOURCE is read.
        let Some(mount) = inode.mount().filter(|_| inode.kind == FileType::RegularFile) else {
            return false;
        };
        let again = || -> io::Result<OwnedFd> { source.as_fd().try_clone_to_owned() };
        mount.is_ram() || self.speed.is_fast(inode.device(), seems_fast, again)
    }
}

//! Open files, and opening them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{BackingId, FileHandle, FopenFlags, INodeNo, OpenFlags};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat};
use rustix::io::Errno;

use super::FileSystem;
use super::credentials::{About, Accessed, Caller};
use super::handles::Handles;
use super::inode::Inode;
use super::names::{self, Named};
use super::open_limit::Counted;
use super::passthrough::{Opened, Register};
use super::source_mounts::{Descriptors, look_at};
use crate::file::{CachedFile, SourceFile};

/// Of the flags of an open, those that are SOURCE's business too. O_APPEND and O_SYNC come with
/// each write; the kernel cuts files off by itself (O_TRUNC).
const PASSED_ON: OFlags = OFlags::ACCMODE
    .union(OFlags::DIRECT)
    .union(OFlags::NOATIME)
    .union(OFlags::NONBLOCK)
    .union(FOR_EXECUTION);

/// The kernel opens a program with this flag of its own (__FMODE_EXEC, include/linux/fs.h).
const FOR_EXECUTION: OFlags = OFlags::from_bits_retain(0x20);

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub inode: Arc<Inode>,
    pub cached: Arc<CachedFile>,
    pub(super) source: SourceFile,
    /// Who writes what the kernel writes back for nobody in particular. Closed before this is
    /// dropped.
    opener: Opener,
    pub(super) is_direct: bool,
    pub(super) is_written: bool,
    /// Its descriptor appends whatever is written to it.
    pub(super) is_append_only: bool,
    pub(super) opened: Opened,
}

/// Who has it open, counted among that user's files.
#[derive(Debug)]
struct Opener {
    caller: Caller,
    _counted: Counted,
    _writer: Option<OwnWriter>,
}

/// The file is, or is about to be, open for writing through the mount.
#[derive(Debug)]
struct OwnWriter(Arc<CachedFile>);

impl OwnWriter {
    fn new(file: &Arc<CachedFile>) -> OwnWriter {
        file.note_writer();
        OwnWriter(Arc::clone(file))
    }
}

impl Drop for OwnWriter {
    fn drop(&mut self) {
        self.0.note_writer_gone();
    }
}

/// What the kernel is told of an open file.
#[derive(Debug)]
pub(crate) struct OpenReply {
    pub handle: FileHandle,
    pub flags: FopenFlags,
    /// In passthrough mode.
    pub backing: Option<Arc<BackingId>>,
}

impl OpenFile {
    /// Whether nothing of it is cached here or in the kernel.
    pub(crate) fn is_passed_through(&self) -> bool {
        self.opened.flags.is_passthrough()
    }

    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }

    /// Who has opened it.
    pub(crate) fn opener(&self) -> Caller {
        self.opener.caller
    }
}

/// All open files.
pub(super) type Files = Handles<OpenFile>;

impl FileSystem {
    /// # Errors
    /// What open(2) says.
    pub(crate) fn open_file(
        &self,
        caller: Caller,
        number: INodeNo,
        flags: OpenFlags,
        register: Register<'_>,
    ) -> io::Result<OpenReply> {
        let inode = self.inodes.get(number)?;
        let counted = self.open_limit.count(caller.user)?;
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        // Before it is open, so that it is not taken for somebody else's.
        let writer = self.writer(&inode, flags);
        let opener = Opener { caller, _counted: counted, _writer: writer };
        let open = |passed_on| self.open_source(caller, &inode, flags & passed_on);
        let (source, is_append_only) = match open(PASSED_ON) {
            // A file that may only be appended to (chattr +a) is opened for nothing else.
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::PERM)
                    && flags.contains(OFlags::APPEND) =>
            {
                (open(PASSED_ON | OFlags::APPEND)?, true)
            }
            result => (result?, false),
        };
        self.opened(opener, inode, source, flags, is_append_only, register)
    }

    /// Opens a file of SOURCE with the rights that the caller has now.
    ///
    /// # Errors
    /// What open(2) says.
    pub(crate) fn open_source(
        &self,
        caller: Caller,
        inode: &Inode,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        // Who holds a lease is to keep no thread waiting.
        let flags = flags | OFlags::NONBLOCK;
        let file = self.open_as(caller, inode, flags)?;
        // An ordinary user's mount may do that to its own files only.
        let _ = self.mounts.restrict(&file);
        Ok(file)
    }

    fn open_as(&self, caller: Caller, inode: &Inode, flags: OFlags) -> io::Result<OwnedFd> {
        if !self.powers.asks_again(caller) {
            return inode.open(&self.mounts, flags - FOR_EXECUTION);
        }
        let found = inode.find()?;
        let file = found.as_fd();
        let stat = &look_at(file)?;
        let accessed = Accessed::new(stat, file);
        let about = About::file(&accessed);
        let descriptors = self.mounts.descriptors();
        let result = match flags.contains(FOR_EXECUTION) {
            // Who may execute it need not be able to read it.
            true => {
                let path = Descriptors::path(file);
                let may_execute = || Ok(accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS)?);
                let allowed = self.powers.as_caller(caller, &about, may_execute);
                if allowed.is_ok() && !inode.was_told(stat) {
                    // The kernel would apply set-id bits that are outdated: it looks the file up
                    // again.
                    self.watch.invalidate_attributes(inode.number);
                    return Err(Errno::STALE.into());
                }
                allowed.and_then(|()| inode.open(&self.mounts, flags - FOR_EXECUTION))
            }
            false => self.powers.as_caller(caller, &about, || descriptors.open(file, flags)),
        };
        self.correct_kernel(&result, &[inode.number]);
        result
    }

    /// # Errors
    /// What open(2) says; `ESTALE` when somebody has just made a file of that name behind the
    /// mount. The kernel then looks once more, and checks whether the caller may open that.
    pub(crate) fn create_file(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: i32,
        register: Register<'_>,
    ) -> io::Result<(Named, OpenReply)> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        names::check(name)?;
        let counted = self.open_limit.count(caller.user)?;
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let how = (flags & PASSED_ON)
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let file = directory.as_fd();
        let stat = look_at(file)?;
        let accessed = Accessed::new(&stat, file);
        let (about, mode) = (About::making(&accessed, umask), Mode::from_raw_mode(mode & 0o7777));
        let make = || Ok(openat(directory.as_fd(), name, how, mode)?);
        let made = self.powers.as_caller(caller, &about, make);
        self.correct_kernel(&made, &[parent.number]);
        let source = match made {
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::EXIST)
                    && !flags.contains(OFlags::EXCL) =>
            {
                return Err(Errno::STALE.into());
            }
            result => result?,
        };
        let named = self.enter(self.mounts.descriptors().open(source.as_fd(), OFlags::PATH)?)?;
        let inode = Arc::clone(&named.inode);
        let writer = self.writer(&inode, flags);
        let opener = Opener { caller, _counted: counted, _writer: writer };
        let opened = self.opened(opener, inode, source, flags, false, register);
        Ok((named, opened?))
    }

    fn writer(&self, inode: &Inode, flags: OFlags) -> Option<OwnWriter> {
        let is_written = flags & OFlags::ACCMODE != OFlags::RDONLY;
        is_written.then(|| OwnWriter::new(inode.cached_file(&self.cache)))
    }

    /// Who has a file open.
    pub(crate) fn opener_of(&self, handle: FileHandle) -> u32 {
        self.files.get(handle).map_or(0, |file| file.opener.caller.user)
    }

    fn opened(
        &self,
        opener: Opener,
        inode: Arc<Inode>,
        source: OwnedFd,
        flags: OFlags,
        is_append_only: bool,
        register: Register<'_>,
    ) -> io::Result<OpenReply> {
        let cached = Arc::clone(inode.cached_file(&self.cache));
        let seems_fast = self.cache.source_seems_fast();
        let opened = self.passthrough.open(
            &inode,
            source.as_fd(),
            flags,
            is_append_only,
            seems_fast,
            register,
        )?;
        let is_passed_through = opened.flags.is_passthrough();
        let is_direct = flags.contains(OFlags::DIRECT) || is_passed_through;
        let is_written = flags & OFlags::ACCMODE != OFlags::RDONLY;
        let mut answer = opened.flags.fuse();
        if is_passed_through {
            if opened.begins_passthrough {
                cached.forget_all();
                inode.note_not_cached();
            }
        } else if is_direct {
            answer |= FopenFlags::FOPEN_DIRECT_IO;
        } else if inode.was_cached_at(cached.changes_behind(source.as_fd())) {
            answer |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        if !is_written {
            answer |= FopenFlags::FOPEN_NOFLUSH;
        }
        cached.set_node(inode.number.0);
        if !is_direct {
            inode.open_state().was_cached.store(true, Ordering::Relaxed);
        }
        let source = SourceFile::new(source);
        let backing = opened.backing();
        let file = OpenFile {
            inode,
            cached,
            source,
            opener,
            is_direct,
            is_written,
            is_append_only,
            opened,
        };
        Ok(OpenReply { handle: self.files.add(file), flags: answer, backing })
    }

    pub(crate) fn close_file(&self, handle: FileHandle) {
        self.files.remove(handle);
    }
}

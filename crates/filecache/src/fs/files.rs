//! Open files: reading, writing and all else that goes by a descriptor.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{BackingId, FileHandle, FopenFlags, INodeNo, OpenFlags, WriteFlags};
use ramfold_sys::file_server::close;
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, accessat, copy_file_range,
    fallocate, fdatasync, fsync, openat, seek,
};
use rustix::io::{Errno, ReadWriteFlags, fcntl_dupfd_cloexec, pread, pwritev2};

use super::FileSystem;
use super::handles::Handles;
use super::inodes::Inode;
use super::names::{self, Named};
use super::open_limit::Counted;
use super::passthrough::{Opened, OpenedFlags, Register};
use super::removed::Removed;
use super::source::{Descriptors, look_at};
use crate::content::{Changed, Content, Source, with_buffer};
use crate::credentials::{About, Caller, SetId};

/// Of the flags of an open, those that are SOURCE's business too. O_APPEND and O_SYNC come with each write; the
/// kernel cuts files off by itself (O_TRUNC).
const PASSED_ON: OFlags = OFlags::ACCMODE
    .union(OFlags::DIRECT)
    .union(OFlags::NOATIME)
    .union(OFlags::NONBLOCK)
    .union(FOR_EXECUTION);

/// The kernel opens a program with this flag of its own (__FMODE_EXEC, include/linux/fs.h).
const FOR_EXECUTION: OFlags = OFlags::from_bits_retain(0x20);

/// What copy_file_range(2) copies at a time: nobody can look at the file meanwhile, which the caller may go on with.
const COPY_MAX: u64 = 16 << 20;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    pub inode: Arc<Inode>,
    pub content: Arc<Content>,
    source: Source,
    /// Who writes what the kernel writes back for nobody in particular. Closed before this is
    /// dropped.
    opener: Opener,
    is_direct: bool,
    is_written: bool,
    /// Its descriptor appends whatever is written to it.
    is_append_only: bool,
    opened: Opened,
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
struct OwnWriter(Arc<Content>);

impl OwnWriter {
    fn new(content: &Arc<Content>) -> OwnWriter {
        content.note_writer();
        OwnWriter(Arc::clone(content))
    }
}

impl Drop for OwnWriter {
    fn drop(&mut self) {
        self.0.note_writer_gone();
    }
}

/// What has become of a write.
#[derive(Debug)]
pub struct Written {
    pub count: u32,
    /// It went past the kernel's page cache, which drops what it has of these bytes before a write,
    /// but not what is read meanwhile.
    pub stale: Option<(Arc<Inode>, Range<u64>)>,
}

/// What the kernel is told of an open file.
#[derive(Debug)]
pub struct Answer {
    pub handle: FileHandle,
    pub flags: FopenFlags,
    /// In passthrough mode.
    pub backing: Option<Arc<BackingId>>,
}

impl OpenFile {
    /// Whether nothing of it is cached here or in the kernel.
    pub fn is_passed_through(&self) -> bool {
        self.opened.flags.is_passthrough()
    }

    pub fn source(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// All open files.
pub type Files = Handles<OpenFile>;

impl FileSystem {
    /// # Errors
    /// What open(2) says.
    pub fn open_file(
        &self,
        caller: Caller,
        number: INodeNo,
        flags: OpenFlags,
        register: Register<'_>,
    ) -> io::Result<Answer> {
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
    pub fn open_source(&self, caller: Caller, inode: &Inode, flags: OFlags) -> io::Result<OwnedFd> {
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
        let about = About::file(&stat, &file);
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
    /// What open(2) says; `ESTALE` when somebody has just made a file of that name behind the mount. The kernel
    /// then looks once more, and checks whether the caller may open that.
    pub fn create_file(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: i32,
        register: Register<'_>,
    ) -> io::Result<(Named, Answer)> {
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
        let stat = &look_at(file)?;
        let (about, mode) =
            (About::making(&stat, &file, umask), Mode::from_raw_mode(mode & 0o7777));
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
        let answer = self.opened(opener, inode, source, flags, false, register);
        Ok((named, answer?))
    }

    fn writer(&self, inode: &Inode, flags: OFlags) -> Option<OwnWriter> {
        let is_written = flags & OFlags::ACCMODE != OFlags::RDONLY;
        is_written.then(|| OwnWriter::new(inode.content(&self.contents)))
    }

    /// Who has a file open.
    pub fn opener_of(&self, handle: FileHandle) -> u32 {
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
    ) -> io::Result<Answer> {
        let content = Arc::clone(inode.content(&self.contents));
        let seems_fast = self.contents.source_seems_fast();
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
                content.forget_all();
                inode.note_not_cached();
            }
        } else if is_direct {
            answer |= FopenFlags::FOPEN_DIRECT_IO;
        } else if inode.was_cached_at(content.changes_behind(source.as_fd())) {
            answer |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        if !is_written {
            answer |= FopenFlags::FOPEN_NOFLUSH;
        }
        content.set_node(inode.number.0);
        if !is_direct {
            inode.open_state().was_cached.store(true, Ordering::Relaxed);
        }
        let source = Source::new(source);
        let backing = opened.backing();
        let file = OpenFile {
            inode,
            content,
            source,
            opener,
            is_direct,
            is_written,
            is_append_only,
            opened,
        };
        Ok(Answer { handle: self.files.add(file), flags: answer, backing })
    }

    /// Hands what was read to `reply`.
    pub fn read_file<R>(
        &self,
        handle: FileHandle,
        offset: u64,
        len: usize,
        reply: impl FnOnce(io::Result<&[u8]>) -> R,
    ) -> R {
        let file = match self.files.get(handle) {
            Ok(file) => file,
            Err(error) => return reply(Err(error)),
        };
        if !file.is_direct {
            return file.content.read(&file.source, offset, len, reply);
        }
        with_buffer(len, |buffer| {
            loop {
                match pread(&file.source, &mut *buffer, offset) {
                    Ok(count) => {
                        if file.opened.flags == OpenedFlags::Passthrough {
                            // Read ahead because somebody asked for that: the kernel keeps it.
                            file.content.note_kept(range_of(offset, count as u64));
                        }
                        break reply(Ok(&buffer[..count]));
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => break reply(Err(errno.into())),
                }
            }
        })
    }

    /// # Errors
    /// What write(2) says, when nothing was written before.
    pub fn write_file(
        &self,
        caller: Caller,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        about: WriteFlags,
        flags: OpenFlags,
    ) -> io::Result<Written> {
        let file = self.files.get(handle)?;
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        // Pages that were changed through a mapping, by whoever had the file open at some time.
        let is_written_back = about.contains(WriteFlags::FUSE_WRITE_CACHE);
        if is_written_back && file.is_append_only {
            // SOURCE lets nobody map it for that.
            return Err(Errno::PERM.into());
        }
        let caller =
            if is_written_back || caller.is_nobody() { file.opener.caller } else { caller };
        let set_id = match about.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => SetId::Cleared.of(&look_at(file.source())?),
            false => SetId::Kept,
        };
        let mut how = ReadWriteFlags::empty();
        let is_appended = flags.contains(OFlags::APPEND) && !is_written_back;
        if is_appended {
            how |= ReadWriteFlags::APPEND;
        }
        let is_synced = flags.intersects(OFlags::SYNC | OFlags::DSYNC);
        if is_synced && file.is_direct {
            how |= if flags.contains(OFlags::SYNC) {
                ReadWriteFlags::SYNC
            } else {
                ReadWriteFlags::DSYNC
            };
        }
        let range = match is_appended {
            // Wherever the end is: not before what is the end now, as far as anybody knows.
            true => offset.min(look_at(file.source())?.stx_size)..u64::MAX,
            false => range_of(offset, data.len() as u64),
        };
        let count = file.content.change(Some(file.source()), Changed::Bytes(range), || {
            let _acting = self.powers.act_as(caller, set_id)?;
            let write = |target: BorrowedFd<'_>, data: &[u8]| {
                write_whole(target, data, offset, how, &self.removed)
            };
            if !file.is_direct {
                write(file.source(), data)
            } else if is_written_back {
                // The file's last page is written in part.
                let source = file.inode.open(&self.mounts, OFlags::WRONLY | OFlags::NONBLOCK)?;
                write(source.as_fd(), data)
            } else {
                with_buffer(data.len(), |buffer| {
                    buffer.copy_from_slice(data);
                    write(file.source(), buffer)
                })
            }
        })?;
        if is_synced && !file.is_direct {
            // Others may look at the file meanwhile.
            sync(file.source(), !flags.contains(OFlags::SYNC))?;
        }
        if is_appended && look_at(file.source())?.stx_size != offset + count as u64 {
            // Somebody appended behind the mount. The kernel has put the bytes where the end was for it.
            self.watch.invalidate(file.inode.number);
        }
        if !file.is_direct && !is_written_back {
            file.content.note_kept(range_of(offset, count as u64));
        }
        self.show_set_id_bits(&file, set_id);
        let start = if is_appended { 0 } else { offset };
        let is_stale = file.is_direct
            && !is_written_back
            && !file.is_passed_through()
            && file.inode.open_state().was_cached.load(Ordering::Relaxed);
        Ok(Written {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            stale: is_stale.then(|| (Arc::clone(&file.inode), start..offset + count as u64)),
        })
    }

    /// Has the kernel drop what it has of a file that was written past its page cache. That waits
    /// for others' requests.
    pub fn drop_stale(&self, inode: &Inode, bytes: Range<u64>) {
        self.watch.drop_pages(inode.number, bytes);
    }

    /// What a close says, where the file system says only then that a write failed (NFS).
    ///
    /// # Errors
    /// What close(2) says.
    pub fn flush_file(&self, handle: FileHandle) -> io::Result<()> {
        let file = self.files.get(handle)?;
        if !file.is_written {
            return Ok(());
        }
        Ok(close(fcntl_dupfd_cloexec(&file.source, 0)?)?)
    }

    pub fn close_file(&self, handle: FileHandle) {
        self.files.remove(handle);
    }

    /// # Errors
    /// What fsync(2) says.
    pub fn sync_file(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        sync(self.files.get(handle)?.source(), data_only)
    }

    /// # Errors
    /// What fallocate(2) says.
    pub fn allocate(
        &self,
        caller: Caller,
        handle: FileHandle,
        bytes: Range<u64>,
        mode: i32,
    ) -> io::Result<()> {
        let file = self.files.get(handle)?;
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let moves = FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE;
        let changed = match mode.intersects(moves) {
            true => Changed::All,
            false => Changed::Bytes(bytes.clone()),
        };
        let set_id = SetId::Written.of(&look_at(file.source())?);
        file.content.change(Some(file.source()), changed, || {
            let _acting = self.powers.act_as(caller, set_id)?;
            let len = bytes.end - bytes.start;
            self.removed.with_room(|| Ok(fallocate(&file.source, mode, bytes.start, len)?))
        })?;
        self.show_set_id_bits(&file, set_id);
        Ok(())
    }

    /// The kernel does not think of the mode of a file that was written.
    fn show_set_id_bits(&self, file: &OpenFile, set_id: SetId) {
        if set_id != SetId::Kept {
            self.watch.invalidate_attributes(file.inode.number);
        }
    }

    /// Whether there may be pages of the file that were changed through a mapping and not written.
    pub fn may_be_mapped(&self, handle: FileHandle) -> bool {
        self.files.get(handle).is_ok_and(|file| file.content.is_open_for_writing())
    }

    /// Looks for data or a hole. `drops_pages`: [`FileSystem::may_be_mapped`], in which case this
    /// waits for other requests.
    ///
    /// # Errors
    /// What lseek(2) says.
    pub fn seek_file(
        &self,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        drops_pages: bool,
    ) -> io::Result<i64> {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let file = self.files.get(handle)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL.into()),
        };
        if drops_pages {
            // The kernel writes what was changed through a mapping, and drops it.
            self.watch.drop_pages(file.inode.number, offset..u64::MAX);
        }
        Ok(i64::try_from(seek(&file.source, to)?).map_err(|_| Errno::OVERFLOW)?)
    }

    /// # Errors
    /// What copy_file_range(2) says.
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        len: u64,
    ) -> io::Result<u32> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(to.0)?);
        let len = len.min(COPY_MAX);
        let set_id = SetId::Written.of(&look_at(target.source())?);
        let changed = Changed::Bytes(range_of(to.1, len));
        let count = target.content.change(Some(target.source()), changed, || {
            let _acting = self.powers.act_as(caller, set_id)?;
            let (mut from, mut to) = (from.1, to.1);
            let (source, target) = (source.source(), target.source());
            Ok(copy_file_range(source, Some(&mut from), target, Some(&mut to), len as usize)?)
        })?;
        self.show_set_id_bits(&target, set_id);
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

fn sync(file: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
    let result = if data_only { fdatasync(file) } else { fsync(file) };
    Ok(result?)
}

fn range_of(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

/// Writes all of it, or as much as there is room for.
fn write_whole(
    target: BorrowedFd<'_>,
    data: &[u8],
    offset: u64,
    how: ReadWriteFlags,
    removed: &Removed,
) -> io::Result<usize> {
    let mut done = 0;
    let mut write_rest = || {
        loop {
            match pwritev2(target, &[IoSlice::new(&data[done..])], offset + done as u64, how) {
                Ok(count) => {
                    done += count;
                    if done == data.len() || count == 0 {
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    };
    match removed.with_room(&mut write_rest) {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

//! The file system: the kernel's requests come in here and are passed on to where the work is done.

mod attributes;
mod clock;
mod directories;
mod files;
mod flags;
mod forgetting;
mod handles;
mod inodes;
mod names;
mod source;
mod xattrs;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, StatVfsMountFlags, fstatvfs};

pub use files::Files;
pub use forgetting::{Forgetting, Pruner};
pub use source::{Descriptors, RESTRICTIONS};

use attributes::Wanted;
use directories::Directories;
use inodes::Inodes;
use names::New;
use source::SourceMounts;
use xattrs::Answer;

use crate::content::Contents;
use crate::credentials::{Caller, Powers};
use crate::watch::Watch;

/// How long the kernel may answer for a file by itself before it asks again. What changes behind the mount is to
/// be seen within a second: half of it for this, half for finding open files changed (`watch`).
const VALID: Duration = Duration::from_millis(500);

/// Bytes in a request that reads or writes, at most: the kernel's own bound (fs.fuse.max_pages_limit).
const REQUEST_MAX: u32 = 1 << 20;

/// Requests that nobody waits for, reading ahead above all, that the kernel sends at a time.
const BACKGROUND_MAX: u16 = 64;

/// What is asked of the kernel, each where it is offered. Not FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS: the kernel
/// keeps locks by itself, so that waiting for one can be interrupted (fuser 0.18 does not pass interruptions
/// on). Not FUSE_ATOMIC_O_TRUNC: fuser does not say whether an open that cuts a file off is to clear its set-id
/// bits. Not FUSE_WRITEBACK_CACHE: what a program has written is in SOURCE when write(2) returns.
const CAPABILITIES: [InitFlags; 10] = [
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
];

/// SOURCE, as the kernel asks for it.
#[derive(Debug)]
pub struct FileSystem {
    inodes: Arc<Inodes>,
    mounts: SourceMounts,
    files: Arc<Files>,
    directories: Directories,
    contents: Contents,
    powers: Powers,
    watch: Watch,
}

impl FileSystem {
    /// Over the directory `root` (a descriptor of O_PATH). `restrictions` are those of the mount over it.
    /// With it comes what has the kernel forget inodes.
    ///
    /// # Errors
    /// What looking at the root says.
    pub fn new(
        root: OwnedFd,
        powers: Powers,
        restrictions: StatVfsMountFlags,
        contents: Contents,
        watch: Watch,
    ) -> io::Result<(FileSystem, Forgetting)> {
        let mounts = SourceMounts::new(powers.opens_by_handle(), restrictions, Descriptors::new()?);
        let (wake, woken) = forgetting::wake();
        let inodes = Arc::new(Inodes::new(root, &mounts, contents.inodes_size(), wake)?);
        let forgetting = Forgetting::new(&inodes, woken, contents.accounts());
        let file_system = FileSystem {
            inodes,
            mounts,
            files: Arc::clone(watch.files()),
            directories: Directories::default(),
            contents,
            powers,
            watch,
        };
        Ok((file_system, forgetting))
    }
}

fn reply_entry(reply: ReplyEntry, result: io::Result<names::Named>) {
    match result {
        Ok(named) => reply.entry(&VALID, &named.attributes, named.generation),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_empty(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_attributes(reply: ReplyAttr, result: io::Result<fuser::FileAttr>) {
    match result {
        Ok(attributes) => reply.attr(&VALID, &attributes),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_xattr(reply: ReplyXattr, result: io::Result<Answer>) {
    match result {
        Ok(Answer::Size(size)) => reply.size(size),
        Ok(Answer::Data(data)) => reply.data(&data),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_written(reply: ReplyWrite, result: io::Result<u32>) {
    match result {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(error.into()),
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            // Each makes something better that works without it too.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.look_up(parent, name));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.inodes.forget(number, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        reply_attributes(reply, self.attributes(number, handle));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let wanted = Wanted { mode, user, group, size, accessed, modified };
        let caller = Caller::of(request);
        reply_attributes(reply, self.set_attributes(caller, number, handle, &wanted));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.link_target(number) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let new = New::Node { mode, device };
        reply_entry(reply, self.make(Caller::of(request), parent, name, umask, new));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = New::Directory { mode };
        reply_entry(reply, self.make(Caller::of(request), parent, name, umask, new));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = New::Symlink { target };
        reply_entry(reply, self.make(Caller::of(request), parent, name, 0, new));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.remove(parent, name, AtFlags::empty()));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.remove(parent, name, AtFlags::REMOVEDIR));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent, name), (new_parent, new_name));
        let caller = Caller::of(request);
        reply_empty(reply, self.move_name(caller, from, to, flags));
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply_entry(reply, self.add_name(Caller::of(request), number, parent, name));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(Caller::of(request), number, flags) {
            Ok((handle, opened)) => reply.opened(handle, opened),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(Caller::of(request), parent, name, mode, umask, flags) {
            Ok((named, handle, opened)) => {
                reply.created(&VALID, &named.attributes, named.generation, handle, opened);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_file(handle, offset, size as usize, |result| match result {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(error.into()),
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        about: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let caller = Caller::of(request);
        reply_written(reply, self.write_file(caller, handle, offset, data, about, flags));
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply_empty(reply, self.flush_file(handle));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.close_file(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.sync_file(handle, data_only));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(number) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        position: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self.list(handle, position, |listed| {
            !reply.add(INodeNo(listed.inode), listed.next, listed.kind, listed.name())
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        position: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let result =
            self.list_with_attributes(handle, position, |listed, attributes, generation| {
                let (number, name) = (attributes.ino, listed.name());
                !reply.add(number, listed.next, name, &VALID, attributes, generation)
            });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.close_directory(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.sync_directory(handle, data_only));
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        let stat = self.inodes.get(number).and_then(|inode| Ok(fstatvfs(inode.find()?.as_fd())?));
        match stat {
            Ok(stat) => reply.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                stat.f_bsize as u32,
                stat.f_namemax as u32,
                stat.f_frsize as u32,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.set_xattr(Caller::of(request), number, name, value, flags));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, self.xattr(number, name, size));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, self.xattr_names(Caller::of(request), number, size));
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.remove_xattr(Caller::of(request), number, name));
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks by itself (default_permissions); to this it says yes from now on.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        about: IoctlFlags,
        command: u32,
        data: &[u8],
        size: u32,
        reply: ReplyIoctl,
    ) {
        let caller = Caller::of(request);
        match self.file_flags(caller, number, handle, about, command, data) {
            Ok(mut answer) => {
                answer.resize(size as usize, 0);
                reply.ioctl(0, &answer);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let bytes = offset..offset.saturating_add(length);
        reply_empty(reply, self.allocate(Caller::of(request), handle, bytes, mode));
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek_file(handle, offset, whence) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error.into()),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        _: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((handle, offset), (to_handle, to_offset));
        reply_written(reply, self.copy_range(Caller::of(request), from, to, len));
    }
}

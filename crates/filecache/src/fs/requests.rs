//! The kernel's requests, each passed on to where the work is done.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, OFlags, fstatvfs};

use super::FileSystem;
use super::attributes::Wanted;
use super::credentials::Caller;
use super::files::OpenReply;
use super::names::New;
use super::replies::{
    reply_attributes, reply_empty, reply_entry, reply_written, reply_xattr, valid_for,
};
use super::server::{BACKGROUND_MAX, NOBODY, Server};
use super::writes::Write;

/// Bytes in a request that reads or writes, at most: the kernel's own bound
/// (fs.fuse.max_pages_limit).
const REQUEST_MAX: u32 = 1 << 20;

/// What is asked of the kernel, each where it is offered. Not FUSE_POSIX_LOCKS and
/// FUSE_FLOCK_LOCKS: the kernel keeps locks by itself, so that waiting for one can be interrupted
/// (fuser 0.18 does not pass interruptions on). Not FUSE_ATOMIC_O_TRUNC: fuser does not say whether
/// an open that cuts a file off is to clear its set-id bits. Not FUSE_WRITEBACK_CACHE: what a
/// program has written is in SOURCE when write(2) returns.
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

/// Files can be passed through where SOURCE is not stacked on another file system itself. The mount
/// counts as stacked then, and the kernel allows two levels: one overlayfs may be over it.
const STACK_DEPTH: u32 = 1;

/// Each request has a reply of a type of its own, so ends that are alike are written out; and the
/// lists of arguments are fuser's.
impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            // Each makes something better that works without it too.
            let _ = config.add_capabilities(capability);
        }
        if self.passthrough.is_wanted()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(STACK_DEPTH).is_ok()
        {
            self.passthrough.allow();
        }
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.look_up(parent, name));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        if let Some(held) = self.inodes.forget(number, lookups) {
            // What has no name any more is deleted when it is closed.
            let removed = Arc::clone(&self.removed);
            self.patience.run(NOBODY, move || {
                drop(held);
                removed.note_closed();
            });
        }
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
        let attempt = move |file_system: &FileSystem, _: &ReplyAttr| {
            file_system.set_attributes(caller, number, handle, &wanted)
        };
        self.when_unleased(request, reply, attempt, reply_attributes);
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

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        reply_empty(reply, self.remove(caller, parent, name, AtFlags::empty()));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        reply_empty(reply, self.remove(caller, parent, name, AtFlags::REMOVEDIR));
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
        let caller = Caller::of(request);
        let attempt = move |file_system: &FileSystem, reply: &ReplyOpen| {
            let register = |file: BorrowedFd<'_>| reply.open_backing(file);
            file_system.open_file(caller, number, flags, &register)
        };
        let answer = |reply: ReplyOpen, result| match result {
            Ok(OpenReply { handle, flags, backing: None }) => reply.opened(handle, flags),
            Ok(OpenReply { handle, flags, backing: Some(backing) }) => {
                reply.opened_passthrough(handle, flags, &backing);
            }
            Err(error) => reply.error(io::Error::into(error)),
        };
        if flags.0 & OFlags::NONBLOCK.bits().cast_signed() != 0 {
            let result = attempt(&self.file_system, &reply);
            return answer(reply, result);
        }
        self.when_unleased(request, reply, attempt, answer);
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
        let register = |file: BorrowedFd<'_>| reply.open_backing(file);
        let caller = Caller::of(request);
        match self.create_file(caller, parent, name, (mode, umask), flags, &register) {
            Ok((named, OpenReply { handle, flags, backing })) => {
                let (attributes, generation) = (&named.attributes, named.generation);
                let valid = valid_for(attributes);
                match backing {
                    None => reply.created(valid, attributes, generation, handle, flags),
                    Some(backing) => reply.created_passthrough(
                        valid, attributes, generation, handle, flags, &backing,
                    ),
                }
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.patiently(request, move |file_system| {
            file_system.read_file(handle, offset, size as usize, |result| match result {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(error.into()),
            });
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
        self.write_data(Write { caller, handle, offset, about, flags }, data, reply);
    }

    fn flush(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.patiently(request, move |file_system| {
            reply_empty(reply, file_system.flush_file(handle));
        });
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
        let file_system = Arc::clone(&self.file_system);
        self.patience.run(self.opener_of(handle), move || {
            file_system.close_file(handle);
            reply.ok();
        });
    }

    fn fsync(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.patiently(request, move |file_system| {
            reply_empty(reply, file_system.sync_file(handle, data_only));
        });
    }

    fn opendir(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(Caller::of(request), number, flags) {
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
                let valid = valid_for(attributes);
                !reply.add(number, listed.next, name, valid, attributes, generation)
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
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.patiently(request, move |file_system| {
            reply_empty(reply, file_system.sync_directory(handle, data_only));
        });
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

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        reply_xattr(reply, self.xattr(Caller::of(request), number, name, size));
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
        let (caller, bytes) = (Caller::of(request), offset..offset.saturating_add(length));
        self.patiently(request, move |file_system| {
            reply_empty(reply, file_system.allocate(caller, handle, bytes, mode));
        });
    }

    fn lseek(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let file_system = Arc::clone(&self.file_system);
        let drops_pages = self.may_be_mapped(handle);
        let seek = move || match file_system.seek_file(handle, offset, whence, drops_pages) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error.into()),
        };
        match drops_pages {
            // What is written back meanwhile comes to the threads that take requests.
            true => self.patience.wait(request.uid(), seek),
            false => seek(),
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
        let caller = Caller::of(request);
        self.patiently(request, move |file_system| {
            reply_written(reply, file_system.copy_range(caller, from, to, len));
        });
    }
}

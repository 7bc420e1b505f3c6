//! What is done with open files, but for writing.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use fuser::FileHandle;
use ramfold_sys::file_server::close;
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, seek};
use rustix::io::{Errno, fcntl_dupfd_cloexec, pread};

use super::FileSystem;
use super::credentials::{Caller, SetId};
use super::passthrough::OpenedFlags;
use super::source_mounts::look_at;
use crate::file::{Changed, with_buffer};

/// What copy_file_range(2) copies at a time: nobody can look at the file meanwhile, which the
/// caller may go on with.
const COPY_MAX: u64 = 16 << 20;

impl FileSystem {
    /// Hands what was read to `reply`.
    pub(crate) fn read_file<R>(
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
            return file.cached.read(&file.source, offset, len, reply);
        }
        with_buffer(len, |buffer| {
            loop {
                match pread(&file.source, &mut *buffer, offset) {
                    Ok(count) => {
                        if file.opened.flags == OpenedFlags::Passthrough {
                            // Read ahead because somebody asked for that: the kernel keeps it.
                            file.cached.note_cached_by_kernel(range_of(offset, count as u64));
                        }
                        break reply(Ok(&buffer[..count]));
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => break reply(Err(errno.into())),
                }
            }
        })
    }

    /// What a close says, where the file system says only then that a write failed (NFS).
    ///
    /// # Errors
    /// What close(2) says.
    pub(crate) fn flush_file(&self, handle: FileHandle) -> io::Result<()> {
        let file = self.files.get(handle)?;
        if !file.is_written {
            return Ok(());
        }
        Ok(close(fcntl_dupfd_cloexec(&file.source, 0)?)?)
    }

    /// # Errors
    /// What fsync(2) says.
    pub(crate) fn sync_file(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        sync(self.files.get(handle)?.source(), data_only)
    }

    /// # Errors
    /// What fallocate(2) says.
    pub(crate) fn allocate(
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
        let set_id = file.cached.change(Some(file.source()), changed, || {
            let stat = look_at(file.source())?;
            let set_id = SetId::Written.of(&stat);
            let _acting = self.powers.act_as(caller, set_id, Some(&stat))?;
            let len = bytes.end - bytes.start;
            self.removed.with_room(|| Ok(fallocate(&file.source, mode, bytes.start, len)?))?;
            Ok(set_id)
        })?;
        self.show_set_id_bits(&file, set_id);
        Ok(())
    }

    /// Whether there may be pages of the file that were changed through a mapping and not written.
    pub(crate) fn may_be_mapped(&self, handle: FileHandle) -> bool {
        self.files.get(handle).is_ok_and(|file| file.cached.is_open_for_writing())
    }

    /// Looks for data or a hole. `drops_pages`: [`FileSystem::may_be_mapped`], in which case this
    /// waits for other requests.
    ///
    /// # Errors
    /// What lseek(2) says.
    pub(crate) fn seek_file(
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
    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        len: u64,
    ) -> io::Result<u32> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(to.0)?);
        let len = len.min(COPY_MAX);
        let changed = Changed::Bytes(range_of(to.1, len));
        let (count, set_id) = target.cached.change(Some(target.source()), changed, || {
            let stat = look_at(target.source())?;
            let set_id = SetId::Written.of(&stat);
            let _acting = self.powers.act_as(caller, set_id, Some(&stat))?;
            let (mut from, mut to) = (from.1, to.1);
            let (source, target) = (source.source(), target.source());
            let count =
                copy_file_range(source, Some(&mut from), target, Some(&mut to), len as usize)?;
            Ok((count, set_id))
        })?;
        self.show_set_id_bits(&target, set_id);
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

pub(super) fn sync(file: BorrowedFd<'_>, data_only: bool) -> io::Result<()> {
    let result = if data_only { fdatasync(file) } else { fsync(file) };
    Ok(result?)
}

pub(super) fn range_of(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

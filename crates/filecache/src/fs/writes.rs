//! Writing to open files.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{FileHandle, OpenFlags, WriteFlags};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::FileSystem;
use super::credentials::{Caller, SetId};
use super::file_io::{range_of, sync};
use super::files::OpenFile;
use super::inode::Inode;
use super::removed::Removed;
use super::source_mounts::look_at;
use crate::file::{Changed, with_buffer};

/// A write that the kernel asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub caller: Caller,
    pub handle: FileHandle,
    pub offset: u64,
    pub about: WriteFlags,
    /// Of the open file.
    pub flags: OpenFlags,
}

/// What has become of a write.
#[derive(Debug)]
pub(crate) struct Written {
    pub count: u32,
    /// It went past the kernel's page cache, which drops what it has of these bytes before a write,
    /// but not what is read meanwhile.
    pub stale: Option<(Arc<Inode>, Range<u64>)>,
}

impl Write {
    fn flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags.0.cast_unsigned())
    }

    /// Pages that were changed through a mapping, by whoever had the file open at some time.
    fn is_written_back(&self) -> bool {
        self.about.contains(WriteFlags::FUSE_WRITE_CACHE)
    }

    fn is_appended(&self) -> bool {
        self.flags().contains(OFlags::APPEND) && !self.is_written_back()
    }

    fn is_synced(&self) -> bool {
        self.flags().intersects(OFlags::SYNC | OFlags::DSYNC)
    }

    /// Bytes of the file that may change.
    fn range(&self, file: &OpenFile, len: usize) -> io::Result<Range<u64>> {
        Ok(match self.is_appended() {
            // Wherever the end is: not before what is the end now, as far as anybody knows.
            true => self.offset.min(look_at(file.source())?.stx_size)..u64::MAX,
            false => range_of(self.offset, len as u64),
        })
    }

    /// How SOURCE is written.
    fn how(&self, file: &OpenFile) -> ReadWriteFlags {
        let mut how = ReadWriteFlags::empty();
        if self.is_appended() {
            how |= ReadWriteFlags::APPEND;
        }
        if self.is_synced() && file.is_direct {
            how |= match self.flags().contains(OFlags::SYNC) {
                true => ReadWriteFlags::SYNC,
                false => ReadWriteFlags::DSYNC,
            };
        }
        how
    }
}

impl FileSystem {
    /// # Errors
    /// What write(2) says, when nothing was written before.
    pub(crate) fn write_file(&self, write: &Write, data: &[u8]) -> io::Result<Written> {
        let file = self.files.get(write.handle)?;
        let is_written_back = write.is_written_back();
        if is_written_back && file.is_append_only {
            // SOURCE lets nobody map it for that.
            return Err(Errno::PERM.into());
        }
        let caller = match is_written_back || write.caller.is_nobody() {
            true => file.opener(),
            false => write.caller,
        };
        let clears = write.about.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let changed = Changed::Bytes(write.range(&file, data.len())?);
        let (count, set_id) = file.cached.change(Some(file.source()), changed, || {
            // Others may have changed it while this waited.
            let stat = if clears { Some(look_at(file.source())?) } else { None };
            let set_id = stat.as_ref().map_or(SetId::Unchanged, |stat| SetId::Cleared.of(stat));
            let _acting = self.powers.act_as(caller, set_id, stat.as_ref())?;
            Ok((self.write_source(&file, write, data)?, set_id))
        })?;
        if write.is_synced() && !file.is_direct {
            // Others may look at the file meanwhile.
            sync(file.source(), !write.flags().contains(OFlags::SYNC))?;
        }
        let end = write.offset + count as u64;
        if write.is_appended() && look_at(file.source())?.stx_size != end {
            // Somebody appended behind the mount. The kernel has put the bytes where the end was
            // for it.
            self.watch.invalidate(file.inode.number);
        }
        if !file.is_direct && !is_written_back {
            file.cached.note_cached_by_kernel(range_of(write.offset, count as u64));
        }
        self.show_set_id_bits(&file, set_id);
        let start = if write.is_appended() { 0 } else { write.offset };
        let is_stale = file.is_direct
            && !is_written_back
            && !file.is_passed_through()
            && file.inode.open_state().was_cached.load(Ordering::Relaxed);
        Ok(Written {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            stale: is_stale.then(|| (Arc::clone(&file.inode), start..end)),
        })
    }

    fn write_source(&self, file: &OpenFile, write: &Write, data: &[u8]) -> io::Result<usize> {
        let how = write.how(file);
        let write_to = |target: BorrowedFd<'_>, data: &[u8]| {
            write_whole(target, data, write.offset, how, &self.removed)
        };
        if !file.is_direct {
            write_to(file.source(), data)
        } else if write.is_written_back() {
            // The file's last page is written in part.
            let source = file.inode.open(&self.mounts, OFlags::WRONLY | OFlags::NONBLOCK)?;
            write_to(source.as_fd(), data)
        } else {
            with_buffer(data.len(), |buffer| {
                buffer.copy_from_slice(data);
                write_to(file.source(), buffer)
            })
        }
    }

    /// Has the kernel drop what it has of a file that was written past its page cache. That waits
    /// for others' requests.
    pub(crate) fn drop_stale(&self, inode: &Inode, bytes: Range<u64>) {
        self.watch.drop_pages(inode.number, bytes);
    }

    /// The kernel does not think of the mode of a file that was written.
    pub(crate) fn show_set_id_bits(&self, file: &OpenFile, set_id: SetId) {
        if set_id != SetId::Unchanged {
            self.watch.invalidate_attributes(file.inode.number);
        }
    }
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

//! The place behind the cache: a file or a block device.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ramfold_sys::file::{Access, DirectFile, next_data};
use rustix::fs::{
    FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, fallocate, fdatasync, flock,
    fstat, open, seek,
};
use rustix::io::{Errno, pwrite};

use super::PAGE;
use super::config::{BackingConfig, BackingError};
use crate::Zeroing;

/// What the cache asks of the place behind it. Offsets are multiples of a page.
pub(super) trait Place: Send + Sync {
    /// Reads whole pages. What lies behind the end is zeros.
    fn read(&self, offset: u64, pages: &mut [u8]) -> Result<(), Errno>;

    /// Writes whole pages, as far as they lie before the end. After an error any part of them may
    /// have been written.
    fn write(&self, offset: u64, pages: &[u8]) -> Result<(), Errno>;

    /// Makes a range read as zeros. [`Errno::OPNOTSUPP`] by [`Zeroing::fast`].
    fn zero(&self, offset: u64, bytes: u64, zeroing: Zeroing) -> Result<(), Errno>;

    /// A range is not needed any more. Here it reads as zeros then.
    fn trim(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.zero(offset, bytes, Zeroing { may_trim: true, fast: false })
    }

    /// Returns when all that was written is durable.
    fn sync(&self) -> Result<(), Errno>;

    /// The next bytes from `offset` on that are no hole; `None` where there are none.
    fn next_data(&self, offset: u64) -> Option<std::ops::Range<u64>>;

    /// The file or block device itself, if it is one.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Memory that begins at a page, as files that are read past the page cache need it.
#[repr(C, align(4096))]
pub(super) struct Chunk(pub(super) [u8; CHUNK_BYTES]);

/// Bytes that are read or written at once.
pub(super) const CHUNK_BYTES: usize = 128 << 10;
/// The same in pages.
pub(super) const CHUNK_PAGES: u64 = (CHUNK_BYTES / PAGE) as u64;

static ZEROS: Chunk = Chunk([0; CHUNK_BYTES]);

/// A file or a block device, read and written past the page cache where that can be.
pub(super) struct FilePlace {
    file: DirectFile,
    /// For the last page, where the device ends within it.
    tail: Option<OwnedFd>,
    /// Bytes that are the device's.
    bytes: u64,
}

fn bytes_of(path: &Path, file: impl AsFd) -> Result<u64, BackingError> {
    let stat = fstat(&file).map_err(|errno| BackingError::open(path, errno.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat.st_size as u64),
        FileType::BlockDevice => {
            seek(&file, SeekFrom::End(0)).map_err(|errno| BackingError::open(path, errno.into()))
        }
        _ => Err(BackingError::Kind { path: path.to_owned() }),
    }
}

impl FilePlace {
    pub(super) fn open(config: &BackingConfig) -> Result<FilePlace, BackingError> {
        let path = &config.path;
        let failed = |errno: Errno| BackingError::open(path, errno.into());
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::INVAL))?;
        // What is looked at is what is opened, even if its path comes to mean another.
        let found = open(&name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        let stat = fstat(&found).map_err(failed)?;
        let access = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::BlockDevice if config.read_only => Access::Read,
            FileType::RegularFile => Access::Write,
            FileType::BlockDevice => Access::WriteAlone,
            _ => return Err(BackingError::Kind { path: path.clone() }),
        };
        let file = DirectFile::open_for(&again(&found), access).map_err(|errno| match errno {
            // The file itself is there.
            Errno::NOENT => BackingError::NoProc { path: path.clone() },
            Errno::BUSY => BackingError::InUse { path: path.clone() },
            errno => failed(errno),
        })?;
        let lock = if config.read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        flock(&file, lock).map_err(|errno| match errno {
            Errno::WOULDBLOCK => BackingError::InUse { path: path.clone() },
            errno => failed(errno),
        })?;
        let there = bytes_of(path, &file)?;
        let bytes = config.size_bytes.unwrap_or(there);
        if bytes == 0 || bytes > there {
            return Err(BackingError::Small { path: path.clone(), bytes, there });
        }
        let tail = if bytes.is_multiple_of(PAGE as u64) || config.read_only {
            None
        } else {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            Some(open(again(&file), flags, Mode::empty()).map_err(failed)?)
        };
        Ok(FilePlace { file, tail, bytes })
    }

    /// Whether it is read and written past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_tail(&self, offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut at = offset;
        while let (Some(tail), false) = (&self.tail, bytes.is_empty()) {
            match pwrite(tail, bytes, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> Result<(), Errno> {
        while offset < end {
            let bytes = (end - offset).next_multiple_of(PAGE as u64).min(CHUNK_BYTES as u64);
            self.write(offset, &ZEROS.0[..bytes as usize])?;
            offset += bytes;
        }
        Ok(())
    }
}

/// A path by which this process opens the same file again, whatever other paths mean by now.
fn again(file: impl AsFd) -> CString {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    CString::new(path).unwrap_or_default()
}

impl Place for FilePlace {
    fn read(&self, offset: u64, pages: &mut [u8]) -> Result<(), Errno> {
        self.file.read_at(offset, pages)
    }

    fn write(&self, offset: u64, pages: &[u8]) -> Result<(), Errno> {
        // What lies behind the device's end may be somebody else's.
        let own = (self.bytes.saturating_sub(offset)).min(pages.len() as u64) as usize;
        let (whole, part) = pages[..own].split_at(own / PAGE * PAGE);
        self.file.write_at(offset, whole)?;
        self.write_tail(offset + whole.len() as u64, part)
    }

    fn zero(&self, offset: u64, bytes: u64, zeroing: Zeroing) -> Result<(), Errno> {
        let keep = FallocateFlags::KEEP_SIZE;
        let ways = [
            zeroing.may_trim.then_some(keep | FallocateFlags::PUNCH_HOLE),
            Some(keep | FallocateFlags::ZERO_RANGE),
        ];
        for way in ways.into_iter().flatten() {
            match fallocate(&self.file, way, offset, bytes) {
                // Not by this file system or device.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
                done => return done,
            }
        }
        if zeroing.fast {
            return Err(Errno::OPNOTSUPP);
        }
        self.write_zeros(offset, offset + bytes)
    }

    fn sync(&self) -> Result<(), Errno> {
        fdatasync(&self.file)
    }

    fn next_data(&self, offset: u64) -> Option<std::ops::Range<u64>> {
        // Where it cannot be told, all is data.
        next_data(&self.file, offset).unwrap_or(Some(offset..self.bytes))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

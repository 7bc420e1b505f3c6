//! Reading a file of SOURCE without leaving it in the kernel's page cache: what the mount has
//! cached is not to be there a second time.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Advice, Mode, OFlags, fadvise, fcntl_getfl, open};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

/// Since Linux 6.14 (RWF_DONTCACHE): pages that were not there before do not stay.
const DO_NOT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// A readable descriptor of a file, and another one that reads past the page cache, once it is
/// needed.
#[derive(Debug)]
pub(crate) struct SourceFile {
    fd: OwnedFd,
    direct: OnceLock<Option<OwnedFd>>,
}

/// How to read what is not cached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// From the disk.
    Direct,
    /// Through the page cache: parts of the file are there and not yet written to the disk, which a
    /// direct read would wait for.
    PageCache,
}

impl SourceFile {
    pub(crate) fn new(fd: OwnedFd) -> SourceFile {
        SourceFile { fd, direct: OnceLock::new() }
    }

    /// With another descriptor to be read instead of the disk.
    #[cfg(test)]
    pub(crate) fn with_direct(fd: OwnedFd, direct: OwnedFd) -> SourceFile {
        SourceFile { fd, direct: OnceLock::from(Some(direct)) }
    }

    /// Fills `buffer`, which begins at a page as `offset` does, and returns how much of it the file
    /// has. Fewer bytes than asked for are the end of the file; the rest of the buffer is then
    /// zeros.
    ///
    /// # Errors
    /// What pread(2) says, whatever was read before it said so.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8], by: By) -> io::Result<usize> {
        let direct = match by {
            By::Direct => self.direct(),
            By::PageCache => None,
        };
        let read_direct = |direct: &OwnedFd, buffer: &mut [u8]| {
            read_whole(direct.as_fd(), offset, buffer, |fd, bytes, offset| pread(fd, bytes, offset))
        };
        let count = match direct.map(|direct| read_direct(direct, buffer)) {
            // It has to begin and end at larger blocks than pages.
            Some(Err(error)) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                self.read_uncached(offset, buffer)?
            }
            Some(result) => result?,
            None => self.read_uncached(offset, buffer)?,
        };
        buffer[count..].fill(0);
        Ok(count)
    }

    fn direct(&self) -> Option<&OwnedFd> {
        let again = || {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let noatime = fcntl_getfl(&self.fd).ok()? & OFlags::NOATIME;
            open(path, flags | noatime, Mode::empty()).ok()
        };
        self.direct.get_or_init(again).as_ref()
    }

    fn read_uncached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let uncached = read_whole(self.fd.as_fd(), offset, buffer, |fd, bytes, offset| {
            preadv2(fd, &mut [IoSliceMut::new(bytes)], offset, DO_NOT_CACHE)
        });
        match uncached {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {}
            result => return result,
        }
        let count = read_whole(self.fd.as_fd(), offset, buffer, |fd, bytes, offset| {
            pread(fd, bytes, offset)
        })?;
        // Where that is not possible the page cache keeps what it will.
        let _ = fadvise(&self.fd, offset, (count as u64).try_into().ok(), Advice::DontNeed);
        Ok(count)
    }
}

impl AsFd for SourceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads until the buffer is full or the file ends.
fn read_whole(
    fd: BorrowedFd<'_>,
    offset: u64,
    buffer: &mut [u8],
    read: impl Fn(BorrowedFd<'_>, &mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            // A direct read that goes on within the last, incomplete sector: the file ends there.
            Err(Errno::INVAL) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

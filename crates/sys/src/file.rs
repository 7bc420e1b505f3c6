//! A file that is read and written past the page cache.

use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, StatxFlags, fstat, open, statx};
use rustix::io::{pread, pwrite};

use crate::{Errno, PAGE_SIZE};

/// A file, read and written by whole pages (offset, length and address). Past the page cache where its
/// file system can do that: what is cached here once is not to be cached there again.
#[derive(Debug)]
pub struct DirectFile {
    fd: OwnedFd,
    is_direct: bool,
}

/// Which file this is, whoever has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
}

impl DirectFile {
    /// Opens a file that is there; one without a name, that somebody has open, by its `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open(path: &CStr) -> Result<DirectFile, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(fd) if has_page_alignment(&fd) => Ok(DirectFile { fd, is_direct: true }),
            Ok(_) | Err(Errno::INVAL) => {
                Ok(DirectFile { fd: open(path, flags, Mode::empty())?, is_direct: false })
            }
            Err(errno) => Err(errno),
        }
    }

    /// Does it go past the page cache?
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// # Errors
    /// What fstat(2) says.
    pub fn identity(&self) -> Result<FileIdentity, Errno> {
        let stat = fstat(&self.fd)?;
        Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Reads. What lies behind the end of the file is zeros.
    ///
    /// # Errors
    /// What pread(2) says, but for interruptions.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match pread(&self.fd, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            // The last page of the file is there in part only; the rest cannot be asked for so.
            if !done.is_multiple_of(PAGE_SIZE) {
                break;
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    /// Writes.
    ///
    /// # Errors
    /// What pwrite(2) says, but for interruptions. A part may be written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                // A disk that is full now and then takes a part of a page.
                Ok(count) if count.is_multiple_of(PAGE_SIZE) && count > 0 => done += count,
                Ok(_) => return Err(Errno::NOSPC),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether whole pages may be read and written past the page cache (statx(2), since Linux 6.1; earlier
/// kernels do not tell, and no disk then wanted more).
fn has_page_alignment(fd: &OwnedFd) -> bool {
    let Ok(stat) = statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return true;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    (1..=PAGE_SIZE).contains(&(stat.stx_dio_offset_align as usize))
        && (1..=PAGE_SIZE).contains(&(stat.stx_dio_mem_align as usize))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::mem::Reservation;

    fn opened(file: impl AsFd) -> DirectFile {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        DirectFile::open(&CString::new(path).unwrap()).unwrap()
    }

    /// Memory that begins at a page.
    fn pages(count: usize) -> (Reservation, &'static mut [u8]) {
        let memory = Reservation::new(count * PAGE_SIZE).unwrap();
        memory.commit(0, count * PAGE_SIZE).unwrap();
        // SAFETY: committed, and dropped by the test after the slice.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), count * PAGE_SIZE) };
        (memory, bytes)
    }

    #[test]
    fn what_is_written_is_read_again_by_whoever_opens_it() {
        let file = opened(tempfile::tempfile().unwrap());
        let (_memory, bytes) = pages(4);
        bytes[..8192].fill(7);
        file.write_at(8192, &bytes[..8192]).unwrap();
        let again = opened(&file);
        assert_eq!(again.identity(), file.identity());
        assert_eq!(again.is_direct(), file.is_direct());
        bytes.fill(1);
        again.read_at(0, bytes).unwrap();
        assert!(bytes[..8192].iter().all(|&b| b == 0) && bytes[8192..].iter().all(|&b| b == 7));
        // Behind the end.
        again.read_at(12288, bytes).unwrap();
        assert!(bytes[..4096].iter().all(|&b| b == 7) && bytes[4096..].iter().all(|&b| b == 0));
    }

    #[test]
    fn errors_are_the_systems() {
        assert_eq!(DirectFile::open(c"/nowhere/at/all").map(drop), Err(Errno::NOENT));
        let file = opened(tempfile::tempfile().unwrap());
        let (_memory, bytes) = pages(1);
        assert_eq!(file.write_at(u64::MAX - 4095, bytes), Err(Errno::INVAL));
        assert_eq!(file.read_at(u64::MAX - 4095, bytes), Err(Errno::INVAL));
    }
}

//! A file that is read and written past the page cache, and files that are only looked at.

use core::ffi::CStr;
use core::ops::Range;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    Mode, OFlags, SeekFrom, StatVfsMountFlags, StatxFlags, fstat, open, seek, statvfs, statx,
};
use rustix::io::{pread, pwrite};

use crate::{Errno, PAGE_SIZE};

/// A file that is written by whole pages (offset, length and address) and read by [`Self::whole`]
/// parts into memory that begins at a page. It is opened past the page cache where its file system
/// can do that, so that its content is not cached twice.
#[derive(Debug)]
pub struct DirectFile {
    fd: OwnedFd,
    /// What is read begins and ends at a multiple of this: a power of two, at most a page.
    read_unit: u64,
}

/// Whether files are in RAM alone: by the number of their file system, as statfs(2) tells it.
pub fn is_in_ram(number: u64) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // Of 32 bits where they are signed.
    matches!(number & 0xffff_ffff, TMPFS | RAMFS)
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read.
    Read,
    /// To be read and written.
    Write,
    /// To be read and written; a block device by nobody else, and not while it is mounted.
    WriteAlone,
}

impl Access {
    fn flags(self) -> OFlags {
        OFlags::CLOEXEC
            | match self {
                Access::Read => OFlags::RDONLY,
                Access::Write => OFlags::RDWR,
                Access::WriteAlone => OFlags::RDWR | OFlags::EXCL,
            }
    }
}

/// What tells a file from all others, whichever process has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The device number of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl FileIdentity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn of(file: impl AsFd) -> Result<FileIdentity, Errno> {
        let stat = fstat(file)?;
        Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Opens a file to read it, in a way that is not noted as an access where the caller may do that:
/// the file is the caller's own. A symbolic link is not followed, and a pipe does not wait.
///
/// # Errors
/// What open(2) says.
pub fn open_unnoticed(path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => open(path, flags, Mode::empty()),
        result => result,
    }
}

/// Whether the file system notes when a file is accessed, once a day at least.
///
/// # Errors
/// What statvfs(3) says.
pub fn keeps_access_times(path: &CStr) -> Result<bool, Errno> {
    Ok(!statvfs(path)?.f_flag.contains(StatVfsMountFlags::NOATIME))
}

/// The next part of a file from an offset on that is no hole; `None` where there is none. Moves the
/// place where the file is read next.
///
/// # Errors
/// What lseek(2) says.
pub fn next_data(file: impl AsFd, offset: u64) -> Result<Option<Range<u64>>, Errno> {
    let start = match seek(&file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok(None),
        start => start?,
    };
    Ok(Some(start..seek(&file, SeekFrom::Hole(start))?))
}

impl DirectFile {
    /// Opens an existing file; one without a name that a process has open by its `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open(path: &CStr) -> Result<DirectFile, Errno> {
        DirectFile::open_for(path, Access::Write)
    }

    /// Opens an existing file or block device.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open_for(path: &CStr, access: Access) -> Result<DirectFile, Errno> {
        let flags = access.flags();
        match open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(fd) => match read_unit(&fd) {
                Some(read_unit) => Ok(DirectFile { fd, read_unit }),
                None => {
                    // A device that is opened for one user alone cannot be opened twice.
                    drop(fd);
                    DirectFile::open_cached(path, flags)
                }
            },
            Err(Errno::INVAL) => DirectFile::open_cached(path, flags),
            Err(errno) => Err(errno),
        }
    }

    fn open_cached(path: &CStr, flags: OFlags) -> Result<DirectFile, Errno> {
        let fd = open(path, flags, Mode::empty())?;
        Ok(DirectFile { fd, read_unit: 1 })
    }

    /// Whether it is read and written past the page cache.
    pub fn is_direct(&self) -> bool {
        self.read_unit > 1
    }

    /// The range to read for these bytes: at most a page more at either end.
    pub fn whole(&self, bytes: Range<u64>) -> Range<u64> {
        bytes.start / self.read_unit * self.read_unit..bytes.end.next_multiple_of(self.read_unit)
    }

    /// Reads a [`Self::whole`] part. What lies behind the end of the file is zeros.
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
            // The file ends within its last page, and a read from there would not be aligned.
            if !(done as u64).is_multiple_of(self.read_unit) {
                break;
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    /// Writes whole pages.
    ///
    /// # Errors
    /// What pwrite(2) says, but for interruptions. A part may be written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                // A disk that is about to be full may take a part of a page.
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

/// Reads past the page cache begin and end at multiples of this (statx(2), Linux 6.1; earlier
/// kernels do not tell, and no disk then wanted more than a page); `None` if that is more than a
/// page.
fn read_unit(fd: &OwnedFd) -> Option<u64> {
    let page = PAGE_SIZE as u64;
    let Ok(stat) = statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(page);
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Some(page);
    }
    let (unit, memory) = (u64::from(stat.stx_dio_offset_align), stat.stx_dio_mem_align as usize);
    let fits = unit.is_power_of_two() && unit <= page && (1..=PAGE_SIZE).contains(&memory);
    fits.then_some(unit)
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
        assert_eq!(FileIdentity::of(&again), FileIdentity::of(&file));
        let is_direct = |file| rustix::fs::fcntl_getfl(file).unwrap().contains(OFlags::DIRECT);
        assert_eq!(is_direct(&again), is_direct(&file));
        bytes.fill(1);
        again.read_at(0, bytes).unwrap();
        assert!(bytes[..8192].iter().all(|&b| b == 0) && bytes[8192..].iter().all(|&b| b == 7));
        // Behind the end.
        again.read_at(12288, bytes).unwrap();
        assert!(bytes[..4096].iter().all(|&b| b == 7) && bytes[4096..].iter().all(|&b| b == 0));
    }

    #[test]
    fn what_is_read_begins_and_ends_where_the_file_wants_it() {
        let file = opened(tempfile::tempfile_in("/var/tmp").unwrap());
        let (_memory, bytes) = pages(4);
        (0..).zip(bytes.iter_mut()).for_each(|(at, byte)| *byte = (at / 64) as u8);
        file.write_at(0, bytes).unwrap();
        for wanted in [0..1, 4095..4097, 1000..6000, 700..701, 8191..16384] {
            let whole = file.whole(wanted.clone());
            assert!(whole.start <= wanted.start && wanted.start - whole.start < 4096);
            assert!(whole.end >= wanted.end && whole.end - wanted.end < 4096);
            let bytes = &mut bytes[..(whole.end - whole.start) as usize];
            file.read_at(whole.start, bytes).unwrap();
            assert!((whole.start..).zip(&*bytes).all(|(at, &byte)| byte == (at / 64) as u8));
        }
    }

    #[test]
    fn holes_are_passed_over() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(8 << 20).unwrap();
        assert!(matches!(next_data(&file, 0), Ok(None | Some(Range { start: 0, end: 0x80_0000 }))));
        assert_eq!(pwrite(&file, &[1; 65536], 4 << 20), Ok(65536));
        let data = next_data(&file, 0).unwrap().unwrap();
        // A file system that has no holes says that all is data.
        assert!(data.start <= 4 << 20 && data.end >= (4 << 20) + 65536, "{data:?}");
        assert_eq!(next_data(&file, 8 << 20), Ok(None));
    }

    #[test]
    fn a_look_is_no_access() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        std::fs::write(file.path(), "text").unwrap();
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        let before = fstat(&file).unwrap();
        let opened = open_unnoticed(&path).unwrap();
        assert_eq!(pread(&opened, &mut [0; 9][..], 0), Ok(4));
        let after = fstat(&file).unwrap();
        assert_eq!((after.st_atime, after.st_atime_nsec), (before.st_atime, before.st_atime_nsec));
        keeps_access_times(&path).unwrap();
        assert_eq!(open_unnoticed(c"/nowhere").map(drop), Err(Errno::NOENT));
        assert_eq!(open_unnoticed(c"/proc/self").map(drop), Err(Errno::LOOP));
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

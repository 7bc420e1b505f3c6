//! A block device that swap waits for.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use ramfold_sys::thread::RealTime;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::config::BackingError;
use super::place::{FilePlace, Place};
use super::{PAGE, chunk};
use crate::Zeroing;
use crate::kernel::is_header;

/// Each request is made by a thread that is real-time as long as it takes: the kernel asks for
/// memory to do it, which others do not get while all memory waits to be swapped out.
pub(super) struct SwapPlace(FilePlace);

impl SwapPlace {
    /// # Errors
    /// It is a file, or no swap area; this process may not have real-time threads.
    pub(super) fn new(place: FilePlace, path: &Path) -> Result<SwapPlace, BackingError> {
        let path = || path.to_owned();
        let failed = |errno: Errno| BackingError::open(&path(), errno.into());
        let file = place.file().ok_or_else(|| failed(Errno::BADF))?;
        let stat = fstat(file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(BackingError::SwapInFile { path: path() });
        }
        let mut first = chunk();
        let first = &mut first.0[..PAGE];
        place.read(0, first).map_err(failed)?;
        if !is_header(first) {
            return Err(BackingError::NoSwapArea { path: path() });
        }
        if !place.is_direct() {
            return Err(BackingError::SwapInCache { path: path() });
        }
        RealTime::begin()
            .map_err(|errno| BackingError::RealTime { path: path(), source: errno.into() })?;
        Ok(SwapPlace(place))
    }
}

impl Place for SwapPlace {
    fn read(&self, offset: u64, pages: &mut [u8]) -> Result<(), Errno> {
        let _real_time = RealTime::begin();
        self.0.read(offset, pages)
    }

    fn write(&self, offset: u64, pages: &[u8]) -> Result<(), Errno> {
        let _real_time = RealTime::begin();
        self.0.write(offset, pages)
    }

    fn zero(&self, offset: u64, bytes: u64, zeroing: Zeroing) -> Result<(), Errno> {
        let _real_time = RealTime::begin();
        self.0.zero(offset, bytes, zeroing)
    }

    /// What swap has trimmed it writes before it reads that again.
    fn trim(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn sync(&self) -> Result<(), Errno> {
        let _real_time = RealTime::begin();
        self.0.sync()
    }

    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        self.0.next_data(offset)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
}

//! How long a disk takes.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::file::DirectFile;
use ramfold_sys::mem::Pages;
use ramfold_sys::time::monotonic_ns;

use super::{Disk, Spread};

/// The file that is read.
const FILE_BYTES: usize = 8 << 20;
/// Reads of a page each.
const READS: usize = 200;

/// Measures a disk.
///
/// # Errors
/// When no file can be made in the folder, or it cannot be read past the page cache.
pub(super) fn measure(folder: &Path) -> io::Result<Disk> {
    let mut file = tempfile::tempfile_in(folder)?;
    let block: Vec<u8> =
        (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    let started = monotonic_ns();
    for _ in 0..FILE_BYTES / block.len() {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    let write_s = (monotonic_ns() - started) as f64 / 1e9 / (FILE_BYTES / PAGE_SIZE) as f64;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let direct = DirectFile::open(&path)?;
    if direct.whole(1..2) == (1..2) {
        return Err(io::Error::other("its file system reads through the page cache only"));
    }
    let mut page = Pages::new(PAGE_SIZE)?;
    let mut times = Vec::with_capacity(READS);
    for nth in 0..READS {
        // All over the file, no two after each other.
        let at = nth * 7919 % (FILE_BYTES / PAGE_SIZE) * PAGE_SIZE;
        let started = monotonic_ns();
        direct.read_at(at as u64, &mut page)?;
        times.push((monotonic_ns() - started) as f64 / 1e9);
    }
    // A mean, as one slow read of ten costs what it costs.
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let parts: Vec<f64> = times.chunks(READS / 5).map(mean).collect();
    Ok(Disk { folder: folder.to_owned(), read_s: Spread::of(parts), write_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_or_the_reason_is_said() {
        let folder = tempfile::tempdir().unwrap();
        match measure(folder.path()) {
            Ok(Disk { read_s, write_s, .. }) => {
                assert!(read_s.median > 1e-7 && read_s.median < 1.0, "{read_s:?}");
                assert!(write_s > 1e-8 && write_s < 1.0, "{write_s}");
            }
            // In RAM.
            Err(error) => assert!(error.to_string().contains("page cache"), "{error}"),
        }
        assert!(measure(Path::new("/nowhere")).is_err());
    }
}

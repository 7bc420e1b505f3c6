//! What tells that a file was changed.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::time::{ClockId, clock_gettime};

/// Times and size of a file. Where two are the same nothing was changed between, on a file system
/// with fine-grained times (ext4, XFS, Btrfs and tmpfs since Linux 6.13); elsewhere a second change
/// within a tick of the kernel's clock (1 to 10 ms) that leaves the size does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: (i64, u32),
    changed: (i64, u32),
    size: u64,
}

impl Stamp {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// How long ago the file was changed, by the machine's clock.
    pub(super) fn age_ns(&self) -> i128 {
        let now = clock_gettime(ClockId::Realtime);
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let changed = self.changed.max(self.modified);
        ns(now.tv_sec, now.tv_nsec) - ns(changed.0, i64::from(changed.1))
    }

    /// # Errors
    /// What statx(2) says.
    pub(super) fn of(file: BorrowedFd<'_>) -> io::Result<Stamp> {
        let wanted = StatxFlags::MTIME | StatxFlags::CTIME | StatxFlags::SIZE;
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, wanted)?;
        Ok(Stamp {
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
            size: stat.stx_size,
        })
    }
}

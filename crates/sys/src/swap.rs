//! What a process needs of Linux that serves a swap device.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};

use crate::{Errno, raw};

/// The highest priority of a swap area.
pub const PRIORITY_MAX: u16 = 0x7fff;

const SWAP_FLAG_PREFER: usize = 0x8000;
const SWAP_FLAG_DISCARD: usize = 0x10000;
const PR_SET_IO_FLUSHER: usize = 57;

fn path_of(device: &Path) -> Result<CString, Errno> {
    CString::new(device.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

/// Turns a swap area on (swapon(2)), with a priority above those of areas without. What it does not
/// need any more is discarded.
///
/// # Errors
/// `EBUSY` where it is on already; `EINVAL` where it has no header; `EPERM` where this is not root.
pub fn swap_on(device: &Path, priority: u16) -> Result<(), Errno> {
    let path = path_of(device)?;
    let flags = SWAP_FLAG_PREFER | SWAP_FLAG_DISCARD | usize::from(priority.min(PRIORITY_MAX));
    // SAFETY: a name that ends with a zero, alive during the call.
    raw::check(unsafe { raw::syscall2(raw::nr::SWAPON, path.as_ptr() as usize, flags) }).map(drop)
}

/// Turns a swap area off (swapoff(2)): all that is in it comes back to memory first.
///
/// # Errors
/// `EINVAL` where it is not on; `ENOMEM` where memory would not hold what comes back; `EINTR`.
pub fn swap_off(device: &Path) -> Result<(), Errno> {
    let path = path_of(device)?;
    // SAFETY: a name that ends with a zero, alive during the call.
    raw::check(unsafe { raw::syscall2(raw::nr::SWAPOFF, path.as_ptr() as usize, 0) }).map(drop)
}

/// Memory that this thread asks for never waits for something to be written or swapped out, which
/// could wait for this thread (PR_SET_IO_FLUSHER of prctl(2), Linux 5.6). Threads that it starts
/// are so too.
///
/// # Errors
/// `EPERM` without CAP_SYS_RESOURCE.
pub fn become_io_flusher() -> Result<(), Errno> {
    // SAFETY: takes no pointers.
    raw::check(unsafe { raw::syscall5(raw::nr::PRCTL, PR_SET_IO_FLUSHER, 1, 0, 0, 0) }).map(drop)
}

/// All memory of this process, and what it gets later, is in RAM and stays there.
///
/// # Errors
/// `ENOMEM` and `EPERM`, by RLIMIT_MEMLOCK.
pub fn lock_memory() -> Result<(), Errno> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
}

/// Never ended for want of memory: the pages that it keeps for others would be lost.
///
/// # Errors
/// `EACCES` without CAP_SYS_RESOURCE.
pub fn never_kill_for_memory() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "-1000")
}

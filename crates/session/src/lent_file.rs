//! A file that the launcher has open and lends to the processes of its session.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::file::{DirectFile, FileIdentity};
use ramfold_sys::path::Path;
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::getpid;

/// Which file it is, and who has it open under which number. Zeroed memory: none.
#[repr(C)]
pub struct LentFile {
    launcher: AtomicU32,
    fd: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl LentFile {
    /// Lends a file that this process keeps open.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn lend(&self, file: impl AsFd) -> Result<(), Errno> {
        let FileIdentity { device, inode } = FileIdentity::of(&file)?;
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        self.fd.store(file.as_fd().as_raw_fd() as u32, Ordering::Relaxed);
        self.launcher.store(getpid().as_raw_nonzero().get() as u32, Ordering::Release);
        Ok(())
    }

    /// Opens the file by way of the launcher or, where that is gone, of `other`: a process that has
    /// it open, and the number of its descriptor.
    ///
    /// # Errors
    /// What `open` says, or `ESTALE` if it is another file.
    pub fn open(&self, other: Option<(u32, i32)>) -> Result<DirectFile, Errno> {
        let identity = FileIdentity {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        };
        let fd = self.fd.load(Ordering::Relaxed) as i32;
        let holders = [Some((self.launcher.load(Ordering::Acquire), fd)), other];
        let mut result = Err(Errno::STALE);
        for (task, fd) in holders.into_iter().flatten() {
            let path = Path::new(format_args!("/proc/{task}/fd/{fd}"))?;
            result = DirectFile::open(path.as_c_str()).and_then(|file| {
                if FileIdentity::of(&file)? == identity { Ok(file) } else { Err(Errno::STALE) }
            });
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

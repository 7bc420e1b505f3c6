//! Error numbers of system calls, shown without the help of the allocator.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The error of the system call that failed last on this thread.
    pub fn last() -> Self {
        // SAFETY: errno's address is valid for the life of the thread.
        Self(unsafe { *libc::__errno_location() })
    }

    pub fn set(self) {
        // SAFETY: as in `last`.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::ESRCH => "ESRCH",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::ECHILD => "ECHILD",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::EINVAL => "EINVAL",
            libc::EMFILE => "EMFILE",
            libc::ENOSPC => "ENOSPC",
            libc::ENOSYS => "ENOSYS",
            libc::ENOBUFS => "ENOBUFS",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ECANCELED => "ECANCELED",
            libc::ETIMEDOUT => "ETIMEDOUT",
            _ => return write!(f, "errno {}", self.0),
        };
        f.write_str(name)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

//! The ioctls that mean the same on many file systems: a file's flags, as of lsattr and chattr.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fuser::{FileHandle, INodeNo, IoctlFlags};
use ramfold_sys::file_server::{file_flags, set_file_flags};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::FileSystem;
use super::credentials::{About, Accessed, Caller};
use super::source_mounts::look_at;
use crate::file::Changed;

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS. Not those of 32-bit programs: the kernel makes these of
/// them, and of nobody else checks whether they may (do_vfs_ioctl).
const GET: u32 = 0x8008_6601;
const SET: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR: the same flags and some more. To set the former the
/// kernel asks for these first.
const GET_MORE: u32 = 0x801c_581f;
const SET_MORE: u32 = 0x401c_5820;

impl FileSystem {
    /// The kernel has checked who may set which flags (fuse_fileattr_set).
    ///
    /// # Errors
    /// `ENOTTY` for any other ioctl; what SOURCE says.
    pub(crate) fn file_flags(
        &self,
        caller: Caller,
        number: INodeNo,
        handle: FileHandle,
        about: IoctlFlags,
        command: u32,
        data: &[u8],
    ) -> io::Result<Vec<u8>> {
        let source: OwnedFd = match about.contains(IoctlFlags::FUSE_IOCTL_DIR) {
            true => fcntl_dupfd_cloexec(self.directories.get(handle)?.source(), 0)?,
            false => {
                let file = self.files.get(handle)?;
                fcntl_dupfd_cloexec(file.source(), 0)?
            }
        };
        let change = |set: &dyn Fn() -> Result<(), Errno>| {
            let inode = self.inodes.get(number)?;
            let cached = inode.cached_file(&self.cache);
            let stat = look_at(source.as_fd())?;
            let accessed = Accessed::new(&stat, source.as_fd());
            let result = cached.change(Some(source.as_fd()), Changed::Attributes, || {
                self.powers.as_caller(caller, &About::file(&accessed), || Ok(set()?))
            });
            // Of the time of the change the kernel knows nothing.
            self.watch.invalidate_attributes(number);
            result?;
            Ok(Vec::new())
        };
        match command {
            GET => Ok(ioctl_getflags(&source)?.bits().to_ne_bytes().to_vec()),
            SET => {
                let flags = data.first_chunk().ok_or(Errno::INVAL)?;
                let flags = IFlags::from_bits_retain(u32::from_ne_bytes(*flags));
                change(&|| ioctl_setflags(&source, flags))
            }
            GET_MORE => Ok(file_flags(&source)?.to_vec()),
            SET_MORE => {
                let flags = *data.first_chunk().ok_or(Errno::INVAL)?;
                change(&|| set_file_flags(&source, flags))
            }
            _ => Err(Errno::NOTTY.into()),
        }
    }
}

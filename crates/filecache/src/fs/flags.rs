//! The one ioctl that means the same on many file systems: a file's flags, as of lsattr and chattr.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fuser::{FileHandle, INodeNo, IoctlFlags};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::FileSystem;
use crate::content::Changed;
use crate::credentials::{Caller, SetIdBits};

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, of 64-bit programs and of 32-bit ones.
const GET: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SET: [u32; 2] = [0x4008_6602, 0x4004_6602];

impl FileSystem {
    /// The kernel has checked who may set which flags.
    ///
    /// # Errors
    /// `ENOTTY` for any other ioctl; what SOURCE says.
    pub fn file_flags(
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
                let file = self.files.get(handle).ok_or(Errno::BADF)?;
                fcntl_dupfd_cloexec(file.source(), 0)?
            }
        };
        if GET.contains(&command) {
            return Ok(ioctl_getflags(&source)?.bits().to_ne_bytes().to_vec());
        }
        if SET.contains(&command) {
            let flags = data.first_chunk().ok_or(Errno::INVAL)?;
            let flags = IFlags::from_bits_retain(u32::from_ne_bytes(*flags));
            let inode = self.inodes.get(number)?;
            let content = inode.content(&self.contents);
            content.change(Some(source.as_fd()), Changed::Attributes, || {
                let _acting = self.powers.act_as(caller, SetIdBits::Left)?;
                Ok(ioctl_setflags(&source, flags)?)
            })?;
            return Ok(Vec::new());
        }
        Err(Errno::NOTTY.into())
    }
}

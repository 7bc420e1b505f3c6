//! Names in directories: looking them up, making, moving and removing them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fuser::{FileAttr, FileType, Generation, INodeNo, RenameFlags};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, mkdirat, mknodat, openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::FileSystem;
use super::attributes::shown;
use super::inodes::Inode;
use super::source::{Descriptors, look_at};
use crate::content::Changed;
use crate::credentials::{Caller, SetIdBits};

/// What the kernel is told of a name.
#[derive(Debug)]
pub struct Named {
    pub attributes: FileAttr,
    pub generation: Generation,
    pub inode: Arc<Inode>,
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    Node { mode: u32, device: u32 },
    Directory { mode: u32 },
    Symlink { target: &'a Path },
}

impl FileSystem {
    /// # Errors
    /// What open(2) says.
    pub fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<Named> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        self.enter(find_name(directory.as_fd(), name)?)
    }

    /// Tells the kernel of a file.
    ///
    /// # Errors
    /// What finding out about it says.
    pub fn enter(&self, file: OwnedFd) -> io::Result<Named> {
        let stat = look_at(file.as_fd())?;
        let inode = self.inodes.enter(file, &stat, &self.mounts)?;
        let mut attributes = match shown(&inode, &stat) {
            Ok(attributes) => attributes,
            Err(error) => {
                self.inodes.forget(inode.number, 1);
                return Err(error);
            }
        };
        // Here it is the kernel's name for the inode too, for the root as for any.
        attributes.ino = inode.number;
        Ok(Named { attributes, generation: inode.generation(), inode })
    }

    /// # Errors
    /// What mknod(2), mkdir(2) or symlink(2) say.
    pub fn make(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        umask: u32,
        new: New<'_>,
    ) -> io::Result<Named> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        let directory = directory.as_fd();
        check(name)?;
        {
            let _acting = self.powers.make_as(caller, umask)?;
            match new {
                New::Node { mode, device } => {
                    let kind = rustix::fs::FileType::from_raw_mode(mode);
                    let mode = Mode::from_raw_mode(mode & 0o7777);
                    mknodat(directory, name, kind, mode, device.into())?;
                }
                New::Directory { mode } => {
                    mkdirat(directory, name, Mode::from_raw_mode(mode & 0o7777))?;
                }
                New::Symlink { target } => symlinkat(target, directory, name)?,
            }
        }
        self.enter(find_name(directory, name)?)
    }

    /// # Errors
    /// What link(2) says.
    pub fn add_name(
        &self,
        caller: Caller,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> io::Result<Named> {
        let inode = self.inodes.get(number)?;
        let parent = self.inodes.get(parent)?;
        let (found, directory) = (inode.find()?, parent.find()?);
        check(name)?;
        inode.content(&self.contents).change(Some(found.as_fd()), Changed::Attributes, || {
            let _acting = self.powers.act_as(caller, SetIdBits::Left)?;
            let (from, to) = (found.as_fd(), directory.as_fd());
            // Without capabilities a descriptor is linked by its name in /proc.
            match rustix::fs::linkat(from, "", to, name, AtFlags::EMPTY_PATH) {
                Err(Errno::NOENT) if !self.powers.opens_by_handle() => {
                    let path = Descriptors::path(from);
                    Ok(rustix::fs::linkat(CWD, path, to, name, AtFlags::SYMLINK_FOLLOW)?)
                }
                result => Ok(result?),
            }
        })?;
        self.enter(find_name(directory.as_fd(), name)?)
    }

    /// # Errors
    /// What readlink(2) says.
    pub fn link_target(&self, number: INodeNo) -> io::Result<Vec<u8>> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        Ok(readlinkat(found.as_fd(), "", Vec::new())?.into_bytes())
    }

    /// Removes a name: `AtFlags::REMOVEDIR` for a directory's.
    ///
    /// # Errors
    /// What unlink(2) or rmdir(2) say.
    pub fn remove(&self, parent: INodeNo, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        let directory = directory.as_fd();
        let victim = self.known_under(directory, name)?;
        self.change_names([victim.as_ref(), None], || Ok(unlinkat(directory, name, flags)?))?;
        keep_if_nameless(victim);
        Ok(())
    }

    /// # Errors
    /// What rename(2) says.
    pub fn move_name(
        &self,
        caller: Caller,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (from_parent, to_parent) = (self.inodes.get(from.0)?, self.inodes.get(to.0)?);
        let (from_directory, to_directory) = (from_parent.find()?, to_parent.find()?);
        let (from_directory, to_directory) = (from_directory.as_fd(), to_directory.as_fd());
        let moved = self.known_under(from_directory, from.1)?;
        check(to.1)?;
        let replaced = match self.known_under(to_directory, to.1) {
            Ok(replaced) => replaced,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let rename = || {
            // A whiteout is a new file, and the caller's.
            let _acting = match flags.contains(rustix::fs::RenameFlags::WHITEOUT) {
                true => Some(self.powers.make_as(caller, 0)?),
                false => None,
            };
            Ok(rustix::fs::renameat_with(from_directory, from.1, to_directory, to.1, flags)?)
        };
        self.change_names([moved.as_ref(), replaced.as_ref()], rename)?;
        if !flags.contains(rustix::fs::RenameFlags::EXCHANGE) {
            keep_if_nameless(replaced);
        }
        Ok(())
    }

    /// What the kernel knows under a name, with a descriptor that holds it.
    fn known_under(
        &self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
    ) -> io::Result<Option<(OwnedFd, Arc<Inode>)>> {
        let file = find_name(directory, name)?;
        let stat = look_at(file.as_fd())?;
        Ok(self.inodes.known(file.as_fd(), &stat).map(|inode| (file, inode)))
    }

    /// Changes the names of these files.
    fn change_names(
        &self,
        files: [Option<&(OwnedFd, Arc<Inode>)>; 2],
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut files: Vec<_> = files
            .into_iter()
            .flatten()
            .map(|(file, inode)| (file, inode.content(&self.contents)))
            .collect();
        // Always in the same order, so that two of these never wait for each other, and no file twice.
        files.sort_by_key(|(_, content)| Arc::as_ptr(content));
        files.dedup_by_key(|(_, content)| Arc::as_ptr(content));
        match files[..] {
            [] => change(),
            [(file, content)] => content.change(Some(file.as_fd()), Changed::Attributes, change),
            [(file, content), (other_file, other), ..] => {
                content.change(Some(file.as_fd()), Changed::Attributes, || {
                    other.change(Some(other_file.as_fd()), Changed::Attributes, change)
                })
            }
        }
    }
}

/// What has lost its last name is not found by its handle once the system has dropped it, and the kernel may
/// know it still: somebody is in that directory.
fn keep_if_nameless(file: Option<(OwnedFd, Arc<Inode>)>) {
    let Some((file, inode)) = file else { return };
    let is_nameless = look_at(file.as_fd())
        .is_ok_and(|stat| stat.stx_nlink == 0 || inode.kind == FileType::Directory);
    if is_nameless {
        inode.keep(file);
        inode.note_nameless();
    }
}

/// One file of a directory, whatever it is: neither is a symlink followed, nor does anything happen to a device.
pub fn find_name(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    check(name)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

/// No way out of the directory.
pub fn check(name: &OsStr) -> io::Result<()> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL.into()),
        bytes if bytes.contains(&b'/') => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "/", "../x"] {
            assert!(check(OsStr::new(name)).is_err(), "{name}");
        }
        for name in ["a", "...", "..a", " "] {
            assert!(check(OsStr::new(name)).is_ok(), "{name}");
        }
    }
}

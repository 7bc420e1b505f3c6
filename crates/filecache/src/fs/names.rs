//! Names in directories: looking them up, making, moving and removing them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fuser::{FileAttr, FileType, Generation, INodeNo, RenameFlags};
use rustix::fs::{AtFlags, CWD, Mode, Statx, mkdirat, mknodat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::FileSystem;
use super::attributes::shown;
use super::credentials::{About, Accessed, Caller, SetId};
use super::inode::Inode;
use super::source_mounts::{Descriptors, look_at};
use crate::file::Changed;

/// What the kernel is told of a name.
#[derive(Debug)]
pub(crate) struct Named {
    pub attributes: FileAttr,
    pub generation: Generation,
    pub inode: Arc<Inode>,
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum New<'a> {
    Node { mode: u32, device: u32 },
    Directory { mode: u32 },
    Symlink { target: &'a Path },
}

/// What a name in a directory of SOURCE stands for, held.
#[derive(Debug)]
struct Held {
    file: OwnedFd,
    /// If the kernel knows it.
    inode: Option<Arc<Inode>>,
}

impl FileSystem {
    /// # Errors
    /// What open(2) says.
    pub(crate) fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<Named> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        self.enter(self.find_name(directory.as_fd(), name)?)
    }

    /// Tells the kernel of a file.
    ///
    /// # Errors
    /// What finding out about it says.
    pub(crate) fn enter(&self, file: OwnedFd) -> io::Result<Named> {
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
    pub(crate) fn make(
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
        let stat = look_at(directory)?;
        let accessed = Accessed::new(&stat, directory);
        let make = || {
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
            Ok(())
        };
        let about = About::making(&accessed, umask);
        let result = self.powers.as_caller(caller, &about, make);
        self.correct_kernel(&result, &[parent.number]);
        result?;
        self.enter(self.find_name(directory, name)?)
    }

    /// # Errors
    /// What link(2) says.
    pub(crate) fn add_name(
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
        let (from, to) = (found.as_fd(), directory.as_fd());
        let cached = inode.cached_file(&self.cache);
        let result = cached.change(Some(from), Changed::Attributes, || {
            // Others may have changed them while this waited.
            let (stat, of_directory) = (look_at(from)?, look_at(to)?);
            let about = About {
                // Who does not own the file must be able to read and write it
                // (protected_hardlinks).
                accessed: &[Accessed::new(&of_directory, to), Accessed::new(&stat, from)],
                owned: &[&stat],
                removed: &[],
                set_id: SetId::Unchanged,
                umask: None,
            };
            self.powers.as_caller(caller, &about, || {
                // Without capabilities a descriptor is linked by its name in /proc.
                match rustix::fs::linkat(from, "", to, name, AtFlags::EMPTY_PATH) {
                    Err(Errno::NOENT) => {
                        let path = Descriptors::path(from);
                        Ok(rustix::fs::linkat(CWD, path, to, name, AtFlags::SYMLINK_FOLLOW)?)
                    }
                    result => Ok(result?),
                }
            })
        });
        self.correct_kernel(&result, &[inode.number, parent.number]);
        result?;
        self.enter(self.find_name(directory.as_fd(), name)?)
    }

    /// # Errors
    /// What readlink(2) says.
    pub(crate) fn link_target(&self, number: INodeNo) -> io::Result<Vec<u8>> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        Ok(readlinkat(found.as_fd(), "", Vec::new())?.into_bytes())
    }

    /// Removes a name: `AtFlags::REMOVEDIR` for a directory's.
    ///
    /// # Errors
    /// What unlink(2) or rmdir(2) say.
    pub(crate) fn remove(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        flags: AtFlags,
    ) -> io::Result<()> {
        let parent = self.inodes.get(parent)?;
        let directory = parent.find()?;
        let directory = directory.as_fd();
        let victim = self.hold(directory, name)?;
        let result = self.change_names(&[&victim], || {
            let (of_directory, stat) = (look_at(directory)?, look_at(victim.file.as_fd())?);
            let kept = caller.is_kept_from(&of_directory, &stat).then_some(&stat);
            let about = About {
                accessed: &[Accessed::new(&of_directory, directory)],
                owned: &[],
                removed: kept.as_slice(),
                set_id: SetId::Unchanged,
                umask: None,
            };
            self.powers.as_caller(caller, &about, || Ok(unlinkat(directory, name, flags)?))
        });
        self.correct_kernel_of(&result, &[&parent], &[&victim]);
        result?;
        self.hold_if_nameless(victim);
        Ok(())
    }

    /// # Errors
    /// What rename(2) says.
    pub(crate) fn move_name(
        &self,
        caller: Caller,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (from_parent, to_parent) = (self.inodes.get(from.0)?, self.inodes.get(to.0)?);
        let (from_directory, to_directory) = (from_parent.find()?, to_parent.find()?);
        let (from_directory, to_directory) = (from_directory.as_fd(), to_directory.as_fd());
        let moved = self.hold(from_directory, from.1)?;
        check(to.1)?;
        let replaced = match self.hold(to_directory, to.1) {
            Ok(replaced) => Some(replaced),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let held: Vec<&Held> = [Some(&moved), replaced.as_ref()].into_iter().flatten().collect();
        let is_exchange = flags.contains(rustix::fs::RenameFlags::EXCHANGE);
        // What goes to another directory.
        let moving = match (from.0 == to.0, is_exchange) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => held.len(),
        };
        let result = self.change_names(&held, || {
            let of_directories = [look_at(from_directory)?, look_at(to_directory)?];
            let stats = held.iter().map(|held| look_at(held.file.as_fd()));
            let stats = stats.collect::<io::Result<Vec<Statx>>>()?;
            let kept = stats.iter().zip(&of_directories);
            let kept = kept.filter(|(file, directory)| caller.is_kept_from(directory, file));
            let kept: Vec<&Statx> = kept.map(|(file, _)| file).collect();
            let directories = of_directories.iter().zip([from_directory, to_directory]);
            let directories = directories.map(|(stat, file)| Accessed::new(stat, file));
            let moving = stats.iter().zip(&held).take(moving);
            let moving = moving.filter(|(stat, _)| is_directory(stat));
            let moving = moving.map(|(stat, held)| Accessed::moved(stat, held.file.as_fd()));
            let accessed: Vec<Accessed<'_>> = directories.chain(moving).collect();
            let about = About {
                accessed: &accessed,
                owned: &[],
                removed: &kept,
                set_id: SetId::Unchanged,
                // A whiteout is a new file, and the caller's.
                umask: flags.contains(rustix::fs::RenameFlags::WHITEOUT).then_some(0),
            };
            self.powers.as_caller(caller, &about, || {
                let (from, to) = ((from_directory, from.1), (to_directory, to.1));
                Ok(rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)?)
            })
        });
        self.correct_kernel_of(&result, &[&from_parent, &to_parent], &held);
        result?;
        if !is_exchange {
            replaced.into_iter().for_each(|replaced| self.hold_if_nameless(replaced));
        }
        Ok(())
    }

    /// One file of a directory, whatever it is.
    ///
    /// # Errors
    /// What open(2) says.
    pub(crate) fn find_name(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
        check(name)?;
        self.mounts.find(directory, name)
    }

    fn hold(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Held> {
        let file = self.find_name(directory, name)?;
        let stat = look_at(file.as_fd())?;
        let inode = self.inodes.known(file.as_fd(), &stat);
        Ok(Held { file, inode })
    }

    /// What has lost its last name is not found by its handle once the system has dropped it, and
    /// the kernel may know it still: somebody is in that directory.
    fn hold_if_nameless(&self, held: Held) {
        let Held { file, inode: Some(inode), .. } = held else { return };
        let is_nameless = look_at(file.as_fd())
            .is_ok_and(|stat| stat.stx_nlink == 0 || inode.kind == FileType::Directory);
        if is_nameless {
            inode.hold(file, &self.removed);
            inode.note_nameless();
        }
    }

    /// Where SOURCE has refused what the kernel allowed, the kernel asks for these files' owners
    /// and modes anew.
    pub(crate) fn correct_kernel<T>(&self, result: &io::Result<T>, numbers: &[INodeNo]) {
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            numbers.iter().for_each(|&number| self.watch.invalidate_attributes(number));
        }
    }

    fn correct_kernel_of<T>(
        &self,
        result: &io::Result<T>,
        directories: &[&Arc<Inode>],
        held: &[&Held],
    ) {
        let known = held.iter().filter_map(|held| held.inode.as_ref());
        let inodes = directories.iter().copied().chain(known);
        let numbers: Vec<INodeNo> = inodes.map(|inode| inode.number).collect();
        self.correct_kernel(result, &numbers);
    }

    /// Changes the names of these files.
    fn change_names(
        &self,
        files: &[&Held],
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut files: Vec<_> = files
            .iter()
            .filter_map(|held| Some((&held.file, held.inode.as_ref()?.cached_file(&self.cache))))
            .collect();
        // Always in the same order, so that two of these never wait for each other, and no file
        // twice.
        files.sort_by_key(|(_, cached)| Arc::as_ptr(cached));
        files.dedup_by_key(|(_, cached)| Arc::as_ptr(cached));
        match files[..] {
            [] => change(),
            [(file, cached)] => cached.change(Some(file.as_fd()), Changed::Attributes, change),
            [(file, cached), (other_file, other), ..] => {
                cached.change(Some(file.as_fd()), Changed::Attributes, || {
                    other.change(Some(other_file.as_fd()), Changed::Attributes, change)
                })
            }
        }
    }
}

pub(super) fn is_directory(stat: &Statx) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_dir()
}

/// No way out of the directory.
pub(super) fn check(name: &OsStr) -> io::Result<()> {
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

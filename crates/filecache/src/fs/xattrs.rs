//! Extended attributes, and access control lists, which are some of them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use fuser::INodeNo;
use rustix::fs::{Statx, XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::FileSystem;
use super::credentials::{ACCESS_LIST, About, Accessed, Caller, SetId};
use super::source_mounts::{Descriptors, look_at};
use crate::file::Changed;

/// The extended attribute that has a program's capabilities.
const CAPABILITIES: &str = "security.capability";
/// The longest value and list the kernel has (XATTR_SIZE_MAX).
const LONGEST: u32 = 65536;

/// The kernel asks for the size alone, or for the data if it fits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Size(u32),
    Data(Vec<u8>),
}

impl FileSystem {
    /// # Errors
    /// What getxattr(2) says.
    pub(crate) fn xattr(
        &self,
        caller: Caller,
        number: INodeNo,
        name: &OsStr,
        size: u32,
    ) -> io::Result<Answer> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        let path = Descriptors::path(found.as_fd());
        let get = || answer(size, |buffer| getxattr(&path, name, buffer));
        if !name.as_bytes().starts_with(b"user.") {
            // Whose they are does not depend on the file.
            return get();
        }
        let file = found.as_fd();
        let stat = look_at(file)?;
        let accessed = Accessed::new(&stat, file);
        let result = self.powers.as_caller(caller, &About::file(&accessed), get);
        self.correct_kernel(&result, &[number]);
        result
    }

    /// # Errors
    /// What listxattr(2) says.
    pub(crate) fn xattr_names(
        &self,
        caller: Caller,
        number: INodeNo,
        size: u32,
    ) -> io::Result<Answer> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        let path = Descriptors::path(found.as_fd());
        let Answer::Data(names) = answer(LONGEST, |buffer| listxattr(&path, buffer))? else {
            return Err(Errno::IO.into());
        };
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        let has_trusted = names.split_inclusive(|&byte| byte == 0).any(is_trusted);
        // SOURCE shows these to administrators alone, and one of them asks it.
        let hides_trusted = has_trusted && self.powers.asks_again(caller) && !caller.administers();
        let names: Vec<u8> = names
            .split_inclusive(|&byte| byte == 0)
            .filter(|name| !(hides_trusted && is_trusted(name)))
            .flatten()
            .copied()
            .collect();
        match size as usize {
            0 => Ok(Answer::Size(names.len() as u32)),
            room if room < names.len() => Err(Errno::RANGE.into()),
            _ => Ok(Answer::Data(names)),
        }
    }

    /// # Errors
    /// What setxattr(2) says.
    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> io::Result<()> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        let path = Descriptors::path(found.as_fd());
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let file = found.as_fd();
        let cached = inode.cached_file(&self.cache);
        let result = cached.change(Some(file), Changed::Attributes, || {
            // Others may have changed it while this waited.
            let stat = &look_at(file)?;
            if name == CAPABILITIES && !self.powers.may_set_capabilities(caller, stat) {
                return Err(Errno::PERM.into());
            }
            // An access list changes the mode.
            let accessed = Accessed::new(stat, file);
            let about = About { set_id: set_id_of(name, stat), ..About::file(&accessed) };
            self.powers.as_caller(caller, &about, || Ok(setxattr(&path, name, value, flags)?))
        });
        self.correct_kernel(&result, &[number]);
        result
    }

    /// # Errors
    /// What removexattr(2) says.
    pub(crate) fn remove_xattr(
        &self,
        caller: Caller,
        number: INodeNo,
        name: &OsStr,
    ) -> io::Result<()> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        let path = Descriptors::path(found.as_fd());
        let file = found.as_fd();
        let cached = inode.cached_file(&self.cache);
        let result = cached.change(Some(file), Changed::Attributes, || {
            let stat = &look_at(file)?;
            let accessed = Accessed::new(stat, file);
            let about = About { set_id: set_id_of(name, stat), ..About::file(&accessed) };
            self.powers.as_caller(caller, &about, || Ok(removexattr(&path, name)?))
        });
        self.correct_kernel(&result, &[number]);
        result
    }
}

/// An access list changes the mode.
fn set_id_of(name: &OsStr, stat: &Statx) -> SetId {
    if name == ACCESS_LIST { SetId::Set.of(stat) } else { SetId::Unchanged }
}

fn answer(size: u32, get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> io::Result<Answer> {
    // rustix gives the length of what fits its buffer, and nothing fits an empty one.
    let room = if size == 0 { LONGEST } else { size.min(LONGEST) };
    let mut buffer = vec![0; room as usize];
    let length = get(&mut buffer)?;
    if size == 0 {
        return Ok(Answer::Size(length as u32));
    }
    buffer.truncate(length);
    Ok(Answer::Data(buffer))
}

//! Open directories. Where a listing is, SOURCE itself says (d_off of getdents(2)), so it stays
//! right while names come and go, as right as SOURCE's own.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use fuser::{FileAttr, FileHandle, FileType, Generation, INodeNo, OpenFlags};
use rustix::fs::{AtFlags, OFlags, RawDir, SeekFrom, StatxFlags, fdatasync, fsync, seek, statx};
use rustix::io::Errno;

use super::FileSystem;
use super::attributes::{file_type, kind};
use super::credentials::Caller;
use super::handles::Handles;
use super::open_limit::Counted;

/// What the C library asks for at a time.
const READ_AT_ONCE: usize = 32 << 10;

/// A name as a listing has it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub inode: u64,
    /// Where the listing goes on after it.
    pub next: u64,
    pub kind: FileType,
    name: Box<[u8]>,
}

impl Listed {
    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    fn is_dots(&self) -> bool {
        matches!(&*self.name, b"." | b"..")
    }
}

#[derive(Debug)]
pub(super) struct OpenDirectory {
    source: OwnedFd,
    listing: Mutex<Listing>,
    _counted: Counted,
}

/// Names that were read and not yet handed out, and where the first of them is.
#[derive(Debug, Default)]
struct Listing {
    position: u64,
    names: VecDeque<Listed>,
}

/// All open directories.
pub(super) type Directories = Handles<OpenDirectory>;

impl OpenDirectory {
    pub(super) fn source(&self) -> &OwnedFd {
        &self.source
    }

    /// Hands out the names from `position` on until `take` says that it has no more room.
    fn list(
        &self,
        position: u64,
        mut take: impl FnMut(&Listed) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        // From the beginning it is read anew, and shows what has come meanwhile.
        if position != listing.position || position == 0 {
            listing.names.clear();
            seek(&self.source, SeekFrom::Start(position))?;
            listing.position = position;
        }
        let mut is_any_taken = false;
        loop {
            if listing.names.is_empty() {
                listing.names = match self.read_some() {
                    // Whoever asks for what follows is told.
                    Err(_) if is_any_taken => return Ok(()),
                    result => result?,
                };
            }
            let Some(listed) = listing.names.front() else { return Ok(()) };
            if !take(listed)? {
                return Ok(());
            }
            is_any_taken = true;
            listing.position = listed.next;
            listing.names.pop_front();
        }
    }

    fn read_some(&self) -> io::Result<VecDeque<Listed>> {
        let mut buffer = [MaybeUninit::uninit(); READ_AT_ONCE];
        let mut raw = RawDir::new(&self.source, &mut buffer);
        let mut names = VecDeque::new();
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let kind = match kind(entry.file_type()) {
                Some(kind) => kind,
                None => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    match statx(&self.source, entry.file_name(), flags, StatxFlags::TYPE) {
                        Ok(stat) => file_type(&stat)?,
                        Err(Errno::NOENT) => continue,
                        // Looked at by itself it says what is wrong.
                        Err(_) => FileType::Directory,
                    }
                }
            };
            names.push_back(Listed {
                inode: entry.ino(),
                next: entry.next_entry_cookie(),
                kind,
                name: entry.file_name().to_bytes().into(),
            });
            if raw.is_buffer_empty() {
                break;
            }
        }
        Ok(names)
    }
}

impl FileSystem {
    /// # Errors
    /// What open(2) says.
    pub(crate) fn open_directory(
        &self,
        caller: Caller,
        number: INodeNo,
        flags: OpenFlags,
    ) -> io::Result<FileHandle> {
        // Only the owner of a directory may open it so. Overlayfs does for any reader, as root.
        let no_atime = OFlags::from_bits_retain(flags.0.cast_unsigned()) & OFlags::NOATIME;
        let inode = self.inodes.get(number)?;
        let counted = self.open_limit.count(caller.user)?;
        let open =
            |flags| self.open_source(caller, &inode, OFlags::RDONLY | OFlags::DIRECTORY | flags);
        let for_root = caller.user == 0 || !self.powers.asks_again(caller);
        let source = match open(no_atime) {
            Err(error) if for_root && Errno::from_io_error(&error) == Some(Errno::PERM) => {
                open(OFlags::empty())?
            }
            source => source?,
        };
        let listing = Mutex::default();
        Ok(self.directories.add(OpenDirectory { source, listing, _counted: counted }))
    }

    pub(crate) fn close_directory(&self, handle: FileHandle) {
        self.directories.remove(handle);
    }

    /// # Errors
    /// What getdents(2) says.
    pub(crate) fn list(
        &self,
        handle: FileHandle,
        position: u64,
        mut add: impl FnMut(&Listed) -> bool,
    ) -> io::Result<()> {
        let directory = self.directories.get(handle)?;
        directory.list(position, |listed| Ok(add(listed)))
    }

    /// Names with their attributes, which tells the kernel of each.
    ///
    /// # Errors
    /// What getdents(2) says.
    pub(crate) fn list_with_attributes(
        &self,
        handle: FileHandle,
        position: u64,
        mut add: impl FnMut(&Listed, &FileAttr, Generation) -> bool,
    ) -> io::Result<()> {
        let directory = self.directories.get(handle)?;
        directory.list(position, |listed| {
            if listed.is_dots() {
                // The kernel wants the number and the type only, and takes these for no mention.
                return Ok(add(listed, &bare(listed.inode, listed.kind), Generation(0)));
            }
            let named = self
                .find_name(directory.source.as_fd(), listed.name())
                .and_then(|file| self.enter(file));
            match named {
                Ok(named) => {
                    let has_room = add(listed, &named.attributes, named.generation);
                    if !has_room {
                        drop(self.inodes.forget(named.inode.number, 1));
                    }
                    Ok(has_room)
                }
                // Gone meanwhile.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(true),
                // Looked up by itself it says what is wrong. The kernel takes no attributes from an
                // entry with the root's number, and shows its name; one without a number the C
                // library would pass over.
                Err(_) => Ok(add(listed, &bare(INodeNo::ROOT.0, listed.kind), Generation(0))),
            }
        })
    }

    /// # Errors
    /// What fsync(2) says.
    pub(crate) fn sync_directory(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        let directory = self.directories.get(handle)?;
        match data_only {
            true => fdatasync(&directory.source)?,
            false => fsync(&directory.source)?,
        }
        Ok(())
    }
}

fn bare(number: u64, kind: FileType) -> FileAttr {
    use std::time::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

//! What the kernel knows: inodes by their numbers, and how each is found again in SOURCE.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use fuser::{FileType, Generation, INodeNo};
use ramfold_sys::file_server::FileHandle;
use rustix::fs::{OFlags, Statx, makedev};
use rustix::io::Errno;

use super::attributes::file_type;
use super::passthrough::Opens;
use super::removed::Removed;
use super::source::{SourceMount, SourceMounts, look_at};
use crate::content::{Content, Contents, FileKey};

/// Numbers from here on are given by us, to what has none that is its own on SOURCE: inodes of other mounts and
/// devices below it, one that is really numbered as the root is here, and one whose number the kernel still knows
/// another file by, that is gone. No file system numbers so high.
const FIRST_OWN_NUMBER: u64 = 1 << 63;

/// A file of SOURCE that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    pub number: INodeNo,
    pub generation: Generation,
    pub kind: FileType,
    key: InodeKey,
    place: Place,
    /// Holds a file without a name, which its handle does not find when the system has dropped it.
    kept: OnceLock<Kept>,
    content: OnceLock<Arc<Content>>,
    /// [`Content::changes_behind`] when the kernel's cache was last known to be right.
    cached_at: AtomicU64,
    /// The kernel has had it open through its page cache, and may have pages of it.
    pub was_cached: AtomicBool,
    /// Owner, group and mode as the kernel was told last, as one number.
    told: AtomicU64,
    opens: Opens,
}

/// Which inode this is as long as it exists. The same file in two mounts is two inodes: what may be done with
/// it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InodeKey {
    mount: u64,
    device: u64,
    inode: u64,
}

/// How a file is found again.
#[derive(Debug)]
enum Place {
    Handle(Arc<SourceMount>, FileHandle),
    Descriptor(OwnedFd),
}

/// A descriptor of O_PATH.
#[derive(Debug)]
pub enum Found<'a> {
    Opened(OwnedFd),
    Kept(BorrowedFd<'a>),
}

impl AsFd for Found<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Found::Opened(fd) => fd.as_fd(),
            Found::Kept(fd) => *fd,
        }
    }
}

impl InodeKey {
    fn of(stat: &Statx) -> InodeKey {
        InodeKey {
            mount: stat.stx_mnt_id,
            device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        }
    }
}

impl Inode {
    /// # Errors
    /// `ESTALE` when the file is there no more.
    pub fn find(&self) -> io::Result<Found<'_>> {
        match (&self.place, self.kept.get()) {
            (Place::Descriptor(fd), _) => Ok(Found::Kept(fd.as_fd())),
            (_, Some(kept)) => Ok(Found::Kept(kept.as_fd())),
            (Place::Handle(mount, handle), None) => {
                Ok(Found::Opened(mount.open(handle, OFlags::PATH | OFlags::NOFOLLOW)?))
            }
        }
    }

    /// Opens it for more than looking at it.
    ///
    /// # Errors
    /// `ESTALE` when the file is there no more; what open(2) says.
    pub fn open(&self, mounts: &SourceMounts, flags: OFlags) -> io::Result<OwnedFd> {
        match (&self.place, self.kept.get()) {
            (Place::Descriptor(fd), _) => mounts.descriptors().open(fd.as_fd(), flags),
            (_, Some(kept)) => mounts.descriptors().open(kept.as_fd(), flags),
            (Place::Handle(mount, handle), None) => mount.open(handle, flags),
        }
    }

    /// Is it this file, and not one that had its number before?
    fn is_of<'a>(&self, key: InodeKey, handle: impl FnOnce() -> Option<&'a FileHandle>) -> bool {
        self.key == key
            && match &self.place {
                // What is held keeps its number.
                Place::Descriptor(..) => true,
                Place::Handle(_, own) => handle() == Some(own),
            }
    }

    /// Keeps a file that has lost its last name.
    pub fn keep(&self, file: OwnedFd, removed: &Arc<Removed>) {
        if matches!(self.place, Place::Handle(..)) {
            removed.note_held();
            // Another thread may have been first.
            let _ = self.kept.set(Kept { file: Some(file), removed: Arc::clone(removed) });
        }
    }

    /// Tells its content that the file has lost its last name.
    pub fn note_nameless(&self) {
        if let Some(content) = self.content.get() {
            content.note_nameless();
        }
    }

    pub fn content(&self, contents: &Contents) -> &Arc<Content> {
        self.content.get_or_init(|| {
            contents.of(FileKey {
                device: self.key.device,
                inode: self.key.inode,
                generation: self.generation.0,
            })
        })
    }

    /// Who has it open, and how.
    pub fn opens(&self) -> &Opens {
        &self.opens
    }

    /// The mount it is in, where it is found by its handle.
    pub fn mount(&self) -> Option<&SourceMount> {
        match &self.place {
            Place::Handle(mount, _) => Some(mount),
            Place::Descriptor(_) => None,
        }
    }

    pub fn device(&self) -> u64 {
        self.key.device
    }

    /// What the kernel has cached of it is not to be believed when it is opened next.
    pub fn note_not_cached(&self) {
        self.cached_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// The kernel is told of its attributes.
    pub fn note_told(&self, stat: &Statx) {
        self.told.store(owner_and_mode(stat), Ordering::Relaxed);
    }

    /// Whether the kernel was last told of this owner, group and mode.
    pub fn was_told(&self, stat: &Statx) -> bool {
        self.told.load(Ordering::Relaxed) == owner_and_mode(stat)
    }

    /// Is what the kernel has cached of it as old as this? It is from now on.
    pub fn was_cached_at(&self, changes_behind: u64) -> bool {
        self.cached_at.swap(changes_behind, Ordering::Relaxed) == changes_behind
    }
}

fn owner_and_mode(stat: &Statx) -> u64 {
    let mut hasher = DefaultHasher::new();
    (stat.stx_uid, stat.stx_gid, stat.stx_mode).hash(&mut hasher);
    hasher.finish()
}

/// A file without a name, until it is closed.
#[derive(Debug)]
struct Kept {
    file: Option<OwnedFd>,
    removed: Arc<Removed>,
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("it is there until this is dropped").as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // That frees its space, which may take a while.
        drop(self.file.take());
        self.removed.note_closed();
    }
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub struct Inodes {
    table: RwLock<Table>,
    root: InodeKey,
    /// Held, so that it is not opened anew with each file.
    _home: Arc<SourceMount>,
}

#[derive(Debug, Default)]
struct Table {
    by_number: HashMap<u64, Known>,
    own_numbers: HashMap<InodeKey, u64>,
    next_own_number: u64,
}

#[derive(Debug)]
struct Known {
    inode: Arc<Inode>,
    /// How often the kernel was told of it.
    lookups: u64,
}

impl Inodes {
    /// # Errors
    /// What statx(2) says of the root.
    pub fn new(root: OwnedFd, mounts: &SourceMounts) -> io::Result<Inodes> {
        let stat = look_at(root.as_fd())?;
        let mount = mounts.of(root.as_fd(), &stat)?;
        let root_key = InodeKey::of(&stat);
        let inodes = Inodes { table: RwLock::default(), root: root_key, _home: mount };
        // By its descriptor, whatever handles can do: it is there always.
        let inode = Inode {
            number: INodeNo::ROOT,
            generation: Generation(0),
            kind: FileType::Directory,
            key: root_key,
            place: Place::Descriptor(root),
            kept: OnceLock::new(),
            content: OnceLock::new(),
            cached_at: AtomicU64::new(u64::MAX),
            was_cached: AtomicBool::new(false),
            told: AtomicU64::new(0),
            opens: Opens::default(),
        };
        let known = Known { inode: Arc::new(inode), lookups: 1 };
        inodes.write().by_number.insert(INodeNo::ROOT.0, known);
        Ok(inodes)
    }

    /// The file system that SOURCE is on.
    pub fn device(&self) -> u64 {
        self.root.device
    }

    /// # Errors
    /// `ESTALE` when the kernel asks for something that it was not told of.
    pub fn get(&self, number: INodeNo) -> io::Result<Arc<Inode>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let known = table.by_number.get(&number.0).ok_or(Errno::STALE)?;
        Ok(Arc::clone(&known.inode))
    }

    /// The inode of a file, if the kernel knows it.
    pub fn known(&self, file: BorrowedFd<'_>, stat: &Statx) -> Option<Arc<Inode>> {
        let key = InodeKey::of(stat);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let numbers = [self.number_of(key), table.own_numbers.get(&key).copied()];
        let known = numbers
            .into_iter()
            .flatten()
            .filter_map(|number| Some(Arc::clone(&table.by_number.get(&number)?.inode)));
        let known: Vec<_> = known.collect();
        drop(table);
        let handle = LazyCell::new(|| FileHandle::of(file).ok());
        known.into_iter().find(|inode| inode.is_of(key, || handle.as_ref()))
    }

    /// The kernel is told of this file, once more or for the first time.
    ///
    /// # Errors
    /// What finding out about it says.
    pub fn enter(
        &self,
        file: OwnedFd,
        stat: &Statx,
        mounts: &SourceMounts,
    ) -> io::Result<Arc<Inode>> {
        let key = InodeKey::of(stat);
        let mount = mounts.of(file.as_fd(), stat)?;
        let handle = match mount.has_handles() {
            true => FileHandle::of(&file).ok(),
            false => None,
        };
        let mut table = self.write();
        let is_known_by = |number: u64| {
            let known = table.by_number.get(&number)?;
            Some(known.inode.is_of(key, || handle.as_ref()))
        };
        let given = table.own_numbers.get(&key).copied();
        // As long as the kernel knows another file by a number, which may be gone, its requests are about that.
        let number = given
            .filter(|&number| is_known_by(number) == Some(true))
            .or_else(|| self.number_of(key).filter(|&number| is_known_by(number) != Some(false)));
        let number = number.unwrap_or_else(|| table.new_number(key));
        match table.by_number.entry(number) {
            Entry::Occupied(mut known) => {
                known.get_mut().lookups += 1;
                Ok(Arc::clone(&known.get().inode))
            }
            Entry::Vacant(place) => {
                let inode = Arc::new(Inode::new(number, key, stat, mount, handle, file)?);
                place.insert(Known { inode: Arc::clone(&inode), lookups: 1 });
                Ok(inode)
            }
        }
    }

    /// The kernel has dropped so many of the mentions of this number. Returns what is to be closed,
    /// which may take a while.
    pub fn forget(&self, number: INodeNo, lookups: u64) -> Option<Arc<Inode>> {
        if number == INodeNo::ROOT {
            return None;
        }
        let mut table = self.write();
        let Entry::Occupied(mut known) = table.by_number.entry(number.0) else { return None };
        let left = known.get().lookups.saturating_sub(lookups);
        known.get_mut().lookups = left;
        if left > 0 {
            return None;
        }
        let inode = known.remove().inode;
        if table.own_numbers.get(&inode.key) == Some(&number.0) {
            table.own_numbers.remove(&inode.key);
        }
        drop(table);
        inode.kept.get().is_some().then_some(inode)
    }

    /// The number that a file has by itself.
    fn number_of(&self, key: InodeKey) -> Option<u64> {
        if key == self.root {
            return Some(INodeNo::ROOT.0);
        }
        let is_home = (key.mount, key.device) == (self.root.mount, self.root.device);
        (is_home && (2..FIRST_OWN_NUMBER).contains(&key.inode)).then_some(key.inode)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn new_number(&mut self, key: InodeKey) -> u64 {
        self.next_own_number += 1;
        let number = FIRST_OWN_NUMBER + self.next_own_number;
        self.own_numbers.insert(key, number);
        number
    }
}

impl Inode {
    fn new(
        number: u64,
        key: InodeKey,
        stat: &Statx,
        mount: Arc<SourceMount>,
        handle: Option<FileHandle>,
        file: OwnedFd,
    ) -> io::Result<Inode> {
        // A number that comes again is another inode by its generation. A handle has the file system's own
        // generation in it; without one, when the file was made is the best there is.
        let mut hasher = DefaultHasher::new();
        match &handle {
            Some(handle) => handle.hash(&mut hasher),
            None => (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec).hash(&mut hasher),
        }
        Ok(Inode {
            number: INodeNo(number),
            // The kernel keeps 32 bits of it, and compares all.
            generation: Generation(hasher.finish() & u64::from(u32::MAX)),
            kind: file_type(stat)?,
            key,
            place: match handle {
                Some(handle) => Place::Handle(mount, handle),
                None => Place::Descriptor(file),
            },
            kept: OnceLock::new(),
            content: OnceLock::new(),
            cached_at: AtomicU64::new(u64::MAX),
            was_cached: AtomicBool::new(false),
            told: AtomicU64::new(0),
            opens: Opens::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, StatVfsMountFlags, open};

    use super::super::source::Descriptors;
    use super::*;

    #[test]
    fn a_number_is_another_files_only_when_the_kernel_has_forgotten_it() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let find = |name: &str| {
            let path = folder.path().join(name);
            open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        for name in ["one", "two"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let (one, two) = (|| find("one"), || find("two"));
        let mounts =
            SourceMounts::new(true, StatVfsMountFlags::empty(), Descriptors::new().unwrap());
        let inodes = Inodes::new(find(""), &mounts).unwrap();
        let stat = look_at(one().as_fd()).unwrap();
        if !mounts.of(one().as_fd(), &stat).unwrap().has_handles() {
            return eprintln!("SKIPPED: files have no handles here");
        }
        // As if the second had come by the number of the first, which is gone.
        let mut of_two = look_at(two().as_fd()).unwrap();
        of_two.stx_ino = stat.stx_ino;
        let first = inodes.enter(one(), &stat, &mounts).unwrap();
        assert_eq!(first.number.0, stat.stx_ino);
        let second = inodes.enter(two(), &of_two, &mounts).unwrap();
        assert!(second.number.0 >= FIRST_OWN_NUMBER);
        assert!(Arc::ptr_eq(&inodes.get(first.number).unwrap(), &first));
        for (file, stat, inode) in [(one(), &stat, &first), (two(), &of_two, &second)] {
            assert!(Arc::ptr_eq(&inodes.known(file.as_fd(), stat).unwrap(), inode));
            assert!(Arc::ptr_eq(&inodes.enter(file, stat, &mounts).unwrap(), inode));
        }
        inodes.forget(first.number, 2);
        assert!(inodes.get(first.number).is_err());
        // Who is known by a number keeps it.
        assert_eq!(inodes.enter(two(), &of_two, &mounts).unwrap().number, second.number);
        inodes.forget(second.number, 3);
        assert_eq!(inodes.enter(two(), &of_two, &mounts).unwrap().number, first.number);
        let table = inodes.write();
        assert_eq!((table.by_number.len(), table.own_numbers.len()), (2, 0));
    }
}

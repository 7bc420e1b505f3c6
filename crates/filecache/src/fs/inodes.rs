//! What the kernel knows: inodes by their numbers.

use std::borrow::Borrow;
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use fuser::{FileType, INodeNo};
use ramfold_sys::file_server::FileHandle;
use rustix::fs::Statx;
use rustix::io::Errno;

use super::clock::{Clock, Positioned};
use super::forgetting::Wake;
use super::inode::{INODE_BYTES, Inode, InodeKey, Locator, device_number};
use super::source_mounts::{SourceMounts, look_at};
use crate::file::InodesSize;

/// Numbers from here on are given by us, to what has none that is its own on SOURCE: inodes of
/// other mounts and devices below it, one that is really numbered as the root is here, and one
/// whose number the kernel still knows another file by, that is gone. No file system numbers so
/// high.
const FIRST_OWN_NUMBER: u64 = 1 << 63;

/// Found by its number.
#[derive(Debug)]
struct ByNumber(Arc<Inode>);

impl PartialEq for ByNumber {
    fn eq(&self, other: &ByNumber) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for ByNumber {}

impl Hash for ByNumber {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.0.hash(state);
    }
}

impl Borrow<u64> for ByNumber {
    fn borrow(&self) -> &u64 {
        &self.0.number.0
    }
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inodes {
    table: RwLock<Table>,
    root: InodeKey,
    size: Arc<InodesSize>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct Table {
    by_number: HashSet<ByNumber>,
    /// All but the root.
    clock: Clock<Arc<Inode>>,
    own_numbers: HashMap<InodeKey, u64>,
    next_own_number: u64,
    /// What long handles take.
    handles_bytes: usize,
    /// How many are held by descriptors.
    descriptors: usize,
    /// How many the kernel has forgotten.
    forgotten: u64,
}

/// What is known, when the kernel is to forget some of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub inodes: usize,
    pub bytes: u64,
    pub descriptors: usize,
    /// Since the beginning.
    pub forgotten: u64,
}

impl Inodes {
    /// # Errors
    /// What statx(2) says of the root.
    pub(crate) fn new(
        root: OwnedFd,
        mounts: &SourceMounts,
        size: Arc<InodesSize>,
        wake: Wake,
    ) -> io::Result<Inodes> {
        let stat = look_at(root.as_fd())?;
        let mount = mounts.of(root.as_fd(), &stat)?;
        let key = InodeKey::of(&stat);
        let inodes = Inodes { table: RwLock::default(), root: key, size, wake };
        // By its descriptor, whatever handles can do: it is there always.
        let (kind, locator) = (FileType::Directory, Locator::Descriptor(root));
        let inode = Inode::at(INodeNo::ROOT, key, kind, mount, locator, 0);
        inodes.write().by_number.insert(ByNumber(Arc::new(inode)));
        Ok(inodes)
    }

    /// The device that SOURCE is on.
    pub(crate) fn device(&self) -> u64 {
        device_number(self.root.device)
    }

    /// # Errors
    /// `ESTALE` when the kernel asks for something that it was not told of.
    pub(crate) fn get(&self, number: INodeNo) -> io::Result<Arc<Inode>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let ByNumber(inode) = table.by_number.get(&number.0).ok_or(Errno::STALE)?;
        inode.note_used();
        Ok(Arc::clone(inode))
    }

    /// The inode of a file, if the kernel knows it.
    pub(crate) fn known(&self, file: BorrowedFd<'_>, stat: &Statx) -> Option<Arc<Inode>> {
        let key = InodeKey::of(stat);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let numbers = [self.number_of(key), table.own_numbers.get(&key).copied()];
        let known = numbers
            .into_iter()
            .flatten()
            .filter_map(|number| Some(Arc::clone(&table.by_number.get(&number)?.0)));
        let known: Vec<_> = known.collect();
        drop(table);
        let handle = LazyCell::new(|| FileHandle::of(file).ok());
        known.into_iter().find(|inode| inode.is_of(key, || handle.as_ref()))
    }

    /// The kernel is told of this file, once more or for the first time.
    ///
    /// # Errors
    /// What finding out about it says.
    pub(crate) fn enter(
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
            Some(known.0.is_of(key, || handle.as_ref()))
        };
        let given = table.own_numbers.get(&key).copied();
        // As long as the kernel knows another file by a number, which may be gone, its requests are
        // about that.
        let number = given
            .filter(|&number| is_known_by(number) == Some(true))
            .or_else(|| self.number_of(key).filter(|&number| is_known_by(number) != Some(false)));
        let number = number.unwrap_or_else(|| table.new_number(key));
        if let Some(ByNumber(inode)) = table.by_number.get(&number) {
            inode.lookups.fetch_add(1, Ordering::Relaxed);
            inode.note_used();
            return Ok(Arc::clone(inode));
        }
        let inode = Arc::new(Inode::new(number, key, stat, mount, handle, file)?);
        table.insert(Arc::clone(&inode));
        self.note_size(&table);
        Ok(inode)
    }

    /// The kernel has dropped this number of its lookups of an inode. Returns what is to be closed,
    /// which may take a while.
    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) -> Option<Arc<Inode>> {
        if number == INodeNo::ROOT {
            return None;
        }
        let mut table = self.write();
        let ByNumber(inode) = table.by_number.get(&number.0)?;
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
        inode.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return None;
        }
        let inode = table.remove(number);
        self.note_size(&table);
        drop(table);
        inode.filter(|inode| inode.is_held_nameless())
    }

    /// Goes on over up to `count` of all that is known, and adds the numbers of those that were not
    /// used since the last time round.
    pub(crate) fn unused(&self, count: usize, numbers: &mut Vec<u64>) {
        self.write().clock.advance(count, |inode| numbers.push(inode.number.0));
    }

    pub(crate) fn tally(&self) -> Tally {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Tally {
            inodes: table.by_number.len(),
            bytes: table.bytes() as u64,
            descriptors: table.descriptors,
            forgotten: table.forgotten,
        }
    }

    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    fn note_size(&self, table: &Table) {
        let bytes = table.bytes() as u64;
        self.size.set(table.by_number.len() as u64, bytes);
        self.wake.grown(bytes, table.descriptors);
    }

    /// The number that a file has by itself.
    fn number_of(&self, key: InodeKey) -> Option<u64> {
        if key == self.root {
            return Some(INodeNo::ROOT.0);
        }
        let is_home = (key.mount, key.device) == (self.root.mount, self.root.device);
        (is_home && (2..FIRST_OWN_NUMBER).contains(&key.inode)).then_some(key.inode)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, inode: Arc<Inode>) {
        self.handles_bytes += inode.handle_bytes();
        self.descriptors += usize::from(inode.has_descriptor());
        self.by_number.insert(ByNumber(Arc::clone(&inode)));
        self.clock.insert(inode);
    }

    fn remove(&mut self, number: INodeNo) -> Option<Arc<Inode>> {
        let ByNumber(inode) = self.by_number.take(&number.0)?;
        self.clock.remove(inode.position());
        self.handles_bytes -= inode.handle_bytes();
        self.descriptors -= usize::from(inode.has_descriptor());
        self.forgotten += 1;
        if self.own_numbers.get(&inode.key()) == Some(&number.0) {
            self.own_numbers.remove(&inode.key());
        }
        let (len, capacity) = (self.by_number.len(), self.by_number.capacity());
        if len < capacity / 4 {
            self.by_number.shrink_to(len * 2);
        }
        Some(inode)
    }

    /// All that the table takes.
    fn bytes(&self) -> usize {
        let own_number = size_of::<(InodeKey, u64)>();
        self.by_number.len() * INODE_BYTES
            + hashed(self.by_number.capacity(), size_of::<ByNumber>())
            + hashed(self.own_numbers.capacity(), own_number)
            + self.clock.capacity() * size_of::<Arc<Inode>>()
            + self.handles_bytes
    }

    fn new_number(&mut self, key: InodeKey) -> u64 {
        self.next_own_number += 1;
        let number = FIRST_OWN_NUMBER + self.next_own_number;
        self.own_numbers.insert(key, number);
        number
    }
}

/// What a hash table takes: a byte beside each place, of which at most 7/8 are used.
fn hashed(capacity: usize, item_bytes: usize) -> usize {
    match capacity {
        0 => 0,
        capacity => (capacity * 8 / 7).next_power_of_two() * (item_bytes + 1),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, StatVfsMountFlags, open};

    use super::super::source_mounts::Descriptors;
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
        let size = Arc::<InodesSize>::default();
        let inodes = Inodes::new(find(""), &mounts, Arc::clone(&size), Wake::nobody()).unwrap();
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
        assert_eq!((table.clock.len(), size.inodes()), (1, 2));
        assert!(size.bytes() >= 2 * INODE_BYTES as u64);
    }
}

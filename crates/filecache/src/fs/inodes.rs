//! What the kernel knows: inodes by their numbers, and how each is found again in SOURCE.

use std::borrow::Borrow;
use std::cell::LazyCell;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use fuser::{FileType, Generation, INodeNo};
use ramfold_sys::file_server::FileHandle;
use rustix::fs::{OFlags, Statx, makedev};
use rustix::io::Errno;

use super::attributes::file_type;
use super::clock::{Clock, Placed};
use super::forgetting::Wake;
use super::passthrough::Opens;
use super::removed::Removed;
use super::source::{SourceMount, SourceMounts, look_at};
use crate::content::{Content, Contents, FileKey, InodesSize, allocated};

/// Numbers from here on are given by us, to what has none that is its own on SOURCE: inodes of other mounts and
/// devices below it, one that is really numbered as the root is here, and one whose number the kernel still knows
/// another file by, that is gone. No file system numbers so high.
const FIRST_OWN_NUMBER: u64 = 1 << 63;

/// A file of SOURCE that the kernel knows. There can be millions of them.
#[derive(Debug)]
pub struct Inode {
    pub number: INodeNo,
    pub kind: FileType,
    /// Has been used since the hand came by.
    used: AtomicBool,
    /// Where it is in the clock.
    position: AtomicU32,
    generation: u32,
    device: u32,
    inode: u64,
    mount: Arc<SourceMount>,
    place: Place,
    /// Holds a file without a name, which its handle does not find when the system has dropped it.
    kept: OnceLock<OwnedFd>,
    /// How often the kernel was told of it. Changed with the table locked.
    lookups: AtomicU64,
    /// Owner, group and mode as the kernel was told last, as one number.
    told: AtomicU32,
    /// Once it has been open, or changed.
    open: OnceLock<Box<OpenState>>,
}

/// How a file is, or was, open.
#[derive(Debug)]
pub struct OpenState {
    content: OnceLock<Arc<Content>>,
    /// [`Content::changes_behind`] when the kernel's cache was last known to be right.
    cached_at: AtomicU64,
    /// The kernel has had it open through its page cache, and may have pages of it.
    pub was_cached: AtomicBool,
    /// The kernel is about to be told to drop them.
    pub is_to_be_dropped: AtomicBool,
    pub opens: Opens,
}

impl Default for OpenState {
    fn default() -> OpenState {
        OpenState {
            content: OnceLock::new(),
            cached_at: AtomicU64::new(u64::MAX),
            was_cached: AtomicBool::new(false),
            is_to_be_dropped: AtomicBool::new(false),
            opens: Opens::default(),
        }
    }
}

/// What each takes by itself.
const INODE_BYTES: usize = allocated::<Inode>();

const _: () = assert!(INODE_BYTES <= 128, "it is what a known file costs");

/// Which inode this is as long as it exists. The same file in two mounts is two inodes: what may be done with
/// it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InodeKey {
    mount: u64,
    /// As the kernel has it: 12 bits, and 20 bits.
    device: u32,
    inode: u64,
}

/// How a file is found again.
#[derive(Debug)]
enum Place {
    Handle(FileHandle),
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
            device: stat.stx_dev_major << 20 | stat.stx_dev_minor,
            inode: stat.stx_ino,
        }
    }
}

impl Inode {
    /// # Errors
    /// `ESTALE` when the file is there no more.
    pub fn find(&self) -> io::Result<Found<'_>> {
        match (&self.place, self.kept.get()) {
            (Place::Descriptor(fd), _) | (_, Some(fd)) => Ok(Found::Kept(fd.as_fd())),
            (Place::Handle(handle), None) => {
                Ok(Found::Opened(self.mount.open(handle, OFlags::PATH | OFlags::NOFOLLOW)?))
            }
        }
    }

    /// Opens it for more than looking at it.
    ///
    /// # Errors
    /// `ESTALE` when the file is there no more; what open(2) says.
    pub fn open(&self, mounts: &SourceMounts, flags: OFlags) -> io::Result<OwnedFd> {
        match (&self.place, self.kept.get()) {
            (Place::Descriptor(fd), _) | (_, Some(fd)) => {
                mounts.descriptors().open(fd.as_fd(), flags)
            }
            (Place::Handle(handle), None) => self.mount.open(handle, flags),
        }
    }

    /// Is it this file, and not one that had its number before?
    fn is_of<'a>(&self, key: InodeKey, handle: impl FnOnce() -> Option<&'a FileHandle>) -> bool {
        self.key() == key
            && match &self.place {
                // What is held keeps its number.
                Place::Descriptor(..) => true,
                Place::Handle(own) => handle() == Some(own),
            }
    }

    fn key(&self) -> InodeKey {
        InodeKey { mount: self.mount.id(), device: self.device, inode: self.inode }
    }

    pub fn generation(&self) -> Generation {
        Generation(u64::from(self.generation))
    }

    /// It is to be forgotten later than what is not used.
    fn note_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Keeps a file that has lost its last name.
    pub fn keep(&self, file: OwnedFd, removed: &Removed) {
        if matches!(self.place, Place::Handle(..)) {
            removed.note_held();
            // Another thread may have been first.
            let _ = self.kept.set(file);
        }
    }

    /// Tells its content that the file has lost its last name.
    pub fn note_nameless(&self) {
        if let Some(content) = self.open.get().and_then(|open| open.content.get()) {
            content.note_nameless();
        }
    }

    pub fn content(&self, contents: &Contents) -> &Arc<Content> {
        self.open_state().content.get_or_init(|| {
            contents.of(FileKey {
                device: u64::from(self.device),
                inode: self.inode,
                generation: u64::from(self.generation),
            })
        })
    }

    /// The kernel is told of its attributes.
    pub fn note_told(&self, stat: &Statx) {
        self.told.store(owner_and_mode(stat), Ordering::Relaxed);
    }

    /// Whether the kernel was last told of this owner, group and mode.
    pub fn was_told(&self, stat: &Statx) -> bool {
        self.told.load(Ordering::Relaxed) == owner_and_mode(stat)
    }

    /// The mount it is in, where it is found by its handle.
    pub fn mount(&self) -> Option<&SourceMount> {
        matches!(self.place, Place::Handle(_)).then_some(&*self.mount)
    }

    /// As statx(2) has it.
    pub fn device(&self) -> u64 {
        device_number(self.device)
    }

    /// What the kernel has cached of it is not to be believed when it is opened next.
    pub fn note_not_cached(&self) {
        self.open_state().cached_at.store(u64::MAX, Ordering::Relaxed);
    }

    pub fn open_state(&self) -> &OpenState {
        self.open.get_or_init(Box::default)
    }

    /// Is what the kernel has cached of it as old as this? It is from now on.
    pub fn was_cached_at(&self, changes_behind: u64) -> bool {
        self.open_state().cached_at.swap(changes_behind, Ordering::Relaxed) == changes_behind
    }
}

/// Of one as an [`InodeKey`] has it.
fn device_number(device: u32) -> u64 {
    makedev(device >> 20, device & 0xf_ffff)
}

fn owner_and_mode(stat: &Statx) -> u32 {
    let mut hasher = DefaultHasher::new();
    (stat.stx_uid, stat.stx_gid, stat.stx_mode).hash(&mut hasher);
    hasher.finish() as u32
}

impl Placed for Arc<Inode> {
    fn place(&self) -> usize {
        self.position.load(Ordering::Relaxed) as usize
    }

    fn set_place(&self, place: usize) {
        self.position.store(place as u32, Ordering::Relaxed);
    }

    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// Found by its number.
#[derive(Debug)]
struct Known(Arc<Inode>);

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Known {}

impl Hash for Known {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.0.hash(state);
    }
}

impl Borrow<u64> for Known {
    fn borrow(&self) -> &u64 {
        &self.0.number.0
    }
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub struct Inodes {
    table: RwLock<Table>,
    root: InodeKey,
    size: Arc<InodesSize>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct Table {
    by_number: HashSet<Known>,
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
pub struct Tally {
    pub inodes: usize,
    pub bytes: u64,
    pub descriptors: usize,
    /// Since the beginning.
    pub forgotten: u64,
}

impl Inodes {
    /// # Errors
    /// What statx(2) says of the root.
    pub fn new(
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
        let (kind, place) = (FileType::Directory, Place::Descriptor(root));
        let inode = Inode::at(INodeNo::ROOT, key, kind, mount, place, 0);
        inodes.write().by_number.insert(Known(Arc::new(inode)));
        Ok(inodes)
    }

    /// The device that SOURCE is on.
    pub fn device(&self) -> u64 {
        device_number(self.root.device)
    }

    /// # Errors
    /// `ESTALE` when the kernel asks for something that it was not told of.
    pub fn get(&self, number: INodeNo) -> io::Result<Arc<Inode>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let Known(inode) = table.by_number.get(&number.0).ok_or(Errno::STALE)?;
        inode.note_used();
        Ok(Arc::clone(inode))
    }

    /// The inode of a file, if the kernel knows it.
    pub fn known(&self, file: BorrowedFd<'_>, stat: &Statx) -> Option<Arc<Inode>> {
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
            Some(known.0.is_of(key, || handle.as_ref()))
        };
        let given = table.own_numbers.get(&key).copied();
        // As long as the kernel knows another file by a number, which may be gone, its requests are about that.
        let number = given
            .filter(|&number| is_known_by(number) == Some(true))
            .or_else(|| self.number_of(key).filter(|&number| is_known_by(number) != Some(false)));
        let number = number.unwrap_or_else(|| table.new_number(key));
        if let Some(Known(inode)) = table.by_number.get(&number) {
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
    pub fn forget(&self, number: INodeNo, lookups: u64) -> Option<Arc<Inode>> {
        if number == INodeNo::ROOT {
            return None;
        }
        let mut table = self.write();
        let Known(inode) = table.by_number.get(&number.0)?;
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
        inode.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return None;
        }
        let inode = table.remove(number);
        self.note_size(&table);
        drop(table);
        inode.filter(|inode| inode.kept.get().is_some())
    }

    /// Goes on over up to `count` of all that is known, and adds the numbers of those that were not
    /// used since the last time round.
    pub fn unused(&self, count: usize, numbers: &mut Vec<u64>) {
        self.write().clock.advance(count, |inode| numbers.push(inode.number.0));
    }

    pub fn tally(&self) -> Tally {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Tally {
            inodes: table.by_number.len(),
            bytes: table.bytes() as u64,
            descriptors: table.descriptors,
            forgotten: table.forgotten,
        }
    }

    pub fn wake(&self) -> &Wake {
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

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, inode: Arc<Inode>) {
        self.handles_bytes += inode.handle_bytes();
        self.descriptors += usize::from(inode.is_held());
        self.by_number.insert(Known(Arc::clone(&inode)));
        self.clock.insert(inode);
    }

    fn remove(&mut self, number: INodeNo) -> Option<Arc<Inode>> {
        let Known(inode) = self.by_number.take(&number.0)?;
        self.clock.remove(inode.place());
        self.handles_bytes -= inode.handle_bytes();
        self.descriptors -= usize::from(inode.is_held());
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
            + hashed(self.by_number.capacity(), size_of::<Known>())
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

impl Inode {
    fn at(
        number: INodeNo,
        key: InodeKey,
        kind: FileType,
        mount: Arc<SourceMount>,
        place: Place,
        generation: u32,
    ) -> Inode {
        Inode {
            number,
            kind,
            used: AtomicBool::new(false),
            position: AtomicU32::new(u32::MAX),
            generation,
            device: key.device,
            inode: key.inode,
            mount,
            place,
            kept: OnceLock::new(),
            lookups: AtomicU64::new(1),
            told: AtomicU32::new(0),
            open: OnceLock::new(),
        }
    }

    fn is_held(&self) -> bool {
        matches!(self.place, Place::Descriptor(_))
    }

    fn handle_bytes(&self) -> usize {
        match &self.place {
            Place::Handle(handle) => handle.heap_bytes(),
            Place::Descriptor(_) => 0,
        }
    }

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
        let place = match handle {
            Some(handle) => Place::Handle(handle),
            None => Place::Descriptor(file),
        };
        // The kernel keeps 32 bits of it, and compares all.
        let generation = hasher.finish() as u32;
        Ok(Inode::at(INodeNo(number), key, file_type(stat)?, mount, place, generation))
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

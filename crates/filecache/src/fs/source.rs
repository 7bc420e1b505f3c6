//! The mounts that SOURCE consists of: its own, and what is mounted below it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ramfold_sys::file_server::FileHandle;
use rustix::fs::{
    AtFlags, Mode, OFlags, StatVfsMountFlags, Statx, StatxFlags, fstatfs, fstatvfs, open, openat,
    statx,
};
use rustix::io::Errno;

/// Not in rustix yet: since Linux 6.8 an id that is never given to another mount.
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// File systems whose handles can be opened as long as the file exists, by f_type of statfs(2). Others (overlay,
/// FUSE, NFS) have none, or forget them.
const WITH_HANDLES: [u64; 6] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
];

/// What a mount may not do, and so what the mount over SOURCE may not do either.
pub const RESTRICTIONS: StatVfsMountFlags =
    StatVfsMountFlags::NOSUID.union(StatVfsMountFlags::NODEV).union(StatVfsMountFlags::NOEXEC);

/// One mount of SOURCE, as long as something in it is known.
#[derive(Debug)]
pub struct SourceMount {
    id: u64,
    /// Any open file of it, for opening others by their handles; `None` where that cannot be done.
    opener: Option<OwnedFd>,
}

impl SourceMount {
    /// The kernel's number for it.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn has_handles(&self) -> bool {
        self.opener.is_some()
    }

    /// # Errors
    /// `ESTALE` when the file is there no more; what open_by_handle_at(2) says.
    pub fn open(&self, handle: &FileHandle, flags: OFlags) -> io::Result<OwnedFd> {
        let opener = self.opener.as_ref().ok_or(Errno::OPNOTSUPP)?;
        Ok(handle.open(opener, flags)?)
    }
}

/// All of them.
#[derive(Debug)]
pub struct SourceMounts {
    known: Mutex<HashMap<u64, Weak<SourceMount>>>,
    opens_by_handle: bool,
    restrictions: StatVfsMountFlags,
    descriptors: Descriptors,
}

impl SourceMounts {
    /// `restrictions` are those of the mount over SOURCE.
    pub fn new(
        opens_by_handle: bool,
        restrictions: StatVfsMountFlags,
        descriptors: Descriptors,
    ) -> SourceMounts {
        SourceMounts { known: Mutex::default(), opens_by_handle, restrictions, descriptors }
    }

    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// The mount that a file is in.
    ///
    /// # Errors
    /// `EACCES` when it was mounted with restrictions that the mount over SOURCE does not have: set-id programs
    /// or devices of a foreign disk would work through it. What open(2) says.
    pub fn of(&self, file: BorrowedFd<'_>, stat: &Statx) -> io::Result<Arc<SourceMount>> {
        let id = stat.stx_mnt_id;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = known.get(&id).and_then(Weak::upgrade) {
            return Ok(mount);
        }
        known.retain(|_, mount| mount.strong_count() > 0);
        let flags = fstatvfs(file)?.f_flag;
        if !self.restrictions.contains(flags & RESTRICTIONS) {
            return Err(Errno::ACCESS.into());
        }
        let opener =
            if self.opens_by_handle && WITH_HANDLES.contains(&(fstatfs(file)?.f_type as u64)) {
                self.opener(file, stat).ok()
            } else {
                None
            };
        let mount = Arc::new(SourceMount { id, opener });
        known.insert(id, Arc::downgrade(&mount));
        Ok(mount)
    }

    /// The first thing seen of a mount is its root, mostly a directory.
    fn opener(&self, file: BorrowedFd<'_>, stat: &Statx) -> io::Result<OwnedFd> {
        let kind = u32::from(stat.stx_mode) & 0o170_000;
        if kind != 0o040_000 && kind != 0o100_000 {
            // Opening a device does something.
            return Err(Errno::OPNOTSUPP.into());
        }
        let opener = self.descriptors.open(file, OFlags::RDONLY | OFlags::NONBLOCK)?;
        // Does it work?
        FileHandle::of(&opener)?.open(&opener, OFlags::PATH)?;
        Ok(opener)
    }
}

/// `/proc/self/fd`, by which a descriptor of O_PATH is opened for reading and writing.
#[derive(Debug)]
pub struct Descriptors(OwnedFd);

impl Descriptors {
    /// # Errors
    /// Where /proc is not mounted.
    pub fn new() -> io::Result<Descriptors> {
        Ok(Descriptors(open(
            "/proc/self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?))
    }

    /// Opens what a descriptor stands for once more.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open(&self, file: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        let name = file.as_raw_fd().to_string();
        Ok(openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// For calls that take no descriptor of O_PATH.
    pub fn path(file: impl AsFd) -> String {
        format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
    }
}

/// All that is asked about a file, and which mount it is in.
///
/// # Errors
/// What statx(2) says.
pub fn look_at(file: BorrowedFd<'_>) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | UNIQUE_MOUNT_ID;
    Ok(statx(file, c"", AtFlags::EMPTY_PATH, wanted)?)
}

//! The mounts that SOURCE consists of: its own, and what is mounted below it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ramfold_sys::file_server::FileHandle;
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Statx, StatxFlags, fcntl_getfl,
    fcntl_setfl, fstatfs, fstatvfs, open, openat, openat2, statx,
};
use rustix::io::Errno;

/// Not in rustix yet: since Linux 6.8 an id that is never given to another mount.
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// By f_type of statfs(2).
const TMPFS: u64 = 0x0102_1994;
/// File systems whose handles can be opened as long as the file exists. Others (overlay, FUSE, NFS)
/// have none, or forget them.
const WITH_HANDLES: [u64; 6] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    TMPFS,
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
];

/// What a mount may not do, and so what the mount over SOURCE may not do either.
pub(crate) const RESTRICTIONS: StatVfsMountFlags =
    StatVfsMountFlags::NOSUID.union(StatVfsMountFlags::NODEV).union(StatVfsMountFlags::NOEXEC);

/// One mount of SOURCE, as long as something in it is known.
#[derive(Debug)]
pub(crate) struct SourceMount {
    id: u64,
    /// Any open file of it, for opening others by their handles; `None` where that cannot be done.
    opener: Option<OwnedFd>,
    is_ram: bool,
}

impl SourceMount {
    /// The kernel's number for it.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn has_handles(&self) -> bool {
        self.opener.is_some()
    }

    /// Whether its files are in RAM and nowhere else.
    pub(crate) fn is_ram(&self) -> bool {
        self.is_ram
    }

    /// # Errors
    /// `ESTALE` when the file is there no more; what open_by_handle_at(2) says.
    pub(crate) fn open(&self, handle: &FileHandle, flags: OFlags) -> io::Result<OwnedFd> {
        let opener = self.opener.as_ref().ok_or(Errno::OPNOTSUPP)?;
        Ok(handle.open(opener, flags)?)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct SourceMounts {
    known: Mutex<HashMap<u64, Weak<SourceMount>>>,
    opens_by_handle: bool,
    restrictions: StatVfsMountFlags,
    descriptors: Descriptors,
    /// Of the mount over SOURCE.
    own_device: OnceLock<(u32, u32)>,
}

impl SourceMounts {
    /// `restrictions` are those of the mount over SOURCE.
    pub(crate) fn new(
        opens_by_handle: bool,
        restrictions: StatVfsMountFlags,
        descriptors: Descriptors,
    ) -> SourceMounts {
        SourceMounts {
            known: Mutex::default(),
            opens_by_handle,
            restrictions,
            descriptors,
            own_device: OnceLock::new(),
        }
    }

    /// # Errors
    /// What statx(2) says.
    pub(crate) fn note_own_device(&self, mountpoint: &Path) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let device = device_of(open(mountpoint, flags, Mode::empty())?.as_fd())?;
        self.own_device.get_or_init(|| device);
        Ok(())
    }

    /// Opens a file of a directory by its name, with a descriptor of O_PATH: neither is a symlink
    /// followed, nor does anything happen to a device.
    ///
    /// # Errors
    /// `ELOOP` where the mount over SOURCE is mounted in SOURCE: it would wait for itself. What
    /// open(2) says.
    pub(crate) fn find(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            // Something is mounted there, or the kernel is older than 5.6.
            Err(Errno::XDEV | Errno::NOSYS) => {}
            result => return Ok(result?),
        }
        let file = openat(directory, name, flags, Mode::empty())?;
        match self.own_device.get() {
            Some(&own) if device_of(file.as_fd())? == own => Err(Errno::LOOP.into()),
            _ => Ok(file),
        }
    }

    /// Has reads by a descriptor leave the time of the last access as it is, where the mount does.
    ///
    /// # Errors
    /// What fcntl(2) says.
    pub(crate) fn restrict(&self, file: &OwnedFd) -> io::Result<()> {
        if self.restrictions.contains(StatVfsMountFlags::NOATIME) {
            fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NOATIME)?;
        }
        Ok(())
    }

    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// The mount that a file is in.
    ///
    /// # Errors
    /// `EACCES` when it was mounted with restrictions that the mount over SOURCE does not have:
    /// set-id programs or devices of another disk would work through it. What open(2) says.
    pub(crate) fn of(&self, file: BorrowedFd<'_>, stat: &Statx) -> io::Result<Arc<SourceMount>> {
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
        let file_system = fstatfs(file)?.f_type as u64;
        let opener = if self.opens_by_handle && WITH_HANDLES.contains(&file_system) {
            self.opener(file, stat).ok()
        } else {
            None
        };
        let mount = Arc::new(SourceMount { id, opener, is_ram: file_system == TMPFS });
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
pub(crate) struct Descriptors(OwnedFd);

impl Descriptors {
    /// # Errors
    /// Where /proc is not mounted.
    pub(crate) fn new() -> io::Result<Descriptors> {
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
    pub(crate) fn open(&self, file: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        let name = file.as_raw_fd().to_string();
        Ok(openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// For calls that take no descriptor of O_PATH.
    pub(crate) fn path(file: impl AsFd) -> String {
        format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
    }
}

/// The device that a file is on, without asking whoever serves it.
fn device_of(file: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, c"", flags, StatxFlags::TYPE)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// All that is asked about a file, and which mount it is in.
///
/// # Errors
/// What statx(2) says.
pub(super) fn look_at(file: BorrowedFd<'_>) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | UNIQUE_MOUNT_ID;
    Ok(statx(file, c"", AtFlags::EMPTY_PATH, wanted)?)
}

//! What ends a mount whose server was killed and cannot end.
//!
//! A thread that has the kernel drop pages (FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_PRUNE) waits for
//! those that are being read, thus for answers of this server. When the server is killed meanwhile,
//! the thread waits on, and holds the connection to the kernel open. So do the readers, and whoever
//! unmounts, until the connection is aborted (Documentation/filesystems/fuse/fuse.rst, "Aborting a
//! filesystem connection"). A process of its own does that.

use std::os::fd::{AsFd, OwnedFd};

use ramfold_sys::guard::Guard;
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::io::{Errno, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::Mounted;

/// Where systemd mounts fusectl.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// `FUSE_CTL_SUPER_MAGIC`.
const FUSECTL: i64 = 0x6573_5543;

/// Starts the process; `None` where the connection cannot be aborted.
pub(super) fn guard(mounted: &Mounted) -> Option<Guard> {
    let abort = abort_file(mounted.connection()?).ok()?;
    Guard::start(abort.as_fd()).ok()
}

/// The file that aborts the connection when it is written to. While it is open it belongs to this
/// connection, whichever gets the number later.
fn abort_file(connection: &str) -> Result<OwnedFd> {
    let connections = connections()?;
    let name = format!("{connection}/abort");
    openat(connections, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The root of fusectl: where only this process sees it, or, for an ordinary user, where the system
/// has mounted it.
fn connections() -> Result<OwnedFd> {
    if let Ok(root) = mount_fusectl() {
        return Ok(root);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let connections = openat(CWD, CONNECTIONS, flags, Mode::empty())?;
    match fstatfs(&connections)?.f_type == FUSECTL {
        true => Ok(connections),
        false => Err(Errno::NODEV),
    }
}

fn mount_fusectl() -> Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

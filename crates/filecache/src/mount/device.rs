//! The connection to the kernel: /dev/fuse and the mount it belongs to.
//!
//! fuser could make the mount too, but would take it down again at the end by its path, when
//! something else may be mounted there.

use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, open};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getgid, getuid};

use super::{MountError, TYPE};

pub(super) const PATH: &str = "/dev/fuse";
pub(super) const FUSERMOUNT: &str = "fusermount3";

/// What is to be mounted.
pub(super) struct Wanted<'a> {
    pub source: &'a Path,
    pub mountpoint: &'a Path,
    pub restrictions: StatVfsMountFlags,
    pub allow_other: bool,
    pub as_root: bool,
}

/// # Errors
/// Why not.
pub(super) fn mount(wanted: &Wanted<'_>) -> Result<OwnedFd, MountError> {
    if wanted.as_root { mount_as_root(wanted) } else { mount_by_fusermount(wanted) }
}

fn mount_as_root(wanted: &Wanted<'_>) -> Result<OwnedFd, MountError> {
    let device = open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::NoDevice(errno.into()))?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw()
    );
    let refused = |error| MountError::Refused(wanted.mountpoint.to_owned(), error);
    let options = CString::new(options).map_err(|error| refused(error.into()))?;
    let flags = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    ];
    let flags = flags
        .into_iter()
        .filter(|(restriction, _)| wanted.restrictions.contains(*restriction))
        .fold(MountFlags::empty(), |flags, (_, flag)| flags | flag);
    let kind = format!("fuse.{TYPE}");
    rustix::mount::mount(wanted.source, wanted.mountpoint, kind, flags, options.as_c_str())
        .map_err(|errno| refused(errno.into()))?;
    Ok(device)
}

/// fusermount3 mounts and sends the descriptor through a socket, which is its standard input here.
fn mount_by_fusermount(wanted: &Wanted<'_>) -> Result<OwnedFd, MountError> {
    if !Path::new(PATH).exists() {
        return Err(MountError::NoDevice(io::ErrorKind::NotFound.into()));
    }
    let failed =
        |error: io::Error| MountError::Fusermount(wanted.mountpoint.to_owned(), error.to_string());
    let mut options =
        format!("subtype={TYPE},default_permissions,fsname={}", escaped(wanted.source));
    if wanted.allow_other {
        options.push_str(",allow_other");
    }
    for (restriction, option) in [
        (StatVfsMountFlags::NOEXEC, ",noexec"),
        (StatVfsMountFlags::RDONLY, ",ro"),
        (StatVfsMountFlags::NOATIME, ",noatime"),
    ] {
        if wanted.restrictions.contains(restriction) {
            options.push_str(option);
        }
    }
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut fusermount = Command::new(FUSERMOUNT)
        .args(["-o", &options, "--"])
        .arg(wanted.mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoFusermount)?;
    let received = receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = fusermount.stderr.take() {
        // What it had to say is worth less than what it did.
        let _ = stderr.read_to_string(&mut said);
    }
    let status = fusermount.wait().map_err(failed)?;
    match received {
        Ok(Some(device)) if status.success() => Ok(device),
        Err(error) => Err(failed(error)),
        Ok(_) => {
            let said = said.trim().trim_start_matches("fusermount3: ");
            let said = match said {
                _ if said.contains("user_allow_other") => {
                    format!("{said} (or mount without --allow-other)")
                }
                _ if said.contains(PATH) => {
                    format!("{said}; `chmod 666 {PATH}` as root lets everybody mount")
                }
                "" => format!("it ended with {status}"),
                _ => said.to_owned(),
            };
            Err(MountError::Fusermount(wanted.mountpoint.to_owned(), said))
        }
    }
}

fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let mut device = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            device = descriptors.last();
        }
    }
    Ok(device)
}

/// As mount options have commas and backslashes in them.
fn escaped(source: &Path) -> String {
    let text = String::from_utf8_lossy(source.as_os_str().as_bytes());
    text.replace('\\', "\\\\").replace(',', "\\,")
}

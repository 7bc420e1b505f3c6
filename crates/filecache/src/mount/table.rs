//! What is mounted where, as /proc/self/mountinfo has it (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::TYPE;
use super::device::FUSERMOUNT;

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Major and minor, with a colon between.
    device: String,
    mountpoint: PathBuf,
    kind: String,
}

/// Is what is mounted there, topmost, one of ramfold's?
pub fn is_ours(mountpoint: &Path) -> bool {
    topmost(mountpoint).is_some_and(|entry| entry.kind == format!("fuse.{TYPE}"))
}

/// Unmounts: `lazily`, what is in use goes away for those who come later, and for the others when
/// they are done.
///
/// # Errors
/// `EBUSY` when it is in use; what umount(2) or fusermount3 say.
pub fn unmount(mountpoint: &Path, lazily: bool) -> io::Result<()> {
    let flags = match lazily {
        true => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        false => UnmountFlags::NOFOLLOW,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Err(Errno::PERM) => {}
        result => return Ok(result?),
    }
    let output = Command::new(FUSERMOUNT)
        .args(if lazily { ["-u", "-z"].as_slice() } else { &["-u"] })
        .arg("--")
        .arg(mountpoint)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match said.contains("busy") {
        true => Err(Errno::BUSY.into()),
        false => Err(io::Error::other(said)),
    }
}

/// A mount that was made here, whatever is at its place later.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// Where it was mounted.
    pub mountpoint: PathBuf,
    device: Option<String>,
}

impl Mounted {
    /// What is mounted there now.
    pub fn at(mountpoint: PathBuf) -> Mounted {
        let device = topmost(&mountpoint).map(|entry| entry.device);
        Mounted { mountpoint, device }
    }

    /// The number of the connection to the kernel, where fusectl has it: the minor number of the
    /// device, whose major number is 0.
    pub(super) fn connection(&self) -> Option<&str> {
        self.device.as_deref()?.strip_prefix("0:")
    }

    /// Unmounts it as [`unmount`] does, and nothing else: it may be unmounted already, and
    /// something else be there.
    ///
    /// # Errors
    /// As [`unmount`]; `EEXIST` when something is mounted over it.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        let here = entries().into_iter().filter(|entry| entry.mountpoint == self.mountpoint);
        let devices: Vec<_> = here.map(|entry| Some(entry.device)).collect();
        if devices.last() == Some(&self.device) {
            return unmount(&self.mountpoint, lazily);
        }
        match devices.contains(&self.device) {
            true => Err(Errno::EXIST.into()),
            false => Ok(()),
        }
    }
}

/// The path without symlinks in it, but for its last part, which may be dead.
pub(super) fn parents_canonical(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(path),
    }
}

/// Mountpoints below a directory.
pub(super) fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let is_below =
        |entry: &Entry| entry.mountpoint != directory && entry.mountpoint.starts_with(directory);
    entries().into_iter().filter(is_below).map(|entry| entry.mountpoint).collect()
}

/// Lets the kernel read further ahead, where it may be set.
pub(super) fn raise_read_ahead(mountpoint: &Path, kib: u32) {
    if let Some(Entry { device, .. }) = topmost(mountpoint) {
        let _ = fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kib.to_string());
    }
}

fn topmost(mountpoint: &Path) -> Option<Entry> {
    entries().into_iter().rfind(|entry| entry.mountpoint == mountpoint)
}

fn entries() -> Vec<Entry> {
    let Ok(text) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    text.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<Entry> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut words = line.split(|&byte| byte == b' ');
    let device = text(words.nth(2)?);
    let mountpoint = PathBuf::from(OsString::from_vec(unescaped(words.nth(1)?)));
    let kind = text(words.skip_while(|&word| word != b"-").nth(1)?);
    Some(Entry { device, mountpoint, kind })
}

/// Blanks, tabs, newlines and backslashes are written in octal.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line =
            b"36 35 0:53 / /mnt/a\\040b\\134c rw,noatime shared:1 master:2 - fuse.ramfold /x rw";
        let entry = entry(line).unwrap();
        assert_eq!(entry.device, "0:53");
        assert_eq!(entry.mountpoint.as_os_str().as_bytes(), b"/mnt/a b\\c");
        assert_eq!(entry.kind, "fuse.ramfold");
        assert_eq!(super::entry(b""), None);
    }

    #[test]
    fn the_root_is_mounted_and_not_by_us() {
        assert!(topmost(Path::new("/")).is_some());
        assert!(!is_ours(Path::new("/")));
    }
}

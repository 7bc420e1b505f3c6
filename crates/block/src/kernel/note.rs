//! Notes of what devices' data lies in, for the server that comes after one that was killed.
//!
//! They lie in `/run`, so that a reboot, after which no device is left, takes them away too.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Only root writes here, as only root makes devices.
const FOLDER: &str = "/run/ramfold-block";
/// The format of a note.
const FORMAT: u64 = 1;
/// Flags of a note.
const WRITE_THROUGH: u64 = 1;
const READ_ONLY: u64 = 2;

/// What the data of a device lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file or block device, without symbolic links.
    pub path: PathBuf,
    file: Identity,
    /// Bytes of the device.
    pub bytes: u64,
    /// Each write is there before it is answered.
    pub write_through: bool,
    /// Nothing is written.
    pub read_only: bool,
}

/// Tells a file or block device from all others since the machine was started, also from a later
/// one with the same inode or device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Identity {
    /// Of the file system that has the file or the device's node.
    file_system: u64,
    inode: u64,
    /// Nanoseconds; 0 where the file system does not say it.
    born: u64,
    /// Of a block device; otherwise 0.
    device: u64,
    /// The kernel counts disks: a loop device has another number with each file. 0 where it does
    /// not say it.
    disk: u64,
}

impl Backing {
    /// Looks at an open file or block device: its path may mean another by now.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(
        file: impl AsFd,
        bytes: u64,
        write_through: bool,
        read_only: bool,
    ) -> io::Result<Backing> {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let file = Identity::of(&file.metadata()?);
        Ok(Backing { path, file, bytes, write_through, read_only })
    }

    /// The numbers of a note, in their order there, after those of its head.
    fn numbers(&mut self) -> [&mut u64; 6] {
        let Identity { file_system, inode, born, device, disk } = &mut self.file;
        [&mut self.bytes, file_system, inode, born, device, disk]
    }

    /// Whether another server of this backing has all data that one had which was killed: then
    /// programs may go on with its device.
    pub fn outlives_its_server(&self) -> bool {
        self.write_through && !self.read_only
    }

    /// Whether both lie in the same file or block device.
    pub fn is_same_file(&self, other: &Backing) -> bool {
        self.file == other.file
    }

    /// Whether the file or block device still is at its path.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|there| Identity::of(&there) == self.file)
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { 0 };
        Identity {
            file_system: metadata.dev(),
            inode: metadata.ino(),
            born: born.map_or(0, |since| since.as_nanos() as u64),
            device,
            disk: disk_number(device).unwrap_or(0),
        }
    }
}

fn disk_number(device: u64) -> Option<u64> {
    if device == 0 {
        return None;
    }
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has that of its disk.
    let places = [folder.join("diskseq"), folder.join("../diskseq")];
    places.iter().find_map(|place| fs::read_to_string(place).ok()?.trim().parse().ok())
}

/// Notes in a folder.
pub(super) struct Notes(PathBuf);

impl Notes {
    pub(super) fn of_this_machine() -> Notes {
        Notes(PathBuf::from(FOLDER))
    }

    /// Notes what a device has, in place of an earlier device of this number.
    pub(super) fn write(&self, number: u32, mark: u64, backing: &Backing) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let flags = if backing.write_through { WRITE_THROUGH } else { 0 }
            | if backing.read_only { READ_ONLY } else { 0 };
        let mut backing = backing.clone();
        let numbers = backing.numbers().map(|number| *number);
        let all = [FORMAT, mark, flags].into_iter().chain(numbers);
        let words: Vec<String> = all.map(|number| number.to_string()).collect();
        let mut text = words.join(" ").into_bytes();
        text.push(b'\n');
        text.extend(backing.path.as_os_str().as_bytes());
        let new = self.0.join(format!("new-{}", std::process::id()));
        fs::write(&new, &text)?;
        fs::rename(&new, self.path(number))
    }

    /// What a device with this mark has, if that was noted.
    pub(super) fn read(&self, number: u32, mark: u64) -> Option<Backing> {
        let text = fs::read(self.path(number)).ok()?;
        let end = text.iter().position(|&byte| byte == b'\n')?;
        let numbers: Vec<u64> = std::str::from_utf8(&text[..end])
            .ok()?
            .split(' ')
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?;
        let [format, noted, flags, rest @ ..] = numbers.as_slice() else { return None };
        let mut backing = Backing {
            path: PathBuf::from(OsString::from_vec(text[end + 1..].to_vec())),
            file: Identity::default(),
            bytes: 0,
            write_through: flags & WRITE_THROUGH != 0,
            read_only: flags & READ_ONLY != 0,
        };
        let places = backing.numbers();
        // The device that it is about was another of this number, else.
        if *format != FORMAT || *noted != mark || rest.len() != places.len() {
            return None;
        }
        for (place, number) in places.into_iter().zip(rest) {
            *place = *number;
        }
        Some(backing)
    }

    /// Forgets a device with this mark that is gone. A note of another that has its number by now
    /// stays.
    pub(super) fn remove(&self, number: u32, mark: u64) {
        if self.read(number, mark).is_some() {
            // Were it still there, its mark would be another device's.
            let _ = fs::remove_file(self.path(number));
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.0.join(format!("ublkb{number}"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn backing(path: &Path, write_through: bool, read_only: bool) -> Backing {
        Backing::of(File::open(path).unwrap(), 4096, write_through, read_only).unwrap()
    }

    #[test]
    fn a_note_says_what_a_device_had_and_no_other_of_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes(folder.path().join("notes"));
        let path = folder.path().join("a\nb c");
        File::create(&path).unwrap();
        assert_eq!(notes.read(3, 77), None);
        for (write_through, read_only) in [(false, true), (true, false)] {
            let backing = backing(&path, write_through, read_only);
            notes.write(3, 77, &backing).unwrap();
            assert_eq!(notes.read(3, 77), Some(backing));
        }
        assert_eq!(notes.read(3, 78), None, "another device's mark");
        assert_eq!(notes.read(4, 77), None);
        notes.remove(3, 78);
        assert!(notes.read(3, 77).is_some(), "a later device has this number");
        notes.remove(3, 77);
        assert_eq!(notes.read(3, 77), None);
    }

    #[test]
    fn a_damaged_note_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes(folder.path().to_owned());
        for text in ["", "1 77", "1 77\n/x", "1 77 1 x 1 1 1 1 1\n/x", "2 77 1 1 1 1 1 1 1\n/x"] {
            fs::write(notes.path(0), text).unwrap();
            assert_eq!(notes.read(0, 77), None, "{text:?}");
        }
        for (numbers, is_right) in [(8, false), (9, true), (10, false)] {
            fs::write(notes.path(0), format!("1 77{}\n/x", " 1".repeat(numbers - 2))).unwrap();
            assert_eq!(notes.read(0, 77).is_some(), is_right, "{numbers} numbers");
        }
    }

    #[test]
    fn a_file_is_the_same_until_another_is_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "data").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let first = backing(&path, true, false);
        fs::write(&path, "more data").unwrap();
        let linked = backing(&link, false, false);
        assert!(first.is_same_file(&linked) && first.is_there());
        assert_eq!(linked.path, first.path);
        // It keeps the first file's inode from being used again.
        let open = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!first.is_there());
        fs::write(&path, "data").unwrap();
        assert!(!first.is_there());
        assert!(!first.is_same_file(&backing(&path, true, false)));
        // What is open counts, and not what its path means now.
        let opened = Backing::of(&open, 4096, true, false).unwrap();
        assert!(opened.is_same_file(&first) && !opened.is_there());
    }

    #[test]
    fn only_what_is_written_through_outlives_its_server() {
        let outlives = |write_through, read_only| {
            backing(Path::new("/"), write_through, read_only).outlives_its_server()
        };
        assert!(outlives(true, false));
        assert!(!outlives(false, false) && !outlives(true, true));
    }
}

//! The spill file: for what compressed pages there is no room for.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ramfold_session::{OwnedSession, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use ramfold_sys::Errno;
use ramfold_sys::file::is_in_ram;

use crate::Size;

/// Of what is free on the disk, what the file may take where nothing else is said.
const USUAL_SHARE: f64 = 0.5;
/// Two segments are in memory while they are written: these are a small part of a large cap, and no
/// more than that of a small one.
const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES_SMALL: u64 = 256 << 10;
const SMALL_CAP_BYTES: u64 = 64 << 20;
/// One for each of two that are written, one that is spare, and one to be read.
const SEGMENTS_MIN: u64 = 4;

/// Why there can be no spill file as it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// There is no such folder, or it cannot be looked at.
    #[error("cannot spill to {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What statfs(2) says.
        source: io::Error,
    },
    /// The folder is in RAM, which would gain nothing.
    #[error("cannot spill to {}: it is in RAM (tmpfs); name a folder on a disk", folder.display())]
    InRam {
        /// The folder.
        folder: PathBuf,
    },
    /// The file would have too few segments.
    #[error(
        "a spill file of {} KiB is too small: {} KiB is the least{}",
        bytes >> 10,
        least_bytes >> 10,
        match .free_bytes {
            Some(free) => format!(" ({} KiB are free in {})", free >> 10, folder.display()),
            None => String::new(),
        }
    )]
    TooSmall {
        /// The folder.
        folder: PathBuf,
        /// How large it would be.
        bytes: u64,
        /// How large it must be.
        least_bytes: u64,
        /// What is free there, where that decides.
        free_bytes: Option<u64>,
    },
    /// There can be no file in the folder.
    #[error("cannot make a spill file in {}", folder.display())]
    File {
        /// The folder.
        folder: PathBuf,
        /// What open(2) says.
        source: io::Error,
    },
    /// It is unknown which file it is.
    #[error("asking about the spill file")]
    Identity(#[source] Errno),
    /// There is no key to encrypt the file with.
    #[error("drawing a key for the spill file")]
    Key(#[source] Errno),
}

/// Makes the file in a folder and tells the session of it. The file is there as long as somebody
/// has it open.
///
/// # Errors
/// When there can be no such file, or it would be no use.
pub(crate) fn set_up(
    folder: &Path,
    size: Option<Size>,
    session: &OwnedSession,
    cap: u64,
) -> Result<File, SpillError> {
    let disk = rustix::fs::statfs(folder)
        .map_err(|errno| SpillError::Folder { folder: folder.to_owned(), source: errno.into() })?;
    if is_in_ram(disk.f_type as u64) {
        return Err(SpillError::InRam { folder: folder.to_owned() });
    }
    let free = disk.f_bavail.saturating_mul(disk.f_bsize as u64);
    let bytes = size.unwrap_or(Size::Fraction(USUAL_SHARE)).bytes(free);
    let segment_bytes = segment_bytes(cap, bytes);
    let segments = (bytes / segment_bytes).min(SEGMENTS_MAX as u64);
    if segments < SEGMENTS_MIN {
        return Err(SpillError::TooSmall {
            folder: folder.to_owned(),
            bytes,
            least_bytes: SEGMENTS_MIN * segment_bytes,
            free_bytes: size.is_none().then_some(free),
        });
    }
    let file = unnamed_file(folder)
        .map_err(|source| SpillError::File { folder: folder.to_owned(), source })?;
    let area = &session.spill;
    area.segment_bytes.store(segment_bytes, Ordering::Relaxed);
    area.file.lend(&file).map_err(SpillError::Identity)?;
    session.draw_spill_key().map_err(SpillError::Key)?;
    area.segment_count.store(segments, Ordering::Release);
    Ok(file)
}

/// A file without a name that only this user can open.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(folder)?;
    // It can be opened by way of a process that has it, by who may look into that.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Segments so long that a file of this size has not too many of them.
fn segment_bytes(cap: u64, size: u64) -> u64 {
    let mut bytes = if cap < SMALL_CAP_BYTES { SEGMENT_BYTES_SMALL } else { SEGMENT_BYTES };
    while bytes < SEGMENT_BYTES_MAX as u64 && size / bytes > SEGMENTS_MAX as u64 {
        bytes *= 2;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use ramfold_codec::Choice;

    use super::*;

    #[test]
    fn segments_fit_the_file_and_the_cap() {
        assert_eq!(segment_bytes(32 << 20, 1 << 30), 256 << 10);
        assert_eq!(segment_bytes(1 << 30, 1 << 30), 1 << 20);
        assert_eq!(segment_bytes(1 << 30, 30 << 30), 2 << 20);
        assert_eq!(segment_bytes(1 << 30, 1 << 50), 4 << 20);
    }

    #[test]
    fn the_session_knows_the_file() {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let set_up =
            |folder: &Path, bytes| set_up(folder, Some(Size::Bytes(bytes)), &session, 1 << 30);
        let file = set_up(folder.path(), 10 << 20).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        let area = &session.spill;
        assert_eq!(area.segment_count.load(Ordering::Relaxed), 10);
        assert!(area.key.iter().all(|word| word.load(Ordering::Relaxed) != 0));
        let error = set_up(Path::new("/nowhere/at/all"), 10 << 20).unwrap_err();
        assert_eq!(error.to_string(), "cannot spill to /nowhere/at/all");
        assert!(matches!(
            error,
            SpillError::Folder { source, .. } if source.kind() == io::ErrorKind::NotFound
        ));
        let error = set_up(folder.path(), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("too small"), "{error}");
        let error = set_up(Path::new("/dev/shm"), 10 << 20).unwrap_err();
        assert!(error.to_string().contains("it is in RAM"), "{error}");
    }
}

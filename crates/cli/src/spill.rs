//! `--spill`: a file for what compressed pages there is no room for.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Context;
use ramfold_session::{OwnedSession, SEGMENT_BYTES_MAX, SEGMENTS_MAX};

use crate::size::{Size, SizedPath};

/// Of what is free on the disk, what the file may take where nothing else is said.
const USUAL_SHARE: f64 = 0.5;
/// Of `--memory`, what compressed pages may take before the oldest of them go to the file. A page that
/// comes back from the pool takes a tenth of the time that one from a disk takes: half of the memory
/// for the pool and no more made scans of twice the memory 2 to 3 times slower.
const POOL_SHARE: f64 = 0.7;
/// Two segments are in memory while they are written: these are a small part of a large cap, and no
/// more than that of a small one.
const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES_SMALL: u64 = 256 << 10;
const SMALL_CAP_BYTES: u64 = 64 << 20;
/// One for each of two that are written, one that is spare, and one to be read.
const SEGMENTS_MIN: u64 = 4;

/// Makes the file and tells the session of it. It is there as long as somebody has it open.
///
/// # Errors
/// When there can be no such file, or it would be no use.
pub fn set_up(
    place: &SizedPath,
    session: &OwnedSession,
    cap: u64,
    pool_bytes: Option<u64>,
) -> anyhow::Result<File> {
    let folder = &place.path;
    let disk = rustix::fs::statfs(folder)
        .with_context(|| format!("cannot spill to {}", folder.display()))?;
    if is_in_ram(disk.f_type as u64) {
        anyhow::bail!(
            "cannot spill to {}: it is in RAM (tmpfs); --spill wants a folder on a disk",
            folder.display()
        );
    }
    let free = disk.f_bavail.saturating_mul(disk.f_bsize as u64);
    let size = place.size.unwrap_or(Size::Fraction(USUAL_SHARE)).bytes(free);
    let segment_bytes = segment_bytes(cap, size);
    let segments = (size / segment_bytes).min(SEGMENTS_MAX as u64);
    if segments < SEGMENTS_MIN {
        anyhow::bail!(
            "a spill file of {} KiB is too small: {} KiB is the least{}",
            size >> 10,
            (SEGMENTS_MIN * segment_bytes) >> 10,
            if place.size.is_none() {
                format!(" ({} KiB are free in {})", free >> 10, folder.display())
            } else {
                String::new()
            }
        );
    }
    let file = unnamed_file(folder)?;
    let area = &session.spill;
    area.segment_bytes.store(segment_bytes, Ordering::Relaxed);
    area.pool_bytes
        .store(pool_bytes.unwrap_or((cap as f64 * POOL_SHARE) as u64), Ordering::Relaxed);
    area.file.lend(&file).context("asking about the spill file")?;
    session.draw_spill_key().context("drawing a key for the spill file")?;
    area.segment_count.store(segments, Ordering::Release);
    Ok(file)
}

/// A file without a name that only this user can open.
fn unnamed_file(folder: &Path) -> anyhow::Result<File> {
    tempfile::tempfile_in(folder)
        .and_then(|file| {
            // It can be opened by way of a process that has it, by who may look into that.
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        })
        .with_context(|| format!("cannot make a spill file in {}", folder.display()))
}

/// Segments so long that a file of this size has not too many of them.
fn segment_bytes(cap: u64, size: u64) -> u64 {
    let mut bytes = if cap < SMALL_CAP_BYTES { SEGMENT_BYTES_SMALL } else { SEGMENT_BYTES };
    while bytes < SEGMENT_BYTES_MAX as u64 && size / bytes > SEGMENTS_MAX as u64 {
        bytes *= 2;
    }
    bytes
}

/// By the number of a file system, as statfs(2) tells it.
fn is_in_ram(number: u64) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // Of 32 bits where they are signed.
    matches!(number & 0xffff_ffff, TMPFS | RAMFS)
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
        let set_up = |text: &str| set_up(&text.parse().unwrap(), &session, 1 << 30, None);
        let problem = |text: &str| format!("{:#}", set_up(text).unwrap_err());
        let file = set_up(&format!("{}:10M", folder.path().display())).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        let area = &session.spill;
        assert_eq!(area.segment_count.load(Ordering::Relaxed), 10);
        assert!((512 << 20..1 << 30).contains(&area.pool_bytes.load(Ordering::Relaxed)));
        assert!(area.key.iter().all(|word| word.load(Ordering::Relaxed) != 0));
        assert_eq!(
            problem("/nowhere/at/all"),
            "cannot spill to /nowhere/at/all: No such file or directory (os error 2)"
        );
        let error = problem(&format!("{}:1M", folder.path().display()));
        assert!(error.contains("too small"), "{error}");
        assert!(problem("/dev/shm").contains("it is in RAM"));
    }
}

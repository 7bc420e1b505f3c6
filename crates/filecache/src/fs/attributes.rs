//! Attributes of files, as SOURCE has them and as the kernel wants them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo, TimeOrNow};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxTimestamp, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, chmodat, chownat, ftruncate, utimensat,
};
use rustix::io::Errno;

use super::FileSystem;
use super::credentials::{About, Accessed, Caller, SET_GROUP_ID, SetId};
use super::inode::Inode;
use super::source_mounts::{Descriptors, look_at};
use crate::file::Changed;

/// What a setattr request asks for.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub mode: Option<u32>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<TimeOrNow>,
    pub modified: Option<TimeOrNow>,
}

impl Wanted {
    /// The kernel leaves set-id bits to us (FUSE_HANDLE_KILLPRIV_V2), and wanted nothing else.
    fn is_nothing(&self) -> bool {
        self.mode.is_none()
            && self.user.is_none()
            && self.group.is_none()
            && self.size.is_none()
            && self.accessed.is_none()
            && self.modified.is_none()
    }
}

impl FileSystem {
    /// # Errors
    /// What statx(2) says.
    pub(crate) fn attributes(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        let inode = self.inodes.get(number)?;
        let stat = match handle.and_then(|handle| self.files.get(handle).ok()) {
            Some(file) => look_at(file.source())?,
            None => look_at(inode.find()?.as_fd())?,
        };
        shown(&inode, &stat)
    }

    /// # Errors
    /// What SOURCE says to the first of the changes that fails.
    pub(crate) fn set_attributes(
        &self,
        caller: Caller,
        number: INodeNo,
        handle: Option<FileHandle>,
        wanted: &Wanted,
    ) -> io::Result<FileAttr> {
        let inode = self.inodes.get(number)?;
        let found = inode.find()?;
        let file = found.as_fd();
        let changed = if wanted.size.is_some() { Changed::All } else { Changed::Attributes };
        let cached = inode.cached_file(&self.cache);
        let result = cached.change(Some(file), changed, || {
            // Others may have changed it while this waited.
            let stat = &look_at(file)?;
            let accessed = Accessed::new(stat, file);
            if wanted.is_nothing() {
                self.clear_set_id_bits(caller, file, stat)?;
            }
            if let Some(mode) = wanted.mode {
                let set_id = if mode & SET_GROUP_ID == 0 { SetId::Unchanged } else { SetId::Set };
                let about = About { set_id, ..About::file(&accessed) };
                let (path, mode) = (Descriptors::path(file), Mode::from_raw_mode(mode & 0o7777));
                let change = || Ok(chmodat(CWD, &path, mode, no_flags())?);
                self.powers.as_caller(caller, &about, change)?;
            }
            if wanted.user.is_some() || wanted.group.is_some() {
                let user = wanted.user.map(Uid::from_raw);
                let group = wanted.group.map(Gid::from_raw);
                let about = About { set_id: SetId::Written.of(stat), ..About::file(&accessed) };
                self.powers.as_caller(caller, &about, || {
                    Ok(chownat(file, "", user, group, empty_path())?)
                })?;
            }
            if let Some(size) = wanted.size {
                self.set_size(caller, &inode, handle, size, stat)?;
            }
            if wanted.accessed.is_some() || wanted.modified.is_some() {
                self.set_times(caller, file, stat, wanted)?;
            }
            Ok(())
        });
        self.correct_kernel(&result, &[number]);
        result?;
        shown(&inode, &look_at(file)?)
    }

    /// Set-id bits alone are to go, because of a chown(2) that leaves owner and group, or of a
    /// write that follows: of whom does not matter then, and SOURCE clears them with it.
    fn clear_set_id_bits(
        &self,
        caller: Caller,
        file: BorrowedFd<'_>,
        stat: &Statx,
    ) -> io::Result<()> {
        let accessed = Accessed::new(stat, file);
        let about = About { set_id: SetId::Written.of(stat), ..About::file(&accessed) };
        let clear = || Ok(chownat(file, "", None, None, empty_path())?);
        match self.powers.as_caller(caller, &about, clear) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => Ok(()),
            result => result,
        }
    }

    fn set_size(
        &self,
        caller: Caller,
        inode: &Inode,
        handle: Option<FileHandle>,
        size: u64,
        stat: &Statx,
    ) -> io::Result<()> {
        let act = || self.powers.act_as(caller, SetId::Written.of(stat), Some(stat));
        match handle.and_then(|handle| self.files.get(handle).ok()) {
            Some(opened) => {
                let _acting = act()?;
                ftruncate(opened.source(), size)?;
            }
            None => {
                let opened = self.open_source(caller, inode, OFlags::WRONLY)?;
                let _acting = act()?;
                ftruncate(opened, size)?;
            }
        }
        Ok(())
    }

    fn set_times(
        &self,
        caller: Caller,
        file: BorrowedFd<'_>,
        stat: &Statx,
        wanted: &Wanted,
    ) -> io::Result<()> {
        let times = Timestamps {
            last_access: time_to_set(wanted.accessed),
            last_modification: time_to_set(wanted.modified),
        };
        let set = || Ok(utimensat(file, "", &times, empty_path())?);
        let accessed = Accessed::new(stat, file);
        match wanted.size.is_some() {
            // Whoever cuts a file off changes one, open or not.
            true => set(),
            // An owner may, and to now whoever may write.
            false => self.powers.as_caller(caller, &About::file(&accessed), set),
        }
    }
}

/// As the kernel is shown it. The number is SOURCE's wherever it can be, and the root's always.
///
/// # Errors
/// `EIO` when it is of no known type.
pub(super) fn shown(inode: &Inode, stat: &Statx) -> io::Result<FileAttr> {
    inode.note_told(stat);
    let number = if inode.number == INodeNo::ROOT { INodeNo(stat.stx_ino) } else { inode.number };
    Ok(FileAttr {
        ino: number,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        crtime: time(&stat.stx_btime),
        kind: file_type(stat)?,
        perm: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
        flags: 0,
    })
}

/// # Errors
/// `EIO` when it is none that this program knows.
pub(super) fn file_type(stat: &Statx) -> io::Result<FileType> {
    kind(rustix::fs::FileType::from_raw_mode(stat.stx_mode.into())).ok_or(Errno::IO.into())
}

pub(super) fn kind(file_type: rustix::fs::FileType) -> Option<FileType> {
    use rustix::fs::FileType as SourceType;
    Some(match file_type {
        SourceType::RegularFile => FileType::RegularFile,
        SourceType::Directory => FileType::Directory,
        SourceType::Symlink => FileType::Symlink,
        SourceType::Fifo => FileType::NamedPipe,
        SourceType::Socket => FileType::Socket,
        SourceType::CharacterDevice => FileType::CharDevice,
        SourceType::BlockDevice => FileType::BlockDevice,
        SourceType::Unknown => return None,
    })
}

/// The kernel's own encoding (new_encode_dev), which mknod(2) takes too.
fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn time(stamp: &StatxTimestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(stamp.tv_nsec.into());
    let whole = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let seconds = match stamp.tv_sec {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    };
    seconds.and_then(|time| time.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

fn time_to_set(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec {
                tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: after.subsec_nanos().into(),
            },
            // fuser 0.18 takes the nanoseconds off where they are to be added: seconds and
            // nanoseconds are as they came.
            Err(before) => Timespec {
                tv_sec: 0i64.wrapping_sub_unsigned(before.duration().as_secs()),
                tv_nsec: before.duration().subsec_nanos().into(),
            },
        },
    }
}

fn no_flags() -> AtFlags {
    AtFlags::empty()
}

fn empty_path() -> AtFlags {
    AtFlags::EMPTY_PATH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_come_back_as_they_were() {
        // As fuser makes them of -2 seconds and 800,000,000 nanoseconds.
        let from_fuser = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let set = time_to_set(Some(TimeOrNow::SpecificTime(from_fuser)));
        assert_eq!((set.tv_sec, set.tv_nsec), (-2, 800_000_000));
        let farthest = UNIX_EPOCH - Duration::from_secs(1 << 63);
        let set = time_to_set(Some(TimeOrNow::SpecificTime(farthest)));
        assert_eq!((set.tv_sec, set.tv_nsec), (i64::MIN, 0));
    }

    #[test]
    fn a_device_number_is_the_kernels() {
        assert_eq!(device_number(8, 1), 0x801);
        assert_eq!(device_number(259, 0x12345), 0x1231_0345);
    }
}

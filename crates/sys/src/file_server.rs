//! What a file system in user space needs of Linux on behalf of others: files by handle, and acting
//! as another user for the length of one system call.

use core::ffi::c_int;

use rustix::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::{Errno, raw};

/// Bytes in the longest handle there is (MAX_HANDLE_SZ).
const HANDLE_MAX: usize = 128;
const AT_EMPTY_PATH: usize = 0x1000;

/// The kernel's `struct file_handle`.
#[repr(C)]
struct RawHandle {
    length: u32,
    kind: c_int,
    bytes: [u8; HANDLE_MAX],
}

/// A name of a file that stays the same when the file is renamed, costs no descriptor, and is never
/// given to another file (name_to_handle_at(2)).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle(Form);

/// Bytes of a handle that is held without memory of its own: ext4, XFS, tmpfs and F2FS have 8 to
/// 12, Btrfs 20.
const SHORT_MAX: usize = 21;
/// The length of a short handle is kept in a byte.
const _: () = assert!(SHORT_MAX <= u8::MAX as usize && SHORT_MAX <= HANDLE_MAX);

/// A handle always has the same form. What a short one does not use is zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    Short { kind: u8, length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<(c_int, Box<[u8]>)>),
}

const _: () = assert!(size_of::<FileHandle>() == 24, "a file server holds millions of them");

impl FileHandle {
    /// The handle of an open file; a descriptor of O_PATH will do.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system has no handles that can be opened.
    pub fn of(file: impl AsFd) -> Result<FileHandle, Errno> {
        let mut handle = RawHandle { length: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
        let mut mount_id: c_int = 0;
        // SAFETY: an empty name that ends with a zero, a handle with as many bytes of room as it
        // says, and a number, all of them alive during the call.
        raw::check(unsafe {
            raw::syscall5(
                raw::nr::NAME_TO_HANDLE_AT,
                file.as_fd().as_raw_fd() as usize,
                c"".as_ptr() as usize,
                &raw mut handle as usize,
                &raw mut mount_id as usize,
                AT_EMPTY_PATH,
            )
        })?;
        let bytes = handle.bytes.get(..handle.length as usize).ok_or(Errno::OVERFLOW)?;
        Ok(FileHandle::new(handle.kind, bytes))
    }

    fn new(kind: c_int, bytes: &[u8]) -> FileHandle {
        FileHandle(match u8::try_from(kind) {
            Ok(kind) if bytes.len() <= SHORT_MAX => {
                let mut padded = [0; SHORT_MAX];
                padded[..bytes.len()].copy_from_slice(bytes);
                Form::Short { kind, length: bytes.len() as u8, bytes: padded }
            }
            _ => Form::Long(Box::new((kind, bytes.into()))),
        })
    }

    fn parts(&self) -> (c_int, &[u8]) {
        match &self.0 {
            Form::Short { kind, length, bytes } => {
                (c_int::from(*kind), &bytes[..usize::from(*length)])
            }
            Form::Long(long) => (long.0, &long.1),
        }
    }

    /// Bytes of the heap that the handle takes.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Short { .. } => 0,
            Form::Long(long) => size_of_val(&**long) + long.1.len(),
        }
    }

    /// Opens the file. `mount` is any open file of the same mount, but not one of O_PATH. It needs
    /// CAP_DAC_READ_SEARCH.
    ///
    /// # Errors
    /// `ESTALE` when the file does not exist any more; else what open_by_handle_at(2) says.
    pub fn open(&self, mount: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (kind, bytes) = self.parts();
        let mut handle = RawHandle { length: bytes.len() as u32, kind, bytes: [0; HANDLE_MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: a handle with as many bytes as it says, alive during the call.
        let fd = raw::check(unsafe {
            raw::syscall5(
                raw::nr::OPEN_BY_HANDLE_AT,
                mount.as_fd().as_raw_fd() as usize,
                &raw mut handle as usize,
                (flags | OFlags::CLOEXEC).bits() as usize,
                0,
                0,
            )
        })?;
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// Makes the calling thread act on files as this user (setfsuid(2)). A thread of root loses the
/// capabilities for files by that, and has them again when it returns to root.
///
/// # Errors
/// `EPERM` when the thread may not; the kernel itself does not report it.
pub fn set_file_user(user: u32) -> Result<(), Errno> {
    set_and_check(raw::nr::SETFSUID, user)
}

/// Makes the calling thread act on files as a member of this group (setfsgid(2)).
///
/// # Errors
/// `EPERM` when the thread may not; the kernel itself does not report it.
pub fn set_file_group(group: u32) -> Result<(), Errno> {
    set_and_check(raw::nr::SETFSGID, group)
}

fn set_and_check(call: usize, id: u32) -> Result<(), Errno> {
    // The answer is the id before the call. So a second call, with an id that is never valid, tells
    // whether the first has worked.
    // SAFETY: takes no pointers.
    unsafe { raw::syscall2(call, id as usize, 0) };
    // SAFETY: takes no pointers.
    let now = unsafe { raw::syscall2(call, u32::MAX as usize, 0) };
    if now as u32 == id { Ok(()) } else { Err(Errno::PERM) }
}

/// Gives the calling thread a umask, a root and a working directory of its own: changes that it
/// makes from now on do not affect other threads.
///
/// # Errors
/// What unshare(2) says.
pub fn unshare_umask() -> Result<(), Errno> {
    // SAFETY: no memory and no descriptor is unshared; a thread that changes its working directory
    // from now on changes its own alone, which is what the caller asks for.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// What FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR read and write (`struct fsxattr`): a file's flags,
/// the size of its extents and its project.
pub type FileFlags = [u8; 28];

const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

const _: () = {
    // The size of the structure is part of the numbers.
    const SIZE_MASK: u32 = (1 << 14) - 1;
    assert!(FS_IOC_FSGETXATTR >> 16 & SIZE_MASK == size_of::<FileFlags>() as u32);
    assert!(FS_IOC_FSSETXATTR >> 16 & SIZE_MASK == size_of::<FileFlags>() as u32);
};

/// Reads the flags of a file.
///
/// # Errors
/// `ENOTTY` where the file system has none; else what the file system says.
pub fn file_flags(file: impl AsFd) -> Result<FileFlags, Errno> {
    let mut flags = FileFlags::default();
    // SAFETY: the call writes a structure of this size.
    unsafe { raw::ioctl(file.as_fd(), FS_IOC_FSGETXATTR, &raw mut flags) }?;
    Ok(flags)
}

/// Sets the flags of a file.
///
/// # Errors
/// `ENOTTY` where the file system has none; else what the file system says.
pub fn set_file_flags(file: impl AsFd, mut flags: FileFlags) -> Result<(), Errno> {
    // SAFETY: the call reads a structure of this size.
    unsafe { raw::ioctl(file.as_fd(), FS_IOC_FSSETXATTR, &raw mut flags) }.map(drop)
}

/// Whether any process has a file open or mapped for writing: no lease for reading is granted then
/// (F_SETLEASE in fcntl(2)). `None` where the file system has no leases, or grants none to this
/// process. This process must not have the file open for writing, and the descriptor must not be of
/// O_PATH.
pub fn is_open_for_writing(file: impl AsFd) -> Option<bool> {
    const F_SETSIG: usize = 10;
    const F_SETLEASE: usize = 1024;
    const F_RDLCK: usize = 0;
    const F_UNLCK: usize = 2;
    /// Sent when another process opens the file meanwhile; ignored by default.
    const SIGURG: usize = 23;
    let file = file.as_fd().as_raw_fd() as usize;
    let control = |command: usize, argument: usize| {
        // SAFETY: takes no pointers.
        raw::check(unsafe { raw::syscall5(raw::nr::FCNTL, file, command, argument, 0, 0) })
    };
    control(F_SETSIG, SIGURG).ok()?;
    match control(F_SETLEASE, F_RDLCK) {
        Err(Errno::AGAIN) => Some(true),
        Err(_) => None,
        Ok(_) => {
            // A lease that was just granted can be given back.
            control(F_SETLEASE, F_UNLCK).ok()?;
            Some(false)
        }
    }
}

/// Pages of a file in the page cache that are not written to its disk yet (cachestat(2), Linux
/// 6.5).
///
/// # Errors
/// `ENOSYS` on older kernels; `EOPNOTSUPP` for what has no page cache.
pub fn unwritten_pages(file: impl AsFd) -> Result<u64, Errno> {
    let [_, dirty, under_writeback, ..] = cache_counts(file)?;
    Ok(dirty + under_writeback)
}

/// Pages of a file in the page cache (cachestat(2), Linux 6.5).
///
/// # Errors
/// As [`unwritten_pages`]; `EPERM` for a file that the caller could not write to.
pub fn cached_pages(file: impl AsFd) -> Result<u64, Errno> {
    cache_counts(file).map(|[cached, ..]| cached)
}

fn cache_counts(file: impl AsFd) -> Result<[u64; 5], Errno> {
    // The kernel's `struct cachestat_range`, of all of the file, and its `struct cachestat`:
    // cached, dirty, under writeback, evicted, recently evicted.
    let all = [0u64; 2];
    let mut counts = [0u64; 5];
    // SAFETY: both are of the size that the call reads and writes, and alive during it.
    raw::check(unsafe {
        raw::syscall5(
            raw::nr::CACHESTAT,
            file.as_fd().as_raw_fd() as usize,
            all.as_ptr() as usize,
            counts.as_mut_ptr() as usize,
            0,
            0,
        )
    })?;
    Ok(counts)
}

/// Closes a descriptor and reports the file system's error, as of the last write to a network file
/// system.
///
/// # Errors
/// What close(2) says. The descriptor is closed in any case.
pub fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is owned, and nobody uses it after this.
    raw::check(unsafe { raw::syscall2(raw::nr::CLOSE, fd.into_raw_fd() as usize, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_handle_of_any_length_is_kept_as_it_is() {
        for length in [0, 1, 8, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, HANDLE_MAX] {
            for kind in [0, 1, 255, 256, -1] {
                let bytes: Vec<u8> = (1..=length as u8).collect();
                let handle = FileHandle::new(kind, &bytes);
                assert_eq!(handle.parts(), (kind, &*bytes));
                assert_eq!(handle, FileHandle::new(kind, &bytes));
                assert_ne!(handle, FileHandle::new(kind, &[&*bytes, &[0]].concat()));
                assert_ne!(handle, FileHandle::new(kind + 1, &bytes));
            }
        }
    }

    #[test]
    fn a_file_is_found_by_its_handle_under_another_name() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("one");
        std::fs::write(&path, "text").unwrap();
        let Ok(handle) = FileHandle::of(std::fs::File::open(&path).unwrap()) else {
            eprintln!("SKIPPED: the file system of /var/tmp has no handles");
            return;
        };
        std::fs::rename(&path, folder.path().join("two")).unwrap();
        let mount = std::fs::File::open(folder.path()).unwrap();
        match handle.open(&mount, OFlags::RDONLY) {
            Ok(fd) => {
                let mut text = String::new();
                std::fs::File::from(fd).read_to_string(&mut text).unwrap();
                assert_eq!(text, "text");
                assert!(folder.path().join("two").exists());
                std::fs::remove_file(folder.path().join("two")).unwrap();
                assert_eq!(handle.open(&mount, OFlags::RDONLY).unwrap_err(), Errno::STALE);
            }
            Err(Errno::PERM) => eprintln!("SKIPPED: opening by handle needs CAP_DAC_READ_SEARCH"),
            Err(errno) => panic!("{errno}"),
        }
    }

    #[test]
    fn who_writes_a_file_is_noticed() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let Some(false) = is_open_for_writing(&file) else {
            return eprintln!("SKIPPED: the file system of /var/tmp has no leases");
        };
        let mut writer = std::fs::File::options().write(true).open(&path).unwrap();
        assert_eq!(is_open_for_writing(&file), Some(true));
        std::io::Write::write_all(&mut writer, b"more text").unwrap();
        if let Ok(pages) = unwritten_pages(&file) {
            assert_eq!(pages, 1);
            writer.sync_all().unwrap();
            assert_eq!((unwritten_pages(&file), cached_pages(&file)), (Ok(0), Ok(1)));
        }
        drop(writer);
        // A child that another test has forked meanwhile has a copy of it for a moment.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_open_for_writing(&file) == Some(true) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        // A lease is not kept.
        assert_eq!(is_open_for_writing(&file), Some(false));
        std::fs::File::options().write(true).open(&path).unwrap();
    }

    #[test]
    fn a_thread_makes_files_as_somebody_else() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let own = std::fs::metadata(folder.path()).unwrap().uid();
        let path = folder.path().join("file");
        std::fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        )
        .unwrap();
        std::thread::spawn(move || {
            if set_file_user(12345).is_err() {
                assert_ne!(own, 0, "root may");
                return;
            }
            set_file_group(23456).unwrap();
            unshare_umask().unwrap();
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
            std::fs::write(&path, "").unwrap();
            set_file_user(own).unwrap();
            let data = std::fs::metadata(&path).unwrap();
            assert_eq!((data.uid(), data.gid(), data.mode() & 0o777), (12345, 23456, 0o600));
        })
        .join()
        .unwrap();
    }
}

//! Making the mount, serving it, and ending it.

mod abort;
mod device;
mod prune;
mod table;

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use ramfold_sys::guard::Guard;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, open};
use rustix::io::Errno;
use thiserror::Error;

use crate::file::{self, AccessNotes, FileCache, FileCacheError, Kernel, KernelBounds, View};
use crate::fs::{FileSystem, Forgetting, Powers, Prober, RESTRICTIONS, Server, Watcher, watch};

pub use table::{Mounted, is_ours, unmount};

/// What `/proc/mounts` calls it, behind `fuse.`.
const TYPE: &str = "ramfold";

/// KiB that the kernel reads ahead of each reader: enough for some requests of 1 MiB on their way
/// at a time, but in little memory no more than some readers together can have without losing it
/// before they come to it.
fn read_ahead_kib(memory_bytes: u64) -> u32 {
    const PART: u64 = 256;
    (memory_bytes / PART / 1024).next_power_of_two().clamp(128, 4096) as u32
}

/// How it is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Others than the user who mounts may use it; root's mounts always let them.
    pub allow_other: bool,
    /// What it may not do, beside what SOURCE may not: RDONLY, NOSUID, NODEV, NOEXEC, NOATIME.
    pub restrictions: StatVfsMountFlags,
    /// Threads that take requests; by default three more than there are processors.
    pub threads: Option<usize>,
    /// How files are cached.
    pub cache: file::Config,
    /// Is told of reads. The kernel's page cache over the mount is kept small then, and no file is
    /// passed through, so that most reads are seen.
    pub accesses: Option<AccessNotes>,
}

/// Why it cannot be mounted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// SOURCE cannot be looked at.
    #[error("cannot mount {0}: {1}")]
    Source(PathBuf, io::Error),
    /// SOURCE is no directory.
    #[error("cannot mount {0}: it is not a directory; name the directory that the file is in")]
    SourceNotDirectory(PathBuf),
    /// The mountpoint cannot be looked at.
    #[error("cannot mount on {0}: {1}; make an empty directory there first")]
    Mountpoint(PathBuf, io::Error),
    /// The mountpoint is no directory.
    #[error("cannot mount on {0}: it is not a directory")]
    MountpointNotDirectory(PathBuf),
    /// The mountpoint lies in SOURCE.
    #[error(
        "cannot mount {source_path} on {mountpoint}, which lies in it: reading it would wait for \
         itself; mount it elsewhere"
    )]
    Inside {
        /// SOURCE.
        source_path: PathBuf,
        /// Where it was to be mounted.
        mountpoint: PathBuf,
    },
    /// There is no FUSE device.
    #[error(
        "/dev/fuse cannot be opened: {0}; `modprobe fuse` as root, or give it to the container"
    )]
    NoDevice(io::Error),
    /// fusermount3 cannot be run.
    #[error(
        "cannot run fusermount3, which mounts for ordinary users: {0}; install the package fuse3, \
         or mount as root"
    )]
    NoFusermount(io::Error),
    /// fusermount3 has refused.
    #[error("fusermount3 does not mount on {0}: {1}")]
    Fusermount(PathBuf, String),
    /// mount(2) has refused.
    #[error("cannot mount on {0}: mount: {1}")]
    Refused(PathBuf, io::Error),
    /// A dead mount is in the way.
    #[error("a dead ramfold mount is at {0} and cannot be unmounted: {1}; try `umount -l` as root")]
    Dead(PathBuf, io::Error),
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] FileCacheError),
    /// Anything else.
    #[error("cannot mount {0}: {1}")]
    Other(PathBuf, io::Error),
}

/// The watch, what bounds the kernel's level, what measures SOURCE, and what has the kernel forget
/// inodes.
type Threads = [JoinHandle<()>; 4];

/// A mount that is there, and not yet served.
pub struct Mount {
    session: Session<Server>,
    threads: Threads,
    mounted: Mounted,
    view: View,
    guard: Option<Guard>,
}

impl Mount {
    /// Mounts a directory at another place. A dead mount of ramfold there is replaced.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn new(source: &Path, mountpoint: &Path, options: &Options) -> Result<Mount, MountError> {
        let other = |error| MountError::Other(source.to_owned(), error);
        let mountpoint = place(mountpoint)?;
        let source = fs::canonicalize(source)
            .map_err(|error| MountError::Source(source.to_owned(), error))?;
        refuse_what_cannot_be(&source, &mountpoint)?;
        let root = open(&source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| MountError::Source(source.clone(), errno.into()))?;
        let powers = Powers::of_this_process().map_err(other)?;

        let of_source = restrictions(&root, &source, &powers).map_err(other)?;
        let restrictions = of_source | options.restrictions;
        let (watch, watcher) = watch();
        let cache = FileCache::new(options.cache, options.accesses.clone())?;
        let (bounds, view) = (cache.bounds(), cache.view());
        // Only root's mounts: the kernel wants CAP_SYS_ADMIN, and SOURCE is read as whoever serves.
        // What it reads by itself sets the time of the last access.
        let is_noatime = options.restrictions.contains(StatVfsMountFlags::NOATIME);
        let is_chosen = options.cache.is_chosen() || options.accesses.is_some();
        let passthrough = powers.acts_as_others() && !is_chosen && !is_noatime;
        let passthrough = (&*source, passthrough);
        let (file_system, prober, forgetting) =
            FileSystem::new(root, powers, restrictions, cache, watch, passthrough)
                .map_err(other)?;
        let device = device::mount(&device::Wanted {
            source: &source,
            mountpoint: &mountpoint,
            restrictions,
            allow_other: options.allow_other,
            as_root: powers.acts_as_others(),
        })?;
        file_system.note_own_device(&mountpoint).map_err(other)?;
        let others = (watcher, bounds, prober, forgetting);
        match serve_with(file_system, device, others, options) {
            Ok((session, threads)) => {
                let read_ahead = read_ahead_kib(options.cache.memory_bytes);
                table::raise_read_ahead(&mountpoint, read_ahead);
                let mounted = Mounted::at(mountpoint);
                let guard = abort::guard(&mounted);
                Ok(Mount { session, threads, mounted, view, guard })
            }
            Err(error) => {
                // That it cannot be served is what matters.
                let _ = unmount(&mountpoint, true);
                Err(other(error))
            }
        }
    }

    /// Where it is, with no symlink in the path.
    pub fn mounted(&self) -> &Mounted {
        &self.mounted
    }

    /// Shows what is cached, while it is served and afterwards.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// Answers the kernel's requests until it is unmounted and nobody uses it any more.
    ///
    /// # Errors
    /// What the connection to the kernel says.
    pub fn serve(self) -> io::Result<()> {
        let result = match self.session.run() {
            // The last user left while a thread was about to take a request (fs/fuse/dev.c).
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            result => result,
        };
        // They end with the file system, which the session has dropped. One that panicked has said
        // so.
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
        drop(self.guard);
        result
    }
}

fn serve_with(
    file_system: FileSystem,
    device: OwnedFd,
    (watcher, bounds, prober, forgetting): (Watcher, KernelBounds, Prober, Forgetting),
    options: &Options,
) -> io::Result<(Session<Server>, Threads)> {
    let mut config = Config::default();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(processors + 3).max(1);
    config.n_threads = Some(threads);
    // An ordinary user's threads may have to share the descriptor that fusermount3 has opened.
    config.clone_fd = fs::File::options().read(true).write(true).open(device::PATH).is_ok();
    let pruner = prune::Device(device.try_clone()?);
    // Who may use it, the kernel knows by the mount's options.
    let server = Server::new(file_system, threads);
    let session = Session::from_fd(server, device, SessionACL::All, config)?;
    let threads = [
        watcher.begin(session.notifier())?,
        bounds.begin(KernelNotifier(session.notifier()))?,
        prober.begin()?,
        forgetting.begin(pruner)?,
    ];
    Ok((session, threads))
}

/// The kernel behind this mount.
struct KernelNotifier(Notifier);

impl Kernel for KernelNotifier {
    fn drop_pages(&mut self, node: u64, bytes: Range<u64>) {
        let (offset, len) = (bytes.start, bytes.end - bytes.start);
        if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
            // That the kernel does not know the file any more is as well.
            let _ = self.0.inval_inode(INodeNo(node), offset, len);
        }
    }
}

/// The mountpoint without symlinks, and without a dead mount. What is mounted there is not asked,
/// as it could be dead.
fn place(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let failed = |error| MountError::Mountpoint(mountpoint.to_owned(), error);
    let path = place_of(mountpoint).map_err(failed)?;
    match fs::metadata(&path) {
        Err(error) if is_dead(&error) => clear(path),
        Err(error) => Err(failed(error)),
        Ok(_) => Ok(path),
    }
}

/// A mountpoint without symlinks, dead or not.
///
/// # Errors
/// When there is no such directory.
pub fn place_of(mountpoint: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(mountpoint) {
        Err(error) if is_dead(&error) => table::parents_canonical(mountpoint),
        result => result,
    }
}

fn is_dead(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTCONN)
}

fn clear(mountpoint: PathBuf) -> Result<PathBuf, MountError> {
    let not_connected = || io::Error::from(Errno::NOTCONN);
    if !is_ours(&mountpoint) {
        return Err(MountError::Mountpoint(mountpoint, not_connected()));
    }
    match unmount(&mountpoint, true) {
        Ok(()) => Ok(mountpoint),
        Err(error) => Err(MountError::Dead(mountpoint, error)),
    }
}

fn refuse_what_cannot_be(source: &Path, mountpoint: &Path) -> Result<(), MountError> {
    let of_source =
        fs::metadata(source).map_err(|error| MountError::Source(source.to_owned(), error))?;
    if !of_source.is_dir() {
        return Err(MountError::SourceNotDirectory(source.to_owned()));
    }
    let of_mountpoint = fs::metadata(mountpoint)
        .map_err(|error| MountError::Mountpoint(mountpoint.to_owned(), error))?;
    if !of_mountpoint.is_dir() {
        return Err(MountError::MountpointNotDirectory(mountpoint.to_owned()));
    }
    // By what they are, not by their names: SOURCE can be mounted in two places.
    let is_source = |directory: &Path| {
        fs::metadata(directory)
            .is_ok_and(|of| (of.dev(), of.ino()) == (of_source.dev(), of_source.ino()))
    };
    if mountpoint.ancestors().any(is_source) {
        return Err(MountError::Inside {
            source_path: source.to_owned(),
            mountpoint: mountpoint.to_owned(),
        });
    }
    Ok(())
}

/// What SOURCE's mounts may not do, the mount over them may not do either: no set-id program and no
/// device works through it that does not work in SOURCE.
fn restrictions(root: &OwnedFd, source: &Path, powers: &Powers) -> io::Result<StatVfsMountFlags> {
    let flags = fstatvfs(root.as_fd())?.f_flag;
    let mut restrictions = flags & (RESTRICTIONS | StatVfsMountFlags::RDONLY);
    for below in table::mounts_below(source) {
        if let Ok(stat) = rustix::fs::statvfs(&below) {
            restrictions |= stat.f_flag & RESTRICTIONS;
        }
    }
    if !powers.acts_as_others() {
        restrictions |= StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    }
    Ok(restrictions)
}

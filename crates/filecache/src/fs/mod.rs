//! The file system: the kernel's requests come in here and are passed on to where the work is done.
//!
//! | module | what it holds |
//! |---|---|
//! | [`requests`], [`replies`] | the kernel's requests, each passed on; answers |
//! | [`server`], [`patience`] | which thread does what may take long |
//! | [`inodes`], [`inode`], [`clock`], [`forgetting`] | what the kernel knows, and forgets |
//! | [`source_mounts`] | the mounts that SOURCE consists of |
//! | [`credentials`] | acting as whoever a request comes from |
//! | [`names`], [`directories`], [`removed`] | names |
//! | [`attributes`], [`xattrs`], [`flags`] | attributes |
//! | [`files`], [`file_io`], [`writes`], [`handles`], [`open_limit`] | open files |
//! | [`passthrough`], [`speed_probe`] | files that the kernel reads in SOURCE by itself |
//! | [`watch`] | changes behind the mount |

mod attributes;
mod clock;
mod credentials;
mod directories;
mod file_io;
mod files;
mod flags;
mod forgetting;
mod handles;
mod inode;
mod inodes;
mod names;
mod open_limit;
mod passthrough;
mod patience;
mod removed;
mod replies;
mod requests;
mod server;
mod source_mounts;
mod speed_probe;
mod watch;
mod writes;
mod xattrs;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::StatVfsMountFlags;

use directories::Directories;
use files::Files;
use inodes::Inodes;
use open_limit::OpenLimit;
use passthrough::Passthrough;
use removed::Removed;
use source_mounts::{Descriptors, SourceMounts};

use crate::file::FileCache;

pub(crate) use credentials::Powers;
pub(crate) use forgetting::{Forgetting, Pruner};
pub(crate) use server::Server;
pub(crate) use source_mounts::RESTRICTIONS;
pub(crate) use speed_probe::Prober;
pub(crate) use watch::{Watch, Watcher, watch};

/// SOURCE, as the kernel asks for it.
#[derive(Debug)]
pub(crate) struct FileSystem {
    inodes: Arc<Inodes>,
    mounts: SourceMounts,
    files: Arc<Files>,
    directories: Directories,
    cache: FileCache,
    powers: Powers,
    watch: Watch,
    open_limit: Arc<OpenLimit>,
    removed: Arc<Removed>,
    passthrough: Passthrough,
}

impl FileSystem {
    /// Notes which device the mount itself is, so that nothing waits for itself.
    ///
    /// # Errors
    /// What statx(2) says of the mount, which is not served yet.
    pub(crate) fn note_own_device(&self, mountpoint: &Path) -> io::Result<()> {
        self.mounts.note_own_device(mountpoint)
    }

    /// Over the directory `root` (a descriptor of O_PATH). `restrictions` are those of the mount
    /// over it. With it comes what measures SOURCE, and what has the kernel forget inodes.
    ///
    /// # Errors
    /// What looking at the root says.
    pub(crate) fn new(
        root: OwnedFd,
        powers: Powers,
        restrictions: StatVfsMountFlags,
        cache: FileCache,
        watch: Watch,
        (source, passthrough): (&Path, bool),
    ) -> io::Result<(FileSystem, Prober, Forgetting)> {
        let mounts = SourceMounts::new(powers.opens_by_handle(), restrictions, Descriptors::new()?);
        let (wake, woken) = forgetting::wake();
        let inodes = Arc::new(Inodes::new(root, &mounts, cache.inodes_size(), wake)?);
        let forgetting = Forgetting::new(&inodes, woken, cache.accounts());
        let (speed, prober) = speed_probe::source_speed(source, inodes.device(), passthrough);
        let file_system = FileSystem {
            inodes,
            mounts,
            files: Arc::clone(watch.files()),
            directories: Directories::default(),
            passthrough: Passthrough::new(passthrough, speed, cache.passthrough()),
            cache,
            powers,
            watch,
            open_limit: OpenLimit::new(),
            removed: Arc::default(),
        };
        Ok((file_system, prober, forgetting))
    }
}

//! What a cache before a disk is asked to be, and why there can be none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ramfold_codec::{Choice, Codec};

use crate::disk::DiskError;

/// Which requests put pages into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Writes do. Reads use what is there and do not change it (version 2 of paper 001).
    Separate,
    /// Writes and reads do (version 1).
    Shared,
}

/// Says something to the person who started the server.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// A compressed cache before a file or a block device, as it is asked for.
#[derive(Clone)]
pub struct BackingConfig {
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes of the device; as many as the backing has without.
    pub size_bytes: Option<u64>,
    /// Most memory that the cache takes for everything.
    pub memory_bytes: u64,
    /// What pages are compressed with.
    pub codec: Choice,
    /// Nothing may be written.
    pub read_only: bool,
    /// Whether a write is in the backing before it is answered.
    pub write_through: bool,
    /// What puts pages into the cache.
    pub paths: Paths,
    /// Pages that are written back at once, in percent of those in the cache.
    pub batch_percent: u8,
    /// Cleaning begins when pages that are not in the backing take more of the memory, in percent.
    pub clean_above_percent: u8,
    /// It is swap: as for [`DiskConfig::for_swap`](crate::DiskConfig::for_swap), on a block device
    /// that holds a swap area.
    pub for_swap: bool,
    /// Requests that are served at the same time, at least 1.
    pub threads: usize,
    /// Is told when the backing begins to fail, and when it works again.
    pub tell: Option<Tell>,
}

impl BackingConfig {
    /// A cache of that much memory: LZ4, write-back, separate paths, and the paper's parameters.
    pub fn new(path: PathBuf, memory_bytes: u64) -> BackingConfig {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Requests wait for the disk, so that there should be more than processors.
        let most = (memory_bytes / THREAD_MEMORY_BYTES) as usize;
        BackingConfig {
            path,
            size_bytes: None,
            memory_bytes,
            codec: Choice::Only(Codec::Lz4),
            read_only: false,
            write_through: false,
            paths: Paths::Separate,
            batch_percent: 10,
            clean_above_percent: 50,
            for_swap: false,
            threads: (2 * processors).clamp(4, 16).min(most.max(2)),
            tell: None,
        }
    }
}

/// Memory for which there may be a request more at the same time.
const THREAD_MEMORY_BYTES: u64 = 8 << 20;

/// Why there is no cache before a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// It cannot be opened.
    #[error("cannot open {}: {source}{}", path.display(), hint(source))]
    Open {
        /// The file or device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is there, and cannot be opened again by this process's own path to it.
    #[error(
        "cannot open {}: /proc is not mounted, by which it is opened; `mount -t proc proc /proc` \
         as root mounts it",
        path.display()
    )]
    NoProc {
        /// The file or device.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{} is neither a file nor a block device", path.display())]
    Kind {
        /// What was named.
        path: PathBuf,
    },
    /// It does not hold the device.
    #[error(
        "{} has {there} bytes, which is too small for a device of {bytes}; `truncate -s SIZE` \
         makes a file larger",
        path.display()
    )]
    Small {
        /// The file or device.
        path: PathBuf,
        /// Bytes of the device.
        bytes: u64,
        /// Bytes of the backing.
        there: u64,
    },
    /// Somebody else has it.
    #[error(
        "{} is in use: by another server, mounted, or swap that is on (`swapoff` turns it off)",
        path.display()
    )]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// Swap cannot go to a file: its file system asks for memory in threads that get none.
    #[error(
        "{} is a file: swap needs a block device, as writes to a file system wait for memory that \
         waits for them; without --backing the data stays in RAM",
        path.display()
    )]
    SwapInFile {
        /// The file.
        path: PathBuf,
    },
    /// What is there would be lost.
    #[error(
        "{} is no swap area; `mkswap` makes it one, and what it holds is lost",
        path.display()
    )]
    NoSwapArea {
        /// The device.
        path: PathBuf,
    },
    /// Pages of the cache are memory that swap would wait for.
    #[error("{} cannot be written past the page cache, as swap must be", path.display())]
    SwapInCache {
        /// The device.
        path: PathBuf,
    },
    /// This process may not have what swap needs.
    #[error("swap before {} needs real-time threads (CAP_SYS_NICE): {source}", path.display())]
    RealTime {
        /// The device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A parameter that is no share.
    #[error("{name} is {percent} %: write a number from 1 to 100")]
    Percent {
        /// The parameter.
        name: &'static str,
        /// Its value.
        percent: u8,
    },
    /// There is no such cache in this memory.
    #[error(transparent)]
    Memory(#[from] DiskError),
}

impl BackingError {
    pub(super) fn open(path: &Path, source: io::Error) -> BackingError {
        BackingError::Open { path: path.to_owned(), source }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; --read-only serves what may be read"
        }
        io::ErrorKind::NotFound => "; `truncate -s SIZE FILE` makes an empty file",
        _ => "",
    }
}

/// What was not written at the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {bytes} bytes that had been written were lost")]
pub struct Lost {
    /// Bytes that were in the cache and are not in the backing.
    pub bytes: u64,
    /// What the system said.
    pub reason: String,
}

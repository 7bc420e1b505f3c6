//! Files through the cache: every byte that is read through the kernel's page cache, and every
//! operation that changes a file, comes through here.
//!
//! What was read lies in two levels: pages as they are in the kernel's page cache over the mount
//! (upper), and compressed clusters in `ramfold_cache` (lower).
//!
//! | module | what it holds |
//! |---|---|
//! | [`cached_file`] | one file: reading it |
//! | [`versions`] | changing it: what was read before is outdated |
//! | [`freshness`], [`stamp`], [`writers`] | whether it was, or may be, changed behind the mount |
//! | [`source_file`] | reading it in SOURCE past the page cache |
//! | [`kernel_level`], [`page_times`] | the upper level |
//! | [`known_files`] | the files that anything is remembered of |
//! | [`memory`], [`balance`], [`dropped`] | how the memory is divided between the levels |
//! | [`accesses`] | for a trace of reads |
//! | [`accounts`] | what takes memory beside the levels |
//! | [`counters`], [`statistics`] | what has happened, and what there is |

mod accesses;
mod accounts;
mod balance;
mod cached_file;
mod counters;
mod dropped;
mod freshness;
mod kernel_level;
mod known_files;
mod memory;
mod page_times;
mod source_file;
mod stamp;
mod statistics;
#[cfg(test)]
mod tests;
mod versions;
mod writers;

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ramfold_cache::{Background, Cache, CacheError, Config as CacheConfig};
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_policy::files::balance::SHARE_MAX;

use balance::Balance;
use counters::Counters;
use kernel_level::KernelLevel;
use known_files::KnownFiles;

pub use accesses::{AccessNotes, FileKey};
pub(crate) use accounts::{Accounts, InodesSize, allocated};
pub(crate) use cached_file::CachedFile;
pub(crate) use counters::PassthroughCounters;
pub(crate) use kernel_level::Kernel;
pub(crate) use ramfold_cache::with_buffer;
pub(crate) use source_file::SourceFile;
pub use statistics::Statistics;
pub(crate) use versions::Changed;

/// Least memory for both levels, in bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Most of the memory that can be asked for as the lower level's part.
pub const COMPRESSED_SHARE_MAX: f64 = SHARE_MAX;

/// How files are cached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// For both levels together, in bytes.
    pub memory_bytes: u64,
    /// The lower level's part of it, 0 to [`COMPRESSED_SHARE_MAX`]; `None`: what serves best.
    pub compressed_share: Option<f64>,
    /// `None`: as SOURCE is.
    pub codec: Option<ClusterCodec>,
    /// Pages that are compressed as one; `None`: as the file is read and SOURCE is.
    pub cluster: Option<ClusterSize>,
    /// Compresses on one thread instead of several: for one processor.
    pub synchronous: bool,
}

impl Config {
    /// So much memory for both levels, and all else as it serves best.
    pub fn new(memory_bytes: u64) -> Config {
        Config {
            memory_bytes,
            compressed_share: None,
            codec: None,
            cluster: None,
            synchronous: false,
        }
    }

    /// Whether a choice was made that is otherwise made as SOURCE is: all is cached then.
    pub fn is_chosen(&self) -> bool {
        self.compressed_share.is_some() || self.codec.is_some() || self.cluster.is_some()
    }
}

/// Why there is no cache of files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileCacheError {
    /// There is too little memory.
    #[error("--memory is {bytes} bytes; both levels need {}M at least", MEMORY_BYTES_MIN >> 20)]
    Memory {
        /// What there is.
        bytes: u64,
    },
    /// The lower level cannot be set up.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// All files.
pub(crate) struct FileCache {
    shared: Arc<Shared>,
    compression: Option<Background<CachedFile>>,
}

impl fmt::Debug for FileCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCache").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// What all files and the threads behind them use.
struct Shared {
    config: Config,
    /// The lower level.
    cache: Arc<Cache<CachedFile>>,
    /// The upper level.
    kernel: KernelLevel,
    balance: Balance,
    counters: Counters,
    /// Is told of reads.
    accesses: Option<AccessNotes>,
    passthrough: Arc<PassthroughCounters>,
    known: KnownFiles,
    inodes: Arc<InodesSize>,
    /// What the process was found to have beside all that is counted.
    other_bytes: AtomicU64,
    started: Instant,
}

impl FileCache {
    /// # Errors
    /// [`FileCacheError`].
    pub(crate) fn new(
        config: Config,
        accesses: Option<AccessNotes>,
    ) -> Result<FileCache, FileCacheError> {
        let Config { memory_bytes, codec, cluster, synchronous, .. } = config;
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(FileCacheError::Memory { bytes: memory_bytes });
        }
        let cache = Cache::new(CacheConfig { memory_bytes, codec, cluster, synchronous })?;
        let shared = Arc::new(Shared {
            config,
            cache: Arc::new(cache),
            kernel: KernelLevel::new(memory_bytes),
            balance: Balance::new(memory_bytes, config.compressed_share),
            counters: Counters::default(),
            accesses,
            passthrough: Arc::default(),
            known: KnownFiles::new(memory_bytes),
            inodes: Arc::default(),
            other_bytes: AtomicU64::new(0),
            started: Instant::now(),
        });
        shared.share_memory();
        let of_thread = Arc::clone(&shared);
        let compression = shared.cache.start(move || {
            of_thread.rebalance();
            of_thread.make_room();
        })?;
        Ok(FileCache { shared, compression: Some(compression) })
    }

    /// For looking at it from another thread.
    pub(crate) fn view(&self) -> View {
        View(Arc::clone(&self.shared))
    }

    /// What bounds the upper level, once there is a kernel to be told.
    pub(crate) fn bounds(&self) -> KernelBounds {
        KernelBounds(Arc::clone(&self.shared))
    }

    /// For counting files that are read without this.
    pub(crate) fn passthrough(&self) -> Arc<PassthroughCounters> {
        Arc::clone(&self.shared.passthrough)
    }

    /// Whether the last reads of SOURCE say that it is fast.
    pub(crate) fn source_seems_fast(&self) -> bool {
        !self.shared.cache.speed().is_slow()
    }

    /// Where it is told what known inodes take.
    pub(crate) fn inodes_size(&self) -> Arc<InodesSize> {
        Arc::clone(&self.shared.inodes)
    }

    /// What takes memory beside the levels, for keeping the account of it.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts::new(Arc::clone(&self.shared))
    }

    /// A file.
    pub(crate) fn file(&self, key: FileKey) -> Arc<CachedFile> {
        self.shared.known.forget_some();
        self.shared.known.get(key, || CachedFile::new(key, Arc::clone(&self.shared)))
    }
}

impl Drop for FileCache {
    fn drop(&mut self) {
        self.shared.kernel.stop();
        drop(self.compression.take());
        // They know the shared part, which knows them.
        self.shared.known.clear();
    }
}

/// Shows what the cache holds and what has happened.
#[derive(Clone)]
pub struct View(Arc<Shared>);

impl View {
    /// Counts everything; takes a microsecond for each 256 KiB that is stored.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics(self.0.cache.count_pages())
    }

    /// The same for who looks often: `pages_stored` and `compression_ratio` are left 0, and nothing
    /// is counted but what is known already.
    pub fn glance(&self) -> Statistics {
        self.0.statistics(0)
    }
}

/// Has the kernel drop what the upper level has too much of.
pub(crate) struct KernelBounds(Arc<Shared>);

impl KernelBounds {
    /// From here on it does, on a thread of its own, which ends with [`FileCache`].
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn begin(self, kernel: impl Kernel + 'static) -> io::Result<JoinHandle<()>> {
        let run = move || self.0.kernel.run(kernel, &self.0);
        thread::Builder::new().name("kernel-level".to_owned()).spawn(run)
    }
}

/// No invariant here breaks by a panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The content of files: every byte that is read through the kernel's page cache, and every operation that
//! changes a file, comes through here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`file`] | one file's content: reading it, changing it |
//! | [`source`] | reading SOURCE past the page cache |
//! | [`stamp`], [`writers`] | what tells that a file was changed, or may be unseen |
//! | [`clusters`], [`keys`], [`mark`] | the lower level: clusters of pages, compressed, in the store |
//! | [`compression`] | how they get there, in the background |
//! | [`recent`] | those that were read last, as they are |
//! | [`replacement`] | which of them leave |
//! | [`kernel_level`] | the upper level: pages in the kernel's page cache |
//! | [`balance`] | how the memory is divided between the levels |
//! | [`others`] | what takes memory beside the levels |
//! | [`page_times`] | when pages were given to the kernel, and dropped |
//! | [`counters`], [`statistics`] | what has happened, and what there is |

mod balance;
mod buffer;
mod clusters;
mod compression;
mod counters;
mod file;
mod kernel_level;
mod keys;
mod mark;
mod others;
mod page_times;
mod recent;
mod replacement;
mod source;
mod stamp;
mod statistics;
#[cfg(test)]
mod tests;
mod writers;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ramfold_codec::Choice;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_engine::{Engine, EngineError, Synchronous, Workers, WorkersConfig};
use ramfold_store::{Config as StoreConfig, Store};

use balance::{Balance, Held};
use compression::Compression;
use counters::Counters;
use kernel_level::KernelLevel;
use keys::KeySpace;
use recent::Recent;
use replacement::Replacement;

pub use buffer::with_buffer;
pub use counters::PassthroughCounters;
pub use file::{Changed, Content, FileKey, Ticket};
pub use kernel_level::Kernel;
pub use others::{Accounts, InodesSize, allocated};
pub use source::Source;
pub use stamp::Stamp;
pub use statistics::Statistics;

/// Least memory for both levels.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Most of it that can be asked for as the lower level's part: above that paper 000 found the kernel short of pages.
pub const COMPRESSED_SHARE_MAX: f64 = 0.85;
/// Clusters that wait to be compressed have this part of the memory at most.
const STAGING_PART: u64 = 16;
const STAGING_BYTES_MAX: u64 = 64 << 20;
/// How much less than others those who compress get of the processors: about a tenth where they are busy.
const NICENESS: i32 = 10;
/// Room that is made at once, and free memory within the pool that is worth bringing together, as a part of the
/// lower level's limit.
const ROOM_PART: u64 = 64;
/// Files that are known may take this part of the memory, each about so many bytes: its own, and a
/// place in a table that is half full.
const FILES_PART: u64 = 64;
const FILE_BYTES: usize = allocated::<Content>() + 2 * (size_of::<(FileKey, Arc<Content>)>() + 1);
/// Of those that nobody uses, so many are forgotten at once.
const FORGOTTEN_PART: usize = 8;
/// When the store's tables have this part of the lower level's limit, what has left is forgotten earlier; in so many
/// groups of 64 pages at once.
const TABLES_PART: u64 = 4;
const GROUPS_AT_ONCE: usize = 256;
/// What neither level has, so that one may grow a little before the other has shrunk.
const RESERVE_PART: u64 = 32;
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// How long bringing it together may take at a time.
const COMPACTION_TURN: Duration = Duration::from_millis(5);

/// How content is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// For both levels together.
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
    /// Whether a choice was made that is otherwise made as SOURCE is: all is cached then.
    pub fn is_chosen(&self) -> bool {
        self.compressed_share.is_some() || self.codec.is_some() || self.cluster.is_some()
    }
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentsError {
    #[error("--memory is {bytes} bytes; both levels need {}M at least", MEMORY_BYTES_MIN >> 20)]
    Memory { bytes: u64 },
    #[error("cannot set up the memory for compressed pages: {0}")]
    Store(#[from] ramfold_store::StoreError),
    #[error("cannot set up compression: {0}")]
    Engine(#[from] EngineError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// All files' content.
pub struct Contents {
    shared: Arc<Shared>,
    compression: Option<JoinHandle<()>>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// What all files' content and the threads behind it use.
pub(crate) struct Shared {
    config: Config,
    store: Store,
    keys: KeySpace,
    replacement: Replacement,
    compression: Compression,
    recent: Recent,
    source_speed: source::Speed,
    kernel: KernelLevel,
    balance: Balance,
    /// Held by who makes room.
    making_room: Mutex<()>,
    counters: Counters,
    passthrough: Arc<PassthroughCounters>,
    known: Mutex<HashMap<FileKey, Arc<Content>>>,
    /// Those that have lost their last name.
    nameless: Mutex<Vec<FileKey>>,
    /// So many files that are known are gone through for some to be forgotten.
    swept_at: AtomicUsize,
    inodes: Arc<InodesSize>,
    /// What the process was found to have beside all that is counted.
    other_bytes: AtomicU64,
    started: Instant,
}

impl Contents {
    /// # Errors
    /// [`ContentsError`].
    pub fn new(config: Config) -> Result<Contents, ContentsError> {
        let memory = config.memory_bytes;
        if memory < MEMORY_BYTES_MIN {
            return Err(ContentsError::Memory { bytes: memory });
        }
        let store = Store::new(&StoreConfig {
            pool_bytes_max: memory as usize,
            reserve_bytes: 0,
            metadata_bytes_max: (memory as usize / 4).max(1 << 20),
            spill: None,
        })?;
        let staging_bytes = (memory / STAGING_PART).min(STAGING_BYTES_MAX) as usize;
        let shared = Arc::new(Shared {
            config,
            store,
            keys: KeySpace::default(),
            replacement: Replacement::default(),
            compression: Compression::new(staging_bytes),
            recent: Recent::default(),
            source_speed: source::Speed::default(),
            kernel: KernelLevel::new(memory),
            balance: Balance::new(memory, config.compressed_share),
            making_room: Mutex::default(),
            counters: Counters::default(),
            passthrough: Arc::default(),
            known: Mutex::default(),
            nameless: Mutex::default(),
            swept_at: AtomicUsize::new(files_max(&config)),
            inodes: Arc::default(),
            other_bytes: AtomicU64::new(0),
            started: Instant::now(),
        });
        shared.share_memory();
        let compression = compress_in_background(&shared)?;
        Ok(Contents { shared, compression: Some(compression) })
    }

    /// For looking at it from another thread.
    pub fn view(&self) -> View {
        View(Arc::clone(&self.shared))
    }

    /// What bounds the upper level, once there is a kernel to be told.
    pub fn bounds(&self) -> Bounds {
        Bounds(Arc::clone(&self.shared))
    }

    /// For counting what does not come here.
    pub fn passthrough(&self) -> Arc<PassthroughCounters> {
        Arc::clone(&self.shared.passthrough)
    }

    /// Whether the last reads of SOURCE say that it is fast.
    pub fn source_seems_fast(&self) -> bool {
        !self.shared.source_speed.is_slow()
    }

    /// Where it is told what known inodes take.
    pub fn inodes_size(&self) -> Arc<InodesSize> {
        Arc::clone(&self.shared.inodes)
    }

    /// What takes memory beside the levels, for keeping the account of it.
    pub fn accounts(&self) -> Accounts {
        Accounts::new(Arc::clone(&self.shared))
    }

    /// The content of a file.
    pub fn of(&self, key: FileKey) -> Arc<Content> {
        self.shared.forget_files();
        let new = || Arc::new(Content::new(key, Arc::clone(&self.shared)));
        Arc::clone(locked(&self.shared.known).entry(key).or_insert_with(new))
    }
}

/// Starts the thread that compresses, and the engine's with it.
fn compress_in_background(shared: &Arc<Shared>) -> Result<JoinHandle<()>, ContentsError> {
    let (engine_is_there, is_engine_there) = mpsc::channel();
    let of_thread = Arc::clone(shared);
    let run = move || {
        // Those who read go first. The engine's threads have the niceness of this one, which starts them; where it
        // cannot be set nothing else is wrong.
        let _ = rustix::process::nice(NICENESS);
        match engine(&of_thread.config) {
            // Whoever started this thread waits for it.
            Err(error) => drop(engine_is_there.send(Err(error))),
            Ok(engine) => {
                drop(engine_is_there.send(Ok(())));
                of_thread.compression.run(&of_thread, &*engine);
            }
        }
    };
    let thread = thread::Builder::new().name("compression".to_owned()).spawn(run);
    let thread = thread.map_err(ContentsError::Thread)?;
    let ended = |_| ContentsError::Thread(io::Error::other("it ended at once"));
    is_engine_there.recv().map_err(ended)??;
    Ok(thread)
}

fn engine(config: &Config) -> Result<Box<dyn Engine>, EngineError> {
    Ok(match config.synchronous {
        true => Box::new(Synchronous::new(Choice::Auto)?),
        false => Box::new(Workers::new(Choice::Auto, WorkersConfig::default())?),
    })
}

/// Shows what the cache holds and what has happened.
#[derive(Clone)]
pub struct View(Arc<Shared>);

impl View {
    /// Counts everything; takes a microsecond for each 256 KiB that is stored.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics(self.0.pages_stored())
    }

    /// The same for who looks often: `pages_stored` and `compression_ratio` are left 0, and nothing is counted but
    /// what is known already.
    pub fn glance(&self) -> Statistics {
        self.0.statistics(0)
    }
}

/// Has the kernel drop what the upper level has too much of.
pub struct Bounds(Arc<Shared>);

impl Bounds {
    /// From here on it does, on a thread of its own, which ends with [`Contents`].
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn begin(self, kernel: impl Kernel + 'static) -> io::Result<JoinHandle<()>> {
        let run = move || self.0.kernel.run(kernel, &self.0);
        thread::Builder::new().name("kernel-level".to_owned()).spawn(run)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.shared.compression.stop();
        self.shared.kernel.stop();
        if let Some(thread) = self.compression.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        // They know the shared part, which knows them.
        locked(&self.shared.known).clear();
    }
}

impl Shared {
    /// Forgets files that have lost their last name, when nobody uses them any more; and others that nobody uses,
    /// when there are too many.
    fn forget_files(&self) {
        let mut forgotten = Vec::new();
        let mut known = locked(&self.known);
        // Whoever else has one counts.
        let is_unused = |content: &Arc<Content>| Arc::strong_count(content) == 1;
        locked(&self.nameless).retain(|key| match known.get(key) {
            Some(content) if !is_unused(content) => true,
            Some(_) => {
                forgotten.extend(known.remove(key));
                false
            }
            None => false,
        });
        if known.len() >= self.swept_at.load(Ordering::Relaxed) {
            let excess = known.len() / FORGOTTEN_PART + 1;
            forgotten.extend(take_unused(&mut known, excess));
            // Where nearly all are in use they are not gone through for each new one.
            let next = known.len() + known.len() / FORGOTTEN_PART;
            self.swept_at.store(next.max(files_max(&self.config)), Ordering::Relaxed);
        }
        drop(known);
        forgotten.iter().for_each(|content| content.end());
    }

    /// Forgets up to this number of files that nobody uses.
    fn forget_unused(&self, count: usize) {
        let forgotten = take_unused(&mut locked(&self.known), count);
        forgotten.iter().for_each(|content| content.end());
    }

    /// What both levels cost now, and what is on its way between them.
    fn cost_bytes(&self) -> u64 {
        self.own_bytes() as u64 + self.kernel.bytes()
    }

    /// The same without the pages of the upper level.
    fn own_bytes(&self) -> usize {
        self.counted_bytes() + self.other_bytes() as usize
    }

    /// What is counted of that.
    fn counted_bytes(&self) -> usize {
        let known = self.files_bytes() + self.inodes.bytes();
        let remembering = self.kernel.remembering_bytes() + self.balance.bytes();
        self.store.cost_bytes() + self.staging_bytes() + (known + remembering) as usize
    }

    /// What is on its way.
    fn staging_bytes(&self) -> usize {
        self.compression.bytes() + self.recent.bytes() + buffer::bytes()
    }

    /// Memory that the lower level has not filled, of which the backlog may have half.
    fn spare_bytes(&self) -> usize {
        let spare = self.compressed_bytes_max().saturating_sub(self.store.cost_bytes() as u64);
        // What the kernel has not dropped yet is not there.
        let free = self.config.memory_bytes.saturating_sub(self.cost_bytes());
        (spare as usize / 2).min(self.compression.bytes() + free as usize)
    }

    /// The upper level has what the lower one leaves.
    fn share_memory(&self) {
        let used = self.own_bytes();
        let before = self.kernel.limit_bytes();
        let memory = self.config.memory_bytes;
        // The kernel takes its time to drop what the others need.
        let limit =
            (memory - (memory / RESERVE_PART).min(RESERVE_BYTES_MAX)).saturating_sub(used as u64);
        self.kernel.set_limit_bytes(limit);
        if limit < before {
            self.kernel.limit_changed();
        }
    }

    /// Lets memory go from one level to the other where that is due.
    fn rebalance(&self) {
        self.balance.adjust(|| {
            let lower_bytes = self.store.cost_bytes() as u64;
            let clusters = lower_bytes.saturating_sub(self.store.metadata_bytes() as u64);
            let lost_bytes = (clusters as f64 * self.replacement.just_left()) as u64;
            Held { kernel_bytes: self.kernel.limit_bytes(), lower_bytes, lost_bytes }
        });
    }

    /// Lets clusters leave until the lower level is within its limit.
    fn make_room(&self) {
        let limit = self.compressed_bytes_max();
        if self.store.metadata_bytes() as u64 > limit / TABLES_PART {
            self.replacement.forget_ghosts(&self.store, GROUPS_AT_ONCE);
        }
        let cost = || self.store.cost_bytes() as u64;
        if cost() > limit {
            let _only = locked(&self.making_room);
            // Nobody may come by again for long, and one turn of compaction may not do.
            let mut before = u64::MAX;
            while cost() > limit && cost() < before {
                before = cost();
                self.let_leave(limit - limit / ROOM_PART);
            }
        }
        self.share_memory();
    }

    fn let_leave(&self, limit: u64) {
        loop {
            let statistics = self.store.statistics();
            let used = statistics.pool_used_bytes + statistics.metadata_bytes;
            let Some(excess) = used.checked_sub(limit).filter(|&excess| excess > 0) else {
                if statistics.pool_fragmentation_bytes > limit / ROOM_PART {
                    let started = Instant::now();
                    self.store.compact(|| started.elapsed() < COMPACTION_TURN);
                }
                return;
            };
            // At the worst, nothing has been compressed.
            let pages = excess / ramfold_codec::PAGE_SIZE as u64 + 1;
            let mut left = 0;
            while left < pages {
                match self.replacement.let_some_leave(&self.store) {
                    0 => return,
                    some => left += some,
                }
            }
        }
    }

    /// Milliseconds since the start.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// Takes up to this number of files that nobody else holds out of the known ones.
fn take_unused(known: &mut HashMap<FileKey, Arc<Content>>, count: usize) -> Vec<Arc<Content>> {
    let unused = known.iter().filter(|(_, content)| Arc::strong_count(content) == 1);
    let keys: Vec<FileKey> = unused.take(count).map(|(key, _)| *key).collect();
    keys.iter().filter_map(|key| known.remove(key)).collect()
}

fn files_max(config: &Config) -> usize {
    (config.memory_bytes / FILES_PART) as usize / FILE_BYTES
}

/// No invariant of ours breaks by a panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

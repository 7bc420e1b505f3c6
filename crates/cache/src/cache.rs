//! The cache as a whole.

use std::fmt;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_engine::EngineError;
use ramfold_store::{Config as StoreConfig, Store};

use crate::backlog::Backlog;
use crate::costs::CostMeter;
use crate::keys::KeySpace;
use crate::recent::Recent;
use crate::replacement::Replacement;
use crate::statistics::Counters;
use crate::{BackingSpeed, Costs, Owner, buffer};

/// Clusters that wait to be compressed have this part of the memory at most.
const STAGING_PART: u64 = 16;
const STAGING_BYTES_MAX: u64 = 64 << 20;
/// The store's tables may take this part of the memory, or this much where that is less.
const METADATA_PART: usize = 4;
const METADATA_BYTES_MIN: usize = 1 << 20;

/// How pages are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Most memory that the cache may ever have, in bytes.
    pub memory_bytes: u64,
    /// `None`: as the backing is, slow or fast.
    pub codec: Option<ClusterCodec>,
    /// Pages that are compressed as one; `None`: as they are read and the backing is.
    pub cluster: Option<ClusterSize>,
    /// Compresses on one thread instead of several: for one processor.
    pub synchronous: bool,
}

impl Config {
    /// So much memory, and all else as it serves best.
    pub fn new(memory_bytes: u64) -> Config {
        Config { memory_bytes, codec: None, cluster: None, synchronous: false }
    }
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no store.
    #[error("cannot set up the memory for compressed pages: {0}")]
    Store(#[from] ramfold_store::StoreError),
    /// There is no engine.
    #[error("cannot set up compression: {0}")]
    Engine(#[from] EngineError),
    /// There is no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Keeps pages of owners compressed in RAM.
///
/// [`Cache::read`] reads pages, [`Cache::forget`] is to be called when they have changed, and
/// [`Cache::start`] starts the thread that compresses. How much memory the cache has is up to the
/// front end: [`Cache::make_room`] keeps it within a limit, [`Cache::costs`] says what more memory
/// would be worth.
///
/// Lock order: what an owner holds in [`Owner::store_if_current`], then its keys, then the
/// replacement's and the store's; those of recent clusters come last.
pub struct Cache<O: Owner> {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) keys: KeySpace,
    pub(crate) replacement: Replacement,
    pub(crate) backlog: Backlog<O>,
    /// Memory of the rooms in which the engine works.
    pub(crate) rooms_bytes: AtomicUsize,
    pub(crate) recent: Recent<O>,
    pub(crate) speed: BackingSpeed,
    pub(crate) costs: CostMeter,
    pub(crate) counters: Counters,
    /// Held by whoever makes room.
    pub(crate) making_room: Mutex<()>,
}

impl<O: Owner> fmt::Debug for Cache<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<O: Owner> Cache<O> {
    /// An empty cache.
    ///
    /// # Errors
    /// [`CacheError::Store`].
    pub fn new(config: Config) -> Result<Cache<O>, CacheError> {
        let memory = config.memory_bytes;
        let store = Store::new(&StoreConfig {
            pool_bytes_max: memory as usize,
            reserve_bytes: 0,
            metadata_bytes_max: (memory as usize / METADATA_PART).max(METADATA_BYTES_MIN),
            spill: None,
        })?;
        let staging_bytes = (memory / STAGING_PART).min(STAGING_BYTES_MAX) as usize;
        Ok(Cache {
            config,
            store,
            keys: KeySpace::default(),
            replacement: Replacement::default(),
            backlog: Backlog::new(staging_bytes),
            rooms_bytes: AtomicUsize::new(0),
            recent: Recent::default(),
            speed: BackingSpeed::default(),
            costs: CostMeter::default(),
            counters: Counters::default(),
            making_room: Mutex::default(),
        })
    }

    /// How fast backings are.
    pub fn speed(&self) -> &BackingSpeed {
        &self.speed
    }

    /// What reads and compression have cost since this was called last.
    pub fn costs(&self) -> Costs {
        self.costs.take()
    }

    /// What the store costs, its tables included.
    pub fn stored_bytes(&self) -> u64 {
        self.store.cost_bytes() as u64
    }

    /// What the store's tables cost.
    pub fn metadata_bytes(&self) -> u64 {
        self.store.metadata_bytes() as u64
    }

    /// What clusters took that were evicted shortly before, about.
    pub fn just_left_bytes(&self) -> u64 {
        let clusters = self.stored_bytes().saturating_sub(self.metadata_bytes());
        (clusters as f64 * self.replacement.just_left()) as u64
    }

    /// Memory of clusters that wait or are being compressed, and for more.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog.bytes() + self.rooms_bytes.load(Ordering::Relaxed)
    }

    /// What the cache costs beside the store: the backlog, recent clusters, and buffers of reads.
    pub fn staging_bytes(&self) -> usize {
        self.backlog_bytes() + self.recent.bytes() + buffer::bytes()
    }

    /// Whether clusters wait to be compressed, or are being compressed.
    pub fn is_compressing(&self) -> bool {
        self.backlog.is_at_work()
    }
}

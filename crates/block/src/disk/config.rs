//! What a disk is asked to be, what its memory goes to, and why there can be none.

use std::path::PathBuf;
use std::time::Duration;

use ramfold_codec::{Choice, Codec, ScratchError};
use ramfold_store::StoreError;
use rustix::io::Errno;

use super::clusters::{ClusterRoom, Clusters, Maker};
use super::dedup::{Dedup, PAGES_MAX};
use super::page_locks::PageLocks;
use super::workspace::{Needs, Workspaces};
use super::{GROUP, PAGE, recompress, spill};

/// A disk in RAM, as it is asked for.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Size of the disk in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// Most memory that the disk takes for everything: objects, index, tables, buffers.
    pub memory_bytes: u64,
    /// What pages are compressed with when they are written.
    pub codec: Choice,
    /// Whether equal pages share an object.
    pub deduplicate: bool,
    /// Whether pages that are used in order are compressed four at a time when they have become
    /// cold. A disk for swap, or with a spill file, keeps each page by itself all the same.
    pub clusters: bool,
    /// Requests that are served at the same time, at least 1. Others wait.
    pub threads: usize,
    /// When pages that were not written meanwhile are compressed once more, for density; `None`:
    /// never.
    pub recompress_after: Option<Duration>,
    /// A file for what the memory has no room for. Not for swap.
    pub spill: Option<SpillConfig>,
    /// For swap: no request waits for memory of the system's, which could wait for the request.
    /// Index and buffers have all their memory from the beginning; memory for objects is kept
    /// ready, and a write that finds none fails.
    pub for_swap: bool,
}

/// A file for what the memory has no room for. It has no name, and its content is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillConfig {
    /// The folder that the file is in.
    pub folder: PathBuf,
    /// Its largest size; rounded down to segments of 1 MiB.
    pub bytes: u64,
}

impl DiskConfig {
    /// A disk of that size in that much memory: LZ4, deduplication, recompression after ten
    /// seconds, clusters if the buffers for them are little of the memory, and no spill file.
    pub fn new(size_bytes: u64, memory_bytes: u64) -> DiskConfig {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let cluster_buffers = (threads * ClusterRoom::bytes() + Maker::bytes()) as u64;
        DiskConfig {
            size_bytes,
            memory_bytes,
            codec: Choice::Only(Codec::Lz4),
            deduplicate: true,
            clusters: cluster_buffers <= memory_bytes / CLUSTERS_MEMORY_PART,
            threads,
            recompress_after: Some(Duration::from_secs(10)),
            spill: None,
            for_swap: false,
        }
    }
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// A disk of no pages, or not of whole pages.
    #[error("a disk of {bytes} bytes cannot be made: its size must be a multiple of 4096, not 0")]
    Size {
        /// The size that was asked for.
        bytes: u64,
    },
    /// More pages than deduplication has numbers for.
    #[error(
        "a disk of {} MiB is too large for deduplication: {} MiB is the most; make it smaller, or \
         turn deduplication off",
        bytes >> 20,
        most_bytes >> 20
    )]
    TooLarge {
        /// The size that was asked for.
        bytes: u64,
        /// The largest size.
        most_bytes: u64,
    },
    /// No memory is left for data beside tables and buffers.
    #[error(
        "{} KiB of memory is too little for a disk of {} KiB: with its tables and buffers it needs \
         {} KiB at least",
        memory_bytes >> 10,
        size_bytes >> 10,
        least_bytes.div_ceil(1024)
    )]
    Memory {
        /// The memory that was given.
        memory_bytes: u64,
        /// The size that was asked for.
        size_bytes: u64,
        /// The least memory for a disk of this size.
        least_bytes: u64,
    },
    /// The codec does not start.
    #[error("cannot prepare the codec {codec}: {source}")]
    Codec {
        /// The codec, or `auto`.
        codec: Choice,
        /// Its reason.
        source: ScratchError,
    },
    /// The system gave no address space or memory.
    #[error("cannot set the disk's memory up: {0}")]
    Store(#[from] StoreError),
    /// There are no random numbers.
    #[error("cannot draw a key: {0}")]
    Key(Errno),
    /// There can be no spill file.
    #[error("cannot make a spill file in {}: {reason}", folder.display())]
    Spill {
        /// The folder that was named.
        folder: PathBuf,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// A spill file for swap: its file system may wait for memory, and the kernel for the disk.
    #[error(
        "cannot spill what is swapped: the machine can stand still where memory is short; \
         --backing with a swap partition is safe"
    )]
    SpillForSwap,
    /// The system starts no thread.
    #[error("cannot start the thread that looks after the disk: {0}")]
    Thread(std::io::Error),
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) pages: u64,
    pub(super) memory_bytes: usize,
    /// Free memory of the pool that is kept ready.
    pub(super) reserve_bytes: usize,
    /// What requests that run at the same time may take beyond what they have seen to be free.
    pub(super) margin_bytes: usize,
    /// For deduplication: with more, some equal pages are not found.
    pub(super) objects_max: u64,
    /// Most memory of the index.
    pub(super) index_bytes_max: usize,
}

/// A request takes at most a span of the pool and one of the index, and some of the tables.
const MARGIN_BYTES_EACH: usize = 160 << 10;
/// Tables of the index double, each for a 64th of the pages.
const MARGIN_PART: usize = 256;
/// Least memory for data.
const DATA_BYTES_MIN: usize = 1 << 20;
/// The reserve is this part of the memory, within limits.
const RESERVE_PART: usize = 128;
const RESERVE_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=8 << 20;
/// The same for swap, where all that is written lies in the reserve at first: it is what the kernel
/// can write until the keeper has had its turn.
const SWAP_RESERVE_PART: usize = 16;
const SWAP_RESERVE_BYTES: std::ops::RangeInclusive<usize> = 2 << 20..=32 << 20;
/// Least memory of an index that has all of it from the beginning.
const INDEX_BYTES_MIN: u64 = 1 << 20;
/// The most that buffers for clusters take of the memory where nothing is said of clusters.
const CLUSTERS_MEMORY_PART: u64 = 64;
/// The usual length of objects that are short.
const OBJECT_BYTES_FEW: u64 = 512;

impl DiskConfig {
    /// Divides the memory, of which `other_bytes` are for others.
    ///
    /// # Errors
    /// [`DiskError::Size`], [`DiskError::TooLarge`], [`DiskError::Memory`],
    /// [`DiskError::SpillForSwap`].
    pub(super) fn plan(&self, other_bytes: usize) -> Result<Plan, DiskError> {
        let bytes = self.size_bytes;
        let pages = bytes / PAGE as u64;
        if pages == 0 || !bytes.is_multiple_of(PAGE as u64) {
            return Err(DiskError::Size { bytes });
        }
        if self.deduplicate && pages > PAGES_MAX {
            return Err(DiskError::TooLarge { bytes, most_bytes: PAGES_MAX * PAGE as u64 });
        }
        if self.for_swap && self.spill.is_some() {
            return Err(DiskError::SpillForSwap);
        }
        let memory_bytes = usize::try_from(self.memory_bytes).unwrap_or(usize::MAX);
        let threads = self.threads.max(1);
        let needs = self.needs();
        let each = Workspaces::bytes_each(needs);
        let again = recompress::bytes(self.recompress_after, needs.has_clusters);
        let buffers = threads * each + again + self.cluster_bytes() + PageLocks::BYTES;
        let spill = if needs.has_spill { spill::memory_bytes(memory_bytes) } else { 0 };
        let objects_max = self.memory_bytes / OBJECT_BYTES_FEW;
        let tables = match (self.deduplicate, self.for_swap) {
            (false, _) => 0,
            (true, false) => Dedup::least_bytes(pages, objects_max),
            (true, true) => Dedup::most_bytes(pages, objects_max),
        };
        let index_bytes_max = self.index_bytes_max(memory_bytes);
        let index = if self.for_swap { index_bytes_max } else { 512 << 10 };
        let margin = threads * MARGIN_BYTES_EACH;
        let fixed = buffers + spill + tables + index + margin + DATA_BYTES_MIN + other_bytes;
        let margin_bytes = margin + memory_bytes / MARGIN_PART;
        if memory_bytes < fixed + memory_bytes / MARGIN_PART {
            let mut least = fixed;
            while least < fixed + least / MARGIN_PART {
                least = fixed + least / MARGIN_PART;
            }
            let least_bytes = least as u64;
            let (memory_bytes, size_bytes) = (self.memory_bytes, bytes);
            return Err(DiskError::Memory { memory_bytes, size_bytes, least_bytes });
        }
        Ok(Plan {
            pages,
            memory_bytes,
            reserve_bytes: self.reserve_bytes(memory_bytes),
            margin_bytes,
            objects_max,
            index_bytes_max,
        })
    }

    /// What workspaces are needed for.
    pub(super) fn needs(&self) -> Needs {
        let has_spill = self.spill.is_some();
        let has_clusters =
            self.clusters && self.recompress_after.is_some() && !(has_spill || self.for_swap);
        Needs { codec: self.codec, has_spill, has_clusters }
    }

    /// Memory for clusters beside what workspaces have.
    pub(super) fn cluster_bytes(&self) -> usize {
        let pages = self.size_bytes / PAGE as u64;
        if self.needs().has_clusters { Clusters::bytes(pages, self.memory_bytes) } else { 0 }
    }

    fn reserve_bytes(&self, memory_bytes: usize) -> usize {
        let (part, limits) = match self.for_swap {
            true => (SWAP_RESERVE_PART, SWAP_RESERVE_BYTES),
            false => (RESERVE_PART, RESERVE_BYTES),
        };
        (memory_bytes / part).clamp(*limits.start(), *limits.end())
    }

    /// For swap the index has leaves for all pages, and for the shared objects that half as many
    /// pages have at most. A leaf of 64 pages takes 512 bytes, and 13 of 16 bytes are leaves'.
    fn index_bytes_max(&self, memory_bytes: usize) -> usize {
        if !self.for_swap {
            return memory_bytes;
        }
        let pages = self.size_bytes / PAGE as u64;
        let shared = if self.deduplicate { pages.div_ceil(2) } else { 0 };
        let leaves = pages.div_ceil(GROUP) + shared.div_ceil(GROUP);
        let bytes = (leaves * 512).next_multiple_of(64 << 10) / 13 * 16 + (64 << 10);
        usize::try_from(bytes.max(INDEX_BYTES_MIN)).unwrap_or(usize::MAX)
    }
}

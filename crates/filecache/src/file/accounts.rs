//! What takes memory beside the two levels: known inodes and files, and whatever else the
//! process has that nobody counts one by one: buffers of threads, open files, memory that the
//! allocator has not given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_sys::proc::Statm;

use super::Shared;
use super::known_files::FILE_BYTES;

/// Known inodes are forgotten when they take this part of the memory, or together with the files
/// that anything is remembered of that one.
const INODES_PART: u64 = 8;
const KNOWN_PART: u64 = 4;
/// When there are too many, so much less than that is left.
const FORGOTTEN_PART: u64 = 8;

/// What an `Arc` of it takes: two counts, and what malloc(3) adds.
pub(crate) const fn allocated<T>() -> usize {
    (size_of::<T>() + 3 * size_of::<usize>()).next_multiple_of(16)
}

/// How many inodes are known, and what they take.
#[derive(Debug, Default)]
pub(crate) struct InodesSize {
    inodes: AtomicU64,
    bytes: AtomicU64,
}

impl InodesSize {
    pub(crate) fn set(&self, inodes: u64, bytes: u64) {
        self.inodes.store(inodes, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Keeps the account of it, and the levels within what is left.
pub(crate) struct Accounts {
    shared: Arc<Shared>,
    /// `None` where nobody can say what the process has.
    process: Option<Statm>,
}

impl Accounts {
    pub(super) fn new(shared: Arc<Shared>) -> Accounts {
        Accounts { shared, process: Statm::open().ok() }
    }

    /// Looks what the process has, and has the levels make room for it.
    pub(crate) fn settle(&self) {
        if let Some(memory) = self.process.as_ref().and_then(|process| process.read().ok()) {
            let counted = self.shared.counted_bytes();
            let other = memory.anonymous_bytes.saturating_sub(counted);
            self.shared.other_bytes.store(other, Ordering::Relaxed);
        }
        let (files, files_max) = (self.shared.known.bytes(), self.files_bytes_max());
        if files > files_max {
            self.shared.known.forget_unused(((files - files_max) / FILE_BYTES as u64) as usize + 1);
        }
        self.shared.make_room();
    }

    /// What known files may take beside the inodes.
    fn files_bytes_max(&self) -> u64 {
        let known = self.shared.config.memory_bytes / KNOWN_PART;
        known.saturating_sub(self.shared.inodes.bytes())
    }

    /// How many of the known inodes are to be forgotten: none, or more than there are too many.
    pub(crate) fn inodes_excess(&self) -> u64 {
        let (inodes, files) = (&self.shared.inodes, self.shared.known.bytes());
        let each = inodes.bytes() / inodes.inodes().max(1) + 1;
        let too_many = |bytes: u64, part: u64, each: u64| {
            let max = self.shared.config.memory_bytes / part;
            if bytes <= max { 0 } else { (bytes - max + max / FORGOTTEN_PART).div_ceil(each) }
        };
        let alone = too_many(inodes.bytes(), INODES_PART, each);
        // Whose inode is forgotten is a file that nobody uses.
        alone.max(too_many(inodes.bytes() + files, KNOWN_PART, each + FILE_BYTES as u64))
    }
}

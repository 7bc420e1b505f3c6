//! How the memory is divided: the lower level has what the balance says, the upper one the rest.

use std::sync::atomic::Ordering;

use super::Shared;
use super::balance::Held;

/// What neither level has, so that one may grow a little before the other has shrunk.
const RESERVE_PART: u64 = 32;
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// What the levels have at least beside all else: staging, and a little of the upper level.
const LEFT_PART: u64 = 8;
/// Most of the upper level where reads are traced: what it answers is not seen.
const TRACED_PART: u64 = 16;
const TRACED_BYTES_MAX: u64 = 4 << 20;

impl Shared {
    /// What both levels cost now, and what is on its way between them.
    pub(super) fn cost_bytes(&self) -> u64 {
        self.own_bytes() + self.kernel.bytes()
    }

    /// The same without the pages of the upper level.
    fn own_bytes(&self) -> u64 {
        self.counted_bytes() + self.other_bytes()
    }

    /// What is counted of that.
    pub(super) fn counted_bytes(&self) -> u64 {
        let known = self.known.bytes() + self.inodes.bytes();
        let remembering = self.kernel.remembering_bytes() + self.balance.bytes();
        self.cache.stored_bytes() + self.cache.staging_bytes() as u64 + known + remembering
    }

    /// What was found beside all that is counted.
    pub(super) fn other_bytes(&self) -> u64 {
        self.other_bytes.load(Ordering::Relaxed)
    }

    /// Most bytes that the lower level may cost.
    pub(super) fn compressed_bytes_max(&self) -> u64 {
        let memory = self.config.memory_bytes;
        let others = self.inodes.bytes() + self.known.bytes() + self.other_bytes();
        let left = (memory - memory / LEFT_PART).saturating_sub(others);
        self.balance.compressed_bytes_max().min(left)
    }

    /// Memory that the lower level has not filled, of which the backlog may have half.
    pub(super) fn spare_bytes(&self) -> usize {
        let spare = self.compressed_bytes_max().saturating_sub(self.cache.stored_bytes());
        // What the kernel has not dropped yet is not there.
        let free = self.config.memory_bytes.saturating_sub(self.cost_bytes());
        (spare as usize / 2).min(self.cache.backlog_bytes() + free as usize)
    }

    /// The upper level has what the lower one leaves.
    pub(super) fn share_memory(&self) {
        let used = self.own_bytes();
        let before = self.kernel.limit_bytes();
        let memory = self.config.memory_bytes;
        // The kernel takes its time to drop what the others need.
        let limit = (memory - (memory / RESERVE_PART).min(RESERVE_BYTES_MAX)).saturating_sub(used);
        let limit = match self.accesses {
            Some(_) => limit.min((memory / TRACED_PART).min(TRACED_BYTES_MAX)),
            None => limit,
        };
        self.kernel.set_limit_bytes(limit);
        if limit < before {
            self.kernel.limit_changed();
        }
    }

    /// Lets memory go from one level to the other where that is due.
    pub(super) fn rebalance(&self) {
        let held = || Held {
            kernel_bytes: self.kernel.limit_bytes(),
            lower_bytes: self.cache.stored_bytes(),
            lost_bytes: self.cache.just_left_bytes(),
        };
        self.balance.adjust(|| self.now_ns(), || self.cache.costs(), held);
    }

    /// Brings the lower level within its limit, and has the upper one have the rest.
    pub(super) fn make_room(&self) {
        self.cache.make_room(self.compressed_bytes_max());
        self.share_memory();
    }

    /// Nanoseconds since the start.
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Milliseconds since the start.
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

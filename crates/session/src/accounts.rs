//! What the processes of a session cost, together and each.

use core::sync::atomic::Ordering;

use ramfold_codec::Choice;

use crate::layout::{Process, Session};

impl Session {
    /// Bytes of memory that the pools of all processes have from the system.
    pub fn pool_bytes(&self) -> u64 {
        self.used_processes().map(|process| process.pool_total_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of memory that are kept for pools, and that the pools do not need.
    pub fn unused_pool_bytes(&self) -> u64 {
        match self.pool_kept_bytes.load(Ordering::Relaxed) {
            0 => 0,
            kept => kept.saturating_sub(self.pool_bytes()),
        }
    }

    /// How pages are compressed.
    pub fn codec(&self) -> Choice {
        Choice::from_number(self.codec.load(Ordering::Relaxed) as u16).unwrap_or_default()
    }

    /// Bytes that the living processes cost together, as each last published.
    pub fn cost_bytes(&self) -> u64 {
        self.used_processes().map(|place| place.cost_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Does `cost_bytes` of a living process count in full what it shares with another?
    pub fn sharing_is_unknown(&self) -> bool {
        self.used_processes().any(|place| {
            place.cost_bytes.load(Ordering::Relaxed) != 0
                && place.sharing_unknown.load(Ordering::Relaxed) != 0
        })
    }

    /// Adds up what a process counted and clears its account.
    pub(crate) fn retire(&self, place: &Process) {
        place.counters.drain_into(&self.retired);
        place.fault_ns.drain_into(&self.retired_fault_ns);
        place.active.store(0, Ordering::Relaxed);
        place.clear_amounts();
    }
}

impl Process {
    /// The process holds nothing any more.
    pub(crate) fn clear_amounts(&self) {
        for amount in self.gauges().chain([&self.claim_bytes]) {
            amount.store(0, Ordering::Relaxed);
        }
        self.sharing_unknown.store(0, Ordering::Relaxed);
        self.measured_ns.store(0, Ordering::Relaxed);
        self.gone_ns.store(0, Ordering::Relaxed);
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// Can its agent make room?
    pub fn can_reclaim(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 1 && !self.stuck.load(Ordering::Relaxed)
    }
}

//! What the fault handler and the reclaimer must see alike, and the lock that it is under.

use ramfold_policy::memory::objective::Objectives;
use ramfold_policy::memory::probation::Probation;
use ramfold_policy::memory::victims::Victims;
use ramfold_sys::sync::MutexGuard;

use rustix::thread::sched_yield;

use super::{Active, Agent};
use crate::staging::Staging;
use crate::take::dropped::DroppedRanges;
use crate::take::regions::Regions;
use crate::take::sweep::Sweep;
use crate::take::watch::Watch;

/// What the fault handler and the reclaimer must see alike. Whoever reads a message from the
/// userfaultfd or moves pages holds this.
///
/// Lock order: `core` before any lock of the store.
#[repr(C)]
pub(crate) struct Core {
    pub regions: Regions,
    pub staging: Staging,
    pub probation: Probation,
    pub victims: Victims,
    pub sweep: Sweep,
    pub dropped: DroppedRanges,
    pub objectives: Objectives,
    pub watch: Watch,
    /// The mappings changed in a way the events do not describe fully: look at them again.
    pub rescan_wanted: bool,
    /// Pages were taken in this process, or in one that it is a copy of.
    pub has_taken: bool,
}

/// What a message is acted upon with, and pages are taken with: the agent, and all that is under
/// its lock.
pub(crate) struct Context<'a> {
    pub agent: &'static Agent,
    pub active: &'static Active,
    pub core: &'a mut Core,
}

/// How long the handler waits for the lock before it looks whether a fork holds it.
pub(crate) const LOCK_PATIENCE_NS: u32 = 200_000;

impl Agent {
    /// Locks `core` with every message that was read also acted upon: what all but the handler
    /// itself must use.
    pub(crate) fn lock_core(&self) -> MutexGuard<'_, Core> {
        loop {
            let core = self.core.lock();
            if self.fork_copy.is_settled() {
                return core;
            }
            drop(core);
            sched_yield();
        }
    }

    /// Locks `core` like [`Agent::lock_core`], if that can be had at once.
    pub(crate) fn try_lock_core(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock().filter(|_| self.fork_copy.is_settled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_not_had_while_messages_wait_to_be_acted_upon() {
        // SAFETY: zeroed memory is a valid start.
        let agent = unsafe { Box::<Agent>::new_zeroed().assume_init() };
        assert!(agent.try_lock_core().is_some());
        agent.fork_copy.begin_delay();
        assert!(agent.try_lock_core().is_none());
        agent.fork_copy.end_delay();
        let core = agent.try_lock_core();
        assert!(core.is_some(), "what was not had must not stay locked");
        assert!(agent.try_lock_core().is_none());
    }
}

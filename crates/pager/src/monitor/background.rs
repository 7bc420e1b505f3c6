//! Work for which there is time: proactive reclaim, recompression, compaction of the pool.

use core::sync::atomic::Ordering;

use ramfold_codec::Choice;
use ramfold_policy::memory::pace::Pace;
use ramfold_sys::PAGE_SIZE;

use super::Monitor;
use super::cap::has_grown;
use crate::agent::Context;
use crate::cost;
use crate::kernel::time;
use crate::take::proactive::{self, Proactive};

/// The pool is compacted when as much as the cap / this lies unused in it, and then not for so many
/// times as long as it took.
const COMPACTION_SHARE: u64 = 64;

const COMPACTION_REST: u64 = 20;

/// It ends early when the program grows, which is looked at after so many leaves of 64 pages:
/// every half of a millisecond.
const COMPACTION_LEAVES: u32 = 16;

/// When the pool was last compacted.
#[derive(Default)]
pub(super) struct Compaction {
    /// Memory the pool holds beyond what its objects need, as of the last full account.
    pub(super) fragmentation_bytes: u64,
    ended_ns: u64,
    took_ns: u64,
}

impl Monitor {
    pub(super) fn cold_after_ns(&self) -> u64 {
        self.agent.session().cold_after_ns.load(Ordering::Relaxed)
    }

    /// In proactive mode: compresses what nobody has touched for a while.
    pub(super) fn compress_cold(&mut self) {
        let agent = self.agent;
        let cold_after_ns = self.cold_after_ns();
        if cold_after_ns == 0 {
            return;
        }
        let Some(active) = agent.active() else { return };
        let mut reclaimer = self.take_reclaimer();
        let now = time::monotonic_ns();
        let fault_ns = agent.process().counters.fault_ns_total.load(Ordering::Relaxed);
        let (mut cold, mut pace) = self.cold.take().unwrap_or_else(|| {
            let slowdown_ppm = agent.session().slowdown_ppm.load(Ordering::Relaxed);
            (Proactive::START, Pace::new(cold_after_ns, slowdown_ppm, now, fault_ns))
        });
        let resident_bytes = self.cost_bytes().saturating_sub(self.store_cost());
        let mut due = pace.pages_due(now, resident_bytes / PAGE_SIZE as u64, fault_ns);
        // Where memory is short that comes first.
        let high = cost::own_watermarks(agent).high;
        while due > 0 && self.cost_bytes() <= high {
            let step = cold.step(&mut Context { agent, active, core: &mut agent.lock_core() });
            match step {
                proactive::Step::Looked(pages) => due = due.saturating_sub(pages),
                proactive::Step::Full => {
                    reclaimer.drain(active);
                    self.look();
                }
                proactive::Step::Round => {
                    agent.lock_core().staging.seal_chunk();
                    break;
                }
                proactive::Step::Changing => break,
            }
        }
        reclaimer.drain(active);
        self.reclaimer = Some(reclaimer);
        self.cold = Some((cold, pace));
    }

    /// Where memory is short, but not just now: compresses once more what has stayed out.
    pub(super) fn recompress(&mut self) {
        let agent = self.agent;
        self.recompresses = false;
        // Relatives that share an object would both pay for what takes its place.
        if agent.is_stuck() || agent.sharing.is_shared() {
            return;
        }
        let Some(active) = agent.active() else { return };
        let session = agent.session();
        // A single codec makes nothing smaller.
        if session.codec() != Choice::Auto {
            return;
        }
        let is_short = || {
            let total = cost::total(agent);
            let marks = cost::watermarks(session);
            (marks.activation..=marks.high).contains(&(total + session.unused_pool_bytes()))
        };
        if !is_short() || time::monotonic_ns() < self.growing_until_ns {
            return;
        }
        if !self.recompress.is_due(agent, active, self.quiet.is_quiet()) {
            return;
        }
        let mut reclaimer = self.take_reclaimer();
        let (statm, before) = (&self.statm, self.memory);
        self.recompresses = self.recompress.go_on(agent, active, &mut reclaimer, || {
            is_short() && !has_grown(statm, before) && !agent.announcements.is_waited_for()
        });
        self.reclaimer = Some(reclaimer);
        self.note_own_change();
    }

    /// Memory is short, and some of it lies unused between the objects of the pool.
    pub(super) fn compact_if_worth_it(&mut self) {
        let Some(active) = self.agent.active() else { return };
        let marks = cost::watermarks(self.agent.session());
        let now = time::monotonic_ns();
        if self.compaction.fragmentation_bytes < marks.cap / COMPACTION_SHARE
            || now - self.compaction.ended_ns < self.compaction.took_ns * COMPACTION_REST
        {
            return;
        }
        // The program may need this thread meanwhile.
        let (statm, before) = (&self.statm, self.memory);
        let mut leaves = 0u32;
        active.store.compact(|| {
            leaves += 1;
            !leaves.is_multiple_of(COMPACTION_LEAVES)
                || !has_grown(statm, before) && !self.agent.announcements.is_waited_for()
        });
        self.agent.process().counters.compactions.fetch_add(1, Ordering::Relaxed);
        self.compaction.ended_ns = time::monotonic_ns();
        self.compaction.took_ns = self.compaction.ended_ns - now;
        // Not known again before the next account.
        self.compaction.fragmentation_bytes = 0;
        self.look();
    }
}

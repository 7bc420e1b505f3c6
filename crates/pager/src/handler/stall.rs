//! Room for a fault: takes pages ahead of need, and at the cap helps to free some or waits for it.

use core::sync::atomic::Ordering;

use ramfold_policy::memory::stream::WINDOW_MAX;
use ramfold_sys::PAGE_SIZE;

use super::Handler;
use crate::agent::{Active, Agent, Context, Core, LOCK_PATIENCE_NS};
use crate::cost;
use crate::kernel::{Kernel, time};
use crate::reclaim::{By, Chunk, Reclaimer};
use crate::spill::{self};
use crate::staging::CHUNK_PAGES;
use crate::take::sweep::{self, Taken};

/// How long the handler works to make room for a fault at most, in time that it has a processor;
/// and if the program grows faster than reclaim. On a machine where many want one it has none for
/// most of the time, and a fault must not be let through for that.
const STALL_NS: u64 = 2_000_000;

const STALL_OUTRUN_NS: u64 = 20_000_000;

/// And so many times as long altogether: others may make progress, but not enough.
const STALL_ELAPSED: u64 = 25;

/// Between two looks of a fault that waits for room.
const WAIT_NS: u64 = 1_000_000;
/// Steps of the sweep in one fault: they may all pass pages by.
const TAKE_STEPS_MAX: usize = 4 * CHUNK_PAGES;

impl Handler {
    /// Fills staging for the reclaimer when it is empty: the monitor has nothing to do then, and
    /// the faulting thread waits. See [`sweep`].
    pub(super) fn take_ahead(context: &mut Context<'_>) {
        let agent = context.agent;
        let cost = agent.cost();
        let near = cost.saturating_sub(spill::leaving_bytes(agent))
            + (CHUNK_PAGES * PAGE_SIZE) as u64
            > cost::own_watermarks(agent).high;
        if !near || context.core.staging.waiting() > 0 || context.core.sweep.is_blocked() {
            return;
        }
        for _ in 0..TAKE_STEPS_MAX {
            if context.core.staging.holds_enough() {
                break;
            }
            match sweep::take_next(context) {
                Taken::Pages | Taken::Passed => {}
                // The rest may be far: the fault comes first.
                Taken::Looked | Taken::Busy(_) | Taken::Changing | Taken::Full | Taken::Nothing => {
                    break;
                }
            }
        }
    }

    /// In direct reclaim: sees to it that there is a chunk for this thread and one for the monitor.
    fn take_directly(context: &mut Context<'_>) {
        for _ in 0..TAKE_STEPS_MAX {
            if context.core.staging.waiting() >= 2 || context.core.sweep.is_blocked() {
                break;
            }
            match sweep::take_next(context) {
                Taken::Pages | Taken::Passed | Taken::Looked => {}
                Taken::Busy(_) | Taken::Changing | Taken::Full | Taken::Nothing => break,
            }
        }
    }

    /// Once the cap is reached, helps to make room, or waits for it where there is nothing to help
    /// with. Bounded: messages that are not faults need an answer too, and reclaim itself may wait
    /// for one.
    pub(super) fn stall_over_cap(&mut self, agent: &'static Agent, active: &'static Active) {
        let marks = cost::own_watermarks(agent);
        let cost = || agent.cost();
        if cost() <= marks.hard {
            return;
        }
        let counters = &agent.process().counters;
        // A program that outruns reclaim is held until there is room to grow.
        let (mark, longest) = if agent.hints.outruns() {
            (marks.low, STALL_OUTRUN_NS)
        } else {
            (marks.hard.saturating_sub((WINDOW_MAX * PAGE_SIZE) as u64), STALL_NS)
        };
        let (started, worked_before) = (time::monotonic_ns(), time::thread_cpu_ns());
        let is_late = || {
            time::thread_cpu_ns() - worked_before > longest
                || time::monotonic_ns() - started > longest * STALL_ELAPSED
        };
        counters.faults_stalled.fetch_add(1, Ordering::Relaxed);
        agent.progress.set_fault_waits(true);
        // A fork waits for its message to be read.
        let copying = || agent.fork_copy.is_copying();
        while cost() > mark && !copying() && self.can_wait(agent) {
            let seen = agent.progress.seen();
            // What is on its way to the spill file makes room by itself.
            let leaves = cost().saturating_sub(spill::leaving_bytes(agent)) <= mark;
            if leaves {
                spill::wake_if_wanted(agent, active);
            } else if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
                Self::take_directly(&mut Context { agent, active, core: &mut core });
            }
            if agent.monitor_sleep.take() {
                agent.process().wake_agent();
            }
            let goes_on = &mut || cost() > mark && !is_late() && !copying();
            // SAFETY: this is the handler, and there is none.
            let make = || unsafe { Reclaimer::make(agent, By::Handler) };
            match self.direct.get_or_insert_with(make).chunk(active, goes_on) {
                Chunk::Freed => {
                    counters.reclaim_direct.fetch_add(1, Ordering::Relaxed);
                }
                Chunk::Interrupted if cost() <= mark => {}
                Chunk::Nothing | Chunk::Interrupted => {
                    agent.progress.wait(seen, WAIT_NS);
                    // Who makes room may wait for an event to be read. Where others have the
                    // processors it only takes its time.
                    if agent.progress.seen() == seen && active.kernel.is_changing() {
                        break;
                    }
                }
            }
            if is_late() {
                break;
            }
        }
        agent.progress.set_fault_waits(false);
        // Otherwise before the next message is handled.
        if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
            self.release_chunk(&mut core);
        }
    }

    /// Can a fault wait for reclaim? Where there is nothing to take here before the process has
    /// grown by some pages, the others are told: what was written to here may be theirs alone now.
    fn can_wait(&self, agent: &Agent) -> bool {
        if !agent.is_stuck() {
            return true;
        }
        // Where pages go to a disk that would take too long.
        if agent.spills() {
            return false;
        }
        if agent.hints.is_retried_at(agent.cost()) {
            return true;
        }
        agent.wake_others();
        false
    }

    /// What direct reclaim has begun others may finish.
    pub(super) fn release_chunk(&mut self, core: &mut Core) {
        if let Some(direct) = &mut self.direct {
            direct.release(core);
        }
    }
}

//! Keeps the cost below the cap: reclaim in the background, and what is done where it finds nothing
//! more to take.

use core::sync::atomic::Ordering;

use ramfold_policy::memory::growth::{self, Growth};
use ramfold_policy::memory::watermarks::Watermarks;
use ramfold_store::EntryKind;

use super::{GROWING_NS, Monitor};
use crate::agent::{Active, Agent, Context};
use crate::cost;
use crate::kernel::{
    Kernel,
    proc::{Memory, Statm},
    time,
};
use crate::monitor::unheld::Unheld;
use crate::page;
use crate::reclaim::Step;
use crate::session::Once;
use crate::spill::{self};
use crate::take::retained;
use crate::take::sweep;

/// A program that was stopped this often and still has no room is not stopped any more: that is
/// not why memory is short.
const STOPS_MAX: u32 = 8;

/// How long a cap is passed before somebody is told.
const OVER_CAP_NS: u64 = 500_000_000;

/// And where pages go to a disk, which others may keep busy.
const OVER_CAP_SPILLING_NS: u64 = 10_000_000_000;

/// Reclaim that rests is tried again when the program has grown by as much as the cap / this.
const RETRY_SHARE: u64 = 16;

/// Or by as much, where what it has is shared: to look for the few pages that are not takes a
/// millisecond.
const COPIES_BYTES: u64 = 64 << 10;

/// A spill file to which nothing was written for so long makes no room that is worth waiting for.
const SPILL_PATIENCE_NS: u64 = 1_000_000_000;

/// Whether the spill file makes room.
#[derive(Default)]
pub(super) struct Spilling {
    /// Pages that were spilled so far, and when that number changed last.
    pages: u64,
    since_ns: u64,
}

impl Monitor {
    /// One round of the monitor where the agent is active: brings the cost below the cap, as far as
    /// there is something to take.
    pub(super) fn keep_below_cap(&mut self) {
        let agent = self.agent;
        self.follow_growth();
        let marks = cost::own_watermarks(agent);
        let (from, to) = if agent.progress.fork_waits() {
            let room = marks.fork.saturating_sub(cost::others_cost(agent));
            (room, room)
        } else {
            (marks.high, marks.low)
        };
        let process = agent.process();
        if self.cost_bytes() <= from {
            if process.stuck.swap(false, Ordering::Relaxed) {
                agent.lock_core().sweep.encourage();
            }
            self.back_off.reset();
            self.stops = 0;
            self.over_since_ns = 0;
            return;
        }
        if agent.is_stuck() && !self.tries_again() {
            return self.say_why_not_held();
        }
        if cost::others_cost(agent) > 0 {
            agent.session().bury_the_dead(process.pid.load(Ordering::Relaxed));
            agent.wake_others();
        }
        self.compact_if_worth_it();
        let shared_before = process.counters.refused_shared.load(Ordering::Relaxed);
        let exhausted = self.reclaim(self.goal_bytes(to));
        self.look();
        // Faults do not wait for what reclaim cannot give; but for what is written, which takes as
        // long as the disk and the machine take.
        let is_spilling = self.is_spilling() && agent.others().next().is_none();
        let stuck = exhausted && self.cost_bytes() > from && !is_spilling;
        process.stuck.store(stuck, Ordering::Relaxed);
        if stuck {
            let shared = process.counters.refused_shared.load(Ordering::Relaxed) > shared_before;
            self.begin_rest(&marks, shared);
            self.say_why_not_held();
        }
    }

    /// Follows what the program maps, and how fast it grows.
    fn follow_growth(&mut self) {
        let agent = self.agent;
        let is_near = cost::others_cost(agent) + self.cost_bytes()
            > cost::watermarks(agent.session()).activation;
        if is_near && self.has_huge_pages {
            self.turn_huge_pages_off();
        }
        // As long as there is room, what is new need not be known.
        if is_near || self.cold_after_ns() > 0 || !agent.announces() {
            self.scan_mappings_if_changed();
        }
        if let Some(active) = agent.active() {
            retained::drop_unneeded(agent, active);
        }
        agent.hints.set_outruns(time::monotonic_ns() < self.growing_until_ns);
    }

    /// Where reclaim found nothing more to take: is it tried again?
    fn tries_again(&mut self) -> bool {
        let agent = self.agent;
        let is_late = self.back_off.is_over(time::monotonic_ns(), self.quiet.is_quiet());
        if !is_late && !agent.hints.is_retried_at(self.cost_bytes()) {
            return false;
        }
        let sweep = &mut agent.lock_core().sweep;
        sweep.encourage();
        if is_late {
            sweep.look_at_protected();
        }
        // Faults wait again, or they bring in pages as fast as reclaim takes them.
        agent.process().stuck.store(false, Ordering::Relaxed);
        true
    }

    /// To what cost reclaim goes, where all processes together are to give up what is more than
    /// `to` in this one: each that can gives way in proportion to what it costs.
    fn goal_bytes(&self, to: u64) -> u64 {
        let own = self.cost_bytes();
        let can: u64 = { self.agent.others().filter(|process| process.can_reclaim()) }
            .map(|process| process.cost_bytes.load(Ordering::Relaxed))
            .sum();
        let excess = u128::from(own.saturating_sub(to));
        let share = (excess * u128::from(own) / u128::from((own + can).max(1))) as u64;
        own - share.min(own)
    }

    /// There is nothing more to take: reclaim rests for a while, or until the process has grown.
    /// `shared`: some of what it has is shared.
    fn begin_rest(&mut self, marks: &Watermarks, shared: bool) {
        let agent = self.agent;
        self.back_off.begin(time::monotonic_ns());
        let spills = agent.spills();
        let growth = if shared && !spills {
            // What was copied of what is shared can be taken out.
            COPIES_BYTES
        } else {
            let growth = self.back_off.growth_bytes((marks.cap - marks.high) / 4);
            // Each process of the session may have come to this.
            let processes = if spills { 1 } else { 1 + agent.others().count() as u64 };
            growth.min(marks.cap / RETRY_SHARE) / processes
        };
        agent.hints.rest_until(self.cost_bytes() + growth);
    }

    /// There is nothing more to take: what is passed for long is said, once in a session.
    fn say_why_not_held(&mut self) {
        let (agent, session) = (self.agent, self.agent.session());
        let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
        let total = cost::others_cost(agent) + self.cost_bytes();
        let now = time::monotonic_ns();
        if total <= cap {
            self.over_since_ns = 0;
            return;
        }
        if self.over_since_ns == 0 {
            self.over_since_ns = now;
        }
        let patience = if agent.spills() { OVER_CAP_SPILLING_NS } else { OVER_CAP_NS };
        if now - self.over_since_ns < patience || session.has_said(Once::CapNotHeld) {
            return;
        }
        let Ok(unheld) = Unheld::of_process(agent) else { return };
        let others = agent.others().count();
        let family = format_args!("{} processes go", others + 1);
        let goes = if others == 0 { format_args!("the program goes") } else { family };
        session.say(
            Once::CapNotHeld,
            format_args!(
                "the cap of {} MiB cannot be held, {goes} on at {} MiB now: pid {}, {unheld}",
                cap >> 20,
                total >> 20,
                agent.pid(),
            ),
        );
    }

    /// Does the pool become smaller because what is in it goes to the spill file?
    fn is_spilling(&mut self) -> bool {
        let spilled = self.agent.process().counters.pages_spilled.load(Ordering::Relaxed);
        let now = time::monotonic_ns();
        if spilled != self.spilling.pages {
            (self.spilling.pages, self.spilling.since_ns) = (spilled, now);
        }
        spilled > 0 && now - self.spilling.since_ns < SPILL_PATIENCE_NS
    }

    /// Brings back whatever is compressed: touching it is enough.
    pub(super) fn bring_back(&mut self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        // What waits in staging is stored first: then all is in one place.
        agent.lock_core().staging.seal_chunk();
        let mut reclaimer = self.take_reclaimer();
        reclaimer.drain(active);
        self.reclaimer = Some(reclaimer);
        active.store.for_each(|page, kind| {
            if matches!(kind, EntryKind::Ghost | EntryKind::Damaged) || !agent_brings_back(agent) {
                return;
            }
            // What cannot be touched now (no access) comes when it can be.
            let _ = active.kernel.populate(page::address_of(page), false);
        });
        self.look();
    }

    /// Takes pages out until the process costs no more than `goal` bytes, or leaves that to the
    /// fault handler. `true` when there is nothing more to take.
    pub(super) fn reclaim(&mut self, goal: u64) -> bool {
        let agent = self.agent;
        let Some(active) = agent.active() else { return true };
        let mut reclaimer = self.take_reclaimer();
        let hard = cost::own_watermarks(agent).hard;
        let exhausted = loop {
            self.watch(active, hard);
            spill::wake_if_wanted(agent, active);
            if self.cost_bytes().saturating_sub(spill::leaving_bytes(agent)) <= goal {
                break false;
            }
            match reclaimer.step(active, &mut || self.watch(active, hard)) {
                Step::More => {}
                Step::Leave => break false,
                Step::Nothing => break true,
            }
        };
        self.reclaimer = Some(reclaimer);
        exhausted
    }

    /// During reclaim: notices how the program grows, and stops it when it outruns reclaim.
    fn watch(&mut self, active: &'static Active, hard: u64) {
        let agent = self.agent;
        self.ask();
        self.correct_estimate();
        // What the program maps meanwhile grows unseen until it is registered.
        self.scan_mappings_if_grown();
        self.provide_if_asked();
        if self.cost_bytes() > hard && self.growth.is_fast() && self.stops < STOPS_MAX {
            self.growth = Growth::default();
            self.stops += 1;
            let core = &mut *agent.lock_core();
            sweep::stop_thread(
                &mut Context { agent, active, core },
                self.mappings.main_stack.clone(),
            );
            self.growing_until_ns = time::monotonic_ns() + GROWING_NS;
        }
    }
}

pub(super) fn agent_brings_back(agent: &Agent) -> bool {
    agent.session().brings_back.load(Ordering::Relaxed)
}

/// Whether the program has grown by so much since that it may need the monitor; also where that
/// cannot be told.
pub(super) fn has_grown(statm: &Statm, before: Memory) -> bool {
    let most = before.anonymous_bytes + growth::FAST_BYTES;
    statm.read().map_or(true, |memory| memory.anonymous_bytes > most)
}

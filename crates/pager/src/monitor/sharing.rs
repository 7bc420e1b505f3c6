//! What the process shares with its relatives after a fork: measured, and guarded against copies
//! that there is no room for.

use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::Monitor;
use crate::agent::Context;
use crate::fork::copies;
use crate::kernel::{proc::Proportional, time};
use crate::protocols::sharing::ForksSeen;
use crate::session::Process;

/// Between two measurements of what is shared: at least this long, and this many times what one
/// takes for each process of the session.
const SHARING_NS_MIN: u64 = 2_000_000;

const SHARING_SHARE: u64 = 10;

/// The same where it is known to have changed.
const SHARING_SHARE_OLD: u64 = 3;

/// Where it has not, twice as long from measurement to measurement, up to this. What writes make of
/// it is known where it matters: see [`crate::fork::copies`].
const SHARING_NS_MAX: u64 = 64_000_000_000;

/// And less than this is no change.
const SHARING_CHANGE_BYTES: u64 = 256 << 10;

/// Where less is saved, all relatives are gone, or share too little to matter.
const SHARED_BYTES_MIN: u64 = 64 * PAGE_SIZE as u64;

/// The last measurement of what is shared.
#[derive(Default)]
pub(super) struct Sharing {
    measured_ns: u64,
    took_ns: u64,
    found_bytes: u64,
    /// After how long it is measured again, if nothing is known to have changed.
    rest_ns: u64,
    /// [`Session::parted_pages`](crate::session::Session::parted_pages) then.
    parted_pages: u64,
}

impl Monitor {
    /// After a fork a page may be shared with a relative. How much that saves only a walk through
    /// the page tables tells, so it is asked seldom.
    pub(super) fn measure_sharing(&mut self) {
        self.agent.copies.settle(self.agent.others());
        if !self.agent.sharing.is_shared() {
            return;
        }
        let seen = self.agent.sharing.seen();
        let (process, session) = (self.agent.process(), self.agent.session());
        let is_unknown = process.sharing_unknown.load(Ordering::Relaxed) == 1;
        let started = time::monotonic_ns();
        if self.agent.others().next().is_none() && !is_unknown {
            // The last relative is gone.
            return self.note_sharing(0, started, seen);
        }
        // A fork changes it all at once, and so does a relative's end; and copies do. What else
        // changes it shows sooner or later.
        let measured = process.measured_ns.load(Ordering::Relaxed);
        let parted = session.parted_pages.load(Ordering::Relaxed);
        let is_old = is_unknown
            || session.last_gone_ns.load(Ordering::Relaxed) >= measured
            || parted.wrapping_sub(self.sharing.parted_pages)
                >= SHARING_CHANGE_BYTES / PAGE_SIZE as u64;
        // All of the session do the same.
        let processes = 1 + self.agent.others().count() as u64;
        let share = processes * if is_old { SHARING_SHARE_OLD } else { SHARING_SHARE };
        let unchanged_ns = if is_old { 0 } else { self.sharing.rest_ns };
        let rest = (self.sharing.took_ns * share).max(SHARING_NS_MIN).max(unchanged_ns);
        if self.sharing.measured_ns != 0 && started - self.sharing.measured_ns < rest {
            return;
        }
        // What this process pays no more a relative does; one whose memory is being freed does not
        // say so.
        if self.agent.others().any(Process::ends) {
            return;
        }
        process.sharing_unknown.store(0, Ordering::Relaxed);
        self.sharing.parted_pages = parted;
        if let Ok(proportional) = Proportional::of_this_process() {
            let saved = self.memory.anonymous_bytes.saturating_sub(proportional.anonymous);
            let before = core::mem::replace(&mut self.sharing.found_bytes, saved);
            self.sharing.rest_ns = if before.abs_diff(saved) > SHARING_CHANGE_BYTES {
                0
            } else {
                (self.sharing.rest_ns.max(rest) * 2).min(SHARING_NS_MAX)
            };
            self.note_sharing(saved, started, seen);
        }
        self.sharing.measured_ns = time::monotonic_ns();
        self.sharing.took_ns = self.sharing.measured_ns - started;
    }

    /// In a forked child: what it shares is not measured yet.
    pub(crate) fn begin_sharing(&mut self) {
        let cost = self.agent.copies.child_bytes();
        self.agent.copies.set_saved_bytes(self.memory.anonymous_bytes.saturating_sub(cost));
        // As usual for a process of 20 MiB.
        self.sharing.measured_ns = time::monotonic_ns();
        self.sharing.took_ns = SHARING_NS_MIN / 4;
    }

    /// So much is saved by what is shared, as measured after `seen`.
    fn note_sharing(&self, saved_bytes: u64, measured_ns: u64, seen: ForksSeen) {
        let agent = self.agent;
        let last_measured_ns = &agent.process().measured_ns;
        if saved_bytes >= SHARED_BYTES_MIN {
            agent.copies.set_saved_bytes(saved_bytes);
            last_measured_ns.store(measured_ns, Ordering::Relaxed);
            return;
        }
        // A fork since then has asked for another measurement.
        if !agent.sharing.end(seen) {
            return;
        }
        agent.copies.set_saved_bytes(0);
        last_measured_ns.store(0, Ordering::Relaxed);
        let active = agent.active();
        if let Some(active) = active {
            active.store.end_sharing();
        }
        if agent.sharing.has_begun_again() {
            last_measured_ns.store(measured_ns, Ordering::Relaxed);
            if let Some(active) = active {
                active.store.begin_sharing(false);
            }
        }
    }

    /// What is shared may be copied as long as there is room for all copies.
    pub(super) fn guard_copies(&self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        let is_guarded = agent.copies.is_guarded();
        let is_unknown = agent.process().sharing_unknown.load(Ordering::Relaxed) == 1;
        let all = self.memory.anonymous_bytes;
        let shared = if is_unknown { all } else { agent.copies.saved_bytes() };
        let guards = agent.sharing.is_shared() && copies::must_be_guarded(agent, all, shared);
        if guards && !is_guarded {
            copies::guard(&mut Context { agent, active, core: &mut agent.lock_core() });
        } else if is_guarded && !agent.sharing.is_shared() {
            copies::leave_unguarded(&Context { agent, active, core: &mut agent.lock_core() });
        }
    }
}

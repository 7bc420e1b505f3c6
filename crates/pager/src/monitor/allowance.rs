//! How much memory the program may touch before the agent is asked: see [`crate::announce`].

use core::sync::atomic::Ordering;

use ramfold_sys::thread;

use super::Monitor;
use crate::cost;
use crate::kernel::time;

/// See [`Monitor::tolerated_bytes`].
const TOLERATED_BYTES_MAX: u64 = 2 << 20;

/// Calls that nobody announces are made by programs that do so again.
pub(super) const UNANNOUNCED_NS: u64 = 2_000_000_000;

/// And are no rounding.
const UNANNOUNCED_BYTES: u64 = 256 << 10;

/// What the program has announced, and what it has not.
pub(super) struct Announced {
    pub(super) since_scan: u64,
    since_look: u64,
    /// Writable memory that the program had at the last look.
    writable_before: u64,
    /// Memory comes by calls that nobody announces, or did until lately: look often until then.
    pub(super) unannounced_until_ns: u64,
}

impl Announced {
    pub(super) fn new(now_ns: u64) -> Announced {
        let unannounced_until_ns = now_ns + UNANNOUNCED_NS;
        Announced { since_scan: 0, since_look: 0, writable_before: 0, unannounced_until_ns }
    }
}

impl Monitor {
    /// Has the program made memory that it did not announce?
    pub(super) fn notice_unannounced(&mut self) {
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let grown = writable.saturating_sub(self.announced.writable_before);
        self.announced.writable_before = writable;
        self.note_announced();
        let announced = core::mem::take(&mut self.announced.since_look);
        if grown > announced + UNANNOUNCED_BYTES {
            self.announced.unannounced_until_ns = time::monotonic_ns() + UNANNOUNCED_NS;
        }
    }

    pub(super) fn note_announced(&mut self) {
        let announced = self.agent.announcements.take_announced();
        self.announced.since_look += announced;
        self.announced.since_scan += announced;
    }

    /// What the program has made since the mappings were last looked at, and what the fault handler
    /// has let go. What was unmapped and mapped again leaves the total as it was: so registered
    /// memory that is gone counts, and what was announced, which may take the place of what is not
    /// writable any more.
    fn fresh_bytes(&self) -> u64 {
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let released = self.agent.announcements.released();
        let grown = (released + writable).saturating_sub(self.mappings.writable_bytes);
        grown.max(self.announced.since_scan)
    }

    /// The program's writable memory that is not registered, touched or not.
    pub(super) fn unasked_bytes(&self) -> u64 {
        self.mappings.unregistered_bytes + self.fresh_bytes()
    }

    /// What the program costs, or could come to without asking.
    fn claim_bytes(&self) -> u64 {
        let unasked = self.unasked_bytes();
        if self.is_active() {
            unasked + self.cost_bytes() + self.agent.copies.unasked_bytes()
        } else {
            unasked
        }
    }

    /// How much of a claim like that there is room for.
    fn room_bytes(&self) -> u64 {
        let (agent, session) = (self.agent, self.agent.session());
        let others = cost::others_claim(agent) + session.unused_pool_bytes();
        let marks = cost::watermarks(session);
        marks.activation.saturating_sub(others + self.claim_bytes())
    }

    /// How much may be mapped and not registered where there is no room any more: to look at each
    /// new mapping would take too long.
    fn tolerated_bytes(&self) -> u64 {
        let marks = cost::watermarks(self.agent.session());
        ((marks.cap - marks.high) / 4).min(TOLERATED_BYTES_MAX)
    }

    /// Registers what the program could touch unasked for which there is no room, says how much it
    /// may, and answers who has `asked` before the last look.
    pub(super) fn provide(&mut self, asked: u32) {
        let (agent, session) = (self.agent, self.agent.session());
        self.guard_copies();
        let tolerated = if self.is_active() { self.tolerated_bytes() } else { 0 };
        if self.is_active() && self.room_bytes() < tolerated {
            self.register_announced();
            if self.fresh_bytes() > tolerated / 2 {
                self.scan_mappings();
            }
        }
        let allowance = if agent.gave_up() {
            u64::MAX
        } else {
            // Others want their part of the room.
            let processes = session.used_processes().count() as u64;
            (self.room_bytes() / (2 * processes.max(1))).max(tolerated)
        };
        agent.announcements.allow(allowance);
        let claim = self.claim_bytes().saturating_add(allowance);
        agent.process().claim_bytes.store(claim, Ordering::Relaxed);
        agent.announcements.answer(asked);
    }

    /// For what takes long: answers who waits.
    pub(super) fn provide_if_asked(&mut self) {
        let asked = self.agent.announcements.asked();
        if self.agent.announcements.is_waited_for() {
            self.ask();
            self.provide(asked);
        }
    }

    /// Registered memory gets no huge pages; what is not registered yet grows by gigabytes a second
    /// with them, more than is noticed in time.
    pub(super) fn turn_huge_pages_off(&mut self) {
        if thread::huge_pages_off() == Ok(false) && thread::set_huge_pages_off(true).is_ok() {
            self.agent.session().huge_pages_off.store(1, Ordering::Relaxed);
        }
        self.has_huge_pages = false;
    }
}

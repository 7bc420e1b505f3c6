//! Registers the mappings of the program.

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::Monitor;
use crate::agent::{Active, Agent, PROGRAM_MODE};
use crate::cost;
use crate::handler::zero_page;
use crate::kernel::{Kernel, maps, proc, time};
use crate::session::Once;

/// Mappings smaller than this are left alone: they hold little, and each costs a registration.
const MAPPING_BYTES_MIN: usize = 64 << 10;

/// Share of the monitor's time that may go into looking at mappings, as 1 / this.
const SCAN_SHARE: u64 = 20;

/// Looks at mappings, in proactive mode, in the time in which all memory is looked at once.
const SCANS_PER_ROUND: u64 = 4;

/// The mappings as they were last looked at.
#[derive(Default)]
pub(super) struct Mappings {
    /// When that was, and how long it took.
    pub(super) scanned_ns: u64,
    pub(super) took_ns: u64,
    /// All that was mapped then.
    pub(super) mapped_bytes: u64,
    /// Of that what the look did not show: a mapping that changes meanwhile can be passed over
    /// (seen with Linux 6.18).
    missed_bytes: u64,
    /// Writable memory that the program had then, and of that what is not registered.
    pub(super) writable_bytes: u64,
    pub(super) unregistered_bytes: u64,
    pub(super) main_stack: Range<usize>,
    /// Where one mapping can be asked for.
    maps: Option<maps::Maps>,
}

impl Monitor {
    pub(super) fn scan_mappings_if_changed(&mut self) {
        let changed = self.memory.mapped_bytes != self.mappings.mapped_bytes
            || self.agent.lock_core().rescan_wanted;
        let since = time::monotonic_ns() - self.mappings.scanned_ns;
        let total = cost::others_cost(self.agent) + self.cost_bytes();
        // Memory that is registered grows more slowly: as long as there is room, what is new may
        // first show whether it stays.
        let patience = if total < cost::watermarks(self.agent.session()).activation {
            self.cold_after_ns() / SCANS_PER_ROUND
        } else {
            0
        };
        if changed && since > (self.mappings.took_ns * SCAN_SHARE).max(patience) {
            self.scan_mappings();
        } else {
            self.scan_mappings_if_grown();
        }
    }

    /// New mappings that could take the process past its cap are registered at once.
    pub(super) fn scan_mappings_if_grown(&mut self) {
        let marks = cost::watermarks(self.agent.session());
        let grown = self.memory.mapped_bytes.saturating_sub(self.mappings.mapped_bytes);
        if grown > (marks.cap - marks.high) / 2 {
            self.scan_mappings();
        }
    }

    /// Registers every private anonymous mapping that is large enough.
    pub(crate) fn scan_mappings(&mut self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        let started = time::monotonic_ns();
        // Before the mappings are looked at: what is made meanwhile counts as unknown.
        agent.announcements.begin_scan();
        self.note_announced();
        self.announced.since_scan = 0;
        self.ask();
        self.mappings.writable_bytes = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let (mut shown, mut unregistered) = (0, 0);
        agent.process().counters.mapping_scans.fetch_add(1, Ordering::Relaxed);
        agent.lock_core().rescan_wanted = false;
        let arguments = proc::arguments().unwrap_or_default();
        let mut buffer = [0; 8192];
        let result = maps::for_each(&mut buffer, |mapping| {
            shown += mapping.range.len() as u64;
            if !mapping.is_private_anonymous() || agent.owns(&mapping.range) {
                return;
            }
            // What others read by `/proc/PID/cmdline` stays: for them it does not fault.
            let mut range = mapping.range.clone();
            if range.start < arguments.end && arguments.start < range.end {
                range.end = arguments.start.max(range.start) & !(PAGE_SIZE - 1);
            }
            if mapping.is_main_stack() {
                self.mappings.main_stack = range.clone();
            }
            if !register_if_large(agent, active, range) && mapping.writable {
                unregistered += mapping.range.len() as u64;
            }
        });
        if let Err(errno) = result {
            agent.session().say(
                Once::Other,
                format_args!(
                    "cannot read /proc/self/maps: {errno}; new memory is not looked after"
                ),
            );
        }
        let missed = self.memory.mapped_bytes.saturating_sub(shown);
        if missed > self.mappings.missed_bytes {
            agent.lock_core().rescan_wanted = true;
        }
        self.mappings.missed_bytes = missed;
        self.mappings.unregistered_bytes = unregistered;
        self.mappings.mapped_bytes = self.memory.mapped_bytes;
        self.mappings.scanned_ns = time::monotonic_ns();
        self.mappings.took_ns = self.mappings.scanned_ns - started;
    }

    /// Registers the mappings that were announced, where each can be asked for: far less than to
    /// look at all of them. What is left waits for that.
    pub(super) fn register_announced(&mut self) {
        let agent = self.agent;
        if self.mappings.maps.is_none() {
            self.mappings.maps = maps::Maps::open().ok();
        }
        let (Some(active), Some(maps)) = (agent.active(), &self.mappings.maps) else { return };
        let mut known = 0;
        while let Some(range) = agent.announcements.take_fresh() {
            if agent.lock_core().regions.contains(&range) {
                known += range.len() as u64;
                continue;
            }
            // What is gone meanwhile, or is none of ours, counts as known as well.
            if let Ok(Some(mapping)) = maps.at(range.start)
                && mapping.is_private_anonymous()
                && mapping.range.end >= range.end
                && !agent.owns(&mapping.range)
                && !register_if_large(agent, active, mapping.range)
            {
                self.mappings.unregistered_bytes += range.len() as u64;
            }
            known += range.len() as u64;
        }
        self.note_announced();
        self.announced.since_scan = self.announced.since_scan.saturating_sub(known);
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let most = writable + agent.announcements.released();
        self.mappings.writable_bytes =
            (self.mappings.writable_bytes + known).min(most).max(self.mappings.writable_bytes);
    }
}

/// Registers a private anonymous mapping that is large enough. `false`: it is not, or not as such.
fn register_if_large(agent: &Agent, active: &Active, range: Range<usize>) -> bool {
    range.len() >= MAPPING_BYTES_MIN && register(agent, active, range)
}

/// Registers private anonymous memory. `false`: it is not, or not as such, or the program moves
/// some just now.
pub(super) fn register(agent: &Agent, active: &Active, range: Range<usize>) -> bool {
    if agent.lock_core().regions.contains(&range) {
        return true;
    }
    if !agent.move_gate.begin_register() {
        agent.lock_core().rescan_wanted = true;
        return false;
    }
    let registered = register_between_moves(agent, active, range);
    agent.move_gate.end_register();
    registered
}

/// The lock is taken for each mapping, not for all: faults go on meanwhile. A mapping that has
/// changed since the look is registered as what it has become, or not.
fn register_between_moves(agent: &Agent, active: &Active, range: Range<usize>) -> bool {
    let mut core = agent.lock_core();
    // What cannot be taken for its access is registered all the same: what is reserved without
    // access today is made writable tomorrow, and is then known from its first page on. A part of
    // the range may be gone since the look: registering passes over the hole, and what the program
    // maps there next would be taken from it and never brought back. So the kernel is asked; from
    // then on any change is an event, which waits for the lock.
    if active.kernel.is_changing() {
        core.rescan_wanted = true;
        return false;
    }
    // EBUSY: a userfaultfd of the program's own. EINVAL, ENOMEM: gone or changed.
    if active.kernel.register(range.clone(), PROGRAM_MODE).is_err() {
        return false;
    }
    if active.kernel.is_registered_anonymous(range.clone()) != Ok(true) {
        core.rescan_wanted = true;
        return false;
    }
    let is_full = !core.regions.insert(range.clone());
    drop(core);
    if is_full {
        agent.session().say(
            Once::TooManyMappings,
            format_args!(
                "more than {} separate mappings: what is beyond that is not compressed",
                crate::take::regions::REGIONS_MAX
            ),
        );
    }
    zero_page::protect(active, range);
    true
}

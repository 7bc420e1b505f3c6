//! What this process costs, beside the others of the session.

use core::ptr::{self};
use core::sync::atomic::Ordering;

use super::Agent;
use crate::cost;
use crate::kernel::time;
use crate::session::Process;

/// A look of an agent at its process takes about as long at most.
const WAKE_OTHER_NS: u64 = 1_000_000;

impl Agent {
    /// Gives a forked child an account of its own. Where the session has no place for it nobody
    /// counts what it costs, but its memory is looked after: parts of it are missing.
    pub fn begin_account(&'static self) {
        let pid = self.pid();
        let session = self.session();
        // SAFETY: a place in the session, or none.
        let prepared =
            unsafe { self.child_place.swap(ptr::null_mut(), Ordering::Relaxed).as_ref() };
        let process = match prepared {
            Some(place) => {
                session.adopt(place, pid);
                place
            }
            None => session.claim_or_say(pid).unwrap_or_else(|| {
                self.unlisted.pid.store(pid, Ordering::Relaxed);
                &self.unlisted
            }),
        };
        process.cost_bytes.store(self.copies.child_bytes(), Ordering::Relaxed);
        self.process.store(ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
        self.turn.store(process.turn(), Ordering::Relaxed);
    }

    /// Before a fork: the child will have what this process has in the spill file, and others must know.
    pub fn prepare_child(&self) {
        if self.spills() {
            let place = self.session().prepare_child(self.process());
            let place = place.map_or(ptr::null_mut(), |place| ptr::from_ref(place).cast_mut());
            self.child_place.store(place, Ordering::Relaxed);
        }
    }

    /// After a fork, in the parent: the child has its place, or there is none.
    pub fn child_was_made(&self, was_made: bool) {
        let place = self.child_place.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: as in `begin_account`.
        if let Some(place) = unsafe { place.as_ref() }
            && !was_made
        {
            self.session().abandon(place);
        }
    }

    /// This process now shares its memory with a child.
    pub fn note_child(&self) {
        self.subtract_cost(self.copies.begin_sharing());
        if let Some(active) = self.active() {
            active.store.begin_sharing(false);
        }
        self.note_sharing();
    }

    /// This process shares memory with a relative, how much is to be measured.
    pub fn note_sharing(&self) {
        self.process().sharing_unknown.store(1, Ordering::Relaxed);
        self.process().measured_ns.store(time::monotonic_ns(), Ordering::Relaxed);
        self.shares_memory.store(true, Ordering::Relaxed);
        self.process().wake_agent();
    }

    /// What the process costs now, as far as known.
    pub fn cost(&self) -> u64 {
        self.process().cost_bytes.load(Ordering::Relaxed)
    }

    /// The other processes of the session that cost something.
    pub fn others(&self) -> impl Iterator<Item = &'static Process> + '_ {
        let own = self.process();
        self.session().used_processes().filter(move |process| {
            !ptr::eq(*process, own) && process.cost_bytes.load(Ordering::Relaxed) > 0
        })
    }

    /// Makes the agents of the other processes look whether they can make room, but for those that have just
    /// found that they cannot. That takes each a while, so many are asked less often.
    pub fn wake_others(&self) {
        let may_have_room = |process: &&Process| !process.stuck.load(Ordering::Relaxed);
        let others = self.others().filter(may_have_room).count() as u64;
        if others > 0 && self.session().may_wake_all(others * WAKE_OTHER_NS) {
            self.others().filter(may_have_room).for_each(Process::wake_agent);
        }
    }

    /// Does this process have a spill file?
    pub fn spills(&self) -> bool {
        self.active().is_some_and(|active| active.spill.is_some())
    }

    /// Has reclaim found nothing more to take here?
    pub fn is_stuck(&self) -> bool {
        self.process().stuck.load(Ordering::Relaxed)
    }

    /// Adds to what the process is thought to cost, and wakes the monitor when that runs into
    /// the watermark.
    pub fn add_cost(&self, bytes: u64) {
        let cost = self.process().cost_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A monitor that has just begun to sleep is seen at the next fault.
        if self.monitor_sleep.is_seen()
            && cost > cost::own_watermarks(self).high
            && self.monitor_sleep.take_if_seen()
        {
            self.process().wake_agent();
        }
    }

    /// Memory was freed.
    pub fn subtract_cost(&self, bytes: u64) {
        let cost = &self.process().cost_bytes;
        let _ = cost.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |cost| {
            Some(cost.saturating_sub(bytes))
        });
    }
}

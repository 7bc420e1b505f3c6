//! What this process costs, beside the others of the session.

use core::ptr::{self};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::Agent;
use crate::cost;
use crate::kernel::time;
use crate::session::Process;

/// A look of an agent at its process takes about as long at most.
const WAKE_OTHER_NS: u64 = 1_000_000;

/// Which place in the session is this process's.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `process`, `turn` | who starts the agent; in a forked child its one thread, before it starts the agent's process | all | by the start of the agent's process |
/// | `child` | the forking thread, before the clone, with the lock that one fork at a time holds; after it both processes take it, each in its own copy | the same | by the clone |
#[repr(C)]
pub(super) struct OwnPlace {
    process: AtomicPtr<Process>,
    /// See [`Process::turn`].
    turn: AtomicU32,
    /// A place for the child of the fork that is under way.
    child: AtomicPtr<Process>,
    /// The account of a process for which the session has no place.
    unlisted: Process,
}

impl OwnPlace {
    /// This process has that place from now on.
    pub(super) fn begin(&self, process: &'static Process) {
        self.turn.store(process.turn(), Ordering::Relaxed);
        self.process.store(ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn process(&self) -> &'static Process {
        // SAFETY: set at start to a place in a mapping that is never removed, or to the one here,
        // in an agent that is never freed.
        unsafe { &*self.process.load(Ordering::Relaxed) }
    }

    /// Is the place still that of this program, and not of one that it has executed?
    pub(super) fn is_current(&self) -> bool {
        self.process().turn() == self.turn.load(Ordering::Relaxed)
    }

    fn set_child(&self, place: Option<&'static Process>) {
        let place = place.map_or(ptr::null_mut(), |place| ptr::from_ref(place).cast_mut());
        self.child.store(place, Ordering::Relaxed);
    }

    fn take_child(&self) -> Option<&'static Process> {
        // SAFETY: a place in the session, or none.
        unsafe { self.child.swap(ptr::null_mut(), Ordering::Relaxed).as_ref() }
    }
}

impl Agent {
    /// The account of this process in the session.
    #[inline]
    pub(crate) fn process(&self) -> &'static Process {
        self.place.process()
    }

    /// Gives a forked child an account of its own. Where the session has no place for it nobody
    /// counts what it costs, but its memory is looked after: parts of it are missing.
    pub(crate) fn begin_account(&'static self) {
        let pid = self.pid();
        let session = self.session();
        let process = match self.place.take_child() {
            Some(place) => {
                session.adopt(place, pid);
                place
            }
            None => session.claim_or_say(pid).unwrap_or_else(|| {
                let unlisted = &self.place.unlisted;
                unlisted.pid.store(pid, Ordering::Relaxed);
                unlisted
            }),
        };
        process.cost_bytes.store(self.copies.child_bytes(), Ordering::Relaxed);
        self.place.begin(process);
    }

    /// Before a fork: the child will have what this process has in the spill file, and others must
    /// know.
    pub(crate) fn prepare_child(&self) {
        if self.spills() {
            self.place.set_child(self.session().prepare_child(self.process()));
        }
    }

    /// After a fork, in the parent: the child has its place, or there is none.
    pub(crate) fn child_was_made(&self, was_made: bool) {
        if let Some(place) = self.place.take_child()
            && !was_made
        {
            self.session().abandon(place);
        }
    }

    /// This process now shares its memory with a child.
    pub(crate) fn note_child(&self) {
        self.sharing.begin();
        self.subtract_cost(self.copies.begin_sharing());
        if let Some(active) = self.active() {
            active.store.begin_sharing(false);
        }
        self.ask_to_measure();
    }

    /// In a forked child: it shares its memory with its parent.
    pub(crate) fn note_parent(&self) {
        self.sharing.begin();
        self.ask_to_measure();
    }

    /// How much is shared is to be measured.
    fn ask_to_measure(&self) {
        self.process().sharing_unknown.store(1, Ordering::Relaxed);
        self.process().measured_ns.store(time::monotonic_ns(), Ordering::Relaxed);
        self.process().wake_agent();
    }

    /// What the process costs now, as far as known.
    pub(crate) fn cost(&self) -> u64 {
        self.process().cost_bytes.load(Ordering::Relaxed)
    }

    /// The other processes of the session that cost something.
    pub(crate) fn others(&self) -> impl Iterator<Item = &'static Process> + '_ {
        let own = self.process();
        self.session().used_processes().filter(move |process| {
            !ptr::eq(*process, own) && process.cost_bytes.load(Ordering::Relaxed) > 0
        })
    }

    /// Makes the agents of the other processes look whether they can make room, but for those that
    /// have just found that they cannot. That takes each a while, so many are asked less often.
    pub(crate) fn wake_others(&self) {
        let may_have_room = |process: &&Process| !process.stuck.load(Ordering::Relaxed);
        let others = self.others().filter(may_have_room).count() as u64;
        if others > 0 && self.session().may_wake_all(others * WAKE_OTHER_NS) {
            self.others().filter(may_have_room).for_each(Process::wake_agent);
        }
    }

    /// Does this process have a spill file?
    pub(crate) fn spills(&self) -> bool {
        self.active().is_some_and(|active| active.spill.is_some())
    }

    /// Has reclaim found nothing more to take here?
    pub(crate) fn is_stuck(&self) -> bool {
        self.process().stuck.load(Ordering::Relaxed)
    }

    /// Adds to what the process is thought to cost, and wakes the monitor when that runs into
    /// the watermark.
    pub(crate) fn add_cost(&self, bytes: u64) {
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
    pub(crate) fn subtract_cost(&self, bytes: u64) {
        let cost = &self.process().cost_bytes;
        let _ = cost.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |cost| {
            Some(cost.saturating_sub(bytes))
        });
    }
}

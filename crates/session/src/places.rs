//! Which place in the session is which process's.

use core::ptr;
use core::sync::atomic::Ordering;

use ramfold_sys::{proc, time};

use crate::layout::{PROCESSES_MAX, Process, Session};
use crate::messages::Once;

/// In the place of a process that is about to be made: with its parent's number.
pub(crate) const UNBORN: u32 = 1 << 31;
/// In a place that was just taken, until the number of its process is there.
pub(crate) const TAKEN: u32 = u32::MAX - 1;
/// In a place whose process was never made.
pub(crate) const ABANDONED: u32 = u32::MAX;

impl Session {
    /// Takes a place for a process: one it had before execve(2), a free one, or that of a process
    /// that has ended. `None` where there is none.
    pub fn claim(&self, pid: u32) -> Option<&Process> {
        // Several children of a process may be unborn at a time: each has a place of its own.
        let namespace = proc::pid_namespace();
        let own = |place: &&Process| pid & UNBORN == 0 && place.is_of(pid, namespace);
        let place = self
            .used_processes()
            .find(own)
            .or_else(|| self.processes.iter().find(|place| place.becomes(TAKEN, 0)))
            .or_else(|| {
                let takes = |place: &&Process| {
                    place.dead_pid().is_some_and(|dead| place.becomes(TAKEN, dead))
                };
                self.used_processes().find(takes)
            })?;
        self.retire(place);
        place.segments.clear();
        place.begin(namespace);
        place.pid.store(pid, Ordering::Release);
        self.processes_started.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    /// [`Session::claim`]; where there is no place a message says so.
    pub fn claim_or_say(&self, pid: u32) -> Option<&Process> {
        let place = self.claim(pid);
        if place.is_none() {
            self.say(
                Once::TooManyProcesses,
                format_args!(
                    "more than {PROCESSES_MAX} processes at a time: what is beyond is not \
                     counted, and not compressed if it is new"
                ),
            );
        }
        place
    }

    /// Takes a place for a child that a process is about to make, which will have all that its
    /// parent has in the spill file. Where there is no place, what the parent has is never given
    /// back.
    pub fn prepare_child(&self, parent: &Process) -> Option<&Process> {
        let pid = parent.pid.load(Ordering::Relaxed);
        let unborn = self.claim(pid | UNBORN);
        match unborn {
            Some(place) => place.segments.add_all(&parent.segments),
            None => self.spill.pinned.add_all(&parent.segments),
        }
        unborn
    }

    /// The child that a place was taken for is there.
    pub fn adopt(&self, place: &Process, pid: u32) {
        place.begin(proc::pid_namespace());
        place.pid.store(pid, Ordering::Release);
    }

    /// The child that a place was taken for was not made.
    pub fn abandon(&self, place: &Process) {
        place.segments.clear();
        self.processes_started.fetch_sub(1, Ordering::Relaxed);
        place.pid.store(ABANDONED, Ordering::Release);
    }

    /// Does this process have a place here, so that others know what it has?
    pub fn lists(&self, process: &Process) -> bool {
        self.processes.as_ptr_range().contains(&ptr::from_ref(process))
    }

    /// The places that were ever taken. Places are taken in order, and the memory behind the rest
    /// is not there until it is touched.
    pub fn used_processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().take_while(|place| place.pid.load(Ordering::Relaxed) != 0)
    }

    /// The agent's process of a program, or of the one that it was before it executed this one. It
    /// holds the memory of that as long as it lives.
    pub fn agent_of(&self, pid: u32) -> Option<u32> {
        let namespace = proc::pid_namespace();
        let place = self.used_processes().find(|place| place.is_of(pid, namespace))?;
        Some(place.agent_pid.load(Ordering::Relaxed)).filter(|&agent| agent != 0)
    }
}

impl Process {
    pub(crate) fn is_of(&self, pid: u32, namespace: u64) -> bool {
        self.pid.load(Ordering::Acquire) == pid
            && self.pid_namespace.load(Ordering::Relaxed) == namespace
    }

    /// How often the place was taken: an agent of an earlier turn must not use it.
    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire)
    }

    /// The place belongs to a process from now on, which has not started an agent yet.
    fn begin(&self, namespace: u64) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        self.pid_namespace.store(namespace, Ordering::Relaxed);
        self.taken_ns.store(time::monotonic_ns(), Ordering::Release);
        self.agent_pid.store(0, Ordering::Relaxed);
        self.watch_number.store(0, Ordering::Relaxed);
        self.measured_ns.store(0, Ordering::Relaxed);
        self.gone_ns.store(0, Ordering::Relaxed);
        self.agent_lives.reset();
    }

    /// Takes the place for a process, if it is still that of the one `before`.
    pub(crate) fn becomes(&self, pid: u32, before: u32) -> bool {
        self.pid.compare_exchange(before, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::tests::session;

    #[test]
    fn a_process_keeps_its_place_through_exec_and_the_dead_make_room() {
        let session = session();
        let me = std::process::id();
        let first = session.claim(me).unwrap();
        first.counters.faults.fetch_add(5, Ordering::Relaxed);
        first.cost_bytes.store(77, Ordering::Relaxed);
        assert_eq!(session.cost_bytes(), 77);
        let again = session.claim(me).unwrap();
        assert!(core::ptr::eq(first, again));
        assert_eq!(session.retired.faults.load(Ordering::Relaxed), 5);
        assert_eq!(again.counters.faults.load(Ordering::Relaxed), 0);
        assert_eq!(session.cost_bytes(), 0);
        // Fill all places with this living process's group, one of them with a dead one.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let dead_pid = dead.id();
        dead.wait().unwrap();
        for (index, place) in session.processes.iter().enumerate().skip(1) {
            place.pid.store(if index == 7 { dead_pid } else { 1 }, Ordering::Relaxed);
        }
        let place = session.claim(4_000_000).unwrap();
        assert!(core::ptr::eq(place, &session.processes[7]));
        assert!(session.claim(4_000_001).is_none_or(|p| core::ptr::eq(p, &session.processes[7])));
    }
}

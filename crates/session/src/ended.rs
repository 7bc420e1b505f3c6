//! Processes and agents that have ended: whose accounts still count, and who is left behind.

use core::ptr;
use core::sync::atomic::Ordering;

use ramfold_sys::robust::Owner;
use ramfold_sys::{Errno, proc, time};
use rustix::process::{Pid, test_kill_process};

use crate::layout::{AGENT_NAME, Process, Session};
use crate::places::{ABANDONED, TAKEN, UNBORN};
use crate::waking::is_due;

/// A place for which no agent has spoken after this time is that of a process that is not there any
/// more, or never was.
const SILENT_NS: u64 = 60_000_000_000;
/// Of what a process shared that has ended all may be a relative's own.
const PARTED_BY_END: u64 = 1 << 20;
/// Between two looks for processes that have ended: each opens files, whose memory the kernel frees
/// later.
const BURY_NS: u64 = 1_000_000;
/// How long what a process has shared is thought to be its own after its end at most.
const INHERITANCE_NS_MAX: u64 = 20_000_000;
/// The same while other processes end.
const ENDING_NS_MAX: u64 = 1_000_000_000;

impl Session {
    /// Does a process live that has a place here? Asks the kernel about each: not for hot paths.
    pub fn is_in_use(&self) -> bool {
        self.used_processes().any(|place| place.dead_pid().is_none())
    }

    /// Agents' processes that are about to end, because their programs have.
    pub fn agents_without_program(&self) -> impl Iterator<Item = u32> {
        let namespace = proc::pid_namespace();
        self.used_processes().filter_map(move |place| {
            let agent = place.agent_pid.load(Ordering::Relaxed);
            let is_left = place.pid_namespace.load(Ordering::Relaxed) == namespace
                && agent != 0
                && !is_alive(place.pid.load(Ordering::Acquire))
                && proc::has_ended(agent) == Ok(false);
            is_left.then_some(agent)
        })
    }

    /// Agents' processes that have ended without a word, for [`Session::deserted_by`]: for a
    /// launcher that is not told of their end. Asks the kernel about each agent: not for hot paths.
    pub fn lost_agents(&self) -> impl Iterator<Item = u32> {
        let namespace = proc::pid_namespace();
        self.used_processes().filter_map(move |place| {
            let agent = place.agent_pid.load(Ordering::Relaxed);
            let is_lost = place.pid_namespace.load(Ordering::Relaxed) == namespace
                && agent != 0
                && match place.agent_lives.owner() {
                    Owner::Alive => agent_has_ended(agent),
                    Owner::Died => true,
                    Owner::Nobody | Owner::Left => false,
                };
            is_lost.then_some(agent)
        })
    }

    /// The program's process whose agent was this process, which has ended without a word. Parts of
    /// the program's memory may be missing, and nobody brings them back.
    pub fn deserted_by(&self, agent_pid: u32) -> Option<u32> {
        let namespace = proc::pid_namespace();
        let place = self.used_processes().find(|place| {
            place.agent_pid.load(Ordering::Relaxed) == agent_pid
                && place.pid_namespace.load(Ordering::Relaxed) == namespace
                && matches!(place.agent_lives.owner(), Owner::Alive | Owner::Died)
        })?;
        place.agent_lives.note_ended();
        Some(place.pid.load(Ordering::Relaxed)).filter(|pid| pid & UNBORN == 0)
    }

    /// Clears what processes that have ended held, but for this one. Asks the kernel about each:
    /// not for hot paths.
    pub fn bury_the_dead(&self, but_for: u32) {
        if !is_due(&self.buried_ns, BURY_NS) {
            return;
        }
        for place in self.used_processes() {
            let amounts = [&place.cost_bytes, &place.claim_bytes];
            if place.pid.load(Ordering::Relaxed) != but_for
                && amounts.iter().any(|amount| amount.load(Ordering::Relaxed) != 0)
                && place.dead_pid().is_some()
                && !place.agent_ends()
                && !self.is_inherited(place)
            {
                place.clear_amounts();
            }
        }
    }

    /// What a process that has ended shared is paid by its relatives from then on. Its account
    /// stands for that until all of them have measured what they share.
    fn is_inherited(&self, dead: &Process) -> bool {
        let now = time::monotonic_ns();
        let heirs = |gone_ns| {
            self.used_processes().filter(move |heir| {
                let measured_ns = heir.measured_ns.load(Ordering::Relaxed);
                measured_ns != 0 && measured_ns < gone_ns && !ptr::eq(*heir, dead)
            })
        };
        let set = dead.gone_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let Err(gone_ns) = set else {
            self.last_gone_ns.fetch_max(now, Ordering::Relaxed);
            self.parted_pages.fetch_add(PARTED_BY_END, Ordering::Relaxed);
            heirs(now).for_each(Process::wake_agent);
            return heirs(now).next().is_some();
        };
        // Nobody measures while a process is on its way out.
        let most = if self.used_processes().any(Process::ends) {
            ENDING_NS_MAX
        } else {
            INHERITANCE_NS_MAX
        };
        now < gone_ns + most && heirs(gone_ns).next().is_some()
    }
}

impl Process {
    /// The number of a process that has ended, or of one that was to be the parent of a child and
    /// ended before that was made. A child that was made speaks for itself, but may have to wait
    /// for a processor first.
    pub(crate) fn dead_pid(&self) -> Option<u32> {
        let pid = self.pid.load(Ordering::Acquire);
        let lives = match self.agent_lives.owner() {
            _ if pid == TAKEN => true,
            Owner::Alive => true,
            Owner::Left | Owner::Died => false,
            Owner::Nobody => {
                let taken_ns = self.taken_ns.load(Ordering::Acquire);
                let is_new = || time::monotonic_ns().saturating_sub(taken_ns) < SILENT_NS;
                // Of a child that is not there yet its parent's number is known; in another
                // namespace the number says nothing.
                let is_known = pid & UNBORN == 0
                    && self.pid_namespace.load(Ordering::Relaxed) == proc::pid_namespace();
                is_alive(pid) || pid != ABANDONED && !is_known && is_new()
            }
        };
        (!lives).then_some(pid)
    }

    /// Its agent has left, and its memory is not known to be free.
    pub fn ends(&self) -> bool {
        matches!(self.agent_lives.owner(), Owner::Left | Owner::Died)
            && self.cost_bytes.load(Ordering::Relaxed) > 0
            && self.gone_ns.load(Ordering::Relaxed) == 0
    }

    /// The agent's process has left and is still there: the memory of the program that it shares is
    /// being freed.
    fn agent_ends(&self) -> bool {
        let agent = self.agent_pid.load(Ordering::Relaxed);
        agent != 0
            && self.pid_namespace.load(Ordering::Relaxed) == proc::pid_namespace()
            && proc::has_ended(agent) == Ok(false)
            // Its number may be another process's by now.
            && proc::is_named(agent, AGENT_NAME.to_bytes()) == Ok(true)
    }
}

/// Has this process ended, which is or was an agent's? One that is out of sight (hidepid, in
/// proc_pid(5)) has not.
fn agent_has_ended(agent: u32) -> bool {
    let exists = Pid::from_raw(agent as i32)
        .is_some_and(|agent| test_kill_process(agent) != Err(Errno::SRCH));
    let is_seen = || proc::is_named(agent, AGENT_NAME.to_bytes()) == Ok(true);
    !exists || is_seen() && proc::has_ended(agent) == Ok(true)
}

fn is_alive(pid: u32) -> bool {
    // What is not born yet lives as long as its parent; a place that was given up is nobody's.
    let pid = if pid == ABANDONED { return false } else { pid & !UNBORN };
    proc::has_ended(pid).map_or_else(
        |_| {
            // Without /proc a process that was not waited for seems to live on.
            Pid::from_raw(pid as i32).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
        },
        |ended| !ended,
    )
}

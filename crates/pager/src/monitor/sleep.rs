//! How long the monitor sleeps, and what it gives back before it sleeps for long.

use core::sync::atomic::Ordering;

use ramfold_sys::Errno;
use ramfold_sys::process::Waited;
use ramfold_sys::thread;
use rustix::thread::{Timespec, futex};

use super::Monitor;
use super::account::amounts;
use super::watch;
use crate::agent::Stack;
use crate::cost;
use crate::kernel::time;
use crate::reclaim::recompress::{self};
use crate::reclaim::{By, Reclaimer};

/// Memory cannot grow faster than this: writing zeros alone takes that long.
const GROWTH_BYTES_PER_US: u64 = 4096;

const SLEEP_US_MIN: u64 = 200;

/// The same while the program does nothing that shows here.
const SLEEP_US_MIN_QUIET: u64 = 1_000;

const SLEEP_US_MAX: u64 = 100_000;

/// Where nothing happens that must be noticed by looking.
const SLEEP_US_MAX_QUIET: u64 = 500_000;

/// The same where nothing has happened for so long.
const SLEEP_US_MAX_LONG_QUIET: u64 = 1_000_000;

const LONG_QUIET_NS: u64 = 10_000_000_000;

/// The monitor must not wait for the end of the program's turn: a program that fills fresh memory
/// meanwhile grows by 3 MB in a millisecond, and a turn can last for several.
const TURN_NS: u64 = 100_000;

/// Nor for what else the machine has to do: so much below the program's own nice value, where that
/// is permitted. The agent's threads then have nine times the weight of the program's.
const NICE_STEPS: i32 = 10;

/// A sleep of the monitor's: until it is woken ([`Process::wake`](crate::session::Process) is
/// another number than `seen`), or for so long.
pub(crate) struct Sleep {
    pub seen: u32,
    pub us: u64,
}

impl Monitor {
    pub(super) fn take_reclaimer(&mut self) -> Reclaimer {
        // SAFETY: this is the monitor, and there is none.
        { self.reclaimer.take() }
            .unwrap_or_else(|| unsafe { Reclaimer::make(self.agent, By::Monitor) })
    }

    /// When there will be nothing to do for long: what was worked with costs nothing meanwhile.
    pub(super) fn rest(&mut self) {
        let had_reclaimer = self.reclaimer.is_some();
        self.reclaimer = self.reclaimer.take().and_then(Reclaimer::rest);
        if had_reclaimer || !self.slept_long {
            self.agent.give_back_stack(Stack::Monitor);
            self.note_own_change();
        }
    }

    /// The agent's own memory has changed, which is no change of the program's.
    pub(super) fn note_own_change(&mut self) {
        if let Ok(memory) = self.statm.read() {
            self.memory = memory;
            self.quiet.note_own(amounts(memory));
        }
    }

    /// How long to sleep unless something happens.
    fn sleep_us(&self, headroom: u64) -> u64 {
        let agent = self.agent;
        let now = time::monotonic_ns();
        let is_active = self.is_active();
        if agent.gave_up() {
            return SLEEP_US_MAX_LONG_QUIET;
        }
        let is_growing = now < self.growing_until_ns;
        let is_quiet = self.quiet.is_quiet() && !is_growing;
        let shortest = if is_quiet { SLEEP_US_MIN_QUIET } else { SLEEP_US_MIN };
        let usual = if agent.is_stuck() {
            SLEEP_US_MAX
        } else {
            (headroom / GROWTH_BYTES_PER_US).clamp(shortest, SLEEP_US_MAX)
        };
        // Growth announces itself, faults and relatives wake this thread: what is left to look for
        // may take longer from look to look.
        let is_long = self.quiet.lasts_ns(now) > LONG_QUIET_NS;
        let longest = if is_long { SLEEP_US_MAX_LONG_QUIET } else { SLEEP_US_MAX_QUIET };
        let may_wait =
            if agent.announces() { now > self.announced.unannounced_until_ns } else { is_long };
        let most = if self.recompresses { recompress::INTERVAL_US } else { longest };
        match (may_wait, is_active) {
            (false, _) => usual,
            (true, false) => longest,
            (true, true) => self.quiet.interval_us(usual, most),
        }
    }

    pub(super) fn sleep(&mut self) {
        if let Some(sleep) = self.begin_sleep() {
            self.wait(&sleep);
            self.agent.monitor_sleep.end();
        }
    }

    /// How to sleep, for whoever then ends [`Agent::monitor_sleep`](crate::agent::Agent); `None`
    /// where there is something to do.
    pub(crate) fn begin_sleep(&mut self) -> Option<Sleep> {
        let agent = self.agent;
        let process = agent.process();
        let seen = process.wake.load(Ordering::Acquire);
        let marks = cost::watermarks(agent.session());
        let active = self.is_active();
        let total = cost::total(agent);
        let limit = if active { marks.high } else { marks.activation };
        let headroom = limit.saturating_sub(total);
        let faults = process.counters.faults.load(Ordering::Relaxed);
        self.quiet.note(time::monotonic_ns(), amounts(self.memory), faults);
        let sleep_us = self.sleep_us(headroom);
        let sleeps_long = sleep_us >= SLEEP_US_MAX && self.quiet.is_quiet();
        if sleeps_long {
            self.rest();
        } else if self.slept_long && active {
            agent.session().note_activity();
        }
        self.slept_long = sleeps_long;
        agent.monitor_sleep.begin();
        // What was asked after the last look, or staged by a handler that did not see this thread
        // asleep.
        if agent.announcements.is_waited_for()
            || agent.privileges.is_asked()
            || active && headroom == 0 && agent.lock_core().staging.oldest().is_some()
        {
            agent.monitor_sleep.end();
            return None;
        }
        let longest = if self.watches() && active { watch::LOOK_NS / 1000 } else { u64::MAX };
        Some(Sleep { seen, us: sleep_us.min(longest) })
    }

    /// Sleeps until something happens, or for so long.
    fn wait(&self, &Sleep { seen, us: sleep_us }: &Sleep) {
        let process = self.agent.process();
        let timeout = Timespec {
            tv_sec: (sleep_us / 1_000_000) as i64,
            tv_nsec: (sleep_us % 1_000_000 * 1_000) as i64,
        };
        // Woken, timed out or interrupted: look again either way.
        match &self.program {
            Some(program) => {
                let waited = program.wait_beside(&process.wake, seen, timeout);
                if waited == Waited::LookAgain && program.is_gone() {
                    self.agent.leave();
                }
            }
            None => {
                let _ = futex::wait(&process.wake, futex::Flags::empty(), seen, Some(&timeout));
            }
        }
    }
}

/// Makes the calling thread one that does not wait for the rest of the machine; `true` where it may
/// come before the program's.
///
/// # Errors
/// What sched_setattr(2) says.
pub fn run_soon() -> Result<bool, Errno> {
    thread::run_soon(TURN_NS, NICE_STEPS)
}

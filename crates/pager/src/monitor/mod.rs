//! The monitor: the first thread of the agent's process.
//!
//! While there is memory enough it only sleeps and looks, at intervals that grow with the
//! distance to the cap. When the cap comes near it makes the agent active, and from then on keeps
//! the cost under the watermark.

mod account;
mod activation;
mod allowance;
mod background;
mod cap;
mod mappings;
pub(crate) mod privileges;
mod sharing;
mod sleep;
pub(crate) mod unheld;
mod watch;

use ramfold_policy::memory::back_off::BackOff;
use ramfold_policy::memory::growth::Growth;
use ramfold_policy::memory::measurement::Measurement;
use ramfold_policy::memory::pace::Pace;
use ramfold_policy::memory::quiet::Quiet;
use ramfold_sys::Errno;
use ramfold_sys::process::Program;
use ramfold_sys::thread;

use self::account::{StoreSeen, amounts};
use self::allowance::Announced;
use self::background::Compaction;
use self::cap::{Spilling, agent_brings_back};
use self::mappings::Mappings;
use self::sharing::Sharing;
use self::watch::Watching;
use crate::agent::Agent;
use crate::fork;
use crate::kernel::{
    proc::{Memory, Statm},
    time,
};
use crate::monitor::privileges::Privileges;
use crate::reclaim::Reclaimer;
use crate::reclaim::recompress::Recompress;
use crate::take::proactive::Proactive;

#[cfg(test)]
pub(crate) use self::sleep::Sleep;
pub use self::sleep::run_soon;

/// How long such a program is watched closely, and room is kept for what it grows by unnoticed. A
/// program that fills blocks of 30 MB passed caps of 24 to 96 MB by 0 to 15 % with a tenth of this.
const GROWING_NS: u64 = 500_000_000;

/// What the monitor's thread alone uses.
pub(crate) struct Monitor {
    agent: &'static Agent,
    statm: Statm,
    /// While it does not rest.
    reclaimer: Option<Reclaimer>,
    mappings: Mappings,
    /// By more than was brought in for it.
    growth: Growth,
    store_seen: StoreSeen,
    /// Times the program was stopped since there was room last.
    stops: u32,
    /// The program has outrun reclaim lately: look more often until then.
    growing_until_ns: u64,
    announced: Announced,
    /// The program may have huge pages, as far as the agent knows.
    has_huge_pages: bool,
    quiet: Quiet,
    /// The last sleep was so long that others of the launcher may sleep too.
    slept_long: bool,
    /// While this thread is the only one: another watches it when the agent is active, because this
    /// one may wait for a lock that a thread of the program held when it was killed.
    program: Option<Program>,
    privileges: Privileges,
    /// Where pages are compressed that nobody touches.
    cold: Option<(Proactive, Pace)>,
    recompress: Recompress,
    /// It did so at the last look, and has not done with it.
    recompresses: bool,
    published_ns: u64,
    /// Reclaim found nothing more to take: it is not tried again for a while, unless the cost
    /// reaches what [`Agent::hints`] has.
    back_off: BackOff,
    spilling: Spilling,
    compaction: Compaction,
    sharing: Sharing,
    watching: Watching,
    /// Of shared memory: changes with pages of files and of shared memory together.
    shared_memory: Measurement,
    /// Of page tables: changes with what was ever touched.
    page_tables: Measurement,
    /// Since when the cap has been passed without anything to be done about it; zero when it is
    /// not.
    over_since_ns: u64,
    memory: Memory,
}

/// Entry of the agent's process where nothing is registered yet.
pub(crate) extern "C" fn process_main(agent: *mut ()) -> ! {
    // SAFETY: whoever spawns it passes the agent, which lives for ever.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    // Nothing depends on this process yet.
    if thread::leave_files(agent.session_holders.handed_down()).is_err() {
        agent.leave();
    }
    let statm = agent.begin_process();
    Monitor::new(agent, statm).run()
}

/// Entry of the agent's process for a forked child that inherited evicted pages.
pub(crate) extern "C" fn process_main_in_child(agent: *mut ()) -> ! {
    // SAFETY: as above.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    if let Err(errno) = thread::leave_files(None) {
        agent.fail(format_args!("a forked child's agent has no files of its own: {errno}"));
    }
    let statm = agent.begin_process();
    let mut monitor = Monitor::new(agent, statm);
    fork::take_over(agent, &mut monitor);
    monitor.run()
}

impl Monitor {
    pub(crate) fn new(agent: &'static Agent, statm: Result<Statm, Errno>) -> Monitor {
        let opened = statm.and_then(|statm| Ok((statm.read()?, statm)));
        match opened {
            Ok((memory, statm)) => Monitor {
                agent,
                statm,
                reclaimer: None,
                mappings: Mappings::default(),
                growth: Growth::default(),
                store_seen: StoreSeen::default(),
                stops: 0,
                growing_until_ns: 0,
                announced: Announced::new(time::monotonic_ns()),
                has_huge_pages: true,
                quiet: Quiet::new(time::monotonic_ns(), amounts(memory)),
                slept_long: false,
                program: Some(agent.program()),
                privileges: Privileges::default(),
                cold: None,
                recompress: Recompress::START,
                recompresses: false,
                published_ns: 0,
                back_off: BackOff::default(),
                spilling: Spilling::default(),
                compaction: Compaction::default(),
                sharing: Sharing::default(),
                watching: Watching::default(),
                shared_memory: Measurement::default(),
                page_tables: Measurement::default(),
                over_since_ns: 0,
                memory,
            },
            Err(errno) => {
                if agent.active().is_some() {
                    agent.fail(format_args!("cannot read /proc/self/statm: {errno}"));
                }
                agent.leave();
            }
        }
    }

    fn run(&mut self) -> ! {
        self.agent.set_monitor_thread();
        // The fault handler, which this thread starts, inherits it. Where it is not permitted or
        // not known they wait for their turns like others.
        let _ = run_soon();
        loop {
            self.round();
            let now = time::monotonic_ns();
            self.privileges.follow_first(self.agent, now);
            self.agent.session_holders.hold();
            self.sleep();
        }
    }

    /// Looks, and does what there is to do.
    pub(crate) fn round(&mut self) {
        let asked = self.agent.announcements.asked();
        self.look();
        if !self.is_active()
            && self.should_activate()
            && self.forks_are_done()
            && let Err(reason) = self.activate()
        {
            self.give_up(&reason);
        }
        self.provide(asked);
        if agent_brings_back(self.agent) {
            self.bring_back();
        } else if self.is_active() {
            self.keep_below_cap();
            self.compress_cold();
            self.recompress();
            self.watch_pages();
        }
    }

    fn is_active(&self) -> bool {
        self.agent.active().is_some()
    }
}

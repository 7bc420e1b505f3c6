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
pub mod privileges;
mod sharing;
mod sleep;
pub mod unheld;

use core::ops::Range;

use ramfold_policy::memory::growth::Growth;
use ramfold_policy::memory::measurement::Measurement;
use ramfold_policy::memory::pace::Pace;
use ramfold_policy::memory::quiet::Quiet;
use ramfold_sys::maps::Maps;
use ramfold_sys::proc::{Memory, Statm};
use ramfold_sys::process::Program;
use ramfold_sys::thread;
use ramfold_sys::{Errno, time};

use self::account::amounts;
use self::allowance::UNANNOUNCED_NS;
use self::cap::{BACK_OFF_NS_MIN, agent_brings_back};
use crate::agent::Agent;
use crate::fork;
use crate::monitor::privileges::Privileges;
use crate::reclaim::Reclaimer;
use crate::reclaim::recompress::Recompress;
use crate::take::proactive::Proactive;

pub use self::activation::{NEEDED_FEATURES, open_uffd_or_fail};
pub use self::sleep::run_soon;

/// How long such a program is watched closely, and room is kept for what it grows by unnoticed. A
/// program that fills blocks of 30 MB passed caps of 24 to 96 MB by 0 to 15 % with a tenth of this.
const GROWING_NS: u64 = 500_000_000;

/// What the monitor's thread alone uses.
pub struct Monitor {
    agent: &'static Agent,
    statm: Statm,
    /// While it does not rest.
    reclaimer: Option<Reclaimer>,
    /// When the mappings were last looked at, and how long that took.
    scanned_ns: u64,
    scan_took_ns: u64,
    mapped_bytes_at_scan: u64,
    main_stack: Range<usize>,
    /// By more than was brought in for it.
    growth: Growth,
    /// What the store cost then, the less of before and after.
    store_bytes_before: u64,
    /// What it cost before the kernel was asked last, and [`Agent::progress`].
    store_bytes: u64,
    progress: u32,
    /// Times the program was stopped since there was room last.
    stops: u32,
    /// The program has outrun reclaim lately: look more often until then.
    growing_until_ns: u64,
    /// Writable memory that was not registered when the mappings were last looked at, and all that the
    /// program had then.
    unregistered_bytes: u64,
    writable_at_scan: u64,
    announced_since_scan: u64,
    announced_since_look: u64,
    /// Where one mapping can be asked for.
    maps: Option<Maps>,
    /// What the program had at the last look, and how much of that it had announced.
    writable_before: u64,
    /// Memory comes by calls that nobody announces, or did until lately: look often until then.
    unannounced_until_ns: u64,
    /// The program may have huge pages, as far as the agent knows.
    has_huge_pages: bool,
    quiet: Quiet,
    /// The last sleep was so long that others of the launcher may sleep too.
    slept_long: bool,
    /// While this thread is the only one: another watches it when the agent is active, because this one
    /// may wait for a lock that a thread of the program held when it was killed.
    program: Option<Program>,
    privileges: Privileges,
    /// Where pages are compressed that nobody touches.
    cold: Option<(Proactive, Pace)>,
    recompress: Recompress,
    /// It did so at the last look, and has not done with it.
    recompresses: bool,
    published_ns: u64,
    /// Reclaim found nothing more to take: when that was, and for how long it is not tried again, unless
    /// the cost reaches [`Agent::retry_cost_bytes`].
    tried_ns: u64,
    rest_ns: u64,
    /// How long the next rest of that kind is.
    back_off_ns: u64,
    /// Pages that were in the spill file when that was looked at last, and when there were fewer.
    spilled: u64,
    spilled_ns: u64,
    /// Memory the pool holds beyond what its objects need, as of the last full account.
    fragmentation_bytes: u64,
    /// When the pool was last compacted, and how long that took.
    compacted_ns: u64,
    compacting_took_ns: u64,
    /// When what is shared was measured, and how long that took.
    shares_measured_ns: u64,
    shares_took_ns: u64,
    /// What it came to, and when it is measured again if nothing is known to have changed.
    shares_found_bytes: u64,
    shares_rest_ns: u64,
    /// [`Session::parted_pages`](crate::session::Session::parted_pages) then.
    shares_parted_pages: u64,
    /// Of shared memory: changes with pages of files and of shared memory together.
    shared_memory: Measurement,
    /// Of page tables: changes with what was ever touched.
    page_tables: Measurement,
    /// Since when the cap has been passed without anything to be done about it; zero when it is not.
    over_since_ns: u64,
    memory: Memory,
}

/// Entry of the agent's process where nothing is registered yet.
pub extern "C" fn process_main(agent: *mut ()) -> ! {
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
pub extern "C" fn process_main_in_child(agent: *mut ()) -> ! {
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
    fn new(agent: &'static Agent, statm: Result<Statm, Errno>) -> Monitor {
        let opened = statm.and_then(|statm| Ok((statm.read()?, statm)));
        match opened {
            Ok((memory, statm)) => Monitor {
                agent,
                statm,
                reclaimer: None,
                scanned_ns: 0,
                scan_took_ns: 0,
                mapped_bytes_at_scan: 0,
                main_stack: 0..0,
                growth: Growth::default(),
                store_bytes_before: 0,
                store_bytes: 0,
                progress: 0,
                stops: 0,
                growing_until_ns: 0,
                unregistered_bytes: 0,
                writable_at_scan: 0,
                announced_since_scan: 0,
                announced_since_look: 0,
                maps: None,
                writable_before: 0,
                unannounced_until_ns: time::monotonic_ns() + UNANNOUNCED_NS,
                has_huge_pages: true,
                quiet: Quiet::new(time::monotonic_ns(), amounts(memory)),
                slept_long: false,
                program: Some(agent.program()),
                privileges: Privileges::default(),
                cold: None,
                recompress: Recompress::START,
                recompresses: false,
                published_ns: 0,
                tried_ns: 0,
                rest_ns: 0,
                back_off_ns: BACK_OFF_NS_MIN,
                spilled: 0,
                spilled_ns: 0,
                fragmentation_bytes: 0,
                compacted_ns: 0,
                compacting_took_ns: 0,
                shares_measured_ns: 0,
                shares_took_ns: 0,
                shares_found_bytes: 0,
                shares_rest_ns: 0,
                shares_parted_pages: 0,
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
        // The fault handler, which this thread starts, inherits it. Where it is not permitted or not
        // known they wait for their turns like others.
        let _ = run_soon();
        loop {
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
            }
            let now = time::monotonic_ns();
            self.privileges.follow_first(self.agent, now);
            self.agent.session_holders.hold();
            self.sleep();
        }
    }

    fn is_active(&self) -> bool {
        self.agent.active().is_some()
    }
}

//! The monitor: the first thread of the agent's process.
//!
//! While there is memory enough it only sleeps and looks, at intervals that grow with the
//! distance to the cap. When the cap comes near it makes the agent active, and from then on keeps
//! the cost under the watermark.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::Ordering;

use ramfold_codec::Choice;
use ramfold_policy::memory::growth::{self, Growth};
use ramfold_policy::memory::measurement::Measurement;
use ramfold_policy::memory::pace::Pace;
use ramfold_policy::memory::quiet::{Amounts, Quiet};
use ramfold_store::{Config, Kind, Recorder, Store};
use ramfold_sys::keep_open::keep_open;
use ramfold_sys::maps::Maps;
use ramfold_sys::mem::Reservation;
use ramfold_sys::pagemap::{PageRegion, Pages};
use ramfold_sys::proc::{self, Memory, Proportional, Statm};
use ramfold_sys::process::{Program, Waited};
use ramfold_sys::thread;
use ramfold_sys::uffd::{Uffd, feature};
use ramfold_sys::{Errno, PAGE_SIZE, maps, time};
use rustix::mm::{Advice, madvise};
use rustix::thread::{Timespec, futex, sched_getaffinity};

use crate::agent::{Active, Agent, PROGRAM_MODE, STAGING_MODE, Stack};
use crate::cold::{self, Cold};
use crate::copies;
use crate::cost;
use crate::fork;
use crate::kept;
use crate::page;
use crate::privileges::Privileges;
use crate::reclaim::{By, Reclaimer, Step};
use crate::recompress::{self, Recompress};
use crate::session::{Once, Process};
use crate::spill::{self, SpillAccess};
use crate::staging::{CHUNK_PAGES, CHUNKS_MAX};
use crate::sweep;
use crate::unheld::Unheld;
use crate::zeros;

/// What the kernel must tell and do for memory to be looked after safely.
pub const NEEDED_FEATURES: u64 = feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::PAGEFAULT_FLAG_WP
    | feature::THREAD_ID
    | feature::MOVE;

/// Mappings smaller than this are left alone: they hold little, and each costs a registration.
const MAPPING_BYTES_MIN: usize = 64 << 10;
/// A process that costs less than this is not looked after.
const PROCESS_BYTES_MIN: u64 = 4 << 20;
/// Staging takes as much as the cap / this at most.
const STAGING_SHARE: usize = 64;
/// Chunks to fill, to wait, and to be compressed by each of the agent's threads.
const CHUNKS_MIN: usize = 4;
/// Freeing the frames of a chunk takes some system calls.
const CHUNK_PAGES_MIN: usize = 16;
/// Below this nothing useful fits beside the agent's own tables and staging.
const CAP_BYTES_MIN: u64 = 4 << 20;
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
/// Nor for what else the machine has to do: so much below the program's own nice value, where that is
/// permitted. The agent's threads then have nine times the weight of the program's.
const NICE_STEPS: i32 = 10;
/// Between two measurements of what is shared: at least this long, and this many times what one takes
/// for each process of the session.
const SHARING_NS_MIN: u64 = 2_000_000;
const SHARING_SHARE: u64 = 10;
/// The same where it is known to have changed.
const SHARING_SHARE_OLD: u64 = 3;
/// Where it has not, twice as long from measurement to measurement, up to this. What writes make of it is
/// known where it matters: see [`crate::copies`].
const SHARING_NS_MAX: u64 = 64_000_000_000;
/// And less than this is no change.
const SHARING_CHANGE_BYTES: u64 = 256 << 10;
/// A program that was stopped this often and still has no room is not stopped any more: that is
/// not why memory is short.
const STOPS_MAX: u32 = 8;
/// How long such a program is watched closely, and room is kept for what it grows by unnoticed. A
/// program that fills blocks of 30 MB passed caps of 24 to 96 MB by 0 to 15 % with a tenth of this.
const GROWING_NS: u64 = 500_000_000;
/// See [`Monitor::tolerated_bytes`].
const TOLERATED_BYTES_MAX: u64 = 2 << 20;
/// Calls that nobody announces are made by programs that do so again.
const UNANNOUNCED_NS: u64 = 2_000_000_000;
/// And are no rounding.
const UNANNOUNCED_BYTES: u64 = 256 << 10;
/// Share of the monitor's time that may go into looking at mappings, as 1 / this.
const SCAN_SHARE: u64 = 20;
/// Looks at mappings, in proactive mode, in the time in which all memory is looked at once.
const SCANS_PER_ROUND: u64 = 4;
/// The pool is compacted when as much as the cap / this lies unused in it, and then not for so many
/// times as long as it took.
const COMPACTION_SHARE: u64 = 64;
const COMPACTION_REST: u64 = 20;
/// It ends early when the program grows, which is looked at after so many leaves of 64 pages:
/// every half of a millisecond.
const COMPACTION_LEAVES: u32 = 16;
/// What cannot be compressed by its nature, shared memory and page tables, counts by the cap / this at
/// most.
const FIXED_COST_SHARE: u64 = 2;
/// And is spoken of when it is more than the cap / this.
const SHARED_SAID_SHARE: u64 = 8;
/// How long a cap is passed before somebody is told.
const OVER_CAP_NS: u64 = 500_000_000;
/// And where pages go to a disk, which others may keep busy.
const OVER_CAP_SPILLING_NS: u64 = 10_000_000_000;
/// How often the account is published in full.
const PUBLISH_NS: u64 = 10_000_000;
/// How long reclaim rests when it found nothing more to take: data that does not compress is not
/// likely to do so a moment later.
const BACK_OFF_NS_MIN: u64 = 100_000_000;
const BACK_OFF_NS_MAX: u64 = 10_000_000_000;
/// As long as nothing has changed meanwhile.
const BACK_OFF_NS_MAX_QUIET: u64 = 160_000_000_000;
/// Or until the program has grown by as much as the cap / this.
const RETRY_SHARE: u64 = 16;
/// Or by as much, where what it has is shared: to look for the few pages that are not takes a millisecond.
const COPIES_BYTES: u64 = 64 << 10;

/// A spill file to which nothing was written for so long makes no room that is worth waiting for.
const SPILL_PATIENCE_NS: u64 = 1_000_000_000;

/// Why the agent does not look after this process.
enum GiveUp {
    Open(ramfold_sys::uffd::OpenError),
    Features(u64),
    System(&'static str, Errno),
    Cap(u64),
    /// A child would find zeros where its parent had evicted pages.
    Forks,
}

/// What the monitor's thread alone uses.
pub struct Monitor {
    agent: &'static Agent,
    statm: Statm,
    /// While it does not rest.
    reclaimer: Option<&'static mut Reclaimer>,
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
    cold: Option<(Cold, Pace)>,
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

/// Entry of the thread that ends the agent's process when the program is gone.
extern "C" fn watch_main(agent: *mut ()) -> ! {
    // SAFETY: as above.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    let (program, mut privileges) = (agent.program(), Privileges::default());
    while !program.wait_until_gone(Timespec { tv_sec: 1, tv_nsec: 0 }) {
        privileges.follow(agent, time::monotonic_ns());
    }
    agent.leave()
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

    /// Asks the kernel what the process costs, and publishes it.
    pub fn look(&mut self) {
        self.ask();
        self.notice_unannounced();
        self.measure_sharing();
        self.measure_shared_memory();
        self.measure_page_tables();
        self.correct_estimate();
        self.publish();
        if let Some(active) = self.agent.active() {
            spill::wake_if_wanted(self.agent, active);
        }
    }

    fn ask(&mut self) {
        if let Some(active) = self.agent.active() {
            copies::count_copied(self.agent, active);
        }
        self.store_bytes = self.store_cost();
        self.progress = self.agent.progress.load(Ordering::Acquire);
        // A process that cannot read its own account any more keeps its last word.
        if let Ok(memory) = self.statm.read() {
            self.memory = memory;
        }
    }

    /// Corrects the estimate by the kernel's count. What is more than was brought in for the process and
    /// than the store grew is growth.
    fn correct_estimate(&mut self) {
        let cost = self.cost_bytes();
        let before = self.agent.process().cost_bytes.swap(cost, Ordering::AcqRel);
        // The fault handler stores and frees meanwhile: what of that one count has and the other has not
        // is no growth of the program's.
        let store = self.store_cost();
        let (least, most) = (store.min(self.store_bytes), store.max(self.store_bytes));
        let store_before = core::mem::replace(&mut self.store_bytes_before, least);
        if self.agent.progress.load(Ordering::Acquire) == self.progress {
            let grown = (cost + store_before) as i64 - (before + most) as i64;
            self.growth.note(time::monotonic_ns(), grown);
        }
    }

    /// Has the program made memory that it did not announce?
    fn notice_unannounced(&mut self) {
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let grown = writable.saturating_sub(self.writable_before);
        self.writable_before = writable;
        self.note_announced();
        let announced = core::mem::take(&mut self.announced_since_look);
        if grown > announced + UNANNOUNCED_BYTES {
            self.unannounced_until_ns = time::monotonic_ns() + UNANNOUNCED_NS;
        }
    }

    fn note_announced(&mut self) {
        let announced = self.agent.announcements.take_announced();
        self.announced_since_look += announced;
        self.announced_since_scan += announced;
    }

    fn store_cost(&self) -> u64 {
        self.agent.active().map_or(0, |active| active.store.cost_bytes() as u64)
    }

    /// What the process costs: its resident anonymous pages, less what its relatives pay of them.
    fn cost_bytes(&self) -> u64 {
        let own = self.memory.anonymous_bytes.saturating_sub(self.agent.copies.saved_bytes());
        own + self.agent.copies.owed_bytes() + self.fixed_cost_bytes()
    }

    /// What cannot be compressed whatever the agent does. The rest is not squeezed to nothing for it.
    fn fixed_cost_bytes(&self) -> u64 {
        let process = self.agent.process();
        let fixed = process.shared_bytes.load(Ordering::Relaxed)
            + process.page_table_bytes.load(Ordering::Relaxed);
        fixed.min(cost::watermarks(self.agent.session()).cap / FIXED_COST_SHARE)
    }

    /// Shared memory that the process has now: looked at when its pages of files and of shared memory
    /// have become more or fewer.
    fn measure_shared_memory(&mut self) {
        let (agent, session) = (self.agent, self.agent.session());
        // Pages of files are far more usual, and to ask for the other kind walks no page tables.
        let measure = || match proc::resident_shared_bytes() {
            Ok(0) | Err(_) => 0,
            Ok(all) => Proportional::of_this_process().map_or(all, |part| part.shared),
        };
        let seen_bytes = self.memory.shared_bytes;
        let measured = measure_if_due(&mut self.shared_memory, seen_bytes, measure);
        let Some(shared) = measured else { return };
        agent.process().shared_bytes.store(shared, Ordering::Relaxed);
        let cap = cost::watermarks(session).cap;
        if shared > cap / SHARED_SAID_SHARE {
            session.say(
                Once::SharedMemory,
                format_args!(
                    "pid {} has {} MiB of shared memory, which is not compressed: it counts against the cap of {} MiB, by half of that at most",
                    agent.pid(),
                    shared >> 20,
                    cap >> 20
                ),
            );
        }
    }

    /// A limit of the kernel's (a control group's) counts page tables too. They stay when the pages in
    /// them are evicted.
    fn measure_page_tables(&mut self) {
        let process = self.agent.process();
        let evicted = process.pages_stored.load(Ordering::Relaxed) * PAGE_SIZE as u64;
        let touched = self.memory.anonymous_bytes + evicted;
        let measured = measure_if_due(&mut self.page_tables, touched, proc::page_table_bytes);
        if let Some(Ok(bytes)) = measured {
            process.page_table_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// After a fork a page may be shared with a relative. How much that saves only a walk through
    /// the page tables tells, so it is asked seldom.
    fn measure_sharing(&mut self) {
        self.agent.copies.settle(self.agent.others());
        if !self.agent.shares_memory.load(Ordering::Relaxed) {
            return;
        }
        let (process, session) = (self.agent.process(), self.agent.session());
        let is_unknown = process.sharing_unknown.load(Ordering::Relaxed) == 1;
        if self.agent.others().next().is_none() && !is_unknown {
            // The last relative is gone.
            return self.note_sharing(0, 0);
        }
        let started = time::monotonic_ns();
        // A fork changes it all at once, and so does a relative's end; and copies do. What else changes it
        // shows sooner or later.
        let measured = process.measured_ns.load(Ordering::Relaxed);
        let parted = session.parted_pages.load(Ordering::Relaxed);
        let is_old = is_unknown
            || session.last_gone_ns.load(Ordering::Relaxed) >= measured
            || parted.wrapping_sub(self.shares_parted_pages)
                >= SHARING_CHANGE_BYTES / PAGE_SIZE as u64;
        // All of the session do the same.
        let processes = 1 + self.agent.others().count() as u64;
        let share = processes * if is_old { SHARING_SHARE_OLD } else { SHARING_SHARE };
        let unchanged_ns = if is_old { 0 } else { self.shares_rest_ns };
        let rest = (self.shares_took_ns * share).max(SHARING_NS_MIN).max(unchanged_ns);
        if self.shares_measured_ns != 0 && started - self.shares_measured_ns < rest {
            return;
        }
        // What this process pays no more a relative does; one whose memory is being freed does not say so.
        if self.agent.others().any(Process::ends) {
            return;
        }
        process.sharing_unknown.store(0, Ordering::Relaxed);
        self.shares_parted_pages = parted;
        if let Ok(proportional) = Proportional::of_this_process() {
            let saved = self.memory.anonymous_bytes.saturating_sub(proportional.anonymous);
            let before = core::mem::replace(&mut self.shares_found_bytes, saved);
            self.shares_rest_ns = if before.abs_diff(saved) > SHARING_CHANGE_BYTES {
                0
            } else {
                (self.shares_rest_ns.max(rest) * 2).min(SHARING_NS_MAX)
            };
            self.note_sharing(saved, started);
        }
        self.shares_measured_ns = time::monotonic_ns();
        self.shares_took_ns = self.shares_measured_ns - started;
    }

    /// In a forked child: what it shares is not measured yet.
    pub fn begin_sharing(&mut self) {
        let cost = self.agent.copies.child_bytes();
        self.agent.copies.set_saved_bytes(self.memory.anonymous_bytes.saturating_sub(cost));
        // As usual for a process of 20 MiB.
        self.shares_measured_ns = time::monotonic_ns();
        self.shares_took_ns = SHARING_NS_MIN / 4;
    }

    fn note_sharing(&self, saved_bytes: u64, measured_ns: u64) {
        // All relatives are gone, or share too little to matter.
        let shares = saved_bytes >= PAGE_SIZE as u64 * 64;
        let agent = self.agent;
        agent.copies.set_saved_bytes(if shares { saved_bytes } else { 0 });
        agent.shares_memory.store(shares, Ordering::Relaxed);
        if let Some(active) = agent.active().filter(|_| !shares) {
            active.store.end_sharing();
        }
        agent.process().measured_ns.store(if shares { measured_ns } else { 0 }, Ordering::Relaxed);
    }

    fn publish(&mut self) {
        let (agent, session, process) = (self.agent, self.agent.session(), self.agent.process());
        let cost = self.cost_bytes();
        process.cost_bytes_max.fetch_max(cost, Ordering::Relaxed);
        let mut total = session.cost_bytes();
        if total > session.cost_bytes_max.load(Ordering::Relaxed) && total > cost {
            session.bury_the_dead(process.pid.load(Ordering::Relaxed));
            total = session.cost_bytes();
        }
        if !session.sharing_is_unknown() {
            session.cost_bytes_max.fetch_max(total, Ordering::Relaxed);
            let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
            session.over_cap_bytes_max.fetch_max(total.saturating_sub(cap), Ordering::Relaxed);
        }
        let now = time::monotonic_ns();
        if let Some(active) = agent.active()
            && now - self.published_ns >= PUBLISH_NS
        {
            self.published_ns = now;
            let store = active.store.statistics();
            self.fragmentation_bytes = store.pool_fragmentation_bytes;
            let waiting = agent.lock_core().staging.live_pages();
            let counters = &process.counters;
            for (place, amount) in [
                (&process.pool_used_bytes, store.pool_used_bytes),
                (&process.pool_reserve_bytes, store.pool_reserve_bytes),
                (&process.pool_fragmentation_bytes, store.pool_fragmentation_bytes),
                (&process.pool_total_bytes, store.pool_total_bytes),
                (&process.pool_spans, store.spans),
                (&process.compressed_bytes, store.object_bytes),
                (&process.pages_stored, store.objects + store.same_filled),
                (&process.pages_in_spill, store.spilled),
                (&process.spill_bytes, store.spilled_bytes),
                (&process.spill_queue_bytes, spill::leaving_bytes(agent)),
                (&process.pages_staging, waiting),
                (&counters.pool_reserve_misses, store.reserve_misses),
                (&counters.rejected_pool_full, store.rejects.pool_full),
                (&counters.rejected_metadata_full, store.rejects.metadata_full),
                (&counters.rejected_no_memory, store.rejects.no_memory),
            ] {
                place.store(amount, Ordering::Relaxed);
            }
            session.pool_bytes_max.fetch_max(session.pool_bytes(), Ordering::Relaxed);
            let buffers: u64 = active.spill.as_ref().map_or(0, |spill| {
                spill.memory_ranges().map(|range| self.resident_bytes(range)).iter().sum()
            });
            process.metadata_bytes.store(
                store.metadata_bytes + self.resident_bytes(agent.home_range()) + buffers,
                Ordering::Relaxed,
            );
            process.staging_bytes.store(
                self.resident_bytes(active.chunk_range(0).start..active.staging_end()),
                Ordering::Relaxed,
            );
        }
    }

    /// Memory behind a range of the agent's own.
    fn resident_bytes(&self, range: Range<usize>) -> u64 {
        let Some(active) = self.agent.active() else { return 0 };
        let mut runs = [PageRegion::default(); 32];
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let range = at..range.end;
            let Ok(found) = active.pagemap.present(range, usize::MAX, &mut runs, Pages::All) else {
                break;
            };
            bytes += runs[..found.runs].iter().map(|run| run.end - run.start).sum::<u64>();
            if found.end <= at {
                break;
            }
            at = found.end;
        }
        bytes
    }

    fn should_activate(&self) -> bool {
        let marks = cost::watermarks(self.agent.session());
        let kept = self.agent.session().unused_pool_bytes();
        let own = self.cost_bytes().max(self.unasked_bytes());
        let total = cost::others_claim(self.agent) + own + kept;
        (total > marks.activation || self.cold_after_ns() > 0)
            && own > PROCESS_BYTES_MIN.min(marks.cap / 4)
            && !self.agent.gave_up.load(Ordering::Relaxed)
    }

    /// No fork may copy the process half-way between asleep and active: those that began before are let
    /// through, new ones wait for the lock. It is not taken earlier: a fork that waits for it has locks of
    /// libc's, which one of the others may need to go on. Nor are they waited for here: a thread that
    /// waits for an answer may have such a lock.
    fn forks_are_done(&self) -> bool {
        self.agent.trap_forks.store(true, Ordering::SeqCst);
        self.agent.plain_forks.load(Ordering::SeqCst) == 0
    }

    /// Memory of the agent's own that counts as writable.
    fn own_bytes(&self) -> u64 {
        let agent = self.agent;
        let active = agent.active().map_or(0, |active| {
            let spill = active.spill.as_ref().map_or(0, |spill| {
                spill.memory_ranges().iter().map(|range| range.len() as u64).sum()
            });
            active.staging_memory.len() as u64 + active.store.writable_bytes() as u64 + spill
        });
        agent.home_range().len() as u64 + active
    }

    /// What the program has made since the mappings were last looked at, and what the fault handler has
    /// let go. What was unmapped and mapped again leaves the total as it was: so registered memory that is
    /// gone counts, and what was announced, which may take the place of what is not writable any more.
    fn fresh_bytes(&self) -> u64 {
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let released = self.agent.released_bytes.load(Ordering::Relaxed);
        let grown = (released + writable).saturating_sub(self.writable_at_scan);
        grown.max(self.announced_since_scan)
    }

    /// The program's writable memory that is not registered, touched or not.
    fn unasked_bytes(&self) -> u64 {
        self.unregistered_bytes + self.fresh_bytes()
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

    /// How much may be mapped and not registered where there is no room any more: to look at each new
    /// mapping would take too long.
    fn tolerated_bytes(&self) -> u64 {
        let marks = cost::watermarks(self.agent.session());
        ((marks.cap - marks.high) / 4).min(TOLERATED_BYTES_MAX)
    }

    /// Registers what the program could touch unasked for which there is no room, says how much it may,
    /// and answers who has `asked` before the last look.
    fn provide(&mut self, asked: u32) {
        let (agent, session) = (self.agent, self.agent.session());
        self.guard_copies();
        let tolerated = if self.is_active() { self.tolerated_bytes() } else { 0 };
        if self.is_active() && self.room_bytes() < tolerated {
            self.register_announced();
            if self.fresh_bytes() > tolerated / 2 {
                self.scan_mappings();
            }
        }
        let allowance = if agent.gave_up.load(Ordering::Relaxed) {
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
    fn provide_if_asked(&mut self) {
        let asked = self.agent.announcements.asked();
        if self.agent.announcements.is_waited_for() {
            self.ask();
            self.provide(asked);
        }
    }

    /// From here on memory is looked after: opens a userfaultfd, sets the reserve aside, starts
    /// the fault handler and registers the program's mappings.
    // Inlined, its frame of 52 KiB would stay on the stack of every sleeping monitor.
    #[inline(never)]
    fn activate(&mut self) -> Result<(), GiveUp> {
        let agent = self.agent;
        let marks = cost::watermarks(agent.session());
        if marks.cap < CAP_BYTES_MIN {
            return Err(GiveUp::Cap(marks.cap));
        }
        let mut core = agent.lock_core();
        let (uffd, told_of_forks) = open_uffd(agent)?;
        if !fork::CAN_TAKE_OVER && !told_of_forks {
            return Err(GiveUp::Forks);
        }
        let pagemap = agent.take_pagemap().map_err(|e| GiveUp::System("/proc/self/pagemap", e))?;
        let staging_pages = marks.cap as usize / STAGING_SHARE / PAGE_SIZE;
        let chunks = (staging_pages / CHUNK_PAGES).clamp(CHUNKS_MIN, CHUNKS_MAX);
        let chunk_pages = (staging_pages / chunks).clamp(CHUNK_PAGES_MIN, CHUNK_PAGES);
        let staging_bytes = chunks * CHUNK_PAGES * PAGE_SIZE;
        let staging_memory = Reservation::new(staging_bytes)
            .and_then(|memory| memory.commit(0, staging_bytes).map(|()| memory))
            .map_err(|e| GiveUp::System("address space for staging", e))?;
        let spill = SpillAccess::open(agent);
        // The pool cannot grow past the cap by much; what it is given is address space only.
        let mut store = Store::new(&Config {
            pool_bytes_max: (marks.cap as usize).saturating_mul(2).max(256 << 20),
            reserve_bytes: agent.session().reserve_bytes.load(Ordering::Relaxed) as usize,
            metadata_bytes_max: (marks.cap as usize / 4).max(64 << 20),
            spill: spill.is_some().then(|| spill::shape(agent.session())).flatten(),
        })
        .map_err(|_| GiveUp::System("address space for the pool", Errno::NOMEM))?;
        let start = staging_memory.as_ptr() as usize;
        uffd.register(start..start + staging_bytes, STAGING_MODE)
            .map_err(|e| GiveUp::System("registering staging", e))?;
        store.record_objects(Recorder::of(&agent.session().object_ring));
        // SAFETY: this is the monitor, and the agent is not active.
        unsafe {
            agent.set_active(Active { uffd, told_of_forks, pagemap, store, staging_memory, spill });
        }
        core.staging.set_size(chunks, chunk_pages);
        // The monitor has not been sent anywhere yet.
        core.objectives.set_processors(sched_getaffinity(None).map_or(1, |set| set.count().into()));
        self.start_handler();
        drop(core);
        self.scan_mappings();
        // It has just grown to this.
        self.growing_until_ns = time::monotonic_ns() + GROWING_NS;
        agent.process().active.store(1, Ordering::Relaxed);
        agent.session().processes_activated.fetch_add(1, Ordering::Relaxed);
        agent.session().note_activity();
        Ok(())
    }

    /// Starts the fault handler and makes the reclaimer ready, when the agent is active.
    pub fn start_handler(&mut self) {
        let agent = self.agent;
        // Should this process be killed, the program's faults must not be answered by the kernel with
        // zeros before the launcher ends it. Where the system has none of what it takes, that risk is
        // all there is.
        if let Some(active) = agent.active() {
            let _ = keep_open(&active.uffd);
        }
        self.start_thread(Stack::Watch, watch_main);
        self.program = None;
        self.start_thread(Stack::Handler, crate::fault::thread_main);
        agent.spill_works.store(false, Ordering::Relaxed);
        if self.writes_spill() {
            self.start_thread(Stack::Spill, spill::thread_main);
        }
    }

    fn is_active(&self) -> bool {
        self.agent.active().is_some()
    }

    fn take_reclaimer(&mut self) -> &'static mut Reclaimer {
        // SAFETY: this is the monitor, and there is none.
        { self.reclaimer.take() }
            .unwrap_or_else(|| unsafe { Reclaimer::make(self.agent, By::Monitor) })
    }

    /// When there will be nothing to do for long: what was worked with costs nothing meanwhile.
    fn rest(&mut self) {
        let had_reclaimer = self.reclaimer.is_some();
        self.reclaimer = self.reclaimer.take().and_then(Reclaimer::rest);
        if had_reclaimer || !self.slept_long {
            self.agent.give_back_stack(Stack::Monitor);
            self.note_own_change();
        }
    }

    /// The agent's own memory has changed, which is no change of the program's.
    fn note_own_change(&mut self) {
        if let Ok(memory) = self.statm.read() {
            self.memory = memory;
            self.quiet.note_own(amounts(memory));
        }
    }

    fn start_thread(&self, stack: Stack, entry: thread::Entry) {
        let agent = self.agent;
        let argument = ptr::from_ref(agent).cast_mut().cast();
        // SAFETY: the stack is this thread's alone, and the agent lives for ever.
        let spawned = unsafe { thread::spawn(agent.stack(stack), entry, argument) };
        if let Err(errno) = spawned {
            agent.fail(format_args!("cannot start a thread of the agent: {errno}"));
        }
    }

    /// Does this process write to the spill file? One that others do not know of only reads what it has
    /// inherited.
    fn writes_spill(&self) -> bool {
        self.agent.spills() && self.agent.session().lists(self.agent.process())
    }

    fn give_up(&self, reason: &GiveUp) {
        let agent = self.agent;
        agent.gave_up.store(true, Ordering::Relaxed);
        agent.trap_forks.store(false, Ordering::SeqCst);
        let session = agent.session();
        let hint = "`ramfold doctor` says what works here";
        match reason {
            GiveUp::Open(error) => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: userfaultfd is not permitted (/dev/userfaultfd: {}, system call: {}); {hint}",
                    error.device, error.system_call
                ),
            ),
            GiveUp::Features(missing) => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: this kernel's userfaultfd lacks features {missing:#x} (Linux 6.8 has them); {hint}"
                ),
            ),
            GiveUp::System(what, errno) => session.say(
                Once::NoAddressSpace,
                format_args!("runs without ramfold: {what}: {errno}; {hint}"),
            ),
            GiveUp::Forks => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: on this architecture the kernel must tell of forks, which takes CAP_SYS_PTRACE; {hint}"
                ),
            ),
            GiveUp::Cap(cap) => session.say(
                Once::CapTooSmall,
                format_args!(
                    "runs without ramfold: --memory {cap} bytes is less than the {CAP_BYTES_MIN} bytes that the agent itself needs room in"
                ),
            ),
        }
    }

    /// Registered memory gets no huge pages; what is not registered yet grows by gigabytes a second with
    /// them, more than is noticed in time.
    fn turn_huge_pages_off(&mut self) {
        if thread::huge_pages_off() == Ok(false) && thread::set_huge_pages_off(true).is_ok() {
            self.agent.session().huge_pages_off.store(1, Ordering::Relaxed);
        }
        self.has_huge_pages = false;
    }

    /// What is shared may be copied as long as there is room for all copies.
    fn guard_copies(&self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        let is_guarded = agent.copies.is_guarded();
        let is_unknown = agent.process().sharing_unknown.load(Ordering::Relaxed) == 1;
        let all = self.memory.anonymous_bytes;
        let shared = if is_unknown { all } else { agent.copies.saved_bytes() };
        let guards = agent.shares_memory.load(Ordering::Relaxed)
            && copies::must_be_guarded(agent, all, shared);
        if guards && !is_guarded {
            copies::guard(agent, active, &agent.lock_core());
        } else if is_guarded && !agent.shares_memory.load(Ordering::Relaxed) {
            copies::leave_unguarded(agent, active, &agent.lock_core());
        }
    }

    /// All of the process's own memory that is in RAM, whoever else has it.
    pub fn anonymous_bytes(&self) -> u64 {
        self.memory.anonymous_bytes
    }

    fn keep_below_cap(&mut self) {
        let agent = self.agent;
        let is_near = cost::others_cost(agent) + self.cost_bytes()
            > cost::watermarks(agent.session()).activation;
        if is_near && self.has_huge_pages {
            self.turn_huge_pages_off();
        }
        // As long as there is room, what is new need not be known.
        if is_near || self.cold_after_ns() > 0 || !agent.announces.load(Ordering::Relaxed) {
            self.scan_mappings_if_changed();
        }
        if let Some(active) = agent.active() {
            kept::drop_unneeded(agent, active);
        }
        agent.outruns.store(time::monotonic_ns() < self.growing_until_ns, Ordering::Relaxed);
        let marks = cost::own_watermarks(agent);
        let (from, to) = if agent.fork_waits.load(Ordering::Relaxed) > 0 {
            let room = marks.fork.saturating_sub(cost::others_cost(agent));
            (room, room)
        } else {
            (marks.high, marks.low)
        };
        let process = agent.process();
        if self.cost_bytes() <= from {
            if process.stuck.swap(false, Ordering::Relaxed) {
                agent.lock_core().sweep.encourage();
            }
            self.back_off_ns = BACK_OFF_NS_MIN;
            self.stops = 0;
            self.over_since_ns = 0;
            return;
        }
        if agent.is_stuck() {
            let retry_cost = agent.retry_cost_bytes.load(Ordering::Relaxed);
            let most = if self.quiet.is_quiet() { BACK_OFF_NS_MAX_QUIET } else { BACK_OFF_NS_MAX };
            let is_late = time::monotonic_ns() - self.tried_ns >= self.rest_ns.min(most);
            if !is_late && self.cost_bytes() < retry_cost {
                self.say_why_not_held();
                return;
            }
            let sweep = &mut agent.lock_core().sweep;
            sweep.encourage();
            if is_late {
                sweep.look_at_protected();
            }
            // Faults wait again, or they bring in pages as fast as reclaim takes them.
            process.stuck.store(false, Ordering::Relaxed);
        }
        let others = cost::others_cost(agent);
        if others > 0 {
            agent.session().bury_the_dead(process.pid.load(Ordering::Relaxed));
            agent.wake_others();
        }
        self.compact_if_worth_it();
        // Each process that can gives way in proportion to what it costs.
        let own = self.cost_bytes();
        let can: u64 = { agent.others().filter(|process| process.can_reclaim()) }
            .map(|process| process.cost_bytes.load(Ordering::Relaxed))
            .sum();
        let excess = u128::from(own.saturating_sub(to));
        let share = (excess * u128::from(own) / u128::from((own + can).max(1))) as u64;
        let goal = own - share.min(own);
        let shared_before = process.counters.refused_shared.load(Ordering::Relaxed);
        let exhausted = self.reclaim(goal);
        self.look();
        // Faults do not wait for what reclaim cannot give; but for what is written, which takes as
        // long as the disk and the machine take.
        let is_spilling = self.is_spilling() && agent.others().next().is_none();
        let stuck = exhausted && self.cost_bytes() > from && !is_spilling;
        process.stuck.store(stuck, Ordering::Relaxed);
        if !stuck {
            return;
        }
        self.tried_ns = time::monotonic_ns();
        self.rest_ns = self.back_off_ns;
        let shared = process.counters.refused_shared.load(Ordering::Relaxed) > shared_before;
        let spills = agent.spills();
        let growth = if shared && !spills {
            // What was copied of what is shared can be taken out.
            COPIES_BYTES
        } else {
            let rest_ns = self.rest_ns.min(BACK_OFF_NS_MAX);
            let growth = (marks.cap - marks.high) / 4 * (rest_ns / BACK_OFF_NS_MIN);
            // Each process of the session may have come to this.
            let processes = if spills { 1 } else { 1 + agent.others().count() as u64 };
            growth.min(marks.cap / RETRY_SHARE) / processes
        };
        let retry_cost = self.cost_bytes() + growth;
        agent.retry_cost_bytes.store(retry_cost, Ordering::Relaxed);
        self.back_off_ns = (self.back_off_ns * 2).min(BACK_OFF_NS_MAX_QUIET);
        self.say_why_not_held();
    }

    /// There is nothing more to take: what is passed for long is said, once in a session.
    fn say_why_not_held(&mut self) {
        let (agent, session) = (self.agent, self.agent.session());
        let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
        let total = cost::others_cost(agent) + self.cost_bytes();
        let now = time::monotonic_ns();
        if total <= cap {
            self.over_since_ns = 0;
            return;
        }
        if self.over_since_ns == 0 {
            self.over_since_ns = now;
        }
        let patience = if agent.spills() { OVER_CAP_SPILLING_NS } else { OVER_CAP_NS };
        if now - self.over_since_ns < patience || session.has_said(Once::CapNotHeld) {
            return;
        }
        let Ok(unheld) = Unheld::of_process(agent) else { return };
        let others = agent.others().count();
        let family = format_args!("{} processes go", others + 1);
        let goes = if others == 0 { format_args!("the program goes") } else { family };
        session.say(
            Once::CapNotHeld,
            format_args!(
                "the cap of {} MiB cannot be held, {goes} on at {} MiB now: pid {}, {unheld}",
                cap >> 20,
                total >> 20,
                agent.pid(),
            ),
        );
    }

    /// Does the pool become smaller because what is in it goes to the spill file?
    fn is_spilling(&mut self) -> bool {
        let spilled = self.agent.process().counters.pages_spilled.load(Ordering::Relaxed);
        let now = time::monotonic_ns();
        if spilled != self.spilled {
            (self.spilled, self.spilled_ns) = (spilled, now);
        }
        spilled > 0 && now - self.spilled_ns < SPILL_PATIENCE_NS
    }

    /// Brings back whatever is compressed: touching it is enough.
    fn bring_back(&mut self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        // What waits in staging is stored first: then all is in one place.
        agent.lock_core().staging.seal_chunk();
        let reclaimer = self.take_reclaimer();
        reclaimer.drain(active);
        self.reclaimer = Some(reclaimer);
        active.store.for_each(|page, kind| {
            if matches!(kind, Kind::Ghost | Kind::Damaged) || !agent_brings_back(agent) {
                return;
            }
            let address = page::address_of(page) as *mut _;
            // What cannot be touched now (no access) comes when it can be.
            // SAFETY: populating changes no content; what is gone gives an error.
            let _ = unsafe { madvise(address, PAGE_SIZE, Advice::LinuxPopulateRead) };
        });
        self.look();
    }

    /// Takes pages out until the process costs no more than `goal` bytes, or leaves that to the fault
    /// handler. `true` when there is nothing more to take.
    fn reclaim(&mut self, goal: u64) -> bool {
        let agent = self.agent;
        let Some(active) = agent.active() else { return true };
        let reclaimer = self.take_reclaimer();
        let hard = cost::own_watermarks(agent).hard;
        let exhausted = loop {
            self.watch(active, hard);
            spill::wake_if_wanted(agent, active);
            if self.cost_bytes().saturating_sub(spill::leaving_bytes(agent)) <= goal {
                break false;
            }
            match reclaimer.step(active, &mut || self.watch(active, hard)) {
                Step::More => {}
                Step::Leave => break false,
                Step::Nothing => break true,
            }
        };
        self.reclaimer = Some(reclaimer);
        exhausted
    }

    fn cold_after_ns(&self) -> u64 {
        self.agent.session().cold_after_ns.load(Ordering::Relaxed)
    }

    /// In proactive mode: compresses what nobody has touched for a while.
    fn compress_cold(&mut self) {
        let agent = self.agent;
        let cold_after_ns = self.cold_after_ns();
        if cold_after_ns == 0 {
            return;
        }
        let Some(active) = agent.active() else { return };
        let reclaimer = self.take_reclaimer();
        let now = time::monotonic_ns();
        let fault_ns = agent.process().counters.fault_ns_total.load(Ordering::Relaxed);
        let (mut cold, mut pace) = self.cold.take().unwrap_or_else(|| {
            let slowdown_ppm = agent.session().slowdown_ppm.load(Ordering::Relaxed);
            (Cold::START, Pace::new(cold_after_ns, slowdown_ppm, now, fault_ns))
        });
        let resident_bytes = self.cost_bytes().saturating_sub(self.store_cost());
        let mut due = pace.pages_due(now, resident_bytes / PAGE_SIZE as u64, fault_ns);
        // Where memory is short that comes first.
        let high = cost::own_watermarks(agent).high;
        while due > 0 && self.cost_bytes() <= high {
            let step = cold.step(agent, active, &mut agent.lock_core());
            match step {
                cold::Step::Looked(pages) => due = due.saturating_sub(pages),
                cold::Step::Full => {
                    reclaimer.drain(active);
                    self.look();
                }
                cold::Step::Round => {
                    agent.lock_core().staging.seal_chunk();
                    break;
                }
                cold::Step::Changing => break,
            }
        }
        reclaimer.drain(active);
        self.reclaimer = Some(reclaimer);
        self.cold = Some((cold, pace));
    }

    /// Where memory is short, but not just now: compresses once more what has stayed out.
    fn recompress(&mut self) {
        let agent = self.agent;
        self.recompresses = false;
        // Relatives that share an object would both pay for what takes its place.
        if agent.is_stuck() || agent.shares_memory.load(Ordering::Relaxed) {
            return;
        }
        let Some(active) = agent.active() else { return };
        let session = agent.session();
        // A single codec makes nothing smaller.
        if session.codec() != Choice::Auto {
            return;
        }
        let is_short = || {
            let total = cost::total(agent);
            let marks = cost::watermarks(session);
            (marks.activation..=marks.high).contains(&(total + session.unused_pool_bytes()))
        };
        if !is_short() || time::monotonic_ns() < self.growing_until_ns {
            return;
        }
        if !self.recompress.is_due(agent, active, self.quiet.is_quiet()) {
            return;
        }
        let reclaimer = self.take_reclaimer();
        let (statm, before) = (&self.statm, self.memory);
        self.recompresses = self.recompress.go_on(agent, active, reclaimer, || {
            is_short() && !has_grown(statm, before) && !agent.announcements.is_waited_for()
        });
        self.reclaimer = Some(reclaimer);
        self.note_own_change();
    }

    /// During reclaim: notices how the program grows, and stops it when it outruns reclaim.
    fn watch(&mut self, active: &Active, hard: u64) {
        let agent = self.agent;
        self.ask();
        self.correct_estimate();
        // What the program maps meanwhile grows unseen until it is registered.
        self.scan_mappings_if_grown();
        self.provide_if_asked();
        if self.cost_bytes() > hard && self.growth.is_fast() && self.stops < STOPS_MAX {
            self.growth = Growth::default();
            self.stops += 1;
            let core = &mut *agent.lock_core();
            sweep::stop_thread(agent, active, core, self.main_stack.clone());
            self.growing_until_ns = time::monotonic_ns() + GROWING_NS;
        }
    }

    /// Memory is short, and some of it lies unused between the objects of the pool.
    fn compact_if_worth_it(&mut self) {
        let Some(active) = self.agent.active() else { return };
        let marks = cost::watermarks(self.agent.session());
        let now = time::monotonic_ns();
        if self.fragmentation_bytes < marks.cap / COMPACTION_SHARE
            || now - self.compacted_ns < self.compacting_took_ns * COMPACTION_REST
        {
            return;
        }
        // The program may need this thread meanwhile.
        let (statm, before) = (&self.statm, self.memory);
        let mut leaves = 0u32;
        active.store.compact(|| {
            leaves += 1;
            !leaves.is_multiple_of(COMPACTION_LEAVES)
                || !has_grown(statm, before) && !self.agent.announcements.is_waited_for()
        });
        self.agent.process().counters.compactions.fetch_add(1, Ordering::Relaxed);
        self.compacted_ns = time::monotonic_ns();
        self.compacting_took_ns = self.compacted_ns - now;
        // Not known again before the next account.
        self.fragmentation_bytes = 0;
        self.look();
    }

    fn scan_mappings_if_changed(&mut self) {
        let changed = self.memory.mapped_bytes != self.mapped_bytes_at_scan
            || self.agent.lock_core().rescan_wanted;
        let since = time::monotonic_ns() - self.scanned_ns;
        let total = cost::others_cost(self.agent) + self.cost_bytes();
        // Memory that is registered grows more slowly: as long as there is room, what is new may first
        // show whether it stays.
        let patience = if total < cost::watermarks(self.agent.session()).activation {
            self.cold_after_ns() / SCANS_PER_ROUND
        } else {
            0
        };
        if changed && since > (self.scan_took_ns * SCAN_SHARE).max(patience) {
            self.scan_mappings();
        } else {
            self.scan_mappings_if_grown();
        }
    }

    /// New mappings that could take the process past its cap are registered at once.
    fn scan_mappings_if_grown(&mut self) {
        let marks = cost::watermarks(self.agent.session());
        let grown = self.memory.mapped_bytes.saturating_sub(self.mapped_bytes_at_scan);
        if grown > (marks.cap - marks.high) / 2 {
            self.scan_mappings();
        }
    }

    /// Registers every private anonymous mapping that is large enough.
    pub fn scan_mappings(&mut self) {
        let agent = self.agent;
        let Some(active) = agent.active() else { return };
        let started = time::monotonic_ns();
        // Before the mappings are looked at: what is made meanwhile counts as unknown.
        agent.released_bytes.store(0, Ordering::Relaxed);
        while agent.announcements.take_fresh().is_some() {}
        self.note_announced();
        self.announced_since_scan = 0;
        self.ask();
        self.writable_at_scan = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let mut unregistered = 0;
        agent.process().counters.mapping_scans.fetch_add(1, Ordering::Relaxed);
        agent.lock_core().rescan_wanted = false;
        let arguments = proc::arguments().unwrap_or_default();
        let mut buffer = [0; 8192];
        let result = maps::for_each(&mut buffer, |mapping| {
            if !mapping.is_private_anonymous() || agent.owns(&mapping.range) {
                return;
            }
            // What others read by `/proc/PID/cmdline` stays: for them it does not fault.
            let mut range = mapping.range.clone();
            if range.start < arguments.end && arguments.start < range.end {
                range.end = arguments.start.max(range.start) & !(PAGE_SIZE - 1);
            }
            if mapping.is_main_stack() {
                self.main_stack = range.clone();
            }
            if !register(agent, active, range) && mapping.writable {
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
        self.unregistered_bytes = unregistered;
        self.mapped_bytes_at_scan = self.memory.mapped_bytes;
        self.scanned_ns = time::monotonic_ns();
        self.scan_took_ns = self.scanned_ns - started;
    }

    /// Registers the mappings that were announced, where each can be asked for: far less than to look at
    /// all of them. What is left waits for that.
    fn register_announced(&mut self) {
        let agent = self.agent;
        if self.maps.is_none() {
            self.maps = Maps::open().ok();
        }
        let (Some(active), Some(maps)) = (agent.active(), &self.maps) else { return };
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
                && !register(agent, active, mapping.range)
            {
                self.unregistered_bytes += range.len() as u64;
            }
            known += range.len() as u64;
        }
        self.note_announced();
        self.announced_since_scan = self.announced_since_scan.saturating_sub(known);
        let writable = self.memory.writable_bytes.saturating_sub(self.own_bytes());
        let most = writable + agent.released_bytes.load(Ordering::Relaxed);
        self.writable_at_scan =
            (self.writable_at_scan + known).min(most).max(self.writable_at_scan);
    }

    /// How long to sleep unless something happens.
    fn sleep_us(&self, headroom: u64) -> u64 {
        let agent = self.agent;
        let now = time::monotonic_ns();
        let is_active = self.is_active();
        if agent.gave_up.load(Ordering::Relaxed) {
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
        // Growth announces itself, faults and relatives wake this thread: what is left to look for may
        // take longer from look to look.
        let is_long = self.quiet.lasts_ns(now) > LONG_QUIET_NS;
        let longest = if is_long { SLEEP_US_MAX_LONG_QUIET } else { SLEEP_US_MAX_QUIET };
        let may_wait = if agent.announces.load(Ordering::Relaxed) {
            now > self.unannounced_until_ns
        } else {
            is_long
        };
        let most = if self.recompresses { recompress::INTERVAL_US } else { longest };
        match (may_wait, is_active) {
            (false, _) => usual,
            (true, false) => longest,
            (true, true) => self.quiet.interval_us(usual, most),
        }
    }

    fn sleep(&mut self) {
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
        agent.monitor_sleeps.store(true, Ordering::SeqCst);
        // What was asked after the last look, or staged by a handler that did not see this thread asleep.
        if agent.announcements.is_waited_for()
            || active && headroom == 0 && agent.lock_core().staging.oldest().is_some()
        {
            agent.monitor_sleeps.store(false, Ordering::Relaxed);
            return;
        }
        let timeout = Timespec {
            tv_sec: (sleep_us / 1_000_000) as i64,
            tv_nsec: (sleep_us % 1_000_000 * 1_000) as i64,
        };
        // Woken, timed out or interrupted: look again either way.
        match &self.program {
            Some(program) => {
                let waited = program.wait_beside(&process.wake, seen, timeout);
                if waited == Waited::LookAgain && program.is_gone() {
                    agent.leave();
                }
            }
            None => {
                let _ = futex::wait(&process.wake, futex::Flags::empty(), seen, Some(&timeout));
            }
        }
        agent.monitor_sleeps.store(false, Ordering::Relaxed);
    }
}

/// Registers a private anonymous mapping that is large enough. `false`: it is not.
///
/// The lock is taken for each mapping, not for all: faults go on meanwhile. A mapping that has changed
/// since the look is registered as what it has become, or not.
fn register(agent: &Agent, active: &Active, range: Range<usize>) -> bool {
    if range.len() < MAPPING_BYTES_MIN {
        return false;
    }
    let mut core = agent.lock_core();
    if core.regions.contains(&range) {
        return true;
    }
    // What cannot be taken for its access is registered all the same: what is reserved without access
    // today is made writable tomorrow, and is then known from its first page on. A part of the range may
    // be gone since the look: registering passes over the hole, and what the program maps there next
    // would be taken from it and never brought back. So the kernel is asked; from then on any change is
    // an event, which waits for the lock.
    if active.uffd.is_changing() {
        core.rescan_wanted = true;
        return false;
    }
    // EBUSY: a userfaultfd of the program's own. EINVAL, ENOMEM: gone or changed.
    if active.uffd.register(range.clone(), PROGRAM_MODE).is_err() {
        return false;
    }
    if active.uffd.is_registered_anonymous(range.clone()) != Ok(true) {
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
                crate::regions::REGIONS_MAX
            ),
        );
    }
    zeros::protect(active, range);
    true
}

/// What changes where something happens in a process.
fn amounts(memory: Memory) -> Amounts {
    [memory.anonymous_bytes, memory.shared_bytes, memory.mapped_bytes, memory.writable_bytes]
}

/// Measures, where it is time to: `seen_bytes` is another amount than at the last measurement.
fn measure_if_due<T>(
    measurement: &mut Measurement,
    seen_bytes: u64,
    measure: impl FnOnce() -> T,
) -> Option<T> {
    let began_ns = time::monotonic_ns();
    measurement.is_due(seen_bytes, began_ns).then(|| {
        let measured = measure();
        measurement.note(seen_bytes, began_ns, time::monotonic_ns());
        measured
    })
}

fn agent_brings_back(agent: &Agent) -> bool {
    agent.session().brings_back.load(Ordering::Relaxed)
}

/// Whether the program has grown by so much since that it may need the monitor; also where that cannot be
/// told.
fn has_grown(statm: &Statm, before: Memory) -> bool {
    let most = before.anonymous_bytes + growth::FAST_BYTES;
    statm.read().map_or(true, |memory| memory.anonymous_bytes > most)
}

/// Makes the calling thread one that does not wait for the rest of the machine; `true` where it may
/// come before the program's.
///
/// # Errors
/// What sched_setattr(2) says.
pub fn run_soon() -> Result<bool, Errno> {
    thread::run_soon(TURN_NS, NICE_STEPS)
}

/// Opens a userfaultfd that tells all that must be known; whether it tells of forks too depends
/// on privilege.
fn open_uffd(agent: &Agent) -> Result<(Uffd, bool), GiveUp> {
    let open = || match agent.userfaultfd_device() {
        Some(device) => Uffd::open_by_device(device).map_err(|e| GiveUp::System("userfaultfd", e)),
        None => Uffd::open().map(|(uffd, _)| uffd).map_err(GiveUp::Open),
    };
    let offered = open()?.enable(0).map_err(|e| GiveUp::System("userfaultfd", e))?;
    if offered & NEEDED_FEATURES != NEEDED_FEATURES {
        return Err(GiveUp::Features(NEEDED_FEATURES & !offered));
    }
    for forks in [feature::EVENT_FORK, 0] {
        let uffd = open()?;
        match uffd.enable(NEEDED_FEATURES | forks) {
            Ok(_) => return Ok((uffd, forks != 0)),
            Err(Errno::PERM | Errno::INVAL) if forks != 0 => {}
            Err(errno) => return Err(GiveUp::System("userfaultfd", errno)),
        }
    }
    Err(GiveUp::System("userfaultfd", Errno::PERM))
}

/// Opens a userfaultfd for a forked child, which must have one.
pub fn open_uffd_or_fail(agent: &Agent) -> (Uffd, bool) {
    match open_uffd(agent) {
        Ok(opened) => opened,
        Err(_) => agent.fail(format_args!("a forked child got no userfaultfd")),
    }
}

//! The agent's threads under a model of the kernel's side, in orders that seeds decide: the
//! handler, the monitor (with the sweep and reclaim) and the spill writer.
//!
//! `RAMFOLD_SEED=N cargo test -p ramfold-pager simulation` runs one seed, `RAMFOLD_SEEDS=N` the
//! first N of them.
//!
//! Each of the agent's threads is a coroutine. It can stop for others before any call to the kernel
//! during which it does not hold the lock; what it does in between nobody can tell from what
//! happens at once.
//!
//! Threads of the program share memory, change their mappings and what they may do with them, and
//! fork:
//!
//! - through the agent, which the test does by a fork(2) of its own: the child is a process that
//!   runs a simulation of its own with the copy of the agent, and parent and child have turns
//!   (`child.rs`);
//! - by a clone that goes past libc, which the kernel tells of: the child runs while it is given
//!   its pages (`kernel/model/child.rs`).
//!
//! Every access compares a page with what the program has put there, and at the end all pages are
//! compared, in children too. No page may be read from the spill file twice at a time.
//!
//! That it finds what it should is seen by taking the remedy of a mended error out again:
//!
//! - `count_all_moved` (sys/src/uffd.rs) returns `Err(counted)` where it is `Ok(true)`: seed 1 has
//!   wrong bytes, in frames that MOVE has moved, not counted, and called EEXIST;
//! - `is_early` (handler/events.rs) is always `false`: seed 476 has wrong bytes, by a move that was
//!   told before the unmapping of its new place;
//! - `read_spilled` (handler/spill_in.rs) goes on where `reads.has(page)`: in seed 7 a page that
//!   two threads want is read twice at a time;
//! - `fill_child` (fork/fill.rs) gives nothing in `for_each_live`: in seed 17 a child has wrong
//!   bytes;
//! - `register_inherited` (fork/mod.rs) does not call `act_on_inherited`: in seed 635 a child has
//!   wrong bytes, by a change that its parent's handler had read during the fork;
//! - `move_start` (take/sweep.rs) does not ask `dropped.touch`: seed 1832 has wrong bytes, of a
//!   page that was taken while it was being dropped.

mod child;

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::rc::Rc;

use generator::{Generator, Gn};
use ramfold_codec::Choice;
use ramfold_store::{Choose, Config, Store};
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::mem::Reservation;

use self::child::{Forked, Relative};
use crate::agent::{Active, Agent, Context};
use crate::fork;
use crate::fork::copies::{self, WRITTEN_IN_FORK};
use crate::handler::Handler;
use crate::kernel::model::{Model, Random};
use crate::kernel::{proc, time};
use crate::monitor::{Monitor, Sleep};
use crate::page;
use crate::session::{OwnedSession, Process, Session, Watched};
use crate::spill::{self, SpillAccess};
use crate::staging::{CHUNK_PAGES, Slot};
use crate::take::sweep::{self, Taken};

const CHUNKS: usize = 4;
const CHUNK_PAGES_USED: usize = 16;
const CAP_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
const SEGMENTS: u64 = 64;
const SEEDS: u64 = 2_000;
const STEPS: usize = 900;
/// Steps in which every thread must have come to an end.
const END_STEPS: usize = 100_000;
/// The program is to keep so much at most, beside what the agent needs at first: more than it ever
/// has, or nothing.
const TARGET_BYTES_MAX: usize = 3 << 19;
/// What is not touched for so long is cold.
const COLD_AFTER_NS: u64 = 20_000_000;
const RECOMPRESS_AFTER_NS: u64 = 5_000_000;

/// In words of memory. Without optimisation frames are large.
const STACK_WORDS: usize = 128 << 10;
/// A forked child and its parent have a turn for about so many steps.
const TURN_STEPS: usize = 64;
const FORK_WAITS_MAX: usize = 100;
/// Turns in which a thread of the agent comes to an end.
const LAST_TURNS: usize = 10_000;

/// A thread of the agent.
type Thread = Generator<'static, (), ()>;

const HANDLER: usize = 0;
const MONITOR: usize = 1;
const WRITER: usize = 2;

/// The system call that copies the process, of the program's thread that forks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clone {
    None,
    Wanted,
    Made(isize),
}

/// What the threads and the simulation share.
struct Shared {
    random: RefCell<Random>,
    /// The threads are to end; the handler, for which the others may wait, comes last.
    ends: Cell<bool>,
    handler_ends: Cell<bool>,
    monitor_rounds: Cell<u64>,
    clone: Cell<Clone>,
    /// Forks while a chunk was being compressed, and while a page was being read from the spill
    /// file.
    forks_compressing: Cell<u64>,
    forks_reading: Cell<u64>,
}

impl Shared {
    fn below(&self, end: usize) -> usize {
        self.random.borrow_mut().below(end)
    }

    fn once_in(&self, n: usize) -> bool {
        self.random.borrow_mut().once_in(n)
    }
}

/// A thread that does this again and again.
fn thread(shared: &Rc<Shared>, mut turn: impl FnMut(&Shared) + 'static) -> Thread {
    let shared = Rc::clone(shared);
    coroutine(move || {
        while !shared.ends.get() {
            turn(&shared);
            let_others_go_on();
        }
    })
}

fn coroutine(body: impl FnOnce() + 'static) -> Thread {
    let body = OfOneThread(body);
    Gn::<()>::new_opt(STACK_WORDS, move || body.run())
}

/// What a coroutine does that never leaves its thread.
struct OfOneThread<F>(F);

// SAFETY: a simulation and all that is in it are of one thread.
unsafe impl<F> Send for OfOneThread<F> {}

impl<F: FnOnce()> OfOneThread<F> {
    fn run(self) {
        (self.0)();
    }
}

#[expect(deprecated, reason = "a scope is not at hand where the kernel is called")]
fn let_others_go_on() {
    generator::yield_with(());
}

/// The calling thread of the agent's stops for others.
fn stop(agent: &Agent) {
    // They would wait for the lock. During a fork the forking thread has it, and the handler goes
    // on.
    let may = || agent.fork_copy.is_copying() || agent.core.try_lock().is_some();
    if generator::is_generator() && may() {
        let_others_go_on();
    }
}

/// Waits for a message, and acts on it.
fn handler(shared: &Rc<Shared>, agent: &'static Agent, active: &'static Active) -> Thread {
    // SAFETY: there is one.
    let mut handler = unsafe { Handler::of(agent) };
    let shared = Rc::clone(shared);
    coroutine(move || {
        while !shared.handler_ends.get() {
            handler.turn(agent, active);
            let twice = handler.reads().read_twice();
            assert_eq!(twice, None, "a page is being read from the spill file twice");
            let_others_go_on();
        }
    })
}

/// Does a round, and sleeps.
fn monitor(shared: &Rc<Shared>, agent: &'static Agent, mut monitor: Monitor) -> Thread {
    let mut sleep: Option<(Sleep, u64)> = None;
    thread(shared, move |shared| {
        if let Some((Sleep { seen, .. }, until_ns)) = &sleep {
            let is_woken = agent.process().wake.load(Ordering::Acquire) != *seen;
            if !is_woken && time::monotonic_ns() < *until_ns {
                return;
            }
            agent.monitor_sleep.end();
        }
        monitor.round();
        shared.monitor_rounds.update(|rounds| rounds + 1);
        sleep = monitor.begin_sleep().map(|sleep| {
            let until_ns = time::monotonic_ns() + sleep.us * 1_000;
            (sleep, until_ns)
        });
    })
}

/// Writes a batch to the spill file.
fn writer(shared: &Rc<Shared>, agent: &'static Agent, active: &'static Active) -> Thread {
    // SAFETY: there is one.
    let mut writer = unsafe { spill::make(agent, active) };
    thread(shared, move |shared| {
        let choose = if shared.once_in(2) { Choose::Oldest } else { Choose::Raw };
        spill::write(agent, active, &mut writer, choose).unwrap();
    })
}

/// Is a chunk of staging being compressed?
fn is_compressing(agent: &Agent) -> bool {
    agent.core.try_lock().is_some_and(|core| core.staging.queued() > core.staging.waiting())
}

/// Is a page being read from the spill file?
fn is_reading(agent: &Agent) -> bool {
    agent.process().spill_reads_under_way.load(Ordering::Relaxed) > 0
}

/// Forks, as a thread of the program in the C library's fork.
fn forking(shared: &Rc<Shared>, agent: &'static Agent) -> Thread {
    let shared = Rc::clone(shared);
    coroutine(move || {
        agent.copies.begin_fork(agent.process());
        fork::make_room(agent);
        // Rather when something is half done.
        for _ in 0..shared.below(FORK_WAITS_MAX) {
            if is_compressing(agent) || is_reading(agent) {
                break;
            }
            let_others_go_on();
        }
        // Who waits for the lock spins.
        while agent.fork_copy.has_delayed() {
            let_others_go_on();
        }
        fork::copy_at_rest(agent, &[0; WRITTEN_IN_FORK], || {
            shared.clone.set(Clone::Wanted);
            loop {
                let_others_go_on();
                if let Clone::Made(result) = shared.clone.replace(Clone::Wanted) {
                    shared.clone.set(Clone::None);
                    return result;
                }
            }
        });
    })
}

/// An agent that looks after a modelled program.
struct Simulation {
    shared: Rc<Shared>,
    /// By [`HANDLER`], [`MONITOR`] and [`WRITER`].
    threads: Vec<Thread>,
    /// The program's thread that forks, and the thread's number.
    forking: Option<(Thread, usize)>,
    forks: bool,
    relative: Option<Relative>,
    seed: u64,
    model: Model,
    agent: &'static Agent,
    active: &'static Active,
    changes_target: bool,
    base_bytes: u64,
    _spill_file: Option<File>,
    // What the agent lies in, and what it refers to, which go after it.
    _home: Reservation,
    session: Box<OwnedSession>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random::new(seed);
        let spills = seed % 8 > 5;
        let session = Box::new(OwnedSession::create(CAP_BYTES, Choice::Auto).unwrap());
        // SAFETY: the box lives as long as the simulation.
        let lent: &'static Session = unsafe { &*ptr::from_ref(&**session) };
        let process: &'static Process = lent.claim(std::process::id()).unwrap();
        let (agent, home) = Agent::lay_out(lent, process, false, c"").unwrap();
        let bytes = CHUNKS * CHUNK_PAGES * PAGE_SIZE;
        let staging_memory = Reservation::new(bytes).unwrap();
        staging_memory.commit(0, bytes).unwrap();
        let start = staging_memory.as_ptr() as usize;
        let model = Model::new(seed, 1 + random.below(4), start..start + bytes);
        let spill_file = spills.then(|| lend_spill_file(&session));
        let spill = SpillAccess::open(agent);
        assert_eq!(spill.is_some(), spills);
        let store = Store::new(&Config {
            pool_bytes_max: 16 << 20,
            reserve_bytes: 256 << 10,
            metadata_bytes_max: 16 << 20,
            spill: spill::shape(lent),
        })
        .unwrap();
        let kernel = model.clone();
        let told_of_forks = seed % 4 == 1;
        model.state().tells_of_forks = told_of_forks;
        // SAFETY: this thread is the monitor, and the agent is not active.
        unsafe {
            agent.set_active(Active { kernel, told_of_forks, store, staging_memory, spill });
        }
        let active = agent.active().unwrap();
        agent.lock_core().staging.set_size(CHUNKS, CHUNK_PAGES_USED);
        agent.spill_work.set_works(spills);
        assert!(agent.fork_gate.close());
        model.set_own(Box::new(move || {
            let writable = agent.home_range().len() + bytes + active.store.writable_bytes();
            [active.store.cost_bytes() as u64, writable as u64]
        }));
        model.set_others(Box::new(move || stop(agent)));
        let shared = Rc::new(Shared {
            random: RefCell::new(random),
            ends: Cell::new(false),
            handler_ends: Cell::new(false),
            clone: Cell::new(Clone::None),
            forks_compressing: Cell::new(0),
            forks_reading: Cell::new(0),
            monitor_rounds: Cell::new(0),
        });
        let mut threads = vec![
            handler(&shared, agent, active),
            monitor(&shared, agent, Monitor::new(agent, proc::Statm::open())),
        ];
        threads.extend(spills.then(|| writer(&shared, agent, active)));
        let simulation = Simulation {
            model,
            agent,
            active,
            forking: None,
            forks: seed % 4 == 3,
            relative: None,
            seed,
            changes_target: shared.once_in(4),
            base_bytes: active.store.cost_bytes() as u64,
            threads,
            shared,
            _spill_file: spill_file,
            _home: home,
            session,
        };
        simulation.set_target();
        session_options(&simulation);
        simulation
    }

    /// The launcher says how much the program may keep.
    fn set_target(&self) {
        let target = self.base_bytes + self.shared.below(TARGET_BYTES_MAX) as u64;
        self.session.target_bytes.store(target, Ordering::Relaxed);
    }

    /// Time passes, as where all threads sleep.
    fn pass(&self) {
        let ns = 1 << self.shared.below(24);
        self.model.pass(ns);
    }

    fn step(&mut self) {
        // The agent is at rest but for the handler.
        if self.agent.fork_copy.is_copying() || self.agent.fork_copy.has_delayed() {
            return match self.shared.below(8) {
                0 => self.clone_process(),
                1..5 => drop(self.model.state().step()),
                _ => self.go_on(HANDLER),
            };
        }
        match self.shared.below(16) {
            0..3 => self.go_on(MONITOR),
            3 => self.pass(),
            4 if self.changes_target && self.shared.once_in(32) => self.set_target(),
            5 if self.shared.once_in(2) => self.go_on(WRITER),
            6 | 7 => self.fork(),
            4..10 => self.go_on(HANDLER),
            10 => self.model.state().step_child(),
            _ => drop(self.model.state().step()),
        }
        if self.shared.once_in(TURN_STEPS)
            && let Some(relative) = &mut self.relative
            && !relative.pass_turn()
            && let Some(child) = self.relative.take()
        {
            child.finish();
        }
    }

    fn go_on(&mut self, thread: usize) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.resume();
        }
    }

    /// A thread of the program begins to fork, or goes on with that.
    fn fork(&mut self) {
        let Some((forking, thread)) = &mut self.forking else {
            if self.forks && self.relative.is_none() && self.shared.once_in(4) {
                let thread = self.model.state().begin_fork();
                self.forking = thread.map(|thread| (forking(&self.shared, self.agent), thread));
            }
            return;
        };
        forking.resume();
        if forking.is_done() {
            self.model.state().end_fork(*thread);
            self.forking = None;
        }
    }

    /// The kernel copies the process, if a thread waits for that.
    fn clone_process(&mut self) {
        let is_told_all = self.model.state().is_told_all();
        if self.shared.clone.get() != Clone::Wanted {
            return self.fork_goes_on();
        }
        if self.shared.once_in(8) {
            self.shared.clone.set(Clone::Made(-libc::EAGAIN as isize));
        } else if is_told_all {
            self.model.state().share_all();
            match child::fork() {
                Forked::Parent(child) => {
                    self.relative = Some(child);
                    self.shared.clone.set(Clone::Made(1));
                    self.fork_goes_on();
                    return self.note_fork();
                }
                Forked::Child(parent) => {
                    self.relative = Some(parent);
                    self.shared.clone.set(Clone::Made(0));
                    self.begin_child();
                }
            }
        }
        self.fork_goes_on();
    }

    /// In the parent: what was under way.
    fn note_fork(&self) {
        let (compresses, reads) = (is_compressing(self.agent), is_reading(self.agent));
        self.shared.forks_compressing.update(|forks| forks + u64::from(compresses));
        self.shared.forks_reading.update(|forks| forks + u64::from(reads));
    }

    fn fork_goes_on(&mut self) {
        if self.agent.fork_copy.is_copying() {
            self.fork();
        }
    }

    /// In a forked child: an agent of its own.
    fn begin_child(&mut self) {
        let Some((mut forking, thread)) = self.forking.take() else { return };
        forking.resume();
        assert!(forking.is_done());
        // They are not in this process.
        core::mem::forget(core::mem::take(&mut self.threads));
        {
            let mut state = self.model.state();
            state.begin_child(thread, self.seed + 1);
            state.unregister_all();
        }
        let (agent, active, shared) = (self.agent, self.active, &self.shared);
        // SAFETY: this process has one thread.
        unsafe { fork::inherit(agent, active) };
        let mut of_child = Monitor::new(agent, proc::Statm::open());
        fork::register_inherited(agent, &mut of_child);
        self.threads = vec![handler(shared, agent, active), monitor(shared, agent, of_child)];
        self.threads.extend(active.spill.is_some().then(|| writer(shared, agent, active)));
        self.model.state().end_fork(0);
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        while self.forking.is_some() {
            self.step();
        }
        self.forks = false;
        self.model.state().is_ending = true;
        for step in 0.. {
            self.step();
            let mut state = self.model.state();
            if state.is_idle() && !state.touch_missing() {
                break;
            }
            assert!(step < END_STEPS, "threads wait for ever: {}", state.describe());
            drop(state);
            // What is brought in stays.
            self.session.target_bytes.store(CAP_BYTES, Ordering::Relaxed);
            self.session.cold_after_ns.store(0, Ordering::Relaxed);
            self.session.watch.begin(0);
        }
        assert_eq!(self.model.state().check_all(), 0);
        self.model.state().finish_children();
        match self.relative.take() {
            Some(relative) if relative.is_child() => relative.finish(),
            Some(_) => child::end(true),
            None => {}
        }
    }
}

/// What the user may have asked for.
fn session_options(simulation: &Simulation) {
    let Simulation { session, shared, .. } = simulation;
    session.recompress_after_ns.store(RECOMPRESS_AFTER_NS, Ordering::Relaxed);
    if shared.once_in(4) {
        session.cold_after_ns.store(COLD_AFTER_NS, Ordering::Relaxed);
        session.slowdown_ppm.store(1_000_000, Ordering::Relaxed);
    }
    if shared.once_in(4) {
        session.watch.begin(1_000_000);
    }
}

/// A spill file for the session, which the caller keeps open.
fn lend_spill_file(session: &OwnedSession) -> File {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    let area = &session.spill;
    area.segment_bytes.store(SEGMENT_BYTES, Ordering::Relaxed);
    area.file.lend(&file).unwrap();
    session.draw_spill_key().unwrap();
    area.segment_count.store(SEGMENTS, Ordering::Release);
    file
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let mut threads = core::mem::take(&mut self.threads);
        if std::thread::panicking() {
            // They may not come to an end now that something has failed.
            core::mem::forget(threads);
            return Model::end();
        }
        self.shared.ends.set(true);
        let [handler, others @ ..] = &mut *threads else { return };
        for _ in 0..LAST_TURNS {
            others.iter_mut().filter(|thread| !thread.is_done()).for_each(|it| _ = it.resume());
            self.shared.handler_ends.set(others.iter().all(Thread::is_done));
            handler.resume();
            if handler.is_done() {
                break;
            }
        }
        assert!(handler.is_done(), "a thread of the agent does not end");
        drop(threads);
        Model::end();
        // SAFETY: nobody uses the agent any more.
        unsafe { self.agent.drop_active() };
    }
}

/// What happened in some runs.
#[derive(Debug, Default)]
struct Sums {
    accesses: u64,
    faults: u64,
    pages_staged: u64,
    spill_hits: u64,
    events_early: u64,
    monitor_rounds: u64,
    reclaim_direct: u64,
    faults_stalled: u64,
    pages_cold: u64,
    forks_taken_over: u64,
    forks_filled: u64,
    forks_compressing: u64,
    forks_reading: u64,
    pages_filled_for_child: u64,
    pages_written_shared: u64,
    refused_shared: u64,
    objects_kept: u64,
    pages_unshared: u64,
    pages_watched: u64,
}

impl Sums {
    fn add_run(&mut self, seed: u64) {
        let mut simulation = Simulation::new(seed);
        simulation.run();
        let counters = &simulation.agent.process().counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = simulation.model.state();
        self.accesses += state.accesses;
        self.faults += state.faults_read;
        self.pages_staged += count(&counters.pages_staged);
        self.spill_hits += count(&counters.spill_hits);
        self.events_early += count(&counters.events_early);
        self.monitor_rounds += simulation.shared.monitor_rounds.get();
        self.reclaim_direct += count(&counters.reclaim_direct);
        self.faults_stalled += count(&counters.faults_stalled);
        self.pages_cold += count(&counters.pages_cold);
        self.forks_compressing += simulation.shared.forks_compressing.get();
        self.forks_reading += simulation.shared.forks_reading.get();
        self.forks_filled += count(&counters.forks_filled);
        self.pages_filled_for_child += count(&counters.pages_filled_for_child);
        self.forks_taken_over += count(&counters.forks_taken_over);
        self.pages_written_shared += count(&counters.pages_written_shared);
        self.refused_shared += count(&counters.refused_shared);
        self.objects_kept += count(&counters.objects_kept);
        self.pages_unshared += count(&counters.pages_unshared);
        let seen = core::iter::from_fn(|| simulation.session.watch.take());
        self.pages_watched += seen.filter(|event| event.what == Watched::Touched).count() as u64;
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect(variable))
}

/// Seeds that are asked for by the environment.
fn asked_seeds() -> Option<Range<u64>> {
    let one = number("RAMFOLD_SEED").map(|seed| seed..seed + 1);
    one.or(number("RAMFOLD_SEEDS").map(|seeds| 0..seeds))
}

fn run_seeds(seeds: Range<u64>) -> Sums {
    let mut sums = Sums::default();
    let parent = std::process::id();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| sums.add_run(seed));
        let is_well = std::panic::catch_unwind(run).is_ok();
        if std::process::id() != parent {
            child::end(is_well);
        }
        assert!(is_well, "seed {seed}: RAMFOLD_SEED={seed} repeats it");
    }
    println!("seeds {seeds:?}: {sums:?}");
    sums
}

/// Runs these seeds. They must have met enough of all that is to be tried.
fn run_enough_seeds(seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let sums = run_seeds(seeds);
    let Sums { faults, pages_staged, spill_hits, events_early, monitor_rounds, .. } = sums;
    assert!(faults > 10 * count && pages_staged > 10 * count, "{sums:?}");
    assert!(monitor_rounds > 5 * count && spill_hits > count, "{sums:?}");
    assert!(events_early > count / 100, "{sums:?}");
    assert!(sums.pages_watched > count / 10, "{sums:?}");
    let Sums { forks_taken_over, forks_filled, forks_compressing, forks_reading, .. } = sums;
    assert!(forks_taken_over > count / 20 && forks_filled > count / 20, "{sums:?}");
    assert!(forks_compressing > count / 100 && forks_reading > 0, "{sums:?}");
}

// Two tests, for two processors.

#[test]
fn every_byte_is_right_whatever_the_order() {
    match asked_seeds() {
        Some(seeds) => drop(run_seeds(seeds)),
        None => run_enough_seeds(0..SEEDS / 2),
    }
}

#[test]
fn every_byte_is_right_with_the_other_seeds() {
    if asked_seeds().is_none() {
        run_enough_seeds(SEEDS / 2..SEEDS);
    }
}

/// Pages that somebody takes whom the sweep stands before, as those that watch do; into slots in
/// which somebody who reads this process's memory has left pages of zeros. Returns whether it came
/// to that.
fn take_what_others_took(simulation: &Simulation) -> bool {
    let &Simulation { agent, active, ref model, .. } = simulation;
    let Some(mut core) = agent.core.try_lock() else { return false };
    let mut context = Context { agent, active, core: &mut core };
    // The sweep stands behind what it took, as a rule before more of the same run.
    let took = (0..16).any(|_| sweep::take_next(&mut context) == Taken::Pages);
    let free = context.core.staging.free_slots();
    if !took || free.start == 0 || free.len() < 4 {
        return false;
    }
    let next = context.core.staging.page(Slot(free.start - 1)) + 1;
    let address = page::address_of(next);
    let (taken, bytes) = sweep::move_start(&mut context, address..address + 2 * PAGE_SIZE, 2);
    if taken != Taken::Pages {
        return false;
    }
    let pages = next..next + (bytes / PAGE_SIZE) as u64;
    let slots = |context: &Context<'_>| -> Vec<_> {
        pages.clone().map(|page| context.core.staging.find(page)).collect()
    };
    let before = slots(&context);
    for slot in context.core.staging.free_slots().take(2) {
        model.state().read_from_outside(active.slot_address(Slot(slot)));
    }
    sweep::take_next(&mut context);
    assert_eq!(slots(&context), before, "{pages:x?} are taken twice");
    true
}

/// Runs simulations without forks, and returns what `see` finds in the middle of each.
fn seen_half_way<T>(simulations: u64, see: impl Fn(&Simulation) -> T) -> impl Iterator<Item = T> {
    (0..simulations).map(move |seed| {
        let mut simulation = Simulation::new(4 * seed);
        (0..STEPS / 2).for_each(|_| simulation.step());
        let seen = see(&simulation);
        simulation.run();
        seen
    })
}

#[test]
fn what_others_took_is_not_taken_again() {
    let count = seen_half_way(200, take_what_others_took).filter(|&tried| tried);
    assert!(count.count() > 5);
}

/// All memory is protected because some is shared. Returns whether the sweep takes some of the rest
/// all the same, where it was protected and there is room in staging.
fn take_what_is_protected(simulation: &Simulation) -> Option<bool> {
    let &Simulation { agent, active, .. } = simulation;
    let mut core = agent.core.try_lock()?;
    let mut context = Context { agent, active, core: &mut core };
    copies::guard(&mut context);
    if !agent.copies.is_guarded() {
        return None;
    }
    for _ in 0..1000 {
        match sweep::take_next(&mut context) {
            Taken::Pages => return Some(true),
            Taken::Nothing => return Some(false),
            Taken::Full | Taken::Changing => return None,
            Taken::Busy(page) => context.core.sweep.skip_busy(page),
            Taken::Passed | Taken::Looked => {}
        }
    }
    // What others have taken would have to be compressed first.
    None
}

#[test]
fn what_is_protected_though_it_is_not_shared_is_taken() {
    let took: Vec<bool> = seen_half_way(100, take_what_is_protected).flatten().collect();
    let count = took.iter().filter(|&&took| took).count();
    assert!(count > 10 && count > took.len() / 2, "{count} of {}", took.len());
}

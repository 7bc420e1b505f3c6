//! The handler, the sweep and reclaim under a model of the kernel's side, in orders that seeds decide.
//!
//! `RAMFOLD_SEED=N cargo test -p ramfold-pager simulation` runs one seed, `RAMFOLD_SEEDS=N` the first
//! N of them.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::cell::RefCell;
use std::fs::File;
use std::rc::Rc;

use ramfold_codec::Choice;
use ramfold_store::{Choose, Config, Store};
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::mem::Reservation;

use crate::agent::{Active, Agent};
use crate::handler::Handler;
use crate::kernel::model::{AREA_PAGES, Model, Random};
use crate::monitor;
use crate::reclaim::{By, Reclaimer};
use crate::session::{OwnedSession, Process, Session};
use crate::spill::{self, SpillAccess, Writer};
use crate::staging::CHUNK_PAGES;

const CHUNKS: usize = 4;
const CHUNK_PAGES_USED: usize = 16;
const CAP_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
const SEGMENTS: u64 = 64;
const STEPS: usize = 600;
/// Steps in which every thread must have come to an end.
const END_STEPS: usize = 100_000;

/// An agent that looks after a modelled program.
struct Simulation {
    random: Random,
    model: Model,
    agent: &'static Agent,
    active: &'static Active,
    handler: Rc<RefCell<Handler>>,
    /// New mappings are found soon, or not.
    scans_often: bool,
    /// The program is to keep so many pages at most.
    goal_pages: usize,
    writer: Option<Writer>,
    _spill_file: Option<File>,
    // What the agent lies in, and what it refers to, which go after it.
    _home: Reservation,
    _session: Box<OwnedSession>,
}

impl Simulation {
    fn new(seed: u64) -> (Simulation, Reclaimer) {
        let mut random = Random::new(seed);
        let spills = seed % 8 > 5;
        let session = Box::new(OwnedSession::create(CAP_BYTES, Choice::Auto).unwrap());
        // SAFETY: the box lives as long as the simulation.
        let shared: &'static Session = unsafe { &*ptr::from_ref(&**session) };
        let process: &'static Process = shared.claim(std::process::id()).unwrap();
        let (agent, home) = Agent::lay_out(shared, process, false, c"").unwrap();
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
            spill: spill::shape(shared),
        })
        .unwrap();
        let kernel = model.clone();
        // SAFETY: this thread is the monitor, and the agent is not active.
        unsafe {
            agent.set_active(Active { kernel, told_of_forks: false, store, staging_memory, spill });
        }
        let active = agent.active().unwrap();
        agent.lock_core().staging.set_size(CHUNKS, CHUNK_PAGES_USED);
        // SAFETY: there is one of each.
        let writer = spills.then(|| unsafe { spill::make(agent, active) });
        agent.spill_work.set_works(spills);
        // Objects are kept while their pages are in memory.
        if seed % 4 == 3 {
            agent.sharing.begin();
        }
        // SAFETY: as above.
        let (handler, reclaimer) =
            unsafe { (Handler::of(agent), Reclaimer::make(agent, By::Monitor)) };
        let goal_pages = random.below(3 * AREA_PAGES);
        let handler = Rc::new(RefCell::new(handler));
        let waiting = Rc::clone(&handler);
        // A handler that yields itself has no turn.
        model.set_others(Some(Box::new(move || {
            if let Ok(mut handler) = waiting.try_borrow_mut() {
                handler.turn(agent, active);
            }
        })));
        let simulation = Simulation {
            random,
            model,
            agent,
            active,
            handler,
            scans_often: seed % 4 < 2,
            goal_pages,
            writer,
            _spill_file: spill_file,
            _home: home,
            _session: session,
        };
        (simulation, reclaimer)
    }

    /// The handler's thread has its turn.
    fn handle(&self) {
        self.handler.borrow_mut().turn(self.agent, self.active);
    }

    /// The monitor looks at the mappings.
    fn scan(&self) {
        let areas = self.model.state().unregistered_areas();
        for area in areas {
            monitor::register(self.agent, self.active, area);
        }
    }

    /// The monitor reclaims.
    fn reclaim(&mut self, reclaimer: &mut Reclaimer) {
        let cost = self.model.state().resident_pages() * PAGE_SIZE;
        self.agent.process().cost_bytes.store(cost as u64, Ordering::Relaxed);
        if cost <= self.goal_pages * PAGE_SIZE {
            return;
        }
        // In between the handler goes on.
        let mut random = self.random.clone();
        reclaimer.step(self.active, &mut || {
            if random.once_in(2) {
                self.handle();
            }
        });
        self.random.next();
    }

    /// The spill writer has its turn.
    fn spill(&mut self) {
        if let Some(writer) = &mut self.writer {
            let choose = if self.random.once_in(2) { Choose::Oldest } else { Choose::Raw };
            spill::write(self.agent, self.active, writer, choose).unwrap();
        }
    }

    fn step(&mut self, reclaimer: &mut Reclaimer) {
        match self.random.below(8) {
            0 if self.scans_often || self.random.once_in(16) => self.scan(),
            1 => self.reclaim(reclaimer),
            2 if self.random.once_in(4) => self.spill(),
            2..4 => self.handle(),
            _ => drop(self.model.state().step()),
        }
    }

    fn run(&mut self, reclaimer: &mut Reclaimer) {
        for _ in 0..STEPS {
            self.step(reclaimer);
        }
        self.model.state().is_ending = true;
        for step in 0.. {
            self.step(reclaimer);
            let mut state = self.model.state();
            if state.is_idle() && !state.touch_missing() {
                break;
            }
            assert!(step < END_STEPS, "threads wait for ever: {}", state.describe());
            drop(state);
            // What is brought in stays.
            self.goal_pages = usize::MAX / PAGE_SIZE;
        }
        assert_eq!(self.model.state().check_all(), 0);
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
        self.model.set_others(None);
        self.writer = None;
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
}

impl Sums {
    fn add_run(&mut self, seed: u64) {
        let (mut simulation, mut reclaimer) = Simulation::new(seed);
        simulation.run(&mut reclaimer);
        let counters = &simulation.agent.process().counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = simulation.model.state();
        self.accesses += state.accesses;
        self.faults += state.faults_read;
        self.pages_staged += count(&counters.pages_staged);
        self.spill_hits += count(&counters.spill_hits);
        self.events_early += count(&counters.events_early);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect(variable))
}

#[test]
fn every_byte_is_right_whatever_the_order() {
    let mut sums = Sums::default();
    if let Some(seed) = number("RAMFOLD_SEED") {
        return sums.add_run(seed);
    }
    let asked = number("RAMFOLD_SEEDS");
    let seeds = asked.unwrap_or(2_000);
    for seed in 0..seeds {
        let run = std::panic::AssertUnwindSafe(|| sums.add_run(seed));
        if std::panic::catch_unwind(run).is_err() {
            panic!("seed {seed}: RAMFOLD_SEED={seed} repeats it");
        }
    }
    println!("{seeds} seeds: {sums:?}");
    if asked.is_some() {
        return;
    }
    let Sums { faults, pages_staged, spill_hits, events_early, .. } = sums;
    assert!(faults > 10 * seeds && pages_staged > 10 * seeds, "{sums:?}");
    assert!(spill_hits > seeds && events_early > seeds / 50, "{sums:?}");
}

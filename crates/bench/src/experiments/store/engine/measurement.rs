//! Engines of compression side by side: paper 000's comparison of doing the work on the thread that
//! asks with doing it on threads of its own.
//!
//! One thread compresses in bulk, as reclaim does, and another has an object decompressed now and
//! then, as a read does, and waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use ramfold_codec::{Choice, Encoding, Objective, PAGE_SIZE, Page};
use ramfold_engine::{
    Done, Engine, Job, Mailbox, Outcome, Room, Synchronous, Task, Workers, WorkersConfig,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::content::random::Random;
use crate::harness::latency::{Histogram, Latency};
use crate::harness::statistics::median_of;

/// Pages that the thread in bulk has under way.
const UNDER_WAY: usize = 256;
/// Pages it hands over at once: a chunk of reclaim.
const CHUNK: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::experiments::store) enum Kind {
    /// On the thread that asks
    Sync,
    /// On threads of the engine's
    Async,
}

impl Kind {
    fn engine(self, codec: Choice, workers_max: Option<usize>) -> Result<Box<dyn Engine>> {
        Ok(match self {
            Kind::Sync => Box::new(Synchronous::new(codec)?),
            Kind::Async => {
                let mut config = WorkersConfig::default();
                config.workers_max = workers_max.unwrap_or(config.workers_max);
                Box::new(Workers::new(codec, config)?)
            }
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) codec: Choice,
    /// Mean time between two objects that are asked for.
    pub(super) every: Duration,
    /// How long each part lasts.
    pub(super) length: Duration,
    pub(super) rounds: usize,
    pub(super) workers_max: Option<usize>,
}

/// What one engine did.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) engine: &'static str,
    pub(super) codec: &'static str,
    /// Pages compressed when nothing else is asked for: MB (10^6 bytes) a second.
    pub(super) alone_mb_per_s: f64,
    /// The same while objects are asked for.
    pub(super) beside_mb_per_s: f64,
    /// Time from asking for an object until the page is there.
    pub(super) decompress: Latency,
    pub(super) decompressed: u64,
    /// Processor time of the whole process per page compressed in bulk, in microseconds, while
    /// objects are asked for.
    pub(super) cpu_us_per_page: f64,
    /// Most threads the engine had.
    pub(super) workers: usize,
}

/// Measures engines in turn; speeds are medians of the rounds, times are those of all of them.
pub(super) fn measure(
    kinds: &[Kind],
    load: &Load,
    pages: &[Page],
    mut tell: impl FnMut(&str),
) -> Result<Vec<Row>> {
    let objects = objects(load.codec, pages)?;
    let mut runs: Vec<Vec<Run>> = kinds.iter().map(|_| Vec::new()).collect();
    for round in 0..load.rounds {
        for (kind, runs) in kinds.iter().zip(&mut runs) {
            tell(&format!("{kind:?}, round {}", round + 1));
            let engine = kind.engine(load.codec, load.workers_max)?;
            runs.push(run(&*engine, load, pages, &objects, round as u64)?);
        }
    }
    runs.into_iter().map(|runs| row(load, runs)).collect()
}

/// A page's object, and the page's number.
struct Object {
    encoding: Encoding,
    bytes: Vec<u8>,
    page: usize,
}

/// Objects to ask for, made by the engine that is the simplest.
fn objects(codec: Choice, pages: &[Page]) -> Result<Vec<Object>> {
    const MOST: usize = 4096;
    let engine = Synchronous::new(codec)?;
    let mailbox = Arc::new(Mailbox::new());
    let jobs = pages.iter().take(MOST).zip(0..).map(|(page, tag)| {
        let mut room = Room::for_page();
        room.content.copy_from_slice(page);
        Job { tag, task: compress(), room }
    });
    engine.submit(&mut jobs.collect(), &mailbox);
    let mut done = Vec::new();
    mailbox.collect(&mut done, usize::MAX);
    let objects = done.into_iter().filter_map(|done| match done.outcome {
        Outcome::Compressed { encoding, len } => {
            let page = done.tag as usize;
            Some(Object { encoding, bytes: done.room.object[..len].to_vec(), page })
        }
        _ => None,
    });
    let objects: Vec<Object> = objects.collect();
    ensure!(!objects.is_empty(), "none of the pages can be compressed with {codec}");
    Ok(objects)
}

fn compress() -> Task {
    Task::Compress { objective: Objective::Speed, object_bytes_max: PAGE_SIZE * 7 / 8 }
}

struct Run {
    engine: &'static str,
    alone_mb_per_s: f64,
    beside_mb_per_s: f64,
    decompress: Histogram,
    cpu_us_per_page: f64,
    workers: usize,
}

fn run(
    engine: &dyn Engine,
    load: &Load,
    pages: &[Page],
    objects: &[Object],
    seed: u64,
) -> Result<Run> {
    let alone = bulk(engine, pages, load.length, &AtomicBool::new(false))?;
    let stop = AtomicBool::new(false);
    let cpu_before = cpu_seconds();
    let (beside, decompress) = thread::scope(|scope| {
        let beside = scope.spawn(|| bulk(engine, pages, 10 * load.length, &stop));
        let decompress = ask(engine, load, pages, objects, seed);
        stop.store(true, Ordering::Relaxed);
        (beside.join(), decompress)
    });
    let Ok(beside) = beside else { bail!("a thread panicked") };
    let beside = beside?;
    Ok(Run {
        engine: engine.name(),
        alone_mb_per_s: alone.mb_per_s(),
        beside_mb_per_s: beside.mb_per_s(),
        decompress: decompress?,
        cpu_us_per_page: (cpu_seconds() - cpu_before) * 1e6 / beside.pages.max(1) as f64,
        workers: alone.workers.max(beside.workers),
    })
}

fn row(load: &Load, runs: Vec<Run>) -> Result<Row> {
    let middle = |of: fn(&Run) -> f64| median_of(&runs, of).context("no rounds");
    let mut all = Histogram::default();
    runs.iter().for_each(|run| all.merge(&run.decompress));
    Ok(Row {
        engine: runs.first().context("no rounds")?.engine,
        codec: load.codec.name(),
        alone_mb_per_s: middle(|run| run.alone_mb_per_s)?,
        beside_mb_per_s: middle(|run| run.beside_mb_per_s)?,
        decompress: all.latency().context("no object was asked for")?,
        decompressed: all.count(),
        cpu_us_per_page: middle(|run| run.cpu_us_per_page)?,
        workers: runs.iter().map(|run| run.workers).max().unwrap_or(0),
    })
}

/// What the thread in bulk has done.
struct Bulk {
    pages: u64,
    seconds: f64,
    workers: usize,
}

impl Bulk {
    fn mb_per_s(&self) -> f64 {
        self.pages as f64 * PAGE_SIZE as f64 / 1e6 / self.seconds
    }
}

/// Compresses pages again and again, for `length` or until `stop`.
fn bulk(engine: &dyn Engine, pages: &[Page], length: Duration, stop: &AtomicBool) -> Result<Bulk> {
    let mailbox = Arc::new(Mailbox::new());
    let mut rooms: Vec<Room> = (0..UNDER_WAY).map(|_| Room::for_page()).collect();
    let mut jobs = VecDeque::with_capacity(CHUNK);
    let mut done: Vec<Done> = Vec::new();
    let (mut finished, mut next, mut workers) = (0, 0, 0);
    let started = Instant::now();
    loop {
        while jobs.len() < CHUNK
            && let Some(mut room) = rooms.pop()
        {
            room.content.copy_from_slice(&pages[next % pages.len()]);
            jobs.push_back(Job { tag: next as u64, task: compress(), room });
            next += 1;
        }
        engine.submit(&mut jobs, &mailbox);
        workers = workers.max(engine.depths().workers);
        mailbox.collect(&mut done, if rooms.is_empty() { CHUNK } else { 0 });
        finished += done.len() as u64;
        rooms.extend(done.drain(..).map(|done| done.room));
        if started.elapsed() >= length || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    mailbox.collect(&mut done, usize::MAX);
    finished += done.len() as u64;
    Ok(Bulk { pages: finished, seconds: started.elapsed().as_secs_f64(), workers })
}

/// Asks for objects at random times, one after the other and at least one, and checks each page.
fn ask(
    engine: &dyn Engine,
    load: &Load,
    pages: &[Page],
    objects: &[Object],
    seed: u64,
) -> Result<Histogram> {
    let mut random = Random::new(seed);
    let mailbox = Arc::new(Mailbox::new());
    let mut times = Histogram::default();
    let (mut done, mut room) = (Vec::new(), Room::for_page());
    let started = Instant::now();
    loop {
        // Uniform up to twice the mean.
        thread::sleep(load.every.mul_f64(2.0 * random.unit()));
        let object = &objects[random.below(objects.len())];
        room.object.fill(0);
        room.object[..object.bytes.len()].copy_from_slice(&object.bytes);
        let task = Task::Decompress { encoding: object.encoding, len: object.bytes.len() };
        let asked = Instant::now();
        let mut jobs = VecDeque::from([Job { tag: 0, task, room }]);
        while engine.submit(&mut jobs, &mailbox) == 0 {
            thread::yield_now();
        }
        mailbox.collect(&mut done, 1);
        times.record(asked.elapsed().as_nanos() as u64);
        let answer = done.pop().context("the engine lost an object")?;
        ensure!(answer.outcome == Outcome::Decompressed, "an object is {:?}", answer.outcome);
        ensure!(*answer.room.content == pages[object.page], "a page is not what was compressed");
        room = answer.room;
        if started.elapsed() >= load.length {
            return Ok(times);
        }
    }
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

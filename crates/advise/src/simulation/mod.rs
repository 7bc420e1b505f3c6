//! Runs replacement policies over a trace, at several sizes at once.
//!
//! The trace is read twice. The first time its pages and accesses are counted, and a sample gives
//! the miss curve of LRU at all sizes. The second time each policy runs at each size. Where the
//! trace has many pages, the policies run in miniature: over a sample of the pages, with memory in
//! proportion.
//!
//! A trace of watched pages is a miniature by itself. `ramfold-run` is simulated over it in program
//! time, with what is known of each page ([`program`]); the others over accesses that are drawn
//! where none were seen.

mod save;
mod source;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use ramfold_model::PageNumber;
use ramfold_model::curve::SampledCurve;
use ramfold_model::reuse::shards::{PAGES_USUAL, Shards};
use ramfold_model::simulate::files::Files;
use ramfold_model::simulate::lru::Lru;
use ramfold_model::simulate::memory::Memory;
use ramfold_model::simulate::program::{self, CodecTimes, Delays, Overhead, PageSizes, Setting};
use ramfold_model::simulate::s3fifo::S3Fifo;
use ramfold_model::simulate::watched::Activity;
use ramfold_model::simulate::{Miniature, Policy, Tally};
use ramfold_sys::size::Size;
use ramfold_trace::{Access, Format, PAGE_SIZE};

use self::save::Save;
use self::source::Source;
pub use crate::progress::Progress;

/// Pages that are simulated at most before a miniature takes their place.
pub const WHOLE_PAGES_MAX: u64 = 1 << 20;
/// Sizes that a curve has unless others are asked for.
const SIZES_USUAL: u64 = 20;
/// Accesses that go to the simulations together.
const BATCH: usize = 1 << 16;
/// Faults of the watched pages that are simulated. Behind them the run is taken to go on alike.
const FAULTS_MAX: u64 = 2_000_000;
/// Batches that may wait for a slow simulation.
const BATCHES_WAITING: usize = 4;

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Evicts the least recently used page.
    Lru,
    /// S3-FIFO.
    #[serde(rename = "s3-fifo")]
    S3Fifo,
    /// What `ramfold run` does.
    RamfoldRun,
    /// What `ramfold mount` does.
    RamfoldMount,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 4] =
        [PolicyName::Lru, PolicyName::S3Fifo, PolicyName::RamfoldRun, PolicyName::RamfoldMount];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::Lru => "lru",
            PolicyName::S3Fifo => "s3-fifo",
            PolicyName::RamfoldRun => "ramfold-run",
            PolicyName::RamfoldMount => "ramfold-mount",
        }
    }

    /// A memory of this size. `pages`: the pages of the trace, of which those that have left are
    /// objects of `object_bytes` in that memory.
    fn with_memory(
        self,
        memory_bytes: u64,
        object_bytes: u64,
        pages: u64,
    ) -> Box<dyn Policy + Send> {
        let resident = resident_pages(memory_bytes, object_bytes, pages);
        match self {
            PolicyName::Lru => Box::new(Lru::new(resident)),
            PolicyName::S3Fifo => Box::new(S3Fifo::new(resident)),
            PolicyName::RamfoldRun => Box::new(Memory::new(memory_bytes, object_bytes)),
            PolicyName::RamfoldMount => Box::new(Files::new(resident)),
        }
    }
}

/// Of `pages`, those that are resident when all others are objects beside them.
fn resident_pages(memory_bytes: u64, object_bytes: u64, pages: u64) -> usize {
    let spare = memory_bytes.saturating_sub(pages * object_bytes);
    (spare / PAGE_SIZE.saturating_sub(object_bytes).max(1)).min(pages) as usize
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The trace.
    pub path: PathBuf,
    /// Its format, where it is known.
    pub format: Option<Format>,
    /// The policies.
    pub policies: Vec<PolicyName>,
    /// Sizes of memory; none stands for twenty from 5 % to 100 % of the trace's pages.
    pub memory: Vec<Size>,
    /// What a page that has left costs in that memory. 0 compares the policies by resident pages.
    pub object_bytes: u64,
    /// One page in this many is simulated; `None`: by the number of pages.
    pub one_in: Option<u64>,
    /// A file for the trace in ramfold's format: of one page in `one_in`, where that is said.
    pub save: Option<PathBuf>,
}

/// What a simulation came to.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The trace's format.
    pub format: String,
    /// Accesses of the program: those of the trace, times what that is a sample of.
    pub accesses: u64,
    /// Different pages of the program; above a million to within 0.4 %.
    pub pages: u64,
    /// One page in this many was simulated.
    pub one_in: u64,
    /// One page in this many is in the trace.
    pub recorded_one_in: u64,
    /// What a page that has left costs in memory.
    pub object_bytes: u64,
    /// By size, and at each size by policy.
    pub rows: Vec<Row>,
}

/// The policies with one size of memory.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The memory.
    pub memory_bytes: u64,
    /// Miss ratio of LRU from the sample's reuse distances, and the bounds of the 90 % interval.
    pub lru_curve: [f64; 3],
    /// Of each policy, in the order of the request.
    pub policies: Vec<Outcome>,
}

/// What a policy came to.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Outcome {
    /// Which one.
    pub policy: PolicyName,
    /// Accesses that found no page, first ones included, as a part of all.
    pub miss_ratio: f64,
    /// Accesses to pages that were never there before.
    pub first_accesses: u64,
    /// Accesses to pages that had left.
    pub faults: u64,
    /// Pages brought back, those that came unasked included.
    pub pages_back: u64,
}

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace.
    #[error("{}", path.display())]
    Trace {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        source: ramfold_trace::Error,
    },
    /// A pipe or device.
    #[error("{} is no regular file: a trace is read twice, so keep it in a file first", path.display())]
    NotAFile {
        /// What it is.
        path: PathBuf,
    },
    /// The trace in ramfold's format.
    #[error("cannot write {}", path.display())]
    Save {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing in it.
    #[error("{} has no access", path.display())]
    Empty {
        /// Its file.
        path: PathBuf,
    },
    /// What takes whole traces alone.
    #[error(
        "{} is a sample of a program's pages as it is: --one-in and --save take traces of all \
         accesses",
        path.display()
    )]
    IsSample {
        /// Its file.
        path: PathBuf,
    },
    /// A size that no policy can run with.
    #[error(
        "{memory_bytes} bytes cannot hold the trace's pages: the objects of all {pages} pages take \
         {object_bytes} bytes each"
    )]
    CannotHold {
        /// The size.
        memory_bytes: u64,
        /// Pages of the trace.
        pages: u64,
        /// What an object costs.
        object_bytes: u64,
    },
}

/// What the first pass finds.
struct Survey {
    /// What is in the trace.
    accesses: u64,
    pages: u64,
    curve: SampledCurve,
}

fn survey(source: &Source<'_>, path: &Path) -> Result<Survey, Error> {
    let mut shards = Shards::with_pages(PAGES_USUAL);
    // As long as they are few, exactly.
    let mut exact = Some(HashSet::new());
    source.for_each(|Access { page, .. }| {
        shards.access(page);
        if let Some(pages) = &mut exact {
            pages.insert(page);
            if pages.len() as u64 > WHOLE_PAGES_MAX {
                exact = None;
            }
        }
    })?;
    let all_pages = shards.all_pages().round() as u64;
    let histogram = shards.finish();
    let accesses = histogram.accesses() as u64;
    if accesses == 0 {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(Survey {
        accesses,
        pages: exact.map_or(all_pages, |pages| pages.len() as u64),
        curve: SampledCurve::from_reuse(&histogram),
    })
}

/// Runs it.
///
/// # Errors
/// When the trace cannot be read or saved, or a size cannot be simulated.
pub fn run(request: &Request, progress: &Progress) -> Result<Report, Error> {
    check_is_file(&request.path)?;
    let source = Source::open(request, progress)?;
    let survey = survey(&source, &request.path)?;
    let recorded_one_in = source.one_in();
    let usual = survey.pages.div_ceil(WHOLE_PAGES_MAX).next_power_of_two();
    let usual = if source.activity.is_some() { 1 } else { usual };
    let one_in = recorded_one_in * request.one_in.unwrap_or(usual);
    let pages = survey.pages * recorded_one_in;
    let sizes = sizes(request, pages)?;
    let mut outcomes = Outcomes::new(sizes.len(), &request.policies);
    let mut simulations: Vec<Simulation> = Vec::new();
    for (place, row, policy) in outcomes.places() {
        if policy == PolicyName::RamfoldRun
            && let Some(activity) = &source.activity
        {
            let outcome = of_watched(activity, sizes[row], request.object_bytes, &survey);
            outcomes.set(place, outcome);
            continue;
        }
        let part = sizes[row] / one_in;
        let memory = policy.with_memory(part, request.object_bytes, pages / one_in);
        let miniature = match source.activity {
            Some(_) => Miniature::of_sample(memory, one_in),
            None => Miniature::new(memory, one_in),
        };
        simulations.push(Simulation { place, policy, miniature });
    }
    let save = request.save.as_ref().map(|path| {
        Save::create(recorded_one_in * request.one_in.unwrap_or(1), source.kind(), path)
    });
    for done in simulate(&source, simulations, save.transpose()?)? {
        outcomes.set(done.place, done.outcome());
    }
    let rows = sizes.iter().zip(outcomes.rows()).map(|(&memory_bytes, policies)| {
        let resident = resident_pages(memory_bytes, request.object_bytes, pages);
        let lru_curve = survey.lru_at(resident as f64 / recorded_one_in as f64);
        Row { memory_bytes, lru_curve, policies }
    });
    Ok(Report {
        format: source.format.to_string(),
        accesses: survey.accesses * recorded_one_in,
        pages,
        one_in,
        recorded_one_in,
        object_bytes: request.object_bytes,
        rows: rows.collect(),
    })
}

/// What the policies come to at each size, in the order of the request.
struct Outcomes<'a> {
    policies: &'a [PolicyName],
    all: Vec<Option<Outcome>>,
}

impl<'a> Outcomes<'a> {
    fn new(rows: usize, policies: &'a [PolicyName]) -> Outcomes<'a> {
        Outcomes { policies, all: vec![None; rows * policies.len()] }
    }

    /// Each place, its row and its policy.
    fn places(&self) -> impl Iterator<Item = (usize, usize, PolicyName)> + use<'a> {
        let policies = self.policies;
        let count = policies.len();
        (0..self.all.len()).map(move |place| (place, place / count, policies[place % count]))
    }

    fn set(&mut self, place: usize, outcome: Outcome) {
        self.all[place] = Some(outcome);
    }

    fn rows(&self) -> impl Iterator<Item = Vec<Outcome>> {
        self.all.chunks(self.policies.len()).map(|row| row.iter().flatten().copied().collect())
    }
}

/// What `ramfold run` does with pages that were watched: in program time, with what was given back
/// ([`program`]).
fn of_watched(
    activity: &Activity,
    memory_bytes: u64,
    object_bytes: u64,
    survey: &Survey,
) -> Outcome {
    let setting = Setting {
        cap_bytes: memory_bytes,
        delays: Delays::default(),
        codec: CodecTimes::default(),
        overhead: Overhead::default(),
        growing_us: program::GROWING_US,
        faults_max: FAULTS_MAX,
        lost_max_s: f64::INFINITY,
    };
    let size = PageSizes::alike(object_bytes.min(PAGE_SIZE) as u16);
    let counts = program::run(activity, &|_| size, &setting);
    let accesses = survey.accesses as f64 * activity.one_in();
    Outcome {
        policy: PolicyName::RamfoldRun,
        miss_ratio: ((counts.first + counts.faults()) / accesses).min(1.0),
        first_accesses: counts.first.round() as u64,
        faults: counts.faults().round() as u64,
        pages_back: counts.pages_back().round() as u64,
    }
}

impl Survey {
    /// Miss ratio of LRU with this many pages of the trace resident, and its bounds.
    fn lru_at(&self, resident: f64) -> [f64; 3] {
        let estimate = self.curve.faults(resident);
        [estimate.value, estimate.low, estimate.high]
            .map(|faults| (faults / self.accesses as f64).clamp(0.0, 1.0))
    }
}

fn check_is_file(path: &Path) -> Result<(), Error> {
    let is_other = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    if is_other { Err(Error::NotAFile { path: path.to_owned() }) } else { Ok(()) }
}

fn sizes(request: &Request, pages: u64) -> Result<Vec<u64>, Error> {
    let least = pages * request.object_bytes + PAGE_SIZE;
    let asked: Vec<u64> = request.memory.iter().map(|size| size.bytes(pages * PAGE_SIZE)).collect();
    if let Some(&memory_bytes) = asked.iter().find(|&&bytes| bytes < least) {
        let object_bytes = request.object_bytes;
        return Err(Error::CannotHold { memory_bytes, pages, object_bytes });
    }
    if !asked.is_empty() {
        return Ok(asked);
    }
    let usual = (1..=SIZES_USUAL).map(|nth| (pages * nth).div_ceil(SIZES_USUAL) * PAGE_SIZE);
    let mut sizes: Vec<u64> = usual.filter(|&bytes| bytes >= least).collect();
    sizes.dedup();
    Ok(sizes)
}

/// A policy at a size.
struct Simulation {
    /// Among the outcomes.
    place: usize,
    policy: PolicyName,
    miniature: Miniature<Box<dyn Policy + Send>>,
}

impl Simulation {
    fn outcome(&self) -> Outcome {
        let tally: Tally = self.miniature.tally();
        Outcome {
            policy: self.policy,
            miss_ratio: tally.miss_ratio(),
            first_accesses: tally.first,
            faults: tally.faults,
            pages_back: tally.pages_back(),
        }
    }
}

type Batch = Arc<Vec<PageNumber>>;

/// Runs all simulations over the trace, on all processors.
fn simulate(
    source: &Source<'_>,
    simulations: Vec<Simulation>,
    mut save: Option<Save<'_>>,
) -> Result<Vec<Simulation>, Error> {
    let threads =
        thread::available_parallelism().map_or(1, usize::from).min(simulations.len().max(1));
    let mut parts: Vec<Vec<Simulation>> = (0..threads).map(|_| Vec::new()).collect();
    for (nth, simulation) in simulations.into_iter().enumerate() {
        parts[nth % threads].push(simulation);
    }
    thread::scope(|scope| {
        let start = |mut part: Vec<Simulation>| {
            let (sender, batches) = mpsc::sync_channel::<Batch>(BATCHES_WAITING);
            let thread = scope.spawn(move || {
                for batch in batches {
                    for simulation in &mut part {
                        batch.iter().for_each(|&page| simulation.miniature.access(page));
                    }
                }
                part
            });
            (sender, thread)
        };
        let (senders, workers): (Vec<SyncSender<Batch>>, Vec<_>) =
            parts.into_iter().map(start).unzip();
        let send = |batch: Vec<PageNumber>| {
            let batch = Arc::new(batch);
            // One that is gone has panicked, which shows when it is joined.
            senders.iter().for_each(|sender| drop(sender.send(Arc::clone(&batch))));
        };
        let mut batch = Vec::with_capacity(BATCH);
        let result = source.for_each(|access| {
            if let Some(save) = &mut save {
                save.access(access);
            }
            batch.push(access.page);
            if batch.len() == BATCH {
                send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
            }
        });
        send(batch);
        drop(senders);
        let mut done = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(part) => done.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result?;
        save.map_or(Ok(()), Save::finish)?;
        Ok(done)
    })
}

//! Runs replacement policies over a trace, at several sizes at once.
//!
//! The trace is read twice. The first time its pages and accesses are counted, and a sample gives
//! the miss curve of LRU at all sizes. The second time each policy runs at each size. Where the
//! trace has many pages, the policies run in miniature: over a sample of the pages, with memory in
//! proportion.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use ramfold_model::curve::SampledCurve;
use ramfold_model::reuse::shards::{PAGES_USUAL, Shards};
use ramfold_model::simulate::files::Files;
use ramfold_model::simulate::lru::Lru;
use ramfold_model::simulate::memory::Memory;
use ramfold_model::simulate::s3fifo::S3Fifo;
use ramfold_model::simulate::{Miniature, Policy, Tally};
use ramfold_model::{PageNumber, is_sampled};
use ramfold_sys::size::Size;
use ramfold_trace::recorded::{AddressSpace, Header, Writer};
use ramfold_trace::{Access, Format, PAGE_SIZE};

pub use crate::progress::Progress;

/// Pages that are simulated at most before a miniature takes their place.
pub const WHOLE_PAGES_MAX: u64 = 1 << 20;
/// Sizes that a curve has unless others are asked for.
const SIZES_USUAL: u64 = 20;
/// Accesses that go to the simulations together.
const BATCH: usize = 1 << 16;
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

/// Counts what is read of a file.
struct Counted<'a> {
    file: File,
    progress: &'a Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.progress.add(len as u64);
        Ok(len)
    }
}

/// Calls `each` for each access of the trace.
fn read_trace(
    request: &Request,
    progress: &Progress,
    mut each: impl FnMut(Access),
) -> Result<(Format, Option<Header>), Error> {
    let path = || request.path.clone();
    let failed = |source| Error::Trace { path: path(), source };
    let open = || -> io::Result<File> {
        let file = File::open(&request.path)?;
        let metadata = file.metadata()?;
        progress.set_all(2 * metadata.len());
        Ok(file)
    };
    let file = open().map_err(|error| failed(error.into()))?;
    let counted = BufReader::with_capacity(1 << 18, Counted { file, progress });
    let trace = ramfold_trace::open(counted, request.format).map_err(failed)?;
    for access in trace.accesses {
        each(access.map_err(failed)?);
    }
    Ok((trace.format, trace.header))
}

/// What the first pass finds.
struct Survey {
    format: Format,
    /// One page in this many is in the trace.
    recorded_one_in: u64,
    kind: AddressSpace,
    /// What is in the trace.
    accesses: u64,
    pages: u64,
    curve: SampledCurve,
}

fn survey(request: &Request, progress: &Progress) -> Result<Survey, Error> {
    let mut shards = Shards::with_pages(PAGES_USUAL);
    // As long as they are few, exactly.
    let mut exact = Some(HashSet::new());
    let (format, header) = read_trace(request, progress, |Access { page, .. }| {
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
        return Err(Error::Empty { path: request.path.clone() });
    }
    Ok(Survey {
        format,
        recorded_one_in: header.map_or(1, |header| header.one_in.into()),
        kind: header.map_or(AddressSpace::Memory, |header| header.kind),
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
    let survey = survey(request, progress)?;
    let usual = survey.pages.div_ceil(WHOLE_PAGES_MAX).next_power_of_two();
    let one_in = survey.recorded_one_in * request.one_in.unwrap_or(usual);
    let pages = survey.pages * survey.recorded_one_in;
    let sizes = sizes(request, pages)?;
    let mut simulations: Vec<Simulation> = Vec::new();
    for (row, &memory_bytes) in sizes.iter().enumerate() {
        simulations.extend(request.policies.iter().map(|&policy| {
            let part = memory_bytes / one_in;
            let memory = policy.with_memory(part, request.object_bytes, pages / one_in);
            Simulation { row, policy, miniature: Miniature::new(memory, one_in) }
        }));
    }
    let save =
        request.save.as_ref().map(|path| Save::create(request, &survey, path)).transpose()?;
    let done = simulate(request, progress, simulations, save)?;
    let rows = sizes.iter().enumerate().map(|(row, &memory_bytes)| Row {
        memory_bytes,
        lru_curve: survey.lru_at(resident_pages(memory_bytes, request.object_bytes, pages)),
        policies: done.iter().filter(|one| one.row == row).map(Simulation::outcome).collect(),
    });
    Ok(Report {
        format: survey.format.to_string(),
        accesses: survey.accesses * survey.recorded_one_in,
        pages,
        one_in,
        recorded_one_in: survey.recorded_one_in,
        object_bytes: request.object_bytes,
        rows: rows.collect(),
    })
}

impl Survey {
    /// Miss ratio of LRU with this many pages resident, and its bounds.
    fn lru_at(&self, resident: usize) -> [f64; 3] {
        let estimate = self.curve.faults(resident as f64 / self.recorded_one_in as f64);
        [estimate.value, estimate.low, estimate.high]
            .map(|faults| (faults / self.accesses as f64).clamp(0.0, 1.0))
    }
}

/// The trace in ramfold's format, while it is read.
struct Save<'a> {
    path: &'a Path,
    one_in: u64,
    /// What became of it so far.
    written: io::Result<Writer<BufWriter<File>>>,
}

impl<'a> Save<'a> {
    fn create(request: &Request, survey: &Survey, path: &'a Path) -> Result<Save<'a>, Error> {
        let one_in = survey.recorded_one_in * request.one_in.unwrap_or(1);
        let create = || {
            let one_in = u32::try_from(one_in).map_err(io::Error::other)?;
            let header = Header { kind: survey.kind, one_in, look_ns: 0, block_pages: 1 };
            // A trace shows what a program does: it is for its owner alone.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            Writer::new(BufWriter::new(file), header)
        };
        let written = Ok(create().map_err(|source| Error::Save { path: path.to_owned(), source })?);
        Ok(Save { path, one_in, written })
    }

    fn access(&mut self, access: Access) {
        if let Ok(writer) = &mut self.written
            && is_sampled(access.page, self.one_in)
            && let Err(error) = writer.write(access)
        {
            self.written = Err(error);
        }
    }

    fn finish(self) -> Result<(), Error> {
        let finished = self.written.and_then(|writer| writer.finish(0));
        finished.map(drop).map_err(|source| Error::Save { path: self.path.to_owned(), source })
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
    row: usize,
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
    request: &Request,
    progress: &Progress,
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
        let result = read_trace(request, progress, |access| {
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
        let order =
            |one: &Simulation| request.policies.iter().position(|&policy| policy == one.policy);
        done.sort_by_key(|one| (one.row, order(one)));
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use super::*;

    fn request(path: PathBuf) -> Request {
        Request {
            path,
            format: None,
            policies: PolicyName::ALL.to_vec(),
            memory: Vec::new(),
            object_bytes: 0,
            one_in: None,
            save: None,
        }
    }

    /// A loop over 2,000 pages, and in between often the first 200.
    fn trace(folder: &Path) -> PathBuf {
        let mut text = String::new();
        for nth in 0..60_000u64 {
            let page = if nth % 2 == 0 { nth * 7 % 200 } else { nth / 2 % 2000 };
            writeln!(text, "{nth},{page}").unwrap();
        }
        let path = folder.join("trace.csv");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn all_policies_run_at_all_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let progress = Progress::default();
        let report = run(&request(trace(folder.path())), &progress).unwrap();
        assert_eq!((report.accesses, report.pages, report.rows.len()), (60_000, 2000, 20));
        assert_eq!(progress.part(), 1.0);
        for row in &report.rows {
            let policies: Vec<PolicyName> = row.policies.iter().map(|one| one.policy).collect();
            assert_eq!(policies, PolicyName::ALL);
            let [value, low, high] = row.lru_curve;
            let lru = row.policies[0].miss_ratio;
            assert!(low <= value && value <= high && (value - lru).abs() < 0.01, "{row:?}");
        }
        let last = &report.rows[19].policies;
        assert!(last.iter().all(|one| one.first_accesses == 2000));
        assert_eq!((last[0].faults, last[1].faults, last[3].faults), (0, 0, 0));
        // With half of the memory LRU holds the 200 and nothing of the loop, ramfold a part of it.
        let half = &report.rows[9].policies;
        assert!(half[2].miss_ratio < half[0].miss_ratio - 0.1, "{half:?}");
    }

    #[test]
    fn objects_take_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut request = request(trace(folder.path()));
        request.object_bytes = PAGE_SIZE / 4;
        let report = run(&request, &Progress::default()).unwrap();
        // A quarter of the memory and less cannot hold the objects of all pages.
        assert_eq!(report.rows[0].memory_bytes, 2000 * PAGE_SIZE * 6 / 20);
        request.memory = vec![Size::Fraction(0.2)];
        let error = run(&request, &Progress::default()).unwrap_err().to_string();
        assert!(error.contains("cannot hold the trace's pages"), "{error}");
    }

    #[test]
    fn a_sample_that_was_saved_is_like_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut request = request(trace(folder.path()));
        request.policies = vec![PolicyName::Lru];
        let whole = run(&request, &Progress::default()).unwrap();
        let saved = folder.path().join("sample");
        request.one_in = Some(4);
        request.save = Some(saved.clone());
        let miniature = run(&request, &Progress::default()).unwrap();
        let again = run(&request, &Progress::default()).unwrap_err().to_string();
        assert!(again.starts_with("cannot write"), "{again}");
        request.path = saved;
        (request.one_in, request.save) = (None, None);
        let sample = run(&request, &Progress::default()).unwrap();
        assert_eq!(
            (sample.recorded_one_in, sample.one_in, sample.format.as_str()),
            (4, 4, "ramfold")
        );
        assert!((sample.pages as f64 / 2000.0 - 1.0).abs() < 0.1, "{}", sample.pages);
        // The sample has 5 % more or fewer pages than a quarter of all: so are the sizes.
        for at in [5, 10, 15] {
            let ratio = |report: &Report| report.rows[at].policies[0].miss_ratio;
            assert!((ratio(&sample) - ratio(&miniature)).abs() < 0.1, "{at}");
            assert!((ratio(&sample) - ratio(&whole)).abs() < 0.15, "{at}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.csv");
        fs::write(&empty, "# nothing\n").unwrap();
        let run = |path: &Path| run(&request(path.to_owned()), &Progress::default());
        assert!(matches!(run(&empty), Err(Error::Empty { .. })));
        assert!(matches!(run(folder.path()), Err(Error::NotAFile { .. })));
        assert!(matches!(run(&folder.path().join("none")), Err(Error::Trace { .. })));
        fs::write(&empty, "1,2\nx,y\n").unwrap();
        assert!(matches!(run(&empty), Err(Error::Trace { .. })));
    }
}

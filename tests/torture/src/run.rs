//! A run: set-up, rounds of operations, a check of all memory after each round.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use crate::failure::EXIT_USAGE;
use crate::handlers::{self, Quiet};
use crate::operations::{self, Action};
use crate::options::{self, Extent, Options, Resume};
use crate::rng::{Rng, mix};
use crate::table::Activity;
use crate::watchdog::{self, Watchdog};
use crate::worker::{Drawing, Tally, Worker, join_in, take_slot};
use crate::world::World;
use crate::{current, fail, sabotage};

/// Operations of each thread between two checks of all memory.
const TURNS_PER_ROUND: u64 = 48;
/// Stack of a worker: more than 64 KiB, so that it is memory that can be taken away.
const STACK_BYTES: usize = 1 << 20;
/// In how many rounds the program replaces itself once, on average.
const ROUNDS_PER_REPLACEMENT: usize = 6;

static TALLY: Tally = Tally::new();

pub(crate) fn run(options: &'static Options) -> ExitCode {
    match prepare(options) {
        Ok((world, watchdog)) => Run::new(world, watchdog).finish(),
        Err(message) => {
            eprintln!("ramfold-torture: {message}");
            ExitCode::from(EXIT_USAGE as u8)
        }
    }
}

fn prepare(options: &'static Options) -> Result<(&'static World, Watchdog), String> {
    // SAFETY: a plain library call.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if page_bytes != crate::memory::PAGE as libc::c_long {
        return Err(format!("pages of this kernel have {page_bytes} bytes, not 4096"));
    }
    if options.resume.generation == 0 {
        eprintln!(
            "ramfold-torture: seed {}, {} threads, {} MiB",
            options.seed, options.threads, options.megabytes
        );
    }
    if options.close_descriptors {
        close_descriptors()?;
    }
    share_arenas();
    let (world, table) = World::create(options)?;
    let watchdog = start_watchdog(table, options)?;
    watchdog::start_exit_thread().map_err(|errno| format!("cannot start a thread: {errno}"))?;
    handlers::install().map_err(|errno| format!("cannot install signal handlers: {errno}"))?;
    // Where the Yama security module guards ptrace, children may still look at their parent.
    // SAFETY: a plain system call; kernels without Yama refuse it, which does not matter.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    Ok((world, watchdog))
}

/// The table's descriptor goes to the watchdog and is closed here.
fn start_watchdog(table: OwnedFd, options: &Options) -> Result<Watchdog, String> {
    Watchdog::start(&table, options.hang_seconds)
        .map_err(|error| format!("cannot start the watchdog: {error}"))
}

/// Has the workers share malloc's arenas with the main thread, so that the heap of brk(2) is
/// grown and cut back by several threads.
fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain library calls, before there are other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
    }
}

/// Closes all descriptors from 3 on, known or not, as daemons do.
fn close_descriptors() -> Result<(), String> {
    match operations::close_from(3) {
        Ok(()) => Ok(()),
        Err(errno) => Err(format!("cannot close descriptors: {errno}")),
    }
}

struct Run {
    world: &'static World,
    watchdog: Watchdog,
    choice: Drawing,
    /// All workers and the coordinator meet here.
    meeting: Barrier,
    stop: AtomicBool,
    done: AtomicU64,
    /// How long to go on from the first round, when operations are not counted.
    left: Option<Duration>,
    /// When the first round began.
    begun: OnceLock<Instant>,
    /// Operations that each thread still has to do, when they are counted.
    quotas: Vec<AtomicU64>,
    replaces: bool,
}

impl Run {
    fn new(world: &'static World, watchdog: Watchdog) -> &'static Self {
        let options = world.options;
        let threads = options.threads as u64;
        let (time, turns) = match options.extent {
            Extent::Milliseconds(extent) => {
                let left = extent.saturating_sub(options.resume.elapsed_ms);
                (Some(Duration::from_millis(left)), u64::MAX)
            }
            Extent::Operations(extent) => (None, extent.saturating_sub(options.resume.operations)),
        };
        let quotas = (0..threads)
            .map(|thread| AtomicU64::new(turns / threads + u64::from(thread < turns % threads)))
            .collect();
        let replaces = operations::all().any(|(_, operation)| {
            matches!(operation.action, Action::Replace)
                && !options.skip.iter().any(|name| name == operation.name)
                && (options.only.is_empty()
                    || options.only.iter().any(|name| name == operation.name))
        });
        let begun = OnceLock::new();
        if options.resume.generation > 0 {
            // From the second image on, filling the memory anew is part of the run.
            begun.get_or_init(Instant::now);
        }
        // The coordinator, and with it all of this, stays until the process ends.
        Box::leak(Box::new(Self {
            world,
            watchdog,
            choice: Drawing::new(&options.only, &options.skip),
            meeting: Barrier::new(options.threads + 1),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(options.resume.operations),
            left: time,
            begun,
            quotas,
            replaces,
        }))
    }

    fn meet(&self) {
        let _idle = current::during(Activity::Idle);
        self.meeting.wait();
    }

    /// The coordinator's part, on the main thread.
    fn finish(&'static self) -> ExitCode {
        let world = self.world;
        take_slot(world, world.options.threads, Activity::Working);
        let _stack = join_in(world.options.threads);
        // The kernel prefers the main thread for signals to the process; workers shall get them.
        let _quiet = Quiet::new();
        let workers: Vec<_> = (0..world.options.threads)
            .map(|thread| {
                let spawned = std::thread::Builder::new()
                    .name(format!("torture-{thread}"))
                    .stack_size(STACK_BYTES)
                    .spawn(move || self.work(thread));
                match spawned {
                    Ok(worker) => worker,
                    Err(error) => fail!("cannot start a thread: {error}"),
                }
            })
            .collect();
        for index in world.shared() {
            world.regions[index].lock(world).fill();
        }
        let mut rng = Rng::new(mix(&[world.recipe.seed, 0x726f_756e]));
        for round in 0_u64.. {
            let over = round > 0 && !self.lasts();
            self.stop.store(over, SeqCst);
            self.meet();
            if over {
                break;
            }
            self.meet();
            if round == 0
                && let Some(sabotage) = world.options.sabotage
            {
                sabotage::commit(world, sabotage);
            }
            self.meet();
            self.check_shared();
            descend(64, round);
            self.meet();
            if world.options.close_descriptors
                && let Err(message) = close_descriptors()
            {
                fail!("{message}");
            }
            let replace = !world.options.only.is_empty() || rng.below(ROUNDS_PER_REPLACEMENT) == 0;
            if self.replaces && replace && self.lasts() {
                self.stop.store(true, SeqCst);
                self.meet();
                self.replace(combine(world.options.resume.hash, workers));
            }
        }
        let hash = combine(world.options.resume.hash, workers);
        self.say(hash);
        // Programs end while threads of theirs are still busy with their memory.
        spin(world, 1);
        ExitCode::SUCCESS
    }

    /// When to stop, if operations are not counted. The time starts with the first round: filling
    /// the memory may take long, and `--seconds` is for the operations.
    fn deadline(&self) -> Option<Instant> {
        Some(*self.begun.get_or_init(Instant::now) + self.left?)
    }

    /// Time since the first round began.
    fn worked(&self) -> Duration {
        self.begun.get_or_init(Instant::now).elapsed()
    }

    /// Whether there is more to do.
    fn lasts(&self) -> bool {
        self.quotas.iter().any(|quota| quota.load(SeqCst) > 0)
            && self.deadline().is_none_or(|deadline| Instant::now() < deadline)
    }

    /// A worker's part.
    fn work(&self, thread: usize) -> u64 {
        let mut worker = Worker::start(self.world, thread);
        loop {
            self.meet();
            if self.stop.load(SeqCst) {
                let hash = worker.hash();
                self.world.table.threads[thread].activity.store(Activity::Idle as u32, SeqCst);
                return hash;
            }
            let quota = &self.quotas[thread];
            let turns = quota.load(SeqCst).min(TURNS_PER_ROUND);
            let done = worker.torture(&self.choice, &TALLY, turns, self.deadline());
            quota.fetch_sub(done, SeqCst);
            self.done.fetch_add(done, SeqCst);
            self.meet();
            self.meet();
            worker.check();
            self.meet();
        }
    }

    /// Compares what no single thread owns. The other threads are at rest or check their own.
    fn check_shared(&self) {
        let world = self.world;
        let slot = &world.table.threads[world.options.threads];
        slot.operation.store(operations::CHECK_ALL as u32, SeqCst);
        for index in world.shared() {
            world.regions[index].lock(world).check_all();
        }
        for region in [world.fixed_region, world.counter_region] {
            for page in 0..world.pages(region) {
                world.check_lockless(region, page);
            }
        }
        for (index, counter) in world.table.records.counters.iter().enumerate() {
            let (started, completed) =
                (counter.started.load(SeqCst), counter.completed.load(SeqCst));
            if started != completed {
                fail!("counter {index}: {started} additions started, {completed} completed");
            }
        }
        match world.beside.lock() {
            Ok(beside) => beside.check(),
            Err(_) => fail!("the lock of the mappings beside is poisoned"),
        }
    }

    fn say(&self, hash: u64) {
        let options = self.world.options;
        eprint!("{}", TALLY.text(options.verbose));
        if options.verbose {
            let header = &self.world.table.header;
            eprintln!("ramfold-torture: replaced itself {} times", options.resume.generation);
            eprintln!(
                "ramfold-torture: {} pages compared, {} children, {} signals in the last {} s",
                header.pages_checked.load(SeqCst),
                header.children.load(SeqCst),
                header.signals.load(SeqCst),
                self.worked().as_secs()
            );
        }
        println!(
            "ramfold-torture: ok, {} operations, seed {}, hash {hash:016x}",
            self.done.load(SeqCst),
            options.seed
        );
    }

    /// Goes on in a new image of the program, while other threads are busy with the old one's
    /// memory.
    fn replace(&'static self, hash: u64) -> ! {
        let options = self.world.options;
        eprint!("{}", TALLY.text(options.verbose));
        let resume = Resume {
            generation: options.resume.generation + 1,
            operations: self.done.load(SeqCst),
            hash,
            elapsed_ms: options.resume.elapsed_ms + self.worked().as_millis() as u64,
        };
        if let Err(error) = self.watchdog.stop() {
            fail!("cannot stop the watchdog: {error}");
        }
        handlers::ignore();
        spin(self.world, 2);
        std::thread::sleep(Duration::from_millis(2));
        let error = std::process::Command::new("/proc/self/exe")
            .args(options::without_resume(std::env::args_os().skip(1)))
            .args(["--seed", &options.seed.to_string()])
            .args(["--resume", &resume.argument()])
            .exec();
        fail!("exec of the program itself: {error}")
    }
}

/// Joins the workers and adds their hashes to what came before.
fn combine(before: u64, workers: Vec<std::thread::JoinHandle<u64>>) -> u64 {
    workers.into_iter().fold(before, |hash, worker| match worker.join() {
        Ok(own) => mix(&[hash, own]),
        Err(_) => fail!("a thread panicked"),
    })
}

/// Starts threads that go on reading and counting until the process ends.
fn spin(world: &'static World, threads: usize) {
    for thread in 0..threads {
        let spawned = std::thread::Builder::new().spawn(move || {
            let _stack = join_in(world.options.threads);
            let mut rng = Rng::new(mix(&[world.recipe.seed, thread as u64, 0x7370_696e]));
            loop {
                let page = rng.below(world.pages(world.fixed_region));
                world.check_lockless(world.fixed_region, page);
                handlers::count(world, rng.below(world.pages(world.counter_region)), 0, 1);
            }
        });
        if let Err(error) = spawned {
            fail!("cannot start a thread: {error}");
        }
    }
}

/// Uses the main thread's stack, which the kernel grows by itself.
fn descend(depth: usize, key: u64) {
    let mut frame = [0_u64; 1024];
    for (at, word) in frame.iter_mut().enumerate() {
        *word = mix(&[key, depth as u64, at as u64]);
    }
    std::hint::black_box(&mut frame);
    if depth > 0 {
        descend(depth - 1, key);
    }
    let right = |(at, word): (usize, &u64)| *word == mix(&[key, depth as u64, at as u64]);
    if !std::hint::black_box(&frame).iter().enumerate().all(right) {
        fail!("a frame on the main thread's stack has changed, at depth {depth}");
    }
}

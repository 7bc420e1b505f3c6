//! One program, run once, and what it cost.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use xxhash_rust::xxh3::Xxh3;

use crate::cgroup::Cgroup;
use crate::host::Host;
use crate::idle::{self, Idle, Watch, Window};
use crate::interrupt::{self, Running};
use crate::machine::{Counters, read_text, ticks_to_seconds};

/// How often quantities without a peak counter of their own are read.
///
/// It also keeps programs under kernel swap alive. Linux 6.18 decides whether to
/// refill a cgroup's inactive list from statistics that are brought up to date
/// every two seconds or when somebody reads memory.stat; a program that swaps at
/// random empties the list sooner, reclaim then finds nothing although swap is
/// free, and the program is killed (seen in the tracepoints of vmscan: no
/// shrink_active for 16 attempts). With readers at this pace it hardly happens.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
/// Standard output kept beside its hash: the report of a synthetic workload.
const OUTPUT_KEPT: usize = 64 << 10;
/// Standard error kept for messages.
const ERRORS_KEPT: usize = 4 << 10;

/// A program with arguments and additions to its environment.
#[derive(Clone, Debug)]
pub struct Program {
    pub command: Vec<OsString>,
    pub environment: Vec<(&'static str, OsString)>,
}

/// Reads the bytes held outside of the cgroup now.
pub type Gauge = Box<dyn Fn() -> Result<u64> + Send + Sync>;

/// How to run it.
pub struct Launch<'a> {
    pub program: &'a Program,
    /// Without one, the anonymous memory of the process tree is sampled.
    pub cgroup: Option<&'a Cgroup>,
    pub pool: Option<Gauge>,
    /// A pool that grows beyond this ends the program.
    pub pool_bytes_max: Option<u64>,
    /// For a program that prints an empty line and then sleeps until its standard input ends: when
    /// its processes are looked at. The input of others is empty.
    pub idle: Option<Window>,
    pub time_limit: Duration,
}

/// What was seen.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub wall_seconds: f64,
    /// xxh3 of standard output, 128 bits in hexadecimal.
    pub output_hash: String,
    /// The start of standard output.
    pub output: Vec<u8>,
    /// The end of standard error.
    pub errors: String,
    pub cpu_seconds: f64,
    /// Counters of the whole machine over the run.
    pub machine: Counters,
    /// Largest sample.
    pub anonymous_bytes_peak: u64,
    /// The cgroup's peak; without a cgroup, the largest sample.
    pub usage_bytes_peak: u64,
    /// Largest sample of the pool gauge.
    pub pool_bytes_sampled: u64,
    pub out_of_memory: bool,
    pub timed_out: bool,
    pub idle: Option<Idle>,
}

/// The error of a program that the kernel killed for want of memory.
#[derive(Clone, Copy, Debug)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the kernel killed the program: its memory limit was reached")
    }
}

impl std::error::Error for OutOfMemory {}

impl Outcome {
    /// An error that says how the program ended, unless it ended well.
    pub fn check(&self) -> Result<()> {
        if self.status.success() {
            return Ok(());
        }
        let errors = if self.errors.trim().is_empty() {
            String::new()
        } else {
            format!("; it said: {}", self.errors.trim())
        };
        if self.timed_out {
            bail!("the program did not end within the time limit{errors}");
        }
        if self.out_of_memory {
            return Err(OutOfMemory.into());
        }
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => bail!("the program ended with status {code}{errors}"),
            (None, Some(signal)) => bail!("the program was ended by signal {signal}{errors}"),
            (None, None) => bail!("the program ended oddly: {}{errors}", self.status),
        }
    }
}

#[derive(Default)]
struct Peaks {
    anonymous_bytes: u64,
    usage_bytes: u64,
    pool_bytes: u64,
    timed_out: bool,
    idle: Option<Idle>,
}

impl Launch<'_> {
    fn is_pool_full(&self, peaks: &Peaks) -> bool {
        self.pool_bytes_max.is_some_and(|most| peaks.pool_bytes > most)
    }
}

/// Runs a program to its end. An interruption ends it early with an error.
pub fn measure(host: &Host, launch: &Launch) -> Result<Outcome> {
    interrupt::check()?;
    let procs_files: Vec<_> = launch
        .cgroup
        .iter()
        .flat_map(|cgroup| cgroup.folders())
        .map(|folder| folder.join("cgroup.procs"))
        .collect();
    let before = Counters::read()?;
    let start = Instant::now();
    let mut child = enter_command(host, launch.cgroup, launch.program)
        .stdin(if launch.idle.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start the measured program")?;
    let leader = Pid::from_child(&child);
    let running = Running { leader, procs_files };
    interrupt::set_running(Some(running.clone()));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let has_printed = AtomicBool::new(false);

    let (ended, status, wall_seconds, peaks, streams) = thread::scope(|scope| {
        let output = scope.spawn(|| {
            stdout.map_or(Ok((String::new(), Vec::new())), |out| hash_stream(out, &has_printed))
        });
        let errors = scope.spawn(|| stderr.map_or(Ok(String::new()), tail_of_stream));
        let (stop, stopped) = channel::<()>();
        let sampler = scope.spawn(|| {
            let mut peaks = Peaks::default();
            let mut sleeping = launch.idle.map(Watch::new).zip(stdin);
            let deadline = start + launch.time_limit;
            let stopped = stopped;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(SAMPLE_INTERVAL) {
                if Instant::now() > deadline && !peaks.timed_out {
                    peaks.timed_out = true;
                    running.kill();
                }
                if let Err(error) = sample(launch, leader, &mut peaks) {
                    // Nobody would watch the time limit any more.
                    running.kill();
                    return Err(error);
                }
                if launch.is_pool_full(&peaks) {
                    running.kill();
                }
                if let Some((watch, _)) = &mut sleeping {
                    let printed = has_printed.load(Ordering::Relaxed);
                    peaks.idle = watch.look(printed, || running.processes());
                }
                if peaks.idle.is_some() {
                    // The end of its input wakes the program.
                    sleeping = None;
                }
            }
            anyhow::Ok(peaks)
        });
        // Not reaped yet: the process id is still ours to kill and to read.
        let ended = wait_unreaped(leader);
        let wall_seconds = start.elapsed().as_secs_f64();
        let own_seconds = zombie_cpu_seconds(leader);
        drop(stop);
        // Descendants that outlive the program would hold the pipes open.
        running.kill();
        interrupt::set_running(None);
        let status = child.wait();
        (
            ended.map(|()| own_seconds),
            status,
            wall_seconds,
            join(sampler),
            (join(output), join(errors)),
        )
    });
    let after = Counters::read()?;
    interrupt::check()?;
    let own_seconds = ended.context("cannot wait for the measured program")?;
    let status = status.context("cannot reap the measured program")?;
    let peaks = peaks?;
    let (output_hash, output) = streams.0?;
    let cgroup = launch.cgroup;
    let cpu_seconds = match cgroup.map(Cgroup::cpu_seconds).transpose()?.flatten() {
        Some(seconds) => seconds,
        None => own_seconds?,
    };
    Ok(Outcome {
        status,
        wall_seconds,
        output_hash,
        output,
        errors: streams.1?,
        cpu_seconds,
        machine: after.since(&before),
        anonymous_bytes_peak: peaks.anonymous_bytes,
        usage_bytes_peak: match cgroup.map(Cgroup::usage_bytes_peak).transpose()?.flatten() {
            Some(peak) => peak,
            None => peaks.usage_bytes,
        },
        pool_bytes_sampled: peaks.pool_bytes,
        out_of_memory: launch.is_pool_full(&peaks)
            || cgroup.map(Cgroup::out_of_memory_count).transpose()?.unwrap_or(0) > 0,
        timed_out: peaks.timed_out,
        idle: peaks.idle,
    })
}

fn join<T>(handle: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match handle.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// `ramfold-bench enter-cgroup`, which becomes the program.
pub fn enter_command(host: &Host, cgroup: Option<&Cgroup>, program: &Program) -> Command {
    enter_command_until(host, cgroup, program, Signal::KILL)
}

/// The same for a program that gets another signal when the harness is killed: one that has to end its own
/// children.
pub fn enter_command_until(
    host: &Host,
    cgroup: Option<&Cgroup>,
    program: &Program,
    death_signal: Signal,
) -> Command {
    let mut command = Command::new(&host.own_program);
    command.arg("enter-cgroup").arg("--parent").arg(std::process::id().to_string());
    command.arg("--death-signal").arg(death_signal.as_raw().to_string());
    for folder in cgroup.iter().flat_map(|cgroup| cgroup.folders()) {
        command.arg("--cgroup").arg(folder);
    }
    command.arg("--").args(&program.command);
    command.envs(program.environment.iter().map(|(name, value)| (*name, value)));
    command
}

fn sample(launch: &Launch, leader: Pid, peaks: &mut Peaks) -> Result<()> {
    if let Some(pool) = &launch.pool {
        peaks.pool_bytes = peaks.pool_bytes.max(pool()?);
    }
    let anonymous_bytes = match launch.cgroup {
        Some(cgroup) => {
            peaks.usage_bytes = peaks.usage_bytes.max(cgroup.usage_bytes()?);
            cgroup.anonymous_bytes()?
        }
        None => {
            let bytes = tree_anonymous_bytes(leader);
            peaks.usage_bytes = peaks.usage_bytes.max(bytes);
            bytes
        }
    };
    peaks.anonymous_bytes = peaks.anonymous_bytes.max(anonymous_bytes);
    Ok(())
}

fn wait_unreaped(leader: Pid) -> rustix::io::Result<()> {
    loop {
        match waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// CPU time of an ended process and its reaped children, from /proc/PID/stat.
fn zombie_cpu_seconds(leader: Pid) -> Result<f64> {
    let text = read_text(format!("/proc/{leader}/stat"))?;
    parse_cpu_seconds(&text).context("/proc/PID/stat has no CPU times")
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The name in parentheses may hold anything; utime, stime, cutime and cstime
    // are fields 14 to 17, the 12th to 15th after it.
    let (_, rest) = stat.rsplit_once(')')?;
    let times: Vec<u64> = rest
        .split_ascii_whitespace()
        .skip(11)
        .take(4)
        .map_while(|word| word.parse().ok())
        .collect();
    (times.len() == 4).then(|| ticks_to_seconds(times.iter().sum()))
}

/// Resident anonymous bytes of a process and its descendants. Processes that end meanwhile count
/// as nothing.
fn tree_anonymous_bytes(leader: Pid) -> u64 {
    let of = |pid| {
        let status = read_text(format!("/proc/{pid}/status")).ok()?;
        crate::machine::field(&status, "RssAnon")
    };
    idle::with_descendants(vec![leader]).into_iter().filter_map(of).sum::<u64>() * 1024
}

/// Sets `has_printed` at the first byte.
fn hash_stream(mut stream: impl Read, has_printed: &AtomicBool) -> Result<(String, Vec<u8>)> {
    let mut hasher = Xxh3::new();
    let mut kept = Vec::new();
    copy_stream(&mut stream, |part| {
        has_printed.store(true, Ordering::Relaxed);
        hasher.update(part);
        let room = OUTPUT_KEPT - kept.len();
        kept.extend_from_slice(&part[..part.len().min(room)]);
    })
    .context("cannot read the program's output")?;
    Ok((format!("{:032x}", hasher.digest128()), kept))
}

fn tail_of_stream(mut stream: impl Read) -> Result<String> {
    let mut kept = Vec::new();
    copy_stream(&mut stream, |part| {
        kept.extend_from_slice(part);
        let surplus = kept.len().saturating_sub(ERRORS_KEPT);
        kept.drain(..surplus);
    })
    .context("cannot read the program's standard error")?;
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

fn copy_stream(stream: &mut impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_survive_odd_names() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        let expected = ticks_to_seconds(100);
        assert_eq!(parse_cpu_seconds(stat), Some(expected));
        assert_eq!(parse_cpu_seconds("7 (a) S 1"), None);
    }

    #[test]
    fn streams_are_hashed_and_cut() {
        let data = vec![b'x'; OUTPUT_KEPT + 5];
        let has_printed = AtomicBool::new(false);
        hash_stream([].as_slice(), &has_printed).unwrap();
        assert!(!has_printed.load(Ordering::Relaxed));
        let (hash, kept) = hash_stream(data.as_slice(), &has_printed).unwrap();
        assert!(has_printed.load(Ordering::Relaxed));
        assert_eq!(hash, format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&data)));
        assert_eq!(kept.len(), OUTPUT_KEPT);
        let mut text = vec![b'a'; ERRORS_KEPT];
        text.extend_from_slice(b"end");
        let tail = tail_of_stream(text.as_slice()).unwrap();
        assert!(tail.len() == ERRORS_KEPT && tail.ends_with("aend"));
    }
}

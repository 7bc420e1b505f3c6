//! One program, run once, and what it cost.

mod outcome;
mod sampling;
mod streams;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

pub(crate) use outcome::{OutOfMemory, Outcome};

use super::idle::Window;
use crate::machine::Gauge;
use crate::machine::cgroup::Cgroup;
use crate::machine::counters::Counters;
use crate::machine::host::Host;
use crate::machine::interrupt::{self, Running};
use crate::machine::processes::cpu_seconds;
use crate::machine::program::{Program, enter_command};
use sampling::{Peaks, Sampler};
use streams::{hash_stream, tail_of_stream};

/// How to run it.
pub(crate) struct Launch<'a> {
    pub(crate) program: &'a Program,
    /// Without one, the anonymous memory of the process tree is sampled.
    pub(crate) cgroup: Option<&'a Cgroup>,
    pub(crate) pool: Option<Gauge>,
    /// A pool that grows beyond this ends the program.
    pub(crate) pool_bytes_max: Option<u64>,
    /// For a program that prints an empty line and then sleeps until its standard input ends: when
    /// its processes are observed. The input of others is empty.
    pub(crate) idle: Option<Window>,
    pub(crate) time_limit: Duration,
}

/// Runs a program to its end. An interruption ends it early with an error.
pub(crate) fn measure(host: &Host, launch: &Launch) -> Result<Outcome> {
    interrupt::check()?;
    let before = Counters::read()?;
    let started = Instant::now();
    let child = enter_command(host, launch.cgroup, launch.program)
        .stdin(if launch.idle.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start the measured program")?;
    let ended = follow(launch, child, started);
    let after = Counters::read()?;
    interrupt::check()?;
    let own_seconds = ended.own_seconds.context("cannot wait for the measured program")?;
    let status = ended.status.context("cannot reap the measured program")?;
    let peaks = ended.peaks?;
    let (output_hash, output) = ended.output?;
    let cgroup = launch.cgroup;
    let cpu_seconds = match cgroup.map(Cgroup::cpu_seconds).transpose()?.flatten() {
        Some(seconds) => seconds,
        None => own_seconds?,
    };
    let usage_bytes_peak = cgroup.map(Cgroup::usage_bytes_peak).transpose()?.flatten();
    let killed_count = cgroup.map(Cgroup::out_of_memory_count).transpose()?.unwrap_or(0);
    Ok(Outcome {
        status,
        wall_seconds: ended.wall_seconds,
        output_hash,
        output,
        errors: ended.errors?,
        cpu_seconds,
        machine: after.since(&before),
        anonymous_bytes_peak: peaks.anonymous_bytes,
        usage_bytes_peak: usage_bytes_peak.unwrap_or(peaks.usage_bytes),
        pool_bytes_sampled: peaks.pool_bytes,
        out_of_memory: launch.is_pool_full(&peaks) || killed_count > 0,
        timed_out: peaks.timed_out,
        idle: peaks.idle,
    })
}

/// A program that has ended.
struct Ended {
    status: io::Result<ExitStatus>,
    wall_seconds: f64,
    /// Processor time of the process and its children.
    own_seconds: rustix::io::Result<Result<f64>>,
    peaks: Result<Peaks>,
    /// The hash of standard output, and its start.
    output: Result<(String, Vec<u8>)>,
    /// The end of standard error.
    errors: Result<String>,
}

/// Reads what a program prints, samples its memory, and waits for its end.
fn follow(launch: &Launch, mut child: Child, started: Instant) -> Ended {
    let folders = launch.cgroup.iter().flat_map(|cgroup| cgroup.folders());
    let procs_files = folders.map(|folder| folder.join("cgroup.procs")).collect();
    let leader = Pid::from_child(&child);
    let running = Running { leader, procs_files };
    interrupt::set_running(Some(running.clone()));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let has_printed = AtomicBool::new(false);
    let sampler = Sampler { launch, running: &running, started, has_printed: &has_printed };
    thread::scope(|scope| {
        let output = scope.spawn(|| {
            stdout.map_or(Ok((String::new(), Vec::new())), |out| hash_stream(out, &has_printed))
        });
        let errors = scope.spawn(|| stderr.map_or(Ok(String::new()), tail_of_stream));
        let (stop, stopped) = channel::<()>();
        let sampler = scope.spawn(move || sampler.run(&stopped, stdin));
        // Not reaped yet: the process id is still ours to kill and to read.
        let ended = wait_unreaped(leader);
        let wall_seconds = started.elapsed().as_secs_f64();
        let own_seconds = ended.map(|()| cpu_seconds(leader));
        drop(stop);
        // Descendants that outlive the program would hold the pipes open.
        running.kill();
        interrupt::set_running(None);
        Ended {
            status: child.wait(),
            wall_seconds,
            own_seconds,
            peaks: join(sampler),
            output: join(output),
            errors: join(errors),
        }
    })
}

fn join<T>(handle: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match handle.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn wait_unreaped(leader: Pid) -> rustix::io::Result<()> {
    loop {
        match waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

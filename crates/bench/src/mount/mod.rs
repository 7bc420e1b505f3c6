//! `ramfold mount` beside the plain page cache, in the same memory and on the same disk.
//!
//! Everything that takes part (the program that reads, and ramfold) is in one cgroup: its limit is the memory
//! of both levels, its page cache counted, and its reads are slowed down to what a slow disk gives.

mod content;
mod jobs;
pub mod shares;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;

use crate::cgroup::{Cgroup, Device, Swapping};
use crate::host::Host;
use crate::journal::{Setting, Undertaking};
use crate::latency::Latency;
use crate::measure::{Program, enter_command};
use crate::progress::say;
use crate::{fio, interrupt};

pub use content::FileContent;
pub use jobs::Job;

/// Files that the data is divided into, each read by a thread of its own (paper 002: 4 of 512 MB).
pub const FILES: u64 = 4;
/// What ramfold is told of the memory, in percent: the rest is for its program and stacks, which its own count
/// leaves out, and for what fio takes.
const TOLD_PERCENT: u64 = 90;
const READY: Duration = Duration::from_secs(30);

/// What the reads of a disk are slowed down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub bytes_per_s: u64,
    pub reads_per_s: Option<u64>,
}

/// Who keeps what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The kernel, by itself.
    PageCache,
    /// `ramfold mount`, with these options.
    Ramfold { options: Vec<String> },
}

/// What is measured.
pub struct Plan<'a> {
    pub memory_bytes: u64,
    pub data_bytes: u64,
    pub disk: Option<Disk>,
    pub jobs: &'a [Job],
    pub seconds: u32,
    pub warm_seconds: u32,
    pub ramfold: &'a Path,
    pub time_limit: Duration,
}

impl Plan<'_> {
    fn file_bytes(&self) -> u64 {
        file_bytes(self.data_bytes)
    }
}

fn file_bytes(data_bytes: u64) -> u64 {
    data_bytes / FILES / 4096 * 4096
}

/// What one job came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    pub bytes_per_s: f64,
    pub reads_per_s: f64,
    pub latency: Option<Latency>,
    pub disk_bytes: u64,
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub seconds: f64,
    /// Time in ramfold's codec, of all threads together.
    pub compress_seconds: Option<f64>,
    pub decompress_seconds: Option<f64>,
    /// Bytes of files that were in one of the levels at the end.
    pub cached_bytes: Option<u64>,
    /// What ramfold's `--stats` says at the end.
    pub ramfold: Option<Value>,
}

/// The data on the disk, and what is mounted over it.
pub struct Bed<'a> {
    host: &'a Host,
    source: PathBuf,
    device: Option<Device>,
    _folder: Undertaking,
}

impl<'a> Bed<'a> {
    /// Writes the files.
    pub fn new(host: &'a Host, data_bytes: u64, content: &FileContent) -> Result<Bed<'a>> {
        let source = host.scratch.join("source");
        let folder = host.journal.undertake(Setting::Folder { path: source.clone() })?;
        fs::create_dir(&source)?;
        for nth in 0..FILES {
            let path = source.join(format!("file{nth}"));
            let mut file =
                File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
            let mut left = file_bytes(data_bytes);
            let mut parts = content.parts(nth);
            while left > 0 {
                let part = parts.next_part()?;
                let part = &part[..part.len().min(left as usize)];
                file.write_all(part).with_context(|| format!("cannot write {}", path.display()))?;
                left -= part.len() as u64;
            }
            file.sync_all()?;
        }
        Ok(Bed { host, device: Device::of(&source).ok(), source, _folder: folder })
    }

    /// Runs all jobs of a plan with one cache, in order, on what the earlier ones have left in it.
    pub fn run(
        &self,
        cache: &Cache,
        plan: &Plan<'_>,
        mut tell: impl FnMut(Job),
    ) -> Result<Vec<Found>> {
        drop_caches()?;
        let cgroup = self.host.cgroup()?.context("there is no memory cgroup to limit it with")?;
        cgroup.configure(Some(plan.memory_bytes), Swapping::Forbidden)?;
        if let Some(disk) = plan.disk {
            let device = self.device.context("the data is on no disk that could be slowed down")?;
            cgroup.slow_down(device, disk.bytes_per_s, disk.reads_per_s)?;
        }
        let mounted = match cache {
            Cache::PageCache => None,
            Cache::Ramfold { options } => Some(Mounted::new(self, &cgroup, plan, options)?),
        };
        let folder = mounted.as_ref().map_or(&self.source, |mounted| &mounted.mountpoint);
        let mut found = Vec::new();
        for &job in plan.jobs {
            tell(job);
            found.push(self.run_job(job, folder, &cgroup, mounted.as_ref(), plan)?);
        }
        if let Some(mounted) = mounted {
            mounted.finish()?;
        }
        cgroup.finish()?;
        Ok(found)
    }

    fn run_job(
        &self,
        job: Job,
        folder: &Path,
        cgroup: &Cgroup,
        mounted: Option<&Mounted>,
        plan: &Plan<'_>,
    ) -> Result<Found> {
        let files: Vec<String> =
            (0..FILES).map(|nth| folder.join(format!("file{nth}")).display().to_string()).collect();
        if let Some(arguments) = job.warm_up(plan, &files) {
            self.fio(&arguments, cgroup, plan)?;
        }
        let disk_bytes = || match self.device {
            Some(device) => cgroup.disk_read_bytes(device),
            None => Ok(0),
        };
        let before = mounted.map(Mounted::statistics).transpose()?;
        let (cpu, disk, started) = (cgroup.cpu_split()?, disk_bytes()?, Instant::now());
        let told = self.fio(&job.arguments(plan, &files), cgroup, plan)?;
        let seconds = started.elapsed().as_secs_f64();
        let read = &told["read"];
        let used = |now: Option<(f64, f64)>| {
            now.zip(cpu).map(|(now, before)| (now.0 - before.0, now.1 - before.1))
        };
        let (user_seconds, system_seconds) = used(cgroup.cpu_split()?).unwrap_or_default();
        let disk_bytes = disk_bytes()? - disk;
        let ramfold = mounted.map(Mounted::statistics).transpose()?;
        let spent = |name: &str| {
            let (now, before) =
                (ramfold.as_ref()?[name].as_u64()?, before.as_ref()?[name].as_u64()?);
            Some((now - before) as f64 / 1e9)
        };
        let of_ramfold = |ramfold: &Value| {
            let number = |name: &str| ramfold[name].as_u64().unwrap_or(0);
            number("kernel_bytes") + number("pages_stored") * 4096
        };
        Ok(Found {
            bytes_per_s: fio::number(&read["bw_bytes"], "bandwidth")?,
            reads_per_s: fio::number(&read["iops"], "reads a second")?,
            latency: fio::latency(read).ok(),
            disk_bytes,
            user_seconds,
            system_seconds,
            seconds,
            compress_seconds: spent("compress_ns"),
            decompress_seconds: spent("decompress_ns"),
            cached_bytes: ramfold.as_ref().map(of_ramfold),
            ramfold,
        })
    }

    fn fio(&self, arguments: &[String], cgroup: &Cgroup, plan: &Plan<'_>) -> Result<Value> {
        let mut command = vec!["fio".into(), "--output-format=json".into(), "--thread".into()];
        command.extend(arguments.iter().map(Into::into));
        let program = Program { command, environment: Vec::new() };
        // ramfold goes on in the same cgroup, so that `measure`, which ends all that is left there, does not do.
        let child = enter_command(self.host, Some(cgroup), &program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start fio")?;
        let (pid, started) = (Pid::from_child(&child), Instant::now());
        let waiter = thread::spawn(move || child.wait_with_output());
        let mut killed = false;
        while !waiter.is_finished() {
            thread::sleep(Duration::from_millis(10));
            if !killed && (interrupt::check().is_err() || started.elapsed() > plan.time_limit) {
                killed = true;
                // It may have ended just now.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        interrupt::check()?;
        ensure!(!killed, "fio did not end within the time limit");
        let output = waiter.join().map_err(|_| anyhow!("waiting for fio failed"))??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fio ended with {}: {}", output.status, said.trim());
        fio::first_job(&output.stdout)
    }
}

/// ramfold's process and its mount.
struct Mounted {
    process: Child,
    mountpoint: PathBuf,
    statistics: PathBuf,
    mount: Undertaking,
    _folder: Undertaking,
}

impl Mounted {
    fn new(bed: &Bed<'_>, cgroup: &Cgroup, plan: &Plan<'_>, options: &[String]) -> Result<Mounted> {
        let host = bed.host;
        let mountpoint = host.scratch.join("mount");
        let statistics = host.scratch.join("statistics.json");
        let folder = host.journal.undertake(Setting::Folder { path: mountpoint.clone() })?;
        fs::create_dir(&mountpoint)?;
        let mount = host.journal.undertake(Setting::Mount { path: mountpoint.clone() })?;
        let told = plan.memory_bytes * TOLD_PERCENT / 100;
        let mut command = vec![plan.ramfold.into(), "mount".into()];
        command.extend(["--memory".into(), told.to_string().into()]);
        command.extend(["--stats".into(), statistics.clone().into()]);
        command.extend(options.iter().map(Into::into));
        command.extend([bed.source.clone().into(), mountpoint.clone().into()]);
        let program = Program { command, environment: Vec::new() };
        let mut process = enter_command(host, Some(cgroup), &program)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start ramfold mount")?;
        let mut errors = BufReader::new(process.stderr.take().context("no standard error")?);
        let mut first = String::new();
        errors.read_line(&mut first)?;
        // What else it says is for the person at the terminal.
        thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| say(&line)));
        ensure!(first.contains("is mounted"), "ramfold mount says: {}", first.trim());
        Ok(Mounted { process, mountpoint, statistics, mount, _folder: folder })
    }

    /// What `--stats` says now.
    fn statistics(&self) -> Result<Value> {
        let pid = Pid::from_child(&self.process);
        // The old file is replaced as a whole.
        let _ = fs::remove_file(&self.statistics);
        kill_process(pid, Signal::USR2).context("ramfold mount has ended")?;
        let started = Instant::now();
        while !self.statistics.exists() {
            ensure!(started.elapsed() < READY, "ramfold mount does not write its statistics");
            thread::sleep(Duration::from_millis(5));
        }
        let text = fs::read(&self.statistics)?;
        serde_json::from_slice(&text).context("what ramfold mount --stats wrote")
    }

    fn finish(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)
            .context("ramfold mount has ended")?;
        let status = self.process.wait()?;
        self.mount.finish()?;
        if !status.success() {
            bail!("ramfold mount ended with {status}");
        }
        Ok(())
    }
}

/// Has the kernel forget all files that nobody has changed.
fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    crate::machine::write_text("/proc/sys/vm/drop_caches", "3")
        .context("only root can start with an empty cache")
}

//! The jobs of a plan, run one after the other on one cache.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::jobs::Job;
use crate::content::file_content::FileContent;
use crate::experiments::files::{Bed, Setup, Stage};
use crate::harness::fio;
use crate::harness::latency::Latency;
use crate::machine::cgroup::Cgroup;
use crate::machine::host::Host;
use crate::peers::cache::Cache;

/// Files that the data is divided into, each read by a thread of its own (paper 002: 4 of 512 MB).
pub(super) const FILES: u64 = 4;

/// The unit of sizes of files and reads.
pub(super) const PAGE: u64 = ramfold_codec::PAGE_SIZE as u64;

/// What is measured.
pub(super) struct Plan<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) data_bytes: u64,
    pub(super) jobs: &'a [Job],
    pub(super) seconds: u32,
    pub(super) warm_seconds: u32,
    pub(super) time_limit: Duration,
}

impl Plan<'_> {
    pub(super) fn file_bytes(&self) -> u64 {
        file_bytes(self.data_bytes)
    }
}

fn file_bytes(data_bytes: u64) -> u64 {
    data_bytes / FILES / PAGE * PAGE
}

/// What was measured in one job.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct JobFigures {
    pub(super) bytes_per_s: f64,
    pub(super) reads_per_s: f64,
    pub(super) latency: Option<Latency>,
    pub(super) disk_bytes: u64,
    pub(super) user_seconds: f64,
    pub(super) system_seconds: f64,
    pub(super) seconds: f64,
    /// Of ramfold: processor time in the encoder, and time in the decoder by the clock.
    pub(super) compress_seconds: Option<f64>,
    pub(super) decompress_seconds: Option<f64>,
    /// Bytes of files that were in one of the levels at the end.
    pub(super) cached_bytes: Option<u64>,
    /// What ramfold's `--stats` says at the end.
    pub(super) ramfold: Option<Value>,
}

/// Writes the files.
pub(super) fn write_files(folder: &Path, data_bytes: u64, content: &FileContent) -> Result<()> {
    for nth in 0..FILES {
        let path = folder.join(format!("file{nth}"));
        let describe = || format!("cannot write {}", path.display());
        let mut file = File::create(&path).with_context(describe)?;
        let mut left = file_bytes(data_bytes);
        let mut parts = content.parts(nth);
        while left > 0 {
            let part = parts.next_part()?;
            let part = &part[..part.len().min(left as usize)];
            file.write_all(part).with_context(describe)?;
            left -= part.len() as u64;
        }
        file.sync_all().with_context(describe)?;
    }
    Ok(())
}

/// Runs all jobs of a plan with one cache, in order, on what the earlier ones have left in it.
pub(super) fn run(
    host: &Host,
    bed: &Bed<'_>,
    cache: &dyn Cache,
    plan: &Plan<'_>,
    mut tell: impl FnMut(Job),
) -> Result<Vec<JobFigures>> {
    let stage = bed.stage(cache, &plan.setup)?;
    fio::read_program()?;
    stage.limit(plan.setup.memory_bytes)?;
    let mut found = Vec::new();
    for &job in plan.jobs {
        tell(job);
        found.push(run_job(host, job, &stage, cache, plan)?);
    }
    stage.finish()?;
    Ok(found)
}

fn run_job(
    host: &Host,
    job: Job,
    stage: &Stage<'_>,
    cache: &dyn Cache,
    plan: &Plan<'_>,
) -> Result<JobFigures> {
    let path = |nth| stage.folder().join(format!("file{nth}")).display().to_string();
    let files: Vec<String> = (0..FILES).map(path).collect();
    let run_fio = |mut arguments: Vec<String>| {
        // What follows a job's name is for that job alone.
        arguments.insert(0, format!("--direct={}", u8::from(cache.is_direct())));
        run_fio(host, &arguments, stage.cgroup(), plan)
    };
    if let Some(arguments) = job.warm_up(plan, &files).filter(|_| !cache.is_direct()) {
        run_fio(arguments)?;
    }
    let before = stage.statistics()?;
    let meter = stage.meter()?;
    let told = run_fio(job.arguments(plan, &files))?;
    let spent = meter.spent()?;
    let read = &told["read"];
    let ramfold = stage.statistics()?;
    let in_codec = |name: &str| {
        let (now, before) = (ramfold.as_ref()?[name].as_u64()?, before.as_ref()?[name].as_u64()?);
        Some((now - before) as f64 / 1e9)
    };
    let of_ramfold = |ramfold: &Value| {
        let number = |name: &str| ramfold[name].as_u64().unwrap_or(0);
        number("kernel_bytes") + number("pages_stored") * PAGE
    };
    Ok(JobFigures {
        bytes_per_s: fio::number(&read["bw_bytes"], "bandwidth")?,
        reads_per_s: fio::number(&read["iops"], "reads a second")?,
        latency: fio::latency(read).ok(),
        disk_bytes: spent.disk_bytes,
        user_seconds: spent.user_seconds,
        system_seconds: spent.system_seconds,
        seconds: spent.seconds,
        compress_seconds: in_codec("compress_ns"),
        decompress_seconds: in_codec("decompress_ns"),
        cached_bytes: ramfold.as_ref().map(of_ramfold),
        ramfold,
    })
}

fn run_fio(host: &Host, arguments: &[String], cgroup: &Cgroup, plan: &Plan<'_>) -> Result<Value> {
    // By default fio has the kernel drop the cached pages of the files before each job.
    let mut all = vec!["--invalidate=0".to_owned()];
    all.extend_from_slice(arguments);
    fio::run(host, Some(cgroup), &all, plan.time_limit)
}

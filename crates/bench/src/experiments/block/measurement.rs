//! All jobs of a plan on one device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::jobs::Job;
use crate::content::file_content::FileContent;
use crate::harness::fio;
use crate::harness::latency::Latency;
use crate::machine::host::Host;
use crate::peers::block::{Active, DATA_OFFSET, Device, Place, Target};

/// What is measured.
pub(super) struct Plan<'a> {
    pub(super) host: &'a Host,
    pub(super) ramfold: &'a Path,
    /// A file of the size of the device, with the content that it is filled with.
    pub(super) image: &'a Path,
    pub(super) data_bytes: u64,
    /// How often the content is there.
    pub(super) copies: u32,
    pub(super) rest: Duration,
    pub(super) jobs: &'a [Run],
    pub(super) depth: u32,
    pub(super) seconds: u32,
    pub(super) time_limit: Duration,
}

/// A job with a number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) job: Job,
    pub(super) connections: u32,
}

/// What was measured in one job.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobFigures {
    pub(super) bytes_per_s: f64,
    pub(super) requests_per_s: f64,
    pub(super) latency: Option<Latency>,
    /// Of the server, for each request.
    pub(super) cpu_us: Option<f64>,
}

/// What was measured on one device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DeviceFigures {
    /// Memory that the content takes.
    pub(super) memory_bytes: u64,
    /// The same after the rest.
    pub(super) rested_bytes: Option<u64>,
    pub(super) jobs: Vec<JobFigures>,
}

/// Writes the image: nothing up to where the data begins, then content as of files.
pub(super) fn write_image(plan: &Plan<'_>, content: &FileContent) -> Result<()> {
    let describe = || format!("cannot write {}", plan.image.display());
    let mut file = File::create(plan.image).with_context(describe)?;
    file.seek(SeekFrom::Start(DATA_OFFSET)).with_context(describe)?;
    for _ in 0..plan.copies {
        let mut left = (plan.data_bytes / u64::from(plan.copies)) as usize;
        let mut parts = content.parts(0);
        while left > 0 {
            let part = parts.next_part()?;
            let part = &part[..part.len().min(left)];
            file.write_all(part).with_context(describe)?;
            left -= part.len();
        }
    }
    Ok(())
}

/// Runs all jobs on an empty device that is filled before.
pub(super) fn run(
    plan: &Plan<'_>,
    device: &dyn Device,
    mut tell: impl FnMut(Run),
) -> Result<DeviceFigures> {
    let bytes = DATA_OFFSET + plan.data_bytes;
    let place = Place { host: plan.host, bytes, ramfold: plan.ramfold };
    let device = device.start(&place)?;
    let before = device.memory_bytes()?;
    fill(&device.target(), plan)?;
    let memory = || -> Result<u64> { Ok(device.memory_bytes()?.saturating_sub(before)) };
    let memory_bytes = memory()?;
    let rested_bytes = match plan.rest.is_zero() {
        true => None,
        false => {
            thread::sleep(plan.rest);
            Some(memory()?)
        }
    };
    let mut jobs = Vec::new();
    for &run in plan.jobs {
        tell(run);
        jobs.push(run_job(plan, device.as_ref(), run)?);
    }
    device.finish()?;
    Ok(DeviceFigures { memory_bytes, rested_bytes, jobs })
}

fn fill(target: &Target, plan: &Plan<'_>) -> Result<()> {
    match target {
        Target::Uri(uri) => {
            let mut command = Command::new("nbdcopy");
            command.arg("--flush").arg(plan.image).arg(uri).stdin(Stdio::null());
            let output = command.output().context("cannot start nbdcopy (libnbd-bin)")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "nbdcopy ended with {}: {said}", output.status);
            Ok(())
        }
        Target::File(path) => {
            let describe = || format!("cannot fill {}", path.display());
            let mut device = OpenOptions::new().write(true).open(path).with_context(describe)?;
            let mut image = File::open(plan.image).with_context(describe)?;
            device.seek(SeekFrom::Start(DATA_OFFSET)).with_context(describe)?;
            image.seek(SeekFrom::Start(DATA_OFFSET)).with_context(describe)?;
            io::copy(&mut image, &mut device).with_context(describe)?;
            device.sync_all().with_context(describe)
        }
    }
}

fn run_job(plan: &Plan<'_>, device: &dyn Active, run: Run) -> Result<JobFigures> {
    let mut arguments = match device.target() {
        Target::Uri(uri) => vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")],
        Target::File(path) => vec![
            "--ioengine=libaio".to_owned(),
            "--direct=1".to_owned(),
            format!("--filename={}", path.display()),
        ],
    };
    arguments.push(format!("--offset={DATA_OFFSET}"));
    arguments.push(format!("--size={}", plan.data_bytes));
    arguments.extend(run.job.arguments(run.connections, plan.depth, plan.seconds));
    let before = device.cpu_seconds()?;
    let told = fio::run(plan.host, None, &arguments, plan.time_limit)?;
    let after = device.cpu_seconds()?;
    let direction = &told[if run.job.is_write() { "write" } else { "read" }];
    let requests = fio::number(&direction["total_ios"], "number of requests")?;
    Ok(JobFigures {
        bytes_per_s: fio::number(&direction["bw_bytes"], "bandwidth")?,
        requests_per_s: fio::number(&direction["iops"], "requests a second")?,
        latency: fio::latency(direction).ok(),
        cpu_us: before
            .zip(after)
            .filter(|_| requests > 0.0)
            .map(|(before, after)| (after - before) * 1e6 / requests),
    })
}

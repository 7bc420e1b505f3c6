//! `ramfold-bench block`: `ramfold block` beside nbdkit and zram, as fio reads and writes block
//! devices.
//!
//! `jobs` are the ways, `measurement` runs them on one device, and `report` compares the devices.

mod jobs;
mod measurement;
mod report;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::commands::Command;
use crate::content::file_content::FileContent;
use crate::harness::progress::Progress;
use crate::harness::report::{Skipped, print};
use crate::harness::size::Bytes;
use crate::harness::{fio, open_host, selection};
use crate::machine::journal::Setting;
use crate::machine::program::found_in_path;
use crate::peers::{Ramfold, block};
use jobs::Job;
use measurement::{Plan, Run};
use report::{figures, plot, text};

/// Measure ramfold block beside other block devices in RAM.
///
/// Each device is filled with the same content, which says how much memory that takes, and then
/// read and written by fio: through NBD where the device is a server, by libaio where it is the
/// kernel's. What fio writes compresses to half.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    ramfold bench block\n  \
    sudo ramfold bench block --peer nbdkit,nbdkit-zstd,ramfold,zram --content silesia/\n  \
    ramfold bench block --job random-read --connections 1,2,4,8 --plot reads.svg")]
pub(crate) struct Options {
    /// Data on the device
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    data: Bytes,
    /// How often each page of the data is there: 2 writes the second half like the first
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    copies: u32,
    /// Measure the memory of the filled device again after this time without requests, in which
    /// pages may be recompressed
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    rest: u32,
    /// How the device is used
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values_t = Job::ALL.map(|job| job.name().to_owned()))]
    job: Vec<String>,
    /// Connections of the random jobs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8],
          value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: Vec<u32>,
    /// Requests of 4 KiB under way on each connection
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Devices; the first is what the others are compared with. nbdkit is its memory plugin,
    /// nbdkit-zstd the same with allocator=zstd, zram:CODEC the kernel's. file is a file in
    /// --scratch, ramfold-backing ramfold block --backing before one, with a quarter of its size as
    /// --memory. ramfold:OPTION=VALUE and ramfold-backing:OPTION pass an option on
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values = ["nbdkit", "nbdkit-zstd", "ramfold", "zram"])]
    peer: Vec<String>,
    /// Folder with files that the content is taken from [default: generated, like the Silesia
    /// corpus]
    #[arg(long, value_name = "DIR")]
    content: Option<PathBuf>,
    /// How long each job is run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for the content [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Longest time for a single job, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    time_limit: u32,
    /// Draw throughput against connections: an SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Command for Options {
    const NAME: &'static str = "block";

    fn execute(self) -> Result<ExitCode> {
        fio::is_here()?;
        ensure!(
            found_in_path("nbdcopy").is_some(),
            "there is no nbdcopy in PATH, which fills the devices (apt-get install libnbd-bin)"
        );
        let jobs = runs_of(&self.job, &self.connections)?;
        ensure!(
            self.plot.is_none() || jobs.iter().any(|run| run.connections != jobs[0].connections),
            "--plot draws throughput against connections: name several, as in --connections 1,8"
        );
        let host = open_host(self.scratch.as_deref())?;
        let ramfold = Ramfold::new(self.ramfold).find(&host.own_program)?;
        let (mut devices, mut skipped) = (Vec::new(), Vec::new());
        for device in block::all_named(&self.peer)? {
            match device.missing(&host) {
                None => devices.push(device),
                Some(reason) => skipped.push(Skipped { peer: device.name().to_owned(), reason }),
            }
        }
        ensure!(!devices.is_empty(), "no device can be used here: {}", skipped[0].reason);
        let content = FileContent::of_option(self.content.as_deref())?;
        let folder = host.scratch.join("content");
        let undertaking = host.journal.undertake(Setting::Folder { path: folder.clone() })?;
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let image = folder.join("image");
        let plan = Plan {
            host: &host,
            ramfold: &ramfold,
            image: &image,
            data_bytes: self.data.0.next_multiple_of(u64::from(self.copies) << 20),
            copies: self.copies,
            rest: Duration::from_secs(self.rest.into()),
            jobs: &jobs,
            depth: self.depth,
            seconds: self.seconds,
            time_limit: Duration::from_secs(self.time_limit.into()),
        };
        let runs = usize::from(self.runs);
        let mut progress = Progress::new(runs * devices.len() * jobs.len());
        progress.show("writing the content");
        measurement::write_image(&plan, &content)?;
        let mut found = vec![Vec::new(); devices.len()];
        for run in 0..runs {
            for (device, found) in devices.iter().zip(&mut found) {
                let tell = |Run { job, connections }: Run| {
                    let (job, name) = (job.name(), device.name());
                    let run = run + 1;
                    progress.step(&format!("{job} x {connections}, {name}, run {run} of {runs}"));
                };
                found.push(measurement::run(&plan, device.as_ref(), tell)?);
            }
        }
        progress.clear();
        undertaking.finish()?;
        let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        let figures = figures(&plan, &names, &found, skipped);
        if let Some(path) = &self.plot {
            fs::write(path, plot(&figures))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        print(self.json, figures, text)
    }
}

/// The jobs with their connections, in the order in which they are run.
fn runs_of(names: &[String], connections: &[u32]) -> Result<Vec<Run>> {
    let wanted = selection::named("job", &Job::ALL, Job::name, names)?;
    let runs = wanted.into_iter().flat_map(|job| {
        let connections = if job.is_random() { connections } else { &[1] };
        connections.iter().map(move |&connections| Run { job, connections })
    });
    Ok(runs.collect())
}

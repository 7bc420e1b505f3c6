//! `ramfold-bench mount`: `ramfold mount` beside the plain page cache, as fio reads files in
//! several ways.
//!
//! `jobs` are the ways, `measurement` runs them on one cache, and `report` compares the caches.

mod jobs;
mod measurement;
mod report;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::files::{Bed, Setup, Slowdown, shares};
use crate::commands::Command;
use crate::content::file_content::FileContent;
use crate::harness::progress::Progress;
use crate::harness::report::print;
use crate::harness::size::Bytes;
use crate::harness::{fio, open_host, selection};
use crate::peers::{Ramfold, cache};
use jobs::Job;
use measurement::{JobFigures, Plan};
use report::{Figures, plot, rows, text};

/// Measure ramfold mount beside the plain page cache, in the same memory and on the same disk.
///
/// Four files are read by four threads of fio, in a control group whose memory is for both levels
/// of ramfold's cache or for the page cache. Its reads of the disk are slowed down to those of a
/// cheap cloud disk, or not. The jobs follow one another on what the ones before have left in the
/// cache; paper 002's are read, stride, reverse and reread.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench mount\n  \
    sudo ramfold bench mount --disk none --job random,random-one,hot \
    --peer page-cache,ramfold,disk\n  \
    sudo ramfold bench mount --content silesia/ \
    --peer page-cache,ramfold:codec=lz4,ramfold:cluster=64K\n  \
    sudo ramfold bench mount --plot shares.svg \
    --peer page-cache,ramfold:compressed-share=0%,ramfold:compressed-share=80%")]
pub(crate) struct Options {
    /// Memory of the control group
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: Bytes,
    /// Data in the files, all together
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    data: Bytes,
    /// How the files are read
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values_t = Job::ALL.map(|job| job.name().to_owned()))]
    job: Vec<String>,
    /// Caches; the first is what the others are compared with. disk is no cache at all;
    /// ramfold:OPTION=VALUE passes an option on: codec, cluster, compressed-share
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values = ["page-cache", "ramfold"])]
    peer: Vec<String>,
    /// What reads of the disk are slowed down to, bytes a second and reads a second: 125M:3000,
    /// 44M, none
    #[arg(long, value_name = "SIZE[:READS]", default_value = "125M:3000")]
    disk: Slowdown,
    /// Folder with files that the content is taken from [default: generated, like the Silesia
    /// corpus]
    #[arg(long, value_name = "DIR")]
    content: Option<PathBuf>,
    /// How long random reads are measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u32,
    /// How long they are done before
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    warm_seconds: u32,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for the files; its disk is what is measured [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Longest time for a single job, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    time_limit: u32,
    /// Draw each job's throughput, and what it reads from the disk, against compressed-share: an
    /// SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Command for Options {
    const NAME: &'static str = "mount";

    fn execute(self) -> Result<ExitCode> {
        fio::is_here()?;
        let jobs = selection::named("job", &Job::ALL, Job::name, &self.job)?;
        let caches = cache::all_named(&self.peer)?;
        ensure!(
            self.plot.is_none() || shares::are_several(caches.iter().map(AsRef::as_ref)),
            "--plot draws throughput against the lower level's share: name a peer with several, as \
             in --peer page-cache,ramfold:compressed-share=0%,ramfold:compressed-share=40%,\
             ramfold:compressed-share=80%"
        );
        let host = open_host(self.scratch.as_deref())?;
        let ramfold = Ramfold::new(self.ramfold).find(&host.own_program)?;
        let content = FileContent::of_option(self.content.as_deref())?;
        let plan = Plan {
            setup: Setup { memory_bytes: self.memory.0, disk: self.disk.0, ramfold: &ramfold },
            data_bytes: self.data.0,
            jobs: &jobs,
            seconds: self.seconds,
            warm_seconds: self.warm_seconds,
            time_limit: Duration::from_secs(self.time_limit.into()),
        };
        let runs = usize::from(self.runs);
        let mut progress = Progress::new(runs * caches.len() * jobs.len());
        progress.show("writing the files");
        let bed =
            Bed::new(&host, |folder| measurement::write_files(folder, plan.data_bytes, &content))?;
        let mut found: Vec<Vec<Vec<JobFigures>>> = vec![Vec::new(); caches.len()];
        for run in 0..runs {
            for (cache, found) in caches.iter().zip(&mut found) {
                let tell = |job: Job| {
                    let (job, name) = (job.name(), cache.name());
                    progress.step(&format!("{job}, {name}, run {} of {runs}", run + 1));
                };
                found.push(measurement::run(&host, &bed, cache.as_ref(), &plan, tell)?);
            }
        }
        progress.clear();
        let rows = rows(&plan, &caches, &found);
        if let Some(path) = &self.plot {
            let drawn = plot(&rows, &caches);
            fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
        }
        print(self.json, Figures { rows }, text)
    }
}

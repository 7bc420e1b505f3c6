//! `ramfold-bench mount`: `ramfold mount` beside the plain page cache.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::print;
use crate::file_cache::shares::{self, Measured};
use crate::file_cache::{Bed, Cache, FileContent, Setup, Slowdown};
use crate::host::Host;
use crate::mount::{Found, Job, Plan};
use crate::plot::{Panel, figure};
use crate::progress::Progress;
use crate::size::Size;
use crate::statistics::{median_of, median_of_told};
use crate::{fio, mount, peers, table};

/// Measure ramfold mount beside the plain page cache, in the same memory and on the same disk.
///
/// Four files are read by four threads of fio, in a control group whose memory is for both levels of ramfold's
/// cache or for the page cache. Its reads of the disk are slowed down to those of a cheap cloud disk, or not. The
/// jobs follow one another on what the ones before have left in the cache; paper 002's are read, stride,
/// reverse and reread.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench mount\n  \
    sudo ramfold bench mount --disk none --job random,random-one,hot --peer page-cache,ramfold,disk\n  \
    sudo ramfold bench mount --content silesia/ --peer page-cache,ramfold:codec=lz4,ramfold:cluster=64K\n  \
    sudo ramfold bench mount --plot shares.svg --peer page-cache,ramfold:compressed-share=0%,ramfold:compressed-share=80%")]
pub struct Options {
    /// Memory of the control group
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: Size,
    /// Data in the files, all together
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    data: Size,
    /// How the files are read
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values_t = Job::ALL.map(|job| job.name().to_owned()))]
    job: Vec<String>,
    /// Caches; the first is what the others are compared with. disk is no cache at all; ramfold:OPTION=VALUE passes
    /// an option on: codec, cluster, compressed-share
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = ["page-cache", "ramfold"])]
    peer: Vec<String>,
    /// What reads of the disk are slowed down to, bytes a second and reads a second: 125M:3000, 44M, none
    #[arg(long, value_name = "SIZE[:READS]", default_value = "125M:3000")]
    disk: Slowdown,
    /// Folder with files that the content is taken from [default: generated, like the Silesia corpus]
    #[arg(long, value_name = "DIR")]
    content: Option<PathBuf>,
    /// How long random reads are measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u32,
    /// How long they are done before
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    warm_seconds: u32,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
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
    /// Draw each job's throughput, and what it reads from the disk, against compressed-share: an SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    job: &'static str,
    peer: String,
    memory_bytes: u64,
    data_bytes: u64,
    /// Times the throughput of the first peer.
    ratio: f64,
    /// Medians of the runs.
    bytes_per_s: f64,
    disk_bytes: f64,
    user_seconds: f64,
    system_seconds: f64,
    seconds: f64,
    /// Of ramfold.
    compress_seconds: Option<f64>,
    decompress_seconds: Option<f64>,
    runs: Vec<Found>,
}

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
}

pub fn execute(options: Options) -> Result<ExitCode> {
    fio::is_here()?;
    let jobs = jobs(&options.job)?;
    let caches = options.peer.iter().map(|name| Cache::named(name)).collect::<Result<Vec<_>>>()?;
    ensure!(
        options.plot.is_none() || shares::are_several(&caches),
        "--plot draws throughput against the lower level's share: name a peer with several, as in --peer \
         page-cache,ramfold:compressed-share=0%,ramfold:compressed-share=40%,ramfold:compressed-share=80%"
    );
    let host = Host::open(options.scratch.as_deref())?;
    let ramfold = peers::Ramfold::new(options.ramfold).find(&host.own_program)?;
    let content = FileContent::of_option(options.content.as_deref())?;
    let setup = Setup { memory_bytes: options.memory.0, disk: options.disk.0, ramfold: &ramfold };
    let plan = Plan {
        setup,
        data_bytes: options.data.0,
        jobs: &jobs,
        seconds: options.seconds,
        warm_seconds: options.warm_seconds,
        time_limit: Duration::from_secs(options.time_limit.into()),
    };
    let runs = usize::from(options.runs);
    let mut progress = Progress::new(runs * caches.len() * jobs.len());
    progress.show("writing the files");
    let bed = Bed::new(&host, |folder| mount::write_files(folder, plan.data_bytes, &content))?;
    let mut found: Vec<Vec<Vec<Found>>> = vec![Vec::new(); caches.len()];
    for run in 0..runs {
        for (name, (cache, found)) in options.peer.iter().zip(caches.iter().zip(&mut found)) {
            let tell = |job: Job| {
                progress.step(&format!("{}, {name}, run {} of {runs}", job.name(), run + 1));
            };
            found.push(mount::run(&host, &bed, cache, &plan, tell)?);
        }
    }
    progress.clear();
    let mut rows: Vec<Row> = Vec::new();
    for (place, job) in jobs.iter().enumerate() {
        let first = rows.len();
        for (peer, found) in options.peer.iter().zip(&found) {
            let runs: Vec<Found> = found.iter().map(|jobs| jobs[place].clone()).collect();
            let middle = |of: &dyn Fn(&Found) -> f64| median_of(&runs, of).unwrap_or(0.0);
            let bytes_per_s = middle(&|found| found.bytes_per_s);
            rows.push(Row {
                job: job.name(),
                peer: peer.clone(),
                memory_bytes: plan.setup.memory_bytes,
                data_bytes: plan.data_bytes,
                ratio: bytes_per_s / rows.get(first).map_or(bytes_per_s, |row| row.bytes_per_s),
                bytes_per_s,
                disk_bytes: middle(&|found| found.disk_bytes as f64),
                user_seconds: middle(&|found| found.user_seconds),
                system_seconds: middle(&|found| found.system_seconds),
                seconds: middle(&|found| found.seconds),
                compress_seconds: median_of_told(&runs, |found| found.compress_seconds),
                decompress_seconds: median_of_told(&runs, |found| found.decompress_seconds),
                runs,
            });
        }
    }
    if let Some(path) = &options.plot {
        let drawn = plot(&rows, &caches);
        fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(options.json, Figures { rows }, text)
}

/// The rows of a job follow one another, one for each cache.
fn plot(rows: &[Row], caches: &[Cache]) -> String {
    let panels = rows.chunks(caches.len()).flat_map(|rows| {
        let panel = |what: &str, y, of: fn(&Row) -> f64| {
            let measured = rows.iter().zip(caches).map(|(row, cache)| Measured {
                peer: &row.peer,
                cache,
                value: of(row),
            });
            Panel {
                title: format!("{}: {what}", rows[0].job),
                x: shares::AXIS,
                y,
                logarithmic: false,
                curves: shares::curves(&measured.collect::<Vec<_>>()).unwrap_or_default(),
            }
        };
        [
            panel("throughput", "MB/s", |row| row.bytes_per_s / 1e6),
            panel("disk", "MB read", |row| row.disk_bytes / 1e6),
        ]
    });
    figure(panels.collect())
}

fn jobs(names: &[String]) -> Result<Vec<Job>> {
    if let Some(unknown) = names.iter().find(|name| Job::ALL.iter().all(|job| job.name() != **name))
    {
        let all = Job::ALL.map(Job::name).join(", ");
        bail!("there is no job '{unknown}'; there are {all}");
    }
    Ok(Job::ALL.into_iter().filter(|job| names.iter().any(|name| name == job.name())).collect())
}

fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &[
            "job",
            "cache",
            "MB/s",
            "x first",
            "reads/s",
            "p50 us",
            "p99 us",
            "disk MB",
            "user s",
            "sys s",
            "compress s",
            "decompress s",
            "cached MiB",
        ],
        2,
    );
    for row in &figures.rows {
        let of_runs = |of: &dyn Fn(&Found) -> Option<f64>| median_of_told(&row.runs, of);
        let cell = |value: Option<f64>, digits: usize| {
            value.map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let us = |ns: u64| ns as f64 / 1e3;
        table.add_row([
            row.job.to_owned(),
            row.peer.clone(),
            format!("{:.1}", row.bytes_per_s / 1e6),
            format!("{:.2}", row.ratio),
            cell(of_runs(&|found| Some(found.reads_per_s)), 0),
            cell(of_runs(&|found| found.latency.map(|latency| us(latency.p50_ns))), 1),
            cell(of_runs(&|found| found.latency.map(|latency| us(latency.p99_ns))), 0),
            format!("{:.0}", row.disk_bytes / 1e6),
            format!("{:.1}", row.user_seconds),
            format!("{:.1}", row.system_seconds),
            cell(row.compress_seconds, 1),
            cell(row.decompress_seconds, 1),
            cell(
                of_runs(&|found| {
                    found.cached_bytes.map(|bytes| bytes as f64 / f64::from(1u32 << 20))
                }),
                0,
            ),
        ]);
    }
    table::text(&table)
}

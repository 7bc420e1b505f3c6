//! `ramfold-bench web`: a web server over `ramfold mount` beside the plain page cache.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::print;
use crate::file_cache::{Bed, Cache, FileContent, Setup, Slowdown, shares};
use crate::host::Host;
use crate::progress::Progress;
use crate::size::Size;
use crate::statistics::{median_of, median_of_told};
use crate::web::{self, Found, Plan, Point, ServerKind};
use crate::{peers, table};

/// Have a web server give files at growing load, over ramfold mount and over the plain page cache, in the same
/// memory and on the same disk.
///
/// The files and what is asked for are made after SPECweb2005's Support workload, as in paper 000, and everything is
/// --scale times smaller. The server is in a control group whose memory is for both levels of ramfold's cache
/// or for the page cache, and whose reads of the disk are slowed down. It has that memory and what the server
/// itself takes. Who asks is outside of it.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench web --plot web.svg\n  \
    sudo ramfold bench web --server nginx,tomcat --sessions 1000,1400,1800,2200\n  \
    sudo ramfold bench web --sessions 1600 --plot share.svg \\\n    \
    --peer page-cache,ramfold,ramfold:compressed-share=0%,ramfold:compressed-share=40%,ramfold:compressed-share=80%")]
pub struct Options {
    /// Memory for files
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: Size,
    /// How many times smaller files are, and shorter what is between two requests, than in the benchmark
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    scale: u32,
    /// Sessions at once, a step of the load each; there is a directory of files for every four
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [400, 800, 1200, 1600, 2000],
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: Vec<u32>,
    /// Web servers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = ["nginx"], value_enum)]
    server: Vec<ServerKind>,
    /// Caches; the first is what the others are compared with. ramfold:OPTION=VALUE passes an option on: codec,
    /// cluster, compressed-share
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = ["page-cache", "ramfold"])]
    peer: Vec<String>,
    /// What reads of the disk are slowed down to, bytes a second and reads a second: 125M:3000, 44M, none
    #[arg(long, value_name = "SIZE[:READS]", default_value = "44000000")]
    disk: Slowdown,
    /// Folder with files that the content is taken from [default: generated, like the Silesia corpus]
    #[arg(long, value_name = "DIR")]
    content: Option<PathBuf>,
    /// How long each step is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How long it lasts before that
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    warm_seconds: u32,
    /// Runs of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for the files; its disk is what is measured [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Draw throughput and bandwidth of the disk, a curve for each cache: against sessions; at one number of
    /// sessions against compressed-share, if ramfold has several
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    server: &'static str,
    peer: String,
    sessions: u32,
    directories: usize,
    memory_bytes: u64,
    /// Medians of the runs.
    pages_per_s: f64,
    bytes_per_s: f64,
    disk_bytes: f64,
    disk_bytes_per_s: f64,
    user_seconds: f64,
    system_seconds: f64,
    /// Times those of the first peer.
    pages_ratio: f64,
    disk_ratio: f64,
    runs: Vec<Found>,
    #[serde(skip)]
    cache: Cache,
}

#[derive(Serialize)]
struct Figures {
    scale: u32,
    rows: Vec<Row>,
}

pub fn execute(options: Options) -> Result<ExitCode> {
    for server in &options.server {
        server.is_here()?;
    }
    let caches = options.peer.iter().map(|name| Cache::named(name)).collect::<Result<Vec<_>>>()?;
    ensure!(
        !caches.contains(&Cache::Disk),
        "a web server reads through a cache: page-cache, ramfold"
    );
    let sessions: Vec<usize> = options.sessions.iter().map(|&sessions| sessions as usize).collect();
    if options.plot.is_some() && sessions.len() < 2 && !shares::are_several(&caches) {
        bail!(
            "--plot draws curves over --sessions, of which there must be several, or over \
             ramfold:compressed-share=SHARE of several peers"
        );
    }
    let host = Host::open(options.scratch.as_deref())?;
    let ramfold = peers::Ramfold::new(options.ramfold).find(&host.own_program)?;
    let content = FileContent::of_option(options.content.as_deref())?;
    let setup = Setup { memory_bytes: options.memory.0, disk: options.disk.0, ramfold: &ramfold };
    let plan = Plan {
        setup,
        sessions: &sessions,
        scale: options.scale,
        seconds: options.seconds,
        warm_seconds: options.warm_seconds,
    };
    let runs = usize::from(options.runs);
    let steps = runs * options.server.len() * caches.len() * sessions.len();
    let mut progress = Progress::new(steps);
    progress.show("writing the files");
    let bed = Bed::new(&host, |folder| plan.site().write(folder, &content))?;
    let mut rows: Vec<Row> = Vec::new();
    for &server in &options.server {
        let mut found: Vec<Vec<Vec<Found>>> = vec![Vec::new(); caches.len()];
        for run in 0..runs {
            for (name, (cache, found)) in options.peer.iter().zip(caches.iter().zip(&mut found)) {
                let what = format!("{}, {name}, run {} of {runs}", server.name(), run + 1);
                let tell = |sessions| progress.step(&format!("{what}: {sessions} sessions"));
                found.push(web::run(&host, &bed, server, cache, &plan, tell)?);
            }
        }
        for (place, &sessions) in options.sessions.iter().enumerate() {
            let first = rows.len();
            for (peer, (cache, found)) in options.peer.iter().zip(caches.iter().zip(&found)) {
                let runs = found.iter().map(|steps| steps[place].clone()).collect();
                let row = row(server, (peer, cache), sessions, &plan, runs);
                rows.push(compared(row, rows.get(first)));
            }
        }
    }
    progress.clear();
    if let Some(path) = &options.plot {
        let points: Vec<Point<'_>> = rows.iter().map(point).collect();
        fs::write(path, web::plot(&points))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(options.json, Figures { scale: options.scale, rows }, text)
}

fn row(
    server: ServerKind,
    (peer, cache): (&str, &Cache),
    sessions: u32,
    plan: &Plan<'_>,
    runs: Vec<Found>,
) -> Row {
    let middle = |of: &dyn Fn(&Found) -> f64| median_of(&runs, of).unwrap_or(0.0);
    Row {
        server: server.name(),
        peer: peer.to_owned(),
        sessions,
        directories: plan.site_of(sessions as usize).directories(),
        memory_bytes: plan.setup.memory_bytes,
        pages_per_s: middle(&|found| found.pages_per_s),
        bytes_per_s: middle(&|found| found.bytes_per_s),
        disk_bytes: middle(&|found| found.disk_bytes as f64),
        disk_bytes_per_s: middle(&|found| found.disk_bytes as f64 / found.seconds),
        user_seconds: middle(&|found| found.user_seconds),
        system_seconds: middle(&|found| found.system_seconds),
        pages_ratio: 1.0,
        disk_ratio: 1.0,
        runs,
        cache: cache.clone(),
    }
}

/// With what it is beside the first peer's.
fn compared(mut row: Row, first: Option<&Row>) -> Row {
    if let Some(first) = first {
        row.pages_ratio = row.pages_per_s / first.pages_per_s;
        row.disk_ratio = row.disk_bytes / first.disk_bytes;
    }
    row
}

fn point(row: &Row) -> Point<'_> {
    Point {
        server: row.server,
        peer: &row.peer,
        cache: &row.cache,
        sessions: row.sessions as usize,
        pages_per_s: row.pages_per_s,
        disk_bytes_per_s: row.disk_bytes_per_s,
    }
}

fn text(figures: &Figures) -> String {
    let mut table = table::of_numbers(
        &[
            "server",
            "cache",
            "sessions",
            "pages/s",
            "x first",
            "MB/s",
            "p50 ms",
            "p99 ms",
            "good %",
            "disk MB",
            "x first",
            "disk MB/s",
            "user s",
            "sys s",
        ],
        2,
    );
    for row in &figures.rows {
        let of_runs = |of: &dyn Fn(&Found) -> Option<f64>, digits: usize| {
            median_of_told(&row.runs, of)
                .map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        table.add_row([
            row.server.to_owned(),
            row.peer.clone(),
            row.sessions.to_string(),
            format!("{:.0}", row.pages_per_s),
            format!("{:.2}", row.pages_ratio),
            format!("{:.1}", row.bytes_per_s / 1e6),
            of_runs(&|found| found.latency.map(|latency| ms(latency.p50_ns)), 1),
            of_runs(&|found| found.latency.map(|latency| ms(latency.p99_ns)), 0),
            of_runs(&|found| found.good.map(|share| share * 100.0), 1),
            format!("{:.0}", row.disk_bytes / 1e6),
            format!("{:.2}", row.disk_ratio),
            format!("{:.1}", row.disk_bytes_per_s / 1e6),
            format!("{:.1}", row.user_seconds),
            format!("{:.1}", row.system_seconds),
        ]);
    }
    table::text(&table)
}

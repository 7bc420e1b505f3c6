//! `ramfold-bench web`: a web server that serves files, over `ramfold mount` and over the plain
//! page cache, at growing load.
//!
//! The server and ramfold are in one cgroup; the visitors are outside, as on other machines. Order
//! of reading: [`site`] says what files there are and which are wanted, [`sessions`] asks for them
//! through [`client`], [`servers`] starts the server, [`measurement`] runs all steps on one cache,
//! and [`report`] and [`mod@plot`] compare the caches.

mod client;
mod measurement;
mod plot;
mod report;
mod servers;
mod sessions;
mod site;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::files::{Bed, Setup, Slowdown, shares};
use crate::commands::Command;
use crate::content::file_content::FileContent;
use crate::harness::open_host;
use crate::harness::progress::Progress;
use crate::harness::report::print;
use crate::harness::size::Bytes;
use crate::peers::cache::Cache;
use crate::peers::{Ramfold, cache};
use measurement::{Plan, StepFigures};
use plot::plot;
use report::{Figures, rows, text};
use servers::ServerKind;

/// Have a web server give files at growing load, over ramfold mount and over the plain page cache,
/// in the same memory and on the same disk.
///
/// The files and what is asked for are made after SPECweb2005's Support workload, as in paper 000,
/// and everything is --scale times smaller. The server is in a control group whose memory is for
/// both levels of ramfold's cache or for the page cache, and whose reads of the disk are slowed
/// down. It has that memory and what the server itself takes. Who asks is outside of it.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench web --plot web.svg\n  \
    sudo ramfold bench web --server nginx,tomcat --sessions 1000,1400,1800,2200\n  \
    sudo ramfold bench web --sessions 1600 --plot share.svg \\\n    \
    --peer page-cache,ramfold,ramfold:compressed-share=0%,ramfold:compressed-share=40%,\
    ramfold:compressed-share=80%")]
pub(crate) struct Options {
    /// Memory for files
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: Bytes,
    /// How many times smaller files are, and shorter what is between two requests, than in the
    /// benchmark
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    scale: u32,
    /// Sessions at once, a step of the load each; there is a directory of files for every four
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          default_values_t = [400, 800, 1200, 1600, 2000],
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: Vec<u32>,
    /// Web servers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values = ["nginx"], value_enum)]
    server: Vec<ServerKind>,
    /// Caches; the first is what the others are compared with. ramfold:OPTION=VALUE passes an
    /// option on: codec, cluster, compressed-share
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values = ["page-cache", "ramfold"])]
    peer: Vec<String>,
    /// What reads of the disk are slowed down to, bytes a second and reads a second: 125M:3000,
    /// 44M, none
    #[arg(long, value_name = "SIZE[:READS]", default_value = "44000000")]
    disk: Slowdown,
    /// Folder with files that the content is taken from [default: generated, like the Silesia
    /// corpus]
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
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for the files; its disk is what is measured [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Draw throughput and bandwidth of the disk, a curve for each cache: against sessions; at one
    /// number of sessions against compressed-share, if ramfold has several
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Options {
    /// # Errors
    /// When the options do not go together.
    fn check(&self, caches: &[Box<dyn Cache>]) -> Result<()> {
        ensure!(
            !caches.iter().any(|cache| cache.is_direct()),
            "a web server reads through a cache: page-cache, ramfold"
        );
        let several_shares = shares::are_several(caches.iter().map(AsRef::as_ref));
        if self.plot.is_some() && self.sessions.len() < 2 && !several_shares {
            bail!(
                "--plot draws curves over --sessions, of which there must be several, or over \
                 ramfold:compressed-share=SHARE of several peers"
            );
        }
        Ok(())
    }
}

impl Command for Options {
    const NAME: &'static str = "web";

    fn execute(self) -> Result<ExitCode> {
        for server in &self.server {
            server.is_here()?;
        }
        let caches = cache::all_named(&self.peer)?;
        self.check(&caches)?;
        let host = open_host(self.scratch.as_deref())?;
        let ramfold = Ramfold::new(self.ramfold).find(&host.own_program)?;
        let content = FileContent::of_option(self.content.as_deref())?;
        let plan = Plan {
            setup: Setup { memory_bytes: self.memory.0, disk: self.disk.0, ramfold: &ramfold },
            sessions: &self.sessions,
            scale: self.scale,
            seconds: self.seconds,
            warm_seconds: self.warm_seconds,
        };
        let runs = usize::from(self.runs);
        let steps = runs * self.server.len() * caches.len() * plan.sessions.len();
        let mut progress = Progress::new(steps);
        progress.show("writing the files");
        let bed = Bed::new(&host, |folder| plan.site().write(folder, &content))?;
        let mut all = Vec::new();
        for &server in &self.server {
            let mut found: Vec<Vec<Vec<StepFigures>>> = vec![Vec::new(); caches.len()];
            for run in 0..runs {
                for (cache, found) in caches.iter().zip(&mut found) {
                    let (server_name, name) = (server.name(), cache.name());
                    let what = format!("{server_name}, {name}, run {} of {runs}", run + 1);
                    let tell = |sessions| progress.step(&format!("{what}: {sessions} sessions"));
                    let cache = cache.as_ref();
                    found.push(measurement::run(&host, &bed, server, cache, &plan, tell)?);
                }
            }
            all.extend(rows(server, &plan, &caches, &found));
        }
        progress.clear();
        if let Some(path) = &self.plot {
            fs::write(path, plot(&all))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        print(self.json, Figures { scale: self.scale, rows: all }, text)
    }
}

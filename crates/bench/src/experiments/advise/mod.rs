//! `ramfold-bench advise`: how right `ramfold advise` is, by running what it predicts.
//!
//! [`programs`] are real programs with data from a seed. [`prediction`] asks `ramfold advise` about
//! each, [`measurement`] runs it with all memory and with less in turn, [`score`] holds one against
//! the other, and [`report`] shows both.

mod measurement;
mod prediction;
mod programs;
mod report;
mod score;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::commands::Command;
use crate::harness::open_host;
use crate::harness::progress::Progress;
use crate::harness::report::{Skipped, print_from};
use crate::harness::size::Memory;
use crate::machine::environment::Environment;
use crate::machine::host::Host;
use crate::machine::interrupt::Interrupted;
use crate::peers::{self, Peer, Ramfold};
use crate::workloads::positive;
use measurement::Bench;
use programs::{Making, Subject};
use report::{Figures, OfProgram, plot, text};
use score::{Row, Summary, ZramRow};

/// The peer whose run time is predicted beside ramfold's: zram as it is where nobody chose a codec.
const ZRAM: &str = "zram-lzo-rle";
/// Where ramfold keeps what it has measured of the machine.
const OWN_CACHE: &str = "XDG_CACHE_HOME";

/// Hold what `ramfold advise` predicts against what happens: real programs are looked at, run with
/// all memory, and run under `ramfold run` with less, in turn.
///
/// The table has, for each program and size, run time and pool as predicted and as they were. The
/// summary says how far off the predictions were, and how often they were right.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo ramfold bench advise\n  \
    ramfold bench advise --program sort,perl,node --memory 75%,50% --runs 5\n  \
    ramfold bench advise --peer ramfold --json > advise.json\n  \
    ramfold bench advise --trials 1 --program perl,python-json\n  \
    ramfold bench advise --plot predicted.svg\n  \
    ramfold bench advise --list")]
pub(crate) struct Options {
    /// Programs to run [default: all that are installed]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    program: Vec<String>,
    /// Memory, as parts of what the program needs
    #[arg(long, value_name = "FRACTION,...", value_delimiter = ',', value_parser = share,
          default_values = ["90%", "75%", "60%", "50%", "40%"])]
    memory: Vec<f64>,
    /// Memory systems to run them under: ramfold, zram-lzo-rle [default: ramfold, and zram-lzo-rle
    /// where it works here]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    peer: Vec<String>,
    /// Runs at each size, of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Let `ramfold advise` run each program this many times under a cap of its choice, to correct
    /// what it predicts
    #[arg(long, value_name = "N", default_value_t = 0)]
    trials: u8,
    /// Factor on the data of the programs, and so on their memory and time
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = positive)]
    scale: f64,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Compression pays where a run takes this many times as long as with all memory, at most
    #[arg(long, value_name = "FACTOR", default_value = "1.25", value_parser = positive)]
    at_most: f64,
    /// The ramfold to measure [default: beside this program, else in PATH]
    #[arg(long, value_name = "PATH")]
    ramfold: Option<PathBuf>,
    /// Folder for generated files [root: /var/lib/ramfold-bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Also keep what was seen of each program, as PROGRAM.record: `ramfold advise --replay` reads
    /// it
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// Longest time for a single run
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = positive)]
    time_limit: f64,
    /// Draw predicted against actual
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Only list the programs, and which of them are here
    #[arg(long)]
    list: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<Memory>() {
        Ok(Memory::Fraction(share)) if share <= 1.0 => Ok(share),
        _ => Err(format!("'{text}' is no part of what a program needs, such as 60%")),
    }
}

impl Command for Options {
    const NAME: &'static str = "advise";

    fn execute(self) -> Result<ExitCode> {
        if self.list {
            return list();
        }
        let (subjects, mut skipped) = programs::select(&self.program)?;
        let host = open_host(self.scratch.as_deref())?;
        let ramfold = Ramfold::new(self.ramfold.clone());
        let peers = select_peers(&host, &self.peer, self.ramfold.clone(), &mut skipped)?;
        let bench = Bench {
            host: &host,
            peers: &peers,
            shares: &self.memory,
            runs: usize::from(self.runs),
            trials: self.trials,
            at_most: self.at_most,
            ramfold: ramfold.find(&host.own_program)?,
            records: self.records.as_deref(),
            time_limit: Duration::try_from_secs_f64(self.time_limit)
                .context("--time-limit is too long")?,
        };
        if let Some(folder) = &self.records {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let making = Making { host: &host, seed: self.seed, scale: self.scale };
        let mut progress = Progress::new(subjects.len() * bench.planned_count());
        let mut found = Found::default();
        for subject in subjects {
            match found.add(&bench, subject, &making, &mut progress) {
                Ok(()) => {}
                Err(error) if error.is::<Interrupted>() => return Err(error),
                // One that cannot be measured does not end the others.
                Err(error) => {
                    progress.note(&format!("ramfold-bench: {}: {error:#}", subject.name));
                    let (peer, reason) = (subject.name.to_owned(), format!("{error:#}"));
                    skipped.push(Skipped { peer, reason });
                    found.has_failed = true;
                }
            }
        }
        progress.clear();
        self.report(&host, found, skipped)
    }
}

impl Options {
    fn report(&self, host: &Host, found: Found, skipped: Vec<Skipped>) -> Result<ExitCode> {
        let Found { rows, zram, programs, has_failed } = found;
        let summary = Summary::of(&rows, &zram);
        let at_most = self.at_most;
        let figures = Figures { at_most, rows, zram, summary, programs, skipped };
        let environment = Environment::read(host.cgroup_description(), host.root);
        print_from(environment, self.json, &figures, text)?;
        if let Some(path) = &self.plot {
            fs::write(path, plot(&figures.rows))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let is_wrong = has_failed || figures.rows.iter().any(|row| !row.is_output_right);
        Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// What was found so far.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    zram: Vec<ZramRow>,
    programs: Vec<OfProgram>,
    has_failed: bool,
}

impl Found {
    /// Predicts of a program, and runs it.
    fn add(
        &mut self,
        bench: &Bench<'_>,
        subject: &Subject,
        making: &Making<'_>,
        progress: &mut Progress,
    ) -> Result<()> {
        let name = subject.name;
        progress.show(&format!("{name}: preparing"));
        let program = subject.make(making)?;
        progress.step(&format!("{name}: looked at"));
        let advice = prediction::predict(bench, name, &program)?;
        let measured = bench.measure(name, &program, &advice, progress)?;
        let (rows, zram) = score::rows(name, &advice, &measured, bench.at_most);
        self.rows.extend(rows);
        self.zram.extend(zram);
        self.programs.push(OfProgram {
            program: name.to_owned(),
            need_bytes: advice.need_bytes,
            cannot_be_held: measured.skipped,
            reference_s: measured.reference_s,
            run: advice.run,
            all_memory: advice.all_memory,
            costs: advice.costs,
            trials: advice.trials,
            not_seen: advice.not_seen,
        });
        Ok(())
    }
}

/// The memory systems that were asked for, or those that work here.
fn select_peers(
    host: &Host,
    names: &[String],
    ramfold: Option<PathBuf>,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<Box<dyn Peer>>> {
    let usual = [Ramfold::new(None).name().to_owned(), ZRAM.to_owned()];
    let wanted = if names.is_empty() { &usual[..] } else { names };
    if let Some(name) = wanted.iter().find(|name| !usual.contains(name)) {
        bail!("nothing is predicted of '{name}': there are {}", usual.join(", "));
    }
    let mut chosen = Vec::new();
    for peer in peers::all(ramfold) {
        if !wanted.iter().any(|name| name == peer.name()) {
            continue;
        }
        match peers::obstacle(host, peer.as_ref()) {
            None => chosen.push(peer),
            Some(reason) if names.is_empty() && !peer.is_indispensable() => {
                skipped.push(Skipped { peer: peer.name().to_owned(), reason });
            }
            Some(reason) => bail!("the peer {} cannot run: {reason}", peer.name()),
        }
    }
    Ok(chosen)
}

fn list() -> Result<ExitCode> {
    let mut text = String::new();
    for subject in programs::ALL {
        text += &format!("{:14} {}\n", subject.name, subject.about);
        if let Some(command) = subject.missing() {
            text += &format!("{:14} not here: there is no {command}\n", "");
        }
    }
    write!(io::stdout().lock(), "{text}").context("cannot print the list")?;
    Ok(ExitCode::SUCCESS)
}

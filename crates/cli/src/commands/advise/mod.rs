//! `ramfold advise`: what less memory would cost a program, said beforehand.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ArgGroup;
use ramfold_advise::advice::{AT_MOST_USUAL, Advice, Advisor, Question};
use ramfold_advise::machine::{self, Costs, Starter};
use ramfold_advise::observation::{Observation, file};
use ramfold_codec::Choice;

use crate::commands::{calibrate_workload, run};
use crate::duration::{duration, millionths};
use crate::progress_line;
use crate::say::say;
use crate::size::Size;

mod observe;
mod plot;
mod score;
mod trials;
mod view;

use observe::Observed;
use trials::Input;

/// Swap or a spill file would be on this folder's disk, unless another is named.
const DISK_FOLDER: &str = "/var/tmp";
/// More trials have no place: they are a tenth of the need apart.
const TRIALS_MAX: i64 = 6;

/// Say what less memory would cost a program, and how much is enough.
///
/// It looks at a program while it runs, or at what else is named, and predicts for each size of
/// memory the run time, the faults and the pool under `ramfold run`. Then it recommends one
/// command, and says what was not seen.
///
/// What faults cost on this machine is measured once, which takes a few seconds, and kept in
/// $XDG_CACHE_HOME/ramfold/machine.json.
#[derive(clap::Args)]
#[command(
    group = ArgGroup::new("subject").required(true)
        .args(["program", "pid", "cgroup", "pages", "files", "replay", "score"]),
    group = ArgGroup::new("living").args(["pid", "cgroup"]),
    after_help = "Examples:
  ramfold advise -- python3 train.py
  ramfold advise --trials 2 -- python3 train.py
  ramfold advise --pid 4711 --duration 2m
  ramfold advise --cgroup /kubepods/burstable/pod1 --json
  ramfold advise --record train.record -- python3 train.py
  ramfold advise --replay train.record --at-most 1.1 --plot train.svg
  ramfold run --memory 2G --prediction train.record -- python3 train.py
  ramfold advise --score"
)]
pub(crate) struct Arguments {
    /// Look at this running process, which needs no agent
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Look at the processes of this control group: a path, or a path below where groups are
    /// mounted
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Look at a file of pages, as `ramfold dump` writes it: sizes only
    #[arg(long, value_name = "FILE")]
    pages: Option<PathBuf>,
    /// Look at the files of a directory, for `ramfold mount`: sizes only
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Advise from what --record has written
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Show how right the predictions of `ramfold run --prediction` were
    #[arg(long, conflicts_with_all = ["record", "plot", "memory", "recalibrate"])]
    score: bool,

    /// Also keep what was measured, for --replay and `ramfold run --prediction` (mode 0600: it
    /// shows what the program does)
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// How long to look at what runs: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    duration: Duration,
    /// How much of its time a program may lose by being looked at
    #[arg(long, value_name = "PERCENT", value_parser = millionths, default_value = "1%")]
    slowdown: u64,

    /// Then run the program this many times more, each time under a cap, where that tells most, and
    /// correct what is predicted by what is measured; and twice with all memory, before and after
    /// those. A run that takes 4 times as long as with all memory (or 1.5 times --at-most, if that
    /// is more) is ended
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=TRIALS_MAX), requires = "program",
          conflicts_with_all = ["pid", "cgroup", "pages", "files", "replay", "score"])]
    trials: u8,

    /// Advise for this way of compressing pages, as `ramfold run --codec` has it
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = run::codec_names())]
    codec: String,
    /// Predict for this memory too: a size, or a part of the need (40%); may be given several times
    #[arg(long, value_name = "SIZE")]
    memory: Vec<Size>,
    /// Recommend the least memory with which the program takes this many times as long at most, and
    /// that holds it with a chance of 99 %
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value_t = AT_MOST_USUAL)]
    at_most: f64,
    /// A folder on the disk that swap would be on
    #[arg(long, value_name = "DIR", default_value = DISK_FOLDER)]
    disk: PathBuf,
    /// Compute whether compression pays by the equations as paper 003 prints them
    #[arg(long)]
    as_printed: bool,
    /// Measure again what faults cost on this machine
    #[arg(long)]
    recalibrate: bool,
    /// Write slowdown and pool by memory as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print for machines
    #[arg(long)]
    json: bool,

    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(factor),
        _ => Err(format!("`{text}` is no factor: write for example 1.25, and at least 1")),
    }
}

/// Measures, advises and prints. Returns the exit status for the shell.
///
/// # Errors
/// When it cannot be measured, too little was seen, or a file cannot be written.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    if arguments.score {
        return score::print(arguments.json).map(|()| 0);
    }
    // What fails after an hour of measuring fails before.
    for file in [&arguments.record, &arguments.plot].into_iter().flatten() {
        ramfold_launch::output_file::check(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    // Trials read again what the first run has read.
    let input = Input::of_this_process();
    let (mut observation, ended) = match observe::observe(arguments)? {
        Observed::Whole { observation, ended } => (*observation, ended),
        Observed::NotStarted(status) => return Ok(status),
    };
    let save = |observation: &Observation| match &arguments.record {
        Some(file) => file::save(file, observation),
        None => Ok(()),
    };
    save(&observation)?;
    let costs = if observation.has_times() || arguments.recalibrate {
        costs(arguments.recalibrate, &arguments.disk)?
    } else {
        machine::kept_or_usual(machine::usual_file().as_deref())
    };
    let question = Question {
        codec: canonical(&arguments.codec)?,
        memory: arguments.memory.iter().map(|size| size.bytes(observation.need_bytes)).collect(),
        at_most: arguments.at_most,
        as_printed: arguments.as_printed,
    };
    if question.memory.contains(&0) {
        bail!("--memory 0 is none: name a size above it");
    }
    let advice = if arguments.trials > 0 {
        let advisor = advisor(&observation, &costs, &question)?;
        let (trials, advice) = trials::run(arguments, &advisor, ended, &input)?;
        observation.trials = trials;
        save(&observation)?;
        advice
    } else {
        advise(&observation, &costs, &question)?
    };
    if let Some(file) = &arguments.plot {
        ramfold_launch::output_file::write(file, plot::plot(&advice).as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&advice)?);
    } else {
        view::print(&advice);
    }
    Ok(0)
}

/// The name that a codec has in samples: `zstd` is its level 1.
pub(crate) fn canonical(codec: &str) -> anyhow::Result<String> {
    Ok(codec.parse::<Choice>()?.name().to_owned())
}

/// What the model says, corrected by the trials that there are, with a line on the terminal.
pub(crate) fn advise(
    observation: &Observation,
    costs: &Costs,
    question: &Question,
) -> anyhow::Result<Advice> {
    Ok(advisor(observation, costs, question)?.advice(&observation.trials))
}

/// Makes the forecasts, with a line on the terminal.
fn advisor<'a>(
    observation: &'a Observation,
    costs: &Costs,
    question: &'a Question,
) -> anyhow::Result<Advisor<'a>> {
    let advisor = progress_line::shown("predicted", |progress| {
        Advisor::new(observation, costs, question, progress)
    });
    Ok(advisor?)
}

/// What things cost here, kept from before where they are, with the usual disk.
///
/// # Errors
/// As [`costs`].
pub(crate) fn usual_costs() -> anyhow::Result<Costs> {
    costs(false, Path::new(DISK_FOLDER))
}

/// What things cost here; figures of another machine where nothing can be measured.
///
/// # Errors
/// When this program cannot be found.
fn costs(again: bool, disk_folder: &Path) -> anyhow::Result<Costs> {
    let program = std::env::current_exe().context("finding this program")?;
    let file = machine::usual_file();
    let costs = progress_line::shown("of this machine measured", |progress| {
        machine::costs(machine::Request {
            starter: Starter { program: &program, arguments: &[calibrate_workload::NAME] },
            file: file.as_deref(),
            again,
            disk_folder,
            progress,
        })
    });
    Ok(costs.unwrap_or_else(|error| {
        say(format_args!("cannot measure this machine: {:#}", anyhow::Error::from(error)));
        Costs::usual()
    }))
}

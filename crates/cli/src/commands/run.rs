//! `ramfold run`: starts a program with the agent in it, and waits for it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::ArgGroup;
use clap::builder::PossibleValuesParser;
use ramfold_advise::page_trace::PageTrace;
use ramfold_codec::Choice;
use ramfold_launch::{
    BudgetError, Ended, KillReason, Launch, Message, Reason, Request, Run, SpillError, StartError,
    TraceOutcome, initial_environment, output_file,
};
use rustix::process::Signal;

use crate::commands::doctor;
use crate::commands::prediction::Prediction;
use crate::duration::{duration, duration_or_never, millionths};
use crate::say::say;
use crate::size::{Size, SizedPath};

/// Run a program, and all it starts, in less memory than it needs.
///
/// What the cap counts is anonymous memory in RAM: the program's resident pages, the compressed
/// ones, and ramfold's own tables. Clean file pages, which the kernel can drop, are not counted.
/// Below the cap nothing happens and the program runs at its own speed.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("slows").args(["cold_after", "trace"]).multiple(true))]
#[command(after_help = "Examples:
  ramfold run --memory 2G -- python3 train.py
  ramfold run --memory 40% --stats stats.json -- make -j4
  ramfold run --memory 500M --spill /var/tmp:10G -- ./solver
  ramfold run --cold-after 30s --slowdown 1% -- redis-server

Signals: SIGUSR1 brings all memory back and lifts the cap until it is sent again (for a debugger, a
core dump); SIGUSR2 writes --stats; others are passed on to the program.

Exit status: the program's own, 128 + N when signal N ended it; 125 when ramfold itself failed,
126 when the program cannot be executed, 127 when it was not found.")]
pub(crate) struct Arguments {
    /// What the program may cost in RAM: 512M, 1.5G, 40% (of the machine's RAM) [default: the
    /// control group's limit or the machine's RAM, less 10 %]
    #[arg(long, short, value_name = "SIZE")]
    memory: Option<Size>,

    /// How pages are compressed; auto: each by the codec that suits it, and harder where that
    /// spares many faults
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = codec_names())]
    codec: String,

    /// Keep at least so much of the memory for compressed pages, used or not, and with --spill no
    /// more: 100M, 30% (of --memory). For experiments: without it they take what they need
    #[arg(long, value_name = "SIZE")]
    pool: Option<Size>,

    /// Memory kept ready for compressed pages, so that compressing one needs none of the system's:
    /// 4M, 0 for none. For experiments [default: 1/128 of --memory, 256K to 4M]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Size>,

    /// Let the oldest compressed pages, and those that do not compress, go to a file in folder DIR,
    /// encrypted, when memory is short: a disk, and SIZE of it at most [default: half of what is
    /// free]
    #[arg(long, value_name = "DIR[:SIZE]")]
    spill: Option<SizedPath>,

    /// Compress what was not touched for so long even where there is room for it: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    cold_after: Option<Duration>,

    /// With --cold-after or --trace: how much of its time the program may lose by that, as measured
    /// by its faults
    #[arg(long, value_name = "PERCENT", value_parser = millionths, default_value = "2%",
          requires = "slows")]
    slowdown: u64,

    /// Compress once more and harder, where there is time, what was compressed so long ago and not
    /// touched since: 10s, 1m, never [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration_or_never)]
    recompress_after: Option<Duration>,

    /// Write what happened to FILE as JSON when the program ends, and whenever this process gets
    /// SIGUSR2
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    /// Compare the run with what `ramfold advise` predicted: FILE is its --record, or what its
    /// --json printed. The table goes to standard error, and a line to the history that `ramfold
    /// advise --score` shows
    #[arg(long, value_name = "FILE")]
    prediction: Option<PathBuf>,

    /// Record in FILE which pages the program accesses, for `ramfold simulate`: a sample of them,
    /// seen by taking them out for a moment, which costs as much of the time as --slowdown says
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Record in FILE what happens to the compressed objects of the first process that has any, for
    /// `ramfold bench store --object-trace`: lengths and lifetimes, no content. It takes SIZE at
    /// most [default: 256M, which is 32 million events]
    #[arg(long, value_name = "FILE[:SIZE]")]
    object_trace: Option<SizedPath>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// The names that `--codec` takes.
pub(crate) fn codec_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Choice::names().chain(["zstd"]))
}

/// Runs the program and returns the exit status for the shell.
///
/// # Errors
/// When the run cannot even begin. A program that cannot be looked after runs without ramfold.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<i32> {
    let mut launch = launch(&arguments)?;
    if let Err(error) = launch.find_program() {
        return not_started(error);
    }
    if let Some(file) = &arguments.stats {
        output_file::check(file)
            .with_context(|| format!("cannot write --stats {}", file.display()))?;
    }
    let prediction = arguments.prediction.as_deref();
    let prediction = prediction.map(|file| Prediction::load(file, &arguments.codec)).transpose()?;
    if let Some(path) = &arguments.trace {
        trace_pages(&mut launch, path, arguments.slowdown)?;
    }
    let started = Instant::now();
    let run = match launch.start() {
        Ok(run) => Arc::new(run),
        Err(error) => return not_started(error),
    };
    let relay = run.take_signals().map(|signals| {
        let file = arguments.stats.clone();
        signals.pass_on(Arc::clone(&run), move |run, request| answer(run, request, file.as_deref()))
    });
    let relay = relay.transpose().context("handling signals")?;
    let ended = run.wait()?;
    let took = started.elapsed();
    drop(relay);
    if let Some(prediction) = prediction {
        prediction.compare(&run, ended, took, &arguments.program);
    }
    // The program's status is worth more than this.
    if let Err(error) = write_stats(&run, arguments.stats.as_deref()) {
        say(format_args!("{error:#}"));
    }
    if ended == Ended::Signaled(Signal::KILL.as_raw()) {
        explain_kill(run.kill_reason());
    }
    Ok(ended.shell_status())
}

/// What the arguments ask for.
fn launch(arguments: &Arguments) -> anyhow::Result<Launch> {
    let mut launch = Launch::new(&arguments.program[0]);
    launch
        .args(&arguments.program[1..])
        .environment(initial_environment()?)
        .codec(arguments.codec.parse::<Choice>()?)
        .slowdown_ppm(arguments.slowdown)
        .adopt_orphans()
        .catch_signals()
        .on_message(show);
    if let Some(memory) = arguments.memory {
        launch.memory(memory);
    }
    if let Some(pool) = arguments.pool {
        launch.pool(pool);
    }
    if let Some(reserve) = arguments.reserve {
        launch.reserve(reserve);
    }
    if let Some(SizedPath { path, size }) = &arguments.spill {
        launch.spill(path, *size);
    }
    if let Some(time) = arguments.cold_after {
        launch.cold_after(time);
    }
    if let Some(time) = arguments.recompress_after {
        launch.recompress_after(time);
    }
    if let Some(SizedPath { path, size }) = &arguments.object_trace {
        launch.object_trace(path, *size);
    }
    Ok(launch)
}

/// Has a trace of the program's pages written.
///
/// # Errors
/// When there can be no such file.
fn trace_pages(launch: &mut Launch, path: &Path, slowdown_ppm: u64) -> anyhow::Result<()> {
    let begun = PageTrace::begin(path);
    let trace = begun.with_context(|| format!("cannot write --trace {}", path.display()))?;
    let trace = Arc::new(trace);
    let path = path.to_owned();
    launch.watch_pages(slowdown_ppm, {
        let trace = Arc::clone(&trace);
        move |seen| trace.note(&seen)
    });
    launch.on_message(move |message| match message {
        Message::PageWatch(outcome) => match trace.end(outcome) {
            Ok(0) => {}
            Ok(lost) => say(format_args!(
                "--trace {} lacks {lost} events: they came faster than they could be written",
                path.display()
            )),
            Err(error) => say(format_args!("cannot write --trace {}: {error}", path.display())),
        },
        message => show(message),
    });
    Ok(())
}

/// Shows a message of a run.
pub(crate) fn show(message: Message) {
    match message {
        Message::RunsWithout(Reason::Userfaultfd(problem)) => {
            say(format_args!("runs without ramfold: {}", doctor::explained(problem)));
        }
        Message::ObjectTrace { path, outcome } => say_of_trace(&path, outcome),
        message => say(format_args!("{message}")),
    }
}

/// The program's status is worth more than this.
fn say_of_trace(path: &Path, outcome: io::Result<TraceOutcome>) {
    let path = path.display();
    match outcome {
        Ok(TraceOutcome::Whole) => {}
        Ok(TraceOutcome::Full { bytes }) => say(format_args!(
            "--object-trace {path} has only the first {} KiB of what was recorded; {path}:SIZE \
             gives it more room",
            bytes >> 10
        )),
        Ok(TraceOutcome::Overrun) => say(format_args!(
            "--object-trace {path} ends before the program: it could not be written as fast as \
             things happened"
        )),
        Ok(TraceOutcome::Empty) => {
            say(format_args!("--object-trace {path} is empty: no process compressed anything"));
        }
        Err(error) => say(format_args!(
            "cannot write --object-trace {path}: {error}; it has what came before"
        )),
    }
}

/// Says why, and returns the exit status; or the error, where it is not the program's.
pub(crate) fn not_started(error: StartError) -> anyhow::Result<i32> {
    let status = match &error {
        StartError::NotFound { .. } => 127,
        StartError::NotExecutable { .. } => 126,
        StartError::NotRun { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
        StartError::NotRun { .. } => 126,
        _ => return Err(in_terms_of_options(error)),
    };
    say(format_args!("{:#}", anyhow::Error::from(error)));
    Ok(status)
}

/// What is wrong with an option names that option.
fn in_terms_of_options(error: StartError) -> anyhow::Error {
    match error {
        StartError::Budget(BudgetError::Pool { pool_bytes, memory_bytes }) => anyhow!(
            "--pool {} MiB leaves the program less than a tenth of the {} MiB of --memory",
            pool_bytes >> 20,
            memory_bytes >> 20
        ),
        StartError::Budget(BudgetError::Reserve { reserve_bytes, memory_bytes }) => anyhow!(
            "--reserve {} MiB is more than a quarter of the {} MiB of --memory",
            reserve_bytes >> 20,
            memory_bytes >> 20
        ),
        StartError::Spill(SpillError::InRam { folder }) => anyhow!(
            "cannot spill to {}: it is in RAM (tmpfs); --spill wants a folder on a disk",
            folder.display()
        ),
        StartError::ObjectTrace { path, source } => {
            let what = format!("cannot write --object-trace {}", path.display());
            anyhow::Error::from(source).context(what)
        }
        error => error.into(),
    }
}

/// Does what this process was asked by a signal.
fn answer(run: &Run, request: Request, stats: Option<&Path>) {
    match request {
        Request::ToggleBringingBack => {
            say(format_args!(
                "{}",
                if run.toggle_bringing_back() {
                    "SIGUSR1: brings all memory back and compresses none, whatever the cap, until \
                     the next one"
                } else {
                    "SIGUSR1: the cap holds again"
                }
            ));
        }
        Request::WriteStatistics => {
            if let Err(error) = write_stats(run, stats) {
                say(format_args!("{error:#}"));
            }
        }
    }
}

fn write_stats(run: &Run, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(&run.statistics())?;
    text.push('\n');
    output_file::write(file, text.as_bytes())
        .with_context(|| format!("cannot write --stats {}", file.display()))
}

/// Exit status 137 is what people come to ramfold for; say what is known.
fn explain_kill(reason: Option<KillReason>) {
    match reason {
        Some(KillReason::OverCap { over_bytes, memory_bytes }) => say(format_args!(
            "the program was killed; its memory went {} MiB over the cap of {} MiB",
            over_bytes >> 20,
            memory_bytes >> 20
        )),
        Some(KillReason::ControlGroup { memory_bytes, limit_bytes, fitting_bytes }) => {
            say(format_args!(
                "the program was killed; --memory is {} MiB, but the control group allows {} MiB \
                 only: try --memory {}M",
                memory_bytes >> 20,
                limit_bytes >> 20,
                fitting_bytes >> 20
            ));
        }
        None => {}
    }
}

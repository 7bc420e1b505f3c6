//! What is looked at, and by what.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use ramfold_advise::measure::{self, Error, Options};
use ramfold_advise::observation::{Observation, file};
use ramfold_advise::program;
use ramfold_advise::progress::Progress;
use ramfold_launch::{Ended, Launch, Run, SignalRelay, initial_environment};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::Arguments;
use crate::commands::run;
use crate::progress_line;
use crate::say::say;

/// What became of looking.
pub(super) enum Observed {
    /// It was seen.
    Whole {
        /// What was.
        observation: Box<Observation>,
        /// How a program that was started has ended.
        ended: Option<Ended>,
    },
    /// The program was not started, which was said. The exit status for the shell.
    NotStarted(i32),
}

/// Measures what the arguments name, or reads what was measured.
///
/// # Errors
/// When it cannot be measured or read.
pub(super) fn observe(arguments: &Arguments) -> anyhow::Result<Observed> {
    if !arguments.program.is_empty() {
        return program(arguments);
    }
    let observation = Box::new(from_outside(arguments)?);
    Ok(Observed::Whole { observation, ended: None })
}

fn from_outside(arguments: &Arguments) -> anyhow::Result<Observation> {
    if let Some(path) = &arguments.replay {
        return Ok(file::load(path)?);
    }
    let with = |measured: fn(&Path, &Options, &Progress) -> Result<Observation, Error>,
                path: &Path| {
        outside(arguments, |options, progress| measured(path, options, progress))
    };
    if let Some(pid) = arguments.pid {
        outside(arguments, |options, progress| measure::process(pid, options, progress))
    } else if let Some(path) = &arguments.cgroup {
        with(measure::group, path)
    } else if let Some(path) = &arguments.pages {
        with(measure::pages, path)
    } else if let Some(path) = &arguments.files {
        with(measure::files, path)
    } else {
        bail!("nothing to look at is named")
    }
}

/// Measures from outside, with a line on the terminal. The first Ctrl-C ends measuring, with what
/// there is by then; the second ends this program.
fn outside(
    arguments: &Arguments,
    measured: impl FnOnce(&Options, &Progress) -> Result<Observation, Error>,
) -> anyhow::Result<Observation> {
    let options = Options { duration: arguments.duration, ..Options::default() };
    for signal in [SIGINT, SIGTERM] {
        // In this order: what the first one sets lets the second one end the program.
        flag::register_conditional_default(signal, Arc::clone(&options.interrupt))
            .and_then(|_| flag::register(signal, Arc::clone(&options.interrupt)))
            .context("handling signals")?;
    }
    Ok(progress_line::shown("measured", |progress| measured(&options, progress))?)
}

/// Runs a program to its end with an agent that only looks, at a cost of `arguments.slowdown`. What
/// it prints goes to standard error: standard output is for the advice.
fn program(arguments: &Arguments) -> anyhow::Result<Observed> {
    let command = arguments.program.iter().map(|word| word.to_string_lossy().into_owned());
    let mut launch = launch(arguments)?;
    let mut relay = None;
    let observed =
        program::observe(&mut launch, command.collect(), arguments.slowdown, run::show, |run| {
            relay = pass_signals_on(run);
        });
    drop(relay.transpose().context("handling signals")?);
    match observed {
        Ok((observation, ended)) => {
            if ended != Ended::Exited(0) {
                let status = ended.shell_status();
                say(format_args!("the program ended with status {status}"));
            }
            Ok(Observed::Whole { observation: Box::new(observation), ended: Some(ended) })
        }
        Err(program::Error::Start(error)) => Ok(Observed::NotStarted(run::not_started(error)?)),
        Err(error) => Err(error.into()),
    }
}

/// The program as it is named. What it prints goes to standard error.
pub(super) fn launch(arguments: &Arguments) -> anyhow::Result<Launch> {
    let stdout = io::stderr().as_fd().try_clone_to_owned().context("duplicating standard error")?;
    let mut launch = Launch::new(&arguments.program[0]);
    launch
        .args(&arguments.program[1..])
        .environment(initial_environment()?)
        .stdout(stdout)
        .adopt_orphans()
        .catch_signals();
    Ok(launch)
}

/// It is a program's run like any other, but for what ramfold itself is asked.
pub(super) fn pass_signals_on(run: &Arc<Run>) -> Option<io::Result<SignalRelay>> {
    let signals = run.take_signals();
    signals.map(|signals| signals.pass_on(Arc::clone(run), |_, _| ()))
}

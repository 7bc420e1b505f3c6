//! What is looked at, and by what.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use ramfold_advise::measure::{self, Error, Options};
use ramfold_advise::observation::{Observation, file};
use ramfold_advise::progress::Progress;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::Arguments;
use crate::progress_line;

/// Measures what the arguments name, or reads what was measured.
///
/// # Errors
/// When it cannot be measured or read.
pub(super) fn observe(arguments: &Arguments) -> anyhow::Result<Observation> {
    if let Some(path) = &arguments.replay {
        return Ok(file::load(path)?);
    }
    if !arguments.program.is_empty() {
        return program(arguments);
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

/// Runs a program to its end with an agent that only looks, at a cost of `arguments.slowdown`.
fn program(arguments: &Arguments) -> anyhow::Result<Observation> {
    let _ = arguments.slowdown;
    bail!("programs cannot be looked at yet: use --pid")
}

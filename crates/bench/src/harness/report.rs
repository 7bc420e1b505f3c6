//! Figures, as a table for people or as JSON for programs.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::environment::Environment;

/// What was found, and where.
#[derive(Serialize)]
struct Report<'a, F> {
    environment: Environment,
    #[serde(flatten)]
    figures: &'a F,
}

/// A peer that could not run here.
#[derive(Debug, Serialize)]
pub(crate) struct Skipped {
    pub(crate) peer: String,
    pub(crate) reason: String,
}

/// Prints figures as JSON with the environment they come from, or as the text that `text` makes.
pub(crate) fn print<F: Serialize>(
    json: bool,
    figures: F,
    text: impl FnOnce(&F) -> String,
) -> Result<ExitCode> {
    print_from(Environment::read(String::new(), false), json, &figures, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The same with another environment than that of any user without cgroups.
pub(crate) fn print_from<F: Serialize>(
    environment: Environment,
    json: bool,
    figures: &F,
    text: impl FnOnce(&F) -> String,
) -> Result<()> {
    print_plain(json, &Report { environment, figures }, |report| text(report.figures))
}

/// Prints what depends on no environment, as JSON or as the text that `text` makes.
pub(crate) fn print_plain<F: Serialize + ?Sized>(
    json: bool,
    figures: &F,
    text: impl FnOnce(&F) -> String,
) -> Result<()> {
    let text = if json {
        serde_json::to_string_pretty(figures).context("cannot write the report as JSON")? + "\n"
    } else {
        text(figures)
    };
    write!(io::stdout().lock(), "{text}").context("cannot print the report")
}

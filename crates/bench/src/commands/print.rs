//! Figures, as a table for people or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::Environment;

/// What was found, and where.
#[derive(Serialize)]
struct Report<F> {
    environment: Environment,
    #[serde(flatten)]
    figures: F,
}

/// Prints figures as a table or as JSON.
pub fn print<F: Serialize>(
    json: bool,
    figures: F,
    text: impl FnOnce(&F) -> String,
) -> Result<ExitCode> {
    let text = if json {
        let report = Report { environment: Environment::read(String::new(), false), figures };
        serde_json::to_string_pretty(&report).context("cannot write the report as JSON")? + "\n"
    } else {
        text(&figures)
    };
    write!(io::stdout().lock(), "{text}").context("cannot print the report")?;
    Ok(ExitCode::SUCCESS)
}

//! `ramfold-bench workload`: the program side of the synthetic workloads.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::size::Size;
use crate::workloads::{ChildOptions, Quota, child};

/// Run one synthetic workload in this process and print a report as JSON.
#[derive(Args)]
pub struct Options {
    name: String,
    #[arg(long, default_value = "256M")]
    size: Size,
    /// Accesses in the measured phase, of all threads together.
    #[arg(long, conflicts_with = "seconds")]
    operations: Option<u64>,
    /// Length of the measured phase. The hash then depends on the speed.
    #[arg(long, value_parser = positive)]
    seconds: Option<f64>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Raw 4 KiB pages to fill the heap with.
    #[arg(long, value_name = "FILE")]
    pages: Option<PathBuf>,
    /// Time every access and report quantiles.
    #[arg(long)]
    latency: bool,
}

/// Parses a number above zero.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}

pub fn execute(options: Options) -> Result<ExitCode> {
    let operations = options.operations.map(|count| Quota::Accesses(count.max(1)));
    let report = child(&ChildOptions {
        name: options.name,
        size_bytes: options.size.0,
        quota: operations.or(options.seconds.map(Quota::Seconds)),
        seed: options.seed,
        thread_count: options.threads,
        pages: options.pages,
        latency: options.latency,
    })?;
    let text = serde_json::to_string(&report).context("cannot write the report as JSON")?;
    writeln!(io::stdout().lock(), "{text}").context("cannot print the report")?;
    Ok(ExitCode::SUCCESS)
}

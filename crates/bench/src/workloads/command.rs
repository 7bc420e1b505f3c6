//! `ramfold-bench workload`: a synthetic workload in a process of its own.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::child::{ChildOptions, ChildReport, Quota};
use super::{Settings, all};
use crate::commands::Command;
use crate::harness::size::Bytes;
use crate::machine::host::Host;
use crate::machine::program::Program;

/// Run one synthetic workload in this process and print a report as JSON.
#[derive(Args)]
pub(crate) struct Options {
    name: String,
    #[arg(long, default_value = "256M")]
    size: Bytes,
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
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}

impl Command for Options {
    const NAME: &'static str = "workload";
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        let operations = self.operations.map(|count| Quota::Accesses(count.max(1)));
        let report = run(&ChildOptions {
            name: self.name,
            size_bytes: self.size.0,
            quota: operations.or(self.seconds.map(Quota::Seconds)),
            seed: self.seed,
            thread_count: self.threads,
            pages: self.pages,
            latency: self.latency,
        })?;
        let text = serde_json::to_string(&report).context("cannot write the report as JSON")?;
        writeln!(io::stdout().lock(), "{text}").context("cannot print the report")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Finds the workload and does its work.
fn run(options: &ChildOptions) -> Result<ChildReport> {
    all()
        .into_iter()
        .find(|workload| workload.name() == options.name)
        .with_context(|| format!("there is no synthetic workload '{}'", options.name))?
        .run(options)
}

/// The command that does this number of operations of a workload.
pub(super) fn program(host: &Host, settings: &Settings, name: &str, operations: u64) -> Program {
    let mut command: Vec<OsString> = vec![host.own_program.clone().into()];
    for (option, value) in [
        (Options::NAME, name.to_owned()),
        ("--size", settings.size_bytes.to_string()),
        ("--operations", operations.to_string()),
        ("--seed", settings.seed.to_string()),
        ("--threads", settings.thread_count.to_string()),
    ] {
        command.extend([option.into(), value.into()]);
    }
    if settings.latency {
        command.push("--latency".into());
    }
    if let Some(pages) = &settings.pages {
        command.extend(["--pages".into(), pages.clone().into()]);
    }
    Program { command, environment: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> ChildOptions {
        ChildOptions {
            quota: Some(Quota::Accesses(2)),
            latency: true,
            ..ChildOptions::small(name, 1)
        }
    }

    #[test]
    fn every_synthetic_workload_runs_and_reports() {
        // Those that sleep, or need a program, have tests of their own.
        let names = super::super::heap::all().map(|workload| workload.name());
        for name in names.chain(["fit", "matrix"]) {
            let report = run(&options(name)).unwrap();
            assert_eq!(report.access_count, 2);
            assert_eq!(report.hash, run(&options(name)).unwrap().hash, "{name}");
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<ChildReport>(&text).unwrap(), report);
        }
    }

    #[test]
    fn impossible_options_are_errors() {
        assert!(run(&options("unheard-of")).is_err());
        let error = run(&options("gcc")).unwrap_err().to_string();
        assert!(error.contains("no synthetic workload 'gcc'"), "{error}");
        assert!(run(&ChildOptions { thread_count: 0, ..options("random-rw") }).is_err());
        assert!(run(&ChildOptions { size_bytes: 1, ..options("random-rw") }).is_err());
        let missing = Some(PathBuf::from("/nonexistent/pages"));
        assert!(run(&ChildOptions { pages: missing, ..options("random-rw") }).is_err());
        assert!(run(&ChildOptions { quota: Some(Quota::Seconds(1.0)), ..options("fit") }).is_err());
    }
}

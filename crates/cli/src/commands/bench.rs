//! `ramfold bench`: runs `ramfold-bench`, which brings its peers with it and is installed beside.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;

/// Measure against zram, zswap and swap in the same run.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Passed to ramfold-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Becomes `ramfold-bench`; returns only when that fails.
///
/// # Errors
/// When it cannot be run.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<i32> {
    let own = std::env::current_exe().context("finding this program")?;
    let beside = own.with_file_name("ramfold-bench");
    let bench = if beside.exists() { beside } else { "ramfold-bench".into() };
    let error = Command::new(&bench).args(arguments.arguments).exec();
    Err(error).with_context(|| {
        format!(
            "running {}: `make install` or `cargo install --path crates/bench` provides it",
            bench.display()
        )
    })
}

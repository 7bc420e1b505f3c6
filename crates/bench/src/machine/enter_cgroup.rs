//! `ramfold-bench enter-cgroup`: join cgroups, then become the program.
//!
//! A child must be in its cgroup before its first page, and the code between
//! fork and exec may only be unsafe code. So the harness starts this command,
//! which moves itself and then calls exec.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::commands;

/// The name of the command.
pub(super) const NAME: &str = "enter-cgroup";

/// Join the given cgroups, then run a program in them.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder of a cgroup to join; may be repeated.
    #[arg(long, value_name = "DIR")]
    cgroup: Vec<PathBuf>,
    /// Process that must still be the parent; the program dies with it.
    #[arg(long, value_name = "PID")]
    parent: u32,
    /// Signal that it dies by.
    #[arg(long, value_name = "NUMBER")]
    death_signal: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

impl commands::Command for Options {
    const NAME: &'static str = NAME;
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        // A harness that is killed with -9 takes the program with it. The death
        // signal is armed first and the parent compared after, so that a parent
        // that died in between is noticed.
        let signal =
            Signal::from_named_raw(self.death_signal).context("there is no such signal")?;
        set_parent_process_death_signal(Some(signal)).context("cannot arm the death signal")?;
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.parent) {
            bail!("the harness (process {}) has ended", self.parent);
        }
        for cgroup in &self.cgroup {
            let procs = cgroup.join("cgroup.procs");
            // "0" means the writer itself.
            fs::write(&procs, "0").with_context(|| format!("cannot join {}", procs.display()))?;
        }
        let (program, arguments) = self.program.split_first().context("no program given")?;
        let error = Command::new(program).args(arguments).exec();
        Err(error).with_context(|| format!("cannot run {}", program.to_string_lossy()))
    }
}

//! What experiments ask of Linux, and what they set on the machine. Uses `content` alone of the
//! rooms.
//!
//! [`host::Host`] is the entrance: it takes the machine for this process, and makes cgroups
//! ([`cgroup`]) and the scratch folder. Everything that is set goes through the [`journal`], which
//! takes it back at the end, after errors and signals ([`interrupt`]), and at the next start when
//! this process was killed.
//!
//! To add a setting, add a variant of [`journal::Setting`] with its `undo`, and a file here with
//! what makes it: `swap`, `zram` and `knobs` are examples. `proc`, `counters`, `processes` and
//! `environment` read what the kernel tells; `program` starts programs; `wait` tries again.

pub(crate) mod cgroup;
pub(crate) mod counters;
pub(crate) mod enter_cgroup;
pub(crate) mod environment;
pub(crate) mod host;
pub(crate) mod interrupt;
pub(crate) mod journal;
pub(crate) mod knobs;
pub(crate) mod proc;
pub(crate) mod processes;
pub(crate) mod program;
pub(crate) mod swap;
pub(crate) mod wait;
pub(crate) mod zram;

use std::io::{self, Write};

use anyhow::Result;

/// Reads how many bytes are held outside of the cgroup now.
pub(crate) type Gauge = Box<dyn Fn() -> Result<u64> + Send + Sync>;

/// Writes one line to standard error.
///
/// Unlike `eprintln!` it does not panic when standard error is gone: a closed terminal is exactly
/// when cleaning up must go on.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

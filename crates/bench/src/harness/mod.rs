//! What experiments have in common: a program is run and measured, and figures are reported. Uses
//! the rooms `machine` and `content`.
//!
//! - [`mod@measure`]: one program, run once, and what it cost; [`idle`]: what it costs while it
//!   sleeps
//! - [`turns`]: the order of runs, where several are measured in turn
//! - [`statistics`], [`latency`]: medians and quantiles; [`fio`]: a program that measures disks
//! - [`report`], [`table`], [`progress`]: JSON, text, and the line on the terminal
//! - [`size`]: amounts of memory as options name them
//!
//! An experiment opens the machine with [`open_host`], and prints with [`report::print`].

pub(crate) mod fio;
pub(crate) mod idle;
pub(crate) mod latency;
pub(crate) mod measure;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod selection;
pub(crate) mod size;
pub(crate) mod statistics;
pub(crate) mod table;
pub(crate) mod turns;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::machine::cgroup::Cgroup;
use crate::machine::host::Host;
use crate::machine::program::Program;
use measure::{Launch, measure};

/// Takes the machine for this process; see [`Host::open`].
pub(crate) fn open_host(scratch: Option<&Path>) -> Result<Host> {
    Host::open(scratch, try_cgroup)
}

/// Whether a program can be run and measured in a cgroup.
fn try_cgroup(host: &Host, cgroup: Cgroup) -> Result<()> {
    let program = Program {
        command: vec![host.own_program.clone().into_os_string(), "--version".into()],
        environment: Vec::new(),
    };
    let launch = Launch {
        program: &program,
        cgroup: Some(&cgroup),
        pool: None,
        pool_bytes_max: None,
        idle: None,
        time_limit: Duration::from_secs(30),
    };
    measure(host, &launch)?.check()?;
    cgroup.finish()
}

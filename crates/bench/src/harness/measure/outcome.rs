//! What one run of a program cost, and how it ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Result, bail};

use crate::harness::idle::Idle;
use crate::machine::counters::Counters;

/// What was seen.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) wall_seconds: f64,
    /// xxh3 of standard output, 128 bits in hexadecimal.
    pub(crate) output_hash: String,
    /// The start of standard output.
    pub(crate) output: Vec<u8>,
    /// The end of standard error.
    pub(crate) errors: String,
    pub(crate) cpu_seconds: f64,
    /// Counters of the whole machine over the run.
    pub(crate) machine: Counters,
    /// Largest sample.
    pub(crate) anonymous_bytes_peak: u64,
    /// The cgroup's peak; without a cgroup, the largest sample.
    pub(crate) usage_bytes_peak: u64,
    /// Largest sample of the pool gauge.
    pub(crate) pool_bytes_sampled: u64,
    pub(crate) out_of_memory: bool,
    pub(crate) timed_out: bool,
    pub(crate) idle: Option<Idle>,
}

/// The error of a program that the kernel killed for want of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the kernel killed the program: its memory limit was reached")
    }
}

impl std::error::Error for OutOfMemory {}

impl Outcome {
    /// An error that says how the program ended, unless it ended well.
    pub(crate) fn check(&self) -> Result<()> {
        if self.status.success() {
            return Ok(());
        }
        let errors = if self.errors.trim().is_empty() {
            String::new()
        } else {
            format!("; it said: {}", self.errors.trim())
        };
        if self.timed_out {
            bail!("the program did not end within the time limit{errors}");
        }
        if self.out_of_memory {
            return Err(OutOfMemory.into());
        }
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => bail!("the program ended with status {code}{errors}"),
            (None, Some(signal)) => bail!("the program was ended by signal {signal}{errors}"),
            (None, None) => bail!("the program ended oddly: {}{errors}", self.status),
        }
    }
}

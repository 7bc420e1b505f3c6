//! fio: its jobs and what it tells of them.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::latency::Latency;

/// # Errors
/// Unless it can be started.
pub fn is_here() -> Result<()> {
    let output = Command::new("fio").arg("--version").output();
    let output = output.context("cannot start fio (apt-get install fio)")?;
    ensure!(output.status.success(), "fio --version ended with {}", output.status);
    Ok(())
}

/// A fio that does nothing, and is outside of any cgroup that is measured: the 30 MB of its program and libraries are
/// in memory as long as this is, and are nobody else's. Inside, where memory is for a cache, each start would read
/// them from the disk anew and push the cache's pages out.
pub struct InMemory {
    process: Child,
}

impl InMemory {
    /// # Errors
    /// Unless it can be started.
    pub fn new() -> Result<InMemory> {
        // It waits for jobs from its standard input, and ends when that does, which it does with this program too.
        let mut command = Command::new("fio");
        command.arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(InMemory { process: command.spawn().context("cannot start fio")? })
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It has been told no jobs, which it takes for a failure.
        let _ = self.process.wait();
    }
}

/// What fio tells of its first job, from what it printed with `--output-format=json`.
///
/// # Errors
/// When it is not that.
pub fn first_job(printed: &[u8]) -> Result<Value> {
    // Notes may precede it.
    let start = printed.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let mut told: Value =
        serde_json::from_slice(&printed[start..]).context("fio told something odd")?;
    Ok(told["jobs"][0].take())
}

/// # Errors
/// When there is no such number.
pub fn number(value: &Value, what: &str) -> Result<f64> {
    value.as_f64().with_context(|| format!("fio told no {what}"))
}

/// Quantiles of completion times.
///
/// # Errors
/// When fio told none.
pub fn latency(direction: &Value) -> Result<Latency> {
    let times = &direction["clat_ns"];
    let quantile = |name: &str| -> Result<u64> {
        Ok(number(&times["percentile"][name], &format!("quantile {name}"))? as u64)
    };
    Ok(Latency {
        p50_ns: quantile("50.000000")?,
        p90_ns: quantile("90.000000")?,
        p99_ns: quantile("99.000000")?,
        p999_ns: quantile("99.900000")?,
        max_ns: number(&times["max"], "longest time")? as u64,
    })
}

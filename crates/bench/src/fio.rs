//! fio: its jobs and what it tells of them.

use std::process::Command;

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

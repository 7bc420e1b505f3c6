//! What `ramfold advise` says of a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use ramfold_codec::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OWN_CACHE;
use super::measurement::Bench;
use crate::harness::measure::{Launch, measure};
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::program::Program;

/// What zram is predicted with.
const ZRAM_CODEC: &str = "lzo";
/// The time limit of looking at a run, predicting from it, and running it twice more beside trials,
/// as a multiple of that of a run.
const LONGER: u32 = 5;
/// The same of each trial: advise ends it when it has taken 4 times as long as with all memory.
const TRIAL_LONGER: u32 = 4;
/// A row whose memory is so near to what was asked is of that.
const NEAR: f64 = 0.005;
/// From this chance on nothing is run: the program is taken not to fit.
const CHANCE_OF_NO_USE: f64 = 0.5;

/// What is used of what `ramfold advise --json` prints.
#[derive(Debug, Deserialize)]
pub(super) struct Advice {
    pub(super) need_bytes: u64,
    codecs: BTreeMap<String, Codec>,
    rows: Vec<Predicted>,
    pub(super) run: Value,
    /// What run times are multiples of.
    pub(super) all_memory: Value,
    pub(super) costs: Value,
    /// What advise has tried.
    #[serde(default)]
    pub(super) trials: Vec<Tried>,
    pub(super) not_seen: Vec<String>,
}

/// A run of the program under a cap, by which advise corrects what it predicts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Tried {
    memory_bytes: u64,
    pub(super) of_need: f64,
    pub(super) run_time: f64,
    pub(super) at_least: bool,
    pool_bytes: u64,
    faults: u64,
    pub(super) failed: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Codec {
    charged_bytes: f64,
}

/// A row of the advice.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Predicted {
    pub(super) memory_bytes: u64,
    pub(super) pool_bytes: f64,
    pub(super) pool_bytes_low: f64,
    pub(super) pool_bytes_high: f64,
    pub(super) slowdown: Option<f64>,
    pub(super) slowdown_low: Option<f64>,
    pub(super) slowdown_high: Option<f64>,
    pub(super) faults_per_second: Option<f64>,
    pub(super) cannot_hold_probability: Option<f64>,
    pub(super) zram_slowdown: Option<f64>,
}

impl Advice {
    /// What is predicted for this part of the need; `None` where that is taken not to fit.
    pub(super) fn at(&self, share: f64) -> Option<&Predicted> {
        let asked = share * self.need_bytes as f64;
        let off = |row: &&Predicted| (row.memory_bytes as f64 - asked).abs();
        let row = self.rows.iter().min_by(|one, other| off(one).total_cmp(&off(other)))?;
        let fits = row.cannot_hold_probability.is_none_or(|chance| chance < CHANCE_OF_NO_USE);
        (fits && off(&row) <= NEAR * self.need_bytes as f64).then_some(row)
    }

    /// The predicted run time with zram and this memory, on the line between two rows.
    pub(super) fn zram_slowdown(&self, memory_bytes: f64) -> Option<f64> {
        let known = |row: &Predicted| Some((row.memory_bytes as f64, row.zram_slowdown?));
        let rows = self.rows.iter().filter_map(known);
        let (below, above): (Vec<_>, Vec<_>) = rows.partition(|row| row.0 <= memory_bytes);
        let below = below.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let above = above.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
        match (below, above) {
            (Some((from, low)), Some((to, high))) => {
                Some(low + (high - low) * (memory_bytes - from) / (to - from))
            }
            // All of the need and more.
            (Some((_, slowdown)), None) => Some(slowdown),
            _ => None,
        }
    }

    /// Bytes of an object of zram's as a part of a page, in the mean.
    pub(super) fn zram_share(&self) -> f64 {
        let usual = 0.35;
        self.codecs.get(ZRAM_CODEC).map_or(usual, |codec| codec.charged_bytes / PAGE_SIZE as f64)
    }
}

/// Runs the program once under `ramfold advise`, and asks for the bench's parts of its need. The
/// machine's costs are measured again for each program, because other work changes them.
///
/// # Errors
/// When there is no advice, with what was said of it.
pub(super) fn predict(bench: &Bench<'_>, name: &str, program: &Program) -> Result<Advice> {
    let host = bench.host;
    let record = bench.records.unwrap_or(&host.scratch).join(format!("{name}.record"));
    observe(bench, program, &record)?;
    let mut command = Command::new(&bench.ramfold);
    command.args(["advise", "--json", "--recalibrate", "--replay"]).arg(&record);
    for share in bench.shares {
        command.arg("--memory").arg(format!("{}%", share * 100.0));
    }
    let (name, folder) = own_cache(host);
    let output = command.env(name, folder).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", bench.ramfold.display()))?;
    if !output.status.success() {
        bail!("no advice: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("ramfold advise told something odd")
}

/// Measured costs are kept apart from those of the user.
fn own_cache(host: &Host) -> (&'static str, OsString) {
    (OWN_CACHE, host.scratch.join("cache").into())
}

fn observe(bench: &Bench<'_>, program: &Program, record: &Path) -> Result<()> {
    let host = bench.host;
    let mut command: Vec<OsString> =
        vec![bench.ramfold.clone().into(), "advise".into(), "--json".into()];
    command.extend(["--record".into(), record.into()]);
    if bench.trials > 0 {
        // The sizes of the bench are not named: advise is to find its own.
        command.extend(["--trials".into(), bench.trials.to_string().into()]);
        command.extend(["--at-most".into(), bench.at_most.to_string().into()]);
    }
    command.push("--".into());
    command.extend(program.command.iter().cloned());
    let mut environment = program.environment.clone();
    environment.push(own_cache(host));
    let cgroup = host.cgroup()?;
    if let Some(cgroup) = &cgroup {
        cgroup.configure(None, Swapping::Forbidden)?;
    }
    let launch = Launch {
        program: &Program { command, environment },
        cgroup: cgroup.as_ref(),
        pool: None,
        pool_bytes_max: None,
        idle: None,
        time_limit: bench.time_limit * (LONGER + TRIAL_LONGER * u32::from(bench.trials)),
    };
    let outcome = measure(host, &launch)?;
    ensure!(!outcome.timed_out, "ramfold advise took more time than it is given");
    let said = own_words(&outcome.errors);
    ensure!(outcome.status.success(), "ramfold advise failed: {}: {said}", outcome.status);
    ensure!(record.exists(), "ramfold advise kept no record: {said}");
    cgroup.map_or(Ok(()), |cgroup| cgroup.finish())
}

/// What ramfold said on standard error, without what the program printed, which goes there too.
fn own_words(errors: &str) -> String {
    let own = errors.lines().filter(|line| line.starts_with("ramfold"));
    own.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice() -> Advice {
        let row = |memory: u64, slowdown: f64, chance: f64| {
            format!(
                r#"{{"memory_bytes": {memory}, "pool_bytes": 5, "pool_bytes_low": 4,
                "pool_bytes_high": 6, "slowdown": {slowdown}, "slowdown_low": 1, "later": null,
                "slowdown_high": 3, "faults_per_second": 9, "cannot_hold_probability": {chance},
                "zram_slowdown": {slowdown}}}"#
            )
        };
        let rows = [row(1000, 1.0, 0.0), row(900, 1.5, 0.1), row(800, 2.5, 0.9)].join(",");
        serde_json::from_str(&format!(
            r#"{{"need_bytes": 1000, "codecs": {{"lzo": {{"charged_bytes": 1024, "ratio": 4}}}},
            "rows": [{rows}], "run": null, "all_memory": null, "costs": {{}}, "not_seen": ["a", "b"]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn rows_are_found_where_the_program_fits() {
        let advice = advice();
        assert_eq!(advice.at(0.9).unwrap().slowdown, Some(1.5));
        // Too likely not to fit, and no such row.
        assert!(advice.trials.is_empty());
        assert!(advice.at(0.8).is_none() && advice.at(0.7).is_none());
        assert_eq!(advice.zram_share(), 0.25);
    }

    #[test]
    fn what_the_program_prints_is_no_reason() {
        let said = own_words("\u{1}binary\nramfold: too little was seen\n12|34\n");
        assert_eq!(said, "ramfold: too little was seen");
    }

    #[test]
    fn zram_is_predicted_between_rows() {
        let advice = advice();
        let at = |memory| advice.zram_slowdown(memory);
        assert_eq!((at(950.0), at(800.0), at(2000.0)), (Some(1.25), Some(2.5), Some(1.0)));
        assert_eq!(at(799.0), None);
    }
}

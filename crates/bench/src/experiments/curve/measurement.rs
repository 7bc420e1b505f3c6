//! One run of the program, and both of its traces.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ramfold_codec::PAGE_SIZE;
use serde::{Deserialize, Serialize};

use super::TracedOptions;
use super::pattern::Pattern;
use crate::commands::Command as _;
use crate::harness::statistics::median;
use crate::machine::host::Host;

/// Sizes of memory, in tenths of the pages.
const TENTHS: u64 = 10;
/// Accesses to a page that follow each other within so long are one: as `ramfold simulate` has it.
const GAP_US: u32 = 1000;
/// Of sizes with fewer misses than this part of the accesses no ratio is given.
const FEW: f64 = 0.01;

/// What is run.
pub(super) struct Bench<'a> {
    pub(super) host: &'a Host,
    pub(super) ramfold: PathBuf,
    pub(super) size_bytes: u64,
    pub(super) seconds: f64,
    pub(super) pause_us: f64,
}

/// A size of memory in a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Size {
    pub(super) memory_bytes: u64,
    /// Misses of LRU, first accesses included, as a part of all accesses.
    pub(super) exact: f64,
    /// The same from the trace of watched pages, as a part of the same accesses.
    pub(super) live: f64,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) accesses: f64,
    pub(super) sizes: Vec<Size>,
}

impl Run {
    /// In points: the mean over all sizes, and the worst.
    fn errors(&self) -> [f64; 2] {
        let errors = self.sizes.iter().map(|size| (size.live - size.exact).abs() * 100.0);
        let (sum, most) = errors.fold((0.0, 0.0f64), |(sum, most), one| (sum + one, most.max(one)));
        [sum / self.sizes.len().max(1) as f64, most]
    }
}

/// All runs of an order.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) pattern: String,
    pub(super) slowdown: String,
    /// Medians of the runs.
    pub(super) accesses: f64,
    pub(super) error: f64,
    /// The greatest of all runs.
    pub(super) error_max: f64,
    /// Of the size that is worst, in the median.
    pub(super) worst_size: f64,
    /// Misses found by misses that there were: the least and the greatest of all sizes and runs.
    pub(super) misses: Option<[f64; 2]>,
    pub(super) runs: Vec<Run>,
}

impl Row {
    pub(super) fn of(pattern: &str, slowdown: &str, runs: Vec<Run>) -> Row {
        let errors: Vec<[f64; 2]> = runs.iter().map(Run::errors).collect();
        let middle = |of: &dyn Fn(usize) -> f64| {
            let all: Vec<f64> = (0..runs.len()).map(of).collect();
            median(&all).unwrap_or_default()
        };
        let sizes = runs.iter().flat_map(|run| &run.sizes);
        let ratios = sizes.filter(|size| size.exact > FEW).map(|size| size.live / size.exact);
        let misses = ratios.fold(None, |bounds: Option<[f64; 2]>, ratio| {
            let [low, high] = bounds.unwrap_or([ratio; 2]);
            Some([low.min(ratio), high.max(ratio)])
        });
        Row {
            pattern: pattern.to_owned(),
            slowdown: slowdown.to_owned(),
            accesses: middle(&|nth| runs[nth].accesses),
            error: middle(&|nth| errors[nth][0]),
            error_max: errors.iter().map(|error| error[0]).fold(0.0, f64::max),
            worst_size: middle(&|nth| errors[nth][1]),
            misses,
            runs,
        }
    }
}

/// What is used of what `ramfold simulate --json` prints.
#[derive(Deserialize)]
struct Simulated {
    accesses: f64,
    rows: Vec<SimulatedRow>,
}

#[derive(Deserialize)]
struct SimulatedRow {
    memory_bytes: u64,
    policies: [Outcome; 1],
}

#[derive(Deserialize)]
struct Outcome {
    first_accesses: f64,
    faults: f64,
}

impl Bench<'_> {
    /// Runs the program while it is watched, and simulates what was seen and what there was.
    pub(super) fn measure(&self, pattern: Pattern, slowdown: &str, seed: u64) -> Result<Run> {
        let file = |name: &str| self.host.scratch.join(name);
        let (written, all, live) = (file("curve.accesses"), file("curve.csv"), file("curve.trace"));
        let mut program = Command::new(&self.ramfold);
        program.args(["run", "--slowdown", slowdown, "--trace"]).arg(&live).arg("--");
        program.arg(&self.host.own_program).args([TracedOptions::NAME, pattern.name()]);
        for (option, value) in [
            ("--size", self.size_bytes.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--pause", self.pause_us.to_string()),
            ("--seed", seed.to_string()),
        ] {
            program.args([option, &value]);
        }
        done(program.arg(&written), "the program")?;
        let accesses =
            fs::read(&written).with_context(|| format!("cannot read {}", written.display()))?;
        fs::write(&all, csv(&accesses))
            .with_context(|| format!("cannot write {}", all.display()))?;
        let (exact, live) = (self.simulate(&all)?, self.simulate(&live)?);
        let misses = |row: &SimulatedRow| {
            let [outcome] = &row.policies;
            (outcome.first_accesses + outcome.faults) / exact.accesses
        };
        let rows = exact.rows.iter().zip(&live.rows);
        let sizes = rows.map(|(exact, live)| Size {
            memory_bytes: exact.memory_bytes,
            exact: misses(exact),
            live: misses(live),
        });
        Ok(Run { accesses: exact.accesses, sizes: sizes.collect() })
    }

    fn simulate(&self, trace: &Path) -> Result<Simulated> {
        let mut command = Command::new(&self.ramfold);
        command.args(["simulate", "--json", "--policy", "lru"]);
        for tenth in 1..=TENTHS {
            let bytes = self.size_bytes / PAGE_SIZE as u64 * tenth / TENTHS * PAGE_SIZE as u64;
            command.args(["--memory", &bytes.to_string()]);
        }
        let printed = done(command.arg(trace), "ramfold simulate")?;
        serde_json::from_slice(&printed).context("ramfold simulate told something odd")
    }
}

/// What a command has printed.
fn done(command: &mut Command, name: &str) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}: {}", output.status, said.trim());
    Ok(output.stdout)
}

/// The accesses as `ramfold simulate` reads them.
fn csv(accesses: &[u8]) -> String {
    let mut text = "time,page\n".to_owned();
    let mut last_us: HashMap<u32, u32> = HashMap::new();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
    for access in accesses.chunks_exact(8) {
        let (at_us, page) = (number(&access[..4]), number(&access[4..]));
        let is_new = last_us.get(&page).is_none_or(|last_us| at_us - last_us >= GAP_US);
        if is_new {
            last_us.insert(page, at_us);
            // A string takes all that is written to it.
            let _ = writeln!(text, "{at_us},{page}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_within_a_millisecond_are_one() {
        let accesses: Vec<u8> = [(0u32, 7u32), (999, 7), (999, 300), (1000, 7), (1500, 7)]
            .iter()
            .flat_map(|(at_us, page)| [at_us.to_le_bytes(), page.to_le_bytes()].concat())
            .collect();
        assert_eq!(csv(&accesses), "time,page\n0,7\n999,300\n1000,7\n");
    }

    #[test]
    fn errors_are_in_points() {
        let size = |exact, live| Size { memory_bytes: 1, exact, live };
        let run = |live| Run { accesses: 100.0, sizes: vec![size(0.5, live), size(0.005, 0.025)] };
        let row = Row::of("loop", "1%", vec![run(0.46), run(0.52), run(0.6)]);
        assert_eq!((row.error * 10.0).round(), 30.0);
        assert_eq!((row.error_max * 10.0).round(), 60.0);
        assert_eq!((row.worst_size * 10.0).round(), 40.0);
        let [low, high] = row.misses.unwrap();
        assert_eq!([(low * 100.0).round(), (high * 100.0).round()], [92.0, 120.0]);
    }
}

//! `ramfold run --prediction FILE`: what was predicted, beside what happened.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use ramfold_advise::advice::{Advice, Question};
use ramfold_advise::history::{self, Actual, Entry, Predicted};
use ramfold_advise::observation::{Subject, file};
use ramfold_advise::trial::PASSED_MAX;
use ramfold_launch::{Ended, Run, userfaultfd_problem};
use rustix::process::Signal;

use crate::commands::advise;
use crate::say::say;
use crate::table::{self, align_figures};

const MIB: f64 = (1 << 20) as f64;

/// What was predicted of a program.
pub(crate) struct Prediction {
    advice: Advice,
}

impl Prediction {
    /// From a record of `ramfold advise`, or from what it printed with `--json`.
    ///
    /// # Errors
    /// When the file is neither, or is of another codec.
    pub(crate) fn load(path: &Path, codec: &str) -> anyhow::Result<Prediction> {
        let named = || format!("--prediction {}", path.display());
        let codec = advise::canonical(codec)?;
        let advice = match printed(path).with_context(named)? {
            Some(advice) => advice,
            None => {
                let observation = file::load(path).with_context(named)?;
                let costs = advise::usual_costs()?;
                let question = Question { codec: codec.clone(), ..Question::default() };
                advise::advise(&observation, &costs, &question).with_context(named)?
            }
        };
        if advice.codec != codec {
            bail!("{} is for --codec {}, and this runs with {codec}", named(), advice.codec);
        }
        if advice.rows.is_empty() {
            bail!("{} predicts nothing: it has no row", named());
        }
        if !advice.rows.is_sorted_by(|row, next| row.memory_bytes > next.memory_bytes) {
            bail!("{} is damaged: its rows do not go from much memory to little", named());
        }
        Ok(Prediction { advice })
    }

    /// Says how right it was, and adds that to the history.
    pub(crate) fn compare(&self, run: &Run, ended: Ended, took: Duration, program: &[OsString]) {
        if userfaultfd_problem().is_some() {
            say(format_args!("the program ran without ramfold: nothing to compare"));
            return;
        }
        let words = program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let entry = self.entry(run, ended, took, words);
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr(), "{}", table(&entry));
        if let Subject::Program(of) = &self.advice.subject
            && *of != entry.program
        {
            say(format_args!("the prediction is of another command line"));
        }
        let Some(file) = history::usual_file() else {
            say(format_args!("no history: neither XDG_STATE_HOME nor HOME names a folder"));
            return;
        };
        if let Err(error) = history::append(&file, &entry) {
            say(format_args!("cannot add to the history {}: {error}", file.display()));
        }
    }

    fn entry(&self, run: &Run, ended: Ended, took: Duration, program: Vec<String>) -> Entry {
        let statistics = run.statistics();
        let number = |name| statistics.number(name).unwrap_or_default();
        let memory_bytes = number("memory_cap_bytes");
        let wall_s = took.as_secs_f64();
        let faults = number("faults").saturating_sub(number("faults_zero_filled"));
        let passed = number("over_cap_bytes_max") as f64;
        let is_killed = ended == Ended::Signaled(Signal::KILL.as_raw());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Entry {
            at_s: since.map_or(0, |since| since.as_secs()),
            program,
            memory_bytes,
            need_bytes: self.advice.need_bytes,
            at_most: self.advice.at_most,
            free_wall_s: self.advice.free_wall_s(),
            predicted: Predicted::at(&self.advice, memory_bytes),
            actual: Actual {
                wall_s,
                pool_bytes: number("pool_bytes_max") as f64,
                faults_per_second: faults as f64 / wall_s.max(1e-9),
                held: !is_killed && passed <= memory_bytes as f64 * PASSED_MAX,
            },
        }
    }
}

/// What `--json` has printed; `None` where the file is no JSON.
fn printed(path: &Path) -> anyhow::Result<Option<Advice>> {
    let bytes = fs::read(path)?;
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Ok(None);
    }
    let advice = serde_json::from_slice(&bytes)
        .context("it is neither a record nor what `ramfold advise --json` prints")?;
    Ok(Some(advice))
}

fn table(entry: &Entry) -> String {
    let Entry { predicted, actual, .. } = entry;
    let title = format!("with {:.0} MiB", entry.memory_bytes as f64 / MIB);
    let mut table = table::table([&title, "predicted", "(90 %)", "actual", "error"]);
    let interval = |factor: f64| match (predicted.slowdown_low, predicted.slowdown_high) {
        (Some(low), Some(high)) => format!("{:.2}-{:.2}", low * factor, high * factor),
        _ => String::new(),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let error = |error: Option<f64>| or_dash(error.map(|part| format!("{:+.1} %", part * 100.0)));
    table.add_row([
        "run time, s".to_owned(),
        or_dash(predicted.wall_s.map(|seconds| format!("{seconds:.2}"))),
        entry.free_wall_s.map_or_else(String::new, interval),
        format!("{:.2}", actual.wall_s),
        error(entry.time_error()),
    ]);
    if let Some(slowdown) = entry.slowdown() {
        table.add_row([
            "of that with all memory".to_owned(),
            or_dash(predicted.slowdown.map(|times| format!("{times:.2}"))),
            interval(1.0),
            format!("{slowdown:.2}"),
            String::new(),
        ]);
    }
    table.add_row([
        "greatest pool, MiB".to_owned(),
        format!("{:.1}", predicted.pool_bytes / MIB),
        String::new(),
        format!("{:.1}", actual.pool_bytes / MIB),
        error(entry.pool_error()),
    ]);
    table.add_row([
        "faults/s".to_owned(),
        or_dash(predicted.faults_per_second.map(|faults| format!("{faults:.0}"))),
        String::new(),
        format!("{:.0}", actual.faults_per_second),
        String::new(),
    ]);
    table.add_row([
        "held".to_owned(),
        format!("{:.1} %", (1.0 - predicted.cannot_hold_probability) * 100.0),
        String::new(),
        if actual.held { "yes" } else { "no" }.to_owned(),
        String::new(),
    ]);
    align_figures(&mut table, 1);
    format!("ramfold: predicted and actual\n{table}")
}

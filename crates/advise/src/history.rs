//! What was predicted, what happened, and how far off the predictions were.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::advice::{Advice, CANNOT_HOLD_MAX, Row};
use crate::machine::Spread;

/// Up to this multiple of the run with all memory, errors are counted by themselves.
const SLOW: f64 = 2.0;

/// What advice says of a cap, between rows by the straight line from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Run time. Seconds.
    pub wall_s: Option<f64>,
    /// As a multiple of that with all memory.
    pub slowdown: Option<f64>,
    /// Low bound of its 90 % interval.
    pub slowdown_low: Option<f64>,
    /// High bound.
    pub slowdown_high: Option<f64>,
    /// The greatest size of the pool.
    pub pool_bytes: f64,
    /// Faults on pages that had left, in a second of the run.
    pub faults_per_second: Option<f64>,
    /// Chance that the cap cannot be held.
    pub cannot_hold_probability: f64,
}

/// What happened under a cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actual {
    /// Run time. Seconds.
    pub wall_s: f64,
    /// The greatest size of the pool.
    pub pool_bytes: f64,
    /// Faults on pages that had left, in a second of the run.
    pub faults_per_second: f64,
    /// Whether the cap was held.
    pub held: bool,
}

/// A prediction and what happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When the program ended: seconds since 1970.
    pub at_s: u64,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The cap.
    pub memory_bytes: u64,
    /// How much it was said to need.
    pub need_bytes: u64,
    /// How much longer it was to take at most.
    pub at_most: f64,
    /// Run time with all memory. Seconds.
    pub free_wall_s: Option<f64>,
    /// What was said.
    pub predicted: Predicted,
    /// What happened.
    pub actual: Actual,
}

impl Predicted {
    /// What advice says of a cap.
    pub fn at(advice: &Advice, memory_bytes: u64) -> Predicted {
        let rows = &advice.rows;
        // From all of the need downwards.
        let below = rows.partition_point(|row| row.memory_bytes > memory_bytes);
        let nearest = |nth: usize| rows.get(nth);
        let (above, below) = (below.checked_sub(1).and_then(nearest), nearest(below));
        let (above, below) = match (above, below) {
            (Some(above), Some(below)) => (above, below),
            (Some(only), None) | (None, Some(only)) => (only, only),
            (None, None) => return Predicted::nothing(),
        };
        let between = above.memory_bytes - below.memory_bytes;
        let part = match between {
            0 => 0.0,
            _ => (memory_bytes - below.memory_bytes) as f64 / between as f64,
        };
        let line = |one: f64, other: f64| one + part * (other - one);
        let of = |figure: fn(&Row) -> Option<f64>| Some(line(figure(below)?, figure(above)?));
        let slowdown = of(|row| row.slowdown);
        Predicted {
            wall_s: slowdown.zip(advice.free_wall_s()).map(|(times, seconds)| times * seconds),
            slowdown,
            slowdown_low: of(|row| row.slowdown_low),
            slowdown_high: of(|row| row.slowdown_high),
            pool_bytes: line(below.pool_bytes as f64, above.pool_bytes as f64),
            faults_per_second: of(|row| row.faults_per_second),
            cannot_hold_probability: line(
                below.cannot_hold_probability,
                above.cannot_hold_probability,
            ),
        }
    }

    fn nothing() -> Predicted {
        Predicted {
            wall_s: None,
            slowdown: None,
            slowdown_low: None,
            slowdown_high: None,
            pool_bytes: 0.0,
            faults_per_second: None,
            cannot_hold_probability: 0.0,
        }
    }

    /// Whether so much memory is enough: it holds the program, and that takes no longer than was
    /// asked for. `None` where no time is known.
    fn is_enough(&self, at_most: f64) -> Option<bool> {
        let is_held = self.cannot_hold_probability < CANNOT_HOLD_MAX;
        Some(is_held && self.slowdown? <= at_most)
    }
}

impl Entry {
    /// Run time as a multiple of that with all memory.
    pub fn slowdown(&self) -> Option<f64> {
        self.free_wall_s.map(|free| self.actual.wall_s / free)
    }

    /// Of the run time, what the prediction is longer or shorter by.
    pub fn time_error(&self) -> Option<f64> {
        Some(self.predicted.wall_s? / self.actual.wall_s - 1.0)
    }

    /// The same of the pool; `None` where it had next to nothing.
    pub fn pool_error(&self) -> Option<f64> {
        let is_some = self.actual.pool_bytes >= (1 << 20) as f64;
        is_some.then(|| self.predicted.pool_bytes / self.actual.pool_bytes - 1.0)
    }

    /// Whether the run time is within the interval.
    pub fn is_covered(&self) -> Option<bool> {
        let (low, high) = (self.predicted.slowdown_low?, self.predicted.slowdown_high?);
        Some((low..=high).contains(&self.slowdown()?))
    }

    /// Whether it was said rightly that the memory is enough, or that it is not.
    pub fn is_right(&self) -> Option<bool> {
        let is_enough = self.actual.held && self.slowdown()? <= self.at_most;
        Some(self.predicted.is_enough(self.at_most)? == is_enough)
    }
}

/// How good predictions were.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Predictions in the history.
    pub predictions: usize,
    /// Lines of the history that cannot be read.
    pub unreadable_lines: usize,
    /// Of runs that took less than twice their time with all memory.
    pub time_below_2: Error,
    /// Of the others.
    pub time_beyond_2: Error,
    /// Of the pool's size.
    pub pool: Error,
    /// Whether the memory is enough.
    pub decisions: Share,
    /// Run times within the 90 % interval.
    pub intervals: Share,
    /// Whether the cap was held.
    pub held: Share,
}

/// Errors of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Error {
    /// So many.
    pub count: usize,
    /// Half of them are smaller, whatever their sign. A part of the actual figure.
    pub median: Option<f64>,
    /// The greatest.
    pub worst: Option<f64>,
}

/// How many were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// Of so many.
    pub count: usize,
    /// The part that was.
    pub right: Option<f64>,
}

impl Error {
    fn of(errors: impl Iterator<Item = f64>) -> Error {
        let errors: Vec<f64> = errors.map(f64::abs).collect();
        let count = errors.len();
        let spread = (count > 0).then(|| Spread::of(errors));
        let (median, worst) = (spread.map(|of| of.median), spread.map(|of| of.high));
        Error { count, median, worst }
    }
}

impl Share {
    fn of(answers: impl Iterator<Item = bool>) -> Share {
        let (mut count, mut right) = (0, 0);
        for is_right in answers {
            count += 1;
            right += usize::from(is_right);
        }
        Share { count, right: (count > 0).then(|| right as f64 / count as f64) }
    }
}

impl Score {
    /// Of these.
    pub fn of(entries: &[Entry], unreadable_lines: usize) -> Score {
        let time = |is_slow: bool| {
            let of_kind = entries.iter().filter(move |entry| {
                entry.slowdown().is_some_and(|times| (times >= SLOW) == is_slow)
            });
            Error::of(of_kind.filter_map(Entry::time_error))
        };
        let is_held =
            |entry: &Entry| (entry.predicted.cannot_hold_probability < 0.5) == entry.actual.held;
        Score {
            predictions: entries.len(),
            unreadable_lines,
            time_below_2: time(false),
            time_beyond_2: time(true),
            pool: Error::of(entries.iter().filter_map(Entry::pool_error)),
            decisions: Share::of(entries.iter().filter_map(Entry::is_right)),
            intervals: Share::of(entries.iter().filter_map(Entry::is_covered)),
            held: Share::of(entries.iter().map(is_held)),
        }
    }
}

/// The file with the history: `$XDG_STATE_HOME/ramfold/predictions.jsonl`. `None` where no folder
/// is known.
pub fn usual_file() -> Option<PathBuf> {
    let folder = crate::machine::folder_of("XDG_STATE_HOME", ".local/state")?;
    Some(folder.join("predictions.jsonl"))
}

/// Adds a line to the history, which is for its owner alone.
///
/// # Errors
/// When it cannot be written.
pub fn append(file: &Path, entry: &Entry) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    let mut history = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // In one piece, as others may add theirs now.
    history.write_all(line.as_bytes())
}

/// The history, and how many of its lines cannot be read. There may be none yet.
///
/// # Errors
/// When there is one and it cannot be read.
pub fn load(file: &Path) -> io::Result<(Vec<Entry>, usize)> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let read: Vec<Option<Entry>> = lines.map(|line| serde_json::from_slice(line).ok()).collect();
    let unreadable = read.iter().filter(|entry| entry.is_none()).count();
    Ok((read.into_iter().flatten().collect(), unreadable))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn entry(predicted: f64, actual: f64) -> Entry {
        Entry {
            at_s: 1,
            program: vec!["a\nb".to_owned()],
            memory_bytes: 100 << 20,
            need_bytes: 200 << 20,
            at_most: 1.25,
            free_wall_s: Some(10.0),
            predicted: Predicted {
                wall_s: Some(10.0 * predicted),
                slowdown: Some(predicted),
                slowdown_low: Some(predicted * 0.9),
                slowdown_high: Some(predicted * 1.1),
                pool_bytes: 50e6,
                faults_per_second: Some(1000.0),
                cannot_hold_probability: 0.0,
            },
            actual: Actual {
                wall_s: 10.0 * actual,
                pool_bytes: 40e6,
                faults_per_second: 900.0,
                held: true,
            },
        }
    }

    #[test]
    fn errors_are_those_of_their_kind() {
        let mut unheld = entry(1.1, 1.1);
        unheld.actual.held = false;
        let entries = [entry(1.1, 1.0), entry(1.2, 1.25), entry(1.2, 1.5), entry(4.0, 5.0), unheld];
        let score = Score::of(&entries, 2);
        assert_eq!((score.predictions, score.unreadable_lines), (5, 2));
        let [below, beyond] = [score.time_below_2, score.time_beyond_2];
        assert_eq!((below.count, beyond.count), (4, 1));
        // 10 %, -4 %, -20 %, 0.
        assert!((below.median.unwrap() - 0.07).abs() < 1e-9, "{below:?}");
        assert!((below.worst.unwrap() - 0.2).abs() < 1e-9);
        assert!((beyond.median.unwrap() - 0.2).abs() < 1e-9);
        assert!((score.pool.median.unwrap() - 0.25).abs() < 1e-9);
        // The third took longer than was allowed, the last was not held.
        assert_eq!((score.decisions.count, score.decisions.right), (5, Some(0.6)));
        assert_eq!((score.intervals.count, score.intervals.right), (5, Some(0.6)));
        assert_eq!(score.held.right, Some(0.8));
        let nothing = Score::of(&[], 0);
        assert_eq!((nothing.decisions.right, nothing.pool.median), (None, None));
    }

    #[test]
    fn the_history_grows_by_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state/ramfold/predictions.jsonl");
        assert_eq!(load(&file).unwrap(), (Vec::new(), 0));
        append(&file, &entry(1.0, 1.0)).unwrap();
        append(&file, &entry(2.0, 1.0)).unwrap();
        assert_eq!(load(&file).unwrap(), (vec![entry(1.0, 1.0), entry(2.0, 1.0)], 0));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut bytes = fs::read(&file).unwrap();
        bytes.truncate(bytes.len() - 9);
        fs::write(&file, bytes).unwrap();
        let (entries, unreadable) = load(&file).unwrap();
        assert_eq!((entries.len(), unreadable), (1, 1));
        assert!(load(folder.path()).is_err());
    }
}

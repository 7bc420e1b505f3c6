//! How right the predictions were.

use serde::Serialize;

use super::ZRAM;
use super::measurement::{Cell, Ending, Measured, Sample};
use super::prediction::Advice;
use crate::harness::statistics::median;

/// Where the classes of slowdown meet.
pub(super) const CLASS_BOUND: f64 = 2.0;
/// A pool below this is not scored.
const POOL_LEAST_BYTES: f64 = (1u64 << 20) as f64;
/// The error of a pool that is asked for.
const POOL_ERROR_ASKED: f64 = 0.05;

/// A program under ramfold with one size of memory.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) program: String,
    pub(super) need_bytes: u64,
    /// The memory as a part of the need.
    pub(super) share: f64,
    pub(super) memory_bytes: u64,
    pub(super) reference_s: f64,
    pub(super) seconds: Option<f64>,
    /// Run time as a multiple of that with all memory.
    pub(super) predicted: Option<f64>,
    pub(super) predicted_low: Option<f64>,
    pub(super) predicted_high: Option<f64>,
    pub(super) actual: Option<f64>,
    /// Predicted over actual less 1.
    pub(super) error: Option<f64>,
    pub(super) is_in_interval: Option<bool>,
    pub(super) predicted_pool_bytes: f64,
    pub(super) actual_pool_bytes: Option<f64>,
    pub(super) pool_error: Option<f64>,
    pub(super) is_pool_in_interval: Option<bool>,
    pub(super) predicted_faults: Option<f64>,
    pub(super) actual_faults: Option<f64>,
    /// Does compression pay here?
    pub(super) pays_predicted: bool,
    pub(super) pays_actual: bool,
    pub(super) ending: Option<Ending>,
    pub(super) is_output_right: bool,
    pub(super) samples: Vec<Sample>,
}

/// A program with zram.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ZramRow {
    pub(super) program: String,
    pub(super) peer: String,
    pub(super) share: f64,
    pub(super) limit_bytes: u64,
    /// Limit and pool together.
    pub(super) total_bytes: f64,
    pub(super) predicted: Option<f64>,
    pub(super) actual: Option<f64>,
    pub(super) error: Option<f64>,
    pub(super) ending: Ending,
}

fn relative(predicted: Option<f64>, actual: Option<f64>) -> Option<f64> {
    Some(predicted? / actual.filter(|actual| *actual > 0.0)? - 1.0)
}

fn is_within(actual: Option<f64>, low: Option<f64>, high: Option<f64>) -> Option<bool> {
    Some((low?..=high?).contains(&actual?))
}

/// The rows of what was measured.
pub(super) fn rows(
    program: &str,
    advice: &Advice,
    measured: &Measured<'_>,
    at_most: f64,
) -> (Vec<Row>, Vec<ZramRow>) {
    let is_zram = |cell: &&Cell<'_>| cell.peer.name() == ZRAM;
    let of_zram = measured.cells.iter().filter(is_zram);
    let of_zram = of_zram.map(|cell| zram_row(program, advice, cell));
    let others = measured.cells.iter().filter(|cell| !is_zram(cell));
    let reference_s = measured.reference_median_s();
    let rows = others.map(|cell| Row { reference_s, ..row(program, advice, cell, at_most) });
    (rows.collect(), of_zram.collect())
}

fn row(program: &str, advice: &Advice, cell: &Cell<'_>, at_most: f64) -> Row {
    let predicted = cell.predicted;
    let is_held = cell.ending == Ending::Held;
    // What was not held took other time than what is predicted of it.
    let held = |of: fn(&Sample) -> f64| cell.middle(of).filter(|_| is_held);
    let actual = held(|sample| sample.slowdown);
    let pool = held(|sample| sample.pool_bytes as f64);
    let scored_pool = pool.filter(|bytes| *bytes >= POOL_LEAST_BYTES);
    let slowdown = predicted.slowdown;
    let seconds = held(|sample| sample.seconds);
    let predicted_s = slowdown.zip(advice.all_memory["wall_s"].as_f64());
    Row {
        program: program.to_owned(),
        need_bytes: advice.need_bytes,
        share: cell.share,
        memory_bytes: predicted.memory_bytes,
        reference_s: 0.0,
        seconds,
        predicted: slowdown,
        predicted_low: predicted.slowdown_low,
        predicted_high: predicted.slowdown_high,
        actual,
        error: relative(slowdown, actual),
        is_in_interval: is_within(actual, predicted.slowdown_low, predicted.slowdown_high),
        predicted_pool_bytes: predicted.pool_bytes,
        actual_pool_bytes: pool,
        pool_error: relative(Some(predicted.pool_bytes), scored_pool),
        is_pool_in_interval: is_within(
            scored_pool,
            Some(predicted.pool_bytes_low),
            Some(predicted.pool_bytes_high),
        ),
        predicted_faults: predicted
            .faults_per_second
            .zip(predicted_s)
            .map(|(each_second, (slowdown, wall_s))| each_second * slowdown * wall_s),
        actual_faults: held(|sample| sample.faults.unwrap_or(0) as f64),
        pays_predicted: slowdown.is_some_and(|slowdown| slowdown <= at_most),
        pays_actual: actual.is_some_and(|actual| actual <= at_most),
        ending: Some(cell.ending.clone()),
        is_output_right: cell.is_output_right,
        samples: cell.samples.clone(),
    }
}

fn zram_row(program: &str, advice: &Advice, cell: &Cell<'_>) -> ZramRow {
    let is_held = cell.ending == Ending::Held;
    let actual = cell.middle(|sample| sample.slowdown).filter(|_| is_held);
    let total_bytes = cell.middle(|sample| sample.total_bytes as f64);
    let predicted = total_bytes.and_then(|bytes| advice.zram_slowdown(bytes));
    ZramRow {
        program: program.to_owned(),
        peer: cell.peer.name().to_owned(),
        share: cell.share,
        limit_bytes: cell.limit_bytes,
        total_bytes: total_bytes.unwrap_or(0.0),
        predicted,
        actual,
        error: relative(predicted, actual),
        ending: cell.ending.clone(),
    }
}

/// Errors of a class, as parts of what happened and without their signs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Errors {
    pub(super) count: usize,
    pub(super) median: Option<f64>,
    pub(super) worst: Option<f64>,
}

impl Errors {
    fn of(errors: impl Iterator<Item = f64>) -> Errors {
        let errors: Vec<f64> = errors.map(f64::abs).collect();
        Errors {
            count: errors.len(),
            median: median(&errors),
            worst: errors.iter().copied().reduce(f64::max),
        }
    }
}

/// How many of some were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Share {
    pub(super) count: usize,
    pub(super) right: usize,
}

impl Share {
    fn of(answers: impl Iterator<Item = bool>) -> Share {
        answers.fold(Share::default(), |share, is_right| Share {
            count: share.count + 1,
            right: share.right + usize::from(is_right),
        })
    }

    pub(super) fn percent(self) -> Option<f64> {
        (self.count > 0).then(|| 100.0 * self.right as f64 / self.count as f64)
    }
}

/// All rows in some figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) time_below_2: Errors,
    pub(super) time_beyond_2: Errors,
    pub(super) pool: Errors,
    /// Pools that are within 5 % of what was predicted.
    pub(super) pool_within_5_percent: Share,
    pub(super) decisions: Share,
    pub(super) intervals: Share,
    pub(super) pool_intervals: Share,
    pub(super) held: Share,
    pub(super) zram_below_2: Errors,
    pub(super) zram_beyond_2: Errors,
}

impl Summary {
    pub(super) fn of(rows: &[Row], zram: &[ZramRow]) -> Summary {
        let class = |is_below: bool| {
            move |(error, actual): (Option<f64>, Option<f64>)| {
                error.filter(|_| actual.is_some_and(|a| (a < CLASS_BOUND) == is_below))
            }
        };
        let times = |is_below| {
            Errors::of(rows.iter().map(|row| (row.error, row.actual)).filter_map(class(is_below)))
        };
        let zrams = |is_below| {
            Errors::of(zram.iter().map(|row| (row.error, row.actual)).filter_map(class(is_below)))
        };
        let pools = || rows.iter().filter_map(|row| row.pool_error);
        Summary {
            time_below_2: times(true),
            time_beyond_2: times(false),
            pool: Errors::of(pools()),
            pool_within_5_percent: Share::of(pools().map(|error| error.abs() <= POOL_ERROR_ASKED)),
            decisions: Share::of(rows.iter().map(|row| row.pays_predicted == row.pays_actual)),
            intervals: Share::of(rows.iter().filter_map(|row| row.is_in_interval)),
            pool_intervals: Share::of(rows.iter().filter_map(|row| row.is_pool_in_interval)),
            held: Share::of(
                rows.iter()
                    .map(|row| !matches!(row.ending, Some(Ending::OverMemory | Ending::Killed))),
            ),
            zram_below_2: zrams(true),
            zram_beyond_2: zrams(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_up_by_class() {
        let row = |predicted: f64, actual: f64, pool_error: f64| Row {
            predicted: Some(predicted),
            actual: Some(actual),
            error: relative(Some(predicted), Some(actual)),
            is_in_interval: is_within(Some(actual), Some(predicted - 0.2), Some(predicted + 0.2)),
            pool_error: Some(pool_error),
            pays_predicted: predicted <= 1.25,
            pays_actual: actual <= 1.25,
            ending: Some(Ending::Held),
            ..Row::default()
        };
        let killed = Row { pays_predicted: true, ending: Some(Ending::Killed), ..Row::default() };
        let rows = [row(1.1, 1.0, 0.01), row(1.2, 1.5, -0.2), row(3.0, 2.0, 0.04), killed];
        let summary = Summary::of(&rows, &[]);
        assert_eq!(summary.time_below_2.count, 2);
        assert!((summary.time_below_2.median.unwrap() - 0.15).abs() < 1e-9);
        assert!((summary.time_beyond_2.worst.unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(summary.intervals, Share { count: 3, right: 1 });
        assert_eq!(summary.decisions, Share { count: 4, right: 2 });
        assert_eq!(summary.pool_within_5_percent, Share { count: 3, right: 2 });
        assert_eq!((summary.held.right, summary.held.percent()), (3, Some(75.0)));
        assert_eq!(summary.zram_below_2, Errors::default());
    }
}

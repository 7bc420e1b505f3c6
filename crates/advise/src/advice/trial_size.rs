//! At which size of memory a trial says most.

use std::ops::RangeInclusive;

use super::{Row, Tried};

/// Parts of the need among which the memory is sought with which a program takes as long as it may.
const USUAL: RangeInclusive<f64> = 0.495..=0.905;
/// The same where that is known.
const ELSEWHERE: RangeInclusive<f64> = 0.395..=0.905;
/// From one trial to the next, as a part of the need: ten percent, but for rounded sizes.
const APART: f64 = 0.095;
/// What is held with a smaller chance is not tried.
const CANNOT_HOLD_MAX: f64 = 0.5;
/// The least limit of a trial, as a multiple of the run time with all memory.
const LIMIT: f64 = 4.0;
/// The limit as a multiple of `at_most`, where that is more.
const LIMIT_OF_AT_MOST: f64 = 1.5;
/// The greatest limit, as a multiple of the run time with all memory.
const LIMIT_MAX: f64 = 20.0;

/// The run time at which a trial is ended, as a multiple of that with all memory.
pub fn trial_limit(at_most: f64) -> f64 {
    (LIMIT_OF_AT_MOST * at_most).clamp(LIMIT, LIMIT_MAX)
}

/// The memory to be tried next, by rows that are corrected by what was tried: the one with which
/// the program takes about as long as it may; where that is known, the one that is farthest from
/// all that were tried. `None` where no other trial would say more.
pub(super) fn next(rows: &[Row], tried: &[Tried], at_most: f64) -> Option<u64> {
    let failed = tried.iter().filter(|trial| trial.failed.is_some());
    let failed = failed.map(|trial| trial.of_need).fold(0.0, f64::max);
    let can_be = |row: &&Row| {
        row.saved_bytes > 0 && row.cannot_hold_probability < CANNOT_HOLD_MAX && row.of_need > failed
    };
    let is_near = |trial: &Tried, row: &Row| (trial.of_need - row.of_need).abs() < APART;
    let is_new = |row: &&Row| !tried.iter().any(|trial| is_near(trial, row));
    let off = |row: &Row| row.slowdown.map_or(f64::INFINITY, |times| (times - at_most).abs());
    // Of rows that are as near the one with the least memory: with more nothing is lost.
    let usual = || {
        let is_usual = |row: &&Row| USUAL.contains(&row.of_need) && row.slowdown.is_some();
        rows.iter().rev().filter(can_be).filter(is_usual)
    };
    let nearest = |one: &&Row, other: &&Row| off(one).total_cmp(&off(other));
    let is_known = usual()
        .min_by(nearest)
        .is_some_and(|row| tried.iter().any(|trial| trial.failed.is_none() && is_near(trial, row)));
    if !is_known && let Some(row) = usual().filter(is_new).min_by(nearest) {
        return Some(row.memory_bytes);
    }
    let limit = trial_limit(at_most);
    let distance = |row: &Row| {
        let from = |trial: &Tried| (trial.of_need / row.of_need).ln().abs();
        tried.iter().map(from).fold(f64::INFINITY, f64::min)
    };
    let farthest = |times: fn(&Row) -> Option<f64>| {
        rows.iter()
            .filter(can_be)
            .filter(is_new)
            .filter(|row| ELSEWHERE.contains(&row.of_need))
            .filter(|row| times(row).is_some_and(|times| times < limit))
            .max_by(|one, other| distance(one).total_cmp(&distance(other)))
    };
    // One that may be ended says something too.
    let row = farthest(|row| row.slowdown).or_else(|| farthest(|row| row.slowdown_low));
    row.map(|row| row.memory_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::trials::{self, Measured};
    use super::*;

    const NEED: u64 = 100 << 20;

    /// So much of the need, and the run time with it.
    fn row(percent: u64, slowdown: f64) -> Row {
        Row {
            memory_bytes: percent << 20,
            of_need: percent as f64 / 100.0,
            resident_bytes: 0,
            pool_bytes: 0,
            pool_bytes_low: 0,
            pool_bytes_high: 0,
            saved_bytes: (100 - percent) << 20,
            slowdown: Some(slowdown),
            slowdown_low: Some(1.0 + (slowdown - 1.0) * 0.4),
            slowdown_high: Some(slowdown * 2.0),
            processor: None,
            faults_per_second: None,
            cannot_hold_probability: 0.0,
            zram_slowdown: None,
            swap_slowdown: None,
            pays_against_disk: None,
        }
    }

    /// What is lost is in proportion to the memory that is lacking.
    fn rows(lost_by_half: f64) -> Vec<Row> {
        let slowdown = |percent: u64| 1.0 + lost_by_half * (100 - percent) as f64 / 50.0;
        (4..=20).rev().map(|nth| row(nth * 5, slowdown(nth * 5))).collect()
    }

    fn tried(percent: u64, run_time: f64) -> Tried {
        Tried {
            memory_bytes: percent << 20,
            of_need: percent as f64 / 100.0,
            run_time,
            at_least: false,
            pool_bytes: 0,
            faults: 0,
            others: None,
            failed: None,
        }
    }

    /// The next one, by rows that are corrected by these, in percent.
    fn after(rows: &[Row], tried: &[Tried]) -> Option<u64> {
        let mut rows = rows.to_vec();
        let measured = |trial: &Tried| Measured {
            memory_bytes: trial.memory_bytes,
            slowdown: trial.run_time,
            processor: None,
            faults: 0.0,
            pool_bytes: 0.0,
            at_least: false,
        };
        let counting = tried.iter().filter(|trial| trial.failed.is_none());
        trials::correct(&mut rows, NEED, &counting.map(measured).collect::<Vec<_>>());
        next(&rows, tried, 1.25).map(|bytes| bytes >> 20)
    }

    #[test]
    fn the_first_is_where_it_takes_as_long_as_it_may() {
        assert_eq!(after(&rows(0.5), &[]), Some(75));
        assert_eq!(after(&rows(1.25), &[]), Some(90));
        // Within bounds: with much more memory or much less there is less to be won.
        assert_eq!(after(&rows(9.0), &[]), Some(90));
        assert_eq!(after(&rows(0.1), &[]), Some(50));
        assert_eq!(after(&rows(0.0), &[]), Some(50));
    }

    #[test]
    fn what_cannot_be_held_is_not_tried() {
        let mut rows = rows(0.1);
        for row in &mut rows {
            row.cannot_hold_probability = if row.of_need < 0.68 { 0.9 } else { 0.0 };
        }
        assert_eq!(after(&rows, &[]), Some(70));
        rows.iter_mut().for_each(|row| row.cannot_hold_probability = 1.0);
        assert_eq!(after(&rows, &[]), None);
        // Nor where times are not known.
        rows.iter_mut().for_each(|row| row.cannot_hold_probability = 0.0);
        rows.iter_mut().for_each(|row| (row.slowdown, row.slowdown_low) = (None, None));
        assert_eq!(next(&rows, &[], 1.25), None);
    }

    #[test]
    fn the_second_is_where_the_first_has_moved_it() {
        // Twice as much is lost: 1.25 times the run time is with 87.5 % of the memory.
        assert!([Some(85), Some(90)].contains(&after(&rows(0.5), &[tried(75, 1.5)])));
        // Half as much.
        assert_eq!(after(&rows(0.5), &[tried(75, 1.125)]), Some(50));
    }

    #[test]
    fn where_that_is_known_the_rest_of_the_curve_is_tried() {
        let first = tried(75, 1.25);
        assert_eq!(after(&rows(0.5), std::slice::from_ref(&first)), Some(40));
        let all = [first, tried(40, 1.6)];
        assert_eq!(after(&rows(0.5), &all), Some(55));
        // What may be ended is tried where nothing else is left, and what will be is not.
        assert_eq!(after(&rows(9.0), &[tried(90, 2.8)]), Some(80));
        assert_eq!(after(&rows(30.0), &[tried(90, 7.0)]), None);
        // All sizes are within a tenth of one that was tried.
        let many: Vec<Tried> = [45, 60, 75, 90].map(|percent| tried(percent, 1.3)).to_vec();
        assert_eq!(after(&rows(0.5), &many), None);
    }

    #[test]
    fn with_less_memory_than_failed_nothing_is_tried() {
        let failed = Tried { failed: Some("signal 9".to_owned()), ..tried(75, 0.1) };
        let next = after(&rows(0.5), &[failed]);
        assert_eq!(next, Some(85));
    }

    #[test]
    fn a_trial_has_as_much_time_as_it_may_take_and_more() {
        assert_eq!([1.0, 1.25, 4.0, 1e9].map(trial_limit), [4.0, 4.0, 6.0, 20.0]);
    }
}

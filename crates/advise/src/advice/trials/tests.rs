use super::*;

const NEED: u64 = 100 << 20;

/// So much memory, and what is predicted to be lost with it.
fn row(percent: u64, lost: f64) -> Row {
    Row {
        memory_bytes: percent << 20,
        of_need: percent as f64 / 100.0,
        resident_bytes: percent << 18,
        pool_bytes: (100 - percent) << 18,
        pool_bytes_low: (100 - percent) << 17,
        pool_bytes_high: (100 - percent) << 19,
        saved_bytes: (100 - percent) << 20,
        slowdown: Some(1.0 + lost),
        slowdown_low: Some(1.0 + lost * 0.3),
        slowdown_high: Some(1.0 + lost * 2.0),
        processor: Some(1.0 + lost / 2.0),
        faults_per_second: Some(lost * 1e4 / (1.0 + lost)),
        cannot_hold_probability: 0.0,
        zram_slowdown: Some(1.0 + lost),
        swap_slowdown: Some(1.0 + lost),
        pays_against_disk: Some(true),
    }
}

/// Nothing is lost down to 80 %, and then 0.01 with each percent.
fn rows() -> Vec<Row> {
    let lost = |percent: u64| 80u64.saturating_sub(percent) as f64 / 100.0;
    (6..=20).rev().map(|nth| row(nth * 5, lost(nth * 5))).collect()
}

/// So many times of what is predicted in [`rows`].
fn measured(percent: u64, slowdown: f64) -> Measured {
    Measured {
        memory_bytes: percent << 20,
        slowdown,
        processor: Some(1.0 + (slowdown - 1.0) / 2.0),
        faults: (slowdown - 1.0) * 1e4,
        pool_bytes: ((100 - percent) << 18) as f64,
        at_least: false,
    }
}

fn corrected(measured: &[Measured]) -> Vec<Row> {
    let mut rows = rows();
    correct(&mut rows, NEED, measured);
    check(&rows);
    rows
}

/// What holds of all rows, whatever was measured.
fn check(rows: &[Row]) {
    for row in rows {
        let [low, value, high] =
            [row.slowdown_low, row.slowdown, row.slowdown_high].map(Option::unwrap);
        assert!(1.0 <= low && low <= value && value <= high && high < 1e6, "{row:?}");
        assert!(row.pool_bytes_low <= row.pool_bytes && row.pool_bytes <= row.pool_bytes_high);
        assert!(row.resident_bytes + row.pool_bytes <= row.memory_bytes, "{row:?}");
        assert!(row.processor.unwrap() >= 1.0 && row.faults_per_second.unwrap() >= 0.0);
    }
    for pair in rows.windows(2) {
        for of in [
            |row: &Row| row.slowdown,
            |row: &Row| row.slowdown_low,
            |row: &Row| row.slowdown_high,
            |row: &Row| row.processor,
            |row: &Row| Some(row.faults_per_second? * row.slowdown?),
        ] {
            let [above, below] = [&pair[0], &pair[1]].map(|row| of(row).unwrap());
            assert!(above <= below * (1.0 + 1e-9), "{pair:?}");
        }
    }
}

fn at(rows: &[Row], percent: u64) -> &Row {
    rows.iter().find(|row| row.memory_bytes == percent << 20).unwrap()
}

fn is_near(one: Option<f64>, other: f64) -> bool {
    (one.unwrap() - other).abs() < 1e-6
}

#[test]
fn without_trials_nothing_changes() {
    assert_eq!(corrected(&[]), rows());
    // Nor by one that has no row.
    assert_eq!(corrected(&[measured(63, 2.0)]), rows());
}

#[test]
fn what_is_lost_is_multiplied_by_what_the_trial_was_off_by() {
    // 0.2 was predicted.
    let rows = corrected(&[measured(60, 1.4)]);
    for (percent, lost) in [(100, 0.0), (80, 0.0), (70, 0.2), (60, 0.4), (50, 0.6), (40, 0.8)] {
        let row = at(&rows, percent);
        assert!(is_near(row.slowdown, 1.0 + lost), "{row:?}");
        assert!(is_near(row.processor, 1.0 + lost / 2.0), "{row:?}");
        assert!(is_near(row.faults_per_second, lost * 1e4 / (1.0 + lost)), "{row:?}");
        assert!(is_near(row.zram_slowdown, 1.0 + lost), "{row:?}");
        // Its pool was right.
        assert_eq!(row.pool_bytes, (100 - percent) << 18);
    }
    let less = corrected(&[measured(60, 1.1)]);
    assert!(is_near(at(&less, 40).slowdown, 1.2), "{less:?}");
}

#[test]
fn the_pool_is_corrected_by_a_difference() {
    let pool = |mib: u64| (mib << 20) as f64;
    // 10 MiB were predicted.
    let rows = corrected(&[Measured { pool_bytes: pool(18), ..measured(60, 1.2) }]);
    let mib = |rows: &[Row], percent| at(rows, percent).pool_bytes as f64 / pool(1);
    for (percent, expected) in [(100, 0.0), (80, 5.0 + 4.0), (60, 18.0), (40, 15.0 + 8.0)] {
        assert!((mib(&rows, percent) - expected).abs() < 0.01, "{percent}: {rows:?}");
    }
    let (low, bytes) = (at(&rows, 60).pool_bytes_low as f64, pool(18));
    assert!((low / bytes - 0.9).abs() < 1e-3, "{low}");
    assert!(is_near(at(&rows, 50).slowdown, 1.3));
    // Less than predicted, and never greater than the memory.
    let less = corrected(&[Measured { pool_bytes: pool(4), ..measured(60, 1.2) }]);
    assert!((mib(&less, 40) - 9.0).abs() < 0.01, "{less:?}");
    let all = corrected(&[Measured { pool_bytes: pool(50), ..measured(60, 1.2) }]);
    assert_eq!(at(&all, 30).pool_bytes, 30 << 20);
}

#[test]
fn between_trials_the_factor_goes_from_one_to_the_other() {
    // Factors of 2 and 1.
    let rows = corrected(&[measured(40, 1.4), measured(70, 1.2)]);
    for percent in [45, 50, 55, 60, 65] {
        let part = (percent as f64 / 40.0).ln() / (70.0f64 / 40.0).ln();
        let lost = 2.0f64.powf(part) * (80 - percent) as f64 / 100.0;
        assert!(is_near(at(&rows, percent).slowdown, 1.0 + lost.min(0.4)), "{percent}: {rows:?}");
    }
    assert!(is_near(at(&rows, 75).slowdown, 1.1) && is_near(at(&rows, 30).slowdown, 1.5));
    // Monotone: with less memory than 70 % it takes 1.4 times as long at least, and with more
    // than 40 % at most.
    let flat = corrected(&[measured(40, 1.4), measured(70, 1.4)]);
    assert!((40..=70).step_by(5).all(|percent| is_near(at(&flat, percent).slowdown, 1.4)));
}

#[test]
fn a_tried_row_is_as_measured_and_its_interval_is_that_of_runs() {
    let rows = corrected(&[measured(50, 2.5), measured(70, 1.75)]);
    for (percent, slowdown) in [(50, 2.5), (70, 1.75)] {
        let row = at(&rows, percent);
        assert_eq!(row.slowdown, Some(slowdown));
        assert!(is_near(row.slowdown_low, slowdown * 0.9), "{row:?}");
        assert!(is_near(row.slowdown_high, slowdown * 1.1), "{row:?}");
        let faults = (slowdown - 1.0) * 1e4 / slowdown;
        assert!(is_near(row.faults_per_second, faults), "{row:?}");
    }
}

#[test]
fn intervals_widen_with_the_distance() {
    let rows = corrected(&[measured(60, 1.4)]);
    let width = |percent: u64| {
        let row = at(&rows, percent);
        let lost = row.slowdown.unwrap() - 1.0;
        (row.slowdown_high.unwrap() - row.slowdown_low.unwrap()) / lost
    };
    let widths: Vec<f64> = [60, 55, 50, 40, 30].into_iter().map(width).collect();
    assert!(widths.is_sorted(), "{widths:?}");
    // At half the memory they are as wide as they were, 1.7, but less memory is not faster.
    assert!((1.6..1.75).contains(&widths[4]), "{widths:?}");
    assert!(widths[1] < 1.0, "{widths:?}");
    // More memory is not slower than what was measured.
    assert!(at(&rows, 65).slowdown_high <= at(&rows, 60).slowdown_high);
}

#[test]
fn the_noise_of_runs_is_no_factor() {
    // Nothing was predicted and next to nothing measured; or a little, and nothing measured.
    for (percent, slowdown) in [(85, 1.04), (90, 0.97), (75, 1.0), (75, 1.09)] {
        let rows = corrected(&[measured(percent, slowdown)]);
        assert_eq!(at(&rows, percent).slowdown, Some(slowdown.max(1.0)));
        let below = at(&rows, 40).slowdown.unwrap();
        assert!((1.3..1.7).contains(&below), "{percent} {slowdown}: {below}");
        assert!(is_near(at(&rows, 100).slowdown, 1.0));
    }
}

#[test]
fn a_loss_that_was_not_predicted_goes_with_the_memory_that_is_lacking() {
    let rows = corrected(&[measured(80, 1.45)]);
    assert!(is_near(at(&rows, 80).slowdown, 1.45) && is_near(at(&rows, 90).slowdown, 1.2));
    assert!(is_near(at(&rows, 100).slowdown, 1.0));
    // 0.4 was predicted, and 0.6 of the memory is lacking, not 0.2.
    assert!(is_near(at(&rows, 40).slowdown, 1.0 + 0.4 + 1.2), "{rows:?}");
    // No factor is greater than 2: 0.1 was predicted, and 0.3 for 50 %. Of the rest the noise is
    // not counted.
    let far = corrected(&[measured(70, 1.55)]);
    let expected = 1.0 + 0.3 * 2.0 + (0.55 - 0.2 - 0.05) / 0.3 * 0.5;
    assert!(is_near(at(&far, 50).slowdown, expected), "{far:?}");
}

#[test]
fn trials_that_contradict_each_other_come_to_their_mean() {
    let rows = corrected(&[measured(50, 1.5), measured(60, 1.7)]);
    assert!(is_near(at(&rows, 50).slowdown, 1.6) && is_near(at(&rows, 60).slowdown, 1.6));
    let three = corrected(&[measured(40, 2.0), measured(50, 1.5), measured(60, 1.7)]);
    assert!(is_near(at(&three, 40).slowdown, 2.0) && is_near(at(&three, 50).slowdown, 1.6));
}

#[test]
fn what_was_ended_is_a_least_run_time() {
    let ended = |percent, slowdown| Measured { at_least: true, ..measured(percent, slowdown) };
    // 0.2 was predicted.
    let rows = corrected(&[ended(60, 4.0)]);
    let row = at(&rows, 60);
    assert_eq!(row.slowdown, Some(4.0));
    assert!(is_near(row.slowdown_low, 3.6), "{row:?}");
    assert!(row.slowdown_high.unwrap() > 6.0, "{row:?}");
    assert!(at(&rows, 50).slowdown.unwrap() > 4.0);
    // What was to be expected changes no figure, but it is known now.
    let expected = corrected(&[measured(40, 4.2), ended(30, 4.0)]);
    let without = corrected(&[measured(40, 4.2)]);
    assert_eq!(at(&expected, 30).slowdown, at(&without, 30).slowdown);
    assert!(at(&without, 30).slowdown_low <= at(&expected, 30).slowdown_low);
}

#[test]
fn what_was_held_is_held() {
    let mut rows = rows();
    rows.iter_mut().for_each(|row| row.cannot_hold_probability = 0.1);
    let ended = Measured { at_least: true, ..measured(50, 4.0) };
    correct(&mut rows, NEED, &[measured(60, 1.2), ended]);
    let chance = |percent| at(&rows, percent).cannot_hold_probability;
    assert_eq!((chance(95), chance(60), chance(55), chance(50)), (0.0, 0.0, 0.1, 0.1));
}

#[test]
fn rows_without_times_keep_none() {
    let mut rows = rows();
    for row in &mut rows {
        (row.slowdown, row.slowdown_low, row.slowdown_high) = (None, None, None);
        (row.processor, row.faults_per_second) = (None, None);
    }
    correct(&mut rows, NEED, &[measured(60, 2.0)]);
    assert!(rows.iter().all(|row| row.slowdown.is_none() && row.processor.is_none()));
}

proptest::proptest! {
    #[test]
    fn any_trials_leave_rows_in_order(
        of in proptest::collection::vec(
            (6..=20u64, 0.0..30f64, 0.0..1e7f64, 0.0..1e9f64, proptest::bool::ANY), 1..5,
        ),
    ) {
        let measured: Vec<Measured> = of
            .iter()
            .map(|&(nth, slowdown, faults, pool_bytes, at_least)| Measured {
                faults, pool_bytes, at_least, ..measured(nth * 5, slowdown)
            })
            .collect();
        corrected(&measured);
    }
}

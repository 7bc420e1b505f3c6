use super::*;
use crate::history::Predicted;
use crate::observation::Machine;

/// So much memory makes the program so much slower, and cannot hold it with such a chance.
fn row(percent: u64, slowdown: Option<f64>, cannot_hold_probability: f64) -> Row {
    Row {
        memory_bytes: percent << 20,
        of_need: percent as f64 / 100.0,
        resident_bytes: 0,
        pool_bytes: (100 - percent) << 10,
        pool_bytes_low: 0,
        pool_bytes_high: 0,
        saved_bytes: (100 - percent) << 20,
        slowdown,
        slowdown_low: slowdown,
        slowdown_high: slowdown.map(|times| times + 0.1),
        processor: None,
        faults_per_second: slowdown.map(|times| times * 100.0),
        cannot_hold_probability,
        zram_slowdown: None,
        swap_slowdown: None,
        pays_against_disk: None,
    }
}

fn observation() -> Observation {
    Observation {
        subject: Subject::Program(vec!["program".to_owned()]),
        machine: Machine::default(),
        began_s: 0,
        seconds: 10.0,
        run: Some(WholeRun { wall_s: 10.0, processor_s: 5.0, observation_s: 0.5 }),
        need_bytes: 100 << 20,
        sizes: Vec::new(),
        contents: crate::observation::Contents::default(),
        windows: Vec::new(),
        rounds: Vec::new(),
        one_in: 1,
        trials: Vec::new(),
        not_seen: Vec::new(),
        events: Vec::new(),
    }
}

fn memory(rows: &[Row], at_most: f64) -> Option<u64> {
    let question = Question { at_most, ..Question::default() };
    let recommended = recommended(&observation(), &question, rows, &[]);
    assert_eq!(recommended.command.is_some(), recommended.memory_bytes.is_some());
    assert!(!recommended.reason.is_empty());
    recommended.memory_bytes.map(|bytes| bytes >> 20)
}

#[test]
fn the_least_memory_that_is_good_is_recommended() {
    let rows = [
        row(100, Some(1.0), 0.0),
        row(80, Some(1.1), 0.0),
        row(60, Some(1.5), 0.005),
        row(40, Some(2.0), 0.02),
    ];
    assert_eq!(memory(&rows, 1.25), Some(80));
    // It is the high bound that counts.
    assert_eq!(memory(&rows, 1.15), None);
    assert_eq!(memory(&rows, 1.6), Some(60));
    // The chance that it is not held is too great below.
    assert_eq!(memory(&rows, 99.0), Some(60));
}

#[test]
fn a_good_row_below_a_bad_one_is_chance() {
    let rows = [row(100, Some(1.0), 0.0), row(80, Some(1.5), 0.0), row(60, Some(1.1), 0.0)];
    assert_eq!(memory(&rows, 1.25), None);
}

#[test]
fn without_times_what_is_held_is_recommended() {
    let rows = [row(100, None, 0.0), row(80, None, 0.0), row(60, None, 0.5)];
    assert_eq!(memory(&rows, 1.25), Some(80));
    assert_eq!(memory(&[row(100, None, 0.0), row(95, None, 1.0)], 1.25), None);
}

#[test]
fn what_is_lost_stays_when_the_program_takes_another_time_with_all_memory() {
    let at = |wall_s: f64, processor_s: f64| AllMemory { wall_s, processor_s, runs: 1 };
    let mut rows = [row(80, Some(1.5), 0.0), row(60, None, 0.0)];
    rows[0].processor = Some(1.2);
    let before = rows.clone();
    all_memory::convert(&mut rows, at(10.0, 5.0), at(5.0, 2.0));
    // 5 s of the run, 1 s of processors, 150 faults in each of 15 s.
    assert_eq!((rows[0].slowdown, rows[0].processor), (Some(2.0), Some(1.5)));
    assert_eq!(rows[0].faults_per_second, Some(150.0 * 15.0 / 10.0));
    assert_eq!(rows[1], before[1]);
    let mut unknown = before.clone();
    all_memory::convert(&mut unknown, at(10.0, 0.0), at(10.0, 0.0));
    assert_eq!(unknown, before);
}

#[test]
fn the_interval_of_one_run_is_wider_than_that_of_the_mean() {
    let mut rows = [row(100, Some(1.0), 0.0), row(80, Some(3.0), 0.0), row(60, Some(3.0), 0.0)];
    (rows[1].slowdown_low, rows[2].slowdown_low) = (Some(2.9), Some(1.0));
    widen_to_one_run(&mut rows);
    let [all, near, far] = rows.map(|row| (row.slowdown_low.unwrap(), row.slowdown_high.unwrap()));
    assert!((all.0 - 0.8).abs() < 1e-9 && (1.2..1.3).contains(&all.1), "{all:?}");
    assert!((2.3..2.4).contains(&near.0) && (3.6..3.7).contains(&near.1), "{near:?}");
    assert_eq!(far.0, near.0, "bounds stay in order");
}

#[test]
fn between_rows_a_prediction_is_on_the_line() {
    let advice = Advice {
        subject: Subject::Program(Vec::new()),
        seconds: 10.0,
        run: observation().run,
        all_memory: observation().run.and_then(AllMemory::observed),
        need_bytes: 100 << 20,
        sampled_pages: 64,
        codec: "auto".to_owned(),
        at_most: 1.25,
        codecs: BTreeMap::new(),
        costs: Costs::usual(),
        rows: vec![row(100, Some(1.0), 0.0), row(80, Some(2.0), 0.0), row(60, Some(4.0), 1.0)],
        trials: Vec::new(),
        recommended: Recommended::default(),
        not_seen: Vec::new(),
    };
    let at = |percent: u64| Predicted::at(&advice, percent << 20);
    assert_eq!(
        (at(80).slowdown, at(90).slowdown, at(65).slowdown),
        (Some(2.0), Some(1.5), Some(3.5))
    );
    assert_eq!(at(90).wall_s, Some(1.5 * 9.5));
    assert_eq!((at(90).pool_bytes, at(70).cannot_hold_probability), (10_240.0, 0.5));
    // Beyond the rows the nearest one counts.
    assert_eq!((at(200).slowdown, at(10).slowdown), (Some(1.0), Some(4.0)));
    let text = serde_json::to_string(&advice).unwrap();
    assert_eq!(serde_json::from_str::<Advice>(&text).unwrap(), advice);
    // As it was printed before there were runs that nobody looks at.
    let before = Advice { all_memory: None, ..advice.clone() };
    assert_eq!(Predicted::at(&before, 90 << 20).wall_s, Some(1.5 * 9.5));
    let nothing = Advice { rows: Vec::new(), ..advice };
    assert_eq!(Predicted::at(&nothing, 1).slowdown, None);
}

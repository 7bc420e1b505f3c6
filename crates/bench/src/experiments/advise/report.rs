//! Rows as tables, and as a plot.

use ramfold_plot::{Panel, Points, curves, figure};
use serde::Serialize;
use serde_json::Value;

use super::prediction::Tried;
use super::score::{Errors, Row, Share, Summary, ZramRow};
use crate::harness::report::Skipped;
use crate::harness::table::{self, align_left, mebibytes, number};

/// All that was found.
#[derive(Serialize)]
pub(super) struct Figures {
    /// Compression pays where a run takes at most this many times as long as with all memory.
    pub(super) at_most: f64,
    pub(super) rows: Vec<Row>,
    pub(super) zram: Vec<ZramRow>,
    pub(super) summary: Summary,
    pub(super) programs: Vec<OfProgram>,
    /// Programs and peers that were left out.
    pub(super) skipped: Vec<Skipped>,
}

/// What is known of a program beside its rows.
#[derive(Debug, Serialize)]
pub(super) struct OfProgram {
    pub(super) program: String,
    pub(super) need_bytes: u64,
    /// Parts of the need at which nothing was run: it was predicted not to be held.
    pub(super) cannot_be_held: Vec<f64>,
    pub(super) reference_s: Vec<f64>,
    /// The run that advise has observed.
    pub(super) run: Value,
    /// What the program takes with all memory, by advise.
    pub(super) all_memory: Value,
    /// Of the machine, as advise has measured it.
    pub(super) costs: Value,
    /// What advise has tried itself.
    pub(super) trials: Vec<Tried>,
    pub(super) not_seen: Vec<String>,
}

/// The tables, and what was left out.
pub(super) fn text(figures: &Figures) -> String {
    let mut text = by_size(&figures.rows);
    if !figures.zram.is_empty() {
        text += &format!("\n{}", by_zram(&figures.zram));
    }
    text += &format!("\n{}", summary(&figures.summary, figures.at_most));
    for of in &figures.programs {
        if !of.cannot_be_held.is_empty() {
            let shares = of.cannot_be_held.iter().map(|share| format!("{:.0} %", share * 100.0));
            let shares = shares.collect::<Vec<_>>().join(", ");
            text += &format!("{}: not run at {shares}: predicted not to be held\n", of.program);
        }
    }
    for of in &figures.programs {
        if !of.trials.is_empty() {
            let trials: Vec<String> = of.trials.iter().map(shown).collect();
            text += &format!("{}: advise tried {}\n", of.program, trials.join(", "));
        }
    }
    for Skipped { peer, reason } in &figures.skipped {
        text += &format!("left out: {peer}: {reason}\n");
    }
    text
}

/// A trial, and what it has shown.
fn shown(trial: &Tried) -> String {
    let Tried { of_need, run_time, .. } = trial;
    let times = match (&trial.failed, trial.at_least) {
        (Some(_), _) => "failed".to_owned(),
        (None, true) => format!("{run_time:.2} times at least"),
        (None, false) => format!("{run_time:.2} times"),
    };
    format!("{:.0} % ({times})", of_need * 100.0)
}

fn percent(error: Option<f64>) -> String {
    error.map_or_else(|| "-".to_owned(), |error| format!("{:+.1} %", error * 100.0))
}

fn yes(answer: bool) -> String {
    if answer { "yes" } else { "no" }.to_owned()
}

fn by_size(rows: &[Row]) -> String {
    let header = [
        "program",
        "need MiB",
        "memory",
        "all, s",
        "predicted",
        "(90 %)",
        "actual",
        "error",
        "in",
        "pool MiB",
        "actual",
        "error",
        "pays",
        "actual",
        "note",
    ];
    let mut table = table::of_numbers(&header, 1);
    align_left(&mut table, header.len() - 1);
    for row in rows {
        let interval = row.predicted_low.zip(row.predicted_high);
        let is_wrong = if row.is_output_right { "" } else { "WRONG output" };
        let ending = row.ending.as_ref().map(ToString::to_string).unwrap_or_default();
        table.add_row([
            row.program.clone(),
            mebibytes(Some(row.need_bytes as f64), 0, ""),
            format!("{:.0} %", row.share * 100.0),
            number(Some(row.reference_s), 2, ""),
            number(row.predicted, 2, "-"),
            interval.map_or_else(String::new, |(low, high)| format!("{low:.2}-{high:.2}")),
            number(row.actual, 2, "-"),
            percent(row.error),
            row.is_in_interval.map_or_else(String::new, yes),
            mebibytes(Some(row.predicted_pool_bytes), 1, ""),
            mebibytes(row.actual_pool_bytes, 1, "-"),
            percent(row.pool_error),
            yes(row.pays_predicted),
            yes(row.pays_actual),
            [is_wrong.to_owned(), ending].concat(),
        ]);
    }
    table::text(&table)
}

fn by_zram(rows: &[ZramRow]) -> String {
    let header =
        ["program", "peer", "memory", "limit and pool MiB", "predicted", "actual", "error", "note"];
    let mut table = table::of_numbers(&header, 2);
    align_left(&mut table, header.len() - 1);
    for row in rows {
        table.add_row([
            row.program.clone(),
            row.peer.clone(),
            format!("{:.0} %", row.share * 100.0),
            mebibytes(Some(row.total_bytes), 1, ""),
            number(row.predicted, 2, "-"),
            number(row.actual, 2, "-"),
            percent(row.error),
            row.ending.to_string(),
        ]);
    }
    table::text(&table)
}

fn summary(summary: &Summary, at_most: f64) -> String {
    let mut table = table::of_numbers(&["figure", "runs", "median", "worst", "right"], 1);
    let plain = |error: Option<f64>| {
        error.map_or_else(|| "-".to_owned(), |error| format!("{:.1} %", error * 100.0))
    };
    let mut errors = |name: &str, of: &Errors| {
        if of.count > 0 {
            let count = of.count.to_string();
            table.add_row([name, &count, &plain(of.median), &plain(of.worst), ""]);
        }
    };
    errors("run time, below 2 times", &summary.time_below_2);
    errors("run time, beyond", &summary.time_beyond_2);
    errors("greatest pool", &summary.pool);
    errors("run time with zram, below 2 times", &summary.zram_below_2);
    errors("run time with zram, beyond", &summary.zram_beyond_2);
    let mut share = |name: &str, of: Share| {
        let right = number(of.percent(), 1, "-");
        table.add_row([name, &of.count.to_string(), "", "", &format!("{right} %")]);
    };
    share("pool within 5 %", summary.pool_within_5_percent);
    share(&format!("compression pays ({at_most} times), or not"), summary.decisions);
    share("run time is within the 90 % interval", summary.intervals);
    share("pool is within the 90 % interval", summary.pool_intervals);
    share("memory that was said to hold it held it", summary.held);
    table::text(&table)
}

/// Predicted against actual run times and pools, a curve for each program.
pub(super) fn plot(rows: &[Row]) -> String {
    let panel = |title: &str, unit: [&'static str; 2], points: Vec<(String, (f64, f64))>| {
        let ends = points.iter().flat_map(|(_, point)| [point.0, point.1]);
        let (least, most) =
            ends.fold((f64::MAX, 0.0f64), |(least, most), end| (least.min(end), most.max(end)));
        let same: Points = vec![(least, least), (most, most)];
        let mut all = vec![("as predicted".to_owned(), same)];
        all.extend(curves(points));
        Panel { title: title.to_owned(), x: unit[0], y: unit[1], logarithmic: true, curves: all }
    };
    let times =
        rows.iter().filter_map(|row| Some((row.program.clone(), (row.actual?, row.predicted?))));
    let pools = rows.iter().filter_map(|row| {
        let mebibyte = f64::from(1u32 << 20);
        row.pool_error?;
        let actual = row.actual_pool_bytes? / mebibyte;
        Some((row.program.clone(), (actual, row.predicted_pool_bytes.max(1.0) / mebibyte)))
    });
    let time = ["actual, multiple of that with all memory", "predicted"];
    let panels = [
        panel("run time", time, times.collect()),
        panel("greatest pool", ["actual, MiB", "predicted, MiB"], pools.collect()),
    ];
    // A panel without rows has but the ends of nothing.
    figure(panels.into_iter().filter(|panel| panel.curves.len() > 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(at_least: bool, failed: Option<&str>) -> Tried {
        let trial = serde_json::json!({
            "memory_bytes": 3, "of_need": 0.75, "run_time": 1.5, "at_least": at_least,
            "pool_bytes": 1, "faults": 2, "failed": failed,
        });
        serde_json::from_value(trial).unwrap()
    }

    #[test]
    fn each_program_has_a_row_and_a_curve() {
        let row = |program: &str, share: f64, actual: f64| Row {
            program: program.to_owned(),
            share,
            predicted: Some(actual * 1.1),
            predicted_low: Some(1.0),
            predicted_high: Some(3.0),
            actual: Some(actual),
            error: Some(0.1),
            is_output_right: true,
            ..Row::default()
        };
        let rows = vec![row("sort", 0.9, 1.1), row("sort", 0.5, 1.9), row("perl", 0.5, 2.5)];
        let svg = plot(&rows);
        assert!(svg.contains("<svg") && svg.contains("sort") && svg.contains("as predicted"));
        let of = OfProgram {
            program: "sort".to_owned(),
            need_bytes: 0,
            cannot_be_held: vec![0.4],
            reference_s: vec![],
            run: Value::Null,
            all_memory: Value::Null,
            costs: Value::Null,
            trials: vec![tried(false, None), tried(true, None), tried(false, Some("signal 9"))],
            not_seen: vec![],
        };
        let summary = Summary::of(&rows, &[]);
        let skipped = vec![Skipped { peer: "java".to_owned(), reason: "no java".to_owned() }];
        let (zram, programs) = (vec![], vec![of]);
        let text = text(&Figures { at_most: 1.25, rows, zram, summary, programs, skipped });
        for expected in [
            "+10.0 %",
            "1.00-3.00",
            "sort: not run at 40 %",
            "sort: advise tried 75 % (1.50 times), 75 % (1.50 times at least), 75 % (failed)",
            "left out: java: no java",
            "compression pays (1.25 times), or not",
        ] {
            assert!(text.contains(expected), "{expected} is missing in {text}");
        }
        assert!(plot(&[]).contains("<svg"));
    }
}

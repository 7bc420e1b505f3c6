//! Advice as a table, and in words.

use comfy_table::Table;
use ramfold_advise::advice::{Advice, AllMemory, CodecFigures, Row, Tried, quoted_line};
use ramfold_advise::machine::{PageCost, Spread};
use ramfold_advise::observation::Subject;

use crate::table::{align_figures, table};

const MIB: f64 = (1 << 20) as f64;

pub(super) fn print(advice: &Advice) {
    print_subject(advice);
    print_codec(advice);
    if advice.has_times() {
        print_costs(advice);
    }
    advice.trials.iter().for_each(|trial| println!("{}", tried(trial)));
    println!("\n{}\n", rows(advice));
    print_recommended(advice);
    if !advice.not_seen.is_empty() {
        println!("\nnot seen:");
        advice.not_seen.iter().for_each(|sentence| println!("  - {sentence}"));
    }
}

fn print_subject(advice: &Advice) {
    let need = advice.need_bytes as f64 / MIB;
    let seconds = advice.seconds;
    match &advice.subject {
        Subject::Program(program) => println!("program: {}", quoted_line(program)),
        Subject::Process { pid, name, .. } => println!("process {pid} ({name}), {seconds:.0} s"),
        Subject::Group(path) => println!("control group {path}, {seconds:.0} s"),
        Subject::Pages(path) => println!("pages of {path}"),
        Subject::Files(path) => println!("files of {path}"),
    }
    println!("needs {need:.1} MiB");
    if let (Some(run), Some(AllMemory { wall_s, processor_s, runs })) =
        (advice.run, advice.all_memory)
    {
        println!(
            "takes {wall_s:.2} s with all memory, {processor_s:.2} s of processors{}; looking took \
             {:.1} %",
            if runs == 0 { "" } else { " when nobody looks" },
            run.observation_s / run.wall_s * 100.0
        );
    }
}

fn print_codec(advice: &Advice) {
    let Some(CodecFigures { ratio, same_filled, incompressible, .. }) =
        advice.codecs.get(&advice.codec)
    else {
        return;
    };
    println!(
        "compresses {ratio:.2}:1 by {} ({:.0} % same-filled, {:.0} % incompressible; {} pages \
         sampled)",
        advice.codec,
        same_filled * 100.0,
        incompressible * 100.0,
        advice.sampled_pages
    );
}

fn print_costs(advice: &Advice) {
    let of = |Spread { median, low, high }: Spread| {
        format!("{:.1} us ({:.1}-{:.1})", median * 1e6, low * 1e6, high * 1e6)
    };
    let page = |cost: PageCost| of(cost.wall_s);
    let costs = &advice.costs;
    println!(
        "here a fault takes {}, a page of a stream {}, one of growth {}",
        page(costs.fault),
        page(costs.stream),
        page(costs.growth)
    );
    if let Some(disk) = &costs.disk {
        println!("a read of the disk of {} takes {}", disk.folder.display(), of(disk.read_s));
    }
}

/// A trial in a line of its own.
fn tried(trial: &Tried) -> String {
    let mib = trial.memory_bytes as f64 / MIB;
    format!("tried with {mib:.1} MiB ({:.0} %): {}", trial.of_need * 100.0, outcome(trial))
}

/// What a trial has shown.
pub(super) fn outcome(trial: &Tried) -> String {
    let Tried { run_time, pool_bytes, faults, .. } = trial;
    let mut shown = match (&trial.failed, trial.at_least) {
        (Some(why), _) => return format!("does not count, because {why}"),
        (None, true) => format!("{run_time:.2} times as long at least (it was ended then)"),
        (None, false) => format!(
            "{run_time:.2} times as long, a pool of {:.1} MiB, {faults} faults",
            *pool_bytes as f64 / MIB
        ),
    };
    if let Some(taken) = trial.others {
        shown += &format!("; others took {taken:.1} processors, and none was left");
    }
    shown
}

fn rows(advice: &Advice) -> Table {
    let has = |figure: fn(&Row) -> bool| advice.rows.iter().any(figure);
    let has_times = advice.has_times();
    let has_zram = has(|row| row.zram_slowdown.is_some());
    let has_swap = has(|row| row.swap_slowdown.is_some());
    let mut headings =
        vec!["memory MiB", "of need", "resident MiB", "pool MiB", "saved MiB", "cannot hold"];
    if has_times {
        headings.extend(["run time", "(90 %)", "processor", "faults/s"]);
    }
    if has_zram {
        headings.push("zram");
    }
    if has_swap {
        headings.extend(["swap", "pays"]);
    }
    if !advice.trials.is_empty() {
        headings.push("tried");
    }
    let mut table = table(headings);
    for row in &advice.rows {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB);
        let mut cells = vec![
            mib(row.memory_bytes),
            format!("{:.0} %", row.of_need * 100.0),
            mib(row.resident_bytes),
            mib(row.pool_bytes),
            mib(row.saved_bytes),
            chance(row.cannot_hold_probability),
        ];
        if has_times {
            let interval = match (row.slowdown_low, row.slowdown_high) {
                (Some(low), Some(high)) => format!("{}-{}", multiple(low), multiple(high)),
                _ => "-".to_owned(),
            };
            cells.extend([times(row.slowdown), interval, times(row.processor)]);
            cells.push(row.faults_per_second.map_or_else(dash, |faults| format!("{faults:.0}")));
        }
        if has_zram {
            cells.push(times(row.zram_slowdown));
        }
        if has_swap {
            cells.push(times(row.swap_slowdown));
            let pays = row.pays_against_disk;
            cells.push(pays.map_or_else(dash, |pays| if pays { "yes" } else { "no" }.to_owned()));
        }
        if !advice.trials.is_empty() {
            let is_of_row = |trial: &Tried| trial.memory_bytes == row.memory_bytes;
            let trial = advice.trials.iter().find(|trial| is_of_row(trial));
            cells.push(trial.map_or_else(dash, |trial| mark(trial).to_owned()));
        }
        table.add_row(cells);
    }
    align_figures(&mut table, 0);
    table
}

/// A trial in the row of its memory.
fn mark(trial: &Tried) -> &'static str {
    match (&trial.failed, trial.at_least) {
        (Some(_), _) => "failed",
        (None, true) => "ended",
        (None, false) => "yes",
    }
}

fn print_recommended(advice: &Advice) {
    let recommended = &advice.recommended;
    match (&recommended.command, &recommended.limits) {
        (Some(command), _) => println!("recommended:\n\n    {command}\n"),
        (None, Some(limits)) => println!(
            "recommended:\n\n    resources:\n      limits:\n        memory: {}\n",
            limits.memory
        ),
        (None, None) => match recommended.memory_bytes {
            Some(bytes) => println!("recommended: {:.0} MiB", bytes as f64 / MIB),
            None => println!("nothing is recommended"),
        },
    }
    println!("{}", recommended.reason);
}

fn times(times: Option<f64>) -> String {
    times.map_or_else(dash, |times| format!("{}x", multiple(times)))
}

fn multiple(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { format!("{times:.0}") }
}

fn chance(chance: f64) -> String {
    match chance {
        0.0 => "0 %".to_owned(),
        chance if chance < 0.001 => "< 0.1 %".to_owned(),
        chance if chance > 0.999 => "100 %".to_owned(),
        chance => format!("{:.1} %", chance * 100.0),
    }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_says_what_became_of_it() {
        let trial = |at_least: bool, failed: Option<&str>| Tried {
            memory_bytes: 30 << 20,
            of_need: 0.75,
            run_time: 1.5,
            at_least,
            pool_bytes: 3 << 20,
            faults: 1000,
            others: None,
            failed: failed.map(str::to_owned),
        };
        let whole = trial(false, None);
        let shown =
            "tried with 30.0 MiB (75 %): 1.50 times as long, a pool of 3.0 MiB, 1000 faults";
        assert_eq!((tried(&whole).as_str(), mark(&whole)), (shown, "yes"));
        let crowded = Tried { others: Some(0.94), ..trial(false, None) };
        assert_eq!(
            tried(&crowded),
            format!("{shown}; others took 0.9 processors, and none was left")
        );
        let ended = trial(true, None);
        assert!(tried(&ended).contains("1.50 times as long at least"), "{}", tried(&ended));
        let failed = trial(true, Some("signal 9 ended the program"));
        assert!(tried(&failed).contains("because signal 9"), "{}", tried(&failed));
        assert_eq!((mark(&ended), mark(&failed)), ("ended", "failed"));
    }

    #[test]
    fn figures_are_as_long_as_they_are_known() {
        assert_eq!(
            (times(None), times(Some(1.234)), times(Some(123.4))),
            ("-".to_owned(), "1.23x".to_owned(), "123x".to_owned())
        );
        for (number, text) in
            [(0.0, "0 %"), (1e-9, "< 0.1 %"), (0.5, "50.0 %"), (0.9999, "100 %"), (1.0, "100 %")]
        {
            assert_eq!(chance(number), text);
        }
    }
}

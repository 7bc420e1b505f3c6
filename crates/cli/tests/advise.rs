//! `ramfold advise`: tables, JSON, what it recommends, what it refuses; and `run --prediction`.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use ramfold_advise::contents;
use ramfold_advise::observation::{
    Block, Contents, Machine, Observation, Subject, Trial, WholeRun, file,
};
use ramfold_model::is_block_sampled;
use ramfold_trace::recorded::{Event, What};
use serde_json::Value;
use support::{RAMFOLD, needs_userfaultfd, text};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// One page in this many is in the trace.
const ONE_IN: u64 = 32;
/// Of the program that was looked at.
const PAGES: u64 = 16_384;
const SECONDS: f64 = 10.0;

/// A program of 64 MiB that compresses 4:1 and uses a quarter of its memory again and again, and
/// all of it every five seconds.
fn observation(program: &[&str]) -> Observation {
    let blocks: Vec<u64> =
        (0..PAGES / 8).filter(|&block| is_block_sampled(block, ONE_IN as u32)).collect();
    let sampled: Vec<u64> =
        blocks.iter().flat_map(|block| (0..8).map(move |page| block * 8 + page)).collect();
    let mut events = Vec::new();
    for half in 0..(SECONDS * 2.0) as u64 {
        for (nth, &page) in sampled.iter().enumerate() {
            let is_used = nth < sampled.len() / 4 || half % 10 == 0;
            let time_us = half * 500_000 + nth as u64;
            let what = match half {
                0 => What::Appeared,
                _ => What::Touched { watched_us: 490_000 },
            };
            if is_used {
                events.push(Event { time_us, page, what });
            }
        }
    }
    let codecs = contents::codecs();
    let block = |(nth, block): (usize, &u64)| Block {
        first_page: block * 8,
        at_s: 1.0,
        charged_bytes: vec![vec![1024 + (nth % 3 * 64) as u16; codecs.len()]; 8],
    };
    Observation {
        subject: Subject::Program(program.iter().map(|&word| word.to_owned()).collect()),
        machine: Machine { processors: 2, memory_bytes: 8 << 30, kernel: "6.12".to_owned() },
        began_s: 1_700_000_000,
        seconds: SECONDS,
        run: Some(WholeRun { wall_s: SECONDS, processor_s: SECONDS, observation_s: 0.1 }),
        need_bytes: PAGES * 4096,
        sizes: Vec::new(),
        contents: Contents { blocks: blocks.iter().enumerate().map(block).collect(), codecs },
        windows: Vec::new(),
        rounds: Vec::new(),
        one_in: ONE_IN as u32,
        trials: Vec::new(),
        not_seen: vec!["huge pages: they were split".to_owned()],
        events,
    }
}

fn save(folder: &Path, observation: &Observation) -> PathBuf {
    let path = folder.join("program.record");
    file::save(&path, observation).unwrap();
    path
}

/// What is measured of the machine is measured once for all tests.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("advise-cache");
        let folder = tempfile::tempdir().unwrap();
        let record = save(folder.path(), &observation(&["true"]));
        let mut command = Command::new(RAMFOLD);
        command.args(["advise", "--recalibrate", "--replay"]).arg(record);
        let ended = command.env("XDG_CACHE_HOME", &cache).output().unwrap();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        cache
    })
}

/// `ramfold`, with a history in the folder.
fn ramfold(state: &Path) -> Command {
    let mut command = Command::new(RAMFOLD);
    command.env("XDG_CACHE_HOME", cache()).env("XDG_STATE_HOME", state);
    command
}

fn advise(arguments: &[&str]) -> Output {
    ramfold(Path::new("/nowhere")).arg("advise").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let ended = advise(&[arguments, &["--json"]].concat());
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    serde_json::from_slice(&ended.stdout).unwrap()
}

fn record(folder: &TempDir, observation: &Observation) -> String {
    save(folder.path(), observation).to_str().unwrap().to_owned()
}

#[test]
fn json_has_every_field_and_rows_are_monotone() {
    let folder = tempfile::tempdir().unwrap();
    let record = record(&folder, &observation(&["/bin/echo", "it's"]));
    // How long a fault takes differs between machines: something is recommended on each.
    let advice = json(&["--replay", &record, "--memory", "33M", "--at-most", "100"]);
    assert_eq!(advice["need_bytes"], 64 * MIB);
    let rows = advice["rows"].as_array().unwrap();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}"));
    for row in rows {
        for name in [
            "memory_bytes",
            "slowdown",
            "slowdown_low",
            "slowdown_high",
            "pool_bytes",
            "faults_per_second",
            "cannot_hold_probability",
            "resident_bytes",
            "processor",
        ] {
            assert!(number(row, name) >= 0.0, "{name}");
        }
        let [low, value, high] =
            ["slowdown_low", "slowdown", "slowdown_high"].map(|name| number(row, name));
        assert!(0.0 < low && low <= 0.8 * value + 1e-9 && 1.2 * value <= high + 1e-9, "{row}");
    }
    assert_eq!(rows[0]["memory_bytes"], 64 * MIB);
    assert!(rows.iter().any(|row| row["memory_bytes"] == 33 * MIB));
    for pair in rows.windows(2) {
        let [above, below] = [&pair[0], &pair[1]];
        let step = number(above, "of_need") - number(below, "of_need");
        assert!(step > 0.0 && step < 0.0501, "{step}");
        for name in ["slowdown", "slowdown_low", "slowdown_high", "cannot_hold_probability"] {
            assert!(number(above, name) <= number(below, name), "{name} {above} {below}");
        }
    }
    // A quarter of the memory is needed by the objects alone.
    let last = &rows[rows.len() - 1];
    assert!(number(last, "cannot_hold_probability") > 0.9, "{last}");
    assert!((0.2..0.45).contains(&number(last, "of_need")), "{last}");
    let auto = &advice["codecs"]["auto"];
    assert!((number(auto, "ratio") - 3.76).abs() < 0.1, "{auto}");
    for name in ["charged_bytes", "same_filled", "incompressible", "compress_ns", "decompress_ns"] {
        assert!(auto[name].is_number(), "{name}");
    }
    let not_seen: Vec<&str> =
        advice["not_seen"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(not_seen.contains(&"huge pages: they were split"), "{not_seen:?}");
    let command = advice["recommended"]["command"].as_str().unwrap();
    assert!(command.starts_with("ramfold run --memory "), "{command}");
    assert!(command.ends_with(r"M -- /bin/echo 'it'\''s'"), "{command}");
}

#[test]
fn a_table_a_plot_and_reasons_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let record = record(&folder, &observation(&["true"]));
    let plot = folder.path().join("advice.svg");
    let plotted = plot.to_str().unwrap();
    let ended = advise(&["--replay", &record, "--at-most", "100", "--plot", plotted]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let shown = text(&ended.stdout);
    for word in ["needs 64.0 MiB", "cannot hold", "faults/s", "recommended:", "huge pages"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(fs::read_to_string(plot).unwrap().contains("<svg"));
}

#[test]
fn what_is_asked_for_decides_what_is_recommended() {
    let folder = tempfile::tempdir().unwrap();
    let record = record(&folder, &observation(&["true"]));
    let memory = |at_most: &str| {
        json(&["--replay", &record, "--at-most", at_most])["recommended"]["memory_bytes"].as_u64()
    };
    let (strict, loose) = (memory("1.02"), memory("100"));
    assert!(loose.unwrap() < strict.unwrap_or(u64::MAX), "{loose:?} {strict:?}");
    let none = json(&["--replay", &record, "--at-most", "1"]);
    assert!(none["recommended"]["command"].is_null(), "{none}");
    assert!(none["recommended"]["reason"].as_str().unwrap().contains("--at-most"), "{none}");
    let zstd = json(&["--replay", &record, "--codec", "zstd", "--at-most", "50"]);
    let command = zstd["recommended"]["command"].as_str().unwrap().to_owned();
    assert!(command.contains("--codec zstd-1 --"), "{command}");
}

/// A trial of a record: its part of the need, and its run time as a multiple.
fn trial(percent: u64, times: f64) -> Trial {
    Trial {
        memory_bytes: PAGES * 4096 * percent / 100,
        codec: "auto".to_owned(),
        wall_s: (SECONDS - 0.1) * times,
        processor_s: SECONDS * times,
        pool_bytes: 5 * MIB,
        faults: 100_000,
        ..Trial::default()
    }
}

#[test]
fn recorded_trials_correct_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut observation = observation(&["true"]);
    let without = json(&["--replay", &record(&folder, &observation)]);
    assert_eq!(without["trials"], serde_json::json!([]));
    // One between two rows.
    let crowded = Trial { others: Some(0.94), ..trial(72, 1.75) };
    observation.trials = vec![crowded, Trial { at_least: true, ..trial(40, 50.0) }];
    let failed = Some("signal 9 ended the program".to_owned());
    observation.trials.push(Trial { failed, ..trial(30, 0.1) });
    let record = record(&folder, &observation);
    let advice = json(&["--replay", &record, "--at-most", "100"]);
    let rows = advice["rows"].as_array().unwrap();
    let at = |trial: &Value| {
        rows.iter().find(|row| row["memory_bytes"] == trial["memory_bytes"]).unwrap()
    };
    let [whole, ended, failed] = [0, 1, 2].map(|nth| &advice["trials"][nth]);
    assert!((whole["run_time"].as_f64().unwrap() - 1.75).abs() < 1e-9, "{whole}");
    assert_eq!(
        (&at(whole)["slowdown"], &at(whole)["pool_bytes"]),
        (&whole["run_time"], &(5 * MIB).into())
    );
    assert_eq!((&whole["at_least"], &ended["at_least"]), (&false.into(), &true.into()));
    assert!(at(ended)["slowdown"].as_f64().unwrap() >= 49.99, "{ended}");
    assert!(failed["failed"].as_str().unwrap().contains("signal 9"), "{failed}");
    // With no more memory than where it failed nothing is recommended.
    let recommended = advice["recommended"]["memory_bytes"].as_u64().unwrap();
    assert!(recommended > failed["memory_bytes"].as_u64().unwrap(), "{recommended}");
    let not_seen = advice["not_seen"].to_string();
    for said in [
        "72 %, 40 % of the need",
        "30 % of the need does not count: signal 9",
        "50.0 times",
        "took 0.9 processors during the trial, and none was left",
    ] {
        assert!(not_seen.contains(said), "{said}: {not_seen}");
    }
    let shown = text(&advise(&["--replay", &record]).stdout);
    for said in ["(72 %): 1.75 times as long, a pool of 5.0 MiB, 100000 faults", "tried"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    // Not observed, with all memory, the program takes half the time. What is lost stays the same.
    let all = Trial { others: Some(0.9), ..trial(400, 0.5) };
    observation.trials.push(all);
    let record = save(folder.path(), &observation).to_str().unwrap().to_owned();
    let again = json(&["--replay", &record]);
    assert_eq!(again["all_memory"]["runs"], 1, "{}", again["all_memory"]);
    assert_eq!(again["trials"].as_array().unwrap().len(), 3);
    assert!(again["not_seen"].to_string().contains("took 0.9 processors when it was not observed"));
    let doubled = again["trials"][0]["run_time"].as_f64().unwrap();
    assert!((doubled - 3.5).abs() < 1e-9, "{doubled}");
    assert_eq!(again["rows"].as_array().unwrap().len(), rows.len(), "no row has more memory");
    let failed = Some("signal 9 ended the program".to_owned());
    observation.trials = vec![Trial { failed, ..trial(400, 0.5) }];
    let record = save(folder.path(), &observation).to_str().unwrap().to_owned();
    let alone = json(&["--replay", &record]);
    assert_eq!((&alone["all_memory"], &alone["rows"]), (&without["all_memory"], &without["rows"]));
    assert!(alone["not_seen"].to_string().contains("does not count: signal 9"), "{alone}");
    // Trials of another codec say nothing of this one.
    observation.trials = vec![trial(72, 1.75)];
    let record = save(folder.path(), &observation).to_str().unwrap().to_owned();
    let zstd = json(&["--replay", &record, "--codec", "zstd"]);
    assert_eq!(zstd["trials"], serde_json::json!([]));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_is_tried_under_a_cap() {
    needs_userfaultfd!();
    // Goes over a third of its memory often, and over all of it now and then. It reads its input.
    const SCRIPT: &str = "
import sys, time
assert sys.stdin.read() == 'all of it'
pages = [bytes([i % 251] * 512) * 8 for i in range(16000)]
for turn in range(60):
    some = pages if turn % 20 == 10 else pages[:5000]
    for _ in range(5): sum(page[5] for page in some)
    time.sleep(0.02)
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let [record, input] = ["program.record", "input"].map(|name| folder.path().join(name));
    fs::write(&input, "all of it").unwrap();
    let mut command = ramfold(folder.path());
    command.args(["advise", "--json", "--trials", "1", "--at-most", "20", "--record"]).arg(&record);
    command.args(["--", "/usr/bin/python3", "-c", SCRIPT]);
    let ended = command.stdin(fs::File::open(&input).unwrap()).output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("trial 1 of 1: with") && said.contains("right"), "{said}");
    // Before it and afterwards with all memory.
    assert_eq!(said.lines().filter(|line| *line == "right").count(), 4, "{said}");
    let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(advice["all_memory"]["runs"], 2, "{said}");
    let [trial] = &advice["trials"].as_array().unwrap()[..] else { panic!("{said}") };
    assert_eq!(trial["failed"], Value::Null, "{said}");
    assert!(trial["faults"].as_u64().unwrap() > 0, "{trial}");
    let of_need = trial["of_need"].as_f64().unwrap();
    assert!((0.49..0.91).contains(&of_need), "{trial}");
    let rows = advice["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["memory_bytes"] == trial["memory_bytes"]).unwrap();
    let times = trial["run_time"].as_f64().unwrap().max(1.0);
    let slowdown = row["slowdown"].as_f64().unwrap();
    if trial["at_least"] == true {
        assert!(slowdown >= times - 1e-9, "{row} {trial}");
    } else {
        assert!((slowdown - times).abs() < 1e-9, "{row} {trial}");
        assert_eq!(row["pool_bytes"], trial["pool_bytes"]);
    }
    // The record has all runs.
    let again = json(&["--replay", record.to_str().unwrap(), "--at-most", "20"]);
    for part in ["trials", "rows", "all_memory", "recommended"] {
        assert_eq!(again[part], advice[part], "{part}");
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_that_does_not_do_the_same_again_is_not_tried() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import os, sys, time
if os.path.exists(sys.argv[1]): sys.exit(3)
open(sys.argv[1], 'w')
pages = [bytes([i % 251] * 512) * 8 for i in range(4000)]
for turn in range(30):
    sum(page[5] for page in pages)
    time.sleep(0.05)
";
    let folder = tempfile::tempdir().unwrap();
    let mut command = ramfold(folder.path());
    command.args(["advise", "--json", "--trials", "1", "--at-most", "20"]);
    command.args(["--", "/usr/bin/python3", "-c", SCRIPT]).arg(folder.path().join("was here"));
    let ended = command.output().unwrap();
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let reason = "the program ended with status 3, and before with 0";
    assert!(said.contains(&format!("with all memory: does not count, because {reason}")), "{said}");
    assert!(!said.contains("trial 1"), "{said}");
    let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(
        (&advice["trials"], &advice["all_memory"]["runs"]),
        (&Value::Array(vec![]), &0.into())
    );
    assert!(advice["not_seen"].to_string().contains(reason), "{advice}");
}

#[test]
fn where_no_time_is_known_none_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut observation = observation(&["true"]);
    (observation.events, observation.run, observation.seconds) = (Vec::new(), None, 0.0);
    observation.subject = Subject::Pages("dump".to_owned());
    let dump = json(&["--replay", &record(&folder, &observation)]);
    for row in dump["rows"].as_array().unwrap() {
        for name in ["slowdown", "slowdown_low", "slowdown_high", "faults_per_second"] {
            assert_eq!(row.get(name), Some(&Value::Null), "{name}");
        }
        assert!(row["pool_bytes"].is_u64());
    }
    assert!(dump["recommended"]["command"].is_null());
    observation.subject = Subject::Files("/a b".to_owned());
    let files = json(&["--replay", &record(&folder, &observation)]);
    let command = files["recommended"]["command"].as_str().unwrap();
    let start = "mkdir -p '/a b.ramfold' && ramfold mount --memory ";
    assert!(command.starts_with(start), "{command}");
    assert!(command.ends_with("M '/a b' '/a b.ramfold'"), "{command}");
}

#[test]
fn too_little_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut Observation)| {
        let mut observation = observation(&["true"]);
        change(&mut observation);
        let ended = advise(&["--replay", &record(&folder, &observation)]);
        assert_eq!(ended.status.code(), Some(125));
        text(&ended.stderr)
    };
    let message = refused(|observation| observation.contents.blocks.truncate(7));
    assert!(
        message.contains("56 pages in 7 blocks") && message.contains("more to do"),
        "{message}"
    );
    let message = refused(|observation| observation.events.truncate(63));
    assert!(message.contains("63 pages"), "{message}");
    let message = refused(|observation| {
        observation.seconds = 0.5;
        observation.events.truncate(600);
    });
    assert!(message.contains("0.50 s were observed"), "{message}");
    let message = refused(|observation| {
        observation.contents.codecs[0] = "other".to_owned();
    });
    assert!(message.contains("no page was compressed with auto"), "{message}");
}

#[test]
fn bad_records_and_arguments_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = record(&folder, &observation(&["true"]));
    let bytes = fs::read(&good).unwrap();
    let bad = folder.path().join("bad.record");
    let bad = bad.to_str().unwrap();
    let mut other_version = bytes.clone();
    other_version[7] = 9;
    // A trace without notes: the header and the end.
    let mut plain = bytes[..32].to_vec();
    plain.extend_from_slice(&bytes[bytes.len() - 16..]);
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    for (content, message) in [
        (&bytes[..bytes.len() - 9], "in the middle of a record"),
        (&bytes[..5], "in the middle of a record"),
        (&other_version, "version 9"),
        (&plain, "is a trace of page accesses and no record"),
        (&damaged, "checksum"),
        (b"nothing of the kind, and long enough", "as a record of `ramfold advise`"),
    ] {
        fs::write(bad, content).unwrap();
        let ended = advise(&["--replay", bad]);
        let errors = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{message}");
        assert!(errors.contains(message) && errors.contains(bad), "{message}: {errors}");
    }
    for (arguments, message) in [
        (&["--replay", "/nowhere/record"][..], "cannot read /nowhere/record"),
        (&["--replay", &good, "--plot", "/nowhere/a.svg"], "cannot write /nowhere/a.svg"),
        (&["--replay", &good, "--score"], "cannot be used with"),
        (&["--replay", &good, "--at-most", "0.9"], "is no factor"),
        (&["--replay", &good, "--memory", "0"], "--memory 0"),
        (&["--replay", &good, "--record", bad], "cannot be used with"),
        (&["--replay", &good, "--trials", "1"], "cannot be used with"),
        (&["--trials", "1", "--pid", "1"], "cannot be used with"),
        (&["--trials", "1", "--cgroup", "/"], "cannot be used with"),
        (&["--trials", "1", "--pages", &good], "cannot be used with"),
        (&["--trials", "1", "--files", "/"], "cannot be used with"),
        (&["--trials", "1"], "required"),
        (&["--trials", "7", "--", "true"], "7 is not in 0..=6"),
        (&["--trials", "many", "--", "true"], "invalid value 'many'"),
        (&[], "required"),
    ] {
        let ended = advise(arguments);
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}");
        assert!(text(&ended.stderr).contains(message), "{arguments:?}: {}", text(&ended.stderr));
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_recommended_command_runs() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let odd = "a  b\n'c' \"d\" $e `f` \\ *";
    let record = record(&folder, &observation(&["printf", "%s", odd]));
    // However long a fault takes here.
    let advice = json(&["--replay", &record, "--at-most", "1000"]);
    let command = advice["recommended"]["command"].as_str().unwrap();
    let beside = Path::new(RAMFOLD).parent().unwrap();
    let path = format!("{}:{}", beside.display(), std::env::var("PATH").unwrap());
    let ended = Command::new("sh").args(["-c", command]).env("PATH", path).output().unwrap();
    assert!(ended.status.success(), "{command}: {}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), odd, "{command}");
}

/// Fills 64 MiB and goes over it some times.
const PROGRAM: &str = "
pages = [bytes([i % 251] * 1024) * 4 for i in range(14000)]
for _ in range(3):
    assert all(page[5] == i % 251 for i, page in enumerate(pages))
";

#[test]
fn a_run_is_compared_with_its_prediction() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let program = ["/usr/bin/python3", "-c", PROGRAM];
    let record = record(&folder, &observation(&program));
    let printed = folder.path().join("advice.json");
    fs::write(&printed, advise(&["--replay", &record, "--json"]).stdout).unwrap();
    for file in [&record, printed.to_str().unwrap()] {
        let mut run = ramfold(&state);
        let ended =
            run.args(["run", "--memory", "40M", "--prediction", file, "--"]).args(program).output();
        let ended = ended.unwrap();
        let errors = text(&ended.stderr);
        assert!(ended.status.success(), "{errors}");
        for word in ["with 40 MiB", "predicted", "run time", "greatest pool", "faults/s", "held"] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
        assert!(!errors.contains("another command line"), "{errors}");
    }
    let history = state.join("ramfold/predictions.jsonl");
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    let lines = fs::read_to_string(&history).unwrap();
    let entries: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 2);
    for entry in &entries {
        assert_eq!(entry["memory_bytes"], 40 * MIB);
        assert_eq!(entry["actual"]["held"], true, "{entry}");
        assert!(entry["actual"]["pool_bytes"].as_f64().unwrap() > 1e5, "{entry}");
        let times = entry["predicted"]["slowdown"].as_f64().unwrap();
        let seconds = entry["predicted"]["wall_s"].as_f64().unwrap();
        assert!((seconds - times * (SECONDS - 0.1)).abs() < 1e-6, "{entry}");
    }
    // A second history with a damaged line.
    fs::write(&history, format!("{lines}{{\"at_s\":\n")).unwrap();
    let score = ramfold(&state).args(["advise", "--score", "--json"]).output().unwrap();
    let score: Value = serde_json::from_slice(&score.stdout).unwrap();
    assert_eq!((&score["predictions"], &score["unreadable_lines"]), (&2.into(), &1.into()));
    assert_eq!((&score["intervals"]["count"], &score["pool"]["count"]), (&2.into(), &2.into()));
    let shown = text(&ramfold(&state).args(["advise", "--score"]).output().unwrap().stdout);
    assert!(shown.contains("2 predictions in") && shown.contains("within the 90 %"), "{shown}");
}

#[test]
fn a_bad_prediction_is_an_error_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, ran) = (folder.path().join("bad"), folder.path().join("ran"));
    let good = record(&folder, &observation(&["true"]));
    let zstd = advise(&["--replay", &good, "--codec", "zstd", "--json"]).stdout;
    let mut turned = json(&["--replay", &good]);
    turned["rows"].as_array_mut().unwrap().reverse();
    let turned = turned.to_string().into_bytes();
    for (content, message) in [
        (&b"{\"need_bytes\": 5}"[..], "neither a record nor what"),
        (&turned, "its rows do not go from much memory to little"),
        (b"text", "as a record of `ramfold advise`"),
        (&zstd, "is for --codec zstd-1"),
    ] {
        fs::write(&bad, content).unwrap();
        let mut run = ramfold(folder.path());
        let ended = run.args(["run", "--prediction"]).arg(&bad).args(["--", "touch"]).arg(&ran);
        let ended = ended.output().unwrap();
        assert_eq!(ended.status.code(), Some(125), "{message}");
        assert!(text(&ended.stderr).contains(message), "{message}: {}", text(&ended.stderr));
        assert!(!ran.exists());
    }
    let missing =
        ramfold(folder.path()).args(["run", "--prediction", "/nowhere/x", "true"]).output();
    assert!(text(&missing.unwrap().stderr).contains("--prediction /nowhere/x"));
}

#[test]
fn without_a_history_the_score_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ramfold(folder.path()).args(["advise", "--score"]).output().unwrap();
    assert!(ended.status.success());
    assert!(text(&ended.stdout).contains("0 predictions in"), "{ended:?}");
    let ended = ramfold(folder.path())
        .args(["advise", "--score"])
        .env_remove("XDG_STATE_HOME")
        .env_remove("HOME")
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(125));
    assert!(text(&ended.stderr).contains("there is no history"), "{ended:?}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn costs_are_kept_and_go_on_without() {
    let folder = tempfile::tempdir().unwrap();
    let good = record(&folder, &observation(&["true"]));
    let kept = cache().join("ramfold/machine.json");
    if kept.exists() {
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        let costs = |advice: Value| advice["costs"]["fault"].clone();
        let first = costs(json(&["--replay", &good]));
        assert_eq!(costs(json(&["--replay", &good])), first);
        assert!(first["wall_s"]["median"].as_f64().unwrap() > 1e-7, "{first}");
    }
    let mut command = ramfold(folder.path());
    command.args(["advise", "--replay", &good]).env("XDG_CACHE_HOME", "/proc/nowhere");
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
}

#[test]
fn the_manual_and_completions_have_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new(RAMFOLD).arg("manual").arg(folder.path()).status().unwrap().success());
    let share = folder.path().join("share");
    let page = fs::read_to_string(share.join("man/man1/ramfold-advise.1")).unwrap();
    assert!(page.contains("\\-\\-replay"), "{page}");
    assert!(!share.join("man/man1/ramfold-calibrate-workload.1").exists());
    let help = Command::new(RAMFOLD).arg("--help").output().unwrap();
    let help = text(&help.stdout);
    assert!(help.contains("advise") && !help.contains("calibrate-workload"), "{help}");
    for completion in
        ["bash-completion/completions/ramfold", "fish/vendor_completions.d/ramfold.fish"]
    {
        let text = fs::read_to_string(share.join(completion)).unwrap();
        assert!(text.contains("at-most"), "{completion}");
    }
}

/// A program that is killed when this is dropped.
struct Living(Child);

impl Drop for Living {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_running_process_is_measured_recorded_and_named() {
    const SCRIPT: &str = "
import sys
pages = [bytes([i % 251] * 512) * 8 for i in range(8000)]
print(flush=True)
while True: sum(page[5] for page in pages[:1000])
";
    let mut python = Command::new("/usr/bin/python3");
    let child = python.args(["-c", SCRIPT]).stdout(Stdio::piped()).spawn().unwrap();
    let mut living = Living(child);
    let mut line = String::new();
    BufReader::new(living.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = living.0.id().to_string();
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("process.record");
    let record = record.to_str().unwrap();
    let arguments = ["--pid", &pid, "--duration", "3s", "--at-most", "1000", "--record", record];
    let advice = json(&arguments);
    assert!(advice["need_bytes"].as_u64().unwrap() > 30 * MIB, "{advice}");
    assert!(advice["rows"][3]["slowdown"].as_f64().unwrap() >= 1.0, "{advice}");
    let command = advice["recommended"]["command"].as_str().unwrap();
    assert!(command.contains("-- /usr/bin/python3 -c '\nimport sys"), "{command}");
    let again = json(&["--replay", record, "--at-most", "1000"]);
    assert_eq!(again["rows"][0]["memory_bytes"], advice["rows"][0]["memory_bytes"]);
    drop(living);
    let ended = advise(&["--pid", &pid]);
    assert_eq!(ended.status.code(), Some(125));
    assert!(text(&ended.stderr).contains(&pid), "{}", text(&ended.stderr));
}

#[test]
fn a_dump_and_a_directory_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let lines: String = (0..200_000).map(|nth| format!("{nth} is followed by {nth}\n")).collect();
    let pages = data.join("pages");
    fs::write(&pages, &lines.as_bytes()[..4 << 20]).unwrap();
    let dump = json(&["--pages", pages.to_str().unwrap()]);
    let files = json(&["--files", data.to_str().unwrap()]);
    for advice in [&dump, &files] {
        assert_eq!(advice["need_bytes"], 4 * MIB);
        assert!(advice["rows"][0]["slowdown"].is_null());
        assert!(advice["codecs"]["auto"]["ratio"].as_f64().unwrap() > 1.5, "{advice}");
    }
    let command = files["recommended"]["command"].as_str().unwrap();
    assert!(command.contains("ramfold mount --memory "), "{command}");
    let empty = advise(&["--pages", "/dev/null"]);
    assert_eq!(empty.status.code(), Some(125));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_is_observed_from_its_start_on() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import time
pages = [bytes([i % 251] * 512) * 8 for i in range(16000)]
end = time.monotonic() + 3
while time.monotonic() < end: sum(page[5] for page in pages)
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("program.record");
    let mut command = ramfold(folder.path());
    command.args(["advise", "--json", "--record"]).arg(&record);
    let ended = command.args(["--", "/usr/bin/python3", "-c", SCRIPT]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    // What the program prints is not in the way of the advice.
    assert!(text(&ended.stderr).contains("right"), "{}", text(&ended.stderr));
    let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(advice["need_bytes"].as_u64().unwrap() > 60 * MIB, "{advice}");
    assert!(advice["run"]["wall_s"].as_f64().unwrap() > 3.0, "{advice}");
    assert!(advice["rows"][10]["slowdown"].as_f64().unwrap() > 1.0, "{advice}");
    let again = json(&["--replay", record.to_str().unwrap()]);
    assert_eq!(again["rows"], advice["rows"]);

    let missing = advise(&["--", "no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    let short = advise(&["--", "true"]);
    assert_eq!(short.status.code(), Some(125));
    assert!(text(&short.stderr).contains("give the program more to do"), "{short:?}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn other_programs_that_are_in_the_way_are_named() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import sys, time
pages = [bytes([i % 251] * 512) * 8 for i in range(16000)]
end = time.monotonic() + 3
while time.monotonic() < end: sum(page[5] for page in pages)
open(sys.argv[1], 'w')
";
    // As long as the program runs: what is done with what was seen takes its time.
    const BUSY: &str = "
import os, sys
while not os.path.exists(sys.argv[1]): pass
";
    cache();
    let processors = std::thread::available_parallelism().unwrap().get();
    let stat = fs::read_to_string("/proc/stat").unwrap();
    if stat.lines().filter(|line| line.starts_with("cpu")).count() != 1 + processors {
        eprintln!("skipped: not all processors can be made busy");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let over = folder.path().join("over");
    let busy = |_| {
        let mut python = Command::new("/usr/bin/python3");
        Living(python.args(["-c", BUSY]).arg(&over).spawn().unwrap())
    };
    let _busy: Vec<Living> = (0..processors).map(busy).collect();
    let ended = advise(&["--json", "--", "/usr/bin/python3", "-c", SCRIPT, over.to_str().unwrap()]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let not_seen = advice["not_seen"].to_string();
    assert!(not_seen.contains("processors meanwhile, and none was left"), "{not_seen}");
}

//! `ramfold-bench advise`, tiny, with a script in ramfold's place: what it predicts is known, and
//! so is what happens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A program that stands in for `ramfold`: it says that all programs need 1 GB and take 1.2 times
/// as long with three quarters of it, and runs them without a cap.
fn stand_in(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let row = |memory: u64, slowdown: f64, chance: f64| {
        format!(
            r#"{{"memory_bytes": {memory}, "pool_bytes": 2097152, "pool_bytes_low": 2000000,
            "pool_bytes_high": 2200000, "slowdown": {slowdown}, "slowdown_low": 0.001,
            "slowdown_high": 1000, "faults_per_second": 10, "cannot_hold_probability": {chance},
            "zram_slowdown": 2}}"#
        )
    };
    let rows = [row(1 << 30, 1.0, 0.0), row(3 << 28, 1.2, 0.0), row(1 << 29, 9.0, 1.0)].join(",");
    let advice = format!(
        r#"{{"need_bytes": 1073741824, "codecs": {{}}, "rows": [{rows}],
        "run": {{"wall_s": 3}}, "all_memory": {{"wall_s": 2}}, "costs": {{}}, "not_seen": ["the end"], "trials": [{{
        "memory_bytes": 858993459, "of_need": 0.8, "run_time": 1.1, "at_least": false,
        "pool_bytes": 5, "faults": 6, "failed": null}}]}}"#
    );
    let script = format!(
        "#!/bin/sh\n\
         if [ $1 = run ]; then\n\
         [ $3 = 786432K ] || exit 125\n\
         echo '{{\"pool_bytes_max\": 2097152, \"faults\": 24}}' > \"$5\"; shift 6; exec \"$@\"\n\
         elif [ $3 = --record ]; then echo kept > \"$4\"; shift 4\n\
         [ $1 != --trials ] || {{ [ \"$2 $3 $4\" = '2 --at-most 1.5' ] && shift 4; }} || exit 125\n\
         shift; exec \"$@\"\n\
         else cat <<'END'\n{advice}\nEND\n\
         fi\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn advise(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ramfold-bench"))
        .arg("advise")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_is_predicted_is_held_against_what_happens() {
    let ramfold = stand_in("ramfold-that-advises");
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let fixed = ["--program", "sort", "--peer", "ramfold", "--scale", "0.01", "--runs", "2"];
    let trials = ["--trials", "2", "--at-most", "1.5"];
    let memory = ["--memory", "75%,50%,40%", "--ramfold", ramfold.to_str().unwrap()];
    let written = ["--json", "--plot", plot.to_str().unwrap()];
    let output = advise(&[&fixed[..], &trials, &memory, &written].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    // What is said not to be held is not run.
    assert_eq!(rows.len(), 1, "{report}");
    assert_eq!(report["programs"][0]["cannot_be_held"].as_array().unwrap().len(), 2);
    assert_eq!(report["programs"][0]["trials"][0]["run_time"], 1.1, "{report}");
    let row = &rows[0];
    assert_eq!((&row["program"], &row["predicted"]), (&"sort".into(), &1.2.into()));
    assert_eq!(row["samples"].as_array().unwrap().len(), 2);
    assert_eq!((&row["pool_error"], &row["is_pool_in_interval"]), (&0.0.into(), &true.into()));
    assert_eq!((&row["predicted_faults"], &row["actual_faults"]), (&24.0.into(), &24.0.into()));
    assert_eq!((&row["is_in_interval"], &row["is_output_right"]), (&true.into(), &true.into()));
    let (actual, error) = (row["actual"].as_f64().unwrap(), row["error"].as_f64().unwrap());
    assert!((1.2 / actual - 1.0 - error).abs() < 1e-9, "{row}");
    assert_eq!(report["summary"]["intervals"]["right"], 1);
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));

    let table = advise(&[&fixed[..], &memory].concat());
    let table = text(&table.stdout);
    assert!(table.contains("sort: not run at 50 %, 40 %: predicted not to be held"), "{table}");
    assert!(table.contains("sort: advise tried 80 % (1.10 times)"), "{table}");
}

#[test]
fn every_program_that_is_installed_runs() {
    let ramfold = stand_in("ramfold-that-advises-all");
    let options = ["--peer", "ramfold", "--scale", "0.01", "--runs", "1", "--memory", "75%"];
    let output =
        advise(&[&options[..], &["--json", "--ramfold", ramfold.to_str().unwrap()]].concat());
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let listed = text(&advise(&["--list"]).stdout);
    let listed_count = listed.lines().filter(|line| !line.starts_with(' ')).count();
    let missing = listed.matches("not here: ").count();
    assert_eq!(report["rows"].as_array().unwrap().len(), listed_count - missing, "{report}");
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, reason) in [
        (["--program", "unheard-of"], "no program 'unheard-of'"),
        (["--memory", "12M"], "no part of what a program needs"),
        (["--peer", "swap"], "nothing is predicted of 'swap'"),
        (["--ramfold", "/nonexistent/ramfold"], "/nonexistent/ramfold"),
    ] {
        let output = advise(&options);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

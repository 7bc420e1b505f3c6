//! `ramfold-bench curve`, tiny.

use std::process::{Command, Output};

use serde_json::Value;

fn curve(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ramfold-bench")).arg("curve").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn misses_of_a_watched_run_are_held_against_all_of_its_accesses() {
    let scratch = tempfile::tempdir().unwrap();
    let tiny = ["--size", "4M", "--seconds", "1", "--runs", "2", "--pattern", "loop,uniform"];
    let output =
        curve(&[&tiny[..], &["--json", "--scratch"], &[scratch.path().to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    for row in rows {
        assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
        for run in row["runs"].as_array().unwrap() {
            let sizes = run["sizes"].as_array().unwrap();
            assert_eq!(sizes.len(), 10, "{run}");
            // The more memory there is, the fewer misses.
            let exact: Vec<f64> =
                sizes.iter().map(|size| size["exact"].as_f64().unwrap()).collect();
            assert!(exact.windows(2).all(|pair| pair[0] >= pair[1]), "{exact:?}");
            assert!(exact[0] > 0.5 && exact[9] < 0.5, "{exact:?}");
            // Of so short a run little is seen, and all of its pages.
            assert!(sizes.iter().all(|size| size["live"].as_f64().unwrap() > 0.01), "{run}");
        }
        assert!(row["error"].as_f64().unwrap() < 60.0, "{row}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, reason) in [
        (["--pattern", "unheard-of"], "no order 'unheard-of'"),
        (["--size", "1000"], "0 pages cannot be used"),
        (["--slowdown", "a lot"], "'a lot'"),
    ] {
        let output = curve(&[&options[..], &["--seconds", "0.1", "--runs", "1"]].concat());
        assert!(!output.status.success(), "{options:?}");
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    let listed = curve(&["--list"]);
    assert_eq!(text(&listed.stdout).lines().count(), 8);
}

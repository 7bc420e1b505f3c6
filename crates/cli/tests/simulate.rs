//! `ramfold simulate`: the command, its output and its errors.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A loop over 1,000 pages.
fn trace(folder: &Path) -> PathBuf {
    let path = folder.join("loop.csv");
    let mut lines = String::new();
    for nth in 0..20_000 {
        writeln!(lines, "{nth},{}", nth % 1000).unwrap();
    }
    fs::write(&path, lines).unwrap();
    path
}

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold"));
    command.arg("simulate").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn sizes_and_policies_are_in_a_table_a_plot_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let trace = trace.to_str().unwrap();
    let plot = folder.path().join("curve.svg");
    let ended = simulate(&[trace, "--plot", plot.to_str().unwrap()]);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let table = text(&ended.stdout);
    for word in ["20000 accesses to 1000 pages", "ramfold-run", "ramfold-mount", "lru by sample"] {
        assert!(table.contains(word), "{table}");
    }
    assert!(fs::read_to_string(plot).unwrap().contains("<svg"));

    let ended =
        simulate(&[trace, "--json", "--policy", "lru", "--memory", "50%", "--memory", "4M"]);
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let figure = |row: usize, name: &str| rows[row]["policies"][0][name].as_f64().unwrap();
    assert_eq!(report["pages"], 1000);
    assert_eq!((rows.len(), rows[1]["memory_bytes"].as_u64()), (2, Some(4 << 20)));
    assert_eq!((figure(0, "miss_ratio"), figure(0, "faults")), (1.0, 19_000.0));
    assert_eq!((figure(1, "miss_ratio"), figure(1, "faults")), (0.05, 0.0));
}

#[test]
fn a_sample_can_be_saved_and_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let saved = folder.path().join("loop.pages");
    let saved = saved.to_str().unwrap();
    let arguments = [trace.to_str().unwrap(), "--one-in", "4", "--save", saved];
    assert!(simulate(&arguments).status.success());
    let metadata = fs::metadata(saved).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    // Three bytes for an access.
    assert!(metadata.len() < 20_000 / 4 * 4, "{}", metadata.len());
    let shown = simulate(&[saved]);
    assert!(text(&shown.stdout).contains("one page in 4 is in the trace"), "{shown:?}");
    // What was cut off says so.
    let bytes = fs::read(saved).unwrap();
    fs::write(saved, &bytes[..bytes.len() - 9]).unwrap();
    let refused = simulate(&[saved]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("in the middle of a record"), "{refused:?}");
}

#[test]
fn bad_input_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let trace = trace.to_str().unwrap();
    let none = folder.path().join("none");
    for (arguments, message) in [
        (&[none.to_str().unwrap()][..], "No such file"),
        (&["/dev/null"], "is no regular file"),
        (&["/proc/self/exe", "--format", "csv"], "line 1 of the trace"),
        (&["/bin/sh"], "of no known format"),
        (&[trace, "--ratio", "3", "--memory", "20%"], "cannot hold the trace's pages"),
        (&[trace, "--ratio", "0.5"], "a ratio is above 1"),
        (&[trace, "--plot", "/nowhere/curve.svg"], "cannot write /nowhere/curve.svg"),
        (&[trace, "--save", trace], "cannot write"),
    ] {
        let ended = simulate(arguments);
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}");
        assert!(text(&ended.stderr).contains(message), "{arguments:?}: {}", text(&ended.stderr));
    }
}

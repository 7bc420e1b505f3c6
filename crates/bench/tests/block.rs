//! `ramfold-bench block`, tiny: every device that can be used here.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn block(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold-bench"));
    command.args(["block", "--data", "32M", "--seconds", "1", "--runs", "1"]);
    command.args(["--scratch", folder.path().to_str().unwrap()]).args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_here(program: &str) -> bool {
    let is_here = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(program).is_file());
    if !is_here {
        eprintln!("SKIPPED: there is no {program}");
    }
    is_here
}

/// `ramfold` beside this, where the workspace was built as a whole.
fn ramfold_is_here() -> bool {
    let is_here = Path::new(env!("CARGO_BIN_EXE_ramfold-bench")).with_file_name("ramfold").exists();
    if !is_here {
        eprintln!("SKIPPED: ramfold is not built");
    }
    is_here
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_device_is_measured() {
    if !["fio", "nbdcopy", "nbdkit"].into_iter().all(is_here) || !ramfold_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let peers = "nbdkit,nbdkit-zstd,ramfold,ramfold-backing:write-through,file,zram";
    let options = ["--peer", peers, "--connections", "1,2", "--depth", "4", "--json", "--plot"];
    let options = [&options[..], &[plot.to_str().unwrap(), "--copies", "2", "--rest", "1"]];
    let output = block(&options.concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let memory = report["memory"].as_array().unwrap();
    let skipped = report["skipped"].as_array().unwrap();
    assert_eq!(memory.len() + skipped.len(), 6, "{report}");
    let share = |peer: &str| {
        let row = memory.iter().find(|row| row["peer"] == peer)?;
        row["share"].as_f64()
    };
    assert!((0.9..1.3).contains(&share("nbdkit").unwrap()), "{report}");
    // The content compresses to about half, and each page is there twice: 8 MiB, and up to 2 MiB of
    // the server's buffers.
    let ramfold = share("ramfold").unwrap();
    assert!(ramfold > 0.2 && ramfold < 0.45, "{report}");
    assert!(memory.iter().all(|row| row["rested_bytes"].is_number()), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), memory.len() * 6, "{report}");
    for row in rows {
        assert!(row["requests_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["latency_ns_p99"].as_f64() >= row["latency_ns_p50"].as_f64(), "{row}");
    }
    assert!(std::fs::read_to_string(plot).unwrap().contains("random-read"));
}

#[test]
fn what_cannot_be_measured_is_named() {
    if !["fio", "nbdcopy"].into_iter().all(is_here) || !ramfold_is_here() {
        return;
    }
    for (options, said) in [
        (&["--peer", "disk"][..], "there is no device 'disk'"),
        (&["--job", "random"], "there is no job 'random'"),
        (&["--connections", "1", "--plot", "x.svg"], "--plot draws throughput"),
    ] {
        let output = block(options);
        let said_it = text(&output.stderr);
        assert!(!output.status.success() && said_it.contains(said), "{said_it}");
    }
}

//! The peer `ramfold`, with scripts in its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::support::{machine, run, text};

/// A program that stands in for `ramfold`: what follows is the body of `run`.
fn stand_in(name: &str, body: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // run --memory CAP --stats FILE [--codec CODEC] -- PROGRAM...
    let script = format!(
        "#!/bin/sh\ncap=$3 stats=$5 codec=auto\nshift 5\n\
         if [ $1 = --codec ]; then codec=$2; shift 2; fi\nshift\n{body}\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn run_ramfold(path: &Path, extra: &[&str]) -> Output {
    run_peers(path, "none,ramfold", extra)
}

fn run_peers(path: &Path, peers: &str, extra: &[&str]) -> Output {
    let path = path.to_str().unwrap();
    // Far more memory than it needs, so that a stand-in can do without paging.
    let fixed = ["--memory", "1G", "--size", "4M", "--runs", "1", "--scale", "0.01"];
    let named = ["--workload", "random-rw", "--peer", peers, "--ramfold", path];
    run(&[fixed.as_slice(), &named, extra].concat())
}

#[test]
fn the_ramfold_peer_is_wrapped_and_accounted() {
    let _machine = machine();
    let body = r#"echo "{\"memory_cap_bytes\": ${cap%K}, \"faults\": 7, \"pages_swapped_in\": 5,
        \"pool_bytes_max\": 4096, \"codec\": \"lz4\"}" > "$stats"; exec "$@""#;
    let output = run_ramfold(&stand_in("ramfold-good", body), &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["rows"][1];
    assert_eq!(row["peer"], "ramfold");
    assert_eq!(row["output_right"], true);
    assert_eq!(row["ramfold"]["faults"], 7);
    assert_eq!(row["swap_in_pages"], 5);
    assert_eq!(row["pool_bytes_peak"], 4096);
    let limit = row["limit_bytes"].as_u64().unwrap();
    assert_eq!(row["ramfold"]["memory_cap_bytes"], limit / 1024);
    assert_eq!(limit, 1 << 30);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn what_runs_beside_a_sleeping_program_counts() {
    let _machine = machine();
    // Something that has left the program's process group, and whose parent has ended.
    let body = r#"echo "{\"processes_activated\": 1}" > "$stats"
        setsid sh -c 'sleep 600 & exec true' > /dev/null 2>&1; "$@""#;
    let path = stand_in("ramfold-beside", body);
    let report = {
        let named = ["--workload", "idle,prefork", "--peer", "none,ramfold", "--runs", "2"];
        let fixed = ["--memory", "1G", "--size", "4M", "--scale", "0.05", "--json", "--ramfold"];
        let output = run(&[&named[..], &fixed, &[path.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2);
    let hierarchy = report["environment"]["cgroup"].as_str().unwrap();
    for row in rows.iter().filter(|row| row["peer"] == "ramfold") {
        // The program, what it forked (a twentieth of 40), the shell that stands for ramfold, and
        // without a cgroup not what nothing leads to.
        let program = if row["workload"] == "idle" { 1 } else { 1 + 2 };
        let beside = if hierarchy.starts_with("none") { 1 } else { 2 };
        assert_eq!(row["idle"]["processes"], program + beside, "{row}");
        assert_eq!(row["idle"]["names"]["sleep"]["threads"] == 1, beside == 2, "{row}");
        assert_eq!(row["idle_runs"].as_array().unwrap().len(), 2, "{row}");
        assert_eq!(row["ramfold"]["processes_activated"], 1, "{row}");
        assert!(row["pss_anon_ratio_to_none"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn ramfold_is_compared_with_itself_by_codec() {
    let _machine = machine();
    let body = r#"echo "{\"codec\": \"$codec\"}" > "$stats"; exec "$@""#;
    let path = stand_in("ramfold-codecs", body);
    let output = run_peers(&path, "ramfold:zstd-1,ramfold,ramfold:wkv", &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().map(|row| (&row["peer"], &row["codec"])).collect();
    let expected = [("ramfold", "auto"), ("ramfold:zstd-1", "zstd-1"), ("ramfold:wkv", "wkv")];
    assert_eq!(found.len(), expected.len());
    for ((peer, codec), (peer_expected, codec_expected)) in found.into_iter().zip(expected) {
        assert_eq!((peer, codec), (&peer_expected.into(), &codec_expected.into()));
    }
}

#[test]
fn failures_of_ramfold_are_told() {
    let _machine = machine();
    let own = stand_in("ramfold-125", "echo 'no userfaultfd here' >&2; exit 125");
    let output = run_ramfold(&own, &[]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no userfaultfd here"), "{}", text(&output.stderr));

    let silent = run_ramfold(&stand_in("ramfold-silent", r#"exec "$@""#), &[]);
    assert!(!silent.status.success());
    assert!(text(&silent.stderr).contains("statistics"), "{}", text(&silent.stderr));

    let wrong =
        stand_in("ramfold-wrong", r#"echo '{}' > "$stats"; "$@" | sed 's/hash":"./hash":"/'"#);
    let output = run_ramfold(&wrong, &["--keep-going"]);
    assert!(!output.status.success());
    assert!(text(&output.stdout).contains("WRONG"), "{}", text(&output.stdout));
    assert!(!run_ramfold(&wrong, &[]).status.success());

    let missing = run_ramfold(Path::new("/nonexistent/ramfold"), &[]);
    assert!(!missing.status.success());
    assert!(text(&missing.stderr).contains("/nonexistent/ramfold"), "{}", text(&missing.stderr));

    let failing = run_ramfold(&stand_in("ramfold-3", "echo '{}' > \"$stats\"; exit 3"), &[]);
    assert!(text(&failing.stderr).contains("status 3"), "{}", text(&failing.stderr));
}

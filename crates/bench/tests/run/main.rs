//! `ramfold-bench run`, tiny: every workload and every peer that works here, and
//! what is left of a run that ends in any other way.
//!
//! Peers of the kernel need root and zram; without them the tests say so and
//! check the rest.

mod halted;
mod ramfold;
mod settings;
mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use settings::Settings;
use support::{bench, is_installed, kernel_peers, machine, report, root, run, text};

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_workload_runs_without_a_cap() {
    let _machine = machine();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/src/workloads/python_demo.py");
    let mut names = vec![
        "sequential-ro",
        "sequential-rw",
        "reverse-rw",
        "strided-rw",
        "streams-rw",
        "random-ro",
        "random-rw",
        "zipf-ro",
        "zipf-rw",
        "phases-rw",
        "cold-rw",
        "fit",
        "gnu-sort",
    ];
    for (name, command) in [
        ("python-demo", "python3"),
        ("gcc", "gcc"),
        ("redis", "redis-server"),
        ("adpcm", "ffmpeg"),
        ("jpeg", "cjpeg"),
        ("mpeg2", "ffmpeg"),
    ] {
        if is_installed(command) {
            names.push(name);
        } else {
            println!("no {command}: {name} is left out");
        }
    }
    names.push("matrix");
    let mut memories: Vec<_> = names.iter().map(|&name| (name, "50%")).collect();
    memories.iter_mut().filter(|(name, _)| *name == "fit").for_each(|row| row.1 = "150%");
    for name in ["idle", "prefork"] {
        names.push(name);
        memories.extend([(name, "50%"), (name, "1000%")]);
    }
    let workloads = names.join(",");
    let arguments = [
        "--peer",
        "none",
        "--workload",
        &workloads,
        "--size",
        "24M",
        "--scale",
        "0.1",
        "--runs",
        "1",
        "--demo",
        demo,
        "--latency",
    ];
    let report = report(&arguments);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), memories.len());
    for (row, (name, memory)) in rows.iter().zip(memories) {
        assert_eq!((&row["workload"], &row["memory"]), (&name.into(), &memory.into()));
        assert_eq!(row["output_right"], true, "{row}");
        assert_eq!(row["seconds"].as_array().unwrap().len(), 1);
        assert!(row["seconds_median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["need_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        assert_eq!(row["ratio_to_none"], 1.0);
        let timed = name.contains("-r") || name == "prefork";
        assert_eq!(row["latency"].is_object(), timed, "{row}");
        // A tenth of the 40 children.
        let processes = match name {
            "idle" => Some(1),
            "prefork" => Some(1 + 4),
            _ => None,
        };
        assert_eq!(row["idle"]["processes"].as_u64(), processes, "{row}");
        assert_eq!(row["idle"]["threads"].as_u64(), processes, "{row}");
        if processes.is_some() {
            let number = |name: &str| row["idle"][name].as_f64().unwrap();
            // The heap is there once; children have 5 % of it each.
            let heap = 24.0 * f64::from(1 << 20);
            assert!(number("pss_anon_bytes") > 0.9 * heap, "{row}");
            assert!(number("pss_anon_bytes") < 2.0 * heap, "{row}");
            assert!(number("seconds") >= 1.0, "{row}");
            assert!(number("wakeups_per_s") >= 0.0 && number("core_percent") >= 0.0, "{row}");
            assert_eq!(row["pss_anon_ratio_to_none"], 1.0, "{row}");
        }
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_plot_has_a_curve_for_each_amount_of_memory() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let common = ["--peer", "none", "--workload", "zipf-ro,fit", "--size", "8M", "--scale", "0.1"];
    let common = [&common[..], &["--runs", "1", "--plot", plot.to_str().unwrap()]].concat();
    let report = report(&[&common[..], &["--memory", "300%,400%", "--latency"]].concat());
    let rows = report["rows"].as_array().unwrap();
    let seen: Vec<_> =
        rows.iter().map(|row| (row["workload"].clone(), row["memory"].clone())).collect();
    let expected = [("zipf-ro", "300%"), ("zipf-ro", "400%"), ("fit", "150%")];
    assert_eq!(seen, expected.map(|(workload, memory)| (workload.into(), memory.into())));
    for row in rows {
        assert_eq!(row["latency_histogram"].is_array(), row["workload"] != "fit", "{row}");
    }
    let drawn = fs::read_to_string(&plot).unwrap();
    assert!(drawn.contains("zipf-ro in 400%: accesses"), "{drawn}");

    let nothing = run(&[&common[..], &["--memory", "50%"]].concat());
    let said = text(&nothing.stderr);
    assert!(!nothing.status.success() && said.contains("--plot draws"), "{said}");
}

/// Whether a peer's pool lies outside of the program's cgroup, so that its limit has to be found.
fn has_pool_outside(peer: &str) -> bool {
    let version_1 = Path::new("/sys/fs/cgroup/memory").exists();
    peer.starts_with("zram") || peer == "zswap" && version_1
}

/// How near the kernel comes to the asked total is its own affair, and that of whatever else swaps
/// meanwhile: the first limit is taken here. `calibrate` has tests of the search.
#[test]
#[ignore = "slow: make test-all runs it"]
fn kernel_peers_swap_what_does_not_fit_and_leave_nothing() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    let before = Settings::undisturbed();
    let report = report(&[
        "--peer",
        &[&["none"], peers.as_slice()].concat().join(","),
        "--workload",
        "sequential-rw,zipf-ro",
        "--size",
        "32M",
        "--memory",
        "70%",
        "--tolerance",
        "1000",
        "--scale",
        "0.25",
        "--runs",
        "1",
    ]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * (1 + peers.len()));
    for row in rows {
        assert_eq!(row["output_right"], true, "{row}");
        let peer = row["peer"].as_str().unwrap();
        if peer == "none" {
            assert!(row["limit_bytes"].is_null(), "{row}");
            continue;
        }
        let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name} in {row}"));
        let (need, asked, limit) =
            (number("need_bytes"), number("asked_total_bytes"), number("limit_bytes"));
        let (total, pool) = (number("total_memory_bytes"), number("pool_bytes_peak"));
        assert!(asked.abs_diff(need * 7 / 10) <= 1, "{row}");
        assert_eq!(number("cgroup_limit_bytes"), limit, "{row}");
        assert!(row["fill_seconds_median"].as_f64().unwrap() > 0.0, "{row}");
        // The check of all pages at the end brings back those that are out. Zeros and what is
        // still under way to the disk may come back uncounted.
        assert!(number("swap_in_pages") > (need - limit) / 4096 / 4, "{row}");
        assert_eq!(pool > 0, peer != "swap", "{row}");
        // Where the pool is outside it is in the total, beside what the cgroup held.
        let outside = if has_pool_outside(peer) { pool } else { 0 };
        assert!(total > outside + limit / 2 && total <= outside + limit + (1 << 20), "{row}");
        if has_pool_outside(peer) {
            let compressed = row["lz4_percent"].as_f64().unwrap() / 100.0 * 1.07;
            let expected = (asked as f64 - compressed * need as f64) / (1.0 - compressed);
            // A run that the kernel kills asks for more.
            assert!(limit as f64 > expected - 4096.0 && limit < asked, "{expected}: {row}");
        } else {
            assert_eq!(limit, asked, "{row}");
        }
        if peer.starts_with("zram") {
            assert!(row["ratio_to_zram"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    assert_eq!(Settings::undisturbed(), before);
}

#[test]
fn bad_options_are_errors() {
    let _machine = machine();
    for arguments in [
        ["--peer", "unheard-of"],
        ["--peer", "ramfold:unheard-of"],
        ["--workload", "unheard-of"],
        ["--memory", "0%"],
        ["--size", "many"],
        ["--runs", "0"],
        ["--scale", "-1"],
    ] {
        let output = run(&arguments);
        assert!(!output.status.success(), "{arguments:?} was taken");
        assert!(!output.stderr.is_empty());
    }
    let output = run(&["--peer", "none", "--workload", "fit", "--time-limit", "0.001"]);
    assert!(text(&output.stderr).contains("time limit"), "{}", text(&output.stderr));
}

#[test]
fn without_root_the_rest_still_works() {
    if !root() {
        println!("not root: the other tests show this");
        return;
    }
    const NOBODY: u32 = 65534;
    let _machine = machine();
    let home = std::env::temp_dir().join(format!("ramfold-bench-nobody-{}", std::process::id()));
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let home_text = home.to_str().unwrap();
        let mut command = bench();
        command.args(arguments).args(["--scratch", home_text]).env("HOME", &home);
        command.env_remove("XDG_STATE_HOME").current_dir("/").uid(NOBODY).gid(NOBODY).output()
    };
    match as_nobody(&["--list"]) {
        Ok(_) => {
            let named = as_nobody(&["--peer", "zram-lz4"]).unwrap();
            assert!(!named.status.success());
            assert!(text(&named.stderr).contains("sudo"), "{}", text(&named.stderr));
            let small = ["--peer", "none", "--workload", "random-rw", "--size", "24M", "--json"];
            let output = as_nobody(&small).unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let need = report["rows"][0]["need_bytes"].as_u64().unwrap();
            // Sampled: on a busy machine not all of it may be seen.
            assert!(need > 1 << 20, "need {need}");
        }
        Err(error) => println!("another user cannot run the binary here: {error}"),
    }
    fs::remove_dir_all(&home).unwrap();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_memeater_gets_the_memory_there_is_and_more_with_zram() {
    let _machine = machine();
    let Some(kernel) = kernel_peers() else { return };
    let zram = kernel.contains(&"zram-lz4");
    let peers = if zram { "none,zram-lz4" } else { "none" };
    let output = Command::new(env!("CARGO_BIN_EXE_ramfold-bench"))
        .args(["memeater", "--memory", "24M", "--peer", peers, "--runs", "3", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The kernel may end a run before the swap is full.
    let most: Vec<f64> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["allocated_bytes_max"].as_f64().unwrap() / f64::from(1 << 20))
        .collect();
    assert!((12.0..=24.0).contains(&most[0]), "{most:?}");
    // With zram the program has an eighth of the memory resident: all above that was compressed.
    assert!(!zram || most[1] > 2.0 * 24.0 / 8.0, "{most:?}");
}

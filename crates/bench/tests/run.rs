//! `ramfold-bench run`, tiny: every workload and every peer that works here, and
//! what is left of a run that ends in any other way.
//!
//! Peers of the kernel need root and zram; without them the tests say so and
//! check the rest.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The settings under test belong to the machine: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

const STATE: &str = "/var/lib/ramfold-bench";
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold-bench"));
    command.arg("run").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    bench().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn report(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Names the kernel's peers that can run here; prints why not.
fn kernel_peers() -> Option<Vec<&'static str>> {
    if !root() {
        println!("not root: the peers of the kernel are left out");
        return None;
    }
    let list = text(&run(&["--list"]).stdout);
    let works = |peer: &&str| {
        let mut lines = list.lines().skip_while(|line| !line.starts_with(&format!("  {peer} ")));
        let works = lines.nth(1).is_none_or(|line| !line.contains("not here:"));
        if !works {
            println!("{peer} does not work here");
        }
        works
    };
    Some(["swap", "zram-lz4", "zram-lzo-rle", "zswap"].into_iter().filter(works).collect())
}

fn is_installed(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

#[test]
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
    assert_eq!(rows.len(), names.len());
    for (row, name) in rows.iter().zip(names) {
        assert_eq!(row["workload"], name);
        assert_eq!(row["output_right"], true, "{row}");
        assert_eq!(row["seconds"].as_array().unwrap().len(), 1);
        assert!(row["seconds_median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["need_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
        assert_eq!(row["ratio_to_none"], 1.0);
        assert_eq!(row["latency"].is_object(), name.contains("-r"), "{row}");
    }
}

#[test]
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

#[test]
fn kernel_peers_cost_what_was_asked_and_leave_nothing() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    let before = Settings::read();
    let report = report(&[
        "--peer",
        &[&["none"], peers.as_slice()].concat().join(","),
        "--workload",
        "sequential-rw,zipf-ro",
        "--size",
        "32M",
        "--memory",
        "70%",
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
        let (asked, limit) = (number("asked_total_bytes"), number("limit_bytes"));
        let (total, pool) = (number("total_memory_bytes"), number("pool_bytes_peak"));
        assert_eq!(asked, number("need_bytes") * 7 / 10, "{row}");
        assert!((asked * 9 / 10..asked * 11 / 10).contains(&total), "{row}");
        assert!(number("swap_in_pages") > 100, "{row}");
        assert_eq!(pool > 0, peer != "swap", "{row}");
        assert!(row["fill_seconds_median"].as_f64().unwrap() > 0.0, "{row}");
        if peer.starts_with("zram") {
            assert!(limit + pool / 2 < asked, "{row}");
            assert!(row["ratio_to_zram"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    assert_eq!(Settings::read(), before);
}

/// What a run sets and has to take back.
#[derive(Debug, PartialEq)]
struct Settings {
    zswap: Vec<(PathBuf, String)>,
    page_cluster: String,
    ours: BTreeSet<PathBuf>,
}

impl Settings {
    fn read() -> Self {
        let mut zswap: Vec<(PathBuf, String)> = fs::read_dir(ZSWAP)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
            .collect();
        zswap.sort();
        let mut ours = BTreeSet::new();
        for folder in [Path::new(STATE), Path::new("/sys/fs/cgroup")] {
            find_ours(folder, 6, &mut ours);
        }
        for line in fs::read_to_string("/proc/swaps").unwrap().lines() {
            if line.contains("ramfold-bench-") {
                ours.insert(PathBuf::from(line));
            }
        }
        let page_cluster = fs::read_to_string("/proc/sys/vm/page-cluster").unwrap();
        Self { zswap, page_cluster, ours }
    }
}

fn find_ours(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if entry.file_name().to_string_lossy().starts_with("ramfold-bench-") {
            found.insert(entry.path());
        } else if is_folder && depth > 0 {
            find_ours(&entry.path(), depth - 1, found);
        }
    }
}

/// Waits for the run to reach the middle: swap is on and its program runs.
/// Gives the journal of that moment.
fn wait_for_the_middle(child: &mut Child) -> Value {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("the run ended early with {status}: {errors}");
        }
        let journal = fs::read(Path::new(STATE).join("journal.json")).unwrap_or_default();
        if let Ok(journal) = serde_json::from_slice::<Value>(&journal)
            && journal["pid"] == child.id()
            && journal.to_string().contains("\"swap\"")
            && journal.to_string().contains("\"cgroup\"")
        {
            return journal;
        }
        assert!(start.elapsed() < PATIENCE, "the run did not reach its middle");
        sleep(Duration::from_millis(5));
    }
}

/// A run of many short measurements: the reference run, which comes first, is
/// as long as each of them.
fn long_run(peer: &str) -> Child {
    // Signals that whoever started the tests ignores (nohup) would stay ignored.
    Command::new("env")
        .args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_ramfold-bench"), "run"])
        .args(["--peer", peer, "--workload", "random-rw", "--size", "16M", "--runs", "10000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Devices that the journal lists.
fn zram_devices(journal: &Value) -> Vec<PathBuf> {
    let settings = journal["settings"].as_array().unwrap();
    settings
        .iter()
        .filter_map(|setting| setting[1]["zram"]["number"].as_u64())
        .map(|number| PathBuf::from(format!("/sys/block/zram{number}")))
        .collect()
}

#[test]
fn interrupted_runs_undo_everything() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    for (peer, signal) in ["zram-lz4", "zswap", "swap"].into_iter().zip(signals) {
        if !peers.contains(&peer) {
            continue;
        }
        let before = Settings::read();
        let mut child = long_run(peer);
        let journal = wait_for_the_middle(&mut child);
        assert_ne!(Settings::read(), before, "{peer} set nothing");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{peer}: {errors}");
        assert!(errors.contains("interrupted"), "{errors}");
        assert_eq!(Settings::read(), before, "{peer} after {signal:?}");
        for device in zram_devices(&journal) {
            assert!(!device.exists(), "{} is left", device.display());
        }
    }
}

#[test]
fn a_killed_run_is_mended_by_the_next_start() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    for peer in ["zram-lzo-rle", "zswap"] {
        if !peers.contains(&peer) {
            continue;
        }
        let before = Settings::read();
        let mut child = long_run(peer);
        let journal = wait_for_the_middle(&mut child);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
        assert_ne!(Settings::read(), before, "nothing was left to mend");
        let next = run(&["--list"]);
        assert!(next.status.success(), "{}", text(&next.stderr));
        assert!(text(&next.stderr).contains("left by process"), "{}", text(&next.stderr));
        assert_eq!(Settings::read(), before, "{peer}");
        for device in zram_devices(&journal) {
            assert!(!device.exists(), "{} is left", device.display());
        }
    }
}

#[test]
fn errors_and_panics_undo_everything() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    if !cfg!(debug_assertions) {
        println!("failures can be provoked in debug builds only");
        return;
    }
    for peer in ["zram-lz4", "zswap"] {
        for failure in ["error", "panic"] {
            if !peers.contains(&peer) {
                continue;
            }
            let before = Settings::read();
            let arguments = ["--peer", peer, "--workload", "random-rw", "--size", "8M"];
            let output =
                bench().args(arguments).env("RAMFOLD_BENCH_INJECT", failure).output().unwrap();
            let errors = text(&output.stderr);
            assert!(errors.contains(&format!("{failure} on purpose")), "{errors}");
            assert!(!output.status.success());
            assert_eq!(output.status.signal().is_some(), failure == "panic", "{errors}");
            assert_eq!(Settings::read(), before, "{peer} after a {failure}");
        }
    }
}

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
            assert!(need > 20 << 20, "need {need}");
        }
        Err(error) => println!("another user cannot run the binary here: {error}"),
    }
    fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_memeater_gets_the_memory_there_is_and_more_with_zram() {
    let _machine = machine();
    let Some(kernel) = kernel_peers() else { return };
    let zram = kernel.contains(&"zram-lz4");
    let peers = if zram { "none,zram-lz4" } else { "none" };
    let output = Command::new(env!("CARGO_BIN_EXE_ramfold-bench"))
        .args(["memeater", "--memory", "24M", "--peer", peers, "--runs", "1", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let allocated: Vec<f64> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["allocated_bytes"].as_f64().unwrap() / f64::from(1 << 20))
        .collect();
    assert!((12.0..=24.0).contains(&allocated[0]), "{allocated:?}");
    // Generated pages are a third as long when compressed.
    assert!(!zram || allocated[1] > 1.5 * allocated[0], "{allocated:?}");
}

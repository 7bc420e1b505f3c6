//! `ramfold-bench run`, tiny: every workload and every peer that works here, and
//! what is left of a run that ends in any other way.
//!
//! Peers of the kernel need root and zram; without them the tests say so and
//! check the rest.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

static MACHINE: Mutex<()> = Mutex::new(());

const STATE: &str = "/var/lib/ramfold-bench";
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// The priority of the bench's swap, the highest that swapon takes.
const PRIORITY: &str = "32767";

/// The settings under test belong to the machine: one test at a time, also of all working trees.
struct Machine {
    _thread: MutexGuard<'static, ()>,
    _process: Option<File>,
}

fn machine() -> Machine {
    let thread = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join("ramfold-bench-tests.lock");
    // Another user's file cannot be opened; that user's tests set nothing, or these do not.
    let process = OpenOptions::new().create(true).append(true).open(path).ok();
    process.iter().for_each(|file| file.lock().unwrap());
    Machine { _thread: thread, _process: process }
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

/// What a run sets and has to take back.
#[derive(Debug, PartialEq)]
struct Settings {
    zswap: Vec<(PathBuf, String)>,
    page_cluster: String,
    ours: BTreeSet<PathBuf>,
}

impl Settings {
    /// Between two runs of whoever else measures on this machine, and without what a killed one
    /// has left.
    fn undisturbed() -> Self {
        let mended = run(&["--list"]);
        assert!(mended.status.success(), "{}", text(&mended.stderr));
        let lock = File::open(Path::new(STATE).join("lock")).unwrap();
        lock.lock().unwrap();
        Self::read()
    }

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

/// A run that is halted while its program is under the peer. Killed on drop.
struct Halted {
    run: Child,
    /// What the journal lists then.
    journal: Value,
}

impl Halted {
    /// Starts a run of many measurements and halts it in the first.
    fn start(peer: &str) -> Self {
        // The run without a cap takes seconds; a measured one minutes. Signals that whoever
        // started the tests ignores (nohup) would stay ignored.
        let run = Command::new("env")
            .args(["--default-signal=INT,TERM,HUP,QUIT", env!("CARGO_BIN_EXE_ramfold-bench")])
            .args(["run", "--peer", peer, "--workload", "random-rw", "--size", "16M"])
            .args(["--scale", "500", "--runs", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut halted = Self { run, journal: Value::Null };
        let start = Instant::now();
        while !halted.is_in_the_middle() || !halted.halt() {
            assert!(start.elapsed() < PATIENCE, "the run did not reach its middle");
            sleep(Duration::from_millis(5));
        }
        halted
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.run)
    }

    /// Reads the journal: the peer is set up, and the program in its cgroup.
    fn is_in_the_middle(&mut self) -> bool {
        if let Some(status) = self.run.try_wait().unwrap() {
            let mut errors = String::new();
            self.run.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("the run ended early with {status}: {errors}");
        }
        let journal = fs::read(Path::new(STATE).join("journal.json")).unwrap_or_default();
        self.journal = serde_json::from_slice(&journal).unwrap_or_default();
        self.journal["pid"] == self.run.id()
            && !self.paths("swap").is_empty()
            && !self.paths("cgroup").is_empty()
    }

    /// Stops the run; lets it go on where it is in its middle no more.
    fn halt(&mut self) -> bool {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), states).unwrap();
        let runs = self.is_in_the_middle()
            && self.paths("cgroup").iter().all(|path| {
                !fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().is_empty()
            });
        if !runs {
            kill_process(self.pid(), Signal::CONT).unwrap();
        }
        runs
    }

    /// The settings of a kind that the journal lists.
    fn settings(&self, kind: &str) -> Vec<&Value> {
        let settings = self.journal["settings"].as_array().into_iter().flatten();
        settings.filter_map(|setting| setting[1].get(kind)).collect()
    }

    fn paths(&self, kind: &str) -> Vec<PathBuf> {
        let paths = self.settings(kind).into_iter().map(|setting| setting["path"].as_str());
        paths.map(|path| PathBuf::from(path.unwrap())).collect()
    }

    /// Folders of the devices that the journal lists.
    fn zram_devices(&self) -> Vec<PathBuf> {
        let numbers = self.settings("zram").into_iter().map(|setting| &setting["number"]);
        numbers.map(|number| PathBuf::from(format!("/sys/block/zram{number}"))).collect()
    }

    /// Is everything set as the peer is documented?
    fn check_settings(&self, peer: &str, before: &Settings) {
        let [area] = &self.paths("swap")[..] else { panic!("{}", self.journal) };
        let swaps = read("/proc/swaps");
        let line = swaps.lines().find(|line| line.starts_with(&format!("{} ", area.display())));
        let line = line.unwrap_or_else(|| panic!("{} is not in {swaps}", area.display()));
        assert_eq!(line.split_ascii_whitespace().last(), Some(PRIORITY), "{line}");
        let devices = self.zram_devices();
        match peer.strip_prefix("zram-") {
            Some(codec) => {
                let [device] = &devices[..] else { panic!("{}", self.journal) };
                assert_eq!(area.file_name(), device.file_name());
                let codecs = read(device.join("comp_algorithm"));
                assert!(codecs.contains(&format!("[{codec}]")), "{peer}: {codecs}");
            }
            None => {
                let folder = format!("ramfold-bench-{}", self.run.id());
                assert!(devices.is_empty(), "{}", self.journal);
                assert_eq!(area, &Path::new(STATE).join(folder).join("swapfile"));
            }
        }
        let zswap = |name: &str| fs::read_to_string(Path::new(ZSWAP).join(name)).ok();
        let is_zswap = peer == "zswap";
        if let Some(enabled) = zswap("enabled") {
            assert_eq!(enabled.trim(), if is_zswap { "Y" } else { "N" }, "{peer}");
        }
        if is_zswap {
            let codec = zswap("compressor").unwrap();
            assert!(["lz4", "lzo"].contains(&codec.trim()), "{codec}");
            assert!(zswap("shrinker_enabled").is_none_or(|enabled| enabled.trim() == "N"));
            let percent: u64 = zswap("max_pool_percent").unwrap().trim().parse().unwrap();
            assert!((20..=80).contains(&percent), "{percent}");
        }
        let page_cluster = read("/proc/sys/vm/page-cluster");
        assert_eq!(page_cluster, if is_zswap { "0\n" } else { &before.page_cluster }, "{peer}");
        let limits = self.paths("cgroup").into_iter().filter_map(|cgroup| {
            let names = ["memory.limit_in_bytes", "memory.max"].map(|name| cgroup.join(name));
            let limit = names.into_iter().find_map(|name| fs::read_to_string(name).ok())?;
            let names = ["memory.swappiness", "memory.swap.max"].map(|name| cgroup.join(name));
            let swapping = names.into_iter().find_map(|name| fs::read_to_string(name).ok());
            let swapping = swapping.map(|text| text.trim().to_owned());
            assert!(swapping.is_none_or(|text| ["100", "max"].contains(&&text[..])), "{peer}");
            limit.trim().parse::<u64>().ok()
        });
        // Half of what the heap and the program need, as far as it was seen; less where the pool
        // is outside.
        let [limit] = limits.collect::<Vec<_>>()[..] else { panic!("{}", self.journal) };
        assert!(limit < 16 << 20, "{peer}: {limit}");
        assert!(limit >= 1 << 20 || has_pool_outside(peer), "{peer}: {limit}");
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // It has ended, unless a check has failed.
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn kernel_peers_are_set_up_and_an_interruption_undoes_everything() {
    let _machine = machine();
    let Some(peers) = kernel_peers() else { return };
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
    for (peer, signal) in peers.into_iter().zip(signals) {
        let before = Settings::undisturbed();
        let mut halted = Halted::start(peer);
        halted.check_settings(peer, &before);
        let devices = halted.zram_devices();
        kill_process(halted.pid(), signal).unwrap();
        kill_process(halted.pid(), Signal::CONT).unwrap();
        let mut errors = String::new();
        halted.run.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = halted.run.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{peer}: {errors}");
        assert!(errors.contains("interrupted"), "{errors}");
        assert_eq!(Settings::undisturbed(), before, "{peer} after {signal:?}");
        for device in devices {
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
        let before = Settings::undisturbed();
        let mut halted = Halted::start(peer);
        assert_ne!(Settings::read(), before, "{peer} set nothing");
        halted.run.kill().unwrap();
        let status = halted.run.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
        let next = run(&["--list"]);
        assert!(next.status.success(), "{}", text(&next.stderr));
        let said = format!("left by process {}", halted.run.id());
        assert!(text(&next.stderr).contains(&said), "{}", text(&next.stderr));
        assert_eq!(Settings::undisturbed(), before, "{peer}");
        for device in halted.zram_devices() {
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
            let before = Settings::undisturbed();
            let arguments = ["--peer", peer, "--workload", "random-rw", "--size", "8M"];
            let output =
                bench().args(arguments).env("RAMFOLD_BENCH_INJECT", failure).output().unwrap();
            let errors = text(&output.stderr);
            assert!(errors.contains(&format!("{failure} on purpose")), "{errors}");
            assert!(!output.status.success());
            assert_eq!(output.status.signal().is_some(), failure == "panic", "{errors}");
            assert_eq!(Settings::undisturbed(), before, "{peer} after a {failure}");
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

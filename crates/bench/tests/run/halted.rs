//! Runs that end in any other way than by themselves, and what they leave.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

use crate::has_pool_outside;
use crate::settings::Settings;
use crate::support::{PATIENCE, PRIORITY, STATE, ZSWAP, bench, kernel_peers, machine, run, text};

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
#[ignore = "slow: make test-all runs it"]
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
#[ignore = "slow: make test-all runs it"]
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
        println!("SKIPPED: failures can be provoked where there are debug assertions only");
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
            assert_eq!(output.status.code() == Some(101), failure == "panic", "{errors}");
            assert_eq!(Settings::undisturbed(), before, "{peer} after a {failure}");
        }
    }
}

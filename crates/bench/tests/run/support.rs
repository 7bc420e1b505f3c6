//! Runs of the program, one at a time.

use std::fs::{File, OpenOptions};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

static MACHINE: Mutex<()> = Mutex::new(());

pub(crate) const STATE: &str = "/var/lib/ramfold-bench";
pub(crate) const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Far above what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The priority of the bench's swap, the highest that swapon takes.
pub(crate) const PRIORITY: &str = "32767";

/// The settings under test belong to the machine: one test at a time, also of all working trees.
pub(crate) struct Machine {
    _thread: MutexGuard<'static, ()>,
    _process: Option<File>,
}

pub(crate) fn machine() -> Machine {
    let thread = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join("ramfold-bench-tests.lock");
    // Another user's file cannot be opened; that user's tests set nothing, or these do not.
    let process = OpenOptions::new().create(true).append(true).open(path).ok();
    process.iter().for_each(|file| file.lock().unwrap());
    Machine { _thread: thread, _process: process }
}

pub(crate) fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold-bench"));
    command.arg("run").stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    bench().args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn report(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Names the kernel's peers that can run here; prints why not.
pub(crate) fn kernel_peers() -> Option<Vec<&'static str>> {
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

pub(crate) fn is_installed(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

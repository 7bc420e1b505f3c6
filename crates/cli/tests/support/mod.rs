//! Running programs with and without ramfold, alike for all tests.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod mounted;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The program under test.
pub(crate) const RAMFOLD: &str = env!("CARGO_BIN_EXE_ramfold");

/// Longer than anything here takes, even on a loaded machine: a run past it hangs.
const PATIENCE: Duration = Duration::from_secs(900);

/// How long a test waits for a single thing, which takes a second at most where the machine has
/// nothing else to do.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until something is so. Panics when it never is.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// How a run ended.
pub(crate) struct Ended {
    pub output: Output,
    /// Peak of the anonymous memory in RAM of the program and its descendants.
    pub peak_anonymous_bytes: u64,
}

/// Runs a command to its end. Panics when it hangs.
pub(crate) fn run(command: &mut Command) -> Ended {
    let described = format!("{command:?}");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{described}: {error}"));
    let pid = child.id();
    let waiter = thread::spawn(move || child.wait_with_output());
    let started = Instant::now();
    let mut peak = 0;
    while !waiter.is_finished() {
        peak = peak.max(tree(pid).into_iter().map(anonymous_bytes).sum());
        if started.elapsed() > PATIENCE {
            end_tree(pid);
            panic!("{described} hangs");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = waiter.join().unwrap().unwrap();
    Ended { output, peak_anonymous_bytes: peak }
}

/// For Python scripts that [`Watched`] runs: is what the test waits for so?
pub(crate) const ENOUGH: &str = "
import os
def enough(): return os.path.exists(os.environ['ENOUGH'])
";

/// A program under `ramfold run` that goes on until the test has seen what it waits for, however
/// long that takes: until a file is there, whose path it has in `ENOUGH`. Killed on drop.
pub(crate) struct Watched {
    launcher: Child,
    command: String,
    folder: TempDir,
}

impl Watched {
    /// `ramfold run`, with these options, of a program.
    pub(crate) fn start(options: &[&str], program: &[&str]) -> Watched {
        Watched::start_by(Command::new(RAMFOLD), options, program)
    }

    /// The same by a command that becomes ramfold with the arguments that are added.
    pub(crate) fn start_by(mut command: Command, options: &[&str], program: &[&str]) -> Watched {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        command
            .arg("run")
            .args(options)
            .arg("--stats")
            .arg(path("stats.json"))
            .arg("--")
            .args(program);
        command.env("ENOUGH", path("enough")).stdin(Stdio::null());
        command.stdout(File::create(path("stdout")).unwrap());
        command.stderr(File::create(path("stderr")).unwrap());
        let launcher = command.spawn().unwrap();
        let command = format!("{command:?}");
        let mut watched = Watched { launcher, command, folder };
        // From then on it takes signals.
        wait_until("the program is started", || {
            tree(watched.launcher.id()).len() > 1 || watched.launcher.try_wait().unwrap().is_some()
        });
        watched
    }

    /// The process of the program.
    pub(crate) fn program(&self) -> u32 {
        tree(self.launcher.id())[1]
    }

    /// The process of `ramfold run`.
    pub(crate) fn launcher(&self) -> u32 {
        self.launcher.id()
    }

    /// Sends a signal to `ramfold run`.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.launcher.id(), name);
    }

    /// What was printed so far.
    pub(crate) fn printed(&self) -> String {
        self.text_of("stdout")
    }

    fn text_of(&self, name: &str) -> String {
        text(&fs::read(self.folder.path().join(name)).unwrap())
    }

    /// What was said on standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.text_of("stderr")
    }

    /// What `--stats` writes now.
    pub(crate) fn stats(&mut self) -> serde_json::Value {
        stats_now(&mut self.launcher, &self.folder.path().join("stats.json")).unwrap_or_else(|| {
            let (out, errors) = (self.text_of("stdout"), self.text_of("stderr"));
            panic!("{} has ended too early: {out}{errors}", self.command)
        })
    }

    /// Waits until the statistics are so, for as long as a whole run may take: the program may have
    /// much to do before.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&serde_json::Value) -> bool,
    ) {
        let started = Instant::now();
        loop {
            let stats = self.stats();
            if is_so(&stats) {
                return;
            }
            let errors = self.errors();
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}: {stats} {errors}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program's anonymous memory stays within so much, by the kernel's count.
    /// Where a busy machine keeps reclaim waiting it may be more for a moment, but not look after
    /// look.
    pub(crate) fn wait_until_held(&mut self, bytes: u64) {
        let program = self.program();
        let (mut looks, mut most) = (0, 0);
        self.wait_until("it stays within its memory", |_| {
            let found = anonymous_bytes(program);
            assert!(found > 0, "nothing is known of the program's memory");
            most = most.max(found);
            looks = if found <= bytes { looks + 1 } else { 0 };
            looks == 20
        });
        println!("{} KiB at most while it was looked at", most >> 10);
    }

    /// Tells the program that it is enough, and waits for its end.
    pub(crate) fn end(mut self) -> (Output, serde_json::Value) {
        File::create(self.folder.path().join("enough")).unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "{} hangs", self.command);
            thread::sleep(Duration::from_millis(5));
        };
        let bytes = |name| fs::read(self.folder.path().join(name)).unwrap();
        let output = Output { status, stdout: bytes("stdout"), stderr: bytes("stderr") };
        let file = self.folder.path().join("stats.json");
        // There are none where ramfold itself has failed, of which the output tells.
        let stats = if file.exists() { stats(&file) } else { serde_json::Value::Null };
        (output, stats)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if matches!(self.launcher.try_wait(), Ok(None)) {
            end_tree(self.launcher.id());
            let _ = self.launcher.wait();
        }
    }
}

/// What `ramfold run` writes to its `--stats` file when asked; `None` when it ends instead.
pub(crate) fn stats_now(launcher: &mut Child, file: &Path) -> Option<serde_json::Value> {
    let started = Instant::now();
    let _ = fs::remove_file(file);
    signal(launcher.id(), "-USR2");
    while !file.exists() {
        if launcher.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(started.elapsed() < DEADLINE, "{} is not written", file.display());
        thread::sleep(Duration::from_millis(2));
    }
    Some(stats(file))
}

/// Sends a signal to a process that has not been waited for.
pub(crate) fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Kills a process and all below it.
fn end_tree(pid: u32) {
    for pid in tree(pid) {
        // It may have ended by itself.
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
    }
}

/// `ramfold run` with these arguments.
pub(crate) fn ramfold<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(RAMFOLD);
    command.arg("run").args(arguments);
    command
}

/// Whether the machine has the program that a test needs.
pub(crate) fn has(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program).args(arguments).output();
    let is_there = run.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("SKIPPED: there is no {program} {}", arguments.join(" "));
    }
    is_there
}

/// What a program prints that must succeed.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}{said}", text(&output.stdout));
    text(&output.stdout)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process and all below it.
pub(crate) fn tree(pid: u32) -> Vec<u32> {
    ramfold_sys::other_process::with_descendants([pid])
}

/// Anonymous memory of a process, of what it shares with others its part.
pub(crate) fn anonymous_bytes(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss_Anon:")?.trim().strip_suffix(" kB")?.parse().ok())
        .map_or(0, |kibibytes: u64| kibibytes * 1024)
}

/// Can `ramfold run` look after memory here? Where it cannot the tests of that say so and check
/// nothing.
pub(crate) fn can_look_after() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let doctor = Command::new(RAMFOLD).arg("doctor").output().unwrap();
        if !doctor.status.success() {
            eprintln!("SKIPPED, ramfold cannot look after memory here:\n{}", text(&doctor.stdout));
        }
        doctor.status.success()
    })
}

/// Ends a test that needs `ramfold run` to look after memory where it cannot.
#[allow(unused_macros, reason = "each test file uses a part")]
macro_rules! needs_userfaultfd {
    () => {
        if !support::can_look_after() {
            return;
        }
    };
}
#[allow(unused_imports, reason = "each test file uses a part")]
pub(crate) use needs_userfaultfd;

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self")
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

/// A control group with a memory limit and no swap, removed at the end.
pub(crate) struct LimitedGroup {
    folder: PathBuf,
    version_2: bool,
}

impl LimitedGroup {
    /// `None` where this user cannot make one; the test then goes on without a limit.
    pub(crate) fn new(limit_bytes: u64) -> Option<LimitedGroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("ramfold-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        for (root, file, version_2) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", false),
            ("/sys/fs/cgroup", "memory.max", true),
        ] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if fs::write(folder.join(file), limit_bytes.to_string()).is_ok() {
                let swap = if version_2 { "memory.swap.max" } else { "memory.swappiness" };
                let _ = fs::write(folder.join(swap), "0");
                return Some(LimitedGroup { folder, version_2 });
            }
            let _ = fs::remove_dir(&folder);
        }
        eprintln!("no control group could be made here: running without a hard limit");
        None
    }

    /// A shell command that enters the group and becomes the program.
    pub(crate) fn command(&self, program: &str) -> Command {
        let file = if self.version_2 { "cgroup.procs" } else { "tasks" };
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.folder.join(file))
            .arg(program);
        command
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.folder.display());
    }
}

/// Reads what `--stats` wrote.
pub(crate) fn stats(path: &Path) -> serde_json::Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

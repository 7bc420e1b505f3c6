//! `ramfold run` as a command: statuses, signals, messages, and what cannot be looked after.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ramfold_codec::Choice;
use serde_json::Value;
use support::{
    ENOUGH, Ended, LimitedGroup, RAMFOLD, Watched, anonymous_bytes, is_root, needs_userfaultfd,
    ramfold, run, signal, stats, stats_now, text, tree, wait_until,
};

/// Debian's, not a wrapper script that may stand in for it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// A program that needs 60 MB and says whether it read back what it wrote.
const HOG: &str = "
import sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
for _ in range(3):
    for i, page in enumerate(pages):
        assert page == bytes([i % 7]) * 4000
print('right')
";

#[test]
fn the_exit_status_is_the_programs_own() {
    needs_userfaultfd!();
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        let ended = run(&mut ramfold(["--", "sh", "-c", script]));
        assert_eq!(ended.output.status.code(), Some(status), "{script}");
        assert_eq!(text(&ended.output.stderr), "", "{script}");
    }
}

#[test]
fn ramfolds_own_failures_have_their_own_status() {
    let status = |arguments: &[&str]| run(&mut ramfold(arguments)).output.status.code();
    assert_eq!(status(&["--", "no-such-program-anywhere"]), Some(127));
    assert_eq!(status(&["--", "/etc/passwd"]), Some(126));
    assert_eq!(status(&["--memory", "12Q", "--", "true"]), Some(125));
    assert_eq!(status(&["--codec", "none", "--", "true"]), Some(125));
    assert_eq!(status(&["--help"]), Some(0));
}

#[test]
fn stats_that_cannot_be_written_are_refused_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("ran");
    for bad in ["/no/such/folder/file", "/tmp"] {
        let ended = run(ramfold(["--stats", bad, "--", "touch"]).arg(&trace));
        let message = text(&ended.output.stderr);
        assert_eq!(ended.output.status.code(), Some(125), "{message}");
        assert!(message.contains(bad), "{message}");
        assert!(!trace.exists());
    }
    // What fails later costs no more than the file.
    let (inside, file) = (folder.path().join("inside"), folder.path().join("inside/stats"));
    std::fs::create_dir(&inside).unwrap();
    let ended = run(ramfold(["--stats"])
        .arg(&file)
        .args(["--", "sh", "-c", "rmdir \"$0\"; exit 7"])
        .arg(&inside));
    assert_eq!(ended.output.status.code(), Some(7));
    assert!(text(&ended.output.stderr).contains("cannot write --stats"));
}

#[test]
fn manual_pages_and_completions_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(Command::new(RAMFOLD).arg("manual").arg(folder.path()));
    assert!(ended.output.status.success(), "{}", text(&ended.output.stderr));
    let share = folder.path().join("share");
    let page = std::fs::read_to_string(share.join("man/man1/ramfold-run.1")).unwrap();
    assert!(page.contains("\\-\\-memory"), "{page}");
    for completion in [
        "bash-completion/completions/ramfold",
        "zsh/site-functions/_ramfold",
        "fish/vendor_completions.d/ramfold.fish",
    ] {
        let text = std::fs::read_to_string(share.join(completion)).unwrap();
        assert!(text.contains("memory"), "{completion}");
    }
}

#[test]
fn nothing_is_printed_and_stats_are_written() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
while not enough():
    for i, page in enumerate(pages):
        assert page == bytes([i % 7]) * 4000
print('right')
";
    let (output, stats) = run_until(&["--memory", "30M"], SCRIPT, "pages go and come", |stats| {
        number(stats, "pages_swapped_out") > 1000 && number(stats, "faults") > 1000
    });
    assert_eq!(text(&output.stdout), "right\n");
    assert_eq!(text(&output.stderr), "");
    for field in [
        "memory_cap_bytes",
        "cost_bytes_max",
        "resident_bytes",
        "pool_used_bytes",
        "pool_total_bytes",
        "metadata_bytes",
        "staging_bytes",
        "pages_swapped_out",
        "pages_swapped_in",
        "pages_same_filled",
        "pages_incompressible",
        "faults",
        "fault_ns_p50",
        "fault_ns_p99",
        "compressed_bytes",
        "codec",
        "over_cap_bytes_max",
    ] {
        assert!(!stats[field].is_null(), "{field} is missing");
    }
    assert_eq!(number(&stats, "memory_cap_bytes"), 30 << 20);
    assert!(number(&stats, "pool_spans") > 0, "{stats}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_cap_holds_while_the_program_grows_as_fast_as_it_can() {
    needs_userfaultfd!();
    let script = "
blocks = [bytes([i % 7]) * 4000 for i in range(60000)]
print(sum(block[17] for block in blocks))
";
    // For some milliseconds it can pass the cap where the machine stands still at the wrong moment:
    // one run in thirty, by 1 to 4 MB.
    let mut over = [0; 3].map(|_: u64| {
        let (ended, stats) = run_python("120M", script);
        assert_eq!(text(&ended.output.stdout), "179994\n");
        stats["over_cap_bytes_max"].as_u64().unwrap()
    });
    over.sort_unstable();
    assert!(over[1] <= (120 << 20) / 50 && over[2] <= (120 << 20) / 10, "{over:?} bytes over");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_codec_works() {
    needs_userfaultfd!();
    // Objects, numbers and text: nothing that is same-filled.
    const SCRIPT: &str = "
import random
random.seed(3)
def word(): return random.choice(['alpha', 'beta', 'gamma']) + str(random.randrange(10**6))
words = [word() for _ in range(999)]
def record(i): return {'key': i, 'name': words[i % 999] + words[i * 7 % 999], 'value': i / 7}
records = [record(i) for i in range(40_000)]
while not enough():
    for i in random.sample(range(40_000), 10_000):
        assert records[i] == record(i)
print('right')
";
    for codec in Choice::names() {
        let options = ["--memory", "16M", "--codec", codec];
        let (output, stats) = run_until(&options, SCRIPT, "pages come back", |stats| {
            number(stats, "pages_swapped_in") > 1000
        });
        let said = text(&output.stderr);
        assert_eq!(text(&output.stdout), "right\n", "{codec}: {said}");
        let count = |name| number(&stats, name);
        assert!(count("compress_out_bytes") < count("compress_in_bytes") / 4 * 3, "{codec}");
    }
}

#[test]
fn below_the_cap_nothing_is_registered() {
    needs_userfaultfd!();
    let (_, stats) = run_python("1G", HOG);
    assert_eq!(stats["processes_started"], 1, "{stats}");
    assert_eq!(stats["processes_activated"], 0, "{stats}");
    assert_eq!(stats["faults"], 0, "{stats}");
}

#[test]
fn a_preload_of_the_callers_stays() {
    needs_userfaultfd!();
    let mut command = ramfold(["--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("LD_PRELOAD", "/usr/lib/none.so");
    let ended = run(&mut command);
    let printed = text(&ended.output.stdout);
    let (first, second) = printed.trim().split_once(':').unwrap();
    assert_eq!(first, "/usr/lib/none.so");
    assert!(second.contains("agent-"), "{second}");
}

#[test]
fn a_static_program_runs_without_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.c");
    let program = folder.path().join("a");
    fs::write(&source, "#include <stdio.h>\nint main(){puts(\"right\");return 3;}\n").unwrap();
    let compiled = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).status();
    assert!(compiled.unwrap().success());
    let ended = run(&mut ramfold(["--memory", "10M", "--", program.to_str().unwrap()]));
    assert_eq!(ended.output.status.code(), Some(3));
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert!(text(&ended.output.stderr).contains("statically linked"));
}

#[test]
fn a_setuid_program_runs_without_and_says_so() {
    if !is_root() {
        eprintln!("not root: cannot make a program of somebody else's");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    let status = Command::new("chmod").arg("4755").arg(&program).status();
    assert!(status.unwrap().success());
    let ended = run(&mut ramfold(["--memory", "10M", "--", program.to_str().unwrap(), "-u"]));
    assert_eq!(ended.output.status.code(), Some(0));
    assert!(text(&ended.output.stderr).contains("gains privileges"));
}

/// `ramfold run` of a script by a user who is nobody, with a copy of ramfold in this folder.
fn as_nobody(folder: &Path, cap: &str, script: &str) -> Command {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = folder.join("ramfold");
    fs::copy(RAMFOLD, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["run", "--memory", cap, "--stats"])
        .arg(folder.join("stats.json"))
        .args(["--", PYTHON, "-c", script])
        .env("HOME", folder)
        .env_remove("XDG_CACHE_HOME");
    command
}

/// Who may have a userfaultfd is a setting of the machine: one test at a time depends on it.
static PERMISSION: Mutex<()> = Mutex::new(());

fn permission() -> MutexGuard<'static, ()> {
    PERMISSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file whose mode or content is another during a test.
struct Restored<T, F: Fn(&T)> {
    was: T,
    restore: F,
}

impl<T, F: Fn(&T)> Drop for Restored<T, F> {
    fn drop(&mut self) {
        (self.restore)(&self.was);
    }
}

/// Forks by the system calls, which the kernel tells nobody of who is not privileged.
const CLONES: &str = "
import ctypes, os
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
def wrong():
    return any(page != bytes([i % 7]) * 4000 for i, page in enumerate(pages))
assert not wrong()
libc = ctypes.CDLL(None, use_errno=True)
FORK, CLONE, CLONE3, GETPID, SIGCHLD = 57, 56, 435, 39, 17
arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, SIGCHLD)
for call in (FORK,), (CLONE, SIGCHLD, 0, 0, 0, 0), (CLONE3, arguments, ctypes.sizeof(arguments)):
    child = libc.syscall(*call)
    if child == 0:
        os._exit(wrong())
    assert os.waitpid(child, 0) == (child, 0)
assert not wrong()
# What is refused is refused, and other calls are what they were.
for call in (CLONE3, None, 0), (CLONE3, 8, 64), (CLONE3, arguments, 8), (CLONE, 0x800, 0, 0, 0, 0):
    ctypes.set_errno(0)
    assert libc.syscall(*call) == -1 and ctypes.get_errno() in (14, 22), (call, ctypes.get_errno())
assert libc.syscall(GETPID) == os.getpid()
print('right')
";

fn works_for_nobody(way: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = if cfg!(target_arch = "x86_64") { CLONES } else { HOG };
    let ended = run(&mut as_nobody(folder.path(), "36M", script));
    assert_eq!(text(&ended.output.stderr), "", "{way}");
    assert_eq!(text(&ended.output.stdout), "right\n");
    let stats = stats(&folder.path().join("stats.json"));
    assert!(stats["pages_swapped_in"].as_u64().unwrap() > 0, "{way}: {stats}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn an_ordinary_user_with_permission_has_all_of_it() {
    needs_userfaultfd!();
    if !is_root() {
        eprintln!("not root: cannot give permission to somebody else");
        return;
    }
    let _permission = permission();
    let device = Path::new("/dev/userfaultfd");
    if let Ok(metadata) = fs::metadata(device) {
        let restore = |mode: &fs::Permissions| fs::set_permissions(device, mode.clone()).unwrap();
        let _restored = Restored { was: metadata.permissions(), restore };
        fs::set_permissions(device, fs::Permissions::from_mode(0o666)).unwrap();
        works_for_nobody("by the device");
    }
    let setting = Path::new("/proc/sys/vm/unprivileged_userfaultfd");
    let restore = |text: &String| fs::write(setting, text).unwrap();
    let _restored = Restored { was: fs::read_to_string(setting).unwrap(), restore };
    fs::write(setting, "1").unwrap();
    works_for_nobody("by the system call");
}

#[test]
fn without_permission_it_says_how_to_get_it_and_the_program_runs() {
    if !is_root() {
        eprintln!("not root: cannot become somebody without permission");
        return;
    }
    let _permission = permission();
    let folder = tempfile::tempdir().unwrap();
    let mut command = as_nobody(folder.path(), "30M", HOG);
    let ended = run(&mut command);
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    let remedy = format!("`sudo {} doctor --fix`", folder.path().join("ramfold").display());
    assert!(message.contains(&remedy), "{message}");
    assert!(message.contains("vm.unprivileged_userfaultfd"), "{message}");
}

/// In a mount namespace with its own /etc and its own device file, so that nothing of the machine
/// changes.
const FIX: &str = r#"
mount -t tmpfs none "$1"
cp -a /etc "$1/etc"
mount --bind "$1/etc" /etc
major=$(stat -c %t /dev/userfaultfd) minor=$(stat -c %T /dev/userfaultfd)
mknod -m 600 "$1/device" c $((0x$major)) $((0x$minor))
mount --bind "$1/device" /dev/userfaultfd
useradd --no-create-home ramfold-tester
as_tester() {
    setpriv --reuid=ramfold-tester --regid=ramfold-tester --init-groups -- "$2" doctor --json
}
if as_tester "$@"; then exit 9; fi
SUDO_USER=ramfold-tester "$2" doctor --fix
SUDO_USER=ramfold-tester "$2" doctor --fix
as_tester "$@"
grep -q 'GROUP="ramfold", MODE="0660"' /etc/udev/rules.d/60-ramfold.rules
stat -c '%a %G' /dev/userfaultfd
"#;

#[test]
fn doctor_mends_the_permission() {
    if !is_root() || !Path::new("/dev/userfaultfd").exists() {
        eprintln!("not root, or no /dev/userfaultfd: nothing to permit");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("ramfold");
    fs::copy(RAMFOLD, &copy).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euxc", FIX, "fix"]).arg(folder.path()).arg(copy);
    let ended = run(&mut command);
    let (out, error) = (text(&ended.output.stdout), text(&ended.output.stderr));
    assert!(ended.output.status.success(), "{out}{error}");
    assert!(out.ends_with("660 ramfold\n"), "{out}{error}");
}

#[test]
fn a_cap_too_small_is_refused_and_the_program_runs() {
    needs_userfaultfd!();
    let ended = run(&mut ramfold(["--memory", "1M", "--", PYTHON, "-c", HOG]));
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert!(message.contains("runs without ramfold"), "{message}");
}

#[test]
fn stacks_that_need_more_than_the_cap() {
    needs_userfaultfd!();
    // 48 stacks of a megabyte, all of it in use.
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { THREADS = 48, WORDS = 120000 };
static pthread_barrier_t barrier;
static int enough;
static void *work(void *argument) {
    volatile long words[WORDS], me = (long)argument;
    for (long i = 0; i < WORDS; i++) words[i] = me * 1000 + i % 7;
    for (int round = 0; ; round++) {
        // One looks for all, between the two.
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            enough = access(getenv("ENOUGH"), F_OK) == 0;
        pthread_barrier_wait(&barrier);
        if (enough) return 0;
        for (long i = 0; i < WORDS; i++) {
            if (words[i] != me * 1000 + i % 7 + round) { puts("wrong"); exit(1); }
            words[i]++;
        }
    }
}
int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    puts("right");
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let (input, program) = (folder.path().join("stacks.c"), folder.path().join("stacks"));
    fs::write(&input, source).unwrap();
    let compiled =
        Command::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &input]).status();
    assert!(compiled.unwrap().success());
    let mut watched = Watched::start(&["--memory", "24M"], &[program.to_str().unwrap()]);
    watched.wait_until("pages come back", |stats| number(stats, "pages_swapped_in") > 1000);
    let (output, _) = watched.end();
    assert_eq!(text(&output.stdout), "right\n", "{}", text(&output.stderr));
}

#[test]
fn the_accounts_add_up_to_the_kernels_count() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let script = format!("{HOG}\nprint(os.getpid(), flush=True)\nsys.stdin.read()");
    let mut child = ramfold(["--memory", "30M", "--stats", file.to_str().unwrap(), "--", PYTHON])
        .args(["-c", &script.replace("import sys", "import os, sys")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "right");
    let pid: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    // Nothing moves any more, so what is published comes to be what there is.
    wait_until("the accounts add up", || {
        let stats = stats_now(&mut child, &file).expect("the program waits");
        let kernel = anonymous_bytes(pid);
        let sum_of = |names: &[&str]| names.iter().map(|name| number(&stats, name)).sum::<u64>();
        let all =
            sum_of(&["resident_bytes", "pool_total_bytes", "metadata_bytes", "staging_bytes"]);
        let of_pool =
            sum_of(&["pool_used_bytes", "pool_reserve_bytes", "pool_fragmentation_bytes"]);
        let pool = number(&stats, "pool_total_bytes");
        println!("{all} of {kernel} bytes, in the pool {of_pool} of {pool}");
        all.abs_diff(kernel) < kernel / 100
            && kernel < (30 << 20) / 100 * 102
            && pool.abs_diff(of_pool) < 256 << 10
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// For scripts: memory of so many pages, of which each begins with its number times 977, eight
/// times.
const FILL: &str = r#"
import mmap, struct
def fill(pages):
    memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(pages):
        memory[page * 4096:page * 4096 + 64] = struct.pack("Q", page * 977) * 8
    return memory
"#;

#[test]
fn pages_ahead_of_a_stream_of_faults_are_brought_in_with_it() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
pages = 15000
memory = fill(pages)
for order in range(pages), range(pages - 1, -1, -1), range(0, pages, 3):
    for page in order:
        assert struct.unpack_from("Q", memory, page * 4096 + 56)[0] == page * 977, page
# Two at a time.
for page in range(pages // 2):
    for page in page, pages - 1 - page:
        assert struct.unpack_from("Q", memory, page * 4096)[0] == page * 977, page
print("right")
"#;
    let (ended, stats) = run_python("24M", &[FILL, SCRIPT].concat());
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats}"));
    let (brought, ahead) = (count("pages_swapped_in"), count("pages_prefetched"));
    assert!(brought > 20_000, "{stats}");
    assert!(ahead > brought / 4 * 3 && ahead < brought, "{stats}");
    assert!(count("pages_prefetch_wasted") < ahead / 20, "{stats}");
}

#[test]
fn a_loop_that_fits_stays_in_memory_beside_what_is_touched_seldom() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
loop, seldom = fill(2500), fill(6000)
for round in range(1000):
    for page in range(2500):
        assert loop[page * 4096] == page * 977 % 256
    for page in range(round * 5, round * 5 + 5):
        assert struct.unpack_from("Q", seldom, page * 4096 + 56)[0] == page * 977, page
print("right")
"#;
    let (ended, stats) = run_python("24M", &[FILL, SCRIPT].concat());
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    // The best that can be had is 5000 pages at most, and the loop once more.
    let brought = stats["pages_swapped_in"].as_u64().unwrap();
    assert!(brought < 30_000, "{stats}");
}

#[test]
fn what_one_process_leaves_alone_another_gets() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
import subprocess, sys
def check(memory):
    for page in range(len(memory) // 4096):
        assert memory[page * 4096] == page * 977 % 256, page
if sys.argv[1:]:
    busy = fill(6000)
    while not enough():
        check(busy)
        print("round", flush=True)
else:
    idle = fill(15000)
    script = open("/proc/self/cmdline").read().split("\0")[2]
    subprocess.run([sys.executable, "-c", script, "busy"], check=True)
    check(idle)
    print("right")
"#;
    let script = [ENOUGH, FILL, SCRIPT].concat();
    let mut watched = Watched::start(&["--memory", "48M"], &[PYTHON, "-c", &script]);
    // Of 60,000 accesses in ten rounds hardly any finds its page missing, once memory has moved.
    let (mut rounds, mut brought) = (0, 0);
    wait_until("the busy one has what it needs", || {
        let round = watched.printed().lines().count();
        if round < rounds + 10 {
            return false;
        }
        let brought_now = number(&watched.stats(), "pages_swapped_in");
        let is_settled = rounds > 0 && brought_now - brought < 3000;
        (rounds, brought) = (round, brought_now);
        is_settled
    });
    let (output, stats) = watched.end();
    assert!(text(&output.stdout).ends_with("right\n"), "{}", text(&output.stderr));
    assert!(number(&stats, "pages_swapped_out") > 10_000, "{stats}");
}

#[test]
fn a_fixed_split_keeps_memory_for_the_pool() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
memory = bytearray(40 << 20)
for page in range(0, len(memory), 4096):
    memory[page:page + 8] = page.to_bytes(8, "little")
print("filled", flush=True)
while not enough():
    for page in range(0, len(memory), 4096):
        assert memory[page:page + 8] == page.to_bytes(8, "little")
print("right")
"#;
    let script = [ENOUGH, SCRIPT].concat();
    let options = ["--memory", "32M", "--pool", "50%"];
    let mut watched = Watched::start(&options, &[PYTHON, "-c", &script]);
    wait_until("it has begun", || watched.printed() == "filled\n");
    // The pool needs less than a fifth of its half.
    watched.wait_until_held((16 << 20) + (7 << 20));
    let (output, stats) = watched.end();
    assert_eq!(text(&output.stdout), "filled\nright\n", "{}", text(&output.stderr));
    assert!(number(&stats, "pool_bytes_max") < 8 << 20, "{stats}");
    let ended = run(ramfold(["--memory", "100M", "--pool", "95M"]).args(["--", "true"]));
    assert_eq!(ended.output.status.code(), Some(125));
    let said = text(&ended.output.stderr);
    assert!(said.contains("--pool 95 MiB leaves"), "{said}");
}

#[test]
fn a_stream_goes_right_over_the_borders_of_mappings() {
    needs_userfaultfd!();
    // One call of the kernel copies pages within one mapping only.
    const SCRIPT: &str = r#"
import ctypes
pages = 15000
memory = fill(pages)
libc = ctypes.CDLL(None, use_errno=True)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for page in range(0, pages, 26):
    # Left out of core dumps: so they are mappings of their own.
    assert libc.madvise(ctypes.c_void_p(base + page * 4096), ctypes.c_size_t(13 * 4096), 16) == 0
for order in range(pages), range(pages - 1, -1, -1):
    for page in order:
        assert struct.unpack_from("Q", memory, page * 4096 + 56)[0] == page * 977, page
print("right")
"#;
    let (ended, stats) = run_python("24M", &[FILL, SCRIPT].concat());
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    assert!(stats["pages_prefetched"].as_u64() > Some(10_000), "{stats}");
}

#[test]
fn a_guard_in_the_way_of_a_stream_stays() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
import ctypes, os, sys
pages, guards = 15000, range(100, 15000, 100)
memory = fill(pages)
libc = ctypes.CDLL(None, use_errno=True)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for page in guards:
    if libc.madvise(ctypes.c_void_p(base + page * 4096), ctypes.c_size_t(4096), 102):
        sys.exit("no guard pages" if ctypes.get_errno() == 22 else 1)
for order in range(pages), range(pages - 1, -1, -1), range(1, pages, 3):
    for page in order:
        if page not in guards:
            assert struct.unpack_from("Q", memory, page * 4096)[0] == page * 977, page
reader, writer = os.pipe()
for page in guards:
    try:
        os.write(writer, memoryview(memory)[page * 4096:page * 4096 + 8])
        sys.exit(f"page {page} can be read")
    except OSError as error:
        assert error.errno == 14, error
print("right")
"#;
    let (ended, stats) = run_python("24M", &[FILL, SCRIPT].concat());
    if text(&ended.output.stderr).contains("no guard pages") {
        eprintln!("this kernel has no guard pages (Linux 6.13 has them)");
        return;
    }
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    assert!(stats["pages_prefetched"].as_u64() > Some(10_000), "{stats}");
}

#[test]
fn what_nobody_touches_is_compressed_though_there_is_room() {
    needs_userfaultfd!();
    const SCRIPT: &str = r#"
pages = 20000
def anonymous():
    total, shared = map(int, open("/proc/self/statm").read().split()[1:3])
    return (total - shared) * 4096
cold, hot = fill(pages), fill(pages)
full = anonymous()
# The rest is small.
while anonymous() > full - pages * 4096 * 3 // 4 or not enough():
    for page in range(pages):
        assert hot[page * 4096] == page * 977 % 256
print(anonymous() / full)
for memory in cold, hot:
    for page in range(pages):
        assert struct.unpack_from("Q", memory, page * 4096 + 56)[0] == page * 977, page
"#;
    // Faults take longer on a busy machine, and that is not to matter here.
    let options = ["--memory", "1G", "--cold-after", "1s", "--slowdown", "100%"];
    let (output, stats) =
        run_until(&options, &[FILL, SCRIPT].concat(), "it is compressed", |stats| {
            number(stats, "pages_cold") > 15_000 && number(stats, "cold_probes") > 300
        });
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let share: f64 = said.trim().parse().unwrap_or_else(|_| panic!("{said} {errors}"));
    assert!(share < 0.65, "{share}: {stats}");
    // What is in use is probed, for as long as the program runs, and little else of it is taken.
    let probes = number(&stats, "cold_probes");
    assert!(number(&stats, "pages_swapped_in") < 40_000 + 2 * probes, "{stats}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn what_stays_out_is_compressed_once_more() {
    needs_userfaultfd!();
    // Numbers that density does not spare a fifth more of, so that they are compressed for speed.
    const SCRIPT: &str = r#"
import array, random
draw = random.Random(1)
pages = 8000
def value(): return array.array("q", [draw.randrange(1 << 20) for _ in range(512)]).tobytes()
values = [value() for _ in range(100)]
cold = bytearray(pages * 4096)
for page in range(pages):
    cold[page * 4096 : (page + 1) * 4096] = values[page % 100]
    struct.pack_into("Q", cold, page * 4096, page)
hot = fill(4000)
while not enough():
    for page in range(4000):
        assert hot[page * 4096] == page * 977 % 256
for page in range(pages):
    assert struct.unpack_from("Q", cold, page * 4096)[0] == page
    assert cold[page * 4096 + 8 : (page + 1) * 4096] == values[page % 100][8:], page
print("right")
"#;
    // Which is so once much is out and, with an age, has come of age and been compressed again.
    let replaced_with = |option: &str, what: &str, is_so: &dyn Fn(&Value) -> bool| {
        let options = ["--memory", "32M", "--recompress-after", option];
        let (output, stats) = run_until(&options, &[FILL, SCRIPT].concat(), what, is_so);
        assert_eq!(text(&output.stdout), "right\n", "{}", text(&output.stderr));
        let count = |name| number(&stats, name);
        let replaced = count("pages_recompressed");
        assert!(replaced <= count("recompress_tried"), "{stats}");
        let spared = count("recompress_in_bytes") - count("recompress_out_bytes");
        assert!(spared >= 128 * replaced, "{stats}");
        replaced
    };
    let replaced = replaced_with("100ms", "pages are compressed again", &|stats| {
        number(stats, "pages_recompressed") > 1000
    });
    assert!(replaced > 1000);
    let begin = Instant::now();
    let replaced = replaced_with("never", "pages have been out for a while", &|stats| {
        number(stats, "pages_swapped_out") > 4000 && begin.elapsed() > Duration::from_secs(3)
    });
    assert_eq!(replaced, 0);
}

#[test]
fn options_of_what_is_done_in_the_background_are_checked() {
    for (options, said) in [
        (["--cold-after", "soon"], "span of time"),
        (["--slowdown", "2%"], "--cold-after"),
        (["--recompress-after", "always"], "or never"),
    ] {
        let ended = run(ramfold(options).args(["--", "true"]));
        assert_eq!(ended.output.status.code(), Some(125));
        assert!(text(&ended.output.stderr).contains(said), "{}", text(&ended.output.stderr));
    }
}

#[test]
fn data_that_does_not_compress_is_said_once_and_is_right() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import hashlib
blocks = [os.urandom(4096) for _ in range(12000)]
first = [hashlib.md5(b).digest() for b in blocks]
while not enough():
    assert first == [hashlib.md5(b).digest() for b in blocks]
print('right')
";
    let mut watched =
        Watched::start(&["--memory", "30M"], &[PYTHON, "-c", &[ENOUGH, SCRIPT].concat()]);
    watched.wait_until("so much is over", |stats| number(stats, "over_cap_bytes_max") > 10 << 20);
    wait_until("it is said", || watched.errors().contains("cannot be held"));
    // Time that passes is what this is about: it is said when the cap has been passed for half a
    // second, and would be said again after as much.
    sleep(Duration::from_secs(2));
    let (output, _) = watched.end();
    assert_eq!(text(&output.stdout), "right\n");
    let message = text(&output.stderr);
    assert_eq!(message.matches("cannot be held").count(), 1, "{message}");
}

/// For who reads them from outside, a page that is out does not come in.
#[test]
fn the_command_line_can_be_read_while_memory_is_short() {
    needs_userfaultfd!();
    let script = "
import os, sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
for round in range(4):
    for i, page in enumerate(pages):
        assert page == bytes([i % 7]) * 4000
    if round == 2:
        print(os.getpid(), flush=True)
sys.stdin.read()
";
    let mut command = ramfold(["--memory", "30M", "--", PYTHON, "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    for file in ["cmdline", "environ"] {
        let content = fs::read(format!("/proc/{}/{file}", line.trim())).unwrap();
        assert!(!content.is_empty(), "{file}");
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_reach_the_program() {
    let mut child =
        ramfold(["--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    wait_for_a_line(&mut child);
    signal(child.id(), "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_thread_that_was_evicted_forks_while_another_child_lives() {
    needs_userfaultfd!();
    // The thread's control block comes back while memory is shared, so that its object is kept: if
    // the agent has learned by then that it is shared, for which all memory is gone through once.
    const SCRIPT: &str = "
import threading
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
def once():
    go, begin = os.pipe()
    ended = []
    def forker():
        os.read(go, 1)
        child = os.fork()
        if child == 0:
            os._exit(7)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    thread = threading.Thread(target=forker)
    thread.start()
    for _ in range(4):
        assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
    end, ending = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(ending)
        os.read(end, 1)
        os._exit(0)
    assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
    os.write(begin, b'.')
    thread.join()
    os.close(ending)
    os.waitpid(other, 0)
    assert ended == [7], ended
    for descriptor in go, begin, end:
        os.close(descriptor)
once()
while not enough():
    once()
print('right')
";
    let (output, _) = run_until(&["--memory", "24M"], SCRIPT, "objects are kept", |stats| {
        number(stats, "objects_kept") > 0
    });
    assert_eq!(text(&output.stdout), "right\n", "{}", text(&output.stderr));
}

/// The first process in each of these namespaces has the number 1, as its parent has.
#[test]
fn children_in_namespaces_within_each_other_find_their_memory() {
    needs_userfaultfd!();
    if !is_root() {
        eprintln!("needs root: skipped");
        return;
    }
    const SCRIPT: &str = "
import ctypes, os
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
def nested(depth):
    assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages)), depth
    if depth == 4:
        return 7
    CLONE_NEWPID = 0x20000000
    assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
    child = os.fork()
    if child == 0:
        os._exit(nested(depth + 1))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(nested(0))
";
    let (ended, stats) = run_python("24M", SCRIPT);
    assert_eq!(text(&ended.output.stdout), "7\n", "{}", text(&ended.output.stderr));
    assert!(number(&stats, "pages_swapped_out") > 0 && number(&stats, "forks_taken_over") == 4);
}

/// Becomes nobody as a server does, forks, and says what its threads may do.
const DROPS_PRIVILEGES: &str = "
import os, time
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
def right():
    return all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
assert right()
os.setgroups([65534])
os.setgid(65534)
os.setuid(65534)
def agents():
    # Its parent is the launcher, as this program's is.
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            name, rest = open(f'/proc/{pid}/stat').read().rsplit(')', 1)
            if name.endswith('(ramfold-agent') and rest.split()[1] == str(os.getppid()):
                yield pid
        except FileNotFoundError:
            pass
def who(path):
    wanted = ('Uid', 'Gid', 'Groups', 'CapPrm', 'CapEff')
    lines = open(f'{path}/status').read().splitlines()
    return [line for line in lines if line.split(':')[0] in wanted]
[agent] = agents()
threads = [f'/proc/{agent}/task/{thread}' for thread in os.listdir(f'/proc/{agent}/task')]
own = [f'/proc/self/task/{thread}' for thread in os.listdir('/proc/self/task')]
end = time.monotonic() + 120
while len(kinds := {str(who(path)) for path in threads + own}) != 1 and time.monotonic() < end:
    time.sleep(0.05)
child = os.fork()
if child == 0:
    os._exit(7 if right() else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(len(own), 'and', len(threads), 'threads,', len(kinds), 'kinds,', 'child', status, right())
";

#[test]
fn the_agent_gives_up_what_the_program_gives_up() {
    needs_userfaultfd!();
    if !is_root() {
        eprintln!("needs root: skipped");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let spill = format!("{}:64M", folder.path().display());
    let cap = ["--memory", "24M"];
    for (options, threads) in [(&cap[..], 3), (&[cap[0], cap[1], "--spill", &spill], 4)] {
        let (ended, stats) = run_python_with(options, DROPS_PRIVILEGES);
        let (out, err) = (text(&ended.output.stdout), text(&ended.output.stderr));
        assert_eq!(out, format!("1 and {threads} threads, 1 kinds, child 7 True\n"), "{err}");
        assert!(stats["pages_swapped_out"].as_u64().unwrap() > 0);
        assert_eq!(stats["forks_filled"].as_u64(), Some(1), "{stats}");
    }
}

/// mremap tells of locked memory that moves and grows only when the new part is in memory.
#[test]
fn locked_memory_moves_and_grows() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] * 2 + [ctypes.c_int, ctypes.c_void_p]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
OLD, NEW = 1 << 20, 3 << 20
def anonymous(size):
    return libc.mmap(None, size, 3, 0x22, -1, 0)
for attempt in range(4):
    start, place = anonymous(OLD), anonymous(NEW)
    ctypes.memset(start, 65 + attempt, OLD)
    assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
    if attempt % 2:
        assert libc.mlock(start, OLD) == 0
    # So that the agent sees what it is now; what has to be right is right without that.
    assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
    # MREMAP_MAYMOVE | MREMAP_FIXED
    moved = libc.mremap(start, OLD, NEW, 3, place)
    assert moved == place, ctypes.get_errno()
    content = ctypes.string_at(moved, NEW)
    assert content == bytes([65 + attempt]) * OLD + bytes(NEW - OLD)
    assert all(page == bytes([i % 7]) * 4000 for i, page in enumerate(pages))
print('right')
";
    let ended = run(&mut ramfold(["--memory", "24M", "--", PYTHON, "-c", SCRIPT]));
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
}

#[test]
fn a_dump_has_what_is_compressed_and_nothing_of_ramfold() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import mmap, sys
pages = [b'page %8d ' % i + bytes([i % 251]) * 4050 for i in range(15000)]
# Perhaps not registered yet when it is dumped.
late = mmap.mmap(-1, 256 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(64):
    late[i * 4096:i * 4096 + 16] = b'late page %6d' % i
print('up', flush=True)
sys.stdin.read()
";
    let folder = tempfile::tempdir().unwrap();
    let mut child = ramfold(["--memory", "24M", "--", PYTHON, "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_a_line(&mut child);
    let program = support::tree(child.id())[1].to_string();
    let file = folder.path().join("pages");
    let dumped = Command::new(RAMFOLD)
        .args(["dump", "--pid", &program, "--output"])
        .arg(&file)
        .output()
        .unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(dumped.status.success(), "{}", text(&dumped.stderr));
    let pages = std::fs::read(&file).unwrap();
    let count = |text: &[u8]| pages.windows(text.len()).filter(|&found| found == text).count();
    assert!((15000..16000).contains(&count(b"page  ")), "{} of 15000 pages", count(b"page  "));
    let late = pages.chunks(4096).filter(|page| page.starts_with(b"late page ")).count();
    assert_eq!(late, 64);
    // 60 MB, and the interpreter; not the pool besides.
    assert!(pages.len() < 80 << 20, "{} bytes", pages.len());
}

#[test]
fn sigusr2_writes_stats_while_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let mut child =
        ramfold(["--stats", file.to_str().unwrap(), "--", "sh", "-c", "echo up; exec sleep 100"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    wait_for_a_line(&mut child);
    let stats = stats_now(&mut child, &file).expect("the program sleeps");
    assert!(number(&stats, "memory_cap_bytes") > 0, "{stats}");
    signal(child.id(), "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_program_survives_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result");
    let script = format!("print('up', flush=True)\n{HOG}\nopen({result:?}, 'w').write('right')");
    let mut child = ramfold(["--memory", "30M", "--", PYTHON, "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_a_line(&mut child);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until("the program finishes by itself", || {
        fs::read_to_string(&result).is_ok_and(|text| text == "right")
    });
}

/// Runs a Python script under a cap, to its end.
fn run_python(cap: &str, script: &str) -> (Ended, Value) {
    run_python_with(&["--memory", cap], script)
}

fn run_python_with(options: &[&str], script: &str) -> (Ended, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let mut command = ramfold(options);
    let ended = run(command.arg("--stats").arg(&file).args(["--", PYTHON, "-c", script]));
    (ended, stats(&file))
}

/// Runs a Python script, which goes on until it is [`ENOUGH`], until the statistics are so.
fn run_until(
    options: &[&str],
    script: &str,
    what: &str,
    is_so: impl FnMut(&Value) -> bool,
) -> (Output, Value) {
    let mut watched = Watched::start(options, &[PYTHON, "-c", &[ENOUGH, script].concat()]);
    watched.wait_until(what, is_so);
    watched.end()
}

fn number(stats: &Value, field: &str) -> u64 {
    stats[field].as_u64().unwrap_or_else(|| panic!("{field} in {stats}"))
}

fn wait_for_a_line(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn bench_measures_this_ramfold() {
    needs_userfaultfd!();
    // `make test-all` builds ramfold-bench beside ramfold.
    let output = Command::new(RAMFOLD)
        .args(["bench", "run", "--peer", "none,ramfold", "--workload", "random-rw,zipf-ro"])
        .args(["--size", "64M", "--scale", "0.1", "--runs", "1", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows.iter().filter(|row| row["peer"] == "ramfold") {
        assert_eq!(row["output_right"], true, "{row}");
        assert!(row["ramfold"]["pages_swapped_out"].as_u64().unwrap() > 0, "{row}");
        let cap = row["ramfold"]["memory_cap_bytes"].as_u64().unwrap();
        assert!(cap <= row["need_bytes"].as_u64().unwrap() * 51 / 100, "{row}");
    }
}

/// How often the threads of a program's launcher and agents have gone to sleep.
fn sleeps(launcher: u32) -> u64 {
    let of_thread = |status: String| -> u64 {
        let lines = status.lines();
        let counts = lines.filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        counts.map(|count| count.trim().parse::<u64>().unwrap()).sum()
    };
    let threads = |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let processes = tree(launcher).into_iter();
    let statuses = processes
        .flat_map(threads)
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    statuses.map(of_thread).sum()
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_that_sleeps_is_let_sleep() {
    needs_userfaultfd!();
    const SCRIPT: &str = "
import ctypes, os, time
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
# In one call: it is seen no more.
ctypes.CDLL(None).open(os.environ['WAIT'].encode(), 0)
";
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let spill = format!("{}:64M", folder.path().display());
    let options: [&[&str]; 4] = [
        &["--memory", "1G"],
        &["--memory", "24M"],
        &["--memory", "24M", "--spill", &spill],
        &["--memory", "1G", "--cold-after", "1s"],
    ];
    let groups = options.map(|_| LimitedGroup::new(1 << 30));
    let programs = [0, 1, 2, 3].map(|nth| {
        let mut command = match &groups[nth] {
            Some(group) => group.command(RAMFOLD),
            None => Command::new(RAMFOLD),
        };
        command.env("WAIT", &fifo);
        Watched::start_by(command, options[nth], &[PYTHON, "-c", SCRIPT])
    });
    wait_until("each wakes no more than five times a second", || {
        let before = programs.each_ref().map(|program| sleeps(program.launcher()));
        // Time that passes is what is measured.
        sleep(Duration::from_secs(4));
        programs
            .iter()
            .zip(before)
            .all(|(program, before)| sleeps(program.launcher()) - before <= 5 * 4)
    });
    // One that waits for the other end is let go by it, and those that come later too.
    let _end = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    for (program, options) in programs.into_iter().zip(options) {
        let (output, _) = program.end();
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    }
}

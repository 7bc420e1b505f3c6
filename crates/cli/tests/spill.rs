//! `ramfold run --spill`: programs that need more memory than compression can give.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};
use support::{ENOUGH, Ended, RAMFOLD, Watched, needs_userfaultfd, ramfold, run, stats, text};
use tempfile::TempDir;

const PYTHON: &str = "/usr/bin/python3";

/// 90 MiB that do not compress, in blocks of 64 KiB, and what each should be.
const BLOCKS: &str = "
import hashlib, os, random
blocks = [bytearray(os.urandom(65536)) for _ in range(1440)]
sums = [hashlib.blake2b(block).digest() for block in blocks]
def check(order):
    for i in order:
        assert hashlib.blake2b(blocks[i]).digest() == sums[i], i
def change(order):
    for i in order:
        blocks[i][random.randrange(65536)] ^= 1 + random.randrange(255)
        sums[i] = hashlib.blake2b(blocks[i]).digest()
everything = range(len(blocks))
";

/// All of them are checked and changed, again and again.
const CHANGES: &str = "
for _ in range(3):
    check(everything)
    change(everything)
print('right')
";

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a folder on a disk")
}

/// Runs a Python script behind [`BLOCKS`] in 30 MiB with a spill file of this size.
fn run_blocks(folder: &Path, size: &str, script: &str) -> (Ended, serde_json::Value) {
    let stats_file = folder.join("stats.json");
    let mut command = blocks(folder, size, script);
    let ended = run(&mut command);
    (ended, stats(&stats_file))
}

fn blocks(folder: &Path, size: &str, script: &str) -> Command {
    let spill = folder.join("spill");
    fs::create_dir_all(&spill).unwrap();
    let mut command = ramfold(["--memory", "30M", "--spill"]);
    command.arg(format!("{}{size}", spill.display())).arg("--stats").arg(folder.join("stats.json"));
    command.args(["--", PYTHON, "-c", &format!("{BLOCKS}{script}")]);
    command
}

/// The same for as long as the test says, in a file of a gibibyte.
fn watch_blocks(folder: &Path, script: &str) -> Watched {
    let spill = format!("{}:1G", folder.display());
    let script = [ENOUGH, BLOCKS, script].concat();
    Watched::start(&["--memory", "30M", "--spill", &spill], &[PYTHON, "-c", &script])
}

fn number(stats: &serde_json::Value, field: &str) -> u64 {
    stats[field].as_u64().unwrap_or_else(|| panic!("{field} in {stats}"))
}

#[test]
fn three_times_the_cap_that_do_not_compress_are_right_and_the_cap_holds() {
    needs_userfaultfd!();
    let folder = folder();
    let script = "
while not enough():
    check(everything)
    change(everything)
    check(reversed(everything))
    check(random.choices(everything, k=3000))
print('right')
";
    let mut watched = watch_blocks(folder.path(), script);
    // Pages of streams come together.
    watched.wait_until("pages come from disk, many at a time", |stats| {
        let hits = number(stats, "spill_hits");
        hits > 10_000 && number(stats, "spill_reads") < hits / 2
    });
    watched.wait_until_held((30 << 20) + (1 << 20));
    let (output, stats) = watched.end();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "right\n");
    assert!(number(&stats, "pages_raw") > 10_000, "{stats}");
    assert_eq!(number(&stats, "spill_errors"), 0);
}

/// The oldest of what compresses goes too, when the pool has taken its part of the cap.
#[test]
#[ignore = "slow: make test-all runs it"]
fn more_compressed_pages_than_there_is_room_for_are_right() {
    needs_userfaultfd!();
    let folder = folder();
    // A third of each page is noise.
    let script = "
del blocks, sums
pages = [bytes([i % 251]) * 2700 + os.urandom(1396) for i in range(45000)]
sums = [hashlib.blake2b(page).digest() for page in pages]
while not enough():
    assert sums == [hashlib.blake2b(page).digest() for page in pages]
print('right')
";
    let mut watched = watch_blocks(folder.path(), script);
    watched.wait_until("the oldest pages are on disk", |stats| {
        number(stats, "pages_spilled") > number(stats, "pages_raw") + 10_000
    });
    watched.wait_until_held((30 << 20) + (1 << 20));
    let (output, _) = watched.end();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "right\n");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn children_have_what_their_parent_had_on_disk() {
    needs_userfaultfd!();
    let folder = folder();
    let script = "
def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    return pid
def wait(pids):
    for pid in pids:
        assert os.waitpid(pid, 0) == (pid, 0)
half, rest = everything[:700], everything[700:]
def works():
    check(everything)
    change(half)
    # A child of the child's, while the parent goes on.
    grandchild = child(lambda: (check(half), change(rest), check(rest)))
    check(rest)
    wait([grandchild])
    check(half)
for _ in range(2):
    children = [child(works) for _ in range(2)]
    change(rest)
    check(half)
    wait(children)
check(everything)
print('right')
";
    let (ended, stats) = run_blocks(folder.path(), ":2G", script);
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    assert!(number(&stats, "forks_taken_over") >= 4, "{stats}");
    assert!(number(&stats, "spill_hits") > 10_000, "{stats}");
}

/// A child that libc does not know of gets all of its memory, from disk too.
#[test]
#[ignore = "slow: make test-all runs it"]
#[cfg(target_arch = "x86_64")]
fn a_child_made_behind_libcs_back_has_it_too() {
    needs_userfaultfd!();
    let folder = folder();
    // By machine code: mov eax, 57 (fork); syscall; ret.
    let script = "
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes([0xb8, 57, 0, 0, 0, 0x0f, 0x05, 0xc3]))
fork = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
del blocks[400:], sums[400:]
everything = range(400)
check(everything)
pid = fork()
if pid == 0:
    check(everything)
    os._exit(0)
assert os.waitpid(pid, 0) == (pid, 0)
check(everything)
print('right')
";
    let (ended, stats) = run_blocks(folder.path(), ":1G", script);
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    if number(&stats, "forks_filled") == 0 {
        eprintln!("SKIPPED: the kernel tells of such forks only the privileged");
    }
}

/// While a child lives objects are kept when their pages come back. A read ahead of a stream can
/// meet such a page after it was changed and taken out again.
#[test]
#[ignore = "slow: make test-all runs it"]
fn what_was_changed_while_its_old_content_was_read_stays_changed() {
    needs_userfaultfd!();
    let folder = folder();
    let script = "
import mmap, struct
del blocks, sums
pages = 24000
memory = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    memory[page * 4096 : (page + 1) * 4096] = struct.pack('Q', 0) + os.urandom(4088)
until, end = os.pipe()
if os.fork() == 0:
    os.close(end)
    os.read(until, 1)
    os._exit(0)
# A stream over all, and among its pages some that are changed again and again.
counts = [0] * pages
while not enough():
    for page in range(pages):
        if page % 4:
            memory[page * 4096 + 100]
            continue
        for changed in page, max(0, page - random.randrange(2000)) // 4 * 4:
            found = struct.unpack_from('Q', memory, changed * 4096)[0]
            assert found == counts[changed], (changed, found, counts[changed])
            counts[changed] += 1
            struct.pack_into('Q', memory, changed * 4096, counts[changed])
print('right')
";
    let mut watched = watch_blocks(folder.path(), script);
    watched.wait_until("objects are kept and read ahead", |stats| {
        number(stats, "objects_kept") > 10_000 && number(stats, "pages_prefetched") > 10_000
    });
    let (output, _) = watched.end();
    assert_eq!(text(&output.stdout), "right\n", "{}", text(&output.stderr));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_full_file_is_said_once_and_nothing_is_lost() {
    needs_userfaultfd!();
    let folder = folder();
    let (ended, stats) = run_blocks(folder.path(), ":8M", CHANGES);
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert_eq!(message.matches("the spill file is full at 8 MiB").count(), 1, "{message}");
    assert!(number(&stats, "spill_errors") > 0, "{stats}");
    assert!(number(&stats, "pages_in_spill") > 0, "{stats}");
}

/// As on a disk that is full: the file may not grow beyond 16 MiB.
#[test]
#[ignore = "slow: make test-all runs it"]
fn a_write_that_fails_is_said_once_and_nothing_is_lost() {
    needs_userfaultfd!();
    let folder = folder();
    let mut command = blocks(folder.path(), ":1G", CHANGES);
    // SAFETY: a system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = Rlimit { current: Some(16 << 20), maximum: Some(16 << 20) };
            setrlimit(Resource::Fsize, limit).map_err(Into::into)
        })
    };
    let ended = run(&mut command);
    assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
    let message = text(&ended.output.stderr);
    assert_eq!(message.matches("(the file may not be larger)").count(), 1, "{message}");
    assert!(number(&stats(&folder.path().join("stats.json")), "spill_errors") > 0);
}

#[test]
fn nothing_is_left_behind_by_who_is_killed() {
    needs_userfaultfd!();
    let folder = folder();
    let script = "
print(os.getpid(), flush=True)
while True:
    check(everything)
";
    let mut command = blocks(folder.path(), ":1G", script);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let program = line.trim();
    let spill = folder.path().join("spill");
    let count = || fs::read_dir(&spill).unwrap().count();
    assert_eq!(count(), 0, "the file has no name");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(count(), 0);
    // The program lives on, with its file, until it is killed as well.
    assert!(Command::new("kill").args(["-9", program]).status().unwrap().success());
}

#[test]
fn what_cannot_be_spilled_to_is_refused() {
    let folder = folder();
    let refused = |place: &str| {
        let output =
            Command::new(RAMFOLD).args(["run", "--spill", place, "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{place}");
        text(&output.stderr)
    };
    assert!(refused("/nowhere/at/all").contains("cannot spill to /nowhere/at/all: No such file"));
    assert!(refused("/proc").contains("/proc"));
    let small = format!("{}:100K", folder.path().display());
    assert!(refused(&small).contains("a spill file of 100 KiB is too small"));
    if Path::new("/dev/shm").exists() {
        assert!(refused("/dev/shm").contains("it is in RAM"));
    }
}

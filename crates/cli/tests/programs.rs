//! Real programs, unmodified, in half of the memory they need: the same output, in a control group
//! that would kill them if the cap did not hold.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{LimitedGroup, RAMFOLD, Watched, needs_userfaultfd, run, text};

/// Sizes are a part of what `RAMFOLD_TESTS_FULL=1` runs: 200 MB of text, 60,000 lines of C,
/// 400,000 keys. That takes half an hour.
fn sized(full: usize) -> usize {
    if is_full() { full } else { full * 3 / 20 }
}

fn is_full() -> bool {
    std::env::var_os("RAMFOLD_TESTS_FULL").is_some()
}

/// What is waited for, and whether the statistics say so.
type Until = (&'static str, fn(&Value) -> bool);

/// Runs a program as it is, then at half of its peak, and compares.
fn same_in_half(name: &str, program: &[&str]) -> Value {
    same_in_half_until(name, program, None)
}

/// The same; at half of its peak the program goes on until the statistics are so.
fn same_in_half_until(name: &str, program: &[&str], until: Option<Until>) -> Value {
    let mut plain = std::process::Command::new(program[0]);
    plain.args(&program[1..]);
    let plain = run(&mut plain);
    assert!(plain.output.status.success(), "{name}: {}", text(&plain.output.stderr));
    let cap = plain.peak_anonymous_bytes / 2;
    assert!(cap > 16 << 20, "{name} needs more memory to be a test: {cap}");

    // Room for the launcher, page tables, what a program grows by while nobody sees it, and
    // children that have ended and are on their way out, which take their time where the machine is
    // busy.
    let group = LimitedGroup::new(cap + (cap / 2).max(24 << 20));
    let command = match &group {
        Some(group) => group.command(RAMFOLD),
        None => std::process::Command::new(RAMFOLD),
    };
    let mut under = Watched::start_by(command, &["--memory", &cap.to_string()], program);
    if let Some((what, is_so)) = until {
        under.wait_until(what, is_so);
    }
    let (under, stats) = under.end();
    let complaint = text(&under.stderr);
    assert!(under.status.success(), "{name}: {} {complaint}", under.status);
    if under.stdout != plain.output.stdout {
        // Too much to print for some.
        let start = |bytes: &[u8]| text(&bytes[..bytes.len().min(2000)]);
        let (expected, found) = (start(&plain.output.stdout), start(&under.stdout));
        panic!(
            "{name}: the output differs: expected\n{expected}\nfound\n{found}\n{complaint}{stats}"
        );
    }
    assert!(stats["pages_swapped_out"].as_u64().unwrap() > 0, "{name}: {stats}");
    let over = stats["over_cap_bytes_max"].as_u64().unwrap();
    println!(
        "{name}: cap {} MiB, at most {} KiB over it, {} faults, {} times a thread was stopped",
        cap >> 20,
        over >> 10,
        stats["faults"],
        stats["threads_stopped"]
    );
    stats
}

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn gnu_sort() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let mut state = 12345u64;
    let mut lines = String::new();
    while lines.len() < sized(200 << 20) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        lines.push_str(&format!(
            "user{:05} visited page {:04}\n",
            state >> 40 & 0xffff,
            state >> 52
        ));
    }
    let input = write(folder.path(), "lines", &lines);
    same_in_half("sort", &["env", "LC_ALL=C", "sort", "--parallel=2", "-S", "4G", &input]);
}

/// A C source of so many functions.
fn c_source(functions: usize) -> String {
    let mut source = String::from("#include <stdint.h>\nstatic uint32_t state[64];\n");
    for function in 0..functions as u64 {
        source.push_str(&format!(
            "uint32_t f{function}(uint32_t a, uint32_t b) {{\n  uint32_t c = a * {}u + b;\n  \
             for (int i = 0; i < {}; i++) {{\n    \
             c ^= state[(c + i) % 64] + b; state[c % 64] += i;\n  }}\n  \
             return c;\n}}\n",
            function * 2_654_435_761u64 % 4_294_967_296,
            function % 13 + 2,
        ));
    }
    source
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn gcc() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let source = c_source(sized(9_000));
    let input = write(folder.path(), "large.c", &source);
    same_in_half("gcc", &["gcc", "-O2", "-S", "-o", "-", &input]);
}

/// Programs of a build share the cap, large ones and many that are small.
#[test]
#[ignore = "slow: make test-all runs it"]
fn make_with_two_jobs() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let sizes = [6, 1, 40, 1, 2, 40, 1, 20, 1, 3].map(|part| sized(1000) * part / 10);
    for (file, functions) in sizes.into_iter().enumerate() {
        write(folder.path(), &format!("part{file}.c"), &c_source(functions));
    }
    let makefile = "OBJECTS := $(patsubst %.c,%.s,$(sort $(wildcard *.c)))
sum: $(OBJECTS)
\t@cat $(OBJECTS) | sha256sum
%.s: %.c
\t@gcc -O2 -S -o $@ $<
";
    write(folder.path(), "Makefile", makefile);
    let folder = folder.path().to_str().unwrap();
    let stats = same_in_half(
        "make -j2",
        &["make", "-s", "-B", "-j2", "--no-print-directory", "-C", folder],
    );
    assert!(stats["processes_started"].as_u64().unwrap() > 20, "{stats}");
    assert!(stats["processes_activated"].as_u64().unwrap() >= 2, "{stats}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn sqlite() {
    needs_userfaultfd!();
    // The whole check looks each row up in the index, in random order: minutes of faults.
    let (rows, check) =
        if is_full() { (1_000_000, "integrity_check") } else { (330_000, "quick_check") };
    let script = format!(
        "
        PRAGMA temp_store = MEMORY;
        CREATE TABLE t(a INTEGER, b TEXT);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
        INSERT INTO t SELECT i * 7919 % 1000003, 'name of ' || (i * 31 % 5003) FROM n;
        CREATE INDEX tb ON t(b, a);
        SELECT b, count(*), sum(a) FROM t GROUP BY b ORDER BY b LIMIT 2000;
        PRAGMA {check};"
    );
    let stats = same_in_half("sqlite3", &["sqlite3", ":memory:", &script]);
    // The pool grows and shrinks all the time. When that was taken for growth of the program, room
    // was kept for more of it, half of what the program needed to get on.
    assert!(stats["threads_stopped"].as_u64().unwrap() < 100, "{stats}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn node() {
    needs_userfaultfd!();
    let script = "
        const map = new Map();
        for (let i = 0; i < 1_000_000; i++)
            map.set('key ' + i, { id: i, name: 'n' + (i % 977), next: null });
        let sum = 0;
        for (let round = 0; round < 3; round++)
            for (const [key, value] of map) {
                sum = (sum + value.id * key.length) % 1000000007;
                value.next = round;
            }
        console.log(sum, map.size);";
    same_in_half("node", &["node", "-e", script]);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn java() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let source = "
        import java.util.*;
        public class Walk {
            public static void main(String[] a) {
                HashMap<String, String> map = new HashMap<>();
                for (int i = 0; i < 1000000; i++)
                    map.put(\"key \" + i, \"value \" + (i * 31 % 4099));
                long sum = 0;
                for (int round = 0; round < 3; round++)
                    for (int i = 0; i < 1000000; i++) sum += map.get(\"key \" + i).hashCode();
                System.out.println(sum + \" \" + map.size());
            }
        }";
    write(folder.path(), "Walk.java", source);
    let compiled = std::process::Command::new("javac")
        .arg("-d")
        .arg(folder.path())
        .arg(folder.path().join("Walk.java"))
        .status();
    assert!(compiled.unwrap().success());
    let classes = folder.path().to_str().unwrap();
    same_in_half("java", &["java", "-Xmx400m", "-cp", classes, "Walk"]);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn python_with_threads_and_forks() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let script = write(folder.path(), "many.py", include_str!("many.py"));
    same_in_half("python", &["/usr/bin/python3", &script]);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_server_that_forks() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let script = write(folder.path(), "server.py", include_str!("server.py"));
    let rows = sized(600_000).to_string();
    let stats = same_in_half("forking server", &["/usr/bin/python3", &script, &rows]);
    assert!(stats["processes_started"].as_u64().unwrap() > 24, "{stats}");
}

fn redis(name: &str, mode: &[&str], until: Option<Until>) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let script = write(folder.path(), "redis.py", include_str!("redis.py"));
    let keys = sized(400_000).to_string();
    same_in_half_until(name, &[&["/usr/bin/python3", &script, &keys], mode].concat(), until)
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn redis_server() {
    needs_userfaultfd!();
    redis("redis", &[], None);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn redis_server_that_saves_from_a_fork() {
    needs_userfaultfd!();
    // What the two share, and what is left of that when the child has ended.
    let until = |stats: &Value| {
        let count = |name: &str| stats[name].as_u64().unwrap();
        count("objects_kept") > 0 && count("objects_kept_freed") > 0
    };
    redis("redis with a fork", &["save"], Some(("objects are kept for a child", until)));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_demo() {
    needs_userfaultfd!();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/demo.py");
    same_in_half("demo", &["/usr/bin/python3", script]);
}

/// Takes blocks of a mebibyte as fast as it can, while another thread takes what memory is free and
/// gives it back; then looks whether all is right.
const HOSTILE: &str = "
import hashlib, os, threading
done = False
def take():
    while not done:
        block = bytearray(4 << 20)
        block[::4096] = b'x' * 1024
other = threading.Thread(target=take)
other.start()
blocks, sums = [], []
for _ in range(200):
    blocks.append(bytearray(os.urandom(1024) * 1024))
    sums.append(hashlib.blake2b(blocks[-1]).digest())
for block, digest in zip(blocks, sums):
    assert hashlib.blake2b(block).digest() == digest
done = True
other.join()
print('right')
";

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_program_that_takes_all_the_memory_there_is_does_not_stop_reclaim() {
    needs_userfaultfd!();
    // The kernel ends what passes this; ramfold takes it less 10 % for its cap.
    const LIMIT: u64 = 120 << 20;
    for reserve in [None, Some("0")] {
        let group = LimitedGroup::new(LIMIT);
        let mut command = match &group {
            Some(group) => group.command(RAMFOLD),
            None => std::process::Command::new(RAMFOLD),
        };
        command.arg("run");
        if group.is_none() {
            command.args(["--memory", "108M"]);
        }
        command.args(reserve.iter().flat_map(|reserve| ["--reserve", reserve]));
        command.args(["--", "/usr/bin/python3", "-c", HOSTILE]);
        let ended = run(&mut command);
        assert!(
            ended.output.status.success(),
            "{reserve:?}: {} {}",
            ended.output.status,
            text(&ended.output.stderr)
        );
        assert_eq!(text(&ended.output.stdout), "right\n", "{reserve:?}");
    }
}

//! `ramfold run --trace`: which pages a real program accesses.

mod support;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ramfold_trace::recorded::{Event, Reader, What};
use support::{Ended, needs_userfaultfd, ramfold, run, text};

/// Debian's, not a wrapper script that may stand in for it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// 60 MB, of which half is read all the time, one quarter never, and one quarter is given back.
const PROGRAM: &str = "
import mmap, time
def area(): return mmap.mmap(-1, 15 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
areas = [area() for _ in range(4)]
for number, one in enumerate(areas):
    for page in range(0, len(one), 4096):
        one[page:page + 8] = (number << 32 | page).to_bytes(8, 'little')
end = time.monotonic() + 2.5
while time.monotonic() < end:
    for number, one in enumerate(areas[:2]):
        for page in range(0, len(one), 4096):
            assert one[page:page + 8] == (number << 32 | page).to_bytes(8, 'little')
    if len(areas) == 4 and time.monotonic() > end - 1.2:
        areas.pop().close()
print('right')
";

fn traced(options: &[&str], trace: &Path, program: &[&str]) -> Ended {
    let mut command = ramfold(options.iter().copied());
    run(command.arg("--trace").arg(trace).arg("--").args(program))
}

/// The events, and of how many blocks one was watched.
fn events(trace: &Path) -> (Vec<Event>, u32) {
    let mut reader = Reader::new(BufReader::new(File::open(trace).unwrap())).unwrap();
    let events = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(reader.lost(), 0);
    (events, reader.header().one_in)
}

fn right(ended: &Ended) {
    let (stdout, stderr) = (text(&ended.output.stdout), text(&ended.output.stderr));
    assert_eq!((&*stdout, &*stderr), ("right\n", ""));
    assert!(ended.output.status.success());
}

#[test]
fn a_trace_shows_what_a_program_uses() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("pages");
    fs::write(&trace, "what was there before").unwrap();
    right(&traced(&["--slowdown", "5%"], &trace, &[PYTHON, "-c", PROGRAM]));
    assert_eq!(fs::metadata(&trace).unwrap().mode() & 0o777, 0o600);
    let (events, one_in) = events(&trace);
    assert!(one_in >= 8, "{one_in}");
    // An area is 3,840 pages.
    let area = 3840.0 / f64::from(one_in);
    // Pages of a block take turns.
    let mut used: HashSet<u64> = HashSet::new();
    let (mut appeared, mut gone) = (0, 0);
    // When the program ends its pages may be seen to go, one look before it is.
    let before_end_us = events.last().unwrap().time_us - 500_000;
    for Event { page, what, time_us } in &events {
        match what {
            What::Appeared => appeared += 1,
            What::Gone if *time_us < before_end_us => gone += 1,
            What::Touched { .. } => drop(used.insert(page / 8)),
            _ => {}
        }
    }
    let used = 8.0 * used.len() as f64;
    assert!(f64::from(appeared) > 3.6 * area, "{appeared} of {area} in each of 4");
    assert!(f64::from(gone) > 0.8 * area && f64::from(gone) < 1.6 * area, "{gone} of {area}");
    assert!(used > 1.5 * area && used < 2.6 * area, "{used} of {area} in each of 2");
    assert!(events.iter().any(|event| event.what == What::Ended));
    assert!(events.is_sorted_by_key(|event| event.time_us));
    let simulated = run(Command::new(support::RAMFOLD)
        .args(["simulate", "--json", "--memory", "50%"])
        .arg(&trace));
    let report: serde_json::Value = serde_json::from_slice(&simulated.output.stdout).unwrap();
    let pages = report["pages"].as_f64().unwrap() / 15_360.0;
    assert!((0.9..1.4).contains(&pages), "{report:#}");
}

/// What a program may lose is not used up by its growth, nor by accesses to all that is watched at
/// once: it is watched to its end.
#[test]
fn a_program_that_has_grown_is_watched_all_the_time() {
    needs_userfaultfd!();
    const GROWS: &str = "
import mmap, time
areas = []
for number in range(60):
    areas.append(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for page in range(0, 1 << 20, 4096):
        areas[-1][page:page + 8] = (number << 32 | page).to_bytes(8, 'little')
    time.sleep(0.01)
end = time.monotonic() + 4
while time.monotonic() < end:
    for number, one in enumerate(areas):
        for page in range(0, 1 << 20, 4096):
            assert one[page:page + 8] == (number << 32 | page).to_bytes(8, 'little')
    time.sleep(0.3)
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("pages");
    right(&traced(&["--slowdown", "1%"], &trace, &[PYTHON, "-c", GROWS]));
    let (events, _) = events(&trace);
    let touched = |event: &&Event| matches!(event.what, What::Touched { .. });
    let times: Vec<u64> = events.iter().filter(touched).map(|event| event.time_us).collect();
    // It sleeps for 0.3 s at a time. Where the machine is busy a fault may cost more than is
    // thought.
    let halves = times.last().unwrap() / 500_000 + 1;
    let watched = times.iter().map(|time_us| time_us / 500_000).collect::<HashSet<_>>().len();
    assert!(3 * watched as u64 >= 2 * halves, "in {watched} of {halves} half seconds");
    assert!(times.len() > 100, "{} touches", times.len());
}

/// What a mapping grows by behind a page that is watched is not known, and left to the kernel: its
/// first touches cost nothing.
#[test]
fn what_mappings_grow_by_is_left_to_the_kernel() {
    needs_userfaultfd!();
    const GROWS: &str = "
import mmap, time
areas = [mmap.mmap(-1, 512 << 10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(16)]
def fill(one, start):
    for page in range(start, len(one), 4096):
        one[page:page + 8] = page.to_bytes(8, 'little')
for one in areas:
    fill(one, 0)
time.sleep(0.6)
for one in areas:
    one.resize(2 << 20)
    fill(one, 512 << 10)
time.sleep(0.3)
for one in areas:
    for page in range(0, len(one), 4096):
        assert one[page:page + 8] == page.to_bytes(8, 'little')
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let (trace, stats) = (folder.path().join("pages"), folder.path().join("stats"));
    let options = ["--slowdown", "1%", "--stats", stats.to_str().unwrap()];
    right(&traced(&options, &trace, &[PYTHON, "-c", GROWS]));
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    // They grow by 6,144 pages.
    let filled = stats["faults_zero_filled"].as_u64().unwrap();
    assert!(filled < 300, "{filled} first touches: {stats:#}");
}

#[test]
fn forked_processes_and_a_cap_do_no_harm() {
    needs_userfaultfd!();
    const FORKS: &str = "
import os
pages = [bytes([i % 7]) * 3000 + os.urandom(500) for i in range(8000)]
for turn in range(4):
    child = os.fork()
    for i, page in enumerate(pages):
        assert page[:3000] == bytes([i % 7]) * 3000
    if not child:
        os._exit(0)
    assert os.wait()[1] == 0
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("pages");
    for options in [&["--slowdown", "30%"][..], &["--slowdown", "30%", "--memory", "24M"]] {
        let ended = traced(options, &trace, &[PYTHON, "-c", FORKS]);
        assert_eq!(text(&ended.output.stdout), "right\n", "{}", text(&ended.output.stderr));
        let processes = events(&trace).0.iter().map(|event| event.page >> 44).max().unwrap();
        assert!(processes >= 1);
    }
}

#[test]
fn memory_that_several_threads_move_keeps_its_content() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page_trace/moves.c");
    let program: PathBuf = folder.path().join("moves");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .status();
    assert!(compiled.unwrap().success());
    let trace = folder.path().join("pages");
    let ended = traced(&["--slowdown", "50%"], &trace, &[program.to_str().unwrap(), "4"]);
    right(&ended);
    // Pages have other names at other places.
    let appeared = |event: &&Event| event.what == What::Appeared;
    assert!(events(&trace).0.iter().filter(appeared).count() > 100);
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_the_program_runs() {
    for (path, said) in [
        ("/no/such/folder/pages", "cannot write --trace /no/such/folder/pages"),
        ("/dev/null", "a regular file"),
        ("/tmp", "cannot write --trace /tmp"),
    ] {
        let ended = traced(&[], Path::new(path), &["sh", "-c", "echo ran"]);
        let stderr = text(&ended.output.stderr);
        assert_eq!(ended.output.status.code(), Some(125), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
        assert_eq!(text(&ended.output.stdout), "");
    }
}

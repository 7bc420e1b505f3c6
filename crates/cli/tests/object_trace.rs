//! `ramfold run --object-trace`: what happens to the objects of a real program.

mod support;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use ramfold_store::{Event, TRACE_MAGIC, events};
use support::{Ended, RAMFOLD, needs_userfaultfd, ramfold, run, text, wait_until};

/// Debian's, not a wrapper script that may stand in for it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Needs 60 MB. A child, which is not recorded, changes some of it.
const PROGRAM: &str = "
import os
pages = [bytes([i % 7]) * 3000 + os.urandom(500) for i in range(15000)]
child = os.fork()
if not child:
    changed = [bytearray(page) for page in pages[::20]]
    os._exit(0)
assert os.wait()[1] == 0
for _ in range(2):
    for i, page in enumerate(pages):
        assert page[:3000] == bytes([i % 7]) * 3000
print('right')
";

fn traced(place: &str, program: &[&str]) -> Ended {
    let mut command = ramfold(["--memory", "30M", "--object-trace", place, "--"]);
    run(command.args(program))
}

/// What a trace came to.
#[derive(Debug)]
struct Followed {
    puts: usize,
    /// Objects that are left.
    left: usize,
    whole: bool,
}

/// One place has one object at a time.
fn follow(path: &Path) -> Followed {
    let bytes = fs::read(path).unwrap();
    let (words, []) = bytes.as_chunks() else { panic!("half a word at the end") };
    let mut words = words.iter().map(|&word| u64::from_ne_bytes(word));
    assert_eq!(words.next(), Some(TRACE_MAGIC));
    let mut lengths = HashMap::new();
    let (mut puts, mut ended) = (0, None);
    for event in events(words) {
        assert_eq!(ended, None);
        match event.unwrap() {
            Event::Put { place, len } => {
                assert_eq!(lengths.insert(place, len), None);
                puts += 1;
            }
            Event::Free { place } => assert!(lengths.remove(&place).is_some()),
            Event::Move { from, to } => assert_eq!(lengths.insert(to, lengths[&from]), None),
            Event::Compact => {}
            Event::End { whole } => ended = Some(whole),
        }
    }
    Followed { puts, left: lengths.len(), whole: ended.expect("no end") }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn what_becomes_of_objects_is_recorded_and_other_allocators_can_do_the_same() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let ended = traced(path.to_str().unwrap(), &[PYTHON, "-c", PROGRAM]);
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert_eq!(text(&ended.output.stderr), "");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let followed = follow(&path);
    let Followed { puts, left, whole } = followed;
    assert!(puts > 8_000 && left < puts && whole, "{followed:?}");
    // `make test-all` builds ramfold-bench beside ramfold.
    let output = Command::new(RAMFOLD)
        .args(["bench", "store", "--json", "--object-trace"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let last = &report["rows"].as_array().unwrap()[4];
    assert_eq!((&last["allocator"], &last["after"]), (&"size-classes".into(), &"end".into()));
    // Copies that were on their way are the same object.
    assert!(last["objects"].as_u64().unwrap() <= left as u64, "{last} {left}");
}

#[test]
fn a_trace_that_is_full_keeps_its_beginning_and_the_program_goes_on() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let ended = traced(&format!("{}:20K", path.display()), &[PYTHON, "-c", PROGRAM]);
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert!(message.contains("has only the first 19 KiB"), "{message}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 20 << 10);
    let followed = follow(&path);
    assert!(followed.puts > 1_000 && !followed.whole, "{followed:?}");
}

#[test]
fn without_a_trace_there_is_a_reason() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let place = path.to_str().unwrap();
    let ended = traced(place, &["sh", "-c", "exit 3"]);
    assert_eq!(ended.output.status.code(), Some(3));
    assert!(text(&ended.output.stderr).contains("is empty: no process compressed anything"));
    assert_eq!(follow(&path).puts, 0);
    let ended = traced("/no/such/folder/objects", &["true"]);
    assert_eq!(ended.output.status.code(), Some(125));
    assert!(text(&ended.output.stderr).contains("cannot write --object-trace"));
}

/// A process with little memory becomes active first, another one compresses something.
#[test]
fn the_process_that_compresses_is_the_one_that_is_recorded() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    // It is active when some of its memory is registered with a userfaultfd.
    const IDLER: &str = "
import time
end = time.monotonic() + 120
def is_registered():
    flags = [line for line in open('/proc/self/smaps') if line.startswith('VmFlags:')]
    return any('um' in line.split() for line in flags)
while not is_registered():
    assert time.monotonic() < end, 'it does not become active'
    time.sleep(0.01)
";
    let script = format!("{PYTHON} -c \"$1\" && {PYTHON} -c \"$0\"");
    let mut command = ramfold(["--memory", "30M", "--cold-after", "10m", "--object-trace"]);
    let ended = run(command.arg(&path).args(["--", "sh", "-c", &script, PROGRAM, IDLER]));
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert_eq!(text(&ended.output.stderr), "");
    assert!(follow(&path).puts > 8_000);
}

/// The launcher, and with it the file, is gone before the process that is recorded.
#[test]
fn a_process_that_goes_on_after_the_run_takes_no_harm() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let result = folder.path().join("result");
    // The shell ends when Python has said that memory is short.
    let script =
        format!("mkfifo $1/ready; {PYTHON} -c \"$0\" $1 > $1/out 2>&1 & read line < $1/ready");
    let program = PROGRAM.replace(
        "for _ in",
        "import sys, time
open(sys.argv[1] + '/ready', 'w').write('x\\n')
while not os.path.exists(sys.argv[1] + '/ended'):
    time.sleep(0.01)
for _ in",
    ) + "\nopen(sys.argv[1] + '/result', 'w').write('right')\n";
    let place = folder.path().to_str().unwrap();
    let ended = traced(path.to_str().unwrap(), &["sh", "-c", &script, &program, place]);
    assert_eq!(ended.output.status.code(), Some(0));
    fs::write(folder.path().join("ended"), "").unwrap();
    wait_until("it has come to its end", || {
        let said = fs::read_to_string(folder.path().join("out")).unwrap();
        assert!(!said.contains("Traceback"), "{said}");
        fs::read_to_string(&result).is_ok_and(|text| text == "right")
    });
    assert!(follow(&path).puts > 1_000);
}

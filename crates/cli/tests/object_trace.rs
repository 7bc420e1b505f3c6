//! `ramfold run --object-trace`: what happens to the objects of a real program.

mod support;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use ramfold_store::{Event, TRACE_HEAD_BYTES, events, words_asked};
use support::{Ended, RAMFOLD, needs_userfaultfd, ramfold, run, text};

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

/// Follows a trace: how many objects were stored, and how many are left. One place has one object at a
/// time.
fn follow(path: &Path) -> (usize, usize) {
    let bytes = fs::read(path).unwrap();
    let (head, words) = bytes.split_first_chunk::<TRACE_HEAD_BYTES>().unwrap();
    assert!(words_asked(head).unwrap() >= words.len() as u64 / 8);
    let words = words.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
    let mut lengths = HashMap::new();
    let mut puts = 0;
    for event in events(words) {
        match event.unwrap() {
            Event::Put { place, len } => {
                assert_eq!(lengths.insert(place, len), None);
                puts += 1;
            }
            Event::Free { place } => assert!(lengths.remove(&place).is_some()),
            Event::Move { from, to } => assert_eq!(lengths.insert(to, lengths[&from]), None),
            Event::Compact => {}
        }
    }
    (puts, lengths.len())
}

#[test]
fn what_becomes_of_objects_is_recorded_and_other_allocators_can_do_the_same() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let ended = traced(path.to_str().unwrap(), &[PYTHON, "-c", PROGRAM]);
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert_eq!(text(&ended.output.stderr), "");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let (puts, left) = follow(&path);
    assert!(puts > 8_000 && left < puts, "{puts} {left}");
    // `make test` builds ramfold-bench beside ramfold.
    let output = Command::new(RAMFOLD)
        .args(["bench", "store", "--json", "--object-trace"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let last = &report["rows"].as_array().unwrap()[4];
    assert_eq!(
        (last["allocator"].as_str(), last["after"].as_str()),
        (Some("size-classes"), Some("end"))
    );
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
    assert!(message.contains("has only the first 20 of"), "{message}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 20 << 10);
    assert!(follow(&path).0 > 1_000);
}

#[test]
fn without_a_trace_there_is_no_file_and_a_reason() {
    needs_userfaultfd!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    let place = path.to_str().unwrap();
    let ended = traced(place, &["sh", "-c", "exit 3"]);
    assert_eq!(ended.output.status.code(), Some(3));
    assert!(text(&ended.output.stderr).contains("no process came to compress anything"));
    let ended = traced("/no/such/folder/objects", &["true"]);
    assert_eq!(ended.output.status.code(), Some(125));
    assert!(text(&ended.output.stderr).contains("cannot write --object-trace"));
    // No address space for it.
    let script = format!("ulimit -v 1500000; exec {PYTHON} -c \"$0\"");
    let ended = traced(&format!("{place}:1500M"), &["sh", "-c", &script, PROGRAM]);
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert!(
        message.contains("goes on without --object-trace: the file cannot be mapped"),
        "{message}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

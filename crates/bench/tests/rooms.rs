//! The order of the crate's rooms, as `lib.rs` describes it.

use std::fs;
use std::path::Path;

/// Each room, and what it may use beside itself. All may implement the trait of `commands`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("content", &[]),
    ("machine", &["content"]),
    ("harness", &["content", "machine"]),
    ("peers", &["content", "machine", "harness"]),
    ("workloads", &["content", "machine", "harness"]),
    ("experiments", &["content", "machine", "harness", "peers", "workloads"]),
];

#[test]
fn a_room_uses_only_those_below_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap());
    let folders = folders.filter(|entry| entry.path().is_dir()).count();
    assert_eq!(folders, ALLOWED.len(), "every room is listed here");
    for (room, allowed) in ALLOWED {
        check(&source.join(room), room, allowed);
    }
}

fn check(folder: &Path, room: &str, allowed: &[&str]) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, room, allowed);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for after in text.split("crate::").skip(1) {
            let used = after.split(|c: char| !c.is_ascii_lowercase()).next().unwrap();
            assert!(
                used == room || used == "commands" || allowed.contains(&used),
                "{} must not use {used}",
                path.display()
            );
        }
    }
}

//! The edges between crates, as ARCHITECTURE.md draws them.

use std::collections::BTreeMap;
use std::process::Command;

/// What each crate may use of the others.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ramfold-codec", &[]),
    ("ramfold-sys", &[]),
    ("ramfold-policy", &["ramfold-codec"]),
    ("ramfold-store", &["ramfold-codec", "ramfold-sys"]),
    ("ramfold-engine", &["ramfold-codec", "ramfold-sys"]),
    ("ramfold-session", &["ramfold-codec", "ramfold-sys", "ramfold-store"]),
    (
        "ramfold-pager",
        &["ramfold-codec", "ramfold-policy", "ramfold-sys", "ramfold-store", "ramfold-session"],
    ),
    ("ramfold-filecache", &["ramfold-codec", "ramfold-sys", "ramfold-store", "ramfold-engine"]),
    (
        "ramfold-launch",
        &["ramfold-codec", "ramfold-sys", "ramfold-store", "ramfold-session", "ramfold-pager"],
    ),
    ("ramfold", &["ramfold-codec", "ramfold-sys", "ramfold-launch", "ramfold-filecache"]),
    ("ramfold-bench", &["ramfold-codec", "ramfold-sys", "ramfold-store", "ramfold-engine"]),
    ("ramfold-torture", &[]),
];

#[test]
fn dependencies_point_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), allowed.len(), "every crate of the workspace is listed here");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is not listed here"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            // Tests may look further.
            let in_tests = dependency["kind"] == "dev";
            if used.starts_with("ramfold") && !in_tests {
                assert!(allowed.contains(&used), "{name} must not depend on {used}");
            }
        }
    }
}

//! What a run sets on the machine.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::support::{STATE, ZSWAP, run, text};

/// What a run sets and has to take back.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    zswap: Vec<(PathBuf, String)>,
    pub(crate) page_cluster: String,
    ours: BTreeSet<PathBuf>,
}

impl Settings {
    /// Between two runs of whoever else measures on this machine, and without what a killed one
    /// has left.
    pub(crate) fn undisturbed() -> Self {
        let mended = run(&["--list"]);
        assert!(mended.status.success(), "{}", text(&mended.stderr));
        let lock = File::open(Path::new(STATE).join("lock")).unwrap();
        lock.lock().unwrap();
        Self::read()
    }

    pub(crate) fn read() -> Self {
        let mut zswap: Vec<(PathBuf, String)> = fs::read_dir(ZSWAP)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
            .collect();
        zswap.sort();
        let mut ours = BTreeSet::new();
        for folder in [Path::new(STATE), Path::new("/sys/fs/cgroup")] {
            find_ours(folder, 6, &mut ours);
        }
        for line in fs::read_to_string("/proc/swaps").unwrap().lines() {
            if line.contains("ramfold-bench-") {
                ours.insert(PathBuf::from(line));
            }
        }
        let page_cluster = fs::read_to_string("/proc/sys/vm/page-cluster").unwrap();
        Self { zswap, page_cluster, ours }
    }
}

fn find_ours(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if entry.file_name().to_string_lossy().starts_with("ramfold-bench-") {
            found.insert(entry.path());
        } else if is_folder && depth > 0 {
            find_ours(&entry.path(), depth - 1, found);
        }
    }
}

//! `ramfold mount --trace`: which pages of files are read through a real mount.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use ramfold_trace::recorded::{AddressSpace, Event, Reader, What};
use support::mounted::{Mounted, can_mount, ended_well, python, serve_with, umount};
use support::{RAMFOLD, run, text};

/// Pages of each of two files are read in an order of its own, without read-ahead.
const READS: &str = "
import os, random, sys
for name, seed in ('first', 1), ('second', 2):
    file = os.open(sys.argv[1] + '/' + name, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    order = list(range(0, 4096, 2))
    random.Random(seed).shuffle(order)
    for page in order:
        assert os.pread(file, 100, page * 4096 + 7) == (b'%d,' % page * 100)[7:107], page
    # Again, more pages than the kernel keeps of a mount of 16 MiB.
    for page in order:
        os.pread(file, 1, page * 4096)
    os.close(file)
";

#[test]
fn a_trace_shows_which_pages_of_files_are_read() {
    if !can_mount() {
        return;
    }
    let mut mounted = Mounted::new().unwrap();
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);
    let content: Vec<u8> = (0..4096)
        .flat_map(|page| format!("{page},").into_bytes().into_iter().cycle().take(4096))
        .collect();
    // One ends within a page.
    fs::write(mounted.source("first"), &content).unwrap();
    fs::write(mounted.source("second"), &content[..content.len() - 4000]).unwrap();
    let trace = mounted.folder.path().join("reads");
    fs::write(&trace, "what was there before").unwrap();
    let options = ["--memory", "16M", "--trace", trace.to_str().unwrap()];
    mounted.server = serve_with(&options, &mounted.source(""), &mounted.mount(""));
    python(READS, [mounted.mount("")]);
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);

    assert_eq!(fs::metadata(&trace).unwrap().mode() & 0o777, 0o600);
    let mut reader = Reader::new(BufReader::new(File::open(&trace).unwrap())).unwrap();
    let events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!((reader.lost(), reader.header().kind), (0, AddressSpace::Files));
    assert!(events.is_sorted_by_key(|event| event.time_us));
    assert!(events.iter().all(|event| event.what == What::Accessed));
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    events.iter().for_each(|event| *counts.entry(event.page).or_default() += 1);
    let read: Vec<u64> = counts.keys().copied().collect();
    let expected: Vec<u64> =
        (0..2).flat_map(|file| (0..4096).step_by(2).map(move |page| file << 32 | page)).collect();
    assert!(read == expected, "{} pages: {:?}", read.len(), &read[..10.min(read.len())]);
    // 8 MiB were read twice of each, in the same order; the kernel keeps far less.
    assert!(events.len() > 3 * 4096 / 2, "{} events", events.len());

    let simulated = run(Command::new(RAMFOLD).args(["simulate", "--json"]).arg(&trace));
    let report: serde_json::Value = serde_json::from_slice(&simulated.output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&simulated.output.stderr)));
    assert_eq!(report["pages"], 4096);
    assert_eq!(report["accesses"], events.len());
}

#[test]
fn a_trace_that_cannot_be_written_is_said_before_anything_is_mounted() {
    let folder = tempfile::tempdir().unwrap();
    let (source, mountpoint) = (folder.path().join("source"), folder.path().join("mount"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&mountpoint).unwrap();
    for (path, said) in [
        ("/no/such/folder/reads", "cannot write --trace /no/such/folder/reads"),
        ("/dev/null", "a regular file"),
        ("/tmp", "cannot write --trace /tmp"),
    ] {
        let mut command = Command::new(RAMFOLD);
        command.args(["mount", "--memory", "32M", "--trace", path]).args([&source, &mountpoint]);
        let ended = run(&mut command);
        let stderr = text(&ended.output.stderr);
        assert!(!ended.output.status.success() && stderr.contains(said), "{stderr}");
    }
}

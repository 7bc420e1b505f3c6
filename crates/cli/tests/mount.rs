//! Real mounts: what is done through one has the same results, errors and traces in SOURCE as when
//! it is done there.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::RAMFOLD;
use support::mounted::{
    Mounted, can_mount, ended_well, is_seen, python, serve, serve_with, umount,
};

/// A mount over a file system in RAM, whose files are passed through when they are opened for
/// reading.
struct OverRam {
    mounted: Mounted,
}

impl OverRam {
    fn new() -> Option<OverRam> {
        OverRam::with(&[])
    }

    fn with(options: &[&str]) -> Option<OverRam> {
        let mut mounted = Mounted::new()?;
        umount(&[], &mounted.mount("")).unwrap();
        ended_well(&mut mounted.server);
        let source = mounted.source("");
        let tmpfs = ["-t", "tmpfs", "-o", "size=64M", "tmpfs"];
        assert!(Command::new("mount").args(tmpfs).arg(&source).status().unwrap().success());
        fs::set_permissions(&source, PermissionsExt::from_mode(0o777)).unwrap();
        let stats = mounted.folder.path().join("stats.json");
        let options = [&["--stats", stats.to_str().unwrap()], options].concat();
        mounted.server = serve_with(&options, &source, &mounted.mount(""));
        Some(OverRam { mounted })
    }

    /// What `--stats` says of one thing now.
    fn statistic(&self, name: &str) -> u64 {
        let stats = self.mounted.folder.path().join("stats.json");
        let _ = fs::remove_file(&stats);
        let server = nix::unistd::Pid::from_raw(self.mounted.server.id() as i32);
        nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGUSR2).unwrap();
        is_seen("statistics", || stats.exists());
        let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        told[name].as_u64().unwrap()
    }

    /// Runs a program of Python, which is told the two directories.
    fn python(&self, program: &str) {
        let output = Command::new("python3")
            .args(["-c", program])
            .args([self.mounted.source(""), self.mounted.mount("")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        eprintln!("{said}{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for OverRam {
    fn drop(&mut self) {
        // The server, which ends later, holds it.
        let _ = Command::new("umount").arg("--lazy").arg(self.mounted.source("")).status();
    }
}

#[test]
fn the_same_operations_have_the_same_results() {
    let Some(mounted) = Mounted::new() else { return };
    operations_have_the_same_results(&mounted);
}

#[test]
fn the_same_operations_have_the_same_results_where_files_are_passed_through() {
    let Some(over_ram) = OverRam::new() else { return };
    operations_have_the_same_results(&over_ram.mounted);
    assert!(over_ram.statistic("passthrough_opens") > 0);
}

fn operations_have_the_same_results(mounted: &Mounted) {
    // On the same file system.
    let plain = mounted.source("plain");
    fs::create_dir(&plain).unwrap();
    fs::create_dir(mounted.mount("through")).unwrap();
    let done_in = |place: &Path| {
        let output = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/operations.py"))
            .arg(place)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = done_in(&plain);
    let done = done_in(&mounted.mount("through"));
    assert!(expected.lines().count() > 400, "{expected}");
    for (expected, done) in expected.lines().zip(done.lines()) {
        assert_eq!(done, expected);
    }
    assert_eq!(done.lines().count(), expected.lines().count());
    assert_eq!(tree(&mounted.source("through")), tree(&plain));
}

/// Everything below a directory, with what does not depend on when it was made.
fn tree(directory: &Path) -> String {
    let output = Command::new("find")
        .arg(directory)
        .args(["-printf", "%P %y %m %U %G %n %l "])
        .args(["-not", "-type", "d", "-printf", "%s", "-o", "-true"])
        .args(["-printf", "\\n"])
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_hundred_thousand_names_are_listed_and_removed() {
    const NAMES: usize = 100_000;
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.source("many")).unwrap();
    for number in 0..NAMES {
        File::create(mounted.source(&format!("many/{number}"))).unwrap();
    }
    let names = |path: PathBuf| -> Vec<_> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let listed = names(mounted.mount("many"));
    assert_eq!(listed.len(), NAMES);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>().len(), NAMES);
    // Every other name goes while they are listed: each that stays is listed once.
    let mut left = BTreeSet::new();
    for (position, entry) in fs::read_dir(mounted.mount("many")).unwrap().enumerate() {
        let entry = entry.unwrap();
        match position % 2 {
            0 => fs::remove_file(entry.path()).unwrap(),
            _ => assert!(left.insert(entry.file_name()), "{entry:?} is listed twice"),
        }
    }
    assert_eq!(names(mounted.source("many")).into_iter().collect::<BTreeSet<_>>(), left);
    assert_eq!(left.len(), NAMES / 2);
    fs::remove_dir_all(mounted.mount("many")).unwrap();
    assert!(!mounted.source("many").exists());
}

#[test]
fn what_is_appended_through_the_mount_and_behind_it_is_all_there() {
    let Some(mounted) = Mounted::new() else { return };
    let append = |path| OpenOptions::new().append(true).create(true).open(path).unwrap();
    let through = append(mounted.mount("log"));
    let other = append(mounted.mount("log"));
    let behind = append(mounted.source("log"));
    std::thread::scope(|scope| {
        for (mut file, letter) in [(through, "a"), (other, "b"), (behind, "c")] {
            scope.spawn(move || {
                for number in 0..500 {
                    file.write_all(format!("{letter}{number}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let expected: BTreeSet<String> = ["a", "b", "c"]
        .into_iter()
        .flat_map(|letter| (0..500).map(move |number| format!("{letter}{number}")))
        .collect();
    let text = fs::read_to_string(mounted.source("log")).unwrap();
    assert_eq!(text.lines().count(), 1500);
    assert_eq!(text.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
    is_seen("what was appended", || fs::read_to_string(mounted.mount("log")).unwrap() == text);
}

#[test]
fn what_changes_behind_the_mount_is_seen() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.source("file"), "old text").unwrap();
    fs::write(mounted.source("goes"), "").unwrap();
    let open = File::open(mounted.mount("file")).unwrap();
    let text = || {
        let mut bytes = [0; 100];
        let count = open.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(text(), "old text");
    // In place: neither the size nor the inode is another.
    OpenOptions::new().write(true).open(mounted.source("file")).unwrap().write_all(b"new").unwrap();
    is_seen("data", || text() == "new text");
    OpenOptions::new().append(true).open(mounted.source("file")).unwrap().write_all(b"!").unwrap();
    is_seen("more data", || text() == "new text!");
    is_seen("size", || fs::metadata(mounted.mount("file")).unwrap().len() == 9);
    assert!(mounted.mount("goes").exists());
    fs::remove_file(mounted.source("goes")).unwrap();
    is_seen("removal", || !mounted.mount("goes").exists());
    fs::write(mounted.source("goes"), "again").unwrap();
    is_seen("a new file", || {
        fs::read_to_string(mounted.mount("goes")).is_ok_and(|text| text == "again")
    });
    fs::write(mounted.source("other"), "other").unwrap();
    fs::rename(mounted.source("other"), mounted.source("file")).unwrap();
    is_seen("another file of that name", || {
        fs::read_to_string(mounted.mount("file")).is_ok_and(|text| text == "other")
    });
    assert_eq!(text(), "new text!");
    fs::set_permissions(mounted.source("file"), PermissionsExt::from_mode(0o400)).unwrap();
    is_seen("a mode", || fs::metadata(mounted.mount("file")).unwrap().mode() & 0o777 == 0o400);
}

#[test]
fn mapped_pages_are_written_and_follow_what_changes_behind_the_mount() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.source("file"), vec![b'o'; 20_000]).unwrap();
    let program = "
import mmap, os, sys, time
through, behind = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[2], os.O_RDWR)
with mmap.mmap(through, 0) as memory:
    assert memory[:4] == b'oooo'
    memory[5000:5006] = b'mapped'
    memory.flush()
    assert os.pread(behind, 6, 5000) == b'mapped'
    os.pwrite(behind, b'behind', 5003)
    begin = time.time()
    while memory[5000:5009] != b'mapbehind':
        assert time.time() - begin < 120, memory[5000:5009]
        time.sleep(0.01)
    # What is not flushed by hand is when the last mapping goes.
    memory[9000:9004] = b'late'
os.close(through)
assert os.pread(behind, 4, 9000) == b'late'
";
    python(program, [mounted.mount("file"), mounted.source("file")]);
}

#[test]
fn files_may_be_longer_than_four_gigabytes() {
    let Some(mounted) = Mounted::new() else { return };
    let far = 9 << 30;
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.mount("long"))
        .unwrap();
    file.seek(SeekFrom::Start(far)).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(fs::metadata(mounted.source("long")).unwrap().len(), far + 3);
    assert!(fs::metadata(mounted.mount("long")).unwrap().blocks() < 100);
    let mut text = String::new();
    file.seek(SeekFrom::Start(far)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "end");
    file.set_len(5 << 30).unwrap();
    assert_eq!(fs::metadata(mounted.source("long")).unwrap().len(), 5 << 30);
}

#[test]
fn a_full_disk_is_told_as_it_is() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, mountpoint) = (folder.path().join("source"), folder.path().join("mount"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&mountpoint).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=1M", "tmpfs"];
    assert!(Command::new("mount").args(tmpfs).arg(&source).status().unwrap().success());
    let mut server = serve(&source, &mountpoint);
    let written = fs::write(mountpoint.join("file"), vec![1; 2 << 20]);
    let kept = fs::read(source.join("file")).unwrap();
    let again = fs::read(mountpoint.join("file")).unwrap();
    let removed = fs::remove_file(mountpoint.join("file"));
    umount(&[], &mountpoint).unwrap();
    server.wait().unwrap();
    assert!(Command::new("umount").arg(&source).status().unwrap().success());
    assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
    assert!(!kept.is_empty() && kept.len() <= 1 << 20 && kept.iter().all(|&byte| byte == 1));
    assert_eq!(again, kept);
    removed.unwrap();
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_it_can_be_mounted_again() {
    let Some(mut mounted) = Mounted::new() else { return };
    let mut file = File::create(mounted.mount("file")).unwrap();
    for number in 0..1000 {
        writeln!(file, "{number}").unwrap();
    }
    let server = mounted.server.id();
    mounted.server.kill().unwrap();
    mounted.server.wait().unwrap();
    let text = fs::read_to_string(mounted.source("file")).unwrap();
    assert_eq!(text.lines().count(), 1000, "server {server}");
    let error = fs::read_dir(mounted.mount("")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(file.write_all(b"x").is_err());
    drop(file);
    mounted.server = serve(&mounted.source(""), &mounted.mount(""));
    assert_eq!(fs::read_to_string(mounted.mount("file")).unwrap(), text);
    // The dead one is not left below.
    umount(&[], &mounted.mount("")).unwrap();
    assert!(umount(&[], &mounted.mount("")).unwrap_err().contains("is not a mount of ramfold"));
}

#[test]
fn a_signal_unmounts_and_waits_for_those_who_are_inside() {
    let Some(mut mounted) = Mounted::new() else { return };
    let pid = nix::unistd::Pid::from_raw(mounted.server.id() as i32);
    let mut file = File::create(mounted.mount("file")).unwrap();
    assert!(umount(&[], &mounted.mount("")).unwrap_err().contains("somebody uses it"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    is_seen("a signal", || !mounted.mount("file").exists());
    file.write_all(b"to the end").unwrap();
    drop(file);
    ended_well(&mut mounted.server);
    assert_eq!(fs::read_to_string(mounted.source("file")).unwrap(), "to the end");
    mounted.server = serve(&mounted.source(""), &mounted.mount(""));
    let pid = nix::unistd::Pid::from_raw(mounted.server.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    ended_well(&mut mounted.server);
}

/// What is at its place now is somebody else's.
#[test]
fn a_signal_unmounts_nothing_but_its_own_mount() {
    let Some(mut mounted) = Mounted::new() else { return };
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);
    let stats = mounted.folder.path().join("stats.json");
    let options = ["--stats", stats.to_str().unwrap()];
    mounted.server = serve_with(&options, &mounted.source(""), &mounted.mount(""));
    fs::write(mounted.source("file"), "here").unwrap();
    let file = File::open(mounted.mount("file")).unwrap();
    umount(&["--lazy"], &mounted.mount("")).unwrap();
    let mut second = serve(&mounted.source(""), &mounted.mount(""));
    let first = nix::unistd::Pid::from_raw(mounted.server.id() as i32);
    let end = nix::sys::signal::Signal::SIGTERM;
    nix::sys::signal::kill(first, end).unwrap();
    // Signals that are there at once are answered in any order: when the second of these has been,
    // so has the one before.
    for _ in 0..2 {
        nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGUSR2).unwrap();
        is_seen("an answer", || fs::remove_file(&stats).is_ok());
    }
    assert_eq!(fs::read_to_string(mounted.mount("file")).unwrap(), "here");
    assert!(mounted.server.try_wait().unwrap().is_none());
    // The second signal ends it, whoever uses it.
    nix::sys::signal::kill(first, end).unwrap();
    assert_eq!(mounted.server.wait().unwrap().code(), Some(128 + end as i32));
    drop(file);
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut second);
}

/// A mount in little memory over a source with 60,000 files in `many`, and what it writes to
/// `--stats`.
struct ManyFiles {
    mounted: Mounted,
    stats: PathBuf,
}

impl ManyFiles {
    const MEMORY: u64 = 16 << 20;
    const FILES: usize = 60_000;

    /// `None`, and a line that says so, where nobody can mount or the kernel forgets nothing.
    fn new() -> Option<ManyFiles> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        if (numbers.next(), numbers.next()) < (Some(6), Some(18)) {
            eprintln!("SKIPPED: the kernel is asked to forget inodes since Linux 6.18");
            return None;
        }
        let mut mounted = Mounted::new()?;
        umount(&[], &mounted.mount("")).unwrap();
        ended_well(&mut mounted.server);
        let stats = mounted.folder.path().join("stats.json");
        let memory = Self::MEMORY.to_string();
        let options = ["--memory", &memory, "--stats", stats.to_str().unwrap()];
        mounted.server = serve_with(&options, &mounted.source(""), &mounted.mount(""));
        for folder in 0..6 {
            let folder = mounted.source(&format!("many/{folder}"));
            fs::create_dir_all(&folder).unwrap();
            for number in 0..Self::FILES / 6 {
                File::create(folder.join(format!("file-{number}"))).unwrap();
            }
        }
        Some(ManyFiles { mounted, stats })
    }

    /// Looks at all of them through the mount.
    fn look(&self) -> Child {
        let mut find = Command::new("find");
        find.arg(self.mounted.mount("many")).args(["-type", "f", "-printf", "%s\\n"]);
        find.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn statistics(&self) -> serde_json::Value {
        let server = nix::unistd::Pid::from_raw(self.mounted.server.id() as i32);
        nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGUSR2).unwrap();
        is_seen("an answer", || self.stats.exists());
        let statistics = serde_json::from_slice(&fs::read(&self.stats).unwrap()).unwrap();
        fs::remove_file(&self.stats).unwrap();
        statistics
    }

    /// Looks at all of them until the kernel has forgotten most.
    fn have_them_forgotten(&self) {
        let sizes = self.look().wait_with_output().unwrap().stdout;
        assert_eq!(String::from_utf8(sizes).unwrap(), "0\n".repeat(Self::FILES));
        let known = || self.statistics()["inodes_known"].as_u64().unwrap();
        is_seen("that most are forgotten", || known() < Self::FILES as u64 / 4);
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn many_files_that_are_looked_at_stay_within_the_memory() {
    let Some(many) = ManyFiles::new() else { return };
    let status = format!("/proc/{}/status", many.mounted.server.id());
    let server_bytes = || {
        let status = fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    for _ in 0..2 {
        let mut find = many.look();
        let mut sizes = find.stdout.take().unwrap();
        let reader = std::thread::spawn(move || io::copy(&mut sizes, &mut io::sink()));
        while find.try_wait().unwrap().is_none() {
            let statistics = many.statistics();
            let amount = |field: &str| statistics[field].as_u64().unwrap();
            let bytes = server_bytes() + amount("kernel_bytes");
            // As much again as the table may have, should this machine be busy.
            assert!(amount("inode_bytes") < ManyFiles::MEMORY / 4, "{statistics}");
            assert!(bytes < ManyFiles::MEMORY + (4 << 20), "{bytes}: {statistics}");
            // A sample, as long as there is something to be seen.
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(reader.join().unwrap().unwrap(), 2 * ManyFiles::FILES as u64);
    }
    many.have_them_forgotten();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn what_is_in_use_is_not_forgotten() {
    let Some(many) = ManyFiles::new() else { return };
    let mounted = &many.mounted;
    fs::create_dir_all(mounted.source("used/below/mounted")).unwrap();
    for name in ["open", "mapped", "path", "moves", "linked"] {
        fs::write(mounted.source(&format!("used/{name}")), name.repeat(2000)).unwrap();
    }
    fs::hard_link(mounted.source("used/linked"), mounted.source("used/below/link")).unwrap();
    let below = mounted.mount("used/below/mounted");
    let tmpfs = ["-t", "tmpfs", "-o", "size=1M", "tmpfs"];
    assert!(Command::new("mount").args(tmpfs).arg(&below).status().unwrap().success());
    fs::write(below.join("file"), "of another file system").unwrap();
    let program = r#"
import mmap, os, sys
def link(fd): return os.readlink(f"/proc/self/fd/{fd}")
os.chdir(sys.argv[1])
here = os.getcwd()
opened, path = os.open("open", os.O_RDWR), os.open("path", os.O_PATH)
moves, linked = os.open("moves", os.O_RDWR), os.stat("linked")
folder = os.open("below", os.O_RDONLY)
mapped = os.open("mapped", os.O_RDWR)
memory = mmap.mmap(mapped, 0)
os.close(mapped)
memory[5000:5007] = b"changed"
os.chdir("below")
print("ready", flush=True)
sys.stdin.readline()
assert os.getcwd() == here + "/below", os.getcwd()
assert link(opened) == here + "/open" and link(path) == here + "/path"
assert link(folder) == here + "/below"
maps = open("/proc/self/maps").read()
assert here + "/mapped\n" in maps, maps
os.chdir("..")
assert os.pread(opened, 4, 4000) == b"open" and os.pwrite(opened, b"OPEN", 4000) == 4
assert open(f"/proc/self/fd/{path}").read() == "path" * 2000
assert memory[:6] == b"mapped" and memory[5000:5007] == b"changed"
memory[6000:6005] = b"again"
memory.flush()
os.rename("moves", "below/moved")
assert os.pread(moves, 5, 0) == b"moves" and link(moves) == here + "/below/moved"
os.unlink("below/moved")
assert os.pwrite(moves, b"MOVES", 0) == 5 and os.fstat(moves).st_nlink == 0
now, other = os.stat("linked"), os.stat("below/link")
assert (now.st_ino, now.st_nlink) == (linked.st_ino, 2) == (other.st_ino, other.st_nlink)
assert sorted(os.listdir(folder)) == ["link", "mounted"], os.listdir(folder)
assert open("below/mounted/file").read() == "of another file system"
"#;
    let mut child = Command::new("python3")
        .args(["-c", program])
        .arg(mounted.mount("used"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    for _ in 0..2 {
        many.have_them_forgotten();
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let result = child.wait();
    let unmounted = Command::new("umount").arg(&below).status();
    assert!(result.unwrap().success());
    assert!(unmounted.unwrap().success());
    let text = |name| fs::read_to_string(mounted.source(name)).unwrap();
    assert_eq!(&text("used/open")[4000..4008], "OPENopen");
    assert_eq!(
        (&text("used/mapped")[5000..5007], &text("used/mapped")[6000..6005]),
        ("changed", "again")
    );
    // The flags of files are asked for by their inodes.
    let lsattr = Command::new("lsattr").arg(mounted.mount("many/0")).output();
    let Ok(lsattr) = lsattr else { return eprintln!("SKIPPED: lsattr is not installed") };
    let listed = String::from_utf8_lossy(&lsattr.stdout);
    assert_eq!(listed.lines().count(), ManyFiles::FILES / 6, "{lsattr:?}");
}

/// Programs that copy attributes (cp, rsync, tar) ask for their sizes first.
#[test]
fn extended_attributes_have_their_sizes() {
    let Some(mounted) = Mounted::new() else { return };
    let script = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def sizes(path):
    path = path.encode()
    size = lambda name: (libc.getxattr(path, name, None, 0), libc.getxattr(path, name, b" " * 3, 3))
    names = (b"user.fish", b"user.empty", b"user.none")
    return libc.listxattr(path, None, 0), [size(name) for name in names]
for folder in sys.argv[1:]:
    path = folder + "/file"
    open(path, "a").close()
    os.setxattr(path, "user.fish", b"a fish")
    os.setxattr(path, "user.empty", b"")
    print(sizes(path))
"#;
    let mut python = Command::new("python3");
    python.args(["-c", script]).args([mounted.source(""), mounted.mount("")]);
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("Operation not supported") {
        return eprintln!("SKIPPED: SOURCE has no extended attributes");
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{printed}{said}");
    assert!(lines[0].starts_with("(21, [(6, -1), (0, 0), (-1, -1)]"), "{printed}");
}

/// The kernel goes by the owner that it knows.
#[test]
fn who_has_lost_a_file_may_not_change_it_any_more() {
    let Some(mounted) = Mounted::new() else { return };
    let script = r#"
import errno, fcntl, os, struct, sys
source, mount = sys.argv[1:]
acl = struct.pack("<IHHIHHIHHIHHIHHI", 2, 1, 7, 2**32 - 1, 2, 7, 65534, 4, 5, 2**32 - 1,
                  16, 7, 2**32 - 1, 32, 5, 2**32 - 1)
def operations(fd):
    yield "chmod", lambda: os.fchmod(fd, 0o4755)
    yield "chown", lambda: os.fchown(fd, -1, 65534)
    yield "utime", lambda: os.utime(fd, ns=(1, 2))
    yield "acl", lambda: os.setxattr(fd, "system.posix_acl_access", acl)
    yield "flags", lambda: fcntl.ioctl(fd, 0x40086602, struct.pack("i", 0x40))
for name in ["chmod", "chown", "utime", "acl", "flags"]:
    for lost in [False, True]:
        with open(f"{source}/{name}{lost}", "w") as file:
            os.fchown(file.fileno(), 65534, 65534)
        (child_told, tell_child), (told, tell) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            fd = os.open(f"{mount}/{name}{lost}", os.O_RDWR)
            os.write(tell, b"x")
            os.read(child_told, 1)
            try:
                dict(operations(fd))[name]()
                print(name, lost, "done", flush=True)
            except OSError as error:
                print(name, lost, errno.errorcode[error.errno], flush=True)
            os._exit(0)
        os.read(told, 1)
        if lost:
            os.chown(f"{source}/{name}{lost}", 0, 0)
        os.write(tell_child, b"x")
        os.waitpid(child, 0)
"#;
    let output = Command::new("python3")
        .args(["-c", script])
        .args([mounted.source(""), mounted.mount("")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = ["chmod", "chown", "utime", "acl", "flags"]
        .map(|name| format!("{name} False done\n{name} True EPERM\n"))
        .concat();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(fs::metadata(mounted.source("chmodTrue")).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn what_cannot_be_mounted_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("source/below")).unwrap();
    fs::write(path("file"), "").unwrap();
    for (source, mountpoint, reason) in [
        ("nothing", "source", "nothing: No such file"),
        ("source", "nothing", "make an empty directory there first"),
        ("file", "source", "it is not a directory"),
        ("source", "file", "it is not a directory"),
        ("source", "source", "lies in it"),
        ("source", "source/below", "lies in it"),
    ] {
        for daemon in [true, false] {
            let mut command = Command::new(RAMFOLD);
            command.arg("mount").args(daemon.then_some("--daemon"));
            let output = command.args([path(source), path(mountpoint)]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{source} {mountpoint}: {said}");
            assert!(said.starts_with("ramfold: ") && said.contains(reason), "{said}");
        }
    }
}

#[test]
fn restricted_mounts_below_stay_restricted() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.source("below")).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "nosuid,size=1M", "tmpfs"];
    let below = mounted.source("below");
    assert!(Command::new("mount").args(tmpfs).arg(&below).status().unwrap().success());
    let seen = fs::metadata(mounted.mount("below"));
    umount(&[], &mounted.mount("")).unwrap();
    let mut server = serve(&mounted.source(""), &mounted.mount(""));
    fs::write(mounted.source("below/file"), "text").unwrap();
    let text = fs::read_to_string(mounted.mount("below/file"));
    let table = fs::read_to_string("/proc/mounts").unwrap();
    umount(&[], &mounted.mount("")).unwrap();
    server.wait().unwrap();
    assert!(Command::new("umount").arg(&below).status().unwrap().success());
    assert_eq!(seen.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(text.unwrap(), "text");
    let name = mounted.mount("").display().to_string();
    let line = table.lines().find(|line| line.contains(name.trim_end_matches('/')));
    assert!(line.is_some_and(|line| line.contains("fuse.ramfold") && line.contains("nosuid")));
}

#[test]
fn an_ordinary_user_mounts_by_fusermount() -> io::Result<()> {
    if !can_mount() {
        return Ok(());
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: fusermount3 is not installed (package fuse3)");
        return Ok(());
    }
    let folder = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777))?;
    let program = folder.path().join("ramfold");
    fs::copy(RAMFOLD, &program)?;
    // In a mount namespace of its own /dev/fuse is open to all, as it is on most machines.
    let script = r#"
set -e
cd "$1"
mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
cat > user.sh <<'EOF'
set -e
mkdir source mount
./ramfold mount --daemon source mount
grep -q "$PWD/mount fuse.ramfold rw,nosuid,nodev" /proc/mounts
cd mount
echo text > a; mkdir d; ln a d/b; ln -s a s; mv a c; chmod 4711 c
test "$(cat d/b)" = text
test "$(stat -c '%a %u %h' c)" = "4711 65534 2"
(umask 077; : > private); test "$(stat -c %a ../source/private)" = 600
echo more >> c; test "$(stat -c %a c)" = 711
for i in $(seq 300); do : > f$i; done
test "$(ls | wc -l)" = 304; rm f*
diff -r --no-dereference . ../source
cd ..
./ramfold umount mount
! grep -q "$PWD/mount" /proc/mounts
EOF
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -x user.sh
"#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Ok(())
}

#[test]
fn a_name_that_cannot_be_looked_at_is_listed() {
    let Some(mounted) = Mounted::new() else { return };
    let Some(mut dead) = Mounted::new() else { return };
    fs::create_dir(mounted.source("dead")).unwrap();
    fs::write(mounted.source("file"), "").unwrap();
    let mut server = serve(&dead.source(""), &mounted.source("dead"));
    server.kill().unwrap();
    server.wait().unwrap();
    for _ in 0..2 {
        let names: BTreeSet<_> = fs::read_dir(mounted.mount(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names, BTreeSet::from(["dead".to_owned(), "file".to_owned()]));
        let error = fs::metadata(mounted.mount("dead")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    }
    umount(&["--lazy"], &mounted.source("dead")).unwrap();
    dead.server.kill().unwrap();
    assert!(fs::metadata(mounted.mount("dead")).unwrap().is_dir());
}

#[test]
fn a_direct_descriptor_and_a_cached_one_see_the_same() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.mount("file"), vec![b'a'; 16384]).unwrap();
    let cached = File::options().read(true).write(true).open(mounted.mount("file")).unwrap();
    let direct = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(mounted.mount("file"))
        .unwrap();
    cached.write_all_at(b"through the cache", 4096).unwrap();
    let mut page = vec![0; 4096];
    direct.read_at(&mut page, 4096).unwrap();
    assert_eq!(&page[..17], b"through the cache");
}

/// As fstab(5) has them, by the program that mount(8) calls.
#[test]
fn options_of_mount_restrict_it() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::copy("/bin/true", mounted.source("program")).unwrap();
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);
    let helper = mounted.folder.path().join("mount.fuse.ramfold");
    std::os::unix::fs::symlink(RAMFOLD, &helper).unwrap();
    let options_shown = |options: &str| {
        let status = Command::new(&helper)
            .args([mounted.source(""), mounted.mount("")])
            .args(["-n", "-o", options, "-t", "fuse.ramfold"])
            .status()
            .unwrap();
        assert!(status.success(), "{options}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = mounted.folder.path().join("mount").display().to_string();
        let line = mounts.lines().find(|line| line.contains(&place)).unwrap();
        line.split(' ').nth(3).unwrap().to_owned()
    };
    let shown = options_shown("ro,nosuid,nodev,noatime,memory=32M,x-systemd.automount");
    for option in ["ro", "nosuid", "nodev", "noatime"] {
        assert!(shown.split(',').any(|shown| shown == option), "{option}: {shown}");
    }
    let error = fs::write(mounted.mount("new"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    // What is still open is served on, and ended.
    let mut file = File::open(mounted.mount("program")).unwrap();
    assert!(
        Command::new("umount").arg("--lazy").arg(mounted.mount("")).status().unwrap().success()
    );
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, fs::read(mounted.source("program")).unwrap());
    drop(file);
    options_shown("rw,noexec,memory=32M");
    let error = Command::new(mounted.mount("program")).status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    umount(&[], &mounted.mount("")).unwrap();
    let wrong = Command::new(&helper)
        .args([mounted.source(""), mounted.mount("")])
        .args(["-o", "rw,size=1G"])
        .output()
        .unwrap();
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("noexec"), "{wrong:?}");
}

/// A second store to a page changes no time of the file.
#[test]
#[ignore = "slow: make test-all runs it"]
fn what_is_stored_through_a_mapping_of_source_is_seen() {
    if !can_mount() {
        return;
    }
    for place in ["/var/tmp", "/dev/shm"] {
        let mounted = Mounted::new_in(place);
        fs::write(mounted.source("file"), vec![b'o'; 20_000]).unwrap();
        let program = "
import mmap, os, sys, time
through, behind = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR)
with open(sys.argv[1], 'r+') as writer:
    writer.write('!')
with mmap.mmap(behind, 0) as memory, mmap.mmap(through, 0, prot=mmap.PROT_READ) as mapped:
    for number in range(4):
        text = b'text %d' % number
        memory[5000:5006] = text
        if number == 3:
            memory.flush()
        begin = time.monotonic()
        while os.pread(through, 6, 5000) != text or mapped[5000:5006] != text:
            assert time.monotonic() - begin < 60, (text, os.pread(through, 6, 5000))
            time.sleep(0.01)
        print('seen after %.1f s' % (time.monotonic() - begin))
        # What is there now may be kept, as nothing shows for two looks of the watch. That time
        # passes is what this is about.
        for _ in range(12):
            os.pread(through, 6, 5000)
            time.sleep(0.1)
";
        python(program, [mounted.mount("file"), mounted.source("file")]);
    }
}

/// What is read while somebody writes past the page cache is not what stays there.
#[test]
fn what_is_written_past_the_page_cache_is_read_at_once() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.mount("file");
    fs::write(&path, vec![0; 16 * 4096]).unwrap();
    let writer = include_str!("asynchronous_writes.py");
    let reader = "
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 65536, 0)
";
    let run =
        |program: &str| Command::new("python3").args(["-c", program]).arg(&path).spawn().unwrap();
    let mut readers = [run(reader), run(reader), run(reader)];
    let status = run(writer).wait().unwrap();
    for reader in &mut readers {
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    assert!(status.success());
}

/// Programs that copy files with holes (cp, tar) ask where there is data.
#[test]
fn data_that_was_stored_through_a_mapping_is_no_hole() {
    let Some(mounted) = Mounted::new() else { return };
    let program = "
import mmap, os, subprocess, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 20)
with mmap.mmap(file, 1 << 20) as memory:
    memory[1 << 19] = 65
    assert os.lseek(file, 0, os.SEEK_DATA) == 1 << 19
    memory[3 << 18] = 66
    other = os.open(sys.argv[1], os.O_RDONLY)
    assert os.lseek(other, (1 << 19) + 4096, os.SEEK_DATA) == 3 << 18
    assert os.lseek(other, 0, os.SEEK_HOLE) == 0
    memory[0] = 67
    subprocess.run(['cp', '--sparse=auto', sys.argv[1], sys.argv[1] + '.copy'], check=True)
    copy = open(sys.argv[1] + '.copy', 'rb').read()
    assert copy == memory[:], [(i, byte) for i, byte in enumerate(copy) if byte]
";
    python(program, [mounted.mount("file")]);
}

/// A mount that can be reached through itself would wait for itself.
#[test]
fn a_mount_in_its_own_source_is_not_entered() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.source("again")).unwrap();
    let (folder, again) = (mounted.folder.path(), mounted.source("again"));
    let bind = Command::new("mount").arg("--rbind").args([folder, &again]).status().unwrap();
    assert!(bind.success());
    let inner = mounted.mount("again/mount");
    let results: Vec<_> = std::thread::scope(|scope| {
        let look = || (fs::metadata(&inner).map(drop), fs::read_dir(&inner).map(drop));
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(look)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let listed = fs::read_dir(mounted.mount("again")).unwrap().count();
    let unmounted = Command::new("umount").arg("--lazy").arg(&again).status().unwrap();
    assert!(unmounted.success());
    assert_eq!(listed, 2);
    for (look, list) in results {
        for error in [look.unwrap_err(), list.unwrap_err()] {
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        }
    }
}

#[test]
fn what_happens_is_told_each_second() {
    let Some(mut mounted) = Mounted::new() else { return };
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);
    fs::write(mounted.source("file"), "what is read\n".repeat(100_000)).unwrap();
    mounted.server = serve_with(&["--live"], &mounted.source(""), &mounted.mount(""));
    let mut said = BufReader::new(mounted.server.stderr.take().unwrap()).lines();
    let header = said.next().unwrap().unwrap();
    assert!(header.contains("requests/s") && header.contains("SOURCE MB"), "{header}");
    let expected = fs::read(mounted.source("file")).unwrap();
    assert_eq!(fs::read(mounted.mount("file")).unwrap(), expected);
    // Not the column of MB/s.
    let place = header.find("SOURCE MB  ").unwrap();
    let from_source =
        |line: &str| line[place..][.."SOURCE MB".len()].trim().parse::<f64>().unwrap();
    is_seen("what was read of SOURCE", || {
        let line = said.next().unwrap().unwrap();
        assert_eq!(line.len(), header.len(), "{line}");
        from_source(&line) >= 1.3
    });
    umount(&[], &mounted.mount("")).unwrap();
    assert!(mounted.server.wait().unwrap().success());
    // What is said last is of the end.
    assert!(from_source(&said.last().unwrap().unwrap()) >= 1.3);
    let output = Command::new(RAMFOLD)
        .args(["mount", "--live", "--daemon"])
        .args([mounted.source(""), mounted.mount("")])
        .output()
        .unwrap();
    let refusal = String::from_utf8_lossy(&output.stderr);
    assert!(refusal.contains("leave one of them out"), "{refusal}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_bench_runs_tiny() {
    if !can_mount() {
        return;
    }
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("SKIPPED: fio is not installed");
        return;
    }
    let tiny = [
        "--memory=48M",
        "--data=16M",
        "--disk=none",
        "--seconds=1",
        "--warm-seconds=1",
        "--runs=1",
    ];
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("shares.svg");
    let bench = |peers: &str| {
        Command::new(RAMFOLD)
            .args(["bench", "mount", "--json", peers, "--plot"])
            .arg(&plot)
            .args(tiny)
            .output()
            .unwrap()
    };
    let refused = bench("--peer=page-cache,ramfold");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("name a peer with several"));
    let lz4 = "ramfold:codec=lz4:cluster=4K:compressed-share";
    let output = bench(&format!("--peer=page-cache,{lz4}=20%,{lz4}=80%,disk"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(fs::read_to_string(&plot).unwrap().contains("stride: throughput"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 7 * 4, "{rows:?}");
    for row in rows {
        assert!(row["bytes_per_s"].as_f64().unwrap() > 0.0, "{row}");
        let ramfold = &row["runs"][0]["ramfold"];
        assert_eq!(ramfold.is_null(), !row["peer"].as_str().unwrap().starts_with("ramfold"));
        assert!(ramfold.is_null() || ramfold["reads"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["compress_seconds"].is_null(), ramfold.is_null());
        // Without a cache all of it comes from the disk the second time too.
        let is_read_anew = row["disk_bytes"].as_f64().unwrap() >= 16.0 * 1048576.0;
        assert!(row["peer"] != "disk" || row["job"] != "reread" || is_read_anew, "{row}");
    }
    assert!(rows[1]["compress_seconds"].as_f64().unwrap() > 0.0, "{}", rows[1]);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_bench_of_web_servers_runs_tiny() {
    if !can_mount() {
        return;
    }
    // Debian has it where not everybody looks.
    let found = ["nginx", "/usr/sbin/nginx"]
        .iter()
        .any(|nginx| Command::new(nginx).arg("-v").stderr(Stdio::null()).status().is_ok());
    if !found {
        eprintln!("SKIPPED: nginx is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("web.svg");
    let tiny = [
        "--memory=48M",
        "--scale=256",
        "--sessions=20,40",
        "--disk=none",
        "--seconds=1",
        "--warm-seconds=0",
    ];
    let output = Command::new(RAMFOLD)
        .args(["bench", "web", "--json", "--peer=page-cache,ramfold:codec=lz4", "--plot"])
        .arg(&plot)
        .args(tiny)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2, "{rows:?}");
    for row in rows {
        assert!(row["pages_per_s"].as_f64().unwrap() > 0.0, "{row}");
        let ramfold = &row["runs"][0]["ramfold"];
        assert_eq!(ramfold.is_null(), row["peer"] == "page-cache");
        assert!(ramfold.is_null() || ramfold["reads"].as_u64().unwrap() > 0, "{row}");
    }
    assert!(fs::read_to_string(plot).unwrap().contains("nginx: throughput"));
}

#[test]
fn what_is_in_ram_is_passed_through_and_all_see_the_same() {
    let Some(over_ram) = OverRam::new() else { return };
    over_ram.python(
        r#"
import mmap, os, subprocess, sys, time
source, mount = sys.argv[1:]
data = bytes(range(256)) * 4096
with open(source + "/file", "wb") as file:
    file.write(data)
reader = os.open(mount + "/file", os.O_RDONLY)
behind = os.open(source + "/file", os.O_RDWR)
memory = mmap.mmap(reader, len(data), mmap.MAP_SHARED, mmap.PROT_READ)
writer = os.open(mount + "/file", os.O_RDWR)
appender = os.open(mount + "/file", os.O_WRONLY | os.O_APPEND)
direct = os.open(mount + "/file", os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
def read_direct(offset):
    assert os.preadv(direct, [block], offset) == 4096
    return block[:]
def all_see(offset, what):
    for fd in [reader, writer, behind]:
        assert os.pread(fd, len(what), offset) == what, (fd, os.pread(fd, len(what), offset))
    assert memory[offset:offset + len(what)] == what
    assert read_direct(offset // 4096 * 4096)[offset % 4096:][:len(what)] == what
assert os.pread(reader, len(data) + 1, 0) == data and memory[:] == data
all_see(4096, data[:16])
os.pwrite(behind, b"behind", 4096)
all_see(4096, b"behind")
os.pwrite(writer, b"through", 8190)
all_see(8192, b"rough"), all_see(8190, b"th")
block[:] = b"d" * 4096
os.pwritev(direct, [block], 12288)
all_see(12290, b"dddd")
with mmap.mmap(writer, len(data)) as changing:
    changing[20000:20006] = b"mapped"
    all_see(20000, b"mapped")
# By splice and sendfile, both ways.
(out, into) = os.pipe()
assert os.splice(reader, into, 6, offset_src=20000) == 6 and os.read(out, 6) == b"mapped"
os.write(into, b"splice")
assert os.splice(out, writer, 6, offset_dst=30000) == 6
all_see(30000, b"splice")
copy = os.open(mount + "/copy", os.O_RDWR | os.O_CREAT)
assert os.sendfile(copy, reader, 20000, 6) == 6 and os.pread(copy, 6, 0) == b"mapped"
assert os.copy_file_range(reader, copy, 6, 30000, 6) == 6
assert os.pread(copy, 12, 0) == b"mappedsplice"
# To the end, by some, and the end itself.
size = len(data)
appender_behind = os.open(source + "/file", os.O_WRONLY | os.O_APPEND)
for nth, fd in enumerate([appender, appender_behind, appender]):
    os.write(fd, b"more%d" % nth)
    size += 5
    assert os.pread(reader, 100, size - 5) == b"more%d" % nth
size = os.stat(source + "/file").st_size
# The kernel is told of what was appended behind it, and passes over attributes asked for before.
begin = time.monotonic()
while not os.lseek(reader, 0, os.SEEK_END) == os.fstat(reader).st_size == size:
    assert time.monotonic() - begin < 60, (os.fstat(reader).st_size, size)
os.truncate(mount + "/file", 5000)
assert os.pread(reader, 10000, 4096) == os.pread(behind, 10000, 4096)
assert len(os.pread(reader, 10000, 0)) == os.fstat(reader).st_size == 5000
os.ftruncate(writer, 6000)
assert os.pread(reader, 10000, 5000) == bytes(1000)
os.posix_fallocate(writer, 0, 7000)
assert len(os.pread(reader, 10000, 0)) == 7000
cut = os.open(mount + "/file", os.O_RDWR | os.O_TRUNC)
assert os.pread(cut, 1, 0) == b"" == os.pread(reader, 9, 0)
os.pwrite(writer, b"again", 0), os.fsync(writer), os.fdatasync(reader)
# Without a name.
os.unlink(mount + "/file")
assert os.pread(reader, 9, 0) == b"again" == memory[:5]
os.pwrite(writer, b"other", 0)
assert os.pread(reader, 9, 0) == b"other"
# Read ahead into the kernel's page cache over the mount, where nobody looks.
with open(mount + "/ahead", "wb") as file:
    file.write(data)
ahead = os.open(mount + "/ahead", os.O_RDONLY)
os.posix_fadvise(ahead, 0, len(data), os.POSIX_FADV_WILLNEED)
os.pwrite(os.open(source + "/ahead", os.O_WRONLY), b"ahead", 0)
assert os.pread(ahead, 5, 0) == b"ahead"
os.close(ahead)
assert os.pread(os.open(mount + "/ahead", os.O_RDWR), 5, 0) == b"ahead"
# Programs.
with open("/bin/true", "rb") as file, open(mount + "/program", "wb") as program:
    program.write(file.read())
os.chmod(mount + "/program", 0o755)
held = os.open(mount + "/program", os.O_RDONLY)
subprocess.run([mount + "/program"], check=True)
"#,
    );
    assert!(over_ram.statistic("passthrough_opens") > 5);
    is_seen("closing", || over_ram.statistic("passthrough_files") == 0);
    // All else is as it was.
    let (mount, source) = (over_ram.mounted.mount("late"), over_ram.mounted.source("late"));
    fs::write(&source, "late").unwrap();
    let reads = over_ram.statistic("reads");
    let reader = File::open(&mount).unwrap();
    let mut text = [0; 4];
    reader.read_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"late");
    assert_eq!(over_ram.statistic("passthrough_files"), 1);
    assert_eq!(over_ram.statistic("reads"), reads);
}

/// The kernel refuses to open an inode in both ways at once.
#[test]
fn who_opens_a_file_follows_those_who_have_it_open() {
    let Some(over_ram) = OverRam::new() else { return };
    let (mount, source) = (over_ram.mounted.mount("file"), over_ram.mounted.source("file"));
    let open = |read, write| OpenOptions::new().read(read).write(write).open(&mount).unwrap();
    let text = |file: &File| {
        let mut text = [0; 3];
        file.read_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    fs::write(&source, "one").unwrap();
    // Through the cache: the first of them reads what he writes.
    let first = open(true, true);
    let (second, third) = (open(true, false), open(false, true));
    third.write_all_at(b"two", 0).unwrap();
    assert_eq!([text(&first), text(&second)], ["two", "two"]);
    drop(first);
    assert_eq!(text(&open(true, false)), "two");
    assert_eq!(over_ram.statistic("passthrough_opens"), 0);
    drop((second, third));
    // Others of them at once, again and again.
    fs::write(&source, "two").unwrap();
    std::thread::scope(|scope| {
        for nth in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                for round in 0..2000 {
                    let mut options = OpenOptions::new();
                    options.read(true).write((round + nth) % 5 == 0);
                    if (round + nth) % 7 == 0 {
                        options.custom_flags(libc::O_DIRECT);
                    }
                    drop(options.open(mount).unwrap());
                }
            });
        }
    });
    let many = over_ram.mounted.source("many");
    std::thread::scope(|scope| {
        fs::create_dir(&many).unwrap();
        for nth in 0..4 {
            let folder = over_ram.mounted.mount("many");
            scope.spawn(move || {
                for round in 0..1000 {
                    let file = folder.join(format!("{}", round / 4));
                    if round % 4 == nth {
                        fs::write(&file, "text").unwrap();
                    }
                    if let Err(error) = fs::read(&file) {
                        assert_eq!(error.kind(), ErrorKind::NotFound);
                    }
                }
            });
        }
    });
    assert!(over_ram.statistic("passthrough_opens") > 0);
}

/// A mapping is SOURCE's own, and what is written to it changes no times once its page is dirty.
#[test]
fn a_mapping_that_outlives_its_descriptor_is_seen() {
    let Some(over_ram) = OverRam::new() else { return };
    over_ram.python(
        r#"
import mmap, os, sys, time
source, mount = sys.argv[1:]
with open(source + "/file", "wb") as file:
    file.write(b"o" * 8192)
reader = os.open(mount + "/file", os.O_RDONLY)
writer = os.open(mount + "/file", os.O_RDWR)
memory = mmap.mmap(writer, 8192)
os.close(writer), os.close(reader)
memory[0:3] = b"one"
# Time that passes is what this is about: more than the half second after which the watch looks
# again, here, and than the tenth for which what was seen is believed, below.
time.sleep(0.7)
for nth, flags in enumerate([os.O_RDWR, os.O_RDONLY, os.O_RDWR, os.O_RDONLY | os.O_DIRECT]):
    fd = os.open(mount + "/file", flags)
    block = mmap.mmap(-1, 4096)
    os.preadv(fd, [block], 0)
    assert block[:4] == b"one" + (b"o" if nth == 0 else b"%d" % (nth - 1)), (nth, block[:4])
    memory[3:4] = b"%d" % nth
    os.preadv(fd, [block], 0)
    assert block[:4] == b"one%d" % nth, (nth, block[:4])
    if flags == os.O_RDWR:
        os.pwrite(fd, b"%d" % nth, 5000)
        assert memory[5000:5001] == b"%d" % nth
    os.close(fd)
    time.sleep(0.2)
"#,
    );
}

/// Who writes to a file that others read in passthrough mode is who he is.
#[test]
fn writers_of_files_that_are_passed_through_are_who_they_are() {
    let Some(over_ram) = OverRam::new() else { return };
    over_ram.python(
        r#"
import errno, fcntl, mmap, os, resource, signal, struct, sys, time
source, mount = sys.argv[1:]
def as_nobody(f):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
            f()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, f
def mode(name):
    return os.stat(source + name).st_mode & 0o7777
def make(name, bits):
    with open(source + name, "wb") as file:
        file.write(b"text" * 1000)
    os.chmod(source + name, bits & 0o777)
    fd = os.open(mount + name, os.O_RDONLY)
    # Who has such bits already is not passed through.
    os.chmod(source + name, bits)
    return fd
def write(name, flags=0):
    def write():
        fd = os.open(mount + name, os.O_WRONLY | flags)
        os.write(fd, b"x"), os.close(fd)
    return write
readers = [make(name, 0o6777) for name in ["/set", "/root", "/appended", "/cut", "/direct"]]
write("/root")()
assert mode("/root") == 0o6777
as_nobody(write("/set"))
assert mode("/set") == 0o777 and os.stat(mount + "/set").st_mode & 0o7777 == 0o777
as_nobody(write("/appended", os.O_APPEND))
assert mode("/appended") == 0o777 and os.stat(source + "/appended").st_size == 4001
as_nobody(lambda: os.truncate(mount + "/cut", 10))
assert mode("/cut") == 0o777 and os.pread(readers[3], 100, 0) == b"texttextte"
def write_direct():
    fd = os.open(mount + "/direct", os.O_WRONLY | os.O_DIRECT)
    os.pwritev(fd, [mmap.mmap(-1, 4096)], 0)
as_nobody(write_direct)
assert mode("/direct") == 0o777
# The caller's limit, whoever serves.
held = make("/limited", 0o666)
def beyond_limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    fd = os.open(mount + "/limited", os.O_WRONLY)
    assert os.pwrite(fd, b"x" * 4000, 4000) == 1000
    try:
        os.pwrite(fd, b"x", 5000)
        raise AssertionError("nothing is said")
    except OSError as error:
        assert error.errno == errno.EFBIG, error
as_nobody(beyond_limit)
# Who may not, may not.
held = make("/closed", 0o600)
def may_not():
    for flags in [os.O_RDONLY, os.O_WRONLY]:
        try:
            os.open(mount + "/closed", flags)
            raise AssertionError("it is opened")
        except PermissionError:
            pass
as_nobody(may_not)
# What can only be appended to is not mapped for writing.
held = make("/log", 0o666)
log = os.open(source + "/log", os.O_RDONLY)
try:
    fcntl.ioctl(log, 0x40086602, struct.pack("i", 0x20))
except OSError as error:
    print("SKIPPED: no flags:", error)
else:
    write("/log", os.O_APPEND)()
    assert os.stat(source + "/log").st_size == 4001
    for flags, expected in [(os.O_RDWR | os.O_APPEND, errno.EBUSY), (os.O_RDWR, errno.EPERM)]:
        try:
            os.open(mount + "/log", flags)
            raise AssertionError("it is opened")
        except OSError as error:
            assert error.errno == expected, error
    os.close(held)
    # The server hears of that later.
    begin = time.time()
    while True:
        try:
            again = os.open(mount + "/log", os.O_RDWR | os.O_APPEND)
            break
        except OSError as error:
            assert error.errno == errno.EBUSY and time.time() - begin < 60, error
    try:
        mmap.mmap(again, 4000)[0:1] = b"y"
    except OSError:
        pass
    os.close(again)
    assert os.pread(log, 4, 0) == b"text"
    fcntl.ioctl(log, 0x40086602, struct.pack("i", 0))
"#,
    );
    assert!(over_ram.statistic("passthrough_opens") > 10);
}

#[test]
fn not_passed_through_is_what_is_asked_for_otherwise_or_cannot_be() {
    let read_twice = |mount: PathBuf, source: PathBuf| {
        fs::write(&source, "text").unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read_to_string(&mount).unwrap(), "text");
        }
    };
    let Some(compressed) = OverRam::with(&["--codec", "lz4"]) else { return };
    read_twice(compressed.mounted.mount("file"), compressed.mounted.source("file"));
    assert_eq!(compressed.statistic("passthrough_opens"), 0);
    // A mount over a mount.
    let Some(over_ram) = OverRam::new() else { return };
    let stats = over_ram.mounted.folder.path().join("outer.json");
    let outer = over_ram.mounted.folder.path().join("outer");
    fs::create_dir(&outer).unwrap();
    let options = ["--stats", stats.to_str().unwrap()];
    let mut server = serve_with(&options, &over_ram.mounted.mount(""), &outer);
    read_twice(outer.join("file"), over_ram.mounted.source("file"));
    umount(&[], &outer).unwrap();
    ended_well(&mut server);
    let told = fs::read_to_string(&stats).unwrap();
    assert!(told.contains("\"passthrough_opens\": 0"), "{told}");
    // The inner one may: nobody but the outer one's server has opened it.
    assert!(over_ram.statistic("passthrough_opens") > 0);
}

//! Real mounts: what is done through one has the same results, errors and traces in SOURCE as when it is done
//! there.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
const RAMFOLD: &str = env!("CARGO_BIN_EXE_ramfold");

/// What is done behind a mount is seen within a second or so; the machine may be busy with more.
const PATIENCE: Duration = Duration::from_secs(120);

/// A mount over a new directory, served by a process of its own, until it is dropped.
struct Mounted {
    folder: tempfile::TempDir,
    server: Child,
}

impl Mounted {
    /// `None`, and a line that says so, where nobody can mount.
    fn new() -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        fs::create_dir(folder.path().join("mount")).unwrap();
        let server = serve(&folder.path().join("source"), &folder.path().join("mount"));
        Some(Mounted { folder, server })
    }

    fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The test may have ended it.
        let _ = umount(&["--lazy"], &self.mount(""));
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn can_mount() -> bool {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: mounting without fusermount3 needs root");
        return false;
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        eprintln!("SKIPPED: /dev/fuse: {error}");
        return false;
    }
    true
}

fn serve(source: &Path, mountpoint: &Path) -> Child {
    serve_with(&[], source, mountpoint)
}

fn serve_with(options: &[&str], source: &Path, mountpoint: &Path) -> Child {
    let memory = match options.contains(&"--memory") {
        true => [].as_slice(),
        false => &["--memory", "64M"],
    };
    let mut server = Command::new(RAMFOLD)
        .arg("mount")
        .args(memory)
        .args(options)
        .args([source, mountpoint])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("is mounted on"), "{said}");
    server
}

fn ended_well(server: &mut Child) {
    let status = server.wait().unwrap();
    let mut said = String::new();
    server.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{status}: {said}");
}

fn umount(options: &[&str], mountpoint: &Path) -> Result<(), String> {
    let output =
        Command::new(RAMFOLD).arg("umount").args(options).arg(mountpoint).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Waits until it is so.
fn is_seen(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what} is not seen");
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("{what}: seen after {:?}", begin.elapsed());
}

#[test]
fn the_same_operations_have_the_same_results() {
    let Some(mounted) = Mounted::new() else { return };
    let plain = mounted.folder.path().join("plain");
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
    let status = Command::new("python3")
        .args(["-c", program])
        .args([mounted.mount("file"), mounted.source("file")])
        .status()
        .unwrap();
    assert!(status.success());
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
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(reader.join().unwrap().unwrap(), 2 * ManyFiles::FILES as u64);
    }
    many.have_them_forgotten();
}

#[test]
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

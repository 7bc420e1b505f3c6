//! `ramfold block --backing`: data that outlives the server, killed or not.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::{RAMFOLD, has, signal, succeeds, text, wait_until};
use tempfile::TempDir;

const PAGE: usize = 4096;

/// A server before a file; killed on drop.
struct Server {
    child: Child,
    uri: String,
}

impl Server {
    fn start(file: &Path, options: &[&str]) -> Server {
        let socket = file.with_extension("sock");
        let mut command = backing(file, options);
        command.arg("--socket").arg(&socket).arg("--stats").arg(file.with_extension("json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        assert!(!uri.is_empty(), "the server did not start");
        Server { child, uri: uri.trim_end().to_owned() }
    }

    /// Ends it as service managers do.
    fn end(mut self) {
        signal(self.child.id(), "-TERM");
        wait_until("the server ends", || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn backing(file: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(RAMFOLD);
    command.args(["block", "--memory", "8M", "--backing"]).arg(file).args(options);
    command.stdin(Stdio::null());
    command
}

/// A folder on a disk, and a file there of that size.
fn folder_with(size: u64) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("disk.img");
    fs::File::create(&file).unwrap().set_len(size).unwrap();
    (folder, file)
}

fn has_python() -> bool {
    has("/usr/bin/python3", &["-c", "import nbd"])
}

fn statistics(file: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(file.with_extension("json")).unwrap()).unwrap()
}

/// Bytes that compress, different at each place.
fn image(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut image = vec![0; bytes];
    for (nth, word) in image.chunks_exact_mut(8).enumerate() {
        if nth % 4 == 0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        word.copy_from_slice(&state.to_be_bytes());
    }
    image
}

#[test]
fn nbdcopy_and_qemu_io_leave_in_the_file_what_they_wrote() {
    if !has("nbdcopy", &["--version"]) || !has("qemu-io", &["--version"]) {
        return;
    }
    for options in [&[][..], &["--write-through", "--paths", "shared", "--batch", "1"]] {
        // An odd size: the last page is not whole.
        let size = (40 << 20) + 512;
        let (folder, file) = folder_with(size);
        let (there, back) = (folder.path().join("there.raw"), folder.path().join("back.raw"));
        let mut bytes = image(size as usize);
        fs::write(&there, &bytes).unwrap();
        let server = Server::start(&file, options);
        let uri = &server.uri;
        succeeds(Command::new("nbdcopy").arg(&there).arg(uri));
        succeeds(Command::new("nbdcopy").arg("--flush").arg(uri).arg(&back));
        assert!(fs::read(&back).unwrap() == bytes);
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", "-t", "writeback"]);
        for command in [
            "write -P 0x5a 8k 3000k",
            "write -f -P 0x5b 512 512",
            "write -z 20M 1M",
            "discard 30M 1M",
            "flush",
            "read -P 0x5a 8k 3000k",
            "read -P 0 30M 1M",
        ] {
            qemu.args(["-c", command]);
        }
        let said = succeeds(qemu.arg(uri));
        assert!(!said.contains("verification failed"), "{said}");
        bytes[8 << 10..3008 << 10].fill(0x5a);
        bytes[512..1024].fill(0x5b);
        bytes[20 << 20..21 << 20].fill(0);
        bytes[30 << 20..31 << 20].fill(0);
        // What was flushed is there while the server lives.
        assert!(fs::read(&file).unwrap() == bytes);
        server.end();
        assert!(fs::read(&file).unwrap() == bytes);
        let told = statistics(&file);
        assert_eq!(told["device"]["dirty_bytes"], 0);
        assert!(told["device"]["written_back_pages"].as_u64().unwrap() > 5000, "{told}");
        assert!(told["device"]["cost_bytes"].as_u64().unwrap() <= 8 << 20, "{told}");
        // Another server has the data.
        let server = Server::start(&file, &["--read-only"]);
        let _ = fs::remove_file(&back);
        succeeds(Command::new("nbdcopy").arg(&server.uri).arg(&back));
        assert!(fs::read(&back).unwrap() == bytes);
        server.end();
    }
}

/// Write N has page N * 7919 mod PAGES full of N. Says "N" when all up to N are safe.
const WRITER: &str = "
import nbd, sys, struct
h = nbd.NBD()
h.connect_uri(sys.argv[1])
pages = int(sys.argv[2])
n = 0
while True:
    n += 1
    h.pwrite(struct.pack('<Q', n) * 512, n * 7919 % pages * 4096)
    if n % 500 == 0:
        h.flush()
        print(n, flush=True)
";

/// Kills a server while a client writes, and looks at the file.
fn kill_while_written(options: &[&str]) {
    const PAGES: u64 = 6000;
    let (_folder, file) = folder_with(PAGES * PAGE as u64);
    let server = Server::start(&file, options);
    let mut writer = Command::new("/usr/bin/python3")
        .args(["-c", WRITER, &server.uri, &PAGES.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    for line in lines.by_ref() {
        if line.unwrap().parse::<u64>().unwrap() >= 20_000 {
            break;
        }
    }
    server.kill();
    let told = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last();
    let flushed: u64 = told.unwrap_or(20_000).max(20_000);
    writer.wait().unwrap();
    let bytes = fs::read(&file).unwrap();
    let mut expected = vec![0; PAGES as usize];
    (1..=flushed).for_each(|n| expected[(n * 7919 % PAGES) as usize] = n);
    for (nth, page) in bytes.chunks(PAGE).enumerate() {
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let found = word(0);
        assert!((0..PAGE).step_by(8).all(|at| word(at) == found), "page {nth} is mixed");
        assert!(
            found >= expected[nth],
            "page {nth} has {found}, and {} was flushed",
            expected[nth]
        );
        assert!(found == 0 || found * 7919 % PAGES == nth as u64);
    }
    // Nothing keeps another server from it.
    Server::start(&file, options).end();
    assert!(fs::read(&file).unwrap() == bytes);
}

#[test]
fn what_was_flushed_outlives_a_killed_server() {
    if has_python() {
        kill_while_written(&[]);
    }
}

#[test]
fn what_was_flushed_outlives_a_killed_server_that_writes_through() {
    if has_python() {
        kill_while_written(&["--write-through", "--paths", "shared"]);
    }
}

#[test]
fn with_write_through_the_file_has_what_was_answered() {
    if !has_python() {
        return;
    }
    let (_folder, file) = folder_with(16 << 20);
    for (options, is_there) in [(&["--write-through"][..], true), (&[], false)] {
        let server = Server::start(&file, options);
        let script = "
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b'x' * 10000, 5000)";
        fs::write(&file, vec![0; 16 << 20]).unwrap();
        succeeds(Command::new("/usr/bin/python3").args(["-c", script, &server.uri]));
        server.kill();
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes[5000..15000].iter().all(|&byte| byte == b'x'), is_there);
        assert!(bytes[..5000].iter().chain(&bytes[15000..]).all(|&byte| byte == 0));
    }
}

#[test]
fn what_a_client_asks_to_cache_is_not_read_from_the_file_again() {
    if !has_python() {
        return;
    }
    let (_folder, file) = folder_with(2 << 20);
    fs::write(&file, image(2 << 20)).unwrap();
    let server = Server::start(&file, &[]);
    let script = "
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
assert h.can_cache()
h.cache(1 << 20, 4096)
h.pread(1 << 20, 4096)";
    succeeds(Command::new("/usr/bin/python3").args(["-c", script, &server.uri]));
    server.end();
    let told = statistics(&file);
    let device = |name: &str| told["device"][name].as_u64().unwrap();
    // All pages come by CACHE, and none by the read.
    assert_eq!(device("prefetched_pages"), 256, "{told}");
    assert_eq!((device("hits_of_reads"), device("misses")), (256, 0), "{told}");
}

/// A client that has written and not flushed, and does not read the reply to its last request.
const DEAF: &str = "
import nbd, sys
h = nbd.NBD()
# Zeros would be holes.
h.set_request_structured_replies(False)
h.connect_uri(sys.argv[1])
h.pwrite(b'x' * 8192, 4096)
h.aio_pread(nbd.Buffer(16 << 20), 0)
print('asked', flush=True)
sys.stdin.read()
";

#[test]
fn a_second_signal_ends_it_at_once_and_says_what_is_lost() {
    if !has_python() {
        return;
    }
    let (_folder, server, said) = server_that_prints_to(Stdio::null());
    let client = deaf_client(&server.uri);
    // The first lets the request end, which takes five seconds; more that come with it do nothing.
    is_ended_by_a_second_signal(server, client, &said);
}

#[test]
fn a_second_signal_ends_it_too_where_something_has_failed() {
    if !has_python() {
        return;
    }
    // It serves, and waits until it can print where.
    let (read, mut write) = std::io::pipe().unwrap();
    write.write_all(&[b'.'; PIPE_BYTES]).unwrap();
    let (_folder, server, said) = server_that_prints_to(write.into());
    let client = deaf_client(&server.uri);
    drop(read);
    is_ended_by_a_second_signal(server, client, &said);
}

/// What a pipe holds.
const PIPE_BYTES: usize = 64 << 10;

/// A server whose standard output is that, and the file that has its messages.
fn server_that_prints_to(stdout: Stdio) -> (TempDir, Server, PathBuf) {
    let (folder, file) = folder_with(16 << 20);
    let said = folder.path().join("said");
    let socket = file.with_extension("sock");
    let mut command = backing(&file, &["--socket", socket.to_str().unwrap()]);
    command.stdout(stdout).stderr(fs::File::create(&said).unwrap());
    let child = command.spawn().unwrap();
    wait_until("the socket is there", || socket.exists());
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    (folder, Server { child, uri }, said)
}

fn deaf_client(uri: &str) -> Child {
    let mut client = Command::new("/usr/bin/python3")
        .args(["-c", DEAF, uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asked = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut asked).unwrap();
    assert_eq!(asked, "asked\n");
    client
}

fn is_ended_by_a_second_signal(mut server: Server, mut client: Child, said: &Path) {
    wait_until("a second signal ends it", || {
        signal(server.child.id(), "-TERM");
        server.child.try_wait().unwrap().is_some()
    });
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("second signal: 8192 bytes that had been written are lost"), "{said}");
    drop(client.stdin.take());
    client.wait().unwrap();
}

fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(125), "{command:?}");
    text(&stderr)
}

#[test]
fn what_cannot_be_a_backing_is_named() {
    let (folder, file) = folder_with(1 << 20);
    let odd = folder.path().join("odd.img");
    fs::write(&odd, [1; 5000]).unwrap();
    for (path, options, what) in [
        (&file, &["--size", "2M"][..], "too small for a device of 2097152"),
        (&folder.path().join("none"), &[], "truncate -s SIZE FILE"),
        (&folder.path().to_owned(), &[], "neither a file nor a block device"),
        (&odd, &["--device", "nbd"], "--size 4096 leaves the rest out"),
        (&file, &["--swap"], "is a file: swap needs a block device"),
    ] {
        let said = fails(backing(path, &[]).args(options).args(["--", "true"]));
        assert!(said.contains(what), "{options:?}: {said}");
    }
    let mut small = Command::new(RAMFOLD);
    small.args(["block", "--memory", "100K", "--backing"]).arg(&file).args(["--", "true"]);
    assert!(fails(&mut small).contains("is too little"));
    let said = backing(&file, &["--spill", "/tmp"]).output().unwrap();
    assert!(!said.status.success() && text(&said.stderr).contains("--spill"));
    let server = Server::start(&file, &[]);
    let said = fails(backing(&file, &[]).args(["--", "true"]));
    assert!(said.contains("in use"), "{said}");
    server.end();
    fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    if is_root() {
        return println!("SKIPPED: root may write to every file");
    }
    let said = fails(backing(&odd, &[]).args(["--", "true"]));
    assert!(said.contains("--read-only serves"), "{said}");
    succeeds(backing(&odd, &["--read-only"]).args(["--", "true"]));
}

#[test]
fn a_file_is_not_called_missing_where_proc_is() {
    if !has("unshare", &["-rm", "mount", "-t", "tmpfs", "none", "/proc"]) {
        return;
    }
    let (_folder, file) = folder_with(1 << 20);
    // How much RAM there is must be known before.
    let script = r#"told=$(cat /proc/meminfo) && mount -t tmpfs none /proc &&
        echo "$told" > /proc/meminfo && exec "$0" block --memory 8M --backing "$1""#;
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, RAMFOLD]).arg(&file).stdin(Stdio::null());
    let said = fails(&mut command);
    assert!(said.contains("/proc is not mounted") && !said.contains("truncate"), "{said}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A full file system: a small tmpfs in a namespace of its own.
const FULL: &str = r#"
mount -t tmpfs -o size=4m none "$1" && cd "$1" && truncate -s 32M disk.img || exit 77
"$2" block --memory 24M --backing disk.img -- /usr/bin/python3 -c '
import nbd, os, sys, subprocess
h = nbd.NBD()
h.connect_uri(os.environ["uri"])
data = os.urandom(8 << 20)
for at in range(0, len(data), 1 << 20):
    h.pwrite(data[at:at + (1 << 20)], at)
for _ in range(2):
    try: h.flush()
    except nbd.Error as error: assert error.errnum == 28, error
    else: raise AssertionError("a flush of what is not there was answered")
assert h.pread(len(data), 0) == data
if sys.argv[1] == "mend":
    subprocess.check_call(["mount", "-o", "remount,size=64m", "."])
    h.flush()
    assert open("disk.img", "rb").read(len(data)) == data
' "$3"
"#;

#[test]
fn a_full_file_system_loses_nothing_while_the_server_lives() {
    if !has_python() || !has("unshare", &["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        return;
    }
    for (what, status) in [("mend", 0), ("leave", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new("unshare")
            .args(["-rm", "sh", "-c", FULL, "sh"])
            .arg(folder.path())
            .args([RAMFOLD, what])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("make room there"), "{said}");
        match what {
            "mend" => assert!(said.contains("can be written again"), "{said}"),
            _ => assert!(said.contains("bytes that had been written were lost"), "{said}"),
        }
    }
}

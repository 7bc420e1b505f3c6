//! `ramfold block` with the clients that people have: nbdinfo, nbdcopy, nbdsh, qemu, fio; and with
//! clients that die, wait and lie.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use support::{RAMFOLD, has, signal, succeeds, text, wait_until};
use tempfile::TempDir;

/// A server that runs until it is dropped.
struct Server {
    child: Child,
    folder: TempDir,
    uri: String,
}

impl Server {
    fn start(options: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("disk.sock");
        let mut command = block(&["--socket", socket.to_str().unwrap()]);
        command.args(options).arg("--stats").arg(folder.path().join("stats.json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let uri = first_line(&mut child);
        assert_eq!(uri, format!("nbd+unix:///?socket={}", socket.display()));
        Server { child, folder, uri }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("disk.sock")
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
        stream
    }

    /// What `--stats` says of the server now.
    fn statistic(&self, name: &str) -> u64 {
        let file = self.path("stats.json");
        let _ = fs::remove_file(&file);
        signal(self.child.id(), "-USR2");
        wait_until("statistics are written", || file.exists());
        let told: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        told["nbd"][name].as_u64().unwrap()
    }

    /// Ends it as Ctrl-C does.
    fn end(mut self) {
        signal(self.child.id(), "-INT");
        wait_until("the server ends", || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket().exists(), "the socket is left");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    /// Ends it as service managers do.
    fn end(mut self) {
        signal(self.0.id(), "-TERM");
        wait_until("the server ends", || self.0.try_wait().unwrap().is_some());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `ramfold block` with a device of 64 MiB.
fn block(options: &[&str]) -> Command {
    let mut command = Command::new(RAMFOLD);
    command.args(["block", "--size", "64M"]).args(options).stdin(Stdio::null());
    command
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn has_libnbd() -> bool {
    has("nbdinfo", &["--version"])
        && has("nbdcopy", &["--version"])
        && has("/usr/bin/python3", &["-c", "import nbd"])
}

fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(125), "{command:?}");
    text(&stderr)
}

/// Runs a script with a connected handle `h` of libnbd.
fn python(uri: &str, script: &str) {
    let begin = "import nbd, sys, errno
def refused(number, call, *arguments, **options):
    try: call(*arguments, **options)
    except nbd.Error as error: assert error.errnum == number, error
    else: raise AssertionError('it was not refused')
def new():
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.add_meta_context('base:allocation')
    return h
h = new()
h.connect_uri(sys.argv[1])
";
    succeeds(Command::new("/usr/bin/python3").args(["-c", &(begin.to_owned() + script), uri]));
}

/// A file of noise with holes.
fn image(path: &Path) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = vec![0; 64 << 20];
    for (nth, part) in bytes.chunks_mut(1 << 20).enumerate() {
        if nth % 4 != 0 {
            continue;
        }
        for word in part.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_be_bytes());
        }
    }
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_and_nbdcopy_see_what_is_there() {
    if !has_libnbd() {
        return;
    }
    let server = Server::start(&[]);
    let info = succeeds(Command::new("nbdinfo").args(["--json", &server.uri]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 64 << 20);
    for can in ["df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero", "cache"] {
        assert_eq!(export[format!("can_{can}")], true, "{can}");
    }
    assert_eq!(export["block_size_maximum"], 32 << 20);
    let map = || succeeds(Command::new("nbdinfo").args(["--map", &server.uri]));
    assert_eq!(map().split_whitespace().collect::<Vec<_>>(), ["0", "67108864", "3", "hole,zero"]);
    let (there, back) = (server.path("there.raw"), server.path("back.raw"));
    let bytes = image(&there);
    succeeds(Command::new("nbdcopy").arg(&there).arg(&server.uri));
    let lines = map();
    let extents: Vec<Vec<&str>> =
        lines.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(extents.len(), 32, "{lines}");
    assert_eq!(extents[0], ["0", "1048576", "0", "data"]);
    assert_eq!(extents[1], ["1048576", "3145728", "3", "hole,zero"]);
    succeeds(Command::new("nbdcopy").arg(&server.uri).arg(&back));
    assert!(fs::read(&back).unwrap() == bytes, "what came back differs");
    server.end();
}

#[test]
fn requests_of_libnbd_do_what_they_say() {
    if !has_libnbd() {
        return;
    }
    let server = Server::start(&[]);
    python(
        &server.uri,
        "
size = h.get_size()
assert h.get_structured_replies_negotiated()
# FUA, any offset and length, across pages.
h.pwrite(b'x' * 10001, 4095, flags=nbd.CMD_FLAG_FUA)
assert h.pread(10003, 4094) == b'\\0' + b'x' * 10001 + b'\\0'
assert h.pread(10003, 4094, flags=nbd.CMD_FLAG_DF) == b'\\0' + b'x' * 10001 + b'\\0'
h.flush()
# A megabyte and more: other threads, and pieces.
for length in (32 << 10, (32 << 10) + 1, 1 << 20, (1 << 20) + 1, (32 << 20) - 5, 32 << 20):
    data = bytes([length % 251]) * (length - 1) + b'e'
    h.pwrite(data, 7)
    assert h.pread(length, 7) == data, length
    assert h.pread(length, 7, flags=nbd.CMD_FLAG_DF) == data, length
    h.cache(length, 0)
h.trim(size, 0)
assert h.pread(1 << 20, 7) == b'\\0' * (1 << 20)
# Chunks: data, a hole, data.
h.pwrite(b'a' * 4096, 0)
h.pwrite(b'b' * 4096, 131072)
chunks = []
def chunk(part, offset, status, error): chunks.append((offset, len(part), status))
assert bytes(h.pread_structured(135168, 0, chunk)) == b'a' * 4096 + bytes(126976) + b'b' * 4096
assert sorted(chunks) == [(0, 4096, nbd.READ_DATA), (4096, 126976, nbd.READ_HOLE),
    (131072, 4096, nbd.READ_DATA)], chunks
chunks = []
h.pread_structured(135168, 0, chunk, flags=nbd.CMD_FLAG_DF)
assert chunks == [(0, 135168, nbd.READ_DATA)], chunks
# Zeros, with room and without.
h.zero(4096, 0, flags=nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 131072, flags=nbd.CMD_FLAG_FAST_ZERO)
extents = []
def status(context, offset, entries, error): extents.append((context, offset, list(entries)))
h.block_status(1 << 20, 0, status)
context, offset, entries = extents[0]
assert (context, offset) == ('base:allocation', 0), extents
assert sum(entries[0::2]) == 1 << 20, entries
assert all(flags & nbd.STATE_ZERO for flags in entries[1::2]), entries
extents = []
h.block_status(1 << 20, 4096, status, flags=nbd.CMD_FLAG_REQ_ONE)
assert extents[0][2] == [(1 << 20), 3], extents
assert h.pread(4096, 0) == bytes(4096)
# What is refused.
refused(errno.EINVAL, h.pread, 4096, size - 4095)
refused(errno.ENOSPC, h.pwrite, b'x' * 4096, size - 4095)
refused(errno.EINVAL, h.trim, 4096, size)
refused(errno.ENOSPC, h.zero, 4096, size)
refused(errno.EINVAL, h.cache, 4096, size)
refused(errno.EINVAL, h.block_status, 4096, size, status)
refused(errno.EINVAL, h.block_status, 0, 0, status)
refused(errno.EINVAL, h.pread, 4096, (1 << 64) - 4096)
refused(errno.EINVAL, h.pwrite, b'x' * (33 << 20), 0)
refused(errno.EOVERFLOW, h.pread, 33 << 20, 0)
refused(errno.EINVAL, h.pread, 4096, 0, flags=nbd.CMD_FLAG_REQ_ONE)
# And it goes on.
h.pwrite(b'', 0)
h.pwrite(b'last', size - 4)
assert h.pread(4, size - 4) == b'last'
h.shutdown()
# Without structured replies.
h = new()
h.set_request_structured_replies(False)
h.connect_uri(sys.argv[1])
h.pwrite(b'y' * (3 << 20), 5)
assert h.pread(3 << 20, 5) == b'y' * (3 << 20)
assert h.pread(100, 5) == b'y' * 100
refused(errno.EINVAL, h.pread, 4096, size)
refused(errno.EOVERFLOW, h.pread, 33 << 20, 0)
assert h.pread(4, size - 4) == b'last'
",
    );
    assert_eq!(server.statistic("connections_dropped"), 0);
    assert!(server.statistic("requests_refused") >= 12);
    server.end();
}

#[test]
fn options_of_the_handshake_are_answered() {
    if !has_libnbd() {
        return;
    }
    let server = Server::start(&["--read-only"]);
    python(
        &server.uri,
        "
refused(errno.EPERM, h.pwrite, b'x' * 512, 0)
refused(errno.EPERM, h.trim, 4096, 0)
refused(errno.EPERM, h.zero, 4096, 0)
assert h.is_read_only() and not h.can_trim()
path = sys.argv[1].split('=')[1]
h = new()
h.set_opt_mode(True)
h.connect_unix(path)
names = []
h.opt_list(lambda name, text: names.append((name, text)))
assert names == [('', 'ramfold block')], names
contexts = []
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ['base:allocation'], contexts
h.opt_info()
h.set_export_name('other')
refused(errno.ENOENT, h.opt_info)
refused(errno.ENOENT, h.opt_go)
h.set_export_name('')
h.opt_go()
assert h.pread(4, 0) == bytes(4)
h = new()
h.set_opt_mode(True)
h.connect_unix(path)
h.opt_abort()
h = new()
h.set_handshake_flags(0)
h.connect_unix(path)
assert h.pread(4, 0) == bytes(4)
h = new()
h.set_tls(nbd.TLS_REQUIRE)
refused(errno.ENOTSUP, h.connect_unix, path)
",
    );
    server.end();
}

#[test]
fn qemu_reads_back_what_it_wrote() {
    if !has("qemu-img", &["--version"]) || !has("qemu-io", &["--version"]) {
        return;
    }
    let server = Server::start(&[]);
    let there = server.path("there.raw");
    image(&there);
    let qemu_img = |arguments: &[&str]| succeeds(Command::new("qemu-img").args(arguments));
    let (file, uri) = (there.to_str().unwrap(), &*server.uri);
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", file, uri]);
    qemu_img(&["compare", "-f", "raw", "-F", "raw", file, uri]);
    let commands = [
        "write -P 7 512 1536",
        "read -P 7 512 1536",
        "write -z -u 1M 1M",
        "read -P 0 1M 1M",
        "discard 0 64M",
        "read -P 0 0 64M",
        "aio_write -P 9 8M 3M",
        "aio_flush",
        "read -P 9 8M 3M",
        "flush",
    ];
    let mut qemu_io = Command::new("qemu-io");
    qemu_io.args(["-f", "raw", uri]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    let said = succeeds(&mut qemu_io);
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    server.end();
}

fn fio(uri: &str, arguments: &[&str]) {
    let mut command = Command::new("fio");
    command.args([
        "--name=verify",
        "--ioengine=nbd",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    succeeds(command.arg(format!("--uri={uri}")).args(arguments));
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio", &["--enghelp=nbd"]) {
        return;
    }
    let server = Server::start(&[]);
    fio(&server.uri, &["--rw=randwrite", "--bsrange=512-256k", "--iodepth=32", "--size=16M"]);
    server.end();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn fio_verifies_all_sizes_on_eight_connections() {
    if !has("fio", &["--enghelp=nbd"]) {
        return;
    }
    let server = Server::start(&[]);
    for size in ["512", "4k", "32k", "64k", "1M", "4M"] {
        let size = format!("--bs={size}");
        let parts = ["--numjobs=8", "--size=8M", "--offset_increment=8M", "--iodepth=32"];
        fio(&server.uri, &[&["--rw=randwrite", &size], &parts[..]].concat());
        fio(&server.uri, &[&["--rw=randrw", &size], &parts[..]].concat());
    }
    assert_eq!(server.statistic("connections_dropped"), 0);
    server.end();
}

/// A client's bytes up to the first request: simple replies, the default export.
fn hello() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT");
    bytes.extend([0, 0, 0, 7, 0, 0, 0, 6]);
    bytes.extend([0; 6]);
    bytes
}

fn request(kind: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Reads the greeting and the replies to `hello`.
fn read_welcome(stream: &mut UnixStream) {
    // The greeting, INFO_EXPORT and the acknowledgement.
    let mut bytes = [0; 18 + 20 + 12 + 20];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[18 + 20 + 12 + 12..][..4], [0, 0, 0, 1]);
}

#[test]
fn clients_that_die_wait_and_lie_harm_nobody() {
    let server = Server::start(&["--connections", "8"]);
    let mut good = server.connect();
    good.write_all(&hello()).unwrap();
    read_welcome(&mut good);
    let mut checks = 0u64;
    let mut goes_on = |good: &mut UnixStream| {
        checks += 1;
        good.write_all(&request(1, 4096, 8)).unwrap();
        good.write_all(&checks.to_be_bytes()).unwrap();
        let mut reply = [0; 16];
        good.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        good.write_all(&request(0, 4096, 8)).unwrap();
        let mut reply = [0; 24];
        good.read_exact(&mut reply).unwrap();
        assert_eq!(reply[16..], checks.to_be_bytes());
    };
    goes_on(&mut good);
    // Says nothing in the handshake, and half a word.
    let silent = server.connect();
    let mut half = server.connect();
    half.write_all(&hello()[..9]).unwrap();
    goes_on(&mut good);
    // Asks for much and reads nothing.
    let mut deaf = server.connect();
    deaf.write_all(&hello()).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let requests = request(0, 0, 1 << 20).repeat(1000);
    let _ = deaf.write_all(&requests);
    goes_on(&mut good);
    // Promises more than it sends, and stays.
    let mut liar = server.connect();
    liar.write_all(&[hello(), request(1, 0, 32 << 20), vec![1; 5000]].concat()).unwrap();
    goes_on(&mut good);
    // Dies within a payload.
    let mut dying = server.connect();
    dying.write_all(&[hello(), request(1, 0, 1 << 20), vec![1; 5000]].concat()).unwrap();
    drop(dying);
    // Sends no request.
    let mut wrong = server.connect();
    wrong.write_all(&[hello(), vec![0xff; 100]].concat()).unwrap();
    read_welcome(&mut wrong);
    assert_eq!(wrong.read(&mut [0; 8]).unwrap(), 0, "it is dropped");
    wait_until("it is counted", || server.statistic("connections_dropped") == 1);
    goes_on(&mut good);
    // A payload of 4 GiB is not read.
    let mut huge = server.connect();
    huge.write_all(&[hello(), request(1, 0, u32::MAX)].concat()).unwrap();
    read_welcome(&mut huge);
    assert_eq!(huge.read(&mut [0; 8]).unwrap(), 0, "it is dropped");
    goes_on(&mut good);
    wait_until("the dead are gone", || server.statistic("connections_now") == 5);
    // No more than eight. Those that say nothing make room.
    let welcome = || {
        let mut client = server.connect();
        client.write_all(&hello()).unwrap();
        read_welcome(&mut client);
        client
    };
    let more: Vec<UnixStream> = (0..5).map(|_| welcome()).collect();
    for mut idle in [silent, half] {
        while idle.read(&mut [0; 64]).unwrap() > 0 {}
    }
    wait_until("they are there", || server.statistic("connections_now") == 8);
    assert_eq!(server.statistic("connections_refused"), 0);
    let mut refused = server.connect();
    assert!(matches!(refused.read(&mut [0; 8]), Ok(0) | Err(_)));
    wait_until("it is counted", || server.statistic("connections_refused") == 1);
    goes_on(&mut good);
    // The server ends all the same.
    drop((liar, more));
    server.end();
    drop(deaf);
}

/// The reply to a request with extended headers: flags, type and payload.
fn extended_reply(stream: &mut UnixStream, offset: u64) -> (u16, u16, Vec<u8>) {
    let mut head = [0; 32];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], 0x6e8a_278c_u32.to_be_bytes());
    assert_eq!(head[8..16], 7u64.to_be_bytes());
    assert_eq!(head[16..24], offset.to_be_bytes());
    let length = u64::from_be_bytes(head[24..].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    (u16::from_be_bytes([head[4], head[5]]), u16::from_be_bytes([head[6], head[7]]), payload)
}

/// libnbd 1.14 does not know them.
#[test]
fn extended_headers_are_answered() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let context = [&[0; 7][..], &[1, 0, 0, 0, 15], b"base:allocation"].concat();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(&option(11, &[])).unwrap();
    // It cannot be taken back.
    stream.write_all(&option(8, &[])).unwrap();
    stream.write_all(&option(10, &context)).unwrap();
    stream.write_all(&option(7, &[0; 6])).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    let mut kinds = Vec::new();
    while kinds.last() != Some(&(7, 1)) {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut data = vec![0; field(16) as usize];
        stream.read_exact(&mut data).unwrap();
        kinds.push((field(8), field(12)));
    }
    assert_eq!(kinds, [(11, 1), (8, 0x8000_000a), (10, 4), (10, 1), (7, 3), (7, 1)]);
    let request = |flags: u16, kind: u16, offset: u64, length: u64| {
        let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
        let words = [7, offset, length].map(u64::to_be_bytes).concat();
        [&0x21e4_1c71_u32.to_be_bytes()[..], &flags, &kind, &words].concat()
    };
    // A write has its payload's flag.
    let payload = vec![b'x'; 5000];
    stream.write_all(&[request(32, 1, 10, 5000), payload.clone()].concat()).unwrap();
    assert_eq!(extended_reply(&mut stream, 10), (1, 0, Vec::new()));
    stream.write_all(&request(0, 1, 10, 5000)).unwrap();
    assert_eq!(extended_reply(&mut stream, 10).1, 0x8001);
    // A payload that does not belong to the request is skipped.
    stream.write_all(&[request(32, 0, 10, 5000), payload.clone()].concat()).unwrap();
    assert_eq!(extended_reply(&mut stream, 10).1, 0x8001);
    stream.write_all(&request(0, 0, 10, 5000)).unwrap();
    let (flags, kind, data) = extended_reply(&mut stream, 10);
    assert_eq!((flags, kind), (1, 1));
    assert!(data[..8] == 10u64.to_be_bytes() && data[8..] == payload);
    stream.write_all(&request(0, 7, 0, 64 << 20)).unwrap();
    let (flags, kind, data) = extended_reply(&mut stream, 0);
    assert_eq!((flags, kind, data.len()), (1, 6, 8 + 2 * 16));
    let words: Vec<u64> =
        data.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [1 << 32 | 2, 8192, 0, (64 << 20) - 8192, 3]);
    // 64 bits of length, beyond the device.
    stream.write_all(&request(0, 4, 0, 1 << 40)).unwrap();
    let (_, kind, data) = extended_reply(&mut stream, 0);
    assert_eq!((kind, &data[..4]), (0x8001, &[0, 0, 0, 22][..]));
    server.end();
}

#[test]
fn a_socket_is_private_replaced_and_removed() {
    let server = Server::start(&[]);
    let path = server.socket();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // In use.
    let said = fails(&mut block(&["--socket", path.to_str().unwrap()]));
    assert!(said.contains("in use"), "{said}");
    // Of a server that was killed.
    let left = server.path("left.sock");
    let mut killed = block(&["--socket", left.to_str().unwrap()]);
    let mut killed = killed.stdout(Stdio::piped()).spawn().unwrap();
    first_line(&mut killed);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(fs::metadata(&left).unwrap().file_type().is_socket());
    let again = ["--socket", left.to_str().unwrap(), "--", "test", "-S", left.to_str().unwrap()];
    assert!(block(&again).status().unwrap().success());
    assert!(!left.exists());
    // Not a socket.
    let file = server.path("file");
    fs::write(&file, "mine").unwrap();
    let said = fails(&mut block(&["--socket", file.to_str().unwrap()]));
    assert!(said.contains("no socket"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    server.end();
}

#[test]
fn bad_arguments_are_named() {
    let long = format!("/tmp/{}", "x".repeat(120));
    for (arguments, what) in [
        (&["--size", "0"][..], "--size 0 is no device"),
        (&["--size", "5000"], "4096 and 8192"),
        (&["--size", "50%"], "write 4G or 512M"),
        (&["--size", "1M", "--listen", "0.0.0.0:10809"], "without TLS"),
        (&["--size", "1M", "--listen", "[::]:10809"], "without TLS"),
        (&["--size", "1M", "--socket", "/nowhere/disk.sock"], "/nowhere/disk.sock"),
        (&["--size", "1M", "--socket", &long], "107 bytes"),
        (&["--size", "1M", "--stats", "/nowhere/stats.json"], "/nowhere/stats.json"),
    ] {
        let said = fails(Command::new(RAMFOLD).arg("block").args(arguments));
        assert!(said.contains(what), "{arguments:?}: {said}");
    }
}

#[test]
fn every_statistic_is_in_the_reference() {
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/statistics.md");
    let reference = fs::read_to_string(reference).unwrap();
    let (_, of_block) = reference.split_once("## `ramfold block`").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (file, backing) = (folder.path().join("stats.json"), folder.path().join("disk.img"));
    fs::File::create(&backing).unwrap().set_len(1 << 20).unwrap();
    for options in [&["--size", "1M"][..], &["--backing", backing.to_str().unwrap()]] {
        let mut command = Command::new(RAMFOLD);
        command.args(["block", "--memory", "8M"]).args(options).arg("--stats").arg(&file);
        succeeds(command.args(["--", "true"]));
        let told: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for part in ["device", "nbd"] {
            for name in told[part].as_object().unwrap().keys() {
                assert!(of_block.contains(&format!("`{name}`")), "{part}: {name} is not there");
            }
        }
    }
}

#[test]
fn a_program_gets_the_uri_and_its_status_counts() {
    let status = |program: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = block(&["--export", "my disk", "--"]);
        command.args(program).env("XDG_RUNTIME_DIR", folder.path());
        let output = command.output().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left");
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = status(&["sh", "-c", "echo \"$uri\"; exit 7"]);
    assert_eq!(code, Some(7));
    assert!(said.starts_with("nbd+unix:///my%20disk?socket=/"), "{said}");
    assert_eq!(said.lines().count(), 1, "nothing but what the program said");
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]).0, Some(137));
    assert_eq!(status(&["/nowhere/program"]).0, Some(127));
    assert_eq!(status(&["/etc"]).0, Some(126));
}

#[test]
fn it_listens_where_it_is_told_to() {
    let mut command = block(&["--listen", "127.0.0.1:0"]);
    let mut child = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let uri = first_line(&mut child.0);
    let address = uri.strip_prefix("nbd://").unwrap().strip_suffix('/').unwrap();
    let mut greeting = [0; 18];
    TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    if has_libnbd() {
        python(&uri, "h.pwrite(b'x' * 5000, 1); assert h.pread(5000, 1) == b'x' * 5000");
    }
    child.end();
    // A service manager's sockets.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.sock");
    let script = "
import os, socket, sys
is_path = sys.argv[1].startswith('/')
listening = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
listening.bind(sys.argv[1] if is_path else (sys.argv[1], 0))
listening.listen()
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(&path).args([RAMFOLD, "block", "--size", "1M"]);
    let child = Running(command.spawn().unwrap());
    wait_until("the socket is there", || path.exists());
    wait_until("it is served", || {
        UnixStream::connect(&path).is_ok_and(|mut stream| stream.read_exact(&mut greeting).is_ok())
    });
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    child.end();
    // It is the manager's.
    assert!(path.exists());
    // One that other machines reach.
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script, "0.0.0.0", RAMFOLD, "block", "--size", "1M"]);
    let said = fails(&mut command);
    assert!(said.contains("service manager") && said.contains("without TLS"), "{said}");
}

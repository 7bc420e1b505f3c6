//! Whole runs with a spill file in which an operation on it fails: each in turn, once or from then
//! on. The program must come to the right answer, or end with a message.
//!
//! A supervisor of the program's system calls (seccomp, user notification) lets them fail: reads
//! and writes of the file and, where io_uring is used, what submits them.

mod support;

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, ptr, thread};

use support::{Ended, needs_userfaultfd, ramfold, run, text};

/// 20 MiB that do not compress, changed and checked in 16 MiB, again and again: until a file is
/// there that says that what is to fail has failed, and then once more.
const PROGRAM: &str = "
import hashlib, os, random
blocks = [bytearray(os.urandom(65536)) for _ in range(320)]
sums = [hashlib.blake2b(block).digest() for block in blocks]
last = False
while not last:
    last = os.path.exists(os.environ['ENOUGH'])
    for i, block in enumerate(blocks):
        assert hashlib.blake2b(block).digest() == sums[i], i
        block[random.randrange(65536)] ^= 1 + random.randrange(255)
        sums[i] = hashlib.blake2b(block).digest()
print('right')
";
/// Runs of each kind, but with `RAMFOLD_TEST_ALL=1`: then one for each operation there is.
const RUNS: u64 = 6;
/// Operations of a run in which nothing fails, at least: of two rounds of the program, about.
const OPERATIONS: u64 = 100;

/// Which of the operations fail, counted from 0.
#[derive(Clone, Copy, Debug)]
enum Fail {
    Nothing,
    Once(u64),
    From(u64),
}

impl Fail {
    fn hits(self, operation: u64) -> bool {
        match self {
            Fail::Nothing => false,
            Fail::Once(which) => operation == which,
            Fail::From(first) => operation >= first,
        }
    }

    /// How many operations there have to be.
    fn enough(self) -> u64 {
        match self {
            Fail::Nothing => OPERATIONS,
            Fail::Once(which) => which + 1,
            Fail::From(first) => first + 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ring,
    /// io_uring is not permitted.
    Plain,
}

/// How the program ended, and how many operations there were.
fn run_failing(way: Way, fail: Fail) -> (Ended, u64) {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder on a disk");
    let mut command = ramfold(["--memory", "16M", "--spill"]);
    command.arg(format!("{}:256M", folder.path().display()));
    command.args(["--", "/usr/bin/python3", "-c", PROGRAM]);
    let enough = tempfile::tempdir().unwrap();
    let enough = enough.path().join("enough");
    command.env("ENOUGH", &enough);
    let (near, far) = UnixDatagram::pair().unwrap();
    // SAFETY: system calls between fork and exec, which need no memory.
    unsafe { command.pre_exec(move || report_system_calls(way, far.as_raw_fd())) };
    thread::scope(|scope| {
        let supervisor = scope.spawn(|| match receive_descriptor(&near) {
            Some(listener) => supervise(&listener, folder.path(), fail, &enough),
            None => 0,
        });
        let ended = run(&mut command);
        // With it the socket goes, for which the supervisor may wait.
        drop(command);
        (ended, supervisor.join().unwrap())
    })
}

/// From here on some system calls of this process, and all it starts, are told to who gets the
/// descriptor that is sent to the socket.
fn report_system_calls(way: Way, socket: RawFd) -> io::Result<()> {
    let jump_if = |number: i64, then: libc::sock_filter| {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        [libc::sock_filter { code, jt: 0, jf: 1, k: number as u32 }, then]
    };
    let end =
        |k: u32| libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k };
    let tell = end(libc::SECCOMP_RET_USER_NOTIF);
    let refuse = end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allow = end(libc::SECCOMP_RET_ALLOW);
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let [a, b] = jump_if(libc::SYS_pread64, tell);
    let [c, d] = jump_if(libc::SYS_pwrite64, tell);
    let [e, f] = jump_if(libc::SYS_io_uring_enter, tell);
    let [g, h] = jump_if(libc::SYS_io_uring_setup, if way == Way::Plain { refuse } else { allow });
    // The number is the first thing there is.
    let number = libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 };
    let mut filter = [number, a, b, c, d, e, f, g, h, allow];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls, which copy it.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    send_descriptor(socket, listener as RawFd)
}

/// Room for a message that has a descriptor with it.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// A message of one byte, and who is to look at it.
fn with_message<R>(
    byte: &mut u8,
    control: &mut Control,
    f: impl FnOnce(&mut libc::msghdr) -> R,
) -> R {
    let mut part = libc::iovec { iov_base: ptr::from_mut(byte).cast(), iov_len: 1 };
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: computes a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    f(&mut message)
}

fn send_descriptor(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    with_message(&mut 0, &mut Control([0; 32]), |message| {
        // SAFETY: there is room for one header with a descriptor, which is written before it is
        // sent.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
            libc::sendmsg(socket, message, 0)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// `None` if nobody is there to send one.
fn receive_descriptor(socket: &UnixDatagram) -> Option<OwnedFd> {
    with_message(&mut 0, &mut Control([0; 32]), |message| {
        // SAFETY: the message's parts are valid for as long as this takes; what came is looked at
        // only if something did, and the descriptor is ours then.
        unsafe {
            if libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) != 1 {
                return None;
            }
            let header = libc::CMSG_FIRSTHDR(message);
            let descriptor = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
            Some(OwnedFd::from_raw_fd(descriptor))
        }
    })
}

/// Lets operations on files of a folder fail, until nobody is left; returns how many there were.
/// Makes the file `enough` when there were enough.
fn supervise(listener: &OwnedFd, folder: &Path, fail: Fail, enough: &Path) -> u64 {
    let is_spill = |task: u32, descriptor: u64| {
        let path = fs::read_link(format!("/proc/{task}/fd/{descriptor}"));
        path.is_ok_and(|path| path.starts_with(folder))
    };
    let mut operations = 0;
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: all zero is an empty notification, which the kernel wants; the structures are the
        // ones of these calls.
        unsafe {
            if libc::poll(&raw mut poll, 1, -1) < 0 {
                continue;
            }
            if poll.revents & libc::POLLIN == 0 {
                return operations;
            }
            let mut call: libc::seccomp_notif = MaybeUninit::zeroed().assume_init();
            if libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) != 0 {
                // Who called is gone.
                continue;
            }
            let [first, second, ..] = call.data.args;
            let counts = if i64::from(call.data.nr) == libc::SYS_io_uring_enter {
                // Others only wait.
                second > 0
            } else {
                is_spill(call.pid, first)
            };
            let fails = counts && fail.hits(operations);
            operations += u64::from(counts);
            let answer = libc::seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: if fails { -libc::EIO } else { 0 },
                flags: if fails { 0 } else { SECCOMP_USER_NOTIF_FLAG_CONTINUE },
            };
            // Where it fails who called is gone.
            libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw const answer);
            if counts && operations == fail.enough() {
                fs::write(enough, "").unwrap();
            }
        }
    }
}

// linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp).
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;

const _: () = assert!(size_of::<libc::seccomp_notif>() == 0x50);
const _: () = assert!(size_of::<libc::seccomp_notif_resp>() == 0x18);

/// Has operations of so many fail in turn, and counts the runs for which it says so.
fn in_turn(operations: u64, runs: u64, says_so: impl Fn(u64) -> bool + Sync) -> u64 {
    let all = std::env::var_os("RAMFOLD_TEST_ALL").is_some_and(|all| all == "1");
    let runs = if all { operations } else { runs.min(operations) };
    let (next, count) = (AtomicU64::new(0), AtomicU64::new(0));
    // A run waits for its disk a third of its time.
    let at_once = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let nth = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|nth| *nth < runs);
                while let Some(nth) = nth() {
                    if all && nth.is_multiple_of(100) {
                        println!("{nth} of {runs} runs");
                    }
                    let counts = says_so(nth * operations / runs);
                    count.fetch_add(u64::from(counts), Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner()
}

/// The right answer, or a message why the program was ended; which of the two.
fn is_right(ended: &Ended, case: &str) -> bool {
    let (said, errors) = (text(&ended.output.stdout), text(&ended.output.stderr));
    let right = ended.output.status.success() && said == "right\n";
    // It may be on its way out when a page cannot be read.
    let clean = !ended.output.status.success() && errors.contains("rather than risk wrong data");
    assert!(right || clean, "{case}: {:?}, {said}, {errors}", ended.output.status);
    assert!(!errors.contains("AssertionError"), "{case}: {errors}");
    right
}

fn every_operation_fails_once(way: Way) {
    let (ended, operations) = run_failing(way, Fail::Nothing);
    assert_eq!(text(&ended.output.stderr), "");
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert!(operations >= OPERATIONS, "{operations}");
    let messages = in_turn(operations, RUNS, |which| {
        let (ended, _) = run_failing(way, Fail::Once(which));
        // What fails once is tried again, or the page stays in memory.
        assert!(is_right(&ended, &format!("{way:?}, {which}")));
        !ended.output.stderr.is_empty()
    });
    let ends = in_turn(operations, RUNS / 2, |first| {
        let (ended, _) = run_failing(way, Fail::From(first));
        !is_right(&ended, &format!("{way:?}, from {first}"))
    });
    println!("{way:?}: {operations} operations, {messages} messages, {ends} programs ended");
    // A page that cannot be read ends the program.
    if way == Way::Plain {
        assert!(ends > 0);
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_disk_that_fails_once_costs_nothing_and_a_dead_one_no_wrong_byte() {
    needs_userfaultfd!();
    every_operation_fails_once(Way::Plain);
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn the_same_with_io_uring() {
    needs_userfaultfd!();
    every_operation_fails_once(Way::Ring);
}

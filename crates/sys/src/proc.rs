//! What `/proc` says about the process that the agent is in, and about others.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

use crate::maps::number;
use crate::path::Path;
use crate::{Errno, PAGE_SIZE};

/// The number of this process.
pub fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// The number of the calling thread.
pub fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The number of the namespace (pid_namespaces(7)) in which process numbers of this process are
/// valid; 0 where the system does not tell.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |file| file.st_ino)
}

/// The number of the namespace (user_namespaces(7)) in which users and capabilities of this process
/// are valid; 0 where the system does not tell.
pub fn user_namespace() -> u64 {
    rustix::fs::stat(c"/proc/self/ns/user").map_or(0, |file| file.st_ino)
}

/// `/proc/self/statm`, kept open.
#[derive(Debug)]
pub struct Statm {
    fd: OwnedFd,
}

impl Statm {
    /// Opens the file.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Statm { fd: rustix::fs::open(c"/proc/self/statm", flags, Mode::empty())? })
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// What read(2) says.
    pub fn read(&self) -> Result<Memory, Errno> {
        let mut text = [0; 128];
        let length = rustix::io::pread(&self.fd, &mut text, 0)?;
        let mut fields = text[..length].split(|&b| b == b' ').map(|field| number(field, 10));
        let mut bytes = || {
            let (pages, _) = fields.next().flatten().ok_or(Errno::PROTO)?;
            Ok(pages * PAGE_SIZE as u64)
        };
        let [mapped_bytes, resident, shared, _, _, writable_bytes] =
            [bytes()?, bytes()?, bytes()?, bytes()?, bytes()?, bytes()?];
        let anonymous_bytes = resident.saturating_sub(shared);
        Ok(Memory { mapped_bytes, anonymous_bytes, shared_bytes: shared, writable_bytes })
    }
}

/// What `/proc/self/statm` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Address space with mappings in it.
    pub mapped_bytes: u64,
    /// Anonymous memory in RAM: all resident pages less those of files and shared memory. The
    /// kernel keeps the counters per processor and adds them up loosely (within a few hundred
    /// KiB).
    pub anonymous_bytes: u64,
    /// Pages in RAM of files and of shared memory.
    pub shared_bytes: u64,
    /// Mappings that the process may write to and that are its own, whether or not there is memory
    /// behind them: more anonymous memory than this it cannot have.
    pub writable_bytes: u64,
}

/// Proportional shares, in bytes: a page that several processes have counts by the fraction of a
/// page each has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proportional {
    /// Of anonymous memory, which forks leave shared.
    pub anonymous: u64,
    /// Of shared memory: `MAP_SHARED | MAP_ANONYMOUS`, memfd_create(2), shmget(2), files of tmpfs.
    pub shared: u64,
}

impl Proportional {
    /// That of this process. Walks the page tables: about 10 ms for a GiB.
    ///
    /// # Errors
    /// What open(2) and read(2) say of `/proc/self/smaps_rollup` (Linux 4.14; `Pss_Anon` 5.3).
    pub fn of_this_process() -> Result<Proportional, Errno> {
        let mut text = [0; 2048];
        let length = read_file(c"/proc/self/smaps_rollup", &mut text)?;
        let amount = |name| kibibytes(&text[..length], name);
        Ok(Proportional { anonymous: amount(b"Pss_Anon:")?, shared: amount(b"Pss_Shmem:")? })
    }
}

/// Shared memory that this process has mapped and that is in RAM, in bytes, whoever else has it.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/status`.
pub fn resident_shared_bytes() -> Result<u64, Errno> {
    status_bytes(b"RssShmem:")
}

/// Page tables of this process, in bytes.
///
/// # Errors
/// As [`resident_shared_bytes`].
pub fn page_table_bytes() -> Result<u64, Errno> {
    status_bytes(b"VmPTE:")
}

fn status_bytes(name: &[u8]) -> Result<u64, Errno> {
    let mut text = [0; 4096];
    let length = read_file(c"/proc/self/status", &mut text)?;
    kibibytes(&text[..length], name)
}

/// A line like `RssShmem:      12 kB`, in bytes.
fn kibibytes(text: &[u8], name: &[u8]) -> Result<u64, Errno> {
    let line = text.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name));
    let (kibibytes, _) =
        line.and_then(|line| number(line.trim_ascii_start(), 10)).ok_or(Errno::PROTO)?;
    Ok(kibibytes * 1024)
}

/// The processor a thread last ran on.
///
/// # Errors
/// `ENOENT` for a thread that is gone.
pub fn last_processor(thread: u32) -> Result<usize, Errno> {
    let mut text = [0; 1024];
    let length = read_at(format_args!("/proc/{thread}/stat"), &mut text)?;
    // The processor is number 39 counting from 1, the state, which comes first here, number 3.
    let field = fields(&text[..length])?.nth(39 - 3).ok_or(Errno::PROTO)?;
    number(field, 10).map(|(processor, _)| processor as usize).ok_or(Errno::PROTO)
}

/// The system call that a thread waits in, with its arguments; `None` when it runs.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/TID/syscall`.
pub fn system_call(thread: u32) -> Result<Option<(usize, [usize; 6])>, Errno> {
    let mut text = [0; 256];
    let length = read_at(format_args!("/proc/{thread}/syscall"), &mut text)?;
    let mut words = text[..length].split(|b| b.is_ascii_whitespace());
    // "running", or -1 in a thread that waits outside of a system call.
    let Some((call, _)) = words.next().and_then(|word| number(word, 10)) else { return Ok(None) };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        let word = words.next().and_then(|word| word.strip_prefix(b"0x"));
        *argument = word.and_then(|word| number(word, 16)).ok_or(Errno::PROTO)?.0 as usize;
    }
    Ok(Some((call as usize, arguments)))
}

/// Whether a process has ended, with all of its threads. Its parent need not have waited for it.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/PID/stat`, other than that it is not there.
pub fn has_ended(process: u32) -> Result<bool, Errno> {
    let mut text = [0; 1024];
    match read_at(format_args!("/proc/{process}/stat"), &mut text) {
        Ok(length) => {
            let mut fields = fields(&text[..length])?;
            let first_has = matches!(fields.next(), Some(b"Z" | b"X"));
            // The number of threads is number 20 counting from 1, and what comes next is number 4.
            let threads = fields.nth(20 - 4).and_then(|text| number(text, 10));
            Ok(first_has && threads.ok_or(Errno::PROTO)?.0 <= 1)
        }
        Err(Errno::NOENT | Errno::SRCH) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// The number of this process's parent in `/proc`, which may belong to another namespace of
/// processes than this one.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/stat`.
pub fn listed_parent() -> Result<u32, Errno> {
    let mut text = [0; 1024];
    let length = read_file(c"/proc/self/stat", &mut text)?;
    let field = fields(&text[..length])?.nth(1).ok_or(Errno::PROTO)?;
    number(field, 10).map(|(parent, _)| parent as u32).ok_or(Errno::PROTO)
}

/// Whether a process is about to end: it was killed, its first thread has ended, or it writes a
/// core dump. A process that has ended is, too.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/PID/status`.
pub fn is_dying(process: u32) -> Result<bool, Errno> {
    const KILLED: u64 = 1 << 8;
    let mut text = [0; 4096];
    let length = read_at(format_args!("/proc/{process}/status"), &mut text)?;
    let is_so = |line: &[u8]| {
        let Some(colon) = line.iter().position(|&b| b == b':') else { return false };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"State" => matches!(value.first(), Some(b'Z' | b'X')),
            b"CoreDumping" => value == b"1",
            // Each thread of a process that is killed has the signal itself.
            b"SigPnd" => number(value, 16).is_some_and(|(pending, _)| pending & KILLED != 0),
            _ => false,
        }
    };
    Ok(text[..length].split(|&b| b == b'\n').any(is_so))
}

/// Whether the first thread of a process has this name.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/PID/comm`.
pub fn is_named(process: u32, name: &[u8]) -> Result<bool, Errno> {
    let mut text = [0; 32];
    let length = read_at(format_args!("/proc/{process}/comm"), &mut text)?;
    Ok(text[..length].strip_suffix(b"\n") == Some(name))
}

/// How many threads the process has.
///
/// # Errors
/// What stat(2) says of `/proc/self/task`.
#[cfg(test)]
pub(crate) fn thread_count() -> Result<u64, Errno> {
    // A folder has a link for itself, its parent and each folder in it; /proc keeps to that.
    Ok(rustix::fs::stat(c"/proc/self/task")?.st_nlink as u64 - 2)
}

/// Signals that this process ignores, as one does that nohup(1) or a shell started in the
/// background: bit N - 1 is signal N.
///
/// # Errors
/// When `/proc/self/status` cannot be read or lacks the mask.
#[cfg(any(test, feature = "std"))]
pub fn ignored_signals() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| std::io::Error::other("/proc/self/status has no SigIgn"))
}

/// Addresses of the arguments and the environment that the process was started with, at the end of
/// its first thread's stack; an empty range where the system does not tell.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/stat`.
pub fn arguments() -> Result<core::ops::Range<usize>, Errno> {
    let mut text = [0; 1024];
    let length = read_file(c"/proc/self/stat", &mut text)?;
    // Fields number 48 to 51, where a process may know: both ranges, one behind the other.
    let mut fields = fields(&text[..length])?.skip(48 - 3);
    let mut next = || fields.next().and_then(|field| number(field, 10)).map_or(0, |(n, _)| n);
    let [start, _, _, end] = [next(), next(), next(), next()];
    Ok(start as usize..end as usize)
}

/// The fields of a stat file from number 3 on, the state. The name before it, in parentheses, may
/// hold anything.
fn fields(stat: &[u8]) -> Result<impl DoubleEndedIterator<Item = &[u8]>, Errno> {
    let stat = stat.trim_ascii_end();
    let after_name = stat.iter().rposition(|&b| b == b')').ok_or(Errno::PROTO)? + 2;
    Ok(stat.get(after_name..).ok_or(Errno::PROTO)?.split(|&b| b == b' '))
}

fn read_at(path: core::fmt::Arguments<'_>, text: &mut [u8]) -> Result<usize, Errno> {
    read_file(Path::new(path)?.as_c_str(), text)
}

/// Reads what fits of a file.
pub(crate) fn read_file(path: &core::ffi::CStr, text: &mut [u8]) -> Result<usize, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut filled = 0;
    while filled < text.len() {
        match rustix::io::read(&file, &mut text[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::mem::Reservation;

    #[test]
    fn the_arguments_lie_where_it_is_said() {
        let Range { start, end } = arguments().unwrap();
        assert!(start < end);
        // SAFETY: the program's own arguments, which end in zeros.
        let first = unsafe { std::ffi::CStr::from_ptr(start as *const std::ffi::c_char) };
        assert_eq!(first.to_str().unwrap(), std::env::args().next().unwrap());
    }

    #[test]
    fn ignored_signals_are_known() {
        // The standard library has the process ignore SIGPIPE, number 13.
        assert_ne!(ignored_signals().unwrap() & 1 << 12, 0);
        assert_eq!(ignored_signals().unwrap() & 1 << 8, 0, "SIGKILL cannot be ignored");
    }

    #[test]
    fn the_system_call_a_thread_waits_in_is_known() {
        use rustix::pipe::pipe;
        let (read_end, write_end) = pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&read_end) as usize;
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            tell.send(own_thread()).unwrap();
            rustix::io::read(&read_end, &mut [0; 1])
        });
        let thread = told.recv().unwrap();
        let reading =
            || matches!(system_call(thread), Ok(Some((_, [first, _, 1, ..]))) if first == fd);
        crate::tests_wait_until("it waits for the pipe", reading);
        rustix::io::write(&write_end, b".").unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(1));
        // The caller itself is running.
        let own = own_thread();
        assert!(!matches!(system_call(own), Err(Errno::PROTO)));
        assert!(system_call(u32::MAX >> 1).is_err());
    }

    #[test]
    fn anonymous_memory_grows_by_what_is_touched() {
        const BYTES: usize = 64 << 20;
        let statm = Statm::open().unwrap();
        let before = (
            statm.read().unwrap().anonymous_bytes,
            Proportional::of_this_process().unwrap().anonymous,
        );
        let r = Reservation::new(BYTES).unwrap();
        r.commit(0, BYTES).unwrap();
        r.populate(0, BYTES).unwrap();
        let after = (
            statm.read().unwrap().anonymous_bytes,
            Proportional::of_this_process().unwrap().anonymous,
        );
        // Other tests of this process run beside and allocate some.
        for (before, after) in [(before.0, after.0), (before.1, after.1)] {
            let grown = after - before;
            assert!(grown.abs_diff(BYTES as u64) < 16 << 20, "grown by {grown}");
        }
    }

    #[test]
    fn the_parent_is_listed() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        assert_eq!(listed_parent(), Ok(parent as u32));
    }

    #[test]
    fn the_processor_of_a_pinned_thread() {
        let me = own_thread();
        let here = last_processor(me).unwrap();
        assert!(here < 4096);
        assert!(last_processor(u32::MAX).is_err());
    }

    #[test]
    fn a_process_has_ended_before_it_is_waited_for() {
        assert_eq!(has_ended(std::process::id()), Ok(false));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        crate::tests_wait_until("it has ended", || has_ended(child.id()) != Ok(false));
        child.wait().unwrap();
        assert_eq!(has_ended(child.id()), Ok(true));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_goes_on() {
        const PROGRAM: &str = "
import ctypes, sys, threading
lasts = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), lasts.set())).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
";
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        while !state().contains(") Z") {
            std::thread::yield_now();
        }
        assert_eq!(has_ended(child.id()), Ok(false));
        drop(child.stdin.take());
        while has_ended(child.id()) == Ok(false) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn shared_memory_is_known() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        const BYTES: usize = 3 << 20;
        let before = resident_shared_bytes().unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: new memory at a place of the kernel's choice, given back below.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), BYTES, access, flags) }.unwrap();
        assert!(resident_shared_bytes().unwrap() >= before + BYTES as u64);
        assert!(Proportional::of_this_process().unwrap().shared >= BYTES as u64);
        // SAFETY: mapped above.
        unsafe { munmap(start, BYTES) }.unwrap();
    }

    #[test]
    fn a_process_has_a_name() {
        let name = std::fs::read("/proc/self/comm").unwrap();
        let own = std::process::id();
        assert_eq!(is_named(own, name.strip_suffix(b"\n").unwrap()), Ok(true));
        assert_eq!(is_named(own, b"somebody else"), Ok(false));
        assert_eq!(is_named(u32::MAX, b"nobody"), Err(Errno::NOENT));
    }

    #[test]
    fn threads_are_counted() {
        let before = thread_count().unwrap();
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(thread_count().unwrap() > 1 && before >= 1);
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }
}

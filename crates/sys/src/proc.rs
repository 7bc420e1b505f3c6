//! What `/proc/self` says about the process the agent lives in.

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

/// In which namespace (pid_namespaces(7)) the numbers of this process and of others count; zero where
/// that is not told.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |file| file.st_ino)
}

/// `/proc/self/statm`, kept open.
#[derive(Debug)]
pub struct Statm {
    fd: OwnedFd,
}

impl Statm {
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
        Ok(Memory { mapped_bytes, anonymous_bytes, writable_bytes })
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
    /// Mappings that the process may write to and that are its own, whether or not there is memory
    /// behind them: more anonymous memory than this it cannot have.
    pub writable_bytes: u64,
}

/// Proportional share of anonymous memory: a page that `fork` left shared counts by the fraction
/// of a page each process has of it. Walks the page tables: about 10 ms for a GiB.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/smaps_rollup` (Linux 4.14; `Pss_Anon` 5.3).
pub fn proportional_anonymous_bytes() -> Result<u64, Errno> {
    let mut text = [0; 2048];
    let length = read_file(c"/proc/self/smaps_rollup", &mut text)?;
    let line = text[..length]
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(b"Pss_Anon:"))
        .ok_or(Errno::PROTO)?;
    let (kibibytes, _) = number(line.trim_ascii_start(), 10).ok_or(Errno::PROTO)?;
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

/// Has a process ended? One that its parent has not yet waited for has no memory any more either.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/PID/stat`, other than that it is not there.
pub fn has_ended(process: u32) -> Result<bool, Errno> {
    let mut text = [0; 1024];
    match read_at(format_args!("/proc/{process}/stat"), &mut text) {
        Ok(length) => Ok(matches!(fields(&text[..length])?.next(), Some(b"Z" | b"X"))),
        Err(Errno::NOENT | Errno::SRCH) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// How many threads the process has.
///
/// # Errors
/// What stat(2) says of `/proc/self/task`.
#[cfg(test)]
pub fn thread_count() -> Result<u64, Errno> {
    // A folder has a link for itself, its parent and each folder in it; /proc keeps to that.
    Ok(rustix::fs::stat(c"/proc/self/task")?.st_nlink as u64 - 2)
}

/// Where the arguments and the environment lie that the process was started with, at the end of its
/// first thread's stack; an empty range if that is not told.
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
        let before =
            (statm.read().unwrap().anonymous_bytes, proportional_anonymous_bytes().unwrap());
        let r = Reservation::new(BYTES).unwrap();
        r.commit(0, BYTES).unwrap();
        r.populate(0, BYTES).unwrap();
        let after =
            (statm.read().unwrap().anonymous_bytes, proportional_anonymous_bytes().unwrap());
        // Other tests of this process run beside and allocate some.
        for (before, after) in [(before.0, after.0), (before.1, after.1)] {
            let grown = after - before;
            assert!(grown.abs_diff(BYTES as u64) < 16 << 20, "grown by {grown}");
        }
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
    fn threads_are_counted() {
        let before = thread_count().unwrap();
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(thread_count().unwrap() > 1 && before >= 1);
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }
}

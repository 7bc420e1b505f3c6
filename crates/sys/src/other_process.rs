//! The memory of another process, from outside: how much there is of it, what of it was touched,
//! and what is in it. Nothing stops the process for longer than a walk of its page tables takes.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};

use crate::maps::{self, for_each_line, number};
use crate::pagemap::Pagemap;
use crate::path::Path;
use crate::{Errno, proc};

/// Another process. When it has ended, what is asked of it fails, whoever has its number then.
#[derive(Debug)]
pub struct OtherProcess {
    pid: u32,
    /// Its folder in `/proc`.
    folder: OwnedFd,
}

/// What every user may know of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The name of its first thread.
    pub name: String,
    /// A letter of ps(1): `Z` has ended.
    pub state: u8,
    /// The process, where the number is that of one of its other threads.
    pub thread_group: u32,
    /// Processors that it may use.
    pub processors: u32,
    /// Anonymous memory in RAM; `None` for what has no memory of its own: a thread of the kernel,
    /// or a process that has ended.
    pub anonymous_bytes: Option<u64>,
    /// Anonymous memory that was swapped out.
    pub swapped_bytes: u64,
}

/// A private mapping without a file behind it, with what there is in RAM, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnonymousMapping {
    /// Addresses.
    pub range: Range<usize>,
    /// Anonymous memory, that included which it shares with other processes since a fork.
    pub anonymous_bytes: u64,
    /// Of it, what no other process has.
    pub own_bytes: u64,
    /// The process's part of what it shares.
    pub shared_part_bytes: u64,
    /// What was touched since [`OtherProcess::forget_touched`].
    pub touched_bytes: u64,
    /// What lies in huge pages, of which any touch counts as a touch of all.
    pub huge_bytes: u64,
    /// What was swapped out: of RAM it takes nothing.
    pub swapped_bytes: u64,
}

impl OtherProcess {
    /// Opens its folder in `/proc`.
    ///
    /// # Errors
    /// `ENOENT` where there is no such process.
    pub fn open(pid: u32) -> Result<OtherProcess, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = Path::new(format_args!("/proc/{pid}"))?;
        let folder = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
        Ok(OtherProcess { pid, folder })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn open_file(&self, name: &core::ffi::CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.folder, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// What every user may know of it.
    ///
    /// # Errors
    /// `ESRCH` when it is gone.
    pub fn status(&self) -> Result<Status, Errno> {
        let mut status = Status {
            name: String::new(),
            state: b'?',
            thread_group: self.pid,
            processors: 0,
            anonymous_bytes: None,
            swapped_bytes: 0,
        };
        let file = self.open_file(c"status", OFlags::RDONLY)?;
        for_each_line(file, &mut [0; 4096], |line| {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
            let value = line[colon + 1..].trim_ascii();
            let first = number(value, 10).map(|(first, _)| first);
            match &line[..colon] {
                b"Name" => status.name = String::from_utf8_lossy(value).into_owned(),
                b"State" => status.state = value.first().copied().unwrap_or(b'?'),
                b"Tgid" => status.thread_group = first.map_or(self.pid, |pid| pid as u32),
                b"RssAnon" => status.anonymous_bytes = first.map(|kibibytes| kibibytes * 1024),
                b"VmSwap" => status.swapped_bytes = first.unwrap_or(0) * 1024,
                b"Cpus_allowed" => status.processors = bits_of(value),
                _ => {}
            }
        })?;
        Ok(status)
    }

    /// Hands each private mapping without a file to `f`. The kernel walks all page tables: about 25
    /// ms for a GiB in pages of 4 KiB.
    ///
    /// # Errors
    /// `EACCES` where the process is another user's, or hides its memory; `ESRCH` when it is gone.
    pub fn anonymous_mappings(&self, mut f: impl FnMut(AnonymousMapping)) -> Result<(), Errno> {
        let mut mapping: Option<AnonymousMapping> = None;
        let mut amounts = Amounts::default();
        let mut buffer = vec![0; 64 << 10];
        for_each_line(self.open_file(c"smaps", OFlags::RDONLY)?, &mut buffer, |line| {
            if line.first().is_none_or(u8::is_ascii_uppercase) {
                if mapping.is_some() {
                    amounts.note(line);
                }
                return;
            }
            if let Some(done) = mapping.take() {
                f(core::mem::take(&mut amounts).of(done));
            }
            let next = maps::parse(line).filter(maps::Mapping::is_private_anonymous);
            mapping = next.map(|next| AnonymousMapping { range: next.range, ..Default::default() });
        })?;
        if let Some(last) = mapping {
            f(amounts.of(last));
        }
        Ok(())
    }

    /// Whether a mapping of the process has this in its name.
    ///
    /// # Errors
    /// `EACCES` where the process is another user's, or hides its memory; `ESRCH` when it is gone.
    pub fn has_mapping_of(&self, name: &[u8]) -> Result<bool, Errno> {
        let mut has = false;
        let mut buffer = vec![0; 64 << 10];
        for_each_line(self.open_file(c"maps", OFlags::RDONLY)?, &mut buffer, |line| {
            let mapping = maps::parse(line);
            has |= mapping.is_some_and(|it| it.name.windows(name.len()).any(|part| part == name));
        })?;
        Ok(has)
    }

    /// From now on no page of its anonymous memory counts as touched, until it is. That disturbs
    /// the kernel's own choice of what to swap out.
    ///
    /// A processor sets a page's mark when it looks up its address. As long as it remembers the
    /// address it does not, so what is touched most might be missed: `is_thorough` makes processors
    /// forget. The kernel has that as a part of tracking writes, so it is free only where
    /// [`tracks_writes`] says that nothing is tracked.
    ///
    /// # Errors
    /// `EACCES` where the process is another user's, `ESRCH` when it is gone.
    pub fn forget_touched(&self, is_thorough: bool) -> Result<(), Errno> {
        let file = self.open_file(c"clear_refs", OFlags::WRONLY)?;
        rustix::io::write(&file, b"2")?;
        if is_thorough {
            rustix::io::write(&file, b"4")?;
        }
        Ok(())
    }

    /// Which pages are there.
    ///
    /// # Errors
    /// `EACCES` where the process is another user's, or hides its memory; `ESRCH` when it is gone.
    pub fn pagemap(&self) -> Result<Pagemap, Errno> {
        Pagemap::from_file(self.open_file(c"pagemap", OFlags::RDONLY)?)
    }

    /// Its memory, for [`read_memory`].
    ///
    /// # Errors
    /// `EACCES` where the caller could not trace the process: it is another user's, or the Yama
    /// security module forbids it (`kernel.yama.ptrace_scope`).
    pub fn memory(&self) -> Result<OwnedFd, Errno> {
        self.open_file(c"mem", OFlags::RDONLY)
    }

    /// Sleeps until it has ended, at most for `patience`.
    pub fn wait_for_end(&self, patience: core::time::Duration) {
        crate::process::wait_for_end(self.pid, patience);
    }

    /// Whether it has ended, or is no more than a number.
    pub fn has_ended(&self) -> bool {
        !matches!(self.status(), Ok(Status { anonymous_bytes: Some(_), .. }))
    }
}

/// These processes, and all that they and their children have started that are still there: each
/// once, and parents before their children. Needs `CONFIG_PROC_CHILDREN`.
pub fn with_descendants(processes: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut known = HashSet::new();
    let mut found: Vec<u32> = processes.into_iter().filter(|&pid| known.insert(pid)).collect();
    let mut nth = 0;
    while let Some(&parent) = found.get(nth) {
        nth += 1;
        for task in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(children.filter(|&child| known.insert(child)));
        }
    }
    found
}

/// Reads from an address on, and returns how much could be read. The pages count as touched from
/// now on.
///
/// # Errors
/// `EIO` where nothing is mapped.
pub fn read_memory(memory: impl AsFd, address: usize, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(&memory, &mut bytes[done..], (address + done) as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Whether the kernel tracks which pages are written to (`CONFIG_MEM_SOFT_DIRTY`): then to begin
/// anew costs the process a fault for each page that it writes to. `true` where it does not tell.
pub fn tracks_writes() -> bool {
    let own = OtherProcess::open(proc::own_pid());
    let smaps = own.and_then(|own| own.open_file(c"smaps", OFlags::RDONLY));
    let Ok(smaps) = smaps else { return true };
    let (mut tracks, mut tells) = (false, false);
    let read = for_each_line(smaps, &mut [0; 4096], |line| {
        if let Some(flags) = line.strip_prefix(b"VmFlags: ") {
            tells = true;
            tracks |= maps::Flags::of(flags).has(*b"sd");
        }
    });
    tracks || !tells || read.is_err()
}

/// Lines of `smaps` about one mapping, in bytes.
#[derive(Default)]
struct Amounts {
    proportional: u64,
    private: u64,
    anonymous: u64,
    referenced: u64,
    huge: u64,
    swapped: u64,
}

impl Amounts {
    fn note(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
        let amount = match &line[..colon] {
            b"Pss" => &mut self.proportional,
            b"Private_Clean" | b"Private_Dirty" => &mut self.private,
            b"Anonymous" => &mut self.anonymous,
            b"Referenced" => &mut self.referenced,
            b"AnonHugePages" => &mut self.huge,
            b"Swap" => &mut self.swapped,
            _ => return,
        };
        if let Some((kibibytes, _)) = number(line[colon + 1..].trim_ascii_start(), 10) {
            *amount += kibibytes * 1024;
        }
    }

    fn of(self, mapping: AnonymousMapping) -> AnonymousMapping {
        let own_bytes = self.anonymous.min(self.private);
        let shared = self.proportional.saturating_sub(self.private);
        AnonymousMapping {
            anonymous_bytes: self.anonymous,
            own_bytes,
            shared_part_bytes: shared.min(self.anonymous - own_bytes),
            touched_bytes: self.referenced.min(self.anonymous),
            huge_bytes: self.huge,
            swapped_bytes: self.swapped,
            ..mapping
        }
    }
}

/// The bits that are set in a mask like `3f,ffffffff`.
fn bits_of(mask: &[u8]) -> u32 {
    mask.iter().filter_map(|&digit| (digit as char).to_digit(16)).map(u32::count_ones).sum()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::PAGE_SIZE;

    /// Has 16 MiB and touches the first pages whenever it is told how many.
    const PROGRAM: &str = "
import mmap, sys
m = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
def touch(pages):
    for page in range(pages):
        m[page * 4096] = page % 250 + 1
touch(4096)
print(flush=True)
for line in sys.stdin:
    touch(int(line))
    print(flush=True)
";

    struct Program(Child, BufReader<std::process::ChildStdout>);

    impl Program {
        fn start() -> Program {
            let mut command = Command::new("python3");
            command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let mut program = Program(child, output);
            program.wait();
            program
        }

        fn wait(&mut self) {
            let mut line = String::new();
            self.1.read_line(&mut line).unwrap();
        }

        fn touch(&mut self, pages: u64) {
            writeln!(self.0.stdin.as_mut().unwrap(), "{pages}").unwrap();
            self.wait();
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The mapping of 16 MiB.
    fn mapping(process: &OtherProcess) -> AnonymousMapping {
        let mut all = Vec::new();
        process.anonymous_mappings(|mapping| all.push(mapping)).unwrap();
        all.into_iter().find(|mapping| mapping.own_bytes >= 16 << 20).unwrap()
    }

    #[test]
    fn what_is_touched_is_seen() {
        let mut program = Program::start();
        let process = OtherProcess::open(program.0.id()).unwrap();
        let is_thorough = !tracks_writes();
        for pages in [4096, 1000, 40, 0] {
            process.forget_touched(is_thorough).unwrap();
            program.touch(pages);
            let found = mapping(&process);
            // Python's own memory may lie beside, in the same mapping.
            let touched = found.touched_bytes / PAGE_SIZE as u64;
            assert!(found.own_bytes < 20 << 20);
            let most = pages + (found.own_bytes - (16 << 20)) / PAGE_SIZE as u64;
            // What is in the processor's memory of addresses may be missed.
            let least = if is_thorough { pages } else { 0 };
            assert!((least..=most).contains(&touched), "{pages}: {touched}");
        }
    }

    #[test]
    fn what_is_there_is_read() {
        let program = Program::start();
        let process = OtherProcess::open(program.0.id()).unwrap();
        let found = mapping(&process);
        let start = (found.range.start..found.range.end).step_by(PAGE_SIZE);
        let (pagemap, memory) = (process.pagemap().unwrap(), process.memory().unwrap());
        let first = |address: usize| {
            let mut bytes = [0; 2 * PAGE_SIZE];
            let length = read_memory(&memory, address, &mut bytes).unwrap();
            (length == bytes.len()).then(|| (bytes[0], bytes[PAGE_SIZE]))
        };
        let pages: Vec<_> = start.filter(|&address| first(address) == Some((1, 2))).collect();
        assert!(!pages.is_empty());
        assert!(pages.iter().all(|&address| pagemap.own_pages(address, 8) == Ok(0xFF)));
        assert_eq!(read_memory(&memory, PAGE_SIZE, &mut [0; 8]), Err(Errno::IO));
        assert_eq!(pagemap.own_pages(PAGE_SIZE, 8), Ok(0));
    }

    #[test]
    fn what_everybody_may_know() {
        let mut program = Program::start();
        let process = OtherProcess::open(program.0.id()).unwrap();
        let status = process.status().unwrap();
        assert!(status.name.starts_with("python3") && status.thread_group == process.pid());
        assert!(status.anonymous_bytes.unwrap() > 16 << 20);
        assert!(status.processors >= 1);
        assert!(!process.has_ended());
        let has = |name: &[u8]| process.has_mapping_of(name).unwrap();
        assert!(has(b"python3") && has(b"[stack]") && !has(b"nothing of the kind"));
        drop(program.0.stdin.take());
        process.wait_for_end(std::time::Duration::from_secs(60));
        assert!(process.has_ended());
        assert_eq!((process.status().unwrap().state, process.pid()), (b'Z', program.0.id()));
        let mut rest = String::new();
        program.1.read_to_string(&mut rest).unwrap();
        program.0.wait().unwrap();
        assert_eq!(process.status(), Err(Errno::SRCH));
        assert_eq!(process.forget_touched(false), Err(Errno::SRCH));
        assert!(OtherProcess::open(u32::MAX >> 1).is_err());
    }

    #[test]
    fn a_mask_has_bits() {
        assert_eq!((bits_of(b"3f,ffffffff"), bits_of(b"1"), bits_of(b"")), (38, 1, 0));
    }

    #[test]
    fn what_is_shared_is_told_apart() {
        let mut amounts = Amounts::default();
        for line in ["Pss: 60 kB", "Private_Dirty: 20 kB", "Referenced: 500 kB", "Anonymous: 96 kB"]
        {
            amounts.note(line.as_bytes());
        }
        ["AnonHugePages: 8 kB", "Swap: 4 kB", "SwapPss: 1 kB"]
            .iter()
            .for_each(|line| amounts.note(line.as_bytes()));
        let expected = AnonymousMapping {
            range: 0..0,
            anonymous_bytes: 96 << 10,
            own_bytes: 20 << 10,
            shared_part_bytes: 40 << 10,
            touched_bytes: 96 << 10,
            huge_bytes: 8 << 10,
            swapped_bytes: 4 << 10,
        };
        assert_eq!(amounts.of(AnonymousMapping::default()), expected);
    }
}

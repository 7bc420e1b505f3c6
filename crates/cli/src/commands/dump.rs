//! `ramfold dump`: the anonymous pages of a running program, for trying codecs on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, IoSliceMut, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use ramfold_sys::PAGE_SIZE;

/// Write the anonymous pages of a running process to a file, 4,096 bytes each, in the order of
/// their addresses.
///
/// Memory holds secrets: the file is readable by you alone. Pages that were never touched are left
/// out. Pages that ramfold holds compressed are brought back by being read, but for those that hold
/// nothing but zeros. Memory marked as not for dumps (MADV_DONTDUMP) is left out; ramfold's own
/// is marked so.
#[derive(clap::Args)]
#[command(after_help = "Example:
  ramfold dump --pid $(pidof redis-server) --output redis.pages")]
pub(crate) struct Arguments {
    /// The process to read
    #[arg(long)]
    pid: i32,
    /// The file to write (made anew, mode 0600)
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// # Errors
/// When the process cannot be read or the file not written.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let pid = arguments.pid;
    let process = Process::open(pid)?;
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&arguments.output)
        .with_context(|| match arguments.output.exists() {
            true => format!(
                "{} is there already and is not written over: remove it or name another",
                arguments.output.display()
            ),
            false => format!("cannot make {}", arguments.output.display()),
        })?;
    let copied = process.copy_pages(file);
    let (written, unreadable) = copied.inspect_err(|_| {
        // Half of it is of no use, and would stand in the way of trying again.
        let _ = fs::remove_file(&arguments.output);
    })?;
    eprintln!("{written} pages of process {pid} written to {}", arguments.output.display());
    if unreadable > 0 {
        eprintln!("{unreadable} pages went away or cannot be read (no access)");
    }
    Ok(())
}

/// A process that is read from outside, while it runs.
struct Process {
    pid: i32,
    pagemap: File,
}

impl Process {
    fn open(pid: i32) -> anyhow::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))
            .with_context(|| format!("cannot read which pages process {pid} has: try with sudo"))?;
        Ok(Process { pid, pagemap })
    }

    fn mappings(&self) -> anyhow::Result<Vec<Mapping>> {
        let path = format!("/proc/{}/smaps", self.pid);
        let smaps = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {path}: is {} a process of yours?", self.pid))?;
        Ok(mappings(&smaps))
    }

    /// Writes the pages and returns how many, and how many could not be read.
    fn copy_pages(&self, file: File) -> anyhow::Result<(u64, u64)> {
        let present: Vec<_> = self
            .mappings()?
            .into_iter()
            .map(|mapping| Ok((self.present_pages(&mapping.range)?, mapping.range)))
            .collect::<anyhow::Result<_>>()?;
        // Asked for after the pages: what is missing above and not registered now was never
        // touched, for nothing is compressed before it is registered, and dumping is itself a
        // reason for an agent to register more.
        let registered: Vec<_> =
            self.mappings()?.into_iter().filter(|mapping| mapping.registered).collect();

        let mut output = BufWriter::with_capacity(1 << 20, file);
        let (mut written, mut unreadable) = (0u64, 0u64);
        for (present, range) in present {
            let registered: Vec<_> =
                registered.iter().filter(|other| overlap(&other.range, &range)).collect();
            let may_be_compressed =
                |page: usize| registered.iter().any(|mapping| mapping.range.contains(&page));
            for (address, present) in range.step_by(PAGE_SIZE).zip(present) {
                if !present && !may_be_compressed(address) {
                    continue;
                }
                match self.read_page(address)? {
                    Some(page) if !present && page == [0; PAGE_SIZE] => {}
                    Some(page) => {
                        output.write_all(&page).context("writing the pages")?;
                        written += 1;
                    }
                    None => unreadable += 1,
                }
            }
        }
        output.flush().context("writing the pages")?;
        let pid = self.pid;
        anyhow::ensure!(written > 0, "process {pid} has no anonymous pages that can be read");
        Ok((written, unreadable))
    }

    /// A page's content; none if it went away or is without access.
    fn read_page(&self, address: usize) -> anyhow::Result<Option<[u8; PAGE_SIZE]>> {
        let mut page = [0u8; PAGE_SIZE];
        let remote = RemoteIoVec { base: address, len: PAGE_SIZE };
        let local = &mut [IoSliceMut::new(&mut page)];
        match process_vm_readv(Pid::from_raw(self.pid), local, &[remote]) {
            Ok(PAGE_SIZE) => Ok(Some(page)),
            Ok(_) | Err(nix::Error::EFAULT) => Ok(None),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot read process {}: try with sudo, or `sysctl kernel.yama.ptrace_scope=0`",
                    self.pid
                )
            }),
        }
    }

    /// For each page of a range, whether memory or swap holds it.
    fn present_pages(&self, range: &Range<usize>) -> anyhow::Result<Vec<bool>> {
        use std::os::unix::fs::FileExt;
        const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
        const ENTRY_BYTES: usize = 8;
        let mut present = Vec::with_capacity(range.len() / PAGE_SIZE);
        let mut entries = [0; 512 * ENTRY_BYTES];
        for start in range.clone().step_by(entries.len() / ENTRY_BYTES * PAGE_SIZE) {
            let pages = ((range.end - start) / PAGE_SIZE).min(entries.len() / ENTRY_BYTES);
            let entries = &mut entries[..pages * ENTRY_BYTES];
            self.pagemap
                .read_exact_at(entries, (start / PAGE_SIZE * ENTRY_BYTES) as u64)
                .context("reading the process's page map")?;
            let (entries, _) = entries.as_chunks();
            present.extend(
                entries.iter().map(|&entry| u64::from_ne_bytes(entry) & PRESENT_OR_SWAPPED != 0),
            );
        }
        Ok(present)
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Private anonymous memory that can be read and is not marked as nobody else's business
/// (`MADV_DONTDUMP`), as ramfold's own memory is.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    /// With a userfaultfd: what is missing there may be compressed.
    registered: bool,
}

/// The mappings to dump, from the text of an smaps file.
fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |name| flags.split_ascii_whitespace().any(|flag| flag == name);
            let range = current.take().filter(|_| !has("dd"));
            mappings.extend(range.map(|range| Mapping { range, registered: has("um") }));
        } else if line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            current = anonymous_range(line);
        }
    }
    mappings
}

/// The range of a line of maps that is private, anonymous and readable.
fn anonymous_range(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let access = fields.next()?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    let anonymous = inode == "0"
        && (name.is_empty() || name == "[heap]" || name == "[stack]" || name.starts_with("[anon:"));
    if !anonymous || !access.starts_with('r') || !access.ends_with('p') {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_anonymous_memory_is_taken() {
        assert_eq!(anonymous_range("1000-3000 rw-p 00000000 00:00 0 [heap]"), Some(0x1000..0x3000));
        assert_eq!(anonymous_range("1000-3000 rw-p 00000000 00:00 0"), Some(0x1000..0x3000));
        for other in [
            "1000-3000 ---p 00000000 00:00 0",
            "1000-3000 rw-s 00000000 00:01 5 /dev/zero (deleted)",
            "1000-3000 r-xp 00000000 fd:00 77 /bin/true",
            "1000-3000 r--p 00000000 00:00 0 [vvar]",
            "garbage",
        ] {
            assert_eq!(anonymous_range(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_for_dumps_is_left_out() {
        let smaps = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
VmFlags: rd wr mr mw me ac um
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac dd nh
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac
7f0000600000-7f0000700000 r-xp 00000000 fd:00 77 /bin/true
VmFlags: rd ex
";
        let found: Vec<_> = mappings(smaps)
            .into_iter()
            .map(|mapping| (mapping.range.start, mapping.registered))
            .collect();
        assert_eq!(found, [(0x7f00_0000_0000, true), (0x7f00_0040_0000, false)]);
    }

    #[test]
    fn a_process_is_dumped_and_the_file_is_private() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("pages");
        // A recognisable page in this very process.
        let page = vec![0xA7u8; 3 * PAGE_SIZE];
        run(&Arguments { pid: std::process::id() as i32, output: output.clone() }).unwrap();
        let dumped = fs::read(&output).unwrap();
        assert!(dumped.len().is_multiple_of(PAGE_SIZE));
        assert!(dumped.as_chunks::<PAGE_SIZE>().0.iter().any(|p| p[..] == page[..PAGE_SIZE]));
        assert_eq!(fs::metadata(&output).unwrap().mode() & 0o777, 0o600);
        // It is never written over.
        assert!(run(&Arguments { pid: std::process::id() as i32, output }).is_err());
    }
}

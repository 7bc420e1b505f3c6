//! `ramfold dump`: the anonymous pages of a running program, for trying codecs on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, IoSliceMut, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use ramfold_pager::monitor::MAPPING_BYTES_MIN;
use ramfold_sys::PAGE_SIZE;

const PAGES_AT_ONCE: usize = 256;

/// Write the anonymous pages of a running process to a file, 4,096 bytes each, in the order of
/// their addresses.
///
/// Memory holds secrets: the file is readable by you alone. Pages that were never touched are left
/// out. Pages that ramfold holds compressed are brought back by being read, but for those that hold
/// nothing but zeros; ramfold's own memory is left out.
#[derive(clap::Args)]
#[command(after_help = "Example:
  ramfold dump --pid $(pidof redis-server) --output redis.pages")]
pub struct Arguments {
    /// The process to read
    #[arg(long)]
    pid: i32,
    /// The file to write (made anew, mode 0600)
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// # Errors
/// When the process cannot be read or the file not written.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let pid = arguments.pid;
    let maps_path = format!("/proc/{pid}/smaps");
    let maps = fs::read_to_string(&maps_path)
        .with_context(|| format!("cannot read {maps_path}: is {pid} a process of yours?"))?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))
        .with_context(|| format!("cannot read which pages process {pid} has: try with sudo"))?;
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
    let copied = copy_pages(pid, &mappings(&maps), &pagemap, file);
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

/// Writes the pages and returns how many, and how many could not be read.
fn copy_pages(
    pid: i32,
    mappings: &[Mapping],
    pagemap: &File,
    file: File,
) -> anyhow::Result<(u64, u64)> {
    let mut output = BufWriter::with_capacity(1 << 20, file);
    let (mut written, mut unreadable) = (0u64, 0u64);
    for Mapping { range, registered } in mappings {
        for start in range.clone().step_by(PAGES_AT_ONCE * PAGE_SIZE) {
            let pages = PAGES_AT_ONCE.min((range.end - start) / PAGE_SIZE);
            for (index, present) in present_pages(pagemap, start, pages)?.into_iter().enumerate() {
                if !present && !registered {
                    continue;
                }
                let mut page = [0u8; PAGE_SIZE];
                let remote = RemoteIoVec { base: start + index * PAGE_SIZE, len: PAGE_SIZE };
                let local = &mut [IoSliceMut::new(&mut page)];
                match process_vm_readv(Pid::from_raw(pid), local, &[remote]) {
                    Ok(PAGE_SIZE) if !present && page == [0; PAGE_SIZE] => {}
                    Ok(PAGE_SIZE) => {
                        output.write_all(&page).context("writing the pages")?;
                        written += 1;
                    }
                    Ok(_) | Err(nix::Error::EFAULT) => unreadable += 1,
                    Err(error) => {
                        return Err(error).with_context(|| {
                            format!(
                                "cannot read process {pid}: try with sudo, or `sysctl kernel.yama.ptrace_scope=0`"
                            )
                        });
                    }
                }
            }
        }
    }
    output.flush().context("writing the pages")?;
    anyhow::ensure!(written > 0, "process {pid} has no anonymous pages that can be read");
    Ok((written, unreadable))
}

/// Private anonymous memory that can be read.
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
            let registered = flags.split_ascii_whitespace().any(|flag| flag == "um");
            mappings.extend(current.take().map(|range| Mapping { range, registered }));
        } else if line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            current = anonymous_range(line);
        }
    }
    // An agent registers all that is not its own, but for what is small.
    if mappings.iter().any(|mapping| mapping.registered) {
        mappings.retain(|mapping| mapping.registered || mapping.range.len() < MAPPING_BYTES_MIN);
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

fn present_pages(pagemap: &File, start: usize, pages: usize) -> anyhow::Result<Vec<bool>> {
    use std::os::unix::fs::FileExt;
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let mut entries = vec![0; pages * 8];
    pagemap
        .read_exact_at(&mut entries, (start / PAGE_SIZE * 8) as u64)
        .context("reading the process's page map")?;
    Ok(entries
        .as_chunks::<8>()
        .0
        .iter()
        .map(|entry| u64::from_ne_bytes(*entry) & PRESENT_OR_SWAPPED != 0)
        .collect())
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
    fn with_an_agent_its_own_memory_is_left_out() {
        let smaps = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
VmFlags: rd wr mr mw me ac um
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac
7f0000400000-7f0000402000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac
7f0000500000-7f0000600000 r-xp 00000000 fd:00 77 /bin/true
VmFlags: rd ex
";
        let found: Vec<_> = mappings(smaps)
            .into_iter()
            .map(|mapping| (mapping.range.start, mapping.registered))
            .collect();
        assert_eq!(found, [(0x7f00_0000_0000, true), (0x7f00_0040_0000, false)]);
        let without = smaps.replace(" um", "");
        assert_eq!(mappings(&without).len(), 3);
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

//! Measures memory from outside, without an agent: running processes and control groups of them,
//! dumps, and directories of files. Each gives an [`Observation`].
//!
//! | module | what it does |
//! |---|---|
//! | `process`, `group` | a process; all processes of a control group |
//! | `watch`, `rounds` | looks at processes: sizes, and pages touched in windows of time |
//! | `blocks` | reads a random sample of their pages |
//! | `touches` | pages touched in windows of time, beside an agent that watches some of them |
//! | `pages`, `files` | a dump of memory; a directory of files |

mod blocks;
mod files;
mod group;
mod pages;
mod process;
pub(crate) mod random;
mod rounds;
pub(crate) mod touches;
mod watch;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ramfold_codec::{PAGE_SIZE, Page};
use ramfold_sys::cgroup;

use crate::contents::{self, Sampler};
use crate::observation::{BLOCK_PAGES, Block, Contents, Machine, Observation, Subject};

pub use files::measure as files;
pub use group::measure as group;
pub use pages::measure as pages;
pub use process::measure as process;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long to look at what runs.
    pub duration: Duration,
    /// Set to end measuring early. What was measured by then is the result.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Options {
        Options { duration: Duration::from_secs(30), interrupt: Arc::default() }
    }
}

impl Options {
    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process that cannot be looked at, by nature.
    #[error("cannot measure process {pid}: {why}")]
    Process {
        /// Its number.
        pid: u32,
        /// What is the matter with it.
        why: String,
    },
    /// A process whose memory the caller may not see.
    #[error(
        "cannot measure process {pid}: {file} cannot be opened; the process must belong to the \
         user that measures it, and must not hide its memory (as programs with secrets or of \
         another user's rights do); root may measure any"
    )]
    NotPermitted {
        /// Its number.
        pid: u32,
        /// The file in `/proc`.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A process that may be looked at but not read.
    #[error(
        "cannot read the memory of process {pid} to see how small it becomes; where \
         kernel.yama.ptrace_scope is 1 or more, only root may: measure as root, or set it to 0 \
         meanwhile"
    )]
    NotReadable {
        /// Its number.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// It ended too early.
    #[error("{subject} ended before enough was seen of it")]
    Ended {
        /// What was looked at.
        subject: String,
    },
    /// The user ended it too early.
    #[error("measuring was interrupted before enough was seen")]
    Interrupted,
    /// There is nothing to look at.
    #[error("{subject} has no anonymous memory in RAM: there is nothing to compress")]
    Nothing {
        /// What was looked at.
        subject: String,
    },
    /// There is no such group.
    #[error(
        "{} is no control group: name a folder below /sys/fs/cgroup, or a path as \
         /proc/PID/cgroup has it",
        path.display()
    )]
    NoGroup {
        /// What was named.
        path: PathBuf,
    },
    /// Nobody is in the group.
    #[error("the control group {} has no process that could be measured", path.display())]
    EmptyGroup {
        /// Its folder.
        path: PathBuf,
    },
    /// A file or a directory.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file without bytes.
    #[error("{} is empty: there is no page to compress", path.display())]
    Empty {
        /// Which one.
        path: PathBuf,
    },
    /// A device, a pipe or a directory.
    #[error("{} is no regular file: pages are read from a dump in a file", path.display())]
    NotAFile {
        /// Which one.
        path: PathBuf,
    },
    /// No directory.
    #[error("{} is no directory: a file of pages is measured with --pages", path.display())]
    NotAFolder {
        /// What was named.
        path: PathBuf,
    },
}

/// Pages that were read and not compressed yet.
pub(crate) struct Raw {
    pub(crate) first_page: u64,
    pub(crate) at_s: f64,
    pub(crate) pages: Vec<Page>,
}

/// Compresses what was read. What is interrupted ends with the part that is done, of which there
/// is at least one block.
pub(crate) fn compressed(raw: &[Raw], mut go_on: impl FnMut() -> bool) -> Contents {
    let mut sampler = Sampler::new();
    let mut blocks: Vec<Block> = Vec::with_capacity(raw.len());
    for Raw { first_page, at_s, pages } in raw {
        if !blocks.is_empty() && !go_on() {
            break;
        }
        blocks.push(sampler.block(*first_page, *at_s, pages));
    }
    Contents { codecs: contents::codecs(), blocks }
}

/// An observation that has nothing in it yet.
pub(crate) fn empty(subject: Subject, machine: Machine) -> Observation {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Observation {
        subject,
        machine,
        began_s: since_1970.as_secs(),
        seconds: 0.0,
        run: None,
        need_bytes: 0,
        sizes: Vec::new(),
        contents: Contents::default(),
        windows: Vec::new(),
        rounds: Vec::new(),
        one_in: 1,
        trials: Vec::new(),
        not_seen: Vec::new(),
        events: Vec::new(),
    }
}

/// This machine, with the processors and the limit of memory that apply to what is measured.
fn machine(processors: u32, limit_bytes: Option<u64>) -> Result<Machine, Error> {
    let failed = |path: &str| {
        let path = PathBuf::from(path);
        move |source| Error::Read { path, source }
    };
    let memory_bytes = cgroup::machine_memory_bytes().map_err(failed("/proc/meminfo"))?;
    let kernel = kernel_release().map_err(failed(RELEASE))?;
    Ok(Machine {
        processors: processors.max(1),
        memory_bytes: limit_bytes.map_or(memory_bytes, |limit| limit.min(memory_bytes)),
        kernel,
    })
}

const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// The kernel's release, as uname(1) says it.
pub(crate) fn kernel_release() -> io::Result<String> {
    Ok(fs::read_to_string(RELEASE)?.trim().to_owned())
}

/// That of this process, for what does not run.
pub(crate) fn own_machine() -> Result<Machine, Error> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    machine(processors, cgroup::memory_limit_bytes())
}

/// The pages of these bytes, the last one filled up with zeros.
fn pages_of(bytes: &[u8]) -> Vec<Page> {
    let page = |bytes: &[u8]| {
        let mut page = [0; PAGE_SIZE];
        page[..bytes.len()].copy_from_slice(bytes);
        page
    };
    bytes.chunks(PAGE_SIZE).map(page).collect()
}

const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_SIZE as u64;

/// The bytes of a block: fewer at the end of the file.
fn read_block(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], offset + length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Bytes as people read them.
fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Read { path, source }
}

//! How fast SOURCE is, measured by reads of its own past all caches, to know whether files gain
//! anything from being cached in ramfold.
//!
//! What the requests of programs take does not say: in passthrough mode there are none. A thread
//! reads some of SOURCE's files when the mount is made, and now and then a file that was just
//! opened. A few reads do not do: a disk that is throttled (a control group's limits, a cloud
//! disk's) gives some at once, 11 MiB or 300 reads where it is limited to 125 MB/s or 3,000 a
//! second (measured, Linux 6.18), and only then makes them wait. And what is decided for a file
//! stays until its last close.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat,
};
use rustix::io::pread;

use super::source_mounts::Descriptors;
use crate::file::with_buffer;

const SHORT_BYTES: u64 = 4096;
const LONG_BYTES: u64 = 1 << 20;
/// A page that ramfold has, compressed, takes a program 15 to 45 us (a request and decompression;
/// two processors). With twice the data that memory has room for, half of which the page cache
/// finds and some 7 of 10 pages ramfold, reads of SOURCE may take so long until ramfold is faster
/// (decision 071).
const FAST_SHORT_NS: u64 = 150_000;
/// In order the lower level takes 2 ns for a byte (`crates/cache/src/pages.rs`).
const FAST_LONG_NS: u64 = LONG_BYTES * 7 / 4;
/// How many reads say that SOURCE is fast, and how many more where those were: more than a disk
/// gives at once that is throttled to 6,000 a second.
const SHORT_READS: usize = 64;
const SHORT_READS_MORE: usize = 600;
const LONG_READS: usize = 32;
/// Where there are no large files.
const SHORT_READS_ALONE: usize = 640;
/// After so many a slow one is known.
const FEW_READS: usize = 8;
/// How many see whether it still is.
const RECHECK_SHORT_READS: usize = 32;
const RECHECK_LONG_READS: usize = 8;
/// It is fast no more when it takes so long, three times in a row: others may have been reading
/// much just then. A disk that is limited to 3,000 reads a second takes 333 us for each.
const SLOW_SHORT_NS: u64 = 300_000;
const SLOW_LONG_NS: u64 = 3 * FAST_LONG_NS;
const SLOW_IN_A_ROW: u32 = 3;
/// How often that is looked at, as long as files are opened.
const RECHECK_MS: u64 = 5_000;
const RECHECK_SOON_MS: u64 = 500;
/// How long one that was found slow is left alone, though reads of late say it is fast: twice as
/// long each time.
const RETRY_MS: u64 = 1_000;
const RETRY_MS_MAX: u64 = 600_000;
/// How long the mount waits to be measured, at most.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// What the search for files looks at, and how long.
const WALK_NAMES: usize = 4_000;
const WALK_TIME: Duration = Duration::from_millis(50);
const LARGE_FILES: usize = 8;

/// The file system's side. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct SourceSpeed {
    shared: Arc<Shared>,
    to_probe: Sender<OwnedFd>,
}

/// The other side, until the mount is there and the thread can begin.
#[derive(Debug)]
pub(crate) struct Prober {
    shared: Arc<Shared>,
    to_probe: Receiver<OwnedFd>,
    source: PathBuf,
    is_wanted: bool,
}

#[derive(Debug)]
struct Shared {
    /// Of the files that are measured: the file system that SOURCE is on.
    device: u64,
    is_fast: AtomicBool,
    /// Milliseconds after the start: when it is to be looked at again.
    next_ms: AtomicU64,
    started: Instant,
}

pub(super) fn source_speed(source: &Path, device: u64, is_wanted: bool) -> (SourceSpeed, Prober) {
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared {
        device,
        is_fast: AtomicBool::new(false),
        // The thread says when it has looked for the first time.
        next_ms: AtomicU64::new(u64::MAX),
        started: Instant::now(),
    });
    let prober = Prober {
        shared: Arc::clone(&shared),
        to_probe: receiver,
        source: source.to_owned(),
        is_wanted,
    };
    (SourceSpeed { shared, to_probe: sender }, prober)
}

impl SourceSpeed {
    /// Whether files of this file system are read as fast from it as from ramfold. `seems_fast`:
    /// what programs' reads have taken of late says so. `again` gives another descriptor of a file
    /// that is just opened.
    pub(super) fn is_fast(
        &self,
        device: u64,
        seems_fast: bool,
        again: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> bool {
        if device != self.shared.device {
            return false;
        }
        let is_fast = self.shared.is_fast.load(Ordering::Relaxed);
        let next = self.shared.next_ms.load(Ordering::Relaxed);
        if (is_fast || seems_fast) && self.shared.now_ms() >= next {
            // One of those who see that.
            let begin = self.shared.next_ms.compare_exchange(
                next,
                u64::MAX,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if begin.is_ok()
                && let Ok(file) = again()
            {
                // Without the thread the mount is ending.
                let _ = self.to_probe.send(file);
            }
        }
        is_fast
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn look_again_in(&self, ms: u64) {
        self.next_ms.store(self.now_ms() + ms, Ordering::Relaxed);
    }
}

impl Prober {
    /// Begins to measure, and waits for the first result.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn begin(self) -> io::Result<JoinHandle<()>> {
        let (is_known, wait) = channel();
        let run = move || {
            if self.is_wanted {
                self.run(is_known);
            }
        };
        let thread = thread::Builder::new().name("speed-probe".to_owned()).spawn(run)?;
        // So that it is known when the first files are opened; where it takes longer they are
        // cached.
        let _ = wait.recv_timeout(FIRST_WAIT);
        Ok(thread)
    }

    fn run(&self, is_known: Sender<()>) {
        let mut retry_ms = RETRY_MS;
        let mut slow_in_a_row = 0;
        let mut times = 0;
        let is_fast = || self.shared.is_fast.load(Ordering::Relaxed);
        let first = self.measure_source();
        self.shared.is_fast.store(first.is_fast(), Ordering::Relaxed);
        self.shared.look_again_in(if is_fast() { RECHECK_MS } else { retry_ms });
        drop(is_known);
        while let Ok(file) = self.to_probe.recv() {
            times += 1;
            let next_ms = if is_fast() {
                slow_in_a_row = if recheck(file, times).is_slow() { slow_in_a_row + 1 } else { 0 };
                if slow_in_a_row == SLOW_IN_A_ROW {
                    (slow_in_a_row, retry_ms) = (0, RETRY_MS);
                    self.shared.is_fast.store(false, Ordering::Relaxed);
                    retry_ms
                } else if slow_in_a_row > 0 {
                    RECHECK_SOON_MS
                } else {
                    RECHECK_MS
                }
            } else if self.measure_source().is_fast() {
                self.shared.is_fast.store(true, Ordering::Relaxed);
                RECHECK_MS
            } else {
                retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
                retry_ms
            };
            self.shared.look_again_in(next_ms);
        }
    }

    /// Reads some of SOURCE's files, until it is known to be slow or fast.
    fn measure_source(&self) -> Measured {
        let mut measured = Measured::default();
        let Ok(descriptors) = Descriptors::new() else { return measured };
        let files: Vec<Sample> = self
            .some_files()
            .iter()
            .filter_map(|path| Sample::open(path, self.shared.device, &descriptors))
            .collect();
        // No piece twice, which a disk may have in a cache of its own.
        let pieces = |file: &Sample| file.bytes / LONG_BYTES;
        let longs: Vec<(&Sample, u64)> = (0..LONG_READS as u64)
            .flat_map(|piece| files.iter().map(move |file| (file, piece)))
            .filter(|&(file, piece)| piece < pieces(file))
            .take(LONG_READS)
            .collect();
        let is_enough = longs.len() == LONG_READS;
        let shorts = if is_enough { SHORT_READS } else { SHORT_READS_ALONE };
        let pages = files.iter().map(|file| file.bytes / SHORT_BYTES).sum::<u64>();
        if pages < shorts as u64 {
            return measured;
        }
        for (nth, file) in files.iter().cycle().take(shorts).enumerate() {
            measured.short(file, nth as u64);
            if measured.is_clearly_slow() {
                return measured;
            }
        }
        if !is_enough {
            return measured;
        }
        for (file, piece) in longs {
            measured.long(file, piece);
            if measured.is_clearly_slow() {
                return measured;
            }
        }
        for (nth, file) in files.iter().cycle().take(SHORT_READS_MORE).enumerate() {
            if !measured.is_fast() {
                break;
            }
            measured.short(file, (SHORT_READS + nth) as u64);
        }
        measured
    }

    /// Large ones, or whatever there is.
    fn some_files(&self) -> Vec<PathBuf> {
        let began = Instant::now();
        let mut directories = VecDeque::from([self.source.clone()]);
        let (mut found, mut names) = (Vec::new(), 0);
        'walk: while let Some(directory) = directories.pop_front() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                names += 1;
                if names > WALK_NAMES || began.elapsed() > WALK_TIME {
                    break 'walk;
                }
                let path = entry.path();
                // Mounts nothing, as statx(2) would.
                let Ok(stat) = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                if stat.st_dev != self.shared.device {
                    continue;
                }
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => directories.push_back(path),
                    FileType::RegularFile if has_all_blocks(&stat) => {
                        found.push((stat.st_size, path));
                    }
                    _ => {}
                }
            }
        }
        found.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let has_large = found.first().is_some_and(|(bytes, _)| *bytes as u64 >= LONG_BYTES);
        let count = if has_large { LARGE_FILES } else { SHORT_READS_ALONE };
        found.into_iter().take(count).map(|(_, path)| path).collect()
    }
}

/// Holes are read in no time.
fn has_all_blocks(stat: &Stat) -> bool {
    stat.st_size as u64 >= SHORT_BYTES && stat.st_blocks >= stat.st_size / 512
}

/// Whether SOURCE is still as fast, by a file of it.
fn recheck(file: OwnedFd, nth_time: u64) -> Measured {
    let mut measured = Measured::default();
    let sample = Descriptors::new()
        .and_then(|descriptors| Sample::of(file.as_fd(), &descriptors))
        .ok()
        .flatten();
    let Some(sample) = sample else { return measured };
    // Not the same places each time, which the disk may have in a cache of its own.
    let (shorts, longs) = (RECHECK_SHORT_READS as u64, RECHECK_LONG_READS as u64);
    for nth in 0..shorts {
        measured.short(&sample, nth_time * shorts + nth);
        if measured.is_clearly_slow() {
            return measured;
        }
    }
    for nth in 0..longs {
        measured.long(&sample, nth_time * longs + nth);
        if measured.is_clearly_slow() {
            return measured;
        }
    }
    measured
}

/// A file that is read past all caches.
struct Sample {
    file: OwnedFd,
    bytes: u64,
}

impl Sample {
    /// A file that the walk has found, unless something else has come in its place.
    fn open(path: &Path, device: u64, descriptors: &Descriptors) -> Option<Sample> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
        if fstat(&found).ok()?.st_dev != device {
            return None;
        }
        Sample::of(found.as_fd(), descriptors).ok().flatten()
    }

    fn of(file: BorrowedFd<'_>, descriptors: &Descriptors) -> io::Result<Option<Sample>> {
        let stat = fstat(file)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() || !has_all_blocks(&stat) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NOATIME | OFlags::NONBLOCK;
        Ok(Some(Sample { file: descriptors.open(file, flags)?, bytes: stat.st_size as u64 }))
    }

    /// How long a read took. One that fails says nothing.
    fn read(&self, offset: u64, len: u64) -> Option<u64> {
        with_buffer(len as usize, |buffer| {
            let (waited, began) = (waited_for_processor_ns(), Instant::now());
            let result = pread(&self.file, buffer, offset);
            let took = began.elapsed().as_nanos() as u64;
            let waited = waited_for_processor_ns() - waited;
            let is_whole = result.is_ok_and(|count| count as u64 == len);
            is_whole.then(|| took.saturating_sub(waited))
        })
    }
}

thread_local! {
    static SCHEDSTAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
}

/// How long this thread has waited for a processor, which is no fault of SOURCE's: the second
/// number there. 0 where the kernel does not say.
fn waited_for_processor_ns() -> u64 {
    SCHEDSTAT
        .with(|schedstat| {
            let mut text = [0; 64];
            let count = pread(schedstat.as_ref()?, &mut text, 0).ok()?;
            str::from_utf8(&text[..count]).ok()?.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// What reads have taken.
#[derive(Debug, Default)]
struct Measured {
    short_ns: Vec<u64>,
    long_ns: Vec<u64>,
}

impl Measured {
    /// Reads a page anywhere.
    fn short(&mut self, sample: &Sample, nth: u64) {
        let pages = sample.bytes / SHORT_BYTES;
        // Far from each other.
        let page = nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        self.short_ns.extend(sample.read(page % pages * SHORT_BYTES, SHORT_BYTES));
    }

    /// Reads on, in order.
    fn long(&mut self, sample: &Sample, nth: u64) {
        if let Some(pieces) = (sample.bytes / LONG_BYTES).checked_sub(1) {
            let piece = nth % (pieces + 1);
            self.long_ns.extend(sample.read(piece * LONG_BYTES, LONG_BYTES));
        }
    }

    /// A few reads take so long that there is no need for more.
    fn is_clearly_slow(&self) -> bool {
        let is_slow = |ns: &[u64], slow_ns| ns.len() >= FEW_READS && quantile(ns, 4) > 2 * slow_ns;
        let stalled = self.long_ns.iter().sum::<u64>() > LONG_READS as u64 * FAST_LONG_NS;
        is_slow(&self.short_ns, SLOW_SHORT_NS) || is_slow(&self.long_ns, SLOW_LONG_NS) || stalled
    }

    /// As fast as ramfold, and not for a moment only.
    fn is_fast(&self) -> bool {
        let is_in_order = self.long_ns.len() >= LONG_READS && mean(&self.long_ns) <= FAST_LONG_NS;
        let last = &self.short_ns[self.short_ns.len().saturating_sub(SHORT_READS)..];
        let is_at_random = quantile(last, 2) <= FAST_SHORT_NS;
        let has_no_more = self.long_ns.is_empty()
            && self.short_ns.len() >= SHORT_READS_ALONE
            && mean(&self.short_ns) <= FAST_SHORT_NS;
        self.short_ns.len() >= SHORT_READS && is_at_random && (is_in_order || has_no_more)
    }

    /// Clearly slower than that. Where nothing could be read, nothing is known.
    fn is_slow(&self) -> bool {
        mean(&self.short_ns) > SLOW_SHORT_NS || mean(&self.long_ns) > SLOW_LONG_NS
    }
}

fn mean(ns: &[u64]) -> u64 {
    ns.iter().sum::<u64>() / ns.len().max(1) as u64
}

/// What one part of so many is below.
fn quantile(ns: &[u64], parts: usize) -> u64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / parts).copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(short_ns: &[(usize, u64)], long_ns: &[(usize, u64)]) -> Measured {
        let all = |of: &[(usize, u64)]| {
            of.iter().flat_map(|&(count, ns)| std::iter::repeat_n(ns, count)).collect()
        };
        Measured { short_ns: all(short_ns), long_ns: all(long_ns) }
    }

    #[test]
    fn only_what_is_fast_on_the_whole_counts_as_fast() {
        let disk = measured(&[(64, 38_000)], &[(32, 780_000)]);
        assert!(disk.is_fast() && !disk.is_slow() && !disk.is_clearly_slow());
        assert!(measured(&[(64, 105_000)], &[(32, 1_000_000)]).is_fast());
        // Nothing is known yet.
        assert!(!measured(&[], &[]).is_fast() && !measured(&[], &[]).is_slow());
        assert!(!measured(&[(64, 38_000)], &[]).is_fast());
        // 125 MB/s, 11 MiB at once; a solid-state disk by SATA; a disk that turns.
        let throttled = measured(&[(64, 38_000)], &[(11, 600_000), (1, 95_000_000)]);
        assert!(throttled.is_clearly_slow() && !throttled.is_fast());
        assert!(!measured(&[(64, 90_000)], &[(32, 2_000_000)]).is_fast());
        assert!(measured(&[(8, 8_000_000)], &[]).is_clearly_slow());
        // 5,000 reads a second, 500 at once.
        assert!(!measured(&[(500, 38_000), (64, 200_000)], &[(32, 780_000)]).is_fast());
        // Others read, too.
        let busy = measured(&[(40, 40_000), (24, 300_000)], &[(28, 800_000), (4, 8_000_000)]);
        assert!(busy.is_fast() && !busy.is_slow());
    }

    #[test]
    fn small_files_say_it_by_more_reads() {
        assert!(measured(&[(640, 40_000)], &[]).is_fast());
        // 3,000 reads a second, 300 at once.
        assert!(!measured(&[(300, 40_000), (340, 333_000)], &[]).is_fast());
        // 5,000 a second, 500 at once.
        assert!(!measured(&[(500, 38_000), (140, 200_000)], &[]).is_fast());
    }

    #[test]
    fn what_waits_behind_others_is_slow() {
        assert!(measured(&[(32, 1_300_000)], &[(8, 800_000)]).is_slow());
        assert!(measured(&[(32, 40_000)], &[(8, 8_400_000)]).is_slow());
        // 125 MB/s, which others use up: some of it at once.
        assert!(measured(&[(32, 40_000)], &[(6, 800_000), (2, 95_000_000)]).is_slow());
        assert!(!measured(&[(32, 150_000)], &[(8, 2_000_000)]).is_slow());
    }
}

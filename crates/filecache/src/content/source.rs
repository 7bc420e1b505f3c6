//! Reading a file of SOURCE without leaving it in the kernel's page cache: what the mount has cached is not
//! to be there a second time.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, Mode, OFlags, fadvise, fcntl_getfl, open};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

/// Since Linux 6.14 (RWF_DONTCACHE): pages that were not there before do not stay.
const DO_NOT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// A readable descriptor of a file, and another one that reads past the page cache, once it is needed.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    direct: OnceLock<Option<OwnedFd>>,
}

/// How to read what is not cached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// From the disk.
    Direct,
    /// Through the page cache: parts of the file are there and not yet written to the disk, which a direct read
    /// would wait for.
    PageCache,
}

impl Source {
    pub fn new(fd: OwnedFd) -> Source {
        Source { fd, direct: OnceLock::new() }
    }

    /// With another descriptor to be read instead of the disk.
    #[cfg(test)]
    pub fn with_direct(fd: OwnedFd, direct: OwnedFd) -> Source {
        Source { fd, direct: OnceLock::from(Some(direct)) }
    }

    /// Fills `buffer`, which begins at a page as `offset` does, and returns how much of it the file has. Fewer
    /// bytes than asked for are the end of the file; the rest of the buffer is then zeros.
    ///
    /// # Errors
    /// What pread(2) says, whatever was read before it said so.
    pub fn read(&self, offset: u64, buffer: &mut [u8], by: By) -> io::Result<usize> {
        let direct = match by {
            By::Direct => self.direct(),
            By::PageCache => None,
        };
        let read_direct = |direct: &OwnedFd, buffer: &mut [u8]| {
            read_whole(direct.as_fd(), offset, buffer, |fd, bytes, offset| pread(fd, bytes, offset))
        };
        let count = match direct.map(|direct| read_direct(direct, buffer)) {
            // It has to begin and end at larger blocks than pages.
            Some(Err(error)) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                self.read_uncached(offset, buffer)?
            }
            Some(result) => result?,
            None => self.read_uncached(offset, buffer)?,
        };
        buffer[count..].fill(0);
        Ok(count)
    }

    fn direct(&self) -> Option<&OwnedFd> {
        let again = || {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let noatime = fcntl_getfl(&self.fd).ok()? & OFlags::NOATIME;
            open(path, flags | noatime, Mode::empty()).ok()
        };
        self.direct.get_or_init(again).as_ref()
    }

    fn read_uncached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let uncached = read_whole(self.fd.as_fd(), offset, buffer, |fd, bytes, offset| {
            preadv2(fd, &mut [IoSliceMut::new(bytes)], offset, DO_NOT_CACHE)
        });
        match uncached {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {}
            result => return result,
        }
        let count = read_whole(self.fd.as_fd(), offset, buffer, |fd, bytes, offset| {
            pread(fd, bytes, offset)
        })?;
        // Where that is not possible the page cache keeps what it will.
        let _ = fadvise(&self.fd, offset, (count as u64).try_into().ok(), Advice::DontNeed);
        Ok(count)
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a read takes at most of a SOURCE that is fast: from a local solid-state disk, say.
const FAST_READ_NS: u64 = 100_000;
const FAST_PS_PER_BYTE: u64 = 4000;
/// It is one or the other when it takes clearly more, or less, than that, in percent.
const SLOW_PERCENT: u64 = 130;
const FAST_PERCENT: u64 = 80;
/// What it has given in so long a time shows which.
const WINDOW: Duration = Duration::from_millis(250);
/// In one part of so many it must have been at work to count as slow.
const WORK_PART: u64 = 4;
/// Reads of so many bytes say how fast SOURCE is in order: the mean of about the last 16 MiB.
const LONG_READ_BYTES: u64 = 64 << 10;
const MEAN_OF_BYTES: u64 = 16 << 20;
/// Before anything is known: a slow one, as most are that are worth a cache.
const FIRST_PS_PER_BYTE: u64 = 8000;

/// How fast SOURCE is, all reads together.
///
/// As long as little is asked of it a slow one can answer at once, or give most in bursts. So it is fast when it has
/// given so much in a while as only a fast one can; and slow when it was long at work for less.
pub struct Speed {
    under_way: AtomicU64,
    /// Thousandths of a nanosecond for a byte, of late, in order.
    ps_per_byte: AtomicU64,
    is_slow: AtomicBool,
    /// What the reads of this window would have taken of one that is just fast, one after the other; and what they
    /// took.
    given_ns: AtomicU64,
    taken_ns: AtomicU64,
    window_began: Mutex<Instant>,
}

impl Default for Speed {
    /// Of one that nobody has read from yet.
    fn default() -> Speed {
        Speed {
            under_way: AtomicU64::new(0),
            ps_per_byte: AtomicU64::new(FIRST_PS_PER_BYTE),
            is_slow: AtomicBool::new(true),
            given_ns: AtomicU64::new(0),
            taken_ns: AtomicU64::new(0),
            window_began: Mutex::new(Instant::now()),
        }
    }
}

impl Speed {
    /// A read begins: how many are under way now, this one included.
    pub fn begin(&self) -> u64 {
        self.under_way.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// A read has taken so long, beside others that were under way.
    pub fn note(&self, ns: u64, bytes: u64, under_way: u64) {
        self.add(ns, bytes, under_way);
        // Somebody else is looking.
        let Ok(mut began) = self.window_began.try_lock() else { return };
        let elapsed = began.elapsed();
        if elapsed >= WINDOW {
            *began = Instant::now();
            drop(began);
            self.end_window(elapsed);
        }
    }

    /// The same within a window.
    fn add(&self, ns: u64, bytes: u64, under_way: u64) {
        let own_ns = ns / under_way.max(1);
        let fast_ns = FAST_READ_NS + bytes * FAST_PS_PER_BYTE / 1000;
        self.given_ns.fetch_add(fast_ns, Ordering::Relaxed);
        self.taken_ns.fetch_add(own_ns, Ordering::Relaxed);
        if bytes >= LONG_READ_BYTES {
            let own = u128::from(own_ns) * 1000 / u128::from(bytes);
            let before = u128::from(self.ps_per_byte.load(Ordering::Relaxed));
            let (weight, all) = (u128::from(bytes.min(1 << 20)), u128::from(MEAN_OF_BYTES));
            let mixed = (before * (all - weight) + own * weight) / all;
            self.ps_per_byte.store(mixed as u64, Ordering::Relaxed);
        }
    }

    fn end_window(&self, took: Duration) {
        let given_ns = self.given_ns.swap(0, Ordering::Relaxed);
        let taken_ns = self.taken_ns.swap(0, Ordering::Relaxed);
        let took_ns = took.as_nanos() as u64;
        if given_ns.saturating_mul(FAST_PERCENT) / 100 >= took_ns {
            self.is_slow.store(false, Ordering::Relaxed);
        } else if taken_ns >= given_ns.saturating_mul(SLOW_PERCENT) / 100
            && taken_ns >= took_ns / WORK_PART
        {
            self.is_slow.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a read takes so long that much compression is worth its time.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Of reads in order.
    pub fn ns_per_byte(&self) -> f64 {
        self.ps_per_byte.load(Ordering::Relaxed) as f64 / 1000.0
    }
}

/// Reads until the buffer is full or the file ends.
fn read_whole(
    fd: BorrowedFd<'_>,
    offset: u64,
    buffer: &mut [u8],
    read: impl Fn(BorrowedFd<'_>, &mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            // A direct read that goes on within the last, incomplete sector: the file ends there.
            Err(Errno::INVAL) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes reads, each of which has taken so long, as many as are done in a second.
    fn second_of(speed: &Speed, ns: u64, bytes: u64, under_way: u64) -> bool {
        let own_ns = ns / under_way;
        (0..1_000_000_000 / own_ns).for_each(|_| speed.add(ns, bytes, under_way));
        speed.end_window(Duration::from_secs(1));
        speed.is_slow()
    }

    #[test]
    fn a_source_is_slow_or_fast_by_what_its_reads_take() {
        let speed = Speed::default();
        assert!(speed.is_slow());
        // A local disk: single pages, and a stream of 2 GB/s.
        assert!(!second_of(&speed, 40_000, 4096, 1));
        assert!(!second_of(&speed, 500_000, 1 << 20, 1));
        // 3,000 reads a second; 125 MB/s; four at a time.
        assert!(second_of(&speed, 333_000, 16384, 1));
        assert!(!second_of(&speed, 500_000, 1 << 20, 1));
        assert!(second_of(&speed, 8_400_000, 1 << 20, 1));
        assert!(second_of(&speed, 1_332_000, 16384, 4));
        // In between it stays what it was, and a single read says little.
        assert!(second_of(&speed, 125_000, 4096, 1));
        assert!(!second_of(&speed, 60_000, 4096, 4));
        assert!(!second_of(&speed, 125_000, 4096, 1));
        (0..20).for_each(|_| speed.add(2_000_000, 4096, 1));
        speed.end_window(Duration::from_secs(1));
        assert!(!speed.is_slow());
    }

    #[test]
    fn one_that_is_asked_for_little_does_not_count_as_fast() {
        let speed = Speed::default();
        // It is throttled to 3,000 reads a second, but most are found here.
        for _ in 0..100 {
            (0..1000).for_each(|_| speed.add(40_000, 16384, 1));
            speed.end_window(Duration::from_secs(1));
            assert!(speed.is_slow());
        }
    }

    #[test]
    fn one_that_gives_most_in_bursts_is_as_slow_as_it_is_on_the_whole() {
        let speed = Speed::default();
        // 125 MB/s: in each tenth of a second first 11 MiB at once, then nothing.
        for _ in 0..20 {
            for _ in 0..10 {
                (0..11).for_each(|_| speed.add(500_000, 1 << 20, 1));
                speed.add(90_000_000, 1 << 20, 1);
            }
            speed.end_window(Duration::from_secs(1));
            assert!(speed.is_slow());
        }
    }

    #[test]
    fn reads_in_order_say_how_long_a_byte_takes() {
        let speed = Speed::default();
        let first = speed.ns_per_byte();
        speed.add(40_000, 4096, 1);
        assert_eq!(speed.ns_per_byte(), first);
        (0..100).for_each(|_| speed.add(2_097_152, 1 << 20, 4));
        assert!((speed.ns_per_byte() - 0.5).abs() < 0.05, "{}", speed.ns_per_byte());
        (0..100).for_each(|_| speed.add(8_388_608, 1 << 20, 1));
        assert!((speed.ns_per_byte() - 8.0).abs() < 0.1, "{}", speed.ns_per_byte());
    }
}

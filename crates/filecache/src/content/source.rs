//! Reading a file of SOURCE without leaving it in the kernel's page cache: what the mount has cached is not
//! to be there a second time.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
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
        let count = match direct {
            Some(direct) => read_whole(direct.as_fd(), offset, buffer, |fd, bytes, offset| {
                pread(fd, bytes, offset)
            })?,
            None => self.read_uncached(offset, buffer)?,
        };
        buffer[count..].fill(0);
        Ok(count)
    }

    fn direct(&self) -> Option<&OwnedFd> {
        let again = || {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            open(path, flags, Mode::empty()).ok()
        };
        self.direct.get_or_init(again).as_ref()
    }

    fn read_uncached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let uncached = read_whole(self.fd.as_fd(), offset, buffer, |fd, bytes, offset| {
            preadv2(fd, &mut [IoSliceMut::new(bytes)], offset, DO_NOT_CACHE)
        });
        match uncached {
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
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
const FAST_PS_PER_BYTE: u64 = 2500;
/// A SOURCE becomes another kind only when reads take clearly more, or less, than that, in percent.
const SLOW_PERCENT: u64 = 130;
const FAST_PERCENT: u64 = 80;

/// How fast SOURCE is, all reads together.
pub struct Speed {
    under_way: AtomicU64,
    /// Thousandths of a nanosecond for a byte, of late.
    ps_per_byte: AtomicU64,
    /// What reads took of late, in hundredths of a percent of what they take at most of a fast one.
    of_fast: AtomicU64,
    is_slow: AtomicBool,
}

impl Default for Speed {
    /// Of one that nobody has read from yet, and that is slow, as most are that are worth a cache.
    fn default() -> Speed {
        Speed {
            under_way: AtomicU64::new(0),
            ps_per_byte: AtomicU64::new(0),
            of_fast: AtomicU64::new(SLOW_PERCENT * 100),
            is_slow: AtomicBool::new(true),
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
        let own_ns = ns / under_way.max(1);
        self.note_kind(own_ns, bytes);
        let own = own_ns.saturating_mul(1000) / bytes.max(1);
        let before = self.ps_per_byte.load(Ordering::Relaxed);
        // Short reads say less of it.
        let weight = bytes.clamp(4 << 10, 1 << 20);
        let mixed =
            (before as u128 * ((16 << 20) - weight) as u128 + own as u128 * weight as u128) >> 24;
        self.ps_per_byte.store(mixed as u64, Ordering::Relaxed);
    }

    fn note_kind(&self, own_ns: u64, bytes: u64) {
        let fast_ns = FAST_READ_NS + bytes * FAST_PS_PER_BYTE / 1000;
        // One read that took very long says no more than some.
        let own = (own_ns.saturating_mul(10_000) / fast_ns).min(100_000);
        let before = self.of_fast.load(Ordering::Relaxed);
        let mixed = (before * 31 + own) / 32;
        self.of_fast.store(mixed, Ordering::Relaxed);
        if mixed >= SLOW_PERCENT * 100 {
            self.is_slow.store(true, Ordering::Relaxed);
        } else if mixed <= FAST_PERCENT * 100 {
            self.is_slow.store(false, Ordering::Relaxed);
        }
    }

    /// Whether a read takes so long that much compression is worth its time.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

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

    #[test]
    fn a_source_is_slow_or_fast_by_what_its_reads_take() {
        let speed = Speed::default();
        let is_slow_after = |ns, bytes, under_way| {
            (0..100).for_each(|_| speed.note(ns, bytes, under_way));
            speed.is_slow()
        };
        assert!(speed.is_slow());
        // A local disk: single pages, and a stream of 2 GB/s.
        assert!(!is_slow_after(40_000, 4096, 1));
        assert!(!is_slow_after(500_000, 1 << 20, 1));
        // 3,000 reads a second; 125 MB/s; four at a time.
        assert!(is_slow_after(333_000, 16384, 1));
        assert!(is_slow_after(8_400_000, 1 << 20, 1));
        assert!(is_slow_after(1_332_000, 16384, 4));
        // In between it stays what it was, and a single read says little.
        assert!(is_slow_after(100_000, 4096, 1));
        assert!(!is_slow_after(60_000, 4096, 4));
        assert!(!is_slow_after(110_000, 4096, 1));
        speed.note(u64::MAX, 4096, 1);
        assert!(!speed.is_slow());
    }
}

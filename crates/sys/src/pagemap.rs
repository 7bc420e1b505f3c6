//! Which pages of the process are in memory: `PAGEMAP_SCAN` (Linux 6.7), or the entries of
//! `/proc/self/pagemap` before that.

use core::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::abi::pagemap as abi;
use crate::{Errno, PAGE_SIZE, raw};

pub use abi::{PageRegion, category};

/// `/proc/self/pagemap`, kept open.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
    has_scan: bool,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// How many runs were written.
    pub runs: usize,
    /// Address behind the last page looked at: where to go on.
    pub end: usize,
}

impl Pagemap {
    /// Opens the map of the calling process and finds out whether it can be scanned.
    ///
    /// # Errors
    /// What open(2) says: no `/proc`, or a process that made itself undumpable.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(c"/proc/self/pagemap", flags, Mode::empty())?;
        let mut pagemap = Pagemap { fd, has_scan: true };
        let mut run = [PageRegion::default()];
        pagemap.has_scan = match pagemap.scan(PAGE_SIZE..2 * PAGE_SIZE, &mut run) {
            Ok(_) => true,
            Err(Errno::NOTTY | Errno::INVAL) => false,
            Err(e) => return Err(e),
        };
        Ok(pagemap)
    }

    /// Does the kernel have `PAGEMAP_SCAN`?
    pub fn has_scan(&self) -> bool {
        self.has_scan
    }

    /// Finds runs of anonymous pages that are in memory, the shared page of zeros left out.
    /// Stops when `runs` is full.
    ///
    /// # Errors
    /// What the kernel says; nothing a caller could mend.
    pub fn present_anonymous(
        &self,
        range: Range<usize>,
        runs: &mut [PageRegion],
    ) -> Result<Scanned, Errno> {
        if self.has_scan { self.scan(range, runs) } else { self.read_entries(range, runs) }
    }

    /// Is this page in memory and mapped by this process alone? `false` also when the map cannot
    /// say.
    pub fn is_exclusive(&self, address: usize) -> bool {
        let wanted = abi::entry::PRESENT | abi::entry::EXCLUSIVE;
        self.entry(address).is_ok_and(|entry| entry & wanted == wanted)
    }

    /// Is there a page at this address: in memory, in swap, or just then moved by the kernel?
    ///
    /// # Errors
    /// What pread(2) says; `EIO` when the map ends before.
    pub fn has_page(&self, address: usize) -> Result<bool, Errno> {
        Ok(self.entry(address)? & (abi::entry::PRESENT | abi::entry::SWAPPED) != 0)
    }

    fn entry(&self, address: usize) -> Result<u64, Errno> {
        let mut entry = [0u8; 8];
        let read = rustix::io::pread(&self.fd, &mut entry, (address / PAGE_SIZE * 8) as u64)?;
        if read == entry.len() { Ok(u64::from_ne_bytes(entry)) } else { Err(Errno::IO) }
    }

    fn scan(&self, range: Range<usize>, runs: &mut [PageRegion]) -> Result<Scanned, Errno> {
        let mut scan = abi::ScanArg {
            size: size_of::<abi::ScanArg>() as u64,
            start: range.start as u64,
            end: range.end as u64,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            // Present, and neither of a file nor the page of zeros.
            category_inverted: abi::category::FILE | abi::category::PFNZERO,
            category_mask: abi::category::PRESENT | abi::category::FILE | abi::category::PFNZERO,
            return_mask: abi::category::PRESENT,
            ..Default::default()
        };
        // SAFETY: the structure fits the opcode, the vector is as long as it says.
        let found = unsafe { raw::ioctl(self.fd.as_fd(), abi::IOCTL_SCAN, &mut scan) }?;
        Ok(Scanned { runs: found, end: scan.walk_end as usize })
    }

    fn read_entries(&self, range: Range<usize>, runs: &mut [PageRegion]) -> Result<Scanned, Errno> {
        let mut entries = [0u64; 128];
        let mut found = 0;
        let mut address = range.start;
        while address < range.end {
            let count = entries.len().min((range.end - address) / PAGE_SIZE);
            // SAFETY: u64 has no invalid values and no padding.
            let bytes = unsafe {
                core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), count * 8)
            };
            let read = rustix::io::pread(&self.fd, bytes, (address / PAGE_SIZE * 8) as u64)? / 8;
            if read == 0 {
                break;
            }
            for entry in &entries[..read] {
                let wanted = abi::entry::PRESENT;
                if entry & (abi::entry::PRESENT | abi::entry::FILE_OR_SHARED) == wanted {
                    let (start, end) = (address as u64, (address + PAGE_SIZE) as u64);
                    let joins = found > 0 && runs[found - 1].end == start;
                    if joins {
                        runs[found - 1].end = end;
                    } else if found < runs.len() {
                        runs[found] = PageRegion { start, end, categories: category::PRESENT };
                        found += 1;
                    } else {
                        return Ok(Scanned { runs: found, end: address });
                    }
                }
                address += PAGE_SIZE;
            }
        }
        Ok(Scanned { runs: found, end: address.min(range.end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Reservation;

    fn touched() -> Reservation {
        let r = Reservation::new(16 * PAGE_SIZE).unwrap();
        r.commit(0, 16 * PAGE_SIZE).unwrap();
        for page in [1, 2, 3, 7, 9] {
            // SAFETY: a committed page of our own.
            unsafe { r.as_ptr().add(page * PAGE_SIZE).write(1) };
        }
        // A read maps the page of zeros, which costs nothing and is not wanted.
        // SAFETY: as above.
        unsafe { core::ptr::read_volatile(r.as_ptr().add(12 * PAGE_SIZE)) };
        r
    }

    fn pages(base: usize, runs: &[PageRegion]) -> Vec<(usize, usize)> {
        let page = |address: u64| (address as usize - base) / PAGE_SIZE;
        runs.iter().map(|run| (page(run.start), page(run.end))).collect()
    }

    #[test]
    fn finds_the_runs_that_are_in_memory() {
        let r = touched();
        let base = r.as_ptr() as usize;
        let mut map = Pagemap::open().unwrap();
        let mut runs = [PageRegion::default(); 8];
        if map.has_scan() {
            let found = map.present_anonymous(base..base + r.len(), &mut runs).unwrap();
            assert_eq!(pages(base, &runs[..found.runs]), [(1, 4), (7, 8), (9, 10)]);
            assert_eq!(found.end, base + r.len());
        }
        // The entries cannot tell the page of zeros; everything else must agree.
        map.has_scan = false;
        let found = map.present_anonymous(base..base + 11 * PAGE_SIZE, &mut runs).unwrap();
        assert_eq!(pages(base, &runs[..found.runs]), [(1, 4), (7, 8), (9, 10)]);
    }

    #[test]
    fn a_page_of_ones_own_is_exclusive() {
        let r = touched();
        let map = Pagemap::open().unwrap();
        assert!(map.is_exclusive(r.as_ptr() as usize + PAGE_SIZE));
        assert!(!map.is_exclusive(r.as_ptr() as usize));
        assert_eq!(map.has_page(r.as_ptr() as usize + PAGE_SIZE), Ok(true));
        assert_eq!(map.has_page(r.as_ptr() as usize), Ok(false));
        // Not a gap, but no memory of a process either.
        assert!(map.has_page(1 << 63).is_err());
    }

    #[test]
    fn stops_when_the_vector_is_full_and_goes_on_from_there() {
        let r = touched();
        let base = r.as_ptr() as usize;
        let mut map = Pagemap::open().unwrap();
        for has_scan in [map.has_scan(), false] {
            map.has_scan = has_scan;
            let mut runs = [PageRegion::default(); 1];
            let mut seen = Vec::new();
            let mut at = base;
            while at < base + 11 * PAGE_SIZE {
                let found = map.present_anonymous(at..base + 11 * PAGE_SIZE, &mut runs).unwrap();
                seen.extend(pages(base, &runs[..found.runs]));
                assert!(found.end > at);
                at = found.end;
            }
            assert_eq!(seen, [(1, 4), (7, 8), (9, 10)]);
        }
    }
}

//! Which pages of the process are in memory: `PAGEMAP_SCAN` (Linux 6.7), or the entries of
//! `/proc/self/pagemap` before that.

use core::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::abi::pagemap as abi;
use crate::{Errno, PAGE_SIZE, raw};

/// Entries of the map that are read at a time.
const ENTRIES_MAX: usize = 128;

pub use abi::PageRegion;
use abi::category;

/// `/proc/self/pagemap`, or that of another process, kept open.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
    has_scan: bool,
}

/// Which pages are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Those in RAM.
    All,
    /// Those that no userfaultfd protects from being written to.
    Unprotected,
    /// Where the shared page of zeros is mapped instead. Never found without `PAGEMAP_SCAN`.
    Zeros,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// How many runs were written.
    pub runs: usize,
    /// Address behind the last page looked at: where to go on.
    pub end: usize,
}

/// Whether the kernel has nothing at the entry's address.
fn is_empty(entry: u64) -> bool {
    entry & (abi::entry::PRESENT | abi::entry::SWAPPED) == 0
}

impl Pagemap {
    /// Opens the map of the calling process and finds out whether it can be scanned.
    ///
    /// # Errors
    /// What open(2) says: no `/proc`, or a process that made itself undumpable.
    pub fn open() -> Result<Self, Errno> {
        Self::from_file(Self::open_file()?)
    }

    /// Opens the map of an undumpable process, whose files in /proc belong to root: the process is
    /// dumpable for that moment.
    ///
    /// # Errors
    /// What open(2) says.
    pub fn open_undumpable() -> Result<Self, Errno> {
        use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
        let before = dumpable_behavior()?;
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let file = Self::open_file();
        // Only the kernel can set 2 (dumpable by root); 0 is as strict.
        set_dumpable_behavior(match before {
            DumpableBehavior::Dumpable => before,
            _ => DumpableBehavior::NotDumpable,
        })?;
        Self::from_file(file?)
    }

    /// Opens the map's file, for [`Pagemap::from_file`].
    ///
    /// # Errors
    /// As [`Pagemap::open`].
    pub fn open_file() -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/self/pagemap", flags, Mode::empty())
    }

    /// Finds out whether the map can be scanned.
    ///
    /// # Errors
    /// What the kernel says to a scan.
    pub fn from_file(fd: OwnedFd) -> Result<Self, Errno> {
        let mut pagemap = Pagemap { fd, has_scan: true };
        let mut run = [PageRegion::default()];
        pagemap.has_scan = match pagemap.scan(PAGE_SIZE..2 * PAGE_SIZE, 1, &mut run, Pages::All) {
            Ok(_) => true,
            Err(Errno::NOTTY | Errno::INVAL) => false,
            Err(e) => return Err(e),
        };
        Ok(pagemap)
    }

    /// Whether the kernel has `PAGEMAP_SCAN`.
    pub fn has_scan(&self) -> bool {
        self.has_scan
    }

    /// Finds runs of pages that are in memory, the shared page of zeros apart, in anonymous
    /// mappings: pages of files are not told from others, because the kernel would have to look at
    /// each page and not only at the page table, which takes three times as long. Stops when `runs`
    /// is full or `most` pages were found.
    ///
    /// # Errors
    /// What the kernel says; nothing a caller could mend.
    pub fn present(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno> {
        if self.has_scan {
            self.scan(range, most, runs, pages)
        } else {
            self.read_entries(range, most, runs, pages)
        }
    }

    /// Whether this page is in memory and mapped by this process alone; `false` also when the map
    /// does not tell.
    pub fn is_exclusive(&self, address: usize) -> bool {
        let wanted = abi::entry::PRESENT | abi::entry::EXCLUSIVE;
        self.entry(address).is_ok_and(|entry| entry & wanted == wanted)
    }

    /// Whether there is a page at this address: in memory, in swap, or being moved by the kernel.
    ///
    /// # Errors
    /// What pread(2) says; `EIO` when the map ends before.
    pub fn has_page(&self, address: usize) -> Result<bool, Errno> {
        Ok(!is_empty(self.entry(address)?))
    }

    /// Counts the pages from `address` on, at most `most` (up to 128), at which the kernel has
    /// nothing: no page, and no marker of its own either (a guard, MADV_GUARD_INSTALL).
    ///
    /// # Errors
    /// What pread(2) says.
    pub fn empty_pages(&self, address: usize, most: usize) -> Result<usize, Errno> {
        let mut entries = [0; ENTRIES_MAX];
        let read = self.entries(address, &mut entries[..most.min(ENTRIES_MAX)])?;
        Ok(entries[..read].iter().take_while(|&&entry| is_empty(entry)).count())
    }

    /// At which of the pages at a distance of `stride` pages, twice that, and so on from `address`,
    /// at most `most` (up to 64), the kernel has nothing: the nearest is the lowest bit.
    ///
    /// # Errors
    /// What pread(2) says.
    pub fn empty_ahead(&self, address: usize, stride: isize, most: usize) -> Result<u64, Errno> {
        let distance = stride.unsigned_abs().max(1);
        let most = most.min(u64::BITS as usize);
        // There is nothing below the first page.
        let most = if stride < 0 { most.min(address / PAGE_SIZE / distance) } else { most };
        let most_at_once = (ENTRIES_MAX / distance).max(1);
        let mut entries = [0; ENTRIES_MAX];
        let (mut empty, mut seen) = (0, 0);
        while seen < most {
            let pages = most_at_once.min(most - seen);
            let furthest = if stride < 0 { seen + pages } else { seen + 1 };
            let first = address.wrapping_add_signed(stride * (furthest * PAGE_SIZE) as isize);
            let entries = &mut entries[..(pages - 1) * distance + 1];
            if self.entries(first, entries)? < entries.len() {
                break;
            }
            for nth in 0..pages {
                let place = if stride < 0 { pages - 1 - nth } else { nth };
                empty |= u64::from(is_empty(entries[place * distance])) << (seen + nth);
            }
            seen += pages;
        }
        Ok(empty)
    }

    /// Which of the pages from `address` on, at most `most` (up to 64), are anonymous, in memory
    /// and mapped by this process alone: the first is the lowest bit.
    ///
    /// # Errors
    /// What pread(2) says.
    pub fn own_pages(&self, address: usize, most: usize) -> Result<u64, Errno> {
        const OWN: u64 = abi::entry::PRESENT | abi::entry::EXCLUSIVE;
        let mut entries = [0; u64::BITS as usize];
        let entries = &mut entries[..most.min(u64::BITS as usize)];
        let read = self.entries(address, entries)?;
        let is_own = |entry: u64| entry & (OWN | abi::entry::FILE_OR_SHARED) == OWN;
        let own = entries[..read].iter().map(|&entry| u64::from(is_own(entry)));
        Ok(own.enumerate().fold(0, |own, (nth, is_own)| own | is_own << nth))
    }

    fn entry(&self, address: usize) -> Result<u64, Errno> {
        let mut entry = [0];
        let read = self.entries(address, &mut entry)?;
        if read == 1 { Ok(entry[0]) } else { Err(Errno::IO) }
    }

    /// Reads entries from that of `address` on, and returns how many there were.
    fn entries(&self, address: usize, entries: &mut [u64]) -> Result<usize, Errno> {
        let length = size_of_val(entries);
        // SAFETY: u64 has no invalid values and no padding.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), length) };
        let at = (address / PAGE_SIZE * size_of::<u64>()) as u64;
        Ok(rustix::io::pread(&self.fd, bytes, at)? / size_of::<u64>())
    }

    /// [`Self::present`], by `PAGEMAP_SCAN`.
    fn scan(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno> {
        let written = if pages == Pages::Unprotected { abi::category::WRITTEN } else { 0 };
        let not_zeros = if pages == Pages::Zeros { 0 } else { abi::category::PFNZERO };
        let mut scan = abi::ScanArg {
            size: size_of::<abi::ScanArg>() as u64,
            start: range.start as u64,
            end: range.end as u64,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: most as u64,
            category_inverted: not_zeros,
            category_mask: abi::category::PRESENT | abi::category::PFNZERO | written,
            return_mask: abi::category::PRESENT,
            ..Default::default()
        };
        // SAFETY: the structure fits the opcode, the vector is as long as it says.
        let found = unsafe { raw::ioctl(self.fd.as_fd(), abi::IOCTL_SCAN, &mut scan) }?;
        Ok(Scanned { runs: found, end: scan.walk_end as usize })
    }

    /// [`Self::present`], by the map's entries.
    fn read_entries(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno> {
        if pages == Pages::Zeros {
            return Ok(Scanned { runs: 0, end: range.end });
        }
        let protected = if pages == Pages::Unprotected { abi::entry::UFFD_WP } else { 0 };
        let mut entries = [0; ENTRIES_MAX];
        let (mut found, mut seen) = (0, 0);
        let mut address = range.start;
        while address < range.end {
            let count = entries.len().min((range.end - address) / PAGE_SIZE);
            let read = self.entries(address, &mut entries[..count])?;
            if read == 0 {
                break;
            }
            for entry in &entries[..read] {
                let wanted = abi::entry::PRESENT;
                if entry & (wanted | abi::entry::FILE_OR_SHARED | protected) == wanted {
                    let (start, end) = (address as u64, (address + PAGE_SIZE) as u64);
                    if seen == most {
                        return Ok(Scanned { runs: found, end: address });
                    }
                    seen += 1;
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
            let found =
                map.present(base..base + r.len(), usize::MAX, &mut runs, Pages::All).unwrap();
            assert_eq!(pages(base, &runs[..found.runs]), [(1, 4), (7, 8), (9, 10)]);
            assert_eq!(found.end, base + r.len());
            let range = base..base + r.len();
            let found = map.present(range, usize::MAX, &mut runs, Pages::Zeros).unwrap();
            assert_eq!(pages(base, &runs[..found.runs]), [(12, 13)]);
        }
        // The entries cannot tell the page of zeros; everything else must agree.
        map.has_scan = false;
        let found =
            map.present(base..base + 11 * PAGE_SIZE, usize::MAX, &mut runs, Pages::All).unwrap();
        assert_eq!(pages(base, &runs[..found.runs]), [(1, 4), (7, 8), (9, 10)]);
    }

    #[test]
    fn no_more_pages_are_found_than_asked_for() {
        let r = touched();
        let base = r.as_ptr() as usize;
        let mut map = Pagemap::open().unwrap();
        let mut runs = [PageRegion::default(); 8];
        for has_scan in [map.has_scan(), false] {
            map.has_scan = has_scan;
            let range = base..base + 11 * PAGE_SIZE;
            let found = map.present(range, 4, &mut runs, Pages::All).unwrap();
            assert_eq!(pages(base, &runs[..found.runs]), [(1, 4), (7, 8)]);
            assert!((8..=9).contains(&((found.end - base) / PAGE_SIZE)), "{found:?}");
        }
    }

    #[test]
    fn what_is_empty_is_counted() {
        let r = touched();
        let map = Pagemap::open().unwrap();
        let empty = |page: usize| map.empty_pages(r.as_ptr() as usize + page * PAGE_SIZE, 3);
        assert_eq!([empty(0), empty(3), empty(4)], [Ok(1), Ok(0), Ok(3)]);
        // What the page of zeros is mapped at is not empty.
        assert_eq!(empty(11), Ok(1));
    }

    #[test]
    fn what_is_empty_is_seen_at_a_distance() {
        let r = touched();
        let map = Pagemap::open().unwrap();
        let ahead = |page: usize, stride, most| {
            map.empty_ahead(r.as_ptr() as usize + page * PAGE_SIZE, stride, most).unwrap()
        };
        assert_eq!((ahead(3, 1, 2), ahead(3, 1, 5), ahead(0, 1, 5)), (0b11, 0b10111, 0b11000));
        assert_eq!((ahead(7, -1, 2), ahead(7, -1, 5), ahead(4, -1, 4)), (0b11, 0b00111, 0b1000));
        assert_eq!((ahead(2, 2, 4), ahead(1, 3, 2), ahead(1, 5, 1)), (0b1111, 0b01, 1));
        assert_eq!((ahead(10, -2, 4), ahead(14, -3, 3), ahead(15, -7, 2)), (0b0111, 0b111, 0b01));
        assert_eq!(map.empty_ahead(3 * PAGE_SIZE, -1, 9), Ok(0b111));
        assert_eq!(map.empty_ahead(3 * PAGE_SIZE, -2, 9), Ok(1));
    }

    #[test]
    fn many_pages_are_seen_in_several_looks() {
        let r = Reservation::new(5000 * PAGE_SIZE).unwrap();
        r.commit(0, r.len()).unwrap();
        let at = |page: usize| r.as_ptr().wrapping_add(page * PAGE_SIZE);
        let map = Pagemap::open().unwrap();
        for (full, from, stride, nth) in
            [(340, 300, 1, 40), (700, 0, 50, 14), (300, 1500, -300, 4), (1460, 1500, -1, 40)]
        {
            // SAFETY: a committed page of our own.
            unsafe { at(full).write(1) };
            let most = if stride == -300 { 4 } else { 100 };
            let found = map.empty_ahead(at(from) as usize, stride, most).unwrap();
            let all = u64::MAX >> (64 - most.min(64));
            assert_eq!(found, all & !(1 << (nth - 1)), "{full} from {from} by {stride}");
            // SAFETY: as above.
            unsafe { libc::madvise(at(full).cast(), PAGE_SIZE, libc::MADV_DONTNEED) };
        }
    }

    /// MADV_GUARD_INSTALL, Linux 6.13.
    #[test]
    fn a_guard_page_is_not_empty() {
        const GUARD_INSTALL: i32 = 102;
        let r = touched();
        let map = Pagemap::open().unwrap();
        // SAFETY: an empty page of our own.
        let installed = unsafe {
            libc::madvise(r.as_ptr().add(6 * PAGE_SIZE).cast(), PAGE_SIZE, GUARD_INSTALL)
        };
        if installed != 0 {
            println!("this kernel has no guard pages");
            return;
        }
        let at = |page: usize| r.as_ptr() as usize + page * PAGE_SIZE;
        assert_eq!(map.empty_pages(at(4), 3), Ok(2));
        assert_eq!(map.empty_ahead(at(3), 1, 4), Ok(0b0011));
        assert_eq!(map.empty_ahead(at(7), -1, 3), Ok(0b110));
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
                let found = map
                    .present(at..base + 11 * PAGE_SIZE, usize::MAX, &mut runs, Pages::All)
                    .unwrap();
                seen.extend(pages(base, &runs[..found.runs]));
                assert!(found.end > at);
                at = found.end;
            }
            assert_eq!(seen, [(1, 4), (7, 8), (9, 10)]);
        }
    }
}

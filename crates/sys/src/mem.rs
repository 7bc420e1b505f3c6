//! Memory of our own: address space that is reserved at once and given memory piece by piece, and
//! whole mappings.

use core::ffi::c_void;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::{Errno, PAGE_SIZE, raw};

/// A range of address space with nothing in it: inaccessible until committed, never merged with a
/// neighbour's mapping (an inaccessible page stands at either end), never given huge pages, left
/// out of core dumps.
///
/// Offsets and lengths are in bytes, from the start of the usable part, multiples of
/// [`PAGE_SIZE`].
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the reservation is plain address space; who may touch which part of it is for its user
// to arrange.
unsafe impl Send for Reservation {}
// SAFETY: as above; the methods only make system calls on the range.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes (rounded up to whole pages) and a guard page on both sides.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited (`ulimit -v`).
    pub fn new(len: usize) -> Result<Self, Errno> {
        let len = len.next_multiple_of(PAGE_SIZE);
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let start = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                len + 2 * PAGE_SIZE,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // SAFETY: the guard page at the start is part of the mapping.
        let base = unsafe { NonNull::new_unchecked(start.cast::<u8>().add(PAGE_SIZE)) };
        let reservation = Reservation { base, len };
        // The program's pages, compressed, say nothing in a core dump and may be its secrets; the
        // mark is also what ramfold's own memory is known by from outside (`ramfold dump`).
        // SAFETY: advice on our own mapping changes no content.
        unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump)? };
        // Without this a first touch could bring 2 MiB at once. EINVAL: a kernel without huge
        // pages, where there is nothing to refuse.
        // SAFETY: as above.
        match unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxNoHugepage) } {
            Ok(()) | Err(Errno::INVAL) => Ok(reservation),
            Err(e) => Err(e),
        }
    }

    /// First usable byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Usable bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte and of the byte behind the last, the guard pages included: what
    /// must never be treated as the program's memory.
    pub fn guarded_range(&self) -> core::ops::Range<usize> {
        let base = self.base.as_ptr() as usize;
        base - PAGE_SIZE..base + self.len + PAGE_SIZE
    }

    fn part(&self, offset: usize, len: usize) -> *mut c_void {
        assert!(
            offset.is_multiple_of(PAGE_SIZE)
                && len.is_multiple_of(PAGE_SIZE)
                && offset.checked_add(len).is_some_and(|end| end <= self.len),
            "a part of the reservation"
        );
        // SAFETY: in bounds, asserted above.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    /// Makes a part readable and writable. Memory comes when it is first touched, and reads as
    /// zero.
    ///
    /// # Errors
    /// `ENOMEM` when the system does not overcommit and has no memory to promise, or when the
    /// process has too many mappings.
    pub fn commit(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len);
        // SAFETY: widens the access to a part of our own mapping.
        unsafe { mm::mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Makes the kernel put memory behind a committed part now, so that a later touch cannot fail.
    ///
    /// # Errors
    /// `ENOMEM` or `EFAULT` when there is no memory; `EINVAL` before Linux 5.14.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len);
        // SAFETY: populating changes no content.
        unsafe { mm::madvise(at, len, Advice::LinuxPopulateWrite) }
    }

    /// Gives the memory of a committed part back to the system. The part stays committed and
    /// reads as zero.
    ///
    /// # Errors
    /// `EINVAL` where the memory is locked (mlock(2)).
    ///
    /// # Safety
    /// Nothing may rely on what the part holds, and no reference into it may be alive.
    pub unsafe fn release(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len);
        // SAFETY: the caller gives up the content.
        unsafe { mm::madvise(at, len, Advice::LinuxDontNeed) }
    }

    /// As [`Self::release`], where the memory may be locked.
    ///
    /// # Errors
    /// `EINVAL` for locked memory before Linux 5.18.
    ///
    /// # Safety
    /// As for [`Self::release`].
    pub unsafe fn release_locked(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len);
        // SAFETY: the caller gives up the content.
        unsafe { mm::madvise(at, len, Advice::LinuxDontneedLocked) }
    }

    /// Keeps in RAM what gets memory from now on. Where the process has locked its future memory
    /// (mlockall(2)), this has to come before [`Self::commit`], which would get memory for all of
    /// the part else.
    ///
    /// # Errors
    /// `ENOMEM` and `EPERM`, by RLIMIT_MEMLOCK.
    pub fn lock_when_populated(&self) -> Result<(), Errno> {
        // SAFETY: locking changes no content.
        unsafe { mm::mlock_with(self.base.as_ptr().cast(), self.len, mm::MlockFlags::ONFAULT) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let range = self.guarded_range();
        // SAFETY: the mapping is ours, and nobody can name the reservation any more.
        let unmapped = unsafe { mm::munmap(range.start as *mut c_void, range.len()) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Zeroed memory of a mapping of its own, aligned to a page. It goes back to the system as soon as
/// it is dropped, where an allocator may keep it. It is left out of core dumps.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory, as a boxed slice does.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes; the mapping has whole pages.
    ///
    /// # Errors
    /// `ENOMEM`, when there is no address space or no memory to promise; `EINVAL` for no bytes at
    /// all.
    pub fn new(len: usize) -> Result<Pages, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let pages = Pages { start, len };
        // SAFETY: advice on our own mapping changes no content.
        unsafe { mm::madvise(pages.start.as_ptr().cast(), len, Advice::LinuxDontDump)? };
        Ok(pages)
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable memory of that length, which only changes through `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it is left.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Writes to a byte what it holds, atomically: a page that was not written to since MADV_FREE stays
/// from here on, as it is or as zeros.
///
/// # Safety
/// The byte must be writable memory that nobody else uses.
pub unsafe fn touch(byte: *mut u8) {
    // SAFETY: by the caller's word.
    let byte = unsafe { AtomicU8::from_ptr(byte) };
    // Adding nothing would be compiled to a read. Reading first and then writing would put a byte
    // of the old page into a new one.
    byte.fetch_xor(1, Ordering::Relaxed);
    byte.fetch_xor(1, Ordering::Relaxed);
}

/// Whether memory lies behind the page at `address` (mincore(2)). Unlike the page map this needs
/// no descriptor, so any thread may ask.
///
/// # Errors
/// `ENOMEM` where nothing is mapped.
pub fn is_resident(address: usize) -> Result<bool, Errno> {
    let mut residency = 0u8;
    let page = address & !(PAGE_SIZE - 1);
    // SAFETY: one page is asked about, so one byte is written.
    let result = unsafe {
        raw::syscall6(raw::nr::MINCORE, page, PAGE_SIZE, &raw mut residency as usize, 0, 0, 0)
    };
    raw::check(result).map(|_| residency & 1 != 0)
}

/// A word that a process of the test's has in common with its children.
#[cfg(test)]
pub(crate) fn tests_shared_word() -> &'static core::sync::atomic::AtomicU32 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, zeroed, which is never removed.
    unsafe {
        let page =
            mm::mmap_anonymous(ptr::null_mut(), PAGE_SIZE, access, MapFlags::SHARED).unwrap();
        &*page.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_resident_once_it_is_touched() {
        let r = Reservation::new(2 * PAGE_SIZE).unwrap();
        let address = r.as_ptr() as usize;
        r.commit(0, 2 * PAGE_SIZE).unwrap();
        r.populate(0, PAGE_SIZE).unwrap();
        assert_eq!(is_resident(address + 100), Ok(true));
        assert_eq!(is_resident(address + PAGE_SIZE), Ok(false));
        assert_eq!(is_resident(usize::MAX & !(1 << 63)), Err(Errno::NOMEM));
    }

    #[test]
    fn committed_memory_reads_zero_and_keeps_what_is_written() {
        let r = Reservation::new(64 * PAGE_SIZE).unwrap();
        r.commit(2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        r.populate(2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        // SAFETY: the page is committed and ours alone.
        unsafe {
            let p = r.as_ptr().add(2 * PAGE_SIZE);
            assert_eq!(*p, 0);
            *p = 7;
            assert_eq!(*p, 7);
            r.release(2 * PAGE_SIZE, PAGE_SIZE).unwrap();
            assert_eq!(*p, 0);
        }
    }

    #[test]
    fn pages_of_ones_own_begin_at_a_page_and_go_when_they_are_dropped() {
        assert_eq!(Pages::new(0).err(), Some(Errno::INVAL));
        assert!(Pages::new(1 << 60).is_err());
        for len in [1, PAGE_SIZE, 100_000] {
            let mut pages = Pages::new(len).unwrap();
            assert!(pages.as_ptr().addr().is_multiple_of(PAGE_SIZE));
            assert!(pages.len() == len && pages.iter().all(|&byte| byte == 0));
            pages.fill(7);
            assert!(pages.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        assert!(Reservation::new(1 << 60).is_err());
    }

    #[test]
    #[should_panic(expected = "a part of the reservation")]
    fn a_part_beyond_the_end_is_refused() {
        let r = Reservation::new(PAGE_SIZE).unwrap();
        let _ = r.commit(PAGE_SIZE, PAGE_SIZE);
    }
}

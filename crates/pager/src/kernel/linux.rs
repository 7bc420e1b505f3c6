//! The kernel itself.

use core::ops::Range;

use ramfold_sys::keep_open::keep_open;
use ramfold_sys::pagemap::{PageRegion, Pagemap, Pages, Scanned};
use ramfold_sys::uffd::{Event, Partial, Uffd, feature};
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, madvise};
use rustix::thread::{Timespec, sched_yield};

use super::{ForkedChild, Kernel, OpenError, misregistered};
use crate::agent::Agent;

/// What the kernel must tell and do for memory to be looked after safely.
pub const NEEDED_FEATURES: u64 = feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::PAGEFAULT_FLAG_WP
    | feature::THREAD_ID
    | feature::MOVE;

/// A userfaultfd and the map of this process's pages.
pub(crate) struct Linux {
    uffd: Uffd,
    pagemap: Pagemap,
}

impl Linux {
    /// Opens a userfaultfd that tells all that must be known; whether it tells of forks too depends
    /// on privilege.
    fn open_userfaultfd(agent: &Agent) -> Result<(Uffd, bool), OpenError> {
        let failed = |errno| OpenError::System("userfaultfd", errno);
        let open = || match agent.userfaultfd_device() {
            Some(device) => Uffd::open_by_device(device).map_err(failed),
            None => Uffd::open().map(|(uffd, _)| uffd).map_err(OpenError::Userfaultfd),
        };
        let offered = open()?.enable(0).map_err(failed)?;
        if offered & NEEDED_FEATURES != NEEDED_FEATURES {
            return Err(OpenError::Features(NEEDED_FEATURES & !offered));
        }
        for forks in [feature::EVENT_FORK, 0] {
            let uffd = open()?;
            match uffd.enable(NEEDED_FEATURES | forks) {
                Ok(_) => return Ok((uffd, forks != 0)),
                Err(Errno::PERM | Errno::INVAL) if forks != 0 => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err(failed(Errno::PERM))
    }
}

impl Kernel for Linux {
    type Child = Uffd;

    fn open(agent: &Agent) -> Result<(Linux, bool), OpenError> {
        let (uffd, told_of_forks) = Self::open_userfaultfd(agent)?;
        let pagemap =
            agent.take_pagemap().map_err(|e| OpenError::System("/proc/self/pagemap", e))?;
        Ok((Linux { uffd, pagemap }, told_of_forks))
    }

    fn read_event(&self) -> Result<Option<Event>, Errno> {
        self.uffd.read_event()
    }

    fn wait(&self, other: Option<BorrowedFd<'_>>, patience: Timespec) -> bool {
        let message = PollFd::new(&self.uffd, PollFlags::IN);
        // An error only means another look.
        match &other {
            Some(other) => {
                poll(&mut [message, PollFd::new(other, PollFlags::IN)], Some(&patience)) != Ok(0)
            }
            None => poll(&mut [message], Some(&patience)) != Ok(0),
        }
    }

    fn is_changing(&self) -> bool {
        self.uffd.is_changing()
    }

    fn keep_open(&self) {
        // Where the system has none of what it takes, that risk is all there is.
        let _ = keep_open(&self.uffd);
    }

    fn register(&self, range: Range<usize>, mode: u64) -> Result<(), Errno> {
        self.uffd.register(range, mode)
    }

    fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.unregister(range)
    }

    fn is_registered_anonymous(&self, range: Range<usize>) -> Result<bool, Errno> {
        self.uffd.is_registered_anonymous(range)
    }

    fn release_other(&self, address: usize) -> bool {
        misregistered::release(&self.uffd, address)
    }

    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { self.uffd.copy(dst, src, len) }
    }

    unsafe fn copy_without_wake(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { self.uffd.copy_without_wake(dst, src, len) }
    }

    fn zeropage_without_wake(&self, dst: usize, len: usize) -> Result<(), Partial> {
        self.uffd.zeropage_without_wake(dst, len)
    }

    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { self.uffd.move_pages(&self.pagemap, dst, src, len) }
    }

    fn write_protect(&self, range: Range<usize>, protect: bool) -> Result<(), Errno> {
        self.uffd.write_protect(range, protect)
    }

    fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.wake(range)
    }

    fn present(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno> {
        self.pagemap.present(range, most, runs, pages)
    }

    fn is_exclusive(&self, address: usize) -> bool {
        self.pagemap.is_exclusive(address)
    }

    fn empty_pages(&self, address: usize, most: usize) -> Result<usize, Errno> {
        self.pagemap.empty_pages(address, most)
    }

    fn empty_ahead(&self, address: usize, stride: isize, most: usize) -> Result<u64, Errno> {
        self.pagemap.empty_ahead(address, stride, most)
    }

    fn yield_now(&self) {
        sched_yield();
    }

    fn populate(&self, address: usize, write: bool) -> Result<(), Errno> {
        let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: populating changes no content; what is gone gives an error.
        unsafe { madvise(address as *mut _, PAGE_SIZE, advice) }
    }
}

impl ForkedChild for Uffd {
    fn read_event(&self) -> Result<Option<Event>, Errno> {
        Uffd::read_event(self)
    }

    fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        Uffd::unregister(self, range)
    }

    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { Uffd::copy(self, dst, src, len) }
    }

    fn yield_now(&self) {
        sched_yield();
    }
}

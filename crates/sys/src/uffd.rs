//! userfaultfd: faults and changes of address space as messages, and the calls that answer them.
//!
//! Written on the bare interface because no crate has MOVE or keeps the signed result of a partial
//! copy. All addresses and lengths are in bytes, multiples of a page.

use core::ops::Range;

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::abi::userfaultfd as abi;
use crate::pagemap::Pagemap;
use crate::raw::ioctl;
use crate::{Errno, raw};

pub use abi::{feature, register_mode};

const O_CLOEXEC: usize = 0o2_000_000;
const O_NONBLOCK: usize = 0o4_000;

/// How a descriptor was opened: the two ways are open to different users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenedBy {
    /// `/dev/userfaultfd`, by the permissions of that file.
    Device,
    /// The system call: root, `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd=1`.
    SystemCall,
}

/// Both ways to open a userfaultfd failed.
#[derive(Clone, Copy, Debug)]
pub struct OpenError {
    /// Why `/dev/userfaultfd` did not do.
    pub device: Errno,
    /// Why userfaultfd(2) did not.
    pub system_call: Errno,
}

/// A message from the kernel. `C` is what answers for a forked child.
#[derive(Debug)]
pub enum Event<C = Uffd> {
    /// A thread waits for a page.
    Pagefault {
        /// Address of the page's first byte.
        address: usize,
        /// The thread wants to write.
        write: bool,
        /// The page is there, and protected from writing.
        write_protected: bool,
        /// The thread's number.
        thread: u32,
    },
    /// The process forked; the descriptor answers for the child's copy of the registered ranges.
    Fork(C),
    /// `mremap` moved pages.
    Remap {
        /// Address that they had.
        from: usize,
        /// Address that they have.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The content of a range is being dropped (`MADV_DONTNEED` and its kin); it stays mapped.
    Remove(Range<usize>),
    /// A range was unmapped.
    Unmap(Range<usize>),
}

/// A request for several pages that stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partial {
    /// Bytes done before the page that failed.
    pub done: usize,
    /// Why that failed.
    pub errno: Errno,
}

/// A userfaultfd, reading without blocking.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Uffd {
    /// Opens a descriptor with full rights (faults of system calls are reported too), by the
    /// device first, then by the system call.
    ///
    /// # Errors
    /// Both reasons when neither way is open to this user.
    pub fn open() -> Result<(Uffd, OpenedBy), OpenError> {
        let opened = Self::device().and_then(Self::open_by_device);
        let device = match opened {
            Ok(uffd) => return Ok((uffd, OpenedBy::Device)),
            Err(errno) => errno,
        };
        match Self::open_by_system_call() {
            Ok(uffd) => Ok((uffd, OpenedBy::SystemCall)),
            Err(system_call) => Err(OpenError { device, system_call }),
        }
    }

    /// Opens `/dev/userfaultfd` (Linux 6.1), which makes userfaultfds for whoever has it open.
    ///
    /// # Errors
    /// `ENOENT` where there is no such device, `EACCES` without permission.
    pub fn device() -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(c"/dev/userfaultfd", flags, Mode::empty())
    }

    /// Opens through the device.
    ///
    /// # Errors
    /// What ioctl(2) says.
    pub fn open_by_device(device: impl AsFd) -> Result<Uffd, Errno> {
        let argument = (O_CLOEXEC | O_NONBLOCK) as *mut u8;
        // SAFETY: USERFAULTFD_IOC_NEW takes the flags themselves, no pointer.
        let fd = unsafe { ioctl(device.as_fd(), abi::IOCTL_NEW, argument) }?;
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(Uffd { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// Opens by userfaultfd(2).
    ///
    /// # Errors
    /// `EPERM` without privilege, `ENOSYS` on a kernel built without it.
    fn open_by_system_call() -> Result<Uffd, Errno> {
        // SAFETY: the call takes flags only.
        let fd =
            raw::check(unsafe { raw::syscall2(raw::nr::USERFAULTFD, O_CLOEXEC | O_NONBLOCK, 0) })?;
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(Uffd { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// What the kernel offers. A descriptor agrees on features once, so asking needs one of its
    /// own.
    ///
    /// # Errors
    /// As [`Uffd::open`].
    pub fn supported_features() -> Result<u64, OpenError> {
        let (uffd, _) = Self::open()?;
        uffd.enable(0).map_err(|e| OpenError { device: e, system_call: e })
    }

    /// Agrees on the interface and asks for `features`. To be called once, first.
    /// Returns what the kernel offers.
    ///
    /// # Errors
    /// `EINVAL` for a feature the kernel lacks, `EPERM` for `EVENT_FORK` without `CAP_SYS_PTRACE`.
    pub fn enable(&self, features: u64) -> Result<u64, Errno> {
        let mut api = abi::Api { api: abi::API_VERSION, features, ioctls: 0 };
        // SAFETY: the structure fits the opcode.
        unsafe { ioctl(self.as_fd(), abi::IOCTL_API, &mut api) }?;
        Ok(api.features)
    }

    /// The next message, or `None` when there is none.
    ///
    /// The thread that caused an event goes on as soon as the event is read: hold the lock that
    /// acting on it needs **before** calling this.
    ///
    /// # Errors
    /// What read(2) says, other than "try again".
    pub fn read_event(&self) -> Result<Option<Event>, Errno> {
        let mut message = abi::Message::default();
        // SAFETY: 32 bytes that may hold any value, initialised.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut((&raw mut message).cast::<u8>(), size_of_val(&message))
        };
        match rustix::io::read(&self.fd, bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e),
        }
        let [a, b, c] = message.arg;
        Ok(Some(match message.event {
            abi::event::PAGEFAULT => Event::Pagefault {
                address: b as usize & !(crate::PAGE_SIZE - 1),
                write: a & abi::pagefault_flag::WRITE != 0,
                write_protected: a & abi::pagefault_flag::WP != 0,
                thread: c as u32,
            },
            abi::event::FORK => {
                // SAFETY: the kernel has just put the child's descriptor into our table.
                Event::Fork(Uffd { fd: unsafe { OwnedFd::from_raw_fd(a as u32 as i32) } })
            }
            abi::event::REMAP => Event::Remap { from: a as usize, to: b as usize, len: c as usize },
            abi::event::REMOVE => Event::Remove(a as usize..b as usize),
            abi::event::UNMAP => Event::Unmap(a as usize..b as usize),
            // The kernel sends no event that was not asked for in `enable`.
            _ => return Err(Errno::PROTO),
        }))
    }

    /// Registers a range. `mode` says what is reported from now on, bits of [`register_mode`]: with
    /// `MISSING` a touch of a missing page, which is not zero-filled, with `WP` a write to a
    /// protected page.
    ///
    /// # Errors
    /// `EINVAL` when a mapping in the range is of the wrong kind or there is none, `EBUSY` when
    /// another userfaultfd has it.
    pub fn register(&self, range: Range<usize>, mode: u64) -> Result<(), Errno> {
        let mut register = abi::Register { range: abi_range(&range), mode, ioctls: 0 };
        // SAFETY: the structure fits the opcode.
        unsafe { ioctl(self.as_fd(), abi::IOCTL_REGISTER, &mut register) }.map(drop)
    }

    /// Whether a thread has changed the address space, or begun to, and its event is unread.
    pub fn is_changing(&self) -> bool {
        // The kernel looks at that first; the request itself is impossible.
        let asked = self.continue_with_page_cache(0, crate::PAGE_SIZE);
        matches!(asked, Err(Partial { errno: Errno::AGAIN, .. }))
    }

    /// Whether this range is all within one mapping of private anonymous memory that is registered
    /// here.
    ///
    /// Registering skips holes, so a range that was changed meanwhile can be registered in part.
    /// The kernel is asked for what it never does to anonymous memory (CONTINUE): it checks the
    /// mapping first, and says `EINVAL` only when that is in order.
    ///
    /// # Errors
    /// `EAGAIN` while an event is unread: nothing is certain then.
    pub fn is_registered_anonymous(&self, range: Range<usize>) -> Result<bool, Errno> {
        match self.continue_with_page_cache(range.start, range.len()) {
            Err(Partial { errno: Errno::INVAL, done: 0 }) => Ok(true),
            Err(Partial { errno: Errno::AGAIN, done: 0 }) => Err(Errno::AGAIN),
            _ => Ok(false),
        }
    }

    /// Ends the registration of a range and wakes the threads that wait there. Missing pages read
    /// as zero from now on.
    ///
    /// # Errors
    /// `EINVAL` when the range holds a mapping of the wrong kind.
    pub fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut range = abi_range(&range);
        // SAFETY: the structure fits the opcode.
        unsafe { ioctl(self.as_fd(), abi::IOCTL_UNREGISTER, &mut range) }.map(drop)
    }

    /// Fills missing pages with a copy and wakes the threads that wait for them.
    ///
    /// # Errors
    /// `EEXIST` for a page that is there, `ENOENT` for a range that is not registered any more,
    /// `EAGAIN` while an event is unread, `ESRCH` when the process is gone.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes, and the pages at `dst` must be due that content.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { self.copy_in_mode(dst, src, len, 0) }
    }

    /// Like [`Uffd::copy`], but threads that wait are not woken before [`Uffd::wake`].
    ///
    /// # Errors
    /// As [`Uffd::copy`].
    ///
    /// # Safety
    /// As [`Uffd::copy`].
    pub unsafe fn copy_without_wake(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<(), Partial> {
        // SAFETY: by the caller's word.
        unsafe { self.copy_in_mode(dst, src, len, abi::COPY_MODE_DONTWAKE) }
    }

    unsafe fn copy_in_mode(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
        mode: u64,
    ) -> Result<(), Partial> {
        let mut copy =
            abi::Copy { dst: dst as u64, src: src as u64, len: len as u64, mode, copy: 0 };
        // SAFETY: the structure fits the opcode; the caller vouches for source and destination.
        let result = unsafe { ioctl(self.as_fd(), abi::IOCTL_COPY, &mut copy) };
        partial(result, copy.copy)
    }

    /// Maps the shared page of zeros over missing pages. Threads that wait for them are not woken
    /// before [`Uffd::wake`].
    ///
    /// # Errors
    /// As [`Uffd::copy`].
    pub fn zeropage_without_wake(&self, dst: usize, len: usize) -> Result<(), Partial> {
        let range = abi_range(&(dst..dst + len));
        let mut fill = abi::Fill { range, mode: abi::ZEROPAGE_MODE_DONTWAKE, done: 0 };
        // SAFETY: the structure fits the opcode; a missing page reads as zero anyway.
        let result = unsafe { ioctl(self.as_fd(), abi::IOCTL_ZEROPAGE, &mut fill) };
        partial(result, fill.done)
    }

    /// Maps pages of the file behind a shared mapping (minor faults) and wakes the threads that
    /// wait.
    ///
    /// # Errors
    /// As [`Uffd::copy`]; `EFAULT` where the file has no page.
    pub fn continue_with_page_cache(&self, dst: usize, len: usize) -> Result<(), Partial> {
        let mut fill = abi::Fill { range: abi_range(&(dst..dst + len)), mode: 0, done: 0 };
        // SAFETY: the structure fits the opcode; the kernel maps what the file holds.
        let result = unsafe { ioctl(self.as_fd(), abi::IOCTL_CONTINUE, &mut fill) };
        partial(result, fill.done)
    }

    /// Moves the pages themselves from `src` to `dst` (Linux 6.8). The source becomes missing in
    /// the same instant: a store either lands before that or faults.
    ///
    /// # Errors
    /// `EBUSY` for a page shared by fork or pinned by I/O, `EINVAL` where locking or access of
    /// the two mappings differ, `ENOENT` for a hole in the source, `EEXIST` for a page at the
    /// destination, `EAGAIN` while an event is unread, `EIO` when it cannot be told what was moved.
    ///
    /// # Safety
    /// `dst` must be registered here. Whoever reads `src` afterwards must be served the content:
    /// it must be registered here too, or belong to the caller. A page that is missing at `src`
    /// must be one of zeros: it may count as moved ([`count_all_moved`]).
    pub unsafe fn move_pages(
        &self,
        pagemap: &Pagemap,
        dst: usize,
        src: usize,
        len: usize,
    ) -> Result<(), Partial> {
        let mut arguments =
            abi::Move { dst: dst as u64, src: src as u64, len: len as u64, mode: 0, moved: 0 };
        // SAFETY: the structure fits the opcode; the caller vouches for the ranges.
        let result = unsafe { ioctl(self.as_fd(), abi::IOCTL_MOVE, &mut arguments) };
        match partial(result, arguments.moved) {
            Err(counted) if counted.done > 0 || counted.errno == Errno::EXIST => {
                count_all_moved(|page| pagemap.has_page(page), dst, src, len, counted)
            }
            result => result,
        }
    }

    /// Makes writes to a range (registered with `write_protect`) be reported, or ends that and
    /// wakes the writers that wait.
    ///
    /// # Errors
    /// `ENOENT` for a range not registered so, `EAGAIN` while an event is unread.
    pub fn write_protect(&self, range: Range<usize>, protect: bool) -> Result<(), Errno> {
        let mode = if protect { abi::WRITEPROTECT_MODE_WP } else { 0 };
        let mut arguments = abi::WriteProtect { range: abi_range(&range), mode };
        // SAFETY: the structure fits the opcode.
        unsafe { ioctl(self.as_fd(), abi::IOCTL_WRITEPROTECT, &mut arguments) }.map(drop)
    }

    /// Wakes the threads that wait for a page of the range; they try their access again.
    ///
    /// # Errors
    /// `EINVAL` for an impossible range.
    pub fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut range = abi_range(&range);
        // SAFETY: the structure fits the opcode.
        unsafe { ioctl(self.as_fd(), abi::IOCTL_WAKE, &mut range) }.map(drop)
    }
}

/// Linux 6.18 does not count all it has moved: when it had to try again within the call (somebody
/// touched the page in that instant, or memory was being compacted), it passes over the count of
/// what it moves then, finds the same pages at the destination, and says `EEXIST` (`move_pages` in
/// mm/userfaultfd.c: `err` keeps its `-EAGAIN` when `move_pages_ptes` succeeds). A page that is at
/// the destination and not at the source was moved, if it was at the source before: the caller must
/// know that, as pages come to the destination in other ways too.
///
/// `has_page` says whether there is a page at an address.
///
/// # Errors
/// What stopped the request, with all that was moved; `EIO` where that cannot be told.
pub fn count_all_moved(
    has_page: impl Fn(usize) -> Result<bool, Errno>,
    dst: usize,
    src: usize,
    len: usize,
    counted: Partial,
) -> Result<(), Partial> {
    let mut done = counted.done;
    while done < len {
        let moved = has_page(dst + done).and_then(|there| Ok(there && !has_page(src + done)?));
        match moved {
            Ok(true) => done += crate::PAGE_SIZE,
            Ok(false) if done == counted.done => return Err(counted),
            Ok(false) => return Err(Partial { done, errno: Errno::AGAIN }),
            Err(_) => return Err(Partial { done, errno: Errno::IO }),
        }
    }
    Ok(())
}

fn abi_range(range: &Range<usize>) -> abi::Range {
    abi::Range { start: range.start as u64, len: range.len() as u64 }
}

/// The kernel reports a partial result in a signed field: bytes done, or `-errno` for none. The
/// return value of an incomplete request is `EAGAIN` then, whatever stopped it; the reason shows
/// when the rest is tried.
fn partial(result: Result<usize, Errno>, done: i64) -> Result<(), Partial> {
    match result {
        Ok(_) => Ok(()),
        Err(errno) if done > 0 => Err(Partial { done: done as usize, errno }),
        Err(errno) => Err(Partial { done: 0, errno }),
    }
}

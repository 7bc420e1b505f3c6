//! What the agent asks of the kernel about the program's memory: messages, and the calls that
//! answer them.
//!
//! Everything that brings pages in, takes them out or follows changes uses this trait. So a model
//! of the kernel's side can take Linux's place in tests: there the order in which things happen is
//! a matter of a seed. So are the clock, what /proc says of this process, and reads that go on by
//! themselves, for which the modules [`time`], [`proc`], [`maps`] and [`uring`] stand.

#[cfg_attr(test, allow(dead_code, reason = "in tests the model takes its place"))]
mod linux;
mod misregistered;
#[cfg(test)]
pub(crate) mod model;

use core::ops::Range;

use ramfold_sys::Errno;
use ramfold_sys::pagemap::{PageRegion, Pages, Scanned};
use ramfold_sys::uffd::{self, Partial};
use rustix::fd::BorrowedFd;
use rustix::thread::Timespec;

use crate::agent::Agent;

#[cfg(not(test))]
pub(crate) use linux::Linux;
pub use linux::NEEDED_FEATURES;
#[cfg(test)]
pub(crate) use model::{maps, proc, time, uring};
#[cfg(not(test))]
pub(crate) use ramfold_sys::{maps, proc, time, uring};

/// The kernel that the agent runs on.
#[cfg(not(test))]
pub(crate) type Host = Linux;
/// The kernel's model.
#[cfg(test)]
pub(crate) type Host = model::Model;

/// What answers for a forked child that has no agent.
pub(crate) type Child = <Host as Kernel>::Child;

/// A message of the kernel's.
pub(crate) type Event = uffd::Event<Child>;

/// Why the program's memory cannot be looked after.
#[derive(Debug)]
#[cfg_attr(test, allow(dead_code, reason = "in tests the model takes its place"))]
pub(crate) enum OpenError {
    /// Neither way to open a userfaultfd is open to this user.
    Userfaultfd(ramfold_sys::uffd::OpenError),
    /// The kernel lacks these features.
    Features(u64),
    /// What else could not be had, and why.
    System(&'static str, Errno),
}

/// userfaultfd(2), PAGEMAP_SCAN and madvise(2), as far as the agent uses them for the program's
/// memory. Addresses and lengths are in bytes, multiples of a page. Errors are those of
/// [`ramfold_sys::uffd::Uffd`] and [`ramfold_sys::pagemap::Pagemap`].
pub(crate) trait Kernel: Sized {
    /// What answers for a forked child that has no agent.
    type Child: ForkedChild;

    /// Opens what the agent needs, and says whether forks that bypass libc are told of.
    fn open(agent: &Agent) -> Result<(Self, bool), OpenError>;

    /// The next message, or `None` when there is none. The thread that caused an event goes on as
    /// soon as it is read.
    fn read_event(&self) -> Result<Option<uffd::Event<Self::Child>>, Errno>;

    /// Sleeps until there is a message, `other` can be read, or patience ends: `false`.
    fn wait(&self, other: Option<BorrowedFd<'_>>, patience: Timespec) -> bool;

    /// Has a thread changed the address space, or begun to, and its event is unread?
    fn is_changing(&self) -> bool;

    /// Messages wait, and no page reads as zeros, even where all of the agent's threads are killed.
    fn keep_open(&self);

    /// Begins to report faults of a range.
    fn register(&self, range: Range<usize>, mode: u64) -> Result<(), Errno>;

    /// Ends that; missing pages read as zero.
    fn unregister(&self, range: Range<usize>) -> Result<(), Errno>;

    /// Is the range within one mapping of private anonymous memory that is registered?
    fn is_registered_anonymous(&self, range: Range<usize>) -> Result<bool, Errno>;

    /// Is the mapping at this address none that can be registered, as the program has put it there
    /// since? Then it is not registered any more.
    fn release_other(&self, address: usize) -> bool;

    /// Fills missing pages with a copy and wakes who waits for them.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes, and the pages at `dst` must be due that content.
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial>;

    /// The same, but who waits goes on waiting.
    ///
    /// # Safety
    /// As [`Kernel::copy`].
    unsafe fn copy_without_wake(
        &self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<(), Partial>;

    /// Maps the page of zeros over missing pages. Who waits for them goes on waiting.
    fn zeropage_without_wake(&self, dst: usize, len: usize) -> Result<(), Partial>;

    /// Moves pages from `src` to `dst`.
    ///
    /// # Safety
    /// `dst` must be registered here. Whoever reads `src` afterwards must be served the content.
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), Partial>;

    /// Has writes to a range reported, or ends that and wakes the writers that wait.
    fn write_protect(&self, range: Range<usize>, protect: bool) -> Result<(), Errno>;

    /// Wakes who waits for a page of the range.
    fn wake(&self, range: Range<usize>) -> Result<(), Errno>;

    /// Finds runs of pages that are in memory.
    fn present(
        &self,
        range: Range<usize>,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Result<Scanned, Errno>;

    /// Does no other process have this page?
    fn is_exclusive(&self, address: usize) -> bool;

    /// How many pages from `address` on, at most `most`, the kernel has nothing at.
    fn empty_pages(&self, address: usize, most: usize) -> Result<usize, Errno>;

    /// At which of the pages at distances of `stride` pages from `address` it has nothing: a bit
    /// for each.
    fn empty_ahead(&self, address: usize, stride: isize, most: usize) -> Result<u64, Errno>;

    /// Lets the program's threads and the agent's others go on.
    fn yield_now(&self);

    /// Touches the page at `address` as a thread of the program would, for writing where `write`
    /// says so.
    fn populate(&self, address: usize, write: bool) -> Result<(), Errno>;
}

/// The same for a forked child's copy of the memory. When it is dropped the child is on its own,
/// and what is missing there reads as zeros.
pub(crate) trait ForkedChild: Sized {
    /// As [`Kernel::read_event`].
    fn read_event(&self) -> Result<Option<uffd::Event<Self>>, Errno>;

    /// As [`Kernel::unregister`].
    fn unregister(&self, range: Range<usize>) -> Result<(), Errno>;

    /// As [`Kernel::copy`].
    ///
    /// # Safety
    /// As there.
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial>;

    /// As [`Kernel::yield_now`].
    fn yield_now(&self);
}

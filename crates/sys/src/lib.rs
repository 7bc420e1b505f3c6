//! What ramfold asks of Linux, as safe wrappers where a safe contract exists.
//!
//! Everything outside the `std` feature is `no_std`, makes raw system calls (never through libc),
//! touches no thread-local storage and allocates nothing, so that it can run on threads that libc
//! does not know, inside other people's processes.
//!
//! From the bottom up: [`raw`] and [`abi`] are the kernel's own interface; [`mem`], [`sync`],
//! [`time`], [`mod@path`] and [`thread`] are what any part of ramfold stands on; [`mod@file`] and [`uring`] read and
//! write past the page cache; [`uffd`], [`pagemap`], [`maps`],
//! [`proc`] and [`credentials`] are what the pager asks about the process it lives in; [`careful`],
//! [`scratch`] and [`executable`] are for the calls that it makes in the program's place; `cgroup` reads
//! the limits around it; `size` reads amounts of memory as users write them; `file_server` is what a file system in user space asks on behalf of others.

#![cfg_attr(not(any(test, feature = "std")), no_std)]

pub mod abi;
pub mod bytes;
pub mod careful;
#[cfg(any(test, feature = "std"))]
pub mod cgroup;
pub mod code;
pub mod credentials;
pub mod executable;
pub mod file;
#[cfg(any(test, feature = "std"))]
pub mod file_server;
pub mod keep_open;
pub mod loaded;
pub mod maps;
pub mod mem;
pub mod pagemap;
pub mod path;
pub mod proc;
pub mod process;
pub mod raw;
pub mod robust;
pub mod scratch;
#[cfg(any(test, feature = "std"))]
pub mod size;
pub mod sync;
pub mod thread;
pub mod time;
pub mod uffd;
pub mod uring;

pub use rustix::io::Errno;

/// Bytes in a page. The pager and every codec work on 4 KiB pages only; a kernel with a larger
/// base page is refused at start.
pub const PAGE_SIZE: usize = 4096;

/// Waits until something is so; far longer than that takes, as the machine may be busy.
#[cfg(test)]
pub(crate) fn tests_wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        let patience = std::time::Duration::from_secs(120);
        assert!(started.elapsed() < patience, "waited in vain until {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

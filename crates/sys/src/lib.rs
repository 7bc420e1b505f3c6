//! What ramfold asks of Linux, as safe wrappers where a safe contract exists.
//!
//! Everything outside the `std` feature is `no_std`, makes raw system calls (never through libc),
//! touches no thread-local storage and allocates nothing, so that it can run on threads that libc
//! does not know, inside other people's processes.
//!
//! | modules | for |
//! |---|---|
//! | [`raw`], [`bytes`], [`code`] | system calls; bytes without the C library; changing code |
//! | [`mem`], [`sync`], [`time`], [`mod@path`] | what every part of ramfold stands on |
//! | [`thread`], [`process`] | threads and a process that the C library does not know |
//! | [`mod@file`], [`uring`] | reading and writing past the page cache |
//! | [`uffd`], [`pagemap`], [`maps`], [`proc`] | the process that the pager is in: its memory |
//! | [`credentials`], [`loaded`] | and its rights and libraries |
//! | [`careful`], [`scratch`], [`executable`] | system calls in the program's place |
//! | [`keep_open`], [`robust`] | what outlives a descriptor; whether a process has ended |
//! | `cgroup`, `size` (feature `std`) | limits of the process; amounts of memory, as written |
//! | `processors` (feature `std`) | what the machine's processors did |
//! | `other_process` (feature `std`) | the memory of another process, from outside |
//! | `file_server` (feature `std`) | a file system in user space |
//! | `ublk`, `swap` (feature `std`) | block devices that a process serves; swap on them |
//! | `guard` (feature `std`) | a process that acts when this one is dying |
//! | `inherited` (feature `std`) | sockets that this process was started with |
//!
//! `unsafe` is in the modules that [`lib.rs`](crate) allows it in: those that hand pointers to the
//! kernel, or make references from addresses.

#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod abi;
// A routine of machine code is a table of instructions.
#[allow(unsafe_code, clippy::too_many_lines)]
pub mod bytes;
#[allow(unsafe_code)]
pub mod careful;
#[cfg(any(test, feature = "std"))]
pub mod cgroup;
#[allow(unsafe_code)]
pub mod code;
#[allow(unsafe_code)]
pub mod credentials;
pub mod executable;
#[cfg_attr(test, allow(unsafe_code))]
pub mod file;
#[cfg(any(test, feature = "std"))]
#[allow(unsafe_code)]
pub mod file_server;
#[cfg(any(test, feature = "std"))]
#[allow(unsafe_code)]
pub mod guard;
#[allow(unsafe_code)]
#[cfg(any(test, feature = "std"))]
pub mod inherited;
#[allow(unsafe_code)]
pub mod keep_open;
#[allow(unsafe_code)]
pub mod loaded;
#[allow(unsafe_code)]
pub mod maps;
#[allow(unsafe_code)]
pub mod mem;
#[cfg(any(test, feature = "std"))]
pub mod other_process;
#[allow(unsafe_code)]
pub mod pagemap;
pub mod path;
#[cfg_attr(test, allow(unsafe_code))]
pub mod proc;
#[allow(unsafe_code)]
pub mod process;
#[cfg(any(test, feature = "std"))]
pub mod processors;
#[allow(unsafe_code)]
pub mod raw;
#[allow(unsafe_code)]
pub mod robust;
#[allow(unsafe_code)]
pub mod scratch;
#[cfg(any(test, feature = "std"))]
pub mod size;
#[cfg(any(test, feature = "std"))]
#[allow(unsafe_code)]
pub mod swap;
#[allow(unsafe_code)]
pub mod sync;
#[allow(unsafe_code)]
pub mod thread;
pub mod time;
#[cfg(any(test, feature = "std"))]
#[allow(unsafe_code)]
pub mod ublk;
#[allow(unsafe_code)]
pub mod uffd;
#[allow(unsafe_code)]
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

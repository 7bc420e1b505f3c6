//! Keeping a file open for as long as an address space lives.
//!
//! A mapping belongs to the address space, not to a process or a table of descriptors, and holds
//! its file: here an io_uring that has the file to be kept in its table of files.
//!
//! Where io_uring is not allowed, a request of the kernel's older asynchronous I/O (io_submit(2))
//! that waits for something that never happens does the same. But each process then takes 30 to 40
//! ms to end, with all its memory, as the kernel waits for a grace period of RCU (exit_aio of
//! fs/aio.c).

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::{Errno, raw, uring};

/// `IOCB_CMD_POLL` of linux/aio_abi.h (Linux 4.18).
const COMMAND_POLL: u16 = 5;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    flags: i32,
    command: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    request_flags: u32,
    result_fd: u32,
}

/// Keeps a file open as long as this address space lives, whichever descriptors of it are closed.
/// For poll(2) the file must report only errors and hang-ups, and have none now.
///
/// # Errors
/// `EAGAIN` where the system has no such requests left (`fs.aio-max-nr`), `ENOSYS` where it has
/// none at all.
pub fn keep_open(file: impl AsFd) -> Result<(), Errno> {
    let file = file.as_fd();
    uring::keep_open(file).or_else(|_| keep_open_by_request(file))
}

fn keep_open_by_request(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut context = 0usize;
    // SAFETY: the kernel writes one word, zero before.
    raw::check(unsafe { raw::syscall2(raw::nr::IO_SETUP, 1, (&raw mut context) as usize) })?;
    // `buffer`: the events waited for, beside those that are always told: none.
    let request =
        Request { command: COMMAND_POLL, fd: file.as_raw_fd() as u32, ..Request::default() };
    let list = [(&raw const request)];
    // SAFETY: a list of one request, which the kernel copies.
    let submitted = unsafe {
        raw::syscall5(raw::nr::IO_SUBMIT, context, list.len(), list.as_ptr() as usize, 0, 0)
    };
    match raw::check(submitted)? {
        0 => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::Uffd;

    #[test]
    fn a_file_outlives_its_descriptor() {
        for keep in [keep_open_by_request, uring::keep_open] {
            outlives_its_descriptor(keep);
        }
    }

    fn outlives_its_descriptor(keep: fn(BorrowedFd<'_>) -> Result<(), Errno>) {
        let Ok((uffd, _)) = Uffd::open() else { return eprintln!("skipped: no userfaultfd") };
        uffd.enable(0).unwrap();
        let memory = crate::mem::Reservation::new(crate::PAGE_SIZE).unwrap();
        memory.commit(0, crate::PAGE_SIZE).unwrap();
        let start = memory.as_ptr() as usize;
        let range = start..start + crate::PAGE_SIZE;
        uffd.register(range.clone(), crate::uffd::register_mode::MISSING).unwrap();
        match keep(uffd.as_fd()) {
            Err(Errno::NOSYS | Errno::PERM) => return eprintln!("skipped: not permitted"),
            kept => kept.unwrap(),
        }
        drop(uffd);
        // Registered all the same: another one may not have it.
        let (other, _) = Uffd::open().unwrap();
        other.enable(0).unwrap();
        let refused = other.register(range, crate::uffd::register_mode::MISSING);
        assert_eq!(refused, Err(Errno::BUSY));
    }
}

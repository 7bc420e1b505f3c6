//! Reading and writing memory through /proc/self/mem.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::PAGE;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("proc-mem-read", 3, "reads pages through /proc/self/mem; EIO is noted", read),
    operation("proc-mem-write", 3, "writes pages through /proc/self/mem; EIO is noted", write),
];

fn open() -> Result<File, Skip> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .map_err(|error| Skip::errno("opening /proc/self/mem", error.into()))
}

/// What one call for one page may lead to: done, or refused with EIO.
fn page_result(result: isize, name: &'static str) -> Result<bool, Skip> {
    current::beat();
    match result {
        0.. if result as usize == PAGE => Ok(true),
        0.. => fail!("{name} of /proc/self/mem did {result} of {PAGE} bytes"),
        _ => match Errno::last() {
            Errno(libc::EINTR) => Ok(false),
            errno @ Errno(libc::EIO | libc::EPERM | libc::EACCES) => Err(Skip::errno(name, errno)),
            errno => fail!("{name} of /proc/self/mem gave {errno}"),
        },
    }
}

fn read(turn: &mut Turn<'_>) -> Outcome {
    let file = open()?;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    let mut outcome = Ok(());
    for page in first..first + pages {
        let done = region.export_by(page, 1, "by /proc/self/mem", |span, bytes| {
            loop {
                // SAFETY: the buffer is writable; the offset is an address this thread holds.
                let result = unsafe {
                    let buffer = bytes.as_mut_ptr().cast();
                    libc::pread(file.as_raw_fd(), buffer, PAGE, span.address() as i64)
                };
                if page_result(result, "pread of /proc/self/mem")? {
                    return Ok(());
                }
            }
        });
        if done.is_err() {
            outcome = done;
        }
    }
    outcome
}

fn write(turn: &mut Turn<'_>) -> Outcome {
    let file = open()?;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    let mut outcome = Ok(());
    for page in first..first + pages {
        let done = region.rewrite_by(page, 1, |span, bytes| {
            loop {
                // SAFETY: the buffer is readable; the offset is an address this thread holds.
                let result = unsafe {
                    let buffer = bytes.as_ptr().cast();
                    libc::pwrite(file.as_raw_fd(), buffer, PAGE, span.address() as i64)
                };
                if page_result(result, "pwrite of /proc/self/mem")? {
                    return Ok(());
                }
            }
        });
        if done.is_err() {
            outcome = done;
        }
    }
    outcome
}

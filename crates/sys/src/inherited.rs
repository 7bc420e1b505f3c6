//! Descriptors that a service manager left open for this process (sd_listen_fds(3)).

use std::env;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first of them.
const FIRST: RawFd = 3;
/// How many there are, and the process that they are for.
const COUNT: &str = "LISTEN_FDS";
const PROCESS: &str = "LISTEN_PID";
/// What a child should not have in its environment.
pub const VARIABLES: [&str; 3] = [COUNT, PROCESS, "LISTEN_FDNAMES"];

/// The sockets that this process was started with to listen on; none where it was started
/// otherwise, and from the second call on. A program that is executed does not get them.
pub fn listening_sockets() -> Vec<OwnedFd> {
    static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    if number(PROCESS) != Some(std::process::id()) || ARE_TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let end = number(COUNT).and_then(|count| FIRST.checked_add(count.try_into().ok()?));
    open_descriptors(FIRST..end.unwrap_or(FIRST))
}

fn open_descriptors(numbers: Range<RawFd>) -> Vec<OwnedFd> {
    let is_open = |number: &RawFd| {
        // Where nobody opened it.
        std::path::Path::new(&format!("/proc/self/fd/{number}")).symlink_metadata().is_ok()
    };
    numbers
        .filter(is_open)
        .filter_map(|number| {
            // SAFETY: it is open, and by the variables it was opened for this process by the one
            // that started it: no other code of this process has it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            let flags = fcntl_getfd(descriptor.as_fd()).ok()?;
            fcntl_setfd(descriptor.as_fd(), flags | FdFlags::CLOEXEC).ok()?;
            Some(descriptor)
        })
        .collect()
}

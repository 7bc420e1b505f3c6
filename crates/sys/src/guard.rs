//! A process that acts when this one is dying and cannot end.
//!
//! A thread that waits in the kernel uninterruptibly outlives a SIGKILL, and all open files of its
//! process live on with it. Where it waits for what only its own process could have done, or
//! closing a file would end, it waits for ever. Another process has to end the wait.

use core::ptr;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::mm::{Advice, madvise};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::thread::Timespec;

use crate::mem::Pages;
use crate::{Errno, PAGE_SIZE, maps, proc, raw, thread};

/// It is a child like others, but shares nothing.
const FLAGS: usize = 17; // SIGCHLD

const STACK_BYTES: usize = 16 * PAGE_SIZE;
/// Longest line of /proc/self/maps: of longer ones only names are cut.
const LINE_MAX: usize = 1024;

/// How often it is looked whether the process is dying, and how long it then has to end.
const INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The process; dropping this ends it.
#[derive(Debug)]
pub struct Guard {
    process: OwnedFd,
}

/// What the process is told.
struct Plan {
    guarded: Pid,
    file: i32,
    /// Where the C library has what it keeps for this thread.
    thread_local: usize,
}

std::thread_local! {
    static LOCAL: u8 = const { 0 };
}

impl Guard {
    /// Starts a process that writes `1` to `file` when this one has been dying for a second, and
    /// ends with this one. It has no other open file, little memory, and takes no signals.
    ///
    /// # Errors
    /// What clone(2) and pidfd_open(2) say.
    pub fn start(file: BorrowedFd<'_>) -> Result<Guard, Errno> {
        let mut stack = Pages::new(STACK_BYTES)?;
        let stack_end = stack.as_mut_ptr_range().end;
        let plan = Plan {
            guarded: rustix::process::getpid(),
            file: file.as_raw_fd(),
            thread_local: LOCAL.with(|local| ptr::from_ref(local) as usize),
        };
        let argument = (&raw const plan).cast_mut().cast();
        let caller_mask = thread::block_all_signals();
        // SAFETY: the process has copies of stack and plan, whatever becomes of them here.
        let child = raw::check(unsafe { thread::clone(FLAGS, stack_end, run, argument) });
        thread::set_signal_mask(caller_mask);
        let child = Pid::from_raw(child? as i32).ok_or(Errno::AGAIN)?;
        // The number is its own until it is waited for. Where that is not possible, the process
        // ends with this one.
        Ok(Guard { process: pidfd_open(child, PidfdFlags::empty())? })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have been killed, and waited for by who waits for all children.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let process = || WaitId::PidFd(self.process.as_fd());
        while matches!(waitid(process(), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
    }
}

/// Only system calls: the C library's locks may be held, and its heap goes.
extern "C" fn run(plan: *mut ()) -> ! {
    // SAFETY: the memory is a copy of that in which `start` has it.
    let Plan { guarded, file, thread_local } = unsafe { plan.cast::<Plan>().read() };
    let _ = rustix::thread::set_name(c"ramfold-guard");
    // Signals of the terminal are not for it, and it keeps no directory busy.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    if thread::leave_files(Some(file)).is_ok() && leave_memory(thread_local).is_ok() {
        // SAFETY: nobody else in this process has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        guard(guarded, &file);
    }
    raw::exit_group(0)
}

fn guard(guarded: Pid, file: &OwnedFd) {
    let Ok(process) = pidfd_open(guarded, PidfdFlags::empty()) else { return };
    let Ok(listed) = proc::listed_parent() else { return };
    if rustix::process::getppid() != Some(guarded) {
        // It ended before, and another may have got its number.
        return;
    }
    let has_ended =
        || matches!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&INTERVAL)), Ok(1..));
    while !has_ended() {
        // The number cannot be another process's, unless this one has ended.
        let is_dying = proc::is_dying(listed) == Ok(true);
        if is_dying && !has_ended() {
            let _ = rustix::io::write(file, b"1");
            return;
        }
    }
}

/// Gives up the copies of the process's memory: they would be as large as what they are copies of,
/// as soon as that changes. What the C library has for this thread stays: system calls set errno.
fn leave_memory(thread_local: usize) -> Result<(), Errno> {
    let mut line = [0; LINE_MAX];
    let kept = [line.as_ptr() as usize, thread_local];
    maps::for_each(&mut line, |mapping| {
        let is_kept = kept.iter().any(|address| mapping.range.contains(address));
        if mapping.is_private_anonymous() && !is_kept {
            let address = ptr::with_exposed_provenance_mut(mapping.range.start);
            // SAFETY: nothing that is used from here on lies there.
            let _ = unsafe { madvise(address, mapping.range.len(), Advice::LinuxDontNeed) };
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// What is written to the pipe until all others have closed it.
    fn read_all(read_end: OwnedFd) -> String {
        let mut text = String::new();
        File::from(read_end).read_to_string(&mut text).unwrap();
        text
    }

    /// Runs in a child, which has one thread, and returns its number.
    fn in_a_child(f: impl FnOnce()) -> Pid {
        // SAFETY: the child calls what is safe in a copy of a process with several threads.
        match unsafe { libc::fork() } {
            0 => {
                f();
                raw::exit_group(1)
            }
            child => Pid::from_raw(child).unwrap(),
        }
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let guard = Guard::start(write_end.as_fd()).unwrap();
        drop(write_end);
        drop(guard);
        assert_eq!(read_all(read_end), "");
    }

    #[test]
    fn it_ends_with_a_process_that_is_killed() {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let child = in_a_child(|| {
            let guard = Guard::start(write_end.as_fd()).unwrap();
            std::mem::forget(guard);
            rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
        });
        drop(write_end);
        assert_eq!(read_all(read_end), "");
        let waited = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        assert!(waited.unwrap().unwrap().1.signaled());
    }

    #[test]
    fn it_acts_when_the_process_is_dying_and_does_not_end() {
        extern "C" fn live_on(_: *mut ()) -> ! {
            loop {
                let _ = poll(&mut [], None);
            }
        }
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let child = in_a_child(|| {
            std::mem::forget(Guard::start(write_end.as_fd()).unwrap());
            let mut stack = std::mem::ManuallyDrop::new(Pages::new(STACK_BYTES).unwrap());
            let stack = stack.as_mut_ptr_range();
            // SAFETY: a stack of its own, which is never freed.
            unsafe { thread::spawn(stack, live_on, ptr::null_mut()) }.unwrap();
            // SAFETY: the first thread ends; no other uses anything of it.
            unsafe { raw::syscall2(raw::nr::EXIT, 0, 0) };
        });
        let patience = Timespec { tv_sec: 120, tv_nsec: 0 };
        let polled = poll(&mut [PollFd::new(&read_end, PollFlags::IN)], Some(&patience));
        assert_eq!(polled, Ok(1), "it does nothing");
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read_end, &mut byte), Ok(1));
        assert_eq!(&byte, b"1");
        rustix::process::kill_process(child, Signal::KILL).unwrap();
        let waited = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        assert!(waited.unwrap().unwrap().1.signaled());
    }
}

//! The process that the agent's threads run in, and the program's that it belongs to.

use core::ptr::{self};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ramfold_sys::Errno;
use ramfold_sys::pagemap::Pagemap;
use ramfold_sys::process::{self, Program};
use ramfold_sys::robust::RobustList;
use ramfold_sys::thread;
use ramfold_sys::uffd::Uffd;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::thread::{Pid, Timespec, futex};

use super::Agent;
use super::home::{STACK_BYTES, Stack};
use crate::entry::session_place::SessionPlace;
use crate::kernel::proc;
use crate::page::{self, PageNumber};
use crate::session::AGENT_NAME;
use crate::take::watch;

/// How long a program that executes another waits for the agent's process, where only that has the
/// session.
const EXECUTION_LOOKS: u32 = 300;

const EXECUTION_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 4_000_000 };

/// As whom the agent was started.
pub(super) struct StartedAs {
    user: u32,
    user_namespace: u64,
}

impl StartedAs {
    pub(super) fn now() -> StartedAs {
        let user = rustix::process::geteuid().as_raw();
        StartedAs { user, user_namespace: proc::user_namespace() }
    }
}

/// The program's process.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | all | the thread that the agent's process is started from: before the program begins, and in a forked child its one thread | all | by the start of the agent's process |
pub(super) struct ProgramProcess {
    pid: AtomicU32,
    /// In which its number counts.
    pid_namespace: AtomicU64,
    /// See [`process::end_word`], of the program's first thread; zero where it is not known.
    end_word: AtomicUsize,
}

/// What the agent's process has of its own.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `device`, `pagemap`, `robust_list` | its first thread; the kernel reads the list when that ends | that thread | nothing: it is one |
/// | `monitor_thread` | its first thread, when it is the monitor; a forked child finds its parent's there until then | the handler | nothing: the handler is started by the monitor |
pub(super) struct OwnProcess {
    /// Of the first thread.
    robust_list: RobustList,
    /// `/dev/userfaultfd` and `/proc/self/pagemap` in the table of the process, and one more; zero
    /// where they are not open.
    device: AtomicU32,
    pagemap: AtomicU32,
    monitor_thread: AtomicU32,
}

impl Agent {
    /// Where a program finds the session that this process is about to execute: see
    /// [`SessionHolders::for_execution`](crate::entry::session_place::SessionHolders::for_execution).
    ///
    /// # Errors
    /// What open(2) says where it cannot be reached in any way.
    pub(crate) fn session_for_execution(&self) -> Result<(SessionPlace, Option<OwnedFd>), Errno> {
        let holders = &self.session_holders;
        for _ in 0..EXECUTION_LOOKS {
            if let Ok(found) = holders.for_execution() {
                return Ok(found);
            }
            // No agent follows there.
            if self.changed_user_namespace() {
                break;
            }
            // The agent's process may be as young as this one, and about to open it; or be
            // permitted more than this one is any more, until it has noticed.
            self.privileges.ask();
            self.process().wake_agent();
            self.pause_briefly();
        }
        holders.for_execution()
    }

    /// For a thread of the program that waits for the agent's process.
    pub(crate) fn pause_briefly(&self) {
        let never = AtomicU32::new(0);
        let _ = futex::wait(&never, futex::Flags::PRIVATE, 0, Some(&EXECUTION_LOOK));
    }

    /// For the program's thread that the agent's process is started from. `true` for a forked child
    /// that is the first in another namespace of processes: it is about to put its own /proc in the
    /// place of the one by which the session is found.
    pub(crate) fn note_program(&self) -> bool {
        let namespace = proc::pid_namespace();
        let is_new = self.program.pid_namespace.swap(namespace, Ordering::Relaxed) != namespace;
        self.program.pid.store(proc::own_pid(), Ordering::Relaxed);
        self.program.end_word.store(process::end_word().unwrap_or(0), Ordering::Relaxed);
        is_new
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid.load(Ordering::Relaxed)
    }

    /// The program, as the agent's process sees it.
    pub(crate) fn program(&self) -> Program {
        let word = self.program.end_word.load(Ordering::Relaxed);
        // SAFETY: a word of the program's first thread, whose memory is the C library's for ever.
        unsafe { Program::open(self.pid(), (word != 0).then_some(word)) }
    }

    /// The page that the program's first thread is watched by stays in memory: the kernel does not
    /// wait for a missing one when a thread ends.
    pub(crate) fn watched_page(&self) -> PageNumber {
        page::number_of(self.program.end_word.load(Ordering::Relaxed))
    }

    /// Does a page stay in memory, for the kernel to write to when a thread ends?
    pub(crate) fn stays(&self, page: PageNumber) -> bool {
        page == self.watched_page() || self.ends.contains(page)
    }

    /// Called by the first thread of the agent's process: makes it known to the others of the
    /// session. What is opened in /proc is opened before: once it is known, the program may move
    /// that out of sight (pivot_root(2)).
    ///
    /// # Errors
    /// What open(2) says of the account of this process's memory.
    pub(crate) fn begin_process(&self) -> Result<proc::Statm, Errno> {
        if !self.place.is_current() {
            // The place is that of the program which this one has executed.
            ramfold_sys::raw::exit_group(0);
        }
        let own = &self.own_process;
        // SAFETY: the place and the agent live for ever; no C library knows this thread.
        let owned = unsafe { self.process().agent_lives.own(&own.robust_list) };
        // Without it the place is taken for that of a living process for ever.
        debug_assert!(owned.is_ok());
        self.session_holders.hold();
        // Opened while that is permitted: a server that root starts may become somebody else's.
        for (place, opened) in [(&own.device, Uffd::device()), (&own.pagemap, Pagemap::open_file())]
        {
            place.store(opened.map_or(0, |file| file.into_raw_fd() as u32 + 1), Ordering::Relaxed);
        }
        let statm = proc::Statm::open();
        let pid = &self.process().agent_pid;
        pid.store(proc::own_pid(), Ordering::Release);
        let _ = futex::wake(pid, futex::Flags::empty(), u32::MAX);
        let _ = rustix::thread::set_name(AGENT_NAME);
        // What is sent to the program's group is not for this one; nor does it keep a folder in
        // use. The session stays the program's: the scheduler weighs sessions against each other.
        let _ = rustix::process::setpgid(None, None);
        let _ = rustix::process::chdir(c"/");
        statm
    }

    /// What makes userfaultfds, for the agent's process.
    pub(crate) fn userfaultfd_device(&self) -> Option<BorrowedFd<'_>> {
        let number = self.own_process.device.load(Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: opened by this process, which never closes it.
        Some(unsafe { BorrowedFd::borrow_raw(number as i32) })
    }

    /// The map of this process's pages, for the agent's process: once.
    ///
    /// # Errors
    /// As [`Pagemap::open_undumpable`].
    pub(crate) fn take_pagemap(&self) -> Result<Pagemap, Errno> {
        match self.own_process.pagemap.swap(0, Ordering::Relaxed).checked_sub(1) {
            // SAFETY: opened by this process, and nobody else's any more.
            Some(number) => Pagemap::from_file(unsafe { OwnedFd::from_raw_fd(number as i32) }),
            None => Pagemap::open_undumpable(),
        }
    }

    /// The program is gone: ends the agent's process.
    pub(crate) fn leave(&self) -> ! {
        watch::tell_end(self);
        if self.place.is_current() {
            self.process().agent_lives.leave();
        }
        ramfold_sys::raw::exit_group(0)
    }

    /// Starts the agent's process, and returns its number. Called by a thread of the program.
    ///
    /// # Errors
    /// What clone(2) says.
    pub(crate) fn spawn_process(&'static self, entry: thread::Entry) -> Result<u32, Errno> {
        let argument = ptr::from_ref(self).cast_mut().cast();
        // The far half of a stack that the caller may be on. Not one of those that the new process
        // starts threads on: it may be quicker than the one in between is in ending.
        let fork = self.stack(Stack::Fork);
        let between = fork.start..fork.start.wrapping_add(STACK_BYTES / 2);
        let stack = self.stack(Stack::Monitor);
        // SAFETY: the stacks are nobody's yet, and the agent lives for ever.
        unsafe { process::spawn(stack, between, entry, argument) }
    }

    /// Waits for the agent's process, just started, to have what it needs.
    pub(crate) fn wait_for_process(&self, agent_pid: u32) {
        for _ in 0..EXECUTION_LOOKS {
            let pid = &self.process().agent_pid;
            let seen = pid.load(Ordering::Acquire);
            if seen == agent_pid {
                break;
            }
            let _ = futex::wait(pid, futex::Flags::empty(), seen, Some(&EXECUTION_LOOK));
        }
    }

    /// Is the calling thread in another namespace of users than the agent was started in? Not where
    /// /proc does not tell.
    pub(crate) fn changed_user_namespace(&self) -> bool {
        let now = proc::user_namespace();
        now != 0 && now != self.started_as.user_namespace
    }

    /// Is the calling thread somebody else than the agent was started as?
    pub(crate) fn changed_user(&self) -> bool {
        rustix::process::geteuid().as_raw() != self.started_as.user
    }

    /// Called by the monitor when it starts.
    pub(crate) fn set_monitor_thread(&self) {
        self.own_process.monitor_thread.store(proc::own_thread(), Ordering::Relaxed);
    }

    pub(crate) fn monitor_thread(&self) -> Option<Pid> {
        Pid::from_raw(self.own_process.monitor_thread.load(Ordering::Relaxed) as i32)
    }
}

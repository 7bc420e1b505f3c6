//! Forking children, by every way there is, and waiting for them.

use std::sync::atomic::Ordering::SeqCst;

use crate::errno::Errno;
use crate::failure::{EXIT_SKIP, EXIT_WRONG, end};
use crate::operations::{Outcome, Skip};
use crate::permits::Permit;
use crate::snapshot::{Inherited, Snapshot};
use crate::table::Records;
use crate::world::World;
use crate::{current, fail};

/// How to make a child that has a copy of this process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// fork(3), with all that libc and pthread_atfork do around it.
    Libc,
    /// The system calls themselves, which nobody in the process hears of.
    RawClone,
    RawClone3,
    RawFork,
}

/// A child that has not been waited for.
pub(crate) struct Child<'w> {
    pub pid: i32,
    _permit: Option<Permit<'w>>,
}

/// Forks a child that runs `work` on the memory it inherits and exits with its result.
///
/// `work` must neither allocate nor
/// take a lock: the program has other threads, which the child has not.
pub(crate) fn fork<'w>(
    way: Way,
    world: &'w World,
    work: impl FnOnce(&Inherited<'_>) -> i32,
) -> Result<Child<'w>, Skip> {
    let permit = world.children.acquire();
    let gate = world.pins.forking();
    let child = fork_from(way, world, world.table.records, Tie::Parent, work)?;
    drop(gate);
    Ok(Child { pid: child, _permit: Some(permit) })
}

/// Whether a child may outlive the thread that forked it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tie {
    Parent,
    None,
}

/// As `fork`, for a child that forks a child of its own.
pub(crate) fn fork_again(
    way: Way,
    parent: &Inherited<'_>,
    tie: Tie,
    work: impl FnOnce(&Inherited<'_>) -> i32,
) -> Result<Child<'static>, Skip> {
    let pid = fork_from(way, parent.world, parent.records, tie, work)?;
    Ok(Child { pid, _permit: None })
}

fn fork_from(
    way: Way,
    world: &World,
    from: Records<'_>,
    tie: Tie,
    work: impl FnOnce(&Inherited<'_>) -> i32,
) -> Result<i32, Skip> {
    let snapshot = Snapshot::take(from).map_err(|errno| Skip::errno("mmap", errno))?;
    let parent = current::pid();
    // SAFETY: the child runs `work` only, which by the contract of this function neither
    // allocates nor locks, and then ends without running exit handlers.
    let pid = unsafe { make(way) };
    if pid == 0 {
        let inherited = snapshot.inherit(world, from);
        if tie == Tie::Parent {
            // SAFETY: a plain system call.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: as above.
            if unsafe { libc::syscall(libc::SYS_getppid) } as i32 != parent {
                end(EXIT_WRONG);
            }
        }
        end(work(&inherited));
    }
    if pid < 0 {
        return Err(Skip::errno("fork", Errno::last()));
    }
    world.table.header.children.fetch_add(1, SeqCst);
    current::beat();
    Ok(pid)
}

/// Without the C library. Only root's pager can be told of it (UFFD_FEATURE_EVENT_FORK).
///
/// # Safety
/// The child must not rely on locks or on other threads.
#[cfg(target_arch = "x86_64")]
unsafe fn bare_fork() -> i32 {
    let result: i64;
    // SAFETY: the kernel keeps all registers but these.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_fork => result,
            lateout("rcx") _, lateout("r11") _);
    }
    if result < 0 {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result as i32
}

/// # Safety
/// The child must not rely on locks or on other threads.
unsafe fn make(way: Way) -> i32 {
    match way {
        // SAFETY: by the contract of this function.
        Way::Libc => unsafe { libc::fork() },
        // SAFETY: as above. All arguments but the flags are null, so their order, which differs
        // between architectures, does not matter.
        Way::RawClone => unsafe {
            libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), 0, 0, 0, 0) as i32
        },
        Way::RawClone3 => {
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, ...
            let mut arguments = [0_u64; 8];
            arguments[4] = libc::SIGCHLD as u64;
            // SAFETY: as above; the structure is as long as said.
            unsafe {
                let bytes = size_of_val(&arguments);
                libc::syscall(libc::SYS_clone3, arguments.as_ptr(), bytes) as i32
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Way::RawFork => unsafe {
            if libc::geteuid() == 0 { bare_fork() } else { libc::syscall(libc::SYS_fork) as i32 }
        },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Way::RawFork => unsafe { make(Way::RawClone) },
    }
}

impl Child<'_> {
    /// Waits for the child; it must have found everything right.
    pub(crate) fn wait(self) -> Outcome {
        outcome(wait(self.pid))
    }

    /// As `wait`, for a parent that is itself a child: returns the status to exit with.
    pub(crate) fn wait_in_child(self) -> i32 {
        match self.wait() {
            Ok(()) => 0,
            Err(_) => EXIT_SKIP,
        }
    }

    /// The child was waited for by other means.
    pub(crate) fn waited(self, status: i32) -> Outcome {
        outcome(status)
    }
}

/// Waits for a child and returns its status as wait(2) gives it.
pub(crate) fn wait(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: the status outlives the call.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        if got == pid {
            current::beat();
            return status;
        }
        let errno = Errno::last();
        if errno.0 != libc::EINTR {
            fail!("waitpid of {pid} gave {errno}");
        }
    }
}

fn outcome(status: i32) -> Outcome {
    if libc::WIFEXITED(status) {
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            // The child has said what is wrong.
            EXIT_WRONG => end(EXIT_WRONG),
            EXIT_SKIP => Err(Skip::note("a child could not do its part")),
            other => fail!("a child ended with exit status {other}"),
        }
    } else if libc::WIFSIGNALED(status) {
        let hint = match libc::WTERMSIG(status) {
            libc::SIGKILL => ": is there a limit on memory?",
            _ => "",
        };
        fail!("a child was killed by signal {}{hint}", libc::WTERMSIG(status))
    } else {
        fail!("a child has the unexpected wait status {status:#x}")
    }
}

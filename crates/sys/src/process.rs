//! A process of our own that shares the address space of the program, and waits for its end.
//!
//! It is a process and no thread of the program. So it is not listed among the program's threads,
//! does not prevent what only a process of one thread may do (`unshare`, `setns`), is not stopped
//! with the program, and does not keep the program alive when its last thread ends. The memory
//! lives as long as either of the two, so the process must end when the program has ended or has
//! executed another.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ClockId, Timespec, futex};

use crate::path::Path;
use crate::proc::{self, read_file};
use crate::thread::{self, Entry, Stack};
use crate::{Errno, raw};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
/// A tracer of the program does not trace the process.
const CLONE_UNTRACED: usize = 0x80_0000;
const FLAGS: usize = CLONE_VM | CLONE_FILES | CLONE_UNTRACED;
/// The caller goes on when the process has ended. Until then `/proc/PID/stat` shows it busy in the
/// kernel, not asleep: programs that watch whether a child of a fork sleeps would take that for a
/// sleep of the child's own.
const CLONE_VFORK: usize = 0x4000;

/// wait4(2): also children that send no SIGCHLD, and without waiting.
const WALL: usize = 0x4000_0000;
const WNOHANG: usize = 1;
const PR_GET_CHILD_SUBREAPER: usize = 37;
const PR_GET_TID_ADDRESS: usize = 40;
const KCMP_VM: usize = 1;

/// Time between two looks where nothing announces a change.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// How often [`Program::wait_until_gone`] looks once more, before it sleeps, whether all threads
/// have ended.
const YIELDS: u32 = 16;

/// Calls of sched_yield(2) between two looks whether the process in between is dead, which takes
/// some 20 us. After [`YIELDS_MAX`] the caller sleeps.
const YIELDS_FIRST: u32 = 64;
const YIELDS_MAX: u32 = 1 << 16;
/// The distance doubles, so that the last look before sleep comes.
const _: () = assert!(0 < YIELDS_FIRST && YIELDS_FIRST <= YIELDS_MAX && YIELDS_MAX < u32::MAX / 2);

/// What the process in between is to do.
struct Between {
    stack: Stack,
    entry: Entry,
    argument: *mut (),
    /// The number of the process, or a negative errno.
    result: AtomicU32,
}

/// Starts a process in this address space, on the given stack, and returns its number. It has the
/// caller's table of file descriptors, and should call [`thread::leave_files`] before anything
/// else.
///
/// It is nobody's child: a program that waits for all its children does not wait for it, and is not
/// told when it ends. A process in between starts it and ends at once, so that the next reaper
/// above (launcher or init) inherits it. Only a program that is such a reaper itself has it as a
/// child, one that wait(2) leaves out (`__WCLONE`).
///
/// # Errors
/// What clone(2) says.
///
/// # Safety
/// As [`thread::spawn`]; `between` is a stack as well, free again on return. The new process must
/// not use it, since it can be faster than the one in between.
pub unsafe fn spawn(
    stack: Stack,
    between: Stack,
    entry: Entry,
    argument: *mut (),
) -> Result<u32, Errno> {
    let caller_mask = thread::block_all_signals();
    let result = if inherits_orphans() {
        // SAFETY: by the caller's word.
        raw::check(unsafe { thread::clone(FLAGS, stack.end, entry, argument) }).map(|id| id as u32)
    } else {
        let plan = Between { stack, entry, argument, result: AtomicU32::new(0) };
        let plan_address = (&raw const plan).cast_mut().cast();
        // SAFETY: the stack is free, and the plan lives until the process has ended.
        let child =
            unsafe { thread::clone(FLAGS | CLONE_VFORK, between.end, run_between, plan_address) };
        raw::check(child).and_then(wait_for_child).and_then(|()| {
            let word = plan.result.load(Ordering::Acquire) as i32;
            raw::check(word as isize).map(|id| id as u32)
        })
    };
    thread::set_signal_mask(caller_mask);
    match result {
        // The process in between was killed.
        Ok(0) => Err(Errno::AGAIN),
        result => result,
    }
}

extern "C" fn run_between(plan: *mut ()) -> ! {
    // SAFETY: `spawn` waits for this to end.
    let plan = unsafe { &*plan.cast::<Between>() };
    // SAFETY: by the word of the caller of `spawn`.
    let result = unsafe { thread::clone(FLAGS, plan.stack.end, plan.entry, plan.argument) };
    plan.result.store(result as i32 as u32, Ordering::Release);
    raw::exit_group(0)
}

/// Whether processes whose parent ends become children of this one.
fn inherits_orphans() -> bool {
    let mut is_subreaper = 0i32;
    let place = (&raw mut is_subreaper) as usize;
    // SAFETY: the kernel writes one integer.
    unsafe { raw::syscall2(raw::nr::PRCTL, PR_GET_CHILD_SUBREAPER, place) };
    is_subreaper != 0 || proc::own_pid() == 1
}

/// Waits for a process to end, at most for `patience`. It need not be a child.
pub fn wait_for_end(pid: u32, patience: Duration) {
    let patience =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let descriptor = Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    if let Some(Ok(descriptor)) = descriptor {
        let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience));
    }
}

/// Waits for a child that has left the memory and is about to be dead. A thread in wait4(2) is seen
/// asleep, if only for a moment, so there are few looks, at growing distances.
fn wait_for_child(child: usize) -> Result<(), Errno> {
    let mut yields = YIELDS_FIRST;
    loop {
        let sleeps = yields > YIELDS_MAX;
        if !sleeps {
            (0..yields).for_each(|_| rustix::thread::sched_yield());
            yields *= 2;
        }
        let how = if sleeps { WALL } else { WALL | WNOHANG };
        // SAFETY: nothing is written anywhere.
        match raw::check(unsafe { raw::syscall5(raw::nr::WAIT4, child, 0, how, 0, 0) }) {
            Ok(0) => {}
            Err(Errno::INTR) => {}
            result => return result.map(drop),
        }
    }
}

/// The address of the word that the kernel clears when the calling thread ends, for pthread_join;
/// `None` where there is none, or the kernel does not tell (PR_GET_TID_ADDRESS).
pub fn end_word() -> Option<usize> {
    let mut address = 0usize;
    let place = (&raw mut address) as usize;
    // SAFETY: the kernel writes one address.
    let told = raw::check(unsafe { raw::syscall2(raw::nr::PRCTL, PR_GET_TID_ADDRESS, place) });
    (told.is_ok() && address != 0 && address.is_multiple_of(4)).then_some(address)
}

/// Makes another word the [`end_word`] of the calling thread; 0 for none. Where other processes
/// share the thread's memory, the kernel clears the word also when the thread executes a program.
///
/// # Errors
/// What a filter of system calls says: the call itself has no errors.
///
/// # Safety
/// The kernel may clear the word at any time from now on.
pub(crate) unsafe fn set_end_word(address: usize) -> Result<(), Errno> {
    // SAFETY: by the caller's word.
    raw::check(unsafe { raw::syscall2(raw::nr::SET_TID_ADDRESS, address, 0) }).map(drop)
}

/// The program, as seen by a process that shares its address space.
#[derive(Debug)]
pub struct Program {
    pid: u32,
    descriptor: Option<OwnedFd>,
    /// The [`end_word`] of the first thread, and what it holds while that lives. Because memory is
    /// shared, the kernel clears it and wakes its waiters also when the program executes another.
    word: Option<(&'static AtomicU32, u32)>,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The program may have ended, or only one of the two could be waited for.
    LookAgain,
    /// The wait has ended otherwise: the word has changed, or the time is over.
    Woken,
}

impl Program {
    /// The program of this process number, and its first thread's [`end_word`] where that is known.
    ///
    /// # Safety
    /// `word` must be a thread's [`end_word`] that stays mapped.
    pub unsafe fn open(pid: u32, word: Option<usize>) -> Program {
        let descriptor =
            Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let word = word.and_then(|address| {
            // SAFETY: by the caller's word.
            let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            let alive = word.load(Ordering::Acquire);
            (alive != 0).then_some((word, alive))
        });
        Program { pid, descriptor, word }
    }

    /// Whether it is gone from this address space: all its threads have ended, or it executes
    /// another program.
    pub fn is_gone(&self) -> bool {
        self.has_ended() || !shares_memory(self.pid)
    }

    fn has_ended(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        match &self.descriptor {
            Some(descriptor) => {
                let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
                matches!(poll(&mut polled, Some(&NOW)), Ok(1..))
            }
            None => proc::has_ended(self.pid) == Ok(true),
        }
    }

    /// Sleeps until it is gone, at most for `patience`; `true` when it is.
    pub fn wait_until_gone(&self, patience: Timespec) -> bool {
        if let Some((word, alive)) = self.word
            && word.load(Ordering::Acquire) == alive
        {
            // Not a private futex: the kernel wakes this word as one that processes share.
            let _ = futex::wait(word, futex::Flags::empty(), alive, Some(&patience));
            if word.load(Ordering::Acquire) == alive {
                return false;
            }
        }
        // The first thread has ended or executes. The others may be about to end, or live on.
        for _ in 0..YIELDS {
            if self.is_gone() {
                return true;
            }
            rustix::thread::sched_yield();
        }
        let patience = if patience < LOOK_AGAIN { patience } else { LOOK_AGAIN };
        match &self.descriptor {
            Some(descriptor) => {
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&patience));
            }
            None => {
                let never = AtomicU32::new(0);
                let _ = futex::wait(&never, futex::Flags::PRIVATE, 0, Some(&patience));
            }
        }
        self.is_gone()
    }

    /// Sleeps until `wake` is not `seen` any more, at most for `patience`, or until the program may
    /// be gone.
    pub fn wait_beside(&self, wake: &AtomicU32, seen: u32, patience: Timespec) -> Waited {
        let Some((word, alive)) = self.word.filter(|_| !self.first_thread_has_ended()) else {
            // Only one of the two can be waited for. The other is looked at first, since the
            // program may have been gone before this began.
            if self.is_gone() {
                return Waited::LookAgain;
            }
            let patience = if patience < LOOK_AGAIN { patience } else { LOOK_AGAIN };
            let _ = futex::wait(wake, futex::Flags::empty(), seen, Some(&patience));
            return Waited::LookAgain;
        };
        let mut until = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        until.tv_sec += patience.tv_sec;
        until.tv_nsec += patience.tv_nsec;
        if until.tv_nsec >= 1_000_000_000 {
            until.tv_sec += 1;
            until.tv_nsec -= 1_000_000_000;
        }
        let waiter = |word: &AtomicU32, value: u32| {
            let mut waiter = futex::Wait::new();
            waiter.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            waiter.val = u64::from(value);
            waiter.flags = futex::WaitFlags::SIZE_U32;
            waiter
        };
        let waiters = [waiter(wake, seen), waiter(word, alive)];
        let flags = futex::WaitvFlags::empty();
        let woken = futex::waitv(&waiters, flags, Some(&until), ClockId::Monotonic);
        match woken {
            // Before Linux 5.16.
            Err(Errno::NOSYS) => {
                let _ = futex::wait(wake, futex::Flags::empty(), seen, Some(&patience));
                Waited::LookAgain
            }
            _ if self.first_thread_has_ended() => Waited::LookAgain,
            _ => Waited::Woken,
        }
    }

    fn first_thread_has_ended(&self) -> bool {
        self.word.is_none_or(|(word, alive)| word.load(Ordering::Acquire) != alive)
    }
}

/// Whether a thread of this process has the address space of the caller; `true` where that cannot
/// be told. The first thread has none when it has ended.
fn shares_memory(pid: u32) -> bool {
    is_in_this_memory(pid) || any_thread(pid, |thread| thread != pid && is_in_this_memory(thread))
}

fn is_in_this_memory(thread: u32) -> bool {
    let own = proc::own_pid() as usize;
    // SAFETY: takes no pointers.
    let order =
        raw::check(unsafe { raw::syscall5(raw::nr::KCMP, own, thread as usize, KCMP_VM, 0, 0) });
    match order {
        Ok(order) => order == 0,
        Err(Errno::SRCH) => false,
        // Not built into this kernel, or not permitted (it has become another user, or executes a
        // program of another user): sizes, which every user may see, are compared.
        Err(_) => !(0..3).all(|_| has_other_size(thread)),
    }
}

/// Whether the size of its address space differs from the caller's. It can seem to while it
/// changes.
fn has_other_size(thread: u32) -> bool {
    let size = |path: Path| {
        let mut text = [0; 128];
        let length = read_file(path.as_c_str(), &mut text)?;
        crate::maps::number(&text[..length], 10).map(|(pages, _)| pages).ok_or(Errno::PROTO)
    };
    let own = Path::new(format_args!("/proc/self/statm")).and_then(size);
    let other = Path::new(format_args!("/proc/{thread}/statm")).and_then(size);
    own.is_ok() && other.is_ok() && own != other
}

/// Whether `is_so` for any of the threads that `/proc/PID/task` lists.
fn any_thread(pid: u32, is_so: impl Fn(u32) -> bool) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = Path::new(format_args!("/proc/{pid}/task"))
        .and_then(|path| rustix::fs::open(path.as_c_str(), flags, Mode::empty()))
    else {
        return false;
    };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&folder, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let thread = crate::maps::number(entry.file_name().to_bytes(), 10);
        if thread.is_some_and(|(thread, _)| is_so(thread as u32)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::mem::Reservation;
    use crate::tests_wait_until as wait_until;
    use core::sync::atomic::AtomicBool;

    /// Two stacks for a process, which it may need for ever.
    fn stacks() -> [Stack; 2] {
        [(); 2].map(|()| {
            let stack = Reservation::new(16 * PAGE_SIZE).unwrap();
            stack.commit(0, stack.len()).unwrap();
            let start = stack.as_ptr();
            let end = start.wrapping_add(stack.len());
            std::mem::forget(stack);
            start..end
        })
    }

    struct Shared {
        program: u32,
        word: Option<usize>,
        ready: AtomicU32,
        gone: AtomicBool,
    }

    extern "C" fn watch(shared: *mut ()) -> ! {
        // SAFETY: the tests leak it.
        let shared = unsafe { &*shared.cast::<Shared>() };
        if thread::leave_files(None).is_err() {
            raw::exit_group(1);
        }
        // SAFETY: of the test's first thread.
        let program = unsafe { Program::open(shared.program, shared.word) };
        shared.ready.store(proc::own_pid(), Ordering::Release);
        while !program.wait_until_gone(Timespec { tv_sec: 1, tv_nsec: 0 }) {}
        shared.gone.store(true, Ordering::Release);
        raw::exit_group(0)
    }

    fn start(shared: &'static Shared) -> u32 {
        let [stack, between] = stacks();
        let argument = ptr_of(shared);
        // SAFETY: stacks of its own, and what it is passed lives for ever.
        let pid = unsafe { spawn(stack, between, watch, argument) }.unwrap();
        wait_until("it has started", || shared.ready.load(Ordering::Acquire) != 0);
        assert_eq!(shared.ready.load(Ordering::Acquire), pid);
        pid
    }

    fn ptr_of(shared: &'static Shared) -> *mut () {
        core::ptr::from_ref(shared).cast_mut().cast()
    }

    fn new_shared() -> &'static Shared {
        Box::leak(Box::new(Shared {
            program: proc::own_pid(),
            word: end_word(),
            ready: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        }))
    }

    /// Runs in a child of the test's process, which has one thread. Reports by its exit status.
    fn in_a_child(f: impl FnOnce()) -> i32 {
        // SAFETY: the child calls what is safe in a copy of a process with several threads.
        match unsafe { libc::fork() } {
            0 => {
                f();
                raw::exit_group(7)
            }
            child => {
                let mut status = 0;
                // SAFETY: one integer is written.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                status
            }
        }
    }

    #[test]
    fn it_is_no_thread_and_no_child_and_ends_with_the_program() {
        // Where the child tells of its companion, in memory that both this test and it have.
        let told = crate::mem::tests_shared_word();
        let status = in_a_child(|| {
            let shared = new_shared();
            let pid = start(shared);
            assert_eq!(proc::thread_count(), Ok(1));
            // SAFETY: nothing is written.
            let waited = unsafe { libc::waitpid(-1, core::ptr::null_mut(), 0) };
            assert_eq!((waited, std::io::Error::last_os_error().raw_os_error()), (-1, Some(10)));
            // SAFETY: takes no pointers.
            let unshared = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            let refused = std::io::Error::last_os_error().raw_os_error();
            assert!(unshared == 0 || refused != Some(libc::EINVAL), "{refused:?}");
            told.store(pid, Ordering::SeqCst);
        });
        assert_eq!(status, 7 << 8);
        let pid = told.load(Ordering::SeqCst);
        wait_until("it has ended", || proc::has_ended(pid) == Ok(true));
    }

    #[test]
    fn it_ends_when_the_program_executes_another_or_is_killed() {
        for execute in [true, false] {
            let told = crate::mem::tests_shared_word();
            let status = in_a_child(|| {
                told.store(start(new_shared()), Ordering::SeqCst);
                // SAFETY: strings that end with zero, and a list that ends with null.
                unsafe {
                    if execute {
                        let list = [c"true".as_ptr(), core::ptr::null()];
                        libc::execv(c"/bin/true".as_ptr(), list.as_ptr());
                    }
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
            });
            assert_eq!(status, if execute { 0 } else { 9 });
            let pid = told.load(Ordering::SeqCst);
            assert_ne!(pid, 0);
            wait_until("it has ended", || proc::has_ended(pid) == Ok(true));
        }
    }

    #[test]
    fn another_process_has_other_memory() {
        assert!(shares_memory(proc::own_pid()));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(!shares_memory(child.id()));
        wait_until("it has another size", || has_other_size(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

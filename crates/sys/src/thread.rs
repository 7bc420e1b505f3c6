//! Threads that libc does not know.
//!
//! - They take no signals.
//! - They have no thread-local storage of their own, so nothing that uses errno may run on them.
//! - Those of a process of our own ([`crate::process`]) have their **own table of file
//!   descriptors**: what the program closes does not close theirs, the program never sees theirs,
//!   and none of the program's pipes is held open by them.

use core::arch::naked_asm;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;

use crate::{Errno, raw};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;

const SIG_SETMASK: usize = 2;

/// What a new thread runs. It must not return.
pub type Entry = extern "C" fn(*mut ()) -> !;

/// Memory for a stack, which grows down from its end.
pub type Stack = Range<*mut u8>;

/// Starts a thread of the calling process on the given stack and returns its id. It has the
/// caller's files.
///
/// # Errors
/// `EAGAIN` or `ENOMEM` when there may be no more threads.
///
/// # Safety
/// `stack` must be writable memory that nobody else uses for as long as the thread lives, and
/// `argument` must be what `entry` expects.
pub unsafe fn spawn(stack: Stack, entry: Entry, argument: *mut ()) -> Result<u32, Errno> {
    let flags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_FILES;
    // The new thread inherits the mask; it must never run a handler of the program.
    let caller_mask = block_all_signals();
    // SAFETY: the caller vouches for stack and argument.
    let result = unsafe { clone(flags, stack.end, entry, argument) };
    set_signal_mask(caller_mask);
    raw::check(result).map(|id| id as u32)
}

/// Blocks every signal for the calling thread and returns the mask it had.
pub(crate) fn block_all_signals() -> u64 {
    exchange_signal_mask(u64::MAX)
}

/// Sets the calling thread's mask of blocked signals.
pub fn set_signal_mask(mask: u64) {
    exchange_signal_mask(mask);
}

fn exchange_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: two words of the size the kernel is told.
    unsafe {
        raw::syscall5(
            raw::nr::RT_SIGPROCMASK,
            SIG_SETMASK,
            (&raw const mask) as usize,
            (&raw mut old) as usize,
            size_of::<u64>(),
            0,
        )
    };
    old
}

/// Gives the caller a table of file descriptors of its own instead of the shared one. Only the
/// descriptor `kept` is in it.
///
/// # Errors
/// `ENOMEM`; what unshare(2) says before Linux 5.9, or where close_range(2) is not permitted.
pub fn leave_files(kept: Option<i32>) -> Result<(), Errno> {
    const CLOSE_RANGE: usize = 436;
    const CLOSE_RANGE_UNSHARE: usize = 2;
    const HIGHEST: usize = u32::MAX as usize;
    const HIGHEST_FALLBACK: usize = 1 << 16;

    // Behind what is kept; below it there may be nothing.
    let first = kept.map_or(0, |kept| kept as usize + 1);
    // SAFETY: descriptors are numbers; the caller wants them gone from its table.
    let left = unsafe { raw::syscall5(CLOSE_RANGE, first, HIGHEST, CLOSE_RANGE_UNSHARE, 0, 0) };
    if raw::check(left).is_ok() {
        if first > 1 {
            // SAFETY: as above; the table is the caller's own now.
            raw::check(unsafe { raw::syscall5(CLOSE_RANGE, 0, first - 2, 0, 0, 0) })?;
        }
        return Ok(());
    }
    // SAFETY: takes no pointers.
    raw::check(unsafe { raw::syscall2(raw::nr::UNSHARE, CLONE_FILES, 0) })?;
    for fd in (0..HIGHEST_FALLBACK).filter(|&fd| kept != Some(fd as i32)) {
        // SAFETY: as above.
        unsafe { raw::syscall2(raw::nr::CLOSE, fd, 0) };
    }
    Ok(())
}

/// Clones the caller: the new task runs `entry` on the given stack. Returns the kernel's answer.
///
/// # Safety
/// As [`spawn`], where `flags` share memory; they must ask for nothing that takes another argument.
pub(crate) unsafe fn clone(
    flags: usize,
    stack_end: *mut u8,
    entry: Entry,
    argument: *mut (),
) -> isize {
    // SAFETY: by the caller's word.
    unsafe { clone_on(flags, stack_end, entry, argument) }
}

#[unsafe(naked)]
unsafe extern "C" fn clone_on(
    flags: usize,
    stack_end: *mut u8,
    entry: Entry,
    argument: *mut (),
) -> isize {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        // Entry and argument wait on the new stack; the child has no other way to them.
        "and rsi, -16",
        "sub rsi, 16",
        "mov [rsi], rdx",
        "mov [rsi + 8], rcx",
        "mov eax, {clone}",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "ud2",
        clone = const raw::nr::CLONE,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "and x1, x1, #-16",
        "stp x2, x3, [x1, #-16]!",
        "mov x2, #0",
        "mov x3, #0",
        "mov x4, #0",
        "mov x8, {clone}",
        "svc #0",
        "cbz x0, 2f",
        "ret",
        "2:",
        "mov x29, #0",
        "mov x30, #0",
        "ldp x1, x0, [sp], #16",
        "blr x1",
        "brk #1",
        clone = const raw::nr::CLONE,
    );
}

/// `struct sched_attr` of linux/sched/types.h, first version.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl SchedulingAttributes {
    fn of_this_thread() -> Result<Self, Errno> {
        let mut attributes = SchedulingAttributes::default();
        let size = size_of::<SchedulingAttributes>();
        // SAFETY: the structure is as large as is said.
        let got = unsafe {
            raw::syscall6(raw::nr::SCHED_GETATTR, 0, (&raw mut attributes) as usize, size, 0, 0, 0)
        };
        raw::check(got).map(|_| attributes)
    }

    fn set(&self) -> Result<(), Errno> {
        // SAFETY: the structure says how large it is.
        let set = unsafe {
            raw::syscall6(raw::nr::SCHED_SETATTR, 0, ptr::from_ref(self) as usize, 0, 0, 0, 0)
        };
        raw::check(set).map(drop)
    }
}

const NICE_MIN: i32 = -20;
const SCHED_FIFO: u32 = 1;

/// Asks the scheduler to let the calling thread run soon and for short turns and, where that is
/// permitted (CAP_SYS_NICE, RLIMIT_NICE), before others. `turn_ns` is the length of its turns (0.1
/// to 100 ms): from Linux 6.12 on, a thread with short turns does not wait for the end of a longer
/// one when it wakes up. `steps` are subtracted from its nice value; returns `true` where that is
/// permitted.
///
/// # Errors
/// What sched_setattr(2) says.
pub fn run_soon(turn_ns: u64, steps: i32) -> Result<bool, Errno> {
    let mut attributes = SchedulingAttributes::of_this_thread()?;
    attributes.runtime = turn_ns;
    let nice = attributes.nice;
    attributes.nice = (nice - steps).max(NICE_MIN);
    match attributes.set() {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => {
            attributes.nice = nice;
            attributes.set().map(|()| false)
        }
        Err(errno) => Err(errno),
    }
}

/// As long as this is there, the thread that made it comes before all that are not real-time
/// (SCHED_FIFO with the lowest priority), and the kernel gives it half of the memory that it keeps
/// back from others (`ALLOC_MIN_RESERVE` in mm/page_alloc.c). Threads that it starts meanwhile are
/// so to their end.
#[derive(Debug)]
pub struct RealTime {
    before: SchedulingAttributes,
    /// Of this thread alone.
    thread: PhantomData<*const ()>,
}

impl RealTime {
    /// Makes the calling thread real-time.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_NICE, or where a control group has no real-time budget.
    pub fn begin() -> Result<RealTime, Errno> {
        let before = SchedulingAttributes::of_this_thread()?;
        let real_time = SchedulingAttributes {
            size: before.size,
            policy: SCHED_FIFO,
            priority: 1,
            ..SchedulingAttributes::default()
        };
        real_time.set()?;
        Ok(RealTime { before, thread: PhantomData })
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Less is never refused.
        let _ = self.before.set();
    }
}

const PR_SET_THP_DISABLE: usize = 41;
const PR_GET_THP_DISABLE: usize = 42;

/// Whether transparent huge pages are turned off for this process.
///
/// # Errors
/// What prctl(2) says.
pub fn huge_pages_off() -> Result<bool, Errno> {
    // SAFETY: takes no pointer.
    let off = unsafe { raw::syscall6(raw::nr::PRCTL, PR_GET_THP_DISABLE, 0, 0, 0, 0, 0) };
    raw::check(off).map(|off| off != 0)
}

/// Turns transparent huge pages off for this process and for what it forks and executes, or on
/// again.
///
/// # Errors
/// What prctl(2) says.
pub fn set_huge_pages_off(off: bool) -> Result<(), Errno> {
    // SAFETY: as above.
    let set = unsafe { raw::syscall6(raw::nr::PRCTL, PR_SET_THP_DISABLE, off.into(), 0, 0, 0, 0) };
    raw::check(set).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::mem::Reservation;
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use rustix::fd::AsRawFd;
    use rustix::thread::futex;

    struct Meeting {
        mask: AtomicU64,
        done: AtomicU32,
    }

    extern "C" fn entry(argument: *mut ()) -> ! {
        // SAFETY: the test leaks it.
        let meeting = unsafe { &*argument.cast::<Meeting>() };
        meeting.mask.store(block_all_signals(), Ordering::SeqCst);
        meeting.done.store(1, Ordering::SeqCst);
        let _ = futex::wake(&meeting.done, futex::Flags::PRIVATE, 1);
        loop {
            // SAFETY: ends this thread only.
            unsafe { raw::syscall2(raw::nr::EXIT, 0, 0) };
        }
    }

    #[test]
    fn a_thread_takes_no_signals() {
        let stack = Reservation::new(16 * PAGE_SIZE).unwrap();
        stack.commit(0, stack.len()).unwrap();
        let meeting =
            Box::leak(Box::new(Meeting { mask: AtomicU64::new(0), done: AtomicU32::new(0) }));
        let start = stack.as_ptr();
        let argument = (&raw mut *meeting).cast();
        // SAFETY: the stack is leaked below, the meeting is leaked.
        let id = unsafe { spawn(start..start.add(stack.len()), entry, argument) };
        assert!(id.unwrap() > 0);
        while meeting.done.load(Ordering::SeqCst) == 0 {
            let _ = futex::wait(&meeting.done, futex::Flags::PRIVATE, 0, None);
        }
        std::mem::forget(stack);
        // KILL and STOP cannot be blocked.
        let full = !(1u64 << 8 | 1 << 18);
        assert_eq!(meeting.mask.load(Ordering::SeqCst) & full, full);
    }

    #[test]
    fn a_thread_that_leaves_its_files_has_what_it_keeps_and_closes_none() {
        let files = [0; 3].map(|_| std::fs::File::open("/dev/null").unwrap());
        let numbers = files.each_ref().map(|file| file.as_raw_fd());
        for kept in [None, Some(numbers[1]), Some(numbers[0]), Some(0), Some(1)] {
            std::thread::spawn(move || {
                leave_files(kept).unwrap();
                for number in [0, 1, 2].into_iter().chain(numbers) {
                    // SAFETY: only asked whether the number is open in this thread's table.
                    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(number) };
                    let is_open = rustix::io::fcntl_getfd(fd).is_ok();
                    assert_eq!(is_open, kept == Some(number), "{number} of {kept:?}");
                }
            })
            .join()
            .unwrap();
        }
        assert!(files.iter().all(|file| rustix::io::fcntl_getfd(file).is_ok()));
    }

    #[test]
    fn a_thread_runs_soon_and_first_where_that_is_permitted() {
        let threads = [0, 10].map(|steps| {
            std::thread::spawn(move || {
                let before = SchedulingAttributes::of_this_thread().unwrap().nice;
                let first = run_soon(300_000, steps).unwrap();
                let after = SchedulingAttributes::of_this_thread().unwrap();
                (first, before, after.nice)
            })
        });
        let [same, first] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(same, (true, same.1, same.1));
        let taken = if first.0 { 10 } else { 0 };
        assert_eq!(first.2, first.1 - taken);
    }

    #[test]
    fn a_thread_that_may_not_come_first_runs_soon_all_the_same() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            let before = SchedulingAttributes::of_this_thread().unwrap().nice;
            // The limit of RLIMIT_NICE is nowhere that low.
            assert_eq!(run_soon(300_000, 40), Ok(false));
            assert_eq!(SchedulingAttributes::of_this_thread().unwrap().nice, before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_and_those_it_starts_are_real_time_where_that_is_permitted() {
        let policy = || SchedulingAttributes::of_this_thread().unwrap().policy;
        std::thread::spawn(move || {
            let before = policy();
            match RealTime::begin() {
                Ok(_begun) => {
                    let policies = (policy(), std::thread::spawn(policy).join().unwrap());
                    assert_eq!(policies, (SCHED_FIFO, SCHED_FIFO));
                }
                // Not for everybody.
                Err(error) => assert_eq!(error, Errno::PERM),
            }
            assert_eq!(policy(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn huge_pages_go_off_and_on() {
        let before = huge_pages_off().unwrap();
        set_huge_pages_off(!before).unwrap();
        assert_eq!(huge_pages_off(), Ok(!before));
        set_huge_pages_off(before).unwrap();
    }
}

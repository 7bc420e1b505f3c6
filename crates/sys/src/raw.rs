//! System calls that no wrapper fits: made on threads libc does not know, or in a signal handler
//! that stands in for a system call of the program.

use core::arch::asm;

use rustix::fd::{AsRawFd, BorrowedFd};

use crate::Errno;

/// Numbers of system calls, for [`syscall6`] and its variants.
#[cfg(target_arch = "x86_64")]
// Some are for modules that need the standard library.
#[cfg_attr(not(any(test, feature = "std")), allow(dead_code))]
pub mod nr {
    pub(crate) const CLOSE: usize = 3;
    /// mmap(2).
    pub const MMAP: usize = 9;
    /// mprotect(2).
    pub const MPROTECT: usize = 10;
    /// brk(2).
    pub const BRK: usize = 12;
    /// rt_sigaction(2).
    pub const RT_SIGACTION: usize = 13;
    /// rt_sigprocmask(2).
    pub const RT_SIGPROCMASK: usize = 14;
    /// rt_sigreturn(2).
    pub const RT_SIGRETURN: usize = 15;
    pub(crate) const IOCTL: usize = 16;
    /// mremap(2).
    pub const MREMAP: usize = 25;
    pub(crate) const MINCORE: usize = 27;
    /// clone(2).
    pub const CLONE: usize = 56;
    /// fork(2).
    pub const FORK: usize = 57;
    /// vfork(2).
    pub const VFORK: usize = 58;
    /// execve(2).
    pub const EXECVE: usize = 59;
    #[cfg(test)]
    pub(crate) const EXIT: usize = 60;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const SETGROUPS: usize = 116;
    pub(crate) const SETRESUID: usize = 117;
    pub(crate) const SETRESGID: usize = 119;
    pub(crate) const SETFSUID: usize = 122;
    pub(crate) const SETFSGID: usize = 123;
    pub(crate) const CAPGET: usize = 125;
    pub(crate) const CAPSET: usize = 126;
    /// prctl(2).
    pub const PRCTL: usize = 157;
    pub(crate) const SWAPON: usize = 167;
    pub(crate) const SWAPOFF: usize = 168;
    pub(crate) const IO_SETUP: usize = 206;
    pub(crate) const IO_SUBMIT: usize = 209;
    pub(crate) const SET_TID_ADDRESS: usize = 218;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const SET_ROBUST_LIST: usize = 273;
    pub(crate) const NAME_TO_HANDLE_AT: usize = 303;
    pub(crate) const OPEN_BY_HANDLE_AT: usize = 304;
    pub(crate) const KCMP: usize = 312;
    pub(crate) const SCHED_SETATTR: usize = 314;
    pub(crate) const SCHED_GETATTR: usize = 315;
    /// execveat(2).
    pub const EXECVEAT: usize = 322;
    pub(crate) const USERFAULTFD: usize = 323;
    /// clone3(2).
    pub const CLONE3: usize = 435;
    pub(crate) const CACHESTAT: usize = 451;
}

/// Numbers of system calls, for [`syscall6`] and its variants.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(any(test, feature = "std")), allow(dead_code))]
pub mod nr {
    pub(crate) const IO_SETUP: usize = 0;
    pub(crate) const IO_SUBMIT: usize = 2;
    pub(crate) const FCNTL: usize = 25;
    pub(crate) const IOCTL: usize = 29;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const CAPGET: usize = 90;
    pub(crate) const CAPSET: usize = 91;
    #[cfg(test)]
    pub(crate) const EXIT: usize = 93;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const SET_TID_ADDRESS: usize = 96;
    pub(crate) const UNSHARE: usize = 97;
    pub(crate) const SET_ROBUST_LIST: usize = 99;
    /// rt_sigaction(2).
    pub const RT_SIGACTION: usize = 134;
    /// rt_sigprocmask(2).
    pub const RT_SIGPROCMASK: usize = 135;
    /// rt_sigreturn(2).
    pub const RT_SIGRETURN: usize = 139;
    pub(crate) const SETRESUID: usize = 147;
    pub(crate) const SETRESGID: usize = 149;
    pub(crate) const SETFSUID: usize = 151;
    pub(crate) const SETFSGID: usize = 152;
    pub(crate) const SETGROUPS: usize = 159;
    /// prctl(2).
    pub const PRCTL: usize = 167;
    /// brk(2).
    pub const BRK: usize = 214;
    /// mremap(2).
    pub const MREMAP: usize = 216;
    /// clone(2).
    pub const CLONE: usize = 220;
    /// mmap(2).
    pub const MMAP: usize = 222;
    /// mprotect(2).
    pub const MPROTECT: usize = 226;
    pub(crate) const SWAPON: usize = 224;
    pub(crate) const SWAPOFF: usize = 225;
    pub(crate) const MINCORE: usize = 232;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const NAME_TO_HANDLE_AT: usize = 264;
    pub(crate) const OPEN_BY_HANDLE_AT: usize = 265;
    pub(crate) const KCMP: usize = 272;
    pub(crate) const SCHED_SETATTR: usize = 274;
    pub(crate) const SCHED_GETATTR: usize = 275;
    pub(crate) const USERFAULTFD: usize = 282;
    /// clone3(2).
    pub const CLONE3: usize = 435;
    pub(crate) const CACHESTAT: usize = 451;
}

/// Makes a system call and returns the kernel's answer: a result, or `-errno` in -4095..0.
///
/// # Safety
/// The call itself must be sound with these arguments.
#[inline]
pub unsafe fn syscall6(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel keeps all registers but rax, rcx and r11; the caller vouches for the call.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel keeps all registers but x0; the caller vouches for the call.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// [`syscall6`] with two arguments.
///
/// # Safety
/// As [`syscall6`].
#[inline]
pub unsafe fn syscall2(number: usize, a: usize, b: usize) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { syscall6(number, a, b, 0, 0, 0, 0) }
}

/// [`syscall6`] with five arguments.
///
/// # Safety
/// As [`syscall6`].
#[inline]
pub unsafe fn syscall5(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { syscall6(number, a, b, c, d, e, 0) }
}

/// The kernel's answer as a `Result`.
///
/// # Errors
/// The error that the answer stands for.
#[inline]
pub fn check(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// ioctl with a structure the kernel may read and write.
///
/// # Safety
/// `argument` must be the structure that `opcode` names.
pub(crate) unsafe fn ioctl<T>(
    fd: BorrowedFd<'_>,
    opcode: u32,
    argument: *mut T,
) -> Result<usize, Errno> {
    let fd = fd.as_raw_fd() as usize;
    // SAFETY: the caller vouches for opcode and argument.
    check(unsafe { syscall6(nr::IOCTL, fd, opcode as usize, argument as usize, 0, 0, 0) })
}

/// Whether the eight bytes at an address can be read. The kernel is asked to read a mask of signals
/// there, for a change of the thread's mask that it refuses in any case.
pub fn is_readable(address: usize) -> bool {
    const NO_SUCH_CHANGE: usize = usize::MAX;
    // SAFETY: the kernel reads with care, and refuses the change in any case.
    let answer = check(unsafe {
        syscall5(nr::RT_SIGPROCMASK, NO_SUCH_CHANGE, address, 0, size_of::<u64>(), 0)
    });
    // For a null pointer it does nothing, and reports success.
    address != 0 && answer != Err(Errno::FAULT)
}

/// Ends all threads of the process, with this exit status (exit_group(2)).
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: exit_group takes no pointers and does not return.
        unsafe { syscall2(nr::EXIT_GROUP, status as usize, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Reservation;

    #[test]
    fn only_what_can_be_read_is_readable() {
        let value = 7u64;
        assert!(is_readable((&raw const value) as usize));
        let inaccessible = Reservation::new(1).unwrap().as_ptr() as usize;
        for bad in [0, inaccessible, inaccessible - 4, usize::MAX - 4096] {
            assert!(!is_readable(bad), "{bad:#x}");
        }
    }
}

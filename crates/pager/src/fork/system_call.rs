//! Forks by the C library's `syscall`, which goes around its own fork and whatever would be told of
//! it.
//!
//! The preloaded library has a `syscall` of its own. It forks as [`before_fork`] and its kin do, and
//! makes every other call as the C library would: without a frame, because a call may return on
//! another stack.

use core::arch::naked_asm;

use ramfold_sys::raw::{self, nr};

use super::{after_fork_in_child, after_fork_in_parent, before_fork, trap};
use crate::entry::set_errno;

/// Arguments of `syscall` as it finds them: five in registers, which it puts here, the last on the
/// stack behind the return address.
#[repr(C)]
struct Arguments {
    number: usize,
    first: [usize; 5],
    return_address: usize,
    last: usize,
}

/// In the two registers that a result is returned in.
#[repr(C)]
struct Answer {
    result: isize,
    /// 0: the call is not for us.
    done: usize,
}

/// # Safety
/// As the C library's, which this stands for.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {clone}",
        "je 3f",
        "cmp rdi, {fork}",
        "je 3f",
        "cmp rdi, {clone3}",
        "je 3f",
        // Every other call, and those of them that are no forks.
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "4:",
        "cmp rax, -4095",
        "jae 5f",
        "ret",
        "5:",
        "mov rdi, rax",
        "sub rsp, 8",
        "call {fail}",
        "add rsp, 8",
        "ret",
        "3:",
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov rdi, rsp",
        "sub rsp, 8",
        "call {fork_by_call}",
        "mov r11, rdx",
        "add rsp, 8",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "pop r9",
        "test r11, r11",
        "jz 2b",
        "jmp 4b",
        clone = const nr::CLONE,
        fork = const nr::FORK,
        clone3 = const nr::CLONE3,
        fork_by_call = sym fork_by_call,
        fail = sym fail,
    )
}

extern "C" fn fail(result: isize) -> isize {
    set_errno(-result as i32);
    -1
}

/// Makes the call if it copies the process. Returns in parent and child.
extern "C" fn fork_by_call(arguments: &Arguments) -> Answer {
    let Arguments { number, first: [a, b, c, d, e], last, .. } = *arguments;
    let call = [a, b, c, d, e, last];
    if !trap::copies_memory(number, &call) {
        return Answer { result: 0, done: 0 };
    }
    before_fork();
    let result = if trap::is_armed() {
        trap::fork_from_agent_stack(number, &call)
    } else {
        // SAFETY: the program asked for this very call.
        unsafe { raw::syscall6(number, call[0], call[1], call[2], call[3], call[4], call[5]) }
    };
    if result == 0 {
        after_fork_in_child();
    } else {
        after_fork_in_parent();
    }
    Answer { result, done: 1 }
}

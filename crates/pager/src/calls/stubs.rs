//! Where the C library's system calls arrive.
//!
//! A stub finds the registers as the kernel would, and leaves them so: all but rax, rcx and r11 keep
//! what they hold. It describes its frame (`.cfi`), so that a signal that arrives here can be traced
//! back to the program.

use core::arch::global_asm;
use core::sync::atomic::AtomicUsize;

use ramfold_sys::raw::nr;

use super::on_call;

/// Behind the instruction by which `syscall` of the C library enters the kernel.
pub static RETURN_FROM_SYSCALL: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// In the place of the last two instructions of `syscall`: the load of its last argument and
    /// the entry. It uses no stack for a call that it makes as it is, because some return on
    /// another.
    #[link_name = "ramfold_stub_syscall"]
    pub fn stub_syscall();
}

global_asm!(
    ".pushsection .text",
    ".globl ramfold_stub_syscall",
    ".hidden ramfold_stub_syscall",
    ".type ramfold_stub_syscall, @function",
    "ramfold_stub_syscall:",
    ".cfi_startproc",
    "mov r9, [rsp + 8]",
    "cmp rax, {clone}",
    "je 2f",
    "cmp rax, {fork}",
    "je 2f",
    "cmp rax, {clone3}",
    "je 2f",
    "1:",
    "syscall",
    "jmp qword ptr [rip + {return_from_syscall}]",
    // The call and its arguments, in an array that begins where the stack ends.
    "2:",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {on_call}",
    "lea rsp, [rbp - 56]",
    // Nothing until the jump changes what this finds.
    "test rdx, rdx",
    "jz 3f",
    "mov [rsp], rax",
    "3:",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "jz 1b",
    "jmp qword ptr [rip + {return_from_syscall}]",
    ".cfi_endproc",
    ".size ramfold_stub_syscall, . - ramfold_stub_syscall",
    ".popsection",
    clone = const nr::CLONE,
    fork = const nr::FORK,
    clone3 = const nr::CLONE3,
    on_call = sym on_call,
    return_from_syscall = sym RETURN_FROM_SYSCALL,
);

//! Where the C library's system calls arrive.
//!
//! A stub finds the registers as the kernel would, and leaves them so: all but rax, rcx and r11
//! keep what they hold. It describes its frame (`.cfi`), so that a signal that arrives here can be
//! traced back to the program.

use core::arch::global_asm;
use core::sync::atomic::AtomicUsize;

use ramfold_sys::raw::nr;

use super::on_call;

/// Behind the instruction by which `syscall` of the C library enters the kernel.
pub(super) static RETURN_FROM_SYSCALL: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// In the place of the last two instructions of `syscall`: the load of its last argument and
    /// the entry. It uses no stack for a call that it makes as it is, because some return on
    /// another.
    #[link_name = "ramfold_stub_syscall"]
    pub(super) fn stub_syscall();
}

/// The call and its arguments go into an array on the stack, [`on_call`] is called with it, and the
/// registers are as before, rax the result if the call was made. The flags tell: zero when it was
/// not.
macro_rules! pass_on {
    () => {
        concat!(
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset rbp, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
            "push r9\n",
            "push r8\n",
            "push r10\n",
            "push rdx\n",
            "push rsi\n",
            "push rdi\n",
            "push rax\n",
            "mov rdi, rsp\n",
            "and rsp, -16\n",
            "call {on_call}\n",
            "lea rsp, [rbp - 56]\n",
            // Nothing from here on changes what this finds.
            "test rdx, rdx\n",
            "jz 9f\n",
            "mov [rsp], rax\n",
            "9:\n",
            "pop rax\n",
            "pop rdi\n",
            "pop rsi\n",
            "pop rdx\n",
            "pop r10\n",
            "pop r8\n",
            "pop r9\n",
            "pop rbp\n",
            ".cfi_def_cfa rsp, 8\n",
            ".cfi_restore rbp\n",
        )
    };
}

global_asm!(
    ".pushsection .text",
    ".globl ramfold_stub_syscall",
    ".hidden ramfold_stub_syscall",
    ".type ramfold_stub_syscall, @function",
    "ramfold_stub_syscall:",
    ".cfi_startproc",
    "mov r9, [rsp + 8]",
    "cmp rax, {mmap}",
    "je 2f",
    "cmp rax, {mprotect}",
    "je 2f",
    "cmp rax, {brk}",
    "je 2f",
    "cmp rax, {mremap}",
    "je 2f",
    "cmp rax, {clone}",
    "je 2f",
    "cmp rax, {fork}",
    "je 2f",
    "cmp rax, {clone3}",
    "je 2f",
    "cmp rax, {execve}",
    "je 2f",
    "cmp rax, {execveat}",
    "je 2f",
    "1:",
    "syscall",
    "jmp qword ptr [rip + {return_from_syscall}]",
    "2:",
    pass_on!(),
    "jz 1b",
    "jmp qword ptr [rip + {return_from_syscall}]",
    ".cfi_endproc",
    ".size ramfold_stub_syscall, . - ramfold_stub_syscall",
    ".popsection",
    mmap = const nr::MMAP,
    mprotect = const nr::MPROTECT,
    brk = const nr::BRK,
    mremap = const nr::MREMAP,
    clone = const nr::CLONE,
    fork = const nr::FORK,
    clone3 = const nr::CLONE3,
    execve = const nr::EXECVE,
    execveat = const nr::EXECVEAT,
    on_call = sym on_call,
    return_from_syscall = sym RETURN_FROM_SYSCALL,
);

/// A stub that is called in the place of the last two instructions before a function's return from
/// the kernel: the load of the call's number, and the entry.
macro_rules! stub {
    ($name:literal, $function:ident, $number:expr) => {
        unsafe extern "C" {
            #[link_name = $name]
            pub(super) fn $function();
        }

        global_asm!(
            ".pushsection .text",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "mov eax, {number}",
            pass_on!(),
            "jz 1f",
            "ret",
            "1:",
            "syscall",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            number = const $number,
            on_call = sym on_call,
        );
    };
}

stub!("ramfold_stub_mmap", stub_mmap, nr::MMAP);
stub!("ramfold_stub_mprotect", stub_mprotect, nr::MPROTECT);
stub!("ramfold_stub_mremap", stub_mremap, nr::MREMAP);
stub!("ramfold_stub_brk", stub_brk, nr::BRK);
stub!("ramfold_stub_execve", stub_execve, nr::EXECVE);
stub!("ramfold_stub_execveat", stub_execveat, nr::EXECVEAT);

//! System calls of the C library that pass through the agent.
//!
//! The library replaces no function of the C library and exports none. Where the C library enters
//! the kernel, in the functions listed here, the instruction is replaced in this process's memory
//! by a jump to the agent, which makes the call, or does something before, and returns to the
//! instruction behind it. So errno, cancellation points and whatever else a function does are the C
//! library's own; calls from within the C library are seen too (its malloc calls its own mmap,
//! which no other definition of the name replaces); and no program finds another function by a
//! name.
//!
//! What enters the kernel by an instruction of its own is not seen.

use ramfold_sys::raw::nr;
use ramfold_sys::scratch::Scratches;

mod divert;
mod exec;
mod fork;
mod memory;
mod pieces;
mod stubs;

pub(crate) use divert::divert;

/// What is too large for the program's stack.
static SCRATCHES: Scratches = Scratches::new();

/// In a forked child, before it goes on.
pub(crate) fn begin_child() {
    SCRATCHES.begin_child();
}

/// A system call that the program asks for, as the stubs put it on the stack.
#[repr(C)]
pub(crate) struct Call {
    number: usize,
    arguments: [usize; 6],
}

/// In the two registers that a result is returned in.
#[repr(C)]
pub(crate) struct Answer {
    result: isize,
    /// 0: the call was not made, and is to be made as it is.
    is_made: usize,
}

impl Answer {
    const AS_IT_IS: Answer = Answer { result: 0, is_made: 0 };

    fn made(result: isize) -> Answer {
        Answer { result, is_made: 1 }
    }
}

/// What the stubs call. None of these is inlined: each call would need the stack that the largest
/// needs, and the program's may be small.
extern "C" fn on_call(call: &Call) -> Answer {
    match call.number {
        nr::CLONE | nr::CLONE3 | nr::FORK => fork::on_clone(call),
        nr::MMAP => memory::on_mmap(call),
        nr::MPROTECT => memory::on_mprotect(call),
        nr::MREMAP => memory::on_mremap(call),
        nr::BRK => memory::on_brk(call),
        nr::EXECVE => exec::on_execve(call),
        nr::EXECVEAT => exec::on_execveat(call),
        _ => Answer::AS_IT_IS,
    }
}

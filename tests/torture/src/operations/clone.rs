//! clone(2) with the memory shared: the child works in the parent's memory.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::child;
use crate::errno::Errno;
use crate::memory::{Mapping, PAGE, Span};
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] =
    &[operation("clone-vm", 4, "another process that shares the memory writes it", clone_vm)];

const STACK_BYTES: usize = 256 << 10;

struct Task<'t> {
    span: Span<'t>,
    bytes: &'t [u8],
}

fn clone_vm(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    let stack = Mapping::anonymous(STACK_BYTES).map_err(|errno| Skip::errno("mmap", errno))?;
    region.rewrite_by(first, pages, |span, bytes| {
        let task = Task { span, bytes };
        // The stack grows down from its end, which is aligned as a page is.
        let top = stack.span().part(STACK_BYTES, 0).void();
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the stack and the task outlive the child, which is waited for right away; it
        // shares this thread's locals, so it only stores.
        let pid = unsafe { libc::clone(work, top, flags, (&raw const task).cast_mut().cast()) };
        if pid < 0 {
            return Err(Skip::errno("clone", Errno::last()));
        }
        let status = child::wait(pid);
        if status != 0 {
            fail!("a process that shares the memory ended with wait status {status:#x}");
        }
        Ok(())
    })
}

extern "C" fn work(task: *mut libc::c_void) -> i32 {
    // SAFETY: the parent passes a task and waits for this process.
    let task = unsafe { &*task.cast::<Task<'_>>() };
    for (page, bytes) in task.bytes.chunks_exact(PAGE).enumerate() {
        task.span.page(page).store(bytes);
        current::beat();
    }
    // SAFETY: ends this process only; libc's exit handlers are the parent's.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    0
}

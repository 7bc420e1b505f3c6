//! Trapping the clone of a fork: Syscall User Dispatch (Linux 5.11, x86_64).
//!
//! The C library's fork makes a few system calls of its own before and after the clone; while the
//! trap is armed each of them comes here as SIGSYS and is done on the thread's behalf, the clone
//! with the agent at rest.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use ramfold_sys::raw::{self, nr};
use ramfold_sys::{Errno, PAGE_SIZE, proc, thread};

use crate::agent::{Agent, Stack};
use crate::fork::copies::WRITTEN_IN_FORK;
use crate::fork::copy::{Copied, copy_at_rest};

/// Can a child be given an agent of its own?
pub(crate) const CAN_TAKE_OVER: bool = true;

const CLONE_VM: usize = 0x100;
/// The least that a kernel takes of `struct clone_args`.
const CLONE_ARGUMENTS_BYTES: usize = 64;
const SIGSYS: usize = 31;
const SIGSYS_BIT: u64 = 1 << (SIGSYS - 1);
const SIG_BLOCK: usize = 0;
const SIG_UNBLOCK: usize = 1;
const SIG_SETMASK: usize = 2;
const SA_SIGINFO: usize = 4;
const SA_RESTORER: usize = 0x0400_0000;
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const SYS_USER_DISPATCH: i32 = 2;
const SELECTOR_ALLOW: u8 = 0;
const SELECTOR_BLOCK: u8 = 1;

/// What the kernel knows of a signal's handler.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelSigaction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// What `Agent::trap` guards: that one fork at a time goes through the agent.
pub(crate) struct Trap;

/// Who asks for the trap to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Parent,
    Child,
}

/// State of the trapped fork: used by the thread that armed the trap, which holds `Agent::trap`.
struct Armed {
    /// Thread that is forking; zero when none is.
    thread: AtomicU32,
    /// Set in the child of such a fork.
    in_child: AtomicBool,
    selector: AtomicU8,
    old_action: UnsafeCell<MaybeUninit<KernelSigaction>>,
    /// Signals the thread has blocked as far as it knows. SIGSYS itself must stay open.
    mask: AtomicU64,
}

// SAFETY: the cell is written and read by the one thread that holds `Agent::trap`.
unsafe impl Sync for Armed {}

static ARMED: Armed = Armed {
    thread: AtomicU32::new(0),
    in_child: AtomicBool::new(false),
    selector: AtomicU8::new(SELECTOR_ALLOW),
    old_action: UnsafeCell::new(MaybeUninit::uninit()),
    mask: AtomicU64::new(0),
};

/// Traps the system calls of the calling thread from here on.
pub(crate) fn arm(agent: &Agent) {
    let action = KernelSigaction {
        handler: on_sigsys as *const () as usize,
        flags: SA_SIGINFO | SA_RESTORER,
        restorer: return_from_signal as *const () as usize,
        mask: u64::MAX,
    };
    let mut mask = 0u64;
    // A handler of the program's may run with SIGSYS blocked, and the kernel ends a program that
    // cannot take a SIGSYS that is due. So signals wait until the fork is over.
    let open = !SIGSYS_BIT;
    let library = crate::entry::library_range();
    ARMED.thread.store(proc::own_thread(), Ordering::Relaxed);
    ARMED.selector.store(SELECTOR_BLOCK, Ordering::Relaxed);
    // SAFETY: the structures are what the calls expect; the handler and its way back are code of
    // this library, which never goes away.
    let armed = unsafe {
        raw::syscall5(
            nr::RT_SIGPROCMASK,
            SIG_SETMASK,
            (&raw const open) as usize,
            (&raw mut mask) as usize,
            8,
            0,
        );
        raw::syscall5(
            nr::RT_SIGACTION,
            SIGSYS,
            (&raw const action) as usize,
            (*ARMED.old_action.get()).as_mut_ptr() as usize,
            8,
            0,
        );
        ARMED.mask.store(mask, Ordering::Relaxed);
        raw::syscall5(
            nr::PRCTL,
            PR_SET_SYSCALL_USER_DISPATCH,
            1,
            library.start,
            library.len(),
            (&raw const ARMED.selector) as usize,
        )
    };
    if let Err(errno) = raw::check(armed) {
        agent.fail(format_args!("cannot follow a fork: {errno}"));
    }
}

/// Has the calling thread armed the trap?
pub(crate) fn is_armed() -> bool {
    ARMED.thread.load(Ordering::Relaxed) == proc::own_thread()
}

/// Ends the trapping where it has not ended with the clone. `false` when the calling thread (in
/// the child: the thread it is a copy of) had no trap.
pub(crate) fn disarm(side: Side) -> bool {
    let own = match side {
        Side::Parent => is_armed(),
        // In a child that was copied otherwise, the trap may be that of another thread's fork.
        Side::Child => ARMED.in_child.swap(false, Ordering::Relaxed),
    };
    if own && ARMED.selector.swap(SELECTOR_ALLOW, Ordering::Relaxed) == SELECTOR_BLOCK {
        end_dispatch();
        thread::set_signal_mask(ARMED.mask.load(Ordering::Relaxed));
    }
    if own || side == Side::Child {
        ARMED.thread.store(0, Ordering::Relaxed);
    }
    own
}

fn end_dispatch() {
    // SAFETY: puts back what `arm` replaced.
    unsafe {
        raw::syscall5(nr::PRCTL, PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0);
        raw::syscall5(
            nr::RT_SIGACTION,
            SIGSYS,
            (*ARMED.old_action.get()).as_ptr() as usize,
            0,
            8,
            0,
        );
    }
}

/// A system call of the forking thread, trapped: done on its behalf.
extern "C" fn on_sigsys(signal: i32, info: *mut SignalInfo, context: *mut Context) {
    // SAFETY: the kernel passes both.
    let (info, context) = unsafe { (&*info, &mut *context) };
    if info.code != SYS_USER_DISPATCH {
        // Somebody else's, from a seccomp filter: for whoever was there before.
        // SAFETY: written by `arm`.
        let old = unsafe { (*ARMED.old_action.get()).assume_init_ref() };
        if old.handler > 1 {
            // SAFETY: a handler with three arguments can be called like one with a single one.
            let handler: extern "C" fn(i32, *const SignalInfo, *mut Context) =
                unsafe { core::mem::transmute(old.handler) };
            handler(signal, info, context);
        }
        return;
    }
    let call = [context.rdi, context.rsi, context.rdx, context.r10, context.r8, context.r9];
    let number = context.rax;
    context.rax = match number {
        nr::CLONE | nr::CLONE3 | nr::FORK if copies_memory(number, &call) => {
            let result = fork_from_agent_stack(number, &call);
            ARMED.selector.store(SELECTOR_ALLOW, Ordering::Relaxed);
            end_dispatch();
            context.mask = ARMED.mask.load(Ordering::Relaxed);
            result as usize
        }
        nr::RT_SIGPROCMASK => set_mask_on_behalf(&call) as usize,
        // A new thread or a vfork cannot be made from here: its stack is not this one. Let it
        // through; should a fork follow, the child notices that it was not taken over.
        nr::CLONE | nr::CLONE3 | nr::VFORK => {
            ARMED.selector.store(SELECTOR_ALLOW, Ordering::Relaxed);
            end_dispatch();
            const SYSCALL_INSTRUCTION_BYTES: usize = 2;
            context.rip -= SYSCALL_INSTRUCTION_BYTES;
            context.mask = ARMED.mask.load(Ordering::Relaxed);
            number
        }
        // SAFETY: the program asked for this very call.
        _ => unsafe {
            raw::syscall6(number, call[0], call[1], call[2], call[3], call[4], call[5]) as usize
        },
    };
}

/// The parts of `siginfo_t` and `ucontext_t` that are looked at here.
#[repr(C)]
struct SignalInfo {
    signal: i32,
    errno: i32,
    code: i32,
}

#[repr(C)]
struct Context {
    flags: u64,
    link: usize,
    stack: [usize; 3],
    r8: usize,
    r9: usize,
    r10: usize,
    r11: usize,
    r12: usize,
    r13: usize,
    r14: usize,
    r15: usize,
    rdi: usize,
    rsi: usize,
    rbp: usize,
    rbx: usize,
    rdx: usize,
    rax: usize,
    rcx: usize,
    rsp: usize,
    rip: usize,
    eflags: usize,
    segments: usize,
    error: usize,
    trap: usize,
    old_mask: usize,
    cr2: usize,
    fpstate: usize,
    reserved: [usize; 8],
    mask: u64,
}

/// Does this clone, clone3 or fork make a process with a copy of the memory?
pub(crate) fn copies_memory(number: usize, call: &[usize; 6]) -> bool {
    match number {
        nr::CLONE => call[0] & CLONE_VM == 0,
        // What the kernel is going to refuse is not looked at.
        nr::CLONE3 if call[1] < CLONE_ARGUMENTS_BYTES => false,
        nr::CLONE3
            if !raw::is_readable(call[0])
                || !raw::is_readable(call[0].wrapping_add(CLONE_ARGUMENTS_BYTES - 8)) =>
        {
            false
        }
        // SAFETY: the structure is readable. Its first field is the flags.
        nr::CLONE3 => unsafe { (call[0] as *const u64).read_unaligned() as usize & CLONE_VM == 0 },
        _ => true,
    }
}

/// Newer C libraries block all signals around the clone. What they set counts from when the fork is
/// over.
fn set_mask_on_behalf(call: &[usize; 6]) -> isize {
    let [how, set, old, size, ..] = *call;
    let before = ARMED.mask.load(Ordering::Relaxed);
    if size != 8 {
        return -(Errno::INVAL.raw_os_error() as isize);
    }
    if old != 0 {
        // SAFETY: the program passed a place for the old mask.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    if set != 0 {
        // SAFETY: the program passed a mask.
        let set = unsafe { (set as *const u64).read_unaligned() };
        let after = match how {
            SIG_BLOCK => before | set,
            SIG_UNBLOCK => before & !set,
            _ => set,
        };
        ARMED.mask.store(after, Ordering::Relaxed);
    }
    0
}

/// The clone of a fork, for [`copy_process`].
#[repr(C)]
struct Request {
    number: usize,
    call: [usize; 6],
    /// Memory the kernel writes to in the child at once: must not be missing there.
    written: [usize; WRITTEN_IN_FORK],
    result: isize,
}

/// Makes the clone with the agent at rest, and returns what the kernel did. The calling thread has
/// armed the trap.
pub(crate) fn fork_from_agent_stack(number: usize, call: &[usize; 6]) -> isize {
    let Some(agent) = Agent::get() else { return -(Errno::AGAIN.raw_os_error() as isize) };
    let (child_tid, parent_tid) = match number {
        // flags, stack, parent_tid, child_tid, tls
        nr::CLONE => (call[3], call[2]),
        // SAFETY: the fields child_tid and parent_tid of struct clone_args.
        nr::CLONE3 => unsafe {
            let fields = call[0] as *const u64;
            (fields.add(2).read() as usize, fields.add(3).read() as usize)
        },
        _ => (0, 0),
    };
    // In the thread's control block, or the thread-local storage below it, the kernel keeps the
    // processor's number (rseq): where libc says, or where an allocator put it.
    let block = thread_pointer();
    let rseq = block.wrapping_add_signed(crate::entry::rseq_offset());
    let written = [child_tid, parent_tid, block + PAGE_SIZE - 1, block, block - PAGE_SIZE, rseq];
    let mut request = Request { number, call: *call, written, result: 0 };
    // The request lies on the program's stack; it is copied before anything is locked.
    // SAFETY: the fork stack is used by one thread at a time, the one that holds `Agent::trap`.
    unsafe {
        call_on_stack(agent.stack(Stack::Fork).end, copy_process, (&raw mut request).cast());
    }
    request.result
}

/// Makes the clone with the agent at rest. Runs on the agent's own stack, because a page of the
/// program's stack could be evicted the moment before everything stands still.
extern "C" fn copy_process(request: *mut ()) {
    let request = request.cast::<Request>();
    // SAFETY: the caller's, alive until this returns.
    let Request { number, call, written, .. } = unsafe { request.read() };
    let Some(agent) = Agent::get() else { return };
    let clone = || {
        // SAFETY: the program asked for this call, which gives the child a copy of this very stack.
        unsafe { raw::syscall6(number, call[0], call[1], call[2], call[3], call[4], call[5]) }
    };
    let Copied { result, filled } = copy_at_rest(agent, &written, clone);
    if result == 0 {
        ARMED.in_child.store(true, Ordering::Relaxed);
        if filled {
            agent.presence.abandon();
        } else {
            super::begin_child(agent);
        }
    }
    // SAFETY: as above. The page of the program's stack may have to come in: nothing is locked.
    unsafe { (&raw mut (*request).result).write(result) };
}

/// Where the thread's control block is.
fn thread_pointer() -> usize {
    let address: usize;
    // SAFETY: the first word of the control block is its own address, by the ABI.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) address, options(nostack, readonly)) };
    address
}

/// Calls `f(argument)` on another stack.
#[unsafe(naked)]
unsafe extern "C" fn call_on_stack(
    stack_end: *mut u8,
    f: extern "C" fn(*mut ()),
    argument: *mut (),
) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "and rdi, -16",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}

/// Where the kernel's signal frame leads back to.
#[unsafe(naked)]
unsafe extern "C" fn return_from_signal() {
    naked_asm!(
        "mov eax, {number}",
        "syscall",
        number = const nr::RT_SIGRETURN,
    )
}

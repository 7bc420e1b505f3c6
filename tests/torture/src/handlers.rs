//! Signal handlers of the program.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::check;
use crate::errno::Errno;
use crate::memory::Mapping;
use crate::rng::mix;
use crate::table::COUNTERS_PER_PAGE;
use crate::touch::{self, Refusal};
use crate::world;
use crate::{current, fail};

/// Bytes of an alternate signal stack: room for a failure's text, and more than 64 KiB, so that
/// it is memory that can be taken away.
const STACK_BYTES: usize = 256 << 10;

/// Installs all handlers for the process.
pub(crate) fn install() -> Result<(), Errno> {
    handle(libc::SIGSEGV, on_fault)?;
    handle(libc::SIGBUS, on_fault)?;
    handle(libc::SIGALRM, on_touch)?;
    handle(libc::SIGUSR1, on_touch)?;
    // A write to a socket or pipe whose reader is gone shall be an error, not the end.
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    Ok(())
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn handle(signal: i32, handler: Handler) -> Result<(), Errno> {
    // SAFETY: all bit patterns are valid for the C structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handlers below are async-signal-safe: they neither allocate nor lock.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Discards what may still be on its way, before another program image takes over.
pub(crate) fn ignore() {
    for signal in [libc::SIGALRM, libc::SIGUSR1] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Keeps SIGALRM away from this thread while it lives.
///
/// Held around the start of threads, which inherit the mask: they take signals only once they
/// have a stack for the handler; the one that the language's library gives them is too small.
pub(crate) struct Quiet {
    was_quiet: bool,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        Self { was_quiet: mask(libc::SIG_BLOCK, libc::SIGALRM) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if !self.was_quiet {
            mask(libc::SIG_UNBLOCK, libc::SIGALRM);
        }
    }
}

/// Blocks or unblocks a signal for this thread. Returns whether it was blocked.
fn mask(how: i32, signal: i32) -> bool {
    // SAFETY: all bit patterns are valid for the C structures, which the calls below fill in.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the sets outlive the calls.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(how, &set, &mut before);
        libc::sigismember(&before, signal) == 1
    }
}

/// An alternate signal stack in tortured memory, for the thread that made it, which takes SIGALRM
/// from then on.
pub(crate) struct SignalStack {
    _memory: Mapping,
}

impl SignalStack {
    pub(crate) fn install() -> Result<Self, Errno> {
        let memory = Mapping::anonymous(STACK_BYTES)?;
        let stack =
            libc::stack_t { ss_sp: memory.span().void(), ss_flags: 0, ss_size: STACK_BYTES };
        // SAFETY: the memory stays mapped until `drop` takes the stack out of use.
        if unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) } != 0 {
            return Err(Errno::last());
        }
        mask(libc::SIG_UNBLOCK, libc::SIGALRM);
        Ok(Self { _memory: memory })
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let none =
            libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: runs on the thread's normal stack, so the alternate one is not in use.
        if unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) } != 0 {
            fail!("sigaltstack gave {}", Errno::last());
        }
    }
}

/// SIGSEGV and SIGBUS: expected by `touch`, and wrong everywhere else.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid structures.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let instruction = instruction(context);
    let refusal = Refusal { signal, code, address };
    match touch::recover(*instruction as usize, refusal) {
        Some(next) => *instruction = next as _,
        None => fail!(
            "signal {signal} code {code} for address {address:#x} at instruction {:#x}",
            *instruction
        ),
    }
}

#[cfg(target_arch = "x86_64")]
fn instruction<'c>(context: *mut libc::c_void) -> &'c mut i64 {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel passes a valid context, which is the handler's own while it runs.
    unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] }
}

#[cfg(target_arch = "aarch64")]
fn instruction<'c>(context: *mut libc::c_void) -> &'c mut u64 {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: as above.
    unsafe { &mut (*context).uc_mcontext.pc }
}

/// SIGALRM and SIGUSR1: reads a page and counts on another, wherever the thread is.
extern "C" fn on_touch(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let errno = Errno::last();
    if let Some(world) = world::world() {
        let number = world.table.header.signals.fetch_add(1, Relaxed);
        let draw = mix(&[world.recipe.seed, number, 0x7369_676e]) as usize;
        world.check_lockless(world.fixed_region, draw % world.pages(world.fixed_region));
        let page = (draw >> 20) % world.pages(world.counter_region);
        let quarter = (draw >> 50) % COUNTERS_PER_PAGE;
        count(world, page, quarter, 1);
        current::beat();
    }
    errno.set();
}

/// Adds to a counter, and checks the value found against what it may be.
pub(crate) fn count(world: &world::World, page: usize, quarter: usize, amount: u64) {
    let memory = world.lockless_page(world.counter_region, page);
    let offset = check::counter_offset(world.recipe, page, quarter);
    let slot = &world.table.records.counters[page * COUNTERS_PER_PAGE + quarter];
    let least = slot.completed.load(SeqCst);
    slot.started.fetch_add(amount, SeqCst);
    let before = check::counter(memory.part(offset, 8)).fetch_add(amount, SeqCst);
    let most = slot.started.load(SeqCst);
    slot.completed.fetch_add(amount, SeqCst);
    if before < least || before.wrapping_add(amount) > most {
        fail!(
            "counter {quarter} of page {page} at {:#x} had {before} when {amount} was added, but \
             {least} additions were completed before and {most} started after",
            memory.address() + offset
        );
    }
}

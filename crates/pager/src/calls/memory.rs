//! Calls that make writable memory: announced before the program can touch it.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::raw::{self, nr};
use rustix::mm::{Advice, madvise};

use super::pieces::Mremap;
use super::{Answer, Call};
use crate::agent::Agent;

const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 2;
const MAP_TYPE: usize = 15;
const MAP_LOCKED: usize = 0x2000;
const MAP_POPULATE: usize = 0x8000;
const MAP_NONBLOCK: usize = 0x1_0000;
const MAP_STACK: usize = 0x2_0000;
const MAP_HUGETLB: usize = 0x4_0000;

/// The end of the data segment, as the kernel said last.
static PROGRAM_BREAK: AtomicUsize = AtomicUsize::new(0);

/// The agent, where there is one to announce to.
fn listener() -> Option<&'static Agent> {
    Agent::get().filter(|agent| agent.listens())
}

fn make(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: the program asked for this very call.
    unsafe { raw::syscall6(number, a, b, c, d, e, f) }
}

/// All pages of which some bytes are within.
fn pages_of(start: usize, bytes: usize) -> Range<usize> {
    (start & !(PAGE_SIZE - 1))..(start + bytes).next_multiple_of(PAGE_SIZE)
}

pub(super) fn is_error(result: isize) -> bool {
    (-4095..0).contains(&result)
}

/// What is populated at once is announced in between: the fault handler then fills it, with room
/// made for it.
#[inline(never)]
pub(super) fn on_mmap(call: &Call) -> Answer {
    let [_, bytes, access, flags, ..] = call.arguments;
    if flags & (MAP_TYPE | MAP_STACK) == MAP_PRIVATE | MAP_STACK {
        return map_stack(call);
    }
    let is_growth =
        access & PROT_WRITE != 0 && flags & MAP_TYPE == MAP_PRIVATE && flags & MAP_HUGETLB == 0;
    let Some(agent) = listener().filter(|_| is_growth) else { return Answer::AS_IT_IS };
    let populates = flags & (MAP_POPULATE | MAP_NONBLOCK | MAP_LOCKED) == MAP_POPULATE
        && agent.announcements.exceeds(bytes);
    let mut arguments = call.arguments;
    if populates {
        arguments[3] &= !MAP_POPULATE;
    }
    let result = make(nr::MMAP, arguments);
    if !is_error(result) {
        agent.announce(&pages_of(result as usize, bytes));
        if populates {
            // What cannot be populated is left to be touched, as by mmap.
            // SAFETY: memory that was just made, and holds nothing.
            let _ = unsafe {
                madvise(
                    result as *mut _,
                    bytes.next_multiple_of(PAGE_SIZE),
                    Advice::LinuxPopulateWrite,
                )
            };
        }
    }
    Answer::made(result)
}

/// A thread's stack, whose end the kernel writes to. It may be made writable by mprotect later.
#[inline(never)]
fn map_stack(call: &Call) -> Answer {
    let Some(agent) = Agent::get() else { return Answer::AS_IT_IS };
    let [_, bytes, access, ..] = call.arguments;
    let result = make(nr::MMAP, call.arguments);
    if !is_error(result) {
        let range = pages_of(result as usize, bytes);
        agent.ends.note_stack(&range);
        if access & PROT_WRITE != 0 && agent.listens() {
            agent.announce(&range);
        }
    }
    Answer::made(result)
}

#[inline(never)]
pub(super) fn on_mprotect(call: &Call) -> Answer {
    let [start, bytes, access, ..] = call.arguments;
    let Some(agent) = listener().filter(|_| access & PROT_WRITE != 0) else {
        return Answer::AS_IT_IS;
    };
    let result = make(nr::MPROTECT, call.arguments);
    if !is_error(result) {
        agent.announce(&pages_of(start, bytes));
    }
    Answer::made(result)
}

#[inline(never)]
pub(super) fn on_mremap(call: &Call) -> Answer {
    let Some(agent) = listener() else { return Answer::AS_IT_IS };
    let [old, old_bytes, new_bytes, flags, new, _] = call.arguments;
    let result = Mremap { old, old_bytes, new_bytes, flags, new }.make(agent);
    if !is_error(result) && new_bytes > old_bytes {
        agent.announce(&pages_of(result as usize + old_bytes, new_bytes - old_bytes));
    }
    Answer::made(result)
}

pub(super) fn make_mremap(call: &Mremap) -> isize {
    let Mremap { old, old_bytes, new_bytes, flags, new } = *call;
    make(nr::MREMAP, [old, old_bytes, new_bytes, flags, new, 0])
}

#[inline(never)]
pub(super) fn on_brk(call: &Call) -> Answer {
    let Some(agent) = listener() else { return Answer::AS_IT_IS };
    let mut before = PROGRAM_BREAK.load(Ordering::Relaxed);
    if before == 0 {
        before = make(nr::BRK, [0; 6]) as usize;
    }
    let result = make(nr::BRK, call.arguments);
    PROGRAM_BREAK.store(result as usize, Ordering::Relaxed);
    if result as usize > before {
        agent.announce(&pages_of(before, result as usize - before));
    }
    Answer::made(result)
}

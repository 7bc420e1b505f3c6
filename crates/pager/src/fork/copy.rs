//! The copying of the process, with the agent at rest.

use core::sync::atomic::Ordering;

use ramfold_sys::{PAGE_SIZE, mem};
use rustix::mm::{Advice, madvise};

use super::copies::{self, WRITTEN_IN_FORK};
use crate::agent::Agent;
use crate::page;

/// What came of a clone.
pub(crate) struct Copied {
    /// What the kernel returned: the child's number in the parent, zero in the child.
    pub result: isize,
    /// The child is given its memory by its parent's handler, and has no agent.
    pub filled: bool,
}

/// Makes the clone that copies the process, with the agent at rest. The kernel writes to what is
/// `written` (zeros are none) in the child at once: it must not be missing there.
pub(crate) fn copy_at_rest(
    agent: &Agent,
    written: &[usize; WRITTEN_IN_FORK],
    clone: impl FnOnce() -> isize,
) -> Copied {
    agent.copies.keep_open(written);
    // With the lock every earlier child has been seen to: the message about a child does not say
    // which it is.
    let core = loop {
        for &address in written {
            if address != 0 {
                // SAFETY: brings the page in and changes nothing; an impossible address gives an
                // error here and an error or a fault in the clone, as it would without us.
                let _ = unsafe {
                    madvise(
                        (address & !(PAGE_SIZE - 1)) as *mut _,
                        PAGE_SIZE,
                        Advice::LinuxPopulateWrite,
                    )
                };
            }
        }
        let core = agent.lock_core();
        let evicted = |address: usize| {
            let page = page::number_of(address);
            // An object may be kept though its page is in memory. What is not mapped never will be.
            let kept = || mem::is_resident(address).unwrap_or(true);
            core.staging.find(page).is_some()
                || agent.active().is_some_and(|active| active.store.contains(page) && !kept())
        };
        if !written.iter().any(|&address| evicted(address)) {
            break core;
        }
    };
    // The monitor may be compacting the pool, for which it does not hold the lock.
    let paused = agent.active().map(|active| active.store.pause());
    // A child that might not open a userfaultfd any more is given its memory by the handler.
    let filled = agent.active().is_some_and(|active| active.told_of_forks) && agent.changed_user();
    if !filled {
        agent.prepare_child();
    }
    agent.fork_copy.begin();
    agent.copies.begin_fork(agent.process());
    // The child may speak before this thread does.
    agent.process().sharing_unknown.store(1, Ordering::Relaxed);
    let result = clone();
    if result != 0 {
        agent.child_was_made(result > 0);
    }
    agent.fork_copy.end(result > 0 && !filled);
    if result == 0 {
        // The child makes its locks anew.
        core::mem::forget(paused);
    } else {
        drop(paused);
    }
    drop(core);
    if result > 0 {
        note_made(agent, filled);
    } else if result < 0 {
        agent.process().sharing_unknown.store(0, Ordering::Relaxed);
    }
    Copied { result, filled }
}

/// In the parent: there is a child.
fn note_made(agent: &Agent, filled: bool) {
    agent.note_child();
    if copies::must_be_guarded(agent, agent.cost(), agent.cost()) {
        // The monitor guards them before it answers.
        agent.announce(&(0..0));
    }
    if agent.active().is_some() && !filled {
        agent.process().counters.forks_taken_over.fetch_add(1, Ordering::Relaxed);
    }
}

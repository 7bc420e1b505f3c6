//! Whether the agent's threads run in this address space.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A process that was cloned without libc has a copy of the agent, and no threads of it. It was
/// given all of its memory, and runs without ramfold from then on, as do its children.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `here` | who lays out the agent; in a forked child its one thread, before it starts the agent; the kernel clears it in each copy of the address space (MADV_WIPEONFORK) | threads of the program | nothing: it does not change while there is more than one thread |
/// | `abandoned` | threads of the program around a fork: in the child, or before the copy's own first fork | the same, and in the child's copy | by the clone; who else reads it has seen `here` |
pub(crate) struct Presence {
    /// In the agent's memory, on a page of its own. Null before the agent is laid out.
    here: *const AtomicU32,
    /// This process is such a copy, or descends from one. It is copied, as `here` is not: after a
    /// fork it tells the child of such a process from the child of one that has an agent.
    abandoned: AtomicBool,
}

impl Presence {
    /// # Safety
    /// The word is on a page of its own, which the kernel clears in copies, and outlives this.
    pub(super) unsafe fn lay_out(&mut self, here: *const AtomicU32) {
        self.here = here;
        self.begin();
    }

    /// There is an agent, or will be at once: at the start, and in a forked child that starts
    /// threads of its own.
    pub(crate) fn begin(&self) {
        self.here().store(1, Ordering::Relaxed);
    }

    /// Do the agent's threads run in this address space?
    pub(crate) fn is_here(&self) -> bool {
        self.here().load(Ordering::Relaxed) == 1
    }

    /// For a child that is to have no agent.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// For a thread that is about to fork: finds out whether this process is such a copy. Returns
    /// what [`Presence::is_abandoned`] does.
    pub(crate) fn look_before_fork(&self) -> bool {
        if !self.is_here() {
            self.abandon();
        }
        self.is_abandoned()
    }

    /// After a fork, in either process: had the forking process no agent?
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn here(&self) -> &AtomicU32 {
        // SAFETY: by the word of who laid it out.
        unsafe { &*self.here }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_address_space_is_abandoned_when_it_forks() {
        let word = AtomicU32::new(0);
        let mut presence = Presence { here: core::ptr::null(), abandoned: AtomicBool::new(false) };
        // SAFETY: the test clears it in the kernel's place.
        unsafe { presence.lay_out(&raw const word) };
        assert!(presence.is_here() && !presence.look_before_fork());
        // A child of libc's fork starts an agent of its own.
        word.store(0, Ordering::Relaxed);
        assert!(!presence.is_here() && !presence.is_abandoned());
        presence.begin();
        assert!(presence.is_here() && !presence.look_before_fork());
        // One that was made without libc does not, nor do its children.
        word.store(0, Ordering::Relaxed);
        assert!(presence.look_before_fork() && presence.is_abandoned());
    }
}

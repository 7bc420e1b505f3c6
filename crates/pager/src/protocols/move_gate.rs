//! Either a thread of the program moves memory (mremap), or the agent registers some.
//!
//! To register a part of a mapping divides it. The kernel moves a range of several mappings up to
//! the first that is registered, and then refuses the rest, so the pieces must not change between
//! the look at them and the move.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `moves` | threads that move memory: SeqCst fence after the first write, release at the end | the monitor, acquire, after its fence | it or `registers` is seen by the other side; what was moved, by who registers |
//! | `registers` | the monitor and the handler: SeqCst fence after the first write, release at the end | threads that move memory, acquire, after their fence | as above; what was registered, by who moves |

use super::sync::{AtomicU32, Ordering, fence};

/// Memory of zeros is a gate that nobody is at.
#[derive(Default)]
pub(crate) struct MoveGate {
    /// Threads that move memory.
    moves: AtomicU32,
    /// Threads of the agent that register a mapping, or end that.
    registers: AtomicU32,
}

impl MoveGate {
    /// A thread is about to move memory: waits by `pause` until nothing is being registered, which
    /// takes microseconds. It calls [`MoveGate::end_move`] afterwards.
    pub(crate) fn begin_move(&self, mut pause: impl FnMut()) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.registers.load(Ordering::Acquire) > 0 {
            pause();
        }
    }

    /// It has moved it.
    pub(crate) fn end_move(&self) {
        self.moves.fetch_sub(1, Ordering::Release);
    }

    /// For the agent: may it register memory now, or end that? `true`: no thread moves any until
    /// [`MoveGate::end_register`]. It never waits: a thread that moves memory may wait for the
    /// handler.
    pub(crate) fn begin_register(&self) -> bool {
        self.registers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_free = self.moves.load(Ordering::Acquire) == 0;
        if !is_free {
            self.end_register();
        }
        is_free
    }

    /// It has registered it.
    pub(crate) fn end_register(&self) {
        self.registers.fetch_sub(1, Ordering::Release);
    }

    /// In a forked child, which has one thread and no agent yet.
    pub(crate) fn begin_child(&self) {
        self.moves.store(0, Ordering::Relaxed);
        self.registers.store(0, Ordering::Relaxed);
    }
}

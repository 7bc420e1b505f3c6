//! While a fork copies the process nothing that is under the agent's lock may change, but the
//! fork's own message must be read, or the fork never ends.
//!
//! So the forking thread holds the lock, and the handler reads without it and acts on nothing. What
//! it has read is acted upon before anybody else may use what the lock is for.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `copying` | the forking thread, Release, with the lock held | the handler | the copy comes between the two writes |
//! | `delayed` | the handler, SeqCst fence after it, before it reads messages | whoever has got the lock, after a SeqCst fence | no message is read after `copying` was cleared without `delayed` being seen |
//! | `has_agent` | the forking thread, before it clears `copying` | the handler, with the lock held | by the lock |

use super::sync::{AtomicBool, Ordering, fence};

/// Memory of zeros: no fork is under way.
#[derive(Default)]
pub(crate) struct ForkCopy {
    /// A fork is copying the process.
    copying: AtomicBool,
    /// The last such fork made a child that has an agent.
    has_agent: AtomicBool,
    /// The handler has read messages, or is about to, that are not acted upon yet.
    delayed: AtomicBool,
}

impl ForkCopy {
    /// The forking thread has the lock, and is about to copy the process.
    pub(crate) fn begin(&self) {
        self.copying.store(true, Ordering::Release);
    }

    /// In both processes after that, with the lock still held. `has_agent`: there is a child, which
    /// will have an agent.
    pub(crate) fn end(&self, has_agent: bool) {
        self.has_agent.store(has_agent, Ordering::Relaxed);
        self.copying.store(false, Ordering::Release);
    }

    /// Must the handler read without the lock, and wait for nobody who has it?
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.load(Ordering::Acquire)
    }

    /// Did the last fork make a child that has an agent?
    pub(crate) fn child_has_agent(&self) -> bool {
        self.has_agent.load(Ordering::Relaxed)
    }

    /// For the handler, before it reads messages without the lock, which it does as long as
    /// [`ForkCopy::is_copying`] says so afterwards.
    pub(crate) fn begin_delay(&self) {
        self.delayed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For the handler, which has the lock: what it had read is acted upon.
    pub(crate) fn end_delay(&self) {
        self.delayed.store(false, Ordering::Release);
    }

    /// For the handler: has it something to act upon?
    pub(crate) fn has_delayed(&self) -> bool {
        self.delayed.load(Ordering::Relaxed)
    }

    /// For whoever else has got the lock: may it be used? Otherwise it is let go again, for the
    /// handler.
    pub(crate) fn is_settled(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.delayed.load(Ordering::Acquire)
    }

    /// In a forked child, which has one thread.
    pub(crate) fn begin_child(&self) {
        self.delayed.store(false, Ordering::Relaxed);
    }
}

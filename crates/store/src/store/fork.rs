//! The store around a fork(2), after which parent and child share the pool's memory.

use super::Store;
use crate::index::PausedIndex;
use crate::pool::PausedPool;
use crate::spill::PausedSpace;

/// Keeps all threads out of a store; see [`Store::pause`].
pub struct Paused<'a> {
    _space: PausedSpace<'a>,
    _index: PausedIndex<'a>,
    _pool: PausedPool<'a>,
}

impl Store {
    /// After a fork, in the parent and in the child (`is_child`): the pool's memory is shared now.
    pub fn begin_sharing(&self, is_child: bool) {
        self.pool.spans().begin_sharing(is_child);
    }

    /// Nothing is shared any more.
    pub fn end_sharing(&self) {
        self.pool.end_sharing();
    }

    /// Waits until no thread is in the middle of changing the store, and keeps all out until the
    /// result is dropped: to be held around a fork, and dropped in parent and child. The thread
    /// that holds it must not call the store. An operation of another thread that is between two
    /// steps costs the child at most a slot and a span.
    pub fn pause(&self) -> Paused<'_> {
        let (space, index) = (self.space.pause(), self.index.pause());
        Paused { _space: space, _index: index, _pool: self.pool.pause() }
    }

    /// Makes all locks unlocked, in the child of a fork. What is recorded stays the parent's.
    ///
    /// # Safety
    /// To be called by the only thread of the child, which uses no guard or [`Paused`] of before
    /// the fork; and no other thread was inside the store at the fork, or the forking thread held
    /// [`Self::pause`].
    pub unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.space.reset_lock_after_fork();
            self.index.reset_locks_after_fork();
            self.pool.reset_locks_after_fork();
        }
        self.pool.recorder.stop();
    }
}

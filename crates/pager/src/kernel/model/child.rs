//! A forked child that has no agent, and what answers for it. It runs while it is given its pages.

use core::fmt;
use core::ops::Range;
use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use ramfold_sys::Errno;
use ramfold_sys::uffd::{Event, Partial};

use super::program::State;
use super::{ForkedChild, running};

/// What answers for the child's copy of the memory.
pub(crate) struct ModelChild {
    state: Rc<RefCell<State>>,
}

impl ModelChild {
    pub(crate) fn new(state: Rc<RefCell<State>>) -> ModelChild {
        ModelChild { state }
    }

    /// The event that tells of it is read: it begins.
    pub(crate) fn begin(&self) {
        self.state.borrow_mut().end_fork(0);
    }

    /// Before a call child and parent may have gone on.
    fn enter(&self) -> RefMut<'_, State> {
        if let Some(parent) = running() {
            drop(parent.enter());
        }
        let mut state = self.state.borrow_mut();
        while state.random.once_in(2) && state.step() {}
        state
    }
}

impl ForkedChild for ModelChild {
    fn read_event(&self) -> Result<Option<Event<ModelChild>>, Errno> {
        Ok(self.enter().read_event())
    }

    fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        self.enter().unregister(&range);
        Ok(())
    }

    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Partial> {
        let mut state = self.enter();
        // SAFETY: by the caller's word.
        let copied = unsafe { state.copy(dst, src, len) };
        let done = copied.map_or_else(|partial| partial.done, |()| len);
        state.wake(&(dst..dst + done));
        copied
    }

    fn yield_now(&self) {
        self.enter().step();
    }
}

impl Drop for ModelChild {
    fn drop(&mut self) {
        self.state.borrow_mut().close();
    }
}

impl fmt::Debug for ModelChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("child")
    }
}

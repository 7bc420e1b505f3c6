//! The step from asleep to active, or to giving up: what exists once the agent looks after memory
//! is made by the monitor, and used by all from then on.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `state` | the monitor, Release, once: from asleep to active or to given up | all, Acquire | the parts before the word that says that they are there |
//! | `parts` | the monitor, before `state` says that they are there; in a forked child, which is alone | all, after they have seen that | by `state` |

use core::mem::MaybeUninit;

use super::sync::{AtomicU32, Ordering, UnsafeCell};

#[cfg(test)]
const ASLEEP: u32 = 0;
const ACTIVE: u32 = 1;
const GAVE_UP: u32 = 2;

/// Memory of zeros: asleep.
pub(crate) struct Activation<T> {
    state: AtomicU32,
    parts: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: who has a reference to the parts has seen that they are there; nobody changes them then
// but by the word of the caller of an unsafe method.
unsafe impl<T: Send + Sync> Sync for Activation<T> {}

impl<T> Default for Activation<T> {
    fn default() -> Self {
        let parts = UnsafeCell::new(MaybeUninit::uninit());
        Activation { state: AtomicU32::default(), parts }
    }
}

impl<T> Activation<T> {
    /// The parts, once the agent is active.
    #[inline]
    pub(crate) fn parts(&self) -> Option<&T> {
        let is_active = self.state.load(Ordering::Acquire) == ACTIVE;
        // SAFETY: written before the word, and not moved while it stands.
        is_active.then(|| self.parts.with(|parts| unsafe { (*parts).assume_init_ref() }))
    }

    /// For the monitor: active from now on, with these parts.
    ///
    /// # Safety
    /// The caller alone changes the state, and it is asleep.
    pub(crate) unsafe fn activate(&self, parts: T) {
        // SAFETY: nobody reads them while the agent is asleep.
        self.parts.with_mut(|place| unsafe { (*place).write(parts) });
        self.state.store(ACTIVE, Ordering::Release);
    }

    /// For the monitor, while it is asleep: it could not become active, and has said why. It is not
    /// tried again.
    pub(crate) fn give_up(&self) {
        self.state.store(GAVE_UP, Ordering::Release);
    }

    /// Will the agent never be active?
    pub(crate) fn has_given_up(&self) -> bool {
        self.state.load(Ordering::Relaxed) == GAVE_UP
    }

    /// For a forked child's monitor: what it inherited is changed in place.
    ///
    /// # Safety
    /// The agent is active, nobody else uses the parts, and what is written is valid.
    pub(crate) unsafe fn change(&self, change: impl FnOnce(*mut T)) {
        self.parts.with_mut(|parts| change(parts.cast()));
    }

    /// Asleep again; the parts are dropped.
    ///
    /// # Safety
    /// Nobody uses the parts any more.
    #[cfg(test)]
    pub(crate) unsafe fn end(&self) {
        if self.state.swap(ASLEEP, Ordering::AcqRel) == ACTIVE {
            // SAFETY: written when the agent became active.
            self.parts.with_mut(|parts| unsafe { (*parts).assume_init_drop() });
        }
    }
}

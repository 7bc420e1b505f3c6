//! The spill writer sleeps while there is nothing to write, and whoever makes room for what it
//! writes asks whether it can.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `sleep` | see [`SleepFlag`] | | |
//! | `wake` | who has made work and has taken the flag | the writer, before it looks for work | what it sleeps on is no older than its look |
//! | `works` | the monitor, before it starts the writer; the writer | who reclaims, faults that wait for room | nothing: what does not leave after all is seen when the cost stays |

use super::sleep_flag::SleepFlag;
use super::sync::{AtomicBool, Futex, Ordering};

/// Memory of zeros: the writer is awake, or there is none; nothing goes to the spill file.
#[derive(Default)]
pub(crate) struct SpillWork {
    sleep: SleepFlag,
    wake: Futex,
    /// What is to go to the spill file will get there, as far as one can know.
    works: AtomicBool,
}

impl SpillWork {
    /// For the writer, before it looks for work: for [`SpillWork::sleep`].
    pub(crate) fn seen(&self) -> u32 {
        self.wake.seen()
    }

    /// For the writer, which has found no work and has looked at [`SpillWork::seen`] before. It
    /// sleeps where there `is_none` still, until work is made, for `ns` at most.
    pub(crate) fn sleep(&self, seen: u32, ns: u64, is_none: impl FnOnce() -> bool) {
        self.sleep.begin();
        if is_none() {
            self.wake.wait(seen, ns);
        }
        self.sleep.end();
    }

    /// Does the writer seem to sleep? A hint that costs nothing.
    pub(crate) fn is_seen_asleep(&self) -> bool {
        self.sleep.is_seen()
    }

    /// For who has made work: wakes the writer where it sleeps.
    pub(crate) fn wake(&self) {
        if self.sleep.take() {
            self.wake.raise();
        }
    }

    /// Does what is to go to the spill file get there?
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    /// The writer has begun, has failed, or tries again; or there is none yet.
    pub(crate) fn set_works(&self, works: bool) {
        self.works.store(works, Ordering::Relaxed);
    }
}

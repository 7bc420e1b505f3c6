//! Memory may be shared with a relative by fork, so that a page may cost less than a page, and an
//! object is kept though its page is in memory again: the relative may have it for nothing.
//!
//! Forks begin it, at any time; the monitor ends it, when it has measured that nothing is shared
//! any more. A fork that comes after that measurement must not be forgotten.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `forks` | forking threads (a number and a bit in one word, in one step), SeqCst fence after it; the monitor clears the bit, in one step, if the number is what it was before it measured | all | a fork and the end of sharing: one sees the other |
//! | `keeps_objects` | the handler, with the agent's lock, where it has seen sharing; the monitor takes it, before it looks with the lock at what is kept | the monitor | by the lock: what is kept after the look is noted after it |
//!
//! The store is told of both, after this word. So the monitor looks once more when it has told the
//! store of the end, and tells it of sharing again where a fork came between.

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The bit of `forks`: something may be shared.
const SHARES: u32 = 1;
/// A fork, in the bits above.
const FORK: u32 = 2;

/// Memory of zeros: nothing is shared.
#[derive(Default)]
pub(crate) struct Sharing {
    forks: AtomicU32,
    /// Objects were kept for pages that are in memory.
    keeps_objects: AtomicBool,
}

/// The forks that there were before something was measured.
#[derive(Clone, Copy)]
pub(crate) struct ForksSeen(u32);

impl Sharing {
    /// There was a fork, before the store is told: something is shared, in either process.
    pub(crate) fn begin(&self) {
        let add = |forks: u32| Some(forks.wrapping_add(FORK) | SHARES);
        let _ = self.forks.fetch_update(Ordering::Release, Ordering::Relaxed, add);
        fence(Ordering::SeqCst);
    }

    /// May something be shared?
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.forks.load(Ordering::Relaxed) & SHARES != 0
    }

    /// For the monitor, before it measures what is shared: for [`Sharing::end`].
    pub(crate) fn seen(&self) -> ForksSeen {
        ForksSeen(self.forks.load(Ordering::Acquire))
    }

    /// For the monitor, which has measured that nothing is shared: `true`: that stands, and the
    /// store is told. `false`: there was a fork since.
    pub(crate) fn end(&self, seen: ForksSeen) -> bool {
        let ended = seen.0 & !SHARES;
        let end = self.forks.compare_exchange(seen.0, ended, Ordering::AcqRel, Ordering::Relaxed);
        end.is_ok()
    }

    /// For the monitor, after it has told the store of the end: was there a fork since, which may
    /// have told the store before?
    pub(crate) fn has_begun_again(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_shared()
    }

    /// For the handler, with the agent's lock held: an object is kept, because something is shared.
    pub(crate) fn note_kept(&self) {
        // In one step, as in `SleepFlag::begin`: it comes before a taking or after it.
        self.keeps_objects.swap(true, Ordering::Relaxed);
    }

    /// For the monitor: are there objects that were kept, and nothing shared any more? It looks at
    /// all that there are then.
    pub(crate) fn take_kept(&self) -> bool {
        !self.is_shared() && self.keeps_objects.swap(false, Ordering::Relaxed)
    }
}

//! The program's first thread waits until the agent's process may do no more than it may itself:
//! before it forks or executes another program.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `wanted` | threads of the program, Release, before they wake the monitor; the monitor, Acquire, takes it before it looks | the monitor, before it sleeps | the change of credentials before the look |
//! | `digest` | the monitor, Release, after it has taken them on; the one thread of a forked child | threads of the program, Acquire | what the agent has given up before the fork |

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// Memory of zeros: nobody waits, and nothing is known.
#[derive(Default)]
pub(crate) struct FollowedPrivileges {
    wanted: AtomicBool,
    /// What the agent's process is permitted, or has tried to be
    /// (`credentials::digest_of_this_thread`). Zero before that is known.
    digest: AtomicU64,
}

impl FollowedPrivileges {
    /// For a thread of the program, which wakes the monitor then: asks for a look.
    pub(crate) fn ask(&self) {
        // In one step, as in `SleepFlag::begin`: it comes before a taking or after it.
        self.wanted.swap(true, Ordering::Release);
    }

    /// For a thread of the program: what the agent's process is permitted, once that is known.
    pub(crate) fn digest(&self) -> Option<u64> {
        Some(self.digest.load(Ordering::Acquire)).filter(|&digest| digest != 0)
    }

    /// For the monitor, before it sleeps: is it to look?
    pub(crate) fn is_asked(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// For the monitor: is it to look at once? It does so then.
    pub(crate) fn take_ask(&self) -> bool {
        self.wanted.swap(false, Ordering::Acquire)
    }

    /// For the monitor, after it has looked.
    pub(crate) fn note(&self, digest: u64) {
        self.digest.store(digest, Ordering::Release);
    }

    /// In a forked child, which has no agent yet.
    pub(crate) fn begin_child(&self) {
        self.digest.store(0, Ordering::Relaxed);
    }
}

//! How far a long computation or measurement is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far it is, for whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Of what is to be done, in any unit.
    done: AtomicU64,
    all: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// The part that is done, from 0 to 1.
    pub fn part(&self) -> f64 {
        let all = self.all.load(Ordering::Relaxed).max(1) as f64;
        (self.done.load(Ordering::Relaxed) as f64 / all).min(1.0)
    }

    /// There is so much to do.
    pub(crate) fn set_all(&self, all: u64) {
        self.all.store(all, Ordering::Relaxed);
    }

    /// So much more of it is done.
    pub(crate) fn add(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    /// So much of it is done.
    pub(crate) fn set(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// There is nothing more to show.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether there is nothing more to show.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

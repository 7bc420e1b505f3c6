//! What the monitor tells those that reclaim, or wait for it, about how it goes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `retry_cost_bytes` | the monitor, when reclaim rests | the handler, and the monitor | nothing: a fault waits once too often or too seldom |
/// | `outruns` | the monitor, at each look | the handler, the spill writer, forking threads | nothing: an older estimate is one look old |
///
/// That reclaim rests is in the session ([`Process::stuck`](crate::session::Process::stuck)): the
/// agents of other processes ask for it too. Memory of zeros: reclaim has not rested yet.
pub(crate) struct ReclaimHints {
    /// What the process must cost before it is tried again to take something, where there was
    /// nothing.
    retry_cost_bytes: AtomicU64,
    /// The program grows faster than reclaim follows, in memory not registered yet.
    outruns: AtomicBool,
}

impl ReclaimHints {
    /// Reclaim found nothing more to take: it rests until the process costs so much.
    pub(crate) fn rest_until(&self, cost_bytes: u64) {
        self.retry_cost_bytes.store(cost_bytes, Ordering::Relaxed);
    }

    /// Does the process cost so much that reclaim is tried again?
    pub(crate) fn is_retried_at(&self, cost_bytes: u64) -> bool {
        cost_bytes >= self.retry_cost_bytes.load(Ordering::Relaxed)
    }

    /// Does the program grow faster than reclaim follows?
    pub(crate) fn outruns(&self) -> bool {
        self.outruns.load(Ordering::Relaxed)
    }

    /// The monitor has looked.
    pub(crate) fn set_outruns(&self, outruns: bool) {
        self.outruns.store(outruns, Ordering::Relaxed);
    }
}

//! Whether compressing more of an owner's data is worth trying.

use std::sync::atomic::{AtomicU8, Ordering};

/// The number of skipped clusters is doubled at most so often.
const DOUBLINGS_MAX: u8 = 6;

/// After clusters that did not shrink, more and more clusters are skipped: 1, 3, 7 ... 63.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: AtomicU8,
    to_skip: AtomicU8,
}

impl Backoff {
    /// Whether to try the next cluster. Counts it as skipped where not.
    pub(crate) fn is_due(&self) -> bool {
        let next = |left: u8| left.checked_sub(1);
        self.to_skip.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err()
    }

    /// Notes what became of a cluster that was tried.
    pub(crate) fn note(&self, shrank: bool) {
        let failures = match shrank {
            true => 0,
            false => (self.failures.load(Ordering::Relaxed) + 1).min(DOUBLINGS_MAX),
        };
        self.failures.store(failures, Ordering::Relaxed);
        self.to_skip.store((1 << failures) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn skipped_clusters_are_counted_by_whoever_asks() {
        let backoff = Backoff::default();
        for failures in 1..=DOUBLINGS_MAX + 1 {
            backoff.note(false);
            let skipped = (0..).take_while(|_| !backoff.is_due()).count();
            assert_eq!(skipped, (1 << failures.min(DOUBLINGS_MAX)) - 1);
        }
        // Of several at once none counts below nothing.
        for _ in 0..10_000 {
            backoff.to_skip.store(1, Ordering::Relaxed);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| backoff.is_due());
                }
            });
            assert!(backoff.is_due());
        }
        backoff.note(true);
        assert!(backoff.is_due());
    }
}

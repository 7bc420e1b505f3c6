//! Files that were removed and that the kernel has not forgotten yet. They are held, and their
//! space comes free when they are no more, shortly after: SOURCE itself has it free at once.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// How long after a file was removed its space is waited for.
const FREE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Removed {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    /// Closed so far.
    closed: u64,
}

impl Removed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more is held.
    pub(crate) fn note_held(&self) {
        self.lock().last = Some(Instant::now());
    }

    /// One was closed.
    pub(crate) fn note_closed(&self) {
        self.lock().closed += 1;
        self.changed.notify_all();
    }

    /// Does something that takes space in SOURCE, and where there is none does it again when a file
    /// that was just removed is closed.
    ///
    /// # Errors
    /// Those of `f`.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut failed = None;
        loop {
            let before = self.lock().closed;
            match f() {
                Err(error) if is_full(&error) => {
                    let since = *failed.get_or_insert_with(Instant::now);
                    if !self.wait_for_more_than(before, since) {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Whether more were closed within the time, of those removed before and after it was needed.
    fn wait_for_more_than(&self, closed: u64, since: Instant) -> bool {
        let mut state = self.lock();
        while state.closed == closed {
            let left = |from: Instant| FREE_WITHIN.checked_sub(from.elapsed());
            let left =
                state.last.and_then(left).and_then(|of_last| Some(of_last.min(left(since)?)));
            let Some(left) = left else { return false };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        since.elapsed() < FREE_WITHIN
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn full() -> io::Result<()> {
        Err(Errno::NOSPC.into())
    }

    #[test]
    fn who_finds_no_space_waits_for_what_was_just_removed() {
        let removed = Removed::default();
        let mut tries = 0;
        let (tell, told) = mpsc::channel();
        let mut try_full = || {
            tries += 1;
            // After the second nobody listens.
            let _ = tell.send(tries);
            full()
        };
        // Nothing was removed.
        removed.with_room(&mut try_full).unwrap_err();
        removed.note_held();
        thread::scope(|scope| {
            let removed = &removed;
            scope.spawn(move || {
                // Once it has been tried for the second time, it waits, or is about to.
                assert!(told.iter().any(|tries| tries == 2));
                removed.note_closed();
            });
            let begun = Instant::now();
            removed.with_room(&mut try_full).unwrap_err();
            assert!(begun.elapsed() >= FREE_WITHIN / 2);
        });
        assert_eq!(tries, 3);
        // Any other error is told at once.
        let other = removed.with_room(|| -> io::Result<()> { Err(Errno::IO.into()) });
        assert_eq!(Errno::from_io_error(&other.unwrap_err()), Some(Errno::IO));
    }
}

//! Growth that announces itself.
//!
//! Memory that is mapped and not registered can be touched without the agent's knowing, at gigabytes
//! a second, and while the machine keeps the agent waiting. So the program may have only so much of it
//! as there is room for, its *allowance*: each call that makes writable memory (`crate::calls`) takes
//! from that, and where it is used up the calling thread waits until the agent has looked, and has
//! registered what is too much.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `allowance` | the monitor (sets it), callers and the handler (take) | all | nothing: a look that a caller waits for sees the mapping itself |
//! | `announced` | callers | the monitor (takes) | nothing: it only tells calls that are not seen |
//! | `fresh` | callers | the monitor (takes) | each place by itself: its range before its number |
//! | `asked` | callers, Release | the monitor, Acquire, before it looks | the mapping before the look |
//! | `answered` | the monitor, Release, after it has registered | callers, Acquire | the registration before the caller's first touch |

use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::thread::{Timespec, futex};

use crate::kernel::time;

/// An agent that does not answer for so long is not waited for: what it is kept by is worse than a cap
/// that is passed.
const PATIENCE_NS: u64 = 5_000_000_000;
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
#[cfg(test)]
const LOOK_AGAIN_IN_SIMULATION_NS: u64 = 10_000;

const FRESH_MAX: usize = 64;

/// Ranges that were made, so that the monitor need not look at all mappings for them. Any thread puts
/// them here, in handlers of signals too; the monitor takes them out. All zero is none.
#[repr(C)]
struct Fresh {
    places: [Place; FRESH_MAX],
    /// How many were put here, and taken out.
    put: AtomicUsize,
    taken: AtomicUsize,
}

#[repr(C)]
struct Place {
    start: AtomicUsize,
    /// Zero: nothing is here yet.
    end: AtomicUsize,
}

impl Fresh {
    fn put(&self, range: &Range<usize>) {
        let mut put = self.put.load(Ordering::Relaxed);
        loop {
            if put.wrapping_sub(self.taken.load(Ordering::Acquire)) >= FRESH_MAX {
                return;
            }
            let next = put.wrapping_add(1);
            match self.put.compare_exchange_weak(put, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => put = other,
            }
        }
        let place = &self.places[put % FRESH_MAX];
        place.start.store(range.start, Ordering::Relaxed);
        place.end.store(range.end, Ordering::Release);
    }

    fn take(&self) -> Option<Range<usize>> {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.put.load(Ordering::Relaxed) {
            return None;
        }
        let place = &self.places[taken % FRESH_MAX];
        let end = place.end.swap(0, Ordering::Acquire);
        if end == 0 {
            // Its thread is about to write it, and does not wait yet.
            return None;
        }
        let start = place.start.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(start..end)
    }
}

/// Zeroed memory is valid: nothing is allowed unasked.
#[repr(C)]
pub struct Announcements {
    fresh: Fresh,
    allowance: AtomicI64,
    /// Bytes announced since the monitor looked.
    announced: AtomicU64,
    asked: AtomicU32,
    answered: AtomicU32,
}

impl Announcements {
    /// For a thread of the program: it has just made this memory, or made it writable. `wake` wakes the
    /// monitor.
    pub fn grow(&self, range: &Range<usize>, wake: impl Fn()) {
        let bytes = i64::try_from(range.len()).unwrap_or(i64::MAX);
        self.announced.fetch_add(bytes as u64, Ordering::Relaxed);
        if bytes > 0 {
            self.fresh.put(range);
        }
        let before = self.allowance.fetch_sub(bytes, Ordering::Relaxed);
        if bytes > 0 && before >= bytes {
            return;
        }
        let ticket = self.asked.fetch_add(1, Ordering::Release).wrapping_add(1);
        wake();
        let deadline = time::monotonic_ns() + PATIENCE_NS;
        loop {
            let answered = self.answered.load(Ordering::Acquire);
            if is_reached(answered, ticket) || time::monotonic_ns() > deadline {
                return;
            }
            #[cfg(test)]
            if crate::kernel::model::sleep(LOOK_AGAIN_IN_SIMULATION_NS) {
                continue;
            }
            let _ = futex::wait(&self.answered, futex::Flags::PRIVATE, answered, Some(&LOOK_AGAIN));
        }
    }

    /// Would so much be too much to be touched at once?
    pub fn exceeds(&self, bytes: usize) -> bool {
        i64::try_from(bytes).map_or(true, |bytes| self.allowance.load(Ordering::Relaxed) < bytes)
    }

    /// For the fault handler, which lets memory go that was registered: takes so much of what may be
    /// touched unasked, `share` of it at most.
    pub fn take(&self, share: i64, least: i64, most: i64) -> Option<i64> {
        let mut taken = 0;
        let took = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allowance| {
            taken = (allowance / share).min(most);
            (taken >= least).then(|| allowance - taken)
        });
        took.ok().map(|_| taken)
    }

    /// For the monitor, before it looks: what it will have answered.
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    pub fn is_waited_for(&self) -> bool {
        self.asked.load(Ordering::Acquire) != self.answered.load(Ordering::Relaxed)
    }

    /// The next range that was announced, in the order in which they were. Where there was no room for
    /// it, it counts in [`Announcements::take_announced`] alone.
    pub fn take_fresh(&self) -> Option<Range<usize>> {
        self.fresh.take()
    }

    /// What was announced since this was asked last.
    pub fn take_announced(&self) -> u64 {
        self.announced.swap(0, Ordering::Relaxed)
    }

    /// What may be touched unasked from now on.
    pub fn allow(&self, bytes: u64) {
        self.allowance.store(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// For the monitor, after it has looked.
    pub fn answer(&self, asked: u32) {
        if self.answered.swap(asked, Ordering::Release) != asked {
            let _ = futex::wake(&self.answered, futex::Flags::PRIVATE, u32::MAX);
        }
    }

    /// In a forked child, before it has an agent: nobody waits.
    pub fn begin_child(&self) {
        self.answered.store(self.asked.load(Ordering::Relaxed), Ordering::Relaxed);
        // The parent's threads may have been about to write them.
        for place in &self.fresh.places {
            place.end.store(0, Ordering::Relaxed);
        }
        self.fresh.taken.store(self.fresh.put.load(Ordering::Relaxed), Ordering::Relaxed);
        self.allow(0);
    }
}

/// Tickets are numbers that go round.
fn is_reached(answered: u32, ticket: u32) -> bool {
    answered.wrapping_sub(ticket) < u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn announcements() -> Announcements {
        // SAFETY: zeroed memory is valid.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn what_is_allowed_is_not_waited_for_and_the_rest_is() {
        let announcements = announcements();
        announcements.allow(100);
        let woken = AtomicBool::new(false);
        let wake = || woken.store(true, Ordering::SeqCst);
        announcements.grow(&(0..60), wake);
        announcements.grow(&(0..40), wake);
        assert!(!woken.load(Ordering::SeqCst) && !announcements.is_waited_for());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                announcements.grow(&(0..1), wake);
                done.store(true, Ordering::SeqCst);
            });
            while !announcements.is_waited_for() {
                std::thread::yield_now();
            }
            // An answer to what was asked before is none to this.
            announcements.answer(0);
            assert!(!done.load(Ordering::SeqCst));
            let asked = announcements.asked();
            announcements.allow(7);
            announcements.answer(asked);
        });
        assert!(woken.load(Ordering::SeqCst) && done.load(Ordering::SeqCst));
        assert!(!announcements.exceeds(7) && announcements.exceeds(8));
    }

    #[test]
    fn a_part_is_taken_where_there_is_enough() {
        let announcements = announcements();
        announcements.allow(800);
        assert_eq!(announcements.take(8, 10, 1000), Some(100));
        assert_eq!(announcements.take(8, 10, 50), Some(50));
        assert_eq!(announcements.take(8, 100, 1000), None);
        assert!(!announcements.exceeds(650) && announcements.exceeds(651));
    }

    #[test]
    fn ranges_are_had_once_and_in_order() {
        let announcements = announcements();
        announcements.allow(u64::MAX);
        for round in 0..3 {
            let ranges = (1..=FRESH_MAX).map(|nth| round * 1000 + nth..round * 1000 + 2 * nth);
            ranges.clone().for_each(|range| announcements.grow(&range, || ()));
            // One too many.
            announcements.grow(&(7..9), || ());
            let taken = core::iter::from_fn(|| announcements.take_fresh());
            assert!(taken.eq(ranges));
        }
    }

    #[test]
    fn ranges_of_many_threads_are_had_once_each() {
        let announcements = announcements();
        announcements.allow(u64::MAX);
        let mut taken = [0u32; 4];
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4usize)
                .map(|thread| {
                    let announcements = &announcements;
                    scope.spawn(move || {
                        (0..5000).for_each(|_| announcements.grow(&(thread..2 * thread), || ()));
                    })
                })
                .collect();
            loop {
                let is_done = threads.iter().all(|thread| thread.is_finished());
                while let Some(range) = announcements.take_fresh() {
                    assert_eq!(range.end, 2 * range.start);
                    taken[range.start - 1] += 1;
                }
                if is_done {
                    break;
                }
            }
        });
        // Those for which there was no room are not among them.
        assert!(taken.iter().all(|&count| count <= 5000), "{taken:?}");
        assert!(taken.iter().sum::<u32>() >= FRESH_MAX as u32, "{taken:?}");
        assert!(announcements.take_announced() > 4 * 5000);
    }

    #[test]
    fn tickets_go_round() {
        assert!(is_reached(5, 5) && is_reached(6, 5) && !is_reached(4, 5));
        assert!(is_reached(2, u32::MAX - 1) && !is_reached(u32::MAX - 1, 2));
    }
}

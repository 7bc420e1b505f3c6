//! Growth that announces itself.
//!
//! Memory that is mapped and not registered can be touched without the agent's knowing, at
//! gigabytes a second, and while the machine keeps the agent waiting. So the program may have only
//! so much of it as there is room for, its *allowance*: each call that makes writable memory
//! (`crate::calls`) takes from that, and where it is used up the calling thread waits until the
//! agent has looked, and has registered what is too much.
//!
//! [`crate::protocols::announcements`] has the words that both sides use.

use core::ops::Range;

use crate::kernel::time;
use crate::protocols::announcements;

/// An agent that does not answer for so long is not waited for: what it is kept by is worse than a
/// cap that is passed.
const PATIENCE_NS: u64 = 5_000_000_000;
const LOOK_AGAIN_NS: u64 = if cfg!(test) { 10_000 } else { 100_000_000 };

/// So many ranges that were made are known one by one.
const FRESH_MAX: usize = 64;

/// The agent's.
pub(crate) type Announcements = announcements::Announcements<FRESH_MAX>;

/// For a thread of the program: it has just made this memory, or made it writable. Where that was
/// not allowed it waits for a look; `wake` wakes the monitor.
pub(crate) fn announce(announcements: &Announcements, range: &Range<usize>, wake: impl Fn()) {
    if announcements.grow(range) {
        return;
    }
    let asked = announcements.ask();
    wake();
    let deadline = time::monotonic_ns() + PATIENCE_NS;
    loop {
        let answered = announcements.answered();
        if Announcements::is_answered(asked, answered) || time::monotonic_ns() > deadline {
            return;
        }
        announcements.wait(answered, LOOK_AGAIN_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn announcements() -> Announcements {
        Announcements::default()
    }

    #[test]
    fn what_is_allowed_is_not_waited_for_and_the_rest_is() {
        let announcements = announcements();
        announcements.allow(100);
        let woken = AtomicBool::new(false);
        let wake = || woken.store(true, Ordering::SeqCst);
        announce(&announcements, &(0..60), wake);
        announce(&announcements, &(0..40), wake);
        assert!(!woken.load(Ordering::SeqCst) && !announcements.is_waited_for());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                announce(&announcements, &(0..1), wake);
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
            ranges.clone().for_each(|range| announce(&announcements, &range, || ()));
            // One too many.
            announce(&announcements, &(7..9), || ());
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
                        (0..5000)
                            .for_each(|_| announce(announcements, &(thread..2 * thread), || ()));
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
        let is_answered = Announcements::is_answered;
        assert!(is_answered(5, 5) && is_answered(5, 6) && !is_answered(5, 4));
        assert!(is_answered(u32::MAX - 1, 2) && !is_answered(2, u32::MAX - 1));
    }
}

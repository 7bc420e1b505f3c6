//! Checks and tests of spans.

use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::*;

impl Spans {
    /// Checks the headers, the lists of free spans and the kernel's view of the memory against one
    /// another, given which spans are in use.
    pub(crate) fn audit(&self, in_use: &std::collections::BTreeSet<u32>) {
        let free = self.free.lock();
        // SAFETY: below the frontier.
        let header = |span| unsafe { self.header(span) };
        let walk = |first: u32| {
            let next = |&span: &u32| match header(span).next.load(Ordering::Relaxed) {
                NONE => None,
                next => Some(next),
            };
            std::iter::successors((first != NONE).then_some(first), next).collect::<Vec<u32>>()
        };
        let (ready, bare) = (walk(free.ready), walk(free.bare));
        assert_eq!(ready.len() as u32, self.ready_count());
        assert_eq!(in_use.len() as u32, self.used_count());
        assert_eq!(free.populating, 0);
        assert_eq!(free.frontier, self.frontier());
        let mut all: Vec<u32> = ready.iter().chain(&bare).chain(in_use).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..free.frontier).collect::<Vec<u32>>());

        let resident = |span| header(span).resident.load(Ordering::Relaxed);
        assert!(ready.iter().all(|&span| resident(span) == ALL_PAGES));
        if self.release_failures() == 0 {
            assert!(bare.iter().all(|&span| resident(span) == 0));
        }
        let mut pages = 0;
        let kernel = crate::tests::present_pages(&self.memory.guarded_range());
        // A guard page stands before the first span.
        for (span, kernel) in (0..free.frontier).zip(kernel[1..].chunks(SPAN_PAGES)) {
            let map = kernel.iter().rev().fold(0, |map, &page| map << 1 | u16::from(page));
            assert_eq!(map, resident(span), "span {span}");
            pages += resident(span).count_ones() as usize;
        }
        assert_eq!(pages, kernel.iter().filter(|&&page| page).count());
        assert_eq!(self.resident_bytes(), pages * PAGE_SIZE);
    }
}

fn spans(count: usize, reserve: usize) -> Spans {
    Spans::new(count * SPAN_BYTES, reserve * SPAN_BYTES).unwrap()
}

#[test]
fn the_reserve_is_taken_first_and_refilled_last() {
    let s = spans(8, 3);
    assert_eq!(s.resident_bytes(), 0);
    s.refill().unwrap();
    assert_eq!((s.ready_count(), s.resident_bytes()), (3, 3 * SPAN_BYTES));
    let taken: Vec<u32> = (0..8).map(|_| s.take().unwrap()).collect();
    assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(s.reserve_misses(), 5);
    assert_eq!(s.take(), Err(NoSpan::Full));
    assert_eq!(s.resident_bytes(), 3 * SPAN_BYTES);
    s.refill().unwrap();
    assert_eq!(s.ready_count(), 0);
    for span in taken {
        // SAFETY: taken above.
        unsafe { s.give(span) };
    }
    // The three that had memory are the reserve again.
    assert_eq!((s.ready_count(), s.used_count()), (3, 0));
    assert_eq!(s.resident_bytes(), 3 * SPAN_BYTES);
}

#[test]
fn spans_beyond_the_reserve_lose_their_memory() {
    let s = spans(4, 1);
    s.refill().unwrap();
    let (a, b) = (s.take().unwrap(), s.take().unwrap());
    // SAFETY: both were taken.
    unsafe {
        s.touch(b, 4000, 200);
        *s.at(b, 4100) = 9;
        assert_eq!(s.resident_bytes(), SPAN_BYTES + 2 * PAGE_SIZE);
        s.give(a);
        s.give(b);
        assert_eq!(s.resident_bytes(), SPAN_BYTES);
        let again = [s.take().unwrap(), s.take().unwrap()];
        assert_eq!(again, [a, b]);
        assert_eq!(*s.at(b, 4100), 0);
    }
}

#[test]
fn a_refill_is_due_at_seven_eighths() {
    let s = spans(100, 8);
    assert!(s.reserve_low());
    s.refill().unwrap();
    for _ in 0..6 {
        s.take().unwrap();
        assert!(!s.reserve_low());
    }
    // 7 of the 8 that have memory are in use.
    s.take().unwrap();
    assert!(s.reserve_low());
    s.refill().unwrap();
    assert_eq!((s.used_count(), s.ready_count()), (7, 8));
    for _ in 0..6 {
        assert!(!s.reserve_low());
        s.take().unwrap();
    }
    // 13 of 15, and 14 of 15.
    assert!(!s.reserve_low());
    s.take().unwrap();
    assert!(s.reserve_low());
    // Of a large pool half the reserve is enough.
    for _ in 0..40 {
        s.take().unwrap();
    }
    s.refill().unwrap();
    for _ in 0..4 {
        s.take().unwrap();
        assert!(!s.reserve_low());
    }
    s.take().unwrap();
    assert!(s.reserve_low());
}

#[test]
fn without_a_reserve_none_is_due() {
    let s = spans(2, 0);
    s.take().unwrap();
    assert!(!s.reserve_low());
    s.refill().unwrap();
    assert_eq!(s.resident_bytes(), 0);
}

//! Ranges whose content a thread is dropping (`MADV_DONTNEED` and its kin).
//!
//! The kernel reports that first and drops the pages afterwards, with no lock held in between. A
//! page that was taken from the range in that time would come back with what it held. When the
//! thread is done nothing tells; so its range is left alone for a while that is long beside the
//! microsecond it needs, even where it must wait for a processor.

use core::ops::Range;

const REST_NS: u64 = 50_000_000;
const RANGES_MAX: usize = 16;

#[derive(Clone, Copy)]
struct Dropped {
    start: usize,
    end: usize,
    until_ns: u64,
}

/// The latest such ranges. All zero is none.
#[repr(C)]
pub(crate) struct DroppedRanges {
    /// The one noted last.
    last: usize,
    list: [Dropped; RANGES_MAX],
}

impl DroppedRanges {
    pub(crate) fn note(&mut self, range: &Range<usize>, now_ns: u64) {
        let until_ns = now_ns + REST_NS;
        let oldest = (self.last + 1) % RANGES_MAX;
        let free = self.list[oldest].until_ns <= now_ns;
        if free {
            self.last = oldest;
            self.list[oldest] = Dropped { start: range.start, end: range.end, until_ns };
        } else {
            // No room: what lies between is left alone too.
            let last = &mut self.list[self.last];
            last.start = last.start.min(range.start);
            last.end = last.end.max(range.end);
            last.until_ns = until_ns;
        }
    }

    /// Is a part of the range to be left alone? `now_ns` is asked for when it matters.
    pub(crate) fn touch(&self, range: &Range<usize>, now_ns: impl FnOnce() -> u64) -> bool {
        let overlaps = |dropped: &&Dropped| dropped.start < range.end && range.start < dropped.end;
        let until_ns = self.list.iter().filter(overlaps).map(|dropped| dropped.until_ns).max();
        until_ns.is_some_and(|until_ns| now_ns() < until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> DroppedRanges {
        DroppedRanges { last: 0, list: [Dropped { start: 0, end: 0, until_ns: 0 }; RANGES_MAX] }
    }

    #[test]
    fn a_range_is_left_alone_for_a_while() {
        let mut dropped = none();
        assert!(!dropped.touch(&(0..100), || panic!("nothing was dropped")));
        dropped.note(&(10..20), 1000);
        assert!(dropped.touch(&(0..11), || 1000 + REST_NS - 1));
        assert!(!dropped.touch(&(0..10), || 1001));
        assert!(!dropped.touch(&(20..30), || 1001));
        assert!(!dropped.touch(&(0..11), || 1000 + REST_NS));
    }

    #[test]
    fn none_is_forgotten_early() {
        let mut dropped = none();
        for index in 0..10 * RANGES_MAX {
            dropped.note(&(index * 10..index * 10 + 5), index as u64);
        }
        for index in 0..10 * RANGES_MAX {
            assert!(dropped.touch(&(index * 10..index * 10 + 5), || REST_NS - 1), "{index}");
        }
        assert!(!dropped.touch(&(0..usize::MAX), || 2 * REST_NS));
    }
}

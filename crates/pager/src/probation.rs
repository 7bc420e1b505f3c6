//! What streams have brought in, in the order in which they did: taken out again before anything else,
//! unless that does not pay ([`crate::victims`]).
//!
//! A program that goes over more memory than there is room for comes back to each page when all others
//! have been there. To take the oldest page, which is the one that it needs soonest, is the worst
//! choice; to take what it has just left behind leaves the rest in memory for the next time round. So
//! the pages of streams have only a small part of the memory to wait in. A page that the program
//! misses soon after it was taken from here is brought in for itself, and is like any other then.

use crate::page::PageNumber;

/// Windows of pages that can be remembered, and how many there should be at most.
const RUNS: usize = 1024;
const RUNS_USUAL: usize = RUNS / 4 * 3;

/// Pages at the same distance from each other.
#[derive(Clone, Copy)]
#[repr(C)]
struct Run {
    next: PageNumber,
    stride: i64,
    pages: usize,
}

/// All zero is an empty one.
#[repr(C)]
pub struct Probation {
    runs: [Run; RUNS],
    oldest: usize,
    count: usize,
    pages: usize,
}

impl Probation {
    /// A stream has brought in these pages. What no place is left for is a page like any other.
    pub fn push(&mut self, first: PageNumber, stride: i64, pages: usize) {
        if self.count == RUNS {
            self.drop_oldest();
        }
        // In ascending order, which is how pages are taken.
        let run = if stride > 0 {
            Run { next: first, stride, pages }
        } else {
            let last = first.wrapping_add_signed(stride * (pages as i64 - 1));
            Run { next: last, stride: -stride, pages }
        };
        self.runs[(self.oldest + self.count) % RUNS] = run;
        self.count += 1;
        self.pages += pages;
    }

    /// Where there are more than `limit` pages, or too many to remember: those to be taken next, one
    /// behind the other.
    pub fn beyond(&self, limit: usize) -> Option<(PageNumber, usize)> {
        if self.pages <= limit && self.count <= RUNS_USUAL {
            return None;
        }
        let Run { next, stride, pages } = self.runs[self.oldest];
        Some((next, if stride == 1 { pages } else { 1 }))
    }

    /// So many of these were taken, or passed by.
    pub fn skip(&mut self, pages: usize) {
        let run = &mut self.runs[self.oldest];
        let pages = pages.min(run.pages);
        run.next = run.next.wrapping_add_signed(run.stride * pages as i64);
        run.pages -= pages;
        self.pages -= pages;
        if run.pages == 0 {
            self.drop_oldest();
        }
    }

    /// The rest of the oldest run is no more where it was, or cannot be taken.
    pub fn drop_oldest(&mut self) {
        self.pages -= self.runs[self.oldest].pages;
        self.oldest = (self.oldest + 1) % RUNS;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probation() -> Box<Probation> {
        // SAFETY: all zero is an empty one.
        unsafe { Box::<Probation>::new_zeroed().assume_init() }
    }

    #[test]
    fn the_oldest_pages_come_first_in_ascending_order() {
        let mut probation = probation();
        assert_eq!(probation.beyond(0), None);
        probation.push(100, 1, 8);
        probation.push(50, -1, 4);
        probation.push(1000, -7, 2);
        assert_eq!(probation.beyond(14), None);
        assert_eq!(probation.beyond(13), Some((100, 8)));
        probation.skip(3);
        assert_eq!(probation.beyond(0), Some((103, 5)));
        probation.skip(5);
        assert_eq!(probation.beyond(0), Some((47, 4)));
        probation.skip(4);
        assert_eq!(probation.beyond(0), Some((993, 1)));
        probation.skip(1);
        assert_eq!(probation.beyond(0), Some((1000, 1)));
        assert_eq!(probation.beyond(1), None);
        probation.skip(1);
        assert_eq!(probation.beyond(0), None);
    }

    #[test]
    fn what_there_is_no_place_for_is_forgotten() {
        let mut probation = probation();
        for run in 0..2 * RUNS as u64 + 5 {
            probation.push(run * 100, 1, 2);
        }
        assert_eq!(probation.beyond(2 * RUNS), Some(((RUNS as u64 + 5) * 100, 2)));
        probation.skip(1);
        probation.drop_oldest();
        assert_eq!(probation.beyond(2 * RUNS), Some(((RUNS as u64 + 6) * 100, 2)));
        while probation.beyond(2 * RUNS).is_some() {
            probation.drop_oldest();
        }
        assert_eq!(probation.pages, 2 * RUNS_USUAL);
    }
}

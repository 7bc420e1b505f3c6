//! What streams have brought in, in the order in which they did: taken out again before anything
//! else, unless that does not pay ([`super::victims`]).
//!
//! A program that goes over more memory than there is room for comes back to each page when all
//! others have been there. To take the oldest page, which is the one that it needs soonest, is the
//! worst choice; to take what it has just left behind leaves the rest in memory for the next time
//! round. So the pages of streams have only a small part of the memory to wait in. A page that the
//! program misses soon after it was taken from here is brought in for itself, and is like any other
//! then.

use super::PageNumber;

/// Runs that can be remembered, and how many there should be at most.
const RUNS: usize = 1024;
const RUNS_USUAL: usize = RUNS / 4 * 3;

/// Pieces of a stream that continue each other are one run up to so many pages. Not more: from a
/// stream that goes down the pages that came last would be taken first.
const RUN_PAGES_MAX: usize = 32;

/// Pages at the same distance from each other.
#[derive(Clone, Copy)]
#[repr(C)]
struct Run {
    next: PageNumber,
    stride: i64,
    pages: usize,
}

impl Run {
    /// The page behind the last one, were it longer.
    fn end(&self) -> PageNumber {
        self.next.wrapping_add_signed(self.stride * self.pages as i64)
    }

    /// Both as one, where the other lies right behind this.
    fn joined(&self, other: &Run) -> Option<Run> {
        let pages = self.pages + other.pages;
        let fits =
            self.stride == other.stride && self.end() == other.next && pages <= RUN_PAGES_MAX;
        fits.then_some(Run { pages, ..*self })
    }
}

/// The runs on probation. Memory of zeros is empty, as [`Probation::NEW`] is.
#[repr(C)]
pub struct Probation {
    runs: [Run; RUNS],
    oldest: usize,
    count: usize,
    pages: usize,
}

impl Probation {
    /// An empty one.
    pub const NEW: Probation = Probation {
        runs: [Run { next: 0, stride: 0, pages: 0 }; RUNS],
        oldest: 0,
        count: 0,
        pages: 0,
    };

    /// A stream has brought in these pages. What no place is left for is a page like any other.
    pub fn push(&mut self, first: PageNumber, stride: i64, pages: usize) {
        // In ascending order, which is how pages are taken.
        let run = if stride > 0 {
            Run { next: first, stride, pages }
        } else {
            let last = first.wrapping_add_signed(stride * (pages as i64 - 1));
            Run { next: last, stride: -stride, pages }
        };
        self.pages += pages;
        if self.count > 0 {
            let newest = &mut self.runs[(self.oldest + self.count - 1) % RUNS];
            if let Some(joined) = newest.joined(&run).or_else(|| run.joined(newest)) {
                *newest = joined;
                return;
            }
        }
        if self.count == RUNS {
            self.drop_oldest();
        }
        self.runs[(self.oldest + self.count) % RUNS] = run;
        self.count += 1;
    }

    /// Where there are more than `limit` pages, or too many to remember: those to be taken next,
    /// one behind the other.
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
        Box::new(Probation::NEW)
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
    fn pieces_of_a_window_are_one_run() {
        let mut probation = probation();
        for (first, pages) in [(100, 8), (108, 8), (117, 4), (121, 1)] {
            probation.push(first, 1, pages);
        }
        for (first, stride, pages) in [(250, -1, 8), (242, -1, 3), (300, 5, 1), (305, 5, 2)] {
            probation.push(first, stride, pages);
        }
        let mut runs = Vec::new();
        while let Some(run) = probation.beyond(0) {
            runs.push(run);
            probation.skip(run.1);
        }
        assert_eq!(runs, [(100, 16), (117, 5), (240, 11), (300, 1), (305, 1), (310, 1)]);
        // A stream that goes down gives up what came first.
        for piece in 0..10 {
            probation.push(1000 - 8 * piece, -1, 8);
        }
        assert_eq!(probation.beyond(0), Some((969, 32)));
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

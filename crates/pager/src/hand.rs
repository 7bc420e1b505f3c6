//! A place that goes through the program's memory, from one run of pages to the next.

use core::ops::Range;

use ramfold_sys::pagemap::{PageRegion, Pages};

use crate::agent::{Active, WINDOW_PAGES};
use crate::regions::Regions;

const RUNS_MAX: usize = 64;

/// All zero is one before the first page.
#[repr(C)]
pub struct Hand {
    /// Where the next look begins.
    at: usize,
    /// What the last look found.
    runs: [PageRegion; RUNS_MAX],
    found: usize,
    used: usize,
}

impl Hand {
    pub const START: Hand = Hand {
        at: 0,
        runs: [PageRegion { start: 0, end: 0, categories: 0 }; RUNS_MAX],
        found: 0,
        used: 0,
    };

    /// The pages in memory that it stands before. `None`: it must look on.
    pub fn run(&self) -> Option<Range<usize>> {
        self.runs().next()
    }

    /// These and all others that the last look found.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs[self.used..self.found].iter().map(|run| run.start as usize..run.end as usize)
    }

    /// Goes on by so much of the run that it stands before.
    pub fn skip(&mut self, bytes: usize) {
        let run = &mut self.runs[self.used];
        run.start += bytes as u64;
        if run.start >= run.end {
            self.used += 1;
        }
    }

    /// Looks at the next stretch of memory, in which there may be no page. `false` behind the last.
    pub fn look(&mut self, active: &Active, regions: &Regions, pages: Pages) -> bool {
        self.used = 0;
        self.found = 0;
        let found = active.find_present(regions, &mut self.at, WINDOW_PAGES, &mut self.runs, pages);
        self.found = found.unwrap_or(0);
        found.is_some()
    }

    /// Begins again before the first page.
    pub fn restart(&mut self) {
        self.at = 0;
    }
}

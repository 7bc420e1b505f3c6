//! A place that goes through the program's memory, from one run of pages to the next.

use core::ops::Range;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::pagemap::{PageRegion, Pages};

use crate::agent::Active;
use crate::kernel::{Kernel, time};
use crate::take::regions::Regions;

const RUNS_MAX: usize = 64;
/// Pages that one look finds at most.
pub(crate) const LOOK_PAGES: usize = 1024;

/// How far one look reaches at least, and at most. The lock is held for it, and the kernel passes
/// over evicted pages at 1 us for 2 MiB, over memory that was never touched at 1 us for 1 GiB: the
/// shadow of a sanitizer is terabytes of that.
const REACH_MIN: usize = 64 << 20;
const REACH_MAX: usize = 16 << 30;
/// After a look that took less time the next one reaches twice as far, after a longer one half as
/// far.
const LOOK_NS: u64 = 20_000;

/// Where to look for pages next. All zero is before the first page.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ScanPosition {
    pub at: usize,
    /// How far the next look reaches, or less than it does at least.
    reach: usize,
}

impl ScanPosition {
    /// Finds runs of present pages in registered memory, up to `most` pages in all, and moves the
    /// place behind what was looked at. Returns the number of runs, zero if the look failed; `None`
    /// behind the last region.
    pub(crate) fn look(
        &mut self,
        active: &Active,
        regions: &Regions,
        most: usize,
        runs: &mut [PageRegion],
        pages: Pages,
    ) -> Option<usize> {
        let region = regions.at_or_after(self.at)?;
        let start = region.start.max(self.at);
        let reach = self.reach.max(REACH_MIN);
        let end = region.end.min(start.saturating_add(reach));
        let started = time::monotonic_ns();
        let Ok(found) = active.kernel.present(start..end, most, runs, pages) else {
            self.at = end;
            return Some(0);
        };
        let quick = time::monotonic_ns() - started < LOOK_NS;
        self.reach = if quick { (2 * reach).min(REACH_MAX) } else { reach / 2 };
        self.at = found.end.max(start + PAGE_SIZE);
        Some(found.runs)
    }
}

/// All zero is one before the first page.
#[repr(C)]
pub(crate) struct ClockHand {
    place: ScanPosition,
    /// What the last look found.
    runs: [PageRegion; RUNS_MAX],
    found: usize,
    used: usize,
}

impl ClockHand {
    pub(crate) const START: ClockHand = ClockHand {
        place: ScanPosition { at: 0, reach: 0 },
        runs: [PageRegion { start: 0, end: 0, categories: 0 }; RUNS_MAX],
        found: 0,
        used: 0,
    };

    /// The pages in memory that it stands before. `None`: it must look on.
    pub(crate) fn run(&self) -> Option<Range<usize>> {
        self.runs().next()
    }

    /// These and all others that the last look found.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs[self.used..self.found].iter().map(|run| run.start as usize..run.end as usize)
    }

    /// Goes on by so much of the run that it stands before.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let run = &mut self.runs[self.used];
        run.start += bytes as u64;
        if run.start >= run.end {
            self.used += 1;
        }
    }

    /// Looks at the next stretch of memory, in which there may be no page. `false` behind the last.
    pub(crate) fn look(&mut self, active: &Active, regions: &Regions, pages: Pages) -> bool {
        self.used = 0;
        self.found = 0;
        let found = self.place.look(active, regions, LOOK_PAGES, &mut self.runs, pages);
        self.found = found.unwrap_or(0);
        found.is_some()
    }

    /// Begins again before the first page.
    pub(crate) fn restart(&mut self) {
        self.place.at = 0;
    }
}

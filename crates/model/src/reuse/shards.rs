//! Reuse distances of a part of the pages, which is picked by a hash of their numbers.
//!
//! A page is looked at where its hash is below a threshold, at each of its accesses or at none. If
//! one page in `1/R` is, the pages that lie between two accesses to it are that many fewer, so the
//! distance is divided by `R`, and an access counts for `1/R` (Waldspurger, Park, Garthwaite and
//! Ahmad, "Efficient MRC construction with SHARDS", FAST 2015).
//!
//! With a limit of pages, the threshold begins where all pages are looked at and goes down when
//! there are too many: those whose hashes are above it are forgotten. What they came to stays
//! counted, with the weight it had.
//!
//! Two things are known of all pages, not only of those that are looked at, and correct the rest:
//!
//! - how many there are ([`Distinct`]). As many as are looked at are that part of them, which is
//!   the `R` that distances are divided by: a loop over all pages has its edge where they end;
//! - how many accesses there are ([`crate::curve::SampledCurve`]).

use std::collections::BinaryHeap;

use super::{Distinct, Histogram, StackDistances};
use crate::{PageNumber, hash};

/// Pages that are enough for a curve within a point of miss ratio: about 2 MiB.
pub const PAGES_USUAL: usize = 16_384;

/// Looks at a part of the pages of a trace.
#[derive(Debug)]
pub struct Shards {
    /// Pages whose hashes are at most this are looked at.
    threshold: u64,
    pages_max: Option<usize>,
    /// With a limit: the hashes of the pages that are looked at.
    looked_at: BinaryHeap<(u64, PageNumber)>,
    stack: StackDistances,
    distinct: Distinct,
    /// What that says.
    all_pages: f64,
    histogram: Histogram,
    accesses: u64,
}

impl Shards {
    /// Looks at this part of the pages. `1.0` is all of them: distances are exact then.
    ///
    /// # Panics
    /// If the rate is not above 0 and at most 1.
    pub fn with_rate(rate: f64) -> Shards {
        assert!(rate > 0.0 && rate <= 1.0, "{rate} is no part of the pages");
        let threshold = if rate < 1.0 { (rate * u64::MAX as f64) as u64 } else { u64::MAX };
        Shards::new(threshold, None)
    }

    /// Looks at no more than `pages_max` pages at a time, whatever the trace has.
    ///
    /// # Panics
    /// If that is none.
    pub fn with_pages(pages_max: usize) -> Shards {
        assert!(pages_max > 0, "no page to be looked at");
        Shards::new(u64::MAX, Some(pages_max))
    }

    fn new(threshold: u64, pages_max: Option<usize>) -> Shards {
        Shards {
            threshold,
            pages_max,
            looked_at: BinaryHeap::new(),
            stack: StackDistances::default(),
            distinct: Distinct::default(),
            all_pages: 0.0,
            histogram: Histogram::default(),
            accesses: 0,
        }
    }

    /// The part of the pages that is looked at now.
    pub fn rate(&self) -> f64 {
        (self.threshold as f64 + 1.0) / (u64::MAX as f64 + 1.0)
    }

    /// Pages that are looked at now.
    pub fn pages(&self) -> usize {
        self.stack.pages()
    }

    /// Different pages so far, looked at or not, to within 0.4 %.
    pub fn all_pages(&self) -> f64 {
        if self.threshold == u64::MAX { self.stack.pages() as f64 } else { self.all_pages }
    }

    /// The page is accessed.
    pub fn access(&mut self, page: PageNumber) {
        self.accesses += 1;
        let samples = self.threshold < u64::MAX || self.pages_max.is_some();
        if samples && self.distinct.note(page) {
            self.all_pages = self.distinct.pages();
        }
        let hash = hash(page);
        if hash > self.threshold {
            return;
        }
        let distance = self.stack.access(page);
        let whole = distance.map(|distance| self.scaled(distance));
        self.histogram.note(Histogram::group(page), whole, 1.0 / self.rate());
        if let Some(pages_max) = self.pages_max
            && distance.is_none()
        {
            self.looked_at.push((hash, page));
            self.forget_above(pages_max);
        }
    }

    /// Of the pages in between, this one apart, each stands for as many as there are for each that
    /// is looked at.
    fn scaled(&self, distance: u64) -> u64 {
        if self.threshold == u64::MAX {
            return distance;
        }
        let for_each = self.all_pages / self.stack.pages() as f64;
        1 + ((distance - 1) as f64 * for_each).round() as u64
    }

    fn forget_above(&mut self, pages_max: usize) {
        while self.looked_at.len() > pages_max {
            let (greatest, page) = self.looked_at.pop().expect("more than the limit");
            self.stack.forget(page);
            self.threshold = greatest - 1;
        }
    }

    /// What was seen.
    pub fn finish(mut self) -> Histogram {
        self.histogram.set_accesses(self.accesses as f64);
        self.histogram
    }
}

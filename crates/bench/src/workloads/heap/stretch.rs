//! What one thread does to its part of a heap.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::memory::{check, stamp};
use super::pattern::Pattern;
use super::picker::Picker;
use crate::content::heap_pages::{PAGE_WORDS, Page};
use crate::content::random::{Random, mix};
use crate::harness::latency::Histogram;
use crate::workloads::child::Quota;

/// Accesses between two readings of the clock where time is the limit.
const CLOCK_INTERVAL: u64 = 64;

/// What a phase did.
pub(super) struct Walk {
    pub(super) access_count: u64,
    pub(super) write_count: u64,
    pub(super) elapsed: Duration,
    pub(super) histogram: Option<Histogram>,
}

/// The pages of one thread.
pub(super) struct Stretch<'a> {
    /// The number of the first page in the heap.
    pub(super) first: usize,
    pub(super) pages: &'a mut [Page],
    pub(super) born_zero: &'a [bool],
    pub(super) seed: u64,
}

impl Stretch<'_> {
    pub(super) fn walk(
        &mut self,
        pattern: Pattern,
        quota: Quota,
        mut random: Random,
        latency: bool,
    ) -> Result<Walk> {
        let mut picker = Picker::new(pattern.order, self.pages.len());
        let mut histogram = latency.then(Histogram::default);
        let start = Instant::now();
        let mut access_count = 0;
        loop {
            let done = match quota {
                Quota::Accesses(count) => access_count >= count,
                // At least some accesses, also where the thread was kept waiting.
                Quota::Seconds(seconds) => {
                    access_count > 0
                        && access_count.is_multiple_of(CLOCK_INTERVAL)
                        && start.elapsed().as_secs_f64() >= seconds
                }
            };
            if done {
                break;
            }
            let place = picker.pick(&mut random);
            match &mut histogram {
                Some(histogram) => {
                    let before = Instant::now();
                    self.access(place, pattern, &mut random)?;
                    histogram.record(before.elapsed().as_nanos() as u64);
                }
                None => self.access(place, pattern, &mut random)?,
            }
            access_count += 1;
        }
        let write_count = if pattern.writes { access_count } else { 0 };
        Ok(Walk { access_count, write_count, elapsed: start.elapsed(), histogram })
    }

    #[inline]
    fn access(&mut self, place: usize, pattern: Pattern, random: &mut Random) -> Result<()> {
        let index = self.first + place;
        let page = &mut self.pages[place];
        let write_count = check(page, index, self.born_zero[place], self.seed)?;
        let read = if pattern.scans() { page.sum() } else { page.word(random.below(PAGE_WORDS)) };
        black_box(read);
        if pattern.writes {
            // Beside the stamp a word moves within the page, so that the page
            // differs from what was stored but stays as compressible.
            let choice = mix(read ^ u64::from(write_count));
            let word = page.word(2 + choice as u32 as usize % (PAGE_WORDS - 2));
            page.set_word(2 + (choice >> 32) as usize % (PAGE_WORDS - 2), word);
            stamp(page, index, write_count.wrapping_add(1), self.seed);
        }
        Ok(())
    }
}

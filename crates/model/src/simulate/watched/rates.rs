//! How often pages are accessed while nobody watches them.
//!
//! Only a few pages of a block are watched at a time, and each block rarely: what that costs the
//! program is bounded. But neighbours are alike, and so are moments that follow each other. So what
//! is taken to be the mean time until an access, at a moment, is a mean over watches nearby: those
//! of the block and of its neighbours in the sample, each with a weight by its distance in time and
//! in place.
//!
//! The mean is that of the logarithms. Times until a touch differ by orders of magnitude from one
//! part of a run to the next, and an arithmetic mean has nothing but the longest. The logarithm of
//! a time that is distributed exponentially is less than that of its mean by Euler's constant, with
//! a variance of pi^2 / 6.

use super::timeline::Watch;
use crate::{BLOCK_PAGES, PageNumber};

/// Watches so far away in time count half.
const NEAR_US: f64 = 100_000.0;
/// Neighbouring blocks that are asked on each side.
const NEIGHBOURS: u64 = 8;
/// And watches of each, before the moment and behind it.
const WATCHES: usize = 2;
/// A watch that no touch has ended says that the time is longer, by as much in the mean.
const CENSORED: f64 = 1.0;
const EULER: f64 = 0.577_215_664_901_532_9;
const VARIANCE: f64 = 1.644_934_066_848_226_4;
/// No accesses follow each other faster, as far as anything here is concerned: a fault takes as
/// long.
const MEAN_US_MIN: f64 = 20.0;

/// Watches of all blocks.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// In the order of blocks of the dense address space, and of time.
    watches: Vec<(u64, Watch)>,
}

impl Rates {
    /// From all watches, in any order, each with a page of the dense address space.
    pub(super) fn new(watches: impl Iterator<Item = (PageNumber, Watch)>) -> Rates {
        let mut watches: Vec<(u64, Watch)> =
            watches.map(|(page, watch)| (page / BLOCK_PAGES, watch)).collect();
        watches.sort_by_key(|(block, watch)| (*block, watch.end_us));
        Rates { watches }
    }

    /// The mean time until an access to a page, at a moment. `None`: nobody has watched nearby.
    pub(super) fn mean_us(&self, page: PageNumber, at_us: u64) -> Option<f64> {
        let own = page / BLOCK_PAGES;
        let (mut weights, mut squares, mut sum) = (0.0, 0.0, 0.0);
        for block in own.saturating_sub(NEIGHBOURS)..=own + NEIGHBOURS {
            let distance = own.abs_diff(block) as f64;
            for watch in self.near(block, at_us) {
                let apart = watch.distance_us(at_us) as f64 / NEAR_US;
                let weight = 1.0 / (1.0 + apart * apart) / (1.0 + distance);
                let censored = if watch.is_touched { 0.0 } else { CENSORED };
                weights += weight;
                squares += weight * weight;
                sum += weight * ((watch.watched_us.max(1) as f64).ln() + censored);
            }
        }
        (weights > 0.0).then(|| {
            // The inverse of the mean is how often pages are accessed: of few watches it would be
            // too great on average.
            let few = VARIANCE / 2.0 * squares / (weights * weights);
            (sum / weights + EULER + few).exp().max(MEAN_US_MIN)
        })
    }

    /// A block's watches around a moment.
    fn near(&self, block: u64, at_us: u64) -> impl Iterator<Item = &Watch> {
        let first = self.watches.partition_point(|(other, _)| *other < block);
        let end = self.watches.partition_point(|(other, _)| *other <= block);
        let of_block = &self.watches[first..end];
        let at = of_block.partition_point(|(_, watch)| watch.end_us <= at_us);
        let near = at.saturating_sub(WATCHES)..(at + WATCHES).min(of_block.len());
        of_block[near].iter().map(|(_, watch)| watch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(end_us: u64, watched_us: u64) -> Watch {
        Watch { end_us, watched_us, is_touched: true }
    }

    /// Times until an access that are distributed exponentially.
    fn drawn(nth: u64, mean_us: f64) -> u64 {
        let part = (crate::hash(nth) >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - part).ln() * mean_us) as u64 + 1
    }

    #[test]
    fn many_watches_give_their_mean() {
        let watches =
            (0..4000).map(|nth| (nth % 80 * BLOCK_PAGES, watch(nth * 1000, drawn(nth, 7000.0))));
        let rates = Rates::new(watches);
        let means = (0..100u64).map(|nth| rates.mean_us(nth * 6, nth * 37_000 + 100_000).unwrap());
        let mean = means.sum::<f64>() / 100.0;
        assert!((mean / 7000.0 - 1.0).abs() < 0.15, "{mean}");
    }

    #[test]
    fn what_neighbours_do_now_counts_more_than_what_the_page_did_long_ago() {
        // All pages were idle for 300 ms in the first second; the neighbours are used each 5 ms in
        // the third.
        let watches = (0..16u64).flat_map(|block| {
            let later = watch(3_000_000 + block, 5000);
            let first = [(block * BLOCK_PAGES, watch(1_000_000, 300_000))];
            first.into_iter().chain((block != 8).then_some((block * BLOCK_PAGES, later)))
        });
        let rates = Rates::new(watches);
        let page = 8 * BLOCK_PAGES + 3;
        let (early, late) = (rates.mean_us(page, 1_000_000), rates.mean_us(page, 3_000_000));
        assert!(early.unwrap() > 300_000.0 && late.unwrap() < 30_000.0, "{early:?} {late:?}");
        assert_eq!(rates.mean_us(1000 * BLOCK_PAGES, 1_000_000), None);
    }
}

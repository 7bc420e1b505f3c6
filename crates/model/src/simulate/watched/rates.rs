//! How often pages are accessed while nobody watches them.
//!
//! Only a few pages of a block are watched at a time, and each block rarely: what that costs the
//! program is bounded. So the time until a page is accessed, at a moment, is put together from what
//! is known of all pages at that moment, of those nearby around it, and of the page itself in the
//! whole run:
//!
//! ```text
//! ln time = all(moment) + nearby(block, moment) - ln place(page) + chance
//! ```
//!
//! - `all`: the mean over the watches of all pages that began around the moment. A program has
//!   phases, some of them of milliseconds.
//! - `nearby`: by how much watches of the block and of its neighbours differ from that, each with a
//!   weight by its distance in time and in place. A page that is watched at the moment is as near
//!   as can be: how long it is still left alone counts. Of few watches it is drawn towards 0.
//! - `place`: pages are not alike. Some are used a hundred times as often as others, in the same
//!   block too, and that decides what a program misses: pages that are used rarely stay out, and
//!   the others take turns in what memory there is. So each page has a place among its neighbours
//!   ([`places`](super::places)).
//! - `chance`: the logarithm of a time that is distributed exponentially is less than that of its
//!   mean by Euler's constant, with a variance of pi^2 / 6.
//!
//! How many watches make the first mean, and what counts as near for the second, differs from
//! program to program: of some choices that is taken by which watches are said best by those of
//! other pages ([`Rates::choose`]).
//!
//! The means are those of logarithms. Times until a touch differ by orders of magnitude from one
//! part of a run to the next, and an arithmetic mean has nothing but the longest.

use super::places::{Own, Places};
use super::timeline::Watch;
use crate::{BLOCK_PAGES, PageNumber};

/// Watches of all pages, before a moment and behind it: what may be chosen.
const ALL_WATCHES: [usize; 4] = [1000, 48, 12, 6];
/// The distance in time at which a watch of a page nearby counts half: what may be chosen.
/// Microseconds.
const NEAR_US: [f64; 5] = [1e9, 5e6, 1e6, 200e3, 50e3];
/// The same of the distance in place. Blocks.
const NEAR_BLOCKS: [f64; 4] = [16.0, 4.0, 1.0, 0.3];
/// The weight of the assumption that blocks do not differ. The unit is the weight of one watch of
/// the block itself.
const ALIKE: [f64; 5] = [100.0, 10.0, 2.0, 0.5, 0.1];
/// Neighbouring blocks that are asked on each side.
const NEIGHBOURS: u64 = 8;
/// And watches of each, before the moment and behind it.
const WATCHES: usize = 3;
/// So many watches before the moment may still last.
const WATCHES_BACK: usize = 16;
/// Pages of a block that were taken within so long were taken together.
const TOGETHER_US: u64 = 1000;
/// A watch that no touch has ended says that the time is longer, by as much in the mean.
const CENSORED: f64 = 1.0;
const EULER: f64 = 0.577_215_664_901_532_9;
const VARIANCE: f64 = 1.644_934_066_848_226_4;
/// The greatest number of watches by which weights are chosen.
const LOOKED_AT_MAX: usize = 512;
/// No accesses follow each other faster, as far as anything here is concerned: a fault takes as
/// long.
const MEAN_US_MIN: f64 = 20.0;
/// The length of the parts of a watch, and their greatest number. What the neighbours do is looked
/// up for each part.
const PART_US: u64 = 100_000;
const PARTS_MAX: u64 = 8;

/// Watches of all blocks.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// In the order of blocks, and of their beginnings.
    watches: Vec<Seen>,
    /// Blocks of the dense address space, in order, and where the watches of each begin.
    blocks: Vec<(u64, usize)>,
    /// When watches began, in order, and the sum of their logarithms before each.
    began_us: Vec<u64>,
    sums: Vec<f64>,
    /// So many watches of all pages are asked, before a moment and behind it.
    all_watches: usize,
    nearness: Nearness,
    places: Places,
    /// What is known of each page that was watched, in their order.
    own: Vec<(PageNumber, Own)>,
}

/// A watch of a page.
#[derive(Clone, Copy, Debug)]
struct Seen {
    page: PageNumber,
    watch: Watch,
    /// By how much its logarithm is more than that of all others around its beginning.
    more: f64,
}

/// How much what is near counts.
#[derive(Clone, Copy, Debug, Default)]
struct Nearness {
    near_us: f64,
    near_blocks: f64,
    /// The weight of the assumption that blocks do not differ.
    alike: f64,
}

/// By how much watches nearby differ from all.
#[derive(Clone, Copy, Debug)]
struct Nearby {
    mean: f64,
    /// The variance of that mean, as a part of the variance of a watch.
    noise: f64,
}

impl Rates {
    /// From all watches, in any order, each with a page of the dense address space.
    pub(super) fn new(watches: impl Iterator<Item = (PageNumber, Watch)>) -> Rates {
        let mut watches: Vec<(PageNumber, Watch)> = watches.collect();
        watches.sort_by_key(|(_, watch)| watch.began_us());
        let mut rates = Rates { sums: vec![0.0], ..Rates::default() };
        for (_, watch) in &watches {
            rates.began_us.push(watch.began_us());
            rates.sums.push(rates.sums[rates.sums.len() - 1] + logarithm(watch));
        }
        let block = |page: PageNumber| page / BLOCK_PAGES;
        watches.sort_by_key(|(page, watch)| (block(*page), watch.began_us(), watch.end_us, *page));
        for of_block in watches.chunk_by(|one, other| block(one.0) == block(other.0)) {
            rates.blocks.push((block(of_block[0].0), rates.watches.len()));
            let seen = |&(page, watch)| Seen { page, watch, more: 0.0 };
            rates.watches.extend(of_block.iter().map(seen));
        }
        rates.choose();
        watches.sort_by_key(|(page, watch)| (*page, watch.began_us()));
        let of_pages = watches.chunk_by(|one, other| one.0 == other.0);
        let own = of_pages.map(|of_page| {
            let page = of_page[0].0;
            (page, rates.own(page, of_page.iter().map(|(_, watch)| *watch)))
        });
        rates.own = own.collect();
        rates.places = Places::new(&rates.own);
        rates
    }

    /// Chooses how watches are weighted, so that each is said best by the others. The smoothest of
    /// choices that are as good comes first.
    fn choose(&mut self) {
        let step = self.watches.len().div_ceil(LOOKED_AT_MAX).max(1);
        let mut looked_at: Vec<Seen> = self.watches.iter().step_by(step).copied().collect();
        let mut least = f64::INFINITY;
        let mut chosen = ALL_WATCHES[0];
        for all_watches in ALL_WATCHES {
            self.all_watches = all_watches;
            let beyond = |seen: &Seen| off(&seen.watch, self.more_than_others(&seen.watch));
            let squares: f64 = looked_at.iter().map(beyond).sum();
            if squares < least {
                (least, chosen) = (squares, all_watches);
            }
        }
        self.all_watches = chosen;
        for nth in 0..self.watches.len() {
            self.watches[nth].more = self.more_than_others(&self.watches[nth].watch);
        }
        looked_at = self.watches.iter().step_by(step).copied().collect();
        let mut least = f64::INFINITY;
        let mut chosen = Nearness::default();
        let choices = NEAR_US.into_iter().flat_map(|near_us| {
            NEAR_BLOCKS.into_iter().flat_map(move |near_blocks| {
                ALIKE.map(|alike| Nearness { near_us, near_blocks, alike })
            })
        });
        for nearness in choices {
            self.nearness = nearness;
            let beyond = |seen: &Seen| {
                let of_others = self.nearby(seen.page, seen.watch.began_us(), true).mean;
                off(&seen.watch, seen.more - of_others)
            };
            let squares: f64 = looked_at.iter().map(beyond).sum();
            if squares < least {
                (least, chosen) = (squares, nearness);
            }
        }
        self.nearness = chosen;
    }

    /// A page's own watches, by what its neighbours do in their time.
    fn own(&self, page: PageNumber, watches: impl Iterator<Item = Watch>) -> Own {
        let mut own = Own::default();
        for watch in watches {
            own.touches += f64::from(u8::from(watch.is_touched));
            let parts = (watch.watched_us / PART_US).clamp(1, PARTS_MAX);
            let length_us = watch.watched_us as f64 / parts as f64;
            for nth in 0..parts {
                let at_us = watch.began_us() + ((nth as f64 + 0.5) * length_us) as u64;
                own.watched += length_us / self.mean_us(page, 1.0, at_us).unwrap_or(f64::INFINITY);
            }
        }
        own
    }

    /// Where a page stands among its neighbours, from its own watches: its rate of accesses divided
    /// by theirs.
    pub(super) fn place(&self, page: PageNumber) -> f64 {
        let found = self.own.binary_search_by_key(&page, |own| own.0);
        self.places.place(page, found.map_or_else(|_| Own::default(), |nth| self.own[nth].1))
    }

    /// The mean time until an access to a page, at a moment. `None`: nobody has watched anything.
    pub(super) fn mean_us(&self, page: PageNumber, place: f64, at_us: u64) -> Option<f64> {
        let nearby = self.nearby(page, at_us, false);
        // The inverse of the mean is how often pages are accessed: of few watches it would be too
        // great on average.
        let noise = nearby.noise + 1.0 / self.around(at_us).len().max(1) as f64;
        let few = VARIANCE / 2.0 * noise;
        let ln = self.all(at_us)? + nearby.mean + EULER + few - place.ln();
        Some(ln.exp().max(MEAN_US_MIN))
    }

    /// The watches of all pages around a moment.
    fn around(&self, at_us: u64) -> std::ops::Range<usize> {
        let at = self.began_us.partition_point(|&began_us| began_us < at_us);
        at.saturating_sub(self.all_watches)..(at + self.all_watches).min(self.began_us.len())
    }

    /// The mean of these.
    fn all(&self, at_us: u64) -> Option<f64> {
        let around = self.around(at_us);
        let sum = self.sums[around.end] - self.sums[around.start];
        (!around.is_empty()).then(|| sum / around.len() as f64)
    }

    /// The same for a watch, which is one of these and is left out.
    fn more_than_others(&self, watch: &Watch) -> f64 {
        let around = self.around(watch.began_us());
        let own = logarithm(watch);
        if around.len() < 2 {
            return 0.0;
        }
        let others = self.sums[around.end] - self.sums[around.start] - own;
        own - others / (around.len() - 1) as f64
    }

    /// By how much watches nearby differ from all in the mean, but for those of the page itself.
    /// `is_trial`: nor those of pages that were taken together with it, which are touched together
    /// more often than pages that are as near.
    fn nearby(&self, page: PageNumber, at_us: u64, is_trial: bool) -> Nearby {
        let Nearness { near_us, near_blocks, alike } = self.nearness;
        let own = page / BLOCK_PAGES;
        let all = self.all(at_us).unwrap_or_default();
        let (mut weights, mut squares, mut sum) = (alike, 0.0, 0.0);
        let first = self.blocks.partition_point(|(block, _)| *block + NEIGHBOURS < own);
        for (nth, &(block, from)) in self.blocks.iter().enumerate().skip(first) {
            if block > own + NEIGHBOURS {
                break;
            }
            let to = self.blocks.get(nth + 1).map_or(self.watches.len(), |next| next.1);
            let of_place = 1.0 / (1.0 + own.abs_diff(block) as f64 / near_blocks);
            let of_block = &self.watches[from..to];
            for seen in closest(of_block, at_us) {
                let (began_us, end_us) = (seen.watch.began_us(), seen.watch.end_us);
                let is_left_out = is_trial && block == own;
                if seen.page == page || is_left_out && began_us.abs_diff(at_us) < TOGETHER_US {
                    continue;
                }
                let (weight, more) = if began_us < at_us && at_us < end_us {
                    let rest = Watch { watched_us: end_us - at_us, ..seen.watch };
                    (of_place, logarithm(&rest) - all)
                } else {
                    let apart = began_us.abs_diff(at_us) as f64 / near_us;
                    (of_place / (1.0 + apart * apart), seen.more)
                };
                weights += weight;
                squares += weight * weight;
                sum += weight * more;
            }
        }
        Nearby { mean: sum / weights, noise: squares / (weights * weights) }
    }
}

/// Those of a block's watches that began around a moment. Of those that began earlier the ones that
/// still last: of pages that are left alone while others of the block are watched again and again.
fn closest(of_block: &[Seen], at_us: u64) -> impl Iterator<Item = &Seen> {
    let at = of_block.partition_point(|seen| seen.watch.began_us() <= at_us);
    let first = at.saturating_sub(WATCHES);
    let earlier = &of_block[at.saturating_sub(WATCHES_BACK)..first];
    let still_lasting = earlier.iter().filter(move |seen| seen.watch.end_us > at_us);
    still_lasting.chain(&of_block[first..(at + WATCHES).min(of_block.len())])
}

/// The square of what a watch's logarithm is off by, when it was said to be less by `more`. One
/// that no touch has ended is not off where more was said.
fn off(watch: &Watch, more: f64) -> f64 {
    let off = if watch.is_touched { more } else { (more - CENSORED).max(0.0) };
    off * off
}

fn logarithm(watch: &Watch) -> f64 {
    (watch.watched_us.max(1) as f64).ln() + if watch.is_touched { 0.0 } else { CENSORED }
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
        let mean = |nth: u64| rates.mean_us(nth * 6, 1.0, nth * 37_000 + 100_000).unwrap();
        let mean = (0..100).map(mean).sum::<f64>() / 100.0;
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
        let mean = |at_us| rates.mean_us(8 * BLOCK_PAGES + 3, 1.0, at_us).unwrap();
        let (early, late) = (mean(700_000), mean(3_000_000));
        assert!(early > 300_000.0 && late < 30_000.0, "{early:?} {late:?}");
        assert_eq!(Rates::new([].into_iter()).mean_us(3, 1.0, 1_000_000), None);
    }

    #[test]
    fn watches_of_long_ago_count_where_nothing_changes() {
        // Half of the blocks are used a hundred times as often; each is watched each 3 s.
        let mean_us = |block: u64| if block < 32 { 10_000.0 } else { 1_000_000.0 };
        let watches = (0..640u64).map(|nth| {
            let block = nth * 5 % 64;
            let watched_us = drawn(nth, mean_us(block));
            let page = block * BLOCK_PAGES + nth / 64 % BLOCK_PAGES;
            (page, watch(nth * 47_000 + watched_us, watched_us))
        });
        let rates = Rates::new(watches);
        for block in 0..64 {
            let found = rates.mean_us(block * BLOCK_PAGES + 3, 1.0, 15_000_000).unwrap();
            assert!((0.2..5.0).contains(&(found / mean_us(block))), "{block}: {found}");
        }
    }

    #[test]
    fn phases_are_told_apart() {
        // Each page is accessed within 2 ms or 400 ms, in turns of a fifth of a second.
        let watches = (0..2000u64).map(|nth| {
            let began_us = nth * 1000;
            let is_busy = began_us / 200_000 % 2 == 0;
            let watched_us = drawn(nth, if is_busy { 2000.0 } else { 400_000.0 });
            (nth * 7 % 640, watch(began_us + watched_us, watched_us))
        });
        let rates = Rates::new(watches);
        for turn in 0..10u64 {
            let mean = rates.mean_us(turn * 50, 1.0, turn * 200_000 + 100_000).unwrap();
            let expected = if turn % 2 == 0 { 2000.0 } else { 400_000.0 };
            assert!((0.3..3.0).contains(&(mean / expected)), "{turn}: {mean}");
        }
    }

    #[test]
    fn a_page_has_its_place_among_neighbours_that_are_not_like_it() {
        // In each block one page in two is used a hundred times as often as the other.
        let watches: Vec<(PageNumber, Watch)> = (0..8000u64)
            .map(|nth| {
                let page = nth * 7 % 320;
                let mean_us = if page % 2 == 0 { 1000.0 } else { 100_000.0 };
                let watched_us = drawn(nth, mean_us);
                (page, watch(nth * 500 + watched_us, watched_us))
            })
            .collect();
        let rates = Rates::new(watches.iter().copied());
        let place = |page: PageNumber| rates.place(page);
        for page in 0..100 {
            let place = place(page);
            assert_eq!(place > 1.0, page % 2 == 0, "{page}: {place}");
            let mean = rates.mean_us(page, place, 2_000_000).unwrap();
            let expected = if page % 2 == 0 { 1000.0 } else { 100_000.0 };
            assert!((0.1..10.0).contains(&(mean / expected)), "{page}: {mean}");
        }
        // Of pages that nobody has watched some stand above, and more below.
        let above = (1000..1400).filter(|&page| place(page) > 1.0).count();
        assert!((100..260).contains(&above), "{above}");
    }
}

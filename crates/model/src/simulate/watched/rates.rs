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
//!   weight by its distance in time and in place. Of few watches it is drawn towards 0, the more
//!   the less watches vary beyond chance.
//! - `place`: pages are not alike. Some are used a hundred times as often as others, in the same
//!   block too, and that decides what a program misses: pages that are used rarely stay out, and
//!   the others take turns in what memory there is. So each page has a place among its neighbours:
//!   its rate of accesses divided by theirs. Places have a gamma distribution. That of a page
//!   is drawn from what is left of the distribution when the page's own watches are known.
//! - `chance`: the logarithm of a time that is distributed exponentially is less than that of its
//!   mean by Euler's constant, with a variance of pi^2 / 6. What watches vary by beyond that is the
//!   variance of the places' logarithms.
//!
//! The means are those of logarithms. Times until a touch differ by orders of magnitude from one
//! part of a run to the next, and an arithmetic mean has nothing but the longest.

use super::timeline::{self, Watch};
use crate::{BLOCK_PAGES, PageNumber, hash};

/// Watches of all pages, before a moment and behind it.
const ALL_WATCHES: usize = 12;
/// Of the pages nearby, those that begin so far away in time count half.
const NEAR_US: f64 = 100_000.0;
/// Neighbouring blocks that are asked on each side.
const NEIGHBOURS: u64 = 8;
/// And watches of each, before the moment and behind it.
const WATCHES: usize = 2;
/// The least and the greatest weight of the assumption that blocks do not differ. The unit is the
/// weight of one watch of the block itself.
const ALIKE: std::ops::RangeInclusive<f64> = 0.05..=100.0;
/// How pages may differ: a hundred thousand times, or not at all.
const SHAPES: std::ops::RangeInclusive<f64> = 0.2..=1000.0;
/// A watch that no touch has ended says that the time is longer, by as much in the mean.
const CENSORED: f64 = 1.0;
const EULER: f64 = 0.577_215_664_901_532_9;
const VARIANCE: f64 = 1.644_934_066_848_226_4;
/// The greatest number of watches from which `alike` and `shape` are computed.
const LOOKED_AT_MAX: usize = 4096;
/// No accesses follow each other faster, as far as anything here is concerned: a fault takes as
/// long.
const MEAN_US_MIN: f64 = 20.0;

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
    /// The weight of the assumption that blocks do not differ: the more watches vary, the smaller.
    alike: f64,
    /// How pages differ that are near each other: the shape of a gamma distribution.
    shape: f64,
}

/// A watch.
#[derive(Clone, Copy, Debug)]
struct Seen {
    watch: Watch,
    /// By how much its logarithm is more than that of all others around its beginning.
    more: f64,
}

/// By how much watches nearby differ from all.
#[derive(Clone, Copy, Debug)]
struct Nearby {
    mean: f64,
    /// The variance of that mean, as a part of the variance of a watch.
    noise: f64,
}

/// Where a page stands among its neighbours: its rate of accesses divided by theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place(f64);

impl Rates {
    /// From all watches, in any order, each with a page of the dense address space.
    pub(super) fn new(watches: impl Iterator<Item = (PageNumber, Watch)>) -> Rates {
        let mut watches: Vec<(u64, Watch)> =
            watches.map(|(page, watch)| (page / BLOCK_PAGES, watch)).collect();
        watches.sort_by_key(|(_, watch)| watch.began_us());
        let mut rates = Rates { sums: vec![0.0], ..Rates::default() };
        for (_, watch) in &watches {
            rates.began_us.push(watch.began_us());
            rates.sums.push(rates.sums[rates.sums.len() - 1] + logarithm(watch));
        }
        watches.sort_by_key(|(block, watch)| (*block, watch.began_us(), watch.end_us));
        for of_block in watches.chunk_by(|one, other| one.0 == other.0) {
            rates.blocks.push((of_block[0].0, rates.watches.len()));
            for &(_, watch) in of_block {
                rates.watches.push(Seen { watch, more: rates.more_than_others(&watch) });
            }
        }
        let step = rates.watches.len().div_ceil(LOOKED_AT_MAX).max(1);
        let of_all = rates.watches.iter().step_by(step).map(|seen| seen.more);
        rates.alike = (VARIANCE / beyond_chance(of_all)).clamp(*ALIKE.start(), *ALIKE.end());
        let of_nearby =
            watches.iter().step_by(step).map(|(block, watch)| rates.beyond(*block, watch));
        rates.shape = shape_of_variance(beyond_chance(of_nearby));
        rates
    }

    /// Where a page stands, from its own watches.
    pub(super) fn place(&self, page: PageNumber, own: impl Iterator<Item = Watch>) -> Place {
        // What is left of the distribution: gamma's is its own conjugate.
        let (mut shape, mut rate) = (self.shape, digamma(self.shape).exp());
        for watch in own {
            let usual = logarithm(&watch) - self.beyond(page / BLOCK_PAGES, &watch) + EULER;
            shape += f64::from(u8::from(watch.is_touched));
            rate += watch.watched_us as f64 / usual.exp().max(MEAN_US_MIN);
        }
        Place((gamma(hash(page), shape) / rate).max(f64::MIN_POSITIVE))
    }

    /// The mean time until an access to a page, at a moment. `None`: nobody has watched anything.
    pub(super) fn mean_us(&self, page: PageNumber, place: Place, at_us: u64) -> Option<f64> {
        let nearby = self.nearby(page / BLOCK_PAGES, at_us, None);
        // The inverse of the mean is how often pages are accessed: of few watches it would be too
        // great on average.
        let few = VARIANCE / 2.0 * (nearby.noise + 0.5 / ALL_WATCHES as f64);
        let ln = self.all(at_us)? + nearby.mean + EULER + few - place.0.ln();
        Some(ln.exp().max(MEAN_US_MIN))
    }

    /// By how much a watch differs from what the others say.
    fn beyond(&self, block: u64, watch: &Watch) -> f64 {
        let nearby = self.nearby(block, watch.began_us(), Some(watch));
        self.more_than_others(watch) - nearby.mean
    }

    /// The watches of all pages around a moment.
    fn around(&self, at_us: u64) -> std::ops::Range<usize> {
        let at = self.began_us.partition_point(|&began_us| began_us < at_us);
        at.saturating_sub(ALL_WATCHES)..(at + ALL_WATCHES).min(self.began_us.len())
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

    /// By how much watches nearby differ from all in the mean, but for one.
    fn nearby(&self, own: u64, at_us: u64, but: Option<&Watch>) -> Nearby {
        let (mut weights, mut squares, mut sum) = (self.alike, 0.0, 0.0);
        let first = self.blocks.partition_point(|(block, _)| *block + NEIGHBOURS < own);
        for (nth, &(block, from)) in self.blocks.iter().enumerate().skip(first) {
            if block > own + NEIGHBOURS {
                break;
            }
            let to = self.blocks.get(nth + 1).map_or(self.watches.len(), |next| next.1);
            for seen in closest(&self.watches[from..to], at_us) {
                if block == own && but == Some(&seen.watch) {
                    continue;
                }
                let apart = seen.watch.began_us().abs_diff(at_us) as f64 / NEAR_US;
                let weight = 1.0 / (1.0 + apart * apart) / (1.0 + own.abs_diff(block) as f64);
                weights += weight;
                squares += weight * weight;
                sum += weight * seen.more;
            }
        }
        Nearby { mean: sum / weights, noise: squares / (weights * weights) }
    }
}

/// Those of a block's watches that began around a moment.
fn closest(of_block: &[Seen], at_us: u64) -> &[Seen] {
    let at = of_block.partition_point(|seen| seen.watch.began_us() <= at_us);
    &of_block[at.saturating_sub(WATCHES)..(at + WATCHES).min(of_block.len())]
}

/// The mean square, as far as it is more than the variance of chance.
fn beyond_chance(differs: impl Iterator<Item = f64>) -> f64 {
    let (mut squares, mut count) = (0.0, 0.0);
    for one in differs {
        squares += one * one;
        count += 1.0;
    }
    (squares / f64::max(count, 1.0) - VARIANCE).max(0.0)
}

/// The shape of the gamma distribution whose logarithms have a variance.
fn shape_of_variance(variance: f64) -> f64 {
    let (mut low, mut high) = (*SHAPES.start(), *SHAPES.end());
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        if trigamma(middle) > variance { low = middle } else { high = middle }
    }
    low
}

/// The mean of the logarithms of a gamma distribution of this shape and scale 1 (Abramowitz and
/// Stegun, "Handbook of mathematical functions", 6.3.5 and 6.3.18).
fn digamma(mut shape: f64) -> f64 {
    let mut sum = 0.0;
    while shape < 6.0 {
        sum -= 1.0 / shape;
        shape += 1.0;
    }
    let square = (shape * shape).recip();
    let series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0));
    sum + shape.ln() - 0.5 / shape - series
}

/// Their variance (6.4.6 and 6.4.12).
fn trigamma(mut shape: f64) -> f64 {
    let mut sum = 0.0;
    while shape < 6.0 {
        sum += (shape * shape).recip();
        shape += 1.0;
    }
    let square = (shape * shape).recip();
    let series = 1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0);
    sum + 1.0 / shape + square * (0.5 + series / shape)
}

/// A number with a gamma distribution of scale 1 (Marsaglia and Tsang, "A simple method for
/// generating gamma variables", ACM Transactions on Mathematical Software 26, 2000).
fn gamma(seed: u64, shape: f64) -> f64 {
    let mut bits = seed;
    let mut part = || {
        bits = hash(bits);
        // More than 0: by the distance of such numbers.
        timeline::part(bits) + f64::EPSILON / 2.0
    };
    if shape < 1.0 {
        let less = part().powf(1.0 / shape);
        return less * gamma(hash(bits), shape + 1.0);
    }
    let middle = shape - 1.0 / 3.0;
    loop {
        let normal = (-2.0 * part().ln()).sqrt() * (std::f64::consts::TAU * part()).cos();
        let cube = (1.0 + normal / (9.0 * middle).sqrt()).powi(3);
        let bound = 0.5 * normal * normal + middle * (1.0 - cube + cube.max(0.0).ln());
        if cube > 0.0 && part().ln() < bound {
            return middle * cube;
        }
    }
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
        assert!(rates.shape > 4.0, "{}", rates.shape);
        let mean = |nth: u64| rates.mean_us(nth * 6, Place(1.0), nth * 37_000 + 100_000).unwrap();
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
        let mean = |at_us| rates.mean_us(8 * BLOCK_PAGES + 3, Place(1.0), at_us).unwrap();
        let (early, late) = (mean(700_000), mean(3_000_000));
        assert!(early > 300_000.0 && late < 30_000.0, "{early:?} {late:?}");
        assert_eq!(Rates::new([].into_iter()).mean_us(3, Place(1.0), 1_000_000), None);
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
            let mean = rates.mean_us(turn * 50, Place(1.0), turn * 200_000 + 100_000).unwrap();
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
        assert!((0.3..0.8).contains(&rates.shape), "{}", rates.shape);
        let place = |page: PageNumber| {
            let own = watches.iter().filter(|(other, _)| *other == page);
            rates.place(page, own.map(|(_, watch)| *watch)).0
        };
        for page in 0..100 {
            let place = place(page);
            assert_eq!(place > 1.0, page % 2 == 0, "{page}: {place}");
            let mean = rates.mean_us(page, Place(place), 2_000_000).unwrap();
            let expected = if page % 2 == 0 { 1000.0 } else { 100_000.0 };
            assert!((0.1..10.0).contains(&(mean / expected)), "{page}: {mean}");
        }
        // Of pages that nobody has watched some stand above, and more below.
        let above = (1000..1400).filter(|&page| place(page) > 1.0).count();
        assert!((100..260).contains(&above), "{above}");
    }

    #[test]
    fn a_gamma_distribution_has_the_logarithms_that_its_functions_say() {
        // Known values: minus Euler's constant, and pi^2 / 6.
        assert!((digamma(1.0) + EULER).abs() < 1e-6 && (trigamma(1.0) - VARIANCE).abs() < 1e-6);
        for shape in [0.3, 1.0, 2.5, 40.0] {
            let logarithms: Vec<f64> =
                (0..20_000).map(|nth| gamma(hash(nth), shape).ln()).collect();
            let count = logarithms.len() as f64;
            let mean = logarithms.iter().sum::<f64>() / count;
            let variance = logarithms.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
            assert!((mean - digamma(shape)).abs() < 0.08, "{shape}: {mean}");
            assert!((variance / trigamma(shape) - 1.0).abs() < 0.08, "{shape}: {variance}");
            let found = shape_of_variance(trigamma(shape));
            assert!((found / shape - 1.0).abs() < 1e-4, "{shape}: {found}");
        }
    }
}

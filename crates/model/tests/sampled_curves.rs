//! Curves of sampled pages against exact ones, on whole traces of many kinds: the mean error is at
//! most one point of miss ratio, and the interval holds what it says.

use ramfold_model::PageNumber;
use ramfold_model::curve::{MissCurve, SampledCurve};
use ramfold_model::reuse::Shards;
use ramfold_model::reuse::shards::PAGES_USUAL;

const ACCESSES: usize = 200_000;
/// Sizes of memory at which curves are held against each other.
const SIZES: u32 = 50;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Pages with the chance of Zipf's law, by the inverse of its cumulative sum.
fn zipf(random: &mut Random, cumulative: &[f64]) -> u64 {
    let sum = cumulative[cumulative.len() - 1] * random.part();
    cumulative.partition_point(|&below| below < sum) as u64
}

fn cumulative(pages: u64, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=pages)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect()
}

/// The page of an access.
type Page<'a> = &'a dyn Fn(&mut Random, usize) -> u64;

fn traces() -> Vec<(&'static str, Vec<PageNumber>)> {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let mut trace =
        |name, page: Page| (name, (0..ACCESSES).map(|nth| page(&mut random, nth)).collect());
    let flat = cumulative(30_000, 0.6);
    let steep = cumulative(30_000, 1.1);
    vec![
        trace("uniform", &|random, _| random.below(30_000)),
        trace("Zipf 0.6", &(|random, _| zipf(random, &flat))),
        trace("Zipf 1.1", &(|random, _| zipf(random, &steep))),
        trace("loop", &(|_, nth| nth as u64 % 25_000)),
        trace(
            "loops of three lengths",
            &(|_, nth| match nth % 4 {
                0 | 1 => nth as u64 / 4 % 3_000,
                2 => 100_000 + nth as u64 / 4 % 12_000,
                _ => 200_000 + nth as u64 / 4 % 40_000,
            }),
        ),
        trace(
            "a part often, scans between",
            &(|random, nth| match nth / 20_000 % 2 {
                0 => random.below(4_000),
                _ => 50_000 + nth as u64 % 20_000,
            }),
        ),
    ]
}

fn curve_of(trace: &[PageNumber], mut shards: Shards) -> SampledCurve {
    trace.iter().for_each(|&page| shards.access(page));
    SampledCurve::from_reuse(&shards.finish())
}

/// Sizes up to what the trace needs.
fn sizes(exact: &MissCurve) -> impl Iterator<Item = f64> + use<> {
    let need = exact.need_pages();
    (1..=SIZES).map(move |nth| need * f64::from(nth) / f64::from(SIZES))
}

fn mean_error(exact: &MissCurve, found: &MissCurve) -> f64 {
    let error = |pages| (exact.miss_ratio(pages) - found.miss_ratio(pages)).abs();
    sizes(exact).map(error).sum::<f64>() / f64::from(SIZES)
}

#[test]
fn sampled_curves_are_within_a_point_of_exact_ones() {
    for (name, trace) in traces() {
        let exact = curve_of(&trace, Shards::with_rate(1.0));
        for (way, shards) in [
            ("a third", Shards::with_rate(1.0 / 3.0)),
            ("16,384 pages", Shards::with_pages(PAGES_USUAL)),
        ] {
            let found = curve_of(&trace, shards);
            let error = mean_error(exact.curve(), found.curve());
            assert!(error <= 0.01, "{name}, {way}: {error:.4}");
        }
    }
}

#[test]
fn the_interval_holds_nine_of_ten() {
    let (mut held, mut all) = (0, 0);
    for (_, trace) in traces() {
        let exact = curve_of(&trace, Shards::with_rate(1.0));
        let sampled = curve_of(&trace, Shards::with_rate(0.05));
        for pages in sizes(exact.curve()) {
            let estimate = sampled.faults(pages);
            assert!(estimate.low <= estimate.value && estimate.value <= estimate.high);
            let faults = exact.curve().faults(pages);
            held += u32::from(estimate.low <= faults && faults <= estimate.high);
            all += 1;
        }
    }
    assert!(held * 100 >= all * 85, "{held} of {all}");
}

#[test]
fn no_more_pages_are_looked_at_than_allowed() {
    let mut shards = Shards::with_pages(500);
    for page in 0..100_000 {
        shards.access(page % 60_000);
        assert!(shards.pages() <= 500);
    }
    assert!((shards.rate() * 60_000.0 / 500.0 - 1.0).abs() < 0.2, "{}", shards.rate());
}

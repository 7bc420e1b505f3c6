//! The pages of an order, one after the other.

use super::pattern::{Order, PHASE_ACCESSES_PER_PAGE, PHASES, STREAMS, STRIDE};
use crate::content::random::{Random, Zipf};

/// The exponent of YCSB's zipfian distribution.
const ZIPF_EXPONENT: f64 = 0.99;

/// Picks the next page.
pub(crate) struct Picker {
    page_count: usize,
    /// Pages picked so far.
    picked: usize,
    order: Order,
    zipf: Option<(Zipf, usize)>,
}

impl Picker {
    pub(crate) fn new(order: Order, page_count: usize) -> Self {
        let zipf = (order == Order::Zipf)
            .then(|| (Zipf::new(page_count, ZIPF_EXPONENT), scattering_stride(page_count)));
        Self { page_count, picked: 0, order, zipf }
    }

    #[inline]
    pub(crate) fn pick(&mut self, random: &mut Random) -> usize {
        let (pages, nth) = (self.page_count, self.picked % self.page_count);
        self.picked += 1;
        match (self.order, &self.zipf) {
            (Order::Zipf, Some((zipf, stride))) => {
                (zipf.sample(random) as u128 * *stride as u128 % pages as u128) as usize
            }
            (Order::Sequential, _) => nth,
            (Order::Reverse, _) => pages - 1 - nth,
            (Order::Strided, _) => in_strides(nth, pages, STRIDE),
            (Order::Streams, _) => in_strides(nth, pages, pages.div_ceil(STREAMS)),
            (Order::Uniform | Order::Zipf, _) => random.below(pages),
            (Order::Phases, _) => {
                let part = pages.div_ceil(PHASES);
                let phase = (self.picked - 1) / (PHASE_ACCESSES_PER_PAGE * pages) % PHASES;
                let first = (phase * part).min(pages - 1);
                first + random.below(part.min(pages - first))
            }
            (Order::Cold, _) => random.below(pages.div_ceil(PHASES)),
        }
    }
}

/// The `nth` of `count` places, taken at a distance of `stride` from the first one on, then from
/// the second, and so on.
fn in_strides(nth: usize, count: usize, stride: usize) -> usize {
    // The first passes have one place more than the others.
    let longest = count.div_ceil(stride);
    let long_passes = count - (longest - 1) * stride;
    if nth < long_passes * longest {
        nth / longest + nth % longest * stride
    } else {
        let rest = nth - long_passes * longest;
        long_passes + rest / (longest - 1) + rest % (longest - 1) * stride
    }
}

/// A number without common factor with `count`, near its golden section, so
/// that multiples of it modulo `count` visit every page and lie far apart.
fn scattering_stride(count: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (count as f64 * 0.618_033_988_749_895) as usize;
    (golden.max(1)..).find(|&stride| divisor(stride, count) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::*;

    #[test]
    fn scans_visit_every_page_once_a_round() {
        let scans = Pattern::ALL.into_iter().filter(|pattern| pattern.scans());
        for (pattern, count) in scans.flat_map(|pattern| {
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 50, 1001].map(|count| (pattern, count))
        }) {
            let mut picker = Picker::new(pattern.order, count);
            for _ in 0..2 {
                let mut seen = vec![false; count];
                for _ in 0..count {
                    let place = picker.pick(&mut Random::new(1));
                    assert!(!seen[place], "{} of {count}: {place} twice", pattern.name);
                    seen[place] = true;
                }
            }
        }
    }

    #[test]
    fn orders_are_what_they_are_called() {
        let order = |name: &str, count: usize| {
            let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name == name).unwrap();
            let mut picker = Picker::new(pattern.order, count);
            let mut random = Random::new(1);
            (0..count).map(|_| picker.pick(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(order("reverse-rw", 4), [3, 2, 1, 0]);
        assert_eq!(order("strided-rw", 16)[..6], [0, 7, 14, 1, 8, 15]);
        assert_eq!(order("streams-rw", 16)[..6], [0, 4, 8, 12, 1, 5]);
        let (phases, part) = (order("phases-rw", 1000), 250);
        assert!(phases.iter().all(|place| *place < part));
        assert!(order("cold-rw", 1000).iter().all(|place| *place < part));
    }

    #[test]
    fn strides_visit_every_page() {
        for count in [1, 2, 3, 10, 97, 1000, 65536] {
            let stride = scattering_stride(count);
            let mut seen = vec![false; count];
            (0..count).for_each(|rank| seen[rank * stride % count] = true);
            assert!(seen.iter().all(|seen| *seen), "stride {stride} of {count}");
        }
    }
}

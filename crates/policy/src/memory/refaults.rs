//! How soon pages that were taken come back, in pages that were taken meanwhile: the refault
//! distance. A page that comes back after so many would still be in memory, had there been room for
//! so many more.

/// Distances are told apart by so many parts of the cap. Longer ones than that are all alike.
const PARTS: usize = 64;
/// The latest so many count, up to twice as many.
const COUNTED: u32 = 512;
/// As few say nothing.
const ENOUGH: u32 = 64;

/// The refault distances of the latest pages that came back. Memory of zeros knows nothing, as
/// [`Refaults::NEW`] does.
#[repr(C)]
pub struct Refaults {
    /// The last: those that are longer.
    counts: [u32; PARTS + 1],
    all: u32,
}

impl Refaults {
    /// Nothing is known.
    pub const NEW: Refaults = Refaults { counts: [0; PARTS + 1], all: 0 };

    /// A page came back at this distance; `u64::MAX` where it is longer than can be told.
    pub fn note(&mut self, distance: u64, cap_pages: u64) {
        if self.all == 2 * COUNTED {
            self.all = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.all += *count;
            }
        }
        let part = distance.saturating_mul(PARTS as u64) / cap_pages.max(1);
        self.counts[part.min(PARTS as u64) as usize] += 1;
        self.all += 1;
    }

    /// Of 1,000 pages that came back, those that would not have had to if there had been room for
    /// so many more, which is a cap's worth at most.
    pub fn per_mille_within(&self, pages: u64, cap_pages: u64) -> u64 {
        if self.all < ENOUGH {
            return 0;
        }
        let thousandths = |count: u32| u64::from(count) * 1000;
        let (mut found, mut rest) = (0, pages * PARTS as u64);
        for &count in &self.counts[..PARTS] {
            let part = rest.min(cap_pages);
            found += thousandths(count) * part / cap_pages.max(1);
            rest -= part;
        }
        found / u64::from(self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(distances: impl IntoIterator<Item = u64>) -> Refaults {
        let mut refaults = Refaults::NEW;
        for distance in distances {
            refaults.note(distance, 6400);
        }
        refaults
    }

    #[test]
    fn what_is_nearer_counts() {
        let within = |refaults: &Refaults, pages| refaults.per_mille_within(pages, 6400);
        let refaults = noted((0..100).map(|nth| nth * 64));
        assert_eq!(within(&refaults, 0), 0);
        assert_eq!(within(&refaults, 3200), 500);
        assert!(within(&refaults, 333).abs_diff(52) < 8);
        assert_eq!(within(&refaults, 6400), 1000);
        let far = noted((0..100).map(|nth| if nth % 4 == 0 { 10 } else { u64::MAX }));
        assert_eq!(within(&far, 1_000_000), 250);
    }

    #[test]
    fn few_say_nothing_and_old_ones_are_forgotten() {
        assert_eq!(noted((1..ENOUGH).map(|_| 1)).per_mille_within(6400, 6400), 0);
        let refaults = noted((0..10_000).map(|_| 1).chain((0..10_000).map(|_| u64::MAX)));
        assert!(refaults.per_mille_within(6400, 6400) < 10);
    }
}

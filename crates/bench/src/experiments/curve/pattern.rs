//! Orders of accesses.

use crate::content::random::Random;
use crate::workloads::{Order, Picker};

/// An order of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Uniform,
    Zipf,
    Hot,
    Spots,
    Phases,
    Loop,
    Mixed,
    Collector,
}

/// The part of the pages that is accessed more often than others, or alone.
const PART: usize = 5;
/// The same of a mixture, and of a program between two collections.
const SMALL_PART: usize = 8;
/// The number of accesses, of ten, that go to the pages that are accessed more often.
const OF_TEN: usize = 9;
/// Pages of a spot.
const SPOT: usize = 64;
/// Accesses between two collections, for each page.
const BETWEEN: usize = 1;

impl Pattern {
    pub(super) const ALL: [Pattern; 8] = [
        Pattern::Uniform,
        Pattern::Zipf,
        Pattern::Hot,
        Pattern::Spots,
        Pattern::Phases,
        Pattern::Loop,
        Pattern::Mixed,
        Pattern::Collector,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Zipf => "zipf",
            Pattern::Hot => "hot",
            Pattern::Spots => "spots",
            Pattern::Phases => "phases",
            Pattern::Loop => "loop",
            Pattern::Mixed => "mixed",
            Pattern::Collector => "collector",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Pattern::Uniform => "any page",
            Pattern::Zipf => "pages by Zipf's law, scattered",
            Pattern::Hot => "nine of ten accesses to a fifth of the pages, in one place",
            Pattern::Spots => "the same in spots of 64 pages, scattered",
            Pattern::Phases => "any page of a quarter, then of the next",
            Pattern::Loop => "all pages in order, again and again",
            Pattern::Mixed => "in turns the next page of a loop and any page of an eighth",
            Pattern::Collector => "any page of an eighth; now and then all pages in order, quickly",
        }
    }

    pub(super) fn find(name: &str) -> Option<Pattern> {
        Pattern::ALL.into_iter().find(|pattern| pattern.name() == name)
    }

    /// The pages, one after the other, of a program that has so many.
    pub(super) fn pages(self, count: usize, seed: u64) -> Pages {
        let order = match self {
            Pattern::Zipf => Order::Zipf,
            Pattern::Phases => Order::Phases,
            Pattern::Loop | Pattern::Mixed | Pattern::Collector => Order::Sequential,
            Pattern::Uniform | Pattern::Hot | Pattern::Spots => Order::Uniform,
        };
        Pages {
            pattern: self,
            count,
            picked: 0,
            picker: Picker::new(order, count),
            random: Random::new(seed),
        }
    }
}

/// A page that is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) page: usize,
    /// The next access follows at once.
    pub(super) is_quick: bool,
}

/// Yields the pages of an order.
pub(super) struct Pages {
    pattern: Pattern,
    count: usize,
    picked: usize,
    picker: Picker,
    random: Random,
}

impl Pages {
    pub(super) fn pick(&mut self) -> Pick {
        let (nth, count) = (self.picked, self.count);
        self.picked += 1;
        let part_of = |part: usize| (count / part).max(1);
        let mut is_quick = false;
        let page = match self.pattern {
            Pattern::Hot if self.random.below(10) < OF_TEN => self.random.below(part_of(PART)),
            Pattern::Spots if self.random.below(10) < OF_TEN => {
                let page = self.random.below(part_of(PART));
                page / SPOT * PART * SPOT + page % SPOT
            }
            Pattern::Mixed if nth % 2 == 0 => self.random.below(part_of(SMALL_PART)),
            Pattern::Collector => {
                is_quick = nth % (count * (BETWEEN + 1)) >= count * BETWEEN;
                match is_quick {
                    true => self.picker.pick(&mut self.random),
                    false => self.random.below(part_of(SMALL_PART)),
                }
            }
            _ => self.picker.pick(&mut self.random),
        };
        Pick { page, is_quick }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_what_they_are_said_to_be() {
        let count = 1000;
        let picks = |pattern: Pattern| -> Vec<Pick> {
            let mut pages = pattern.pages(count, 1);
            (0..4 * count).map(|_| pages.pick()).collect()
        };
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::find(pattern.name()), Some(pattern));
            assert!(picks(pattern).iter().all(|pick| pick.page < count), "{}", pattern.name());
        }
        let share = |pattern, of: fn(usize) -> bool| {
            let picks = picks(pattern);
            picks.iter().filter(|pick| of(pick.page)).count() as f64 / picks.len() as f64
        };
        assert!((0.9..0.95).contains(&share(Pattern::Hot, |page| page < 200)));
        assert!((0.9..0.95).contains(&share(Pattern::Spots, |page| page % 320 < 64)));
        assert!((0.5..0.6).contains(&share(Pattern::Mixed, |page| page < 125)));
        let collector = picks(Pattern::Collector);
        assert!(collector[..count].iter().all(|pick| pick.page < 125 && !pick.is_quick));
        assert_eq!(collector[count + 7], Pick { page: 7, is_quick: true });
        assert!(!collector[2 * count].is_quick);
    }
}

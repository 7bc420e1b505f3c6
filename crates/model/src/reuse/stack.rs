//! Exact reuse distances.
//!
//! Each page has the slot of its last access. A Fenwick tree counts the slots that are still some
//! page's last: those after a page's own slot are the pages accessed since. An access takes
//! `O(log n)` for `n` pages. When the slots run out, pages move together in their order.

use std::collections::HashMap;

use crate::PageNumber;

const SLOTS_FIRST: usize = 1024;

/// The pages accessed so far, in the order of their last accesses.
#[derive(Debug)]
pub struct StackDistances {
    last: HashMap<PageNumber, usize>,
    /// What page each slot is the last access of.
    slots: Vec<Option<PageNumber>>,
    counts: Fenwick,
}

impl Default for StackDistances {
    fn default() -> Self {
        StackDistances {
            last: HashMap::new(),
            slots: Vec::with_capacity(SLOTS_FIRST),
            counts: Fenwick::new(SLOTS_FIRST),
        }
    }
}

impl StackDistances {
    /// The page is accessed. Returns the distance, in pages, at least 1; `None` at its first
    /// access.
    pub fn access(&mut self, page: PageNumber) -> Option<u64> {
        if self.slots.len() == self.counts.len() {
            self.compact();
        }
        let slot = self.slots.len();
        self.slots.push(Some(page));
        let before = self.last.insert(page, slot);
        let distance = before.map(|before| {
            let pages = self.last.len() - self.counts.sum_below(before);
            self.counts.subtract(before);
            self.slots[before] = None;
            pages as u64
        });
        self.counts.add(slot);
        distance
    }

    /// Forgets a page, as if it had never been accessed.
    pub fn forget(&mut self, page: PageNumber) {
        if let Some(slot) = self.last.remove(&page) {
            self.counts.subtract(slot);
            self.slots[slot] = None;
        }
    }

    /// Different pages so far.
    pub fn pages(&self) -> usize {
        self.last.len()
    }

    /// Leaves out the slots that are nobody's last access any more; at least half are free then.
    fn compact(&mut self) {
        let mut slots = Vec::with_capacity(2 * self.last.len() + SLOTS_FIRST);
        slots.extend(self.slots.iter().copied().filter(Option::is_some));
        self.counts = Fenwick::new(slots.capacity());
        for (slot, page) in slots.iter().copied().enumerate() {
            if let Some(page) = page {
                self.last.insert(page, slot);
                self.counts.add(slot);
            }
        }
        self.slots = slots;
    }
}

/// Counts of slots, of which the sum below a slot is had in `O(log n)`.
#[derive(Debug)]
struct Fenwick(Vec<u32>);

impl Fenwick {
    fn new(len: usize) -> Fenwick {
        Fenwick(vec![0; len])
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn change(&mut self, index: usize, change: impl Fn(&mut u32)) {
        let mut place = index + 1;
        while place <= self.0.len() {
            change(&mut self.0[place - 1]);
            place += place & place.wrapping_neg();
        }
    }

    fn add(&mut self, index: usize) {
        self.change(index, |count| *count += 1);
    }

    fn subtract(&mut self, index: usize) {
        self.change(index, |count| *count -= 1);
    }

    fn sum_below(&self, index: usize) -> usize {
        let (mut place, mut sum) = (index, 0);
        while place > 0 {
            sum += self.0[place - 1] as usize;
            place &= place - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By a list in the order of the last accesses.
    fn distances_by_list(trace: &[u64]) -> Vec<Option<u64>> {
        let mut recent: Vec<u64> = Vec::new();
        let access = |&page: &u64| {
            let place = recent.iter().position(|&other| other == page);
            if let Some(place) = place {
                recent.remove(place);
            }
            recent.insert(0, page);
            place.map(|place| place as u64 + 1)
        };
        trace.iter().map(access).collect()
    }

    proptest! {
        #[test]
        fn they_are_the_places_in_a_list(trace in prop::collection::vec(0..40u64, 0..4000)) {
            let mut stack = StackDistances::default();
            let distances: Vec<_> = trace.iter().map(|&page| stack.access(page)).collect();
            prop_assert_eq!(distances, distances_by_list(&trace));
        }

        #[test]
        fn a_page_that_was_forgotten_was_never_there(
            trace in prop::collection::vec(0..30u64, 0..3000),
            forgotten in 0..30u64,
        ) {
            let mut stack = StackDistances::default();
            trace.iter().for_each(|&page| { stack.access(page); });
            stack.forget(forgotten);
            let mut other = StackDistances::default();
            for &page in trace.iter().filter(|&&page| page != forgotten) {
                other.access(page);
            }
            for page in 0..30 {
                prop_assert_eq!(stack.access(page), other.access(page));
            }
        }
    }

    #[test]
    fn slots_grow_with_the_pages() {
        let mut stack = StackDistances::default();
        let pages = 10 * SLOTS_FIRST as u64;
        assert!((0..pages).all(|page| stack.access(page).is_none()));
        assert!((0..pages).all(|page| stack.access(page) == Some(pages)));
        assert_eq!(stack.pages() as u64, pages);
    }
}

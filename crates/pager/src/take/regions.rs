//! Which ranges of the program's address space are registered.
//!
//! The kernel's events keep this list true: a range leaves it in the same step in which the
//! event that ended it is read. A range that is missing here costs only memory; a range too many
//! would lose pages, so what is uncertain is taken out and found again by the next look at the
//! mappings.

use core::ops::Range;

/// More than this many separate ranges are not looked after; programs have tens to hundreds.
/// The bound keeps registrations far below the kernel's limit on mappings (65,530).
pub(crate) const REGIONS_MAX: usize = 8192;

/// A registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub start: usize,
    pub end: usize,
}

/// Registered ranges, sorted, not overlapping. All zero is an empty list.
#[repr(C)]
pub(crate) struct Regions {
    count: usize,
    list: [Region; REGIONS_MAX],
}

impl Regions {
    pub(crate) fn as_slice(&self) -> &[Region] {
        &self.list[..self.count]
    }

    /// Index of the first region that ends behind `address`.
    fn position(&self, address: usize) -> usize {
        self.as_slice().partition_point(|region| region.end <= address)
    }

    /// The first region with a part at or behind `address`.
    pub(crate) fn at_or_after(&self, address: usize) -> Option<Region> {
        self.as_slice().get(self.position(address)).copied()
    }

    /// Is the whole range registered?
    pub(crate) fn contains(&self, range: &Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        let mut at = range.start;
        for region in &self.as_slice()[self.position(range.start)..] {
            if region.start > at {
                return false;
            }
            at = region.end;
            if at >= range.end {
                return true;
            }
        }
        false
    }

    /// How much of the range is registered.
    pub(crate) fn bytes_in(&self, range: &Range<usize>) -> usize {
        { self.as_slice()[self.position(range.start)..].iter() }
            .take_while(|region| region.start < range.end)
            .map(|region| region.end.min(range.end) - region.start.max(range.start))
            .sum()
    }

    /// Is any part of the range registered?
    pub(crate) fn overlaps(&self, range: &Range<usize>) -> bool {
        self.at_or_after(range.start).is_some_and(|region| region.start < range.end)
            && !range.is_empty()
    }

    /// Adds a range, joining what it touches. `false` when the list is full.
    pub(crate) fn insert(&mut self, range: Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        // All regions that overlap or touch the range become one.
        let first = self.as_slice().partition_point(|region| region.end < range.start);
        let last = self.as_slice().partition_point(|region| region.start <= range.end);
        let mut joined = Region { start: range.start, end: range.end };
        for region in &self.list[first..last] {
            joined.start = joined.start.min(region.start);
            joined.end = joined.end.max(region.end);
        }
        self.splice(first, last, &[joined])
    }

    /// Takes a range out. `false` when that would need one region more than there is room for;
    /// then the whole region that was to be split is out.
    pub(crate) fn remove(&mut self, range: &Range<usize>) -> bool {
        let first = self.position(range.start);
        let last = self.as_slice().partition_point(|region| region.start < range.end);
        if first >= last || range.is_empty() {
            return true;
        }
        let mut left = [self.list[first]; 2];
        let mut count = 0;
        if left[0].start < range.start {
            left[0].end = range.start;
            count = 1;
        }
        let tail = self.list[last - 1];
        if tail.end > range.end {
            left[count] = Region { start: range.end, end: tail.end };
            count += 1;
        }
        self.splice(first, last, &left[..count]) || {
            self.splice(first, last, &[]);
            false
        }
    }

    /// Puts `new` in the place of the regions `first..last`; `false` without room.
    fn splice(&mut self, first: usize, last: usize, new: &[Region]) -> bool {
        let count = self.count - (last - first) + new.len();
        if count > REGIONS_MAX {
            return false;
        }
        self.list.copy_within(last..self.count, first + new.len());
        self.list[first..first + new.len()].copy_from_slice(new);
        self.count = count;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Box<Regions> {
        // SAFETY: all zero is an empty list.
        unsafe { Box::<Regions>::new_zeroed().assume_init() }
    }

    #[test]
    fn agrees_with_a_set_of_pages() {
        let mut regions = regions();
        let mut model = std::collections::BTreeSet::new();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let start = random(300);
            let range = start..start + random(40);
            if random(2) == 0 {
                assert!(regions.insert(range.clone()));
                model.extend(range);
            } else {
                assert!(regions.remove(&range));
                model.retain(|page| !range.contains(page));
            }
            let listed: Vec<usize> =
                regions.as_slice().iter().flat_map(|r| r.start..r.end).collect();
            assert!(listed.iter().copied().eq(model.iter().copied()));
            assert!(regions.as_slice().windows(2).all(|w| w[0].end < w[1].start));
            let start = random(300);
            let asked = start..start + random(20);
            assert_eq!(regions.contains(&asked), asked.clone().all(|page| model.contains(&page)));
            assert_eq!(regions.overlaps(&asked), asked.clone().any(|page| model.contains(&page)));
            assert_eq!(regions.bytes_in(&asked), model.range(asked).count());
            assert_eq!(
                regions.at_or_after(start).map(|r| r.start.max(start)),
                model.range(start..).next().copied()
            );
        }
    }

    #[test]
    fn a_full_list_refuses_and_never_keeps_what_was_taken_out() {
        let mut regions = regions();
        for index in 0..REGIONS_MAX {
            assert!(regions.insert(index * 10..index * 10 + 5));
        }
        assert!(!regions.insert(REGIONS_MAX * 10..REGIONS_MAX * 10 + 5));
        assert!(!regions.remove(&(11..12)));
        assert!(!regions.contains(&(11..12)) && !regions.contains(&(10..11)));
        assert!(regions.contains(&(20..25)));
    }
}

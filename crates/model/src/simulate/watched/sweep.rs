//! Passes over pages that lie one behind the other, as a curve: how many are done by when.

use super::passes::Touch;

/// A place that is as near as that has been passed.
const ROUNDING: f64 = 1e-9;
/// The greatest number of unseen passes in a row, and of knots. Beyond these the curve is a
/// straight line.
const UNSEEN_MAX: u64 = 1 << 12;
const KNOTS_MAX: usize = 1 << 20;

/// Passes, and when they come to each place.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Times, and the number of passes done by then. Neither decreases; in between the curve is
    /// straight.
    knots: Vec<(u64, f64)>,
}

impl Sweep {
    /// The first time after `after_us` that a pass comes to a place, which is between 0 and 1.
    pub(super) fn next(&self, place: f64, after_us: u64) -> Option<u64> {
        let later = self.knots.partition_point(|knot| knot.0 <= after_us);
        let wanted = (self.done_at(later, after_us) - place + ROUNDING).floor() + 1.0 + place;
        let nth = later + self.knots[later..].partition_point(|knot| knot.1 < wanted);
        let &(to_us, to) = self.knots.get(nth)?;
        let (from_us, from) = nth.checked_sub(1).map_or((to_us, to), |nth| self.knots[nth]);
        let part = if to > from { (wanted - from) / (to - from) } else { 1.0 };
        let within_us = (part * (to_us - from_us) as f64).ceil() as u64;
        let time_us = from_us.saturating_add(within_us).min(to_us);
        Some(time_us.max(after_us.saturating_add(1)))
    }

    /// How many passes were done at a time, which is before the knot `later`.
    fn done_at(&self, later: usize, at_us: u64) -> f64 {
        let before = later.checked_sub(1).map(|nth| self.knots[nth]);
        match (before, self.knots.get(later)) {
            (Some((from_us, from)), Some(&(to_us, to))) => {
                from + (to - from) * (at_us - from_us) as f64 / (to_us - from_us) as f64
            }
            (Some((_, done)), None) | (None, Some(&(_, done))) => done,
            (None, None) => 0.0,
        }
    }

    /// How many were done at the last knot.
    fn done(&self) -> f64 {
        self.knots.last().map_or(0.0, |knot| knot.1)
    }

    /// So many are done at a time. Never fewer than before.
    pub(super) fn push(&mut self, at_us: u64, done: f64) {
        let (last_us, last) = self.knots.last().copied().unwrap_or_default();
        self.knots.push((at_us.max(last_us), done.max(last)));
    }

    /// Adds a whole pass. Touches say when it came where; those that come in no order do not.
    pub(super) fn add(&mut self, from_us: u64, to_us: u64, touches: impl Iterator<Item = Touch>) {
        let done = self.done();
        self.push(from_us, done);
        for touch in touches {
            if self.done() < done + touch.place {
                self.push(touch.at_us, done + touch.place);
            }
        }
        self.push(to_us.max(from_us.saturating_add(1)), done + 1.0);
    }

    /// Adds passes of a length at a steady distance that nobody has seen, the first at `from_us`,
    /// but for those of which `was_none` says so.
    pub(super) fn add_unseen(
        &mut self,
        from_us: u64,
        length_us: u64,
        count: u64,
        apart_us: f64,
        was_none: impl Fn(u64, u64) -> bool,
    ) {
        if count > UNSEEN_MAX || self.knots.len() > KNOTS_MAX {
            let done = self.done();
            self.push(from_us, done);
            let all_us = (count as f64 * apart_us) as u64;
            return self.push(from_us.saturating_add(all_us), done + count as f64);
        }
        for nth in 0..count {
            let at_us = from_us.saturating_add((nth as f64 * apart_us) as u64);
            let end_us = at_us.saturating_add(length_us);
            if !was_none(at_us, end_us) {
                self.add(at_us, end_us, std::iter::empty());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(_: u64, _: u64) -> bool {
        false
    }

    #[test]
    fn a_pass_comes_to_places_in_their_order() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.next(0.5, 0), None);
        sweep.push(0, 0.0);
        sweep.push(1000, 2.0);
        let times = |place: f64| {
            let mut after = 0;
            std::iter::from_fn(|| sweep.next(place, after).inspect(|&time| after = time))
                .collect::<Vec<u64>>()
        };
        assert_eq!(times(0.25), [125, 625]);
        assert_eq!(times(0.5), [250, 750]);
        assert_eq!(sweep.next(0.5, 249), Some(250));
        assert_eq!(sweep.next(0.5, 1000), None);
    }

    #[test]
    fn short_passes_come_where_touches_say_and_nowhere_between() {
        let mut sweep = Sweep::default();
        let touch = |at_us, place| Touch { at_us, place, block: 0 };
        // The last one is out of order.
        sweep.add(100, 110, [touch(102, 0.5), touch(108, 0.8), touch(109, 0.1)].into_iter());
        sweep.add_unseen(300, 10, 3, 200.0, |at_us, _| at_us == 500);
        assert_eq!(sweep.next(0.5, 0), Some(102));
        assert_eq!(sweep.next(0.8, 0), Some(108));
        assert_eq!(sweep.next(0.5, 102), Some(305));
        assert_eq!(sweep.next(0.5, 305), Some(705));
        assert_eq!(sweep.next(0.5, 705), None);
    }

    #[test]
    fn very_many_passes_take_no_memory() {
        let mut sweep = Sweep::default();
        sweep.add_unseen(10, 1, u64::MAX / 2, 2.0, never);
        assert!(sweep.knots.len() < 5);
        assert!(sweep.next(0.5, 1 << 40).is_some_and(|time_us| time_us > 1 << 40));
        let mut late = Sweep::default();
        late.add(u64::MAX, u64::MAX, std::iter::empty());
        late.add_unseen(u64::MAX - 5, u64::MAX, 10, 1e30, never);
        assert_eq!(late.next(0.5, 0), Some(u64::MAX));
    }
}

//! When a page is accessed that nobody watches: after as long as a page nearby was watched until it
//! was.
//!
//! Only a few pages of a block are watched at a time, and each block rarely: what that costs the
//! program is bounded. But neighbours are alike, and so are moments that follow each other. A page
//! that is watched is one that was taken at some moment, and the time until it was touched is the
//! very time that a simulation asks for when it takes a page. So the simulation picks one of the
//! watches nearby, the more likely the nearer its page lies and its beginning is, and has the page
//! asked for after as long. Whatever the distribution of these times is, the picks have the same:
//! times that differ by orders of magnitude, as those of a program with hot and cold data or with
//! phases do, have no mean that could stand for them.
//!
//! A watch that goes on at the moment of the question ends when it ended: what starts a phase
//! brings all pages back that the phase uses.

use super::timeline::Watch;
use crate::{BLOCK_PAGES, PageNumber};

/// Watches that begin so far away in time count half.
const NEAR_US: f64 = 100_000.0;
/// Neighbouring blocks that are asked on each side.
const NEIGHBOURS: u64 = 8;
/// And watches of each, before the moment and behind it.
const WATCHES: usize = 4;
/// Watches that are picked from.
const PICKS: usize = 16;
/// No accesses follow each other faster, as far as anything here is concerned: a fault takes as
/// long.
const AFTER_US_MIN: u64 = 20;
/// A watch that nobody has ended says nothing of what follows: another is picked, not sooner.
const AGAIN_US_MIN: u64 = 1000;

/// Some watches to pick from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    first: u32,
    count: u32,
}

/// One of these.
#[derive(Clone, Copy, Debug)]
struct Pick {
    /// Its place among the watches.
    watch: u32,
    /// How likely it or one before it is picked, from 0 to 1.
    up_to: f64,
}

/// What was picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) at_us: u64,
    /// There is an access then. Otherwise all that is known is that there is none before.
    pub(super) is_touched: bool,
}

/// Watches of all blocks.
#[derive(Debug, Default)]
pub(super) struct Nearby {
    /// In the order of blocks of the dense address space, and of their beginnings.
    watches: Vec<(u64, Watch)>,
    picks: Vec<Pick>,
}

impl Nearby {
    /// From all watches, in any order, each with a page of the dense address space.
    pub(super) fn new(watches: impl Iterator<Item = (PageNumber, Watch)>) -> Nearby {
        let mut watches: Vec<(u64, Watch)> =
            watches.map(|(page, watch)| (page / BLOCK_PAGES, watch)).collect();
        watches.sort_by_key(|(block, watch)| (*block, watch.began_us(), watch.end_us));
        Nearby { watches, picks: Vec::new() }
    }

    /// What to pick from for a page at a moment. `None`: nobody has watched nearby.
    pub(super) fn choice(&mut self, page: PageNumber, at_us: u64) -> Option<Choice> {
        let own = page / BLOCK_PAGES;
        let mut near: Vec<(f64, u32)> = Vec::with_capacity(64);
        for block in own.saturating_sub(NEIGHBOURS)..=own + NEIGHBOURS {
            let distance = own.abs_diff(block) as f64;
            let first = self.watches.partition_point(|(other, _)| *other < block);
            let of_block = &self.watches[first..];
            let count = of_block.partition_point(|(other, _)| *other == block);
            let at = of_block[..count].partition_point(|(_, watch)| watch.began_us() <= at_us);
            for nth in at.saturating_sub(WATCHES)..(at + WATCHES).min(count) {
                let apart = of_block[nth].1.began_us().abs_diff(at_us) as f64 / NEAR_US;
                let weight = 1.0 / (1.0 + apart * apart) / (1.0 + distance);
                near.push((weight, (first + nth) as u32));
            }
        }
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        near.truncate(PICKS);
        let all: f64 = near.iter().map(|(weight, _)| weight).sum();
        let first = self.picks.len() as u32;
        let mut sum = 0.0;
        for &(weight, watch) in &near {
            sum += weight;
            self.picks.push(Pick { watch, up_to: sum / all });
        }
        (!near.is_empty()).then_some(Choice { first, count: near.len() as u32 })
    }

    /// When a page that is out is asked for, by one of these. `part`: by which, from 0 to 1.
    pub(super) fn draw(&self, choice: Choice, part: f64, from_us: u64) -> Drawn {
        let picks = &self.picks[choice.first as usize..][..choice.count as usize];
        let nth = picks.partition_point(|pick| pick.up_to <= part).min(picks.len() - 1);
        let watch = self.watches[picks[nth].watch as usize].1;
        let goes_on = (watch.began_us()..watch.end_us).contains(&from_us);
        let ends_us = if goes_on { watch.end_us } else { from_us.saturating_add(watch.watched_us) };
        let least_us = if watch.is_touched { AFTER_US_MIN } else { AGAIN_US_MIN };
        let at_us = ends_us.max(from_us.saturating_add(least_us));
        Drawn { at_us, is_touched: watch.is_touched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(began_us: u64, watched_us: u64) -> Watch {
        Watch { end_us: began_us + watched_us, watched_us, is_touched: true }
    }

    /// How long after a moment accesses come, of many that are drawn. Sorted.
    fn drawn(nearby: &mut Nearby, page: PageNumber, at_us: u64) -> Vec<u64> {
        let choice = nearby.choice(page, at_us).unwrap();
        let part = |nth| f64::from(nth) / 1000.0;
        let mut all: Vec<u64> =
            (0..1000).map(|nth| nearby.draw(choice, part(nth), at_us).at_us - at_us).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn what_is_drawn_is_distributed_as_the_watches_are() {
        // One in four is cold.
        let lasted = |nth: u64| if nth.is_multiple_of(4) { 900_000 } else { 2000 + nth % 100 };
        let watches =
            (0..4000).map(|nth| (nth % 80 * BLOCK_PAGES, watch(nth * 1000, lasted(nth / 80))));
        let mut nearby = Nearby::new(watches);
        let mut all: Vec<u64> =
            (0..100).flat_map(|nth| drawn(&mut nearby, nth * 6, nth * 31_000 + 400_000)).collect();
        all.sort_unstable();
        let hot = all.partition_point(|&after| after < 10_000) as f64 / all.len() as f64;
        assert!((0.6..0.9).contains(&hot), "{hot}");
        assert!(all[all.len() - 1] >= 900_000);
    }

    #[test]
    fn what_neighbours_do_now_counts_more_than_what_the_page_did_long_ago() {
        // All pages were idle for 300 ms in the first second; the neighbours are used each 5 ms in
        // the third.
        let watches = (0..16u64).flat_map(|block| {
            let later = watch(3_000_000 + block, 5000);
            let first = [(block * BLOCK_PAGES, watch(700_000, 300_000))];
            first.into_iter().chain((block != 8).then_some((block * BLOCK_PAGES, later)))
        });
        let mut nearby = Nearby::new(watches);
        let page = 8 * BLOCK_PAGES + 3;
        assert!(drawn(&mut nearby, page, 650_000)[500] == 300_000);
        assert!(drawn(&mut nearby, page, 3_010_000)[500] == 5000);
        assert_eq!(nearby.choice(1000 * BLOCK_PAGES, 1_000_000), None);
    }

    #[test]
    fn a_watch_that_goes_on_ends_when_it_ended() {
        let mut nearby = Nearby::new([(3, watch(1_000_000, 400_000))].into_iter());
        assert_eq!(drawn(&mut nearby, 5, 1_100_000)[0], 300_000);
        assert_eq!(drawn(&mut nearby, 5, 900_000)[0], 400_000);
        assert_eq!(drawn(&mut nearby, 5, 1_500_000)[0], 400_000);
    }

    #[test]
    fn one_that_nobody_has_ended_says_only_that_there_was_no_access() {
        let lasting = Watch { end_us: 5000, watched_us: 5000, is_touched: false };
        let mut nearby = Nearby::new([(3, lasting)].into_iter());
        let choice = nearby.choice(3, 7000).unwrap();
        let drawn = nearby.draw(choice, 0.5, 7000);
        assert_eq!(drawn, Drawn { at_us: 12_000, is_touched: false });
    }
}

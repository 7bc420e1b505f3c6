//! How pages differ that are near each other.
//!
//! A page's place is its rate of accesses divided by that of its neighbours. Which part of the
//! pages has which place is found by maximum likelihood from the watches of each: a page at the
//! place `p` that was watched for `w` mean times of its neighbours is touched `k` times with a
//! likelihood in proportion to `p^k exp(-p w)`. No form of the distribution is assumed: some
//! programs have a few pages that are used a thousand times as often as the rest, others many that
//! are not used at all.

use std::f64::consts::LN_2;

use super::timeline;
use crate::{PageNumber, hash};

/// Places are told apart by powers of two, from 2^-RANGE to 2^RANGE.
const RANGE: i32 = 12;
const PLACES: usize = 2 * RANGE as usize + 1;
/// The place of a page that is like its neighbours.
const USUAL: usize = RANGE as usize;
/// Steps of expectation maximisation.
const STEPS: usize = 200;
/// The greatest number of pages that are looked at.
const LOOKED_AT_MAX: usize = 4096;
/// Pages that each step subtracts from each place: a place that one page alone has disappears. One
/// page in a thousand is touched a thousand times sooner than usual by chance. If it is taken to be
/// used a thousand times as often, it has as many accesses as all others.
const CHANCE_PAGES: f64 = 1.0;

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// Watches that a touch has ended.
    pub touches: f64,
    /// How long it was watched, in units of the mean time until an access that its neighbours have.
    pub watched: f64,
}

/// The part of the pages that has each place.
#[derive(Debug)]
pub(super) struct Places([f64; PLACES]);

impl Default for Places {
    fn default() -> Places {
        Places([1.0 / PLACES as f64; PLACES])
    }
}

impl Places {
    pub(super) fn new(pages: &[(PageNumber, Own)]) -> Places {
        let step = pages.len().div_ceil(LOOKED_AT_MAX).max(1);
        let looked_at: Vec<[f64; PLACES]> =
            pages.iter().step_by(step).map(|(_, own)| likelihoods(own)).collect();
        let mut places = Places::default();
        for _ in 0..STEPS {
            let mut sums = [0.0; PLACES];
            for likelihoods in &looked_at {
                let after = places.after(likelihoods);
                sums.iter_mut().zip(after).for_each(|(sum, part)| *sum += part);
            }
            let kept = sums.map(|sum| (sum - CHANCE_PAGES).max(0.0));
            let all: f64 = kept.iter().sum();
            if all == 0.0 {
                // Too little is known of too few: they are alike.
                return Places(std::array::from_fn(|nth| f64::from(u8::from(nth == USUAL))));
            }
            places = Places(kept.map(|pages| pages / all));
        }
        places
    }

    /// The chance of each place for a page of which that is known.
    fn after(&self, likelihoods: &[f64; PLACES]) -> [f64; PLACES] {
        let parts: [f64; PLACES] = std::array::from_fn(|nth| self.0[nth] * likelihoods[nth]);
        let all: f64 = parts.iter().sum();
        if all > 0.0 { parts.map(|part| part / all) } else { self.0 }
    }

    /// The place of a page, drawn from what is left when the page's own watches are known.
    pub(super) fn place(&self, page: PageNumber, own: Own) -> f64 {
        let mut left = timeline::part(hash(page));
        let mut place = 1.0;
        for (nth, part) in self.after(&likelihoods(&own)).into_iter().enumerate() {
            if part > 0.0 {
                let within = (left / part).min(1.0) - 0.5;
                place = (ln_place(nth) + within * LN_2).exp();
                if left < part {
                    break;
                }
            }
            left -= part;
        }
        place
    }
}

fn ln_place(nth: usize) -> f64 {
    f64::from(nth as i32 - RANGE) * LN_2
}

/// Of each place, as parts of the greatest.
fn likelihoods(own: &Own) -> [f64; PLACES] {
    let ln: [f64; PLACES] =
        std::array::from_fn(|nth| own.touches * ln_place(nth) - own.watched * ln_place(nth).exp());
    let most = ln.into_iter().fold(f64::NEG_INFINITY, f64::max);
    ln.map(|ln| (ln - most).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of one rate. Each was watched until its last touch.
    fn pages(count: u64, rate: f64, touches: u32) -> Vec<(PageNumber, Own)> {
        let drawn = |nth| -(1.0 - timeline::part(hash(nth))).ln() / rate;
        let of = |page: u64| (0..u64::from(touches)).map(|nth| drawn(page * 100 + nth)).sum();
        let own = |page| Own { touches: f64::from(touches), watched: of(page) };
        (0..count).map(|page| (page, own(page))).collect()
    }

    fn mean(places: &Places, page: u64) -> f64 {
        (0..1000).map(|nth| places.place(page + nth, Own::default())).sum::<f64>() / 1000.0
    }

    #[test]
    fn pages_that_are_alike_have_one_place() {
        let places = Places::new(&pages(1000, 1.0, 1));
        assert!((0.8..1.25).contains(&mean(&places, 5)), "{places:?}");
        // None is thought to be used far more often because it was touched soon once.
        assert!(places.0[RANGE as usize + 3..].iter().sum::<f64>() < 1e-3, "{places:?}");
    }

    #[test]
    fn a_few_pages_that_are_used_far_more_often_are_found() {
        let mut all = pages(900, 0.25, 2);
        all.extend(pages(100, 64.0, 2));
        let places = Places::new(&all);
        let hot: f64 = places.0[RANGE as usize + 4..].iter().sum();
        assert!((0.07..0.13).contains(&hot), "{places:?}");
        let of = |touches, watched| places.place(7, Own { touches, watched });
        assert!(of(2.0, 0.03) > 20.0 && of(2.0, 8.0) < 1.0 && of(0.0, 20.0) < 0.5);
    }

    #[test]
    fn what_is_not_known_is_usual() {
        for places in [Places::new(&[]), Places::new(&pages(20, 1.0, 0))] {
            for own in [Own::default(), Own { touches: 4.0, watched: 9.0 }] {
                let place = places.place(3, own);
                assert!((0.7..1.42).contains(&place), "{place}");
            }
        }
    }
}

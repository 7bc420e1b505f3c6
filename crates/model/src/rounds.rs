//! Looks at all pages of a program now and then, and what they say of faults.
//!
//! In a round all pages are made untouched at a moment, and then it is looked several times how
//! many were touched since. At the look at which as many were touched as memory holds, it holds
//! these: what comes beside them from there on is missed (as in [`crate::footprint`], but for each
//! moment by itself: a mean over phases says nothing of any of them).

/// Looks at all pages that follow a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The moment. Microseconds since the beginning.
    pub at_us: u64,
    /// Pages that were there.
    pub pages: u64,
    /// In the order of time.
    pub looks: Vec<Look>,
}

/// A look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// How long after the moment. Microseconds.
    pub after_us: u64,
    /// Pages that were touched since.
    pub touched: u64,
    /// Pages that are there now.
    pub pages: u64,
}

/// Faults on pages that had left a memory which drops the least recently used one. What is there of
/// a moment is taken to last until the next round begins; before the first one it is as at that.
///
/// `resident`: the pages that the memory holds, by the number of pages that the program has.
///
/// `born`: how many pages came to be in a time, where it is known: their first touch is no fault.
pub fn faults_of_lru(
    rounds: &[Round],
    end_us: u64,
    resident: impl Fn(f64) -> f64,
    born: impl Fn(u64, u64) -> f64,
) -> f64 {
    let ends = rounds.iter().skip(1).map(|next| next.at_us).chain([end_us]);
    let mut from_us = 0;
    let mut faults = 0.0;
    for (round, to_us) in rounds.iter().zip(ends) {
        let born = |after_us| born(round.at_us, round.at_us.saturating_add(after_us));
        faults += faults_per_us(round, &resident, born) * to_us.saturating_sub(from_us) as f64;
        from_us = to_us.max(from_us);
    }
    faults
}

/// Faults in a microsecond at the time of a round.
fn faults_per_us(round: &Round, resident: impl Fn(f64) -> f64, born: impl Fn(u64) -> f64) -> f64 {
    let (mut before_us, mut old_before) = (0, 0.0);
    let mut last = (0.0, Look { pages: round.pages, ..Look::default() });
    for &look in &round.looks {
        let touched = look.touched as f64;
        let new = born(look.after_us).max(look.pages.saturating_sub(round.pages) as f64);
        let old = (touched - new).max(old_before);
        let took_us = look.after_us.saturating_sub(before_us);
        if took_us == 0 {
            continue;
        }
        last = ((old - old_before) / took_us as f64, look);
        (before_us, old_before) = (look.after_us, old);
        if touched >= resident(look.pages as f64) {
            break;
        }
    }
    let (rate, look) = last;
    let (touched, there) = (look.touched as f64, look.pages as f64);
    let pages = resident(there);
    if pages >= there {
        return 0.0;
    }
    // The round ended before memory was full: what is left to touch becomes less as it fills.
    let part = if touched < pages { (there - pages) / (there - touched) } else { 1.0 };
    rate * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::faults_of_lru as exact;
    use crate::hash;

    const PAGES: u64 = 2000;
    /// An access each microsecond.
    const ACCESSES: u64 = 1_000_000;

    /// Rounds of a trace, each 20,000 accesses.
    fn rounds(trace: &[u64]) -> Vec<Round> {
        let round = |at: usize| {
            let look = |after: usize| {
                let mut pages = trace[at..at + after].to_vec();
                pages.sort_unstable();
                pages.dedup();
                Look { after_us: after as u64, touched: pages.len() as u64, pages: PAGES }
            };
            let looks = [200, 500, 1000, 2000, 5000, 10_000].map(look).to_vec();
            Round { at_us: at as u64, pages: PAGES, looks }
        };
        (0..trace.len() - 10_000).step_by(20_000).map(round).collect()
    }

    fn is_near(trace: &[u64], pages: u64, off: f64) {
        let exact = exact(trace.iter().copied(), pages) as f64;
        let found = faults_of_lru(&rounds(trace), ACCESSES, |_| pages as f64, |_, _| 0.0);
        let most = exact.max(0.01 * trace.len() as f64) * off;
        assert!((found - exact).abs() < most, "{pages}: {found}, exactly {exact}");
    }

    #[test]
    fn faults_are_those_of_a_memory_of_that_size() {
        let uniform: Vec<u64> = (0..ACCESSES).map(|nth| hash(nth) % PAGES).collect();
        let phases: Vec<u64> = (0..ACCESSES)
            .map(|nth| hash(nth) % if nth / 100_000 % 2 == 0 { PAGES } else { PAGES / 8 })
            .collect();
        for pages in [400, 1000, 1500] {
            is_near(&uniform, pages, 0.3);
            is_near(&phases, pages, 0.3);
        }
        let cycle: Vec<u64> = (0..ACCESSES).map(|nth| nth % PAGES).collect();
        is_near(&cycle, 1900, 0.1);
        let all = faults_of_lru(&rounds(&cycle), ACCESSES, |pages| pages, |_, _| 0.0);
        assert_eq!(all, 0.0);
    }

    #[test]
    fn first_touches_are_no_faults() {
        // Each look sees all that has come to be meanwhile, and nothing else.
        let look = |after_us| Look { after_us, touched: after_us / 10, pages: 500 + after_us / 10 };
        let looks = vec![look(1000), look(2000), look(5000)];
        let grows = Round { at_us: 0, pages: 500, looks };
        assert_eq!(
            faults_of_lru(std::slice::from_ref(&grows), 1_000_000, |_| 300.0, |_, _| 0.0),
            0.0
        );
        // As many were given back.
        let mut replaced = grows;
        replaced.looks.iter_mut().for_each(|look| look.pages = 500);
        let born = |from_us: u64, to_us: u64| (to_us - from_us) as f64 / 10.0;
        assert_eq!(faults_of_lru(&[replaced.clone()], 1_000_000, |_| 300.0, born), 0.0);
        assert!(faults_of_lru(&[replaced], 1_000_000, |_| 300.0, |_, _| 0.0) > 0.0);
    }

    #[test]
    fn what_says_nothing_is_nothing() {
        let of = |rounds: &[Round]| faults_of_lru(rounds, 1000, |_| 10.0, |_, _| 0.0);
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[Round::default(), Round { at_us: 900, ..Round::default() }]), 0.0);
        let at_once = Look { after_us: 0, touched: 100, pages: 100 };
        assert_eq!(of(&[Round { at_us: 0, pages: 100, looks: vec![at_once] }]), 0.0);
    }
}

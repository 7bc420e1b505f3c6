//! When a process is looked at.
//!
//! A round begins by forgetting which pages were touched. Each look after that tells how many were
//! touched since, so a round of some seconds has windows of all lengths up to that. Several rounds
//! see several moments. A look takes the longer the more memory there is, so there are fewer of
//! them for a large process.

use crate::observation::Window;

/// Part of a processor that looks may take.
pub(super) const SHARE: f64 = 0.01;

/// The first look of a round, where looks take no time. Seconds.
const FIRST_S: f64 = 0.05;
/// A window is at least this many times as long as a look takes.
const LOOKS_MIN: f64 = 2.0;

/// Lengths of rounds as parts of the whole time, and the times of looks in each decade: as much as
/// can be afforded, the best first. The longest rounds come first, so that there is a long window
/// if all ends early.
const PLANS: [(&[f64], &[f64]); 7] = [
    (&[10.0, 3.0, 1.0, 1.0, 10.0, 3.0, 1.0, 1.0], &[1.0, 2.0, 5.0]),
    (&[10.0, 5.0, 10.0, 5.0], &[1.0, 2.0, 5.0]),
    (&[20.0, 10.0], &[1.0, 2.0, 5.0]),
    (&[20.0, 10.0], &[1.0, 4.0]),
    (&[30.0], &[1.0, 4.0]),
    (&[30.0], &[1.0]),
    (&[30.0], &[]),
];
/// Of [`PLANS`]: what the rounds of each are together.
const WHOLE: f64 = 30.0;

/// The looks of a round: seconds since its beginning. The last is its end.
pub(super) type Round = Vec<f64>;

/// Rounds that fill this many seconds, where a look takes so long; the least where even that takes
/// more than its share.
pub(super) fn plan(seconds: f64, look_s: f64) -> Vec<Round> {
    let plans = PLANS.iter().map(|(lengths, decade)| -> Vec<Round> {
        lengths.iter().map(|length| round(length / WHOLE * seconds, decade, look_s)).collect()
    });
    // To forget takes as long as a look.
    let cost_s = |plan: &Vec<Round>| plan.iter().map(|round| round.len() + 1).sum::<usize>() as f64;
    let mut last = Vec::new();
    for plan in plans {
        if cost_s(&plan) * look_s <= SHARE * seconds {
            return plan;
        }
        last = plan;
    }
    last
}

fn round(length: f64, decade: &[f64], look_s: f64) -> Round {
    let first = FIRST_S.max(LOOKS_MIN * look_s);
    let times = (-2..6).flat_map(|power| decade.iter().map(move |nth| nth * 10f64.powi(power)));
    // A look just before the last would tell nothing.
    let inside = times.filter(|time| (first..length * 0.75).contains(time));
    inside.chain([length]).collect()
}

/// Windows of a round that has had these looks, seconds since its beginning and pages, in the order
/// of time. They have the lengths that were planned, as far as the round came, and one of all of
/// it if it was shorter: windows of the same length can be compared.
pub(super) fn windows(round: &Round, looks: &[(f64, f64)]) -> Vec<Window> {
    let Some(&(end, end_pages)) = looks.last() else { return Vec::new() };
    let mut windows: Vec<Window> = round
        .iter()
        .filter(|&&seconds| seconds <= end)
        .map(|&seconds| Window { seconds, pages: pages_at(looks, seconds) })
        .collect();
    let is_whole = windows.len() == round.len();
    let longest = windows.last().map_or(0.0, |window| window.seconds);
    if !is_whole && end > longest {
        windows.push(Window { seconds: end, pages: end_pages });
    }
    windows
}

/// Between two looks as on a straight line, the first from nothing.
fn pages_at(looks: &[(f64, f64)], seconds: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for &look in looks {
        if look.0 >= seconds {
            let part = (seconds - before.0) / (look.0 - before.0).max(f64::MIN_POSITIVE);
            return before.1 + (look.1 - before.1) * part.clamp(0.0, 1.0);
        }
        before = look;
    }
    before.1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_process_is_looked_at_often_and_a_large_one_seldom() {
        let small = plan(30.0, 1e-4);
        assert_eq!(small.len(), 8);
        assert_eq!(small[0], [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(small[3], [0.05, 0.1, 0.2, 0.5, 1.0]);
        let gibibyte = plan(30.0, 0.025);
        assert_eq!(gibibyte, [[0.1, 0.4, 1.0, 4.0, 10.0, 30.0]]);
        assert_eq!(plan(300.0, 0.025).len(), 8);
        assert_eq!(plan(30.0, 10.0), [[30.0]]);
    }

    #[test]
    fn windows_have_the_lengths_that_were_planned() {
        let round = vec![0.1, 0.5, 1.0];
        let of = |looks: &[(f64, f64)]| {
            windows(&round, looks).iter().map(|w| (w.seconds, w.pages)).collect::<Vec<_>>()
        };
        let looks = [(0.125, 100.0), (0.625, 200.0), (1.1, 300.0)];
        let [first, second, third] = of(&looks)[..] else { panic!("three windows") };
        assert_eq!((first, second), ((0.1, 80.0), (0.5, 175.0)));
        assert!(third.0 == 1.0 && (third.1 - 278.9).abs() < 0.1, "{third:?}");
        // A round that ends early has a window as long as it was.
        assert_eq!(of(&[(0.125, 100.0), (0.25, 120.0)]), [(0.1, 80.0), (0.25, 120.0)]);
        assert_eq!(of(&[(0.05, 10.0)]), [(0.05, 10.0)]);
        assert_eq!(of(&[]), []);
    }

    proptest! {
        #[test]
        fn a_plan_fills_the_time_and_costs_its_share(seconds in 0.1..1e5f64, look_s in 1e-5..2f64) {
            let plan = plan(seconds, look_s);
            let lengths: f64 = plan.iter().filter_map(|round| round.last()).sum();
            prop_assert!((lengths / seconds - 1.0).abs() < 1e-9);
            let looks: usize = plan.iter().map(|round| round.len() + 1).sum();
            prop_assert!(looks as f64 * look_s <= SHARE * seconds || looks == 2);
            for round in &plan {
                prop_assert!(round.is_sorted_by(|one, next| one < next), "{:?}", round);
            }
        }

        #[test]
        fn windows_never_shrink(
            mut looks in prop::collection::vec((0.01..20f64, 0.0..1e6f64), 0..12),
        ) {
            looks.sort_by(|one, other| one.0.total_cmp(&other.0));
            let mut most = 0f64;
            for look in &mut looks {
                most = most.max(look.1);
                look.1 = most;
            }
            let windows = windows(&plan(30.0, 1e-4)[0], &looks);
            prop_assert!(windows.is_sorted_by(|a, b| a.seconds < b.seconds && a.pages <= b.pages));
        }
    }
}

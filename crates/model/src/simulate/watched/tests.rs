use proptest::prelude::*;

use super::*;

const ALL: Sampling = Sampling { one_in: 1, block_pages: 8 };

fn event(time_us: u64, page: PageNumber, what: What) -> Event {
    Event { time_us, page, what }
}

fn touched(time_us: u64, page: PageNumber, watched_us: u64) -> Event {
    event(time_us, page, What::Touched { watched_us })
}

fn activity(events: impl IntoIterator<Item = Event>, end_us: u64) -> Activity {
    Activity::new(events, ALL, end_us)
}

/// All accesses to a page after a time.
fn accesses(activity: &Activity, page: PageNumber, after_us: u64) -> Vec<u64> {
    let next = |&time: &u64| activity.next_access(page, time);
    std::iter::successors(activity.next_access(page, after_us), next).collect()
}

#[test]
fn a_page_whose_accesses_are_all_known_has_no_others() {
    let events = [3, 7, 7, 20].map(|time| event(time, 5, What::Accessed));
    let activity = activity(events, 30);
    assert_eq!(accesses(&activity, 5, 3), [7, 20]);
    assert_eq!(activity.next_access(5, 20), None);
    assert_eq!(activity.next_access(6, 0), None);
    assert_eq!(activity.lives(), [Life { page: 5, from_us: 3, to_us: None }]);
}

#[test]
fn a_watched_page_is_not_accessed_before_its_touch() {
    let events = [
        event(1000, 5, What::Appeared),
        touched(500_000, 5, 400_000),
        event(900_000, 5, What::Untouched { watched_us: 300_000 }),
        event(950_000, 5, What::Gone),
    ];
    let activity = activity(events, 2_000_000);
    // Watched from 100,000 to 500,000 and from 600,000 to 900,000.
    let all = accesses(&activity, 5, 1000);
    assert!(all.contains(&500_000), "{all:?}");
    let is_watched = |time: u64| {
        (100_000..500_000).contains(&time) || (600_000..=900_000).contains(&time) || time >= 950_000
    };
    assert!(all.iter().all(|&time| !is_watched(time)), "{all:?}");
    assert_eq!(activity.lives(), [Life { page: 5, from_us: 1000, to_us: Some(950_000) }]);
    assert_eq!(activity.next_access(5, 950_000), None);
}

#[test]
fn behind_the_last_touch_a_page_is_used_as_before_until_an_event_says_that_it_is_not() {
    let hot = [touched(1000, 5, 10), touched(3000, 5, 1900), touched(9_000_000, 600, 5)];
    let used = activity(hot, 9_000_000);
    assert!(accesses(&used, 5, 3000).len() > 1000);
    let untouched = event(8_900_000, 5, What::Untouched { watched_us: 8_800_000 });
    let left = activity([hot[0], hot[1], untouched, hot[2]], 9_000_000);
    assert!(accesses(&left, 5, 200_000).iter().all(|&time| time > 8_900_000));
}

#[test]
fn accesses_that_are_not_seen_are_as_many_as_the_watches_say() {
    // A hot page: touched after 3 ms each time, and not watched for 100 ms in between; and one that
    // is touched after 300 ms.
    for (watched_us, unwatched_us) in [(3000u64, 100_000u64), (300_000, 10_000)] {
        let pages: Vec<Event> = (0..40)
            .flat_map(|page| {
                let mut time = 0;
                (0..60).map(move |nth| {
                    // Exponential, in the mean as said.
                    let part = (hash(page * 1000 + nth) >> 11) as f64 / (1u64 << 53) as f64;
                    let watched = (-(1.0 - part).ln() * watched_us as f64) as u64 + 1;
                    time += unwatched_us + watched;
                    // Far apart: no neighbours.
                    touched(time, page * 64, watched)
                })
            })
            .collect();
        let end_us = pages.iter().map(|event| event.time_us).max().unwrap();
        let activity = activity(pages, end_us);
        let count: usize = (0..40).map(|page| accesses(&activity, page * 64, 0).len()).sum();
        let expected = (40 * end_us) as f64 / watched_us as f64;
        let ratio = count as f64 / expected;
        assert!((0.85..1.25).contains(&ratio), "{watched_us}: {count}, {expected}");
    }
}

#[test]
fn what_is_drawn_is_the_same_each_time() {
    let events = [event(0, 5, What::Appeared), touched(1_000_000, 5, 1000)];
    let one = activity(events, 1_000_000);
    let other = activity(events, 1_000_000);
    assert_eq!(accesses(&one, 5, 0), accesses(&other, 5, 0));
    assert!(accesses(&one, 5, 0).len() > 20);
}

#[test]
fn the_dense_address_space_keeps_neighbours() {
    let sampling = Sampling { one_in: 4, block_pages: 8 };
    // Blocks 1, 6 and 9 of the groups 0, 1 and 2.
    let pages = [8u64, 15, 48, 72].map(|page| sampling.dense(page));
    assert_eq!(pages, [0, 7, 8, 16]);
    let other = 3 << PROCESS_SHIFT;
    assert_eq!(sampling.dense(other | 72), other | 16);
    assert_eq!(Sampling { one_in: 64, block_pages: 1 }.dense(other | 72), other | 72);
    let activity = Activity::new([event(5, other | 73, What::Appeared)], sampling, 10);
    assert_eq!(activity.name(other | 17), Some(other | 73));
    assert_eq!(activity.need_pages(), 4.0);
}

#[test]
fn the_need_is_the_most_at_a_time() {
    let events = [
        event(0, 1, What::Appeared),
        event(1, 2, What::Appeared),
        event(2, 1, What::Gone),
        event(2, 3, What::Appeared),
        event(3, 2, What::Gone),
        event(4, 2, What::Appeared),
        // It was gone in between, unseen.
        event(5, 2, What::Appeared),
    ];
    let activity = activity(events, 9);
    assert_eq!((activity.need_pages(), activity.len()), (2.0, 3));
    assert_eq!(activity.lives().len(), 5);
}

#[test]
fn pages_of_a_process_end_with_it() {
    let other = 1 << PROCESS_SHIFT;
    let events = [
        event(0, 1, What::Appeared),
        event(5, other | 1, What::Appeared),
        event(9, other, What::Ended),
        touched(12, 1, 3),
        touched(14, other | 1, 1),
    ];
    let activity = activity(events, 20);
    let lives: Vec<_> = activity.lives().iter().map(|life| (life.from_us, life.to_us)).collect();
    assert_eq!(lives, [(0, None), (5, Some(9))]);
    assert_eq!(activity.next_access(other | 1, 5), None);
}

/// Passes over pages, each of which is accessed so long after the beginning of a pass, as the agent
/// watches them: 50 ms after a touch, or up to `rest_us` later. Neighbours are watched together.
fn watched_passes(
    pages: u64,
    after_us: impl Fn(u64) -> u64,
    period_us: u64,
    passes: u64,
    rest_us: u64,
) -> Vec<Event> {
    const LOOK_US: u64 = 50_000;
    let rest_us = |page: u64, nth: u64| match rest_us {
        0 => LOOK_US,
        rest_us => LOOK_US + hash(page / 2 + (nth << 32)) % rest_us,
    };
    let mut events = Vec::new();
    for page in 0..pages {
        let first = after_us(page);
        events.push(event(first, page, What::Appeared));
        let mut from = (first + rest_us(page, 0)).next_multiple_of(LOOK_US);
        for nth in 1..passes {
            let time = first + nth * period_us;
            if time >= from {
                events.push(touched(time, page, time - from));
                from = (time + rest_us(page, nth)).next_multiple_of(LOOK_US);
            }
        }
    }
    events
}

/// Accesses in the second half of 20 seconds.
struct SecondHalf {
    count: u64,
    /// Which part of them is to the page behind the last.
    follows: f64,
    /// The same of the last pages of blocks.
    follows_block: f64,
    /// Of those that nobody has seen: how many, and which part of them is when a pass came, to
    /// within an eighth of the time between two.
    drawn: usize,
    right: f64,
}

fn second_half(
    events: &[Event],
    pages: u64,
    after_us: &dyn Fn(u64) -> u64,
    period_us: u64,
) -> SecondHalf {
    let activity = activity(events.iter().copied(), 20_000_000);
    let times = |page| accesses(&activity, page, 10_000_000).into_iter().map(move |t| (t, page));
    let mut order: Vec<(u64, u64)> = (0..pages).flat_map(times).collect();
    order.sort_unstable();
    let follows_of = |is_asked: fn(u64) -> bool| {
        let pairs = order.windows(2).filter(|pair| is_asked(pair[0].1));
        let (count, follows) = pairs.fold((0u32, 0u32), |(count, follows), pair| {
            (count + 1, follows + u32::from(pair[1].1 == pair[0].1 + 1))
        });
        f64::from(follows) / f64::from(count.max(1))
    };
    let seen: std::collections::HashSet<(u64, u64)> =
        events.iter().map(|event| (event.time_us, event.page)).collect();
    let drawn: Vec<_> = order.iter().filter(|access| !seen.contains(*access)).collect();
    let is_right = |&&&(time_us, page): &&&(u64, u64)| {
        let off_us = (time_us + period_us - after_us(page)) % period_us;
        off_us.min(period_us - off_us) <= period_us / 8
    };
    let right = drawn.iter().filter(is_right).count();
    SecondHalf {
        count: order.len() as u64,
        follows: follows_of(|_| true),
        follows_block: follows_of(|page| page % 8 == 7),
        drawn: drawn.len(),
        right: right as f64 / drawn.len().max(1) as f64,
    }
}

#[test]
fn pages_of_a_loop_stay_together() {
    for period_us in [60_000, 130_000, 400_000, 2_000_000] {
        for rest_us in [0, 6_000_000] {
            let after_us = |page| page * period_us / 256;
            let passes = 20_000_000 / period_us;
            let events = watched_passes(256, after_us, period_us, passes, rest_us);
            let found = second_half(&events, 256, &after_us, period_us);
            let expected = 256 * 10_000_000 / period_us;
            let SecondHalf { count, follows, drawn, right, .. } = found;
            let shown =
                format!("{period_us} {rest_us}: {count} {expected} {follows} {drawn} {right}");
            assert!(count.abs_diff(expected) < expected / 8, "{shown}");
            assert!(follows > 0.6 && (drawn == 0 || right > 0.9), "{shown}");
            assert!(rest_us == 0 || drawn as u64 > expected / 10, "{shown}");
        }
    }
}

#[test]
fn short_passes_are_as_many_as_there_were_and_in_their_order() {
    let (pages, period_us) = (256, 400_000);
    let expected = pages * 10_000_000 / period_us;
    let found = |after_us: &dyn Fn(u64) -> u64| {
        let events = watched_passes(pages, after_us, period_us, 50, 2_000_000);
        let SecondHalf { count, follows, follows_block, drawn, right } =
            second_half(&events, pages, after_us, period_us);
        assert!(count.abs_diff(expected) < expected / 8, "{count} {expected}");
        assert!(drawn as u64 > expected / 2 && right > 0.95, "{drawn} {right}");
        [follows, follows_block]
    };
    // Within 5 ms: from the first page to the last, the other way, and blocks in no order.
    let [up, beyond_up] = found(&|page| page * 20);
    let [down, _] = found(&|page| (pages - page) * 20);
    let [scattered, beyond] = found(&|page| hash(page / 8) % 5000 + page % 8 * 3);
    assert!(up > 0.6 && beyond_up > 0.9 && down < 0.2, "{up} {beyond_up} {down}");
    assert!(scattered > 0.4 && beyond < 0.2, "{scattered} {beyond}");
}

#[test]
fn passes_that_have_ended_do_not_come_again() {
    // Each 400 ms for 6 s, and then no more: pages that are watched then show it.
    let mut events = watched_passes(256, |page| page * 20, 400_000, 15, 1_000_000);
    for page in (0..256).filter(|page| page % 8 < 2) {
        events.push(event(20_000_000, page, What::Untouched { watched_us: 13_000_000 }));
    }
    events.sort_by_key(|event| event.time_us);
    let activity = activity(events, 20_000_000);
    let late = (0..256).map(|page| accesses(&activity, page, 8_000_000).len()).sum::<usize>();
    assert!(late < 256, "{late}");
}

#[test]
fn a_page_that_is_accessed_beside_a_loop_does_not_move_it() {
    let after_us = |page| page * 400_000 / 256;
    let mut events = watched_passes(256, after_us, 400_000, 50, 2_000_000);
    // Far ahead of the pass each time.
    for nth in 1..80u64 {
        let time_us = nth * 230_000 + 130_000;
        let page = (time_us % 400_000 * 256 / 400_000 + 60) % 256;
        events.push(touched(time_us, page, 10_000));
    }
    events.sort_by_key(|event| event.time_us);
    let SecondHalf { count, drawn, right, .. } = second_half(&events, 256, &after_us, 400_000);
    assert!(count.abs_diff(6400) < 800 && drawn > 3000 && right > 0.9, "{count} {drawn} {right}");
}

#[test]
fn pages_that_are_accessed_at_random_are_in_no_order() {
    let mut state = 5u64;
    let mut random = |below: u64| {
        state = hash(state);
        state % below
    };
    let mut events = Vec::new();
    let mut from = [0u64; 256];
    for time in (0..20_000_000).step_by(1000) {
        let page = random(256);
        if time >= from[page as usize] {
            events.push(touched(time, page, time - from[page as usize]));
            from[page as usize] = time + 100_000;
        }
    }
    let activity = activity(events, 20_000_000);
    let is_passes = |interval: &&Interval| matches!(interval.kind, Kind::Passes { .. });
    assert_eq!(activity.intervals.iter().filter(is_passes).count(), 0);
}

#[test]
fn a_part_is_left_out_and_the_rest_moves_together() {
    let pages = 0..24 * 8u64;
    let events = pages.clone().map(|page| event(page, page / 8 * 32 + page % 8, What::Appeared));
    let whole = Activity::new(events, Sampling { one_in: 4, block_pages: 8 }, 1000);
    let blocks = whole.len() as u64 / 8;
    let parts: Vec<Activity> = (0..3).map(|nth| whole.without(nth, 3)).collect();
    let total: usize = parts.iter().map(Activity::len).sum();
    assert_eq!(total, 2 * whole.len());
    for part in &parts {
        assert!((part.need_pages() / whole.need_pages() - 1.0).abs() < 1e-9);
        assert!(part.lives().iter().all(|life| life.page / 8 < blocks.div_ceil(3) * 2));
        let names: std::collections::HashSet<_> =
            part.lives().iter().map(|life| part.name(life.page)).collect();
        assert_eq!(names.len(), part.len());
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let what = prop_oneof![
        Just(What::Accessed),
        Just(What::Appeared),
        Just(What::Gone),
        any::<u64>().prop_map(|watched_us| What::Touched { watched_us }),
        (0..2000u64).prop_map(|watched_us| What::Touched { watched_us }),
        (0..2000u64).prop_map(|watched_us| What::Untouched { watched_us }),
    ];
    (0..10_000u64, 0..40u64, what).prop_map(|(time, page, what)| event(time, page, what))
}

proptest! {
    #[test]
    fn the_next_access_is_later_and_before_the_end(
        events in prop::collection::vec(any_event(), 0..200),
        asked in prop::collection::vec((0..40u64, 0..12_000u64), 0..50),
    ) {
        let activity = activity(events, 8000);
        for (page, after_us) in asked {
            if let Some(next_us) = activity.next_access(page, after_us) {
                prop_assert!(next_us > after_us && next_us <= activity.end_us());
            }
        }
        prop_assert!(activity.need_pages() <= activity.len() as f64);
        prop_assert!(activity.lives().is_sorted_by_key(|life| life.from_us));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_event_makes_it_panic(
        time_us in any::<u64>(), page in any::<u64>(), watched_us in any::<u64>(),
        after_us in any::<u64>(), one_in in any::<u64>(), block_pages in any::<u64>(),
    ) {
        let what = What::Touched { watched_us };
        let sampling = Sampling { one_in, block_pages };
        let events = [event(time_us, page, what), event(after_us, page, What::Appeared)];
        let activity = Activity::new(events, sampling, watched_us);
        let _ = activity.next_access(sampling.dense(page), after_us);
        let _ = activity.without(page, one_in).need_pages();
    }
}

/// Times that are near the limits of numbers, and times of which several are the same.
fn any_time() -> impl Strategy<Value = u64> {
    let odd = [0, 1, 10, 20, 1000, 1 << 50, 1 << 53, 1 << 63, u64::MAX - 1, u64::MAX];
    prop_oneof![prop::sample::select(odd.to_vec()), 0..100u64, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_passes_make_it_panic(
        passes in prop::collection::vec((any_time(), any_time(), 0..30u64), 0..12),
        others in prop::collection::vec((any_time(), 0..16u64), 0..6),
        end_us in any_time(),
    ) {
        let events = passes.iter().flat_map(|&(time_us, watched_us, spread_us)| {
            (0..16).map(move |page| {
                touched(time_us.saturating_add(page * spread_us), page, watched_us)
            })
        });
        let others = others.iter().map(|&(time_us, page)| event(time_us, page, What::Appeared));
        let activity = activity(events.chain(others), end_us);
        for page in 0..16 {
            for after_us in [0, 1000, 1 << 53, u64::MAX - 1, u64::MAX] {
                let next_us = activity.next_access(page, after_us);
                prop_assert!(next_us.is_none_or(|next_us| next_us > after_us));
            }
        }
        prop_assert!(activity.accesses(1).take(500).is_sorted_by_key(|access| access.0));
    }
}

#[test]
fn all_accesses_come_in_order_and_of_each_life() {
    let events = [
        event(0, 5, What::Appeared),
        touched(50_000, 5, 10_000),
        event(400_000, 5, What::Gone),
        event(600_000, 5, What::Appeared),
        event(100_000, 900, What::Appeared),
        event(900_000, 900, What::Untouched { watched_us: 790_000 }),
        event(1_000_000, 5, What::Gone),
    ];
    let activity = activity(events, 1_000_000);
    let all: Vec<(u64, u64)> = activity.accesses(1000).collect();
    assert!(all.is_sorted_by_key(|access| access.0), "{all:?}");
    assert!(all.contains(&(0, 5)) && all.contains(&(50_000, 5)) && all.contains(&(100_000, 900)));
    let again: Vec<u64> = all.iter().filter(|access| access.1 > 900).map(|one| one.0).collect();
    assert_eq!(again.first(), Some(&600_000));
    assert!(all.iter().all(|&(time, page)| page != 5 || time < 400_000));
    let of_5: Vec<u64> = all.iter().filter(|access| access.1 == 5).map(|one| one.0).collect();
    assert!(of_5.windows(2).all(|pair| pair[1] - pair[0] >= 1000), "{of_5:?}");
}

#[test]
fn pages_that_were_not_seen_are_stood_for() {
    let pages = (0..64).map(|nth| nth / 8 * 32 + nth % 8);
    let events = pages.map(|page| event(1000, page, What::Appeared));
    let sampling = Sampling { one_in: 4, block_pages: 8 };
    let activity = Activity::new(events, sampling, 2_000_000);
    assert_eq!(activity.need_pages(), 256.0);
    let need = |pages| activity.clone().of_pages(pages).need_pages();
    assert_eq!([100.0, 256.0, 400.0].map(need), [256.0, 256.0, 400.0]);
    assert_eq!(need(1e9), 256.0 * UNSEEN_MAX);
    let none = Activity::new([], sampling, 2_000_000);
    assert_eq!(none.of_pages(400.0).need_pages(), 0.0);
}

use proptest::prelude::*;

use super::*;
use crate::PageNumber;
use crate::curve::{Point, SampledCurve};
use crate::equations::Condition;
use crate::hash;
use crate::reuse::{Histogram, StackDistances};
use crate::rounds::Look;
use crate::simulate::Tally;
use crate::simulate::memory::Memory;
use crate::simulate::watched::{Event, Sampling, What};

const PAGE: u64 = PAGE_SIZE as u64;

/// So many pages are there after a second. Then some of them are accessed each so often, as the
/// agent sees it: those of a part over and over, the others once in a while.
fn watched(pages: u64, hot: u64, seconds: u64) -> Activity {
    let mut events = Vec::new();
    for page in (0..pages).filter(|page| page / 8 % 8 == hash(page / 64) % 8) {
        let appeared = page * 1_000_000 / pages;
        let event = |time_us, what| Event { time_us, page, what };
        events.push(event(appeared, What::Appeared));
        let mean = if page < hot { 200_000.0 } else { 20_000_000.0 };
        let (mut at, mut nth) = (appeared, 0);
        loop {
            let from = at + 50_000;
            nth += 1;
            let part = (hash(page << 20 | nth) >> 11) as f64 / (1u64 << 53) as f64;
            let time = from + (-(1.0 - part).ln() * mean) as u64 + 1;
            let end = seconds * 1_000_000;
            if time > end {
                let watched_us = end.saturating_sub(from);
                events.push(event(end, What::Untouched { watched_us }));
                break;
            }
            events.push(event(time, What::Touched { watched_us: time - from }));
            at = time;
        }
    }
    Activity::new(events, Sampling { one_in: 8, block_pages: 8 }, seconds * 1_000_000)
}

fn blocks(charged: impl Fn(u64) -> u16) -> Sizes {
    Sizes::new((0..64).map(|nth| SampledBlock {
        first_page: nth * 256,
        pages: (0..8).map(|page| PageSizes::alike(charged(nth * 8 + page))).collect(),
    }))
}

fn input<'a>(pages: Use<'a>, sizes: &'a Sizes) -> Input<'a> {
    Input {
        pages,
        sizes,
        run: RunTime { wall_s: 10.0, processor_s: 10.0, processors: 2 },
        costs: Costs::default(),
        overhead: Overhead::default(),
        recompress_after_s: Some(2.0),
    }
}

fn assert_sound(predictions: &[Prediction]) {
    let is_sound = |estimate: Estimate| {
        let Estimate { value, low, high } = estimate;
        value.is_finite()
            && low.is_finite()
            && high.is_finite()
            && 0.0 <= low
            && low <= value
            && value <= high
    };
    for prediction in predictions {
        let Prediction { slowdown, pool_bytes, pages_back, .. } = *prediction;
        assert!(is_sound(slowdown) && slowdown.low >= 1.0, "{prediction:?}");
        assert!(is_sound(pool_bytes) && is_sound(pages_back), "{prediction:?}");
        let others = [
            prediction.resident_bytes,
            prediction.table_bytes,
            prediction.faults_per_second,
            prediction.processor_added_s,
        ];
        assert!(others.iter().all(|number| number.is_finite() && *number >= 0.0), "{prediction:?}");
        assert!(prediction.chance_not_held.is_none_or(|chance| (0.0..=1.0).contains(&chance)));
    }
    let mut sorted = predictions.to_vec();
    sorted.sort_by_key(|prediction| prediction.memory_bytes);
    for pair in sorted.windows(2) {
        let not_better =
            |less: Estimate, more: Estimate| less.value >= more.value && less.high >= more.high;
        assert!(not_better(pair[0].slowdown, pair[1].slowdown), "{pair:?}");
        assert!(not_better(pair[0].pages_back, pair[1].pages_back), "{pair:?}");
    }
}

/// Nobody waits long for how slow what is far too slow is.
#[test]
fn what_takes_far_too_long_is_simulated_in_part() {
    let (activity, sizes) = (watched(16_000, 8000, 10), blocks(|_| 1024));
    let mut input = input(Use::Watched(&activity, &[]), &sizes);
    let of = |input: &Input<'_>| at(input, 8000 * PAGE);
    let usual = of(&input);
    assert_eq!(usual.counts.simulated_us, activity.end_us());
    input.costs.fault_s = 5e-3;
    let slow = of(&input);
    assert!(slow.slowdown.value > 20.0 && slow.slowdown.low > 5.0, "{slow:?}");
    assert!(slow.counts.simulated_us < activity.end_us() / 2, "{slow:?}");
    let back = slow.pages_back.value / usual.pages_back.value;
    assert!((0.5..2.0).contains(&back), "{slow:?} {usual:?}");
    let pool = slow.pool_bytes.value / usual.pool_bytes.value;
    assert!((0.8..1.25).contains(&pool), "{slow:?} {usual:?}");
}

#[test]
fn a_program_that_uses_a_part_fits_less_memory() {
    // 64 MiB, of which 16 are in use.
    let activity = watched(16_384, 4096, 10);
    let sizes = blocks(|page| 900 + (page % 5 * 100) as u16);
    let input = input(Use::Watched(&activity, &[]), &sizes);
    let memory: Vec<u64> = [100, 48, 32, 24, 16].map(|mib| mib << 20).to_vec();
    let predictions = predict(&input, &memory);
    assert_sound(&predictions);
    let [all, three, half, quarter, least] = &predictions[..] else { panic!() };
    assert_eq!(
        (all.slowdown.value, all.pages_back.value, all.chance_not_held),
        (1.0, 0.0, Some(0.0))
    );
    assert_eq!(all.pool_bytes.value, 0.0);
    // Few pages but the cold ones come back: 12,000 of them, once in 20 seconds.
    assert!(three.slowdown.value < 1.05, "{three:?}");
    assert!(half.slowdown.value < 1.1 && half.pages_back.value > 2000.0, "{half:?}");
    assert_eq!(half.chance_not_held, Some(0.0));
    assert!(half.slowdown.high - half.slowdown.low < 0.3, "{half:?}");
    // Resident pages, pool and tables together are the memory less what is kept free.
    let used = half.resident_bytes + half.pool_bytes.value + half.table_bytes;
    assert!((26e6..34e6).contains(&used), "{used} {half:?}");
    // The hot part does not fit any more.
    assert!(quarter.slowdown.value > half.slowdown.value, "{quarter:?}");
    assert!(least.slowdown.value > 1.5 || least.chance_not_held == Some(1.0), "{least:?}");
    // 12,288 pages of 1,100 bytes and 1.2 MiB do not fit 8.
    let none = at(&input, 8 << 20);
    assert_eq!(none.chance_not_held, Some(1.0), "{none:?}");
}

#[test]
fn a_prediction_is_the_same_each_time() {
    let activity = watched(8192, 1000, 5);
    let sizes = blocks(|page| 500 + (page % 3 * 400) as u16);
    let input = input(Use::Watched(&activity, &[]), &sizes);
    assert_eq!(predict(&input, &[24 << 20, 16 << 20]), predict(&input, &[24 << 20, 16 << 20]));
}

#[test]
fn sizes_are_those_of_the_nearest_block() {
    let block = |first_page, bytes: u16| SampledBlock {
        first_page,
        pages: (0..8).map(|page| PageSizes::alike(bytes + page)).collect(),
    };
    let other = 5 << crate::PROCESS_SHIFT;
    let sizes = Sizes::new([block(800, 100), block(8000, 200), block(other, 300)]);
    assert_eq!(sizes.of(803).first, 103);
    assert_eq!(sizes.of(8007).first, 207);
    assert!((100..108).contains(&sizes.of(0).first));
    assert!((100..108).contains(&sizes.of(4000).first));
    assert!((200..208).contains(&sizes.of(7000).first));
    assert!((300..308).contains(&sizes.of(other | 99_999).first));
    // Of a process of which nothing was sampled: any.
    let unknown = 9 << crate::PROCESS_SHIFT;
    let hundreds: std::collections::HashSet<u16> =
        (0..100).map(|page| sizes.of(unknown | page).first / 100).collect();
    assert_eq!(hundreds.len(), 3);
    assert_eq!(Sizes::default().of(5).first, PAGE_SIZE as u16);
    assert_eq!(Sizes::default().mean_bytes(), None);
}

#[test]
fn a_chance_is_stated_from_enough_blocks() {
    let activity = watched(16_384, 2000, 3);
    let memory = 24 << 20;
    let chance =
        |sizes: &Sizes| at(&input(Use::Watched(&activity, &[]), sizes), memory).chance_not_held;
    // A page may be charged about 1,400 bytes: the mean of half of the blocks is 200, the others'
    // 2,200.
    let uneven = blocks(|page| if page / 8 % 2 == 0 { 200 } else { 2200 });
    let between = chance(&uneven).unwrap();
    assert!((0.005..0.3).contains(&between), "{between}");
    assert_eq!(chance(&Sizes::alike(PageSizes::alike(1200))), None);
    assert!(chance(&blocks(|_| 700)).unwrap() < 1e-6);
    assert_eq!(chance(&blocks(|_| 4096)), Some(1.0));
}

#[test]
fn the_agents_work_counts_where_no_processor_is_free() {
    let activity = watched(8192, 2000, 10);
    let sizes = blocks(|_| 1000);
    let with = |processor_s, processors| {
        let run = RunTime { wall_s: 10.0, processor_s, processors };
        at(&Input { run, ..input(Use::Watched(&activity, &[]), &sizes) }, 14 << 20)
    };
    let (free, one) = (with(10.0, 2), with(10.0, 1));
    let more = one.slowdown.value - free.slowdown.value;
    assert!((more - free.processor_added_s / 10.0).abs() < 1e-9, "{free:?} {one:?}");
    // Two threads wait for each half of the faults.
    let two = with(20.0, 4);
    let ratio = (free.slowdown.value - 1.0) / (two.slowdown.value - 1.0);
    assert!((ratio - 2.0).abs() < 1e-6, "{ratio}");
}

fn looped(pages: u64, passes: u64) -> Vec<PageNumber> {
    (0..passes * pages).map(|nth| nth % pages).collect()
}

/// Accesses spread over all pages and a part of them.
fn mixed(pages: u64, count: u64, hot_percent: u64) -> Vec<PageNumber> {
    (0..count)
        .map(|nth| {
            let is_hot = hash(nth) % 100 < hot_percent;
            hash(nth << 8 | 1) % if is_hot { pages / 8 } else { pages }
        })
        .collect()
}

/// What LRU faults by resident pages is measured; what ramfold's policy brings back is near the
/// greatest convex curve below that.
#[test]
fn ramfold_faults_as_the_convex_curve_says() {
    let loop_and_part: Vec<PageNumber> = (0..200_000)
        .map(|nth| if nth % 2 == 0 { nth / 2 % 12_000 } else { hash(nth) % 4000 })
        .collect();
    for (name, trace) in [
        ("loop", looped(16_000, 12)),
        ("uniform", mixed(16_000, 150_000, 0)),
        ("hot", mixed(16_000, 150_000, 80)),
        ("loop and part", loop_and_part),
    ] {
        let (mut stack, mut histogram) = (StackDistances::default(), Histogram::default());
        for &page in &trace {
            histogram.note(Histogram::group(page), stack.access(page), 1.0);
        }
        let curve = SampledCurve::from_reuse(&histogram);
        let pages = (trace.iter().max().unwrap() + 1) as f64;
        for part in [0.4, 0.6, 0.8] {
            let cap_pages = (pages * part) as u64;
            let mut memory = Memory::new(cap_pages * PAGE, 0);
            let mut tally = Tally::default();
            trace.iter().for_each(|&page| tally.access(&mut memory, page));
            // What is resident on average: between the marks.
            let marks = memory.cap_marks();
            let resident = (marks.high + marks.low) as f64 / 2.0 / PAGE as f64;
            let cold = curve.curve().cold();
            let expected = curve::faults(curve.curve(), resident, cap_pages as f64) - cold;
            let back = tally.pages_back() as f64;
            let off = (back - expected).abs() / trace.len() as f64;
            // Beside a loop LRU loses what is used in between, and ramfold does not.
            let better = name == "loop and part" && back < expected;
            assert!(off < 0.06 || better, "{name} {part}: {back} {expected}");
            // LRU itself brings back all of a loop.
            if name == "loop" {
                assert!(curve.curve().faults(resident) - cold > 1.2 * back);
            }
        }
    }
}

#[test]
fn a_curve_is_enough_for_a_process_that_runs() {
    // 10,000 pages; 1,000 faults in a second with half of them.
    let point = |pages, faults| Point { pages, faults };
    let curve = MissCurve::new(
        [point(0.0, 20_000.0), point(5000.0, 1000.0), point(10_000.0, 0.0)],
        0.0,
        0.0,
    );
    let sizes = blocks(|_| 1024);
    let overhead = Overhead { fixed_bytes: 0.0, ..Overhead::default() };
    let pages = Use::Curve { curve: &curve, pages: 10_000.0, error: 0.1 };
    let input = Input { overhead, ..input(pages, &sizes) };
    let memory: Vec<u64> = (5..=24).map(|share| 10_000 * PAGE * share / 20).collect();
    let predictions = predict(&input, &memory);
    assert_sound(&predictions);
    assert_eq!(predictions.last().unwrap().slowdown.value, 1.0);
    // resident + a quarter of the others = 65 % of all, less what is kept free: about 50 %.
    let half = predictions.iter().find(|one| one.memory_bytes == 6500 * PAGE).unwrap();
    assert!((4000.0..5200.0).contains(&(half.resident_bytes / PAGE as f64)), "{half:?}");
    assert!((900.0..4500.0).contains(&half.faults_per_second), "{half:?}");
    assert!((0.005..0.06).contains(&(half.slowdown.value - 1.0)), "{half:?}");
    let none = at(&input, 2000 * PAGE);
    assert_eq!(none.chance_not_held, Some(1.0), "{none:?}");
}

#[test]
fn compression_pays_against_a_disk_and_not_against_faster_memory() {
    let activity = watched(8192, 2000, 10);
    let sizes = blocks(|_| 1000);
    let input = input(Use::Watched(&activity, &[]), &sizes);
    let disk = |read_s| Swap { read_s, write_s: 0.0, objects: None };
    let slow = decision(&input, &at(&input, 16 << 20), &disk(1e-3));
    assert!(slow.pays() && slow.with_ramfold < slow.with_swap, "{slow:?}");
    let fast = decision(&input, &at(&input, 16 << 20), &disk(0.5e-6));
    assert!(!fast.pays() && fast.with_ramfold > fast.with_swap, "{fast:?}");
    assert!(slow.as_printed.is_some_and(|condition: Condition| condition.holds()), "{slow:?}");
    // zram's objects take the same room: what differs is the time of a fault.
    let zram = Swap { read_s: 5e-6, write_s: 5e-6, objects: Some(&sizes) };
    let swapped_zram = swapped(&input, 16 << 20, &zram);
    let swapped_disk = swapped(&input, 16 << 20, &disk(1e-3));
    assert!(swapped_zram.value < swapped_disk.value && swapped_zram.value > 1.0);
}

fn any_event() -> impl Strategy<Value = Event> {
    let what = prop_oneof![
        Just(What::Accessed),
        Just(What::Appeared),
        Just(What::Gone),
        (0..200_000u64).prop_map(|watched_us| What::Touched { watched_us }),
        (0..200_000u64).prop_map(|watched_us| What::Untouched { watched_us }),
    ];
    (0..3_000_000u64, 0..3000u64, what).prop_map(|(time_us, page, what)| Event {
        time_us,
        page,
        what,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_was_seen_what_is_predicted_is_sound(
        events in prop::collection::vec(any_event(), 0..1200),
        charged in prop::collection::vec((0..5000u16, 0..5000u16), 0..80),
        mut memory in prop::collection::vec(0..12_000_000u64, 1..3),
        one_in in 0..40u64, times in (-1.0..100.0f64, -1.0..100.0f64), processors in 0..5u32,
    ) {
        memory.extend([0, u64::MAX]);
        let activity = Activity::new(events, Sampling { one_in, block_pages: 8 }, 3_000_000);
        let sizes = Sizes::new(charged.chunks(8).enumerate().map(|(nth, pages)| SampledBlock {
            first_page: nth as u64 * 300,
            pages: pages.iter().map(|&(first, dense)| PageSizes { first, dense }).collect(),
        }));
        let run = RunTime { wall_s: times.0, processor_s: times.1, processors };
        let input = Input { run, ..input(Use::Watched(&activity, &[]), &sizes) };
        assert_sound(&predict(&input, &memory));
        let swap = Swap { read_s: 1e-4, write_s: f64::NAN, objects: None };
        for &bytes in &memory {
            let decision = decision(&input, &at(&input, bytes), &swap);
            prop_assert!(decision.with_ramfold.is_finite() && decision.with_swap.is_finite());
        }
    }

    #[test]
    fn so_it_is_with_any_curve(
        points in prop::collection::vec((0.0..1e7f64, 0.0..1e6f64), 0..20),
        memory in prop::collection::vec(any::<u64>(), 1..5), pages in any::<f64>(),
        error in any::<f64>(), charged in 0..4097u16,
    ) {
        let point = |(pages, faults)| Point { pages, faults };
        let curve = MissCurve::new(points.into_iter().map(point), 0.0, 0.0);
        let sizes = Sizes::alike(PageSizes::alike(charged));
        let input = input(Use::Curve { curve: &curve, pages, error }, &sizes);
        assert_sound(&predict(&input, &memory));
    }
}

/// What watches do not see and all pages show, and the reverse.
#[test]
fn looks_at_all_pages_count_as_much_as_watches() {
    let (activity, sizes) = (watched(16_000, 16_000, 10), blocks(|_| 1024));
    let at_half = |rounds: &[Round]| {
        let counts = at(&input(Use::Watched(&activity, rounds), &sizes), 8000 * PAGE).counts;
        assert!(counts.compressed >= counts.compressed_dense && counts.taken >= 0.0);
        counts
    };
    let round = |per_ms: u64| {
        let look = |ms: u64| {
            let touched = (ms * per_ms).min(16_000);
            Look { after_us: ms * 1000, touched, pages: 16_000 }
        };
        vec![Round { at_us: 1_000_000, pages: 16_000, looks: [5, 20, 100, 500].map(look).to_vec() }]
    };
    let watched = at_half(&[]);
    assert!(watched.pages_back() > 5000.0, "{watched:?}");
    // As a memory of that size that drops the least recently used page: all are touched in turn.
    for per_ms in [1, 100] {
        let rounds = round(per_ms);
        let more = at_half(&rounds);
        let of_rounds = (per_ms * 10_000) as f64;
        let expected = (watched.pages_back() * of_rounds).sqrt();
        let found = more.pages_back();
        assert!((found / expected - 1.0).abs() < 0.2, "{per_ms}: {found}, {expected}");
        // As many are taken as come back.
        let [taken, back] = [more.taken - watched.taken, found - watched.pages_back()];
        assert!((taken - back).abs() < 1.0, "{per_ms}: {taken} {back}");
    }
}

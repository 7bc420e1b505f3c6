use super::*;
use crate::hash;
use crate::simulate::Tally;
use crate::simulate::memory::Memory;
use crate::simulate::watched::{Event, Sampling, What};

const PAGE: u64 = PAGE_SIZE as u64;
const OBJECT: u16 = 1000;

fn setting(cap_bytes: u64) -> Setting {
    Setting {
        cap_bytes,
        delays: Delays::default(),
        codec: CodecTimes::default(),
        overhead: Overhead::of_kernel(Overhead { page_table_bytes: 0.0, ..Overhead::default() }),
        growing_us: GROWING_US,
        faults_max: u64::MAX,
        lost_max_s: f64::INFINITY,
    }
}

/// The pages in the order of their accesses, one each 100 us.
fn accesses(order: &[PageNumber]) -> Vec<Event> {
    let event =
        |(nth, &page): (u64, &PageNumber)| Event { time_us: 100 * nth, page, what: What::Accessed };
    (0..).zip(order).map(event).collect()
}

fn activity(events: Vec<Event>) -> Activity {
    Activity::new(events, Sampling { one_in: 1, block_pages: 8 }, 0)
}

fn run_alike(activity: &Activity, bytes: u16, setting: &Setting) -> Counts {
    run(activity, &|_| PageSizes::alike(bytes), setting)
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = hash(*state);
    *state % below
}

/// First all pages in order, then so many accesses.
fn filled(pages: u64, accesses: usize, mut next: impl FnMut(u64) -> PageNumber) -> Vec<PageNumber> {
    (0..pages).chain((0..accesses as u64).map(&mut next)).collect()
}

fn looped(pages: u64, passes: u64) -> Vec<PageNumber> {
    (0..passes * pages).map(|nth| nth % pages).collect()
}

/// Nine of ten accesses go to a tenth of the pages.
fn hot_and_cold(pages: u64, count: usize) -> Vec<PageNumber> {
    let mut state = 3;
    filled(pages, count, |_| {
        let of = if random(&mut state, 10) < 9 { pages / 10 } else { pages };
        random(&mut state, of)
    })
}

#[test]
fn a_run_of_events_is_that_of_all_accesses() {
    let mut state = 7;
    let uniform = filled(4000, 60_000, |_| random(&mut state, 4000));
    for (name, order) in
        [("loop", looped(4000, 20)), ("uniform", uniform), ("hot", hot_and_cold(4000, 60_000))]
    {
        let activity = activity(accesses(&order));
        for cap_pages in [2000, 3000] {
            let setting = Setting { growing_us: 0, ..setting(cap_pages * PAGE) };
            let counts = run_alike(&activity, OBJECT, &setting);
            let mut memory = Memory::new(cap_pages * PAGE, OBJECT.into());
            let mut tally = Tally::default();
            order.iter().for_each(|&page| tally.access(&mut memory, page));
            let expected = (tally.faults as f64, tally.ahead as f64);
            assert_eq!((counts.faults(), counts.ahead), expected, "{name} {cap_pages}");
            assert_eq!(counts.first, tally.first as f64);
            assert!(counts.not_held_us.is_none());
        }
    }
}

#[test]
fn what_is_hot_stays_where_it_fits() {
    let mut state = 3;
    // A third of the pages is used; all were touched once.
    let order = filled(6000, 60_000, |_| random(&mut state, 2000));
    let counts = run_alike(&activity(accesses(&order)), OBJECT, &setting(4000 * PAGE));
    assert!(counts.pages_back() < 4000.0, "{counts:?}");
    assert!(counts.objects > 2000.0, "{counts:?}");
}

#[test]
fn with_all_memory_nothing_is_taken() {
    let activity = activity(accesses(&looped(1000, 3)));
    let counts = run_alike(&activity, OBJECT, &setting(2000 * PAGE));
    assert_eq!((counts.taken, counts.pages_back(), counts.lost_s), (0.0, 0.0, 0.0));
    assert_eq!(counts.resident_bytes, (1000 * PAGE) as f64);
}

#[test]
fn growth_that_is_never_used_again_costs_no_fault() {
    let mut events = accesses(&(0..4000).collect::<Vec<_>>());
    events.push(Event { time_us: 100_000_000, page: 3999, what: What::Accessed });
    let delays = Delays { growth_page_s: 1e-5, ..Delays::default() };
    let setting = Setting { delays, ..setting(2000 * PAGE) };
    let counts = run_alike(&activity(events), OBJECT, &setting);
    assert!(counts.pages_back() <= 32.0, "{counts:?}");
    assert!((2000.0..2600.0).contains(&counts.first_over_cap), "{counts:?}");
    assert!((counts.lost_s / counts.first_over_cap - 1e-5).abs() < 1e-9);
    // resident + objects = 2,000 pages, less a sixth, by which the marks are lower while it grows.
    let out = counts.objects;
    let cost = (4000.0 - out) + out * f64::from(OBJECT) / PAGE as f64;
    assert!((1500.0..1700.0).contains(&cost), "{cost} {counts:?}");
}

#[test]
fn pages_that_are_given_back_make_room() {
    // Twice 3,000 pages, one after the other.
    let life = |first: u64, from_us: u64| {
        (first..first + 3000).flat_map(move |page| {
            let event = |time_us, what| Event { time_us, page, what };
            let appears = from_us + page % 3000 * 100;
            let touched = appears + 500_000;
            [
                event(appears, What::Appeared),
                event(touched, What::Touched { watched_us: 490_000 }),
                event(from_us + 1_000_000, What::Gone),
            ]
        })
    };
    let events: Vec<Event> = life(0, 0).chain(life(10_000, 1_000_001)).collect();
    let activity = activity(events);
    assert_eq!(activity.need_pages(), 3000.0);
    let fits = run_alike(&activity, OBJECT, &setting(4000 * PAGE));
    assert_eq!((fits.taken, fits.resident_bytes), (0.0, 0.0));
    let counts = run_alike(&activity, OBJECT, &setting(2000 * PAGE));
    assert_eq!((counts.objects, counts.pool_bytes, counts.resident_bytes), (0.0, 0.0, 0.0));
    assert!(counts.taken > 2000.0 && counts.pool_bytes_max > 0.0, "{counts:?}");
}

#[test]
fn what_does_not_compress_cannot_be_held() {
    let activity = activity(accesses(&hot_and_cold(3000, 20_000)));
    let sizes = |part: u64| {
        move |page: PageNumber| {
            PageSizes::alike(if hash(page) % 100 < part { PAGE_SIZE as u16 } else { OBJECT })
        }
    };
    let held = run(&activity, &sizes(20), &setting(2000 * PAGE));
    assert!(held.not_held_us.is_none() && held.refused > 0.0, "{held:?}");
    let not = run(&activity, &sizes(80), &setting(2000 * PAGE));
    assert!(not.not_held_us.is_some_and(|time| time >= 200_000), "{not:?}");
    assert!(not.over_cap_bytes > (300 * PAGE) as f64, "{not:?}");
    let same_filled = run_alike(&activity, 0, &setting(500 * PAGE));
    assert!(same_filled.not_held_us.is_none() && same_filled.pool_bytes == 0.0);
}

#[test]
fn what_stays_out_is_compressed_once_more() {
    let mut order = filled(3000, 0, |_| 0);
    let mut state = 9;
    // 20 seconds with the first pages.
    order.extend((0..200_000).map(|_| random(&mut state, 500)));
    let activity = activity(accesses(&order));
    let sizes = |_| PageSizes { first: 1000, dense: 800 };
    let pool = |recompress_after_s| {
        let codec = CodecTimes { recompress_after_s, ..CodecTimes::default() };
        run(&activity, &sizes, &Setting { codec, ..setting(2000 * PAGE) })
    };
    let (without, with) = (pool(None), pool(Some(2.0)));
    assert_eq!(without.compressed_dense, 0.0);
    assert!((without.pool_bytes / without.objects - 1000.0).abs() < 1.0, "{without:?}");
    assert!((with.pool_bytes / with.objects - 800.0).abs() < 30.0, "{with:?}");
    // Where density spares a fifth more, pages are compressed for it at once.
    let sizes = |_| PageSizes { first: 2000, dense: 1000 };
    let dense = run(&activity, &sizes, &setting(2500 * PAGE));
    assert!(dense.compressed_dense > 0.7 * dense.compressed, "{dense:?}");
}

#[test]
fn a_miniature_comes_to_what_the_whole_does() {
    let pages = 32_768;
    let mut state = 11;
    for (name, order) in [
        ("hot", hot_and_cold(pages, 400_000)),
        ("uniform", filled(pages, 400_000, |_| random(&mut state, pages))),
        ("loop", looped(pages, 12)),
    ] {
        let events = accesses(&order);
        let is_sampled = |page: u64| page / 8 % 8 == hash(page / 64) % 8;
        let sampled: Vec<Event> =
            events.iter().copied().filter(|event| is_sampled(event.page)).collect();
        let setting = setting(20_000 * PAGE);
        let whole = run_alike(&activity(events), OBJECT, &setting);
        let sampling = Sampling { one_in: 8, block_pages: 8 };
        let part = run_alike(&Activity::new(sampled, sampling, 0), OBJECT, &setting);
        let back = part.pages_back() / whole.pages_back();
        assert!((0.93..1.12).contains(&back), "{name}: {part:?} {whole:?}");
        let pool = part.pool_bytes / whole.pool_bytes;
        assert!((0.97..1.03).contains(&pool), "{name}: {part:?} {whole:?}");
    }
}

#[test]
fn a_run_that_is_cut_off_goes_on_as_it_was() {
    let activity = activity(accesses(&hot_and_cold(4000, 100_000)));
    let delays = Delays { fault_s: 1e-6, stream_page_s: 1e-6, ..Delays::default() };
    let unlimited = Setting { delays, ..setting(2000 * PAGE) };
    let whole = run_alike(&activity, OBJECT, &unlimited);
    let by_faults = Setting { faults_max: whole.faults() as u64 / 3, ..unlimited };
    let by_time = Setting { lost_max_s: whole.lost_s / 3.0, ..unlimited };
    let [cut, cut_by_time] =
        [by_faults, by_time].map(|setting| run_alike(&activity, OBJECT, &setting));
    for cut in [cut, cut_by_time] {
        assert!(cut.simulated_us < whole.simulated_us / 2, "{cut:?}");
        let ratio = cut.pages_back() / whole.pages_back();
        assert!((0.85..1.15).contains(&ratio), "{cut:?} {whole:?}");
    }
    // What the program has is known to the end.
    let grows = (0..4000).chain(hot_and_cold(4000, 100_000)).chain(4000..6000);
    let grows = self::activity(accesses(&grows.collect::<Vec<_>>()));
    let run = |faults_max| run_alike(&grows, OBJECT, &Setting { faults_max, ..unlimited });
    let (whole, cut) = (run(u64::MAX), run(1000));
    assert!(cut.simulated_us < whole.simulated_us / 2, "{cut:?}");
    assert_eq!(cut.first, 6000.0);
    let pool = cut.pool_bytes_max / whole.pool_bytes_max;
    assert!((0.95..1.05).contains(&pool), "{cut:?} {whole:?}");
}

#[test]
fn a_run_is_the_same_each_time() {
    let activity = activity(accesses(&hot_and_cold(4000, 40_000)));
    let counts = || run_alike(&activity, OBJECT, &setting(2000 * PAGE));
    assert_eq!(counts(), counts());
}

use super::files::Files;
use super::lru::Lru;
use super::memory::Memory;
use super::s3fifo::S3Fifo;
use super::*;
use crate::curve::faults_of_lru;

const PAGE: u64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Half of the accesses go to a tenth of the pages.
fn mixed(pages: u64, accesses: usize) -> Vec<PageNumber> {
    let mut random = Random(11);
    (0..accesses)
        .map(|_| {
            let limit = if random.below(2) == 0 { pages / 10 } else { pages };
            random.below(limit)
        })
        .collect()
}

fn tally(mut policy: impl Policy, trace: &[PageNumber]) -> Tally {
    let mut tally = Tally::default();
    trace.iter().for_each(|&page| tally.access(&mut policy, page));
    tally
}

#[test]
fn lru_faults_as_its_reuse_distances_say() {
    let trace = mixed(3000, 60_000);
    for pages in [1, 10, 300, 1000, 2999, 3000] {
        let tally = tally(Lru::new(pages), &trace);
        let expected = faults_of_lru(trace.iter().copied(), pages as u64);
        assert_eq!(tally.first + tally.faults, expected, "{pages}");
    }
}

#[test]
fn with_room_for_all_nothing_leaves() {
    let trace = mixed(2000, 20_000);
    let pages = trace.iter().collect::<std::collections::HashSet<_>>().len() as u64;
    let policies: [Box<dyn Policy>; 4] = [
        Box::new(Lru::new(2000)),
        Box::new(S3Fifo::new(2001)),
        Box::new(Files::new(2000)),
        Box::new(Memory::new(3000 * PAGE, 1000)),
    ];
    for mut policy in policies {
        let mut tally = Tally::default();
        trace.iter().for_each(|&page| tally.access(&mut *policy, page));
        assert_eq!((tally.first, tally.faults), (pages, 0));
    }
}

#[test]
fn a_scan_does_not_push_out_what_is_used_often() {
    // 500 pages over and over, and after each of these rounds a scan of 2,000 others.
    let trace: Vec<PageNumber> = (0..40)
        .flat_map(|round| {
            let scan = 100_000 + round * 2000;
            (0..3).flat_map(|_| 0..500).chain(scan..scan + 2000)
        })
        .collect();
    let faults = |tally: Tally| tally.faults;
    let lru = faults(tally(Lru::new(1000), &trace));
    assert_eq!(lru, 39 * 500);
    assert!(faults(tally(S3Fifo::new(1000), &trace)) < lru / 10);
    assert!(faults(tally(Files::new(1000), &trace)) < lru / 10);
}

#[test]
fn a_loop_over_too_much_keeps_a_part() {
    let trace: Vec<PageNumber> = (0..40 * 4000).map(|nth| nth % 4000).collect();
    assert_eq!(tally(Lru::new(2000), &trace).miss_ratio(), 1.0);
    assert!(tally(Files::new(2000), &trace).miss_ratio() < 0.8);
    // Objects of a sixteenth of a page, and 190 pages between the mark and the cap: about 1,680
    // pages have room. The best that can be had is that 58 % of the accesses bring a page back.
    let memory = tally(Memory::new(2000 * PAGE, PAGE / 16), &trace);
    let back = memory.pages_back() as f64 / trace.len() as f64;
    assert!((0.58..0.72).contains(&back), "{back}");
    assert!(memory.faults < memory.pages_back() / 5, "streams are read ahead: {memory:?}");
}

#[test]
fn memory_holds_its_cap() {
    let trace = mixed(4000, 40_000);
    let mut memory = Memory::new(1500 * PAGE, 900);
    for &page in &trace {
        memory.access(page);
        assert!(memory.cost_bytes() <= 1500 * PAGE, "{memory:?}");
    }
}

#[test]
fn a_miniature_is_like_the_whole() {
    let trace = mixed(40_000, 400_000);
    let whole = tally(S3Fifo::new(12_000), &trace);
    let mut miniature = Miniature::new(S3Fifo::new(12_000 / 8), 8);
    trace.iter().for_each(|&page| miniature.access(page));
    let difference = whole.miss_ratio() - miniature.tally().miss_ratio();
    assert!(difference.abs() < 0.02, "{difference}");
}

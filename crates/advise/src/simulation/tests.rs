//! Tests of simulations.

use std::fmt::Write as _;
use std::fs;

use ramfold_trace::recorded::{AddressSpace, Event, Header, What, Writer};

use super::*;

fn request(path: PathBuf) -> Request {
    Request {
        path,
        format: None,
        policies: PolicyName::ALL.to_vec(),
        memory: Vec::new(),
        object_bytes: 0,
        one_in: None,
        save: None,
    }
}

/// A loop over 2,000 pages, and in between often the first 200.
fn trace(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for nth in 0..60_000u64 {
        let page = if nth % 2 == 0 { nth * 7 % 200 } else { nth / 2 % 2000 };
        writeln!(text, "{nth},{page}").unwrap();
    }
    let path = folder.join("trace.csv");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn all_policies_run_at_all_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let progress = Progress::default();
    let report = run(&request(trace(folder.path())), &progress).unwrap();
    assert_eq!((report.accesses, report.pages, report.rows.len()), (60_000, 2000, 20));
    assert_eq!(progress.part(), 1.0);
    for row in &report.rows {
        let policies: Vec<PolicyName> = row.policies.iter().map(|one| one.policy).collect();
        assert_eq!(policies, PolicyName::ALL);
        let [value, low, high] = row.lru_curve;
        let lru = row.policies[0].miss_ratio;
        assert!(low <= value && value <= high && (value - lru).abs() < 0.01, "{row:?}");
    }
    let last = &report.rows[19].policies;
    assert!(last.iter().all(|one| one.first_accesses == 2000));
    assert_eq!((last[0].faults, last[1].faults, last[3].faults), (0, 0, 0));
    // With half of the memory LRU holds the 200 and nothing of the loop, ramfold a part of it.
    let half = &report.rows[9].policies;
    assert!(half[2].miss_ratio < half[0].miss_ratio - 0.1, "{half:?}");
}

#[test]
fn objects_take_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(trace(folder.path()));
    request.object_bytes = PAGE_SIZE / 4;
    let report = run(&request, &Progress::default()).unwrap();
    // A quarter of the memory and less cannot hold the objects of all pages.
    assert_eq!(report.rows[0].memory_bytes, 2000 * PAGE_SIZE * 6 / 20);
    request.memory = vec![Size::Fraction(0.2)];
    let error = run(&request, &Progress::default()).unwrap_err().to_string();
    assert!(error.contains("cannot hold the trace's pages"), "{error}");
}

#[test]
fn a_sample_that_was_saved_is_like_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(trace(folder.path()));
    request.policies = vec![PolicyName::Lru];
    let whole = run(&request, &Progress::default()).unwrap();
    let saved = folder.path().join("sample");
    request.one_in = Some(4);
    request.save = Some(saved.clone());
    let miniature = run(&request, &Progress::default()).unwrap();
    let again = run(&request, &Progress::default()).unwrap_err().to_string();
    assert!(again.starts_with("cannot write"), "{again}");
    request.path = saved;
    (request.one_in, request.save) = (None, None);
    let sample = run(&request, &Progress::default()).unwrap();
    assert_eq!((sample.recorded_one_in, sample.one_in, sample.format.as_str()), (4, 4, "ramfold"));
    assert!((sample.pages as f64 / 2000.0 - 1.0).abs() < 0.1, "{}", sample.pages);
    // The sample has 5 % more or fewer pages than a quarter of all: so are the sizes.
    for at in [5, 10, 15] {
        let ratio = |report: &Report| report.rows[at].policies[0].miss_ratio;
        assert!((ratio(&sample) - ratio(&miniature)).abs() < 0.1, "{at}");
        assert!((ratio(&sample) - ratio(&whole)).abs() < 0.15, "{at}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.csv");
    fs::write(&empty, "# nothing\n").unwrap();
    let run = |path: &Path| run(&request(path.to_owned()), &Progress::default());
    assert!(matches!(run(&empty), Err(Error::Empty { .. })));
    assert!(matches!(run(folder.path()), Err(Error::NotAFile { .. })));
    assert!(matches!(run(&folder.path().join("none")), Err(Error::Trace { .. })));
    fs::write(&empty, "1,2\nx,y\n").unwrap();
    assert!(matches!(run(&empty), Err(Error::Trace { .. })));
}

/// Pages in a loop of 100 ms, which is watched each fourth time around.
fn watched(path: &Path, one_in: u32) {
    let header = Header { kind: AddressSpace::Memory, one_in, look_ns: 0, block_pages: 8 };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    let pages: Vec<u64> = (0..500 * u64::from(one_in))
        .flat_map(|block| (0..8).map(move |within| block * 8 + within))
        .filter(|page| ramfold_model::is_block_sampled(page / 8, one_in))
        .collect();
    let place = |nth: usize| (nth * 100_000 / pages.len()) as u64;
    for (nth, &page) in pages.iter().enumerate() {
        writer.write(Event { time_us: place(nth), page, what: What::Appeared }).unwrap();
    }
    for round in 1..=10 {
        for (nth, &page) in pages.iter().enumerate() {
            let (time_us, watched_us) = (round * 400_000 + place(nth), 50_000);
            writer.write(Event { time_us, page, what: What::Touched { watched_us } }).unwrap();
        }
    }
    fs::write(path, writer.finish(0).unwrap()).unwrap();
}

#[test]
fn watched_pages_are_a_miniature_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watched");
    watched(&path, 4);
    let mut request = request(path);
    request.memory = vec![Size::Fraction(0.5), Size::Fraction(1.5)];
    let report = run(&request, &Progress::default()).unwrap();
    assert_eq!((report.pages, report.one_in, report.recorded_one_in), (16_000, 4, 4));
    let [half, all] = &report.rows[..] else { panic!("two sizes") };
    // LRU has nothing of a loop that is larger than its memory, ramfold a part of it.
    let back = |row: &Row, policy: usize| row.policies[policy].pages_back;
    assert_eq!(half.policies[2].policy, PolicyName::RamfoldRun);
    assert!(back(half, 0) > 300_000, "{half:?}");
    assert!(back(half, 2) > 50_000 && back(half, 2) < back(half, 0), "{half:?}");
    assert!(all.policies.iter().all(|one| one.faults == 0), "{all:?}");
    request.one_in = Some(8);
    assert!(matches!(run(&request, &Progress::default()), Err(Error::IsSample { .. })));
}

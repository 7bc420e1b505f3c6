//! Pages that are used in order, compressed together.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::disk::GROUP;
use crate::disk::clusters::{Maker, UNIT, is_piece};
use crate::disk::workspace::Coder;

const CLUSTER: u64 = UNIT * PAGE as u64;

impl crate::disk::Inner {
    /// Clusters, each found whole.
    pub(super) fn count_clusters(&self) -> u64 {
        let mut pieces = 0;
        self.store.for_each_group(0, self.pages, |group, _| {
            for first in (group..group + GROUP).step_by(UNIT as usize) {
                let of_unit = self.store.neighbours(first, |pages| {
                    (first..first + UNIT)
                        .filter(|&key| pages.encoding(key).is_some_and(is_piece))
                        .count()
                });
                assert!([0, UNIT as usize].contains(&of_unit), "{of_unit} pieces at {first}");
                pieces += of_unit as u64;
            }
        });
        pieces / UNIT
    }
}

/// A disk whose cold pages are compressed together, and what it is compared with.
fn disk() -> Disk {
    let recompress_after = Some(Duration::from_millis(1));
    let config = config(8 * MIB, 32 * MIB);
    Disk::new(DiskConfig { recompress_after, clusters: true, ..config }).unwrap()
}

/// Data for so many pages, and other data for each `first`.
fn data(first: u64, pages: u64) -> Vec<u8> {
    (first..first + pages).flat_map(kin).collect()
}

fn wait_for_clusters(disk: &Disk, count: u64) {
    wait_until("there are clusters", || disk.statistics().clusters == count);
}

#[test]
fn what_is_written_in_order_becomes_clusters_when_it_is_cold() {
    let (disk, other) = (disk(), Disk::new(config(8 * MIB, 32 * MIB)).unwrap());
    let expected = data(0, 128);
    disk.put(0, &expected).unwrap();
    other.put(0, &expected).unwrap();
    wait_for_clusters(&disk, 128 / UNIT);
    let (s, before) = (disk.statistics(), other.statistics());
    assert!(s.compressed_bytes * 10 < before.compressed_bytes * 9, "{s:#?} {before:#?}");
    assert_eq!((s.pages, s.objects), (128, 128));
    assert_eq!(disk.get(0, expected.len()), expected);
    // From and to anywhere.
    for (from, to) in [(1, 5000), (4095, 4097), (12_000, 70_001), (16_384, 32_768)] {
        assert_eq!(disk.get(from as u64, to - from), expected[from..to]);
    }
    let mut kinds = Vec::new();
    disk.extents(0, 2 * expected.len() as u64, &mut |extent| {
        kinds.push((extent.bytes, extent.is_allocated));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(kinds, [(128 * 4096, true), (128 * 4096, false)]);
    disk.audit();
    disk.audit_empty();
}

#[test]
fn what_is_written_in_parts_stays_pages() {
    let disk = disk();
    let mut expected = data(0, 64);
    for (nth, part) in (0..).zip(expected.chunks(2 * PAGE)) {
        disk.put(nth * 2 * PAGE as u64, part).unwrap();
    }
    // These are tried later.
    disk.put(4 * MIB, &data(100, 64)).unwrap();
    wait_for_clusters(&disk, 64 / UNIT);
    assert!((0..64).all(|block| !disk.inner.has_piece(block)));
    assert_eq!(disk.get(0, expected.len()), expected);
    // Whoever reads them in order shows that they are used so; they are as cold as before, and
    // become clusters when something is written near them.
    expected[..CLUSTER as usize].copy_from_slice(&data(200, UNIT));
    disk.put(0, &expected[..CLUSTER as usize]).unwrap();
    wait_for_clusters(&disk, 2 * 64 / UNIT);
    assert_eq!(disk.get(0, expected.len()), expected);
    disk.audit_empty();
}

#[test]
fn a_cluster_that_is_read_in_parts_again_becomes_pages() {
    let disk = disk();
    let expected = data(0, 16);
    disk.put(0, &expected).unwrap();
    wait_for_clusters(&disk, 4);
    for round in 0..3 {
        assert_eq!(disk.get(5 * 4096, PAGE), expected[5 * PAGE..6 * PAGE]);
        assert_eq!(disk.statistics().clusters, if round == 0 { 4 } else { 3 });
    }
    // Reading it whole, or page by page in order, is no reason.
    for page in (0..16).chain(0..16) {
        assert_eq!(disk.get(page * 4096, PAGE), kin(page));
        assert_eq!(disk.statistics().clusters, 3);
    }
    for _ in 0..3 {
        assert_eq!(disk.get(0, expected.len()), expected);
        assert_eq!(disk.statistics().clusters, 3);
    }
    disk.audit();
}

#[test]
fn pages_of_a_cluster_are_changed_and_removed() {
    let disk = disk();
    let mut expected = data(0, 64);
    disk.put(0, &expected).unwrap();
    wait_for_clusters(&disk, 16);
    let page = PAGE as u64;
    // A page, a part of one, zeros, a word, several pages across clusters.
    let writes: [(u64, Vec<u8>); 5] = [
        (page, noise(1).to_vec()),
        (CLUSTER + 700, vec![9; 100]),
        (2 * CLUSTER, vec![0; PAGE]),
        (3 * CLUSTER + page, vec![7; PAGE]),
        (4 * CLUSTER + 3 * page, data(900, 3)),
    ];
    for (nth, (offset, new)) in (1..).zip(&writes) {
        disk.put(*offset, new).unwrap();
        expected[*offset as usize..][..new.len()].copy_from_slice(new);
        assert!(disk.statistics().clusters <= 16 - nth);
        assert_eq!(disk.get(0, expected.len()), expected);
        disk.audit();
    }
    // A part of a cluster, then two whole and parts of two.
    for (offset, bytes) in [(6 * CLUSTER + page, page), (8 * CLUSTER - 100, 2 * CLUSTER + 200)] {
        disk.trim(offset, bytes, Durability::AtFlush).unwrap();
        expected[offset as usize..(offset + bytes) as usize].fill(0);
        assert_eq!(disk.get(0, expected.len()), expected);
        disk.audit();
    }
    disk.audit_empty();
}

#[test]
fn equal_pages_are_found_in_clusters() {
    let disk = disk();
    let expected = data(0, 16);
    disk.put(0, &expected).unwrap();
    wait_for_clusters(&disk, 4);
    // A page of one cluster, again where it is, and one page of a cluster over another of it.
    disk.put(MIB, &kin(6)).unwrap();
    disk.put(9 * 4096, &kin(9)).unwrap();
    disk.put(12 * 4096, &kin(15)).unwrap();
    let s = disk.statistics();
    assert_eq!((s.deduplicated_writes, s.clusters), (3, 1), "{s:#?}");
    assert_eq!(disk.get(MIB, PAGE), kin(6));
    let mut expected = expected;
    expected[12 * PAGE..13 * PAGE].copy_from_slice(&kin(15));
    assert_eq!(disk.get(0, expected.len()), expected);
    disk.audit();
    disk.audit_empty();
}

#[test]
fn disks_for_swap_and_with_a_spill_file_have_no_clusters() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let spill = Some(SpillConfig { folder: folder.path().to_owned(), bytes: 32 * MIB });
    let usual = DiskConfig { clusters: true, ..DiskConfig::new(8 * MIB, 64 * MIB) };
    let has = |config: DiskConfig| Disk::new(config).unwrap().inner.clusters.is_some();
    assert!(has(usual.clone()));
    assert!(!has(DiskConfig { for_swap: true, ..usual.clone() }));
    assert!(!has(DiskConfig { spill, ..usual.clone() }));
    assert!(!has(DiskConfig { recompress_after: None, ..usual }));
    assert!(!DiskConfig::new(8 * MIB, 8 * MIB).clusters);
}

/// Each page that is read must be one that was written, while clusters come and go.
#[test]
fn pages_of_clusters_are_whole_whatever_threads_do() {
    const PAGES: u64 = 64;
    let recompress_after = Some(Duration::from_secs(3600));
    let config = DiskConfig { threads: 4, recompress_after, ..config(MIB, 32 * MIB) };
    for deduplicate in [false, true] {
        let disk = Disk::new(DiskConfig { clusters: true, deduplicate, ..config.clone() }).unwrap();
        let (ends, made) = (AtomicBool::new(false), AtomicBool::new(false));
        let all: Vec<Page> = (0..40).map(kin).chain([[0; PAGE]]).collect();
        std::thread::scope(|scope| {
            let (disk, ends, all, made) = (&disk, &ends, &all, &made);
            let writers: Vec<_> = (0..3u64)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut random = Random::new(writer + 10);
                        for _ in 0..800 {
                            let pages = [1, 2, 4, 8, 16][random.below(5) as usize];
                            let block = random.below(PAGES / pages) * pages;
                            let offset = block * PAGE as u64;
                            if random.below(10) == 0 {
                                let bytes = pages * PAGE as u64;
                                disk.trim(offset, bytes, Durability::AtFlush).unwrap();
                            } else {
                                let new: Vec<u8> =
                                    (0..pages).flat_map(|_| kin(random.below(40))).collect();
                                disk.put(offset, &new).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut maker = Maker::new().unwrap();
                let mut coder = Coder::new(Choice::Auto).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    if maker.make_clusters(&disk.inner, &mut coder, 0) {
                        made.store(true, Ordering::Relaxed);
                    }
                }
            });
            scope.spawn(move || {
                let mut random = Random::new(30);
                while !ends.load(Ordering::Relaxed) {
                    let pages = 1 + random.below(8);
                    let block = random.below(PAGES - pages);
                    let found = disk.get(block * PAGE as u64, pages as usize * PAGE);
                    for page in found.as_chunks::<PAGE>().0 {
                        assert!(all.contains(page), "a page that nobody wrote");
                    }
                }
            });
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ends.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
        assert!(made.load(Ordering::Relaxed));
        disk.audit();
        disk.audit_empty();
    }
}

//! Pages that are used in order, compressed together.

use std::sync::atomic::{AtomicBool, Ordering};

use ramfold_store::{Loaded, Together};

use super::*;
use crate::disk::clusters::{Maker, UNIT, is_piece};
use crate::disk::workspace::Coder;
use crate::disk::{DiskError, GROUP};

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

/// Makes clusters as the keeper does, but at once.
pub(super) struct Makes {
    maker: Maker,
    coder: Coder,
}

impl Makes {
    pub(super) fn new() -> Makes {
        Makes { maker: Maker::new().unwrap(), coder: Coder::new(Choice::Auto).unwrap() }
    }

    /// Of a group.
    pub(super) fn clusters(&mut self, disk: &Disk, group: u64) -> Together {
        self.maker.make_clusters(&disk.inner, &mut self.coder, group)
    }

    /// Of all groups.
    fn all(&mut self, disk: &Disk) {
        disk.inner.store.for_each_group(0, disk.inner.pages, |group, _| {
            self.clusters(disk, group);
        });
    }
}

/// With clusters, whose keeper leaves making them to the test.
pub(super) fn with_clusters(config: DiskConfig) -> DiskConfig {
    let recompress_after = Some(Duration::from_secs(3600));
    DiskConfig { recompress_after, clusters: true, ..config }
}

fn disk() -> Disk {
    Disk::new(with_clusters(config(8 * MIB, 32 * MIB))).unwrap()
}

/// A disk with the first `pages` pages of [`data`], all of them in clusters.
fn disk_of(pages: u64) -> Disk {
    let disk = disk();
    disk.put(0, &data(0, pages)).unwrap();
    Makes::new().all(&disk);
    assert_eq!(disk.statistics().clusters, pages / UNIT);
    disk
}

/// Data for `pages` pages. Each `first` has other data.
fn data(first: u64, pages: u64) -> Vec<u8> {
    (first..first + pages).flat_map(kin).collect()
}

fn wait_for_clusters(disk: &Disk, count: u64) {
    wait_until("there are clusters", || disk.statistics().clusters == count);
}

#[test]
fn what_is_written_in_order_becomes_clusters_when_it_is_cold() {
    // With a codec of the first objects that is as dense as that of the second.
    for codec in ["lz4", "zstd"] {
        in_order(codec.parse().unwrap());
    }
}

fn in_order(codec: Choice) {
    let recompress_after = Some(Duration::from_millis(1));
    let config = DiskConfig { codec, ..config(8 * MIB, 32 * MIB) };
    let other = Disk::new(config.clone()).unwrap();
    let disk = Disk::new(DiskConfig { recompress_after, clusters: true, ..config }).unwrap();
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
    disk.audit_empty();
}

#[test]
fn what_is_written_in_parts_stays_pages_until_it_is_read_whole() {
    let (disk, mut makes) = (disk(), Makes::new());
    let expected = data(0, 64);
    for (nth, part) in (0..).zip(expected.chunks(2 * PAGE)) {
        disk.put(nth * 2 * PAGE as u64, part).unwrap();
    }
    makes.all(&disk);
    assert_eq!(disk.statistics().clusters, 0);
    assert_eq!(disk.get(0, expected.len()), expected);
    makes.all(&disk);
    assert_eq!(disk.statistics().clusters, 64 / UNIT);
    assert_eq!(disk.get(0, expected.len()), expected);
    disk.audit();
    disk.audit_empty();
}

/// Also where their group has been found to have nothing to be compressed once more.
#[test]
fn pages_that_have_been_cold_become_clusters_when_they_are_read_whole() {
    let recompress_after = Some(Duration::from_millis(1));
    let config = DiskConfig { recompress_after, clusters: true, ..config(8 * MIB, 32 * MIB) };
    let disk = Disk::new(config).unwrap();
    for block in 0..128 {
        disk.put(block * 4096, &kin(block)).unwrap();
    }
    wait_until("all are recompressed", || disk.statistics().recompressed >= 100);
    assert_eq!(disk.statistics().clusters, 0);
    assert_eq!(disk.get(0, 128 * PAGE), data(0, 128));
    wait_for_clusters(&disk, 32);
    assert_eq!(disk.get(0, 128 * PAGE), data(0, 128));
    disk.audit_empty();
}

#[test]
fn a_cluster_that_is_read_in_parts_again_becomes_pages() {
    let (disk, expected) = (disk_of(16), data(0, 16));
    for round in 0..3 {
        assert_eq!(disk.get(5 * 4096, PAGE), expected[5 * PAGE..6 * PAGE]);
        assert_eq!(disk.statistics().clusters, if round == 0 { 4 } else { 3 });
    }
    // The same at its begin, and over the border of two.
    for (offset, clusters) in [(0, 2), (11 * 4096, 0)] {
        for _ in 0..4 {
            let end = offset as usize + 2 * PAGE;
            assert_eq!(disk.get(offset, 2 * PAGE), expected[offset as usize..end]);
        }
        assert_eq!(disk.statistics().clusters, clusters);
    }
    // Reading it whole, or page by page in order, is no reason.
    assert_eq!(disk.get(0, expected.len()), expected);
    Makes::new().all(&disk);
    assert_eq!(disk.statistics().clusters, 4);
    for page in (0..16).chain(0..16) {
        assert_eq!(disk.get(page * 4096, PAGE), kin(page));
        assert_eq!(disk.statistics().clusters, 4);
    }
    for _ in 0..3 {
        assert_eq!(disk.get(0, expected.len()), expected);
        assert_eq!(disk.statistics().clusters, 4);
    }
    disk.audit();
}

#[test]
fn pages_of_a_cluster_are_changed_and_removed() {
    let (disk, mut expected) = (disk_of(64), data(0, 64));
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
    // Around the border of two; a part of a cluster; two whole and parts of two.
    for (offset, bytes) in [
        (13 * CLUSTER - page, 2 * page),
        (6 * CLUSTER + page, page),
        (8 * CLUSTER - 100, 2 * CLUSTER + 200),
        (14 * CLUSTER, CLUSTER + page),
    ] {
        disk.trim(offset, bytes, Durability::AtFlush).unwrap();
        expected[offset as usize..(offset + bytes) as usize].fill(0);
        assert_eq!(disk.get(0, expected.len()), expected);
        disk.audit();
    }
    disk.audit_empty();
}

#[test]
fn equal_pages_are_found_in_clusters() {
    let (disk, expected) = (disk_of(16), data(0, 16));
    // A page of one cluster, again where it is, and one page of a cluster over another of it.
    disk.put(MIB, &kin(6)).unwrap();
    disk.put(9 * 4096, &kin(9)).unwrap();
    disk.put(12 * 4096, &kin(15)).unwrap();
    let s = disk.statistics();
    assert_eq!((s.deduplicated_writes, s.clusters), (2, 2), "{s:#?}");
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
    assert!(!has(DiskConfig { spill: spill.clone(), ..usual.clone() }));
    let both = Disk::new(DiskConfig { spill, for_swap: true, ..usual.clone() });
    assert!(matches!(both, Err(DiskError::SpillForSwap)));
    assert!(!has(DiskConfig { recompress_after: None, ..usual }));
    assert!(DiskConfig::new(8 * MIB, 1 << 30).clusters);
    assert!(!DiskConfig::new(8 * MIB, 8 * MIB).clusters);
}

#[test]
fn a_write_of_a_whole_cluster_takes_its_place() {
    let disk = disk_of(64);
    let before = disk.statistics();
    let mut expected = data(0, 64);
    // Two whole ones and a page; then pages that need no object, or share one.
    let new = data(500, 2 * UNIT + 1);
    let mixed = [kin(600), [0; PAGE], [7; PAGE], kin(40)].concat();
    for (nth, (offset, new)) in (1..).zip([(0, new), (5 * CLUSTER, mixed)]) {
        disk.put(offset, &new).unwrap();
        expected[offset as usize..][..new.len()].copy_from_slice(&new);
        assert_eq!(disk.get(0, expected.len()), expected);
        assert!(disk.statistics().clusters < before.clusters - nth);
        disk.audit();
    }
    // Its pages are found by equal ones.
    disk.put(MIB, &kin(502)).unwrap();
    let s = disk.statistics();
    assert_eq!(s.deduplicated_writes - before.deduplicated_writes, 2, "{s:#?}");
    disk.audit();
    disk.audit_empty();
}

#[test]
fn a_damaged_cluster_is_an_error_until_it_is_written_whole() {
    let disk = disk_of(16);
    // A piece of another cluster.
    let piece = disk.inner.store.load(9, |loaded| match loaded {
        Loaded::Object { encoding, bytes } => (encoding, bytes.to_vec()),
        other => panic!("{other:?}"),
    });
    let (encoding, bytes) = piece.unwrap().unwrap();
    disk.inner.store.store_object(5, encoding, &bytes).unwrap();
    let mut page = [0; PAGE];
    for block in 4..8 {
        let error = disk.read(block * 4096, &mut page).unwrap_err();
        assert!(matches!(error, DeviceError::Failed(_)), "{error}");
    }
    assert!(disk.put(4 * 4096, &kin(4)).is_err());
    assert_eq!(disk.get(8 * 4096, PAGE), kin(8));
    // Also with pages that need no object of their own.
    let new = [kin(700), [0; PAGE], kin(1), kin(700)].concat();
    disk.put(CLUSTER, &new).unwrap();
    assert_eq!(disk.get(CLUSTER, 4 * PAGE), new);
    disk.audit();
    disk.audit_empty();
}

#[test]
fn disks_of_any_size_have_clusters() {
    for pages in [1, 3, 4, 5, 61, 62, 63] {
        let size = pages * PAGE as u64;
        let disk = Disk::new(with_clusters(config(size, 16 * MIB))).unwrap();
        disk.put(0, &data(0, pages)).unwrap();
        Makes::new().all(&disk);
        assert_eq!(disk.statistics().clusters, pages / UNIT);
        assert_eq!(disk.get(0, size as usize), data(0, pages));
        disk.audit();
        disk.audit_empty();
    }
    // Far more units than bits.
    let size = 2 << 40;
    let disk = Disk::new(with_clusters(config(size, 48 * MIB))).unwrap();
    let places: Vec<u64> = (0..40).map(|nth| nth * (size / 40) / CLUSTER * CLUSTER).collect();
    for (nth, &place) in (0..).zip(&places) {
        disk.put(place, &data(nth * 16, UNIT)).unwrap();
    }
    let mut makes = Makes::new();
    places.iter().for_each(|place| _ = makes.clusters(&disk, place / 4096 / GROUP * GROUP));
    assert_eq!(disk.statistics().clusters, 40);
    for (nth, &place) in (0..).zip(&places) {
        assert_eq!(disk.get(place, CLUSTER as usize), data(nth * 16, UNIT));
    }
    let s = disk.statistics();
    assert!(s.cost_bytes <= s.memory_bytes);
}

#[test]
fn a_full_disk_keeps_its_clusters_where_it_is_read() {
    let disk = Disk::new(with_clusters(config(64 * MIB, 6 * MIB))).unwrap();
    let mut makes = Makes::new();
    disk.put(0, &data(0, 256)).unwrap();
    makes.all(&disk);
    assert_eq!(disk.statistics().clusters, 64);
    // The rest is taken.
    (1024..).find(|&block| disk.put(block * 4096, &noise(block)).is_err()).unwrap();
    let before = disk.statistics();
    for _ in 0..3 {
        for block in (0..256).rev() {
            assert_eq!(disk.get(block * 4096, PAGE), kin(block));
        }
    }
    let s = disk.statistics();
    assert_eq!((s.clusters, s.pool_bytes), (64, before.pool_bytes));
    // A trim from within a cluster on makes room by the whole ones behind.
    disk.trim(4096, 255 * 4096, Durability::AtFlush).unwrap();
    assert_eq!(disk.get(0, 256 * PAGE), [&kin(0)[..], &[0; 255 * PAGE]].concat());
    disk.audit();
    disk.audit_empty();
}

/// Each page that is read must be one that was written, while clusters come and go.
#[test]
fn pages_of_clusters_are_whole_whatever_threads_do() {
    const PAGES: u64 = 64;
    for deduplicate in [false, true] {
        let config = DiskConfig { threads: 4, deduplicate, ..config(MIB, 32 * MIB) };
        let disk = Disk::new(with_clusters(config)).unwrap();
        let ends = AtomicBool::new(false);
        // Pages that are equal to others are in no cluster.
        let contents = if deduplicate { 1000 } else { 40 };
        let all: Vec<Page> = (0..contents).map(kin).chain([[0; PAGE]]).collect();
        std::thread::scope(|scope| {
            let (disk, ends, all) = (&disk, &ends, &all);
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
                                    (0..pages).flat_map(|_| kin(random.below(contents))).collect();
                                disk.put(offset, &new).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut makes = Makes::new();
                while !ends.load(Ordering::Relaxed) {
                    makes.clusters(disk, 0);
                    disk.inner.store.compact(|| true);
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
        assert!(disk.statistics().recompressed > 0, "no cluster was made");
        disk.audit();
        disk.audit_empty();
    }
}

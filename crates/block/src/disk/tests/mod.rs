//! The disk as its users see it, compared with what they wrote.

mod clusters;
mod extents;
mod limits;
mod model;
mod spilling;
mod threads;

use std::time::{Duration, Instant};

use ramfold_codec::{Choice, Page};

use super::dedup::PageHash;
use super::{Disk, DiskConfig, PAGE, SpillConfig};
use crate::{BlockDevice, DeviceError, Durability, Zeroing};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Numbers that are the same in each run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A page of text that repeats, as different as `seed` is: a quarter of a page when compressed.
pub(super) fn text(seed: u64) -> Page {
    let mut random = Random::new(seed);
    let mut words = [[0; 8]; 64];
    words.iter_mut().for_each(|word| *word = random.next().to_le_bytes());
    let mut page = [0; PAGE];
    for chunk in page.chunks_mut(8) {
        chunk.copy_from_slice(&words[random.below(64) as usize]);
    }
    page
}

/// A page of the same words as all pages whose seeds differ in the last four bits: they compress
/// better together.
pub(super) fn kin(seed: u64) -> Page {
    let words = text(seed / 16);
    let mut random = Random::new(seed);
    let mut page = [0; PAGE];
    for chunk in page.chunks_mut(32) {
        let at = random.below(PAGE as u64 / 32) as usize * 32;
        chunk.copy_from_slice(&words[at..at + 32]);
    }
    page
}

/// A page that no codec shrinks.
pub(super) fn noise(seed: u64) -> Page {
    let mut page = [0; PAGE];
    Random::new(seed).fill(&mut page);
    page
}

/// Any page: of zeros, of a word, compressible or not; of few contents each, so that many are
/// equal.
pub(super) fn any_page(random: &mut Random, contents: u64) -> Page {
    let seed = random.below(contents);
    match random.below(10) {
        0 => [0; PAGE],
        1 => [seed as u8; PAGE],
        2 => {
            let mut page = [0; PAGE];
            let word = (seed << 33 | 1).to_le_bytes();
            page.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
            page
        }
        3 | 4 => noise(seed),
        _ => text(seed),
    }
}

/// A small disk in much memory: no spill file, no recompression, two requests at a time.
pub(super) fn config(size_bytes: u64, memory_bytes: u64) -> DiskConfig {
    DiskConfig { threads: 2, recompress_after: None, ..DiskConfig::new(size_bytes, memory_bytes) }
}

impl Disk {
    pub(super) fn put(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, data, Durability::AtFlush)
    }

    pub(super) fn get(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xa5; bytes];
        self.read(offset, &mut buffer).unwrap();
        buffer
    }

    /// Checks what must hold whatever was done.
    pub(super) fn audit(&self) {
        let s = self.statistics();
        assert!(s.cost_bytes <= s.memory_bytes, "{s:#?}");
        assert_eq!(s.cost_bytes, s.pool_bytes + s.metadata_bytes + s.buffer_bytes);
        assert_eq!(s.clusters, self.inner.count_clusters());
        let Some(dedup) = &self.inner.dedup else { return };
        // Each reference is counted once.
        let mut counted = std::collections::HashMap::new();
        self.inner.for_each_reference(|number| *counted.entry(number).or_insert(0) += 1);
        assert_eq!(s.deduplicated_pages, counted.values().map(|&count| u64::from(count)).sum());
        assert_eq!(s.shared_objects, counted.len() as u64);
        for (number, count) in counted {
            assert_eq!(dedup.shares.references(number), count, "{number}");
        }
    }

    /// Trims everything, after which nothing may be left.
    pub(super) fn audit_empty(&self) {
        self.trim(0, self.size_bytes(), Durability::AtFlush).unwrap();
        self.audit();
        let mut s = self.statistics();
        // The keeper and the one who recompresses may be at work with a span.
        let end = Instant::now() + Duration::from_secs(10);
        while s.pool_bytes != s.pool_reserve_bytes && Instant::now() < end {
            std::thread::yield_now();
            s = self.statistics();
        }
        assert_eq!(
            (s.pages, s.objects, s.clusters, s.spilled_objects, s.shared_objects),
            (0, 0, 0, 0, 0)
        );
        assert_eq!((s.compressed_bytes, s.pool_bytes), (0, s.pool_reserve_bytes));
    }
}

impl super::Inner {
    fn for_each_reference(&self, mut each: impl FnMut(u32)) {
        self.store.for_each_group(0, self.pages, |group, live| {
            for nth in (0..super::GROUP).filter(|nth| live >> nth & 1 != 0) {
                if let Some(number) = self.reference_of(group + nth) {
                    each(number);
                }
            }
        });
    }
}

/// Waits until something is so; far longer than that takes, as the machine may be busy.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pages_are_classed_and_counted() {
    let disk = Disk::new(config(MIB, 16 * MIB)).unwrap();
    let page = PAGE as u64;
    assert_eq!(disk.size_bytes(), MIB);
    assert_eq!(disk.get(0, 3 * PAGE), vec![0; 3 * PAGE]);
    disk.put(0, &[0; PAGE]).unwrap();
    disk.put(page, &[7; PAGE]).unwrap();
    let mut halves = [0; PAGE];
    halves.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]));
    disk.put(2 * page, &halves).unwrap();
    disk.put(3 * page, &text(1)).unwrap();
    disk.put(4 * page, &noise(1)).unwrap();
    for block in 5..8 {
        disk.put(block * page, &text(2)).unwrap();
    }
    let s = disk.statistics();
    assert_eq!((s.pages, s.same_filled_pages, s.incompressible_pages), (7, 2, 1));
    assert_eq!((s.deduplicated_pages, s.shared_objects, s.objects), (3, 1, 3));
    assert_eq!((s.writes, s.written_bytes, s.deduplicated_writes), (8, 8 * page, 2));
    disk.audit();
    let expected = [&[0; PAGE], &[7; PAGE], &halves, &text(1), &noise(1)];
    for (block, content) in (0..).zip(expected) {
        assert_eq!(disk.get(block * page, PAGE), content);
    }
    for block in 5..8 {
        assert_eq!(disk.get(block * page, PAGE), text(2));
    }
    disk.audit_empty();
}

#[test]
fn a_part_of_a_page_leaves_the_rest() {
    let disk = Disk::new(config(64 * KIB, 16 * MIB)).unwrap();
    disk.put(0, &[text(1), text(1)].concat()).unwrap();
    disk.put(4096 - 512, &[9; 1024]).unwrap();
    let mut expected = [text(1), text(1)].concat();
    expected[4096 - 512..4096 + 512].fill(9);
    assert_eq!(disk.get(0, 8192), expected);
    disk.trim(100, 50, Durability::AtFlush).unwrap();
    expected[100..150].fill(0);
    disk.zero(4090, 10, Zeroing { may_trim: true, fast: true }, Durability::AtOnce).unwrap();
    expected[4090..4100].fill(0);
    assert_eq!(disk.get(0, 8192), expected);
    assert_eq!(disk.get(4000, 200), expected[4000..4200]);
    disk.audit_empty();
}

#[test]
fn pages_of_one_hash_keep_their_own_bytes() {
    for hash in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
        let disk =
            Disk::with_hash(config(8 * MIB, 16 * MIB), Some(PageHash::constant(hash))).unwrap();
        let page = PAGE as u64;
        let mut random = Random::new(hash);
        let contents: Vec<Page> = (0..1000).map(|_| any_page(&mut random, 300)).collect();
        for (block, content) in (0..).zip(&contents) {
            disk.put(block * page, content).unwrap();
        }
        for (block, content) in (0..).zip(&contents) {
            assert_eq!(disk.get(block * page, PAGE), content, "{block}");
        }
        let s = disk.statistics();
        assert!(s.unequal_comparisons > 100 && s.deduplicated_pages > 0, "{s:#?}");
        disk.audit();
        disk.audit_empty();
    }
}

#[test]
fn equal_pages_are_found() {
    let disk = Disk::new(config(64 * MIB, 64 * MIB)).unwrap();
    let page = PAGE as u64;
    let count = 6000;
    for block in 0..count {
        disk.put(block * page, &text(block)).unwrap();
        if block % 256 == 0 {
            disk.inner.grow_tables();
        }
    }
    disk.inner.grow_tables();
    for block in 0..count {
        disk.put((count + block) * page, &text(block)).unwrap();
    }
    let s = disk.statistics();
    assert!(s.deduplicated_writes * 100 >= count * 97, "{s:#?}");
    for block in 0..2 * count {
        assert_eq!(disk.get(block * page, PAGE), text(block % count));
    }
    disk.audit();
    disk.audit_empty();
}

#[test]
fn every_codec_gives_back_what_was_written() {
    for name in Choice::names() {
        let codec = name.parse().unwrap();
        let disk = Disk::new(DiskConfig { codec, ..config(MIB, 16 * MIB) }).unwrap();
        let mut random = Random::new(5);
        let contents: Vec<Page> = (0..256).map(|_| any_page(&mut random, 100)).collect();
        disk.put(0, contents.as_flattened()).unwrap();
        assert_eq!(disk.get(0, 256 * PAGE), contents.as_flattened(), "{name}");
        disk.audit_empty();
    }
}

#[test]
fn cold_pages_become_smaller() {
    let recompress_after = Some(Duration::from_millis(1));
    let disk = Disk::new(DiskConfig { recompress_after, ..config(8 * MIB, 32 * MIB) }).unwrap();
    let page = PAGE as u64;
    let words = |seed: u64| {
        let mut random = Random::new(seed);
        let mut page = [0; PAGE];
        page.iter_mut().for_each(|byte| *byte = b'a' + random.below(12) as u8);
        page
    };
    let other = Disk::new(config(8 * MIB, 32 * MIB)).unwrap();
    for block in 0..500 {
        disk.put(block * page, &words(block / 2)).unwrap();
        other.put(block * page, &words(block / 2)).unwrap();
    }
    let before = other.statistics().compressed_bytes;
    wait_until("all are recompressed", || {
        let s = disk.statistics();
        s.recompressed >= 250 && s.compressed_bytes < before * 7 / 8
    });
    for block in 0..500 {
        assert_eq!(disk.get(block * page, PAGE), words(block / 2));
    }
    // Equal pages are still found.
    disk.put(600 * page, &words(3)).unwrap();
    assert_eq!(disk.statistics().deduplicated_pages, 501);
    disk.audit();
    disk.audit_empty();
}

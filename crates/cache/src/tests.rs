//! A disk in RAM is read and written through the cache, as a block device would be.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ramfold_codec::ZstdLevel;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};

use crate::*;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Disk {
    pages: CachedPages,
    bytes: Mutex<Vec<u8>>,
    pub(crate) size: AtomicU64,
    /// Odd while it is written.
    version: AtomicU64,
    /// What it was told of clusters that were not compressed.
    pub(crate) refused: Mutex<Vec<String>>,
}

impl Disk {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Disk> {
        Arc::new(Disk {
            pages: CachedPages::new(1),
            size: AtomicU64::new(bytes.len() as u64),
            bytes: Mutex::new(bytes),
            version: AtomicU64::new(0),
            refused: Mutex::default(),
        })
    }

    fn write(&self, cache: &Cache<Disk>, offset: usize, data: &[u8]) {
        let mut bytes = locked(&self.bytes);
        self.version.fetch_add(1, Ordering::SeqCst);
        bytes[offset..][..data.len()].copy_from_slice(data);
        let end = (offset + data.len()) as u64;
        cache.forget(&self.pages, offset as u64 / PAGE..end.div_ceil(PAGE));
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn read<R>(
        self: &Arc<Self>,
        cache: &Cache<Disk>,
        bytes: Range<u64>,
        is_kept: bool,
        then: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let version = self.version.load(Ordering::SeqCst);
        let request = Request {
            owner: self,
            offset: bytes.start,
            len: (bytes.end - bytes.start) as usize,
            version: (is_kept && version.is_multiple_of(2)).then_some(Version(version)),
            size_bytes: self.size_bytes(),
        };
        cache.read(&request, &**self, |reading| {
            let reading = reading.unwrap();
            let result = then(reading.bytes());
            reading.keep(|| 0);
            result
        })
    }

    fn check(self: &Arc<Self>, cache: &Cache<Disk>, bytes: Range<u64>) {
        let expected = locked(&self.bytes)[bytes.start as usize..bytes.end as usize].to_vec();
        self.read(cache, bytes.clone(), true, |read| assert!(read == expected, "{bytes:?}"));
    }
}

impl Owner for Disk {
    fn pages(&self) -> &CachedPages {
        &self.pages
    }

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn store_if_current(&self, version: Version, store: impl FnOnce()) -> bool {
        let Ok(_bytes) = self.bytes.try_lock() else { return false };
        let is_current = self.version.load(Ordering::SeqCst) == version.0;
        if is_current {
            store();
        }
        is_current
    }

    fn note_damaged(&self, _: &DamagedCluster) {}

    fn note_refused(&self, refused: &RefusedCluster) {
        locked(&self.refused).push(refused.to_string());
    }
}

impl Backing for Disk {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Filled> {
        let all = locked(&self.bytes);
        let rest = &all[all.len().min(offset as usize)..];
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        buffer[bytes..].fill(0);
        Ok(Filled { bytes, is_uncached: true })
    }
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}

/// Compresses to a third; every seventh page is random.
fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let byte = |nth: usize| match nth / 4096 % 7 {
        0 => numbers.below(256) as u8,
        _ => b"some words, and some more"[numbers.below(5) as usize * 5 + nth % 5],
    };
    (0..len).map(byte).collect()
}

pub(crate) fn config(memory_bytes: u64) -> Config {
    Config { synchronous: true, ..Config::new(memory_bytes) }
}

fn started(config: Config) -> (Arc<Cache<Disk>>, Background<Disk>) {
    let cache = Arc::new(Cache::new(config).unwrap());
    let background = cache.start(|| {}).unwrap();
    (cache, background)
}

/// Waits until everything that was read has been compressed.
fn settle(cache: &Cache<Disk>) {
    let begun = Instant::now();
    while cache.is_compressing() {
        assert!(begun.elapsed() < PATIENCE, "it is compressing for ever");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_read_is_what_the_disk_holds() {
    let codec = Some(ClusterCodec::Zstd(ZstdLevel::FASTEST));
    for (cluster, synchronous) in
        [(None, false), (Some(ClusterSize::One), true), (Some(ClusterSize::Sixteen), false)]
    {
        let (cache, _background) =
            started(Config { cluster, synchronous, codec, ..config(32 << 20) });
        let mut numbers = Numbers(cluster.map_or(0, |size| size as u64));
        let disk = Disk::new(content(1 << 20, 1));
        for round in 0..20 {
            for _ in 0..100 {
                let offset = numbers.below(1 << 20);
                let most = [5000, 200_000][numbers.below(2) as usize];
                let len = 1 + numbers.below(most);
                disk.check(&cache, offset..(offset + len).min(1 << 20));
            }
            settle(&cache);
            for _ in 0..5 {
                let data = content(1 + numbers.below(30_000) as usize, round);
                let offset = numbers.below((1 << 20) - data.len() as u64);
                disk.check(&cache, offset..offset + 1);
                disk.write(&cache, offset as usize, &data);
                disk.check(&cache, offset.saturating_sub(5000)..offset + data.len() as u64);
            }
        }
        let statistics = cache.statistics();
        assert!(statistics.hit_pages > 1000, "{statistics:?}");
        assert_eq!(statistics.damaged_clusters, 0);
    }
}

#[test]
fn readers_see_what_was_written_before_they_came() {
    const PAGES: u64 = 200;
    let (cache, _background) = started(config(16 << 20));
    let page_of = |number: u64| number.to_le_bytes().repeat(512);
    let disk = Disk::new(page_of(0).repeat(PAGES as usize));
    let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (cache, disk, written, is_over) = (&cache, &disk, &written, &is_over);
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let page = numbers.below(PAGES);
                    let before = written[page as usize].load(Ordering::SeqCst);
                    disk.read(cache, page * PAGE..(page + 1) * PAGE, true, |read| {
                        let words = read.as_chunks().0;
                        let number = u64::from_le_bytes(words[0]);
                        assert!(words.iter().all(|word| *word == words[0]));
                        assert!(number >= before, "page {page} is of {number}, not {before}");
                    });
                }
            });
        }
        let mut numbers = Numbers(9);
        let begun = Instant::now();
        let mut number = 0;
        for _ in 0..100 {
            for _ in 0..20 {
                number += 1;
                let page = numbers.below(PAGES);
                disk.write(&cache, (page * PAGE) as usize, &page_of(number));
                written[page as usize].store(number, Ordering::SeqCst);
            }
            // Until what is read is kept, and read once more.
            let before = cache.statistics().hit_pages;
            while cache.statistics().hit_pages < before + 20 {
                assert!(begun.elapsed() < PATIENCE, "nothing is found in the cache");
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_damaged_is_read_from_the_disk_again() {
    let (cache, _background) = started(config(16 << 20));
    let disk = Disk::new(content(1 << 20, 3));
    disk.check(&cache, 0..1 << 20);
    settle(&cache);
    // The only large owner: its pages' keys are the first of their kind.
    let first = 1 << 63;
    let before = cache.store.statistics().objects;
    let second_piece = (first..first + 256).filter(|key| key % 4 == 1).find(|&key| {
        cache.store.invalidate(key);
        cache.store.statistics().objects < before
    });
    assert!(second_piece.is_some());
    cache.store.replace_neighbours(first + 32, 16, &[(12, &[2, 1, 9, 9, 9])], 0).unwrap();
    disk.check(&cache, 0..1 << 20);
    assert!(cache.statistics().damaged_clusters >= 2, "{:?}", cache.statistics());
    settle(&cache);
    disk.check(&cache, 0..1 << 20);
}

#[test]
fn one_thread_knows_how_fast_it_compresses() {
    let (cache, _background) = started(config(16 << 20));
    let disk = Disk::new(content(1 << 20, 3));
    disk.check(&cache, 0..1 << 20);
    settle(&cache);
    assert!(cache.backlog.ns_per_byte() > 0.0);
}

#[test]
fn the_cache_is_brought_within_its_limit_and_owners_are_forgotten() {
    let (cache, background) = started(config(32 << 20));
    let disk = Disk::new(content(8 << 20, 5));
    for part in 0..64 {
        disk.check(&cache, part << 17..(part + 1) << 17);
        settle(&cache);
    }
    assert!(cache.stored_bytes() > 2 << 20, "{}", cache.stored_bytes());
    let pages = cache.count_pages();
    cache.make_room(1 << 20);
    assert!(cache.stored_bytes() <= 1 << 20, "{}", cache.stored_bytes());
    assert_eq!(cache.statistics().evicted_pages, pages - cache.count_pages());
    disk.check(&cache, 0..8 << 20);
    settle(&cache);
    assert!(cache.count_pages() > 0);
    cache.forget_owner(&disk.pages);
    assert_eq!(cache.count_pages(), 0);
    drop(background);
    // Nobody keeps it.
    assert_eq!(Arc::strong_count(&disk), 1);
}

//! What is read is what the file holds, whatever was cached of it.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ramfold_codec::ZstdLevel;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};

use super::*;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// On a disk, so that there is something to be read past the page cache.
fn temporary() -> File {
    tempfile::tempfile_in("/var/tmp").unwrap()
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Text of sorts, by pages; every eighth page is random, and every ninth is empty.
fn content_of(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        let page = bytes.len() / 4096;
        let end = bytes.len() + 4096;
        while bytes.len() < end {
            match page % 72 {
                0 | 8 | 16 => bytes.extend(numbers.next().to_le_bytes()),
                page if page % 9 == 0 => bytes.extend([0; 8]),
                _ => bytes.extend(format!("{:x} and ", numbers.below(500)).into_bytes()),
            }
        }
        bytes.truncate(end);
    }
    bytes.truncate(len);
    bytes
}

pub(super) fn config(memory_bytes: u64) -> Config {
    Config {
        memory_bytes,
        compressed_share: None,
        codec: Some(ClusterCodec::Zstd(ZstdLevel::FASTEST)),
        cluster: None,
        synchronous: false,
    }
}

/// A kernel that drops nothing and remembers what it was told to.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Dropped>>);

type Dropped = Vec<(u64, Range<u64>)>;

impl Kernel for Told {
    fn drop_pages(&mut self, node: u64, bytes: Range<u64>) {
        self.0.lock().unwrap().push((node, bytes));
    }
}

/// A file and its content.
struct Known {
    content: Arc<Content>,
    source: Source,
    file: File,
    /// What it should hold.
    bytes: Vec<u8>,
}

impl Known {
    fn new(contents: &Contents, inode: u64, bytes: Vec<u8>) -> Known {
        let file = temporary();
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        let content = contents.of(FileKey { device: 1, inode, generation: 0 });
        content.set_node(inode);
        // This test has it open.
        content.note_writer();
        let source = Source::new(file.try_clone().unwrap().into());
        Known { content, source, file, bytes }
    }

    fn check(&self, offset: u64, len: usize) {
        let start = self.bytes.len().min(offset as usize);
        let expected = &self.bytes[start..self.bytes.len().min(start + len)];
        self.content.read(&self.source, offset, len, |read| {
            let read = read.unwrap();
            assert_eq!(read.len(), expected.len(), "{len} bytes at {offset}");
            assert!(read == expected, "{len} bytes at {offset}");
        });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        let changed = Changed::Bytes(offset..end as u64);
        let file = &self.file;
        self.content
            .change(Some(file.as_fd()), changed, || file.write_all_at(bytes, offset))
            .unwrap();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }

    fn truncate(&mut self, len: u64) {
        let file = &self.file;
        self.content.change(Some(file.as_fd()), Changed::All, || file.set_len(len)).unwrap();
        self.bytes.resize(len as usize, 0);
    }

    /// As somebody does who does not come by the mount.
    fn write_behind(&mut self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
        let end = offset as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
        // What opening the file, and the watch, do.
        self.content.changes_behind(self.file.as_fd());
    }
}

impl Contents {
    /// Waits until everything that was read has been compressed.
    fn settle(&self) {
        wait_until("everything is compressed", || !self.shared.compression.is_at_work());
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Long enough for a file not to count as freshly changed.
fn rest() {
    thread::sleep(Duration::from_millis(25));
}

#[test]
fn what_is_read_is_what_the_file_holds() {
    for (cluster, synchronous) in
        [(None, false), (Some(ClusterSize::One), true), (Some(ClusterSize::Sixteen), false)]
    {
        let contents = Contents::new(Config { cluster, synchronous, ..config(32 << 20) }).unwrap();
        let mut numbers = Numbers(cluster.map_or(0, |size| size as u64));
        let lengths = [0, 1, 4096, 10_000, 70_000, 300_000, 3_000_000];
        let mut files: Vec<_> = lengths
            .iter()
            .zip(1..)
            .map(|(&len, inode)| Known::new(&contents, inode, content_of(len, inode)))
            .collect();
        for _round in 0..12 {
            rest();
            for _ in 0..200 {
                let file = &files[numbers.below(files.len() as u64) as usize];
                let offset = numbers.below(file.bytes.len() as u64 + 5000);
                let most = [5000, 200_000][numbers.below(2) as usize];
                let len = 1 + numbers.below(most);
                file.check(offset, len as usize);
                // By pages, backwards.
                let page = offset / 4096;
                let few = page.saturating_sub(numbers.below(9))..page;
                few.rev().for_each(|page| file.check(page * 4096, 4096));
            }
            contents.settle();
            for _ in 0..6 {
                let count = files.len() as u64;
                let file = &mut files[numbers.below(count) as usize];
                let offset = numbers.below(file.bytes.len() as u64 + 9000);
                let bytes = content_of(1 + numbers.below(30_000) as usize, numbers.next());
                file.check(offset, 4096);
                match numbers.below(4) {
                    0 => file.truncate(offset),
                    1 => file.write_behind(offset, &bytes),
                    _ => file.write(offset, &bytes),
                }
                file.check(offset, 4096);
                file.check(offset.saturating_sub(5000), 20_000);
            }
        }
        let counters = &contents.shared.counters;
        assert!(counters.pool_hit_pages.get() > 1000, "{}", counters.pool_hit_pages.get());
        assert_eq!(counters.damaged_clusters.get(), 0);
        assert!(counters.decompressions.get() > 0 && counters.compress_ns.get() > 0);
        let told = contents.view().glance();
        assert!(told.pages_compressed_to_bytes > told.pages_compressed);
        assert!(told.pages_compressed_to_bytes < told.pages_compressed * 4096 / 16 * 15);
    }
}

#[test]
fn both_levels_stay_within_the_memory() {
    let memory = 16 << 20;
    let contents = Contents::new(config(memory)).unwrap();
    let told = Told::default();
    contents.bounds().begin(told.clone()).unwrap();
    let file = Known::new(&contents, 7, content_of(80 << 20, 1));
    rest();
    let mut numbers = Numbers(5);
    for round in 0..4 {
        for _ in 0..1500 {
            file.check(numbers.below(file.bytes.len() as u64) / 4096 * 4096, 4096);
        }
        for part in 0..160 {
            file.check((round * 160 + part) * 131_072 % file.bytes.len() as u64, 131_072);
            contents.settle();
        }
        contents.settle();
        let shared = &contents.shared;
        // Dropping takes its time.
        let lower = || shared.store.cost_bytes() as u64;
        wait_until("both levels are within the memory", || {
            shared.cost_bytes() <= memory && lower() <= shared.balance.compressed_bytes_max()
        });
    }
    let shared = &contents.shared;
    assert!(shared.replacement.counts().left_pages > 0);
    let dropped: u64 =
        told.0.lock().unwrap().iter().map(|(_, bytes)| bytes.end - bytes.start).sum();
    assert!(dropped > memory, "{dropped}");
    assert!(told.0.lock().unwrap().iter().all(|(node, _)| *node == 7));
    assert!(
        shared.counters.pool_hit_pages.get() > 2000,
        "{}",
        shared.counters.pool_hit_pages.get()
    );
}

#[test]
fn what_was_read_is_there_the_second_time() {
    let contents = Contents::new(config(64 << 20)).unwrap();
    let file = Known::new(&contents, 1, content_of(20 << 20, 3));
    rest();
    let counters = &contents.shared.counters;
    let read_all = || {
        for offset in (0..20 << 20).step_by(131_072) {
            file.check(offset, 131_072);
            // Not faster than they are compressed.
            contents.settle();
        }
    };
    read_all();
    let once = counters.source_read_bytes.get();
    assert_eq!(once, 20 << 20);
    read_all();
    // What does not shrink comes from the file each time.
    let twice = counters.source_read_bytes.get() - once;
    assert!(twice < once / 5, "{twice} of {once} bytes were read again");
    let statistics = contents.shared.store.statistics();
    assert!(statistics.object_bytes < 10 << 20, "{statistics:?}");
}

/// Whether it is stored or not.
#[test]
fn who_goes_through_a_file_by_pages_waits_for_each_cluster_once() {
    for (share, what) in [(0.0, "source reads"), (0.8, "decompressions")] {
        let (cluster, compressed_share) = (Some(ClusterSize::Four), Some(share));
        let contents =
            Contents::new(Config { cluster, compressed_share, ..config(32 << 20) }).unwrap();
        let pages = 1024;
        let file = Known::new(&contents, 1, content_of(pages * 4096, 1));
        rest();
        (0..pages as u64 / 16).for_each(|part| file.check(part << 16, 1 << 16));
        contents.settle();
        let counters = &contents.shared.counters;
        let count = || counters.decompressions.get() + counters.source_reads.get();
        let before = count();
        (0..pages as u64).rev().for_each(|page| file.check(page * 4096, 4096));
        // Some do not compress, and are read from SOURCE.
        assert_eq!(count() - before, pages as u64 / 4, "{what}");
        // Nothing is kept for who reads here and there.
        let (before, here_and_there) = (count(), (53..pages as u64).step_by(53));
        here_and_there.clone().for_each(|page| file.check(page * 4096, 4096));
        assert_eq!(count() - before, here_and_there.count() as u64, "{what}");
    }
}

/// Not before it is looked at again: but zeros, which the file never had, nobody gets.
#[test]
fn what_is_behind_an_end_that_was_just_made_is_not_kept() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let mut file = Known::new(&contents, 1, content_of(400_000, 1));
    rest();
    file.check(0, 4096);
    file.file.set_len(0).unwrap();
    for page in [0, 1] {
        file.content.read(&file.source, page * 4096, 4096, |read| {
            let read = read.unwrap();
            assert!(read.is_empty() || read == &file.bytes[page as usize * 4096..][..4096]);
        });
    }
    file.content.read(&file.source, 16 * 4096, 4096, |read| assert!(read.unwrap().is_empty()));
    file.bytes = content_of(400_000, 2);
    file.file.write_all_at(&file.bytes, 0).unwrap();
    file.check(17 * 4096, 4096);
}

#[test]
fn readers_see_what_was_written_before_they_came() {
    const PAGES: u64 = 300;
    let page_of = |page: u64, version: u64| {
        let words = [page, version].map(u64::to_le_bytes).concat();
        words.repeat(256)
    };
    let contents = Contents::new(config(16 << 20)).unwrap();
    let bytes = (0..PAGES).flat_map(|page| page_of(page, 1)).collect();
    let file = Known::new(&contents, 1, bytes);
    let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(1)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (file, written, stop) = (&file, &written, &stop);
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                while !stop.load(Ordering::Relaxed) {
                    let first = numbers.below(PAGES);
                    let count = 1 + numbers.below(20.min(PAGES - first));
                    let before: Vec<_> = (first..first + count)
                        .map(|page| written[page as usize].load(Ordering::SeqCst))
                        .collect();
                    file.content.read(&file.source, first * 4096, count as usize * 4096, |read| {
                        let read = read.unwrap();
                        assert_eq!(read.len() as u64, count * 4096);
                        for ((page, before), bytes) in (first..).zip(before).zip(read.chunks(4096))
                        {
                            for pair in bytes.chunks(16) {
                                let word =
                                    |at| u64::from_le_bytes(pair[at..at + 8].try_into().unwrap());
                                assert_eq!(word(0), page);
                                assert!(
                                    word(8) >= before,
                                    "page {page} is of {}, not {before}",
                                    word(8)
                                );
                            }
                        }
                    });
                }
            });
        }
        let mut numbers = Numbers(9);
        let started = Instant::now();
        let mut version = 1;
        let hits = || contents.shared.counters.pool_hit_pages.get();
        while started.elapsed() < Duration::from_secs(3) || hits() <= 100 {
            assert!(started.elapsed() < PATIENCE, "nothing is found in the pool");
            for _ in 0..20 {
                version += 1;
                let page = numbers.below(PAGES);
                let (range, fd) = (page * 4096..(page + 1) * 4096, file.file.as_fd());
                let bytes = page_of(page, version);
                file.content
                    .change(Some(fd), Changed::Bytes(range), || {
                        file.file.write_all_at(&bytes, page * 4096)
                    })
                    .unwrap();
                written[page as usize].store(version, Ordering::SeqCst);
            }
            // Long enough for what is read to be kept.
            thread::sleep(Duration::from_millis(60));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(contents.shared.counters.changes_behind.get(), 0);
}

#[test]
fn what_is_damaged_is_read_from_the_file_again() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let file = Known::new(&contents, 1, content_of(1 << 20, 3));
    rest();
    file.check(0, 1 << 20);
    contents.settle();
    let shared = &contents.shared;
    // The only large file: its pages' keys are the first of their kind.
    let first = 1 << 63;
    let before = shared.store.statistics().objects;
    shared.store.invalidate(first + 17);
    assert!(shared.store.statistics().objects < before);
    shared.store.replace_neighbours(first + 32, 16, &[(12, &[2, 1, 9, 9, 9])], 0).unwrap();
    file.check(0, 1 << 20);
    assert!(shared.counters.damaged_clusters.get() >= 1);
    contents.settle();
    file.check(0, 1 << 20);
}

#[test]
fn errors_of_the_source_are_handed_on() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let content = contents.of(FileKey { device: 1, inode: 2, generation: 0 });
    content.note_writer();
    let directory = File::open("/var/tmp").unwrap();
    content.read(&Source::new(directory.into()), 0, 10, |read| {
        assert_eq!(read.unwrap_err().raw_os_error(), Some(21));
    });
    assert!(matches!(Contents::new(config(1 << 20)), Err(ContentsError::Memory { .. })));
}

/// A process, and where a page of it begins that has nothing behind it, in the middle of a cluster of four.
fn page_before_a_gap() -> (Child, u64) {
    loop {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        wait_until("the process sleeps", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.contains(") S ")
        });
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let ends = maps.lines().filter(|line| line.contains(" r")).filter_map(|line| {
            let end = line.split(['-', ' ']).nth(1)?;
            u64::from_str_radix(end, 16).ok()
        });
        let is_wanted = |end: &u64| {
            !end.is_multiple_of(4 * 4096) && !maps.contains(&format!("{end:x}-")) && *end < 1 << 47
        };
        if let Some(end) = ends.into_iter().find(is_wanted) {
            return (child, end - 4096);
        }
        // Elsewhere the next time.
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A whole cluster is read for a page, and fails where another page of it cannot be read: a process's memory stands
/// for a disk with a bad sector.
#[test]
fn a_page_can_be_read_whose_neighbours_cannot() {
    let (mut child, place) = page_before_a_gap();
    let memory = File::open(format!("/proc/{}/mem", child.id())).unwrap();
    let mut page = [0; 4096];
    memory.read_exact_at(&mut page, place).unwrap();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(place + (1 << 20)).unwrap();
    rest();
    let contents = Contents::new(config(16 << 20)).unwrap();
    let content = contents.of(FileKey { device: 1, inode: 2, generation: 0 });
    content.note_writer();
    let source = Source::with_direct(file.into(), memory.into());
    for _ in 0..2 {
        content.read(&source, place + 100, 1000, |read| assert!(read.unwrap() == &page[100..1100]));
        content.read(&source, place + 4000, 1000, |read| {
            assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
        });
        contents.settle();
    }
    assert_eq!(contents.view().statistics().pages_stored, 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_was_just_changed_behind_the_mount_is_not_kept_whoever_has_seen_it() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let mut file = Known::new(&contents, 1, content_of(1 << 20, 3));
    let stored = |file: &Known| {
        file.check(0, 1 << 20);
        contents.settle();
        contents.view().statistics().pages_stored
    };
    rest();
    assert!(stored(&file) > 0);
    // Looked at by the watch, or by who opens it. By the file's time it will have been changed
    // shortly before for as long as the test takes.
    file.write_behind(5000, b"others");
    file.file.set_modified(SystemTime::now() + PATIENCE).unwrap();
    file.content.changes_behind(file.file.as_fd());
    assert_eq!(stored(&file), 0);
    file.file.set_modified(SystemTime::now()).unwrap();
    rest();
    assert!(stored(&file) > 0);
    // What comes through the mount is known to the last byte.
    file.truncate(0);
    file.write(0, &content_of(1 << 20, 4));
    assert!(stored(&file) > 0);
}

/// Larger clusters that are cut into smaller ones while they are being forgotten.
#[test]
fn what_is_being_forgotten_is_not_stored_again() {
    const BYTES: usize = 16 << 20;
    let contents = Contents::new(Config { codec: None, ..config(64 << 20) }).unwrap();
    let fast = || (0..40).for_each(|_| contents.shared.source_speed.note(20_000, 4096, 1));
    let mut file = Known::new(&contents, 1, content_of(BYTES, 3));
    let started = Instant::now();
    let mut seed = 4;
    while started.elapsed() < Duration::from_secs(2) {
        rest();
        for _ in 0..4 {
            for offset in (0..BYTES as u64).step_by(131_072) {
                file.check(offset, 131_072);
                contents.settle();
            }
        }
        fast();
        let stop = AtomicBool::new(false);
        let new = content_of(BYTES, seed);
        thread::scope(|scope| {
            let (content, stop) = (&file.content, &stop);
            let source = Source::new(file.file.try_clone().unwrap().into());
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                while !stop.load(Ordering::Relaxed) {
                    let offset = numbers.below(BYTES as u64) / 4096 * 4096;
                    content
                        .read(&source, offset, 4096, |read| assert_eq!(read.unwrap().len(), 4096));
                }
            });
            thread::sleep(Duration::from_millis(30));
            file.file.write_all_at(&new, 0).unwrap();
            file.content.changes_behind(file.file.as_fd());
            stop.store(true, Ordering::Relaxed);
        });
        file.bytes = new;
        contents.settle();
        // By what is stored, where anything is.
        for offset in (0..BYTES as u64).step_by(131_072) {
            file.check(offset, 131_072);
        }
        seed += 1;
    }
}

#[test]
fn what_the_kernel_has_dropped_by_itself_is_not_dropped_again() {
    let memory = 16 << 20;
    let contents = Contents::new(config(memory)).unwrap();
    let told = Told::default();
    contents.bounds().begin(told.clone()).unwrap();
    let mut file = Known::new(&contents, 1, content_of(1 << 20, 1));
    let other = Known::new(&contents, 2, content_of(40 << 20, 2));
    let read_all = |file: &Known| {
        for offset in (0..file.bytes.len() as u64).step_by(131_072) {
            file.check(offset, 131_072);
        }
    };
    let dropped = || {
        let told = told.0.lock().unwrap();
        let of_file = told.iter().filter(|(node, _)| *node == 1);
        of_file.map(|(_, bytes)| bytes.end - bytes.start).sum::<u64>()
    };
    read_all(&file);
    file.write(5000, b"others");
    read_all(&file);
    // What nobody reads after it was changed the kernel still has.
    file.write(6000, b"others");
    assert_eq!(dropped(), 0);
    read_all(&other);
    let started = Instant::now();
    while dropped() < 1 << 20 {
        assert!(started.elapsed() < PATIENCE, "{} bytes are dropped", dropped());
        read_all(&other);
    }
    assert_eq!(dropped(), 1 << 20);
    // What was written by pages.
    file.content.note_kept(4096..12_288);
    while dropped() < (1 << 20) + 8192 {
        assert!(started.elapsed() < PATIENCE, "{} bytes are dropped", dropped());
        read_all(&other);
    }
    assert_eq!(dropped(), (1 << 20) + 8192);
}

#[test]
fn what_the_kernel_has_dropped_by_itself_and_asked_for_again_is_not_dropped_at_once() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let told = Told::default();
    contents.bounds().begin(told.clone()).unwrap();
    let file = Known::new(&contents, 1, content_of(1 << 20, 1));
    let other = Known::new(&contents, 2, content_of(40 << 20, 2));
    let dropped = |node| -> u64 {
        let told = told.0.lock().unwrap();
        told.iter().filter(|of| of.0 == node).map(|(_, bytes)| bytes.end - bytes.start).sum()
    };
    let read = |file: &Known, bytes: Range<u64>| {
        for offset in bytes.step_by(131_072) {
            file.check(offset, 131_072);
        }
    };
    read(&file, 0..1 << 20);
    read(&other, 0..2 << 20);
    assert_eq!((dropped(1), dropped(2)), (0, 0));
    // It has short of memory dropped all of the file.
    read(&file, 0..1 << 20);
    let started = Instant::now();
    let mut offset = 2 << 20;
    while dropped(2) < 1 << 20 {
        assert!(started.elapsed() < PATIENCE, "{} bytes are dropped", dropped(2));
        read(&other, offset..offset + 131_072);
        offset = (offset + 131_072) % (40 << 20);
        contents.settle();
        // What is too much is dropped before there is more: all at once it would be both files.
        let shared = &contents.shared;
        wait_until("what is too much is dropped", || {
            shared.kernel.bytes() <= shared.kernel.limit_bytes() + (1 << 20)
        });
    }
    assert_eq!(dropped(1), 0);
}

#[test]
fn how_fast_source_is_is_said_by_reads_of_it() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let mut file = Known::new(&contents, 1, content_of(4 << 20, 3));
    rest();
    let speed = || contents.shared.source_speed.ns_per_byte();
    let first = speed();
    // It comes from the page cache now.
    file.write(100, b"others");
    for offset in (0..4 << 20).step_by(1 << 20) {
        file.check(offset, 1 << 20);
    }
    // Nor does the end of the file say anything.
    file.check(4 << 20, 1 << 20);
    assert_eq!(speed(), first);
}

#[test]
fn one_thread_knows_how_fast_it_compresses() {
    let contents = Contents::new(Config { synchronous: true, ..config(16 << 20) }).unwrap();
    let file = Known::new(&contents, 1, content_of(1 << 20, 3));
    rest();
    file.check(0, 1 << 20);
    contents.settle();
    assert!(contents.shared.compression.ns_per_byte() > 0.0);
}

#[test]
fn files_without_names_and_too_many_files_are_forgotten() {
    let contents = Contents::new(config(16 << 20)).unwrap();
    let file = Known::new(&contents, 1, content_of(1 << 20, 3));
    rest();
    file.check(0, 1 << 20);
    contents.settle();
    assert!(contents.shared.store.statistics().objects > 0);
    file.content.note_nameless();
    contents.of(FileKey { device: 1, inode: 2, generation: 0 });
    // It is in use.
    assert!(contents.shared.store.statistics().objects > 0);
    file.check(0, 1 << 20);
    contents.settle();
    drop(file);
    contents.of(FileKey { device: 1, inode: 2, generation: 0 });
    assert_eq!(contents.shared.store.statistics().objects, 0);

    let used = Known::new(&contents, 3, content_of(100_000, 4));
    rest();
    used.check(0, 100_000);
    contents.settle();
    for inode in 10..20_000 {
        contents.of(FileKey { device: 1, inode, generation: 0 });
    }
    assert!(locked(&contents.shared.known).len() <= files_max(&contents.shared.config));
    let before = contents.shared.counters.pool_hit_pages.get();
    used.check(0, 100_000);
    assert!(contents.shared.counters.pool_hit_pages.get() > before);
}

/// Stores through a mapping, and a write(2) that goes on for long, leave no trace in the times.
#[test]
fn what_somebody_else_may_change_unseen_is_not_kept() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, content_of(40_000, 1)).unwrap();
    let reader = File::open(&path).unwrap();
    if ramfold_sys::file_server::is_open_for_writing(&reader).is_none() {
        return eprintln!("SKIPPED: the file system of /var/tmp has no leases");
    }
    thread::sleep(Duration::from_millis(25));
    let contents = Contents::new(config(16 << 20)).unwrap();
    let content = contents.of(FileKey { device: 1, inode: 1, generation: 0 });
    let source = Source::new(reader.try_clone().unwrap().into());
    let stored_after_read = || {
        let read = || content.read(&source, 0, 40_960, |bytes| bytes.unwrap().to_vec());
        let begun = Instant::now();
        while contents.view().statistics().pages_stored == 0
            && begun.elapsed() < Duration::from_millis(500)
        {
            assert_eq!(read(), fs::read(&path).unwrap());
            thread::sleep(Duration::from_millis(20));
        }
        contents.view().statistics().pages_stored > 0
    };
    let number = || content.changes_behind(reader.as_fd());
    assert!(stored_after_read());
    assert_eq!(number(), number());
    // Somebody opens it, which does not show, and writes.
    let writer = File::options().write(true).open(&path).unwrap();
    assert_eq!(number(), number());
    writer.write_all_at(b"other", 100).unwrap();
    let first = number();
    assert_ne!(first, number());
    assert!(!stored_after_read());
    // A last time when it is closed: it may have been changed since the last look.
    drop(writer);
    let last = number();
    assert_eq!(last, number());
    assert!(stored_after_read());
}

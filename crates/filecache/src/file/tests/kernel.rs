//! The upper level.

use super::*;

#[test]
fn both_levels_stay_within_the_memory() {
    let memory = 16 << 20;
    let cache = FileCache::new(config(memory), None).unwrap();
    let told = DropLog::default();
    cache.bounds().begin(told.clone()).unwrap();
    let file = TestFile::new(&cache, 7, content_of(80 << 20, 1));
    rest();
    let mut numbers = Numbers(5);
    for round in 0..3 {
        for _ in 0..1500 {
            file.check(numbers.below(file.bytes.len() as u64) / 4096 * 4096, 4096);
        }
        for part in 0..160 {
            file.check((round * 160 + part) * 131_072 % file.bytes.len() as u64, 131_072);
            cache.settle();
        }
        cache.settle();
        let shared = &cache.shared;
        // Dropping takes its time.
        let lower = || shared.cache.stored_bytes();
        wait_until("both levels are within the memory", || {
            shared.cost_bytes() <= memory && lower() <= shared.balance.compressed_bytes_max()
        });
    }
    assert!(cache.statistics().pages_left > 0);
    let dropped: u64 =
        told.0.lock().unwrap().iter().map(|(_, bytes)| bytes.end - bytes.start).sum();
    assert!(dropped > memory, "{dropped}");
    assert!(told.0.lock().unwrap().iter().all(|(node, _)| *node == 7));
    let hits = cache.statistics().pool_hit_pages;
    assert!(hits > 2000, "{hits}");
}

#[test]
fn what_the_kernel_has_dropped_by_itself_is_not_dropped_again() {
    let memory = 16 << 20;
    let cache = FileCache::new(config(memory), None).unwrap();
    let told = DropLog::default();
    cache.bounds().begin(told.clone()).unwrap();
    let mut file = TestFile::new(&cache, 1, content_of(1 << 20, 1));
    let other = TestFile::new(&cache, 2, content_of(40 << 20, 2));
    let read_all = |file: &TestFile| {
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
    file.cached.note_cached_by_kernel(4096..12_288);
    while dropped() < (1 << 20) + 8192 {
        assert!(started.elapsed() < PATIENCE, "{} bytes are dropped", dropped());
        read_all(&other);
    }
    assert_eq!(dropped(), (1 << 20) + 8192);
}

#[test]
fn what_the_kernel_has_dropped_by_itself_and_asked_for_again_is_not_dropped_at_once() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let told = DropLog::default();
    cache.bounds().begin(told.clone()).unwrap();
    let file = TestFile::new(&cache, 1, content_of(1 << 20, 1));
    let other = TestFile::new(&cache, 2, content_of(40 << 20, 2));
    let dropped = |node| -> u64 {
        let told = told.0.lock().unwrap();
        told.iter().filter(|of| of.0 == node).map(|(_, bytes)| bytes.end - bytes.start).sum()
    };
    let read = |file: &TestFile, bytes: Range<u64>| {
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
        cache.settle();
        // What is too much is dropped before there is more: all at once it would be both files.
        let shared = &cache.shared;
        wait_until("what is too much is dropped", || {
            shared.kernel.bytes() <= shared.kernel.limit_bytes() + (1 << 20)
        });
    }
    assert_eq!(dropped(1), 0);
}

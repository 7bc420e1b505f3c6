//! Changes, through the mount and behind it.

use super::*;

/// Not before it is looked at again: but zeros, which the file never had, nobody gets.
#[test]
fn what_is_behind_an_end_that_was_just_made_is_not_kept() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let mut file = TestFile::new(&cache, 1, content_of(400_000, 1));
    rest();
    file.check(0, 4096);
    file.file.set_len(0).unwrap();
    for page in [0, 1] {
        file.cached.read(&file.source, page * 4096, 4096, |read| {
            let read = read.unwrap();
            assert!(read.is_empty() || read == &file.bytes[page as usize * 4096..][..4096]);
        });
    }
    file.cached.read(&file.source, 16 * 4096, 4096, |read| assert!(read.unwrap().is_empty()));
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
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let bytes = (0..PAGES).flat_map(|page| page_of(page, 1)).collect();
    let file = TestFile::new(&cache, 1, bytes);
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
                    file.cached.read(&file.source, first * 4096, count as usize * 4096, |read| {
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
        let mut version = 1;
        let hits = || cache.statistics().pool_hit_pages;
        for _ in 0..50 {
            for _ in 0..20 {
                version += 1;
                let page = numbers.below(PAGES);
                let (range, fd) = (page * 4096..(page + 1) * 4096, file.file.as_fd());
                let bytes = page_of(page, version);
                file.cached
                    .change(Some(fd), Changed::Bytes(range), || {
                        file.file.write_all_at(&bytes, page * 4096)
                    })
                    .unwrap();
                written[page as usize].store(version, Ordering::SeqCst);
            }
            // What is read is kept, and read once more.
            let before = hits();
            wait_until("much is found in the pool", || hits() >= before + 20);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(cache.statistics().changes_behind, 0);
}

#[test]
fn what_was_just_changed_behind_the_mount_is_not_kept_whoever_has_seen_it() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let mut file = TestFile::new(&cache, 1, content_of(1 << 20, 3));
    let stored = |file: &TestFile| {
        file.check(0, 1 << 20);
        cache.settle();
        cache.view().statistics().pages_stored
    };
    rest();
    assert!(stored(&file) > 0);
    // Looked at by the watch, or by who opens it. By the file's time it will have been changed
    // shortly before for as long as the test takes.
    file.write_behind(5000, b"others");
    file.file.set_modified(SystemTime::now() + PATIENCE).unwrap();
    file.cached.changes_behind(file.file.as_fd());
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
    let cache = FileCache::new(Config { codec: None, ..config(64 << 20) }, None).unwrap();
    let fast = || (0..40).for_each(|_| cache.shared.cache.speed().note(20_000, 4096, 1));
    let mut file = TestFile::new(&cache, 1, content_of(BYTES, 3));
    let started = Instant::now();
    let mut seed = 4;
    while started.elapsed() < Duration::from_secs(2) {
        rest();
        for _ in 0..4 {
            for offset in (0..BYTES as u64).step_by(131_072) {
                file.check(offset, 131_072);
                cache.settle();
            }
        }
        fast();
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let new = content_of(BYTES, seed);
        thread::scope(|scope| {
            let (cached, stop, reads) = (&file.cached, &stop, &reads);
            let source = SourceFile::new(file.file.try_clone().unwrap().into());
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                while !stop.load(Ordering::Relaxed) {
                    let offset = numbers.below(BYTES as u64) / 4096 * 4096;
                    cached
                        .read(&source, offset, 4096, |read| assert_eq!(read.unwrap().len(), 4096));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            wait_until("it is read meanwhile", || reads.load(Ordering::Relaxed) > 500);
            file.file.write_all_at(&new, 0).unwrap();
            file.cached.changes_behind(file.file.as_fd());
            stop.store(true, Ordering::Relaxed);
        });
        file.bytes = new;
        cache.settle();
        // By what is stored, where anything is.
        for offset in (0..BYTES as u64).step_by(131_072) {
            file.check(offset, 131_072);
        }
        seed += 1;
    }
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
    rest();
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let cached = cache.file(FileKey { device: 1, inode: 1, generation: 0 });
    let source = SourceFile::new(reader.try_clone().unwrap().into());
    let is_stored_after_read = || {
        let read = cached.read(&source, 0, 40_960, |bytes| bytes.unwrap().to_vec());
        assert_eq!(read, fs::read(&path).unwrap());
        cache.settle();
        cache.view().statistics().pages_stored > 0
    };
    let number = || cached.changes_behind(reader.as_fd());
    wait_until("it is stored", is_stored_after_read);
    assert_eq!(number(), number());
    // Somebody opens it, which does not show, and writes.
    let writer = File::options().write(true).open(&path).unwrap();
    assert_eq!(number(), number());
    writer.write_all_at(b"other", 100).unwrap();
    let first = number();
    assert_ne!(first, number());
    // However long ago it was changed.
    for _ in 0..20 {
        rest();
        assert!(!is_stored_after_read());
    }
    // A last time when it is closed: it may have been changed since the last look.
    drop(writer);
    let last = number();
    assert_eq!(last, number());
    wait_until("it is stored again", is_stored_after_read);
}

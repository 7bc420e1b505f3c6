//! Reading.

use super::*;

#[test]
fn what_is_read_is_what_the_file_holds() {
    for (cluster, synchronous) in
        [(None, false), (Some(ClusterSize::One), true), (Some(ClusterSize::Sixteen), false)]
    {
        let cache =
            FileCache::new(Config { cluster, synchronous, ..config(32 << 20) }, None).unwrap();
        let mut numbers = Numbers(cluster.map_or(0, |size| size as u64));
        let lengths = [0, 1, 4096, 10_000, 70_000, 300_000, 3_000_000];
        let mut files: Vec<_> = lengths
            .iter()
            .zip(1..)
            .map(|(&len, inode)| TestFile::new(&cache, inode, content_of(len, inode)))
            .collect();
        for _round in 0..8 {
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
            cache.settle();
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
        let told = cache.statistics();
        assert!(told.pool_hit_pages > 1000, "{}", told.pool_hit_pages);
        assert_eq!(told.damaged_clusters, 0);
        assert!(told.decompressions > 0 && told.compress_ns > 0);
        assert!(told.pages_compressed_to_bytes > told.pages_compressed);
        assert!(told.pages_compressed_to_bytes < told.pages_compressed * 4096 / 16 * 15);
    }
}

#[test]
fn what_was_read_is_there_the_second_time() {
    let cache = FileCache::new(config(64 << 20), None).unwrap();
    let file = TestFile::new(&cache, 1, content_of(20 << 20, 3));
    rest();
    let read_bytes = || cache.statistics().source_read_bytes;
    let read_all = || {
        for offset in (0..20 << 20).step_by(131_072) {
            file.check(offset, 131_072);
            // Not faster than they are compressed.
            cache.settle();
        }
    };
    read_all();
    let once = read_bytes();
    assert_eq!(once, 20 << 20);
    read_all();
    // What does not shrink comes from the file each time.
    let twice = read_bytes() - once;
    assert!(twice < once / 5, "{twice} of {once} bytes were read again");
    let statistics = cache.statistics();
    assert!(statistics.compressed_bytes < 10 << 20, "{statistics:?}");
}

/// Whether it is stored or not.
#[test]
fn who_goes_through_a_file_by_pages_waits_for_each_cluster_once() {
    for (share, what) in [(0.0, "source reads"), (0.8, "decompressions")] {
        let (cluster, compressed_share) = (Some(ClusterSize::Four), Some(share));
        let cache =
            FileCache::new(Config { cluster, compressed_share, ..config(32 << 20) }, None).unwrap();
        let pages = 1024;
        let file = TestFile::new(&cache, 1, content_of(pages * 4096, 1));
        rest();
        (0..pages as u64 / 16).for_each(|part| file.check(part << 16, 1 << 16));
        cache.settle();
        let count = || {
            let told = cache.statistics();
            told.decompressions + told.source_reads
        };
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

#[test]
fn errors_of_the_source_are_handed_on() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let cached = cache.file(FileKey { device: 1, inode: 2, generation: 0 });
    cached.note_writer();
    let directory = File::open("/var/tmp").unwrap();
    cached.read(&SourceFile::new(directory.into()), 0, 10, |read| {
        assert_eq!(read.unwrap_err().raw_os_error(), Some(21));
    });
    assert!(matches!(FileCache::new(config(1 << 20), None), Err(FileCacheError::Memory { .. })));
}

/// A process, and where a page of it begins that has nothing behind it, in the middle of a cluster
/// of four.
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

/// A whole cluster is read for a page, and fails where another page of it cannot be read: a
/// process's memory stands for a disk with a bad sector.
#[test]
fn a_page_can_be_read_whose_neighbours_cannot() {
    let (mut child, place) = page_before_a_gap();
    let memory = File::open(format!("/proc/{}/mem", child.id())).unwrap();
    let mut page = [0; 4096];
    memory.read_exact_at(&mut page, place).unwrap();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(place + (1 << 20)).unwrap();
    rest();
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let cached = cache.file(FileKey { device: 1, inode: 2, generation: 0 });
    cached.note_writer();
    let source = SourceFile::with_direct(file.into(), memory.into());
    for _ in 0..2 {
        cached.read(&source, place + 100, 1000, |read| assert!(read.unwrap() == &page[100..1100]));
        cached.read(&source, place + 4000, 1000, |read| {
            assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
        });
        cache.settle();
    }
    assert_eq!(cache.view().statistics().pages_stored, 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn how_fast_source_is_is_said_by_reads_of_it() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let mut file = TestFile::new(&cache, 1, content_of(4 << 20, 3));
    rest();
    let speed = || cache.shared.cache.speed().ns_per_byte();
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

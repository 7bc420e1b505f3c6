//! Many threads at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const PAGES: u64 = 64;

/// A page that says which writer wrote it.
fn version(writer: u64, number: u64, kind: u64) -> Page {
    let mut page = match kind % 4 {
        0 => noise(number),
        1 => [number as u8; PAGE],
        _ => text(number),
    };
    if kind % 4 != 1 {
        page[..8].copy_from_slice(&number.to_le_bytes());
        page[PAGE - 8..].copy_from_slice(&writer.to_le_bytes());
    }
    page
}

#[test]
fn threads_at_pages_of_their_own_read_what_they_wrote() {
    let disk = Disk::new(DiskConfig { threads: 4, ..config(8 * MIB, 32 * MIB) }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                let mut mine = vec![[0; PAGE]; PAGES as usize];
                for _ in 0..1500 {
                    let nth = random.below(PAGES);
                    let offset = (nth * 4 + writer) * 4096;
                    if random.below(2) == 0 {
                        // All write pages of the same contents.
                        mine[nth as usize] = any_page(&mut random, 20);
                        disk.put(offset, &mine[nth as usize]).unwrap();
                    } else {
                        assert!(disk.get(offset, PAGE) == mine[nth as usize]);
                    }
                }
            });
        }
    });
    disk.audit();
    disk.audit_empty();
}

/// Each page that is read must be whole: one that some writer wrote.
#[test]
fn pages_that_threads_write_at_the_same_time_are_whole() {
    for (recompress_after, spill_bytes) in
        [(None, None), (Some(1), None), (Some(1), Some(32 * MIB))]
    {
        let folder = tempfile::tempdir().unwrap();
        let spill =
            spill_bytes.map(|bytes| SpillConfig { folder: folder.path().to_owned(), bytes });
        let memory = if spill.is_some() { 6 * MIB } else { 32 * MIB };
        let recompress_after = recompress_after.map(Duration::from_millis);
        let disk = Disk::new(DiskConfig {
            threads: 4,
            recompress_after,
            spill,
            ..config(32 * MIB, memory)
        })
        .unwrap();
        let (reads, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3u64)
                .map(|writer| {
                    let disk = &disk;
                    scope.spawn(move || {
                        let mut random = Random::new(writer + 10);
                        for _ in 0..1500 {
                            let (block, number) = (random.below(PAGES), random.below(40));
                            if number == 0 {
                                disk.trim(block * 4096, 4096, Durability::AtFlush).unwrap();
                            } else {
                                // Two of the writers write equal pages.
                                let page = version(writer / 2, number, number);
                                disk.put(block * 4096, &page).unwrap();
                            }
                        }
                    })
                })
                .collect();
            for reader in 0..2u64 {
                let (disk, reads, ends) = (&disk, &reads, &ends);
                scope.spawn(move || {
                    let mut random = Random::new(reader + 20);
                    let all: Vec<Page> = (0..2)
                        .flat_map(|writer| (1..40).map(move |nth| version(writer, nth, nth)))
                        .collect();
                    while !ends.load(Ordering::Relaxed) {
                        let page = disk.get(random.below(PAGES) * 4096, PAGE);
                        let is_known = page == [0; PAGE] || all.iter().any(|one| page == one);
                        assert!(is_known, "a page that nobody wrote");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ends.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
        assert!(reads.load(Ordering::Relaxed) > 0);
        disk.audit();
        disk.audit_empty();
    }
}

#[test]
fn parts_of_a_page_that_threads_write_at_the_same_time_all_come() {
    let disk = Disk::new(DiskConfig { threads: 4, ..config(64 * KIB, 16 * MIB) }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4usize {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..400u64 {
                    let offset = (round % 4) * 4096 + writer as u64 * 1024;
                    disk.put(offset, &[(round / 4) as u8 ^ writer as u8; 1024]).unwrap();
                }
            });
        }
    });
    for page in 0..4u64 {
        for writer in 0..4u64 {
            let part = disk.get(page * 4096 + writer * 1024, 1024);
            assert_eq!(part, [99 ^ writer as u8; 1024]);
        }
    }
    disk.audit();
}

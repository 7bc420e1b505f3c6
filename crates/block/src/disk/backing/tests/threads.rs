//! Several requests at the same time.

use super::*;

/// Threads that write, read, trim and flush parts of the same pages; each byte has one writer.
fn run(paths: Paths, write_through: bool) {
    let size = 6 * MIB;
    let fake = Fake::new(size);
    let disk = fake.cache(|config| {
        (config.paths, config.write_through, config.threads) = (paths, write_through, 3);
    });
    let part = 1024;
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let (disk, fake) = (&disk, &fake);
            move || {
                let mut random = Random::new(thread + 1);
                let mut model = vec![0u8; (size / 4) as usize];
                for step in 0..3000 {
                    let nth = random.below(size / PAGE as u64);
                    let offset = nth * PAGE as u64 + thread * part as u64;
                    let own = &mut model[nth as usize * part..][..part];
                    match random.below(10) {
                        0..=4 => {
                            random.fill(own);
                            disk.put(offset, own).unwrap();
                        }
                        5 => {
                            own.fill(0);
                            disk.trim(offset, part as u64, Durability::AtFlush).unwrap();
                        }
                        6 if step % 16 == 0 => {
                            disk.flush().unwrap();
                            let state = fake.lock();
                            for (nth, own) in model.chunks(part).enumerate() {
                                let at = nth * PAGE + thread as usize * part;
                                assert!(state.durable[at..at + part] == *own, "{thread} {step}");
                            }
                        }
                        7 => disk.prefetch(offset, 20 * PAGE as u64, &|| true).unwrap(),
                        _ => assert!(disk.get(offset, part) == own, "{thread} {step} {nth}"),
                    }
                }
                model
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    disk.write_out(|_| {}).unwrap();
    let state = fake.lock();
    for (nth, page) in state.durable.chunks(PAGE).enumerate() {
        for (part_of_page, model) in page.chunks(part).zip(&models) {
            assert!(*part_of_page == model[nth * part..][..part]);
        }
    }
    drop(state);
    disk.audit_at_rest();
}

#[test]
fn threads_see_what_they_wrote() {
    run(Paths::Separate, false);
    run(Paths::Shared, false);
    run(Paths::Separate, true);
}

/// Whole pages, each of one number all over: a page that is read is never mixed, and never older
/// than one that the same thread has seen.
#[test]
fn pages_are_whole_and_do_not_go_back() {
    for paths in [Paths::Separate, Paths::Shared] {
        let fake = Fake::new(8 * MIB);
        let disk = fake.cache(|config| (config.paths, config.threads) = (paths, 3));
        let pages = 1500u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=12u64 {
                    for block in 0..pages {
                        let mut page = noise(block);
                        page[..8].copy_from_slice(&number.to_le_bytes());
                        page[PAGE - 8..].copy_from_slice(&number.to_le_bytes());
                        disk.put(block * PAGE as u64, &page).unwrap();
                    }
                }
            });
            for seed in 0..2 {
                let disk = &disk;
                scope.spawn(move || {
                    let mut random = Random::new(seed + 5);
                    let mut seen = vec![0u64; pages as usize];
                    for _ in 0..8000 {
                        let block = random.below(pages);
                        if random.below(16) == 0 {
                            disk.prefetch(block * PAGE as u64, 9 * PAGE as u64, &|| true).unwrap();
                        }
                        let page = disk.get(block * PAGE as u64, PAGE);
                        let word =
                            |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
                        assert_eq!(word(0), word(PAGE - 8), "page {block} is mixed");
                        let seen = &mut seen[block as usize];
                        assert!(word(0) >= *seen, "page {block} went back");
                        *seen = word(0);
                    }
                });
            }
        });
        for block in 0..pages {
            assert_eq!(disk.get(block * PAGE as u64, 8), 12u64.to_le_bytes());
        }
        disk.audit_at_rest();
    }
}

//! Backings that fail, are full, and stall.

use super::*;
use std::sync::atomic::AtomicBool;

/// Writes different pages until one is refused; returns how many were not.
fn fill(disk: &BackedDisk) -> (u64, DeviceError) {
    for block in 0..disk.size_bytes() / PAGE as u64 {
        if let Err(error) = disk.put(block * PAGE as u64, &noise(block)) {
            return (block, error);
        }
        disk.audit();
    }
    panic!("it holds everything");
}

#[test]
fn nothing_is_lost_while_the_backing_is_full() {
    for (errno, expected) in [(Errno::NOSPC, true), (Errno::IO, false)] {
        let fake = Fake::new(32 * MIB);
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let disk = fake.cache(|config| {
            config.tell = Some(Arc::new(move |text| telling.lock().unwrap().push(text.to_owned())));
        });
        fake.change(|state| state.fails = Some(errno));
        let (count, error) = fill(&disk);
        assert_eq!(error == DeviceError::NoRoom, expected, "{error}");
        assert!(count > 100);
        for _ in 0..2 {
            assert_eq!(disk.flush().unwrap_err() == DeviceError::NoRoom, expected);
            assert!(disk.put(0, &[7; PAGE]).is_ok(), "what takes less room can be written");
            assert!(disk.write(0, &[7; PAGE], Durability::AtOnce).is_err());
        }
        let is_refused = |at: u64| disk.put(at * PAGE as u64, &noise(at)).is_err();
        assert!((0..count + 50).any(is_refused), "a full cache has room");
        disk.put(0, &[7; PAGE]).unwrap();
        for block in 1..count {
            assert_eq!(disk.get(block * PAGE as u64, PAGE), noise(block));
        }
        assert!(disk.trim(0, MIB, Durability::AtFlush).is_err());
        assert_eq!(disk.get(0, PAGE), [7; PAGE], "what could not be trimmed is still there");
        assert_eq!(told.lock().unwrap().len(), 1, "{told:?}");
        fake.change(|state| state.fails = None);
        disk.flush().unwrap();
        assert_eq!(disk.backing_statistics().dirty_bytes, 0);
        for block in 1..count {
            let at = block as usize * PAGE;
            assert!(fake.lock().durable[at..at + PAGE] == noise(block));
        }
        assert_eq!(told.lock().unwrap().len(), 2, "{told:?}");
        disk.audit_at_rest();
    }
}

#[test]
fn a_bad_page_does_not_keep_others_from_being_written_at_the_end() {
    let fake = Fake::new(8 * MIB);
    let disk = fake.cache(|_| {});
    for block in (0..200).step_by(2) {
        disk.put(block * PAGE as u64, &page(block)).unwrap();
    }
    fake.change(|state| state.bad = 50..53);
    assert!(disk.flush().is_err());
    let lost = disk.write_out(|_| {}).unwrap_err();
    assert_eq!(lost.bytes, 2 * PAGE as u64);
    assert!(lost.to_string().contains("the backing"), "{lost}");
    for block in (0..200).step_by(2).filter(|block| !(50..53).contains(block)) {
        let at = block as usize * PAGE;
        assert!(fake.lock().durable[at..at + PAGE] == page(block));
    }
    fake.change(|state| state.bad = 0..0);
    disk.write_out(|_| {}).unwrap();
    assert!(fake.lock().durable[52 * PAGE..53 * PAGE] == page(52));
}

#[test]
fn what_a_failed_sync_forgot_is_written_again() {
    let fake = Fake::new(8 * MIB);
    let disk = fake.cache(|_| {});
    disk.put(0, &page(1)).unwrap();
    fake.change(|state| state.sync_fails = true);
    assert!(disk.flush().is_err());
    assert_eq!(fake.lock().bytes[..PAGE], [0; PAGE]);
    assert_eq!(disk.backing_statistics().dirty_pages, 1);
    disk.flush().unwrap();
    assert_eq!(fake.lock().durable[..PAGE], page(1));
    disk.audit_at_rest();
}

/// The system tells one caller of a write that it could not make.
#[test]
fn a_failed_sync_is_said_by_the_next_flush_whoever_met_it() {
    let fake = Fake::new(8 * MIB);
    let disk = fake.cache(|_| {});
    disk.put(0, &page(1)).unwrap();
    disk.flush().unwrap();
    disk.put(4 * MIB, &page(2)).unwrap();
    fake.change(|state| state.sync_fails = true);
    assert!(disk.write(MIB, &page(3), Durability::AtOnce).is_err());
    assert!(disk.flush().is_err());
    disk.flush().unwrap();
    for (at, number) in [(0, 1), (4 * MIB, 2), (MIB, 3)] {
        assert!(fake.lock().durable[at as usize..at as usize + PAGE] == page(number), "{number}");
    }
    disk.audit_at_rest();
}

#[test]
fn a_prefetch_gives_up_where_no_page_can_leave_the_cache() {
    let fake = Fake::new(64 * MIB);
    let first = 32 * MIB / PAGE as u64;
    fake.change(|state| {
        // Some may find room where others do not.
        for block in first..first + 4096 {
            let bytes = if block % 2 == 0 { [block as u8 | 1; PAGE] } else { noise(block) };
            state.bytes[block as usize * PAGE..][..PAGE].copy_from_slice(&bytes);
        }
        state.fails = Some(Errno::NOSPC);
    });
    let disk = fake.cache(|config| config.memory_bytes = 16 * MIB);
    fill(&disk);
    let before = disk.backing_statistics();
    disk.prefetch(32 * MIB, 16 * MIB, &|| true).unwrap();
    let s = disk.backing_statistics();
    // Nothing else could leave.
    let evicted = s.evicted_pages - before.evicted_pages;
    assert_eq!(s.prefetched_pages, s.pages - before.pages + evicted, "{s:#?}");
    // All 4096 where it goes on to the end. Pages that are read once more, one by one, since
    // something has left meanwhile, do not count again.
    let tried = fake.lock().reads[first as usize..].iter().filter(|&&reads| reads > 0).count();
    assert!(tried <= 24 * 32, "{tried} pages: {s:#?}");
    assert_eq!(s.dirty_pages, before.dirty_pages);
    fake.change(|state| state.fails = None);
    disk.audit_at_rest();
}

#[test]
fn what_is_in_the_cache_is_read_while_the_backing_stalls() {
    let fake = Fake::new(32 * MIB);
    let disk = fake.cache(|config| config.threads = 4);
    disk.put(0, &page(7)).unwrap();
    fake.change(|state| state.stalls = true);
    let written = AtomicU64::new(0);
    let (has_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (disk, written) = (&disk, &written);
            scope.spawn(move || {
                for block in 0..800 {
                    let block = 1 + block * 3 + thread;
                    disk.put(block * PAGE as u64, &noise(block)).unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let flushed = scope.spawn(|| {
            wait_until("a write stalls", || fake.lock().stalled > 0);
            has_begun.store(true, Ordering::SeqCst);
            disk.flush().unwrap();
            is_over.store(true, Ordering::SeqCst);
        });
        // All writers wait for room.
        wait_until("writers wait", || disk.backing_statistics().room_waits >= 3);
        wait_until("a flush begins", || has_begun.load(Ordering::SeqCst));
        let before = written.load(Ordering::SeqCst);
        for _ in 0..100 {
            assert_eq!(disk.get(0, PAGE), page(7));
        }
        disk.audit();
        assert!(before < 2400 && !is_over.load(Ordering::SeqCst));
        fake.change(|state| state.stalls = false);
        flushed.join().unwrap();
    });
    disk.flush().unwrap();
    for block in 1..2401u64 {
        let at = block as usize * PAGE;
        assert!(fake.lock().durable[at..at + PAGE] == noise(block));
    }
    disk.audit_at_rest();
}

#[test]
fn what_is_written_again_while_a_flush_writes_it_is_in_the_next_flush() {
    let fake = Fake::new(MIB);
    let disk = fake.cache(|_| {});
    disk.put(0, &page(1)).unwrap();
    fake.change(|state| state.stalls = true);
    std::thread::scope(|scope| {
        let flushed = scope.spawn(|| disk.flush().unwrap());
        wait_until("its write stalls", || fake.lock().stalled > 0);
        disk.put(0, &page(2)).unwrap();
        fake.change(|state| state.stalls = false);
        flushed.join().unwrap();
    });
    disk.flush().unwrap();
    assert!(fake.lock().durable[..PAGE] == page(2));
    disk.audit_at_rest();
}

#[test]
fn zeros_that_are_not_fast_are_refused_if_they_should_be() {
    let fake = Fake::new(MIB);
    let disk = fake.cache(|_| {});
    disk.put(0, &page(1)).unwrap();
    let zero = |offset, bytes, fast| {
        disk.zero(offset, bytes, Zeroing { may_trim: true, fast }, Durability::AtFlush)
    };
    fake.change(|state| state.cannot_zero = true);
    assert_eq!(zero(0, 8192, true), Err(DeviceError::NotFast));
    assert_eq!(zero(10, 100, true), Err(DeviceError::NotFast));
    assert_eq!(disk.get(0, PAGE), page(1));
    zero(0, 8192, false).unwrap();
    assert_eq!(disk.get(0, 8192), [0; 8192]);
}

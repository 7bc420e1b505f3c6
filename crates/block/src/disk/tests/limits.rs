//! Disks that cannot be, and disks that are full.

use super::*;
use crate::disk::DiskError;

#[test]
fn what_cannot_be_a_disk_is_refused() {
    for bytes in [0, 1, 4095, 4097, MIB + 512] {
        let error = Disk::new(config(bytes, 16 * MIB)).err().unwrap();
        assert!(matches!(error, DiskError::Size { .. }), "{error}");
    }
    let huge = 1 << 43;
    let error = Disk::new(config(huge, 16 * MIB)).err().unwrap();
    assert!(matches!(error, DiskError::TooLarge { .. }), "{error}");
    let without = DiskConfig { deduplicate: false, ..config(huge, 16 * MIB) };
    let disk = Disk::new(without).unwrap();
    disk.put(huge - 4096, &text(1)).unwrap();
    assert_eq!(disk.get(huge - 4096, PAGE), text(1));
    disk.audit_empty();
}

#[test]
fn the_least_memory_that_an_error_names_is_enough() {
    let error = Disk::new(config(MIB, 64 * KIB)).err().unwrap();
    let DiskError::Memory { least_bytes, .. } = error else { panic!("{error}") };
    let text_of_error = error.to_string();
    assert!(text_of_error.contains(&format!("{} KiB at least", least_bytes.div_ceil(1024))));
    assert!(Disk::new(config(MIB, least_bytes - 1)).is_err());
    let disk = Disk::new(config(MIB, least_bytes)).unwrap();
    disk.audit();
    for block in 0..64 {
        disk.put(block * 4096, &text(block)).unwrap();
    }
    disk.audit();
}

#[test]
fn a_spill_file_that_cannot_be_is_refused() {
    let spill = |folder: &str, bytes| Some(SpillConfig { folder: folder.into(), bytes });
    let small = DiskConfig { spill: spill("/var/tmp", 1000), ..config(MIB, 16 * MIB) };
    let error = Disk::new(small).err().unwrap().to_string();
    assert!(error.contains("the least"), "{error}");
    let nowhere = DiskConfig { spill: spill("/no/such/folder", MIB * 64), ..config(MIB, 16 * MIB) };
    let error = Disk::new(nowhere).err().unwrap().to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
    let in_ram = DiskConfig { spill: spill("/dev/shm", MIB * 64), ..config(MIB, 16 * MIB) };
    let error = Disk::new(in_ram).err().unwrap().to_string();
    assert!(error.contains("it is in RAM (tmpfs)"), "{error}");
}

/// Writes pages until there is no room. Returns how many fit.
fn fill(disk: &Disk, page_of: impl Fn(u64) -> Page) -> u64 {
    let last = disk.size_bytes() / 4096;
    (0..last)
        .find(|&block| {
            let written = disk.put(block * 4096, &page_of(block));
            assert!(matches!(written, Ok(()) | Err(DeviceError::NoRoom)), "{written:?}");
            disk.audit_limit();
            written.is_err()
        })
        .unwrap_or(last)
}

impl Disk {
    fn audit_limit(&self) {
        let inner = &self.inner;
        let cost_bytes = inner.room.own_bytes() + inner.store.cost_bytes();
        assert!(cost_bytes <= inner.room.memory_bytes());
    }
}

#[test]
fn a_full_disk_refuses_writes_and_keeps_what_it_has() {
    for deduplicate in [false, true] {
        let disk = Disk::new(DiskConfig { deduplicate, ..config(64 * MIB, 6 * MIB) }).unwrap();
        let mut before = None;
        for round in 0..3 {
            let fit = fill(&disk, |block| noise(block + round));
            // Most of the memory is data.
            assert!(fit * 4096 > 6 * MIB / 2, "{fit}");
            assert!(before.is_none_or(|before| fit + fit / 50 >= before), "{fit} of {before:?}");
            before = Some(fit);
            assert_eq!(disk.put(fit * 4096, &noise(1 << 40)), Err(DeviceError::NoRoom));
            assert_eq!(disk.statistics().no_room_errors, 2 * (round + 1));
            // Nothing else is refused: what takes no room, and what takes no more than before.
            disk.put(fit * 4096, &[0; PAGE]).unwrap();
            disk.put(3 * 4096, &[5; PAGE]).unwrap();
            disk.put(3 * 4096, &noise(round + 3)).unwrap();
            for block in 0..fit {
                assert!(disk.get(block * 4096, PAGE) == noise(block + round), "{block}");
            }
            assert_eq!(disk.get(fit * 4096, PAGE), [0; PAGE]);
            disk.audit();
            disk.audit_empty();
        }
    }
}

#[test]
fn memory_of_scattered_pages_comes_back() {
    let disk = Disk::new(config(64 * MIB, 6 * MIB)).unwrap();
    let fit = fill(&disk, text);
    for block in (0..fit).filter(|block| block % 8 != 3) {
        disk.trim(block * 4096, 4096, Durability::AtFlush).unwrap();
    }
    // Objects of another length, for which the spans of the others must be emptied.
    let from = fit + 1;
    let more = (from..from + 600)
        .take_while(|&block| disk.put(block * 4096, &noise(block)).is_ok())
        .count();
    assert!(more == 600, "{more} after {fit}");
    for block in (0..fit).filter(|block| block % 8 == 3) {
        assert!(disk.get(block * 4096, PAGE) == text(block));
    }
    disk.audit();
    disk.audit_empty();
}

#[test]
fn memory_of_trimmed_pages_comes_back_though_nothing_is_written() {
    let disk = Disk::new(config(16 * MIB, 32 * MIB)).unwrap();
    for block in 0..4096 {
        disk.put(block * 4096, &text(block)).unwrap();
    }
    for _ in 0..2 {
        // What came before the first call has been seen when the second is begun.
        disk.inner.keeping.call();
        wait_until("the keeper begins", || !disk.inner.keeping.is_called());
    }
    for block in (0..4096).filter(|block| block % 8 != 3) {
        disk.trim(block * 4096, 4096, Durability::AtFlush).unwrap();
    }
    wait_until("the memory has come back", || {
        let s = disk.statistics();
        s.pool_bytes - s.pool_reserve_bytes < s.compressed_bytes * 5 / 4
    });
    for block in (0..4096).filter(|block| block % 8 == 3) {
        assert!(disk.get(block * 4096, PAGE) == text(block));
    }
    disk.audit_empty();
}

#[test]
fn lonely_pages_stay_within_the_limit() {
    // Each needs a leaf of the index: more of those than of data.
    let disk = Disk::new(DiskConfig { deduplicate: false, ..config(1 << 40, 6 * MIB) }).unwrap();
    let mut stored = Vec::new();
    for nth in 0..20_000 {
        let block = nth * 64;
        match disk.put(block * 4096, &[nth as u8 | 1; PAGE]) {
            Ok(()) => stored.push(block),
            Err(error) => assert_eq!(error, DeviceError::NoRoom),
        }
        disk.audit_limit();
    }
    assert!((5_000..20_000).contains(&stored.len()), "{}", stored.len());
    for &block in &stored {
        assert_eq!(disk.get(block * 4096, 1), [(block / 64) as u8 | 1]);
    }
    disk.audit();
    disk.audit_empty();
}

#[test]
fn swap_takes_memory_as_it_is_written_and_gives_it_back() {
    let swap = DiskConfig { for_swap: true, ..config(64 * MIB, 48 * MIB) };
    let disk = Disk::new(swap).unwrap();
    let empty = disk.statistics();
    assert!(empty.pool_reserve_bytes >= 2 * MIB && empty.cost_bytes < 16 * MIB, "{empty:?}");
    // More at once than is ready: the keeper gets it meanwhile.
    for block in 0..8192 {
        disk.put(block * 4096, &noise(block)).unwrap();
    }
    let full = disk.statistics();
    assert!(full.metadata_bytes == empty.metadata_bytes, "{full:?}");
    assert_eq!(full.no_room_errors, 0);
    assert!(full.cost_bytes > 32 * MIB && full.cost_bytes <= 48 * MIB, "{full:?}");
    for block in (0..8192).step_by(97) {
        assert_eq!(disk.get(block * 4096, PAGE), noise(block));
    }
    let refused = fill(&disk, |block| noise(block + 10_000));
    assert!(refused < disk.size_bytes() / 4096, "48 MiB are not enough for 64");
    disk.trim(0, disk.size_bytes(), Durability::AtFlush).unwrap();
    wait_until("the memory has gone back", || {
        disk.statistics().cost_bytes < empty.cost_bytes + 4 * MIB
    });
}

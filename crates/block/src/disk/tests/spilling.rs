//! Disks with a spill file.

use super::*;

#[test]
fn what_does_not_fit_the_memory_is_read_from_the_file() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let spill = Some(SpillConfig { folder: folder.path().to_owned(), bytes: 32 * MIB });
    let disk = Disk::new(DiskConfig { spill, ..config(8 * MIB, 4 * MIB) }).unwrap();
    let count = 8 * MIB / 4096;
    for block in 0..count {
        disk.put(block * 4096, &noise(block)).unwrap();
    }
    let s = disk.statistics();
    assert!(s.spilled_objects > count / 2 && s.spilled_bytes > 4 * MIB, "{s:#?}");
    for block in 0..count {
        assert!(disk.get(block * 4096, PAGE) == noise(block), "{block}");
    }
    disk.put(512, &[1; 512]).unwrap();
    let mut expected = noise(0);
    expected[512..1024].fill(1);
    assert_eq!(disk.get(0, PAGE), expected);
    disk.audit();
    disk.audit_empty();
}

#[test]
fn a_full_spill_file_refuses_writes() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let spill = Some(SpillConfig { folder: folder.path().to_owned(), bytes: 2 * MIB });
    let disk = Disk::new(DiskConfig { spill, ..config(64 * MIB, 4 * MIB) }).unwrap();
    let fit = (0..16384).find(|&block| disk.put(block * 4096, &noise(block)).is_err()).unwrap();
    assert!(fit * 4096 > 2 * MIB, "{fit}");
    for block in 0..fit {
        assert!(disk.get(block * 4096, PAGE) == noise(block), "{block}");
    }
    disk.trim(0, fit / 2 * 4096, Durability::AtFlush).unwrap();
    for block in 0..fit / 3 {
        disk.put(block * 4096, &noise(block + 7)).unwrap();
    }
    for block in 0..fit / 3 {
        assert!(disk.get(block * 4096, PAGE) == noise(block + 7), "{block}");
    }
    disk.audit();
    disk.audit_empty();
}

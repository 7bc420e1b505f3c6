//! Files that can be a backing, and what cannot.

use super::*;

fn of(path: &std::path::Path) -> BackingConfig {
    BackingConfig { path: path.to_owned(), ..config(SMALL) }
}

fn refusal(config: &BackingConfig) -> String {
    BackedDisk::new(config).err().unwrap().to_string()
}

#[test]
fn what_cannot_be_a_backing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = refusal(&of(&folder.path().join("none")));
    assert!(missing.contains("none") && missing.contains("truncate"), "{missing}");
    let kind = refusal(&of(folder.path()));
    assert!(kind.contains("neither a file nor a block device"), "{kind}");
    let kind = refusal(&of("/dev/null".as_ref()));
    assert!(kind.contains("neither"), "{kind}");
    let file = folder.path().join("file");
    std::fs::write(&file, [1; 10_000]).unwrap();
    let small = refusal(&BackingConfig { size_bytes: Some(10_001), ..of(&file) });
    assert!(small.contains("10000 bytes") && small.contains("10001"), "{small}");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, []).unwrap();
    assert!(refusal(&of(&empty)).contains("too small"));
    for percent in [0, 101] {
        let batch = refusal(&BackingConfig { batch_percent: percent, ..of(&file) });
        assert!(batch.contains("1 to 100"), "{batch}");
    }
    let memory = refusal(&BackingConfig { memory_bytes: 100 * KIB, ..of(&file) });
    assert!(memory.contains("too little"), "{memory}");
    assert_eq!(std::fs::read(&file).unwrap(), [1; 10_000]);
}

#[test]
fn a_backing_has_one_server_that_writes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MIB).unwrap();
    let config = of(file.path());
    let reading = BackingConfig { read_only: true, ..config.clone() };
    let first = BackedDisk::new(&config).unwrap();
    for other in [&config, &reading] {
        assert!(refusal(other).contains("in use"));
    }
    drop(first);
    let both = [BackedDisk::new(&reading).unwrap(), BackedDisk::new(&reading).unwrap()];
    assert!(refusal(&config).contains("in use"));
    let disk = &both[0];
    assert_eq!(disk.put(0, &[1]), Err(DeviceError::ReadOnly));
    assert_eq!(disk.trim(0, 1, Durability::AtFlush), Err(DeviceError::ReadOnly));
    disk.flush().unwrap();
    disk.write_out(|_| {}).unwrap();
    drop(both);
    BackedDisk::new(&config).unwrap();
}

#[test]
fn trimmed_pages_take_no_room_in_the_file() {
    use std::os::unix::fs::MetadataExt;
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(4 * MIB).unwrap();
    let disk = BackedDisk::new(&of(file.path())).unwrap();
    let mut data = vec![0; MIB as usize];
    Random::new(3).fill(&mut data);
    disk.put(0, &data).unwrap();
    disk.flush().unwrap();
    let blocks = || file.as_file().metadata().unwrap().blocks();
    let before = blocks();
    assert!(before * 512 >= MIB);
    disk.trim(0, MIB, Durability::AtOnce).unwrap();
    assert_eq!(disk.get(0, data.len()), vec![0; data.len()]);
    assert!(std::fs::read(file.path()).unwrap().iter().all(|&byte| byte == 0));
    if blocks() == before {
        println!("SKIPPED: no holes can be punched in /var/tmp");
    }
    assert_eq!(file.as_file().metadata().unwrap().len(), 4 * MIB);
}

/// Groups of pages that lie 4 GiB apart share the hint that one of them may be dirty.
#[test]
fn a_flush_and_the_end_write_what_lies_far_apart() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("backing");
    std::fs::File::create(&path).unwrap().set_len(21 << 30).unwrap();
    let places = || (0..5u64).map(|nth| nth << 32);
    let is_there = |file: &std::fs::File, seed: u64| {
        let mut found = [0; PAGE];
        places().all(|at| {
            file.read_exact_at(&mut found, at).unwrap();
            found == page(at + seed)
        })
    };
    let config = BackingConfig { memory_bytes: 16 * MIB, ..of(&path) };
    let disk = BackedDisk::new(&config).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    for (seed, ends) in [(1, false), (2, true)] {
        for at in places() {
            disk.put(at, &page(at + seed)).unwrap();
        }
        if ends {
            disk.write_out(|_| {}).unwrap()
        } else {
            disk.flush().unwrap()
        }
        assert_eq!(disk.backing_statistics().dirty_bytes, 0);
        assert!(is_there(&file, seed), "{seed}");
    }
}

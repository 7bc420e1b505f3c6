//! Random operations, compared with a plain vector.

use super::clusters::{Makes, with_clusters};
use super::*;
use crate::disk::GROUP;

/// What is random about a run.
struct Run {
    seed: u64,
    config: DiskConfig,
    steps: usize,
    /// Different contents of each kind of page.
    contents: u64,
}

impl Run {
    fn go(&self) {
        let disk = Disk::new(self.config.clone()).unwrap();
        let size = disk.size_bytes();
        let mut random = Random::new(self.seed);
        let mut model = vec![0u8; size as usize];
        let mut refused = 0;
        let mut makes = disk.inner.clusters.is_some().then(Makes::new);
        let mut clusters_max = 0;
        for step in 0..self.steps {
            let (offset, bytes) = range(&mut random, size);
            let (from, to) = (offset as usize, (offset + bytes) as usize);
            let context = || format!("seed {}, step {step}: {offset} + {bytes}", self.seed);
            match random.below(8) {
                0..=3 => {
                    let data = self.data(&mut random, offset, bytes);
                    match disk.put(offset, &data) {
                        Ok(()) => model[from..to].copy_from_slice(&data),
                        Err(DeviceError::NoRoom) => {
                            refused += 1;
                            take_over(&disk, &mut model, offset, &data);
                        }
                        Err(error) => panic!("{}: {error}", context()),
                    }
                }
                4 => {
                    let cleared = if random.below(2) == 0 {
                        disk.trim(offset, bytes, Durability::AtFlush)
                    } else {
                        let zeroing = Zeroing { may_trim: false, fast: false };
                        disk.zero(offset, bytes, zeroing, Durability::AtOnce)
                    };
                    match cleared {
                        Ok(()) => model[from..to].fill(0),
                        // A page that shrank least may need a slot that is not there.
                        Err(DeviceError::NoRoom) => {
                            take_over(&disk, &mut model, offset, &vec![0; to - from]);
                        }
                        Err(error) => panic!("{}: {error}", context()),
                    }
                }
                5 if step % 64 == 0 => disk.inner.grow_tables(),
                _ => assert!(disk.get(offset, to - from) == model[from..to], "{}", context()),
            }
            if let Some(makes) = &mut makes {
                let pages = disk.inner.pages;
                makes.clusters(&disk, random.below(pages) / GROUP * GROUP);
                clusters_max = clusters_max.max(disk.statistics().clusters);
            }
            if step % 256 == 0 {
                disk.audit();
            }
        }
        for (nth, expected) in model.chunks(64 << 10).enumerate() {
            assert!(disk.get((nth as u64) << 16, expected.len()) == expected, "{}", self.seed);
        }
        let small = self.config.memory_bytes < size / 2 && self.config.spill.is_none();
        assert!(refused == 0 || small, "seed {}: {refused} refused", self.seed);
        assert!(makes.is_none() || clusters_max > 8, "seed {}: {clusters_max}", self.seed);
        disk.audit();
        disk.audit_empty();
    }

    /// Data for a range: pages of few contents where it has whole ones.
    fn data(&self, random: &mut Random, offset: u64, bytes: u64) -> Vec<u8> {
        let mut data = Vec::new();
        let before = (offset % PAGE as u64) as usize;
        while data.len() < before + bytes as usize {
            let page = any_page(random, self.contents);
            let is_alike = self.config.clusters && random.below(8) != 0;
            data.extend(if is_alike { kin(random.below(self.contents)) } else { page });
        }
        data[before..before + bytes as usize].to_vec()
    }
}

/// A range of a disk: mostly pages, at times sectors, at times any bytes.
fn range(random: &mut Random, size: u64) -> (u64, u64) {
    let unit = [4096, 4096, 512, 1][random.below(4) as usize];
    let offset = random.below(size / unit) * unit;
    let most = if random.below(8) == 0 { 200 << 10 } else { 10 << 10 };
    let bytes = (1 + random.below(most)).next_multiple_of(unit).min(size - offset);
    (offset, bytes)
}

/// After a write that was refused each page has its old content or its new one: the model takes
/// over what it has.
fn take_over(disk: &Disk, model: &mut [u8], offset: u64, data: &[u8]) {
    let mut at = 0;
    while at < data.len() {
        let start = offset as usize + at;
        let len = (PAGE - start % PAGE).min(data.len() - at);
        let found = disk.get(start as u64, len);
        let (old, new) = (&mut model[start..start + len], &data[at..at + len]);
        assert!(found == *old || found == new, "a page is neither old nor new");
        old.copy_from_slice(&found);
        at += len;
    }
}

#[test]
fn what_was_written_is_read() {
    for seed in 0..6 {
        let deduplicate = seed % 2 == 0;
        let config = DiskConfig { deduplicate, ..config(4 * MIB, 16 * MIB) };
        Run { seed, config, steps: 1500, contents: 60 }.go();
    }
}

#[test]
fn what_was_written_is_read_with_each_codec() {
    for (seed, name) in (100..).zip(["lz4", "zstd", "auto", "wkv", "page-lz-fast", "lzo"]) {
        let codec = name.parse().unwrap();
        let config = DiskConfig { codec, ..config(2 * MIB, 16 * MIB) };
        Run { seed, config, steps: 500, contents: 60 }.go();
    }
}

#[test]
fn what_was_written_is_read_while_it_is_recompressed() {
    for seed in 200..203 {
        let recompress_after = Some(Duration::from_millis(1));
        let config = DiskConfig { recompress_after, ..config(4 * MIB, 16 * MIB) };
        Run { seed, config, steps: 1500, contents: 200 }.go();
    }
}

#[test]
fn what_was_written_is_read_from_clusters() {
    for seed in 500..506 {
        let deduplicate = seed % 2 == 0;
        let sizes = if seed < 504 { config(8 * MIB, 16 * MIB) } else { config(12 * MIB, 4 * MIB) };
        let config = DiskConfig { deduplicate, ..with_clusters(sizes) };
        Run { seed, config, steps: 1200, contents: 3000 }.go();
    }
}

#[test]
fn what_was_written_is_read_where_little_fits() {
    for seed in 300..306 {
        let deduplicate = seed % 2 == 0;
        let config = DiskConfig { deduplicate, ..config(16 * MIB, 4 * MIB) };
        Run { seed, config, steps: 2500, contents: 5000 }.go();
    }
}

#[test]
fn what_was_written_is_read_from_the_spill_file() {
    for seed in 400..404 {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let spill = Some(SpillConfig { folder: folder.path().to_owned(), bytes: 32 * MIB });
        let deduplicate = seed % 2 == 0;
        let recompress_after = (seed % 4 > 1).then(|| Duration::from_millis(1));
        let config =
            DiskConfig { deduplicate, spill, recompress_after, ..config(10 * MIB, 5 * MIB) };
        Run { seed, config, steps: 500, contents: 5000 }.go();
    }
}

//! Random operations, compared with a plain vector.

use super::*;

struct Run {
    seed: u64,
    size: u64,
    steps: usize,
    config: BackingConfig,
}

/// A range of a device: pages, sectors, or any bytes.
fn range(random: &mut Random, size: u64) -> (u64, u64) {
    let unit = [4096, 4096, 512, 1][random.below(4) as usize];
    let offset = random.below(size.div_ceil(unit)) * unit;
    let most = if random.below(8) == 0 { 600 << 10 } else { 10 << 10 };
    let bytes = (1 + random.below(most)).next_multiple_of(unit).min(size - offset);
    (offset, bytes)
}

fn data(random: &mut Random, bytes: u64) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < bytes as usize {
        data.extend(any_page(random, 300));
    }
    data.truncate(bytes as usize);
    data
}

impl Run {
    /// Every step; `check` is called after each flush with what the backing must have.
    fn go(&self, disk: &BackedDisk, model: &mut [u8], check: &mut dyn FnMut(&[u8], bool)) {
        let mut random = Random::new(self.seed);
        for step in 0..self.steps {
            let (offset, bytes) = range(&mut random, self.size);
            let (from, to) = (offset as usize, (offset + bytes) as usize);
            let context = || format!("seed {}, step {step}: {offset} + {bytes}", self.seed);
            let durability =
                if random.below(8) == 0 { Durability::AtOnce } else { Durability::AtFlush };
            match random.below(16) {
                0..=6 => {
                    let data = data(&mut random, bytes);
                    disk.write(offset, &data, durability).unwrap();
                    model[from..to].copy_from_slice(&data);
                    if self.config.write_through {
                        check(model, false);
                    }
                }
                7 => {
                    disk.trim(offset, bytes, durability).unwrap();
                    model[from..to].fill(0);
                }
                8 => {
                    let may_trim = random.below(2) == 0;
                    disk.zero(offset, bytes, Zeroing { may_trim, fast: false }, durability)
                        .unwrap();
                    model[from..to].fill(0);
                }
                9 if step % 4 == 0 => {
                    disk.flush().unwrap();
                    check(model, true);
                }
                10 => disk.prefetch(offset, bytes, &|| true).unwrap(),
                _ => assert!(disk.get(offset, to - from) == model[from..to], "{}", context()),
            }
            disk.audit();
        }
        for (nth, expected) in model.chunks(64 << 10).enumerate() {
            assert!(disk.get((nth as u64) << 16, expected.len()) == expected, "{}", self.seed);
        }
        disk.audit_at_rest();
    }

    fn before_memory(&self) {
        let fake = Fake::new(self.size);
        let mut random = Random::new(self.seed ^ 77);
        fake.change(|state| random.fill(&mut state.bytes[..self.size as usize]));
        let mut model = fake.lock().bytes[..self.size as usize].to_vec();
        let disk = fake.cache(|config| *config = self.config.clone());
        self.go(&disk, &mut model, &mut |model, is_flush| {
            let state = fake.lock();
            let found = if is_flush { &state.durable } else { &state.bytes };
            assert!(found[..model.len()] == *model, "seed {}", self.seed);
        });
        disk.write_out(|_| {}).unwrap();
        assert!(fake.lock().durable[..model.len()] == model);
        assert_eq!(disk.backing_statistics().dirty_bytes, 0);
        disk.trim(0, self.size, Durability::AtFlush).unwrap();
        let s = disk.backing_statistics();
        assert_eq!((s.pages, s.compressed_bytes), (0, 0));
    }
}

fn configs() -> impl Iterator<Item = (u64, BackingConfig)> {
    (0..8).map(|seed| {
        let paths = if seed % 2 == 0 { Paths::Separate } else { Paths::Shared };
        let write_through = seed / 2 % 2 == 1;
        let batch_percent = [1, 10, 60][seed as usize % 3];
        (seed, BackingConfig { paths, write_through, batch_percent, ..config(SMALL) })
    })
}

#[test]
fn what_was_written_is_read_and_is_in_the_backing_after_a_flush() {
    for (seed, config) in configs() {
        let size = 12 * MIB + [0, 512, 1, 4095][seed as usize % 4];
        Run { seed, size, steps: 300, config }.before_memory();
    }
}

#[test]
fn what_was_written_is_in_the_file() {
    for (seed, config) in configs().take(4) {
        let size = 10 * MIB + [0, 512, 1, 4095][seed as usize % 4];
        for folder in ["/var/tmp", "/dev/shm"] {
            let file = tempfile::NamedTempFile::new_in(folder).unwrap();
            let mut model = vec![0u8; size as usize + 1000];
            Random::new(seed ^ 99).fill(&mut model);
            std::fs::write(file.path(), &model).unwrap();
            let after = model.split_off(size as usize);
            let config = BackingConfig {
                path: file.path().to_owned(),
                size_bytes: Some(size),
                ..config.clone()
            };
            let disk = BackedDisk::new(&config).unwrap();
            let run = Run { seed, size, steps: 150, config };
            run.go(&disk, &mut model, &mut |model, _| {
                let found = std::fs::read(file.path()).unwrap();
                assert!(found[..model.len()] == *model, "seed {seed}");
            });
            disk.write_out(|_| {}).unwrap();
            let found = std::fs::read(file.path()).unwrap();
            assert!(found[..model.len()] == model, "seed {seed}");
            assert!(found[model.len()..] == after, "what lies behind the device was changed");
        }
    }
}

//! Changes a file in all ways that programs do, at random, and knows what it must have: as the
//! tests of file systems do (fsx), on a device of ours below.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

use super::mapped::Mapped;
use super::roles::Random;

const BYTES_MAX: usize = 6 << 20;
/// Most bytes of one change.
const PART_MAX: usize = 192 << 10;
const WAYS: u64 = 9;

/// What a file must have.
struct Model {
    random: Random,
    bytes: Vec<u8>,
}

/// A change, or a look at a part.
#[derive(Debug)]
enum Step {
    Write(usize, Vec<u8>),
    WriteMapped(usize, Vec<u8>),
    Truncate(usize),
    Punch(usize, usize),
    Zero(usize, usize),
    Read(usize, usize),
    ReadMapped(usize, usize),
    Sync,
    Forget,
}

impl Model {
    fn new(seed: u64) -> Model {
        Model { random: Random(seed.wrapping_mul(2) + 1), bytes: Vec::new() }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next() % end.max(1) as u64) as usize
    }

    /// A part of the file as it is.
    fn part(&mut self) -> (usize, usize) {
        let from = self.below(self.bytes.len());
        let len = self.below(PART_MAX.min(self.bytes.len() - from)) + 1;
        (from, len.min(self.bytes.len() - from))
    }

    /// Data of which a half compresses.
    fn data(&mut self, len: usize) -> Vec<u8> {
        let word = self.random.next();
        let is_noise = word & 1 == 0;
        let mut word_now = || if is_noise { self.random.next() } else { word };
        let mut data = Vec::with_capacity(len + 8);
        while data.len() < len {
            data.extend(word_now().to_ne_bytes());
        }
        data.truncate(len);
        data
    }

    /// The next step, which the model has done already.
    fn next(&mut self) -> Step {
        let way = if self.bytes.is_empty() { 0 } else { self.random.next() % WAYS };
        match way {
            0 | 1 => {
                let from = self.below(BYTES_MAX - PART_MAX);
                let len = self.below(PART_MAX) + 1;
                let data = self.data(len);
                if self.bytes.len() < from + len {
                    self.bytes.resize(from + len, 0);
                }
                self.bytes[from..from + len].copy_from_slice(&data);
                Step::Write(from, data)
            }
            2 => {
                let (from, len) = self.part();
                let data = self.data(len);
                self.bytes[from..from + len].copy_from_slice(&data);
                Step::WriteMapped(from, data)
            }
            // Seldom to little.
            3 => {
                let len = BYTES_MAX - self.below(BYTES_MAX).min(self.below(BYTES_MAX));
                self.bytes.resize(len, 0);
                Step::Truncate(len)
            }
            4 => {
                let (from, len) = self.part();
                self.bytes[from..from + len].fill(0);
                if self.random.next() & 1 == 0 {
                    Step::Punch(from, len)
                } else {
                    Step::Zero(from, len)
                }
            }
            5 => {
                let (from, len) = self.part();
                Step::ReadMapped(from, len)
            }
            6 if self.random.next() & 3 == 0 => Step::Sync,
            6 if self.random.next() & 1 == 0 => Step::Forget,
            _ => {
                let (from, len) = self.part();
                Step::Read(from, len)
            }
        }
    }

    fn check(&self, from: usize, found: &[u8], how: &str) {
        let expected = &self.bytes[from..from + found.len()];
        if let Some(at) = found.iter().zip(expected).position(|(found, right)| found != right) {
            panic!("byte {} is wrong, {how} with {} from {from} on", from + at, found.len());
        }
    }
}

/// Makes a file, changes it in `steps` steps, and compares all of it at the end.
pub(super) fn exercise(path: &Path, seed: u64, steps: u64) {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let mut model = Model::new(seed);
    for _ in 0..steps {
        let step = model.next();
        take(&file, &model, step);
    }
    file.sync_all().unwrap();
    forget(&file);
    check_all(&file, &model);
    println!("exercise: {steps} steps");
}

/// Whether the file has what [`exercise`] has left there.
pub(super) fn check(path: &Path, seed: u64, steps: u64) {
    let mut model = Model::new(seed);
    for _ in 0..steps {
        model.next();
    }
    check_all(&File::open(path).unwrap(), &model);
    println!("exercise: all right");
}

fn check_all(mut file: &File, model: &Model) {
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), model.bytes.len() as u64);
    let mut found = vec![0; model.bytes.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    model.check(0, &found, "read");
}

fn take(file: &File, model: &Model, step: Step) {
    let keep = FallocateFlags::KEEP_SIZE;
    match step {
        Step::Write(from, data) => file.write_all_at(&data, from as u64).unwrap(),
        Step::WriteMapped(from, data) => {
            let mut mapped = Mapped::new(file, model.bytes.len());
            mapped.bytes_mut()[from..from + data.len()].copy_from_slice(&data);
        }
        Step::Truncate(len) => file.set_len(len as u64).unwrap(),
        Step::Punch(from, len) => {
            fallocate(file, keep | FallocateFlags::PUNCH_HOLE, from as u64, len as u64).unwrap();
        }
        Step::Zero(from, len) => {
            fallocate(file, keep | FallocateFlags::ZERO_RANGE, from as u64, len as u64).unwrap();
        }
        Step::Read(from, len) => {
            let mut found = vec![0; len];
            file.read_exact_at(&mut found, from as u64).unwrap();
            model.check(from, &found, "read");
        }
        Step::ReadMapped(from, len) => {
            let mapped = Mapped::new(file, model.bytes.len());
            model.check(from, &mapped.bytes()[from..from + len], "mapped");
        }
        Step::Sync => file.sync_all().unwrap(),
        Step::Forget => forget(file),
    }
}

/// Has what is read next come from the device.
fn forget(file: &File) {
    file.sync_data().unwrap();
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

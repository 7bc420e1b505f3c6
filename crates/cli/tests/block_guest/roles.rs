//! What the test's own program does inside a guest: it serves devices, and checks memory.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ramfold_block::kernel::{AfterKill, NbdConfig, NbdDevice, UblkConfig, UblkDevice, clean_up};
use ramfold_block::{BlockDevice, DeviceError, Durability, Extent, PlainDevice, Zeroing};

use crate::exercise::{check as check_exercised, exercise};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
/// When this file is there, a server ends.
const STOP: &str = "/tmp/stop";
/// Here a server says which device it has.
const DEVICE: &str = "/tmp/device";

/// Does what the words say: a role and its arguments.
pub(crate) fn play(words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().unwrap();
    match words[0] {
        "ublk" => serve_ublk(number(1) * MIB, &words[2..]),
        "nbd" => serve_nbd(number(1) * MIB, number(2) as usize, &words[3..]),
        "recover" => recover(number(1) as u32, Path::new(words[2])),
        "hog" => hog(number(1) * MIB, number(2), number(3)),
        "memeater" => memeater(number(1)),
        "write" => write_pattern(Path::new(words[1]), number(2), number(3)),
        "check" => check_pattern(Path::new(words[1]), number(2), number(3)),
        "exercise" => exercise(Path::new(words[1]), number(2), number(3)),
        "exercised" => check_exercised(Path::new(words[1]), number(2), number(3)),
        "clean-up" => {
            for leftover in clean_up() {
                println!("{} {:?}", leftover.path.display(), leftover.fate);
            }
        }
        role => panic!("no role {role}"),
    }
}

/// Of the options: data in a file.
fn device_for(bytes: u64, options: &[&str]) -> Arc<dyn BlockDevice> {
    match options.iter().find_map(|option| option.strip_prefix("file=")) {
        Some(path) => Arc::new(Filed::new(Path::new(path), Some(bytes))),
        None => Arc::new(PlainDevice::new(bytes)),
    }
}

fn serve_ublk(bytes: u64, options: &[&str]) {
    let config = UblkConfig {
        after_kill: match () {
            () if options.contains(&"recoverable") => AfterKill::Wait,
            () => AfterKill::Remove,
        },
        queues: 2,
        ..UblkConfig::default()
    };
    let device = UblkDevice::start(device_for(bytes, options), &config).unwrap();
    let path = device.path();
    serve_until_stopped(&path);
    device.stop().unwrap();
    assert!(!path.exists(), "{path:?} is still there");
    println!("server: {} ended", path.display());
}

fn serve_nbd(bytes: u64, connections: usize, options: &[&str]) {
    let config = NbdConfig { bytes, connections, ..NbdConfig::default() };
    let device = device_for(bytes, options);
    let (attached, streams) = NbdDevice::attach(&config).unwrap();
    let servers: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            let device = Arc::clone(&device);
            thread::spawn(move || transmit(stream, &*device))
        })
        .collect();
    serve_until_stopped(&attached.path());
    let path = attached.path();
    assert!(attached.is_attached());
    attached.detach().unwrap();
    for server in servers {
        server.join().unwrap();
    }
    println!("server: {} ended", path.display());
}

fn recover(number: u32, path: &Path) {
    let device = UblkDevice::recover(number, Arc::new(Filed::new(path, None))).unwrap();
    serve_until_stopped(&device.path());
    device.stop().unwrap();
    println!("server: recovered device ended");
}

fn serve_until_stopped(path: &Path) {
    fs::write("/tmp/device.new", path.to_str().unwrap()).unwrap();
    fs::rename("/tmp/device.new", DEVICE).unwrap();
    while !Path::new(STOP).exists() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// The transmission phase of NBD, as far as the kernel uses it.
fn transmit(mut stream: UnixStream, device: &dyn BlockDevice) {
    let mut data = vec![0; 33 << 20];
    let mut header = [0; 28];
    while stream.read_exact(&mut header).is_ok() {
        assert_eq!(header[..4], 0x2560_9513u32.to_be_bytes());
        let flags = u16::from_be_bytes([header[4], header[5]]);
        let command = u16::from_be_bytes([header[6], header[7]]);
        let offset = u64::from_be_bytes(*header[16..].first_chunk().unwrap());
        let bytes = u32::from_be_bytes(*header[24..].first_chunk().unwrap()) as usize;
        let durability = if flags & 1 != 0 { Durability::AtOnce } else { Durability::AtFlush };
        let zeroing = Zeroing { may_trim: flags & 2 == 0, fast: false };
        let done = match command {
            0 => device.read(offset, &mut data[..bytes]),
            1 => {
                stream.read_exact(&mut data[..bytes]).unwrap();
                device.write(offset, &data[..bytes], durability)
            }
            2 => return,
            3 => device.flush(),
            4 => device.trim(offset, bytes as u64, durability),
            6 => device.zero(offset, bytes as u64, zeroing, durability),
            command => panic!("command {command}"),
        };
        let mut reply = [0; 16];
        reply[..4].copy_from_slice(&0x6744_6698u32.to_be_bytes());
        reply[4..8].copy_from_slice(&(if done.is_ok() { 0u32 } else { 5 }).to_be_bytes());
        reply[8..].copy_from_slice(&header[8..16]);
        let sent = stream.write_all(&reply);
        let sent = match command {
            0 if done.is_ok() => sent.and_then(|()| stream.write_all(&data[..bytes])),
            _ => sent,
        };
        if sent.is_err() {
            return;
        }
    }
}

fn words(page: &[u8]) -> impl Iterator<Item = u64> {
    page.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
}

fn fill(page: &mut [u8], first: u64, step: u64) {
    let mut word = first;
    for place in page.chunks_exact_mut(8) {
        place.copy_from_slice(&word.to_ne_bytes());
        word = word.wrapping_add(step);
    }
}

fn is_sequence(page: &[u8], first: u64, step: u64) -> bool {
    let mut expected = first;
    words(page).all(|word| {
        let is_right = word == expected;
        expected = expected.wrapping_add(step);
        is_right
    })
}

/// Data in a file, which outlives the server.
struct Filed {
    file: File,
    bytes: u64,
}

impl Filed {
    fn new(path: &Path, bytes: Option<u64>) -> Filed {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap();
        if let Some(bytes) = bytes {
            file.set_len(bytes).unwrap();
        }
        let bytes = file.metadata().unwrap().len();
        Filed { file, bytes }
    }
}

fn failed(error: std::io::Error) -> DeviceError {
    DeviceError::Failed(error.to_string())
}

impl BlockDevice for Filed {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_exact_at(buffer, offset).map_err(failed)
    }

    fn write(&self, offset: u64, data: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.file.write_all_at(data, offset).map_err(failed)
    }

    fn trim(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), DeviceError> {
        let zeros = vec![0; 1 << 20];
        let end = offset + bytes;
        for start in (offset..end).step_by(zeros.len()) {
            let part = zeros.len().min((end - start) as usize);
            self.write(start, &zeros[..part], durability)?;
        }
        Ok(())
    }

    fn zero(
        &self,
        offset: u64,
        bytes: u64,
        _: Zeroing,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.trim(offset, bytes, durability)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn extents(
        &self,
        _: u64,
        _: u64,
        _: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        unreachable!("the kernel does not ask")
    }
}

/// A small generator of numbers (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The words of a page: they depend on the page and on how often it was written.
fn sequence(seed: u64, page: u64, version: u64) -> (u64, u64) {
    let mixed = (seed ^ page << 20 ^ version << 44).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed, mixed >> 32 | 1)
}

/// Fills a page with words of a few, as different as the page and how often it was written. One
/// page of 16 does not compress, and one is a single word.
fn text(page: &mut [u8], seed: u64, number: u64, version: u64) {
    let (first, step) = sequence(seed, number, version);
    let mut state = step;
    let kind = first >> 60;
    for place in page.chunks_exact_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let word = match kind {
            0 => state,
            1 => first,
            _ => first.rotate_left((state >> 60) as u32),
        };
        place.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Fills memory, then visits pages of it in random order: checks each, and writes to half of them.
/// Checks all at the end.
fn hog(bytes: u64, seed: u64, visits: u64) {
    let mut memory = vec![0u8; bytes as usize + PAGE];
    // Its pages are the system's.
    let start = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[start..][..bytes as usize];
    let count = bytes / PAGE as u64;
    let mut versions = vec![0u8; count as usize];
    let mut random = Random(seed.wrapping_mul(2) + 1);
    let place = |page: u64| page as usize * PAGE..(page as usize + 1) * PAGE;
    let mut expected = [0; PAGE];
    let mut check = |memory: &[u8], page: u64, version: u8| {
        text(&mut expected, seed, page, u64::from(version));
        assert!(memory[place(page)] == expected, "page {page} is wrong");
    };
    for page in 0..count {
        text(&mut memory[place(page)], seed, page, 0);
    }
    println!("hog: {} MiB are written", bytes / MIB);
    for _ in 0..visits / 8 {
        // Eight in a row, as programs have neighbours.
        let start = random.next() % count;
        for page in start..(start + 8).min(count) {
            let version = &mut versions[page as usize];
            check(memory, page, *version);
            if random.next() & 1 == 0 {
                *version = version.wrapping_add(1);
                text(&mut memory[place(page)], seed, page, u64::from(*version));
            }
        }
    }
    for page in 0..count {
        check(memory, page, versions[page as usize]);
    }
    println!("hog: all right");
}

/// Asks for a mebibyte at a time and fills it, until there is no more (paper 004, section 6.2);
/// then checks all.
fn memeater(seed: u64) {
    let pages = MIB / PAGE as u64;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut block = Vec::new();
    while block.try_reserve_exact(MIB as usize).is_ok() {
        block.resize(MIB as usize, 0);
        let first = blocks.len() as u64 * pages;
        for (page, number) in block.chunks_exact_mut(PAGE).zip(first..) {
            text(page, seed, number, 0);
        }
        blocks.push(std::mem::take(&mut block));
    }
    let mut expected = [0; PAGE];
    for (page, number) in blocks.iter().flat_map(|block| block.chunks_exact(PAGE)).zip(0..) {
        text(&mut expected, seed, number, 0);
        assert!(page == expected, "page {number} is wrong");
    }
    println!("memeater: {} MiB", blocks.len());
}

/// Fills a file with what [`check_pattern`] knows again.
fn write_pattern(path: &Path, mebibytes: u64, seed: u64) {
    let mut file = File::create(path).unwrap();
    let mut page = [0; PAGE];
    for number in 0..mebibytes * MIB / PAGE as u64 {
        let (first, step) = sequence(seed, number, 0);
        fill(&mut page, first, step);
        file.write_all(&page).unwrap();
        if (number + 1) % (MIB / PAGE as u64) == 0 {
            file.sync_data().unwrap();
        }
    }
    file.sync_all().unwrap();
}

/// Whatever can be read must be right; an error in reading is said.
fn check_pattern(path: &Path, mebibytes: u64, seed: u64) {
    let file = File::open(path).unwrap();
    let (mut right, mut unreadable) = (0, 0);
    let mut page = [0; PAGE];
    for number in 0..mebibytes * MIB / PAGE as u64 {
        match file.read_exact_at(&mut page, number * PAGE as u64) {
            Ok(()) => {
                let (first, step) = sequence(seed, number, 0);
                assert!(is_sequence(&page, first, step), "page {number} of {path:?} is wrong");
                right += 1;
            }
            Err(_) => unreadable += 1,
        }
    }
    println!("check: {right} right {unreadable} unreadable");
}

//! What is read is what the file holds, whatever was cached of it.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ramfold_codec::ZstdLevel;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};

use super::freshness::FRESH_NS;
use super::*;

mod changes;
mod kernel;
mod known_files;
mod reads;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// On a disk, so that there is something to be read past the page cache.
fn temporary() -> File {
    tempfile::tempfile_in("/var/tmp").unwrap()
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Text of sorts, by pages; every eighth page is random, and every ninth is empty.
fn content_of(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        let page = bytes.len() / 4096;
        let end = bytes.len() + 4096;
        while bytes.len() < end {
            match page % 72 {
                0 | 8 | 16 => bytes.extend(numbers.next().to_le_bytes()),
                page if page % 9 == 0 => bytes.extend([0; 8]),
                _ => bytes.extend(format!("{:x} and ", numbers.below(500)).into_bytes()),
            }
        }
        bytes.truncate(end);
    }
    bytes.truncate(len);
    bytes
}

pub(super) fn config(memory_bytes: u64) -> Config {
    let codec = Some(ClusterCodec::Zstd(ZstdLevel::FASTEST));
    Config { codec, ..Config::new(memory_bytes) }
}

/// A kernel that drops nothing and remembers what it was told to.
#[derive(Clone, Default)]
struct DropLog(Arc<Mutex<Vec<DroppedBytes>>>);

/// Of a file, by its number.
type DroppedBytes = (u64, Range<u64>);

impl Kernel for DropLog {
    fn drop_pages(&mut self, node: u64, bytes: Range<u64>) {
        self.0.lock().unwrap().push((node, bytes));
    }
}

/// A file, and what is cached of it.
struct TestFile {
    cached: Arc<CachedFile>,
    source: SourceFile,
    file: File,
    /// What it should hold.
    bytes: Vec<u8>,
}

impl TestFile {
    fn new(cache: &FileCache, inode: u64, bytes: Vec<u8>) -> TestFile {
        let file = temporary();
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        let cached = cache.file(FileKey { device: 1, inode, generation: 0 });
        cached.set_node(inode);
        // This test has it open.
        cached.note_writer();
        let source = SourceFile::new(file.try_clone().unwrap().into());
        TestFile { cached, source, file, bytes }
    }

    fn check(&self, offset: u64, len: usize) {
        let start = self.bytes.len().min(offset as usize);
        let expected = &self.bytes[start..self.bytes.len().min(start + len)];
        self.cached.read(&self.source, offset, len, |read| {
            let read = read.unwrap();
            assert_eq!(read.len(), expected.len(), "{len} bytes at {offset}");
            assert!(read == expected, "{len} bytes at {offset}");
        });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        let changed = Changed::Bytes(offset..end as u64);
        let file = &self.file;
        self.cached
            .change(Some(file.as_fd()), changed, || file.write_all_at(bytes, offset))
            .unwrap();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }

    fn truncate(&mut self, len: u64) {
        let file = &self.file;
        self.cached.change(Some(file.as_fd()), Changed::All, || file.set_len(len)).unwrap();
        self.bytes.resize(len as usize, 0);
    }

    /// As somebody does who does not come by the mount.
    fn write_behind(&mut self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
        let end = offset as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
        // What opening the file, and the watch, do.
        self.cached.changes_behind(self.file.as_fd());
    }
}

impl FileCache {
    /// Waits until everything that was read has been compressed.
    fn settle(&self) {
        wait_until("everything is compressed", || !self.shared.cache.is_compressing());
    }

    fn statistics(&self) -> Statistics {
        self.view().glance()
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Lets time pass until a file does not count as freshly changed.
fn rest() {
    thread::sleep(Duration::from_nanos(FRESH_NS as u64 * 5 / 4));
}

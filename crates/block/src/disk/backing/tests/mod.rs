//! The cache as its users see it, compared with what they wrote and with what is in the backing.

mod faults;
mod files;
mod model;
mod threads;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, MutexGuard};
use std::time::{Duration, Instant};

use super::*;
use crate::disk::tests::{Random, any_page, noise, text};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The least that a cache of two requests needs is some 2.5 MiB; a part of it is for pages.
const SMALL: u64 = 4 * MIB;

/// A place in memory that fails when it is told to.
#[derive(Default)]
struct Fake {
    state: Mutex<State>,
    changed: Condvar,
    size: u64,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// What a crash of the machine leaves.
    durable: Vec<u8>,
    /// How often each page was read.
    reads: Vec<u32>,
    fails: Option<Errno>,
    sync_fails: bool,
    /// Pages whose writes fail.
    bad: Range<u64>,
    stalls: bool,
    stalled: usize,
    cannot_zero: bool,
}

impl Fake {
    fn new(size: u64) -> Arc<Fake> {
        let bytes = vec![0; size.next_multiple_of(PAGE as u64) as usize];
        let pages = bytes.len() / PAGE;
        let state =
            State { durable: bytes.clone(), bytes, reads: vec![0; pages], ..State::default() };
        Arc::new(Fake { state: Mutex::new(state), changed: Condvar::new(), size })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits as long as it stalls.
    fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.stalled += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.stalls).unwrap();
        state.stalled -= 1;
        state
    }

    fn cache(self: &Arc<Fake>, change: impl FnOnce(&mut BackingConfig)) -> BackedDisk {
        let mut config = config(SMALL);
        change(&mut config);
        BackedDisk::before(Box::new(Shim(Arc::clone(self))), self.size, &config).unwrap()
    }
}

struct Shim(Arc<Fake>);

impl Place for Shim {
    fn read(&self, offset: u64, pages: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.0.enter();
        let first = offset as usize / PAGE;
        for page in first..first + pages.len() / PAGE {
            state.reads[page] += 1;
        }
        pages.copy_from_slice(&state.bytes[offset as usize..offset as usize + pages.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, pages: &[u8]) -> Result<(), Errno> {
        let mut state = self.0.enter();
        let first = offset / PAGE as u64;
        let mut written = pages.len();
        let mut result = Ok(());
        if let Some(errno) = state.fails {
            // A part of it is written.
            (written, result) = (pages.len() / 2, Err(errno));
        } else if (first..first + (pages.len() / PAGE) as u64).any(|page| state.bad.contains(&page))
        {
            (written, result) = (0, Err(Errno::IO));
        }
        let written = written.min((self.0.size - offset) as usize);
        let at = offset as usize;
        state.bytes[at..at + written].copy_from_slice(&pages[..written]);
        result
    }

    fn zero(&self, offset: u64, bytes: u64, zeroing: Zeroing) -> Result<(), Errno> {
        let mut state = self.0.enter();
        if let Some(errno) = state.fails {
            return Err(errno);
        }
        if state.cannot_zero && zeroing.fast {
            return Err(Errno::OPNOTSUPP);
        }
        assert!(offset + bytes <= self.0.size);
        state.bytes[offset as usize..(offset + bytes) as usize].fill(0);
        Ok(())
    }

    fn sync(&self) -> Result<(), Errno> {
        let mut state = self.0.enter();
        if std::mem::take(&mut state.sync_fails) {
            // As Linux does: what could not be written is forgotten.
            state.bytes = state.durable.clone();
            return Err(Errno::IO);
        }
        state.durable = state.bytes.clone();
        Ok(())
    }

    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let state = self.0.lock();
        let is_data = |page: &u64| {
            let at = *page as usize * PAGE;
            state.bytes[at..at + PAGE].iter().any(|&byte| byte != 0)
        };
        let pages = state.bytes.len() as u64 / PAGE as u64;
        let start = (offset / PAGE as u64..pages).find(is_data)?;
        let end = (start..pages).find(|page| !is_data(page)).unwrap_or(pages);
        Some((start * PAGE as u64).max(offset)..end * PAGE as u64)
    }
}

fn config(memory_bytes: u64) -> BackingConfig {
    BackingConfig { threads: 2, ..BackingConfig::new(PathBuf::from("the backing"), memory_bytes) }
}

impl BackedDisk {
    fn put(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, data, Durability::AtFlush)
    }

    fn get(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xa5; bytes];
        self.read(offset, &mut buffer).unwrap();
        buffer
    }

    fn audit(&self) {
        let s = self.backing_statistics();
        assert!(s.cost_bytes <= s.memory_bytes, "{s:#?}");
        assert!(s.dirty_pages <= s.pages, "{s:#?}");
    }

    /// Audits what only holds while nobody uses it. The keeper may still be at work.
    fn audit_at_rest(&self) {
        self.audit();
        wait_until("pages are as they were counted", || {
            let s = self.backing_statistics();
            self.counted() == (s.pages, s.dirty_pages)
        });
    }

    /// Pages, and those that are dirty.
    fn counted(&self) -> (u64, u64) {
        let (mut pages, mut dirty) = (0, 0);
        let store = &self.shared.inner.store;
        let mut place = 0;
        while let Some((group, next)) = store.group_from(place) {
            place = next;
            for block in (group..group + GROUP).filter(|&block| store.contains(block)) {
                pages += 1;
                dirty += u64::from(store.mark(block) & marks::DIRTY != 0);
            }
        }
        (pages, dirty)
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A page that a codec makes a third as large, of that number.
fn page(number: u64) -> [u8; PAGE] {
    text(number)
}

#[test]
fn reads_change_nothing_but_with_shared_paths() {
    for paths in [Paths::Separate, Paths::Shared] {
        let fake = Fake::new(MIB);
        fake.change(|state| state.bytes[..PAGE].copy_from_slice(&page(1)));
        let disk = fake.cache(|config| config.paths = paths);
        disk.put(8 * PAGE as u64, &page(2)).unwrap();
        for _ in 0..3 {
            assert_eq!(disk.get(0, PAGE), page(1));
            assert_eq!(disk.get(8 * PAGE as u64, PAGE), page(2));
        }
        let s = disk.backing_statistics();
        let found = (s.pages, s.hits_of_writes, s.hits_of_reads, s.misses);
        match paths {
            Paths::Separate => assert_eq!(found, (1, 3, 0, 3)),
            Paths::Shared => assert_eq!(found, (2, 3, 2, 1)),
        }
        assert_eq!(fake.lock().bytes[8 * PAGE..9 * PAGE], [0; PAGE], "nobody has asked for that");
        disk.audit_at_rest();
    }
}

#[test]
fn a_page_costs_at_most_one_read_of_the_disk() {
    let fake = Fake::new(4 * MIB);
    let mut random = Random::new(1);
    fake.change(|state| random.fill(&mut state.bytes));
    let expected = fake.lock().bytes.clone();
    let disk = fake.cache(|_| {});
    disk.put(5 * PAGE as u64, &expected[5 * PAGE..6 * PAGE]).unwrap();
    assert!(disk.get(1000, expected.len() - 2000) == expected[1000..expected.len() - 1000]);
    let reads = fake.lock().reads.clone();
    assert_eq!(reads[5], 0);
    assert!(reads.iter().enumerate().all(|(page, &reads)| reads == u32::from(page != 5)));
    // Of what lies together as much is read as there is room for.
    assert!(disk.backing_statistics().backing_reads <= 40);
}

#[test]
fn what_is_prefetched_is_read_from_the_cache() {
    let fake = Fake::new(4 * MIB);
    let mut random = Random::new(1);
    // A hole in front.
    fake.change(|state| random.fill(&mut state.bytes[MIB as usize..]));
    let expected = fake.lock().bytes.clone();
    let disk = fake.cache(|config| config.memory_bytes = 16 * MIB);
    disk.prefetch(1000, 2 * MIB, &|| true).unwrap();
    let s = disk.backing_statistics();
    assert_eq!((s.pages, s.prefetched_pages, s.dirty_pages), (257, 257, 0));
    assert!(s.backing_reads <= 9, "{s:#?}");
    let before = s.backing_reads;
    assert!(disk.get(MIB, MIB as usize + 1000) == expected[MIB as usize..][..MIB as usize + 1000]);
    let s = disk.backing_statistics();
    assert_eq!((s.backing_reads, s.hits_of_reads, s.misses), (before, 257, 0));
    // Once more is no work.
    disk.prefetch(1000, 2 * MIB, &|| true).unwrap();
    assert_eq!(disk.backing_statistics().backing_reads, before);
    disk.audit_at_rest();
}

#[test]
fn a_prefetch_ends_when_it_is_told_to_and_brings_so_much_at_most() {
    let fake = Fake::new(24 * MIB);
    let mut random = Random::new(1);
    fake.change(|state| random.fill(&mut state.bytes));
    let disk = fake.cache(|config| config.memory_bytes = 128 * MIB);
    let asked = AtomicU64::new(0);
    disk.prefetch(0, 24 * MIB, &|| asked.fetch_add(1, Ordering::Relaxed) < 2).unwrap();
    assert_eq!(disk.backing_statistics().backing_reads, 2);
    disk.prefetch(0, 24 * MIB, &|| false).unwrap();
    assert_eq!(disk.backing_statistics().prefetched_pages, 2 * place::CHUNK_PAGES);
    disk.prefetch(MIB, 23 * MIB, &|| true).unwrap();
    let prefetched = disk.backing_statistics().prefetched_pages - 2 * place::CHUNK_PAGES;
    assert_eq!(prefetched, 16 * MIB / PAGE as u64);
    disk.audit_at_rest();
}

#[test]
fn what_is_prefetched_replaces_no_more_than_a_part_of_the_cache() {
    let fake = Fake::new(64 * MIB);
    let mut random = Random::new(1);
    fake.change(|state| random.fill(&mut state.bytes[32 * MIB as usize..]));
    let expected = fake.lock().bytes[32 * MIB as usize..].to_vec();
    let disk = fake.cache(|config| config.memory_bytes = 16 * MIB);
    // Full of what was written, which has to leave for that.
    let count = 6000;
    for block in 0..count {
        disk.put(block * PAGE as u64, &noise(block)).unwrap();
    }
    disk.flush().unwrap();
    disk.prefetch(32 * MIB, 32 * MIB, &|| true).unwrap();
    let s = disk.backing_statistics();
    assert!((500..1024).contains(&s.prefetched_pages), "{s:#?}");
    let pages = s.prefetched_pages as usize;
    assert!(disk.get(32 * MIB, pages * PAGE) == expected[..pages * PAGE]);
    let hits = disk.backing_statistics().hits_of_reads;
    assert!(hits * 8 > s.prefetched_pages * 7, "{hits} are there of {s:#?}");
    for block in 0..count {
        assert_eq!(disk.get(block * PAGE as u64, PAGE), noise(block));
    }
    disk.audit_at_rest();
}

#[test]
fn the_oldest_leave_in_contiguous_batches() {
    let fake = Fake::new(64 * MIB);
    let disk = fake.cache(|_| {});
    let count = 3000u64;
    for block in 0..count {
        disk.put(block * PAGE as u64, &noise(block)).unwrap();
    }
    let s = disk.backing_statistics();
    assert!(s.batches > 0 && s.evicted_pages > 0, "{s:#?}");
    assert!(s.written_back_pages > 4 * s.backing_writes, "writes are not contiguous: {s:#?}");
    // Those that were written last are there, those before the cache's size are not.
    let (before, newest) = (s.misses, s.pages / 3);
    for block in count - newest..count {
        assert_eq!(disk.get(block * PAGE as u64, PAGE), noise(block));
    }
    let s = disk.backing_statistics();
    assert!((s.misses - before) * 20 <= newest, "{s:#?}");
    for block in 0..count - s.pages * 5 / 4 {
        assert_eq!(disk.get(block * PAGE as u64, PAGE), noise(block));
    }
    let missed = disk.backing_statistics().misses - s.misses;
    // Not to the page: some are passed by, and how many pages there are changes meanwhile.
    assert!(missed * 5 > (count - s.pages * 5 / 4) * 4, "{missed} missed: {s:#?}");
    disk.audit_at_rest();
}

#[test]
fn extents_tell_of_cache_and_backing() {
    let fake = Fake::new(MIB);
    fake.change(|state| state.bytes[4 * PAGE..6 * PAGE].fill(1));
    let disk = fake.cache(|_| {});
    disk.put(9 * PAGE as u64 + 7, &[1; 10]).unwrap();
    let mut found = Vec::new();
    disk.extents(100, 12 * PAGE as u64, &mut |extent| {
        assert_eq!(extent.is_allocated, !extent.is_zero);
        found.push((extent.bytes, extent.is_zero));
        ControlFlow::Continue(())
    })
    .unwrap();
    let page = PAGE as u64;
    assert_eq!(
        found,
        [
            (4 * page - 100, true),
            (2 * page, false),
            (3 * page, true),
            (page, false),
            (2 * page + 100, true)
        ]
    );
}

#[test]
fn what_leaves_the_cache_while_extents_are_told_is_no_hole() {
    let fake = Fake::new(32 * MIB);
    let disk = fake.cache(|_| {});
    let (first, late) = (0, 2 * MIB);
    disk.put(first, &page(1)).unwrap();
    disk.put(late, &page(2)).unwrap();
    let mut found = Vec::new();
    let mut is_first = true;
    let each = &mut |extent: Extent| {
        if std::mem::take(&mut is_first) {
            // The hole behind the first page has been seen. The late page leaves.
            disk.flush().unwrap();
            let mut at = 16 * MIB;
            while disk.shared.inner.store.contains(late / PAGE as u64) {
                disk.put(at, &noise(at)).unwrap();
                at += PAGE as u64;
            }
        }
        found.push((extent.bytes, extent.is_zero));
        ControlFlow::Continue(())
    };
    disk.extents(0, 4 * MIB, each).unwrap();
    let mut at = 0;
    for (bytes, is_zero) in found {
        assert!(!(at..at + bytes).contains(&late) || !is_zero, "the late page is a hole");
        at += bytes;
    }
    assert_eq!(at, 4 * MIB);
}

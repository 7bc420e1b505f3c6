//! Tests of the store as a whole, which look inside it afterwards.

mod damage;
mod exhaustion;
#[cfg(target_arch = "x86_64")]
mod fork;
mod marked;
mod memory;
mod model;
mod neighbours;
mod object_trace;
mod prepared;
mod recompression;
mod spill;
mod spill_file;
mod threads;
mod verbs;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ramfold_sys::PAGE_SIZE;

use crate::{Config, EntryKind, Key, Loaded, Statistics, Store};

/// Whether each page of a range of addresses has memory behind it, by the kernel's account.
pub(crate) fn present_pages(range: &Range<usize>) -> Vec<bool> {
    /// Bits of a word of /proc/PID/pagemap: the page is in RAM; it is in swap.
    const PRESENT: u64 = 1 << 63 | 1 << 62;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut words = vec![0; range.len() / PAGE_SIZE * 8];
    pagemap.read_exact_at(&mut words, (range.start / PAGE_SIZE * 8) as u64).unwrap();
    words.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()) & PRESENT != 0).collect()
}

pub(crate) fn present_bytes(range: &Range<usize>) -> usize {
    present_pages(range).iter().filter(|&&page| page).count() * PAGE_SIZE
}

/// How long the tests of random operations run: a second or two, or what RAMFOLD_TEST_SECONDS says.
fn test_duration() -> Duration {
    let seconds = std::env::var("RAMFOLD_TEST_SECONDS").ok();
    Duration::from_secs_f64(seconds.map_or(1.5, |s| s.parse().expect("a number of seconds")))
}

/// Whether such a test goes on: on a busy machine it takes longer until it has done enough.
fn goes_on(started: Instant, enough: bool) -> bool {
    let went_by = started.elapsed();
    went_by < test_duration() || !enough && went_by < test_duration() + Duration::from_secs(300)
}

/// Where the random operations begin: 1, or what RAMFOLD_TEST_SEED says.
fn test_seed() -> u64 {
    let seed = std::env::var("RAMFOLD_TEST_SEED").ok();
    seed.map_or(1, |s| s.parse().expect("a number"))
}

const MIB: usize = 1 << 20;

fn store_of(pool_bytes_max: usize, reserve_bytes: usize) -> Store {
    let config =
        Config { pool_bytes_max, reserve_bytes, metadata_bytes_max: 16 * MIB, spill: None };
    Store::new(&config).unwrap()
}

/// Forgets all ghosts, and returns how many there were.
fn forget_ghosts(store: &Store) -> u64 {
    let mut ghosts = Vec::new();
    store.for_each(|key, kind| {
        if kind == EntryKind::Ghost {
            ghosts.push(key);
        }
    });
    for &key in &ghosts {
        store.neighbours(key, |neighbours| neighbours.forget_ghost(key));
    }
    ghosts.len() as u64
}

impl Statistics {
    /// Pages that can be loaded.
    fn pages(&self) -> u64 {
        self.objects + self.same_filled + self.spilled
    }

    /// Memory of the pool, without the reserve, for a compressed byte; 1 is the least. `None` of an
    /// empty pool.
    fn allocated_per_compressed(&self) -> Option<f64> {
        let allocated = self.pool_used_bytes + self.pool_fragmentation_bytes;
        (self.object_bytes != 0).then(|| allocated as f64 / self.object_bytes as f64)
    }
}

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        // Not 0, which xorshift keeps.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Lengths of all sizes, the ends of the range often.
    fn object_len(&mut self) -> usize {
        1 + match self.below(10) {
            0 => self.below(40),
            1 => 4095 - self.below(5),
            2 => 3830 + self.below(20),
            3 => self.below(4096),
            _ => 500 + self.below(1500),
        } as usize
    }
}

/// Bytes that follow from a seed: a piece of noise, and the seed before it.
fn content(seed: u64, len: usize) -> Vec<u8> {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut random = Random::new(0);
        (0..1 << 13).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let start = Random::new(seed).below((noise.len() - len) as u64) as usize;
    let mut bytes = noise[start..start + len].to_vec();
    let own = seed.to_le_bytes();
    let own_len = own.len().min(len);
    bytes[..own_len].copy_from_slice(&own[..own_len]);
    bytes
}

/// A page as loaded, kept.
#[derive(Clone, PartialEq, Eq)]
enum Page {
    SameFilled(u64),
    Object { encoding: u8, bytes: Vec<u8> },
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Page::SameFilled(word) => write!(f, "{word:#x} over and over"),
            Page::Object { encoding, bytes } => {
                let start = &bytes[..bytes.len().min(8)];
                write!(f, "{} bytes in encoding {encoding}: {start:x?}...", bytes.len())
            }
        }
    }
}

impl Page {
    fn keep(loaded: Loaded<'_>) -> Page {
        match loaded {
            Loaded::SameFilled(word) => Page::SameFilled(word),
            Loaded::Object { encoding, bytes } => Page::Object { encoding, bytes: bytes.to_vec() },
            Loaded::Spilled(spilled) => panic!("{spilled:?}"),
        }
    }

    fn store(&self, store: &Store, key: Key) -> Result<(), crate::StoreError> {
        match self {
            Page::SameFilled(word) => store.store_same_filled(key, *word),
            Page::Object { encoding, bytes } => store.store_object(key, *encoding, bytes),
        }
    }

    /// Any kind of page.
    fn any(random: &mut Random) -> Page {
        match random.below(8) {
            0 => Page::SameFilled(random.below(1 << 32) * 0x1_0000_0001),
            1 => Page::SameFilled(random.next()),
            _ => Page::Object {
                encoding: 1 + random.below(15) as u8,
                bytes: content(random.next(), random.object_len()),
            },
        }
    }
}

/// Stores, forgets and checks pages of this thread's own until `stop`, counting steps. All but one
/// step in `rare` go to a few of them: the others have time to grow old.
#[expect(clippy::too_many_arguments)]
fn use_pages(
    store: &Store,
    thread: u64,
    seed: u64,
    rare: u64,
    stop: &AtomicBool,
    steps: &AtomicU64,
    object: impl Fn(u64) -> Page,
    check: impl Fn(Key, Option<Page>),
) {
    let mut random = Random::new(thread + seed);
    let mut versions = vec![0u64; 20_000];
    while !stop.load(Ordering::Relaxed) {
        let few = random.below(rare) != 0;
        let which = random.below(if few { 30 } else { 20_000 });
        let key = thread << 20 | which;
        let version = &mut versions[which as usize];
        match random.below(4) {
            0 => {
                *version = 1 + random.below(1 << 40);
                object(*version).store(store, key).unwrap();
            }
            1 => {
                store.invalidate(key);
                *version = 0;
            }
            _ => check(key, (*version != 0).then(|| object(*version))),
        }
        steps.fetch_add(1, Ordering::Relaxed);
    }
}

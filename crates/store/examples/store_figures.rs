//! Measures the store by itself, without a codec: time of a store and a take, memory for a
//! compressed byte, index bytes for a page. `docs/store.md` quotes what it prints.
//!
//! ```text
//! cargo run --release -p ramfold-store --example store_figures
//! ```

use std::hint::black_box;
use std::time::Instant;

use ramfold_store::{Config, Loaded, Statistics, Store};

const MIB: usize = 1 << 20;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Lengths of compressed heap pages: most between 600 and 2000 bytes, a few very small, a few
    /// raw.
    fn object_len(&mut self) -> usize {
        match self.below(100) {
            0..5 => 40 + self.below(260) as usize,
            5..95 => 600 + (self.below(701) + self.below(701)) as usize,
            95..98 => 2000 + self.below(1600) as usize,
            _ => 4096,
        }
    }
}

fn new_store(pool_bytes_max: usize) -> Store {
    let config = Config {
        pool_bytes_max,
        reserve_bytes: 8 * MIB,
        metadata_bytes_max: 1024 * MIB,
        spill: None,
    };
    let store = Store::new(&config).unwrap();
    store.refill_reserve().unwrap();
    store
}

fn refill(store: &Store) {
    if store.reserve_low() {
        store.refill_reserve().unwrap();
    }
}

/// One thread takes and stores again. Rounds are short, so that most pass undisturbed on a busy
/// machine.
fn store_and_take(source: &[u8], rounds: usize) {
    println!("store_object + take, one thread, {rounds} rounds of 2,000");
    for (len, pages) in [(1200, 800u64), (240, 800), (4096, 240), (1200, 120_000)] {
        let store = new_store(1024 * MIB);
        let mut random = Random(7);
        for key in 0..pages {
            refill(&store);
            store.store_object(key, 1, &source[key as usize % 4096..][..len]).unwrap();
        }
        let mut ns: Vec<f64> = (0..rounds)
            .map(|_| {
                let keys: Vec<u64> = (0..2000).map(|_| random.below(pages)).collect();
                let start = Instant::now();
                for &key in &keys {
                    let taken = store.take(key, |loaded| match loaded {
                        Loaded::Object { bytes, .. } => bytes[0],
                        Loaded::SameFilled(_) | Loaded::Spilled(_) => 0,
                    });
                    black_box(taken).unwrap().unwrap();
                    store.store_object(key, 1, &source[key as usize % 4096..][..len]).unwrap();
                }
                start.elapsed().as_nanos() as f64 / keys.len() as f64
            })
            .collect();
        ns.sort_by(f64::total_cmp);
        println!(
            "  {len} bytes, pool of {:.1} MiB: p10 {:.0} ns, p50 {:.0} ns",
            store.statistics().pool_used_bytes as f64 / MIB as f64,
            ns[rounds / 10],
            ns[rounds / 2]
        );
    }
}

fn report(name: &str, s: &Statistics) {
    println!(
        "  {name}: {} objects of {:.0} bytes, allocated/compressed {:.3} (slots {:.3}), \
         reserve {} KiB",
        s.objects,
        s.object_bytes as f64 / s.objects as f64,
        s.allocated_per_compressed().unwrap(),
        s.pool_used_bytes as f64 / s.object_bytes as f64,
        s.pool_reserve_bytes >> 10
    );
}

fn fragmentation(source: &[u8], pages: u64) {
    println!("allocated/compressed, {pages} pages of mixed lengths");
    let store = new_store(4096 * MIB);
    let mut random = Random(11);
    let put = |key: u64, random: &mut Random, scale: usize| {
        refill(&store);
        let len = (random.object_len() * scale / 8).clamp(1, 4096);
        store.store_object(key, 1, &source[random.below(4096) as usize..][..len]).unwrap();
    };
    for key in 0..pages {
        put(key, &mut random, 8);
    }
    report("after filling", &store.statistics());
    for _ in 0..4 * pages {
        let key = random.below(pages);
        put(key, &mut random, 8);
    }
    report("each page replaced 4 times", &store.statistics());
    for _ in 0..pages / 2 {
        store.invalidate(random.below(pages));
    }
    report("39 % of the pages freed at random", &store.statistics());
    store.compact(|| true);
    report("compacted", &store.statistics());
    for _ in 0..pages / 2 {
        let key = random.below(pages);
        put(key, &mut random, 6);
    }
    report("refilled with pages of 3/4 the length", &store.statistics());
}

fn metadata(keys: u64) {
    println!("metadata for a page, seal of 4 bytes included, reserve not");
    for (name, stride) in [("all keys", 1u64), ("every 8th key", 8), ("every 64th key", 64)] {
        let store = new_store(1024 * MIB);
        let empty = store.statistics();
        let pages = keys / stride;
        for i in 0..pages {
            refill(&store);
            store.store_object(i * stride, 1, &i.to_le_bytes()).unwrap();
        }
        let s = store.statistics();
        let index = s.metadata_bytes - s.metadata_reserve_bytes;
        println!(
            "  {name} of {keys}: {:.2} bytes ({} KiB before the first)",
            index as f64 / pages as f64 + 4.0,
            (empty.metadata_bytes - empty.metadata_reserve_bytes) >> 10
        );
    }
}

fn ranges(source: &[u8], pages: u64) {
    println!("ranges");
    let store = new_store(1024 * MIB);
    for key in 0..pages {
        refill(&store);
        store.store_object(key * 3, 1, &source[key as usize % 4096..][..800]).unwrap();
    }
    let start = Instant::now();
    let count = 1000;
    for i in 0..count {
        black_box(store.invalidate_range((1 << 40) + i, 1 << 28));
    }
    println!(
        "  invalidate_range of an empty TiB beside {pages} pages: {:.1} us",
        start.elapsed().as_nanos() as f64 / 1e3 / count as f64
    );
    let start = Instant::now();
    let moved = store.rekey_range(0, (1 << 40) + 5, 3 * pages).unwrap();
    println!("  rekey_range: {:.0} ns a page", start.elapsed().as_nanos() as f64 / moved as f64);
    let start = Instant::now();
    let gone = store.invalidate_range(0, u64::MAX);
    println!(
        "  invalidate_range of everything: {:.0} ns a page",
        start.elapsed().as_nanos() as f64 / gone as f64
    );
}

/// `scale` 1 is the whole; more does that many times less.
fn measure(scale: u64) {
    let mut random = Random(1);
    let source: Vec<u8> = (0..8192 + 4096).map(|_| random.next() as u8).collect();
    store_and_take(&source, 500 / scale as usize);
    fragmentation(&source, 25_000 / scale);
    fragmentation(&source, 250_000 / scale);
    metadata((1 << 20) / scale);
    ranges(&source, 100_000 / scale);
}

fn main() {
    measure(1);
}

#[test]
fn runs() {
    measure(200);
}

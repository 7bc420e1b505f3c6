//! The store's verbs by themselves, without a codec: how long a page takes, how threads get on
//! beside one another, what the index costs, and ranges of keys.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use ramfold_store::{Config, Key, Loaded, OBJECT_BYTES_MAX, Store};
use serde::Serialize;

use crate::content::random::{Random, mix};
use crate::harness::statistics::summarise;

const MIB: usize = 1 << 20;

/// Objects of about one length that are taken and stored again, in any order.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// The mean.
    object_bytes: usize,
    pages: u64,
}

const CASES: [Case; 5] = [
    Case { object_bytes: 1200, pages: 800 },
    Case { object_bytes: 240, pages: 800 },
    Case { object_bytes: 4096, pages: 240 },
    Case { object_bytes: 1200, pages: 8_000 },
    Case { object_bytes: 1200, pages: 120_000 },
];

/// Pages taken and stored again in one round, by all threads together.
const PAIRS_PER_ROUND: usize = 192_000;

/// How long a page takes that is taken out of the store and stored again.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PairRow {
    pub(super) object_bytes: usize,
    pub(super) pages: u64,
    /// Slots in use.
    pub(super) pool_bytes: u64,
    pub(super) threads: usize,
    /// Whether each thread has pages of its own, or all use any.
    pub(super) own_pages: bool,
    /// Time of a round for a page, all threads together: the medians of the rounds, and a quartile.
    pub(super) ns_median: f64,
    pub(super) ns_lower_quartile: f64,
    /// Times the pages of one thread in the same time, by medians.
    pub(super) speedup: f64,
}

/// Tables per page, with one in `stride` keys in use.
#[derive(Clone, Debug, Serialize)]
pub(super) struct IndexRow {
    pub(super) stride: u64,
    pub(super) pages: u64,
    /// The pool's tables and each object's seal (4 bytes) included, the reserve not.
    pub(super) metadata_bytes_per_page: f64,
}

/// Ranges of keys: what one call takes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RangeTimes {
    pub(super) pages: u64,
    /// To invalidate 2^28 keys (a TiB of pages) under which nothing is stored.
    pub(super) invalidate_nothing_us: f64,
    pub(super) rekey_ns_per_page: f64,
    /// The release of the memory included.
    pub(super) invalidate_ns_per_page: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) pairs: Vec<PairRow>,
    pub(super) index: Vec<IndexRow>,
    pub(super) ranges: RangeTimes,
}

/// Measures all; a `share` of N does N times less.
pub(super) fn measure(
    threads: &[usize],
    rounds: usize,
    share: usize,
    mut tell: impl FnMut(&str),
) -> Result<Figures> {
    let mut random = Random::new(1);
    let noise = random.bytes(2 * OBJECT_BYTES_MAX);
    let mut pairs = Vec::new();
    for case in CASES {
        tell(&format!("{} objects of {} bytes", case.pages, case.object_bytes));
        pairs.extend(measure_pairs(case, threads, rounds, share, &noise)?);
    }
    tell("index");
    let index = [1, 8, 64].map(|stride| measure_index(stride, (1 << 20) / share as u64));
    tell("ranges");
    Ok(Figures {
        pairs,
        index: index.into_iter().collect::<Result<_>>()?,
        ranges: measure_ranges(100_000 / share as u64, &noise)?,
    })
}

fn new_store() -> Result<Store> {
    let store = Store::new(&Config {
        pool_bytes_max: 1024 * MIB,
        reserve_bytes: 8 * MIB,
        metadata_bytes_max: 1024 * MIB,
        spill: None,
    })
    .context("cannot make a store")?;
    store.refill_reserve().context("cannot fill the store's reserve")?;
    Ok(store)
}

fn put(store: &Store, key: Key, object: &[u8]) -> Result<()> {
    if store.reserve_low() {
        store.refill_reserve().context("cannot fill the store's reserve")?;
    }
    store.store_object(key, 1, object).with_context(|| format!("cannot store page {key}"))
}

/// What is stored under a key: objects from 3/4 to 5/4 of the mean length, whole pages as they are.
fn object(noise: &[u8], key: Key, mean: usize) -> &[u8] {
    let vary = if mean < OBJECT_BYTES_MAX { mix(key) as usize % (mean / 2 + 1) } else { mean / 4 };
    &noise[key as usize % OBJECT_BYTES_MAX..][..mean * 3 / 4 + vary]
}

fn measure_pairs(
    case: Case,
    threads: &[usize],
    rounds: usize,
    share: usize,
    noise: &[u8],
) -> Result<Vec<PairRow>> {
    let Case { object_bytes, pages } = case;
    let pages = (pages / share as u64).max(64);
    let store = new_store()?;
    for key in 0..pages {
        put(&store, key, object(noise, key, object_bytes))?;
    }
    let pool_bytes = store.statistics().pool_used_bytes;
    let mut crowds: Vec<Crowd> = Vec::new();
    for &threads in threads {
        crowds.push(Crowd { threads, own_pages: true });
        if threads > 1 {
            crowds.push(Crowd { threads, own_pages: false });
        }
    }
    let mut ns: Vec<Vec<f64>> = vec![Vec::new(); crowds.len()];
    for round in 0..rounds {
        // In turn, so that what else goes on in the machine hits all alike.
        for (ns, &crowd) in ns.iter_mut().zip(&crowds) {
            let work =
                Work { pairs: PAIRS_PER_ROUND / share, seed: (round * crowd.threads) as u64 };
            ns.push(one_round(&store, Case { object_bytes, pages }, crowd, work, noise)?);
        }
    }
    let mut rows: Vec<PairRow> = Vec::new();
    for (ns, Crowd { threads, own_pages }) in ns.iter().zip(crowds) {
        let summary = summarise(ns).context("no rounds")?;
        let first = rows.first().map_or(summary.median, |row| row.ns_median);
        rows.push(PairRow {
            object_bytes,
            pages,
            pool_bytes,
            threads,
            own_pages,
            ns_median: summary.median,
            ns_lower_quartile: summary.lower_quartile,
            speedup: first / summary.median,
        });
    }
    Ok(rows)
}

/// Threads that work at once.
#[derive(Clone, Copy)]
struct Crowd {
    threads: usize,
    own_pages: bool,
}

#[derive(Clone, Copy)]
struct Work {
    pairs: usize,
    seed: u64,
}

/// Nanoseconds for a page.
fn one_round(store: &Store, case: Case, crowd: Crowd, work: Work, noise: &[u8]) -> Result<f64> {
    let Case { object_bytes, pages } = case;
    let Crowd { threads, own_pages } = crowd;
    let barrier = Barrier::new(threads + 1);
    let each = (work.pairs / threads).max(1);
    let run = |thread: usize| -> Result<()> {
        let mut random = Random::new(work.seed + thread as u64);
        let part = if own_pages { (pages as usize / threads).max(1) } else { pages as usize };
        let first = if own_pages { thread * part % pages as usize } else { 0 };
        barrier.wait();
        for _ in 0..each {
            let key = (first + random.below(part)) as Key;
            // Another thread may just have taken it.
            let first = store.take(key, |loaded| match loaded {
                Loaded::Object { bytes, .. } => bytes[0],
                Loaded::SameFilled(_) | Loaded::Spilled(_) => 0,
            });
            black_box(first.with_context(|| format!("cannot take page {key}"))?);
            store.store_object(key, 1, object(noise, key, object_bytes))?;
        }
        Ok(())
    };
    let (results, elapsed) = thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        barrier.wait();
        let started = Instant::now();
        let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        (results, started.elapsed())
    });
    for result in results {
        result.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(elapsed.as_nanos() as f64 / (each * threads) as f64)
}

fn measure_index(stride: u64, keys: u64) -> Result<IndexRow> {
    const SEAL_BYTES: f64 = 4.0;
    let store = new_store()?;
    let pages = keys.div_ceil(stride);
    for nth in 0..pages {
        put(&store, nth * stride, &nth.to_le_bytes())?;
    }
    let statistics = store.statistics();
    let tables = statistics.metadata_bytes - statistics.metadata_reserve_bytes;
    let metadata_bytes_per_page = tables as f64 / pages as f64 + SEAL_BYTES;
    Ok(IndexRow { stride, pages, metadata_bytes_per_page })
}

fn measure_ranges(pages: u64, noise: &[u8]) -> Result<RangeTimes> {
    const ELSEWHERE: Key = 1 << 40;
    const CALLS: u64 = 1000;
    let store = new_store()?;
    for nth in 0..pages {
        put(&store, nth * 3, object(noise, nth, 800))?;
    }
    let started = Instant::now();
    for nth in 0..CALLS {
        black_box(store.invalidate_range(ELSEWHERE + nth, 1 << 28));
    }
    let invalidate_nothing_us = started.elapsed().as_nanos() as f64 / 1e3 / CALLS as f64;
    let started = Instant::now();
    let moved = store.rekey_range(0, ELSEWHERE + 5, 3 * pages).context("cannot move pages")?;
    let rekey_ns_per_page = started.elapsed().as_nanos() as f64 / moved as f64;
    let started = Instant::now();
    let gone = store.invalidate_range(0, u64::MAX);
    let invalidate_ns_per_page = started.elapsed().as_nanos() as f64 / gone as f64;
    anyhow::ensure!((moved, gone) == (pages, pages), "of {pages}, {moved} moved, {gone} went");
    Ok(RangeTimes { pages, invalidate_nothing_us, rekey_ns_per_page, invalidate_ns_per_page })
}

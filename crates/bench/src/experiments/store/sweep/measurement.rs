//! Paper 001's parameters of the cache before the disk: how full it may be before it is cleaned
//! (its "cleaning threshold"), and how much is written at once ("batched writes", in percent of the
//! cache).
//!
//! A program whose memory is full goes through pages in random order: each comes from the pool or
//! from the file, and another leaves for the pool. A thread of its own writes to the file while the
//! pool holds more than the threshold; a page that finds the pool full waits for it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ramfold_store::{Choose, Key, Loaded, OBJECT_BYTES_MAX, StoreError};
use serde::Serialize;

use crate::content::random::{Random, Zipf};
use crate::experiments::store::spill::bed::{Bed, ReadRoom};
use crate::harness::statistics::median_of;

/// Pages of the program for each byte of pool: what is compressed is three times what the pool
/// holds.
const OBJECTS_PER_POOL: u64 = 3;
const OBJECT_BYTES: usize = 1300;
/// Pages that the program has in memory, of those that it uses, in percent.
const RESIDENT_PERCENT: usize = 10;
/// Popularity of pages, as of a program's.
const ZIPF_EXPONENT: f64 = 0.9;
/// How long the writer sleeps when there is nothing to write.
const REST: Duration = Duration::from_micros(200);

#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) pool_bytes: u64,
    pub(super) accesses: usize,
    pub(super) rounds: usize,
}

/// One pair of parameters.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Of the pool, in percent: where cleaning begins.
    pub(super) threshold_percent: u64,
    pub(super) batch_bytes: usize,
    pub(super) batch_percent: f64,
    /// Mean time of an access; medians of the rounds, as all that follows.
    pub(super) access_us: f64,
    /// Accesses that were served from the pool, and by a read of the file, in percent.
    pub(super) pool_hits_percent: f64,
    pub(super) reads_percent: f64,
    /// Accesses that waited for room.
    pub(super) stalls: f64,
    pub(super) written_mib: f64,
}

struct Run {
    access_us: f64,
    pool_hits: u64,
    reads: u64,
    stalls: u64,
    written_bytes: u64,
}

/// Every threshold with every length of a batch.
pub(super) fn sweep(
    folder: &Path,
    thresholds: &[u64],
    batches: &[usize],
    amount: &Sweep,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &batch_bytes in batches {
        for &threshold_percent in thresholds {
            let mut runs = Vec::new();
            for round in 0..amount.rounds {
                tell(&format!(
                    "{threshold_percent} %, {} KiB, round {}",
                    batch_bytes >> 10,
                    round + 1
                ));
                runs.push(run(folder, threshold_percent, batch_bytes, amount, round as u64)?);
            }
            let middle = |of: &dyn Fn(&Run) -> f64| median_of(&runs, of).context("no rounds");
            let percent = 100.0 / amount.accesses as f64;
            rows.push(Row {
                threshold_percent,
                batch_bytes,
                batch_percent: 100.0 * batch_bytes as f64 / amount.pool_bytes as f64,
                access_us: middle(&|run| run.access_us)?,
                pool_hits_percent: middle(&|run| run.pool_hits as f64 * percent)?,
                reads_percent: middle(&|run| run.reads as f64 * percent)?,
                stalls: middle(&|run| run.stalls as f64)?,
                written_mib: middle(&|run| run.written_bytes as f64 / (1 << 20) as f64)?,
            });
        }
    }
    Ok(rows)
}

/// Between the program and the writer.
#[derive(Default)]
struct Signals {
    stop: AtomicBool,
    /// Counts what was written; waited for by a program that finds no room.
    settled: Mutex<u64>,
    room: Condvar,
}

fn run(
    folder: &Path,
    threshold_percent: u64,
    batch_bytes: usize,
    amount: &Sweep,
    seed: u64,
) -> Result<Run> {
    let objects = OBJECTS_PER_POOL * amount.pool_bytes / OBJECT_BYTES as u64;
    let file_bytes = 4 * OBJECTS_PER_POOL * amount.pool_bytes + 16 * batch_bytes as u64;
    let bed = Bed::new(folder, amount.pool_bytes, file_bytes, batch_bytes)?;
    let threshold = amount.pool_bytes * threshold_percent / 100;
    let signals = Signals::default();
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&bed, threshold, &signals));
        let used = use_pages(&bed, objects, amount.accesses, seed, &signals);
        signals.stop.store(true, Ordering::Relaxed);
        let written = writer.join();
        let Ok(written) = written else { bail!("the writer panicked") };
        let written_bytes = written?;
        Ok(Run { written_bytes, ..used? })
    })
}

/// Writes while the pool holds more than the threshold; returns how much.
fn write(bed: &Bed, threshold: u64, signals: &Signals) -> Result<u64> {
    let mut memory = bed.memory()?;
    let mut spill = bed.spill(&mut memory)?;
    let tell = || {
        *signals.settled.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        signals.room.notify_all();
    };
    let result = loop {
        if signals.stop.load(Ordering::Relaxed) {
            break spill.finish(&bed.store);
        }
        let leaving = spill.bytes_under_way() as u64;
        let written = if (bed.store.cost_bytes() as u64).saturating_sub(leaving) > threshold {
            spill.write(&bed.store, &bed.cipher, Choose::Oldest)
        } else {
            spill.finish(&bed.store).map(|()| false)
        };
        tell();
        match written {
            Ok(true) => {}
            Ok(false) => thread::sleep(REST),
            Err(error) => break Err(error),
        }
    };
    signals.stop.store(true, Ordering::Relaxed);
    tell();
    result.context("cannot write to the spill file")?;
    Ok(spill.counts().bytes_written)
}

/// The program.
fn use_pages(
    bed: &Bed,
    objects: u64,
    accesses: usize,
    seed: u64,
    signals: &Signals,
) -> Result<Run> {
    let mut random = Random::new(seed);
    let popularity = Zipf::new(objects as usize, ZIPF_EXPONENT);
    let noise = random.bytes(2 * OBJECT_BYTES_MAX);
    let content = |key: Key| &noise[key as usize % OBJECT_BYTES_MAX..][..OBJECT_BYTES];
    let mut run = Run { access_us: 0.0, pool_hits: 0, reads: 0, stalls: 0, written_bytes: 0 };
    let resident_max = objects as usize * RESIDENT_PERCENT / 100;
    let mut resident = VecDeque::with_capacity(resident_max + 1);
    let mut is_resident = vec![false; objects as usize];
    for key in 0..objects {
        put(bed, key, content(key), &mut run, signals)?;
    }
    let mut room = ReadRoom::new();
    (run.stalls, run.reads) = (0, 0);
    let started = Instant::now();
    for _ in 0..accesses {
        // Popular pages lie anywhere.
        let rank = popularity.sample(&mut random) as u64;
        let key = rank.wrapping_mul(0x9e37_79b1) % objects;
        if is_resident[key as usize] {
            continue;
        }
        fetch(bed, key, content(key), &mut room, &mut run)?;
        is_resident[key as usize] = true;
        resident.push_back(key);
        if resident.len() > resident_max {
            let Some(leaves) = resident.pop_front() else { continue };
            is_resident[leaves as usize] = false;
            put(bed, leaves, content(leaves), &mut run, signals)?;
        }
    }
    run.access_us = started.elapsed().as_secs_f64() * 1e6 / accesses as f64;
    Ok(run)
}

/// A page that is not in memory, from wherever it is.
fn fetch(bed: &Bed, key: Key, content: &[u8], room: &mut ReadRoom, run: &mut Run) -> Result<()> {
    loop {
        let is_right = bed.store.load(key, |loaded| match loaded {
            Loaded::Object { bytes, .. } => Ok(bytes == content),
            Loaded::Spilled(spilled) => Err(spilled),
            Loaded::SameFilled(_) => Ok(false),
        });
        match is_right
            .with_context(|| format!("page {key}"))?
            .with_context(|| format!("page {key} is lost"))?
        {
            Ok(is_right) => {
                ensure!(is_right, "page {key} is not what was stored");
                run.pool_hits += 1;
                break;
            }
            Err(spilled) => {
                let is_right = bed.read(spilled, room).map(|object| object == content);
                run.reads += 1;
                // It may have been moved meanwhile.
                if bed.store.spilled(key) == Some(spilled) {
                    ensure!(is_right?, "page {key} in the file is not what was stored");
                    break;
                }
            }
        }
    }
    bed.store.invalidate(key);
    Ok(())
}

/// Stores a page; waits for room where there is none.
fn put(bed: &Bed, key: Key, object: &[u8], run: &mut Run, signals: &Signals) -> Result<()> {
    let mut waited = false;
    loop {
        let settled = *signals.settled.lock().unwrap_or_else(PoisonError::into_inner);
        match bed.store.store_object(key, 1, object) {
            Ok(()) => break,
            Err(StoreError::PoolFull { .. }) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot store page {key}")),
        }
        waited = true;
        let mut now = signals.settled.lock().unwrap_or_else(PoisonError::into_inner);
        while *now == settled {
            ensure!(!signals.stop.load(Ordering::Relaxed), "the writer has ended");
            now = signals.room.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }
    run.stalls += u64::from(waited);
    Ok(())
}

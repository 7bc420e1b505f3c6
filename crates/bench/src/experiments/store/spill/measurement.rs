//! The spill file, the disk without it, and fio, in turn.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ramfold_store::{Choose, Key, OBJECT_BYTES_MAX};
use serde::Serialize;
use serde_json::Value;

use super::bed::{Bed, ReadRoom};
use crate::content::random::Random;
use crate::harness::fio;
use crate::harness::latency::{Histogram, Latency};
use crate::harness::statistics::median;

/// Of the file for each object, at least.
const OVERHEAD_BYTES: u64 = 20;

/// The speed of the spill file, and of the disk.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) rows: Vec<Row>,
    /// Why fio is not among them.
    pub(super) without_fio: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// `spill`, `plain` (the same writes and reads of the same file, nothing encrypted) or `fio`.
    pub(super) what: &'static str,
    pub(super) object_bytes: usize,
    /// In batches, one after the other: MB (10^6 bytes) a second; medians of the rounds.
    pub(super) write_mb_per_s: f64,
    /// One object at a time, in any order; all rounds.
    pub(super) read: Latency,
}

/// How much is written and read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) reads: usize,
    pub(super) segment_bytes: usize,
    pub(super) rounds: usize,
}

/// Measures in turn: the spill file with objects of a page and of a third of one, plain writes and
/// reads of the same lengths, and fio.
pub(super) fn compare(
    folder: &Path,
    amount: &Amount,
    mut tell: impl FnMut(&str),
) -> Result<Figures> {
    const LENGTHS: [usize; 2] = [OBJECT_BYTES_MAX, 1300];
    let mut cells: Vec<Cell> = Vec::new();
    for object_bytes in LENGTHS {
        cells.push(Cell::new("spill", object_bytes));
        cells.push(Cell::new("plain", object_bytes));
    }
    let mut without_fio = None;
    match fio::is_here() {
        Ok(()) => cells.push(Cell::new("fio", OBJECT_BYTES_MAX)),
        Err(error) => without_fio = Some(format!("{error:#}")),
    }
    for round in 0..amount.rounds {
        for cell in &mut cells {
            tell(&format!("{}, round {}", cell.what, round + 1));
            let (mb_per_s, times) = match cell.what {
                "spill" => spill_round(folder, amount, cell.object_bytes, round as u64)?,
                "plain" => plain_round(folder, amount, cell.object_bytes, round as u64)?,
                _ => fio_round(folder, amount)?,
            };
            cell.write_mb_per_s.push(mb_per_s);
            match times {
                Times::All(times) => cell.times.merge(&times),
                Times::Told(latency) => cell.told.push(latency),
            }
        }
    }
    let rows = cells.into_iter().map(Cell::row).collect::<Result<_>>()?;
    Ok(Figures { rows, without_fio })
}

struct Cell {
    what: &'static str,
    object_bytes: usize,
    write_mb_per_s: Vec<f64>,
    times: Histogram,
    told: Vec<Latency>,
}

enum Times {
    All(Histogram),
    /// Quantiles that another program has made.
    Told(Latency),
}

impl Cell {
    fn new(what: &'static str, object_bytes: usize) -> Cell {
        let times = Histogram::default();
        Cell { what, object_bytes, write_mb_per_s: Vec::new(), times, told: Vec::new() }
    }

    fn row(mut self) -> Result<Row> {
        // Of quantiles by rounds the round in the middle is taken.
        self.told.sort_by_key(|latency| latency.p50_ns);
        let told = self.told.get(self.told.len() / 2).copied();
        Ok(Row {
            what: self.what,
            object_bytes: self.object_bytes,
            write_mb_per_s: median(&self.write_mb_per_s).context("no rounds")?,
            read: told.or_else(|| self.times.latency()).context("nothing was read")?,
        })
    }
}

/// Stores objects, lets all of them go to the file, and reads them in any order.
fn spill_round(
    folder: &Path,
    amount: &Amount,
    object_bytes: usize,
    seed: u64,
) -> Result<(f64, Times)> {
    let count = amount.bytes / object_bytes as u64;
    // Each takes up to 80 bytes more in the file.
    let file_bytes = count * (object_bytes as u64 + 80) + 8 * amount.segment_bytes as u64;
    let bed = Bed::new(folder, 2 * amount.bytes + (64 << 20), file_bytes, amount.segment_bytes)?;
    let mut random = Random::new(seed);
    let noise = random.bytes(2 * OBJECT_BYTES_MAX);
    let object = |key: Key| &noise[key as usize % OBJECT_BYTES_MAX..][..object_bytes];
    for key in 0..count {
        bed.store.store_object(key, 1, object(key)).context("cannot store an object")?;
    }
    let mut memory = bed.memory()?;
    let mut spill = bed.spill(&mut memory)?;
    bed.store.begin_age();
    let started = Instant::now();
    // What was begun in the last age comes with the next.
    while spill.counts().pages_written < count {
        if !spill.write(&bed.store, &bed.cipher, Choose::Oldest)? {
            spill.finish(&bed.store)?;
        }
    }
    spill.finish(&bed.store)?;
    let mb_per_s = spill.counts().bytes_written as f64 / 1e6 / started.elapsed().as_secs_f64();
    let mut times = Histogram::default();
    let mut room = ReadRoom::new();
    for _ in 0..amount.reads {
        let key = random.below(count as usize) as Key;
        let started = Instant::now();
        let spilled = bed.store.spilled(key).with_context(|| format!("page {key} is not there"))?;
        let object_read = bed.read(spilled, &mut room)?;
        times.record(started.elapsed().as_nanos() as u64);
        ensure!(object_read == object(key), "page {key} is not what was stored");
    }
    Ok((mb_per_s, Times::All(times)))
}

/// The same lengths, without a store: two buffers that are written in turn, and reads of the pages
/// that an object would lie in.
fn plain_round(
    folder: &Path,
    amount: &Amount,
    object_bytes: usize,
    seed: u64,
) -> Result<(f64, Times)> {
    let bed = Bed::new(folder, 1 << 20, amount.bytes, amount.segment_bytes)?;
    let mut random = Random::new(seed);
    let noise = random.bytes(amount.segment_bytes + OBJECT_BYTES_MAX);
    // Past the page cache memory must begin at a page, too.
    let bytes = &noise[noise.as_ptr().align_offset(OBJECT_BYTES_MAX)..][..amount.segment_bytes];
    let writes = (amount.bytes / amount.segment_bytes as u64).max(1);
    let started = Instant::now();
    for nth in 0..writes {
        bed.direct
            .write_at(nth * amount.segment_bytes as u64, bytes)
            .context("cannot write to the disk")?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let mb_per_s = (writes * amount.segment_bytes as u64) as f64 / 1e6 / seconds;
    let mut times = Histogram::default();
    let mut room = ReadRoom::new();
    let units = writes as usize * amount.segment_bytes / 64 - object_bytes.div_ceil(64) - 2;
    for _ in 0..amount.reads {
        let first = random.below(units) as u64 * 64;
        let range = bed.direct.whole(first..first + object_bytes as u64 + OVERHEAD_BYTES);
        let bytes = &mut room.bytes()[..(range.end - range.start) as usize];
        let started = Instant::now();
        bed.direct.read_at(range.start, bytes).context("cannot read from the disk")?;
        times.record(started.elapsed().as_nanos() as u64);
    }
    Ok((mb_per_s, Times::All(times)))
}

/// fio on a file of its own: writes of a segment's length, two under way, and reads of a page, one
/// at a time.
fn fio_round(folder: &Path, amount: &Amount) -> Result<(f64, Times)> {
    let file = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("cannot make a file in {}", folder.display()))?;
    let write = run_fio(
        file.path(),
        &[
            "--rw=write",
            &format!("--bs={}", amount.segment_bytes),
            "--iodepth=2",
            "--ioengine=io_uring",
            &format!("--size={}", amount.bytes),
        ],
    )?;
    let read = run_fio(
        file.path(),
        &[
            "--rw=randread",
            "--bs=4096",
            "--iodepth=1",
            "--ioengine=psync",
            &format!("--size={}", amount.bytes),
            &format!("--number_ios={}", amount.reads),
        ],
    )?;
    let latency = fio::latency(&read["read"])?;
    let mb_per_s = fio::number(&write["write"]["bw_bytes"], "bandwidth")? / 1e6;
    Ok((mb_per_s, Times::Told(latency)))
}

/// What fio tells of its one job.
fn run_fio(file: &Path, arguments: &[&str]) -> Result<Value> {
    let output = Command::new("fio")
        .args(["--name=spill", "--direct=1", "--output-format=json"])
        .arg(format!("--filename={}", file.display()))
        .args(arguments)
        .output()
        .context("cannot start fio")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio ended with {}: {}", output.status, said.trim());
    fio::first_job(&output.stdout)
}

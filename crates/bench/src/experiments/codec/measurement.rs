//! Times of subjects, in turns over the same pages: with their pages and objects in the caches, and
//! without.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ramfold_codec::{PAGE_SIZE, Page};
use ramfold_store::charged_bytes;
use serde::Serialize;

use super::subjects::{Object, ROOM_BYTES, Room, Subject};
use crate::content::page_files::Pages;
use crate::content::random::Random;
use crate::harness::statistics::median;
use crate::harness::turns::turns;
use crate::machine::interrupt;

/// Pages timed together. Their objects and they fit a second-level cache, and they take less than a
/// time slice, so that other work on the machine spoils some rounds and not all.
const BATCH_PAGES: usize = 16;
/// Batches between two times that everything is pushed out of the caches.
const COLD_BATCHES: usize = 32;
/// Larger than the last-level cache of most machines.
const SWEEP_BYTES: usize = 96 << 20;

/// The objects that a subject makes of the pages of a file, one after the other in memory.
pub(super) struct Objects {
    bytes: Vec<u8>,
    /// For each page the encoding, and where its object ends; without one where the last ended.
    ends: Vec<(u8, usize)>,
}

impl Objects {
    /// Compresses every page and checks that it comes back.
    ///
    /// # Errors
    /// When a page comes back changed or not at all.
    pub(super) fn make(subject: &mut dyn Subject, pages: &[Page]) -> Result<Objects> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(pages.len()));
        let mut out = [0; ROOM_BYTES];
        let mut back = [0; PAGE_SIZE];
        for (nth, page) in pages.iter().enumerate() {
            let mut encoding = 0;
            if let Some(written) = subject.compress(page, &mut out) {
                encoding = written.encoding;
                let object = Object { encoding, bytes: &out[..written.len] };
                back.fill(0x5a);
                subject
                    .decompress(object, &mut back)
                    .with_context(|| format!("{}: page {nth}", subject.name()))?;
                ensure!(back == *page, "{}: page {nth} came back changed", subject.name());
                bytes.extend(object.bytes);
            }
            ends.push((encoding, bytes.len()));
        }
        Ok(Objects { bytes, ends })
    }

    /// The object of a page; `None` for a page that is kept as it is.
    pub(super) fn get(&self, nth: usize) -> Option<Object<'_>> {
        let start = nth.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (encoding, end) = self.ends[nth];
        (start < end).then(|| Object { encoding, bytes: &self.bytes[start..end] })
    }

    fn lengths(&self) -> impl Iterator<Item = Option<usize>> {
        (0..self.ends.len()).map(|nth| self.get(nth).map(|object| object.bytes.len()))
    }
}

/// What one subject does with one file. Sizes and counts are of pages that are not same-filled;
/// speeds are GB of pages a second on one core, medians of the rounds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Speeds {
    pub(super) incompressible: usize,
    /// Bytes of the objects; a page without one counts whole.
    pub(super) compressed_bytes: u64,
    /// What the pool charges for them.
    pub(super) charged_bytes: u64,
    pub(super) compress_gbps: f64,
    /// Of the pages that have an object.
    pub(super) decompress_gbps: f64,
    /// Of all pages there and back; a page without an object is copied back.
    pub(super) pair_gbps: f64,
    pub(super) cold_compress_gbps: f64,
    pub(super) cold_decompress_gbps: f64,
    /// Nanoseconds a page, each timed alone.
    pub(super) compress_ns_p50: u64,
    pub(super) compress_ns_p99: u64,
    pub(super) decompress_ns_p50: u64,
    pub(super) decompress_ns_p99: u64,
}

/// The median, and what one in a hundred exceeds.
fn quantiles(mut sample: Vec<u64>) -> [u64; 2] {
    sample.sort_unstable();
    [50, 99].map(|share| sample.get(sample.len() * share / 100).copied().unwrap_or(0))
}

/// Measures the subjects over one file.
///
/// # Errors
/// When a subject fails, or a signal came.
pub(super) fn measure(
    subjects: &mut [Box<dyn Subject>],
    pages: &Pages,
    rounds: usize,
    mut show: impl FnMut(&str),
) -> Result<Vec<Speeds>> {
    let pages = &pages.distinct;
    let mut objects = Vec::new();
    for subject in subjects.iter_mut() {
        interrupt::check()?;
        show(subject.name());
        objects.push(Objects::make(subject.as_mut(), pages)?);
    }
    let mut clock = Clock::new(pages.len());
    let mut samples: Vec<Samples> = subjects.iter().map(|_| Samples::default()).collect();
    for (_, nth) in turns(rounds, subjects.len()) {
        interrupt::check()?;
        show(subjects[nth].name());
        clock.round(subjects[nth].as_mut(), pages, &objects[nth], &mut samples[nth]);
    }
    Ok(objects.iter().zip(samples).map(|(objects, samples)| speeds(objects, samples)).collect())
}

#[derive(Default)]
struct Samples {
    compress: Vec<f64>,
    decompress: Vec<f64>,
    pair: Vec<f64>,
    cold_compress: Vec<f64>,
    cold_decompress: Vec<f64>,
    compress_ns: Vec<u64>,
    decompress_ns: Vec<u64>,
}

fn speeds(objects: &Objects, samples: Samples) -> Speeds {
    let of = |sample: &[f64]| median(sample).unwrap_or(0.0);
    let sum = |cost: fn(usize) -> usize| {
        objects.lengths().map(|length| length.map_or(PAGE_SIZE, cost) as u64).sum()
    };
    let [compress_ns_p50, compress_ns_p99] = quantiles(samples.compress_ns);
    let [decompress_ns_p50, decompress_ns_p99] = quantiles(samples.decompress_ns);
    Speeds {
        incompressible: objects.lengths().filter(Option::is_none).count(),
        compressed_bytes: sum(|length| length),
        charged_bytes: sum(charged_bytes),
        compress_gbps: of(&samples.compress),
        decompress_gbps: of(&samples.decompress),
        pair_gbps: of(&samples.pair),
        cold_compress_gbps: of(&samples.cold_compress),
        cold_decompress_gbps: of(&samples.cold_decompress),
        compress_ns_p50,
        compress_ns_p99,
        decompress_ns_p50,
        decompress_ns_p99,
    }
}

struct Clock {
    /// Page numbers in the order in which they are visited without a cache: no prefetcher guesses
    /// it.
    shuffled: Vec<usize>,
    sweep: Vec<u8>,
    out: Room,
    back: Page,
}

impl Clock {
    fn new(pages: usize) -> Clock {
        let mut shuffled: Vec<usize> = (0..pages).collect();
        let mut random = Random::new(1);
        for last in (1..pages).rev() {
            shuffled.swap(last, random.below(last + 1));
        }
        Clock { shuffled, sweep: vec![1; SWEEP_BYTES], out: [0; ROOM_BYTES], back: [0; PAGE_SIZE] }
    }

    fn round(
        &mut self,
        subject: &mut dyn Subject,
        pages: &[Page],
        objects: &Objects,
        samples: &mut Samples,
    ) {
        let (mut compress, mut decompress) = (Spent::default(), Spent::default());
        let mut copy = Duration::ZERO;
        let in_order: Vec<usize> = (0..pages.len()).collect();
        for (nth, batch) in in_order.chunks(BATCH_PAGES).enumerate() {
            // A page is coded once a round, as in a program: a second time the processor would have
            // learned its branches. One batch is timed as a whole, the next page by page.
            let whole = (nth + samples.compress.len()).is_multiple_of(2);
            touch(batch.iter().map(|&nth| &pages[nth][..]));
            if whole {
                compress.add(batch.len(), self.compress(subject, pages, batch));
            } else {
                let time = |&nth| self.compress(subject, pages, &[nth]).as_nanos() as u64;
                samples.compress_ns.extend(batch.iter().map(time));
            }
            let fitting: Vec<usize> =
                batch.iter().copied().filter(|&nth| objects.get(nth).is_some()).collect();
            touch(fitting.iter().filter_map(|&nth| Some(objects.get(nth)?.bytes)));
            if whole {
                decompress.add(fitting.len(), self.decompress(subject, objects, &fitting));
                copy += self.copy(pages, objects, batch);
            } else {
                let time = |&nth| self.decompress(subject, objects, &[nth]).as_nanos() as u64;
                samples.decompress_ns.extend(fitting.iter().map(time));
            }
        }
        samples.compress.push(compress.rate());
        samples.decompress.push(decompress.rate());
        let pair = Spent { pages: compress.pages, time: compress.time + decompress.time + copy };
        samples.pair.push(pair.rate());

        let shuffled = std::mem::take(&mut self.shuffled);
        let (mut compress, mut decompress) = (Spent::default(), Spent::default());
        for batch in shuffled.chunks(BATCH_PAGES * COLD_BATCHES) {
            self.sweep();
            compress.add(batch.len(), self.compress(subject, pages, batch));
            let fitting = batch.iter().filter(|&&nth| objects.get(nth).is_some()).count();
            self.sweep();
            decompress.add(fitting, self.decompress(subject, objects, batch));
        }
        self.shuffled = shuffled;
        samples.cold_compress.push(compress.rate());
        samples.cold_decompress.push(decompress.rate());
    }

    /// Pushes everything else out of the caches.
    fn sweep(&mut self) {
        for byte in self.sweep.iter_mut().step_by(64) {
            *byte = byte.wrapping_add(1);
        }
        black_box(&self.sweep);
    }

    fn compress(&mut self, subject: &mut dyn Subject, pages: &[Page], batch: &[usize]) -> Duration {
        let started = Instant::now();
        for &nth in batch {
            black_box(subject.compress(&pages[nth], &mut self.out));
        }
        started.elapsed()
    }

    fn decompress(
        &mut self,
        subject: &mut dyn Subject,
        objects: &Objects,
        batch: &[usize],
    ) -> Duration {
        let started = Instant::now();
        for &nth in batch {
            if let Some(object) = objects.get(nth) {
                // Every object was decoded and compared before.
                let _ = black_box(subject.decompress(object, &mut self.back));
            }
        }
        started.elapsed()
    }

    /// Copies the pages that have no object.
    fn copy(&mut self, pages: &[Page], objects: &Objects, batch: &[usize]) -> Duration {
        let started = Instant::now();
        for &nth in batch {
            if objects.get(nth).is_none() {
                self.back.copy_from_slice(&pages[nth]);
                black_box(&self.back);
            }
        }
        started.elapsed()
    }
}

/// Time spent on some pages.
#[derive(Default)]
struct Spent {
    pages: usize,
    time: Duration,
}

impl Spent {
    fn add(&mut self, pages: usize, time: Duration) {
        self.pages += pages;
        self.time += time;
    }

    /// GB of pages a second.
    fn rate(&self) -> f64 {
        if self.pages == 0 {
            return 0.0;
        }
        (self.pages * PAGE_SIZE) as f64 / 1e9 / self.time.as_secs_f64()
    }
}

/// Brings memory into the cache.
fn touch<'a>(parts: impl Iterator<Item = &'a [u8]>) {
    for part in parts {
        black_box(part.iter().step_by(64).fold(0u8, |sum, byte| sum ^ byte));
    }
}

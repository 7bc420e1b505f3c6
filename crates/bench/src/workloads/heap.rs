//! A heap of pages and the ways of going over it, with every byte accounted for.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::Xxh3;

use super::synthetic::Quota;
use crate::latency::Histogram;
use crate::pages::{PAGE_WORDS, Page, PageSource, lz4_percent};
use crate::random::{Random, Zipf, mix};

/// Pages that LZ4 is tried on, to say how compressible the heap is.
const LZ4_SAMPLE: usize = 512;
/// The exponent YCSB made customary.
const ZIPF_EXPONENT: f64 = 0.99;
/// Accesses of one phase, for each page of the whole heap.
const PHASE_ACCESSES_PER_PAGE: usize = 2;
/// Accesses between two looks at the clock where time is the limit.
const CLOCK_INTERVAL: u64 = 64;

/// How pages are picked and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    order: Order,
    writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Page after page, every word of each, over and over.
    Sequential,
    /// The same from the last page to the first.
    Reverse,
    /// Every [`STRIDE`]th page, then the pages behind those, and so on.
    Strided,
    /// [`STREAMS`] parts of the heap in order, a page of each in turn.
    Streams,
    /// Any page, all equally likely.
    Uniform,
    /// Popularity by Zipf's law, popular pages scattered over the heap.
    Zipf,
    /// Any page of one part of the heap, then of the next.
    Phases,
    /// Any page of one part of the heap, and none of the others.
    Cold,
}

/// Pages from one to the next in [`Order::Strided`].
const STRIDE: usize = 7;
/// Parts of the heap in [`Order::Streams`].
const STREAMS: usize = 4;
/// Parts of the heap in [`Order::Phases`] and [`Order::Cold`]: each fits into half of what the heap needs.
const PHASES: usize = 4;

impl Pattern {
    pub const ALL: [Self; 11] = [
        Self { order: Order::Sequential, writes: false },
        Self { order: Order::Sequential, writes: true },
        Self { order: Order::Reverse, writes: true },
        Self { order: Order::Strided, writes: true },
        Self { order: Order::Streams, writes: true },
        Self { order: Order::Uniform, writes: false },
        Self { order: Order::Uniform, writes: true },
        Self { order: Order::Zipf, writes: false },
        Self { order: Order::Zipf, writes: true },
        Self { order: Order::Phases, writes: true },
        Self { order: Order::Cold, writes: true },
    ];

    pub fn name(self) -> &'static str {
        match (self.order, self.writes) {
            (Order::Sequential, false) => "sequential-ro",
            (Order::Sequential, true) => "sequential-rw",
            (Order::Reverse, _) => "reverse-rw",
            (Order::Strided, _) => "strided-rw",
            (Order::Streams, _) => "streams-rw",
            (Order::Uniform, false) => "random-ro",
            (Order::Uniform, true) => "random-rw",
            (Order::Zipf, false) => "zipf-ro",
            (Order::Zipf, true) => "zipf-rw",
            (Order::Phases, _) => "phases-rw",
            (Order::Cold, _) => "cold-rw",
        }
    }

    pub fn about(self) -> &'static str {
        match (self.order, self.writes) {
            (Order::Sequential, false) => "read all pages in order, again and again",
            (Order::Sequential, true) => "read and change all pages in order, again and again",
            (Order::Reverse, _) => "read and change all pages from the last to the first",
            (Order::Strided, _) => "read and change every 7th page, then those behind them",
            (Order::Streams, _) => "read and change four parts in order, a page of each in turn",
            (Order::Uniform, false) => "read pages picked uniformly at random",
            (Order::Uniform, true) => "read and change pages picked uniformly at random",
            (Order::Zipf, false) => "read pages picked by Zipf's law with exponent 0.99",
            (Order::Zipf, true) => "read and change pages picked by Zipf's law, exponent 0.99",
            (Order::Phases, _) => "read and change random pages of one quarter, then of the next",
            (Order::Cold, _) => {
                "read and change random pages of one quarter, and none of the others"
            }
        }
    }

    /// Accesses for each page of the heap that make a measurement: a few
    /// seconds in half the memory at 10 to 20 us a fault.
    pub fn accesses_per_page(self) -> f64 {
        match self.order {
            Order::Zipf => 8.0,
            Order::Phases => PHASE_ACCESSES_PER_PAGE as f64 * 4.0,
            // Long enough for what is done with cold pages to show.
            Order::Cold => 16.0,
            _ => 4.0,
        }
    }

    /// Unmeasured accesses for each page first: the fill leaves the last pages
    /// resident, which is not what random picking would leave. For a scan it is.
    fn warm_up_per_page(self) -> f64 {
        match self.order {
            Order::Uniform | Order::Zipf => 0.5,
            _ => 0.0,
        }
    }

    /// Are the pages read whole, as by a program that goes over an array?
    fn scans(self) -> bool {
        !matches!(self.order, Order::Uniform | Order::Zipf | Order::Phases | Order::Cold)
    }
}

/// The heap of one run.
///
/// Words 0 and 1 of each page are its stamp: page number and count of writes,
/// and a hash of both. A page that comes back from somewhere else, or torn, or
/// as zeros is noticed at the next access; a lost write is noticed at the end,
/// when the counts are added up. Pages that are born zero stay unstamped (and
/// so same-filled) until the first write.
pub struct Heap {
    pages: Vec<Page>,
    born_zero: Vec<bool>,
    seed: u64,
}

/// What a phase did.
pub struct Walk {
    pub access_count: u64,
    pub write_count: u64,
    pub elapsed: Duration,
    pub histogram: Option<Histogram>,
}

impl Heap {
    pub fn fill(page_count: usize, source: &PageSource, seed: u64) -> Result<Self> {
        let mut heap = Self {
            pages: Vec::with_capacity(page_count),
            born_zero: Vec::with_capacity(page_count),
            seed,
        };
        for index in 0..page_count {
            let mut page = source.page(index)?;
            let zero = page.is_zero();
            if !zero {
                stamp(&mut page, index, 0, seed);
            }
            heap.pages.push(page);
            heap.born_zero.push(zero);
        }
        Ok(heap)
    }

    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    pub fn lz4_percent(&self) -> f64 {
        let step = (self.pages.len() / LZ4_SAMPLE).max(1);
        lz4_percent(self.pages.iter().step_by(step))
    }

    /// Goes over the heap, each thread over a stretch of its own.
    pub fn walk(
        &mut self,
        pattern: Pattern,
        quota: Quota,
        thread_count: usize,
        phase: u64,
        latency: bool,
    ) -> Result<Walk> {
        let stretch_pages = self.pages.len().div_ceil(thread_count);
        let seed = self.seed;
        let quota = match quota {
            Quota::Accesses(count) => Quota::Accesses(count.div_ceil(thread_count as u64)),
            Quota::Seconds(seconds) => Quota::Seconds(seconds),
        };
        let stretches =
            self.pages.chunks_mut(stretch_pages).zip(self.born_zero.chunks(stretch_pages));
        let start = Instant::now();
        let walks: Vec<Result<Walk>> = thread::scope(|scope| {
            let threads: Vec<_> = stretches
                .enumerate()
                .map(|(number, (pages, born_zero))| {
                    let random = Random::new(mix(seed ^ mix(phase << 32 | number as u64)));
                    let mut stretch =
                        Stretch { first: number * stretch_pages, pages, born_zero, seed };
                    scope.spawn(move || stretch.walk(pattern, quota, random, latency))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let mut total = Walk {
            access_count: 0,
            write_count: 0,
            elapsed: start.elapsed(),
            histogram: latency.then(Histogram::default),
        };
        for walk in walks {
            let walk = walk?;
            total.access_count += walk.access_count;
            total.write_count += walk.write_count;
            if let (Some(total), Some(part)) = (&mut total.histogram, &walk.histogram) {
                total.merge(part);
            }
        }
        Ok(total)
    }

    /// Changes each of the first `count` pages once, on this thread.
    pub fn change_first(&mut self, count: usize) -> Result<()> {
        let pattern = Pattern { order: Order::Sequential, writes: true };
        let (pages, born_zero) = (&mut self.pages[..count], &self.born_zero[..count]);
        let mut stretch = Stretch { first: 0, pages, born_zero, seed: self.seed };
        let random = Random::new(mix(self.seed));
        stretch.walk(pattern, Quota::Accesses(count as u64), random, false)?;
        Ok(())
    }

    /// Checks that each of the first `count` pages was changed once.
    pub fn verify_changed(&self, count: usize) -> Result<()> {
        for (index, page) in self.pages[..count].iter().enumerate() {
            if check(page, index, false, self.seed)? != 1 {
                bail!("a write to page {index} of the heap is lost");
            }
        }
        Ok(())
    }

    /// Checks every page, and that all of `write_count` writes are there;
    /// returns the hash of all bytes.
    pub fn verify(&self, write_count: u64) -> Result<String> {
        let mut hasher = Xxh3::new();
        let mut found_count = 0u64;
        for (index, page) in self.pages.iter().enumerate() {
            found_count += u64::from(check(page, index, self.born_zero[index], self.seed)?);
            hasher.update(&page.0);
        }
        if found_count != write_count {
            bail!("{write_count} writes were made but {found_count} are in the heap");
        }
        Ok(format!("{:032x}", hasher.digest128()))
    }
}

/// The pages of one thread.
struct Stretch<'a> {
    first: usize,
    pages: &'a mut [Page],
    born_zero: &'a [bool],
    seed: u64,
}

impl Stretch<'_> {
    fn walk(
        &mut self,
        pattern: Pattern,
        quota: Quota,
        mut random: Random,
        latency: bool,
    ) -> Result<Walk> {
        let mut picker = Picker::new(pattern.order, self.pages.len());
        let mut histogram = latency.then(Histogram::default);
        let start = Instant::now();
        let mut access_count = 0;
        loop {
            let done = match quota {
                Quota::Accesses(count) => access_count >= count,
                // At least some accesses, also where the thread was kept waiting.
                Quota::Seconds(seconds) => {
                    access_count > 0
                        && access_count.is_multiple_of(CLOCK_INTERVAL)
                        && start.elapsed().as_secs_f64() >= seconds
                }
            };
            if done {
                break;
            }
            let place = picker.pick(&mut random);
            match &mut histogram {
                Some(histogram) => {
                    let before = Instant::now();
                    self.access(place, pattern, &mut random)?;
                    histogram.record(before.elapsed().as_nanos() as u64);
                }
                None => self.access(place, pattern, &mut random)?,
            }
            access_count += 1;
        }
        let write_count = if pattern.writes { access_count } else { 0 };
        Ok(Walk { access_count, write_count, elapsed: start.elapsed(), histogram })
    }

    #[inline]
    fn access(&mut self, place: usize, pattern: Pattern, random: &mut Random) -> Result<()> {
        let index = self.first + place;
        let page = &mut self.pages[place];
        let write_count = check(page, index, self.born_zero[place], self.seed)?;
        let read = if pattern.scans() { page.sum() } else { page.word(random.below(PAGE_WORDS)) };
        black_box(read);
        if pattern.writes {
            // Beside the stamp a word moves within the page, so that the page
            // differs from what was stored but stays as compressible.
            let choice = mix(read ^ u64::from(write_count));
            let word = page.word(2 + choice as u32 as usize % (PAGE_WORDS - 2));
            page.set_word(2 + (choice >> 32) as usize % (PAGE_WORDS - 2), word);
            stamp(page, index, write_count.wrapping_add(1), self.seed);
        }
        Ok(())
    }
}

/// Picks the next page.
struct Picker {
    page_count: usize,
    /// Pages picked so far.
    picked: usize,
    order: Order,
    zipf: Option<(Zipf, usize)>,
}

impl Picker {
    fn new(order: Order, page_count: usize) -> Self {
        let zipf = (order == Order::Zipf)
            .then(|| (Zipf::new(page_count, ZIPF_EXPONENT), scattering_stride(page_count)));
        Self { page_count, picked: 0, order, zipf }
    }

    #[inline]
    fn pick(&mut self, random: &mut Random) -> usize {
        let (pages, nth) = (self.page_count, self.picked % self.page_count);
        self.picked += 1;
        match (self.order, &self.zipf) {
            (Order::Zipf, Some((zipf, stride))) => {
                (zipf.sample(random) as u128 * *stride as u128 % pages as u128) as usize
            }
            (Order::Sequential, _) => nth,
            (Order::Reverse, _) => pages - 1 - nth,
            (Order::Strided, _) => in_strides(nth, pages, STRIDE),
            (Order::Streams, _) => in_strides(nth, pages, pages.div_ceil(STREAMS)),
            (Order::Uniform | Order::Zipf, _) => random.below(pages),
            (Order::Phases, _) => {
                let part = pages.div_ceil(PHASES);
                let phase = (self.picked - 1) / (PHASE_ACCESSES_PER_PAGE * pages) % PHASES;
                let first = (phase * part).min(pages - 1);
                first + random.below(part.min(pages - first))
            }
            (Order::Cold, _) => random.below(pages.div_ceil(PHASES)),
        }
    }
}

/// The `nth` of `count` places, taken at a distance of `stride` from the first one on, then from
/// the second, and so on.
fn in_strides(nth: usize, count: usize, stride: usize) -> usize {
    // Passes from these first places on come to one place more than the others.
    let longest = count.div_ceil(stride);
    let long_passes = count - (longest - 1) * stride;
    if nth < long_passes * longest {
        nth / longest + nth % longest * stride
    } else {
        let rest = nth - long_passes * longest;
        long_passes + rest / (longest - 1) + rest % (longest - 1) * stride
    }
}

/// A number without common factor with `count`, near its golden section, so
/// that multiples of it modulo `count` visit every page and lie far apart.
fn scattering_stride(count: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (count as f64 * 0.618_033_988_749_895) as usize;
    (golden.max(1)..).find(|&stride| divisor(stride, count) == 1).unwrap_or(1)
}

fn stamp(page: &mut Page, index: usize, write_count: u32, seed: u64) {
    let stamp = (index as u64) << 32 | u64::from(write_count);
    page.set_word(0, stamp);
    page.set_word(1, mix(stamp ^ mix(seed)));
}

/// The count of writes in the page's stamp, or what is wrong with it.
#[inline]
fn check(page: &Page, index: usize, born_zero: bool, seed: u64) -> Result<u32> {
    let (stamp, hash) = (page.word(0), page.word(1));
    if stamp >> 32 == index as u64 && hash == mix(stamp ^ mix(seed)) {
        return Ok(stamp as u32);
    }
    if born_zero && stamp == 0 && hash == 0 {
        return Ok(0);
    }
    damaged(stamp, hash, index)
}

#[cold]
fn damaged(stamp: u64, hash: u64, index: usize) -> Result<u32> {
    Err(anyhow::anyhow!("its stamp reads {stamp:#018x} {hash:#018x}"))
        .with_context(|| format!("page {index} of the heap is damaged"))
}

impl Pattern {
    /// Accesses of the unmeasured first phase.
    pub fn warm_up(self, page_count: usize) -> Quota {
        Quota::Accesses((self.warm_up_per_page() * page_count as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(page_count: usize) -> Heap {
        Heap::fill(page_count, &PageSource::generated(4), 4).unwrap()
    }

    #[test]
    fn every_pattern_verifies_and_repeats() {
        for pattern in Pattern::ALL {
            for thread_count in [1, 3] {
                let run = || {
                    let mut heap = heap(100);
                    let walk = heap.walk(pattern, Quota::Accesses(900), thread_count, 1, true);
                    let walk = walk.unwrap();
                    assert_eq!(walk.access_count, 900);
                    assert!(walk.histogram.unwrap().latency().is_some());
                    heap.verify(walk.write_count).unwrap()
                };
                let first = run();
                assert_eq!(first, run(), "{} is not deterministic", pattern.name());
                let untouched = heap(100).verify(0).unwrap();
                assert_eq!(first == untouched, !pattern.writes, "{}", pattern.name());
            }
        }
    }

    #[test]
    fn damage_is_noticed() {
        let stamped = |heap: &Heap| heap.born_zero.iter().position(|zero| !zero).unwrap();
        let mut evicted = heap(50);
        let index = stamped(&evicted);
        evicted.pages[index] = Page::ZERO;
        assert!(evicted.verify(0).is_err());

        let mut swapped = heap(50);
        let index = stamped(&swapped);
        swapped.pages[index] = swapped.pages[49].clone();
        swapped.born_zero[index] = false;
        assert!(swapped.verify(0).is_err());

        let mut lost = heap(50);
        let before = lost.pages.clone();
        let pattern = Pattern { order: Order::Sequential, writes: true };
        let walk = lost.walk(pattern, Quota::Accesses(50), 1, 1, false).unwrap();
        lost.pages[7] = before[7].clone();
        assert!(lost.verify(walk.write_count).is_err());
    }

    #[test]
    fn changes_of_the_first_pages_are_known_again() {
        let mut heap = heap(50);
        heap.change_first(20).unwrap();
        heap.verify_changed(20).unwrap();
        assert!(heap.verify_changed(21).is_err());
        heap.verify(20).unwrap();
        heap.change_first(1).unwrap();
        assert!(heap.verify_changed(20).is_err());
        heap.change_first(0).unwrap();
    }

    #[test]
    fn writes_leave_compressibility_alone() {
        let mut heap = heap(600);
        let before = heap.lz4_percent();
        let pattern = Pattern { order: Order::Uniform, writes: true };
        heap.walk(pattern, Quota::Accesses(6000), 1, 1, false).unwrap();
        let after = heap.lz4_percent();
        assert!((after - before).abs() < 2.0, "LZ4 made {before} %, now {after} %");
    }

    #[test]
    fn a_walk_by_time_ends() {
        for seconds in [0.0, 0.01] {
            let mut heap = heap(20);
            let walk = heap.walk(Pattern::ALL[6], Quota::Seconds(seconds), 2, 1, false).unwrap();
            assert!(walk.access_count > 0);
            heap.verify(walk.write_count).unwrap();
        }
    }

    #[test]
    fn scans_visit_every_page_once_a_round() {
        let scans = Pattern::ALL.into_iter().filter(|pattern| pattern.scans());
        for (pattern, count) in scans.flat_map(|pattern| {
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 50, 1001].map(|count| (pattern, count))
        }) {
            let mut picker = Picker::new(pattern.order, count);
            for _ in 0..2 {
                let mut seen = vec![false; count];
                for _ in 0..count {
                    let place = picker.pick(&mut Random::new(1));
                    assert!(!seen[place], "{} of {count}: {place} twice", pattern.name());
                    seen[place] = true;
                }
            }
        }
    }

    #[test]
    fn orders_are_what_they_are_called() {
        let order = |name: &str, count: usize| {
            let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name).unwrap();
            let mut picker = Picker::new(pattern.order, count);
            let mut random = Random::new(1);
            (0..count).map(|_| picker.pick(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(order("reverse-rw", 4), [3, 2, 1, 0]);
        assert_eq!(order("strided-rw", 16)[..6], [0, 7, 14, 1, 8, 15]);
        assert_eq!(order("streams-rw", 16)[..6], [0, 4, 8, 12, 1, 5]);
        let (phases, part) = (order("phases-rw", 1000), 250);
        assert!(phases.iter().all(|place| *place < part));
        assert!(order("cold-rw", 1000).iter().all(|place| *place < part));
    }

    #[test]
    fn strides_visit_every_page() {
        for count in [1, 2, 3, 10, 97, 1000, 65536] {
            let stride = scattering_stride(count);
            let mut seen = vec![false; count];
            (0..count).for_each(|rank| seen[rank * stride % count] = true);
            assert!(seen.iter().all(|seen| *seen), "stride {stride} of {count}");
        }
    }
}

//! The heap: its pages, how they are stamped and checked.

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::Xxh3;

use super::pattern::Pattern;
use super::stretch::{Stretch, Walk};
use crate::content::heap_pages::{Page, PageSource, lz4_percent};
use crate::content::random::{Random, mix};
use crate::harness::latency::Histogram;
use crate::workloads::child::Quota;

/// Pages that LZ4 is tried on, to say how compressible the heap is.
const LZ4_SAMPLE: usize = 512;

/// The heap of one run.
///
/// Words 0 and 1 of each page are its stamp: page number and count of writes,
/// and a hash of both. A page that comes back from somewhere else, or torn, or
/// as zeros is noticed at the next access; a lost write is noticed at the end,
/// when the counts are added up. Pages that are born zero stay unstamped (and
/// so same-filled) until the first write.
pub(in crate::workloads) struct Heap {
    pages: Vec<Page>,
    born_zero: Vec<bool>,
    seed: u64,
}

impl Heap {
    pub(in crate::workloads) fn fill(
        page_count: usize,
        source: &PageSource,
        seed: u64,
    ) -> Result<Self> {
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

    pub(in crate::workloads) fn page_count(&self) -> usize {
        self.pages.len()
    }

    pub(in crate::workloads) fn lz4_percent(&self) -> f64 {
        let step = (self.pages.len() / LZ4_SAMPLE).max(1);
        lz4_percent(self.pages.iter().step_by(step))
    }

    /// Goes over the heap, each thread over a stretch of its own.
    pub(super) fn walk(
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
    pub(in crate::workloads) fn change_first(&mut self, count: usize) -> Result<()> {
        let pattern = Pattern::SEQUENTIAL_RW;
        let (pages, born_zero) = (&mut self.pages[..count], &self.born_zero[..count]);
        let mut stretch = Stretch { first: 0, pages, born_zero, seed: self.seed };
        let random = Random::new(mix(self.seed));
        stretch.walk(pattern, Quota::Accesses(count as u64), random, false)?;
        Ok(())
    }

    /// Checks that each of the first `count` pages was changed once.
    pub(in crate::workloads) fn verify_changed(&self, count: usize) -> Result<()> {
        for (index, page) in self.pages[..count].iter().enumerate() {
            if check(page, index, false, self.seed)? != 1 {
                bail!("a write to page {index} of the heap is lost");
            }
        }
        Ok(())
    }

    /// Checks every page, and that all of `write_count` writes are there;
    /// returns the hash of all bytes.
    pub(in crate::workloads) fn verify(&self, write_count: u64) -> Result<String> {
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

pub(super) fn stamp(page: &mut Page, index: usize, write_count: u32, seed: u64) {
    let stamp = (index as u64) << 32 | u64::from(write_count);
    page.set_word(0, stamp);
    page.set_word(1, mix(stamp ^ mix(seed)));
}

/// The count of writes in the page's stamp, or what is wrong with it.
#[inline]
pub(super) fn check(page: &Page, index: usize, born_zero: bool, seed: u64) -> Result<u32> {
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
                assert_eq!(first, run(), "{} is not deterministic", pattern.name);
                let untouched = heap(100).verify(0).unwrap();
                assert_eq!(first == untouched, !pattern.writes, "{}", pattern.name);
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
        let pattern = Pattern::SEQUENTIAL_RW;
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
        let pattern = Pattern::RANDOM_RW;
        heap.walk(pattern, Quota::Accesses(6000), 1, 1, false).unwrap();
        let after = heap.lz4_percent();
        assert!((after - before).abs() < 2.0, "LZ4 made {before} %, now {after} %");
    }

    #[test]
    fn a_walk_by_time_ends() {
        for seconds in [0.0, 0.01] {
            let mut heap = heap(20);
            let walk = heap.walk(Pattern::RANDOM_RW, Quota::Seconds(seconds), 2, 1, false).unwrap();
            assert!(walk.access_count > 0);
            heap.verify(walk.write_count).unwrap();
        }
    }
}

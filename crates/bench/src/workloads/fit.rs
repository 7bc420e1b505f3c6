//! A program with memory to spare: sorting, searching, and the traffic with the
//! allocator and the kernel (mmap, munmap, fresh zero pages) that a mechanism
//! which should stay out of the way could slow down.

use std::collections::BTreeMap;
use std::hint::black_box;

use anyhow::Result;
use xxhash_rust::xxh3::Xxh3;

use super::{ChildOptions, ChildReport, Prepared, Settings, Timing, Workload};
use crate::content::random::{Random, mix};
use crate::harness::size::Memory;
use crate::machine::host::Host;

/// Rounds for a scale of 1: about four seconds with 256 MiB.
const ROUNDS: f64 = 2.0;
/// The share of its need that it is given: it must never come near the cap.
const MEMORY: Memory = Memory::Fraction(1.5);

/// Buffers above glibc's largest mmap threshold (32 MiB) are mapped and unmapped
/// one by one.
const MAPPED_BUFFER_BYTES: usize = 33 << 20;

/// A program that needs less than the cap.
pub(super) struct Fit;

impl Workload for Fit {
    fn name(&self) -> &'static str {
        "fit"
    }

    fn about(&self) -> &'static str {
        "sort, search, allocate and map with memory to spare (cap at 150 % of need)"
    }

    fn memories(&self, _asked: &[Memory]) -> Vec<Memory> {
        vec![MEMORY]
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let rounds = ROUNDS * settings.scale;
        // Start and end belong to what must cost nothing.
        Ok(Prepared::synthetic(host, settings, self.name(), rounds, Timing::Whole))
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        let size_bytes = usize::try_from(options.size_bytes)?;
        options.run_whole(ROUNDS as u64, |rounds| work(size_bytes, rounds, options.seed))
    }
}

/// Runs `rounds` of work in about `size_bytes`; returns a hash of the results.
fn work(size_bytes: usize, rounds: u64, seed: u64) -> String {
    let mut hasher = Xxh3::new();
    let mut random = Random::new(mix(seed));
    for _ in 0..rounds {
        hasher.update(&sort_and_search(size_bytes / 4, &mut random).to_le_bytes());
        hasher.update(&grow_and_shrink_map(size_bytes / 4, &mut random).to_le_bytes());
        hasher.update(&map_and_unmap(size_bytes / 4, &mut random).to_le_bytes());
    }
    format!("{:032x}", hasher.digest128())
}

fn sort_and_search(bytes: usize, random: &mut Random) -> u64 {
    let mut numbers: Vec<u64> = (0..(bytes / 8).max(1)).map(|_| random.word() >> 8).collect();
    numbers.sort_unstable();
    (0..numbers.len() / 4).fold(0u64, |sum, _| {
        let needle = random.word() >> 8;
        let found = numbers.partition_point(|&number| number < needle);
        sum.wrapping_mul(31).wrapping_add(found as u64)
    })
}

fn grow_and_shrink_map(bytes: usize, random: &mut Random) -> u64 {
    let mut map = BTreeMap::new();
    // About 120 bytes an entry with its share of the tree.
    let entries = bytes / 120;
    for _ in 0..entries {
        let key = random.word() >> 20;
        map.insert(key, vec![key as u8; 16 + (key % 64) as usize].into_boxed_slice());
    }
    let mut sum = 0u64;
    for round in 0..entries / 2 {
        let from = random.word() >> 20;
        if let Some((&key, value)) = map.range(from..).next() {
            sum = sum.wrapping_mul(31).wrapping_add(value.len() as u64 ^ key);
            if round % 2 == 0 {
                map.remove(&key);
            }
        }
    }
    sum ^ map.len() as u64
}

fn map_and_unmap(bytes: usize, random: &mut Random) -> u64 {
    // Never more than asked for in a small run; one buffer at a time.
    let buffer_bytes = MAPPED_BUFFER_BYTES.min(bytes.max(1 << 16));
    (0..4).fold(0u64, |sum, _| {
        let mut buffer = vec![0u8; buffer_bytes];
        for place in (0..buffer_bytes).step_by(4096) {
            buffer[place] = random.word() as u8;
        }
        let buffer = black_box(buffer);
        let total: u64 = buffer.iter().step_by(4096).map(|&byte| u64::from(byte)).sum();
        sum.wrapping_mul(31).wrapping_add(total)
    })
}

#[cfg(test)]
mod tests {
    use super::work;

    #[test]
    fn work_repeats_and_depends_on_its_seed() {
        assert_eq!(work(1 << 18, 2, 1), work(1 << 18, 2, 1));
        assert_ne!(work(1 << 18, 2, 1), work(1 << 18, 2, 2));
        assert_ne!(work(1 << 18, 1, 1), work(1 << 18, 2, 1));
        work(0, 1, 1);
    }
}

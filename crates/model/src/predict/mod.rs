//! What a program would take with less memory: how much slower it is, what it takes of the memory,
//! and the chance that it does not fit.
//!
//! ```text
//! run time = that with all memory + faults * their time + growth over the cap * its time
//!            + the agent's work, where the program leaves it no processor
//! ```
//!
//! The counts come from [`crate::simulate::program`] where pages were watched, else from a curve of
//! faults by resident pages ([`Use::Curve`]). The times are those of the machine ([`Costs`]).
//!
//! # Intervals
//!
//! Each figure has the interval within which it is with a chance of 90 %, from two sources. The
//! sample: the simulation is run without each of [`GROUPS`] parts of the sampled blocks, with the
//! memory in proportion, and what it then says differs by as much as one part decides (the
//! jackknife; Student's t for so few). And the model: [`MODEL_ERROR`], a part of what is predicted
//! to be lost. Both are added as deviations are, by their squares.
//!
//! More memory is never predicted to be slower: [`make_monotone`].

mod curve;
mod decision;
mod sizes;

#[cfg(test)]
mod tests;

use ramfold_codec::PAGE_SIZE;

pub use self::decision::{Decision, Swap, decision, swapped};
pub use self::sizes::{SampledBlock, Sizes};
use crate::curve::{Estimate, MissCurve};
use crate::rounds::{self, Round};
use crate::simulate::program::{self, CodecTimes, Delays, Setting};
pub use crate::simulate::program::{Counts, Overhead, PageSizes};
use crate::simulate::watched::Activity;

/// By which part of what is lost the model may be off, where it is too much and where it is too
/// little: of faults and of their time. Meant to hold with a chance of 90 %: it did for 15 of 20
/// runs of eleven programs (docs/results/2026-11-29.md). With three times hardly anything could be
/// recommended.
pub const MODEL_ERROR: Sides = Sides { below: 0.65, above: 1.0 };
/// The same of what the pool takes, measured by actual runs (`ramfold bench advise`).
pub const MODEL_ERROR_POOL: Sides = Sides { below: 0.3, above: 0.6 };
/// How far off something may be to both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sides {
    /// How much less it may be than was said.
    pub below: f64,
    /// How much more it may be.
    pub above: f64,
}

impl Sides {
    /// With another error that has nothing to do with this one.
    fn and(self, other: f64) -> Sides {
        Sides { below: self.below.hypot(other), above: self.above.hypot(other) }
    }

    fn times(self, factor: f64) -> Sides {
        Sides { below: self.below * factor, above: self.above * factor }
    }
}

/// Of the run time, what is never known better of the mean of many runs.
pub const RUN_ERROR: f64 = 0.01;

/// The greatest relative error of a curve. With a greater one nothing is known.
const ERROR_MAX: f64 = 100.0;
/// Pages that come back in a second: fewer say nothing.
const FEW_BACK: f64 = 100.0;
/// Faults of the sampled pages that are simulated at most, which takes up to two seconds.
const FAULTS_MAX: u64 = 200_000;
/// The same for a run without one part of the sample. Such runs only show how much the parts
/// differ, and that need not be exact.
const PART_FAULTS: u64 = 4_000;
/// Faults are simulated until they have cost this multiple of the run time. How slow a program is
/// beyond that matters to nobody.
const LOST_MAX: f64 = 20.0;
/// Parts of the sample that are left out, one at a time.
const GROUPS: u64 = 6;
/// Student's t for 5 degrees of freedom, 90 % between both sides.
const T_5: f64 = 2.015;

/// What is known of how pages are used.
#[derive(Clone, Copy, Debug)]
pub enum Use<'a> {
    /// Pages were watched from the program's start on, and all pages were looked at in rounds.
    Watched(&'a Activity, &'a [Round]),
    /// Faults in a second by resident pages, of a program that runs on.
    Curve {
        /// As a memory faults that drops the least recently used page.
        curve: &'a MissCurve,
        /// Pages that the program has.
        pages: f64,
        /// How far off the faults may be with a chance of 90 %, as a part of them.
        error: f64,
    },
}

/// How long the program takes with all of its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTime {
    /// In all; of one that runs on: how long it was looked at. Seconds.
    pub wall_s: f64,
    /// Of processors. Seconds.
    pub processor_s: f64,
    /// Processors that it may use.
    pub processors: u32,
}

/// What things take on this machine, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The program waits so long for a page that it asks for by itself, its decompression included.
    pub fault_s: f64,
    /// For each page that comes with a stream.
    pub stream_page_s: f64,
    /// For each page by which it grows while memory is full.
    pub growth_page_s: f64,
    /// For each page that it comes to have while its memory is looked after, beside that.
    pub first_page_s: f64,
    /// The agent compresses a page at first. Of a processor, as all that follow.
    pub compress_s: f64,
    /// For density.
    pub dense_compress_s: f64,
    /// It decompresses what was compressed at first.
    pub decompress_s: f64,
    /// And for density.
    pub dense_decompress_s: f64,
    /// What the agent does beside that for each page that it takes and brings back.
    pub move_s: f64,
}

impl Default for Costs {
    /// As on a machine of 2024, for want of better.
    fn default() -> Costs {
        Costs {
            fault_s: 12e-6,
            stream_page_s: 3e-6,
            growth_page_s: 5e-6,
            first_page_s: 5e-6,
            compress_s: 2e-6,
            dense_compress_s: 20e-6,
            decompress_s: 1e-6,
            dense_decompress_s: 3e-6,
            move_s: 1.5e-6,
        }
    }
}

/// All that a prediction is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// How pages are used.
    pub pages: Use<'a>,
    /// How small they become.
    pub sizes: &'a Sizes,
    /// How long the program takes.
    pub run: RunTime,
    /// What things take on this machine.
    pub costs: Costs,
    /// What the agent itself costs.
    pub overhead: Overhead,
    /// A page that is out for so long is compressed once more. `None`: never.
    pub recompress_after_s: Option<f64>,
}

/// What a program is predicted to do with so much memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The memory. Bytes.
    pub memory_bytes: u64,
    /// Run time as a multiple of that with all memory.
    pub slowdown: Estimate,
    /// What the pool takes at most.
    pub pool_bytes: Estimate,
    /// What is left uncompressed, in the mean over the time.
    pub resident_bytes: f64,
    /// The agent's own memory, and tables.
    pub table_bytes: f64,
    /// Faults in a second of the run.
    pub faults_per_second: f64,
    /// Pages that are brought back in the run.
    pub pages_back: Estimate,
    /// Processor time of the agent in the run. Seconds.
    pub processor_added_s: f64,
    /// The chance that the memory cannot be held, from 0 to 1. `None` where too few blocks were
    /// sampled to state one.
    pub chance_not_held: Option<f64>,
    /// What the simulation came to.
    pub counts: Counts,
}

/// Predicts for each of these sizes of memory, in bytes. In their order; what is predicted for less
/// memory is never better.
pub fn predict(input: &Input<'_>, memory_bytes: &[u64]) -> Vec<Prediction> {
    let mut predictions: Vec<Prediction> =
        memory_bytes.iter().map(|&bytes| at(input, bytes)).collect();
    make_monotone(&mut predictions);
    predictions
}

/// Predicts for one size of memory. Several are to be made to agree by [`make_monotone`].
pub fn at(input: &Input<'_>, memory_bytes: u64) -> Prediction {
    let whole = counts(input, memory_bytes);
    let one = Outcome::of(input, &whole);
    let parts = match input.pages {
        Use::Watched(activity, _) => parts(input, activity, memory_bytes),
        Use::Curve { .. } => Vec::new(),
    };
    let error = match input.pages {
        Use::Watched(..) => MODEL_ERROR,
        Use::Curve { error, .. } => MODEL_ERROR.and(finite(error).clamp(0.0, ERROR_MAX)),
    };
    let lost = one.slowdown - 1.0;
    let apart = lost * relative_spread(&parts, |part| part.slowdown - 1.0);
    let slowdown = around(one.slowdown, error.times(lost), [apart, RUN_ERROR]);
    let back = whole.pages_back();
    let back_apart = back * relative_spread(&parts, |part| part.pages_back);
    let pool = one.pool_bytes;
    Prediction {
        memory_bytes,
        slowdown: Estimate { low: slowdown.low.max(1.0), ..slowdown },
        pool_bytes: around(
            pool,
            MODEL_ERROR_POOL.times(pool),
            [spread(&parts, |part| part.pool_bytes), pool_error(input, pool)],
        ),
        resident_bytes: whole.resident_bytes_mean,
        table_bytes: whole.table_bytes,
        faults_per_second: whole.faults() / (input.run.wall_s * one.slowdown).max(1e-9),
        pages_back: around(back, error.times(back), [back_apart, 0.0]),
        processor_added_s: one.processor_added_s,
        chance_not_held: chance_not_held(input, &whole, memory_bytes),
        counts: whole,
    }
}

/// What counts come to in time.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    slowdown: f64,
    pool_bytes: f64,
    pages_back: f64,
    processor_added_s: f64,
}

impl Outcome {
    fn of(input: &Input<'_>, counts: &Counts) -> Outcome {
        let Input { run, costs, .. } = *input;
        let processor_added_s = agent_s(&costs, counts);
        let wall_s = finite(run.wall_s).max(1e-9);
        let busy = finite(run.processor_s) / wall_s;
        let processors = f64::from(run.processors.max(1));
        // A fault stops the thread that makes it; the agent answers one at a time.
        let wait_s = waited_s(&costs, counts) / busy.clamp(1.0, FAULTS_AT_ONCE);
        // The agent's work takes time of the program's where that leaves no processor to it.
        let lacking = (busy + 1.0 - processors).clamp(0.0, 1.0);
        let competes_s = lacking * processor_added_s / processors;
        let slowdown = 1.0 + finite((wait_s + competes_s) / wall_s);
        Outcome {
            slowdown,
            pool_bytes: counts.pool_bytes_max,
            pages_back: counts.pages_back(),
            processor_added_s,
        }
    }
}

/// Threads that the answers to faults overlap for.
const FAULTS_AT_ONCE: f64 = 2.0;

/// What the program waits for, all threads together.
fn waited_s(costs: &Costs, counts: &Counts) -> f64 {
    let streamed = counts.faults_streamed + counts.ahead;
    let denser_s = (costs.dense_decompress_s - costs.decompress_s).max(0.0);
    finite(
        counts.faults_alone * costs.fault_s
            + streamed * costs.stream_page_s
            + counts.first_over_cap * costs.growth_page_s
            + counts.first_looked_after * costs.first_page_s
            + counts.dense_back * denser_s
            - counts.second_chances * costs.decompress_s,
    )
    .max(0.0)
}

/// Processor time of the agent.
fn agent_s(costs: &Costs, counts: &Counts) -> f64 {
    let first = (counts.compressed - counts.compressed_dense).max(0.0);
    let from_store = (counts.pages_back() - counts.second_chances).max(0.0);
    let dense = counts.dense_back.min(from_store);
    finite(
        first * costs.compress_s
            + counts.compressed_dense * costs.dense_compress_s
            + (from_store - dense) * costs.decompress_s
            + dense * costs.dense_decompress_s
            + (counts.taken + counts.pages_back()) * costs.move_s,
    )
}

fn counts(input: &Input<'_>, memory_bytes: u64) -> Counts {
    match input.pages {
        Use::Watched(activity, rounds) => {
            let counts = simulated(input, activity, memory_bytes, FAULTS_MAX);
            let resident = |pages: f64| curve::resident_pages(input, pages, memory_bytes);
            with_rounds(counts, activity, rounds, resident)
        }
        Use::Curve { curve, pages, .. } => curve::counts(input, curve, pages, memory_bytes),
    }
}

/// What was simulated of watched pages, and what all pages say of a memory of that size that drops
/// the least recently used one: the geometric mean of the pages that both bring back. Their errors
/// go in opposite directions (decision 091).
///
/// `resident`: resident pages, by the number of pages that the program has.
fn with_rounds(
    counts: Counts,
    activity: &Activity,
    rounds: &[Round],
    resident: impl Fn(f64) -> f64,
) -> Counts {
    let end_us = activity.end_us();
    if rounds.is_empty() || end_us == 0 {
        return counts;
    }
    let born = |from_us, to_us| activity.born_pages(from_us, to_us);
    let of_rounds = finite(rounds::faults_of_lru(rounds, end_us, resident, born));
    let few = FEW_BACK * end_us as f64 / 1e6;
    let back = counts.pages_back();
    // The mean of both with `few`, by the simulated one with `few`.
    let factor = ((of_rounds + few) / (back + few)).sqrt();
    let more = (factor - 1.0) * (back + few);
    Counts {
        // Where hardly any were simulated no streams are assumed.
        faults_alone: (counts.faults_alone * factor + (factor - 1.0) * few).max(0.0),
        faults_streamed: counts.faults_streamed * factor,
        ahead: counts.ahead * factor,
        second_chances: counts.second_chances * factor,
        dense_back: counts.dense_back * factor,
        taken: (counts.taken + more).max(0.0),
        compressed: (counts.compressed + more).max(counts.compressed_dense),
        ..counts
    }
}

fn simulated(input: &Input<'_>, activity: &Activity, memory_bytes: u64, faults_max: u64) -> Counts {
    let Input { costs, .. } = *input;
    let setting = Setting {
        cap_bytes: memory_bytes,
        delays: Delays {
            fault_s: costs.fault_s,
            stream_page_s: costs.stream_page_s,
            first_page_s: costs.first_page_s,
            growth_page_s: costs.growth_page_s,
        },
        codec: CodecTimes {
            compress_s: costs.compress_s,
            dense_compress_s: costs.dense_compress_s,
            decompress_s: costs.decompress_s,
            dense_decompress_s: costs.dense_decompress_s,
            fault_s: (costs.fault_s - costs.decompress_s).max(0.0),
            processors: input.run.processors,
            recompress_after_s: input.recompress_after_s,
        },
        overhead: input.overhead,
        growing_us: program::GROWING_US,
        faults_max,
        lost_max_s: LOST_MAX * activity.end_us() as f64 / 1e6,
    };
    program::run(activity, &|page| input.sizes.of(page), &setting)
}

/// What the sample says without each of its parts.
fn parts(input: &Input<'_>, activity: &Activity, memory_bytes: u64) -> Vec<Outcome> {
    // All pages were looked at: there is no sample.
    if activity.one_in() <= 1.0 {
        return Vec::new();
    }
    let without = |nth| {
        let part = activity.without(nth, GROUPS);
        Outcome::of(input, &simulated(input, &part, memory_bytes, PART_FAULTS))
    };
    (0..GROUPS).map(without).collect()
}

/// How far off the whole may be, by how far apart it is without each of its parts.
fn spread(parts: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> f64 {
    if parts.len() < 2 {
        return 0.0;
    }
    let count = parts.len() as f64;
    let mean = parts.iter().map(&figure).sum::<f64>() / count;
    let squares: f64 = parts.iter().map(|part| (figure(part) - mean).powi(2)).sum();
    T_5 * (squares * (count - 1.0) / count).sqrt()
}

/// The same as a part of the figure.
fn relative_spread(parts: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> f64 {
    let mean = parts.iter().map(&figure).sum::<f64>() / parts.len().max(1) as f64;
    if mean > 0.0 { spread(parts, figure) / mean } else { 0.0 }
}

/// How far off the pool may be because its pages' sizes are those of a sample.
fn pool_error(input: &Input<'_>, pool_bytes: f64) -> f64 {
    let blocks = input.sizes.blocks();
    let part = blocks
        .deviation_of_mean(1e12)
        .zip(blocks.mean_bytes())
        .map_or(0.0, |(deviation, mean)| if mean > 0.0 { deviation / mean } else { 0.0 });
    1.645 * part * pool_bytes
}

/// The interval around a value, from the model's error and others.
fn around(value: f64, model: Sides, others: [f64; 2]) -> Estimate {
    let value = finite(value);
    let others = others.iter().map(|error| finite(*error).powi(2)).sum::<f64>().sqrt();
    let Sides { below, above } =
        Sides { below: finite(model.below), above: finite(model.above) }.and(others);
    Estimate { value, low: (value - below).max(0.0), high: value + above }
}

/// A number, or 0 for what is none.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

/// The chance that objects and all else do not fit: all pages that can be taken are out.
fn chance_not_held(input: &Input<'_>, counts: &Counts, memory_bytes: u64) -> Option<f64> {
    if counts.not_held_us.is_some() {
        return Some(1.0);
    }
    let need_pages = match input.pages {
        Use::Watched(activity, _) => activity.need_pages(),
        Use::Curve { pages, .. } => finite(pages).clamp(0.0, curve::PAGES_MAX),
    };
    let Overhead { fixed_bytes, entry_bytes, page_table_bytes, fragmentation, .. } = input.overhead;
    let tables = fixed_bytes + need_pages * page_table_bytes;
    let memory = memory_bytes as f64;
    if need_pages <= 0.0 || need_pages * PAGE_SIZE as f64 + tables < memory {
        return Some(0.0);
    }
    // What the pool keeps ready is given up, its fragmentation is not.
    let each = ((memory - tables) / need_pages - entry_bytes) / (1.0 + fragmentation);
    if each <= 0.0 {
        return Some(1.0);
    }
    input.sizes.blocks().chance_above(each, need_pages)
}

/// Less memory is never better: what is predicted for it is raised to what more memory has.
pub fn make_monotone(predictions: &mut [Prediction]) {
    let mut order: Vec<usize> = (0..predictions.len()).collect();
    order.sort_by_key(|&nth| std::cmp::Reverse(predictions[nth].memory_bytes));
    let raise = |estimate: &mut Estimate, least: &mut Estimate| {
        let high = |one: f64, other: f64| one.max(other);
        *estimate = Estimate {
            value: high(estimate.value, least.value),
            low: high(estimate.low, least.low),
            high: high(estimate.high, least.high),
        };
        *least = *estimate;
    };
    let (mut slowdown, mut back) = (Estimate::default(), Estimate::default());
    let mut chance: Option<f64> = None;
    for nth in order {
        let prediction = &mut predictions[nth];
        raise(&mut prediction.slowdown, &mut slowdown);
        raise(&mut prediction.pages_back, &mut back);
        chance = match (prediction.chance_not_held, chance) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other.filter(|&chance| chance >= 1.0)),
        };
        prediction.chance_not_held = chance;
    }
}

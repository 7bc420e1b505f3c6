//! Whether compression pays against a swap device: condition 7 of paper 003
//! ([`crate::equations`]), with the counts that were predicted.
//!
//! Without ramfold all of the memory holds pages, and what has no room is on the device. With it a
//! part of the memory holds objects, and nothing is on the device. So what becomes slower are the
//! hits in memory that the pool takes the room of, and each access to the device is spared.

use super::{Input, Outcome, Prediction, Sizes, around, counts};
use crate::curve::Estimate;
use crate::equations::{Condition, Counts, Level, Printed, Times};
use crate::simulate::program::{Overhead, PageSizes};

/// What an access to a page in memory takes: nothing beside the others.
const MEMORY_NS: f64 = 100.0;

/// A device for pages that have no room.
#[derive(Clone, Copy, Debug)]
pub struct Swap<'a> {
    /// To read a page. Seconds.
    pub read_s: f64,
    /// What the write of a page costs the program for each page that is read. Seconds.
    pub write_s: f64,
    /// zram: what it takes of the memory for each page. A disk: `None`.
    pub objects: Option<&'a Sizes>,
}

/// Both sides of condition 7, and what follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// With what a hit costs by the corrected equations. `None` where it cannot be stated.
    pub condition: Option<Condition>,
    /// As the paper prints it.
    pub as_printed: Option<Condition>,
    /// The program's run time with ramfold, as a multiple of that with all memory.
    pub with_ramfold: f64,
    /// The same with the device alone.
    pub with_swap: f64,
}

impl Decision {
    /// Does ramfold make the program faster than the device does?
    pub fn pays(&self) -> bool {
        self.condition.is_some_and(|condition| condition.holds())
    }
}

/// Weighs ramfold, as it was predicted from the same input, against a device.
pub fn decision(input: &Input<'_>, prediction: &Prediction, swap: &Swap<'_>) -> Decision {
    let with = prediction.counts;
    let without = swapped_counts(input, prediction.memory_bytes, swap);
    let costs = input.costs;
    let back = with.pages_back();
    let hit_s = if back > 0.0 { super::waited_s(&costs, &with) / back } else { costs.fault_s };
    let ns = 1e9;
    let accesses = back.max(without.pages_back());
    let counts = |disk: f64, compressed: f64| Counts { memory: accesses - disk - compressed, disk };
    let before = counts(without.pages_back(), 0.0);
    let after = counts(0.0, back);
    let times = |compressed_s: f64| Times {
        caches_ns: 0.0,
        memory_ns: MEMORY_NS,
        compressed_ns: compressed_s * ns,
        disk_ns: (swap.read_s + swap.write_s) * ns,
    };
    // As printed a hit is the mean of decompressions and compressions, and nothing is written.
    let printed_s = {
        let level = |hits: f64, seconds: f64| Level { hits, access_ns: seconds * ns };
        let compressions = level(with.compressed, costs.compress_s);
        Printed::compressed_access(level(back, costs.decompress_s), compressions, 0.0) / ns
    };
    let printed_times = Times { disk_ns: swap.read_s * ns, ..times(costs.fault_s.min(printed_s)) };
    Decision {
        condition: Condition::new(before, after, times(hit_s)),
        as_printed: Condition::new(before, after, printed_times),
        with_ramfold: Outcome::of(input, &with).slowdown,
        with_swap: swapped_slowdown(input, &without, swap),
    }
}

/// The run time with a device in place of ramfold, as a multiple of that with all memory. The
/// kernel is taken to choose pages as ramfold does.
pub fn swapped(input: &Input<'_>, memory_bytes: u64, swap: &Swap<'_>) -> Estimate {
    let counts = swapped_counts(input, memory_bytes, swap);
    let slowdown = swapped_slowdown(input, &counts, swap);
    around(slowdown, super::MODEL_ERROR.times(slowdown - 1.0), [super::RUN_ERROR, 0.0])
}

fn swapped_slowdown(
    input: &Input<'_>,
    counts: &crate::simulate::program::Counts,
    swap: &Swap<'_>,
) -> f64 {
    let each_s = swap.read_s + swap.write_s;
    let lost_s = counts.pages_back() * each_s + counts.first_over_cap * swap.write_s;
    1.0 + super::finite(lost_s / input.run.wall_s.max(1e-9))
}

fn swapped_counts(
    input: &Input<'_>,
    memory_bytes: u64,
    swap: &Swap<'_>,
) -> crate::simulate::program::Counts {
    let none = Sizes::alike(PageSizes::default());
    let overhead = Overhead::of_kernel(input.overhead);
    let sizes = swap.objects.unwrap_or(&none);
    counts(&Input { sizes, overhead, ..*input }, memory_bytes)
}

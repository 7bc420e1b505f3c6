//! What a program takes with all memory when nobody looks: what run times are multiples of.

use serde::{Deserialize, Serialize};

use super::Row;
use crate::meter::others_took;
use crate::observation::{Trial, WholeRun};

/// The run that run times are multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllMemory {
    /// How long it takes. Seconds.
    pub wall_s: f64,
    /// Processor time of the program, and of what it started. Seconds.
    pub processor_s: f64,
    /// Runs that this is the mean of. 0: it is that of the run that was observed, without what
    /// observation took.
    pub runs: usize,
}

impl AllMemory {
    /// By the run that was observed. `None` where it took no time.
    pub(super) fn observed(run: WholeRun) -> Option<AllMemory> {
        let wall_s = (run.wall_s - run.observation_s).max(run.wall_s / 2.0);
        let all_memory = AllMemory { wall_s, processor_s: run.processor_s, runs: 0 };
        (wall_s > 0.0).then_some(all_memory)
    }

    /// By those of these runs that count, where there are any.
    pub(super) fn of_runs(runs: &[&Trial]) -> Option<AllMemory> {
        let counting: Vec<&&Trial> = runs.iter().filter(|run| run.failed.is_none()).collect();
        let mean = |of: fn(&Trial) -> f64| {
            counting.iter().map(|run| of(run)).sum::<f64>() / counting.len() as f64
        };
        let all_memory = AllMemory {
            wall_s: mean(|run| run.wall_s),
            processor_s: mean(|run| run.processor_s),
            runs: counting.len(),
        };
        (all_memory.wall_s > 0.0).then_some(all_memory)
    }
}

/// Makes rows, which are multiples of one run, those of another. What is lost does not depend on
/// how long the program takes with all memory.
pub(super) fn convert(rows: &mut [Row], from: AllMemory, to: AllMemory) {
    let wall = from.wall_s / to.wall_s;
    let is_known = to.processor_s > 0.0;
    let processor = if is_known { from.processor_s / to.processor_s } else { 1.0 };
    for row in rows {
        let before = row.slowdown;
        for slowdown in [
            &mut row.slowdown,
            &mut row.slowdown_low,
            &mut row.slowdown_high,
            &mut row.zram_slowdown,
            &mut row.swap_slowdown,
        ] {
            *slowdown = slowdown.map(|times| 1.0 + (times - 1.0) * wall);
        }
        row.processor = row.processor.map(|times| 1.0 + (times - 1.0) * processor);
        if let (Some(before), Some(after)) = (before, row.slowdown) {
            // As many faults, in another time.
            row.faults_per_second =
                row.faults_per_second.map(|faults| faults * wall * before / after);
        }
    }
}

/// What runs with all memory leave open.
pub(super) fn not_seen(runs: &[&Trial]) -> Vec<String> {
    let failed = runs.iter().filter_map(|run| run.failed.as_ref()).map(|why| {
        format!(
            "what the program takes with all memory when it is not observed: that run does not \
             count: {why}"
        )
    });
    let counting = runs.iter().filter(|run| run.failed.is_none());
    let taken = counting.filter_map(|run| run.others).reduce(f64::max).map(|taken| {
        format!(
            "how long it takes with all memory on an idle machine: {}",
            others_took(taken, "when it was not observed")
        )
    });
    failed.chain(taken).collect()
}

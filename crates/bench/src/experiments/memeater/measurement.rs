//! The program under each memory system, in turn.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::eater;
use crate::harness::measure::{Launch, Outcome, measure};
use crate::harness::statistics::median_of;
use crate::machine::host::Host;
use crate::machine::program::Program;
use crate::peers::{Budget, Peer};

/// Swap areas are as many times as large as the memory.
const SWAP_FACTOR: u64 = 8;
/// With a pool outside of the cgroup, this share of the memory is the cgroup's, and the program is
/// ended when the pool has taken the rest. The share is what stays resident when all else is
/// swapped out.
const RESIDENT_SHARE: u64 = 8;
/// The cap of ramfold, in percent of the memory: its default in a cgroup.
const CAP_PERCENT: u64 = 90;

/// What the program got under one memory system.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) peer: String,
    pub(super) memory_bytes: u64,
    pub(super) runs: usize,
    /// Medians of the runs.
    pub(super) allocated_bytes: f64,
    pub(super) seconds_per_mebibyte: f64,
    pub(super) allocated_bytes_min: u64,
    pub(super) allocated_bytes_max: u64,
    /// Times what the first peer gave.
    pub(super) ratio: f64,
}

/// One run.
struct Meal {
    blocks: u64,
    seconds: f64,
}

/// Runs the program under each peer in turn.
pub(super) fn compare(
    host: &Host,
    peers: &[Box<dyn Peer>],
    memory_bytes: u64,
    runs: usize,
    time_limit: Duration,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Row>> {
    let mut meals: Vec<Vec<Meal>> = peers.iter().map(|_| Vec::new()).collect();
    for run in 0..runs {
        for (peer, meals) in peers.iter().zip(&mut meals) {
            tell(&format!("{}, run {} of {runs}", peer.name(), run + 1));
            let meal = meal(host, peer.as_ref(), memory_bytes, run as u64, time_limit)
                .with_context(|| format!("memeater under {}", peer.name()))?;
            meals.push(meal);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for (peer, meals) in peers.iter().zip(&meals) {
        let middle = |of: &dyn Fn(&Meal) -> f64| median_of(meals, of).context("no runs");
        let bytes = || meals.iter().map(|meal| meal.blocks * eater::BLOCK_BYTES);
        let allocated_bytes = middle(&|meal| (meal.blocks * eater::BLOCK_BYTES) as f64)?;
        let first = rows.first().map_or(allocated_bytes, |row| row.allocated_bytes);
        rows.push(Row {
            peer: peer.name().to_owned(),
            memory_bytes,
            runs,
            allocated_bytes,
            seconds_per_mebibyte: middle(&|meal| meal.seconds / meal.blocks.max(1) as f64)?,
            allocated_bytes_min: bytes().min().unwrap_or(0),
            allocated_bytes_max: bytes().max().unwrap_or(0),
            ratio: allocated_bytes / first,
        });
    }
    Ok(rows)
}

fn meal(
    host: &Host,
    peer: &dyn Peer,
    memory_bytes: u64,
    seed: u64,
    time_limit: Duration,
) -> Result<Meal> {
    let budget = peer.budget(host);
    let told = if budget == Budget::Cap { memory_bytes * CAP_PERCENT / 100 } else { memory_bytes };
    let active = peer.set_up(host, memory_bytes * SWAP_FACTOR, told)?;
    let cgroup = host.cgroup()?.context("there is no memory cgroup to limit the program with")?;
    let outside = budget == Budget::LimitAndPool;
    let limit_bytes = if outside { memory_bytes / RESIDENT_SHARE } else { memory_bytes };
    cgroup.configure(Some(limit_bytes), peer.swapping())?;
    let own = |argument: &str| argument.to_owned().into();
    let program = Program {
        command: vec![
            host.own_program.clone().into(),
            own(eater::NAME),
            own("--seed"),
            own(&seed.to_string()),
        ],
        environment: Vec::new(),
    };
    let outcome = measure(
        host,
        &Launch {
            program: &active.wrap(&program),
            cgroup: Some(&cgroup),
            pool: if outside { active.pool_gauge() } else { None },
            pool_bytes_max: outside.then_some(memory_bytes - limit_bytes),
            idle: None,
            time_limit,
        },
    )?;
    check(&outcome)?;
    cgroup.finish()?;
    active.finish()?;
    let blocks = eater::blocks_in(&outcome.output);
    Ok(Meal { blocks, seconds: outcome.wall_seconds })
}

/// Whether it ended for want of memory, as it must.
fn check(outcome: &Outcome) -> Result<()> {
    ensure!(!outcome.timed_out, "the program found no end of memory within the time limit");
    if outcome.status.code() == Some(eater::WRONG_BYTES.into()) {
        bail!("the program found other bytes than it wrote: {}", outcome.errors.trim());
    }
    // Refused, or killed: alone, or ramfold says that its program was.
    let killed = outcome.out_of_memory || matches!(outcome.status.code(), Some(137));
    ensure!(
        killed || outcome.status.success(),
        "the program ended with {}: {}",
        outcome.status,
        outcome.errors.trim()
    );
    Ok(())
}

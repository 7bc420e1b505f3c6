//! How much a program can allocate, after paper 004's memeater (section 6.2): it takes memory a mebibyte at
//! a time and fills it, until it gets no more.
//!
//! The program is alone in a cgroup that no swap of the machine's helps, so "no more" means that the
//! kernel ends it.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::host::Host;
use crate::measure::{Launch, Outcome, Program, measure};
use crate::pages::{PAGE_BYTES, Page, PageSource};
use crate::peers::{Budget, Peer};
use crate::random::Random;
use crate::statistics::median_of;

const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_PAGES: usize = BLOCK_BYTES as usize / PAGE_BYTES;
/// What the program says for each block.
const MARK: u8 = b'.';
/// Its exit status when it finds other bytes than it wrote.
pub const WRONG_BYTES: u8 = 3;
/// Swap areas are as many times as large as the memory.
const SWAP_FACTOR: u64 = 8;
/// With a pool outside of the cgroup this share of the memory is the cgroup's, and the program ends when the
/// pool has taken the rest: what it comes to when all else has been swapped out.
const RESIDENT_SHARE: u64 = 8;
/// What ramfold is told of the memory, in percent: its default in a cgroup.
const CAP_PERCENT: u64 = 90;

/// What one memory system let the program have.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub peer: String,
    pub memory_bytes: u64,
    pub runs: usize,
    /// Medians of the runs.
    pub allocated_bytes: f64,
    pub seconds_per_mebibyte: f64,
    pub allocated_bytes_min: u64,
    pub allocated_bytes_max: u64,
    /// Times what the first peer gave.
    pub ratio: f64,
}

/// One run.
struct Meal {
    blocks: u64,
    seconds: f64,
}

/// Lets the program eat under each peer in turn.
pub fn compare(
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
        let bytes = || meals.iter().map(|meal| meal.blocks * BLOCK_BYTES);
        let allocated_bytes = middle(&|meal| (meal.blocks * BLOCK_BYTES) as f64)?;
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
            own("eat"),
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
    let blocks = outcome.output.iter().filter(|&&byte| byte == MARK).count() as u64;
    Ok(Meal { blocks, seconds: outcome.wall_seconds })
}

/// It must end for want of memory.
fn check(outcome: &Outcome) -> Result<()> {
    ensure!(!outcome.timed_out, "the program found no end of memory within the time limit");
    if outcome.status.code() == Some(WRONG_BYTES.into()) {
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

/// The program: eats until it gets no more. Each time it looks at one of its pages again.
///
/// # Errors
/// When it cannot say how far it is.
pub fn eat(seed: u64, mut output: impl Write) -> Result<Option<String>> {
    let source = PageSource::generated(seed);
    let mut random = Random::new(seed);
    let mut blocks: Vec<Vec<Page>> = Vec::new();
    loop {
        let mut block: Vec<Page> = Vec::new();
        if blocks.try_reserve(1).is_err() || block.try_reserve_exact(BLOCK_PAGES).is_err() {
            return Ok(None);
        }
        let first = blocks.len() * BLOCK_PAGES;
        for nth in first..first + BLOCK_PAGES {
            block.push(source.page(nth)?);
        }
        blocks.push(block);
        let nth = random.below(blocks.len() * BLOCK_PAGES);
        if blocks[nth / BLOCK_PAGES][nth % BLOCK_PAGES].0 != source.page(nth)?.0 {
            return Ok(Some(format!("page {nth} is not what was written")));
        }
        output.write_all(&[MARK]).context("cannot say how far I am")?;
        output.flush().context("cannot say how far I am")?;
    }
}

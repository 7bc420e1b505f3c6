//! Counting by all threads at once on the same pages.

use super::{Operation, Outcome, Turn, operation};
use crate::handlers;
use crate::table::COUNTERS_PER_PAGE;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("count", 12, "adds to counters that all threads add to, without a lock", count),
    operation("count-hot", 6, "the same on a few pages, many times", hot),
];

fn count(turn: &mut Turn<'_>) -> Outcome {
    let pages = turn.world.pages(turn.world.counter_region);
    for _ in 0..turn.rng.between(64, 1024) {
        add(turn, pages);
    }
    Ok(())
}

fn hot(turn: &mut Turn<'_>) -> Outcome {
    for _ in 0..20_000 {
        add(turn, 4);
    }
    crate::current::beat();
    Ok(())
}

fn add(turn: &mut Turn<'_>, pages: usize) {
    let page = turn.rng.zipf(pages);
    let quarter = turn.rng.below(COUNTERS_PER_PAGE);
    let amount = turn.rng.word() & 0xff;
    handlers::count(turn.world, page, quarter, amount);
}

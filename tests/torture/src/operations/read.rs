//! Loads in the orders in which programs read.

use super::{Operation, Outcome, Turn, operation};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("read-sequential", 6, "reads a region from its start or from its end", sequential),
    operation("read-random", 12, "reads pages in random order", random),
    operation("read-strided", 6, "reads every n-th page", strided),
    operation("read-zipf", 12, "reads some pages often and most rarely", zipf),
    operation("read-together", 12, "reads what all threads read, without a lock", together),
];

fn sequential(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    let pages = region.pages();
    region.remember(0, pages);
    if turn.rng.percent(50) {
        region.check(0, pages);
    } else {
        for page in (0..pages).rev() {
            region.check(page, 1);
        }
    }
    Ok(())
}

fn random(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    region.remember(0, region.pages());
    for _ in 0..turn.rng.between(1, 256) {
        region.check(turn.rng.below(region.pages()), 1);
    }
    Ok(())
}

fn strided(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    region.remember(0, region.pages());
    let stride = turn.rng.between(2, 33);
    for page in (turn.rng.below(stride)..region.pages()).step_by(stride) {
        region.check(page, 1);
    }
    Ok(())
}

fn zipf(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    region.remember(0, region.pages());
    for _ in 0..turn.rng.between(1, 256) {
        region.check(turn.rng.zipf(region.pages()), 1);
    }
    Ok(())
}

fn together(turn: &mut Turn<'_>) -> Outcome {
    let world = turn.world;
    for _ in 0..turn.rng.between(1, 256) {
        let region = if turn.rng.percent(80) { world.fixed_region } else { world.counter_region };
        world.check_lockless(region, turn.rng.zipf(world.pages(region)));
    }
    Ok(())
}

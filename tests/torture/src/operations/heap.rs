//! The heap of malloc(3).

use super::{Operation, Outcome, Skip, Turn, operation};

pub(super) const OPERATIONS: &[Operation] = &[
    operation(
        "heap-churn",
        8,
        "malloc, calloc, realloc and free of blocks that are compared",
        churn,
    ),
    operation("heap-check", 3, "compares all blocks of the thread", check),
    operation("heap-trim", 2, "gives free memory of the heap back to the kernel", trim),
];

fn churn(turn: &mut Turn<'_>) -> Outcome {
    let steps = turn.rng.between(10, 200);
    let mut rng = turn.rng.clone();
    turn.heap.churn(&mut rng, steps).map_err(|errno| Skip::errno("malloc", errno))
}

fn check(turn: &mut Turn<'_>) -> Outcome {
    turn.heap.check();
    Ok(())
}

fn trim(turn: &mut Turn<'_>) -> Outcome {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain library call.
    unsafe {
        libc::malloc_trim(0)
    };
    turn.heap.check();
    Ok(())
}

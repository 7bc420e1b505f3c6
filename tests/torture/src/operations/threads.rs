//! Threads that come and go, and deep stacks.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::handlers::Quiet;
use crate::rng::mix;
use crate::{current, fail, worker};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("thread-churn", 4, "starts threads that use their stacks and end", churn),
    operation("deep-recursion", 3, "a thread recurses deeply; every frame is compared", recursion),
];

/// Frame contents of about 2 KiB.
const FRAME_WORDS: usize = 240;

fn descend(depth: usize, key: u64) {
    let mut frame = [0_u64; FRAME_WORDS];
    let first = mix(&[key, depth as u64]);
    for (at, word) in frame.iter_mut().enumerate() {
        *word = first.wrapping_add(at as u64);
    }
    std::hint::black_box(&mut frame);
    if depth > 0 {
        descend(depth - 1, key);
    }
    let right = |(at, word): (usize, &u64)| *word == first.wrapping_add(at as u64);
    if !std::hint::black_box(&frame).iter().enumerate().all(right) {
        fail!("a frame of a thread's stack has changed, {depth} frames above the deepest");
    }
    if depth.is_multiple_of(64) {
        current::beat();
    }
}

/// Runs a thread on a stack of its own to the end.
fn run_thread(thread: usize, stack_bytes: usize, depth: usize, key: u64) -> Outcome {
    let _quiet = Quiet::new();
    let started = std::thread::Builder::new().stack_size(stack_bytes).spawn(move || {
        let _stack = worker::join_in(thread);
        descend(depth, key);
    });
    match started {
        Ok(started) => match started.join() {
            Ok(()) => Ok(()),
            Err(_) => fail!("a thread panicked"),
        },
        Err(error) => Err(Skip::errno("starting a thread", error.into())),
    }
}

fn churn(turn: &mut Turn<'_>) -> Outcome {
    let thread = turn.thread;
    let count = turn.rng.between(1, 6);
    let key = turn.rng.word();
    let stack_bytes = turn.rng.between(128, 1024) << 10;
    let depth = stack_bytes / 2 / (FRAME_WORDS * 8 + 256);
    if turn.rng.percent(50) {
        for index in 0..count {
            run_thread(thread, stack_bytes, depth, key ^ index as u64)?;
        }
        return Ok(());
    }
    let _quiet = Quiet::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                scope.spawn(move || run_thread(thread, stack_bytes, depth, key ^ index as u64))
            })
            .collect();
        for running in threads {
            match running.join() {
                Ok(outcome) => outcome?,
                Err(_) => fail!("a thread panicked"),
            }
        }
        Ok(())
    })
}

fn recursion(turn: &mut Turn<'_>) -> Outcome {
    let used_bytes = (turn.world.spare_pages() * crate::memory::PAGE).min(8 << 20);
    let depth = used_bytes / (FRAME_WORDS * 8 + 256);
    run_thread(turn.thread, used_bytes * 2 + (256 << 10), depth, turn.rng.word())
}

//! Shared memory and file mappings, which are nobody's but the program's.

use std::sync::PoisonError;

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::child::{self, Way};

pub(super) const OPERATIONS: &[Operation] = &[operation(
    "shared-mappings",
    5,
    "writes and compares shared memory and file mappings, also from a child",
    shared,
)];

fn shared(turn: &mut Turn<'_>) -> Outcome {
    let mut beside = turn.world.beside.lock().unwrap_or_else(PoisonError::into_inner);
    beside.check();
    beside.write(&mut turn.rng).map_err(|errno| Skip::errno("writing a file", errno))?;
    beside.check();
    if turn.rng.percent(30) {
        let (page, content) = beside.commission(&mut turn.rng);
        let child = child::fork(Way::Libc, turn.world, |_| {
            beside.deliver(page, content);
            0
        });
        match child.and_then(child::Child::wait) {
            Ok(()) => {}
            Err(skip) => {
                beside.deliver(page, content);
                return Err(skip);
            }
        }
        beside.check();
    }
    Ok(())
}

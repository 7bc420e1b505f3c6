//! Locked memory.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::fail;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("mlock", 5, "locks pages, uses them and unlocks them", mlock),
    operation("mlockall", 2, "locks all memory that is present, and unlocks it", mlockall),
    operation(
        "mlockall-populate",
        0,
        "locks all memory and has it made present: needs it to fit",
        mlockall_populate,
    ),
];

/// Errors that limits and missing privileges lead to.
fn is_limit(errno: Errno) -> bool {
    matches!(errno.0, libc::EPERM | libc::ENOMEM | libc::EAGAIN)
}

fn mlock(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    region.split();
    let span = region.span(first, pages);
    let on_fault = turn.rng.percent(30);
    // SAFETY: the span is held.
    let result = unsafe {
        if on_fault {
            libc::mlock2(span.void(), span.bytes(), libc::MLOCK_ONFAULT as _)
        } else {
            libc::mlock(span.void(), span.bytes())
        }
    };
    let errno = Errno::last();
    if result != 0 && !is_limit(errno) {
        fail!("mlock of {pages} pages gave {errno}");
    }
    region.check(first, pages);
    for _ in 0..turn.rng.between(1, pages) {
        region.write_full(first + turn.rng.below(pages));
    }
    region.check(first, pages);
    let span = region.span(first, pages);
    // SAFETY: the span is held.
    if unsafe { libc::munlock(span.void(), span.bytes()) } != 0 {
        fail!("munlock of {pages} pages gave {}", Errno::last());
    }
    region.check(first, pages);
    if result == 0 { Ok(()) } else { Err(Skip::errno("mlock", errno)) }
}

fn mlockall(turn: &mut Turn<'_>) -> Outcome {
    lock_all(turn, libc::MCL_CURRENT | libc::MCL_ONFAULT)
}

fn mlockall_populate(turn: &mut Turn<'_>) -> Outcome {
    lock_all(turn, libc::MCL_CURRENT)
}

fn lock_all(turn: &mut Turn<'_>, flags: i32) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let _alone = turn.world.locking.locking();
    // SAFETY: a plain system call.
    if unsafe { libc::mlockall(flags) } != 0 {
        let errno = Errno::last();
        if !is_limit(errno) {
            fail!("mlockall gave {errno}");
        }
        return Err(Skip::errno("mlockall", errno));
    }
    for page in first..first + pages {
        region.write_partial(page);
    }
    region.check(first, pages);
    // SAFETY: a plain system call.
    if unsafe { libc::munlockall() } != 0 {
        fail!("munlockall gave {}", Errno::last());
    }
    region.check(first, pages);
    Ok(())
}

//! Advice by which a program gives up what pages hold.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::check;
use crate::errno::Errno;
use crate::memory::Span;
use crate::{current, fail};
use crate::{touch, world};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("madvise-dontneed", 8, "MADV_DONTNEED: pages are zeros", dontneed),
    operation("madvise-free", 6, "MADV_FREE: each page is as before or zeros", free),
    operation("madvise-guard", 3, "MADV_GUARD_INSTALL on dropped pages: access is refused", guard),
    operation(
        "madvise-guard-used",
        0,
        "MADV_GUARD_INSTALL on pages in use, which a pager is not told of",
        guard_used,
    ),
];

/// Linux 6.13; not in the C library's headers of older systems.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// madvise(2) for memory that the caller holds, while nobody has all memory locked.
pub(super) fn madvise(span: Span<'_>, advice: i32) -> Result<(), Errno> {
    let _unlocked = world::world().map(|world| world.locking.using());
    // SAFETY: the span is the caller's, who answers for what the advice does to it.
    match unsafe { libc::madvise(span.void(), span.bytes(), advice) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

fn dontneed(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 300);
    region.reshape(|region| {
        if let Err(errno) = madvise(region.span(first, pages), libc::MADV_DONTNEED) {
            fail!("MADV_DONTNEED of {pages} pages gave {errno}");
        }
        region.zeroed(first, pages);
    });
    if turn.rng.percent(70) {
        region.check(first, pages);
    }
    for page in first..first + pages {
        match turn.rng.below(4) {
            0 => region.write_full(page),
            1 => region.write_partial(page),
            _ => {}
        }
    }
    region.check(first, pages);
    Ok(())
}

fn free(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 300);
    let world = turn.world;
    let reads = turn.rng.percent(70);
    let outcome = region.reshape(|region| {
        if let Err(errno) = madvise(region.span(first, pages), libc::MADV_FREE) {
            return Err(Skip::errno("MADV_FREE", errno));
        }
        for page in (first..first + pages).filter(|_| reads) {
            let memory = region.span(page, 1);
            check::page_or_zeros(world, world.table.records, region.index(), page, memory);
        }
        // A page may become zeros at any time until it is written.
        for page in first..first + pages {
            region.write_full(page);
        }
        Ok(())
    });
    region.check(first, pages);
    outcome
}

/// As programs do for the guards of stacks and arenas: the pages have been given up before.
fn guard(turn: &mut Turn<'_>) -> Outcome {
    install_guard(turn, true)
}

/// The kernel drops what the pages hold, but it sends no event to a userfaultfd, unlike for
/// MADV_DONTNEED: a pager that had such a page away cannot know that it is zeros now.
fn guard_used(turn: &mut Turn<'_>) -> Outcome {
    install_guard(turn, false)
}

fn install_guard(turn: &mut Turn<'_>, drop_before: bool) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    let outcome = region.reshape(|region| {
        if drop_before {
            if let Err(errno) = madvise(region.span(first, pages), libc::MADV_DONTNEED) {
                fail!("MADV_DONTNEED of {pages} pages gave {errno}");
            }
            region.zeroed(first, pages);
        }
        if let Err(errno) = madvise(region.span(first, pages), MADV_GUARD_INSTALL) {
            return Err(Skip::errno("MADV_GUARD_INSTALL", errno));
        }
        for page in first..first + pages {
            let address = region.span(page, 1).address();
            current::beat();
            if let Ok(byte) = touch::load(address) {
                fail!(
                    "a load from the guarded page at {address:#x} was not refused, but {byte:#x}"
                );
            }
        }
        if let Err(errno) = madvise(region.span(first, pages), MADV_GUARD_REMOVE) {
            fail!("MADV_GUARD_REMOVE of {pages} pages gave {errno}");
        }
        region.zeroed(first, pages);
        Ok(())
    });
    region.check(first, pages);
    outcome?;
    for page in first..first + pages {
        region.write_full(page);
    }
    Ok(())
}

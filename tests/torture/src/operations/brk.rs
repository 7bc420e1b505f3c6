//! The heap of brk(2).
//!
//! Two users of brk in one process would take each other's memory back, and malloc is one. So a
//! child does it, which has one thread and calls no malloc; malloc itself grows and cuts back
//! the heap of the process that forks, see `heap-churn` and `heap-trim`.

use super::{Operation, Outcome, Turn, operation};
use crate::child::{self, Way};
use crate::content::{Content, PageBytes};
use crate::errno::Errno;
use crate::failure::EXIT_SKIP;
use crate::memory::{PAGE, Span};
use crate::rng::Rng;
use crate::world::World;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] =
    &[operation("brk", 3, "a child grows and cuts back its heap by sbrk", brk)];

/// Region number of the contents; no region has it.
const REGION: usize = 3800;

fn brk(turn: &mut Turn<'_>) -> Outcome {
    let world = turn.world;
    let seed = turn.rng.word();
    let most = world.spare_pages().min(512);
    child::fork(Way::Libc, world, |inherited| {
        let mut rng = Rng::new(seed);
        let status = stretch(world, &mut rng, most);
        inherited.check_sample(&mut rng, 50);
        status
    })?
    .wait()
}

fn sbrk(bytes: isize) -> Result<usize, Errno> {
    // SAFETY: only memory that this function added is given back, and nothing else in the child
    // moves the break.
    let found = unsafe { libc::sbrk(bytes) };
    if found.addr() == usize::MAX { Err(Errno::last()) } else { Ok(found.expose_provenance()) }
}

fn stretch(world: &World, rng: &mut Rng, most: usize) -> i32 {
    let Ok(now) = sbrk(0) else { return EXIT_SKIP };
    let start = now.next_multiple_of(PAGE);
    if sbrk((start - now) as isize).is_err() {
        return EXIT_SKIP;
    }
    let mut pages = 0;
    for version in 1..12 {
        let wanted = rng.between(0, most);
        match sbrk((wanted as isize - pages as isize) * PAGE as isize) {
            Ok(end) if end == start + pages * PAGE => {}
            Ok(end) => fail!("the break is at {end:#x}, not at {:#x}", start + pages * PAGE),
            Err(_) => return EXIT_SKIP,
        }
        let before = pages;
        pages = wanted;
        let mut expected = PageBytes::zeroed();
        let mut found = PageBytes::zeroed();
        for page in 0..pages {
            // SAFETY: the heap was grown over this page, and the child has one thread.
            let memory = unsafe { Span::new(start + page * PAGE, PAGE) };
            memory.load(&mut found.0);
            if page < before {
                Content::full(REGION, page, version - 1).fill(world.recipe, &mut expected);
            } else {
                expected.0.fill(0);
            }
            if let Some(at) = (0..PAGE).find(|&at| found.0[at] != expected.0[at]) {
                fail!(
                    "byte {at} of page {page} of a heap grown by sbrk from {before} to {pages} \
                     pages, at {:#x}: expected {:#04x}, found {:#04x}",
                    memory.address() + at,
                    expected.0[at],
                    found.0[at]
                );
            }
            Content::full(REGION, page, version).fill(world.recipe, &mut expected);
            memory.store(&expected.0);
            current::beat();
        }
    }
    if sbrk(-((pages * PAGE) as isize)).is_err() { EXIT_SKIP } else { 0 }
}

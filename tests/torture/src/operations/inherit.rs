//! Advice on what children inherit.

use super::discard::madvise;
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::check;
use crate::child::{self, Child, Way};
use crate::content::PageBytes;
use crate::memory::{PAGE, Span};
use crate::rng::Rng;
use crate::touch;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("madvise-dontfork", 3, "MADV_DONTFORK: a child has no such memory", dontfork),
    operation("madvise-wipeonfork", 3, "MADV_WIPEONFORK: a child has zeros there", wipeonfork),
];

/// Addresses and pages of a range, for a child that must not ask the region.
#[derive(Clone, Copy)]
struct Range {
    region: usize,
    address: usize,
    first: usize,
    pages: usize,
}

fn with_advice(
    turn: &mut Turn<'_>,
    advice: (i32, &'static str),
    undo: (i32, &'static str),
    way: Way,
    in_child: impl Fn(Range),
) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let world = turn.world;
    let outcome = region.reshape(|region| {
        region.split();
        let span = region.span(first, pages);
        madvise(span, advice.0).map_err(|errno| Skip::errno(advice.1, errno))?;
        let range = Range { region: region.index(), address: span.address(), first, pages };
        let seed = turn.rng.word();
        let outcome = child::fork(way, world, |inherited| {
            in_child(range);
            inherited.check_sample(&mut Rng::new(seed), 1000);
            0
        })
        .and_then(Child::wait);
        if let Err(errno) = madvise(span, undo.0) {
            fail!("{} gave {errno}", undo.1);
        }
        outcome
    });
    region.check(first, pages);
    outcome
}

fn dontfork(turn: &mut Turn<'_>) -> Outcome {
    let way = *turn.rng.pick(&[Way::Libc, Way::RawClone]);
    let world = turn.world;
    let advice = (libc::MADV_DONTFORK, "MADV_DONTFORK");
    with_advice(turn, advice, (libc::MADV_DOFORK, "MADV_DOFORK"), way, |range| {
        for page in 0..range.pages {
            current::beat();
            let address = range.address + page * PAGE;
            if touch::load(address).is_err() {
                continue;
            }
            // Something that runs at fork may have mapped memory of its own there, but the
            // parent's page must not be there.
            // SAFETY: the load just now was not refused, and the child has one thread.
            let memory = unsafe { Span::new(address, PAGE) };
            let mut found = PageBytes::zeroed();
            memory.load(&mut found.0);
            let content = check::content(world.table.records, range.region, range.first + page);
            let mut parents = PageBytes::zeroed();
            content.fill(world.recipe, &mut parents);
            if found.0 == parents.0 && found.0.iter().any(|&byte| byte != 0) {
                fail!("a child can read the page at {address:#x} in spite of MADV_DONTFORK");
            }
        }
    })
}

fn wipeonfork(turn: &mut Turn<'_>) -> Outcome {
    let way = *turn.rng.pick(&[Way::Libc, Way::RawClone]);
    let world = turn.world;
    let advice = (libc::MADV_WIPEONFORK, "MADV_WIPEONFORK");
    with_advice(turn, advice, (libc::MADV_KEEPONFORK, "MADV_KEEPONFORK"), way, |range| {
        for page in 0..range.pages {
            // SAFETY: the pages are mapped in the child too, which has one thread.
            let memory = unsafe { Span::new(range.address + page * PAGE, PAGE) };
            let route = "in a child after MADV_WIPEONFORK";
            check::zeros(world, range.region, range.first + page, memory, route);
        }
    })
}

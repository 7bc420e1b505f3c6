//! memcpy and memmove of much memory.

use super::{Operation, Outcome, Turn, operation};
use crate::memory::PAGE;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("copy-between", 6, "copies pages from one region to another", between),
    operation(
        "copy-overlapping",
        6,
        "moves pages within a region, source and target overlap",
        overlapping,
    ),
    operation("copy-out", 6, "copies pages to the heap at an odd address", out),
];

fn between(turn: &mut Turn<'_>) -> Outcome {
    // The lower number is locked first, so that two threads cannot wait for each other.
    let own = turn.world.own(turn.thread);
    let from_index = own.start + turn.rng.below(own.len());
    let to_index = if turn.rng.percent(50) {
        own.start + (from_index - own.start + 1) % own.len()
    } else {
        turn.world.shared().start + turn.rng.below(turn.world.shared().len())
    };
    let (from, mut to) = if from_index < to_index {
        let from = turn.lock(from_index);
        (from, turn.lock(to_index))
    } else {
        let to = turn.lock(to_index);
        (turn.lock(from_index), to)
    };
    let (source, pages) = turn.range(&from, 512.min(to.pages()));
    let target = turn.rng.below(to.pages() - pages + 1);
    to.remember(target, pages);
    let contents = (source..source + pages).map(|page| from.content(page)).collect();
    to.change(target, pages, |span| {
        // SAFETY: both spans are held, and they are of different regions.
        unsafe {
            let source = from.span(source, pages).void();
            libc::memcpy(span.void(), source, pages * PAGE);
        }
        (contents, ())
    });
    from.check(source, pages);
    to.check(target, pages);
    Ok(())
}

fn overlapping(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 512);
    let shift = turn.rng.between(1, pages) / 2;
    let (source, target) =
        if turn.rng.percent(50) { (first, first + shift) } else { (first + shift, first) };
    let moved = pages - shift;
    let before: Vec<_> = (first..first + pages).map(|page| region.content(page)).collect();
    let mut after = before.clone();
    after[target - first..target - first + moved]
        .copy_from_slice(&before[source - first..source - first + moved]);
    region.change(first, pages, |span| {
        let from = span.part((source - first) * PAGE, moved * PAGE);
        let to = span.part((target - first) * PAGE, moved * PAGE);
        // SAFETY: both are parts of a span that is held; memmove allows the overlap.
        unsafe { libc::memmove(to.void(), from.void(), moved * PAGE) };
        (after, ())
    });
    region.check(first, pages);
    Ok(())
}

fn out(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    let (first, pages) = turn.range(&region, 512);
    let shift = turn.rng.between(1, 63);
    region.export_by(first, pages, "by memcpy to the heap", |span, bytes| {
        let mut odd = vec![0_u8; bytes.len() + shift];
        // SAFETY: the vector has room behind `shift`, the span is readable.
        unsafe { libc::memcpy(odd[shift..].as_mut_ptr().cast(), span.void(), bytes.len()) };
        bytes.copy_from_slice(&odd[shift..]);
        Ok(())
    })
}

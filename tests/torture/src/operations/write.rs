//! Stores, whole pages and parts of them.

use super::{Operation, Outcome, Turn, operation};
use crate::content::PageBytes;
use crate::memory::PAGE;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("write-full", 20, "writes pages from end to end", full),
    operation("write-partial", 20, "writes parts of pages", partial),
    operation("write-crossing", 6, "stores words that lie across two pages", crossing),
];

fn full(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    for page in first..first + pages {
        if turn.rng.percent(10) {
            region.check(page, 1);
        }
        region.write_full(page);
    }
    region.check(first, pages);
    Ok(())
}

fn partial(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    for _ in 0..pages {
        region.write_partial(first + turn.rng.below(pages));
    }
    region.check(first, pages);
    Ok(())
}

fn crossing(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    for page in first..(first + pages).saturating_sub(1) {
        let contents = vec![region.next(page), region.next(page + 1)];
        let mut bytes = [0; 2 * PAGE];
        for (at, content) in contents.iter().enumerate() {
            let mut page = PageBytes::zeroed();
            content.fill(turn.world.recipe, &mut page);
            bytes[at * PAGE..(at + 1) * PAGE].copy_from_slice(&page.0);
        }
        // The word has 1 to 7 of its bytes on the first page.
        let start = PAGE - turn.rng.between(1, 7);
        region.change(page, 2, |span| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[start..start + 8]);
            let pointer = span.part(start, 8).pointer().cast::<u64>();
            // SAFETY: the span is writable and held by this thread.
            unsafe { pointer.write_unaligned(u64::from_ne_bytes(word)) };
            span.part(0, start).store(&bytes[..start]);
            span.part(start + 8, 2 * PAGE - start - 8).store(&bytes[start + 8..]);
            (contents, ())
        });
        region.check(page, 2);
    }
    Ok(())
}

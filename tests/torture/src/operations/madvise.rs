//! Advice that must not change what pages hold.

use super::discard::madvise;
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::fail;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("madvise-willneed", 3, "MADV_WILLNEED", willneed),
    operation(
        "madvise-populate",
        4,
        "MADV_POPULATE_READ and _WRITE, also of zeroed pages",
        populate,
    ),
    operation("madvise-cold", 4, "MADV_COLD", cold),
    operation("madvise-pageout", 4, "MADV_PAGEOUT", pageout),
];

fn willneed(turn: &mut Turn<'_>) -> Outcome {
    advise(turn, libc::MADV_WILLNEED, "MADV_WILLNEED")
}

fn cold(turn: &mut Turn<'_>) -> Outcome {
    advise(turn, libc::MADV_COLD, "MADV_COLD")
}

fn pageout(turn: &mut Turn<'_>) -> Outcome {
    advise(turn, libc::MADV_PAGEOUT, "MADV_PAGEOUT")
}

fn advise(turn: &mut Turn<'_>, advice: i32, name: &'static str) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 512);
    if let Err(errno) = madvise(region.span(first, pages), advice) {
        return Err(Skip::errno(name, errno));
    }
    for _ in 0..turn.rng.below(pages) {
        region.write_partial(first + turn.rng.below(pages));
    }
    region.check(first, pages);
    Ok(())
}

fn populate(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    let dropped = turn.rng.between(0, pages / 2);
    if dropped > 0 {
        region.reshape(|region| {
            if let Err(errno) = madvise(region.span(first, dropped), libc::MADV_DONTNEED) {
                fail!("MADV_DONTNEED of {dropped} pages gave {errno}");
            }
            region.zeroed(first, dropped);
        });
    }
    let (advice, name) = *turn.rng.pick(&[
        (libc::MADV_POPULATE_READ, "MADV_POPULATE_READ"),
        (libc::MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE"),
    ]);
    let outcome = match madvise(region.span(first, pages), advice) {
        Ok(()) => Ok(()),
        // Linux before 5.14 does not know it.
        Err(errno) if errno.0 == libc::EINVAL => Err(Skip::errno(name, errno)),
        Err(errno) => fail!("{name} of {pages} pages gave {errno}"),
    };
    region.check(first, pages);
    for page in first..first + dropped {
        region.write_full(page);
    }
    outcome
}

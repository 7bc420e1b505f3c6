//! Huge pages, asked for, broken up and put together.

use super::discard::madvise;
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::fail;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("madvise-huge", 3, "MADV_HUGEPAGE and _NOHUGEPAGE, fresh pages in between", huge),
    operation(
        "madvise-collapse",
        3,
        "MADV_COLLAPSE: the kernel makes huge pages at once",
        collapse,
    ),
];

fn huge(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let whole = turn.rng.percent(60);
    let (first, pages) = if whole {
        region.remember(0, region.pages());
        (0, region.pages())
    } else {
        turn.range(&region, 1024)
    };
    let (advice, name) = *turn.rng.pick(&[
        (libc::MADV_HUGEPAGE, "MADV_HUGEPAGE"),
        (libc::MADV_HUGEPAGE, "MADV_HUGEPAGE"),
        (libc::MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"),
    ]);
    if !whole {
        region.split();
    }
    if let Err(errno) = madvise(region.span(first, pages), advice) {
        return Err(Skip::errno(name, errno));
    }
    region.check(first, pages);
    if turn.rng.percent(50) {
        // Where a huge page fits, the kernel now uses one.
        region.reshape(|region| {
            if let Err(errno) = madvise(region.span(first, pages), libc::MADV_DONTNEED) {
                fail!("MADV_DONTNEED of {pages} pages gave {errno}");
            }
            region.zeroed(first, pages);
        });
        for page in first..first + pages {
            region.write_full(page);
        }
    }
    if turn.rng.percent(50) {
        // Breaks huge pages up again.
        let (first, pages) = turn.range(&region, 20);
        region.reshape(|region| {
            if let Err(errno) = madvise(region.span(first, pages), libc::MADV_DONTNEED) {
                fail!("MADV_DONTNEED of {pages} pages gave {errno}");
            }
            region.zeroed(first, pages);
        });
    }
    region.check_all();
    Ok(())
}

fn collapse(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    region.remember(0, region.pages());
    let result = madvise(region.span(0, region.pages()), libc::MADV_COLLAPSE);
    region.check_all();
    match result {
        Ok(()) => Ok(()),
        // A region without room for a huge page, pages in use, no memory, an old kernel.
        Err(errno)
            if matches!(errno.0, libc::EINVAL | libc::EAGAIN | libc::EBUSY | libc::ENOMEM) =>
        {
            Err(Skip::errno("MADV_COLLAPSE", errno))
        }
        Err(errno) => fail!("MADV_COLLAPSE gave {errno}"),
    }
}

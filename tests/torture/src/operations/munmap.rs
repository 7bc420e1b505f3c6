//! Unmapping memory and mapping anew at the same address.

use std::ops::Range;

use super::{Operation, Outcome, Turn, operation};
use crate::errno::Errno;
use crate::fail;
use crate::memory::{PAGE, map, unmap};
use crate::region::RegionGuard;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("munmap-part", 6, "unmaps a part of a region and maps it again: zeros", part),
    operation("munmap-whole", 3, "unmaps a region and maps it again: zeros", whole),
    operation("mmap-over", 6, "maps over a part of a region: zeros", over),
];

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn part(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (mut first, pages) = turn.range(&region, 300);
    match turn.rng.below(4) {
        0 => first = 0,
        1 => first = region.pages() - pages,
        _ => {}
    }
    region.remember(first, pages);
    remap(&mut region, first, pages);
    rewrite(turn, &mut region, first, pages);
    Ok(())
}

fn whole(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let pages = region.pages();
    region.remember(0, pages);
    remap(&mut region, 0, pages);
    rewrite(turn, &mut region, 0, pages);
    Ok(())
}

/// Unmaps pages and maps fresh ones at the same address.
fn remap(region: &mut RegionGuard<'_>, first: usize, pages: usize) {
    region.reshape(|region| {
        let all = region.pages();
        let address = region.address() + first * PAGE;
        // SAFETY: the pages are the region's, whose lock is held.
        if let Err(errno) = unsafe { unmap(address, pages * PAGE) } {
            fail!("munmap of {pages} pages gave {errno}");
        }
        // SAFETY: with MAP_FIXED_NOREPLACE nothing that is mapped is lost.
        let mapped = unsafe {
            let flags = FLAGS | libc::MAP_FIXED_NOREPLACE;
            map(address, pages * PAGE, PROTECTION, flags, -1)
        };
        match mapped {
            Ok(found) if found == address => {
                if pages == all {
                    region.mapped_whole();
                } else {
                    region.split();
                }
                region.zeroed(first, pages);
            }
            // Before Linux 4.17 the flag is only a hint.
            Ok(found) => {
                // SAFETY: the mapping was made just now.
                if let Err(errno) = unsafe { unmap(found, pages * PAGE) } {
                    fail!("munmap of {pages} pages gave {errno}");
                }
                rebuild_around(region, first..first + pages);
            }
            // Another thread has mapped something there meanwhile.
            Err(Errno(libc::EEXIST)) => rebuild_around(region, first..first + pages),
            Err(errno) => fail!("mmap of {pages} pages gave {errno}"),
        }
    });
}

/// Moves a region that has a hole to where there is room for all of it.
fn rebuild_around(region: &mut RegionGuard<'_>, hole: Range<usize>) {
    let pages = region.pages();
    region.rebuild(hole, pages);
}

fn over(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 300);
    let extra = *turn.rng.pick(&[0, 0, libc::MAP_POPULATE, libc::MAP_NORESERVE]);
    region.reshape(|region| {
        let address = region.address() + first * PAGE;
        // SAFETY: what is mapped over is the region's, whose lock is held.
        let mapped =
            unsafe { map(address, pages * PAGE, PROTECTION, FLAGS | libc::MAP_FIXED | extra, -1) };
        match mapped {
            Ok(found) if found == address => region.zeroed(first, pages),
            Ok(found) => fail!("mmap at the fixed address {address:#x} gave {found:#x}"),
            Err(errno) => fail!("mmap over {pages} pages of a region gave {errno}"),
        }
        region.split();
    });
    rewrite(turn, &mut region, first, pages);
    Ok(())
}

/// Compares fresh pages, which must be zeros, and writes most of them.
fn rewrite(turn: &mut Turn<'_>, region: &mut RegionGuard<'_>, first: usize, pages: usize) {
    region.check(first, pages);
    for page in first..first + pages {
        match turn.rng.below(8) {
            0 => {}
            1..=2 => region.write_partial(page),
            _ => region.write_full(page),
        }
    }
    region.check_all();
}

//! mremap(2): growing, shrinking and moving memory.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::check;
use crate::content::PageBytes;
use crate::errno::Errno;
use crate::fail;
use crate::memory::{Mapping, PAGE, Span};
use crate::region::RegionGuard;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("mremap-grow", 5, "grows a region, in place or not; new pages are zeros", grow),
    operation("mremap-shrink", 4, "shrinks a region", shrink),
    operation("mremap-move", 5, "moves a region to a chosen address", relocate),
    operation("mremap-dontunmap", 4, "moves a region and leaves an empty mapping behind", leave),
    operation("mremap-part", 4, "moves a part of a region away and back", part),
];

fn mremap(old: Span<'_>, bytes: usize, flags: i32, target: usize) -> Result<usize, Errno> {
    // SAFETY: the old range is the caller's; with MREMAP_FIXED the target is as well.
    let found = unsafe {
        let target: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(target);
        libc::mremap(old.void(), old.bytes(), bytes, flags, target)
    };
    if found == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(found.expose_provenance()) }
}

/// mremap of a whole region. When the kernel sees the region as several mappings, which it then
/// refuses to move at once, returns nothing; if it has no reason to, that is wrong.
fn mremap_region(
    region: &RegionGuard<'_>,
    pages: usize,
    flags: i32,
    target: usize,
) -> Option<Result<usize, Errno>> {
    let old = region.span(0, region.pages());
    match mremap(old, pages * PAGE, flags, target) {
        Err(Errno(libc::EFAULT)) if !region.uniform() || region.world().options.allow_split => None,
        Err(Errno(libc::EFAULT)) => fail!(
            "mremap of region {} at {:#x} with {} pages gave EFAULT, though the program has never \
             treated a part of it by itself",
            region.index(),
            old.address(),
            old.pages()
        ),
        result => Some(result),
    }
}

fn grow(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let old = region.pages();
    let pages = turn.rng.between(old, region.capacity());
    let in_place = turn.rng.percent(30);
    region.remember(old, pages - old);
    region.reshape(|region| {
        let mut result = None;
        if in_place {
            result = mremap_region(region, pages, 0, 0);
        }
        if matches!(result, None | Some(Err(Errno(libc::ENOMEM)))) {
            result = mremap_region(region, pages, libc::MREMAP_MAYMOVE, 0);
        }
        match result {
            Some(Ok(address)) => {
                region.place(address, pages);
                region.zeroed(old, pages - old);
            }
            None => region.rebuild(0..0, pages),
            Some(Err(errno)) => fail!("mremap from {old} to {pages} pages gave {errno}"),
        }
    });
    region.check(old, pages - old);
    for page in old..pages {
        region.write_full(page);
    }
    region.check_all();
    Ok(())
}

fn shrink(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let old = region.pages();
    let least = (region.capacity() / 2).max(1);
    let pages = turn.rng.between(least.min(old), old);
    region.remember(pages, old - pages);
    region.reshape(|region| match mremap_region(region, pages, 0, 0) {
        Some(Ok(address)) if address == region.address() => region.place(address, pages),
        Some(Ok(address)) => fail!("mremap moved a region to {address:#x} to shrink it"),
        None => region.rebuild(0..0, pages),
        Some(Err(errno)) => fail!("mremap from {old} to {pages} pages gave {errno}"),
    });
    region.check_all();
    Ok(())
}

fn reserve(pages: usize) -> Result<Mapping, Skip> {
    Mapping::reserved(pages * PAGE).map_err(|errno| Skip::errno("mmap", errno))
}

/// Makes a region one mapping again, if it may have become several. A move of several mappings to
/// a fixed address is refused by most kernels, perhaps after some have been moved.
fn unite(region: &mut RegionGuard<'_>) {
    if !region.uniform() {
        let pages = region.pages();
        region.reshape(|region| region.rebuild(0..0, pages));
    }
}

/// Where mappings may be split behind the program's back, fixed moves are not for it.
fn fixed_moves(turn: &Turn<'_>) -> Outcome {
    match turn.world.options.allow_split {
        true => Err(Skip::note("no moves to fixed addresses with --allow-split")),
        false => Ok(()),
    }
}

fn relocate(turn: &mut Turn<'_>) -> Outcome {
    fixed_moves(turn)?;
    let mut region = turn.region();
    let pages = region.pages();
    region.remember(0, pages);
    unite(&mut region);
    let target = reserve(pages)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    region.reshape(|region| match mremap_region(region, pages, flags, target.address()) {
        Some(Ok(address)) => {
            let (wanted, _) = target.release();
            if address != wanted {
                fail!("mremap moved a region to {address:#x} instead of {wanted:#x}");
            }
            region.place(address, pages);
        }
        None => fail!("a region that was mapped just now counts as several mappings"),
        Some(Err(errno)) => fail!("mremap to a fixed address gave {errno}"),
    });
    region.check_all();
    Ok(())
}

fn leave(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let pages = region.pages();
    region.remember(0, pages);
    let keep_left = turn.rng.percent(50);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let outcome = region.reshape(|region| {
        match mremap_region(region, pages, flags, 0) {
            Some(Ok(address)) => {
                // SAFETY: the old mapping is still there, and still this thread's.
                let left = unsafe { Mapping::adopt(region.address(), pages * PAGE) };
                region.place(address, pages);
                expect_zeros(region, left.span());
                if keep_left {
                    // The mapping left behind is as good as any: write it, and forget it later.
                    scribble(region, left.span());
                    region.check_all();
                }
                Ok(())
            }
            None => {
                region.rebuild(0..0, pages);
                Ok(())
            }
            Some(Err(Errno(libc::EINVAL))) => {
                Err(Skip::errno("mremap with MREMAP_DONTUNMAP", Errno(libc::EINVAL)))
            }
            Some(Err(errno)) => fail!("mremap with MREMAP_DONTUNMAP gave {errno}"),
        }
    });
    region.check_all();
    outcome
}

fn expect_zeros(region: &RegionGuard<'_>, left: Span<'_>) {
    for page in 0..left.pages() {
        let route = "in the mapping that MREMAP_DONTUNMAP left behind";
        check::zeros(region.world(), region.index(), page, left.page(page), route);
    }
}

/// Writes and compares memory that holds nothing of the region's.
fn scribble(region: &RegionGuard<'_>, left: Span<'_>) {
    let mut found = PageBytes::zeroed();
    for page in (0..left.pages()).step_by(3) {
        let mut bytes = PageBytes::zeroed();
        region.next(page).fill(region.world().recipe, &mut bytes);
        left.page(page).store(&bytes.0);
        left.page(page).load(&mut found.0);
        if found.0 != bytes.0 {
            fail!("page {page} of a mapping left behind does not hold what was written");
        }
    }
}

fn part(turn: &mut Turn<'_>) -> Outcome {
    fixed_moves(turn)?;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 512);
    unite(&mut region);
    let target = reserve(pages)?;
    let outcome = region.reshape(|region| {
        let away = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP | libc::MREMAP_FIXED;
        region.split();
        let home = region.span(first, pages);
        match mremap(home, pages * PAGE, away, target.address()) {
            Ok(_) => {}
            Err(errno @ Errno(libc::EINVAL)) => {
                // The kernel may have unmapped the target before it refused, and another thread
                // may have mapped something there since: the address space is lost.
                target.release();
                return Err(Skip::errno("mremap with MREMAP_DONTUNMAP", errno));
            }
            Err(errno) => {
                fail!("mremap of {pages} pages of a region that is one mapping gave {errno}")
            }
        }
        let world = region.world();
        for page in 0..pages {
            let records = world.table.records;
            let moved = target.span().page(page);
            check::page(world, records, region.index(), first + page, moved);
        }
        expect_zeros(region, home);
        scribble(region, home);
        let back = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        match mremap(target.span(), pages * PAGE, back, home.address()) {
            Ok(_) => {
                target.release();
                Ok(())
            }
            Err(errno) => fail!("mremap of {pages} pages back into a region gave {errno}"),
        }
    });
    region.check(first, pages);
    outcome
}

//! Deliberate damage, to show that the program notices.

use crate::check;
use crate::child::{self, Way};
use crate::content::PageBytes;
use crate::fail;
use crate::memory::Span;
use crate::options::Sabotage;
use crate::region::RegionGuard;
use crate::world::World;

/// Does the damage. To be called while no thread is at work.
pub(crate) fn commit(world: &'static World, sabotage: Sabotage) {
    match sabotage {
        Sabotage::Flip => flip(victim(world).1),
        Sabotage::Zero => victim(world).1.store(&PageBytes::zeroed().0),
        Sabotage::Stale => restore(world),
        Sabotage::Swap => swap(world),
        Sabotage::Counter => {
            let offset = check::counter_offset(world.recipe, 3, 1);
            let word = world.lockless_page(world.counter_region, 3).part(offset, 8);
            check::counter(word).fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        }
        Sabotage::Fixed => flip(world.lockless_page(world.fixed_region, 7)),
        Sabotage::Child => {
            let result = child::fork(Way::Libc, world, |inherited| {
                if let Some(page) = (0..inherited.pages(0)).find(|&page| inherited.known(0, page)) {
                    flip(inherited.span(0, page));
                }
                inherited.check_all();
                0
            });
            match result {
                Ok(child) => match child.wait() {
                    Ok(()) | Err(_) => fail!("a child did not notice what was done to it"),
                },
                Err(skip) => fail!("cannot fork: {skip}"),
            }
        }
        Sabotage::Beside => match world.beside.lock() {
            Ok(beside) => beside.corrupt(),
            Err(_) => fail!("the lock of the mappings beside is poisoned"),
        },
        Sabotage::Hang => loop {
            // SAFETY: a plain system call.
            unsafe { libc::pause() };
        },
    }
}

fn flip(page: Span<'_>) {
    let byte = page.part(1234, 1);
    let old = byte.touch();
    byte.store(&[old ^ 0x04]);
}

/// A page of the first region that is not all zeros, and the lock that was taken for it.
fn victim(world: &'static World) -> (RegionGuard<'static>, Span<'static>) {
    let mut region = world.regions[0].lock(world);
    let page = (0..region.pages()).find(|&page| !is_zero(&region, page)).unwrap_or_else(|| {
        // Any pattern but the zero page will do, and one of forty pages has one.
        (0..region.pages()).for_each(|page| region.write_full(page));
        (0..region.pages()).find(|&page| !is_zero(&region, page)).unwrap_or(0)
    });
    let address = region.span(page, 1).address();
    // SAFETY: no thread is at work, so the region stays as it is after the lock is let go.
    let span = unsafe { Span::new(address, crate::memory::PAGE) };
    (region, span)
}

fn is_zero(region: &RegionGuard<'_>, page: usize) -> bool {
    let mut bytes = PageBytes::zeroed();
    region.span(page, 1).load(&mut bytes.0);
    bytes.0.iter().all(|&byte| byte == 0)
}

/// Writes a page anew and then puts the old bytes back.
fn restore(world: &'static World) {
    let mut region = world.regions[0].lock(world);
    for page in 0..region.pages() {
        let mut old = PageBytes::zeroed();
        region.span(page, 1).load(&mut old.0);
        region.write_full(page);
        let mut new = PageBytes::zeroed();
        region.span(page, 1).load(&mut new.0);
        if old.0 != new.0 {
            return region.span(page, 1).store(&old.0);
        }
    }
}

/// Exchanges two pages that differ.
fn swap(world: &'static World) {
    let region = world.regions[0].lock(world);
    let mut first = PageBytes::zeroed();
    region.span(0, 1).load(&mut first.0);
    for page in 1..region.pages() {
        let mut second = PageBytes::zeroed();
        region.span(page, 1).load(&mut second.0);
        if first.0 != second.0 {
            region.span(0, 1).store(&second.0);
            return region.span(page, 1).store(&first.0);
        }
    }
}

//! First touches: pages that were never there begin as zeros.

use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;

use super::page_in::{room_ahead, settle};
use super::zero_page;
use super::{Handler, Served};
use crate::agent::{Active, Context, Core};
use crate::kernel::Kernel;
use crate::page::{self};
use crate::session::Counters;
use crate::take::sweep::{self};

/// Most zero pages supplied at once to a run of first touches.
pub(super) const ZERO_AHEAD_MAX: usize = 16;

/// The same where they are read, which costs no memory.
const ZERO_READ_AHEAD_MAX: usize = 64;

/// Of memory that may be touched unasked as much is let go at a time as all of that / this, but
/// between one huge page and some.
const LET_GO_SHARE: i64 = 8;

const LET_GO_MIN: i64 = 2 << 20;

const LET_GO_MAX: i64 = 32 << 20;

/// Most pages that are taken out of the registration at once where only a sample is watched: as
/// many as one look at them tells of.
const UNWATCHED_PAGES: usize = 128;

impl Handler {
    /// First touch: a page of the process's own, or the kernel's page of zeros if pages are read in
    /// order. A program that goes on page by page gets the following pages along with it.
    pub(super) fn fill_with_zeros(
        &mut self,
        context: &mut Context<'_>,
        address: usize,
        write: bool,
    ) -> Served {
        let Context { agent, active, .. } = *context;
        let counters = &agent.process().counters;
        counters.faults_zero_filled.fetch_add(1, Ordering::Relaxed);
        if let_go(context, address) || leave_unwatched(context, address) {
            return Served::Done;
        }
        let (row, most) = if write {
            (&mut self.first_writes, room_ahead(agent).clamp(1, ZERO_AHEAD_MAX))
        } else {
            (&mut self.first_reads, ZERO_READ_AHEAD_MAX)
        };
        let wanted = row.pages(address, most);
        let pages = pages_never_seen(active, context.core, address, wanted);
        // A page that is read out of order is mostly written to next, which would be a second
        // fault. ThreadSanitizer misses a race if other threads run between its read and its write.
        if !write && wanted > 1 {
            let mapped = zero_page::map(active, address, pages);
            row.note_done(address, mapped.unwrap_or(1));
            return settle(agent, active, address, mapped.map(drop));
        }
        // SAFETY: the pages were never touched, so zeros are their content.
        let copied =
            unsafe { active.kernel.copy(address, self.buffers.zeros.as_ptr(), pages * PAGE_SIZE) };
        let filled = match copied {
            Ok(()) => pages,
            Err(partial) => partial.done / PAGE_SIZE,
        };
        row.note_done(address, filled.max(1));
        agent.add_cost((filled * PAGE_SIZE) as u64);
        count_ahead(counters, filled);
        if filled > 0 { Served::Done } else { settle(agent, active, address, copied) }
    }
}

/// As long as there is much room, memory that is touched for the first time need not be known: some
/// of it is taken out of the registration, and the kernel fills it, with huge pages where it has
/// any. Only before anything was ever taken, so that nothing is missing there.
fn let_go(context: &mut Context<'_>, address: usize) -> bool {
    let Context { agent, active, .. } = *context;
    if context.core.has_taken {
        return false;
    }
    let Some(region) = context.core.regions.at_or_after(address) else { return false };
    let Some(bytes) = agent.announcements.take(LET_GO_SHARE, LET_GO_MIN, LET_GO_MAX) else {
        return false;
    };
    let start = (address & !(LET_GO_MIN as usize - 1)).max(region.start);
    let end = (start + (bytes as usize & !(LET_GO_MIN as usize - 1))).min(region.end);
    if !(start..end).contains(&address) || active.kernel.unregister(start..end).is_err() {
        return false;
    }
    context.core.regions.remove(&(start..end));
    agent.announcements.note_released((end - start) as u64);
    true
}

/// Where only a sample of the pages is registered, what a mapping grows by behind one of these
/// (mremap(2)) is registered too, and nobody knows of it: each first touch would be a fault, and
/// use up what watching may cost. Such pages are left to the kernel. Nothing is missing there.
fn leave_unwatched(context: &mut Context<'_>, address: usize) -> bool {
    let Context { agent, active, .. } = *context;
    let regions = &context.core.regions;
    let is_known = |page: usize| regions.contains(&(page..page + PAGE_SIZE));
    if agent.session().watch.slowdown_ppm().is_none() || is_known(address) {
        return false;
    }
    // What a thread moves there may be missing.
    if !agent.move_gate.begin_register() {
        return false;
    }
    let first = page::number_of(address);
    let empty = active.kernel.empty_pages(address, UNWATCHED_PAGES).unwrap_or(1);
    let is_unwatched = |&nth: &usize| {
        !sweep::is_out(active, context.core, first + nth as u64)
            && !is_known(address + nth * PAGE_SIZE)
    };
    let pages = 1 + (1..empty).take_while(is_unwatched).count();
    let is_left = [pages, 1].into_iter().any(|pages| leave(active, address, pages));
    agent.move_gate.end_register();
    is_left
}

/// Takes these pages out of the registration, if they lie within one mapping and no change is
/// unread: else other memory might be there, or some that was moved there and is missing.
fn leave(active: &Active, address: usize, pages: usize) -> bool {
    let range = address..address + pages * PAGE_SIZE;
    active.kernel.is_registered_anonymous(range.clone()) == Ok(true)
        && active.kernel.unregister(range).is_ok()
}

/// How many pages from `address` on, at most `wanted`, lie in registered memory, were never
/// evicted, and are nothing else to the kernel (a guard page would be overwritten).
fn pages_never_seen(active: &Active, core: &Core, address: usize, wanted: usize) -> usize {
    if wanted == 1 {
        return 1;
    }
    let wanted = active.kernel.empty_pages(address, wanted).unwrap_or(1);
    let first = page::number_of(address);
    let mut pages = 1;
    while pages < wanted
        && !sweep::is_out(active, core, first + pages as u64)
        && core.regions.contains(&(address..address + (pages + 1) * PAGE_SIZE))
    {
        pages += 1;
    }
    pages
}

fn count_ahead(counters: &Counters, filled: usize) {
    if filled > 1 {
        counters.pages_zero_filled_ahead.fetch_add(filled as u64 - 1, Ordering::Relaxed);
    }
}

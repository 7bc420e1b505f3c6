//! Brings in a page that was taken, from staging or from the store, with those that its stream
//! wants next.

use core::sync::atomic::Ordering;

use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::stream::Window;
use ramfold_policy::memory::victims::VictimKind;
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};

use super::content;
use super::content::Content;
use super::{Handler, Served, made, wake};
use crate::agent::{Active, Agent, Context};
use crate::cost;
use crate::kernel::Kernel;
use crate::page::{self, PageNumber};
use crate::take::{retained, watch};

/// Where a stream's pages are no further apart, a look at the page map goes twice as far as its
/// window reaches, past pages that are in memory. A look at many places far apart takes longer than
/// it spares.
const NEAR_STRIDE: i64 = 8;

/// Pages copied to the program at a time.
pub(super) const BATCH_PAGES: usize = 8;

impl Handler {
    /// Brings in a page that is fetched. With a page of a stream come those that are next.
    pub(super) fn serve(&mut self, context: &mut Context<'_>, page: PageNumber) -> Served {
        let agent = context.agent;
        let window = self.streams.window_at(page);
        let counters = &agent.process().counters;
        counters.pages_prefetch_wasted.fetch_add(window.wasted.into(), Ordering::Relaxed);
        if window.pages > 1 {
            return self.bring_window(context, page, window);
        }
        let served = self.bring_one(context, page, false);
        if served == Served::Done {
            self.streams.note_brought(1, 0);
        }
        served
    }

    /// Brings in the page that is fetched, by itself, and wakes who waits for it.
    fn bring_one(&self, context: &mut Context<'_>, page: PageNumber, is_streamed: bool) -> Served {
        let Context { agent, active, .. } = *context;
        let address = page::address_of(page);
        // SAFETY: the buffer was filled with the content of the page.
        let copied =
            unsafe { active.kernel.copy(address, self.buffers.pages[0].as_ptr(), PAGE_SIZE) };
        let served = settle(agent, active, address, copied);
        if served == Served::Done {
            note_returned(context, page, is_streamed);
        }
        served
    }

    /// Brings in the page that is fetched and those ahead of it in its stream that are out, as far
    /// as there is room for them. Who waits for them is woken later.
    fn bring_window(
        &mut self,
        context: &mut Context<'_>,
        page: PageNumber,
        Window { stride, pages, .. }: Window,
    ) -> Served {
        let Context { agent, active, .. } = *context;
        let most = pages.min(1 + room_ahead(agent));
        // A bit for each place of the stream, that of the fault first, that has no page, nor a
        // guard page, which would be overwritten.
        let mut places = 1;
        if most > 1 {
            let ahead = if stride.abs() <= NEAR_STRIDE { 2 * most } else { most } - 1;
            let address = page::address_of(page);
            let empty = active.kernel.empty_ahead(address, stride as isize, ahead);
            places |= empty.unwrap_or(0) << 1;
        }
        let (mut brought, mut place) = (0, 0);
        while brought < most {
            let rest = places.checked_shr(place).unwrap_or(0);
            if rest == 0 {
                break;
            }
            let together =
                if stride.abs() == 1 { (rest >> rest.trailing_zeros()).trailing_ones() } else { 1 };
            place += rest.trailing_zeros();
            let first = page.wrapping_add_signed(stride * i64::from(place));
            let together = (together as usize).min(most - brought);
            let mut done = self.bring(context, first, stride, together, place == 0);
            if done == 0 && place > 0 {
                break;
            }
            if done == 0 {
                let served = self.bring_one(context, page, true);
                if served != Served::Done {
                    return served;
                }
                done = 1;
            }
            context.core.probation.push(first, stride, done);
            brought += done;
            place += done as u32;
        }
        let last = page.wrapping_add_signed(stride * i64::from(place - 1));
        self.wake_later =
            Some(page::address_of(page.min(last))..page::address_of(page.max(last) + 1));
        self.streams.note_brought(brought, place as usize - 1);
        let counters = &agent.process().counters;
        counters.pages_prefetched.fetch_add(brought as u64 - 1, Ordering::Relaxed);
        Served::Done
    }

    /// Brings in a page and up to so many of its neighbours in one direction, as many as lie behind
    /// one another and fit the buffer, and wakes nobody. Returns how many. `is_fetched`: the first
    /// one is in the buffer.
    fn bring(
        &mut self,
        context: &mut Context<'_>,
        nearest: PageNumber,
        stride: i64,
        together: usize,
        is_fetched: bool,
    ) -> usize {
        let active = context.active;
        let upwards = stride > 0;
        let mut pages = usize::from(is_fetched);
        if !upwards && is_fetched {
            self.buffers.pages[BATCH_PAGES] = self.buffers.pages[0];
        }
        while pages < together.min(BATCH_PAGES) {
            let page = nearest.wrapping_add_signed(stride * pages as i64);
            let place = if upwards { pages } else { BATCH_PAGES - pages };
            if self.fetch(context, page, place) != Content::Here {
                break;
            }
            pages += 1;
        }
        if pages == 0 {
            return 0;
        }
        let (first, place) = if upwards {
            (nearest, 0)
        } else {
            (nearest - (pages as u64 - 1), BATCH_PAGES + 1 - pages)
        };
        let source = self.buffers.pages[place..place + pages].as_ptr().cast();
        let (address, len) = (page::address_of(first), pages * PAGE_SIZE);
        // SAFETY: the buffer was filled with the content of these pages.
        let done = match unsafe { active.kernel.copy_without_wake(address, source, len) } {
            Ok(()) => pages,
            Err(partial) => partial.done / PAGE_SIZE,
        };
        for page in first..first + done as u64 {
            note_returned(context, page, true);
        }
        // The one that is asked for is the last of them.
        if upwards || done == pages { done } else { 0 }
    }

    /// Puts a page's content among the pages to copy from, if it is in memory.
    pub(super) fn fetch(
        &mut self,
        context: &Context<'_>,
        page: PageNumber,
        place: usize,
    ) -> Content {
        let Context { agent, active, .. } = *context;
        let Handler { buffers, decompressor, .. } = self;
        let buffer = &mut buffers.pages[place];
        if let Some(slot) = context.core.staging.find(page) {
            // SAFETY: a live slot holds the page's content, and only the reclaimer removes it.
            *buffer = *unsafe { active.slot_page(slot) };
            return Content::Here;
        }
        content::load(agent, active, page, made(decompressor, agent), buffer)
    }
}

/// A page is in memory again, for itself or as one of a stream. Where streams go over more than
/// there is room for, each of their pages will be as long in coming back as the others, and none is
/// spared.
pub(super) fn note_returned(context: &mut Context<'_>, page: PageNumber, is_streamed: bool) {
    let Context { agent, active, .. } = *context;
    let counters = &agent.process().counters;
    context.core.victims.note_returned(page);
    watch::note_touched(agent, &mut context.core.watch, page);
    let mark = if is_streamed && context.core.victims.preferred() == VictimKind::Streamed {
        Reuse::default()
    } else {
        Reuse(active.store.mark(page)).returned(context.core.sweep.round())
    };
    if let Some(slot) = context.core.staging.find(page) {
        context.core.staging.kill(slot);
        active.store.set_mark(page, mark.0);
        counters.pages_second_chance.fetch_add(1, Ordering::Relaxed);
    } else {
        retained::note_loaded(agent, active, page, mark);
        counters.pages_swapped_in.fetch_add(1, Ordering::Relaxed);
    }
    agent.add_cost(PAGE_SIZE as u64);
}

/// How many pages more than one there is room for.
pub(super) fn room_ahead(agent: &Agent) -> usize {
    let hard = cost::own_watermarks(agent).hard;
    let cost = agent.cost() + PAGE_SIZE as u64;
    (hard.saturating_sub(cost) / PAGE_SIZE as u64) as usize
}

/// What a request of one page came to.
pub(super) fn settle(
    agent: &Agent,
    active: &Active,
    address: usize,
    result: Result<(), Partial>,
) -> Served {
    match result {
        Ok(()) => Served::Done,
        // The thread finds out by trying again.
        Err(Partial { errno: errno @ (Errno::EXIST | Errno::NOENT), .. }) => {
            wake(&active.kernel, address);
            if errno == Errno::EXIST { Served::Done } else { Served::Gone }
        }
        Err(Partial { errno: Errno::AGAIN, .. }) => Served::Again,
        // The process is on its way out.
        Err(Partial { errno: Errno::SRCH, .. }) => Served::Gone,
        // No memory at all, not even for one page: what is freed meanwhile may do.
        Err(Partial { errno: Errno::NOMEM, .. }) => {
            agent.process().wake_agent();
            wake(&active.kernel, address);
            Served::Gone
        }
        Err(Partial { errno: Errno::INVAL, .. }) if active.kernel.release_other(address) => {
            Served::Gone
        }
        Err(partial) => agent.fail(format_args!(
            "cannot bring back page {address:#x}: {} (errno {})",
            partial.errno,
            partial.errno.raw_os_error()
        )),
    }
}

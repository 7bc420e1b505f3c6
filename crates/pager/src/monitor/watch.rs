//! Watches a sample of the program's pages for accesses, where somebody wants to know of them
//! ([`crate::take::watch`]).
//!
//! There may be room for all memory. So the program's mappings are left as they are but for the
//! blocks of the sample, which alone are registered; a mapping that has not been touched yet is not
//! registered at all, as each first touch would be a fault.

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_policy::memory::watch::{BLOCK_PAGES, Budget, block_of_group, level_for};
use ramfold_sys::pagemap::{PageRegion, Pages};
use ramfold_sys::{PAGE_SIZE, proc};

use super::Monitor;
use super::mappings::register;
use crate::agent::{Active, Agent, Context, Core};
use crate::cost;
use crate::kernel::{Kernel, maps, time};
use crate::page::{self, PageNumber};
use crate::session::{OFFERED_MAX, OfferedPages, Watched};
use crate::take::sweep;
use crate::take::watch::{self, Block};

/// Between two looks, each at a part of the sample.
pub(super) const LOOK_NS: u64 = 10_000_000;
/// Parts of the sample. A program that loses many pages at once waits for one after the other, and
/// what it does meanwhile takes longer than it would.
const PARTS: usize = 5;
/// Between two looks for what the program has that is new, at least; and so many times as long as
/// such a look takes.
const SEARCH_NS: u64 = 200_000_000;
const SEARCH_SHARE: u64 = 100;
/// What a fault costs beside what is counted, where faults are rare: nobody keeps processors awake,
/// and the program goes on on one that has to wake first. Measured: 28 us on a virtual machine of
/// two processors.
const WAKE_NS: u64 = 28_000;
/// What a page that is out will cost when it is accessed: that, and what is counted.
const ACCESS_NS: u64 = WAKE_NS + 10_000;
/// The level follows the memory when it has changed by as much as it / this.
const CHANGE_SHARE: u64 = 16;
/// So long after it was offered a block is offered again: its content may be another.
const OFFER_NS: u64 = 3_000_000_000;
const BLOCK_BYTES: usize = BLOCK_PAGES as usize * PAGE_SIZE;
/// Parts of blocks that are remembered, about.
const UNFILLED_BITS: u32 = 9;
const UNFILLED_MAX: usize = 1 << UNFILLED_BITS;

/// What watching has come to. Not begun: all zero and none.
#[derive(Default)]
pub(super) struct Watching {
    budget: Option<Budget>,
    /// What faults had cost when that was last charged.
    fault_ns: u64,
    looked_ns: u64,
    searched_ns: u64,
    /// Of a processor.
    search_took_ns: u64,
    /// Of the program, at the last search.
    mapped_bytes: u64,
    anonymous_bytes: u64,
    /// The block that is looked at next.
    next: usize,
    unfilled: Unfilled,
}

/// Blocks of which a part was there at a search, by a hash of both. While a program fills a block,
/// each page that is registered before its first access costs a fault, and a program that grows
/// would spend all that it may lose on these. So a block is watched when all of it is there, or
/// what is there was all of it at an earlier search too.
struct Unfilled {
    parts: [u64; UNFILLED_MAX],
    /// Since the search began something was seen for the first time.
    has_new: bool,
}

impl Default for Unfilled {
    fn default() -> Unfilled {
        Unfilled { parts: [0; UNFILLED_MAX], has_new: false }
    }
}

impl Unfilled {
    /// Whether this part of the block, a bit for each page, was seen before.
    fn was_seen(&mut self, block: u64, part: u8) -> bool {
        let seen = block << BLOCK_PAGES | u64::from(part);
        let place = seen.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - UNFILLED_BITS);
        let before = core::mem::replace(&mut self.parts[place as usize], seen);
        self.has_new |= before != seen;
        before == seen
    }
}

impl Monitor {
    pub(super) fn watches(&self) -> bool {
        self.agent.session().watch.slowdown_ppm().is_some()
    }

    /// One look at the sample, if it is time for one.
    pub(super) fn watch_pages(&mut self) {
        let agent = self.agent;
        let session = agent.session();
        let (Some(slowdown_ppm), Some(active)) = (session.watch.slowdown_ppm(), agent.active())
        else {
            return;
        };
        let now = time::monotonic_ns();
        if now - self.watching.looked_ns < LOOK_NS {
            return;
        }
        self.watching.looked_ns = now;
        self.begin_to_watch();
        let counters = &agent.process().counters;
        let faults = counters.faults.load(Ordering::Relaxed);
        let fault_ns = counters.fault_ns_total.load(Ordering::Relaxed) + faults * WAKE_NS;
        let spent_ns = fault_ns - core::mem::replace(&mut self.watching.fault_ns, fault_ns);
        let mut budget =
            self.watching.budget.take().unwrap_or_else(|| Budget::new(slowdown_ppm, now));
        budget.spend(spent_ns);
        budget.set_reserved(agent.lock_core().staging.live_pages() * ACCESS_NS);
        session.watch.raise_level(level_for(cost::total(agent) / PAGE_SIZE as u64));
        self.leave_blocks(active);
        self.search_blocks(active);
        self.look_at_blocks(active, &mut budget);
        self.watching.budget = Some(budget);
        self.empty_staging(active);
    }

    /// A process that is a copy of another one begins anew.
    fn begin_to_watch(&mut self) {
        let (session, process) = (self.agent.session(), self.agent.process());
        let number = match process.watch_number.load(Ordering::Relaxed) {
            0 => session.watch.next_process(),
            number => number,
        };
        process.watch_number.store(number, Ordering::Relaxed);
        let watch = &mut self.agent.lock_core().watch;
        if watch.process() != number {
            watch.begin(number);
            self.watching = Watching { looked_ns: self.watching.looked_ns, ..Watching::default() };
        }
    }

    /// Leaves blocks that are not in the sample any more.
    fn leave_blocks(&mut self, active: &'static Active) {
        let agent = self.agent;
        let level = agent.session().watch.level();
        loop {
            let block = {
                let watch = &mut agent.lock_core().watch;
                let Some(nth) = watch.beyond(level) else { return };
                let block = watch.block(nth).map(|block| *block);
                watch.remove(nth);
                block
            };
            let Some(block) = block else { return };
            for (page, state) in (block.number * BLOCK_PAGES..).zip(block.pages) {
                if state.taken_ns > 0 {
                    // What cannot be touched now (no access) comes when it can be.
                    let _ = active.kernel.populate(page::address_of(page), false);
                }
            }
        }
    }

    /// Looks for blocks of the sample in what the program has that is new.
    fn search_blocks(&mut self, active: &'static Active) {
        let agent = self.agent;
        let Watching { searched_ns, search_took_ns, .. } = self.watching;
        let started = time::monotonic_ns();
        let (mapped, anonymous) = (self.memory.mapped_bytes, self.memory.anonymous_bytes);
        let is_other = mapped != self.watching.mapped_bytes
            || anonymous.abs_diff(self.watching.anonymous_bytes) > anonymous / CHANGE_SHARE
            || self.watching.unfilled.has_new;
        let rest_ns = SEARCH_NS.max(search_took_ns * SEARCH_SHARE);
        if searched_ns > 0 && (!is_other || started - searched_ns < rest_ns) {
            return;
        }
        let level = agent.session().watch.level();
        let worked_ns = time::thread_cpu_ns();
        let mut buffer = [0; 8192];
        let unfilled = &mut self.watching.unfilled;
        unfilled.has_new = false;
        // What cannot be read is looked for again.
        let result = maps::for_each(&mut buffer, |mapping| {
            if mapping.is_private_anonymous() && mapping.writable && !agent.owns(&mapping.range) {
                search_mapping(agent, active, &mapping.range, level, unfilled);
            }
        });
        if result.is_ok() {
            (self.watching.mapped_bytes, self.watching.anonymous_bytes) = (mapped, anonymous);
        }
        self.watching.searched_ns = time::monotonic_ns();
        self.watching.search_took_ns = time::thread_cpu_ns() - worked_ns;
    }

    /// Tells what has come and gone in a part of the sample. Takes pages that are to be watched, of
    /// as many blocks at most, as far as the budget goes.
    fn look_at_blocks(&mut self, active: &'static Active, budget: &mut Budget) {
        let agent = self.agent;
        let count = agent.lock_core().watch.count();
        let part = count.div_ceil(PARTS);
        for _ in 0..part {
            let nth = self.watching.next % count;
            self.watching.next = nth + 1;
            let core = &mut *agent.lock_core();
            let wanted = |block: &mut Block, here| block.put_back(here);
            look_at_block(&mut Context { agent, active, core }, nth, budget, wanted);
        }
        for _ in 0..part {
            let now = time::monotonic_ns();
            if budget.left_ns(now) == 0 {
                break;
            }
            let core = &mut *agent.lock_core();
            let Some(nth) = core.watch.next_due(now) else { break };
            let context = &mut Context { agent, active, core };
            look_at_block(context, nth, budget, |block, here| block.due(here, now));
        }
    }

    /// Puts back the pages that have been watched the longest, where staging is full: they are
    /// watched anew. Where memory is short they are compressed instead.
    fn empty_staging(&mut self, active: &'static Active) {
        let agent = self.agent;
        let is_wanted = || {
            cost::total(agent) <= cost::watermarks(agent.session()).high
                && agent.lock_core().staging.is_nearly_full()
        };
        if !is_wanted() {
            return;
        }
        let mut reclaimer = self.take_reclaimer();
        while reclaimer.put_back_oldest(active) && is_wanted() {}
        self.reclaimer = Some(reclaimer);
    }
}

/// Adds the blocks of the sample to it that have pages in this mapping.
fn search_mapping(
    agent: &'static Agent,
    active: &'static Active,
    mapping: &Range<usize>,
    level: u32,
    unfilled: &mut Unfilled,
) {
    let mut runs = [PageRegion::default(); 32];
    let mut at = mapping.start;
    while at < mapping.end {
        let found = active.kernel.present(at..mapping.end, usize::MAX, &mut runs, Pages::All);
        let Ok(found) = found else { return };
        for run in &runs[..found.runs] {
            let blocks = run.start / BLOCK_BYTES as u64..run.end.div_ceil(BLOCK_BYTES as u64);
            for group in blocks.start >> level..=(blocks.end - 1) >> level {
                let block = block_of_group(group, level);
                if !blocks.contains(&block) || agent.lock_core().watch.has(block) {
                    continue;
                }
                let part = part_of_block(block, &(run.start..run.end));
                if part == u8::MAX || unfilled.was_seen(block, part) {
                    add_block(agent, active, mapping, block);
                }
            }
        }
        if found.end <= at {
            return;
        }
        at = found.end;
    }
}

/// Which pages of a block lie in this run of addresses, a bit each.
fn part_of_block(block: u64, run: &Range<u64>) -> u8 {
    let page = |nth: u64| (block * BLOCK_PAGES + nth) * PAGE_SIZE as u64;
    (0..BLOCK_PAGES).filter(|&nth| run.contains(&page(nth))).fold(0, |part, nth| part | 1 << nth)
}

fn add_block(agent: &'static Agent, active: &'static Active, mapping: &Range<usize>, block: u64) {
    let start = block as usize * BLOCK_BYTES;
    let range = start.max(mapping.start)..(start + BLOCK_BYTES).min(mapping.end);
    if register(agent, active, range) {
        // Where there is no room another level comes soon.
        agent.lock_core().watch.insert(block, time::monotonic_ns());
    }
}

/// `wanted`: which pages of the block are to be taken, of those that are there, a bit each.
fn look_at_block(
    context: &mut Context<'_>,
    nth: usize,
    budget: &mut Budget,
    wanted: impl FnOnce(&mut Block, u8) -> u8,
) {
    let Context { agent, active, .. } = *context;
    let Some(block) = context.core.watch.block(nth).map(|block| *block) else { return };
    let first = block.number * BLOCK_PAGES;
    let start = page::address_of(first);
    let mut runs = [PageRegion::default(); BLOCK_PAGES as usize];
    let look = start..start + BLOCK_BYTES;
    let Ok(found) = active.kernel.present(look, usize::MAX, &mut runs, Pages::All) else { return };
    let shares = agent.sharing.is_shared();
    let is_here = |core: &Core, page: PageNumber| {
        let address = page::address_of(page);
        let mut runs = runs[..found.runs].iter();
        runs.any(|run| (run.start..run.end).contains(&(address as u64)))
            && core.regions.contains(&(address..address + PAGE_SIZE))
            && (!shares || active.kernel.is_exclusive(address))
    };
    let now = time::monotonic_ns();
    let mut here = 0;
    for nth_page in 0..BLOCK_PAGES as usize {
        let page = first + nth_page as u64;
        let is_here = is_here(context.core, page);
        note_look(context, nth, page, is_here, now);
        here |= u8::from(is_here) << nth_page;
    }
    let Some(block) = context.core.watch.block(nth) else { return };
    let put_back = block.put_back(here);
    let mut due = if budget.left_ns(now) == 0 { 0 } else { wanted(block, here) };
    while due != 0 {
        let at = due.trailing_zeros();
        let pages = (due >> at).trailing_ones();
        let dealt_with = take(context, first + u64::from(at), pages as usize, budget);
        due &= !(((1u16 << dealt_with) - 1) << at) as u8;
    }
    settle(context, first, put_back, now);
    offer(context, nth, here, now);
}

/// What a look has found of a page.
fn note_look(context: &mut Context<'_>, nth: usize, page: PageNumber, is_here: bool, now: u64) {
    let Context { agent, active, .. } = *context;
    let is_there = is_here || sweep::is_out(active, context.core, page);
    let watch = &mut context.core.watch;
    let Some(block) = watch.block(nth) else { return };
    let state = &mut block.pages[(page % BLOCK_PAGES) as usize];
    let was_there = core::mem::replace(&mut state.is_there, is_there);
    if is_here && !was_there {
        agent.session().watch.put(watch.event(Watched::Appeared, page, now, 0));
    }
    if was_there && !is_there {
        watch::note_untouched(agent, watch, page, now);
        agent.session().watch.put(watch.event(Watched::Gone, page, now, 0));
    }
}

/// Takes pages that lie one behind the other. Returns how many are dealt with: those that cannot be
/// taken now (pinned, shared, locked) have another turn.
fn take(context: &mut Context<'_>, first: PageNumber, pages: usize, budget: &mut Budget) -> usize {
    let started = time::monotonic_ns();
    let start = page::address_of(first);
    let (_, bytes) = sweep::move_start(context, start..start + pages * PAGE_SIZE, pages);
    budget.spend(time::monotonic_ns() - started);
    budget.reserve((bytes / PAGE_SIZE) as u64 * ACCESS_NS);
    (bytes / PAGE_SIZE).clamp(1, pages)
}

/// Pages that were put back, a bit each, and could not be taken again, are watched no more.
fn settle(context: &mut Context<'_>, first: PageNumber, put_back: u8, now: u64) {
    let Context { agent, active, .. } = *context;
    for page in (0..BLOCK_PAGES).filter(|nth| put_back >> nth & 1 == 1).map(|nth| first + nth) {
        if !sweep::is_out(active, context.core, page) {
            watch::note_untouched(agent, &mut context.core.watch, page, now);
        }
    }
}

/// Says where pages of the block are, in staging or `here` (a bit each), to whoever wants to know
/// how small they become.
fn offer(context: &mut Context<'_>, nth: usize, here: u8, now: u64) {
    let Context { agent, active, .. } = *context;
    let Core { staging, watch, .. } = context.core;
    let process = watch.process();
    let Some(block) = watch.block(nth) else { return };
    if block.offered_ns > 0 && now - block.offered_ns < OFFER_NS {
        return;
    }
    let first_page = block.number * BLOCK_PAGES;
    // What was just filled with zeros says nothing: not before some were taken.
    if block.watched() == 0 {
        return;
    }
    let addresses: [u64; OFFERED_MAX] = core::array::from_fn(|nth| {
        let page = first_page + nth as u64;
        match staging.find(page) {
            Some(slot) => active.slot_address(slot) as u64,
            None if here >> nth & 1 == 1 => page::address_of(page) as u64,
            None => 0,
        }
    });
    agent.session().watch.offer(|| {
        block.offered_ns = now;
        let (pid, pid_namespace) = (agent.pid(), proc::pid_namespace());
        OfferedPages { pid, pid_namespace, process, first_page, time_us: now / 1000, addresses }
    });
}

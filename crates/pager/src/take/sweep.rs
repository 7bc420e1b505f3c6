//! The sweep: goes round the program's memory and takes pages into staging.
//!
//! Whoever holds the lock may take the next batch. The fault handler does so while the monitor
//! sleeps: then no other processor runs in this address space as a rule (the faulting thread waits
//! on the handler's own), and MOVE need not interrupt one to make it forget the pages, which costs
//! ten times the move itself. The monitor takes pages when no faults come, or when memory is short.

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::rounds::{
    BATCH_PAGES, PROBATION_PAGES_MIN, PROBATION_SHARE, Rounds, TRIAL_PLACES,
};
use ramfold_policy::memory::victims::{VictimChoice, VictimKind};
use ramfold_sys::pagemap::{PageRegion, Pages};
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};

use crate::agent::{Active, Context, Core};
use crate::cost;
use crate::kernel::{Kernel, time};
use crate::page::{self, PageNumber};
use crate::staging::Slot;
use crate::take::clock_hand::{ClockHand, ScanPosition};

/// Pages of a stack that are in use at a time, as a rule.
const STACK_PAGES_MAX: usize = 8;
/// How far to go on behind a page that is refused because a relative still has it too, or because
/// of its mapping: such pages lie together, and each refusal takes a while.
const REFUSED_SKIP_BYTES: usize = 64 * PAGE_SIZE;

/// What is protected is looked at again when so many pages have parted: it takes as long as to
/// evict some tens.
const PARTED_PAGES_MIN: u64 = 128;

/// Where the sweep is. All zero is a sweep that has not begun.
#[repr(C)]
pub(crate) struct Sweep {
    hand: ClockHand,
    rounds: Rounds,
    blocked: bool,
    /// In this round what is protected because it may be shared is looked at too: see
    /// [`crate::fork::copies`].
    looks_at_protected: bool,
    /// [`Session::parted_pages`] when such a round gained little.
    ///
    /// [`Session::parted_pages`]: crate::session::Session::parted_pages
    parted_pages: u64,
    /// Where a page was last taken as a trial.
    tried: ScanPosition,
}

/// What one step of the sweep came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Pages went into staging.
    Pages,
    /// Pages were passed by.
    Passed,
    /// A stretch of memory was looked at in which no page is present.
    Looked,
    /// This page was shared by a fork once, or is pinned; the sweep stands before it, and
    /// [`crate::reclaim`] must see to it.
    Busy(usize),
    /// An event waits to be read; nothing can be moved until then.
    Changing,
    /// There is no free slot in staging.
    Full,
    /// There is nothing left to take.
    Nothing,
}

impl Sweep {
    /// It may pay to go round again: memory has changed since it did not.
    pub(crate) fn encourage(&mut self) {
        self.rounds.encourage();
        self.blocked = false;
    }

    /// Some of what is protected may be the process's own: it is looked at as soon as rounds over
    /// the rest gain too little.
    pub(crate) fn look_at_protected(&mut self) {
        self.parted_pages = self.parted_pages.wrapping_sub(PARTED_PAGES_MIN);
    }

    /// A round ends, of memory some of which `is_guarded`. `false`: another one is not worth it.
    /// `waiting`: as for [`Rounds::begin`]; `parted_pages`: that have parted by now.
    fn begin_round(&mut self, is_guarded: bool, waiting: u64, parted_pages: u64) -> bool {
        if core::mem::take(&mut self.looks_at_protected) {
            if !self.rounds.begin(waiting) {
                self.parted_pages = parted_pages;
            }
            return !self.rounds.are_enough();
        }
        if self.rounds.are_enough() {
            let parted = parted_pages.wrapping_sub(self.parted_pages);
            self.looks_at_protected = is_guarded && parted >= PARTED_PAGES_MIN;
            if !self.looks_at_protected {
                return false;
            }
        }
        self.rounds.begin(waiting);
        true
    }

    /// A page that was taken has been compressed.
    pub(crate) fn note_stored(&mut self) {
        self.rounds.note_stored();
    }

    /// A hand has been everywhere.
    pub(crate) fn note_round(&mut self) {
        self.rounds.count();
    }

    /// Number of the round.
    pub(crate) fn round(&self) -> u32 {
        self.rounds.number()
    }

    /// The fault handler cannot go on: the sweep stands before a page that only the monitor can see
    /// to, or there is nothing to take.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Passes by a page that was called busy, if the sweep still stands before it.
    pub(crate) fn skip_busy(&mut self, address: usize) {
        if self.hand.run().is_some_and(|run| run.start == address) {
            self.skip(PAGE_SIZE);
            self.blocked = false;
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.rounds.note_seen((bytes / PAGE_SIZE) as u64);
        self.hand.skip(bytes);
    }
}

/// Takes a batch of pages into staging, or passes some by.
pub(crate) fn take_next(context: &mut Context<'_>) -> Taken {
    let agent = context.agent;
    if context.core.staging.free_slots().is_empty() {
        return Taken::Full;
    }
    let cap_pages = cost::watermarks(agent.session()).cap as usize / PAGE_SIZE;
    context.core.victims.set_cap(cap_pages as u64);
    let limit = (cap_pages / PROBATION_SHARE).max(PROBATION_PAGES_MIN);
    let streamed = context.core.probation.beyond(limit);
    if let Some((first, pages)) = streamed {
        let choice = context.core.victims.choose();
        if choice.kind == VictimKind::Streamed {
            let pages = if choice.is_trial { 1 } else { pages };
            return take_streamed(context, first, pages, choice);
        }
        if choice.is_trial {
            return try_page(context, cap_pages, choice);
        }
        // What has waited for long is like any other page.
        while context.core.probation.beyond(2 * limit).is_some() {
            context.core.probation.drop_oldest();
        }
    }
    let run = match find_victims(context) {
        Ok(run) => run,
        Err(Taken::Nothing) => {
            if let Some((first, pages)) = context.core.probation.beyond(limit) {
                let choice = VictimChoice { kind: VictimKind::Streamed, is_trial: false };
                return take_streamed(context, first, pages, choice);
            }
            context.core.sweep.blocked = true;
            return Taken::Nothing;
        }
        Err(taken) => {
            context.core.sweep.blocked = false;
            return taken;
        }
    };
    let first = page::number_of(run.start);
    let (taken, bytes) = take(context, run);
    if taken == Taken::Pages {
        let kind = if streamed.is_some() { VictimKind::Swept } else { VictimKind::SweptAlone };
        context.core.victims.note_taken(
            first,
            bytes / PAGE_SIZE,
            VictimChoice { kind, is_trial: false },
        );
    }
    context.core.sweep.skip(bytes);
    context.core.sweep.blocked = matches!(taken, Taken::Busy(_));
    taken
}

/// Was this page taken, and has not come back?
pub(crate) fn is_out(active: &Active, core: &Core, page: PageNumber) -> bool {
    core.staging.find(page).is_some() || active.store.contains(page)
}

/// Takes pages that a stream has left behind. What stands in the way is left to the sweep.
fn take_streamed(
    context: &mut Context<'_>,
    first: PageNumber,
    pages: usize,
    choice: VictimChoice,
) -> Taken {
    let active = context.active;
    let out = (first..first + pages as u64)
        .take_while(|&page| is_out(active, context.core, page))
        .count();
    if out > 0 {
        context.core.probation.skip(out);
        return Taken::Passed;
    }
    let start = page::address_of(first);
    match take(context, start..start + pages * PAGE_SIZE) {
        (Taken::Changing, _) => return Taken::Changing,
        (Taken::Pages, bytes) => {
            context.core.victims.note_taken(first, bytes / PAGE_SIZE, choice);
            context.core.probation.skip(bytes / PAGE_SIZE);
            return Taken::Pages;
        }
        (Taken::Passed, bytes) if bytes > 0 => context.core.probation.skip(bytes / PAGE_SIZE),
        _ => context.core.probation.drop_oldest(),
    }
    Taken::Passed
}

/// Takes one page somewhere, a good way behind the last that was taken so: any page that the sweep
/// could come by.
fn try_page(context: &mut Context<'_>, cap_pages: usize, choice: VictimChoice) -> Taken {
    let active = context.active;
    let Core { sweep, regions, .. } = context.core;
    let place = &mut sweep.tried;
    place.at += (cap_pages / TRIAL_PLACES).max(1) * PAGE_SIZE;
    if regions.at_or_after(place.at).is_none() {
        place.at = 0;
    }
    let mut runs = [PageRegion::default()];
    if place.look(active, regions, 1, &mut runs, Pages::All).unwrap_or(0) == 0 {
        return Taken::Passed;
    }
    let first = runs[0].start as usize;
    place.at = first;
    if is_spared(Reuse(active.store.mark(page::number_of(first))), false) {
        return Taken::Passed;
    }
    match move_start(context, first..first + PAGE_SIZE, 1) {
        (Taken::Changing, _) => Taken::Changing,
        (Taken::Pages, _) => {
            context.core.victims.note_taken(page::number_of(first), 1, choice);
            // In its place stays one that a stream has left behind.
            context.core.probation.skip(1);
            Taken::Pages
        }
        _ => Taken::Passed,
    }
}

/// Takes the lowest pages of a stack that are in memory: its thread stops at the next call or
/// return, and waits with the faults that wait for room.
pub(crate) fn stop_thread(context: &mut Context<'_>, stack: Range<usize>) {
    let Context { agent, active, .. } = *context;
    let mut runs = [PageRegion::default()];
    if let Ok(found) = active.kernel.present(stack, STACK_PAGES_MAX, &mut runs, Pages::All)
        && found.runs > 0
    {
        let run = runs[0].start as usize..runs[0].end as usize;
        let pages = (run.len() / PAGE_SIZE).min(STACK_PAGES_MAX);
        let (taken, _) = move_start(context, run, pages);
        let counters = &agent.process().counters;
        let stopped = taken == Taken::Pages;
        let count = if stopped { &counters.threads_stopped } else { &counters.threads_not_stopped };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Looks for pages in memory behind the hand, a stretch at a time. [`Taken::Looked`] when there are
/// none in it, [`Taken::Nothing`] after two rounds that gained too little: the first may only have
/// cleared marks, or passed by what is protected.
fn find_victims(context: &mut Context<'_>) -> Result<Range<usize>, Taken> {
    let Context { agent, active, .. } = *context;
    let Core { sweep, regions, staging, .. } = context.core;
    if let Some(run) = sweep.hand.run() {
        return Ok(run);
    }
    // What is still shared, as far as is known, is not worth a look.
    let is_guarded = agent.copies.is_guarded();
    let passes_protected = is_guarded && !sweep.looks_at_protected;
    let pages = if passes_protected { Pages::Unprotected } else { Pages::All };
    if !sweep.hand.look(active, regions, pages) {
        // What was taken in this round may be all there is.
        staging.seal_chunk();
        let parted = agent.session().parted_pages.load(Ordering::Relaxed);
        if !sweep.begin_round(is_guarded, staging.live_pages(), parted) {
            return Err(Taken::Nothing);
        }
        sweep.hand.restart();
    }
    sweep.hand.run().ok_or(Taken::Looked)
}

/// Takes a batch from the start of a run of present pages. Returns also how many bytes of the run
/// are dealt with.
pub(crate) fn take(context: &mut Context<'_>, run: Range<usize>) -> (Taken, usize) {
    let active = context.active;
    let first = page::number_of(run.start);
    let pages = run.len() / PAGE_SIZE;
    // In a second round having been used lately is no protection any more: everything was.
    let tolerant = context.core.sweep.rounds.is_fruitless();
    // Pages that were used lately, or did not compress lately, are passed by once per mark.
    let passed =
        (0..pages).take_while(|&index| pass_by(active, first + index as u64, tolerant)).count();
    if passed > 0 {
        return (Taken::Passed, passed * PAGE_SIZE);
    }
    let free = context.core.staging.free_slots();
    let pages = 1
        + (1..pages.min(BATCH_PAGES).min(free.len()))
            .take_while(|&index| {
                !is_spared(Reuse(active.store.mark(first + index as u64)), tolerant)
            })
            .count();
    move_start(context, run, pages)
}

/// Takes up to so many pages from the start of a run, whatever their marks say.
pub(crate) fn move_start(
    context: &mut Context<'_>,
    run: Range<usize>,
    pages: usize,
) -> (Taken, usize) {
    let Context { agent, active, .. } = *context;
    let free = context.core.staging.free_slots();
    let first = page::number_of(run.start);
    let pages = pages.min(free.len());
    let pages = (0..pages).take_while(|&index| !agent.stays(first + index as u64)).count();
    let pages = still_here(context, first, pages);
    if pages == 0 && !free.is_empty() {
        return (Taken::Passed, PAGE_SIZE);
    }
    let range = run.start..run.start + pages * PAGE_SIZE;
    // What has left the list since the look must not be touched: it may be memory that the
    // program has just mapped and that nobody would bring back.
    if range.is_empty() || !context.core.regions.contains(&range) {
        return (Taken::Passed, run.len());
    }
    if context.core.dropped.touch(&range, time::monotonic_ns) {
        return (Taken::Passed, range.len());
    }
    let slot = active.slot_address(Slot(free.start));
    let mut bytes = range.len();
    loop {
        // SAFETY: the range is registered, as the list under the lock says, so faults on it come
        // to the handler; the slots are registered and free.
        match unsafe { active.kernel.move_pages(slot, range.start, bytes) } {
            Ok(()) => {}
            Err(Partial { errno: Errno::IO, .. }) => {
                agent.fail(format_args!("cannot tell what was taken of {:#x}", range.start))
            }
            // A run may reach over the border of two mappings, which MOVE does not.
            Err(Partial { errno: Errno::INVAL, done: 0 }) if bytes > PAGE_SIZE => {
                bytes = (bytes / 2).next_multiple_of(PAGE_SIZE);
                continue;
            }
            Err(Partial { errno, done: 0 }) => return refused(context, errno, run),
            // What stopped it shows when the rest is tried.
            Err(Partial { done, .. }) => bytes = done,
        }
        // SAFETY: they were just filled, and the list does not have them yet.
        unsafe { active.keep_slots(Slot(free.start), bytes / PAGE_SIZE) };
        note_staged(context, first, bytes / PAGE_SIZE);
        return (Taken::Pages, bytes);
    }
}

/// How many of these pages, from the first on, are in memory. Others may have taken some since the
/// look that found them. MOVE says so of a page that is gone, but not where there is a page at its
/// destination: somebody who reads this process's memory (process_vm_readv(2), a debugger) leaves
/// pages of zeros in free slots. Then all that can be seen afterwards is as if it had moved the
/// page and not counted it ([`ramfold_sys::uffd::count_all_moved`]), and its content would be these
/// zeros.
fn still_here(context: &Context<'_>, first: PageNumber, pages: usize) -> usize {
    let active = context.active;
    let is_out = |page| is_out(active, context.core, page);
    if !(first..first + pages as u64).any(is_out) {
        return pages;
    }
    // Or their objects were kept when they came back.
    let range = page::address_of(first)..page::address_of(first + pages as u64);
    let mut runs = [PageRegion::default()];
    let found = active.kernel.present(range.clone(), usize::MAX, &mut runs, Pages::All);
    match found {
        Ok(found) if found.runs > 0 && runs[0].start == range.start as u64 => {
            (runs[0].end - runs[0].start) as usize / PAGE_SIZE
        }
        _ => 0,
    }
}

fn note_staged(context: &mut Context<'_>, first: PageNumber, pages: usize) {
    let Context { agent, active, .. } = *context;
    for page in first..first + pages as u64 {
        context.core.staging.push(page);
        context.core.watch.note_taken(page, time::monotonic_ns);
        active
            .store
            .set_mark(page, Reuse(active.store.mark(page)).taken(context.core.sweep.round()).0);
    }
    context.core.has_taken = true;
    let staged = &agent.process().counters.pages_staged;
    staged.fetch_add(pages as u64, Ordering::Relaxed);
}

/// MOVE refused the first page of a run.
fn refused(context: &mut Context<'_>, errno: Errno, run: Range<usize>) -> (Taken, usize) {
    let Context { agent, active, .. } = *context;
    let counters = &agent.process().counters;
    match errno {
        // A relative still has the page: taking it would free nothing.
        Errno::BUSY if !active.kernel.is_exclusive(run.start) => {
            let bytes = run.len().min(REFUSED_SKIP_BYTES);
            let pages = (bytes / PAGE_SIZE) as u64;
            counters.refused_shared.fetch_add(pages, Ordering::Relaxed);
            context.core.sweep.rounds.note_shared(pages);
            (Taken::Passed, bytes)
        }
        Errno::AGAIN => (Taken::Changing, 0),
        Errno::BUSY => (Taken::Busy(run.start), 0),
        // The page left between the look and the call.
        Errno::NOENT | Errno::FAULT => (Taken::Passed, PAGE_SIZE),
        // A page in a slot that should be free: somebody populated all memory (mlockall).
        Errno::EXIST => {
            context.core.staging.skip_slot();
            (Taken::Passed, 0)
        }
        // The mapping is locked, or its access is not like staging's: MOVE wants both sides alike.
        // What lies behind it in the run may belong to another.
        _ => {
            counters.refused_mapping.fetch_add(1, Ordering::Relaxed);
            (Taken::Passed, run.len().min(REFUSED_SKIP_BYTES))
        }
    }
}

/// Is the page to be left alone this time? Takes one off its mark.
fn pass_by(active: &Active, page: PageNumber, tolerant: bool) -> bool {
    let mark = Reuse(active.store.mark(page));
    if let Some(after) = mark.passed() {
        active.store.set_mark(page, after.0);
    }
    is_spared(mark, tolerant)
}

/// Does a mark say to leave a page alone? `tolerant`: not for having been used lately.
fn is_spared(mark: Reuse, tolerant: bool) -> bool {
    mark.passed().is_some() && !(tolerant && mark.compresses())
}

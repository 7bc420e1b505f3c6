//! The fault handler: the thread that answers the kernel's messages.
//!
//! It reads a message and acts on it under one lock, because a thread that changed the address
//! space goes on as soon as its message is read. It touches nothing that can be evicted, and
//! waits for nothing that waits for it.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_codec::{Decompressor, Page};
use ramfold_policy::memory::fault_rate::FaultRate;
use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::sequential::Sequential;
use ramfold_policy::memory::stream::{Streams, WINDOW_FIRST, WINDOW_MAX, Window};
use ramfold_policy::memory::victims::VictimKind;
use ramfold_store::Spilled;
use ramfold_sys::sync::MutexGuard;
use ramfold_sys::uffd::{Event, Partial, Uffd};
use ramfold_sys::{Errno, PAGE_SIZE, time};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{Timespec, futex, sched_yield};

use crate::agent::{Active, Agent, Core, LOCK_PATIENCE_NS, Stack};
use crate::content::{self, Found};
use crate::cost;
use crate::page::{self, PageNumber};
use crate::placement::Placement;
use crate::privileges::Privileges;
use crate::reclaim::{By, Chunk, Reclaimer};
use crate::session::Counters;
use crate::spill::{self, Reads};
use crate::staging::CHUNK_PAGES;
use crate::sweep::{self, Taken};
use crate::{copies, event, foreign, kept, locked_growth, zeros};

/// Most zero pages supplied at once to a run of first touches.
const ZERO_AHEAD_MAX: usize = 16;
/// The same where they are read, which costs no memory.
const ZERO_READ_AHEAD_MAX: usize = 64;
/// Messages that can wait while a fork copies the process.
const DELAYED_MAX: usize = 512;
/// A fault may come before the event that explains it so many times in a row.
const AGAIN_USUAL: u32 = 32;
/// How long the handler waits for a message at a time.
const IDLE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const DURING_COPY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What a fault costs the program beside what the handler does: until its message is read, and after
/// it was answered.
const KERNEL_NS: u64 = 5_000;

/// How long the handler works to make room for a fault at most, in time that it has a processor; and if
/// the program grows faster than reclaim. On a machine where many want one it has none for most of the
/// time, and a fault must not be let through for that.
const STALL_NS: u64 = 2_000_000;
const STALL_OUTRUN_NS: u64 = 20_000_000;
/// And so many times as long altogether: others may make progress, but not enough.
const STALL_ELAPSED: u64 = 25;
/// Steps of the sweep in one fault: they may all pass pages by.
const TAKE_STEPS_MAX: usize = 4 * CHUNK_PAGES;

/// Where a stream's pages are no further apart, a look at the page map goes twice as far as its window
/// reaches, past pages that are in memory. A look at many places far apart takes longer than it spares.
const NEAR_STRIDE: i64 = 8;

/// Of memory that may be touched unasked as much is let go at a time as all of that / this, but between
/// one huge page and some.
const LET_GO_SHARE: i64 = 8;
const LET_GO_MIN: i64 = 2 << 20;
const LET_GO_MAX: i64 = 32 << 20;

/// Pages copied to the program at a time.
const BATCH_PAGES: usize = 8;

/// What the handler's thread alone uses.
#[repr(C)]
pub struct Handler {
    /// Pages to copy from: that of the fault first, behind it or (in a stream that goes down) from the
    /// end on those that come with it.
    pages: [Page; BATCH_PAGES + 1],
    /// Zeros to copy from. Never written: the kernel backs it with its one page of zeros.
    zeros: [u8; ZERO_AHEAD_MAX * PAGE_SIZE],
    delayed: Delayed,
    /// Faults that came meanwhile.
    aside: Aside,
    /// The fork that was copied made a child with an agent.
    child_has_agent: bool,
    /// This and the next: while they do not rest.
    decompressor: Option<Decompressor<'static>>,
    streams: Streams,
    reads: Reads,
    direct: Option<&'static mut Reclaimer>,
    placement: Placement,
    fault_rate: FaultRate,
    privileges: Privileges,
    /// Faults in a row that could not be answered and after which no event came.
    again: u32,
    /// Where the next first touch is expected if memory grows in a row, and how many pages to
    /// supply then.
    growth: Sequential,
    /// The same for reads of what was never touched.
    zeros_read: Sequential,
    /// And for writes to what is protected.
    writes: Sequential,
    /// Where threads wait for pages of a stream that are there by now. Not before all are, and the lock
    /// is free: a thread goes on in place of the handler, or of the monitor that waits for the lock.
    wake_later: Option<Range<usize>>,
}

/// Messages but faults, in the order in which they came.
#[repr(C)]
struct Delayed {
    events: [MaybeUninit<Event>; DELAYED_MAX],
    /// How many were put here, and how many of them were taken.
    count: usize,
    next: usize,
}

impl Delayed {
    fn put(&mut self, agent: &Agent, event: Event) {
        let Some(place) = self.events.get_mut(self.count) else {
            agent.fail(format_args!("more than {DELAYED_MAX} events during a fork"));
        };
        place.write(event);
        self.count += 1;
    }

    fn take(&mut self) -> Option<Event> {
        if self.next == self.count {
            (self.next, self.count) = (0, 0);
            return None;
        }
        self.next += 1;
        // SAFETY: written when it was put here, and taken once.
        Some(unsafe { self.events[self.next - 1].assume_init_read() })
    }

    fn iter(&self) -> impl Iterator<Item = &Event> {
        // SAFETY: as above, and not taken yet.
        self.events[self.next..self.count].iter().map(|event| unsafe { event.assume_init_ref() })
    }
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    /// The page is there.
    Done,
    /// There is nothing to fill at this address: its mapping is gone or has moved, and the event
    /// that says so is to come.
    Gone,
    /// The address space is changing: the thread must fault again after the event was read.
    Again,
}

/// Entry of the handler's thread.
pub extern "C" fn thread_main(agent: *mut ()) -> ! {
    // SAFETY: the monitor passes the agent, which lives for ever.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    // SAFETY: this cell is the handler thread's, of which there is one; zeroed memory is valid
    // but for the options, written here.
    let handler = unsafe {
        let handler = (*agent.handler.get()).as_mut_ptr();
        (&raw mut (*handler).delayed.count).write(0);
        (&raw mut (*handler).delayed.next).write(0);
        (&raw mut (*handler).aside).write(Aside::default());
        (&raw mut (*handler).child_has_agent).write(false);
        (&raw mut (*handler).again).write(0);
        (&raw mut (*handler).streams).write(Streams::default());
        (&raw mut (*handler).reads).write(Reads::default());
        (&raw mut (*handler).placement).write(Placement::default());
        (&raw mut (*handler).fault_rate).write(FaultRate::default());
        (&raw mut (*handler).privileges).write(Privileges::default());
        (&raw mut (*handler).decompressor).write(None);
        (&raw mut (*handler).direct).write(None);
        (&raw mut (*handler).wake_later).write(None);
        &mut *handler
    };
    let Some(active) = agent.active() else {
        agent.fail(format_args!("the fault handler started before the agent was active"));
    };
    handler.run(agent, active)
}

/// In a forked child: the changes of the address space that the parent's handler had read and not
/// yet acted upon when the child was made. The mappings follow them already.
///
/// # Safety
/// The handler's cell must be a copy of a parent's that was running, and nobody else may use it.
pub unsafe fn act_on_inherited(agent: &'static Agent, active: &'static Active, core: &mut Core) {
    // SAFETY: by the caller's word.
    let handler = unsafe { &mut *(*agent.handler.get()).as_mut_ptr() };
    while let Some(event) = handler.delayed.take() {
        match event {
            // Its descriptor is none of this process's.
            Event::Fork(child) => core::mem::forget(child),
            event => event::handle(agent, active, core, event),
        }
    }
}

impl Handler {
    fn run(&mut self, agent: &'static Agent, active: &'static Active) -> ! {
        loop {
            // Delayed messages are due at once: a forked child may wait for its descriptor to go.
            if !agent.delayed.load(Ordering::Relaxed) {
                if !self.wait_for_message(active, IDLE) {
                    self.rest(agent);
                }
                self.stall_over_cap(agent, active);
            }
            if agent.copying.load(Ordering::Acquire) {
                self.read_during_copy(agent, active);
            } else if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
                self.release_chunk(&mut core);
                self.handle_delayed(agent, active, &mut core);
                self.finish_reads(agent, active, &mut core);
                self.handle_next(agent, active, core);
            }
        }
    }

    /// Reads one message and acts on it.
    fn handle_next(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        mut core: MutexGuard<'_, Core>,
    ) {
        let Some(event) = read(agent, &active.uffd) else {
            drop(core);
            return self.privileges.follow(agent, time::monotonic_ns());
        };
        let Event::Pagefault { address, write, write_protected, thread } = event else {
            self.handle_event(agent, active, &mut core, event);
            return;
        };
        if write_protected {
            return self.let_write(agent, active, &core, address);
        }
        let started = time::monotonic_ns();
        let process = agent.process();
        process.counters.faults.fetch_add(1, Ordering::Relaxed);
        let page = page::number_of(address);
        let found = self.fetch(agent, active, &core, page, 0);
        if let Found::Spilled(spilled) = found {
            self.read(agent, active, &mut core, page, spilled, started);
            // While the disk is at work.
            Self::take_ahead(agent, active, &mut core);
            self.again = 0;
            return;
        }
        Self::take_ahead(agent, active, &mut core);
        let served = if found == Found::Here {
            self.serve(agent, active, &mut core, page)
        } else {
            self.fill_with_zeros(agent, active, &mut core, address, write)
        };
        let took = time::monotonic_ns() - started;
        process.counters.fault_ns_total.fetch_add(took + KERNEL_NS, Ordering::Relaxed);
        process.fault_ns.record(took);
        if served == Served::Again {
            if !self.read_until_event(agent, active, &mut core, address) {
                self.again += 1;
                if self.again > AGAIN_USUAL {
                    locked_growth::let_through(active, &mut core, thread, address);
                }
            }
            return;
        }
        self.again = 0;
        drop(core);
        if let Some(range) = self.wake_later.take() {
            // It fails only for ranges that cannot be.
            let _ = active.uffd.wake(range);
        }
        self.placement.follow(agent, thread, took + KERNEL_NS);
        if let Some(until_ns) = self.fault_rate.note_fault(started) {
            agent.session().keep_awake(until_ns);
        }
        self.privileges.follow(agent, started);
    }

    /// A write to memory that a fork has made shared, or to the page of zeros. One that goes on page by
    /// page is let write to the following pages along with it.
    fn let_write(&mut self, agent: &Agent, active: &Active, core: &Core, address: usize) {
        let wanted = self.writes.pages(address, room_ahead(agent).clamp(1, ZERO_AHEAD_MAX));
        let range = address..address + wanted * PAGE_SIZE;
        let pages = if core.regions.contains(&range) { wanted } else { 1 };
        self.writes.note_done(address, pages);
        if copies::let_write(agent, active, address, pages).is_err() {
            // It tries again: by then the event that stands in the way is read, or the memory gone.
            wake(&active.uffd, address);
        }
    }

    /// The next message: one that was set aside during a fork, or one that is read now.
    fn next_message(&mut self, agent: &Agent, active: &Active) -> Option<Event> {
        self.delayed.take().or_else(|| read(agent, &active.uffd))
    }

    /// A fault could not be answered because an event waits to be read. The kernel hands out
    /// faults first, so faults are set aside until the event comes; then all of them may try
    /// again. `false` when it has not come yet.
    fn read_until_event(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        address: usize,
    ) -> bool {
        let mut aside = Aside::default();
        aside.put(address);
        let event = loop {
            match self.next_message(agent, active) {
                Some(Event::Pagefault { address, .. }) => aside.put(address),
                event => break event,
            }
        };
        let has_come = event.is_some();
        if let Some(event) = event {
            self.handle_event(agent, active, core, event);
        }
        aside.wake(&active.uffd);
        has_come
    }

    /// Acts on an event that was read too early: first on those that must come before it.
    fn catch_up(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        early: Event,
    ) {
        agent.process().counters.events_early.fetch_add(1, Ordering::Relaxed);
        let mut aside = Aside::default();
        let mut follow_up = None;
        while event::is_early(core, &early) {
            match self.next_message(agent, active) {
                Some(Event::Pagefault { address, thread, .. }) => {
                    if !locked_growth::let_through(active, core, thread, address) {
                        aside.put(address);
                    }
                }
                Some(event) if event::follows(&event, &early) => follow_up = Some(event),
                Some(event) => self.handle_event(agent, active, core, event),
                // The thread that made the change is about to tell of it.
                None if active.uffd.is_changing() => sched_yield(),
                None => break,
            }
        }
        for event in [Some(early), follow_up].into_iter().flatten() {
            event::handle(agent, active, core, event);
        }
        aside.wake(&active.uffd);
    }

    /// While a fork copies the process nothing here may change, but its message must be read, or
    /// the fork never ends. Messages wait until the lock is free again.
    fn read_during_copy(&mut self, agent: &'static Agent, active: &'static Active) {
        // Set while the fork still has the lock, and before anything is read.
        agent.delayed.store(true, Ordering::Release);
        while agent.copying.load(Ordering::Acquire) {
            // What was read can wait as well.
            wait_for(&mut [PollFd::new(&active.uffd, PollFlags::IN)], DURING_COPY);
            match read(agent, &active.uffd) {
                None => {}
                Some(Event::Pagefault { address, .. }) => self.aside.put(address),
                Some(event) => self.delayed.put(agent, event),
            }
        }
    }

    fn handle_delayed(&mut self, agent: &'static Agent, active: &'static Active, core: &mut Core) {
        // They are read again when what was told before them is known.
        self.aside.wake(&active.uffd);
        // The child has an agent of its own and waits for this descriptor to close. With several
        // it cannot be told which is which, and what one of them is given too much does no harm.
        let forks = self.delayed.iter().filter(|event| matches!(event, Event::Fork(_))).count();
        self.child_has_agent = forks == 1 && agent.copied.load(Ordering::Relaxed);
        while let Some(event) = self.delayed.take() {
            self.handle_event(agent, active, core, event);
        }
        self.child_has_agent = false;
        agent.delayed.store(false, Ordering::Release);
    }

    fn handle_event(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        event: Event,
    ) {
        if event::is_early(core, &event) {
            return self.catch_up(agent, active, core, event);
        }
        match event {
            Event::Fork(child) if self.child_has_agent => drop(child),
            Event::Fork(child) => {
                let Handler { pages, decompressor, .. } = self;
                let decompressor = made(decompressor, agent);
                crate::fork::fill_child(agent, active, core, child, decompressor, &mut pages[0]);
            }
            event => event::handle(agent, active, core, event),
        }
    }

    /// Brings in a page that is fetched. With a page of a stream come those that are next.
    fn serve(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        page: PageNumber,
    ) -> Served {
        let window = self.streams.window_at(page);
        let counters = &agent.process().counters;
        counters.pages_prefetch_wasted.fetch_add(window.wasted.into(), Ordering::Relaxed);
        if window.pages > 1 {
            return self.bring_window(agent, active, core, page, window);
        }
        let served = self.bring_one(agent, active, core, page, false);
        if served == Served::Done {
            self.streams.note_brought(1, 0);
        }
        served
    }

    /// Brings in the page that is fetched, by itself, and wakes who waits for it.
    fn bring_one(
        &self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        page: PageNumber,
        is_streamed: bool,
    ) -> Served {
        let address = page::address_of(page);
        // SAFETY: the buffer was filled with the content of the page.
        let copied = unsafe { active.uffd.copy(address, self.pages[0].as_ptr(), PAGE_SIZE) };
        let served = settle(agent, active, address, copied);
        if served == Served::Done {
            note_returned(agent, active, core, page, is_streamed);
        }
        served
    }

    /// Brings in the page that is fetched and those ahead of it in its stream that are out, as far as
    /// there is room for them. Who waits for them is woken later.
    fn bring_window(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        page: PageNumber,
        Window { stride, pages, .. }: Window,
    ) -> Served {
        let most = pages.min(1 + room_ahead(agent));
        // A bit for each place of the stream, that of the fault first, that has no page, nor a guard page,
        // which would be overwritten.
        let mut places = 1;
        if most > 1 {
            let ahead = if stride.abs() <= NEAR_STRIDE { 2 * most } else { most } - 1;
            let address = page::address_of(page);
            let empty = active.pagemap.empty_ahead(address, stride as isize, ahead);
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
            let mut done = self.bring(agent, active, core, first, stride, together, place == 0);
            if done == 0 && place > 0 {
                break;
            }
            if done == 0 {
                let served = self.bring_one(agent, active, core, page, true);
                if served != Served::Done {
                    return served;
                }
                done = 1;
            }
            core.probation.push(first, stride, done);
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

    /// Brings in a page and up to so many of its neighbours in one direction, as many as lie behind one
    /// another and fit the buffer, and wakes nobody. Returns how many. `is_fetched`: the first one is in
    /// the buffer.
    #[expect(clippy::too_many_arguments)]
    fn bring(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        nearest: PageNumber,
        stride: i64,
        together: usize,
        is_fetched: bool,
    ) -> usize {
        let upwards = stride > 0;
        let mut pages = usize::from(is_fetched);
        if !upwards && is_fetched {
            self.pages[BATCH_PAGES] = self.pages[0];
        }
        while pages < together.min(BATCH_PAGES) {
            let page = nearest.wrapping_add_signed(stride * pages as i64);
            let place = if upwards { pages } else { BATCH_PAGES - pages };
            if self.fetch(agent, active, core, page, place) != Found::Here {
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
        let source = self.pages[place..place + pages].as_ptr().cast();
        let (address, len) = (page::address_of(first), pages * PAGE_SIZE);
        // SAFETY: the buffer was filled with the content of these pages.
        let done = match unsafe { active.uffd.copy_without_wake(address, source, len) } {
            Ok(()) => pages,
            Err(partial) => partial.done / PAGE_SIZE,
        };
        for page in first..first + done as u64 {
            note_returned(agent, active, core, page, true);
        }
        // The one that is asked for is the last of them.
        if upwards || done == pages { done } else { 0 }
    }

    /// Puts a page's content among the pages to copy from, if it is in memory.
    fn fetch(
        &mut self,
        agent: &'static Agent,
        active: &Active,
        core: &Core,
        page: PageNumber,
        place: usize,
    ) -> Found {
        let Handler { pages, decompressor, .. } = self;
        let buffer = &mut pages[place];
        if let Some(slot) = core.staging.find(page) {
            // SAFETY: a live slot holds the page's content, and only the reclaimer removes it.
            *buffer = *unsafe { active.slot_page(slot) };
            return Found::Here;
        }
        content::load(agent, active, page, made(decompressor, agent), buffer)
    }

    /// Begins to read a page from the spill file, with those ahead of it in its stream.
    fn read(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        page: PageNumber,
        spilled: Spilled,
        started_ns: u64,
    ) {
        let Some(access) = &active.spill else {
            content::fail(agent, page, &spill::ReadError::NotOpen);
        };
        if self.reads.has(page) {
            return;
        }
        let Some(read) = self.reads.begin((page, spilled), started_ns) else {
            if !self.reads.wait(page::address_of(page)) {
                wake(&active.uffd, page::address_of(page));
            }
            return;
        };
        let Window { stride, pages, wasted } = self.streams.window_at(page);
        let counters = &agent.process().counters;
        counters.pages_prefetch_wasted.fetch_add(wasted.into(), Ordering::Relaxed);
        let most = pages.min(1 + room_ahead(agent));
        let (mut brought, mut steps, mut reads, mut last) = (1, 0, 1, read);
        for step in 1..most {
            let next = page.wrapping_add_signed(stride * step as i64);
            // What is in memory is passed by.
            if core.staging.find(next).is_some() || self.reads.has(next) {
                continue;
            }
            let Some(spilled) = active.store.spilled(next) else { continue };
            if !self.reads.add(last, (next, spilled)) {
                // It lies elsewhere in the file. For a stream that has gone on both are read at once.
                if pages <= WINDOW_FIRST {
                    break;
                }
                let Some(read) = self.reads.begin_ahead((next, spilled)) else { break };
                self.reads.submit(access, last);
                (last, reads) = (read, reads + 1);
            }
            (brought, steps) = (brought + 1, step);
        }
        self.streams.note_brought(brought, steps);
        counters.pages_prefetched.fetch_add(brought as u64 - 1, Ordering::Relaxed);
        counters.spill_reads.fetch_add(reads, Ordering::Relaxed);
        self.reads.submit(access, last);
        self.publish_reads(agent);
    }

    fn publish_reads(&self, agent: &Agent) {
        let under_way = &agent.process().spill_reads_under_way;
        under_way.store(self.reads.under_way() as u64, Ordering::Relaxed);
    }

    /// Brings in what was read from the spill file, where the store still says that it is there.
    fn finish_reads(&mut self, agent: &'static Agent, active: &'static Active, core: &mut Core) {
        let Some(access) = active.spill.as_ref().filter(|_| self.reads.under_way() > 0) else {
            return;
        };
        loop {
            let finished = match self.reads.finish(access) {
                Ok(Some(finished)) => finished,
                Ok(None) => return,
                Err((page, error)) => content::fail(agent, page, &error),
            };
            let counters = &agent.process().counters;
            let mut is_streamed = finished.started_ns.is_none();
            for (page, spilled) in finished.pages.into_iter().flatten() {
                // A page ahead may have been in memory with its object kept, and been changed and taken
                // out since.
                let is_newest = core.staging.find(page).is_none();
                if is_newest && active.store.spilled(page) == Some(spilled) {
                    let object = match finished.open(access, spilled) {
                        Ok(object) => object,
                        Err(error) => content::fail(agent, page, &error),
                    };
                    self.bring_object(
                        agent,
                        active,
                        core,
                        page,
                        spilled.encoding(),
                        object,
                        is_streamed,
                    );
                }
                // Where nothing was brought in, whoever waits finds out by trying again.
                wake(&active.uffd, page::address_of(page));
                is_streamed = true;
            }
            if let Some(started_ns) = finished.started_ns {
                let took = time::monotonic_ns() - started_ns;
                counters.spill_read_ns_total.fetch_add(took, Ordering::Relaxed);
                counters.fault_ns_total.fetch_add(took + KERNEL_NS, Ordering::Relaxed);
                agent.process().fault_ns.record(took);
            }
            for address in self.reads.take_waiting() {
                wake(&active.uffd, address);
            }
            self.publish_reads(agent);
        }
    }

    /// Brings in a page whose object was read.
    #[expect(clippy::too_many_arguments)]
    fn bring_object(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        page: PageNumber,
        encoding: u8,
        object: &[u8],
        is_streamed: bool,
    ) {
        let Handler { pages, decompressor, .. } = self;
        let decompressor = made(decompressor, agent);
        if let Err(error) = content::expand(encoding, object, decompressor, &mut pages[0]) {
            content::fail(agent, page, &error);
        }
        let (address, source) = (page::address_of(page), pages[0].as_ptr());
        // SAFETY: the buffer was filled with the content of the page.
        match unsafe { active.uffd.copy_without_wake(address, source, PAGE_SIZE) } {
            Ok(()) => {
                let counters = &agent.process().counters;
                counters.spill_hits.fetch_add(1, Ordering::Relaxed);
                note_returned(agent, active, core, page, is_streamed);
            }
            // An event waits to be read, or the page came by another way: it is tried again if somebody
            // wants it.
            Err(Partial { errno: Errno::AGAIN | Errno::EXIST | Errno::NOENT, .. }) => {}
            // As for any other fault.
            Err(partial) => {
                settle(agent, active, address, Err(partial));
            }
        }
    }

    /// When nobody has wanted anything for long: what was worked with costs nothing meanwhile.
    fn rest(&mut self, agent: &'static Agent) {
        self.direct = self.direct.take().and_then(Reclaimer::rest);
        if self.decompressor.take().is_some() {
            // SAFETY: this part is the handler's, and nobody uses it any more.
            let scratch = unsafe { agent.codec_scratch() }.decompress.as_ptr_range();
            agent.give_back(scratch.start as usize..scratch.end as usize);
            let pages = self.pages.as_ptr_range();
            agent.give_back(pages.start as usize..pages.end as usize);
            agent.give_back_stack(Stack::Handler);
        }
    }

    /// Sleeps until there is a message, something was read, or patience ends: `false`.
    fn wait_for_message(&self, active: &Active, patience: Timespec) -> bool {
        if self.reads.is_done() {
            return true;
        }
        let message = PollFd::new(&active.uffd, PollFlags::IN);
        match self.reads.ring() {
            Some(ring) => wait_for(&mut [message, PollFd::new(ring, PollFlags::IN)], patience),
            None => wait_for(&mut [message], patience),
        }
    }

    /// First touch: a page of the process's own, or the kernel's page of zeros if pages are read in
    /// order. A program that goes on page by page gets the following pages along with it.
    fn fill_with_zeros(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        core: &mut Core,
        address: usize,
        write: bool,
    ) -> Served {
        let counters = &agent.process().counters;
        counters.faults_zero_filled.fetch_add(1, Ordering::Relaxed);
        if let_go(agent, active, core, address) {
            return Served::Done;
        }
        let (row, most) = if write {
            (&mut self.growth, room_ahead(agent).clamp(1, ZERO_AHEAD_MAX))
        } else {
            (&mut self.zeros_read, ZERO_READ_AHEAD_MAX)
        };
        let wanted = row.pages(address, most);
        let pages = pages_never_seen(active, core, address, wanted);
        // A page that is read out of order is mostly written to next, which would be a second
        // fault. ThreadSanitizer misses a race if other threads run between its read and its write.
        if !write && wanted > 1 {
            let mapped = zeros::map(active, address, pages);
            row.note_done(address, mapped.unwrap_or(1));
            return settle(agent, active, address, mapped.map(drop));
        }
        // SAFETY: the pages were never touched, so zeros are their content.
        let copied = unsafe { active.uffd.copy(address, self.zeros.as_ptr(), pages * PAGE_SIZE) };
        let filled = match copied {
            Ok(()) => pages,
            Err(partial) => partial.done / PAGE_SIZE,
        };
        row.note_done(address, filled.max(1));
        agent.add_cost((filled * PAGE_SIZE) as u64);
        count_ahead(counters, filled);
        if filled > 0 { Served::Done } else { settle(agent, active, address, copied) }
    }

    /// Fills staging for the reclaimer when it is empty: the monitor has nothing to do then, and the
    /// faulting thread waits. See [`sweep`].
    fn take_ahead(agent: &Agent, active: &Active, core: &mut Core) {
        let cost = agent.cost();
        let near = cost.saturating_sub(spill::leaving_bytes(agent))
            + (CHUNK_PAGES * PAGE_SIZE) as u64
            > cost::own_watermarks(agent).high;
        if !near || core.staging.waiting() > 0 || core.sweep.is_blocked() {
            return;
        }
        for _ in 0..TAKE_STEPS_MAX {
            if core.staging.holds_enough() {
                break;
            }
            match sweep::take_next(agent, active, core) {
                Taken::Pages | Taken::Passed => {}
                // The rest may be far: the fault comes first.
                Taken::Looked | Taken::Busy(_) | Taken::Changing | Taken::Full | Taken::Nothing => {
                    break;
                }
            }
        }
    }

    /// In direct reclaim: sees to it that there is a chunk for this thread and one for the monitor.
    fn take_directly(agent: &Agent, active: &Active, core: &mut Core) {
        for _ in 0..TAKE_STEPS_MAX {
            if core.staging.waiting() >= 2 || core.sweep.is_blocked() {
                break;
            }
            match sweep::take_next(agent, active, core) {
                Taken::Pages | Taken::Passed | Taken::Looked => {}
                Taken::Busy(_) | Taken::Changing | Taken::Full | Taken::Nothing => break,
            }
        }
    }

    /// Once the cap is reached, helps to make room, or waits for it where there is nothing to help
    /// with. Bounded: messages that are not faults need an answer too, and reclaim itself may wait
    /// for one.
    fn stall_over_cap(&mut self, agent: &'static Agent, active: &Active) {
        let marks = cost::own_watermarks(agent);
        let cost = || agent.cost();
        if cost() <= marks.hard {
            return;
        }
        let counters = &agent.process().counters;
        // A program that outruns reclaim is held until there is room to grow.
        let (mark, longest) = if agent.outruns.load(Ordering::Relaxed) {
            (marks.low, STALL_OUTRUN_NS)
        } else {
            (marks.hard.saturating_sub((WINDOW_MAX * PAGE_SIZE) as u64), STALL_NS)
        };
        let (started, worked_before) = (time::monotonic_ns(), time::thread_cpu_ns());
        let is_late = || {
            time::thread_cpu_ns() - worked_before > longest
                || time::monotonic_ns() - started > longest * STALL_ELAPSED
        };
        counters.faults_stalled.fetch_add(1, Ordering::Relaxed);
        agent.faults_wait.store(true, Ordering::Relaxed);
        // A fork waits for its message to be read.
        let copying = || agent.copying.load(Ordering::Acquire);
        while cost() > mark && !copying() && self.can_wait(agent) {
            let seen = agent.progress.load(Ordering::Acquire);
            // What is on its way to the spill file makes room by itself.
            let leaves = cost().saturating_sub(spill::leaving_bytes(agent)) <= mark;
            if leaves {
                spill::wake_if_wanted(agent, active);
            } else if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
                Self::take_directly(agent, active, &mut core);
            }
            if agent.monitor_sleeps.swap(false, Ordering::SeqCst) {
                agent.process().wake_agent();
            }
            let goes_on = &mut || cost() > mark && !is_late() && !copying();
            // SAFETY: this is the handler, and there is none.
            let make = || unsafe { Reclaimer::make(agent, By::Handler) };
            match self.direct.get_or_insert_with(make).chunk(active, goes_on) {
                Chunk::Freed => {
                    counters.reclaim_direct.fetch_add(1, Ordering::Relaxed);
                }
                Chunk::Interrupted if cost() <= mark => {}
                Chunk::Nothing | Chunk::Interrupted => {
                    let patience = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    // Woken, timed out or interrupted: only progress counts.
                    let _ =
                        futex::wait(&agent.progress, futex::Flags::PRIVATE, seen, Some(&patience));
                    // Who makes room may wait for an event to be read. Where others have the processors
                    // it only takes its time.
                    if agent.progress.load(Ordering::Acquire) == seen && active.uffd.is_changing() {
                        break;
                    }
                }
            }
            if is_late() {
                break;
            }
        }
        agent.faults_wait.store(false, Ordering::Relaxed);
        // Otherwise before the next message is handled.
        if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
            self.release_chunk(&mut core);
        }
    }

    /// Can a fault wait for reclaim? Where there is nothing to take here before the process has grown by
    /// some pages, the others are told: what was written to here may be theirs alone now.
    fn can_wait(&self, agent: &Agent) -> bool {
        if !agent.is_stuck() {
            return true;
        }
        // Where pages go to a disk that would take too long.
        if agent.spills() {
            return false;
        }
        if agent.cost() >= agent.retry_cost_bytes.load(Ordering::Relaxed) {
            return true;
        }
        agent.wake_others();
        false
    }

    /// What direct reclaim has begun others may finish.
    fn release_chunk(&mut self, core: &mut Core) {
        if let Some(direct) = &mut self.direct {
            direct.release(core);
        }
    }
}

/// What pages are decompressed with: made anew after a rest.
fn made<'a>(
    decompressor: &'a mut Option<Decompressor<'static>>,
    agent: &'static Agent,
) -> &'a mut Decompressor<'static> {
    decompressor.get_or_insert_with(|| {
        // SAFETY: this part is the handler's, and nobody uses it.
        match Decompressor::new(unsafe { agent.codec_scratch() }.decompress) {
            Ok(decompressor) => decompressor,
            Err(error) => agent.fail(format_args!("no memory to decompress with: {error}")),
        }
    })
}

/// As long as there is much room, memory that is touched for the first time need not be known: some of
/// it is taken out of the registration, and the kernel fills it, with huge pages where it has any. Only
/// before anything was ever taken, so that nothing is missing there.
fn let_go(agent: &Agent, active: &Active, core: &mut Core, address: usize) -> bool {
    if core.has_taken {
        return false;
    }
    let Some(region) = core.regions.at_or_after(address) else { return false };
    let Some(bytes) = agent.announcements.take(LET_GO_SHARE, LET_GO_MIN, LET_GO_MAX) else {
        return false;
    };
    let start = (address & !(LET_GO_MIN as usize - 1)).max(region.start);
    let end = (start + (bytes as usize & !(LET_GO_MIN as usize - 1))).min(region.end);
    if !(start..end).contains(&address) || active.uffd.unregister(start..end).is_err() {
        return false;
    }
    core.regions.remove(&(start..end));
    agent.released_bytes.fetch_add((end - start) as u64, Ordering::Relaxed);
    true
}

/// A page is in memory again, for itself or as one of a stream. Where streams go over more than there
/// is room for, each of their pages will be as long in coming back as the others, and none is spared.
fn note_returned(
    agent: &Agent,
    active: &Active,
    core: &mut Core,
    page: PageNumber,
    is_streamed: bool,
) {
    let counters = &agent.process().counters;
    core.victims.note_returned(page);
    let mark = if is_streamed && core.victims.preferred() == VictimKind::Streamed {
        Reuse::default()
    } else {
        Reuse(active.store.mark(page)).returned(core.sweep.round())
    };
    if let Some(slot) = core.staging.find(page) {
        core.staging.kill(slot);
        active.store.set_mark(page, mark.0);
        counters.pages_second_chance.fetch_add(1, Ordering::Relaxed);
    } else {
        kept::note_loaded(agent, active, page, mark);
        counters.pages_swapped_in.fetch_add(1, Ordering::Relaxed);
    }
    agent.add_cost(PAGE_SIZE as u64);
}

/// How many pages more than one there is room for.
fn room_ahead(agent: &Agent) -> usize {
    let hard = cost::own_watermarks(agent).hard;
    let cost = agent.cost() + PAGE_SIZE as u64;
    (hard.saturating_sub(cost) / PAGE_SIZE as u64) as usize
}

/// How many pages from `address` on, at most `wanted`, lie in registered memory, were never
/// evicted, and are nothing else to the kernel (a guard page would be overwritten).
fn pages_never_seen(active: &Active, core: &Core, address: usize, wanted: usize) -> usize {
    if wanted == 1 {
        return 1;
    }
    let wanted = active.pagemap.empty_pages(address, wanted).unwrap_or(1);
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

/// Where threads wait whose faults cannot be answered yet, however many. All of them try again at a
/// time, with others that wait between them: as long as one tries again before the event that all
/// wait for is read, the kernel hands out faults and not the event. All zero is none.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
struct Aside {
    start: usize,
    end: usize,
}

impl Aside {
    fn put(&mut self, address: usize) {
        let Range { start, end } = page_range(address);
        let is_first = self.start == self.end;
        self.start = if is_first { start } else { self.start.min(start) };
        self.end = self.end.max(end);
    }

    /// They try again.
    fn wake(&mut self, uffd: &Uffd) {
        let Aside { start, end } = core::mem::take(self);
        if start < end {
            // It fails only for ranges that cannot be.
            let _ = uffd.wake(start..end);
        }
    }
}

fn count_ahead(counters: &Counters, filled: usize) {
    if filled > 1 {
        counters.pages_zero_filled_ahead.fetch_add(filled as u64 - 1, Ordering::Relaxed);
    }
}

/// What a request of one page came to.
fn settle(agent: &Agent, active: &Active, address: usize, result: Result<(), Partial>) -> Served {
    match result {
        Ok(()) => Served::Done,
        // The thread finds out by trying again.
        Err(Partial { errno: errno @ (Errno::EXIST | Errno::NOENT), .. }) => {
            wake(&active.uffd, address);
            if errno == Errno::EXIST { Served::Done } else { Served::Gone }
        }
        Err(Partial { errno: Errno::AGAIN, .. }) => Served::Again,
        // The process is on its way out.
        Err(Partial { errno: Errno::SRCH, .. }) => Served::Gone,
        // No memory at all, not even for one page: what is freed meanwhile may do.
        Err(Partial { errno: Errno::NOMEM, .. }) => {
            agent.process().wake_agent();
            wake(&active.uffd, address);
            Served::Gone
        }
        Err(Partial { errno: Errno::INVAL, .. }) if foreign::release(&active.uffd, address) => {
            Served::Gone
        }
        Err(partial) => agent.fail(format_args!(
            "cannot bring back page {address:#x}: {} (errno {})",
            partial.errno,
            partial.errno.raw_os_error()
        )),
    }
}

fn read(agent: &Agent, uffd: &Uffd) -> Option<Event> {
    match uffd.read_event() {
        Ok(event) => event,
        Err(errno) => agent.fail(format_args!("cannot read from the userfaultfd: {errno}")),
    }
}

fn wake(uffd: &Uffd, address: usize) {
    // It fails only for ranges that cannot be.
    let _ = uffd.wake(page_range(address));
}

fn page_range(address: usize) -> Range<usize> {
    address..address + PAGE_SIZE
}

/// Sleeps until one of these can be read, or patience ends: `false`.
fn wait_for(descriptors: &mut [PollFd<'_>], patience: Timespec) -> bool {
    // An error only means another look.
    poll(descriptors, Some(&patience)) != Ok(0)
}

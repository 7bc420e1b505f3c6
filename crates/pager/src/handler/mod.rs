//! The fault handler: the thread that answers the kernel's messages.
//!
//! It reads a message and acts on it under one lock, because a thread that changed the address
//! space goes on as soon as its message is read. It touches nothing that can be evicted, and
//! waits for nothing that waits for it.

pub(crate) mod content;
pub(crate) mod events;
mod first_touch;
pub(crate) mod locked_growth;
mod order;
mod page_in;
pub(crate) mod placement;
mod spill_in;
mod stall;
pub(crate) mod zero_page;

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_codec::{Decompressor, Page};
use ramfold_policy::memory::fault_rate::FaultRate;
use ramfold_policy::memory::sequential::Sequential;
use ramfold_policy::memory::stream::Streams;
use ramfold_sys::sync::MutexGuard;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::fd::AsFd;
use rustix::thread::Timespec;

use self::content::Content;
use self::first_touch::ZERO_AHEAD_MAX;
use self::order::{Aside, Delayed};
use self::page_in::{BATCH_PAGES, room_ahead};
use crate::agent::{Active, Agent, Context, Core, LOCK_PATIENCE_NS, Stack};
use crate::fork::copies;
use crate::handler::placement::Placement;
use crate::kernel::{Event, Host, Kernel, time};
use crate::monitor::privileges::Privileges;
use crate::page::{self};
use crate::reclaim::Reclaimer;
use crate::spill::Reads;

pub(crate) use self::order::act_on_inherited;

/// A fault may come before the event that explains it so many times in a row.
const AGAIN_USUAL: u32 = 32;

/// How long the handler waits for a message at a time.
const IDLE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What a fault costs the program beside what the handler does: until its message is read, and
/// after it was answered.
const KERNEL_NS: u64 = 5_000;

/// Memory of the handler's thread that is too large for its stack, in the agent's own. Memory of
/// zeros is a valid start.
#[repr(C)]
pub(crate) struct HandlerBuffers {
    /// Pages to copy from: that of the fault first, behind it or (in a stream that goes down) from
    /// the end on those that come with it.
    pages: [Page; BATCH_PAGES + 1],
    /// Zeros to copy from. Never written: the kernel backs it with its one page of zeros.
    zeros: [u8; ZERO_AHEAD_MAX * PAGE_SIZE],
    delayed: Delayed,
}

/// What the handler's thread alone uses.
pub(crate) struct Handler {
    buffers: &'static mut HandlerBuffers,
    /// Faults that came during a fork.
    aside: Aside,
    /// The fork that was copied made a child with an agent.
    child_has_agent: bool,
    /// This and the next: while they do not rest.
    decompressor: Option<Decompressor<'static>>,
    direct: Option<Reclaimer>,
    streams: Streams,
    reads: Reads,
    placement: Placement,
    fault_rate: FaultRate,
    privileges: Privileges,
    /// Faults in a row that could not be answered and after which no event came.
    again: u32,
    /// First touches that write.
    first_writes: Sequential,
    /// First touches that read.
    first_reads: Sequential,
    /// Writes to protected pages.
    protected_writes: Sequential,
    /// Where threads wait for pages of a stream that are there by now. Not before all are, and the
    /// lock is free: a thread goes on in place of the handler, or of the monitor that waits for the
    /// lock.
    wake_later: Option<Range<usize>>,
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
pub(crate) extern "C" fn thread_main(agent: *mut ()) -> ! {
    // SAFETY: the monitor passes the agent, which lives for ever.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    let Some(active) = agent.active() else {
        agent.fail(format_args!("the fault handler started before the agent was active"));
    };
    // SAFETY: this is the handler's thread.
    unsafe { Handler::of(agent) }.run(agent, active)
}

impl Handler {
    /// The agent's handler.
    ///
    /// # Safety
    /// There is one.
    pub(crate) unsafe fn of(agent: &'static Agent) -> Handler {
        // SAFETY: by the caller's word.
        Handler::new(unsafe { &mut *agent.handler_buffers.get() })
    }

    fn new(buffers: &'static mut HandlerBuffers) -> Handler {
        Handler {
            buffers,
            aside: Aside::default(),
            child_has_agent: false,
            decompressor: None,
            direct: None,
            streams: Streams::default(),
            reads: Reads::default(),
            placement: Placement::default(),
            fault_rate: FaultRate::default(),
            privileges: Privileges::default(),
            again: 0,
            first_writes: Sequential::default(),
            first_reads: Sequential::default(),
            protected_writes: Sequential::default(),
            wake_later: None,
        }
    }

    fn run(&mut self, agent: &'static Agent, active: &'static Active) -> ! {
        loop {
            self.turn(agent, active);
        }
    }

    /// What is being read from the spill file.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Waits for a message, makes room, and acts on the message.
    pub(crate) fn turn(&mut self, agent: &'static Agent, active: &'static Active) {
        // Delayed messages are due at once: a forked child may wait for its descriptor to go.
        if !agent.fork_copy.has_delayed() {
            if !self.wait_for_message(active, IDLE) {
                self.rest(agent);
            }
            self.stall_over_cap(agent, active);
        }
        if agent.fork_copy.is_copying() {
            self.read_during_copy(agent, active);
        } else if let Some(mut core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
            self.release_chunk(&mut core);
            let context = &mut Context { agent, active, core: &mut core };
            self.handle_delayed(context);
            self.finish_reads(context);
            self.handle_next(agent, active, core);
        }
    }

    /// Reads one message and acts on it.
    fn handle_next(
        &mut self,
        agent: &'static Agent,
        active: &'static Active,
        mut core: MutexGuard<'_, Core>,
    ) {
        let Some(event) = read(agent, &active.kernel) else {
            drop(core);
            return self.privileges.follow(agent, time::monotonic_ns());
        };
        let context = &mut Context { agent, active, core: &mut core };
        let Event::Pagefault { address, write, write_protected, thread } = event else {
            return self.handle_event(context, event);
        };
        if write_protected {
            return self.let_write(context, address);
        }
        let started = time::monotonic_ns();
        let process = agent.process();
        process.counters.faults.fetch_add(1, Ordering::Relaxed);
        let page = page::number_of(address);
        let found = self.fetch(context, page, 0);
        if let Content::Spilled(spilled) = found {
            self.read_spilled(context, page, spilled, started);
            // While the disk is at work.
            Self::take_ahead(context);
            self.again = 0;
            return;
        }
        Self::take_ahead(context);
        let served = if found == Content::Here {
            self.serve(context, page)
        } else {
            self.fill_with_zeros(context, address, write)
        };
        let took = time::monotonic_ns() - started;
        process.counters.fault_ns_total.fetch_add(took + KERNEL_NS, Ordering::Relaxed);
        process.fault_ns.record(took);
        if served == Served::Again {
            if !self.read_until_event(context, address) {
                self.again += 1;
                if self.again > AGAIN_USUAL {
                    locked_growth::let_through(active, context.core, thread, address);
                }
            }
            return;
        }
        self.again = 0;
        drop(core);
        if let Some(range) = self.wake_later.take() {
            // It fails only for ranges that cannot be.
            let _ = active.kernel.wake(range);
        }
        self.placement.follow(agent, thread, took + KERNEL_NS);
        if let Some(until_ns) = self.fault_rate.note_fault(started) {
            agent.session().keep_awake(until_ns);
        }
        self.privileges.follow(agent, started);
    }

    /// A write to memory that a fork has made shared, or to the page of zeros. One that goes on
    /// page by page is let write to the following pages along with it.
    fn let_write(&mut self, context: &mut Context<'_>, address: usize) {
        let Context { agent, active, .. } = *context;
        let wanted =
            self.protected_writes.pages(address, room_ahead(agent).clamp(1, ZERO_AHEAD_MAX));
        let range = address..address + wanted * PAGE_SIZE;
        let pages = if context.core.regions.contains(&range) { wanted } else { 1 };
        self.protected_writes.note_done(address, pages);
        match copies::let_write(agent, active, address, pages) {
            Ok(()) => {}
            // Were it only to try again, its next fault could be read before the event each time.
            Err(Errno::AGAIN) => {
                self.read_until_event(context, address);
            }
            // The memory is gone.
            Err(_) => wake(&active.kernel, address),
        }
    }

    /// When nobody has wanted anything for long: what was worked with costs nothing meanwhile.
    fn rest(&mut self, agent: &'static Agent) {
        self.direct = self.direct.take().and_then(Reclaimer::rest);
        if self.decompressor.take().is_some() {
            // SAFETY: this part is the handler's, and nobody uses it any more.
            let scratch = unsafe { agent.codec_scratch() }.decompress.as_ptr_range();
            agent.give_back(scratch.start as usize..scratch.end as usize);
            let pages = self.buffers.pages.as_ptr_range();
            agent.give_back(pages.start as usize..pages.end as usize);
            agent.give_back_stack(Stack::Handler);
        }
    }

    /// Sleeps until there is a message, something was read, or patience ends: `false`.
    fn wait_for_message(&self, active: &Active, patience: Timespec) -> bool {
        if self.reads.is_done() {
            return true;
        }
        active.kernel.wait(self.reads.ring().map(AsFd::as_fd), patience)
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

fn read(agent: &Agent, kernel: &Host) -> Option<Event> {
    match kernel.read_event() {
        Ok(event) => event,
        Err(errno) => agent.fail(format_args!("cannot read from the userfaultfd: {errno}")),
    }
}

fn wake(kernel: &Host, address: usize) {
    // It fails only for ranges that cannot be.
    let _ = kernel.wake(page_range(address));
}

fn page_range(address: usize) -> Range<usize> {
    address..address + PAGE_SIZE
}

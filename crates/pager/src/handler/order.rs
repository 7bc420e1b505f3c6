//! The order of messages: the kernel hands out faults before events, and events of different
//! threads in any order. What is read too early waits here.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering;

use rustix::thread::Timespec;

use super::{Handler, made, page_range, read};
use super::{events, locked_growth};
use crate::agent::{Active, Agent, Context};
use crate::kernel::{Event, Host, Kernel};

/// Messages that can wait while a fork copies the process.
const DELAYED_MAX: usize = 512;

/// Threads that move memory to places which others have just left.
const EARLY_MAX: usize = 128;
const DURING_COPY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Messages but faults, in the order in which they came.
#[repr(C)]
pub(super) struct Delayed {
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

    pub(super) fn take(&mut self) -> Option<Event> {
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

/// In a forked child: the changes of the address space that the parent's handler had read and not
/// yet acted upon when the child was made. The mappings follow them already.
///
/// # Safety
/// The handler's buffers must be a copy of a parent's, and nobody else may use them.
pub(crate) unsafe fn act_on_inherited(context: &mut Context<'_>) {
    let agent = context.agent;
    // SAFETY: by the caller's word.
    let buffers = unsafe { &mut *agent.handler_buffers.get() };
    while let Some(event) = buffers.delayed.take() {
        match event {
            // Its descriptor is none of this process's.
            Event::Fork(child) => core::mem::forget(child),
            event => events::handle(context, event),
        }
    }
}

impl Handler {
    /// The next message: one that was set aside during a fork, or one that is read now.
    fn next_message(&mut self, agent: &Agent, active: &Active) -> Option<Event> {
        self.buffers.delayed.take().or_else(|| read(agent, &active.kernel))
    }

    /// A fault could not be answered because an event waits to be read. The kernel hands out
    /// faults first, so faults are set aside until the event comes; then all of them may try
    /// again. `false` when it has not come yet.
    pub(super) fn read_until_event(&mut self, context: &mut Context<'_>, address: usize) -> bool {
        let Context { agent, active, .. } = *context;
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
            self.handle_event(context, event);
        }
        aside.wake(&active.kernel);
        has_come
    }

    /// Acts on a move that was read too early: first on what vacated the place that it goes to.
    /// That may be told late by a thread whose own move was told early, and so on.
    fn catch_up(&mut self, context: &mut Context<'_>, early: Event) {
        let Context { agent, active, .. } = *context;
        let mut aside = Aside::default();
        let mut waiting = EarlyMoves { list: [const { None }; EARLY_MAX] };
        waiting.push(agent, early);
        while !waiting.is_empty() {
            if let Some(moved) = waiting.take(|event| !events::is_early(context.core, event)) {
                moved.act(context);
                continue;
            }
            match self.next_message(agent, active) {
                Some(Event::Pagefault { address, thread, .. }) => {
                    if !locked_growth::let_through(active, context.core, thread, address) {
                        aside.put(address);
                    }
                }
                Some(event) => {
                    let Some(event) = waiting.follow_up(event) else { continue };
                    if events::is_early(context.core, &event) {
                        waiting.push(agent, event);
                    } else {
                        self.handle_event(context, event);
                    }
                }
                // The thread that made the change is about to tell of it.
                None if active.kernel.is_changing() => active.kernel.yield_now(),
                // Nobody is: they are in the order in which they were told.
                None => {
                    while let Some(moved) = waiting.take(|_| true) {
                        moved.act(context);
                    }
                }
            }
        }
        aside.wake(&active.kernel);
    }

    /// While a fork copies the process nothing here may change, but its message must be read, or
    /// the fork never ends. Messages wait until the lock is free again.
    pub(super) fn read_during_copy(&mut self, agent: &'static Agent, active: &'static Active) {
        agent.fork_copy.begin_delay();
        while agent.fork_copy.is_copying() {
            // What was read can wait as well.
            active.kernel.wait(None, DURING_COPY);
            match read(agent, &active.kernel) {
                None => {}
                Some(Event::Pagefault { address, .. }) => self.aside.put(address),
                Some(event) => self.buffers.delayed.put(agent, event),
            }
        }
    }

    pub(super) fn handle_delayed(&mut self, context: &mut Context<'_>) {
        let Context { agent, active, .. } = *context;
        // They are read again when what was told before them is known.
        self.aside.wake(&active.kernel);
        // The child has an agent of its own and waits for this descriptor to close. With several
        // it cannot be told which is which, and what one of them is given too much does no harm.
        let forks =
            self.buffers.delayed.iter().filter(|event| matches!(event, Event::Fork(_))).count();
        self.child_has_agent = forks == 1 && agent.fork_copy.child_has_agent();
        while let Some(event) = self.buffers.delayed.take() {
            self.handle_event(context, event);
        }
        self.child_has_agent = false;
        agent.fork_copy.end_delay();
    }

    pub(super) fn handle_event(&mut self, context: &mut Context<'_>, event: Event) {
        let agent = context.agent;
        if events::is_early(context.core, &event) {
            return self.catch_up(context, event);
        }
        match event {
            Event::Fork(child) if self.child_has_agent => drop(child),
            Event::Fork(child) => {
                let Handler { buffers, decompressor, .. } = self;
                let decompressor = made(decompressor, agent);
                crate::fork::fill_child(context, child, decompressor, &mut buffers.pages[0]);
            }
            event => events::handle(context, event),
        }
    }
}

/// A move that was told before what vacated its target.
struct EarlyMove {
    event: Event,
    /// That its old place is unmapped was told meanwhile.
    follow_up: Option<Event>,
}

impl EarlyMove {
    fn act(self, context: &mut Context<'_>) {
        for event in [Some(self.event), self.follow_up].into_iter().flatten() {
            events::handle(context, event);
        }
    }
}

/// The moves that wait, in the order in which they were told.
struct EarlyMoves {
    list: [Option<EarlyMove>; EARLY_MAX],
}

impl EarlyMoves {
    fn is_empty(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    fn push(&mut self, agent: &Agent, event: Event) {
        agent.process().counters.events_early.fetch_add(1, Ordering::Relaxed);
        // In order, which taking keeps.
        let Some(place) = self.list.iter_mut().find(|place| place.is_none()) else {
            agent.fail(format_args!("more than {EARLY_MAX} moves were told too early"));
        };
        *place = Some(EarlyMove { event, follow_up: None });
    }

    /// Takes the first for which this holds.
    fn take(&mut self, holds: impl Fn(&Event) -> bool) -> Option<EarlyMove> {
        let index = { self.list.iter() }
            .position(|place| place.as_ref().is_some_and(|moved| holds(&moved.event)))?;
        self.list[index..].rotate_left(1);
        self.list[EARLY_MAX - 1].take()
    }

    /// Keeps an event that belongs to one of them; another is returned.
    fn follow_up(&mut self, event: Event) -> Option<Event> {
        let belongs = |moved: &&mut EarlyMove| {
            moved.follow_up.is_none() && events::follows(&event, &moved.event)
        };
        match self.list.iter_mut().flatten().find(belongs) {
            Some(moved) => {
                moved.follow_up = Some(event);
                None
            }
            None => Some(event),
        }
    }
}

/// Where threads wait whose faults cannot be answered yet, however many. All of them try again at a
/// time, with others that wait between them: as long as one tries again before the event that all
/// wait for is read, the kernel hands out faults and not the event. All zero is none.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Aside {
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
    pub(super) fn wake(&mut self, kernel: &Host) {
        let Aside { start, end } = core::mem::take(self);
        if start < end {
            // It fails only for ranges that cannot be.
            let _ = kernel.wake(start..end);
        }
    }
}

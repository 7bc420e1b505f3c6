//! Who the running thread is.
//!
//! Thread-locals without destructors: readable in signal handlers and in forked children, where
//! they still name the thread that forked.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::table::{Activity, ThreadSlot};
use crate::world;

const NOBODY: usize = usize::MAX;

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(NOBODY) };
}

/// Index of this thread's slot, if it works for one.
pub(crate) fn thread() -> Option<usize> {
    let index = THREAD.get();
    (index != NOBODY).then_some(index)
}

/// Lets this thread act under slot `index`. Threads that an operation starts share the slot of
/// the thread they work for.
pub(crate) fn assume(index: usize) {
    THREAD.set(index);
}

fn slot() -> Option<&'static ThreadSlot> {
    Some(&world::world()?.table.threads[thread()?])
}

/// Shows the watchdog that work gets on.
pub(crate) fn beat() {
    if let Some(slot) = slot() {
        slot.heartbeat.fetch_add(1, Relaxed);
    }
}

/// Says what this thread is doing; returns a guard that takes it back.
pub(crate) fn during(activity: Activity) -> During {
    let before = slot().map(|slot| {
        let before = slot.activity.swap(activity as u32, SeqCst);
        slot.heartbeat.fetch_add(1, SeqCst);
        before
    });
    During { before }
}

pub(crate) struct During {
    before: Option<u32>,
}

impl Drop for During {
    fn drop(&mut self) {
        if let (Some(before), Some(slot)) = (self.before, slot()) {
            slot.heartbeat.fetch_add(1, SeqCst);
            slot.activity.store(before, SeqCst);
        }
    }
}

/// The kernel's number of this thread, also right after a fork that libc knows nothing of.
pub(crate) fn tid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// The kernel's number of this process.
pub(crate) fn pid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

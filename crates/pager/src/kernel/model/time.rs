//! The clock of a simulation. In other tests there is none, and time is the machine's.

use std::cell::Cell;

/// What passes from one look at the clock to the next.
const LOOK_NS: u64 = 200;
const START_NS: u64 = 1_000_000_000;

thread_local! {
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
}

pub(crate) fn monotonic_ns() -> u64 {
    match NOW.get() {
        Some(now) => {
            NOW.set(Some(now + LOOK_NS));
            super::look_at_clock();
            now
        }
        None => ramfold_sys::time::monotonic_ns(),
    }
}

/// All of a simulation is one thread's time.
pub(crate) fn thread_cpu_ns() -> u64 {
    if NOW.get().is_some() { monotonic_ns() } else { ramfold_sys::time::thread_cpu_ns() }
}

pub(super) fn begin() {
    NOW.set(Some(START_NS));
}

pub(super) fn end() {
    NOW.set(None);
}

pub(super) fn pass(ns: u64) {
    NOW.set(NOW.get().map(|now| now + ns));
}

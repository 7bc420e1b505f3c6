//! A thread that only has memory ready for what is written next. Where the system gives none it
//! waits, and whoever makes room in another way goes on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::Inner;
use super::config::DiskError;
use crate::STACK_BYTES;

pub(super) struct Filler {
    calls: Arc<Calls>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Calls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_due: bool,
    ends: bool,
}

impl Calls {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Waits for a call. False at the end.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |state: &mut State| !state.is_due && !state.ends;
        let mut state =
            self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        state.is_due = false;
        !state.ends
    }
}

impl Filler {
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Filler, DiskError> {
        let calls = Arc::new(Calls::default());
        let (inner, called) = (Arc::clone(inner), Arc::clone(&calls));
        let thread = std::thread::Builder::new()
            .name("ramfold-fill".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                while called.wait() {
                    if inner.keep_ready() {
                        inner.keeping.serve(true);
                    }
                }
            })
            .map_err(DiskError::Thread)?;
        Ok(Filler { calls, thread: Some(thread) })
    }

    /// Asks it to have a look.
    pub(super) fn call(&self) {
        self.calls.change(|state| state.is_due = true);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.calls.change(|state| state.ends = true);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

//! A thread that only has memory ready for what is written next. Where the system gives none it
//! waits, and whoever makes room in another way goes on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::Inner;
use super::config::DiskError;
use crate::STACK_BYTES;

/// How it is called.
#[derive(Default)]
pub(super) struct Filling {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_due: bool,
    ends: bool,
}

impl Filling {
    /// Asks the filler to have a look, where there is one.
    pub(super) fn call(&self) {
        self.change(|state| state.is_due = true);
    }

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

/// The filler's thread.
pub(super) struct Filler {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Filler, DiskError> {
        let mine = Arc::clone(inner);
        let thread = std::thread::Builder::new()
            .name("ramfold-fill".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                while mine.keeping.filling.wait() {
                    if mine.keep_ready() {
                        mine.keeping.serve(true);
                    }
                }
            })
            .map_err(DiskError::Thread)?;
        Ok(Filler { inner: Arc::clone(inner), thread: Some(thread) })
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.inner.keeping.filling.change(|state| state.ends = true);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

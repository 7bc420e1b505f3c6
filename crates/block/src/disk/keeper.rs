//! The thread that looks after a disk: it keeps memory ready for what is written, lets tables grow,
//! brings free memory together, compresses cold pages once more, and writes to the spill file.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ramfold_codec::Choice;

use super::config::DiskError;
use super::filler::{Filler, Filling};
use super::recompress::Recompress;
use super::spill::{Writer, write_oldest};
use super::{Inner, spill::SpillFile};
use crate::STACK_BYTES;

/// The longest that it sleeps: nobody calls it where nothing is written.
const SLEEP: Duration = Duration::from_secs(1);
/// Recompression goes on for this time, and rests for three times as long.
const RECOMPRESSION_TURN: Duration = Duration::from_millis(4);
const RECOMPRESSION_REST: u32 = 3;
/// How long bringing free memory together may take at a time, and the time between two turns where
/// nothing is written.
const COMPACTION_TURN: Duration = Duration::from_millis(10);
const COMPACTION_REST: Duration = Duration::from_millis(200);
/// Free memory within the pool that is worth bringing together, as a part of the pool; and the
/// least of it.
const FRAGMENTATION_PART: u64 = 32;
const FRAGMENTATION_BYTES_MIN: u64 = 256 << 10;
/// What is left of the pool when the spill file is written to, as a part of it.
const SPILL_PART: usize = 16;
/// A write waits for room from the spill file for so long in all: a disk may be slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The same for memory from the system, which may have none until this write has failed.
const PATIENCE_FOR_MEMORY: Duration = Duration::from_secs(1);
/// A write is tried so often while room is made for it.
const ATTEMPTS_MAX: usize = 64;

/// How requests call the keeper, and wait for it.
#[derive(Default)]
pub(super) struct Keeping {
    state: Mutex<State>,
    called: Condvar,
    served: Condvar,
    /// It has been called, and has not begun.
    is_due: AtomicBool,
    /// Fragmentation after compaction last gained nothing.
    fruitless_bytes: AtomicUsize,
    compacting: Mutex<()>,
    pub(super) filling: Filling,
}

#[derive(Default)]
struct State {
    is_due: bool,
    ends: bool,
    /// Requests that wait for room.
    waiting: usize,
    /// Times that room was made, or could not be.
    rounds: u64,
    /// Whether the last one made some.
    has_gained: bool,
    /// The round that a request waited for in vain. No other waits for it.
    in_vain: Option<u64>,
}

impl Keeping {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the keeper to have a look. Cheap where that has been asked already.
    pub(super) fn call(&self) {
        if !self.is_due.swap(true, Ordering::Relaxed) {
            self.lock().is_due = true;
            self.called.notify_one();
            self.filling.call();
        }
    }

    /// Whether the keeper has been called, and has not begun.
    #[cfg(test)]
    pub(super) fn is_called(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// Whether there may be room after a wait, where no other request of this round has waited in
    /// vain.
    fn gains_room(&self, patience: Duration) -> bool {
        let is_in_vain = {
            let state = self.lock();
            state.in_vain == Some(state.rounds)
        };
        !is_in_vain && self.wait_for_room(patience) == Some(true)
    }

    /// Waits until room was made. Whether there may be some now; `None` where that took too long.
    pub(super) fn wait_for_room(&self, patience: Duration) -> Option<bool> {
        let mut state = self.lock();
        let rounds = state.rounds;
        state.waiting += 1;
        self.called.notify_one();
        self.filling.call();
        let until = |state: &mut State| state.rounds == rounds && !state.ends;
        let (mut state, _) = self
            .served
            .wait_timeout_while(state, patience, until)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        if state.ends {
            return Some(false);
        }
        let is_done = state.rounds != rounds;
        if !is_done {
            state.in_vain = Some(rounds);
        }
        is_done.then_some(state.has_gained)
    }

    /// Sleeps until called or for a while; `None` at the end. Whether somebody waits for room.
    fn sleep(&self, longest: Duration) -> Option<bool> {
        let until = |state: &mut State| !state.is_due && !state.ends && state.waiting == 0;
        let (mut state, _) = self
            .called
            .wait_timeout_while(self.lock(), longest, until)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_due = false;
        self.is_due.store(false, Ordering::Relaxed);
        (!state.ends).then_some(state.waiting > 0)
    }

    pub(super) fn serve(&self, has_gained: bool) {
        let mut state = self.lock();
        state.rounds += 1;
        state.has_gained = has_gained;
        self.served.notify_all();
    }
}

/// Where pages go that the memory has no room for, other than the spill file.
pub(super) trait Outlet: Send {
    /// Makes room if there is little, or if somebody waits for it. Says so ([`Keeping::serve`])
    /// whenever there is some more; returns whether there was.
    fn make_room(&mut self, is_waited_for: bool) -> bool;
}

/// The keeper's thread.
pub(super) struct Keeper {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    _filler: Option<Filler>,
}

impl Keeper {
    pub(super) fn start(
        inner: &Arc<Inner>,
        recompress_after: Option<Duration>,
        outlet: Option<Box<dyn Outlet>>,
    ) -> Result<Keeper, DiskError> {
        let has_clusters = inner.clusters.is_some();
        let recompress = recompress_after
            .map(|after| Recompress::new(after, has_clusters))
            .transpose()
            .map_err(|source| DiskError::Codec { codec: Choice::Auto, source })?;
        let memory = inner.spill.as_ref().map(SpillFile::memory).transpose()?;
        let filler = inner.has_filler().then(|| Filler::start(inner)).transpose()?;
        let mine = Arc::clone(inner);
        let work = move || {
            let mut memory = memory;
            let spill = match (&mine.spill, &mut memory) {
                (Some(file), Some(memory)) => {
                    Writer::with_memory(&mine.store, memory, file.writer(), file.segments()).ok()
                }
                _ => None,
            };
            Work { inner: &mine, recompress, spill, outlet, seen_writes: u64::MAX }.run();
        };
        let thread = std::thread::Builder::new()
            .name("ramfold-disk".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(DiskError::Thread)?;
        Ok(Keeper { inner: Arc::clone(inner), thread: Some(thread), _filler: filler })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let keeping = &self.inner.keeping;
        keeping.lock().ends = true;
        keeping.called.notify_all();
        keeping.served.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

/// What bringing free memory together has brought.
pub(super) struct Compacted {
    /// There is more that is free in one piece.
    pub(super) gained: bool,
    /// More of it may come of going on.
    pub(super) goes_on: bool,
}

struct Work<'a> {
    inner: &'a Inner,
    recompress: Option<Recompress>,
    spill: Option<Writer<'a>>,
    outlet: Option<Box<dyn Outlet>>,
    seen_writes: u64,
}

impl Work<'_> {
    fn run(&mut self) {
        let mut longest = SLEEP;
        let (mut compacted, mut has_gaps) = (Instant::now(), false);
        while let Some(is_waited_for) = self.inner.keeping.sleep(longest) {
            let has_refilled = !self.inner.has_filler() && self.inner.keep_ready();
            // Also who waits since the refill began.
            if has_refilled {
                self.inner.keeping.serve(true);
            }
            self.make_room(is_waited_for && !has_refilled);
            let writes = self.inner.workspaces.sum(|counters| &counters.writes);
            let is_written = std::mem::replace(&mut self.seen_writes, writes) != writes;
            if is_written {
                self.inner.grow_tables();
            }
            // What is trimmed or recompressed leaves gaps too.
            if is_written || compacted.elapsed() >= COMPACTION_REST {
                has_gaps = self.inner.compact().goes_on;
                compacted = Instant::now();
            }
            longest = self.recompress().min(if has_gaps { COMPACTION_REST } else { SLEEP });
        }
    }

    /// For how long there is nothing more to do.
    fn recompress(&mut self) -> Duration {
        let Some(recompress) = &mut self.recompress else { return SLEEP };
        let began = Instant::now();
        let left = recompress.go_on(self.inner, RECOMPRESSION_TURN);
        // A turn can be longer: a cluster is made whole.
        left.max(began.elapsed().max(RECOMPRESSION_TURN) * RECOMPRESSION_REST)
    }

    fn make_room(&mut self, is_waited_for: bool) {
        let gained = match &mut self.outlet {
            Some(outlet) => outlet.make_room(is_waited_for),
            None => self.spill(is_waited_for),
        };
        if is_waited_for && !gained {
            self.inner.keeping.serve(false);
        }
    }

    fn spill(&mut self, is_waited_for: bool) -> bool {
        let inner = self.inner;
        let mut gained = false;
        if let (Some(spill), Some(file)) = (&mut self.spill, &inner.spill) {
            let pool_bytes = inner.room.pool_bytes(&inner.store);
            let is_full =
                || inner.store.pool_claimed_bytes() + pool_bytes / SPILL_PART > pool_bytes;
            let mut first = is_waited_for;
            while first || is_full() {
                if !write_oldest(&inner.store, file, spill) {
                    break;
                }
                (gained, first) = (true, false);
                inner.compact();
                inner.keeping.serve(true);
            }
        }
        gained
    }
}

impl Inner {
    /// Whether another thread than the keeper has memory ready, so that the keeper makes room while
    /// the system gives none.
    fn has_filler(&self) -> bool {
        self.for_swap && self.has_outlet
    }

    /// Has memory ready for what is written next. Whether there is more than before, and was not
    /// enough.
    pub(super) fn keep_ready(&self) -> bool {
        if self.for_swap {
            self.store.release_surplus();
        }
        if !self.store.reserve_low() {
            return false;
        }
        self.store.limit_pool(self.room.pool_bytes(&self.store));
        let before = self.store.pool_claimed_bytes();
        // Where the system gives none, stores ask for it when they need it, unless they must not.
        let _ = self.store.refill_reserve();
        self.store.pool_claimed_bytes() > before
    }

    /// Lets the tables of deduplication follow the number of objects.
    pub(super) fn grow_tables(&self) {
        if let Some(dedup) = &self.dedup {
            let objects = self.store.statistics().objects;
            let taken = dedup.grow(objects, |bytes| self.room.has(&self.store, bytes));
            self.room.add_own(taken);
        }
    }

    /// Brings free memory of the pool together, where there is enough of it.
    pub(super) fn compact(&self) -> Compacted {
        let _only = self.keeping.compacting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.store.statistics();
        let worth = (before.pool_total_bytes / FRAGMENTATION_PART).max(FRAGMENTATION_BYTES_MIN);
        let fragmentation = before.pool_fragmentation_bytes;
        let fruitless = self.keeping.fruitless_bytes.load(Ordering::Relaxed) as u64;
        if fragmentation < worth + fruitless {
            self.keeping.fruitless_bytes.fetch_min(fragmentation as usize, Ordering::Relaxed);
            return Compacted { gained: false, goes_on: false };
        }
        let (started, mut is_cut) = (Instant::now(), false);
        let moved = self.store.compact(|| {
            is_cut = started.elapsed() >= COMPACTION_TURN;
            !is_cut
        });
        let after = self.store.statistics().pool_fragmentation_bytes;
        let left = if is_cut { 0 } else { after };
        self.keeping.fruitless_bytes.store(left as usize, Ordering::Relaxed);
        let gained = after < fragmentation;
        Compacted { gained, goes_on: gained || is_cut && moved > 0 }
    }

    /// Makes room for a page that found none. Whether it is worth trying again.
    pub(super) fn make_room(&self, attempt: usize) -> bool {
        if attempt >= ATTEMPTS_MAX {
            return false;
        }
        // Who has an outlet waits without locks, for that too.
        if self.for_swap && !self.has_outlet && self.store.may_grow() {
            // The keeper may have made room before the wait began.
            return self.keeping.gains_room(PATIENCE_FOR_MEMORY) || attempt == 0;
        }
        // At first it may be that another thread has made room.
        self.compact().gained
            || attempt == 0
            || self.spill.is_some() && self.keeping.gains_room(PATIENCE)
    }
}

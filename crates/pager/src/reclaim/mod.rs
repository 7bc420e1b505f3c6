//! Reclaim: staged pages are compressed into the pool, and their frames given back.
//!
//! The monitor's thread does so in the background, on another core than the program's while there
//! is one. When it does not keep up, so that faults have to wait, the fault handler does the same
//! meanwhile (direct reclaim). Pages are compressed without the lock; the frames of a chunk are
//! given back to the system together.

mod compress;
mod frames;
pub(crate) mod recompress;
mod workspace;

use core::sync::atomic::Ordering;

use ramfold_codec::{Chosen, Decompressor, Objective, Page};
use ramfold_policy::memory::objective::Outcome;
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::sync::MutexGuard;

use self::compress::{Compressed, OBJECT_BYTES_MAX, OTHER_START};
use crate::agent::{Active, Agent, Context, Core, LOCK_PATIENCE_NS};
use crate::cost;
use crate::kernel::{Kernel, time};
use crate::staging::{CHUNK_PAGES, Slot, Staging};
use crate::take::sweep::{self, Taken};

/// Pages compressed between two looks at the program (20 to 100 us, in which it can grow by 0.3
/// MB), and at the lock: if it is free, they are stored as long as the processor has them in its
/// nearest cache.
const WATCHED_PAGES: usize = 8;

/// Whose reclaim it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Monitor,
    /// Which may wait for nobody: what others wait for may be a message that it has to read.
    Handler,
}

/// Memory of a reclaiming thread that is too large for its stack, in the agent's own. Any bytes are
/// a valid start; what is not touched costs nothing.
pub(crate) struct ReclaimBuffers {
    /// Objects until they are stored, one behind the other. At the end a page is compressed for
    /// the other objective, to compare.
    objects: [u8; OTHER_START + OBJECT_BYTES_MAX],
    /// Where it is decompressed again.
    back: Page,
}

/// What one thread reclaims with.
pub(crate) struct Reclaimer {
    agent: &'static Agent,
    by: By,
    buffers: &'static mut ReclaimBuffers,
    codec: Chosen<'static>,
    /// The chunk that is this thread's.
    claimed: Option<usize>,
    /// The monitor's, where there is something to compare.
    decompressor: Option<Decompressor<'static>>,
    /// Faults there had been when staging was last found empty.
    faults_seen: u64,
    /// Every page for density.
    dense: bool,
    /// What the last chunk was compressed for, and the time that took for each of its pages.
    last: Option<(Objective, u64)>,
}

/// What one step of reclaim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something was done, and there may be more to do.
    More,
    /// The fault handler goes on.
    Leave,
    /// There is nothing left to take.
    Nothing,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// All pages of a chunk were dealt with, and its frames are free.
    Freed,
    /// No chunk is queued that is not somebody else's.
    Nothing,
    /// There is something else to do first, or no need any more.
    Interrupted,
}

impl Reclaimer {
    /// For the monitor: compresses the oldest chunk of staging. Where none is queued the fault
    /// handler is left to take pages, for which it needs this thread to sleep, as long as faults
    /// come.
    ///
    /// `watch` is called every few pages: the program may be growing meanwhile.
    pub(crate) fn step(&mut self, active: &'static Active, watch: &mut dyn FnMut()) -> Step {
        let agent = self.agent;
        let counters = &agent.process().counters;
        match self.chunk(active, &mut || {
            watch();
            true
        }) {
            Chunk::Freed => {
                counters.reclaim_background.fetch_add(1, Ordering::Relaxed);
            }
            Chunk::Nothing | Chunk::Interrupted => {
                let faults = counters.faults.load(Ordering::Relaxed);
                let faults_before = core::mem::replace(&mut self.faults_seen, faults);
                let blocked = agent.lock_core().sweep.is_blocked();
                let direct = agent.progress.fault_waits();
                if (faults != faults_before || direct) && !blocked {
                    counters.reclaim_left.fetch_add(1, Ordering::Relaxed);
                    return Step::Leave;
                }
                if !self.fill_staging(active) {
                    // What waits in a half-filled chunk is the last of it.
                    let mut core = agent.lock_core();
                    core.staging.seal_chunk();
                    if core.staging.oldest().is_none() {
                        // The handler is compressing the rest.
                        let rest = core.staging.queued() > 0;
                        return if rest { Step::Leave } else { Step::Nothing };
                    }
                }
            }
        }
        self.refill_reserve(active);
        Step::More
    }

    /// For the monitor, where there is time: compresses the chunks that are full, as densely as it
    /// can.
    pub(crate) fn drain(&mut self, active: &'static Active) {
        self.dense = true;
        while self.chunk(active, &mut || true) == Chunk::Freed {}
        self.dense = false;
        self.refill_reserve(active);
    }

    /// Gives the pages of the oldest chunk back to the program, uncompressed, and frees its frames.
    /// `false`: there is none.
    pub(crate) fn put_back_oldest(&mut self, active: &'static Active) -> bool {
        let claim = self.claimed.or_else(|| self.agent.lock_core().staging.claim_oldest());
        self.claimed = claim;
        claim.is_some_and(|chunk| self.free_frames(active, chunk) == Chunk::Freed)
    }

    fn refill_reserve(&self, active: &'static Active) {
        if !active.store.reserve_low() {
            return;
        }
        // Under the lock, so that a fork never copies a pool that is half-way through.
        let _core = self.agent.lock_core();
        if active.store.refill_reserve().is_err() {
            // No loss yet: objects go into what there is, and faults do not depend on it.
            let counters = &self.agent.process().counters;
            counters.pool_refills_failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes pages until half of the chunks are full. `false` when no page could be taken.
    fn fill_staging(&mut self, active: &'static Active) -> bool {
        let agent = self.agent;
        let mut took = false;
        loop {
            let taken = {
                let core = &mut *agent.lock_core();
                if core.staging.holds_enough() || took && core.staging.waiting() > 0 {
                    return true;
                }
                sweep::take_next(&mut Context { agent, active, core })
            };
            match taken {
                Taken::Pages | Taken::Passed | Taken::Looked => took = true,
                Taken::Busy(page) => took |= self.take_busy(active, page),
                Taken::Changing => {
                    active.kernel.yield_now();
                    return true;
                }
                Taken::Full | Taken::Nothing => return took,
            }
        }
    }

    /// A page that MOVE calls busy though no other process has it was shared by a fork once: then a
    /// write makes it the process's own again, without copying anything. Or it is pinned by I/O:
    /// then it stays busy and is left alone, for a device may be writing to it.
    fn take_busy(&mut self, active: &'static Active, address: usize) -> bool {
        let counters = &self.agent.process().counters;
        if self.agent.copies.is_guarded() {
            // It is nobody else's: no copy.
            let _ = active.kernel.write_protect(address..address + PAGE_SIZE, false);
        }
        let unshared = active.kernel.populate(address, true);
        let core = &mut *self.agent.lock_core();
        if unshared.is_ok() {
            match sweep::take_next(&mut Context { agent: self.agent, active, core }) {
                Taken::Busy(again) if again == address => {}
                taken => {
                    counters.pages_unshared.fetch_add(1, Ordering::Relaxed);
                    return taken == Taken::Pages;
                }
            }
        }
        counters.refused_busy.fetch_add(1, Ordering::Relaxed);
        core.sweep.skip_busy(address);
        false
    }

    /// The lock. `None` where the handler must not wait for it: a fork holds it that waits for the
    /// handler.
    fn lock(&self) -> Option<MutexGuard<'static, Core>> {
        let agent = self.agent;
        match self.by {
            By::Monitor => Some(agent.lock_core()),
            By::Handler => loop {
                if agent.fork_copy.is_copying() || agent.fork_copy.has_delayed() {
                    return None;
                }
                if let Some(core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
                    return Some(core);
                }
            },
        }
    }

    /// Compresses the pages of the oldest chunk, or of the one that this thread could not finish,
    /// and frees its frames. The lock is taken seldom: the handler holds it while it brings in a
    /// window of pages, and to sleep until it is free and be woken on another processor costs 25 to
    /// 75 us.
    ///
    /// `watch` is called every few pages; when it says `false` the rest is left for later.
    pub(crate) fn chunk(
        &mut self,
        active: &'static Active,
        watch: &mut dyn FnMut() -> bool,
    ) -> Chunk {
        let Some(mut core) = self.lock() else { return Chunk::Interrupted };
        let claim = self.claimed.or_else(|| core.staging.claim_oldest());
        let Some(chunk) = claim else { return Chunk::Nothing };
        self.claimed = claim;
        let (slots, count) = live_slots(&core.staging, chunk);
        let slots = &slots[..count];
        let objective = self.objective(active, &mut core);
        let compares = self.decompressor.is_some();
        let trials = slots.iter().filter(|_| compares && core.objectives.is_trial()).count();
        drop(core);

        let mut compressed = [Compressed::DoesNotFit; CHUNK_PAGES];
        let mut compared = [[Outcome::default(); 2]; CHUNK_PAGES];
        let (mut done, mut stored, mut end) = (0, 0, 0);
        let started = time::monotonic_ns();
        while done < count {
            let slot = slots[done];
            compressed[done] = if done < trials {
                let (compressed, outcomes) = self.compare(active, slot, objective, end);
                compared[done] = outcomes;
                compressed
            } else {
                self.compress(active, slot, objective, end)
            };
            if let Compressed::Object(_, start, length) = compressed[done] {
                end = start + length;
            }
            done += 1;
            let watches = done % WATCHED_PAGES == 0;
            let goes_on = !watches || watch();
            let core = if done == count || !goes_on {
                // What was compressed and not stored is compressed again later.
                let Some(core) = self.lock() else { return Chunk::Interrupted };
                Some(core)
            } else if watches {
                self.agent.try_lock_core()
            } else {
                None
            };
            if let Some(mut core) = core {
                for index in stored..done {
                    self.store(active, &mut core, slots[index], compressed[index]);
                    if index < trials {
                        let [speed, density] = compared[index];
                        core.objectives.note(speed, density);
                    }
                }
                (stored, end) = (done, 0);
            }
            if !goes_on {
                break;
            }
        }
        if done < count {
            return Chunk::Interrupted;
        }
        let freed = self.free_frames(active, chunk);
        self.last = Some((objective, (time::monotonic_ns() - started) / count.max(1) as u64));
        freed
    }

    /// What to compress pages for now.
    fn objective(&mut self, active: &'static Active, core: &mut Core) -> Objective {
        let Core { objectives, victims, .. } = core;
        let process = self.agent.process();
        let counters = &process.counters;
        if let Some((objective, page_ns)) = self.last.take() {
            objectives.note_reclaim(objective, page_ns);
        }
        let brought = counters.pages_swapped_in.load(Ordering::Relaxed)
            + counters.pages_second_chance.load(Ordering::Relaxed);
        objectives.note_faults(brought, counters.fault_ns_total.load(Ordering::Relaxed));
        if self.dense || self.pool_takes_most(active) {
            return Objective::Density;
        }
        let cap = cost::watermarks(self.agent.session()).cap;
        let out = process.pages_stored.load(Ordering::Relaxed);
        objectives.best(out, &victims.refaults, cap / PAGE_SIZE as u64)
    }

    /// Leaves a chunk that this thread has not done with to others.
    pub(crate) fn release(&mut self, core: &mut Core) {
        if let Some(chunk) = self.claimed.take() {
            core.staging.release(chunk);
        }
    }

    /// Does the pool leave the program too little of the cap? Then every byte it shrinks by is
    /// worth compressing for density.
    fn pool_takes_most(&self, active: &'static Active) -> bool {
        let cap = cost::watermarks(self.agent.session()).cap;
        let own = cap.saturating_sub(crate::cost::others_cost(self.agent));
        active.store.cost_bytes() as u64 > own / 3 * 2
    }
}

/// The slots of a chunk whose pages nobody has asked for, and how many they are.
fn live_slots(staging: &Staging, chunk: usize) -> ([Slot; CHUNK_PAGES], usize) {
    let mut slots = [Slot(0); CHUNK_PAGES];
    let (mut count, mut from) = (0, 0);
    while let Some(slot) = staging.next_live(chunk, from) {
        slots[count] = slot;
        count += 1;
        from = slot.0 as usize % CHUNK_PAGES + 1;
    }
    (slots, count)
}

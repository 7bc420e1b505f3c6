//! Reclaim: staged pages are compressed into the pool, and their frames given back.
//!
//! Runs in the monitor's thread. Pages are compressed without the lock, on another core than the
//! program's while there is one; the frames of a chunk are given back to the system together.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use ramfold_codec::{Aim, Chosen, DoesNotFit, Encoding, Page, ScratchError, same_filled};
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE, time};
use rustix::mm::{Advice, madvise, munlock};
use rustix::thread::{futex, sched_yield};

use crate::agent::{Active, Agent, CodecScratch, Core, STAGING_MODE};
use crate::aim::Aims;
use crate::cost::Watermarks;
use crate::page;
use crate::staging::{CHUNK_PAGES, Slot};
use crate::sweep::{self, Taken};

/// An object larger than this saves too little to be worth its trouble: the page stays.
const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;
/// Mark of a page that did not compress: so many sweeps pass it by. Where most of what is in
/// memory does not compress, sweeps come round often.
const MARK_INCOMPRESSIBLE: u8 = 200;
/// How long a page that can neither be stored nor put back is tried again: an event that says what
/// became of its mapping waits behind faults.
const PUT_BACK_NS: u64 = 10_000_000_000;

/// Compressing so many pages takes 20 to 100 us, in which a program can grow by 0.3 MB.
const WATCH_PAGES: usize = 8;

/// What the reclaimer alone uses.
pub struct Reclaimer {
    agent: &'static Agent,
    codec: Chosen<'static>,
    object: [u8; OBJECT_BYTES_MAX],
    aims: Aims,
    /// Where a page is compressed for the other aim, to compare.
    other: [u8; OBJECT_BYTES_MAX],
    /// Faults there had been when staging was last found empty.
    faults_seen: u64,
}

/// What one step of reclaim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done, and there may be more to do.
    More,
    /// The fault handler goes on.
    Leave,
    /// There is nothing left to take.
    Nothing,
}

impl Reclaimer {
    /// # Errors
    /// When the scratch memory is too small for the codec.
    pub fn new_in(
        cell: &'static mut MaybeUninit<Reclaimer>,
        agent: &'static Agent,
        scratch: CodecScratch,
    ) -> Result<&'static mut Reclaimer, ScratchError> {
        Ok(cell.write(Reclaimer {
            agent,
            codec: Chosen::new(agent.session().codec(), scratch.compress)?,
            object: [0; OBJECT_BYTES_MAX],
            aims: Aims::default(),
            other: [0; OBJECT_BYTES_MAX],
            faults_seen: 0,
        }))
    }

    /// Compresses the oldest chunk of staging. Where none is queued the fault handler is left to
    /// take pages, for which it needs this thread to sleep, as long as faults come.
    ///
    /// `watch` is called every few pages: the program may be growing meanwhile.
    pub fn step(&mut self, active: &Active, watch: &mut dyn FnMut()) -> Step {
        let agent = self.agent;
        let counters = &agent.process().counters;
        let direct = agent.faults_wait.load(Ordering::Relaxed);
        let steps = if direct { &counters.reclaim_direct } else { &counters.reclaim_background };
        steps.fetch_add(1, Ordering::Relaxed);
        if !self.compress_oldest(active, watch) {
            let faults = counters.faults.load(Ordering::Relaxed);
            let faults_before = core::mem::replace(&mut self.faults_seen, faults);
            let blocked = agent.lock_core().sweep.is_blocked();
            if (faults != faults_before || direct) && !blocked {
                counters.reclaim_left.fetch_add(1, Ordering::Relaxed);
                return Step::Leave;
            }
            if !self.fill_staging(active) {
                // What waits in a half-filled chunk is the last of it.
                let mut core = agent.lock_core();
                core.staging.seal_chunk();
                if core.staging.oldest().is_none() {
                    return Step::Nothing;
                }
            }
        }
        if active.store.reserve_low() {
            // Under the lock, so that a fork never copies a pool that is half-way through.
            let core = agent.lock_core();
            if active.store.refill_reserve().is_err() {
                // No loss yet: objects go into what there is, and faults do not depend on it.
                counters.pool_refills_failed.fetch_add(1, Ordering::Relaxed);
            }
            drop(core);
        }
        Step::More
    }

    /// Takes pages until half of the chunks are full. `false` when no page could be taken.
    fn fill_staging(&mut self, active: &Active) -> bool {
        let agent = self.agent;
        let mut took = false;
        loop {
            let taken = {
                let core = &mut *agent.lock_core();
                if core.staging.holds_enough() {
                    return true;
                }
                sweep::take_next(agent, active, core)
            };
            match taken {
                Taken::Pages | Taken::Passed | Taken::Looked => took = true,
                Taken::Busy(page) => took |= self.take_busy(active, page),
                Taken::Changing => {
                    sched_yield();
                    return true;
                }
                Taken::Nothing => return took,
            }
        }
    }

    /// A page that MOVE calls busy though no other process has it was shared by a fork once: then a
    /// write makes it the process's own again, without copying anything. Or it is pinned by I/O:
    /// then it stays busy and is left alone, for a device may be writing to it.
    fn take_busy(&mut self, active: &Active, address: usize) -> bool {
        let counters = &self.agent.process().counters;
        // SAFETY: populating changes no content; a range that is gone gives an error.
        let unshared = unsafe { madvise(address as *mut _, PAGE_SIZE, Advice::LinuxPopulateWrite) };
        let core = &mut *self.agent.lock_core();
        if unshared.is_ok() {
            match sweep::take_next(self.agent, active, core) {
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

    /// Compresses what waits in the oldest chunk and frees its frames. `false` when no chunk is
    /// queued.
    fn compress_oldest(&mut self, active: &Active, watch: &mut dyn FnMut()) -> bool {
        let Some(chunk) = self.agent.lock_core().staging.oldest() else { return false };
        let aim = if self.pool_takes_most(active) { Aim::Density } else { self.aims.best() };
        let mut from = 0;
        loop {
            let next = {
                let core = self.agent.lock_core();
                core.staging.next_live(chunk, from)
            };
            let Some(slot) = next else { break };
            self.compress(active, slot, aim);
            from = slot.0 as usize % CHUNK_PAGES + 1;
            if from.is_multiple_of(WATCH_PAGES) {
                watch();
            }
        }
        self.free_frames(active, chunk);
        true
    }

    /// Does the pool leave the program too little of the cap? Then every byte it shrinks by is worth
    /// compressing for density.
    fn pool_takes_most(&self, active: &Active) -> bool {
        let cap = Watermarks::of(self.agent.session()).cap;
        let own = cap.saturating_sub(crate::cost::others_cost(self.agent));
        active.store.cost_bytes() as u64 > own / 3 * 2
    }

    /// Stores the page in a slot, or puts it back where it does not compress.
    fn compress(&mut self, active: &Active, slot: Slot, aim: Aim) {
        let agent = self.agent;
        let counters = &agent.process().counters;
        // SAFETY: the slot was live; the frame stays until this thread frees the chunk, even if
        // the program asks for the page meanwhile.
        let page: &Page = unsafe { active.slot_page(slot) };
        if let Some(word) = same_filled(page) {
            let core = &mut agent.lock_core();
            if core.staging.is_live(slot) {
                match active.store.store_same_filled(core.staging.page(slot), word) {
                    Ok(()) => {
                        core.sweep.note_stored();
                        core.staging.kill(slot);
                        counters.pages_same_filled.fetch_add(1, Ordering::Relaxed);
                        counters.pages_swapped_out.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => self.put_back_soon(active, core, slot),
                }
            }
            return;
        }
        let written = self.codec.compress(page, aim, &mut self.object);
        if self.codec.has_aims() && self.aims.is_trial() {
            self.try_other_aim(page, aim, length_of(written));
        }
        counters.compress_in_bytes.fetch_add(PAGE_SIZE as u64, Ordering::Relaxed);
        let core = &mut agent.lock_core();
        if !core.staging.is_live(slot) {
            return;
        }
        let stored = written.ok().filter(|&(encoding, length)| {
            let object = &self.object[..length];
            active.store.store_object(core.staging.page(slot), encoding as u8, object).is_ok()
        });
        match stored {
            Some((_, length)) => {
                core.sweep.note_stored();
                core.staging.kill(slot);
                counters.compress_out_bytes.fetch_add(length as u64, Ordering::Relaxed);
                counters.pages_swapped_out.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                active.store.set_mark(core.staging.page(slot), MARK_INCOMPRESSIBLE);
                counters.pages_incompressible.fetch_add(1, Ordering::Relaxed);
                self.put_back_soon(active, core, slot);
            }
        }
    }

    /// Compresses a page for the other aim too, to compare.
    fn try_other_aim(&mut self, page: &Page, aim: Aim, bytes: usize) {
        let mut other = |aim| length_of(self.codec.compress(page, aim, &mut self.other));
        match aim {
            Aim::Speed => self.aims.note(bytes, other(Aim::Density)),
            Aim::Density => self.aims.note(other(Aim::Speed), bytes),
        }
    }

    /// Tries to give a page back; where that fails now, `free_frames` goes on with it.
    fn put_back_soon(&self, active: &Active, core: &mut Core, slot: Slot) {
        let _ = self.put_back(active, core, slot);
    }

    /// Gives a page back to the program as it is: the frame itself, or a copy where the mapping
    /// has changed its access. When that cannot be done now (an event waits to be read, for which
    /// the lock must be free) the page stays in staging, the reason is returned, and `free_frames`
    /// tries again.
    fn put_back(&self, active: &Active, core: &mut Core, slot: Slot) -> Result<(), Errno> {
        let address = page::address_of(core.staging.page(slot));
        let source = active.slot_address(slot);
        // SAFETY: the slot holds the content due at this address; the address is registered or
        // the call fails.
        let moved = unsafe { active.uffd.move_pages(&active.pagemap, address, source, PAGE_SIZE) };
        let returned = match moved {
            Err(Partial { errno: Errno::INVAL | Errno::BUSY, .. }) => {
                // SAFETY: as above.
                unsafe { active.uffd.copy(address, source as *const u8, PAGE_SIZE) }
            }
            moved => moved,
        };
        match returned {
            Ok(()) | Err(Partial { errno: Errno::EXIST, .. }) => {
                core.staging.kill(slot);
                // Its frame counts as freed with the chunk.
                self.agent.add_cost(PAGE_SIZE as u64);
                Ok(())
            }
            Err(partial) => Err(partial.errno),
        }
    }

    /// Frees the frames of a chunk whose pages are all stored, returned or dropped. Staging is
    /// registered, and giving up registered memory would raise an event to ourselves; so the
    /// chunk is unregistered for that moment.
    fn free_frames(&mut self, active: &Active, chunk: usize) {
        let agent = self.agent;
        let mut deadline = None;
        loop {
            {
                let core = &mut agent.lock_core();
                let Some(slot) = core.staging.next_live(chunk, 0) else { break };
                if let Err(errno) = self.put_back(active, core, slot)
                    && time::monotonic_ns()
                        > *deadline.get_or_insert_with(|| time::monotonic_ns() + PUT_BACK_NS)
                {
                    agent.fail(format_args!(
                        "page {:#x} can neither be stored nor given back: {errno}",
                        page::address_of(core.staging.page(slot))
                    ));
                }
            }
            // Not with the lock held: the event that stands in the way could never be read.
            sched_yield();
        }
        let range = active.chunk_range(chunk);
        let offset = range.start - active.staging_memory.as_ptr() as usize;
        let freed = active.uffd.unregister(range.clone()).and_then(|()| {
            // SAFETY: no slot of the chunk is live, so nobody reads its frames.
            match unsafe { active.staging_memory.release(offset, range.len()) } {
                // The program has locked all its memory (mlockall), and this with it.
                // SAFETY: as above.
                Err(Errno::INVAL) => unsafe {
                    munlock(range.start as *mut _, range.len())?;
                    active.staging_memory.release(offset, range.len())
                },
                released => released,
            }?;
            active.uffd.register(range.clone(), STAGING_MODE)
        });
        if let Err(errno) = freed {
            agent.fail(format_args!("cannot free the frames of staging: {errno}"));
        }
        agent.lock_core().staging.retire_oldest();
        agent.subtract_cost(range.len() as u64);
        agent.progress.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&agent.progress, futex::Flags::PRIVATE, u32::MAX);
    }
}

/// Bytes that a page takes when it is stored so; one that does not fit takes all of its own.
fn length_of(written: Result<(Encoding, usize), DoesNotFit>) -> usize {
    written.map_or(PAGE_SIZE, |(_, length)| length)
}

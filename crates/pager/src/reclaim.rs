//! Reclaim: pages leave the program for staging, and staging for the pool.
//!
//! Runs in the monitor's thread. Pages are taken by MOVE in batches, under the lock; they are
//! compressed without it, on another core than the program's while there is one; the frames of a
//! chunk are given back to the system together.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_codec::{Compressor, Page, ScratchError, same_filled};
use ramfold_sys::pagemap::{PageRegion, Pagemap};
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::mm::{Advice, madvise};
use rustix::thread::{futex, sched_yield};

use crate::agent::{Active, Agent, Core};
use crate::fault::MARK_USED;
use crate::page::{self, PageNumber};
use crate::staging::{CHUNK_PAGES, Slot};

/// Pages moved by one call. The lock is held that long, and a fault may wait for it: 32 pages
/// take about 10 us when another core has to be told to forget them.
const BATCH_PAGES: usize = 32;
/// How far one look for victims reaches.
const WINDOW_BYTES: usize = 4 << 20;
/// An object larger than this saves too little to be worth its trouble: the page stays.
const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;
/// Marks in the store's entries besides `fault::MARK_USED`: how many sweeps pass an incompressible
/// page by.
const MARK_INCOMPRESSIBLE: u8 = 8;
/// How far to go on behind a page that is refused because a relative still has it too, or because
/// of its mapping: such pages lie together, and each refusal takes a while.
const REFUSED_SKIP_BYTES: usize = 64 * PAGE_SIZE;
/// How often a page that can neither be stored nor put back is tried again.
const PUT_BACK_TRIES: usize = 10_000;

/// What a MOVE of part of a run came to.
enum Taken {
    /// So many bytes of the run are dealt with.
    Done(usize),
    /// The page at the start of the rest is shared with another process, or pinned.
    Busy,
    /// An event waits to be read; nothing can be moved until then.
    Changing,
}

/// What the reclaimer alone uses.
pub struct Reclaimer {
    agent: &'static Agent,
    compressor: Compressor<'static>,
    object: [u8; OBJECT_BYTES_MAX],
    /// Where the sweep over the address space goes on.
    hand: usize,
    /// Candidates found by the last look.
    runs: [PageRegion; 64],
    runs_found: usize,
    runs_used: usize,
    /// The sweep has come round this often since a page was last stored.
    fruitless_rounds: u32,
}

impl Reclaimer {
    /// # Errors
    /// When the scratch memory is too small for the codec.
    pub fn new_in(
        cell: &'static mut MaybeUninit<Reclaimer>,
        agent: &'static Agent,
        scratch: &'static mut [u8],
    ) -> Result<&'static mut Reclaimer, ScratchError> {
        let compressor = Compressor::new(agent.codec(), scratch)?;
        Ok(cell.write(Reclaimer {
            agent,
            compressor,
            object: [0; OBJECT_BYTES_MAX],
            hand: 0,
            runs: [PageRegion::default(); 64],
            runs_found: 0,
            runs_used: 0,
            fruitless_rounds: 0,
        }))
    }

    /// Begins a pursuit of memory: the sweep may go round again.
    pub fn begin(&mut self) {
        self.fruitless_rounds = 0;
    }

    /// Fills staging, and compresses its oldest chunk. `false` when there is nothing more to take.
    pub fn step(&mut self, active: &Active, pagemap: &Pagemap) -> bool {
        let counters = &self.agent.process().counters;
        let direct = self.agent.faults_wait.load(Ordering::Relaxed);
        let steps = if direct { &counters.reclaim_direct } else { &counters.reclaim_background };
        steps.fetch_add(1, Ordering::Relaxed);
        let took = self.fill_staging(active, pagemap);
        let compressed = self.compress_oldest(active);
        if active.store.reserve_low() {
            // Under the lock, so that a fork never copies a pool that is half-way through.
            let core = self.agent.lock_core();
            if active.store.refill_reserve().is_err() {
                // No loss yet: objects go into what there is, and faults do not depend on it.
                counters.pool_refills_failed.fetch_add(1, Ordering::Relaxed);
            }
            drop(core);
        }
        if took || compressed {
            return true;
        }
        // Nothing left to take: what waits in a half-filled chunk is the last of it.
        let mut core = self.agent.lock_core();
        core.staging.seal_chunk();
        core.staging.oldest().is_some()
    }

    /// Moves pages into staging until its chunks are full. `false` when no page could be taken.
    fn fill_staging(&mut self, active: &Active, pagemap: &Pagemap) -> bool {
        let mut took = false;
        while !self.agent.lock_core().staging.free_slots().is_empty() {
            if self.runs_used == self.runs_found && !self.find_victims(pagemap) {
                return took;
            }
            let run = self.runs[self.runs_used];
            let range = run.start as usize..run.end as usize;
            match self.take(active, range.clone()) {
                Taken::Done(bytes) => {
                    took = true;
                    self.skip_in_run(bytes);
                }
                Taken::Busy if !pagemap.is_exclusive(range.start) => {
                    let skipped = range.len().min(REFUSED_SKIP_BYTES);
                    let refused = &self.agent.process().counters.refused_shared;
                    refused.fetch_add((skipped / PAGE_SIZE) as u64, Ordering::Relaxed);
                    self.skip_in_run(skipped);
                }
                Taken::Busy => {
                    took |= self.take_unshared(active, range.start);
                    self.skip_in_run(PAGE_SIZE);
                }
                Taken::Changing => {
                    sched_yield();
                    return true;
                }
            }
        }
        true
    }

    fn skip_in_run(&mut self, bytes: usize) {
        let run = &mut self.runs[self.runs_used];
        run.start += bytes as u64;
        if run.start >= run.end {
            self.runs_used += 1;
        }
    }

    /// Looks for pages in memory behind the hand. `false` after two rounds in which no page was
    /// stored: the first may only have cleared marks.
    fn find_victims(&mut self, pagemap: &Pagemap) -> bool {
        self.runs_used = 0;
        self.runs_found = 0;
        while self.runs_found == 0 {
            let region = self.agent.lock_core().regions.at_or_after(self.hand);
            let Some(region) = region else {
                if self.fruitless_rounds >= 2 {
                    return false;
                }
                self.fruitless_rounds += 1;
                self.hand = 0;
                continue;
            };
            let start = region.start.max(self.hand);
            let end = region.end.min(start + WINDOW_BYTES);
            match pagemap.present_anonymous(start..end, &mut self.runs) {
                Ok(found) => {
                    self.runs_found = found.runs;
                    self.hand = found.end.max(start + PAGE_SIZE);
                }
                Err(_) => self.hand = end,
            }
        }
        true
    }

    /// Takes a batch from the start of a run of present pages.
    fn take(&mut self, active: &Active, run: Range<usize>) -> Taken {
        let mut core = self.agent.lock_core();
        let first = page::number_of(run.start);
        let pages = run.len() / PAGE_SIZE;
        // In a second round having been used lately is no protection any more: everything was.
        let tolerated = if self.fruitless_rounds > 0 { MARK_USED } else { 0 };
        // Pages that were used lately, or did not compress lately, are passed by once per mark.
        let passed = (0..pages)
            .take_while(|&index| self.pass_by(active, first + index as u64, tolerated))
            .count();
        if passed > 0 {
            return Taken::Done(passed * PAGE_SIZE);
        }
        let free = core.staging.free_slots();
        let pages = pages.min(BATCH_PAGES).min(free.len()).min(
            1 + (1..pages)
                .take_while(|&i| active.store.mark(first + i as u64) <= tolerated)
                .count(),
        );
        let range = run.start..run.start + pages * PAGE_SIZE;
        // What has left the list since the look must not be touched: it may be memory that the
        // program has just mapped and that nobody would bring back.
        if pages == 0 || !core.regions.contains(&range) {
            return Taken::Done(run.len());
        }
        let slot = active.slot_address(Slot(free.start));
        let mut bytes = range.len();
        loop {
            // SAFETY: the range is registered, as the list under the lock says, so faults on it
            // come to the handler; the slots are registered and free.
            match unsafe { active.uffd.move_pages(slot, range.start, bytes) } {
                Ok(()) => {}
                // A run may reach over the border of two mappings, which MOVE does not.
                Err(Partial { errno: Errno::INVAL, done: 0 }) if bytes > PAGE_SIZE => {
                    bytes = (bytes / 2).next_multiple_of(PAGE_SIZE);
                    continue;
                }
                Err(Partial { errno, done: 0 }) => return self.refused(&mut core, errno, run),
                // What stopped it shows when the rest is tried.
                Err(Partial { done, .. }) => bytes = done,
            }
            self.note_staged(&mut core, first, bytes / PAGE_SIZE);
            return Taken::Done(bytes);
        }
    }

    fn note_staged(&mut self, core: &mut Core, first: PageNumber, pages: usize) {
        for page in first..first + pages as u64 {
            core.staging.push(page);
        }
        if pages > 0 {
            let staged = &self.agent.process().counters.pages_staged;
            staged.fetch_add(pages as u64, Ordering::Relaxed);
        }
    }

    /// MOVE refused the first page of a run.
    fn refused(&self, core: &mut Core, errno: Errno, run: Range<usize>) -> Taken {
        let counters = &self.agent.process().counters;
        match errno {
            Errno::AGAIN => Taken::Changing,
            Errno::BUSY => Taken::Busy,
            // The page left between the look and the call.
            Errno::NOENT | Errno::FAULT => Taken::Done(PAGE_SIZE),
            // A page in a slot that should be free: somebody populated all memory (mlockall).
            Errno::EXIST => {
                core.staging.skip_slot();
                Taken::Done(0)
            }
            // The mapping is locked, or its access is not like staging's any more. What lies
            // behind it in the run may belong to another.
            _ => {
                core.rescan_wanted = true;
                counters.refused_mapping.fetch_add(1, Ordering::Relaxed);
                Taken::Done(run.len().min(REFUSED_SKIP_BYTES))
            }
        }
    }

    /// Does the mark of this page say to let it be this time? Takes one off the mark.
    fn pass_by(&self, active: &Active, page: PageNumber, tolerated: u8) -> bool {
        let mark = active.store.mark(page);
        if mark > 0 {
            active.store.set_mark(page, mark - 1);
        }
        mark > tolerated
    }

    /// A page that MOVE calls busy although no other process has it was shared by a fork once, or
    /// is pinned by I/O. In the first case a write makes it the process's own again, without
    /// copying anything. A pinned page stays busy and is left alone: a device may be writing to it.
    fn take_unshared(&mut self, active: &Active, address: usize) -> bool {
        let counters = &self.agent.process().counters;
        // SAFETY: populating changes no content; a range that is gone gives an error.
        let unshared = unsafe { madvise(address as *mut _, PAGE_SIZE, Advice::LinuxPopulateWrite) };
        if unshared.is_ok()
            && let Taken::Done(bytes) = self.take(active, address..address + PAGE_SIZE)
            && bytes > 0
        {
            counters.pages_unshared.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        counters.refused_busy.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Compresses what waits in the oldest chunk and frees its frames. `false` when no chunk is
    /// queued.
    fn compress_oldest(&mut self, active: &Active) -> bool {
        let Some(chunk) = self.agent.lock_core().staging.oldest() else { return false };
        let mut from = 0;
        loop {
            let next = {
                let core = self.agent.lock_core();
                core.staging.next_live(chunk, from)
            };
            let Some(slot) = next else { break };
            self.compress(active, slot);
            from = slot.0 as usize % CHUNK_PAGES + 1;
        }
        self.free_frames(active, chunk);
        true
    }

    /// Stores the page in a slot, or puts it back where it does not compress.
    fn compress(&mut self, active: &Active, slot: Slot) {
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
                        self.fruitless_rounds = 0;
                        core.staging.kill(slot);
                        counters.pages_same_filled.fetch_add(1, Ordering::Relaxed);
                        counters.pages_swapped_out.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => self.put_back_soon(active, core, slot),
                }
            }
            return;
        }
        let length = self.compressor.compress(page, &mut self.object);
        counters.compress_in_bytes.fetch_add(PAGE_SIZE as u64, Ordering::Relaxed);
        let core = &mut agent.lock_core();
        if !core.staging.is_live(slot) {
            return;
        }
        let encoding = agent.codec().encoding() as u8;
        let stored = length.ok().filter(|&length| {
            let object = &self.object[..length];
            active.store.store_object(core.staging.page(slot), encoding, object).is_ok()
        });
        match stored {
            Some(length) => {
                self.fruitless_rounds = 0;
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
        let moved = unsafe { active.uffd.move_pages(address, source, PAGE_SIZE) };
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
        for tries in 0.. {
            {
                let core = &mut agent.lock_core();
                let Some(slot) = core.staging.next_live(chunk, 0) else { break };
                if let Err(errno) = self.put_back(active, core, slot)
                    && tries >= PUT_BACK_TRIES
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
            unsafe { active.staging_memory.release(offset, range.len()) }?;
            active.uffd.register(range.clone(), false)
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

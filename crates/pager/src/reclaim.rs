//! Reclaim: staged pages are compressed into the pool, and their frames given back.
//!
//! The monitor's thread does so in the background, on another core than the program's while there is
//! one. When it does not keep up, so that faults have to wait, the fault handler does the same meanwhile
//! (direct reclaim). Pages are compressed without the lock; the frames of a chunk are given back to the
//! system together.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use ramfold_codec::{
    Aim, Chosen, Decompressor, DoesNotFit, Encoding, Page, ScratchError, same_filled,
};
use ramfold_policy::memory::objective::Outcome;
use ramfold_policy::memory::reuse::Reuse;
use ramfold_store::Denser;
use ramfold_sys::sync::MutexGuard;
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE, time};
use rustix::mm::{Advice, madvise, munlock};
use rustix::thread::{futex, sched_yield};

use crate::agent::{Active, Agent, CompressScratch, Core, LOCK_PATIENCE_NS, STAGING_MODE};
use crate::copies;
use crate::cost;
use crate::page::{self, PageNumber};
use crate::spill;
use crate::staging::{CHUNK_PAGES, Slot, Staging};
use crate::sweep::{self, Taken};

/// An object larger than this saves too little to be worth its trouble: the page stays.
const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;
/// Place of the object that is only compared, behind a chunk's.
const OTHER_START: usize = CHUNK_PAGES * OBJECT_BYTES_MAX;
/// Bytes that an object must spare when it is compressed once more: it takes longer to load.
const RECOMPRESSED_BYTES_MIN: usize = 128;
/// How long a page that can neither be stored nor put back is tried again: an event that says what
/// became of its mapping waits behind faults.
const PUT_BACK_NS: u64 = 10_000_000_000;

/// Pages compressed between two looks at the program (20 to 100 us, in which it can grow by 0.3 MB), and
/// at the lock: if it is free, they are stored as long as the processor has them in its nearest cache.
const WATCHED_PAGES: usize = 8;

/// Whose reclaim it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Monitor,
    /// Which may wait for nobody: what others wait for may be a message that it has to read.
    Handler,
}

/// What one thread reclaims with.
pub struct Reclaimer {
    agent: &'static Agent,
    by: By,
    codec: Chosen<'static>,
    /// The chunk that is this thread's.
    claimed: Option<usize>,
    /// Objects until they are stored, one behind the other: what is not touched costs nothing. At the end
    /// a page is compressed for the other aim, to compare.
    objects: [u8; OTHER_START + OBJECT_BYTES_MAX],
    /// Where it is decompressed again.
    back: Page,
    /// The monitor's, where there is something to compare.
    decompressor: Option<Decompressor<'static>>,
    /// Faults there had been when staging was last found empty.
    faults_seen: u64,
    /// Every page for density.
    dense: bool,
    /// What the last chunk was compressed for, and the time that took for each of its pages.
    last: Option<(Aim, u64)>,
}

/// What a page has become.
#[derive(Clone, Copy)]
enum Compressed {
    SameFilled(u64),
    /// Where it starts in [`Reclaimer::objects`], and its length.
    Object(Encoding, usize, usize),
    DoesNotFit,
}

impl Compressed {
    /// Bytes that the page takes so; one that does not fit takes all of its own.
    fn length(self) -> usize {
        match self {
            Compressed::SameFilled(_) => 0,
            Compressed::Object(_, _, length) => length,
            Compressed::DoesNotFit => PAGE_SIZE,
        }
    }
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

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// All pages of a chunk were dealt with, and its frames are free.
    Freed,
    /// No chunk is queued that is not somebody else's.
    Nothing,
    /// There is something else to do first, or no need any more.
    Interrupted,
}

impl Reclaimer {
    /// What the calling thread reclaims with, in the agent's memory. The program is ended where it cannot
    /// be made.
    ///
    /// # Safety
    /// The caller is the thread that this names, and has none yet.
    #[expect(clippy::mut_from_ref, reason = "a cell of the agent's that is this thread's alone")]
    pub unsafe fn make(agent: &'static Agent, by: By) -> &'static mut Reclaimer {
        // SAFETY: these parts are the thread's own.
        let (cell, scratch) = unsafe { (&mut *Self::cell(agent, by), Self::scratch(agent, by)) };
        // SAFETY: the agent begins as zeros.
        match unsafe { Reclaimer::new_in(cell, agent, by, scratch) } {
            Ok(reclaimer) => reclaimer,
            Err(error) => agent.fail(format_args!("no memory to compress with: {error}")),
        }
    }

    fn cell(agent: &Agent, by: By) -> *mut MaybeUninit<Reclaimer> {
        match by {
            By::Monitor => agent.monitor.get(),
            By::Handler => agent.direct.get(),
        }
    }

    /// # Safety
    /// As of [`Agent::codec_scratch`].
    unsafe fn scratch(agent: &Agent, by: By) -> CompressScratch {
        // SAFETY: by the caller's word.
        let scratch = unsafe { agent.codec_scratch() };
        match by {
            By::Monitor => scratch.monitor,
            By::Handler => scratch.direct,
        }
    }

    /// Gives back the memory that all this takes, unless a chunk is half done.
    pub fn rest(&'static mut self) -> Option<&'static mut Reclaimer> {
        if self.claimed.is_some() {
            return Some(self);
        }
        let (agent, by) = (self.agent, self.by);
        // SAFETY: nobody else has these parts, and this one is used no more.
        let scratch = unsafe { Self::scratch(agent, by) };
        let cell = Self::cell(agent, by) as usize;
        agent.give_back(cell..cell + size_of::<Reclaimer>());
        for part in [scratch.compress, scratch.decompress] {
            let start = part.as_ptr() as usize;
            agent.give_back(start..start + part.len());
        }
        None
    }

    /// # Errors
    /// When the scratch memory is too small for the codec.
    ///
    /// # Safety
    /// The cell must have been zeros once.
    unsafe fn new_in(
        cell: &'static mut MaybeUninit<Reclaimer>,
        agent: &'static Agent,
        by: By,
        scratch: CompressScratch,
    ) -> Result<&'static mut Reclaimer, ScratchError> {
        let codec = Chosen::new(agent.session().codec(), scratch.compress)?;
        let decompressor = match by {
            By::Monitor if codec.has_aims() => Some(Decompressor::new(scratch.decompress)?),
            _ => None,
        };
        let reclaimer = cell.as_mut_ptr();
        // SAFETY: every field is written but the buffers, which any bytes will do for.
        unsafe {
            (&raw mut (*reclaimer).agent).write(agent);
            (&raw mut (*reclaimer).by).write(by);
            (&raw mut (*reclaimer).codec).write(codec);
            (&raw mut (*reclaimer).decompressor).write(decompressor);
            (&raw mut (*reclaimer).claimed).write(None);
            (&raw mut (*reclaimer).faults_seen).write(0);
            (&raw mut (*reclaimer).dense).write(false);
            (&raw mut (*reclaimer).last).write(None);
            Ok(cell.assume_init_mut())
        }
    }

    /// For the monitor: compresses the oldest chunk of staging. Where none is queued the fault
    /// handler is left to take pages, for which it needs this thread to sleep, as long as faults come.
    ///
    /// `watch` is called every few pages: the program may be growing meanwhile.
    pub fn step(&mut self, active: &Active, watch: &mut dyn FnMut()) -> Step {
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
                let direct = agent.faults_wait.load(Ordering::Relaxed);
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

    /// For the monitor, where there is time: compresses the chunks that are full, as densely as it can.
    pub fn drain(&mut self, active: &Active) {
        self.dense = true;
        while self.chunk(active, &mut || true) == Chunk::Freed {}
        self.dense = false;
        self.refill_reserve(active);
    }

    fn refill_reserve(&self, active: &Active) {
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
    fn fill_staging(&mut self, active: &Active) -> bool {
        let agent = self.agent;
        let mut took = false;
        loop {
            let taken = {
                let core = &mut *agent.lock_core();
                if core.staging.holds_enough() || took && core.staging.waiting() > 0 {
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
                Taken::Full | Taken::Nothing => return took,
            }
        }
    }

    /// A page that MOVE calls busy though no other process has it was shared by a fork once: then a
    /// write makes it the process's own again, without copying anything. Or it is pinned by I/O:
    /// then it stays busy and is left alone, for a device may be writing to it.
    fn take_busy(&mut self, active: &Active, address: usize) -> bool {
        let counters = &self.agent.process().counters;
        if self.agent.copies.is_guarded() {
            // It is nobody else's: no copy.
            let _ = active.uffd.write_protect(address..address + PAGE_SIZE, false);
        }
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

    /// The lock. `None` where the handler must not wait for it: a fork holds it that waits for the
    /// handler.
    fn lock(&self) -> Option<MutexGuard<'static, Core>> {
        let agent = self.agent;
        match self.by {
            By::Monitor => Some(agent.lock_core()),
            By::Handler => loop {
                if agent.copying.load(Ordering::Acquire) || agent.delayed.load(Ordering::Relaxed) {
                    return None;
                }
                if let Some(core) = agent.core.lock_within(LOCK_PATIENCE_NS) {
                    return Some(core);
                }
            },
        }
    }

    /// Compresses the pages of the oldest chunk, or of the one that this thread could not finish, and
    /// frees its frames. The lock is taken seldom: the handler holds it while it brings in a window of
    /// pages, and to sleep until it is free and be woken on another processor costs 25 to 75 us.
    ///
    /// `watch` is called every few pages; when it says `false` the rest is left for later.
    pub fn chunk(&mut self, active: &Active, watch: &mut dyn FnMut() -> bool) -> Chunk {
        let Some(mut core) = self.lock() else { return Chunk::Interrupted };
        let claim = self.claimed.or_else(|| core.staging.claim_oldest());
        let Some(chunk) = claim else { return Chunk::Nothing };
        self.claimed = claim;
        let (slots, count) = live_slots(&core.staging, chunk);
        let slots = &slots[..count];
        let aim = self.aim(active, &mut core);
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
                let (compressed, outcomes) = self.compare(active, slot, aim, end);
                compared[done] = outcomes;
                compressed
            } else {
                self.compress(active, slot, aim, end)
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
        self.last = Some((aim, (time::monotonic_ns() - started) / count.max(1) as u64));
        freed
    }

    /// What to compress pages for now.
    fn aim(&mut self, active: &Active, core: &mut Core) -> Aim {
        let Core { objectives, victims, .. } = core;
        let process = self.agent.process();
        let counters = &process.counters;
        if let Some((aim, page_ns)) = self.last.take() {
            objectives.note_reclaim(aim, page_ns);
        }
        let brought = counters.pages_swapped_in.load(Ordering::Relaxed)
            + counters.pages_second_chance.load(Ordering::Relaxed);
        objectives.note_faults(brought, counters.fault_ns_total.load(Ordering::Relaxed));
        if self.dense || self.pool_takes_most(active) {
            return Aim::Density;
        }
        let cap = cost::watermarks(self.agent.session()).cap;
        let out = process.pages_stored.load(Ordering::Relaxed);
        objectives.best(out, &victims.refaults, cap / PAGE_SIZE as u64)
    }

    /// Leaves a chunk that this thread has not done with to others.
    pub fn release(&mut self, core: &mut Core) {
        if let Some(chunk) = self.claimed.take() {
            core.staging.release(chunk);
        }
    }

    /// Does the pool leave the program too little of the cap? Then every byte it shrinks by is worth
    /// compressing for density.
    fn pool_takes_most(&self, active: &Active) -> bool {
        let cap = cost::watermarks(self.agent.session()).cap;
        let own = cap.saturating_sub(crate::cost::others_cost(self.agent));
        active.store.cost_bytes() as u64 > own / 3 * 2
    }

    /// Compresses the page in a slot, which is this thread's, to an object that starts there.
    fn compress(&mut self, active: &Active, slot: Slot, aim: Aim, start: usize) -> Compressed {
        // SAFETY: the slot was live; the frame stays until this thread frees the chunk, even if
        // the program asks for the page meanwhile.
        let page: &Page = unsafe { active.slot_page(slot) };
        if let Some(word) = same_filled(page) {
            return Compressed::SameFilled(word);
        }
        self.compress_page(page, aim, start)
    }

    fn compress_page(&mut self, page: &Page, aim: Aim, start: usize) -> Compressed {
        let object = &mut self.objects[start..start + OBJECT_BYTES_MAX];
        match self.codec.compress(page, aim, object) {
            Ok((encoding, length)) => Compressed::Object(encoding, start, length),
            Err(DoesNotFit) => Compressed::DoesNotFit,
        }
    }

    /// Compresses the page in a slot for an aim, then for the other, and decompresses both. Returns what
    /// it became, and what came of it for speed and for density.
    fn compare(
        &mut self,
        active: &Active,
        slot: Slot,
        aim: Aim,
        start: usize,
    ) -> (Compressed, [Outcome; 2]) {
        let started = time::monotonic_ns();
        let one = self.compress(active, slot, aim, start);
        let one_ns = time::monotonic_ns() - started;
        if let Compressed::SameFilled(_) = one {
            return (one, [Outcome::default(); 2]);
        }
        // SAFETY: as in `compress`.
        let page: &Page = unsafe { active.slot_page(slot) };
        let other_aim = match aim {
            Aim::Speed => Aim::Density,
            Aim::Density => Aim::Speed,
        };
        let started = time::monotonic_ns();
        let other = self.compress_page(page, other_aim, OTHER_START);
        let other_ns = time::monotonic_ns() - started;
        let [one_outcome, other_outcome] =
            [(one, one_ns), (other, other_ns)].map(|(compressed, compress_ns)| Outcome {
                bytes: compressed.length(),
                compress_ns,
                decompress_ns: self.decompress(page, compressed),
            });
        match aim {
            Aim::Speed => (one, [one_outcome, other_outcome]),
            Aim::Density => (one, [other_outcome, one_outcome]),
        }
    }

    /// How long it takes to make the page again.
    fn decompress(&mut self, page: &Page, compressed: Compressed) -> u64 {
        let (Compressed::Object(encoding, start, length), Some(decompressor)) =
            (compressed, self.decompressor.as_mut())
        else {
            return 0;
        };
        let object = &self.objects[start..start + length];
        let started = time::monotonic_ns();
        let result = decompressor.decompress(encoding, object, &mut self.back);
        let took = time::monotonic_ns() - started;
        if result.is_err() || self.back != *page {
            self.agent.fail(format_args!("a page compressed by {encoding:?} cannot be made again"));
        }
        took
    }

    /// Stores what a page was compressed to, or puts the page back where it does not compress. One
    /// that the program has asked for meanwhile is no more in the slot.
    fn store(&self, active: &Active, core: &mut Core, slot: Slot, compressed: Compressed) {
        if !core.staging.is_live(slot) {
            return;
        }
        let page = core.staging.page(slot);
        let counters = &self.agent.process().counters;
        let stored = match compressed {
            Compressed::SameFilled(word) => active.store.store_same_filled(page, word).is_ok(),
            Compressed::Object(encoding, start, length) => {
                let object = &self.objects[start..start + length];
                active.store.store_object(page, encoding as u8, object).is_ok()
            }
            Compressed::DoesNotFit => self.store_raw(active, slot, page),
        };
        match compressed {
            Compressed::SameFilled(_) => counters.pages_same_filled.fetch_add(1, Ordering::Relaxed),
            _ => counters.compress_in_bytes.fetch_add(PAGE_SIZE as u64, Ordering::Relaxed),
        };
        if stored {
            core.sweep.note_stored();
            core.staging.kill(slot);
            let length = compressed.length() as u64;
            counters.compress_out_bytes.fetch_add(length, Ordering::Relaxed);
            counters.pages_swapped_out.fetch_add(1, Ordering::Relaxed);
        } else {
            active.store.set_mark(page, Reuse::INCOMPRESSIBLE.0);
            counters.pages_incompressible.fetch_add(1, Ordering::Relaxed);
            self.put_back_soon(active, core, slot);
        }
    }

    /// Stores a page as it is, where there is a spill file for it to go to.
    fn store_raw(&self, active: &Active, slot: Slot, page: PageNumber) -> bool {
        if !self.agent.spill_works.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the slot is live, and this thread's.
        let content: &Page = unsafe { active.slot_page(slot) };
        let stored = active.store.store_object(page, spill::RAW, content).is_ok();
        self.agent.process().counters.pages_raw.fetch_add(stored.into(), Ordering::Relaxed);
        stored
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
    fn free_frames(&mut self, active: &Active, chunk: usize) -> Chunk {
        let agent = self.agent;
        let mut deadline = None;
        loop {
            {
                let Some(mut core) = self.lock() else { return Chunk::Interrupted };
                let Some(slot) = core.staging.next_live(chunk, 0) else { break };
                if let Err(errno) = self.put_back(active, &mut core, slot) {
                    if self.by == By::Handler {
                        core.staging.release(chunk);
                        self.claimed = None;
                        return Chunk::Interrupted;
                    }
                    if time::monotonic_ns()
                        > *deadline.get_or_insert_with(|| time::monotonic_ns() + PUT_BACK_NS)
                    {
                        agent.fail(format_args!(
                            "page {:#x} can neither be stored nor given back: {errno}",
                            page::address_of(core.staging.page(slot))
                        ));
                    }
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
        // Where that must wait, nothing is lost by freeing them once more.
        let Some(mut core) = self.lock() else { return Chunk::Interrupted };
        let frames = core.staging.retire(chunk);
        self.claimed = None;
        drop(core);
        // In this order: the monitor must not take what is freed between two of its looks for growth.
        agent.progress.fetch_add(1, Ordering::AcqRel);
        agent.subtract_cost((frames * PAGE_SIZE) as u64);
        copies::count_copied(agent, active);
        let _ = futex::wake(&agent.progress, futex::Flags::PRIVATE, u32::MAX);
        Chunk::Freed
    }
}

/// The monitor's, which alone can compare: others have no decompressor, and leave all as it is.
impl Denser for Reclaimer {
    fn applies_to(&self, encoding: u8) -> bool {
        let speed = |encoding| Aim::of(encoding) == Some(Aim::Speed);
        Encoding::try_from(encoding).is_ok_and(speed)
    }

    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
        let (Ok(encoding), Some(decompressor)) =
            (Encoding::try_from(encoding), self.decompressor.as_mut())
        else {
            return None;
        };
        // What cannot be made again is told to whoever loads it.
        decompressor.decompress(encoding, object, &mut self.back).ok()?;
        let other = &mut self.objects[OTHER_START..];
        let (encoding, length) = self.codec.compress(&self.back, Aim::Density, other).ok()?;
        let worth = length + RECOMPRESSED_BYTES_MIN <= object.len();
        worth.then(|| (encoding as u8, &self.objects[OTHER_START..OTHER_START + length]))
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

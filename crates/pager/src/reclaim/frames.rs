//! Stores what was compressed, puts back what does not compress, and frees the frames of a chunk.

use core::sync::atomic::Ordering;

use ramfold_codec::Page;
use ramfold_policy::memory::reuse::Reuse;
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::mm::munlock;

use super::compress::Compressed;
use super::{By, Chunk, Reclaimer};
use crate::agent::{Active, Core, STAGING_MODE};
use crate::fork::copies;
use crate::kernel::{Kernel, time};
use crate::page::{self, PageNumber};
use crate::spill;
use crate::staging::Slot;

/// How long a page that can neither be stored nor put back is tried again: an event that says what
/// became of its mapping waits behind faults.
const PUT_BACK_NS: u64 = 10_000_000_000;

impl Reclaimer {
    /// Stores what a page was compressed to, or puts the page back where it does not compress. One
    /// that the program has asked for meanwhile is no more in the slot.
    pub(super) fn store(
        &self,
        active: &'static Active,
        core: &mut Core,
        slot: Slot,
        compressed: Compressed,
    ) {
        if !core.staging.is_live(slot) {
            return;
        }
        let page = core.staging.page(slot);
        let counters = &self.agent.process().counters;
        let stored = match compressed {
            Compressed::SameFilled(word) => active.store.store_same_filled(page, word).is_ok(),
            Compressed::Object(encoding, start, length) => {
                let object = &self.buffers.objects[start..start + length];
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
    fn store_raw(&self, active: &'static Active, slot: Slot, page: PageNumber) -> bool {
        if !self.agent.spill_work.works() {
            return false;
        }
        // SAFETY: the slot is live, and this thread's.
        let content: &Page = unsafe { active.slot_page(slot) };
        let stored = active.store.store_object(page, spill::RAW, content).is_ok();
        self.agent.process().counters.pages_raw.fetch_add(stored.into(), Ordering::Relaxed);
        stored
    }

    /// Tries to give a page back; where that fails now, `free_frames` goes on with it.
    fn put_back_soon(&self, active: &'static Active, core: &mut Core, slot: Slot) {
        let _ = self.put_back(active, core, slot);
    }

    /// Gives a page back to the program as it is: the frame itself, or a copy where the mapping
    /// has changed its access. When that cannot be done now (an event waits to be read, for which
    /// the lock must be free) the page stays in staging, the reason is returned, and `free_frames`
    /// tries again.
    fn put_back(&self, active: &'static Active, core: &mut Core, slot: Slot) -> Result<(), Errno> {
        let address = page::address_of(core.staging.page(slot));
        let source = active.slot_address(slot);
        // SAFETY: the slot holds the content due at this address; the address is registered or
        // the call fails.
        let moved = unsafe { active.kernel.move_pages(address, source, PAGE_SIZE) };
        let returned = match moved {
            Err(Partial { errno: Errno::INVAL | Errno::BUSY, .. }) => {
                // SAFETY: as above.
                unsafe { active.kernel.copy(address, source as *const u8, PAGE_SIZE) }
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
    pub(super) fn free_frames(&mut self, active: &'static Active, chunk: usize) -> Chunk {
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
            active.kernel.yield_now();
        }
        let range = active.chunk_range(chunk);
        let offset = range.start - active.staging_memory.as_ptr() as usize;
        let freed = active.kernel.unregister(range.clone()).and_then(|()| {
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
            active.kernel.register(range.clone(), STAGING_MODE)
        });
        if let Err(errno) = freed {
            agent.fail(format_args!("cannot free the frames of staging: {errno}"));
        }
        // Where that must wait, nothing is lost by freeing them once more.
        let Some(mut core) = self.lock() else { return Chunk::Interrupted };
        let frames = core.staging.retire(chunk);
        self.claimed = None;
        drop(core);
        agent.progress.begin_free();
        agent.subtract_cost((frames * PAGE_SIZE) as u64);
        copies::count_copied(agent, active);
        agent.progress.end_free();
        Chunk::Freed
    }
}

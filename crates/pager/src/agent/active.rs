//! What exists once the agent looks after memory.

use core::ops::Range;
use core::ptr::{self, NonNull};

use ramfold_store::Store;
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::file::DirectFile;
use ramfold_sys::mem::{self, Reservation};
use ramfold_sys::uffd::register_mode;

use super::Agent;
use crate::kernel::Host;
use crate::spill::SpillAccess;
use crate::staging::{CHUNK_PAGES, Slot};

/// What exists once the agent looks after memory.
pub(crate) struct Active {
    pub kernel: Host,
    /// A child that bypasses libc's fork is reported, so that it can be given its memory.
    pub told_of_forks: bool,
    pub store: Store,
    pub staging_memory: Reservation,
    /// `None` where the session has no spill file, or this process cannot use it.
    pub spill: Option<SpillAccess>,
}

/// MOVE wants staging registered. A page that is missing there after all must not be reported:
/// nobody could answer but the thread that touched it.
pub(crate) const STAGING_MODE: u64 = register_mode::WP;

/// The program's memory: first touches are reported, and writes to what is protected
/// ([`crate::fork::copies`], [`crate::handler::zero_page`]). The same for all of it, so that
/// mappings that could merge do.
pub(crate) const PROGRAM_MODE: u64 = register_mode::MISSING | register_mode::WP;

impl Agent {
    /// What exists while the agent is active.
    #[inline]
    pub(crate) fn active(&self) -> Option<&'static Active> {
        // SAFETY: the agent lives for ever.
        self.activation.parts().map(|parts| unsafe { &*ptr::from_ref(parts) })
    }

    /// Becomes active with these parts.
    ///
    /// # Safety
    /// Only the monitor calls this, and not while the agent is active.
    pub(crate) unsafe fn set_active(&self, parts: Active) {
        // SAFETY: by the caller's word.
        unsafe { self.activation.activate(parts) };
    }

    /// Ends what [`Agent::set_active`] began.
    ///
    /// # Safety
    /// Nobody uses the parts any more.
    #[cfg(test)]
    pub(crate) unsafe fn drop_active(&self) {
        // SAFETY: by the caller's word.
        unsafe { self.activation.end() };
    }

    /// In a forked child: the parent's descriptors are of no use here.
    ///
    /// # Safety
    /// Only the monitor of the child calls this, before there is a handler. The old descriptors
    /// are forgotten, not closed: the monitor's table never had them.
    pub(crate) unsafe fn replace_files(
        &self,
        kernel: Host,
        told_of_forks: bool,
        spill: Option<DirectFile>,
    ) {
        // SAFETY: the caller is alone, and all three are of their types.
        let replace = |parts: *mut Active| unsafe {
            ptr::write(&raw mut (*parts).kernel, kernel);
            (*parts).told_of_forks = told_of_forks;
            if let (Some(access), Some(file)) = (&mut (*parts).spill, spill) {
                ptr::write(&raw mut access.file, file);
            }
        };
        // SAFETY: by the caller's word; a child's agent is active when its parent's was.
        unsafe { self.activation.change(replace) };
    }
}

impl Active {
    /// Address of a staging slot.
    pub(crate) fn slot_address(&self, slot: Slot) -> usize {
        self.staging_memory.as_ptr() as usize + slot.0 as usize * PAGE_SIZE
    }

    /// Makes what was moved to these slots stay. A page that the program gave up (MADV_FREE) can be
    /// discarded by the kernel, here too, as long as nobody writes to it; from then on it is zeros.
    ///
    /// # Safety
    /// The slots must be registered, and nobody else may know of them yet.
    pub(crate) unsafe fn keep_slots(&self, first: Slot, count: usize) {
        for slot in first.0..first.0 + count as u16 {
            // SAFETY: in bounds of the staging memory, and nobody else's.
            unsafe { mem::touch(self.slot_address(Slot(slot)) as *mut u8) };
        }
    }

    /// The page in a staging slot.
    ///
    /// # Safety
    /// The slot must hold a page, which only the reclaimer takes out.
    pub(crate) unsafe fn slot_page(&self, slot: Slot) -> &[u8; PAGE_SIZE] {
        // SAFETY: in bounds of the staging memory, present by the caller's word.
        unsafe { NonNull::new_unchecked(self.slot_address(slot) as *mut [u8; PAGE_SIZE]).as_ref() }
    }

    /// Address behind the last staging slot.
    pub(crate) fn staging_end(&self) -> usize {
        self.staging_memory.as_ptr() as usize + self.staging_memory.len()
    }

    /// Byte range of a staging chunk.
    pub(crate) fn chunk_range(&self, chunk: usize) -> Range<usize> {
        let start = self.slot_address(Slot((chunk * CHUNK_PAGES) as u16));
        start..start + CHUNK_PAGES * PAGE_SIZE
    }
}

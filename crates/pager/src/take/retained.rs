//! Objects that are kept though their pages are in memory again.
//!
//! After a fork two processes share the pages of the pool. An object that one of them frees stays
//! in memory for the other, and the note of it costs a copy; if the page is taken out again
//! unchanged, the object is needed once more. So while memory is shared objects are kept. A page
//! that changed replaces its object when it is stored. When nothing is shared any more what is left
//! of them goes.

use core::sync::atomic::Ordering;

use ramfold_policy::memory::reuse::Reuse;
use ramfold_sys::pagemap::{PageRegion, Pages};

use crate::agent::{Active, Agent};
use crate::kernel::Kernel;
use crate::page::{self, PageNumber};
use crate::take::clock_hand::{LOOK_PAGES, ScanPosition};

const RUNS_MAX: usize = 32;

/// A page is in memory again: its object is kept or becomes a ghost, which remembers that the page
/// was used.
pub(crate) fn note_loaded(agent: &Agent, active: &Active, page: PageNumber, mark: Reuse) {
    if agent.sharing.is_shared() {
        agent.sharing.note_kept();
        active.store.set_mark(page, mark.0);
        agent.process().counters.objects_kept.fetch_add(1, Ordering::Relaxed);
    } else {
        active.store.discard(page, mark.0);
    }
}

/// Frees the objects of all pages that are in memory, once nothing is shared any more.
pub(crate) fn drop_unneeded(agent: &Agent, active: &Active) {
    if !agent.sharing.take_kept() {
        return;
    }
    let mut runs = [PageRegion::default(); RUNS_MAX];
    let mut place = ScanPosition::default();
    loop {
        let core = agent.lock_core();
        // What cannot be looked at now goes when its page is stored again.
        let Some(found) = place.look(active, &core.regions, LOOK_PAGES, &mut runs, Pages::All)
        else {
            return;
        };
        // What is present there may have come after what the list and the store still speak of.
        if active.kernel.is_changing() {
            drop(core);
            active.kernel.yield_now();
            continue;
        }
        for run in &runs[..found] {
            let pages = page::number_of(run.start as usize)..page::number_of(run.end as usize);
            let freed =
                pages.filter(|&page| active.store.discard(page, active.store.mark(page))).count();
            let counter = &agent.process().counters.objects_kept_freed;
            counter.fetch_add(freed as u64, Ordering::Relaxed);
        }
    }
}

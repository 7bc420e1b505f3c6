//! Recompression in the background: where memory is short and the monitor has time, objects whose pages
//! have been out for a while are compressed once more, for density.
//!
//! What a page is compressed for when it leaves is weighed for all of them ([`crate::aim`]), those that
//! come back soon included, for which it is mostly speed. A page that has stayed out is less likely to
//! come back than others: what it takes longer to load counts less, and what it spares counts as long as
//! it stays.

use core::sync::atomic::Ordering;

use ramfold_store::{Recompressed, Recompression};
use ramfold_sys::time;

use crate::agent::{Active, Agent};
use crate::reclaim::Reclaimer;

/// How long to go on at most before the program is looked at again.
const SLICE_NS: u64 = 1_000_000;
/// And then not for so many times as long as that took.
const REST: u64 = 9;
/// Objects between two looks whether there is something else to do: 20 us each.
const WATCHED_OBJECTS: u32 = 4;

/// What the monitor knows of it.
pub struct Recompress {
    walk: Recompression,
    /// The round is over.
    over: bool,
    began_ns: u64,
    rests_until_ns: u64,
}

impl Recompress {
    pub const START: Recompress =
        Recompress { walk: Recompression::START, over: true, began_ns: 0, rests_until_ns: 0 };

    /// Goes on for a while, as long as `go_on` says so.
    pub fn go_on(
        &mut self,
        agent: &Agent,
        active: &Active,
        reclaimer: &mut Reclaimer,
        mut go_on: impl FnMut() -> bool,
    ) {
        let now = time::monotonic_ns();
        if now < self.rests_until_ns {
            return;
        }
        if self.over {
            // What was stored before the last round began is due in this one.
            let after_ns = agent.session().recompress_after_ns.load(Ordering::Relaxed);
            if now - self.began_ns < after_ns {
                return;
            }
            self.walk.begin_round(&active.store);
            self.began_ns = now;
            self.over = false;
        }
        let counters = &agent.process().counters;
        let mut objects = 0u32;
        loop {
            match self.walk.step(&active.store, reclaimer) {
                Recompressed::Stayed => {}
                Recompressed::Replaced { bytes_before, bytes_after } => {
                    counters.pages_recompressed.fetch_add(1, Ordering::Relaxed);
                    let (before, after) = (bytes_before as u64, bytes_after as u64);
                    counters.recompress_in_bytes.fetch_add(before, Ordering::Relaxed);
                    counters.recompress_out_bytes.fetch_add(after, Ordering::Relaxed);
                }
                Recompressed::Round => {
                    self.over = true;
                    break;
                }
            }
            objects += 1;
            counters.recompress_tried.fetch_add(1, Ordering::Relaxed);
            if objects.is_multiple_of(WATCHED_OBJECTS)
                && (time::monotonic_ns() - now > SLICE_NS || !go_on())
            {
                break;
            }
        }
        let ended = time::monotonic_ns();
        self.rests_until_ns = ended + (ended - now) * REST;
    }
}

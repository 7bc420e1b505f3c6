//! Recompression in the background: where memory is short and the monitor has time, objects whose
//! pages have been out for a while are compressed once more, for density.
//!
//! What a page is compressed for when it leaves is weighed for all of them
//! ([`ramfold_policy::memory::objective`]), those that come back soon included, for which it is
//! mostly speed. A page that has stayed out is less likely to come back than others: what it takes
//! longer to load counts less, and what it spares counts as long as it stays.

use core::sync::atomic::Ordering;

use ramfold_store::{Recompressed, Recompression};

use crate::agent::{Active, Agent};
use crate::kernel::time;
use crate::reclaim::Reclaimer;

/// Share of the monitor's time that may go into this, as 1 / this, while the program works.
const SHARE: u64 = 10;
/// The same while the program is quiet: the work disturbs nothing, and the process is idle sooner.
const SHARE_QUIET: u64 = 2;
/// After this time what is under way goes on.
pub(crate) const INTERVAL_US: u64 = 50_000;
/// Not worth beginning with less.
const CREDIT_NS_MIN: u64 = 200_000;
/// Objects between two looks whether there is something else to do: 20 us each.
const WATCHED_OBJECTS: u32 = 4;

/// What the monitor knows of it.
pub(crate) struct Recompress {
    walk: Recompression,
    /// The round is over.
    over: bool,
    began_ns: u64,
    /// For how long it may go on, as of when that was reckoned last.
    credit_ns: u64,
    reckoned_ns: u64,
}

impl Recompress {
    pub(crate) const START: Recompress = Recompress {
        walk: Recompression::START,
        over: true,
        began_ns: 0,
        credit_ns: 0,
        reckoned_ns: 0,
    };

    /// Is there time to go on, and something to go on with?
    pub(crate) fn is_due(
        &mut self,
        agent: &Agent,
        active: &'static Active,
        is_quiet: bool,
    ) -> bool {
        let now = time::monotonic_ns();
        let share = if is_quiet { SHARE_QUIET } else { SHARE };
        let elapsed = now - core::mem::replace(&mut self.reckoned_ns, now);
        self.credit_ns = (self.credit_ns + elapsed / share).min(INTERVAL_US * 1_000 / share);
        if self.credit_ns < CREDIT_NS_MIN {
            return false;
        }
        if self.over {
            // What was stored before the last round began is due in this one.
            let after_ns = agent.session().recompress_after_ns.load(Ordering::Relaxed);
            if now - self.began_ns < after_ns {
                return false;
            }
            self.walk.begin_round(&active.store);
            self.began_ns = now;
            self.over = false;
        }
        self.over = !self.walk.has_more(&active.store);
        !self.over
    }

    /// Goes on for a while, as long as `go_on` says so. `true` where there is more to do.
    pub(crate) fn go_on(
        &mut self,
        agent: &Agent,
        active: &'static Active,
        reclaimer: &mut Reclaimer,
        mut go_on: impl FnMut() -> bool,
    ) -> bool {
        let now = time::monotonic_ns();
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
                && (time::monotonic_ns() - now > self.credit_ns || !go_on())
            {
                break;
            }
        }
        self.credit_ns = self.credit_ns.saturating_sub(time::monotonic_ns() - now);
        !self.over
    }
}

//! How the memory is divided between the two levels: what the policy is told, and what it says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ramfold_cache::{Cost, Costs, Level, PageName};
use ramfold_policy::files::balance::{Balance as Policy, Events, Levels, SHARE_FIRST, Spent};
use ramfold_sys::PAGE_SIZE;

use super::dropped::Dropped;
use super::locked;

/// What the kernel and the two ways through it add to the time of an answer (measured, on an idle
/// machine).
const REQUEST_NS: u64 = 15_000;

pub(super) struct Balance {
    policy: Mutex<Policy>,
    /// Most bytes that the lower level may cost.
    compressed_bytes_max: AtomicU64,
    dropped: Dropped,
    /// Pages that the kernel asked for again shortly after it dropped them: those that were in the
    /// lower level, and those that were not.
    missed_lower_pages: AtomicU64,
    missed_disk_pages: AtomicU64,
}

/// What the levels hold.
pub(super) struct Held {
    pub kernel_bytes: u64,
    pub lower_bytes: u64,
    /// What the clusters took that count as evicted shortly before.
    pub lost_bytes: u64,
}

impl Balance {
    /// A share of the lower level is fixed.
    pub(super) fn new(memory_bytes: u64, share: Option<f64>) -> Balance {
        let policy = Policy::new(memory_bytes, share, 0);
        let kernel_bytes = (memory_bytes as f64 * (1.0 - SHARE_FIRST)) as u64;
        Balance {
            compressed_bytes_max: AtomicU64::new(policy.lower_bytes_max()),
            policy: Mutex::new(policy),
            dropped: Dropped::new(memory_bytes, kernel_bytes),
            missed_lower_pages: AtomicU64::new(0),
            missed_disk_pages: AtomicU64::new(0),
        }
    }

    /// Most bytes that the lower level may cost.
    pub(super) fn compressed_bytes_max(&self) -> u64 {
        self.compressed_bytes_max.load(Ordering::Relaxed)
    }

    /// What remembering takes.
    pub(super) fn bytes(&self) -> u64 {
        self.dropped.bytes()
    }

    /// The kernel was told to drop this page.
    pub(super) fn note_dropped(&self, page: PageName) {
        self.dropped.note(page);
    }

    /// The kernel asks for this page, which is there.
    pub(super) fn note_asked_for(&self, page: PageName, level: Level) {
        if self.dropped.take(page) {
            let missed = match level {
                Level::Cache => &self.missed_lower_pages,
                Level::Backing => &self.missed_disk_pages,
            };
            missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets memory go from one level to the other where that is due. The time is in nanoseconds
    /// since the start.
    pub(super) fn adjust(
        &self,
        now_ns: impl FnOnce() -> u64,
        costs: impl FnOnce() -> Costs,
        held: impl FnOnce() -> Held,
    ) {
        let mut policy = locked(&self.policy);
        let now_ns = now_ns();
        if !policy.is_due(now_ns) {
            return;
        }
        let Held { kernel_bytes, lower_bytes, lost_bytes } = held();
        let missed_bytes = self.dropped.set_window(kernel_bytes) * PAGE_SIZE as u64;
        let levels = Levels { lower_bytes, lost_bytes, missed_bytes };
        policy.adjust(now_ns, &self.take_events(&costs()), &levels);
        self.compressed_bytes_max.store(policy.lower_bytes_max(), Ordering::Relaxed);
    }

    fn take_events(&self, costs: &Costs) -> Events {
        let taken = |count: &AtomicU64| count.swap(0, Ordering::Relaxed) as f64;
        let spent = |cost: Cost| Spent { ns: cost.ns as f64, pages: cost.pages as f64 };
        let hits = Cost { ns: costs.hits.ns + costs.hit_reads * REQUEST_NS, ..costs.hits };
        Events {
            missed_lower_pages: taken(&self.missed_lower_pages),
            missed_disk_pages: taken(&self.missed_disk_pages),
            lost_pages: costs.lost_pages as f64,
            hits: spent(hits),
            misses: spent(costs.misses),
            read_pages: costs.read_pages as f64,
            compressions: spent(costs.compressions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 256 << 20;
    const TURN_NS: u64 = 500_000_000;

    /// Turns in each of which so many pages are dropped and asked for again, with a full lower
    /// level.
    fn after(balance: &Balance, turns: u64, missed: u64, level: Level) -> u64 {
        for turn in 1..=turns {
            let names = || (0..missed).map(|page| PageName::new(1, page));
            names().for_each(|name| balance.note_dropped(name));
            names().for_each(|name| balance.note_asked_for(name, level));
            let cost = Cost { ns: 40_000 * missed, pages: missed };
            let costs = Costs { hits: cost, misses: cost, read_pages: missed, ..Costs::default() };
            let lower_bytes = balance.compressed_bytes_max();
            let held = Held { kernel_bytes: MEMORY / 5, lower_bytes, lost_bytes: MEMORY / 5 };
            balance.adjust(|| turn * TURN_NS, || costs, || held);
        }
        balance.compressed_bytes_max()
    }

    #[test]
    fn pages_that_the_kernel_misses_get_it_memory() {
        for level in [Level::Cache, Level::Backing] {
            let balance = Balance::new(MEMORY, None);
            let first = balance.compressed_bytes_max();
            assert_eq!(first, (MEMORY as f64 * SHARE_FIRST) as u64);
            let last = after(&balance, 12, 1500, level);
            assert!((first - MEMORY / 4..first - MEMORY / 8).contains(&last), "{last}");
            assert_eq!(after(&Balance::new(MEMORY, None), 64, 0, level), first);
        }
    }

    #[test]
    fn a_share_that_was_asked_for_stays() {
        let balance = Balance::new(MEMORY, Some(0.5));
        assert_eq!(after(&balance, 20, 1500, Level::Cache), MEMORY / 2);
    }

    #[test]
    fn memory_does_not_move_twice_within_a_turn() {
        let balance = Balance::new(MEMORY, None);
        let before = after(&balance, 20, 1500, Level::Cache);
        let costs = || -> Costs { panic!("it is not due") };
        balance.adjust(|| 21 * TURN_NS - 1, costs, || panic!("it is not due"));
        assert_eq!(balance.compressed_bytes_max(), before);
    }

    #[test]
    fn hits_take_the_time_of_their_requests_too() {
        let balance = Balance::new(MEMORY, None);
        let hits = Cost { ns: 5000, pages: 7 };
        let events = balance.take_events(&Costs { hit_reads: 3, hits, ..Costs::default() });
        assert_eq!(events.hits, Spent { ns: 50_000.0, pages: 7.0 });
    }
}

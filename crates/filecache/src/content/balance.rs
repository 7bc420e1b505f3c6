//! How the memory is divided between the two levels.
//!
//! What the upper level would gain by more memory is known from pages that are asked for shortly after the kernel
//! dropped them: each would have been read without a request, and without a read of SOURCE if it is not stored. What
//! the lower one would lose shows by clusters that are read from SOURCE shortly after they left: each costs a read.
//! Both are set beside the memory that it would have taken to keep them, and a little memory goes where it spares
//! more time. (Condition 7 of paper 003 asks the same of a compressed level as a whole.) A lower level that is being
//! filled loses nothing yet, whatever it is worth: as long as it is, its limit stays.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ramfold_codec::PAGE_SIZE;

use super::page_times::{PageName, PageTimes};
use super::{COMPRESSED_SHARE_MAX, locked};

/// How often memory goes from one level to the other, and how much, as a part of all. What leaves the upper level costs a
/// request when it is wanted again; what leaves the lower one a read, and what that has cost shows later: it gives less
/// at a time.
const TURN: Duration = Duration::from_millis(500);
const STEP_UP_PART: u64 = 256;
const STEP_DOWN_PART: u64 = 64;
/// How many times as much time as the other a level must spare to get memory. For what the lower one has lost SOURCE has
/// to be read, which keeps others waiting too.
const CLEARLY_UP: f64 = 3.0;
const CLEARLY_DOWN: f64 = 1.5;
/// How much time it must spare at least, as a part of what went by.
const WORTH_IT: f64 = 0.05;
/// What is missed and lost comes in bursts: the mean of about this time counts.
const OF_LATE: Duration = Duration::from_secs(5);
/// The lower level counts as being filled when at this rate it is full within this time.
const FILLED_IN: Duration = Duration::from_secs(300);
/// The lower level's part of the memory at least, and at first, where paper 000 found the best.
const SHARE_MIN: f64 = 0.05;
const SHARE_FIRST: f64 = 0.8;
/// What the kernel and the two ways through it add to an answer's time (measured, on an idle machine).
const REQUEST_NS: u64 = 15_000;

pub struct Balance {
    memory_bytes: u64,
    /// Most bytes that the lower level may cost.
    compressed_max: AtomicU64,
    is_fixed: bool,
    dropped: Dropped,
    /// Pages that the kernel asked for again shortly after it dropped them: those that were in the lower level, and
    /// those that were not.
    missed_lower: AtomicU64,
    missed_source: AtomicU64,
    /// Pages that were read from SOURCE again shortly after they left the pool.
    lost_pages: AtomicU64,
    hits: Times,
    /// Of the pages that were asked for, what they took; and how many were read for them.
    misses: Times,
    read_pages: AtomicU64,
    compressions: Times,
    turn: Mutex<Turn>,
}

/// What the levels hold.
pub struct Held {
    pub kernel_bytes: u64,
    pub lower_bytes: u64,
    /// What the clusters took in the pool that count as having left shortly before.
    pub lost_bytes: u64,
}

struct Turn {
    began: Instant,
    /// What the lower level cost then.
    lower_bytes: u64,
    /// Time that the upper level would have spared by more memory, and the lower one, as a part of the time that went by;
    /// of late.
    missed: f64,
    lost: f64,
}

/// Where a page is that the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Lower,
    Source,
}

#[derive(Default)]
struct Times {
    ns: AtomicU64,
    pages: AtomicU64,
}

impl Times {
    fn add(&self, ns: u64, pages: u64) {
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// What came since the last time: how long, and how many pages.
    fn take(&self) -> (f64, f64) {
        (taken(&self.ns), taken(&self.pages))
    }

    /// Mean time of a page since the last time; 0 without any.
    fn take_mean(&self) -> f64 {
        let (ns, pages) = self.take();
        ns / pages.max(1.0)
    }
}

fn taken(count: &AtomicU64) -> f64 {
    count.swap(0, Ordering::Relaxed) as f64
}

impl Balance {
    /// A share is kept as it is.
    pub fn new(memory_bytes: u64, share: Option<f64>) -> Balance {
        let first = share.unwrap_or(SHARE_FIRST);
        Balance {
            memory_bytes,
            compressed_max: AtomicU64::new((memory_bytes as f64 * first) as u64),
            is_fixed: share.is_some(),
            dropped: Dropped::new(memory_bytes),
            missed_lower: AtomicU64::new(0),
            missed_source: AtomicU64::new(0),
            lost_pages: AtomicU64::new(0),
            hits: Times::default(),
            misses: Times::default(),
            read_pages: AtomicU64::new(0),
            compressions: Times::default(),
            turn: Mutex::new(Turn {
                began: Instant::now(),
                lower_bytes: 0,
                missed: 0.0,
                lost: 0.0,
            }),
        }
    }

    /// Most bytes that the lower level may cost.
    pub fn compressed_bytes_max(&self) -> u64 {
        self.compressed_max.load(Ordering::Relaxed)
    }

    /// What remembering takes.
    pub fn bytes(&self) -> u64 {
        self.dropped.times.bytes()
    }

    /// The kernel was told to drop this page.
    pub fn dropped(&self, page: PageName) {
        self.dropped.note(page);
    }

    /// The kernel asks for this page, which is there.
    pub fn asked_for(&self, page: PageName, level: Level) {
        if self.dropped.forget(page) {
            let missed = match level {
                Level::Lower => &self.missed_lower,
                Level::Source => &self.missed_source,
            };
            missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages are asked for that had left the pool shortly before.
    pub fn lost(&self, pages: u64) {
        self.lost_pages.fetch_add(pages, Ordering::Relaxed);
    }

    pub fn hits_took(&self, ns: u64, pages: u64) {
        self.hits.add(ns + REQUEST_NS, pages);
    }

    /// A read of SOURCE, for some of these pages.
    pub fn misses_took(&self, ns: u64, asked_for: u64, read: u64) {
        self.misses.add(ns, asked_for);
        self.read_pages.fetch_add(read, Ordering::Relaxed);
    }

    /// Pages were compressed, as most are that are read.
    pub fn compressions_took(&self, ns: u64, pages: u64) {
        self.compressions.add(ns, pages);
    }

    /// Lets memory go from one level to the other where that is due.
    pub fn adjust(&self, held: impl FnOnce() -> Held) {
        self.adjust_at(Instant::now, held);
    }

    fn adjust_at(&self, now: impl FnOnce() -> Instant, held: impl FnOnce() -> Held) {
        if self.is_fixed {
            return;
        }
        let mut turn = locked(&self.turn);
        let now = now();
        let went_by = now.saturating_duration_since(turn.began);
        if went_by < TURN {
            return;
        }
        turn.began = now;
        let Held { kernel_bytes, lower_bytes, lost_bytes } = held();
        let (read_ns, asked_for) = self.misses.take();
        let compress_ns = taken(&self.read_pages) * self.compressions.take_mean();
        let miss_ns = (read_ns + compress_ns) / asked_for.max(1.0);
        let missed_ns = taken(&self.missed_lower) * self.hits.take_mean()
            + taken(&self.missed_source) * miss_ns;
        let lost_ns = taken(&self.lost_pages) * miss_ns;
        let weight = went_by.div_duration_f64(OF_LATE).min(1.0);
        let mean =
            |of_late: f64, ns: f64| of_late + (ns / went_by.as_nanos() as f64 - of_late) * weight;
        turn.missed = mean(turn.missed, missed_ns);
        turn.lost = mean(turn.lost, lost_ns);

        let step_up = self.memory_bytes / STEP_UP_PART;
        let step_down = self.memory_bytes / STEP_DOWN_PART;
        let now = self.compressed_bytes_max();
        // A step is what it may have made room for.
        let is_full = lower_bytes + step_down >= now;
        let grew = lower_bytes.saturating_sub(turn.lower_bytes) as f64;
        let filled_by_then = lower_bytes as f64 + grew * FILLED_IN.div_duration_f64(went_by);
        let is_being_filled = !is_full && filled_by_then >= now as f64;
        turn.lower_bytes = lower_bytes;

        // By each byte of memory.
        let missed_window = self.dropped.set_window(kernel_bytes) * PAGE_SIZE as u64;
        let upper = turn.missed / missed_window.max(1) as f64;
        let lower = turn.lost / lost_bytes.max(step_down) as f64;
        let part = |share: f64| (self.memory_bytes as f64 * share) as u64;
        let next = if upper > CLEARLY_UP * lower && turn.missed > WORTH_IT && !is_being_filled {
            now.saturating_sub(step_up).max(part(SHARE_MIN))
        } else if lower > CLEARLY_DOWN * upper && turn.lost > WORTH_IT && is_full {
            (now + step_down).min(part(COMPRESSED_SHARE_MAX))
        } else {
            now
        };
        self.compressed_max.store(next, Ordering::Relaxed);
    }
}

/// The pages that the kernel has dropped last.
struct Dropped {
    /// When each was dropped.
    times: PageTimes,
    /// Pages dropped so far.
    clock: AtomicU32,
    /// Pages dropped since then are those that count.
    window: AtomicU32,
}

impl Dropped {
    /// The window is this part of what the upper level has.
    const WINDOW_PART: u64 = 8;

    fn new(memory_bytes: u64) -> Dropped {
        let pages = memory_bytes / PAGE_SIZE as u64 / Dropped::WINDOW_PART;
        let dropped = Dropped {
            // Twice as many places as pages that count: most keep theirs as long as they do.
            times: PageTimes::new(2 * pages),
            clock: AtomicU32::new(1),
            window: AtomicU32::new(0),
        };
        dropped.set_window((memory_bytes as f64 * (1.0 - SHARE_FIRST)) as u64);
        dropped
    }

    fn note(&self, page: PageName) {
        self.times.note(page, self.clock.fetch_add(1, Ordering::Relaxed));
    }

    /// Whether it was dropped within the window; it is then no more.
    fn forget(&self, page: PageName) -> bool {
        let Some(time) = self.times.take(page) else { return false };
        let ago = self.clock.load(Ordering::Relaxed).wrapping_sub(time);
        ago <= self.window.load(Ordering::Relaxed)
    }

    /// Sets the window for an upper level of so many bytes, and returns what it was, in pages.
    fn set_window(&self, kernel_bytes: u64) -> u64 {
        let pages = (kernel_bytes / PAGE_SIZE as u64 / Dropped::WINDOW_PART).max(64);
        u64::from(self.window.swap(u32::try_from(pages).unwrap_or(u32::MAX), Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 256 << 20;

    fn held(lower_bytes: u64) -> Held {
        Held { kernel_bytes: MEMORY / 5, lower_bytes, lost_bytes: MEMORY / 5 }
    }

    /// After some turns in each of which so many pages were missed and lost, with a full lower level.
    fn after(balance: &Balance, turns: usize, missed: u64, lost: u64) -> u64 {
        for _ in 0..turns {
            turn(balance, balance.compressed_bytes_max(), missed, lost);
        }
        balance.compressed_bytes_max()
    }

    fn turn(balance: &Balance, lower_bytes: u64, missed: u64, lost: u64) {
        miss(balance, missed, Level::Lower);
        balance.hits_took(40_000 * missed.max(1), missed.max(1));
        balance.lost(lost);
        balance.misses_took(400_000 * lost.max(1), lost.max(1), lost.max(1));
        end_turn(balance, lower_bytes);
    }

    fn end_turn(balance: &Balance, lower_bytes: u64) {
        let began = balance.turn.lock().unwrap().began;
        balance.adjust_at(|| began + TURN, || held(lower_bytes));
    }

    fn miss(balance: &Balance, pages: u64, level: Level) {
        for page in 0..pages {
            balance.dropped(PageName::new(1, page));
        }
        for page in 0..pages {
            balance.asked_for(PageName::new(1, page), level);
        }
    }

    const LEAST: u64 = (MEMORY as f64 * SHARE_MIN) as u64;
    const MOST: u64 = (MEMORY as f64 * COMPRESSED_SHARE_MAX) as u64;

    #[test]
    fn memory_goes_where_it_spares_more_time() {
        let balance = Balance::new(MEMORY, None);
        let first = balance.compressed_bytes_max();
        // Up slowly.
        let up = after(&balance, 64, 1500, 0);
        assert!((first - MEMORY / 4..first - MEMORY / 8).contains(&up), "{up}");
        assert_eq!(after(&balance, 200, 1500, 0), LEAST);
        let down = after(&balance, 20, 1500, 30_000);
        assert!(down > LEAST + MEMORY / 8, "{down}");
        assert_eq!(after(&balance, 60, 1500, 30_000), MOST);
        // Nobody misses anything any more.
        assert_eq!(after(&balance, 100, 0, 0), MOST);
        // Not twice within a turn.
        after(&balance, 20, 1500, 0);
        let now = balance.compressed_bytes_max();
        let began = balance.turn.lock().unwrap().began;
        balance.adjust_at(|| began + TURN - Duration::from_nanos(1), || held(now));
        assert_eq!(balance.compressed_bytes_max(), now);
    }

    #[test]
    fn what_the_lower_level_does_not_take_is_missed_all_the_more() {
        let balance = Balance::new(MEMORY, None);
        let before = balance.compressed_bytes_max();
        for _ in 0..20 {
            miss(&balance, 100, Level::Source);
            balance.misses_took(400_000 * 100, 100, 100);
            end_turn(&balance, before);
        }
        assert!(balance.compressed_bytes_max() < before);
    }

    #[test]
    fn a_lower_level_that_is_being_filled_keeps_its_memory() {
        let balance = Balance::new(MEMORY, None);
        let first = balance.compressed_bytes_max();
        let after_with = |lower_bytes, missed, lost| {
            turn(&balance, lower_bytes, missed, lost);
            balance.compressed_bytes_max()
        };
        for part in 1..32 {
            assert_eq!(after_with(first / 32 * part, 1500, 0), first);
        }
        // Nor does it get more than it fills.
        for part in 16..32 {
            assert_eq!(after_with(first / 32 * part, 0, 30_000), first);
        }
        // It is filled no more, and soon nothing is lost any more.
        assert!((0..40).any(|_| after_with(first / 8 * 7, 1500, 0) < first));
    }

    #[test]
    fn what_is_compressed_again_is_lost_all_the_more() {
        let [cheap, dear] = [0, 40_000_000].map(|ns| {
            let balance = Balance::new(MEMORY, None);
            let before = balance.compressed_bytes_max() as i64;
            for _ in 0..20 {
                balance.compressions_took(ns * 10, 10);
                after(&balance, 1, 1500, 100);
            }
            balance.compressed_bytes_max() as i64 - before
        });
        assert!(cheap < 0 && dear > 0, "{cheap} {dear}");
    }

    #[test]
    fn what_is_missed_and_lost_in_bursts_counts_by_its_mean() {
        let balance = Balance::new(MEMORY, None);
        let first = balance.compressed_bytes_max();
        // Either moves memory when it goes on, and comes in one turn of eight.
        for nth in 0..160 {
            let (missed, lost) = match nth % 8 {
                0 => (1500, 0),
                4 => (0, 600),
                _ => (0, 0),
            };
            assert_eq!(after(&balance, 1, missed, lost), first);
        }
        assert!(after(&balance, 40, 1500, 0) < first);
        assert!(after(&balance, 60, 0, 600) > first);
    }

    #[test]
    fn a_share_that_was_asked_for_stays() {
        let balance = Balance::new(MEMORY, Some(0.5));
        assert_eq!(after(&balance, 20, 1500, 0), MEMORY / 2);
    }

    #[test]
    fn what_was_dropped_long_ago_does_not_count() {
        let dropped = Dropped::new(MEMORY);
        dropped.set_window(800 * PAGE_SIZE as u64);
        let names: Vec<_> = (0..2000).map(|page| PageName::new(9, page)).collect();
        names.iter().for_each(|&name| dropped.note(name));
        let counted = names.iter().filter(|&&name| dropped.forget(name)).count();
        assert!((60..=100).contains(&counted), "{counted}");
        // Each once, and none that was never dropped.
        assert!(!names.iter().any(|&name| dropped.forget(name)));
        assert!(!(0..2000).any(|page| dropped.forget(PageName::new(8, page))));
    }
}

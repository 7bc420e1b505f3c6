//! How memory is divided between two levels: pages in the kernel's page cache (upper), and
//! compressed pages (lower).
//!
//! What the upper level would gain by more memory is known from pages that are asked for shortly
//! after the kernel dropped them: each would have been read without a request, and without a read
//! of the disk if it is not stored. What the lower one would lose shows by clusters that are read
//! from the disk shortly after they were evicted. Both are set beside the memory that it would have
//! taken to keep them, and a little memory goes where it spares more time. (Condition 7 of paper
//! 003 asks the same of a compressed level as a whole.) A lower level that is being filled loses
//! nothing yet, whatever it is worth: as long as it is, its limit stays.

/// The lower level's part of the memory at most: above that paper 000 found the kernel short of
/// pages.
pub const SHARE_MAX: f64 = 0.85;
/// The lower level's part of the memory at first, where paper 000 found the best.
pub const SHARE_FIRST: f64 = 0.8;
/// Its part at least.
const SHARE_MIN: f64 = 0.05;

/// How often memory goes from one level to the other, in nanoseconds.
const TURN_NS: u64 = 500_000_000;
/// How much goes up and down at first, as a part of all. What leaves the upper level costs a
/// request when it is wanted again; what leaves the lower one a read, and what that has cost shows
/// later: it gives less at a time.
const STEP_UP_PART: u64 = 256;
const STEP_DOWN_PART: u64 = 64;
/// Each further step in the same direction is twice as large, up to this part of all.
const STEP_MOST_PART: u64 = 32;
/// How many times as much time as the other a level must spare to get memory. For what the lower
/// one has lost the disk has to be read, which keeps others waiting too.
const UP_FACTOR: f64 = 3.0;
const DOWN_FACTOR: f64 = 1.5;
/// How much time it must spare at least, as a part of what went by, with so much memory more: a
/// part of all.
const SPARED_MIN: f64 = 0.05;
const SPARED_BY_PART: u64 = 32;
/// What is missed and lost comes in bursts: the mean of about this time counts, in nanoseconds.
const MEAN_OF_NS: u64 = 5_000_000_000;
/// The lower level counts as being filled when at this rate it is full within this time, in
/// nanoseconds.
const FILLED_IN_NS: u64 = 300_000_000_000;

/// How the memory is divided.
#[derive(Debug)]
pub struct Balance {
    memory_bytes: u64,
    /// Most bytes that the lower level may cost.
    lower_bytes_max: u64,
    is_fixed: bool,
    turn_began_ns: u64,
    /// What the lower level cost then.
    lower_bytes: u64,
    /// Time that the upper level would have spared by more memory, and the lower one, as a part of
    /// the time that went by; means of [`MEAN_OF_NS`].
    missed: f64,
    lost: f64,
    /// Where memory has gone in the turns before, and how many steps it made.
    direction: Option<Direction>,
    steps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// How long something took, and for how many pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Nanoseconds.
    pub ns: f64,
    /// Pages that were had for it.
    pub pages: f64,
}

impl Spent {
    /// Mean time of a page, in nanoseconds; 0 without any.
    fn mean_ns(&self) -> f64 {
        self.ns / self.pages.max(1.0)
    }
}

/// What has happened since the last turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Events {
    /// Pages that the kernel asked for again shortly after it dropped them, and that were in the
    /// lower level.
    pub missed_lower_pages: f64,
    /// The same, where they were not and the disk was read.
    pub missed_disk_pages: f64,
    /// Pages that were read from the disk again shortly after they were evicted.
    pub lost_pages: f64,
    /// Pages that were answered from the lower level.
    pub hits: Spent,
    /// Reads of the disk; of their pages, those that were asked for.
    pub misses: Spent,
    /// All pages of those reads.
    pub read_pages: f64,
    /// Pages that were compressed, as most are that are read.
    pub compressions: Spent,
}

/// What the levels have now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// What the lower level costs.
    pub lower_bytes: u64,
    /// What the clusters took that count as evicted shortly before.
    pub lost_bytes: u64,
    /// How much was dropped by the kernel after a page that counts as missed.
    pub missed_bytes: u64,
}

impl Balance {
    /// With this memory for both levels, from this time on. A share of the lower level is fixed.
    pub fn new(memory_bytes: u64, share: Option<f64>, now_ns: u64) -> Balance {
        Balance {
            memory_bytes,
            lower_bytes_max: (memory_bytes as f64 * share.unwrap_or(SHARE_FIRST)) as u64,
            is_fixed: share.is_some(),
            turn_began_ns: now_ns,
            lower_bytes: 0,
            missed: 0.0,
            lost: 0.0,
            direction: None,
            steps: 0,
        }
    }

    /// Most bytes that the lower level may cost.
    pub fn lower_bytes_max(&self) -> u64 {
        self.lower_bytes_max
    }

    /// Whether memory may go from one level to the other now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        !self.is_fixed && now_ns.saturating_sub(self.turn_began_ns) >= TURN_NS
    }

    /// Lets memory go from one level to the other where that spares time. To be called when
    /// [`Self::is_due`], with all that has happened since the last call.
    pub fn adjust(&mut self, now_ns: u64, events: &Events, levels: &Levels) {
        let went_by_ns = now_ns.saturating_sub(self.turn_began_ns).max(1) as f64;
        self.turn_began_ns = now_ns;
        self.note(went_by_ns, events);

        let step_down = self.memory_bytes / STEP_DOWN_PART;
        let limit = self.lower_bytes_max;
        // It need not have filled yet what the step before gave it.
        let given = match self.direction {
            Some(Direction::Down) => self.step(STEP_DOWN_PART),
            _ => step_down,
        };
        let is_full = levels.lower_bytes + given >= limit;
        let grew = levels.lower_bytes.saturating_sub(self.lower_bytes) as f64;
        let filled_by_then = levels.lower_bytes as f64 + grew * (FILLED_IN_NS as f64 / went_by_ns);
        let is_being_filled = !is_full && filled_by_then >= limit as f64;
        self.lower_bytes = levels.lower_bytes;

        // By each byte of memory.
        let upper = self.missed / levels.missed_bytes.max(1) as f64;
        let lower = self.lost / levels.lost_bytes.max(step_down) as f64;
        let is_worth_it =
            |by_byte: f64| by_byte * (self.memory_bytes / SPARED_BY_PART) as f64 > SPARED_MIN;
        let direction = if upper > UP_FACTOR * lower && is_worth_it(upper) && !is_being_filled {
            Some(Direction::Up)
        } else if lower > DOWN_FACTOR * upper && is_worth_it(lower) && is_full {
            Some(Direction::Down)
        } else {
            None
        };
        let part = |share: f64| (self.memory_bytes as f64 * share) as u64;
        self.steps = if direction == self.direction { self.steps + 1 } else { 0 };
        self.direction = direction;
        self.lower_bytes_max = match direction {
            Some(Direction::Up) => {
                limit.saturating_sub(self.step(STEP_UP_PART)).max(part(SHARE_MIN))
            }
            Some(Direction::Down) => (limit + self.step(STEP_DOWN_PART)).min(part(SHARE_MAX)),
            None => limit,
        };
    }

    /// How much goes in the direction of before.
    fn step(&self, first_part: u64) -> u64 {
        let first = self.memory_bytes / first_part;
        let doubled = first.saturating_mul(1 << self.steps.min(16));
        doubled.min(self.memory_bytes / STEP_MOST_PART)
    }

    /// Notes what both levels would have spared by more memory.
    fn note(&mut self, went_by_ns: f64, events: &Events) {
        let compress_ns = events.read_pages * events.compressions.mean_ns();
        let miss_ns = (events.misses.ns + compress_ns) / events.misses.pages.max(1.0);
        let missed_ns =
            events.missed_lower_pages * events.hits.mean_ns() + events.missed_disk_pages * miss_ns;
        let lost_ns = events.lost_pages * miss_ns;
        let weight = (went_by_ns / MEAN_OF_NS as f64).min(1.0);
        let mean = |before: f64, ns: f64| before + (ns / went_by_ns - before) * weight;
        self.missed = mean(self.missed, missed_ns);
        self.lost = mean(self.lost, lost_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 256 << 20;
    const LEAST: u64 = (MEMORY as f64 * SHARE_MIN) as u64;
    const MOST: u64 = (MEMORY as f64 * SHARE_MAX) as u64;

    /// Levels, with an eighth of an upper level of a fifth of all as what was dropped last.
    fn levels(lower_bytes: u64) -> Levels {
        Levels { lower_bytes, lost_bytes: MEMORY / 5, missed_bytes: MEMORY / 5 / 8 }
    }

    fn spent(ns: u64, pages: u64) -> Spent {
        Spent { ns: ns as f64, pages: pages as f64 }
    }

    /// A turn in which so many pages were missed and lost.
    fn events(missed: u64, lost: u64) -> Events {
        Events {
            missed_lower_pages: missed as f64,
            lost_pages: lost as f64,
            hits: spent(40_000 * missed.max(1), missed.max(1)),
            misses: spent(400_000 * lost.max(1), lost.max(1)),
            read_pages: lost.max(1) as f64,
            ..Events::default()
        }
    }

    fn turn(balance: &mut Balance, lower_bytes: u64, events: &Events) -> u64 {
        let now_ns = balance.turn_began_ns + TURN_NS;
        assert!(balance.is_due(now_ns) && !balance.is_due(now_ns - 1));
        balance.adjust(now_ns, events, &levels(lower_bytes));
        balance.lower_bytes_max()
    }

    /// After some turns with a full lower level.
    fn after(balance: &mut Balance, turns: usize, missed: u64, lost: u64) -> u64 {
        for _ in 0..turns {
            let full = balance.lower_bytes_max();
            turn(balance, full, &events(missed, lost));
        }
        balance.lower_bytes_max()
    }

    #[test]
    fn memory_goes_where_it_spares_more_time() {
        let mut balance = Balance::new(MEMORY, None, 0);
        let first = balance.lower_bytes_max();
        // Up slowly at first. The mean of the first turns is below the threshold.
        let turns = (1..).find(|_| after(&mut balance, 1, 1500, 0) < first).unwrap();
        assert!(turns < 10, "{turns}");
        assert_eq!(balance.lower_bytes_max(), first - MEMORY / STEP_UP_PART);
        let up = after(&mut balance, 5, 1500, 0);
        assert_eq!(up, first - MEMORY / STEP_UP_PART * (1 + 2 + 4 + 8 + 8 + 8));
        assert_eq!(after(&mut balance, 200, 1500, 0), LEAST);
        let down = after(&mut balance, 20, 1500, 30_000);
        assert!(down > LEAST + MEMORY / 8, "{down}");
        // After a change of direction the first step is small again.
        let mut before = balance.lower_bytes_max();
        let up = (0..).find_map(|_| {
            let last = std::mem::replace(&mut before, after(&mut balance, 1, 15_000, 0));
            (before < last).then(|| last - before)
        });
        assert_eq!(up, Some(MEMORY / STEP_UP_PART));
        assert_eq!(after(&mut balance, 60, 1500, 30_000), MOST);
        // Nobody misses anything any more.
        assert_eq!(after(&mut balance, 100, 0, 0), MOST);
    }

    #[test]
    fn steps_down_double_though_the_lower_level_fills_slowly() {
        let mut balance = Balance::new(MEMORY, None, 0);
        after(&mut balance, 200, 1500, 0);
        assert_eq!(balance.lower_bytes_max(), LEAST);
        let mut filled = LEAST;
        let limits: Vec<u64> = (0..12)
            .map(|_| {
                let limit = turn(&mut balance, filled, &events(0, 60_000));
                // It is one turn behind.
                filled = (filled + MEMORY / STEP_MOST_PART).min(limit);
                limit
            })
            .collect();
        let steps: Vec<u64> = limits.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.contains(&(MEMORY / STEP_MOST_PART)), "{steps:?}");
        assert!(limits[11] > LEAST + 8 * MEMORY / STEP_MOST_PART, "{limits:?}");
    }

    #[test]
    fn pages_that_are_not_stored_are_missed_all_the_more() {
        let mut balance = Balance::new(MEMORY, None, 0);
        let before = balance.lower_bytes_max();
        for _ in 0..20 {
            let misses = spent(400_000 * 100, 100);
            let events =
                Events { missed_disk_pages: 100.0, misses, read_pages: 100.0, ..events(0, 0) };
            turn(&mut balance, before, &events);
        }
        assert!(balance.lower_bytes_max() < before);
    }

    #[test]
    fn a_lower_level_that_is_being_filled_keeps_its_memory() {
        let mut balance = Balance::new(MEMORY, None, 0);
        let first = balance.lower_bytes_max();
        let mut after_with =
            |lower_bytes, missed, lost| turn(&mut balance, lower_bytes, &events(missed, lost));
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
            let mut balance = Balance::new(MEMORY, None, 0);
            let before = balance.lower_bytes_max() as i64;
            for _ in 0..20 {
                let events = Events { compressions: spent(ns * 10, 10), ..events(1500, 100) };
                let full = balance.lower_bytes_max();
                turn(&mut balance, full, &events);
            }
            balance.lower_bytes_max() as i64 - before
        });
        assert!(cheap < 0 && dear > 0, "{cheap} {dear}");
    }

    #[test]
    fn what_is_missed_and_lost_in_bursts_counts_by_its_mean() {
        let mut balance = Balance::new(MEMORY, None, 0);
        let first = balance.lower_bytes_max();
        // Either moves memory when it goes on, and comes in one turn of eight.
        for nth in 0..160 {
            let (missed, lost) = match nth % 8 {
                0 => (1500, 0),
                4 => (0, 600),
                _ => (0, 0),
            };
            assert_eq!(after(&mut balance, 1, missed, lost), first);
        }
        assert!(after(&mut balance, 40, 1500, 0) < first);
        assert!(after(&mut balance, 60, 0, 600) > first);
    }

    #[test]
    fn a_share_that_was_asked_for_stays() {
        let balance = Balance::new(MEMORY, Some(0.5), 0);
        assert!(!balance.is_due(u64::MAX));
        assert_eq!(balance.lower_bytes_max(), MEMORY / 2);
    }
}

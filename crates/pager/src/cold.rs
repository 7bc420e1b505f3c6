//! Proactive reclaim: what was not touched for a while is compressed though there is room for it.
//!
//! There is no accessed bit to read, so memory is probed. A hand goes round it once in the time that a
//! page may stay untouched (`--cold-after`). Of each block of 64 pages that it comes to it takes one,
//! the probe. If that is still out when the hand comes again, the block was not touched meanwhile, as
//! far as one page can tell for its neighbours, and the rest of it is taken too; else it has come back
//! with a mark, by which the hand passes the block by 1, 3 or 7 times ([`crate::mark`]). So a block in
//! use costs one fault in 8 rounds in the end, and what was taken by mistake comes back page by page
//! and is spared for as long.
//!
//! How fast the hand goes is also bounded by what faults cost the program (`--slowdown`).

use core::sync::atomic::Ordering;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::pagemap::Pages;

use crate::agent::{Active, Agent, Core};
use crate::hand::Hand;
use crate::mark::Mark;
use crate::page::{self, PageNumber};
use crate::sweep::{self, Taken};

/// Pages that one probe stands for.
const BLOCK_PAGES: u64 = 64;
/// The pace is judged after so long.
const JUDGED_NS: u64 = 1_000_000_000;
/// Full pace.
const PACE_MAX: u64 = 64;
/// What the pace gains when faults have cost less than they may. When they have cost more it is halved.
const PACE_STEP: u64 = 4;
const PARTS_PER_MILLION: u128 = 1_000_000;

/// How fast to go on.
pub struct Pace {
    /// In which time a hand at full pace goes round.
    round_ns: u64,
    /// What faults may take of the time, in millionths.
    slowdown_ppm: u64,
    pace: u64,
    judged_ns: u64,
    /// What faults had cost then.
    fault_ns: u64,
    stepped_ns: u64,
    /// Pages times nanoseconds that are left over from the last step.
    rest: u128,
}

impl Pace {
    pub fn new(round_ns: u64, slowdown_ppm: u64, now_ns: u64, fault_ns: u64) -> Pace {
        Pace {
            round_ns: round_ns.max(1),
            slowdown_ppm,
            pace: PACE_MAX,
            judged_ns: now_ns,
            fault_ns,
            stepped_ns: now_ns,
            rest: 0,
        }
    }

    /// How many of so many pages are to be looked at now. `fault_ns`: what all faults have cost so far.
    pub fn pages_due(&mut self, now_ns: u64, resident_pages: u64, fault_ns: u64) -> u64 {
        self.judge(now_ns, fault_ns);
        let elapsed = now_ns - core::mem::replace(&mut self.stepped_ns, now_ns);
        let round = u128::from(self.round_ns) * u128::from(PACE_MAX);
        let due =
            u128::from(resident_pages) * u128::from(elapsed) * u128::from(self.pace) + self.rest;
        self.rest = due % round;
        // No more than there is, however long ago the last step was.
        u64::try_from(due / round).unwrap_or(u64::MAX).min(resident_pages)
    }

    fn judge(&mut self, now_ns: u64, fault_ns: u64) {
        let elapsed = now_ns - self.judged_ns;
        if elapsed < JUDGED_NS {
            return;
        }
        let cost = u128::from(fault_ns.saturating_sub(self.fault_ns)) * PARTS_PER_MILLION;
        let too_much = cost > u128::from(elapsed) * u128::from(self.slowdown_ppm);
        self.pace =
            if too_much { (self.pace / 2).max(1) } else { (self.pace + PACE_STEP).min(PACE_MAX) };
        self.judged_ns = now_ns;
        self.fault_ns = fault_ns;
    }
}

/// What is to become of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was touched, or nothing can be said yet.
    Leave,
    Take,
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many pages were looked at.
    Looked(u64),
    /// The hand has been everywhere.
    Round,
    /// Staging must be emptied first.
    Full,
    /// An event must be read first.
    Changing,
}

/// Where the hand is.
pub struct Cold {
    hand: Hand,
    /// The block that it came to last, by its first page, and what was found of it.
    block: Option<(PageNumber, Verdict)>,
}

impl Cold {
    pub const START: Cold = Cold { hand: Hand::START, block: None };

    /// Looks at the pages of one block.
    pub fn step(&mut self, agent: &Agent, active: &Active, core: &mut Core) -> Step {
        let Some(run) = self.hand.run() else {
            if self.hand.look(active, &core.regions, Pages::All) {
                return Step::Looked(0);
            }
            self.hand.restart();
            self.block = None;
            // What comes back within a round or two has come back soon.
            core.sweep.note_round();
            return Step::Round;
        };
        if core.staging.free_slots().is_empty() {
            return Step::Full;
        }
        let first = page::number_of(run.start) / BLOCK_PAGES * BLOCK_PAGES;
        let end = run.end.min(page::address_of(first + BLOCK_PAGES));
        let piece = run.start..end;
        let verdict = match self.block {
            Some((block, verdict)) if block == first => verdict,
            _ => self.judge(agent, active, core, first),
        };
        self.block = Some((first, verdict));
        let bytes = match verdict {
            Verdict::Leave => piece.len(),
            Verdict::Take => match sweep::take(agent, active, core, piece) {
                (Taken::Changing, _) => return Step::Changing,
                (Taken::Pages, bytes) => {
                    let pages = (bytes / PAGE_SIZE) as u64;
                    let cold = &agent.process().counters.pages_cold;
                    cold.fetch_add(pages, Ordering::Relaxed);
                    bytes
                }
                (_, bytes) => bytes.max(PAGE_SIZE),
            },
        };
        self.hand.skip(bytes);
        Step::Looked((bytes / PAGE_SIZE) as u64)
    }

    /// Asks the probe of a block, or takes one.
    fn judge(&self, agent: &Agent, active: &Active, core: &mut Core, first: PageNumber) -> Verdict {
        let is_here =
            |page: PageNumber| self.hand.runs().any(|run| run.contains(&page::address_of(page)));
        // Not always the first page, in which allocators like to keep their own.
        let start = scattered(first) % BLOCK_PAGES;
        for nth in 0..BLOCK_PAGES {
            let page = first + (start + nth) % BLOCK_PAGES;
            if sweep::is_out(active, core, page) {
                return Verdict::Take;
            }
            let mark = Mark(active.store.mark(page));
            // A page that does not compress cannot be taken, and says nothing of the others.
            if !is_here(page) || !mark.compresses() {
                continue;
            }
            match mark.passed() {
                Some(mark) => {
                    active.store.set_mark(page, mark.0);
                }
                None => probe(agent, active, core, page),
            }
            return Verdict::Leave;
        }
        Verdict::Leave
    }
}

fn probe(agent: &Agent, active: &Active, core: &mut Core, page: PageNumber) {
    let range = page::address_of(page)..page::address_of(page + 1);
    // Where that is refused the next round tries again.
    if let (Taken::Pages, _) = sweep::move_start(agent, active, core, range, 1) {
        agent.process().counters.cold_probes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number that looks drawn at random.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn at_full_pace_every_page_is_due_once_in_a_round() {
        let mut pace = Pace::new(30 * SECOND, 20_000, 5, 0);
        let due: u64 = (1..=300).map(|tick| pace.pages_due(5 + tick * SECOND / 10, 1000, 0)).sum();
        assert_eq!(due, 1000);
        // After a long sleep no page twice.
        assert_eq!(pace.pages_due(5 + 3000 * SECOND, 1000, 0), 1000);
    }

    #[test]
    fn the_pace_falls_when_faults_cost_too_much_and_rises_again() {
        let mut pace = Pace::new(10 * SECOND, 20_000, 0, 0);
        let mut fault_ns = 0;
        let mut due_at = |second: u64, fault_share: u64| {
            fault_ns += SECOND / 100 * fault_share;
            pace.pages_due(second * SECOND, 64_000, fault_ns)
        };
        assert_eq!(due_at(1, 2), 6400);
        assert_eq!([due_at(2, 3), due_at(3, 50), due_at(4, 3)], [3200, 1600, 800]);
        assert_eq!([due_at(5, 1), due_at(6, 0)], [1200, 1600]);
        assert_eq!((7..40).fold(0, |_, second| due_at(second, 0)), 6400);
        assert!((40..80).all(|second| due_at(second, 100) > 0));
    }
}

//! Proactive reclaim: what was not touched for a while is compressed though there is room for it.
//!
//! There is no accessed bit to read, so memory is probed. A hand goes round it once in the time
//! that a page may stay untouched (`--cold-after`). Of each block of 64 pages that it comes to it
//! takes one, the probe. If that is still out when the hand comes again, the block was not touched
//! meanwhile, as far as one page can tell for its neighbours, and the rest of it is taken too; else
//! it has come back with a mark, by which the hand passes the block by 1, 3 or 7 times
//! ([`ramfold_policy::memory::reuse`]). So a block in use costs one fault in 8 rounds in the end,
//! and what was taken by mistake comes back page by page and is spared for as long.
//!
//! How fast the hand goes is also bounded by what faults cost the program (`--slowdown`).

use core::sync::atomic::Ordering;

use ramfold_policy::memory::reuse::Reuse;
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::pagemap::Pages;

use crate::agent::Context;
use crate::page::{self, PageNumber};
use crate::take::clock_hand::ClockHand;
use crate::take::sweep::{self, Taken};

/// Pages that one probe stands for.
const BLOCK_PAGES: u64 = 64;
/// What is to become of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was touched, or nothing can be said yet.
    Leave,
    Take,
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) struct Proactive {
    hand: ClockHand,
    /// The block that it came to last, by its first page, and what was found of it.
    block: Option<(PageNumber, Verdict)>,
}

impl Proactive {
    pub(crate) const START: Proactive = Proactive { hand: ClockHand::START, block: None };

    /// Looks at the pages of one block.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> Step {
        let Context { agent, active, .. } = *context;
        let Some(run) = self.hand.run() else {
            if self.hand.look(active, &context.core.regions, Pages::All) {
                return Step::Looked(0);
            }
            self.hand.restart();
            self.block = None;
            // What comes back within a round or two has come back soon.
            context.core.sweep.note_round();
            return Step::Round;
        };
        if context.core.staging.free_slots().is_empty() {
            return Step::Full;
        }
        let first = page::number_of(run.start) / BLOCK_PAGES * BLOCK_PAGES;
        let end = run.end.min(page::address_of(first + BLOCK_PAGES));
        let piece = run.start..end;
        let verdict = match self.block {
            Some((block, verdict)) if block == first => verdict,
            _ => self.judge(context, first),
        };
        self.block = Some((first, verdict));
        let bytes = match verdict {
            Verdict::Leave => piece.len(),
            Verdict::Take => match sweep::take(context, piece) {
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
    fn judge(&self, context: &mut Context<'_>, first: PageNumber) -> Verdict {
        let active = context.active;
        let is_here =
            |page: PageNumber| self.hand.runs().any(|run| run.contains(&page::address_of(page)));
        // Not always the first page, in which allocators like to keep their own.
        let start = scattered(first) % BLOCK_PAGES;
        for nth in 0..BLOCK_PAGES {
            let page = first + (start + nth) % BLOCK_PAGES;
            if sweep::is_out(active, context.core, page) {
                return Verdict::Take;
            }
            let mark = Reuse(active.store.mark(page));
            // A page that does not compress cannot be taken, and says nothing of the others.
            if !is_here(page) || !mark.compresses() {
                continue;
            }
            match mark.passed() {
                Some(mark) => {
                    active.store.set_mark(page, mark.0);
                }
                None => probe(context, page),
            }
            return Verdict::Leave;
        }
        Verdict::Leave
    }
}

fn probe(context: &mut Context<'_>, page: PageNumber) {
    let agent = context.agent;
    let range = page::address_of(page)..page::address_of(page + 1);
    // Where that is refused the next round tries again.
    if let (Taken::Pages, _) = sweep::move_start(context, range, 1) {
        agent.process().counters.cold_probes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number that looks drawn at random.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

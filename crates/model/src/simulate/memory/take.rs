//! Which page is taken next: as `take/sweep.rs` of the agent.

use ramfold_policy::memory::reuse::Reuse;
use ramfold_policy::memory::rounds::{
    BATCH_PAGES, PROBATION_PAGES_MIN, PROBATION_SHARE, Rounds, TRIAL_PLACES,
};
use ramfold_policy::memory::victims::{VictimChoice, VictimKind};

use super::{Entry, Memory, Objects, Place};
use crate::PageNumber;

/// In a miniature no more pages are taken at once than the cap / this.
pub(super) const BATCH_SHARE: usize = 64;
/// What of streams waits in any case in a miniature, whose streams bring in as many pages at a time
/// as all others: a window, and some of the one before.
const PROBATION_PAGES_MIN_SAMPLED: usize = 40;

/// Where the hand is, and what its rounds have gained.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) hand: PageNumber,
    pub(super) tried: PageNumber,
    pub(super) rounds: Rounds,
}

/// What one step of taking pages came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Taken,
    Passed,
    Nothing,
}

impl<O: Objects> Memory<O> {
    /// As `take_next` of the agent's sweep.
    pub(super) fn take_next(&mut self) -> Step {
        let least = if self.one_in > 1.0 {
            self.scaled(PROBATION_PAGES_MIN).max(PROBATION_PAGES_MIN_SAMPLED)
        } else {
            PROBATION_PAGES_MIN
        };
        let limit = (self.cap_pages() / PROBATION_SHARE).max(least);
        let streamed = self.probation.beyond(limit);
        if let Some((first, pages)) = streamed {
            let choice = self.victims.choose();
            if choice.kind == VictimKind::Streamed {
                return self.take_streamed(first, if choice.is_trial { 1 } else { pages }, choice);
            }
            if choice.is_trial {
                return self.try_page(choice);
            }
            while self.probation.beyond(2 * limit).is_some() {
                self.probation.drop_oldest();
            }
        }
        let kind = if streamed.is_some() { VictimKind::Swept } else { VictimKind::SweptAlone };
        let step = self.sweep(VictimChoice { kind, is_trial: false });
        match (step, self.probation.beyond(limit)) {
            (Step::Nothing, Some((first, pages))) => {
                let choice = VictimChoice { kind: VictimKind::Streamed, is_trial: false };
                self.take_streamed(first, pages, choice)
            }
            (step, _) => step,
        }
    }

    fn take_streamed(&mut self, first: PageNumber, pages: usize, choice: VictimChoice) -> Step {
        let run = first..first + pages as u64;
        let is_here = |page: &PageNumber| self.present.contains(page);
        let out = run.clone().take_while(|page| !is_here(page)).count();
        if out > 0 {
            self.probation.skip(out);
            return Step::Passed;
        }
        let tolerant = self.sweep.rounds.is_fruitless();
        let spared = run.clone().take_while(|&page| self.passes_by(page, tolerant)).count();
        if spared > 0 {
            self.probation.skip(spared);
            return Step::Passed;
        }
        let taken = self.take_run(run, tolerant);
        self.victims.note_taken(first, taken, choice);
        self.probation.skip(taken);
        Step::Taken
    }

    /// Takes one page somewhere, a good way behind the last that was.
    fn try_page(&mut self, choice: VictimChoice) -> Step {
        self.sweep.tried += ((self.cap_pages() / TRIAL_PLACES) as u64).max(1);
        let behind = self.present.range(self.sweep.tried..).next();
        let Some(&page) = behind.or_else(|| self.present.first()) else { return Step::Passed };
        self.sweep.tried = page;
        if is_spared(self.entries[&page].mark, false) {
            return Step::Passed;
        }
        self.take(page);
        self.victims.note_taken(page, 1, choice);
        self.probation.skip(1);
        Step::Taken
    }

    /// Takes a batch at the hand, or passes some pages by.
    fn sweep(&mut self, choice: VictimChoice) -> Step {
        let Some(&first) = self.present.range(self.sweep.hand..).next() else {
            if self.sweep.rounds.are_enough() || self.present.is_empty() {
                return Step::Nothing;
            }
            self.sweep.rounds.begin(self.staged);
            self.sweep.hand = 0;
            return Step::Passed;
        };
        let tolerant = self.sweep.rounds.is_fruitless();
        if self.passes_by(first, tolerant) {
            self.sweep.hand = first + 1;
            self.sweep.rounds.note_seen(1);
            return Step::Passed;
        }
        let taken = self.take_run(first..first + BATCH_PAGES as u64, tolerant);
        self.victims.note_taken(first, taken, choice);
        self.sweep.rounds.note_seen(taken as u64);
        self.sweep.hand = first + taken as u64;
        Step::Taken
    }

    /// Takes the first page of a run and those behind it that are present and not spared.
    fn take_run(&mut self, run: std::ops::Range<PageNumber>, tolerant: bool) -> usize {
        let is_next = |(nth, page): &(usize, PageNumber)| {
            let is_here = self.present.contains(page);
            is_here && (*nth == 0 || !is_spared(self.entries[page].mark, tolerant))
        };
        let pages: Vec<PageNumber> = (0..)
            .zip(run)
            .take(self.batch_pages())
            .take_while(is_next)
            .map(|(_, page)| page)
            .collect();
        pages.iter().for_each(|&page| self.take(page));
        pages.len()
    }

    fn take(&mut self, page: PageNumber) {
        self.present.remove(&page);
        let entry = self.entries.get_mut(&page).expect("a page in memory");
        self.taken += 1;
        let place = Place::Staging { number: self.taken };
        *entry = Entry { place, mark: entry.mark.taken(self.sweep.rounds.number()) };
        self.staging.push_back(page);
        self.staged += 1;
        self.objects.note_taken(page);
    }

    /// Is the page to be left alone this time? Takes one off its mark.
    fn passes_by(&mut self, page: PageNumber, tolerant: bool) -> bool {
        let Some(entry) = self.entries.get_mut(&page).filter(|entry| entry.place == Place::Memory)
        else {
            return false;
        };
        let mark = entry.mark;
        entry.mark = mark.passed().unwrap_or(mark);
        is_spared(mark, tolerant)
    }
}

/// Does a mark say to leave a page alone?
fn is_spared(mark: Reuse, tolerant: bool) -> bool {
    mark.passed().is_some() && !(tolerant && mark.compresses())
}

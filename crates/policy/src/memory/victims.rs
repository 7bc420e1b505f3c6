//! Which pages are taken first: those that streams have left behind ([`super::probation`]) or those
//! that the sweep comes by.
//!
//! A program that goes over more memory than there is room for should lose what it has just left
//! behind. One that goes over a small part of its memory again and again should lose the rest. No
//! rule is right for both, so it is measured how soon pages of either kind come back. Some pages,
//! picked by a hash of their number, leave a ghost when they are taken, which says when and why.
//! The pages of a kind that came back, by the time that all of its ghosts were out, those that are
//! still out too, is the rate at which it is missed, and pages are taken where that is lower. Time
//! is counted in pages that were taken.
//!
//! A ghost is looked at for a while only: pages that stay out for ever say nothing of those that
//! are left to take. Nor do those that were taken while streams had left nothing behind, for which
//! there was no choice. All ghosts tell how soon pages come back ([`super::refaults`]).

use super::PageNumber;
use super::refaults::Refaults;

/// Why a page was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VictimKind {
    /// A stream had left it behind.
    Streamed,
    /// The sweep came by it.
    Swept,
    /// By the sweep, when streams had left nothing behind.
    SweptAlone,
}

/// Where to take a page, and whether that is only to see what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct VictimChoice {
    /// Where to take it.
    pub kind: VictimKind,
    /// Only to see whether pages of this kind come back.
    pub is_trial: bool,
}

/// Places for ghosts, of which each page has one.
const GHOSTS: usize = 1024;
/// Of as many pages as the cap holds, so many leave ghosts.
const SAMPLES: u64 = 256;
/// A ghost is looked at while as many pages are taken as the cap holds, so many times.
const HORIZON: u64 = 2;
/// The ghosts are looked through so often in the time that as many pages are taken as the cap
/// holds.
const LOOKS: u64 = 16;
/// So many pages that streams have left behind have to come back before that is held against them.
const ENOUGH: u64 = 8;
/// When as many have come back, or should have if the cap's worth of pages were taken one after the
/// other, what is known counts half.
const PLENTY: u64 = 64;
/// At most one page in so many is taken to see what becomes of its kind.
const TRIAL_DISTANCE_MIN: u64 = 64;
/// What streams leave behind is kept only where it comes back by this much sooner.
const MARGIN: u128 = 2;

#[derive(Clone, Copy)]
#[repr(C)]
struct Ghost {
    /// 0 where there is none: nobody has that page.
    page: PageNumber,
    taken_at: u64,
    kind: VictimKind,
}

/// What became of the pages of a kind.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Rate {
    /// Pages that came back.
    returned: u64,
    /// Time that ghosts were out.
    out: u64,
}

impl Rate {
    fn is_well_below(&self, other: &Rate) -> bool {
        MARGIN * u128::from(self.returned + 1) * u128::from(other.out)
            < u128::from(other.returned) * u128::from(self.out)
    }
}

/// Decides where the next page is taken. Memory of zeros knows nothing, as [`Victims::NEW`] does.
#[repr(C)]
pub struct Victims {
    ghosts: [Ghost; GHOSTS],
    rates: [Rate; 3],
    /// How soon pages came back.
    pub refaults: Refaults,
    preferred: VictimKind,
    /// Pages taken so far, and when the ghosts were last looked through.
    now: u64,
    looked_at: u64,
    /// When a page was last taken as a trial.
    tried_at: u64,
    /// Pages that the cap holds.
    cap_pages: u64,
}

impl Victims {
    /// Nothing is known.
    pub const NEW: Victims = Victims {
        ghosts: [Ghost { page: 0, taken_at: 0, kind: VictimKind::Streamed }; GHOSTS],
        rates: [Rate { returned: 0, out: 0 }; 3],
        refaults: Refaults::NEW,
        preferred: VictimKind::Streamed,
        now: 0,
        looked_at: 0,
        tried_at: 0,
        cap_pages: 0,
    };

    /// So many pages the cap holds.
    pub fn set_cap(&mut self, cap_pages: u64) {
        self.cap_pages = cap_pages;
    }

    /// Where to take pages next.
    pub fn choose(&mut self) -> VictimChoice {
        let cap_pages = self.cap_pages;
        if self.now - self.looked_at > cap_pages / LOOKS {
            self.look();
            let [streamed, swept, _] = &self.rates;
            let sweep = streamed.returned >= ENOUGH && swept.is_well_below(streamed);
            self.preferred = if sweep { VictimKind::Swept } else { VictimKind::Streamed };
        }
        if self.now - self.tried_at < (cap_pages / SAMPLES).max(TRIAL_DISTANCE_MIN) {
            return VictimChoice { kind: self.preferred, is_trial: false };
        }
        self.tried_at = self.now;
        let other = if self.preferred == VictimKind::Streamed {
            VictimKind::Swept
        } else {
            VictimKind::Streamed
        };
        VictimChoice { kind: other, is_trial: true }
    }

    /// The kind that is missed less.
    pub fn preferred(&self) -> VictimKind {
        self.preferred
    }

    /// These pages were taken.
    pub fn note_taken(&mut self, first: PageNumber, pages: usize, choice: VictimChoice) {
        for page in first..first + pages as u64 {
            self.now += 1;
            let hash = hash(page);
            if choice.is_trial || self.is_sampled(hash) {
                let ghost = Ghost { page, taken_at: self.now, kind: choice.kind };
                self.ghosts[place(hash)] = ghost;
            }
        }
    }

    /// The program asked for this page again.
    pub fn note_returned(&mut self, page: PageNumber) {
        let hash = hash(page);
        let index = place(hash);
        if self.ghosts[index].page == page {
            self.count_out(index);
            let Ghost { taken_at, kind, .. } = self.ghosts[index];
            self.rates[kind as usize].returned += 1;
            self.refaults.note(self.now - taken_at, self.cap_pages);
            self.ghosts[index].page = 0;
        } else if self.is_sampled(hash) {
            self.refaults.note(u64::MAX, self.cap_pages);
        }
    }

    fn is_sampled(&self, hash: u64) -> bool {
        hash.is_multiple_of((self.cap_pages / SAMPLES).max(1))
    }

    /// Adds the time that a page was out since the last look.
    fn count_out(&mut self, index: usize) {
        let Ghost { taken_at, kind, .. } = self.ghosts[index];
        self.rates[kind as usize].out += self.now - taken_at.max(self.looked_at);
    }

    fn look(&mut self) {
        for index in 0..GHOSTS {
            let Ghost { page, taken_at, .. } = self.ghosts[index];
            if page != 0 {
                self.count_out(index);
                if self.now - taken_at > HORIZON * self.cap_pages {
                    self.ghosts[index].page = 0;
                }
            }
        }
        for rate in &mut self.rates {
            if rate.returned >= PLENTY || rate.out >= PLENTY * self.cap_pages {
                *rate = Rate { returned: rate.returned / 2, out: rate.out / 2 };
            }
        }
        self.looked_at = self.now;
    }
}

fn hash(page: PageNumber) -> u64 {
    let hash = (page ^ page >> 15).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Of a page's ghost.
fn place(hash: u64) -> usize {
    (hash >> 32) as usize % GHOSTS
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const CAP: u64 = 2048;
    /// Pages of streams that wait before they are taken.
    const WAITING: usize = CAP as usize / 16;

    /// A program whose pages come in one after the other as a stream, in this order, over and over.
    /// In memory are as many as the cap holds. Returns how many of `count` accesses found no page.
    fn misses(order: &[PageNumber], count: usize) -> usize {
        let mut victims = Box::new(Victims::NEW);
        victims.set_cap(CAP);
        let mut present = HashSet::new();
        let mut streamed = VecDeque::new();
        let pages = order.iter().max().unwrap() + 1;
        let (mut hand, mut place, mut misses) = (0, 0, 0);
        for &page in order.iter().cycle().take(count) {
            if !present.insert(page) {
                continue;
            }
            misses += 1;
            victims.note_returned(page);
            streamed.push_back(page);
            while present.len() as u64 > CAP {
                let choice = match victims.choose() {
                    choice if streamed.len() > WAITING => choice,
                    _ => VictimChoice { kind: VictimKind::Swept, is_trial: false },
                };
                let victim = match choice {
                    VictimChoice { kind: VictimKind::Streamed, .. } => {
                        streamed.pop_front().unwrap()
                    }
                    VictimChoice { is_trial: true, .. } => {
                        streamed.pop_front();
                        place += CAP / 7;
                        place % pages
                    }
                    _ => {
                        streamed.drain(..streamed.len().saturating_sub(2 * WAITING));
                        hand = (hand + 1) % pages;
                        hand
                    }
                };
                if present.remove(&victim) {
                    victims.note_taken(victim, 1, choice);
                }
            }
        }
        misses
    }

    #[test]
    fn a_program_that_goes_over_all_its_memory_loses_what_it_leaves_behind() {
        let order: Vec<_> = (0..2 * CAP).collect();
        let rounds = 40;
        let misses = misses(&order, rounds * order.len());
        // The best that can be had is half of them.
        assert!(misses < rounds * order.len() * 58 / 100, "{misses}");
    }

    #[test]
    fn a_program_that_stays_in_a_part_of_its_memory_loses_the_rest() {
        // All of it once, then the last half over and over, which there is room for.
        let order: Vec<_> =
            (0..2 * CAP).chain((0..400).flat_map(|_| CAP + CAP / 4..2 * CAP)).collect();
        let misses = misses(&order, order.len());
        assert!(misses < 40 * CAP as usize, "{misses}");
    }
}

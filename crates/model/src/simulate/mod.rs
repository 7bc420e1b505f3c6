//! Replacement policies over a trace of page accesses.
//!
//! | module | policy |
//! |---|---|
//! | [`lru`] | drops the least recently used page: the shortest example of a [`Policy`] |
//! | [`s3fifo`] | S3-FIFO (Yang and others, SOSP 2023), a modern one to compare with |
//! | [`memory`] | ramfold's own in programs: the decisions are `ramfold-policy`'s, the memory is this crate's |
//! | [`files`] | ramfold's own in the cache of files, in the same way |
//!
//! [`watched`] has what is known of pages that were watched now and then, [`program`] runs ramfold's
//! own policy over that.
//!
//! A long trace is simulated in miniature: of the pages that a hash picks, one in `1/R`, with a
//! memory of `R` times the size (Waldspurger, Saemundsson, Ahmad and Park, "Cache modeling and
//! optimization using miniature simulations", ATC 2017).

pub mod files;
pub mod lru;
pub mod memory;
pub mod program;
pub mod s3fifo;
pub mod watched;

use crate::{PageNumber, is_sampled};

/// What an access came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The page was in memory.
    Hit,
    /// The page was never there before.
    First,
    /// The page had left.
    Fault {
        /// Pages that came with it, unasked.
        ahead: u32,
    },
}

/// A memory of a size, which decides what leaves.
pub trait Policy {
    /// The program touches a page. The page is in memory afterwards.
    fn access(&mut self, page: PageNumber) -> Access;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn access(&mut self, page: PageNumber) -> Access {
        (**self).access(page)
    }
}

/// What a trace came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Accesses.
    pub accesses: u64,
    /// Of these, to pages that were never there before.
    pub first: u64,
    /// Of these, to pages that had left.
    pub faults: u64,
    /// Pages that came with these, unasked.
    pub ahead: u64,
}

impl Tally {
    /// Runs the policy over one access.
    pub fn access(&mut self, policy: &mut (impl Policy + ?Sized), page: PageNumber) {
        self.accesses += 1;
        match policy.access(page) {
            Access::Hit => {}
            Access::First => self.first += 1,
            Access::Fault { ahead } => {
                self.faults += 1;
                self.ahead += u64::from(ahead);
            }
        }
    }

    /// Accesses that found no page, first ones included, as a part of all.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 {
            return 0.0;
        }
        (self.first + self.faults) as f64 / self.accesses as f64
    }

    /// Pages brought back: those that were asked for, and what came with them.
    pub fn pages_back(&self) -> u64 {
        self.faults + self.ahead
    }
}

/// A policy over a part of the pages, with that part of the memory.
#[derive(Debug)]
pub struct Miniature<P> {
    policy: P,
    /// One page in this many is looked at.
    one_in: u64,
    /// All pages of the trace are in it.
    is_sample: bool,
    tally: Tally,
}

impl<P: Policy> Miniature<P> {
    /// Looks at one page in `one_in`; `policy` has that part of the memory. 1 is the whole
    /// simulation.
    pub fn new(policy: P, one_in: u64) -> Miniature<P> {
        Miniature { policy, one_in: one_in.max(1), is_sample: false, tally: Tally::default() }
    }

    /// The same where the trace has that part of the pages alone.
    pub fn of_sample(policy: P, one_in: u64) -> Miniature<P> {
        Miniature { is_sample: true, ..Miniature::new(policy, one_in) }
    }

    /// The program touches a page.
    pub fn access(&mut self, page: PageNumber) {
        if self.is_sample || is_sampled(page, self.one_in) {
            self.tally.access(&mut self.policy, page);
        }
    }

    /// What the part came to, times what it is a part of.
    pub fn tally(&self) -> Tally {
        let Tally { accesses, first, faults, ahead } = self.tally;
        let whole = |count| count * self.one_in;
        Tally {
            accesses: whole(accesses),
            first: whole(first),
            faults: whole(faults),
            ahead: whole(ahead),
        }
    }
}

#[cfg(test)]
mod tests;

//! Deduplication: pages of equal content refer to one object.
//!
//! A page that no other is equal to has its object under its own key. When a second page turns out
//! to be equal, the object moves to a key that is neither's, and both pages become references to
//! it. The table that equal pages are found by holds hints ([`hints`]), which are compared before
//! they are believed; references are counted exactly ([`shares`]).

mod hash;
mod hints;
mod shares;

pub(super) use hash::PageHash;
pub(super) use hints::Candidates;
use hints::{Hints, Shape};
use shares::Shares;

/// What a hint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A page that may have an object of its own.
    Page(u64),
    /// A shared object.
    Shared(u32),
}

/// Most pages of a disk: a hint has numbers for pages and for half as many shared objects.
pub(super) const PAGES_MAX: u64 = 1 << 30;

/// Hints for each object, times 8, below which the table doubles. At 9 one equal page of twenty is
/// not found just before that.
const HINTS_PER_OBJECT_8: u64 = 9;

pub(super) struct Dedup {
    pub(super) hash: PageHash,
    pub(super) shares: Shares,
    hints: Hints,
    pages: u32,
}

impl Dedup {
    /// Deduplication for a disk of `pages` pages, and memory for at most `objects_max` objects.
    pub(super) fn new(hash: PageHash, pages: u64, objects_max: u64) -> Dedup {
        let pages = pages.min(PAGES_MAX) as u32;
        let shares = Shares::new(pages.div_ceil(2));
        let hints = Hints::new(Dedup::shape(pages, objects_max));
        Dedup { hash, shares, hints, pages }
    }

    fn shape(pages: u32, objects_max: u64) -> Shape {
        let hints_max = u64::from(pages).min(objects_max) * HINTS_PER_OBJECT_8 / 8;
        Shape::new(pages + pages.div_ceil(2), hints_max)
    }

    /// Bytes that the tables begin with.
    pub(super) fn least_bytes(pages: u64, objects_max: u64) -> usize {
        let pages = pages.min(PAGES_MAX) as u32;
        Dedup::shape(pages, objects_max).least_bytes() + Shares::least_bytes(pages.div_ceil(2))
    }

    /// Bytes that the tables take at most.
    pub(super) fn most_bytes(pages: u64, objects_max: u64) -> usize {
        let pages = pages.min(PAGES_MAX) as u32;
        Dedup::shape(pages, objects_max).most_bytes() + Shares::most_bytes(pages.div_ceil(2))
    }

    /// Makes the tables as large as they can be. Before anything is in them.
    pub(super) fn prepare(&self) {
        self.shares.prepare();
        while self.hints.may_double() {
            self.hints.double();
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.hints.bytes() + self.shares.bytes()
    }

    /// Makes the tables large enough for `objects` objects, if `has_room` for the bytes.
    /// For one thread at a time. Returns the bytes that it took.
    pub(super) fn grow(&self, objects: u64, has_room: impl Fn(usize) -> bool) -> usize {
        let before = self.bytes();
        if has_room(Shares::STEP_BYTES) {
            self.shares.refill();
        }
        while self.hints.capacity() < objects * HINTS_PER_OBJECT_8 / 8
            && self.hints.may_double()
            && has_room(self.hints.bytes())
        {
            self.hints.double();
        }
        self.bytes() - before
    }

    /// What pages of this hash may be equal to.
    pub(super) fn find(&self, hash: u64) -> Candidates {
        self.hints.find(hash)
    }

    pub(super) fn named(&self, id: u32) -> Named {
        match id.checked_sub(self.pages + 1) {
            Some(shared) => Named::Shared(shared),
            None => Named::Page(u64::from(id.saturating_sub(1))),
        }
    }

    fn id(&self, named: Named) -> u32 {
        match named {
            Named::Page(block) => block as u32 + 1,
            Named::Shared(number) => self.pages + 1 + number,
        }
    }

    /// The mark of an object of this hash.
    pub(super) fn mark(&self, hash: u64) -> u8 {
        self.hints.mark(hash)
    }

    /// Notes where a page of this hash is. `mark_of`: the mark of an object that is there by now.
    pub(super) fn note(&self, hash: u64, at: Named, mark_of: impl Fn(Named) -> Option<u8>) {
        self.hints.insert(hash, self.id(at), |id| mark_of(self.named(id)));
    }

    /// Notes that what was at one place is at another, or nowhere.
    pub(super) fn renote(&self, hash: u64, from: Named, to: Option<Named>) {
        self.hints.replace(hash, self.id(from), to.map_or(0, |to| self.id(to)));
    }
}

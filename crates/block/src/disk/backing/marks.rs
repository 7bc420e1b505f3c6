//! What the cache knows of a page, in the mark of its entry, and how many there are of which kind.
//!
//! A mark is changed under the page's lock, except that [`Marks::grow_old`] changes ages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The backing does not have what the page is.
pub(super) const DIRTY: u8 = 0x80;
/// It is being written to the backing, and has not changed since that began. Such a page is dirty
/// too.
pub(super) const WRITING: u8 = 0x40;
/// A read brought it.
pub(super) const READ: u8 = 0x20;
/// The age in which it became what the other bits say, modulo 32.
const AGE: u8 = 0x1f;

/// A page is not taken for older: its number would be that of a new age soon.
const DISTANCE_MAX: u8 = 24;
pub(super) const AGES: usize = DISTANCE_MAX as usize + 1;
/// Ages that writes begin between two looks at all marks.
const AGES_BY_WRITES: u64 = 5;
/// No age comes round: a look begins one too.
const _: () = assert!(DISTANCE_MAX as u64 + AGES_BY_WRITES + 1 < AGES_KNOWN);
const AGES_KNOWN: u64 = AGE as u64 + 1;
/// So much of the cache is written in an age.
const AGE_PART: u64 = 16;
const AGE_PAGES_MIN: u64 = 64;

/// Groups of 64 pages share as many hints that one of them may be dirty.
const HINTS: usize = 1 << 14;

/// Which hints there were at a moment.
pub(super) struct Hinted(Box<[bool]>);

impl Hinted {
    pub(super) const BYTES: usize = HINTS * size_of::<bool>();

    pub(super) fn new() -> Hinted {
        Hinted(vec![false; HINTS].into())
    }

    /// Whether the group of a page may have dirty ones.
    pub(super) fn has(&self, block: u64) -> bool {
        self.0[hint_of(block)]
    }
}

fn hint_of(block: u64) -> usize {
    (block / super::GROUP) as usize % HINTS
}

pub(super) struct Marks {
    /// The number of this age.
    age: AtomicU64,
    /// The youngest age of which a page has left.
    youngest_left: AtomicU64,
    /// Pages written in this age; ages that writes began since the last look.
    written: AtomicU64,
    begun: AtomicU64,
    pub(super) pages: AtomicU64,
    pub(super) dirty: AtomicU64,
    hints: Box<[AtomicBool]>,
}

impl Marks {
    pub(super) const BYTES: usize = HINTS * size_of::<AtomicBool>();

    pub(super) fn new() -> Marks {
        Marks {
            age: AtomicU64::new(1),
            youngest_left: AtomicU64::new(0),
            written: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            hints: (0..HINTS).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(super) fn age(&self) -> u64 {
        self.age.load(Ordering::SeqCst)
    }

    pub(super) fn begin_age(&self) {
        self.written.store(0, Ordering::Relaxed);
        self.age.fetch_add(1, Ordering::SeqCst);
    }

    /// All marks were looked at, and none is older than it can be told.
    pub(super) fn end_look(&self) {
        self.begun.store(0, Ordering::Relaxed);
    }

    /// Begins an age where many pages were written in this one.
    pub(super) fn count_written(&self, pages: u64) {
        let written = self.written.fetch_add(pages, Ordering::Relaxed) + pages;
        let most = (self.pages.load(Ordering::Relaxed) / AGE_PART).max(AGE_PAGES_MIN);
        if written >= most && self.begun.fetch_add(1, Ordering::Relaxed) < AGES_BY_WRITES {
            self.begin_age();
        }
    }

    /// The mark of a page that becomes this in that age.
    pub(super) fn mark(kind: u8, age: u64) -> u8 {
        kind | age as u8 & AGE
    }

    /// Ages since the page became what it is.
    pub(super) fn distance(&self, mark: u8) -> u8 {
        Marks::distance_at(self.age(), mark)
    }

    fn distance_at(age: u64, mark: u8) -> u8 {
        (age as u8).wrapping_sub(mark) & AGE
    }

    /// The mark, with an age that does not come round.
    pub(super) fn grow_old(&self, mark: u8) -> u8 {
        if self.distance(mark) <= DISTANCE_MAX {
            return mark;
        }
        Marks::mark(mark & !AGE, self.age() - u64::from(DISTANCE_MAX))
    }

    /// A page with this mark leaves. To be said before it does.
    pub(super) fn leaves(&self, mark: u8) {
        let now = self.age();
        let age = now.saturating_sub(u64::from(Marks::distance_at(now, mark)));
        self.youngest_left.fetch_max(age, Ordering::SeqCst);
    }

    /// Whether a page that is not there has not been there since this age began.
    pub(super) fn none_left_since(&self, age: u64) -> bool {
        self.youngest_left.load(Ordering::SeqCst) < age
    }

    /// Notes where a page is dirty, for the next flush.
    pub(super) fn note_dirty(&self, block: u64) {
        self.hints[hint_of(block)].store(true, Ordering::SeqCst);
    }

    /// Notes that any page may be dirty.
    pub(super) fn note_all(&self) {
        self.hints.iter().for_each(|hint| hint.store(true, Ordering::SeqCst));
    }

    /// Takes all hints: there are none from now on, until a page is noted.
    pub(super) fn take_hints(&self, hinted: &mut Hinted) {
        for (hint, taken) in self.hints.iter().zip(&mut hinted.0) {
            *taken = hint.load(Ordering::SeqCst) && hint.swap(false, Ordering::SeqCst);
        }
    }

    /// Puts hints back.
    pub(super) fn put_back(&self, hinted: &Hinted) {
        for (hint, _) in self.hints.iter().zip(&hinted.0).filter(|(_, taken)| **taken) {
            hint.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_grows_old_and_not_young_again() {
        let marks = Marks::new();
        let mut mark = Marks::mark(DIRTY | READ, marks.age());
        for ages in 1..200u64 {
            marks.begin_age();
            mark = marks.grow_old(mark);
            assert_eq!(u64::from(marks.distance(mark)), ages.min(DISTANCE_MAX.into()));
            assert_eq!(mark & !AGE, DIRTY | READ);
        }
        assert!(marks.none_left_since(1));
        marks.leaves(mark);
        let left = marks.age() - u64::from(DISTANCE_MAX);
        assert!(marks.none_left_since(left + 1) && !marks.none_left_since(left));
    }
}

//! The pages that the kernel writes to when threads end.
//!
//! pthread_join waits for a word in a thread's control block, which the kernel clears when the
//! thread has ended (set_tid_address(2)), and it waits for no userfaultfd then: were the page
//! missing, or protected, the word would stay as it is, and pthread_join would not return. glibc
//! has that block at the end of the stack that it maps for the thread (nptl/allocatestack.c).
//!
//! The first thread's is known by itself: [`crate::agent::Agent::watched_page`].

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::page::{self, PageNumber, pages_of};

/// So many are known at most. Of more threads, or other stacks, some are not: their pages are like
/// any others.
const PAGES_MAX: usize = 1024;
/// A page is at one of so many places, from that which its number leads to.
const PLACES: usize = 8;

/// A set of pages. All zero is none: there is no page zero.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | a place | threads of the program, Release, after they have mapped a stack; the handler clears it, in one step, if it is that page still | the sweep, the handler, who guards memory; Acquire | nothing more: a place is one word, and a page that is missed is like any other |
pub(crate) struct EndPages {
    places: [AtomicU64; PAGES_MAX],
}

impl EndPages {
    /// A stack was mapped here.
    pub(crate) fn note_stack(&self, stack: &Range<usize>) {
        let page = page::number_of(stack.end - 1);
        // Two threads may take one place: of one of them nothing is known then.
        let free = self.places_of(page).find(|place| {
            let known = place.load(Ordering::Relaxed);
            known == 0 || known == page
        });
        if let Some(place) = free {
            place.store(page, Ordering::Release);
        }
    }

    /// What was unmapped is none.
    pub(crate) fn remove(&self, range: &Range<usize>) {
        let (first, count) = pages_of(range);
        for place in &self.places {
            let page = place.load(Ordering::Relaxed);
            if page != 0 && (first..first + count).contains(&page) {
                let _ = place.compare_exchange(page, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn contains(&self, page: PageNumber) -> bool {
        self.places_of(page).any(|place| place.load(Ordering::Acquire) == page)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PageNumber> {
        self.places.iter().map(|place| place.load(Ordering::Acquire)).filter(|&page| page != 0)
    }

    fn places_of(&self, page: PageNumber) -> impl Iterator<Item = &AtomicU64> {
        // Stacks lie a power of two and a page apart, or without that page.
        let first = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PLACES).map(move |step| &self.places[(first + step) % PAGES_MAX])
    }
}

#[cfg(test)]
mod tests {
    use ramfold_sys::PAGE_SIZE;

    use super::*;

    #[test]
    fn the_last_pages_of_stacks_are_known_until_they_are_unmapped() {
        // SAFETY: atomics may be zero.
        let pages = unsafe { Box::<EndPages>::new_zeroed().assume_init() };
        for stack_bytes in [64 << 10, 8 << 20, (8 << 20) + PAGE_SIZE] {
            let stack = |index: usize| {
                let start = 0x7f00_0000_0000 + index * stack_bytes;
                start..start + stack_bytes
            };
            for index in 0..200 {
                pages.note_stack(&stack(index));
                pages.note_stack(&stack(index));
            }
            for index in 0..200 {
                let end = page::number_of(stack(index).end);
                assert!(
                    pages.contains(end - 1) && !pages.contains(end) && !pages.contains(end - 2)
                );
            }
            assert_eq!(pages.iter().count(), 200);
            pages.remove(&(stack(10).start..stack(19).end));
            pages.remove(&(stack(30).start..stack(30).end - PAGE_SIZE));
            assert_eq!(pages.iter().count(), 190);
            assert!(!pages.contains(page::number_of(stack(10).end - 1)));
            assert!(pages.contains(page::number_of(stack(30).end - 1)));
            pages.remove(&(stack(0).start..stack(199).end));
            assert_eq!(pages.iter().count(), 0);
        }
    }

    #[test]
    fn more_stacks_than_there_are_places_push_out_none() {
        // SAFETY: as above.
        let pages = unsafe { Box::<EndPages>::new_zeroed().assume_init() };
        let stack = |index: usize| index << 20..(index + 1) << 20;
        pages.note_stack(&stack(1));
        (2..4 * PAGES_MAX).for_each(|index| pages.note_stack(&stack(index)));
        assert!(pages.contains(page::number_of(stack(1).end - 1)));
        assert!(pages.iter().count() > PAGES_MAX / 2);
    }
}

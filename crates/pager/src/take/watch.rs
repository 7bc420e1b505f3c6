//! Watched pages: a sample that is taken out, uncompressed, to see when each is accessed
//! ([`ramfold_policy::memory::watch`]).
//!
//! A watched page is in staging, as others are that were taken, or in the store where memory was
//! short meanwhile. Whoever brings it back notes that it was touched. The table here has the pages
//! of the sample, by blocks.

use ramfold_policy::memory::watch::{BLOCK_PAGES, REST_NS, is_sampled};

use rustix::thread::sched_yield;

use crate::agent::Agent;
use crate::kernel::time;
use crate::page::PageNumber;
use crate::session::{PageEvent, Watched};

/// Twice as many as a sample has, in blocks of which half of the pages are there.
pub(crate) const BLOCKS_MAX: usize = 1024;
const PAGES: usize = BLOCK_PAGES as usize;
/// Pages of a block that are taken together: two neighbours.
const TURN_PAGES: usize = 2;
const TURN: u8 = 3;
const TURNS: usize = PAGES / TURN_PAGES;
const LOCK_TRIES: u32 = 1000;
/// The step from one block that is watched to the next, as a part of the sample: of any number of
/// steps the places lie evenly.
const GOLDEN_SECTION: (usize, usize) = (618, 1000);

/// A page of the sample. All zero is one that is not there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WatchedPage {
    /// It was there at the last look, or is out.
    pub is_there: bool,
    /// When it was taken; 0: it is not watched.
    pub taken_ns: u64,
}

/// A block of the sample.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub number: u64,
    /// When pages of it are to be taken next, and which: it is their turn.
    pub due_ns: u64,
    pub turn: usize,
    /// When its pages were last offered to the launcher, to see how small they become.
    pub offered_ns: u64,
    pub pages: [WatchedPage; PAGES],
}

impl Block {
    /// Pages that are watched, a bit each.
    pub(crate) fn watched(&self) -> u8 {
        let bits = (0..).zip(&self.pages);
        bits.map(|(nth, page)| u8::from(page.taken_ns > 0) << nth).sum()
    }

    /// Those pages of `here`, a bit each, that were watched and were put back.
    pub(crate) fn put_back(&self, here: u8) -> u8 {
        here & self.watched()
    }

    /// Which pages are to be taken now, of those that are `here`, a bit each: those that were
    /// watched and were put back, and where it is time those whose turn it is. Neighbours are
    /// alike, so a few of them at a time say how the block is used; and two of them that they are
    /// used together.
    pub(crate) fn due(&mut self, here: u8, now_ns: u64) -> u8 {
        let watched = self.watched();
        let put_back = self.put_back(here);
        if now_ns < self.due_ns {
            return put_back;
        }
        self.due_ns = now_ns + REST_NS;
        for _ in 0..TURNS {
            let pages = TURN << (self.turn * TURN_PAGES) & here & !watched;
            self.turn = (self.turn + 1) % TURNS;
            if pages != 0 {
                return put_back | pages;
            }
        }
        put_back
    }
}

/// The sample of this process. All zero is one that has not begun.
#[repr(C)]
pub(crate) struct Watch {
    /// The number of this process among those that watch; 0: it does not.
    process: u32,
    count: usize,
    /// The block that is asked next whether it is due.
    next: usize,
    /// Sorted by their numbers.
    blocks: [Block; BLOCKS_MAX],
}

impl Watch {
    /// Begins as this process. What it has is of the process that this one is a copy of.
    pub(crate) fn begin(&mut self, process: u32) {
        self.process = process;
        self.count = 0;
    }

    /// The number of this process among those that watch; 0: it does not.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn block(&mut self, nth: usize) -> Option<&mut Block> {
        self.blocks[..self.count].get_mut(nth)
    }

    /// The next block of which pages are to be taken. Each has its turn: when what a program may
    /// lose is used up it goes on behind the last that was told. One that follows another lies far
    /// from it: what is watched at any time is a sample of all memory, so what a program does at
    /// that time is not taken for what it does in that place.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<usize> {
        let count = self.count;
        let golden = count * GOLDEN_SECTION.0 / GOLDEN_SECTION.1;
        let step = (1..=golden).rev().find(|&step| are_coprime(step, count)).unwrap_or(1);
        let nth_from_here = |nth: usize| (self.next % count + nth * step) % count;
        let is_due = |nth: &usize| self.blocks[*nth].due_ns <= now_ns;
        let found = (0..count).map(nth_from_here).find(is_due)?;
        self.next = found + step;
        Some(found)
    }

    fn position(&self, number: u64) -> Result<usize, usize> {
        self.blocks[..self.count].binary_search_by_key(&number, |block| block.number)
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.position(number).is_ok()
    }

    /// Adds a block to the sample. `false`: there is no room.
    pub(crate) fn insert(&mut self, number: u64, now_ns: u64) -> bool {
        let Err(at) = self.position(number) else { return true };
        if self.count == BLOCKS_MAX {
            return false;
        }
        self.blocks.copy_within(at..self.count, at + 1);
        let none = WatchedPage { is_there: false, taken_ns: 0 };
        self.blocks[at] = Block {
            number,
            // Not all that came together are taken together.
            due_ns: now_ns + number.wrapping_mul(0x9E37_79B9) % REST_NS,
            turn: 0,
            offered_ns: 0,
            pages: [none; PAGES],
        };
        self.count += 1;
        true
    }

    /// Removes a block.
    pub(crate) fn remove(&mut self, nth: usize) {
        self.blocks.copy_within(nth + 1..self.count, nth);
        self.count -= 1;
    }

    /// The first block that is not sampled at this level.
    pub(crate) fn beyond(&self, level: u32) -> Option<usize> {
        self.blocks[..self.count].iter().position(|block| !is_sampled(block.number, level))
    }

    fn block_of(&mut self, page: PageNumber) -> Option<&mut Block> {
        if self.count == 0 {
            return None;
        }
        let at = self.position(page / BLOCK_PAGES).ok()?;
        Some(&mut self.blocks[at])
    }

    fn page(&mut self, page: PageNumber) -> Option<&mut WatchedPage> {
        let block = self.block_of(page)?;
        Some(&mut block.pages[(page % BLOCK_PAGES) as usize])
    }

    /// A page was taken, by whomever.
    pub(crate) fn note_taken(&mut self, page: PageNumber, now_ns: impl Fn() -> u64) {
        if let Some(page) = self.page(page) {
            page.is_there = true;
            if page.taken_ns == 0 {
                page.taken_ns = now_ns();
            }
        }
    }

    /// A page is back that nobody has asked for. What there is to tell of it.
    fn note_untouched(&mut self, page: PageNumber, now_ns: u64) -> Option<PageEvent> {
        let taken_ns = core::mem::take(&mut self.page(page)?.taken_ns);
        (taken_ns > 0).then(|| {
            let watched_ns = now_ns.saturating_sub(taken_ns);
            self.event(Watched::Untouched, page, now_ns, watched_ns)
        })
    }

    /// A page was asked for, and is back. What there is to tell of it.
    fn note_touched(&mut self, page: PageNumber, now_ns: impl Fn() -> u64) -> Option<PageEvent> {
        let block = self.block_of(page)?;
        let watched = &mut block.pages[(page % BLOCK_PAGES) as usize];
        let taken_ns = core::mem::take(&mut watched.taken_ns);
        if taken_ns == 0 {
            return None;
        }
        let now_ns = now_ns();
        let watched_ns = now_ns.saturating_sub(taken_ns);
        block.due_ns = block.due_ns.max(now_ns + REST_NS);
        Some(self.event(Watched::Touched, page, now_ns, watched_ns))
    }

    /// An event of this process.
    pub(crate) fn event(
        &self,
        what: Watched,
        page: PageNumber,
        now_ns: u64,
        watched_ns: u64,
    ) -> PageEvent {
        let (time_us, watched_us) = (now_ns / 1000, watched_ns / 1000);
        PageEvent { process: self.process, page, time_us, watched_us, what }
    }
}

fn are_coprime(mut one: usize, mut other: usize) -> bool {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one == 1
}

/// A page was asked for, and is back.
pub(crate) fn note_touched(agent: &Agent, watch: &mut Watch, page: PageNumber) {
    if let Some(event) = watch.note_touched(page, time::monotonic_ns) {
        agent.session().watch.put(event);
    }
}

/// A page is back that nobody has asked for, and is watched no more.
pub(crate) fn note_untouched(agent: &Agent, watch: &mut Watch, page: PageNumber, now_ns: u64) {
    if let Some(event) = watch.note_untouched(page, now_ns) {
        agent.session().watch.put(event);
    }
}

/// The program is gone, with all its pages. Of one whose agent is just at work with them, and ends
/// before it has done, nothing is told.
pub(crate) fn tell_end(agent: &Agent) {
    if agent.session().watch.slowdown_ppm().is_none() {
        return;
    }
    let mut core = None;
    for _ in 0..LOCK_TRIES {
        core = agent.core.try_lock();
        if core.is_some() {
            break;
        }
        sched_yield();
    }
    let Some(mut core) = core.filter(|core| core.watch.process > 0) else { return };
    let now = time::monotonic_ns();
    for nth in 0..core.watch.count {
        let first = core.watch.blocks[nth].number * BLOCK_PAGES;
        for page in first..first + BLOCK_PAGES {
            note_untouched(agent, &mut core.watch, page, now);
        }
    }
    agent.session().watch.put(core.watch.event(Watched::Ended, 0, now, 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Box<Watch> {
        // SAFETY: all zero is a sample that has not begun.
        unsafe { Box::<Watch>::new_zeroed().assume_init() }
    }

    #[test]
    fn blocks_are_kept_in_order() {
        let mut watch = watch();
        for number in [5, 1, 9, 5, 3] {
            assert!(watch.insert(number, 0));
        }
        let numbers = |watch: &mut Watch| -> Vec<u64> {
            (0..watch.count()).map(|nth| watch.block(nth).unwrap().number).collect()
        };
        assert_eq!(numbers(&mut watch), [1, 3, 5, 9]);
        watch.remove(1);
        assert_eq!(numbers(&mut watch), [1, 5, 9]);
        assert!(watch.has(9) && !watch.has(3));
        while let Some(beyond) = watch.beyond(3) {
            watch.remove(beyond);
        }
        assert!(numbers(&mut watch).into_iter().all(|number| is_sampled(number, 3)));
        (100..).take_while(|&number| watch.insert(number, 0)).for_each(drop);
        assert_eq!(watch.count(), BLOCKS_MAX);
        watch.begin(7);
        assert_eq!((watch.count(), watch.process()), (0, 7));
    }

    #[test]
    fn a_touch_is_told_once_with_the_time_since_the_page_was_taken() {
        let mut watch = watch();
        watch.begin(3);
        watch.insert(2, 0);
        let page = 2 * BLOCK_PAGES + 4;
        watch.note_taken(page + BLOCK_PAGES, || 1_000_000);
        watch.note_taken(page, || 5_000_000);
        // Taken again before it was asked for: it was put back and is watched on.
        watch.note_taken(page, || 7_000_000);
        assert_eq!(watch.note_touched(page + 1, || 8_000_000), None);
        let event = watch.note_touched(page, || 9_000_000).unwrap();
        let told = (event.process, event.page, event.time_us, event.watched_us, event.what);
        assert_eq!(told, (3, page, 9000, 4000, Watched::Touched));
        assert_eq!(watch.note_touched(page, || 9_500_000), None);
        let block = watch.block(0).unwrap();
        assert!(block.pages[4].is_there && block.due_ns > 9_000_000);
    }

    #[test]
    fn pages_of_a_block_take_turns() {
        let mut watch = watch();
        watch.insert(2, 0);
        let block = watch.block(0).unwrap();
        assert_eq!(block.due(0xFF, 0), 0);
        assert_eq!(block.due(0xFF, REST_NS), 0b11);
        // Not before its time.
        assert_eq!(block.due(0xFF, REST_NS + 1), 0);
        assert_eq!(block.due(0b1111_0000, 3 * REST_NS), 0b11_0000);
        // One that was put back is watched on, and so is one that nobody has asked for.
        block.pages[4].taken_ns = 7;
        block.pages[6].taken_ns = 7;
        assert_eq!(block.due(0b0001_0000, 3 * REST_NS + 1), 0b1_0000);
        assert_eq!(block.due(0b1011_0011, 5 * REST_NS), 0b1001_0000);
        assert_eq!(block.due(0b0000_0011, 7 * REST_NS), 0b11);
    }

    #[test]
    fn each_block_has_its_turn_where_few_can_be_watched() {
        for blocks in [3, 250, 255, 256] {
            let mut watch = watch();
            watch.begin(3);
            (0..blocks).for_each(|number| assert!(watch.insert(number, 0)));
            let mut taken = vec![0u32; blocks as usize];
            // One each 10 ms, which is accessed at once.
            for tick in 1..20 * blocks {
                let now_ns = tick * 10_000_000;
                let Some(nth) = watch.next_due(now_ns) else { continue };
                assert_ne!(watch.block(nth).unwrap().due(0xFF, now_ns), 0);
                taken[nth] += 1;
            }
            let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
            assert!(*least > 0 && most - least <= 2, "{blocks}: {least} to {most}");
        }
    }

    #[test]
    fn what_is_watched_at_a_time_lies_all_over_memory() {
        for blocks in [100, 250, 256, 1000] {
            let mut watch = watch();
            watch.begin(3);
            (0..blocks).for_each(|number| assert!(watch.insert(number, 0)));
            let now_ns = 2 * REST_NS;
            let mut places = vec![0, blocks as usize];
            for _ in 0..30 {
                let nth = watch.next_due(now_ns).unwrap();
                watch.block(nth).unwrap().due(0xFF, now_ns);
                places.push(nth);
            }
            places.sort_unstable();
            let apart = places.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(apart as u64 <= blocks / 12, "{blocks}: {places:?}");
        }
    }

    #[test]
    fn a_block_that_is_accessed_at_once_is_watched_as_often_as_others() {
        let mut watch = watch();
        watch.begin(3);
        watch.insert(2, 0);
        let page = 2 * BLOCK_PAGES;
        let mut now_ns = watch.block(0).unwrap().due_ns;
        for _ in 0..20 {
            assert_eq!(watch.block(0).unwrap().due(0b11, now_ns), 0b11);
            watch.note_taken(page, || now_ns);
            watch.note_touched(page, || now_ns + 1000).unwrap();
            now_ns += 1000 + REST_NS;
            assert_eq!(watch.block(0).unwrap().due_ns, now_ns);
        }
    }
}

//! Staging: pages taken from the program, uncompressed, in the order in which they came.
//!
//! A page that the program touches while it waits here comes back for the price of a copy: that
//! is its second chance, for want of an accessed bit. What reaches the head of the queue is
//! compressed.
//!
//! Slots are grouped in chunks, because taking pages (MOVE) and freeing frames cost least in
//! batches. A slot's page is removed by the reclaimer only, never by the fault handler: a copy
//! leaves the frame here until the chunk is freed. The frame of a page is never given to another
//! page: the kernel may still be sending it (vmsplice and MSG_ZEROCOPY keep a reference that
//! MOVE does not see), and the receiver must get what was there.

use crate::page::PageNumber;

/// Slots in a chunk: one bit each in a word. A small staging area uses fewer of them.
pub(crate) const CHUNK_PAGES: usize = 64;
/// Chunks there can be: 16 MiB of frames.
pub(crate) const CHUNKS_MAX: usize = 64;
/// Slots there can be.
pub(crate) const SLOTS_MAX: usize = CHUNK_PAGES * CHUNKS_MAX;

/// Number of a slot, counted over all chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub u16);

impl Slot {
    pub(crate) fn chunk(self) -> usize {
        self.0 as usize / CHUNK_PAGES
    }

    fn bit(self) -> u64 {
        1 << (self.0 as usize % CHUNK_PAGES)
    }
}

/// Where each staged page is. All zero is an empty staging area of no chunks.
#[repr(C)]
pub(crate) struct Staging {
    /// Chunks in use as a ring.
    chunks: usize,
    /// Slots in use of each.
    chunk_pages: usize,
    /// Oldest chunk of the queue.
    head: usize,
    /// Chunks in the queue; the one behind them is being filled.
    queued: usize,
    /// Slots taken in the chunk that is being filled, and how many of them got a page.
    filled: usize,
    pushed: usize,
    /// Queued chunks that somebody is compressing, a bit each.
    claimed: u64,
    /// Of these, what is done before a chunk that is older.
    done: u64,
    /// Slots of each queued chunk that got a page: frames that it holds.
    frames: [u8; CHUNKS_MAX],
    /// Slots that hold a page the program may ask for, a bit each.
    live: [u64; CHUNKS_MAX],
    pages: [PageNumber; SLOTS_MAX],
    index: SlotIndex,
}

impl Staging {
    /// Sets how many chunks to use, and how many slots of each. To be called once, before anything
    /// is staged.
    pub(crate) fn set_size(&mut self, chunks: usize, chunk_pages: usize) {
        assert!((2..=CHUNKS_MAX).contains(&chunks) && self.chunks == 0);
        assert!((1..=CHUNK_PAGES).contains(&chunk_pages));
        self.chunks = chunks;
        self.chunk_pages = chunk_pages;
        self.index.mask = (chunks * chunk_pages * INDEX_ENTRIES_PER_SLOT).next_power_of_two() - 1;
    }

    /// Are as many chunks queued as should be? The pages in them have their second chance; the
    /// other chunks are for what comes while those are compressed.
    pub(crate) fn holds_enough(&self) -> bool {
        self.queued * 2 >= self.chunks
    }

    /// Is the chunk being filled the last one that is free?
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.queued + 1 >= self.chunks
    }

    /// The free slots of the chunk being filled, in a row: where the next pages can go. Empty
    /// when every chunk is queued.
    pub(crate) fn free_slots(&self) -> core::ops::Range<u16> {
        if self.queued == self.chunks {
            return 0..0;
        }
        let first = (self.head + self.queued) % self.chunks * CHUNK_PAGES;
        (first + self.filled) as u16..(first + self.chunk_pages) as u16
    }

    /// Notes that `page` is in the first free slot. What an older slot holds of it is outdated.
    pub(crate) fn push(&mut self, page: PageNumber) -> Slot {
        if let Some(outdated) = self.find(page) {
            self.kill(outdated);
        }
        let slot = Slot(self.free_slots().start);
        self.pages[slot.0 as usize] = page;
        self.live[slot.chunk()] |= slot.bit();
        self.index.insert(page, slot);
        self.pushed += 1;
        self.skip_slot();
        slot
    }

    /// Leaves the first free slot unused until its chunk comes round again.
    pub(crate) fn skip_slot(&mut self) {
        assert!(!self.free_slots().is_empty(), "a free slot");
        self.filled += 1;
        if self.filled == self.chunk_pages {
            self.seal_chunk();
        }
    }

    /// Queues the chunk that is being filled as it is, if it holds anything.
    pub(crate) fn seal_chunk(&mut self) {
        if self.filled > 0 {
            self.frames[(self.head + self.queued) % self.chunks] = self.pushed as u8;
            (self.filled, self.pushed) = (0, 0);
            self.queued += 1;
        }
    }

    /// Chunks that are being compressed or wait for that.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Chunks that wait for somebody to compress them.
    pub(crate) fn waiting(&self) -> usize {
        self.queued - self.claimed.count_ones() as usize
    }

    /// The chunk to be compressed next.
    pub(crate) fn oldest(&self) -> Option<usize> {
        let in_order = (0..self.queued).map(|place| (self.head + place) % self.chunks);
        { in_order }.find(|&chunk| self.claimed & 1 << chunk == 0)
    }

    /// The chunk to be compressed next, which is the caller's until it is retired or released.
    pub(crate) fn claim_oldest(&mut self) -> Option<usize> {
        let chunk = self.oldest()?;
        self.claimed |= 1 << chunk;
        Some(chunk)
    }

    /// Who claimed this chunk cannot go on with it: it is somebody else's.
    pub(crate) fn release(&mut self, chunk: usize) {
        self.claimed &= !(1 << chunk);
    }

    /// Nobody is compressing anything any more (in a forked child).
    pub(crate) fn release_all(&mut self) {
        self.claimed = self.done;
    }

    /// A claimed chunk holds no live page any more and its frames are freed: it can be filled again
    /// once those before it can. Returns how many frames that were.
    pub(crate) fn retire(&mut self, chunk: usize) -> usize {
        assert!(self.claimed & 1 << chunk != 0 && self.live[chunk] == 0, "a claimed, empty chunk");
        self.done |= 1 << chunk;
        while self.done & 1 << self.head != 0 {
            self.done &= !(1 << self.head);
            self.claimed &= !(1 << self.head);
            self.head = (self.head + 1) % self.chunks;
            self.queued -= 1;
        }
        usize::from(self.frames[chunk])
    }

    /// First live slot of a chunk at or behind a slot number within it.
    pub(crate) fn next_live(&self, chunk: usize, from: usize) -> Option<Slot> {
        if from >= CHUNK_PAGES {
            return None;
        }
        let rest = self.live[chunk] >> from << from;
        (rest != 0).then(|| Slot((chunk * CHUNK_PAGES) as u16 + rest.trailing_zeros() as u16))
    }

    pub(crate) fn is_live(&self, slot: Slot) -> bool {
        self.live[slot.chunk()] & slot.bit() != 0
    }

    /// The page in a live slot.
    pub(crate) fn page(&self, slot: Slot) -> PageNumber {
        self.pages[slot.0 as usize]
    }

    pub(crate) fn find(&self, page: PageNumber) -> Option<Slot> {
        self.index.find(page)
    }

    /// The page in this slot is wanted no more: it went back, was stored, or was dropped.
    pub(crate) fn kill(&mut self, slot: Slot) {
        debug_assert!(self.is_live(slot));
        self.live[slot.chunk()] &= !slot.bit();
        self.index.remove(self.pages[slot.0 as usize]);
    }

    /// Drops all pages of a range. Returns how many there were.
    pub(crate) fn invalidate(&mut self, first: PageNumber, count: u64) -> usize {
        let mut dropped = 0;
        self.for_each_in(first, count, |staging, slot| {
            staging.kill(slot);
            dropped += 1;
        });
        dropped
    }

    /// `mremap` moved a range: its pages go by new numbers.
    pub(crate) fn renumber(&mut self, from: PageNumber, to: PageNumber, count: u64) {
        self.invalidate(to, count);
        self.for_each_in(from, count, |staging, slot| {
            let page = staging.page(slot);
            staging.index.remove(page);
            let page = to + (page - from);
            staging.pages[slot.0 as usize] = page;
            staging.index.insert(page, slot);
        });
    }

    /// How many pages wait here.
    pub(crate) fn live_pages(&self) -> u64 {
        self.live.iter().map(|slots| u64::from(slots.count_ones())).sum()
    }

    /// Every live slot.
    pub(crate) fn for_each_live(&self, mut f: impl FnMut(Slot, PageNumber)) {
        for chunk in 0..self.chunks {
            let mut from = 0;
            while let Some(slot) = self.next_live(chunk, from) {
                f(slot, self.page(slot));
                from = slot.0 as usize % CHUNK_PAGES + 1;
            }
        }
    }

    fn for_each_in(
        &mut self,
        first: PageNumber,
        count: u64,
        mut f: impl FnMut(&mut Staging, Slot),
    ) {
        // Looking up a few pages is cheaper than looking through all slots.
        if count < 32 {
            for page in first..first + count {
                if let Some(slot) = self.find(page) {
                    f(self, slot);
                }
            }
            return;
        }
        for chunk in 0..self.chunks {
            let mut from = 0;
            while let Some(slot) = self.next_live(chunk, from) {
                from = slot.0 as usize % CHUNK_PAGES + 1;
                if (first..first + count).contains(&self.page(slot)) {
                    f(self, slot);
                }
            }
        }
    }
}

/// So many that probes stay short.
const INDEX_ENTRIES_PER_SLOT: usize = 4;
const INDEX_LEN: usize = SLOTS_MAX * INDEX_ENTRIES_PER_SLOT;

/// Page number to slot: open addressing with linear probing, deletion by moving entries back.
#[repr(C)]
struct SlotIndex {
    /// Entries in use, less one: as few as the slots in use need. What is not touched costs
    /// nothing.
    mask: usize,
    /// Slot number plus one; zero is free.
    slots: [u16; INDEX_LEN],
    pages: [PageNumber; INDEX_LEN],
}

impl SlotIndex {
    fn home(&self, page: PageNumber) -> usize {
        // Fibonacci hashing: neighbouring pages spread over the table.
        (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & self.mask
    }

    fn position(&self, page: PageNumber) -> Result<usize, usize> {
        let mut at = self.home(page);
        while self.slots[at] != 0 {
            if self.pages[at] == page {
                return Ok(at);
            }
            at = (at + 1) & self.mask;
        }
        Err(at)
    }

    fn find(&self, page: PageNumber) -> Option<Slot> {
        self.position(page).ok().map(|at| Slot(self.slots[at] - 1))
    }

    fn insert(&mut self, page: PageNumber, slot: Slot) {
        let (Ok(at) | Err(at)) = self.position(page);
        self.pages[at] = page;
        self.slots[at] = slot.0 + 1;
    }

    fn remove(&mut self, page: PageNumber) {
        let Ok(mut hole) = self.position(page) else { return };
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            if self.slots[at] == 0 {
                break;
            }
            // An entry may fill the hole unless its home lies behind the hole.
            let distance = |from: usize| at.wrapping_sub(from) & self.mask;
            if distance(self.home(self.pages[at])) >= distance(hole) {
                self.slots[hole] = self.slots[at];
                self.pages[hole] = self.pages[at];
                hole = at;
            }
        }
        self.slots[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn staging(chunks: usize) -> Box<Staging> {
        // SAFETY: all zero is an empty staging area.
        let mut staging = unsafe { Box::<Staging>::new_zeroed().assume_init() };
        staging.set_size(chunks, CHUNK_PAGES);
        staging
    }

    #[test]
    fn agrees_with_a_map() {
        let mut staging = staging(8);
        let mut model: HashMap<PageNumber, u16> = HashMap::new();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            match random(20) {
                0..12 => {
                    let page = random(4000);
                    if staging.find(page).is_none() {
                        if staging.free_slots().is_empty() {
                            // Two at a time, the younger one first.
                            let claimed = [staging.claim_oldest(), staging.claim_oldest()];
                            for chunk in claimed.into_iter().rev().flatten() {
                                while let Some(slot) = staging.next_live(chunk, 0) {
                                    model.remove(&staging.page(slot));
                                    staging.kill(slot);
                                }
                                assert!(staging.free_slots().is_empty());
                                staging.retire(chunk);
                            }
                        }
                        model.insert(page, staging.push(page).0);
                    }
                }
                12..17 => {
                    let page = random(4000);
                    if let Some(slot) = staging.find(page) {
                        assert_eq!(model.remove(&page), Some(slot.0));
                        staging.kill(slot);
                    }
                }
                17 => {
                    let (first, count) = (random(4000), random(100));
                    let before = model.len();
                    model.retain(|page, _| !(first..first + count).contains(page));
                    assert_eq!(staging.invalidate(first, count), before - model.len());
                }
                18 => {
                    let (from, count) = (random(2000), random(100));
                    let to = from + count + random(1000);
                    model.retain(|page, _| !(to..to + count).contains(page));
                    let moved: Vec<_> = (from..from + count)
                        .filter_map(|page| Some((page - from + to, model.remove(&page)?)))
                        .collect();
                    model.extend(moved);
                    staging.renumber(from, to, count);
                }
                _ if random(20) == 0 => {
                    for page in 0..4000 {
                        assert_eq!(staging.find(page).map(|s| s.0), model.get(&page).copied());
                    }
                    let mut live = HashMap::new();
                    staging
                        .for_each_live(|slot, page| assert!(live.insert(page, slot.0).is_none()));
                    assert_eq!(staging.live_pages(), live.len() as u64);
                    assert_eq!(live, model);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_full_ring_has_no_free_slot_until_the_oldest_chunk_retires() {
        let mut staging = staging(2);
        for page in 0..2 * CHUNK_PAGES as u64 {
            staging.push(page);
        }
        assert!(staging.free_slots().is_empty());
        assert_eq!((staging.claim_oldest(), staging.claim_oldest()), (Some(0), Some(1)));
        assert_eq!(staging.claim_oldest(), None);
        staging.release(1);
        staging.invalidate(0, CHUNK_PAGES as u64);
        staging.retire(0);
        assert_eq!(staging.free_slots(), 0..CHUNK_PAGES as u16);
        assert_eq!(staging.oldest(), Some(1));
    }

    #[test]
    fn a_page_that_comes_again_replaces_its_older_self() {
        let mut staging = staging(2);
        let old = staging.push(5);
        let new = staging.push(5);
        assert!(!staging.is_live(old) && staging.is_live(new));
        assert_eq!(staging.find(5), Some(new));
        staging.kill(new);
        assert_eq!(staging.find(5), None);
    }

    #[test]
    fn a_partly_filled_chunk_can_be_queued() {
        let mut staging = staging(2);
        staging.seal_chunk();
        assert_eq!(staging.oldest(), None);
        staging.push(5);
        staging.skip_slot();
        staging.seal_chunk();
        assert_eq!(staging.oldest(), Some(0));
        assert_eq!(staging.frames[0], 1, "what is skipped holds no frame");
        assert_eq!(staging.next_live(0, 0), Some(Slot(0)));
        assert_eq!(staging.next_live(0, 1), None);
        assert_eq!(staging.free_slots().start as usize, CHUNK_PAGES);
    }
}

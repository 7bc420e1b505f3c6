//! What a child must find in the memory it inherits.
//!
//! The table is shared, so after a fork it goes on telling what the parent has. The parent
//! copies the records before it forks; the child then strikes out what had changed since when it
//! takes its first look. Sequence numbers only grow and are odd during a change, so what is left
//! was at rest from the copy until after the fork, whichever threads were writing meanwhile.

use std::sync::atomic::Ordering::SeqCst;

use crate::check;
use crate::content::{Content, PageBytes};
use crate::current;
use crate::errno::Errno;
use crate::memory::{Mapping, PAGE, Span};
use crate::rng::Rng;
use crate::table::{COUNTERS_PER_PAGE, Records, RegionShape, Sizes};
use crate::world::World;

/// A copy of the records, in shared memory of its own.
pub(crate) struct Snapshot {
    memory: Mapping,
    sizes: Sizes,
}

impl Snapshot {
    pub(crate) fn take(from: Records<'_>) -> Result<Self, Errno> {
        let sizes = from.sizes();
        let snapshot = Self { memory: Mapping::shared(Records::bytes(sizes))?, sizes };
        let to = snapshot.records();
        for (from_shape, to_shape) in from.shapes.iter().zip(to.shapes) {
            copy_shape(from_shape, to_shape);
            let first = to_shape.first_slot.load(SeqCst) as usize;
            let pages = to_shape.pages.load(SeqCst) as usize;
            for index in first..first + pages {
                let sequence = from.slots[index].sequence.load(SeqCst);
                to.slots[index].content.store(from.slots[index].content.load(SeqCst), SeqCst);
                to.slots[index].sequence.store(sequence, SeqCst);
            }
        }
        for (from_counter, to_counter) in from.counters.iter().zip(to.counters) {
            to_counter.completed.store(from_counter.completed.load(SeqCst), SeqCst);
        }
        Ok(snapshot)
    }

    pub(crate) fn records(&self) -> Records<'_> {
        Records::carve(&self.memory, self.sizes)
    }

    /// Strikes out what has changed in `from` since `take`, and bounds the counters from above.
    /// To be called in the child, before anything else.
    fn settle(&self, from: Records<'_>) {
        let own = self.records();
        for (from_shape, shape) in from.shapes.iter().zip(own.shapes) {
            if from_shape.sequence.load(SeqCst) != shape.sequence.load(SeqCst) {
                shape.sequence.fetch_or(1, SeqCst);
            }
            let first = shape.first_slot.load(SeqCst) as usize;
            let pages = shape.pages.load(SeqCst) as usize;
            for index in first..first + pages {
                if from.slots[index].sequence.load(SeqCst) != own.slots[index].sequence.load(SeqCst)
                {
                    own.slots[index].sequence.fetch_or(1, SeqCst);
                }
            }
        }
        for (from_counter, counter) in from.counters.iter().zip(own.counters) {
            counter.started.store(from_counter.started.load(SeqCst), SeqCst);
        }
    }

    /// The child's hold on the memory it inherited from the process that has `from`.
    pub(crate) fn inherit<'s>(&'s self, world: &'s World, from: Records<'_>) -> Inherited<'s> {
        self.settle(from);
        Inherited { world, records: self.records() }
    }
}

fn copy_shape(from: &RegionShape, to: &RegionShape) {
    to.sequence.store(from.sequence.load(SeqCst), SeqCst);
    to.address.store(from.address.load(SeqCst), SeqCst);
    to.pages.store(from.pages.load(SeqCst), SeqCst);
    to.first_slot.store(from.first_slot.load(SeqCst), SeqCst);
    to.capacity.store(from.capacity.load(SeqCst), SeqCst);
}

/// The memory of a forked child, which has one thread: all that was at rest is its own.
///
/// Nothing here allocates, so a child that libc knows nothing of can use it.
pub(crate) struct Inherited<'s> {
    pub world: &'s World,
    pub records: Records<'s>,
}

impl Inherited<'_> {
    pub(crate) fn regions(&self) -> usize {
        self.records.shapes.len()
    }

    /// Pages of a region; none when it was being reshaped.
    pub(crate) fn pages(&self, region: usize) -> usize {
        let shape = &self.records.shapes[region];
        if shape.sequence.load(SeqCst) & 1 != 0 { 0 } else { shape.pages.load(SeqCst) as usize }
    }

    /// Whether the records say what this page holds.
    pub(crate) fn known(&self, region: usize, page: usize) -> bool {
        page < self.pages(region)
            && check::slot(self.records, region, page).sequence.load(SeqCst) & 1 == 0
    }

    pub(crate) fn address(&self, region: usize, page: usize) -> usize {
        check::address(self.records, region, page)
    }

    /// The page's memory. It must be known.
    pub(crate) fn span(&self, region: usize, page: usize) -> Span<'_> {
        assert!(self.known(region, page));
        // SAFETY: a known page was mapped and at rest at the fork, and this process has one
        // thread, which unmaps no region.
        unsafe { Span::new(self.address(region, page), PAGE) }
    }

    /// Strikes a page out: from now on the records do not say what it holds.
    pub(crate) fn forget(&self, region: usize, page: usize) {
        check::slot(self.records, region, page).sequence.fetch_or(1, SeqCst);
    }

    /// Compares a page if it is known.
    pub(crate) fn check(&self, region: usize, page: usize) {
        if self.known(region, page) {
            check::page(self.world, self.records, region, page, self.span(region, page));
        }
    }

    pub(crate) fn check_region(&self, region: usize) {
        for page in 0..self.pages(region) {
            self.check(region, page);
        }
    }

    pub(crate) fn check_all(&self) {
        for region in 0..self.regions() {
            self.check_region(region);
        }
    }

    pub(crate) fn check_sample(&self, rng: &mut Rng, pages: usize) {
        for _ in 0..pages {
            let region = rng.below(self.regions());
            self.check(region, rng.below(self.pages(region)));
        }
    }

    /// Writes a page of the child's own copy. The page must be known.
    pub(crate) fn write(&self, region: usize, page: usize) {
        let slot = check::slot(self.records, region, page);
        // Versions of children are their parent's with the upper half changed, so that a byte of
        // a child that turns up in the parent can be told.
        let version = (slot.sequence.load(SeqCst) / 2 + 1) ^ 0xa0_0000;
        let content = Content::full(region, page, version);
        let mut bytes = PageBytes::zeroed();
        content.fill(self.world.recipe, &mut bytes);
        slot.sequence.fetch_or(1, SeqCst);
        self.span_being_written(region, page).store(&bytes.0);
        slot.content.store(content.bits(), SeqCst);
        slot.sequence.fetch_add(1, SeqCst);
        current::beat();
    }

    fn span_being_written(&self, region: usize, page: usize) -> Span<'_> {
        // SAFETY: as for `span`; the mark is this thread's own.
        unsafe { Span::new(self.address(region, page), PAGE) }
    }

    /// Writes pages here and there, none in regions whose rules forbid it.
    pub(crate) fn write_sample(&self, rng: &mut Rng, pages: usize) {
        for _ in 0..pages {
            let region = rng.below(self.regions());
            let page = rng.below(self.pages(region));
            if !self.world.is_fixed(region) && self.known(region, page) {
                self.write(region, page);
            }
        }
    }

    /// Counts on the child's own copy of the counters.
    pub(crate) fn count_sample(&self, rng: &mut Rng, additions: usize) {
        let region = self.world.counter_region;
        for _ in 0..additions {
            let page = rng.below(self.pages(region));
            if !self.known(region, page) {
                continue;
            }
            let quarter = rng.below(COUNTERS_PER_PAGE);
            let offset = check::counter_offset(self.world.recipe, page, quarter);
            let slot = &self.records.counters[page * COUNTERS_PER_PAGE + quarter];
            slot.started.fetch_add(1, SeqCst);
            let word = self.span(region, page).part(offset, 8);
            check::counter(word).fetch_add(1, SeqCst);
            slot.completed.fetch_add(1, SeqCst);
        }
    }
}

//! Everything that the threads of a run share.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock};

use crate::beside::Beside;
use crate::content::{Content, PageBytes, REGION_PAGES_MAX, REGIONS_MAX, Recipe};
use crate::current;
use crate::errno::Errno;
use crate::memory::{Mapping, PAGE, Span};
use crate::options::Options;
use crate::permits::{Locking, Permits, Pins};
use crate::region::Region;
use crate::rng::{Rng, mix};
use crate::table::{COUNTERS_PER_PAGE, Sizes, Table};

/// Regions that belong to one thread.
const OWN_REGIONS: usize = 3;
/// Regions that all threads write, in turn.
const SHARED_REGIONS: usize = 3;

pub(crate) struct World {
    pub options: &'static Options,
    pub recipe: Recipe,
    pub pid: i32,
    pub table: Table,
    pub regions: Vec<Region>,
    /// The region that nobody writes and everybody reads, without a lock.
    pub fixed_region: usize,
    /// The region that everybody counts in, without a lock.
    pub counter_region: usize,
    pub children: Permits,
    pub pins: Pins,
    pub locking: Locking,
    /// Mappings beside the regions that nobody but the program may change.
    pub beside: Mutex<Beside>,
}

static WORLD: OnceLock<World> = OnceLock::new();

/// The world, once there is one. Does not lock, so signal handlers may ask.
pub(crate) fn world() -> Option<&'static World> {
    WORLD.get()
}

/// How many pages each region may have, and has at first.
struct Plan {
    capacities: Vec<usize>,
    counter_pages: usize,
    fixed_pages: usize,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let budget = options.megabytes * ((1 << 20) / PAGE);
        let fixed_pages = budget * 8 / 100;
        let counter_pages = budget * 6 / 100;
        let shared = budget * 20 / 100 / SHARED_REGIONS;
        let own = budget * 60 / 100 / (options.threads * OWN_REGIONS);
        let mut capacities = Vec::new();
        for thread in 0..options.threads {
            for index in 0..OWN_REGIONS {
                // One small, one middling, one large region for each thread.
                let pages = own * [1, 2, 3][(thread + index) % OWN_REGIONS] / 2;
                capacities.push(pages);
            }
        }
        capacities.extend([shared; SHARED_REGIONS]);
        for pages in &mut capacities {
            *pages = (*pages).clamp(40, REGION_PAGES_MAX);
        }
        Self { capacities, counter_pages, fixed_pages }
    }
}

impl World {
    /// Maps and describes all memory of a run. The descriptor is the table's.
    pub(crate) fn create(options: &'static Options) -> Result<(&'static Self, OwnedFd), String> {
        let generation = options.resume.generation;
        let seed = if generation == 0 { options.seed } else { mix(&[options.seed, generation]) };
        let recipe = Recipe { seed, incompressible_percent: options.incompressible_percent };
        let plan = Plan::new(options);
        let mut rng = Rng::new(mix(&[seed, 0x706c_616e]));
        let fixed_region = plan.capacities.len();
        let counter_region = fixed_region + 1;
        let mut capacities = plan.capacities;
        // Regions that change their size start between 60 and 100 percent of what they may have.
        let mut pages: Vec<usize> =
            capacities.iter().map(|&most| rng.between(most * 6 / 10, most)).collect();
        capacities.extend([plan.fixed_pages, plan.counter_pages]);
        pages.extend([plan.fixed_pages, plan.counter_pages]);
        assert!(capacities.len() <= REGIONS_MAX);
        let sizes = Sizes {
            regions: capacities.len(),
            slots: capacities.iter().sum(),
            counters: plan.counter_pages * COUNTERS_PER_PAGE,
        };
        let (table, descriptor) = Table::create(sizes)
            .map_err(|errno| format!("cannot make the shared table: {errno}"))?;
        let mut first_slot = 0;
        for (index, shape) in table.records.shapes.iter().enumerate() {
            shape.first_slot.store(first_slot, SeqCst);
            shape.capacity.store(capacities[index] as u64, SeqCst);
            first_slot += capacities[index] as u64;
            shape.pages.store(pages[index] as u64, SeqCst);
            let mapping = Mapping::anonymous(pages[index] * PAGE)
                .map_err(|errno| format!("cannot map {} pages: {errno}", pages[index]))?;
            shape.address.store(mapping.release().0 as u64, SeqCst);
            for page in 0..pages[index] {
                let content = Content::zero(index, page, 0);
                let slot = &table.records.slots[(first_slot as usize) - capacities[index] + page];
                slot.content.store(content.bits(), SeqCst);
            }
        }
        let beside = Beside::create(recipe, options)
            .map_err(|error| format!("cannot map files in {:?}: {error}", options.directory))?;
        let world = Self {
            options,
            recipe,
            pid: current::pid(),
            table,
            regions: (0..capacities.len()).map(Region::new).collect(),
            fixed_region,
            counter_region,
            children: Permits::new(options.children),
            pins: Pins::new(),
            locking: Locking::new(),
            beside: Mutex::new(beside),
        };
        if WORLD.set(world).is_err() {
            return Err("the world was made twice".to_owned());
        }
        let world = WORLD.get().ok_or("the world is not there")?;
        world.fill_lockless();
        Ok((world, descriptor))
    }

    /// Fills the regions that are used without a lock, before there are threads.
    fn fill_lockless(&self) {
        for region in [self.fixed_region, self.counter_region] {
            for page in 0..self.pages(region) {
                let content = Content::full(region, page, 1);
                let mut bytes = PageBytes::zeroed();
                content.fill(self.recipe, &mut bytes);
                if region == self.counter_region {
                    for quarter in 0..COUNTERS_PER_PAGE {
                        let offset = crate::check::counter_offset(self.recipe, page, quarter);
                        bytes.0[offset..offset + 8].fill(0);
                    }
                }
                self.lockless_page(region, page).store(&bytes.0);
                let slot = crate::check::slot(self.table.records, region, page);
                slot.content.store(content.bits(), SeqCst);
                slot.sequence.store(2, SeqCst);
            }
        }
    }

    pub(crate) fn pages(&self, region: usize) -> usize {
        self.table.records.shapes[region].pages.load(SeqCst) as usize
    }

    /// A page of the region that is never written, or of the one that is only counted in.
    pub(crate) fn lockless_page(&self, region: usize, page: usize) -> Span<'_> {
        assert!(self.is_fixed(region) && page < self.pages(region));
        let address = crate::check::address(self.table.records, region, page);
        // SAFETY: these two regions stay mapped in place for good; after they were filled, when
        // there was one thread, they are read, or changed through atomics only.
        unsafe { Span::new(address, PAGE) }
    }

    /// Compares a page of a region that is used without a lock.
    pub(crate) fn check_lockless(&self, region: usize, page: usize) {
        let memory = self.lockless_page(region, page);
        crate::check::page(self, self.table.records, region, page, memory);
    }

    /// Whether a region is neither written nor reshaped.
    pub(crate) fn is_fixed(&self, region: usize) -> bool {
        region == self.fixed_region || region == self.counter_region
    }

    /// The regions of one thread.
    pub(crate) fn own(&self, thread: usize) -> Range<usize> {
        thread * OWN_REGIONS..(thread + 1) * OWN_REGIONS
    }

    /// The regions of all threads.
    pub(crate) fn shared(&self) -> Range<usize> {
        let first = self.options.threads * OWN_REGIONS;
        first..first + SHARED_REGIONS
    }

    /// What a region is for.
    pub(crate) fn role(&self, region: usize) -> &'static str {
        if region == self.fixed_region {
            "never written"
        } else if region == self.counter_region {
            "counters"
        } else if self.shared().contains(&region) {
            "shared by all threads"
        } else {
            "one thread's own"
        }
    }

    /// Pages of memory that an operation may use for a while beside the regions.
    pub(crate) fn spare_pages(&self) -> usize {
        (self.options.megabytes * ((1 << 20) / PAGE) / 50).max(64)
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

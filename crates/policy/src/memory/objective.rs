//! What pages are compressed for: speed, or density.
//!
//! Smaller objects leave room for more resident pages, so there are fewer faults; each fault takes
//! longer. Of `pages` in all, as many stay resident as the cap holds beside the objects of the
//! others:
//!
//! ```text
//! cap = resident + share * (pages - resident)
//! faults ~ pages - resident = (pages - cap) / (1 - share)
//! ```
//!
//! for a program whose accesses are random: what counts is the bytes that compression spares, not
//! those that are left, whatever the cap is. Programs that return to recently used pages gain more:
//! a page that came back at a refault distance shorter than the additional room
//! ([`super::refaults`]) would still be resident. The better of the two estimates counts. This is
//! condition 7 of paper 003, fewer accesses to the slower level against the cost of each, with two
//! ways to compress in place of its disk and its compressed level.
//!
//! A page that comes back costs the program the fault and the time to decompress it. Another page
//! has to be compressed for it, on another processor where there is one:
//!
//! ```text
//! time = max(fault + decompress, (fault + decompress + compress + store) / processors)
//! ```
//!
//! All of that is measured while the program runs: from time to time a page is compressed for both
//! objectives and decompressed again. Density pays where it takes less time for what it spares.
//!
//! Density also pays wherever it spares a fifth more bytes, whatever it costs now, because objects
//! stay as they are. A multiplication of matrices that just fits beside dense objects brought back
//! ten times as many pages where the others had been compressed for speed while few pages came
//! back.

use ramfold_codec::{Objective, PAGE_SIZE};

use super::refaults::Refaults;

/// One page in so many is compressed for both until enough were, then one in so many: it takes ten
/// times as long for density.
const TRIED_FIRST: u32 = 16;
const TRIED: u32 = 128;
/// The latest so many of these count, up to twice as many.
const COUNTED: u32 = 64;
/// And so many at least.
const ENOUGH: u32 = 8;
/// Density pays in any case where it spares this many bytes for those in [`SPEED_SPARES`] that
/// speed spares: an object stays as it is for as long as its page is out, also when more is wanted
/// later than there is room for.
const DENSITY_SPARES: u64 = 6;
const SPEED_SPARES: u64 = 5;
/// Density must be thought to take so much less time than speed to begin: it takes more of other
/// processors' in any case.
const GAIN_PERCENT: u64 = 10;
/// Pages brought back over which the cost of one is measured.
const PAGES_MEASURED: u64 = 1024;
/// What a fault is thought to cost before that.
const FAULT_NS_USUAL: u64 = 10_000;

/// What compressing one page for one objective came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Length of the object.
    pub bytes: usize,
    /// Time that compression took.
    pub compress_ns: u64,
    /// Time that decompression took.
    pub decompress_ns: u64,
}

/// What came of the pages that were compressed for an objective to compare. All zero is none.
#[derive(Default)]
struct Record {
    spared_bytes: u64,
    compress_ns: Middle,
    decompress_ns: Middle,
}

/// What half of the values are above, roughly: one that an interruption made a thousand times too
/// long counts no more than others.
#[derive(Clone, Copy, Default)]
struct Middle(u64);

impl Middle {
    fn note(&mut self, value: u64) {
        let step = self.0 / 16 + 1;
        if self.0 == 0 {
            self.0 = value;
        } else if value > self.0 {
            self.0 += step;
        } else {
            self.0 -= step.min(self.0 - value);
        }
    }
}

/// All zero is to know nothing.
#[derive(Default)]
pub struct Objectives {
    pages: u32,
    tried: u32,
    current: Objective,
    speed: Record,
    density: Record,
    /// Processors that the process may use.
    processors: u64,
    /// Of a page that is brought back, without decompressing it: measured over the pages since
    /// there were so many, and the handler's time was so much.
    fault_ns: u64,
    /// To store a page that was compressed, and to free its frame.
    store_ns: Middle,
    pages_before: u64,
    fault_ns_before: u64,
}

impl Objectives {
    /// What to compress for. `out`: pages that are out now.
    pub fn best(&mut self, out: u64, refaults: &Refaults, cap_pages: u64) -> Objective {
        self.current = if self.density_pays(out, refaults, cap_pages) {
            Objective::Density
        } else {
            Objective::Speed
        };
        self.current
    }

    fn density_pays(&self, out: u64, refaults: &Refaults, cap_pages: u64) -> bool {
        let (speed, density) = (&self.speed, &self.density);
        if self.tried < ENOUGH || density.spared_bytes <= speed.spared_bytes {
            return false;
        }
        if density.spared_bytes * SPEED_SPARES > speed.spared_bytes * DENSITY_SPARES {
            return true;
        }
        let spared_by_other = match self.current {
            Objective::Speed => density.spared_bytes,
            Objective::Density => speed.spared_bytes,
        };
        let room = out * (density.spared_bytes - speed.spared_bytes) / spared_by_other.max(1);
        let back = 1000 - refaults.per_mille_within(room, cap_pages);
        let back = back.min(speed.spared_bytes * 1000 / density.spared_bytes);
        let percent = if self.current == Objective::Density { 100 } else { 100 - GAIN_PERCENT };
        self.time_ns(density) * back * 100 < self.time_ns(speed) * 1000 * percent
    }

    fn record(&self, objective: Objective) -> &Record {
        if objective == Objective::Density { &self.density } else { &self.speed }
    }

    fn time_ns(&self, record: &Record) -> u64 {
        let fault_ns = if self.fault_ns > 0 { self.fault_ns } else { FAULT_NS_USUAL };
        let chain = fault_ns + record.decompress_ns.0;
        let work = chain + record.compress_ns.0 + self.store_ns.0;
        chain.max(work / self.processors.max(1))
    }

    /// The process may use this many processors.
    pub fn set_processors(&mut self, processors: u64) {
        self.processors = processors;
    }

    /// Of all pages that the handler has brought back so far, and all its time.
    pub fn note_faults(&mut self, pages: u64, fault_ns: u64) {
        if pages < self.pages_before {
            // A forked child's account begins anew.
            (self.pages_before, self.fault_ns_before) = (pages, fault_ns);
        }
        let brought = pages - self.pages_before;
        if brought < PAGES_MEASURED {
            return;
        }
        let each = fault_ns.saturating_sub(self.fault_ns_before) / brought;
        self.fault_ns = each.saturating_sub(self.record(self.current).decompress_ns.0).max(1);
        self.pages_before = pages;
        self.fault_ns_before = fault_ns;
    }

    /// What it took to compress and store one of a chunk of pages.
    pub fn note_reclaim(&mut self, objective: Objective, page_ns: u64) {
        self.store_ns.note(page_ns.saturating_sub(self.record(objective).compress_ns.0));
    }

    /// Is the next page to be compressed for both?
    pub fn is_trial(&mut self) -> bool {
        self.pages = self.pages.wrapping_add(1);
        self.pages.is_multiple_of(if self.tried < COUNTED { TRIED_FIRST } else { TRIED })
    }

    /// A page was.
    pub fn note(&mut self, speed: Outcome, density: Outcome) {
        let halve = self.tried == 2 * COUNTED;
        if halve {
            self.tried /= 2;
        }
        self.tried += 1;
        for (record, outcome) in [(&mut self.speed, speed), (&mut self.density, density)] {
            if halve {
                record.spared_bytes /= 2;
            }
            record.spared_bytes += (PAGE_SIZE - outcome.bytes) as u64;
            // Not of pages that are same-filled, or that neither way made smaller.
            if (1..PAGE_SIZE).contains(&outcome.bytes) {
                record.compress_ns.note(outcome.compress_ns);
                record.decompress_ns.note(outcome.decompress_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Outcome = Outcome { bytes: 2000, compress_ns: 1000, decompress_ns: 500 };
    const DENSITY: Outcome = Outcome { bytes: 1500, compress_ns: 14_000, decompress_ns: 2500 };
    const LITTLE_DENSER: Outcome = Outcome { bytes: 1700, ..DENSITY };

    const CAP: u64 = 10_000;

    /// So many of 1,000 pages come back at once, the others after long.
    fn soon(per_mille: u64) -> Refaults {
        let mut refaults = Refaults::NEW;
        for nth in 0..1000 {
            refaults.note(if nth % 10 < per_mille / 100 { 1 } else { u64::MAX }, CAP);
        }
        refaults
    }

    fn after(
        pages: u32,
        speed: Outcome,
        density: Outcome,
        objectives: &mut Objectives,
    ) -> Objective {
        for _ in 0..pages {
            objectives.note(speed, density);
        }
        objectives.best(CAP, &soon(0), CAP)
    }

    fn objectives(processors: u64, fault_ns: u64) -> Objectives {
        let mut objectives = Objectives::default();
        objectives.set_processors(processors);
        objectives.note_faults(PAGES_MEASURED, PAGES_MEASURED * fault_ns);
        objectives
    }

    #[test]
    fn density_pays_where_it_spares_a_fifth_more() {
        let sizes = |speed, density| {
            let (speed, density) =
                (Outcome { bytes: speed, ..SPEED }, Outcome { bytes: density, ..DENSITY });
            after(1000, speed, density, &mut objectives(1, 3_000))
        };
        assert_eq!(sizes(2000, 1600), Objective::Speed);
        assert_eq!(sizes(2000, 1500), Objective::Density);
        assert_eq!(sizes(1000, 600), Objective::Speed);
        assert_eq!(sizes(PAGE_SIZE, PAGE_SIZE), Objective::Speed);
        assert_eq!(sizes(PAGE_SIZE, 3000), Objective::Density);
    }

    #[test]
    fn below_that_it_is_slow_faults_and_idle_processors_that_density_is_for() {
        let best = |processors, fault_ns| {
            let density = Outcome { bytes: 1600, ..DENSITY };
            after(1000, SPEED, density, &mut objectives(processors, fault_ns))
        };
        assert_eq!(best(2, 10_000), Objective::Speed);
        assert_eq!(best(2, 40_000), Objective::Density);
        assert_eq!(best(1, 40_000), Objective::Speed);
        assert_eq!(best(8, 30_000), Objective::Density);
    }

    #[test]
    fn density_pays_where_pages_come_back_soon() {
        let mut objectives = objectives(2, 9_000);
        assert_eq!(after(1000, SPEED, LITTLE_DENSER, &mut objectives), Objective::Speed);
        assert_eq!(objectives.best(0, &soon(500), CAP), Objective::Speed);
        assert_eq!(objectives.best(CAP, &soon(300), CAP), Objective::Speed);
        assert_eq!(objectives.best(CAP, &soon(500), CAP), Objective::Density);
        // It stays as long as it takes no more time.
        assert_eq!(objectives.best(CAP, &soon(300), CAP), Objective::Density);
        objectives.note_faults(2 * PAGES_MEASURED, PAGES_MEASURED * (9_000 + 4_000));
        assert_eq!(objectives.best(CAP, &soon(300), CAP), Objective::Speed);
    }

    #[test]
    fn nothing_is_decided_on_a_few_pages() {
        let mut objectives = Objectives::default();
        objectives.set_processors(2);
        let density = Outcome { bytes: 500, ..DENSITY };
        assert_eq!(objectives.best(CAP, &soon(1000), CAP), Objective::Speed);
        assert_eq!(after(ENOUGH - 1, SPEED, density, &mut objectives), Objective::Speed);
        assert_eq!(after(1, SPEED, density, &mut objectives), Objective::Density);
    }

    #[test]
    fn pages_of_another_manner_change_it_soon() {
        let mut objectives = objectives(2, 10_000);
        assert_eq!(
            after(1000, SPEED, Outcome { bytes: 500, ..DENSITY }, &mut objectives),
            Objective::Density
        );
        assert_eq!(after(8 * COUNTED, SPEED, LITTLE_DENSER, &mut objectives), Objective::Speed);
    }

    #[test]
    fn an_interruption_counts_like_any_other_value() {
        let mut middle = Middle::default();
        for nth in 0..1000 {
            middle.note(if nth % 10 == 0 { 5_000_000 } else { 900 + nth % 200 });
        }
        assert!((900..1200).contains(&middle.0), "{}", middle.0);
    }

    #[test]
    fn many_pages_are_tried_at_first_and_few_later() {
        let mut objectives = Objectives::default();
        let mut tried_of = |pages: u32| {
            let tried = (0..pages).filter(|_| {
                let trial = objectives.is_trial();
                if trial {
                    objectives.note(SPEED, DENSITY);
                }
                trial
            });
            tried.count() as u32
        };
        assert_eq!(tried_of(COUNTED * TRIED_FIRST), COUNTED);
        assert_eq!(tried_of(100 * TRIED), 100);
    }
}

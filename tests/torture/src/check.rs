//! Comparing memory with what it must hold, and saying what is wrong with it.

use std::fmt::{self, Write};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::content::{Content, OVERLAYS_MAX, PageBytes, Recipe};
use crate::failure::{Text, fail_with};
use crate::memory::{PAGE, Span};
use crate::rng::mix;
use crate::table::{COUNTERS_PER_PAGE, HISTORY, Records};
use crate::world::{self, World};
use crate::{current, operations};

/// Where in its page a counter lies.
pub(crate) fn counter_offset(recipe: Recipe, page: usize, quarter: usize) -> usize {
    let words = PAGE / COUNTERS_PER_PAGE / 8;
    let word = mix(&[recipe.seed, page as u64, quarter as u64]) as usize % words;
    quarter * (PAGE / COUNTERS_PER_PAGE) + word * 8
}

/// What the records say a page holds.
pub(crate) fn content(records: Records<'_>, region: usize, page: usize) -> Content {
    Content::from_bits(slot(records, region, page).content.load(SeqCst))
}

pub(crate) fn slot(records: Records<'_>, region: usize, page: usize) -> &crate::table::PageSlot {
    let shape = &records.shapes[region];
    assert!((page as u64) < shape.capacity.load(SeqCst));
    &records.slots[shape.first_slot.load(SeqCst) as usize + page]
}

/// Address of a page.
pub(crate) fn address(records: Records<'_>, region: usize, page: usize) -> usize {
    records.shapes[region].address.load(SeqCst) as usize + page * PAGE
}

fn counted(world: &World) {
    world.table.header.pages_checked.fetch_add(1, Relaxed);
    current::beat();
}

/// What a page has by the records.
fn expected(
    world: &World,
    records: Records<'_>,
    region: usize,
    page: usize,
) -> (Content, PageBytes) {
    let content = content(records, region, page);
    let mut expected = PageBytes::zeroed();
    content.fill(world.recipe, &mut expected);
    (content, expected)
}

/// What a page has.
fn load(world: &World, memory: Span<'_>) -> PageBytes {
    let mut found = PageBytes::zeroed();
    memory.load(&mut found.0);
    counted(world);
    found
}

/// Compares a page in place. `memory` is the page.
pub(crate) fn page(
    world: &World,
    records: Records<'_>,
    region: usize,
    page: usize,
    memory: Span<'_>,
) {
    if region == world.counter_region {
        return counter_page(world, records, region, page, memory);
    }
    let (content, expected) = expected(world, records, region, page);
    let found = load(world, memory);
    if found.0 != expected.0 {
        let place = Place { world, records, region, page, route: "in memory" };
        place.mismatch(content, &expected, &found, Some(memory));
    }
}

/// Compares bytes that left the page by another way than a load: a system call, another process.
pub(crate) fn copied(
    world: &World,
    records: Records<'_>,
    region: usize,
    page: usize,
    bytes: &[u8],
    route: &str,
) {
    let (content, expected) = expected(world, records, region, page);
    counted(world);
    if bytes != expected.0 {
        let mut found = PageBytes::zeroed();
        found.0.copy_from_slice(bytes);
        let place = Place { world, records, region, page, route };
        place.mismatch(content, &expected, &found, None);
    }
}

/// Compares a page that MADV_FREE was called for: as before, or all zeros, nothing in between.
pub(crate) fn page_or_zeros(
    world: &World,
    records: Records<'_>,
    region: usize,
    page: usize,
    memory: Span<'_>,
) {
    let (content, expected) = expected(world, records, region, page);
    let found = load(world, memory);
    if found.0 != expected.0 && found.0.iter().any(|&byte| byte != 0) {
        let route = "in memory, after MADV_FREE (zeros would do as well)";
        let place = Place { world, records, region, page, route };
        place.mismatch(content, &expected, &found, Some(memory));
    }
}

/// Requires that memory reads as zeros, whatever the records say.
pub(crate) fn zeros(world: &World, region: usize, page: usize, memory: Span<'_>, route: &str) {
    let found = load(world, memory);
    if found.0.iter().any(|&byte| byte != 0) {
        let expected = PageBytes::zeroed();
        let place = Place { world, records: world.table.records, region, page, route };
        place.mismatch(Content::zero(region, page, 0), &expected, &found, Some(memory));
    }
}

fn counter_page(world: &World, records: Records<'_>, region: usize, page: usize, memory: Span<'_>) {
    let (content, mut expected) = expected(world, records, region, page);
    let mut found = load(world, memory);
    for quarter in 0..COUNTERS_PER_PAGE {
        let offset = counter_offset(world.recipe, page, quarter);
        let slot = &records.counters[page * COUNTERS_PER_PAGE + quarter];
        let least = slot.completed.load(SeqCst);
        let value = counter(memory.part(offset, 8)).load(SeqCst);
        let most = slot.started.load(SeqCst);
        if value < least || value > most {
            fail_with(|text| {
                // Writing to `Text` cannot fail.
                let _ = write!(
                    text,
                    "counter {quarter} of page {page} at {:#x} has {value}, but {least} additions \
                     were completed and {most} started",
                    memory.address() + offset
                );
            });
        }
        // The other threads may go on counting, so the counters are compared by value only.
        found.0[offset..offset + 8].fill(0);
        expected.0[offset..offset + 8].fill(0);
    }
    if found.0 != expected.0 {
        let route = "in memory, beside the counters";
        let place = Place { world, records, region, page, route };
        place.mismatch(content, &expected, &found, Some(memory));
    }
}

/// A counter in tortured memory; `word` is its 8 bytes.
pub(crate) fn counter(word: Span<'_>) -> &AtomicU64 {
    assert!(word.bytes() == 8 && word.address().is_multiple_of(8));
    // SAFETY: aligned and readable for the span's life; counters are only used as atomics, apart
    // from copies whose counter bytes are not looked at.
    unsafe { AtomicU64::from_ptr(word.pointer().cast()) }
}

struct Place<'r> {
    world: &'r World,
    records: Records<'r>,
    region: usize,
    page: usize,
    route: &'r str,
}

impl Place<'_> {
    #[cold]
    fn mismatch(
        &self,
        content: Content,
        expected: &PageBytes,
        found: &PageBytes,
        memory: Option<Span<'_>>,
    ) -> ! {
        fail_with(|text| {
            // Writing to `Text` cannot fail.
            let _ = self.describe(text, content, expected, found, memory);
        })
    }

    fn describe(
        &self,
        text: &mut Text,
        content: Content,
        expected: &PageBytes,
        found: &PageBytes,
        memory: Option<Span<'_>>,
    ) -> fmt::Result {
        let differs = |at: &usize| expected.0[*at] != found.0[*at];
        let first = (0..PAGE).find(differs).unwrap_or(0);
        let last = (0..PAGE).rfind(differs).unwrap_or(0);
        let count = (0..PAGE).filter(differs).count();
        let address = address(self.records, self.region, self.page);
        writeln!(
            text,
            "byte {first} of page {} of region {} ({}), address {:#x}, read {}: expected {:#04x}, \
             found {:#04x}",
            self.page,
            self.region,
            self.world.role(self.region),
            address + first,
            self.route,
            expected.0[first],
            found.0[first]
        )?;
        writeln!(text, "  {count} bytes differ, the last is {last}")?;
        if let Some(memory) = memory
            && memory.address() != address
        {
            writeln!(text, "  the bytes lay at {:#x} for the time being", memory.address())?;
        }
        writeln!(text, "  expected: {content} ({:?} page)", content.class(self.world.recipe))?;
        text.write_str("  found:    ")?;
        self.identify(text, content, found)?;
        let from = (first & !15).min(PAGE - 32);
        write!(text, "  from byte {from}, expected:")?;
        for byte in &expected.0[from..from + 32] {
            write!(text, " {byte:02x}")?;
        }
        write!(text, "\n  from byte {from}, found:   ")?;
        for byte in &found.0[from..from + 32] {
            write!(text, " {byte:02x}")?;
        }
        text.write_str("\n")?;
        if let Some(memory) = memory {
            let mut again = PageBytes::zeroed();
            memory.load(&mut again.0);
            let verdict = if again.0 == expected.0 {
                "right"
            } else if again.0 == found.0 {
                "wrong in the same way"
            } else {
                "wrong in another way"
            };
            writeln!(text, "  a second look finds it {verdict}")?;
        }
        self.history(text)
    }

    /// Says whose bytes were found, if they are anybody's.
    fn identify(&self, text: &mut Text, content: Content, found: &PageBytes) -> fmt::Result {
        if found.0.iter().all(|&byte| byte == 0) {
            return text.write_str("zeros\n");
        }
        let recipe = self.world.recipe;
        let mut candidate = PageBytes::zeroed();
        let mut is = |content: Content| {
            content.fill(recipe, &mut candidate);
            candidate.0 == found.0
        };
        // Earlier states of this page.
        for back in 0..=32_u64.min(content.version()) {
            let version = content.version() - back;
            for base in [
                Content::full(content.region(), content.page(), version),
                Content::zero(content.region(), content.page(), version),
            ] {
                let mut state = Some(base);
                for _ in 0..=OVERLAYS_MAX {
                    let Some(now) = state else { break };
                    if is(now) {
                        return writeln!(text, "another state of the page: {now}");
                    }
                    state = now.overlaid();
                }
            }
        }
        // What other pages hold now.
        for (region, shape) in self.records.shapes.iter().enumerate() {
            for page in 0..shape.pages.load(SeqCst) as usize {
                let other = self::content(self.records, region, page);
                if is(other) {
                    return writeln!(text, "what page {page} of region {region} holds: {other}");
                }
            }
        }
        text.write_str("no content that any page has or that this page had lately\n")
    }

    fn history(&self, text: &mut Text) -> fmt::Result {
        let Some(world) = world::world() else { return Ok(()) };
        let history = &world.table.histories[self.region];
        let next = history.next.load(SeqCst) as usize;
        text.write_str("  last operations on the region, newest first (* touches the page):\n")?;
        for back in 1..=HISTORY.min(next) {
            let entry = &history.entries[(next - back) % HISTORY];
            let what = entry.what.load(SeqCst);
            let range = entry.range.load(SeqCst);
            let (first, pages) = ((range >> 32) as usize, (range & 0xffff_ffff) as usize);
            let here = (first..first + pages).contains(&self.page);
            writeln!(
                text,
                "  {} {} by thread {} (its number {}), pages {first}+{pages}",
                if here { "*" } else { " " },
                operations::name((what >> 48) as usize),
                what >> 32 & 0xffff,
                what & 0xffff_ffff,
            )?;
        }
        Ok(())
    }
}

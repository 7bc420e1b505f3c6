//! How pages are picked, and what is done to them.

use super::super::child::Quota;

/// An order of pages, and whether they are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) name: &'static str,
    /// One line for `--list`.
    pub(super) about: &'static str,
    pub(super) order: Order,
    pub(super) writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Page after page, every word of each, over and over.
    Sequential,
    /// The same from the last page to the first.
    Reverse,
    /// Every [`STRIDE`]th page, then the pages behind those, and so on.
    Strided,
    /// [`STREAMS`] parts of the heap in order, a page of each in turn.
    Streams,
    /// Any page, all equally likely.
    Uniform,
    /// Zipfian popularity, popular pages scattered over the heap.
    Zipf,
    /// Any page of one part of the heap, then of the next.
    Phases,
    /// Any page of one part of the heap, and none of the others.
    Cold,
}

/// Distance of two pages that follow one another in [`Order::Strided`].
pub(super) const STRIDE: usize = 7;
/// Parts of the heap in [`Order::Streams`].
pub(super) const STREAMS: usize = 4;
/// Parts of the heap in [`Order::Phases`] and [`Order::Cold`]: each fits into half of what the heap
/// needs.
pub(super) const PHASES: usize = 4;
/// Accesses of one phase, for each page of the whole heap.
pub(super) const PHASE_ACCESSES_PER_PAGE: usize = 2;

const fn pattern(name: &'static str, order: Order, writes: bool, about: &'static str) -> Pattern {
    Pattern { name, about, order, writes }
}

impl Pattern {
    pub(super) const SEQUENTIAL_RW: Self = pattern(
        "sequential-rw",
        Order::Sequential,
        true,
        "read and change all pages in order, again and again",
    );
    pub(super) const RANDOM_RW: Self = pattern(
        "random-rw",
        Order::Uniform,
        true,
        "read and change pages picked uniformly at random",
    );
    pub(super) const ALL: [Self; 11] = [
        pattern(
            "sequential-ro",
            Order::Sequential,
            false,
            "read all pages in order, again and again",
        ),
        Self::SEQUENTIAL_RW,
        pattern(
            "reverse-rw",
            Order::Reverse,
            true,
            "read and change all pages from the last to the first",
        ),
        pattern(
            "strided-rw",
            Order::Strided,
            true,
            "read and change every 7th page, then those behind them",
        ),
        pattern(
            "streams-rw",
            Order::Streams,
            true,
            "read and change four parts in order, a page of each in turn",
        ),
        pattern("random-ro", Order::Uniform, false, "read pages picked uniformly at random"),
        Self::RANDOM_RW,
        pattern(
            "zipf-ro",
            Order::Zipf,
            false,
            "read pages picked by Zipf's law with exponent 0.99",
        ),
        pattern(
            "zipf-rw",
            Order::Zipf,
            true,
            "read and change pages picked by Zipf's law, exponent 0.99",
        ),
        pattern(
            "phases-rw",
            Order::Phases,
            true,
            "read and change random pages of one quarter, then of the next",
        ),
        pattern(
            "cold-rw",
            Order::Cold,
            true,
            "read and change random pages of one quarter, and none of the others",
        ),
    ];

    /// Accesses for each page of the heap that make a measurement: a few
    /// seconds in half the memory at 10 to 20 us a fault.
    pub(super) fn accesses_per_page(self) -> f64 {
        match self.order {
            Order::Zipf => 8.0,
            Order::Phases => PHASE_ACCESSES_PER_PAGE as f64 * 4.0,
            // Long enough for what is done with cold pages to show.
            Order::Cold => 16.0,
            _ => 4.0,
        }
    }

    /// Accesses of an unmeasured first phase. The fill leaves the last pages resident: a scan does
    /// so too, random picks do not.
    pub(super) fn warm_up(self, page_count: usize) -> Quota {
        let per_page = match self.order {
            Order::Uniform | Order::Zipf => 0.5,
            _ => 0.0,
        };
        Quota::Accesses((per_page * page_count as f64) as u64)
    }

    /// Whether pages are read whole, as a program reads an array.
    pub(super) fn scans(self) -> bool {
        !matches!(self.order, Order::Uniform | Order::Zipf | Order::Phases | Order::Cold)
    }
}

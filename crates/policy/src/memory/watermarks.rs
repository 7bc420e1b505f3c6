//! Above which costs what is done, for one cap.

/// More than there is on any machine, and little enough to reckon with.
const NO_CAP_BYTES: u64 = 1 << 56;

/// What a program grows by in memory that is not registered yet until it is stopped: 2 to 3 ms at
/// 2 GB/s.
const GROWTH_UNNOTICED_BYTES: u64 = 6 << 20;

/// Amounts for one cap (or a target below it), all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The cap itself.
    pub cap: u64,
    /// Faults wait above this until something was freed.
    pub hard: u64,
    /// Background reclaim begins above this.
    pub high: u64,
    /// Background reclaim ends below this.
    pub low: u64,
    /// The agent begins to look after memory above this: far enough from the cap that nothing
    /// runs past it in the time that takes.
    pub activation: u64,
    /// A fork first brings the cost down to this: what two processes share cannot be reclaimed
    /// while they do, and each of them will soon need memory of its own.
    pub fork: u64,
}

impl Watermarks {
    /// Where there is no cap.
    #[must_use]
    pub fn without_cap() -> Self {
        Self::for_cap(NO_CAP_BYTES)
    }

    /// The distance between cap and `high` covers what memory not yet registered may grow by
    /// until the monitor looks again (a millisecond at 2 to 4 GB/s), and the kernel's imprecise
    /// counters.
    pub fn for_cap(cap: u64) -> Self {
        const MIB: u64 = 1 << 20;
        let slack = (cap / 40).clamp(MIB / 2, 16 * MIB).min(cap / 4);
        Watermarks {
            cap,
            hard: cap - slack / 4,
            high: cap - slack,
            low: cap - slack - (slack / 2).min(2 * MIB),
            fork: cap / 2,
            // Until then the kernel serves first touches by itself, at GB/s, and the monitor may be
            // kept from its processor for milliseconds.
            activation: cap - (cap / 8).max((16 * MIB).min(cap / 2)),
        }
    }

    /// The marks for one process, where others cost `others_bytes` of the cap; lower while the
    /// program outruns reclaim, by what it can grow until that is noticed.
    #[must_use]
    pub fn beside(self, others_bytes: u64, outruns: bool) -> Self {
        let growth = if outruns { GROWTH_UNNOTICED_BYTES.min(self.cap / 6) } else { 0 };
        let off = others_bytes + growth;
        Watermarks {
            hard: self.hard.saturating_sub(off),
            high: self.high.saturating_sub(off),
            low: self.low.saturating_sub(off),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_in_order_for_every_cap() {
        for shift in 14..44 {
            for cap in [1u64 << shift, (1 << shift) * 3 / 2, (1 << shift) + 4096] {
                let marks = Watermarks::for_cap(cap);
                assert!(marks.cap >= marks.hard && marks.hard >= marks.high, "{marks:?}");
                assert!(marks.high > marks.low && marks.low > 0, "{marks:?}");
                assert!(marks.activation < marks.high, "{marks:?}");
            }
        }
    }
}

//! How fast the program grows in memory that is not registered yet.
//!
//! There the kernel serves first touches by itself, at gigabytes a second, and reclaim may come too
//! late.

/// A program that grows by more than this in a millisecond may outrun reclaim. The kernel counts in
/// batches of 32 pages for each processor, so its count is off by this much where one processor
/// frees what another allocates.
pub const FAST_BYTES: u64 = 256 << 10;
const WINDOW_NS: u64 = 1_000_000;

/// The growth within the current window of a millisecond.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Since the start of the window, or since it was less than nothing.
    bytes: i64,
    began_ns: u64,
}

impl Growth {
    /// Notes by how much the program grew between two looks; negative where it shrank.
    pub fn note(&mut self, now_ns: u64, bytes: i64) {
        if now_ns - self.began_ns > WINDOW_NS {
            *self = Growth { bytes: 0, began_ns: now_ns };
        }
        self.bytes = (self.bytes + bytes).max(0);
    }

    /// May the program outrun reclaim?
    pub fn is_fast(&self) -> bool {
        self.bytes > FAST_BYTES as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is it fast to grow by so many KiB at each look, so many microseconds apart?
    fn is_fast(looks: &[i64], distance_us: u64) -> bool {
        let mut growth = Growth::default();
        for (nth, kibibytes) in looks.iter().enumerate() {
            growth.note(7_000_000 + nth as u64 * distance_us * 1000, kibibytes << 10);
        }
        growth.is_fast()
    }

    #[test]
    fn growth_adds_up_within_a_window() {
        assert!(is_fast(&[300], 100) && is_fast(&[100, 100, 100], 100));
        assert!(!is_fast(&[256], 100) && !is_fast(&[100, 100, 100], 600));
        // It goes on in the next window.
        assert!(is_fast(&[100; 15], 100));
    }

    #[test]
    fn a_count_that_swings_is_no_growth() {
        assert!(!is_fast(&[250, -250, 250, -250, 250], 10));
        assert!(!is_fast(&[-800, 250], 10));
        assert!(is_fast(&[-800, 300], 10));
    }
}

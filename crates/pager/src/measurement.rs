//! Amounts that take long to measure: measured again when there is something new, and rarely.

use ramfold_sys::time;

/// Between two measurements at least this long, and this many times what one takes.
const REST_NS_MIN: u64 = 50_000_000;
const REST_SHARE: u64 = 50;
/// And so much must have changed.
const CHANGED_BYTES_MIN: u64 = 1 << 20;

/// When an amount was last measured. All zero: never.
#[derive(Default)]
pub struct Measurement {
    /// An amount that the kernel tells at once, and that the measured one changes with.
    seen_bytes: u64,
    measured_ns: u64,
    took_ns: u64,
}

impl Measurement {
    /// Measures, if it is time to: `seen_bytes` is another amount than the last time.
    pub fn take<T>(&mut self, seen_bytes: u64, measure: impl FnOnce() -> T) -> Option<T> {
        let started = time::monotonic_ns();
        let rest = (self.took_ns * REST_SHARE).max(REST_NS_MIN);
        if seen_bytes.abs_diff(self.seen_bytes) < CHANGED_BYTES_MIN
            || self.measured_ns != 0 && started - self.measured_ns < rest
        {
            return None;
        }
        let measured = measure();
        self.seen_bytes = seen_bytes;
        self.measured_ns = time::monotonic_ns();
        self.took_ns = self.measured_ns - started;
        Some(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_changed_is_not_measured_again() {
        let mut measurement = Measurement::default();
        assert_eq!(measurement.take(CHANGED_BYTES_MIN - 1, || 1), None);
        assert_eq!(measurement.take(CHANGED_BYTES_MIN, || 2), Some(2));
        // It has, but a moment ago.
        measurement.measured_ns = time::monotonic_ns();
        assert_eq!(measurement.take(9 * CHANGED_BYTES_MIN, || 3), None);
        measurement.measured_ns -= 2 * REST_NS_MIN;
        measurement.took_ns = 0;
        assert_eq!(measurement.take(9 * CHANGED_BYTES_MIN, || 4), Some(4));
        measurement.measured_ns -= 2 * REST_NS_MIN;
        assert_eq!(measurement.take(9 * CHANGED_BYTES_MIN, || 5), None);
    }
}

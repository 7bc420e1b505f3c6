//! When to repeat a measurement that takes long: rarely, and only after something has changed.

/// Between two measurements at least this long, and this many times what one takes.
const REST_NS_MIN: u64 = 50_000_000;
const REST_SHARE: u64 = 50;
/// And so much must have changed.
const CHANGED_BYTES_MIN: u64 = 1 << 20;

/// When an amount was last measured. The default: never.
#[derive(Debug, Default)]
pub struct Measurement {
    /// A cheap amount that the measured one changes with, as of the last measurement.
    seen_bytes: u64,
    measured_ns: u64,
    took_ns: u64,
}

impl Measurement {
    /// Is it time to measure? `seen_bytes`: the cheap amount now.
    pub fn is_due(&self, seen_bytes: u64, now_ns: u64) -> bool {
        let rest = (self.took_ns * REST_SHARE).max(REST_NS_MIN);
        seen_bytes.abs_diff(self.seen_bytes) >= CHANGED_BYTES_MIN
            && (self.measured_ns == 0 || now_ns - self.measured_ns >= rest)
    }

    /// Notes that a measurement began and ended at these times, when the cheap amount was
    /// `seen_bytes`.
    pub fn note(&mut self, seen_bytes: u64, began_ns: u64, ended_ns: u64) {
        *self = Measurement { seen_bytes, measured_ns: ended_ns, took_ns: ended_ns - began_ns };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_that_has_not_changed_is_not_measured_again() {
        let now = 7 * REST_NS_MIN;
        let mut measurement = Measurement::default();
        assert!(!measurement.is_due(CHANGED_BYTES_MIN - 1, now));
        assert!(measurement.is_due(CHANGED_BYTES_MIN, now));
        measurement.note(CHANGED_BYTES_MIN, now, now + 10);
        // It has changed, but a moment ago.
        assert!(!measurement.is_due(9 * CHANGED_BYTES_MIN, now + REST_NS_MIN + 9));
        assert!(measurement.is_due(9 * CHANGED_BYTES_MIN, now + REST_NS_MIN + 10));
        assert!(!measurement.is_due(CHANGED_BYTES_MIN, now + 100 * REST_NS_MIN));
    }

    #[test]
    fn a_slow_measurement_is_repeated_more_rarely() {
        let mut measurement = Measurement::default();
        measurement.note(0, 0, REST_NS_MIN);
        let next = REST_NS_MIN + REST_SHARE * REST_NS_MIN;
        assert!(!measurement.is_due(CHANGED_BYTES_MIN, next - 1));
        assert!(measurement.is_due(CHANGED_BYTES_MIN, next));
    }
}

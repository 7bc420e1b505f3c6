//! How long reclaim rests when it found nothing more to take: data that does not compress is not
//! likely to do so a moment later. Each rest is twice as long as the one before.

/// The first rest.
pub const REST_NS_MIN: u64 = 100_000_000;
/// The longest, where something happens in the process.
const REST_NS_MAX: u64 = 10_000_000_000;
/// The same as long as nothing has changed.
const REST_NS_MAX_QUIET: u64 = 160_000_000_000;

/// When reclaim was tried last in vain, and for how long it rests since.
#[derive(Clone, Copy, Debug)]
pub struct BackOff {
    tried_ns: u64,
    rest_ns: u64,
    /// How long the next rest is.
    next_ns: u64,
}

impl Default for BackOff {
    fn default() -> Self {
        BackOff { tried_ns: 0, rest_ns: 0, next_ns: REST_NS_MIN }
    }
}

impl BackOff {
    /// There is room: the next rest is a short one.
    pub fn reset(&mut self) {
        self.next_ns = REST_NS_MIN;
    }

    /// Reclaim was tried in vain, and rests.
    pub fn begin(&mut self, now_ns: u64) {
        *self = BackOff {
            tried_ns: now_ns,
            rest_ns: self.next_ns,
            next_ns: (self.next_ns * 2).min(REST_NS_MAX_QUIET),
        };
    }

    /// Is the rest over? `is_quiet`: nothing has happened in the process for a while.
    pub fn is_over(&self, now_ns: u64, is_quiet: bool) -> bool {
        let most = if is_quiet { REST_NS_MAX_QUIET } else { REST_NS_MAX };
        now_ns - self.tried_ns >= self.rest_ns.min(most)
    }

    /// By how much the process may grow before reclaim is tried again all the same, where it may
    /// grow by `step_bytes` after the shortest rest.
    pub fn growth_bytes(&self, step_bytes: u64) -> u64 {
        step_bytes * (self.rest_ns.min(REST_NS_MAX) / REST_NS_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rest_is_twice_as_long_until_there_is_room() {
        let mut back_off = BackOff::default();
        let mut rest = |now_ns: u64| {
            back_off.begin(now_ns);
            let rest = (0..).map(|n| n * REST_NS_MIN).find(|n| back_off.is_over(now_ns + n, false));
            (rest.unwrap() / REST_NS_MIN, back_off.growth_bytes(10))
        };
        let rests: Vec<_> = (0..9).map(|_| rest(5)).collect();
        let lengths = [1, 2, 4, 8, 16, 32, 64, 100, 100];
        assert!(rests.iter().copied().eq(lengths.map(|n| (n, 10 * n))), "{rests:?}");
        back_off.reset();
        back_off.begin(0);
        assert!(back_off.is_over(REST_NS_MIN, true) && !back_off.is_over(REST_NS_MIN - 1, true));
    }

    #[test]
    fn a_quiet_process_rests_for_longer() {
        let mut back_off = BackOff::default();
        (0..20).for_each(|_| back_off.begin(0));
        assert!(back_off.is_over(REST_NS_MAX, false) && !back_off.is_over(REST_NS_MAX, true));
        assert!(back_off.is_over(REST_NS_MAX_QUIET, true));
    }
}

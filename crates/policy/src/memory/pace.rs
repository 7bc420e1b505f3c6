//! How fast proactive reclaim goes round the memory, bounded by what faults cost the program.

/// The pace is judged after so long.
const JUDGED_NS: u64 = 1_000_000_000;
/// Full pace.
const PACE_MAX: u64 = 64;
/// What the pace gains when faults have cost less than they may. When they have cost more it is
/// halved.
const PACE_STEP: u64 = 4;
const PARTS_PER_MILLION: u128 = 1_000_000;

/// How fast to go on.
pub struct Pace {
    /// In which time a hand at full pace goes round.
    round_ns: u64,
    /// What faults may take of the time, in millionths.
    slowdown_ppm: u64,
    pace: u64,
    judged_ns: u64,
    /// What faults had cost then.
    fault_ns: u64,
    stepped_ns: u64,
    /// Pages times nanoseconds that are left over from the last step.
    rest: u128,
}

impl Pace {
    /// A pace at which all memory is looked at in `round_ns`, while faults take no more than
    /// `slowdown_ppm` millionths of the time. `fault_ns`: what all faults have cost so far.
    pub fn new(round_ns: u64, slowdown_ppm: u64, now_ns: u64, fault_ns: u64) -> Pace {
        Pace {
            round_ns: round_ns.max(1),
            slowdown_ppm,
            pace: PACE_MAX,
            judged_ns: now_ns,
            fault_ns,
            stepped_ns: now_ns,
            rest: 0,
        }
    }

    /// How many of `resident_pages` are to be looked at now. `fault_ns`: what all faults have cost
    /// so far.
    pub fn pages_due(&mut self, now_ns: u64, resident_pages: u64, fault_ns: u64) -> u64 {
        self.judge(now_ns, fault_ns);
        let elapsed = now_ns - core::mem::replace(&mut self.stepped_ns, now_ns);
        let round = u128::from(self.round_ns) * u128::from(PACE_MAX);
        let due =
            u128::from(resident_pages) * u128::from(elapsed) * u128::from(self.pace) + self.rest;
        self.rest = due % round;
        // No more than there is, however long ago the last step was.
        u64::try_from(due / round).unwrap_or(u64::MAX).min(resident_pages)
    }

    fn judge(&mut self, now_ns: u64, fault_ns: u64) {
        let elapsed = now_ns - self.judged_ns;
        if elapsed < JUDGED_NS {
            return;
        }
        let cost = u128::from(fault_ns.saturating_sub(self.fault_ns)) * PARTS_PER_MILLION;
        let too_much = cost > u128::from(elapsed) * u128::from(self.slowdown_ppm);
        self.pace =
            if too_much { (self.pace / 2).max(1) } else { (self.pace + PACE_STEP).min(PACE_MAX) };
        self.judged_ns = now_ns;
        self.fault_ns = fault_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn at_full_pace_every_page_is_due_once_in_a_round() {
        let mut pace = Pace::new(30 * SECOND, 20_000, 5, 0);
        let due: u64 = (1..=300).map(|tick| pace.pages_due(5 + tick * SECOND / 10, 1000, 0)).sum();
        assert_eq!(due, 1000);
        // After a long sleep no page twice.
        assert_eq!(pace.pages_due(5 + 3000 * SECOND, 1000, 0), 1000);
    }

    #[test]
    fn the_pace_falls_when_faults_cost_too_much_and_rises_again() {
        let mut pace = Pace::new(10 * SECOND, 20_000, 0, 0);
        let mut fault_ns = 0;
        let mut due_at = |second: u64, fault_share: u64| {
            fault_ns += SECOND / 100 * fault_share;
            pace.pages_due(second * SECOND, 64_000, fault_ns)
        };
        assert_eq!(due_at(1, 2), 6400);
        assert_eq!([due_at(2, 3), due_at(3, 50), due_at(4, 3)], [3200, 1600, 800]);
        assert_eq!([due_at(5, 1), due_at(6, 0)], [1200, 1600]);
        assert_eq!((7..40).fold(0, |_, second| due_at(second, 0)), 6400);
        assert!((40..80).all(|second| due_at(second, 100) > 0));
    }
}

//! Whether faults follow each other so closely that no processor should go idle meanwhile.
//!
//! In a virtual machine an idle processor takes 25 to 75 us to wake. After each fault the kernel
//! would put the program on such a processor, because the handler still runs on the other. So the
//! launcher keeps processors awake as long as faults are frequent. No thread of the program's
//! process does that: each page that is taken would interrupt it, which costs more than the page.

/// Faults are frequent when they come within this time of each other on average.
const FREQUENT_NS: u64 = 60_000;
/// Faults to take the average of.
const FAULTS: u32 = 8;
/// How long processors are kept awake then: for twice the time of that many faults.
const AWAKE_NS: u64 = 2 * FAULTS as u64 * FREQUENT_NS;

/// The latest faults.
#[derive(Default)]
pub struct FaultRate {
    since_ns: u64,
    faults: u32,
}

impl FaultRate {
    /// Notes a fault. Returns until when processors are to be kept awake, where faults are
    /// frequent.
    pub fn note_fault(&mut self, now_ns: u64) -> Option<u64> {
        self.faults += 1;
        if self.faults < FAULTS {
            return None;
        }
        let took_ns = now_ns - self.since_ns;
        *self = FaultRate { since_ns: now_ns, faults: 0 };
        (took_ns < u64::from(FAULTS) * FREQUENT_NS).then_some(now_ns + AWAKE_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_stay_awake_while_faults_are_frequent() {
        let mut rate = FaultRate::default();
        let mut awake = |began_ns: u64, distance_ns: u64| {
            let noted = (0..u64::from(FAULTS)).map(|nth| began_ns + nth * distance_ns);
            noted.filter_map(|now_ns| rate.note_fault(now_ns)).last()
        };
        assert_eq!(awake(10_000_000, 1_000), None, "the first window begins at zero");
        assert_eq!(awake(10_008_000, 1_000), Some(10_015_000 + AWAKE_NS));
        assert_eq!(awake(10_080_000, FREQUENT_NS), None);
    }
}

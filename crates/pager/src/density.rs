//! Whether faults follow one another so closely that no processor should fall asleep meanwhile.
//!
//! In a virtual machine a processor that has fallen asleep takes 25 to 75 us to wake. The program
//! would be put on such a one after each fault, because it is free while the handler still runs on
//! the other. So the launcher keeps processors awake as long as faults are dense; not a thread of
//! this process: what runs in its address space has to be interrupted for each page that is taken
//! from it, which costs more than taking it.

use crate::session::Session;

/// Faults are dense when they come in this time of each other on average.
const DENSE_NS: u64 = 60_000;
/// Faults to take the average of.
const FAULTS: u32 = 8;
/// How long processors are kept awake then: at least until the next so many faults.
const AWAKE_NS: u64 = 2 * FAULTS as u64 * DENSE_NS;

/// The latest faults.
#[derive(Default)]
pub struct Density {
    since_ns: u64,
    faults: u32,
}

impl Density {
    /// There was a fault.
    pub fn note_fault(&mut self, session: &Session, now_ns: u64) {
        self.faults += 1;
        if self.faults < FAULTS {
            return;
        }
        if now_ns - self.since_ns < u64::from(FAULTS) * DENSE_NS {
            session.keep_awake(now_ns + AWAKE_NS);
        }
        *self = Density { since_ns: now_ns, faults: 0 };
    }
}

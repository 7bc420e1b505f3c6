//! For how long nothing has happened in a process, and how rarely it is looked at then.

/// Looks at which nothing had changed that make a process quiet.
const LOOKS: u32 = 16;
/// Less than this is no change: what the agent itself takes and gives back, and what the kernel's
/// loose counters are off by. Changes in one direction add up.
const CHANGE_BYTES: u64 = 256 << 10;

/// Amounts of memory that change where something happens in a process, in bytes.
pub type Amounts = [u64; 4];

/// What a process was like when it changed last, and since when it has not.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    amounts: Amounts,
    faults: u64,
    since_ns: u64,
    looks: u32,
}

impl Quiet {
    /// A process that has these amounts of memory now.
    pub fn new(now_ns: u64, amounts: Amounts) -> Quiet {
        Quiet { amounts, faults: 0, since_ns: now_ns, looks: 0 }
    }

    /// A look at the process. `faults`: so far.
    pub fn note(&mut self, now_ns: u64, amounts: Amounts, faults: u64) {
        if faults == self.faults && !is_other(amounts, self.amounts) {
            self.looks = self.looks.saturating_add(1);
        } else {
            *self = Quiet { amounts, faults, since_ns: now_ns, looks: 0 };
        }
    }

    /// The agent has given back memory of its own: what there is now has not changed.
    pub fn note_own(&mut self, amounts: Amounts) {
        self.amounts = amounts;
    }

    /// Has nothing changed for several looks?
    pub fn is_quiet(&self) -> bool {
        self.looks >= LOOKS
    }

    /// For how long nothing has changed.
    pub fn lasts_ns(&self, now_ns: u64) -> u64 {
        now_ns - self.since_ns
    }

    /// The time to the next look, where it is `usual_us` in a busy process: twice as long from look
    /// to look in one that is quiet, up to a limit.
    pub fn interval_us(&self, usual_us: u64, most_us: u64) -> u64 {
        let doublings = self.looks.saturating_sub(LOOKS).min(16);
        (usual_us << doublings).min(most_us)
    }
}

fn is_other(amounts: Amounts, before: Amounts) -> bool {
    amounts.into_iter().zip(before).any(|(now, before)| now.abs_diff(before) > CHANGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(kibibytes: u64) -> Amounts {
        [kibibytes << 10, 0, 1 << 30, 1 << 29]
    }

    /// The intervals after so many looks each, at what the process has then.
    fn intervals(looks: &[(u32, u64, u64)]) -> Vec<u64> {
        let mut quiet = Quiet::new(0, memory(20_000));
        let interval = |&(count, kibibytes, faults): &(u32, u64, u64)| {
            (0..count).for_each(|_| quiet.note(7, memory(kibibytes), faults));
            quiet.interval_us(1_000, 500_000)
        };
        looks.iter().map(interval).collect()
    }

    #[test]
    fn it_is_looked_at_ever_less_often_until_something_happens() {
        let looks = [(16, 20_000, 0), (1, 20_000, 0), (1, 20_000, 0), (99, 20_000, 0)];
        assert_eq!(intervals(&looks), [1_000, 2_000, 4_000, 500_000]);
        // A fault, and growth.
        assert_eq!(intervals(&[(99, 20_000, 0), (1, 20_000, 1)]), [500_000, 1_000]);
        assert_eq!(intervals(&[(99, 20_000, 0), (1, 20_300, 0)]), [500_000, 1_000]);
    }

    #[test]
    fn counters_that_swing_are_no_change_and_growth_adds_up() {
        let mut quiet = Quiet::new(0, memory(20_000));
        for look in 0..99 {
            quiet.note(look, memory(20_000 + look % 2 * 200), 0);
        }
        assert!(quiet.is_quiet());
        assert_eq!(quiet.lasts_ns(100), 100);
        let looks = (0..99).take_while(|&look| {
            quiet.note(200 + look, memory(20_000 + look * 10), 0);
            quiet.is_quiet()
        });
        assert_eq!(looks.count(), 26);
        assert_eq!(quiet.lasts_ns(1000), 1000 - 226);
    }

    #[test]
    fn what_the_agent_gives_back_is_no_change() {
        let mut quiet = Quiet::new(0, memory(20_000));
        (0..20).for_each(|_| quiet.note(7, memory(20_000), 0));
        quiet.note_own(memory(19_000));
        quiet.note(8, memory(19_100), 0);
        assert!(quiet.is_quiet());
    }
}

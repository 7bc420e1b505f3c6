//! Rounds over all pages, and when another one is not worth it.

/// Pages that are taken at once, at most. Locks are held that long, and a fault may wait for them:
/// 32 pages take about 10 us when another core has to be told to forget them.
pub const BATCH_PAGES: usize = 32;
/// What streams have brought in waits in as much as the cap / this.
pub const PROBATION_SHARE: usize = 16;
/// Or in this much: a few streams' windows.
pub const PROBATION_PAGES_MIN: usize = 128;
/// A trial takes a page in another of this many parts of what the cap holds than the last.
pub const TRIAL_PLACES: usize = 64;

/// A round in which not one of this many pages could be stored gains too little: those that could
/// are the ones the program cannot do without, and come back at once.
const GAIN_SHARE: u64 = 32;
const FRUITLESS_MAX: u32 = 2;

/// What rounds have gained. All zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// One after the other, with too little gained.
    fruitless: u32,
    number: u32,
    /// Pages in memory that were come by in this round, and pages that were stored.
    seen: u64,
    stored: u64,
    /// Of those that were come by the ones that a relative has too. They say nothing about the
    /// rest.
    shared: u64,
}

impl Rounds {
    /// The round ends, and the next begins. `waiting`: pages that were taken and are not
    /// compressed yet. Returns whether the look at what is shared paid too, or may have.
    pub fn begin(&mut self, waiting: u64) -> bool {
        self.count();
        let pays = |stored: u64, seen: u64| stored > 0 && stored * GAIN_SHARE >= seen;
        let all_pays = pays(self.stored + waiting, self.seen);
        let own = self.seen.saturating_sub(self.shared);
        if pays(self.stored, own) {
            self.fruitless = 0;
        } else if pays(self.stored + waiting, own) {
            // It cannot be said yet.
            return all_pays;
        } else {
            self.fruitless += 1;
        }
        (self.seen, self.stored, self.shared) = (0, 0, 0);
        all_pays
    }

    /// A round of another kind has ended.
    pub fn count(&mut self) {
        self.number = self.number.wrapping_add(1);
    }

    /// The number of this round.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the last round gained too little. What protected a page then does not any more.
    pub fn is_fruitless(&self) -> bool {
        self.fruitless > 0
    }

    /// Whether another round is not worth it, until memory changes.
    pub fn are_enough(&self) -> bool {
        self.fruitless >= FRUITLESS_MAX
    }

    /// Memory has changed: another round may pay.
    pub fn encourage(&mut self) {
        self.fruitless = 0;
    }

    /// Pages in memory were come by.
    pub fn note_seen(&mut self, pages: u64) {
        self.seen += pages;
    }

    /// Some of them are a relative's too.
    pub fn note_shared(&mut self, pages: u64) {
        self.shared += pages;
    }

    /// A page that was taken has been compressed.
    pub fn note_stored(&mut self) {
        self.stored += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fruitless_beside_shared(
        rounds: u32,
        seen: u64,
        stored: u64,
        waiting: u64,
        shared: u64,
    ) -> u32 {
        let mut all = Rounds::default();
        for _ in 0..rounds {
            all.note_seen(seen);
            (0..stored).for_each(|_| all.note_stored());
            all.note_shared(shared);
            all.begin(waiting);
        }
        all.fruitless
    }

    fn fruitless_after(rounds: u32, seen: u64, stored: u64, waiting: u64) -> u32 {
        fruitless_beside_shared(rounds, seen, stored, waiting, 0)
    }

    #[test]
    fn a_round_that_gains_too_little_is_fruitless() {
        assert_eq!(fruitless_after(3, 3200, 0, 0), 3);
        assert_eq!(fruitless_after(3, 3200, 99, 0), 3);
        assert_eq!(fruitless_after(3, 3200, 100, 0), 0);
        assert_eq!(fruitless_after(3, 0, 0, 0), 3);
        // A few pages among many that are shared are worth another round.
        assert_eq!(fruitless_beside_shared(3, 3200, 5, 0, 3100), 0);
        assert_eq!(fruitless_beside_shared(3, 3200, 0, 0, 3200), 3);
    }

    #[test]
    fn a_look_at_what_is_shared_pays_by_what_is_gained_of_all() {
        let looked = |stored: u64, waiting: u64| {
            let mut rounds = Rounds::default();
            rounds.note_seen(3200);
            rounds.note_shared(3100);
            (0..stored).for_each(|_| rounds.note_stored());
            (rounds.begin(waiting), rounds.is_fruitless())
        };
        assert_eq!(looked(100, 0), (true, false));
        assert_eq!(looked(5, 0), (false, false));
        assert_eq!(looked(5, 95), (true, false));
        assert_eq!(looked(0, 0), (false, true));
    }

    /// Threads that go on faulting keep a few pages waiting for ever.
    #[test]
    fn what_waits_delays_the_verdict_only_where_it_matters() {
        assert_eq!(fruitless_after(1, 3200, 0, 100), 0);
        assert_eq!(fruitless_after(3, 3200, 1, 3), 3);
        assert!(fruitless_after(100, 3200, 0, 100) > 40);
    }
}

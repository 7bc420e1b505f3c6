//! What replacement remembers of a cluster: one byte beside its object.
//!
//! ```text
//!  7    6 5    4 3   2   1 0
//! +------+------+---+---+-------+
//! |    0     age    | M | reads |      age: of a ghost, when it left, modulo 16
//! +-----------------+---+-------+
//! ```

/// How often a cluster was read, and which queue it is in; or, of a ghost, when it left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History(u8);

impl History {
    const READS: u8 = 0b11;
    const MAIN: u8 = 0b100;
    const AGE_SHIFT: u32 = 3;
    pub(super) const AGES: u8 = 16;
    /// A ghost's history is never 0, which stands for nothing at all.
    const GHOST: u8 = 0b1000_0000;

    /// Of a cluster that was read for the first time.
    pub const NEW: History = History(0);
    /// Of a cluster that is known to be read again: it begins in the main queue.
    pub const RETURNING: History = History(History::MAIN);

    /// What was stored as [`History::bits`].
    pub fn from_bits(bits: u8) -> History {
        History(bits)
    }

    /// One byte, to be stored.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// How often the cluster was read since it was stored or last spared, at most 3.
    pub fn reads(self) -> u8 {
        self.0 & History::READS
    }

    /// One read more.
    pub fn read(self) -> History {
        if self.reads() == History::READS { self } else { History(self.0 + 1) }
    }

    /// One read fewer: the hand has passed.
    pub fn spared(self) -> History {
        if self.reads() == 0 { self } else { History(self.0 - 1) }
    }

    /// Whether the cluster is in the main queue, out of which a scan must push nothing.
    pub fn is_main(self) -> bool {
        self.0 & History::MAIN != 0
    }

    /// Of a cluster that moves to the main queue.
    pub fn promoted(self) -> History {
        History((self.0 | History::MAIN) & !History::READS)
    }

    /// Of a cluster that leaves in this age.
    pub fn ghost(age: u32) -> History {
        History(History::GHOST | (age as u8 % History::AGES) << History::AGE_SHIFT)
    }

    /// Whether the cluster has left.
    pub fn is_ghost(self) -> bool {
        self.0 & History::GHOST != 0
    }

    /// Ages since a ghost left, if those are fewer than 16.
    pub fn ages_since(self, now: u32) -> u8 {
        (now as u8).wrapping_sub(self.0 >> History::AGE_SHIFT) % History::AGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stay_within_their_bits() {
        let mut history = History::NEW;
        assert_eq!(history.spared(), history);
        for reads in [1, 2, 3, 3, 3] {
            history = history.read();
            assert_eq!(
                (history.reads(), history.is_main(), history.is_ghost()),
                (reads, false, false)
            );
        }
        history = history.promoted();
        assert_eq!((history.reads(), history.is_main()), (0, true));
        assert_eq!(history.read().spared(), history);
    }

    #[test]
    fn ghosts_know_how_long_they_have_been_gone() {
        for age in [0, 1, 15, 16, 1000, u32::MAX] {
            let ghost = History::ghost(age);
            assert!(ghost.is_ghost() && ghost.bits() != 0);
            for later in 0..16 {
                assert_eq!(u32::from(ghost.ages_since(age.wrapping_add(later))), later);
            }
        }
    }
}

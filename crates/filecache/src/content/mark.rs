//! What is remembered of a cluster beside its object: the byte that the store keeps for its first page.
//!
//! ```text
//!  7    6 5    4 3   2   1 0
//! +------+------+---+---+------+
//! |    0     age    | M | uses |      age: of a ghost, when it left, modulo 16
//! +-----------------+---+------+
//! ```

/// A cluster's mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(u8);

impl Mark {
    const USES: u8 = 0b11;
    const MAIN: u8 = 0b100;
    const AGE_SHIFT: u32 = 3;
    const AGES: u8 = 16;
    /// A ghost's mark is never 0, which stands for nothing at all.
    const GHOST: u8 = 0b1000_0000;

    /// Of a cluster that was read for the first time.
    pub const NEW: Mark = Mark(0);
    /// Of one that is known to be read again.
    pub const KNOWN: Mark = Mark(Mark::MAIN);

    pub fn from_bits(bits: u8) -> Mark {
        Mark(bits)
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    /// How often it was read since it was stored or last spared, at most 3.
    pub fn uses(self) -> u8 {
        self.0 & Mark::USES
    }

    pub fn used(self) -> Mark {
        if self.uses() == Mark::USES { self } else { Mark(self.0 + 1) }
    }

    pub fn spared(self) -> Mark {
        if self.uses() == 0 { self } else { Mark(self.0 - 1) }
    }

    /// Whether it has been read again: it belongs to what a scan must not push out.
    pub fn is_main(self) -> bool {
        self.0 & Mark::MAIN != 0
    }

    /// Of one that is now known to be read again.
    pub fn promoted(self) -> Mark {
        Mark((self.0 | Mark::MAIN) & !Mark::USES)
    }

    /// Of one that leaves the pool.
    pub fn ghost(age: u32) -> Mark {
        Mark(Mark::GHOST | (age as u8 % Mark::AGES) << Mark::AGE_SHIFT)
    }

    pub fn is_ghost(self) -> bool {
        self.0 & Mark::GHOST != 0
    }

    /// Ages since a ghost left, if those are fewer than 16.
    pub fn ages_since(self, now: u32) -> u8 {
        (now as u8).wrapping_sub(self.0 >> Mark::AGE_SHIFT) % Mark::AGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_stay_within_their_bits() {
        let mut mark = Mark::NEW;
        assert_eq!(mark.spared(), mark);
        for uses in [1, 2, 3, 3, 3] {
            mark = mark.used();
            assert_eq!((mark.uses(), mark.is_main(), mark.is_ghost()), (uses, false, false));
        }
        mark = mark.promoted();
        assert_eq!((mark.uses(), mark.is_main()), (0, true));
        assert_eq!(mark.used().spared(), mark);
    }

    #[test]
    fn ghosts_know_how_long_they_have_been_gone() {
        for age in [0, 1, 15, 16, 1000, u32::MAX] {
            let ghost = Mark::ghost(age);
            assert!(ghost.is_ghost() && ghost.bits() != 0);
            for later in 0..16 {
                assert_eq!(u32::from(ghost.ages_since(age.wrapping_add(later))), later);
            }
        }
    }
}

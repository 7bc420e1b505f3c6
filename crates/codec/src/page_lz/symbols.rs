//! The numbers of a sequence as symbols, for codes of few bits, and extra bits.

/// A range of numbers that share a symbol: from `base` on, told apart by `extra` bits.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    pub(crate) base: u16,
    pub(crate) extra: u8,
}

const fn classes<const N: usize>(list: [(u16, u8); N]) -> [Class; N] {
    let mut classes = [Class { base: 0, extra: 0 }; N];
    let mut nth = 0;
    while nth < N {
        classes[nth] = Class { base: list[nth].0, extra: list[nth].1 };
        nth += 1;
    }
    classes
}

/// Literals before a copy.
pub(crate) const RUNS: [Class; 11] = classes([
    (0, 0),
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 1),
    (8, 2),
    (12, 3),
    (20, 4),
    (36, 12),
]);

/// The shortest copy, in bytes.
pub(crate) const COPY_MIN: usize = 3;

/// Bytes copied.
pub(crate) const LENGTHS: [Class; 19] = classes([
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 0),
    (12, 0),
    (13, 0),
    (14, 1),
    (16, 2),
    (20, 3),
    (28, 4),
    (44, 5),
    (76, 6),
    (140, 7),
    (268, 12),
]);

/// Symbols of the literals.
pub(crate) const LITERALS: usize = 256;
/// Symbols of run and length together: `run * LENGTHS.len() + length`.
pub(crate) const TOKENS: usize = RUNS.len() * LENGTHS.len();
/// Symbols of the distances: that of one of the last three sequences, 8 times a number of so many
/// bits, a number of so many bits.
pub(crate) const DISTANCES: usize = RECENT + EIGHTS + ONES;

/// Distances that are remembered.
pub(crate) const RECENT: usize = 3;
const EIGHTS: usize = 9;
const ONES: usize = 12;

/// What a symbol of [`DISTANCES`] from [`RECENT`] on stands for: `(base + extra bits) << shift`.
pub(crate) const fn distance_class(symbol: usize) -> (Class, u8) {
    let (bits, shift) =
        if symbol < RECENT + EIGHTS { (symbol - RECENT, 3) } else { (symbol - RECENT - EIGHTS, 0) };
    (Class { base: 1 << bits, extra: bits as u8 }, shift)
}

/// The symbol of a distance that is not remembered.
pub(crate) const fn distance_symbol(distance: usize) -> usize {
    if distance.is_multiple_of(8) {
        RECENT + (distance / 8).ilog2() as usize
    } else {
        RECENT + EIGHTS + distance.ilog2() as usize
    }
}

/// By number, the class it is in.
const fn class_of<const NUMBERS: usize>(classes: &[Class]) -> [u8; NUMBERS] {
    let mut of = [0; NUMBERS];
    let mut number = classes[0].base as usize;
    let mut class = 0;
    while number < NUMBERS {
        while class + 1 < classes.len() && number >= classes[class + 1].base as usize {
            class += 1;
        }
        of[number] = class as u8;
        number += 1;
    }
    of
}

/// Numbers below this have their class in a table; all others are in the last.
const TABLED: usize = 268;

static RUN_CLASS: [u8; TABLED] = class_of(&RUNS);
static LENGTH_CLASS: [u8; TABLED] = class_of(&LENGTHS);

#[inline]
pub(crate) fn run_class(run: usize) -> usize {
    usize::from(RUN_CLASS[run.min(TABLED - 1)])
}

#[inline]
pub(crate) fn length_class(length: usize) -> usize {
    if length < TABLED { usize::from(LENGTH_CLASS[length]) } else { LENGTHS.len() - 1 }
}

/// The distances of the last sequences, the latest first, 16 bits each.
#[derive(Clone, Copy)]
pub(crate) struct Recent(u64);

impl Recent {
    #[inline]
    pub(crate) const fn at_first() -> Recent {
        Recent::of([8, 16, 4])
    }

    const fn of([first, second, third]: [u64; RECENT]) -> Recent {
        Recent(first | second << 16 | third << 32)
    }

    #[inline]
    pub(crate) fn get(self, nth: usize) -> usize {
        usize::from((self.0 >> (16 * nth)) as u16)
    }

    #[inline]
    pub(crate) fn all(self) -> [usize; RECENT] {
        core::array::from_fn(|nth| self.get(nth))
    }

    /// The symbol of `distance`.
    #[inline]
    pub(crate) fn symbol(self, distance: usize) -> usize {
        let known = (0..RECENT).find(|&nth| self.get(nth) == distance);
        known.unwrap_or_else(|| distance_symbol(distance))
    }

    /// Makes `distance` with `symbol` the latest.
    #[inline]
    pub(crate) fn used(&mut self, symbol: usize, distance: usize) {
        self.take(symbol.min(RECENT) as u8, distance as u64);
    }

    /// The distance that is the `nth` of those remembered, or `far` if `nth` is 3, which is the
    /// latest from now on. Without a branch, which would be hard to predict.
    ///
    /// A distance that comes again is remembered twice. To move it to the front instead would save
    /// half a hundredth of the bytes, and take a tenth more time to decode.
    #[inline(always)]
    pub(crate) fn take(&mut self, nth: u8, far: u64) -> u64 {
        let all = self.0 & 0xffff_ffff_ffff | far << 48;
        let distance = all >> (16 * (nth % 4)) & 0xffff;
        self.0 = distance | self.0 << 16;
        distance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another() {
        for classes in [&RUNS[..], &LENGTHS[..]] {
            for pair in classes.windows(2) {
                assert_eq!(pair[0].base + (1 << pair[0].extra), pair[1].base);
            }
            let last = classes[classes.len() - 1];
            assert!(usize::from(last.base) + (1 << last.extra) > crate::PAGE_SIZE);
        }
    }

    #[test]
    fn every_number_has_its_class() {
        let holds = |class: Class, number: usize| {
            (usize::from(class.base)..usize::from(class.base) + (1 << class.extra))
                .contains(&number)
        };
        for number in 0..=crate::PAGE_SIZE {
            assert!(holds(RUNS[run_class(number)], number), "{number}");
        }
        for number in COPY_MIN..=crate::PAGE_SIZE {
            assert!(holds(LENGTHS[length_class(number)], number), "{number}");
        }
        for distance in 1..crate::PAGE_SIZE {
            let (class, shift) = distance_class(distance_symbol(distance));
            assert!(holds(class, distance >> shift), "{distance}");
            assert_eq!(distance >> shift << shift, distance);
        }
    }

    #[test]
    fn distances_are_remembered() {
        let mut recent = Recent::of([1, 2, 3]);
        assert_eq!((recent.take(0, 99), [0, 1, 2].map(|nth| recent.get(nth))), (1, [1, 1, 2]));
        assert_eq!((recent.take(2, 99), [0, 1, 2].map(|nth| recent.get(nth))), (2, [2, 1, 1]));
        assert_eq!((recent.take(1, 99), [0, 1, 2].map(|nth| recent.get(nth))), (1, [1, 2, 1]));
        assert_eq!((recent.take(3, 4), [0, 1, 2].map(|nth| recent.get(nth))), (4, [4, 1, 2]));
        assert_eq!(recent.symbol(2), 2);
        assert_eq!(recent.symbol(3), RECENT + EIGHTS + 1);
    }
}

//! An entry: what is known of one page, in 64 bits.
//!
//! ```text
//!  63  61 60    53 52      49 48                              12         0
//! +------+--------+----------+---+-----------------------------+-----------+
//! | kind |  mark  | encoding | 0 | location (35, units of 16)  | length 13 |  object in the pool
//! +------+--------+----------+---+-----+-----+-----------------+------------+
//! | kind |  mark  | encoding | 1 |check|count|  first unit of 64 bytes (32) |  object, spilled
//! +------+--------+----------+---+-----+--+--+------------------------------+
//! | kind |  mark  |    check (21)    |             pattern (32)             |  same-filled
//! +------+--------+------------------+--------------------------------------+
//! | kind |  mark  |                            0                            |  ghost
//! +------+--------+---------------------------------------------------------+
//! |                                    0                                    |  empty
//! +-------------------------------------------------------------------------+
//! ```
//!
//! The kinds' numbers differ in two bits, so that no single flipped bit turns one into another: a
//! page that is here never seems to be absent.

use ramfold_codec::encodings::{self, WORD};

use crate::pool::{Object, ObjectRef};
use crate::spill::{COUNT_BITS, Extent, FIRST_BITS, UnitRange};

/// What a page's entry says, with the right to the object where there is one.
#[must_use]
#[derive(Debug)]
pub(crate) enum Content {
    /// Nothing is known of the page.
    Empty,
    /// The page was here and was taken.
    Ghost,
    /// The page is this 32-bit pattern over and over.
    SameFilled {
        pattern: u32,
        /// Of [`CHECK_BITS`].
        check: u32,
    },
    /// The page is an object; under encoding [`WORD`] a 64-bit word that the page consists of.
    Object { object: Object, encoding: u8 },
    /// The page is an object in the spill file.
    Spilled {
        extent: Extent,
        encoding: u8,
        /// Of [`SPILLED_CHECK_BITS`].
        check: u32,
    },
}

/// What an entry had, to be freed.
#[must_use]
#[derive(Debug)]
pub(crate) enum Holding {
    Slot(Object),
    Extent(Extent),
}

/// A look at a [`Content`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    Empty,
    Ghost,
    SameFilled {
        pattern: u32,
        check: u32,
    },
    Object {
        object: ObjectRef<'a>,
        encoding: u8,
    },
    Spilled {
        place: UnitRange,
        encoding: u8,
        check: u32,
    },
    /// Bits that no entry has.
    Damaged,
}

/// Room beside a pattern for a check of it.
pub(crate) const CHECK_BITS: u32 = 21;

/// Room beside an extent for a check of it.
pub(crate) const SPILLED_CHECK_BITS: u32 = 9;

const KIND_SHIFT: u32 = 61;
const MARK_SHIFT: u32 = 53;
const MARK_MASK: u64 = 0xff << MARK_SHIFT;
const ENCODING_SHIFT: u32 = 49;
const ENCODING_MASK: u64 = (1 << encodings::BITS) - 1;
const CHECK_SHIFT: u32 = 32;
const PLACE_MASK: u64 = (1 << Object::BITS) - 1;
const CHECK_MASK: u64 = (1 << CHECK_BITS) - 1;
/// Of an object: it is in the spill file, not in the pool.
const SPILLED: u64 = 1 << Object::BITS;
const SPILLED_CHECK_SHIFT: u32 = FIRST_BITS + COUNT_BITS;
const SPILLED_CHECK_MASK: u64 = (1 << SPILLED_CHECK_BITS) - 1;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

const EMPTY: u64 = 0b000;
const GHOST: u64 = 0b011;
const SAME_FILLED: u64 = 0b101;
const OBJECT: u64 = 0b110;

const _: () = {
    assert!(Object::BITS + 1 == ENCODING_SHIFT);
    assert!(MARK_SHIFT + 8 == KIND_SHIFT);
    assert!(SPILLED_CHECK_SHIFT + SPILLED_CHECK_BITS == Object::BITS);
    assert!(CHECK_SHIFT + CHECK_BITS == MARK_SHIFT);
    assert!(ENCODING_SHIFT + encodings::BITS == MARK_SHIFT);
};

/// The entry's bits. Whoever has the entry in memory, under its lock, owns the object it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) const EMPTY: Entry = Entry(EMPTY);

    #[inline]
    pub(super) fn new(content: Content, mark: u8) -> Entry {
        let (kind, rest) = match content {
            Content::Empty => return Entry::EMPTY,
            Content::Ghost => (GHOST, 0),
            Content::SameFilled { pattern, check } => {
                let check = u64::from(check) & CHECK_MASK;
                (SAME_FILLED, check << CHECK_SHIFT | u64::from(pattern))
            }
            Content::Object { object, encoding } => {
                (OBJECT, object.into_bits() | u64::from(encoding) << ENCODING_SHIFT)
            }
            Content::Spilled { extent, encoding, check } => {
                let check = u64::from(check) & SPILLED_CHECK_MASK;
                let UnitRange { first, count } = extent.place();
                let count = u64::from(count) & COUNT_MASK;
                let place = check << SPILLED_CHECK_SHIFT | count << FIRST_BITS | u64::from(first);
                (OBJECT, SPILLED | place | u64::from(encoding) << ENCODING_SHIFT)
            }
        };
        Entry(kind << KIND_SHIFT | u64::from(mark) << MARK_SHIFT | rest)
    }

    fn kind(self) -> u64 {
        self.0 >> KIND_SHIFT
    }

    pub(super) fn is_empty(self) -> bool {
        self.kind() == EMPTY
    }

    /// Neither empty nor a ghost.
    pub(super) fn is_live(self) -> bool {
        matches!(self.kind(), SAME_FILLED | OBJECT)
    }

    pub(super) fn is_ghost(self) -> bool {
        self.kind() == GHOST
    }

    /// A pattern in the entry or a word in the pool.
    pub(super) fn is_same_filled(self) -> bool {
        self.kind() == SAME_FILLED
            || self.kind() == OBJECT && !self.is_spilled() && self.encoding() == WORD
    }

    /// An object proper, not a word, in the pool.
    pub(super) fn is_object(self) -> bool {
        self.kind() == OBJECT && !self.is_spilled() && self.encoding() != WORD
    }

    /// An object in the spill file.
    pub(super) fn is_spilled(self) -> bool {
        self.kind() == OBJECT && self.0 & SPILLED != 0
    }

    /// The encoding's number, of an object.
    pub(super) fn encoding(self) -> u8 {
        (self.0 >> ENCODING_SHIFT & ENCODING_MASK) as u8
    }

    /// Bytes in the pool, without the seal.
    #[inline]
    pub(super) fn object_len(self) -> usize {
        // SAFETY: the object is looked at, not kept.
        match unsafe { self.view() } {
            View::Object { object, .. } => object.len(),
            _ => 0,
        }
    }

    /// Units of the spill file.
    pub(super) fn spilled_units(self) -> u64 {
        if self.is_spilled() { u64::from(self.place().count) } else { 0 }
    }

    #[inline]
    pub(super) fn mark(self) -> u8 {
        if self.is_empty() { 0 } else { (self.0 >> MARK_SHIFT) as u8 }
    }

    pub(super) fn with_mark(self, mark: u8) -> Entry {
        Entry(self.0 & !(0xff << MARK_SHIFT) | u64::from(mark) << MARK_SHIFT)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Whether the bits are equal but for the mark.
    pub(super) fn says(self, bits: u64) -> bool {
        (self.0 ^ bits) & !MARK_MASK == 0
    }

    /// # Safety
    /// The entry's owner keeps it as it is for at least `'a`, if the object is looked into.
    #[inline]
    pub(super) unsafe fn view<'a>(self) -> View<'a> {
        match self.kind() {
            EMPTY => View::Empty,
            GHOST => View::Ghost,
            SAME_FILLED => View::SameFilled { pattern: self.0 as u32, check: self.check() },
            OBJECT if self.is_spilled() => View::Spilled {
                place: self.place(),
                encoding: self.encoding(),
                check: self.spilled_check(),
            },
            OBJECT => {
                // SAFETY: the bits came from an object. The look does not own it: it is never
                // freed, and lives as long as the entry (the caller).
                match unsafe { ObjectRef::from_bits(self.0 & PLACE_MASK) } {
                    Some(object) => View::Object { object, encoding: self.encoding() },
                    None => View::Damaged,
                }
            }
            _ => View::Damaged,
        }
    }

    /// The entry's content, and the right to its object.
    ///
    /// # Safety
    /// The entry was taken out of its place, or is overwritten, by the owner of that.
    #[inline]
    pub(super) unsafe fn into_content(self) -> Content {
        match self.kind() {
            GHOST => Content::Ghost,
            SAME_FILLED => Content::SameFilled { pattern: self.0 as u32, check: self.check() },
            OBJECT if self.is_spilled() => Content::Spilled {
                // SAFETY: the bits came from an extent, whose owner gives it up (the caller).
                extent: unsafe { Extent::new(self.place()) },
                encoding: self.encoding(),
                check: self.spilled_check(),
            },
            // SAFETY: the bits came from an object, whose owner gives it up (the caller).
            OBJECT => match unsafe { Object::from_bits(self.0 & PLACE_MASK) } {
                Some(object) => Content::Object { object, encoding: self.encoding() },
                None => Content::Empty,
            },
            // Damaged bits own nothing that could be freed.
            _ => Content::Empty,
        }
    }

    fn check(self) -> u32 {
        (self.0 >> CHECK_SHIFT & CHECK_MASK) as u32
    }

    /// Of a spilled object.
    fn place(self) -> UnitRange {
        UnitRange { first: self.0 as u32, count: (self.0 >> FIRST_BITS & COUNT_MASK) as u8 }
    }

    fn spilled_check(self) -> u32 {
        (self.0 >> SPILLED_CHECK_SHIFT & SPILLED_CHECK_MASK) as u32
    }
}

impl Content {
    /// The slot or extent that the content has, if any.
    #[inline]
    pub(crate) fn into_holding(self) -> Option<Holding> {
        match self {
            Content::Object { object, .. } => Some(Holding::Slot(object)),
            Content::Spilled { extent, .. } => Some(Holding::Extent(extent)),
            Content::Empty | Content::Ghost | Content::SameFilled { .. } => None,
        }
    }
}

#[cfg(test)]
impl Entry {
    pub(super) fn flip_bit(&mut self, bit: u32) {
        self.0 ^= 1 << bit;
    }

    /// The object's name, without the right to look into it.
    pub(crate) fn object(self) -> Option<ObjectRef<'static>> {
        // SAFETY: only its place and length are used.
        match unsafe { self.view() } {
            View::Object { object, .. } => Some(object),
            _ => None,
        }
    }

    pub(crate) fn spilled_place(self) -> Option<UnitRange> {
        self.is_spilled().then(|| self.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn every_field_comes_back_and_the_mark_disturbs_none() {
        let pool = Pool::new(1 << 20, 0).unwrap();
        for mark in [0, 1, 0x80, 0xff] {
            assert_eq!(Entry::new(Content::Empty, mark), Entry::EMPTY);
            assert_eq!(Entry::EMPTY.with_mark(mark).mark(), 0);

            let ghost = Entry::new(Content::Ghost, mark);
            assert!(ghost.is_ghost() && !ghost.is_live() && !ghost.is_empty());
            assert_eq!(ghost.mark(), mark);

            let content = Content::SameFilled { pattern: 0x8000_0001, check: 0x1f_fff0 };
            let same = Entry::new(content, mark).with_mark(!mark);
            assert!(same.is_live() && same.is_same_filled());
            assert_eq!((same.mark(), same.object_len()), (!mark, 0));
            // SAFETY: nothing is owned.
            let view = unsafe { same.view() };
            assert!(matches!(view, View::SameFilled { pattern: 0x8000_0001, check: 0x1f_fff0 }));

            for (len, encoding) in [(1, 1), (4096, 15), (1234, 8)] {
                let object = pool.put(&vec![7; len], 5).unwrap();
                let bits = object.as_ref().len();
                let entry = Entry::new(Content::Object { object, encoding }, mark);
                assert!(entry.is_object() && entry.is_live() && !entry.is_spilled());
                assert!(entry.says(entry.with_mark(!mark).bits()));
                assert_eq!((entry.mark(), entry.encoding()), (mark, encoding));
                assert_eq!((entry.object_len(), bits), (len, len));
                // SAFETY: the entry is given up here.
                match unsafe { entry.into_content() } {
                    Content::Object { object, encoding: e } => {
                        assert_eq!(e, encoding);
                        assert_eq!(pool.get(object.as_ref()).unwrap().0, vec![7; len]);
                        pool.free(object);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(pool.counts().used_slots, 0);
    }

    #[test]
    fn a_spilled_object_keeps_its_place_and_check() {
        for (first, count, encoding, check) in
            [(0, 1, 1, 0), (u32::MAX, 127, 15, 0x1ff), (77, 65, 8, 0xaa)]
        {
            // SAFETY: a made-up place, never freed.
            let extent = unsafe { Extent::new(UnitRange { first, count }) };
            let entry = Entry::new(Content::Spilled { extent, encoding, check }, 0x5a);
            assert!(entry.is_live() && entry.is_spilled());
            assert!(!entry.is_object() && !entry.is_same_filled());
            assert_eq!((entry.mark(), entry.object_len()), (0x5a, 0));
            assert_eq!(entry.spilled_units(), u64::from(count));
            // SAFETY: nothing is owned.
            match unsafe { entry.view() } {
                View::Spilled { place, encoding: e, check: c } => {
                    assert_eq!((place, e, c), (UnitRange { first, count }, encoding, check));
                }
                other => panic!("{other:?}"),
            }
            // SAFETY: the entry is given up here.
            match unsafe { entry.into_content() } {
                Content::Spilled { extent, .. } => {
                    assert_eq!(extent.place(), UnitRange { first, count });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn impossible_bits_are_damage() {
        for bits in [1 << KIND_SHIFT, 2 << KIND_SHIFT, 4 << KIND_SHIFT, 7 << KIND_SHIFT] {
            // SAFETY: nothing is owned.
            unsafe {
                assert!(matches!(Entry(bits).view(), View::Damaged));
                assert!(matches!(Entry(bits).into_content(), Content::Empty));
            }
            assert!(!Entry(bits).is_empty() && !Entry(bits).is_live());
        }
        // An object without a length.
        // SAFETY: nothing is owned.
        assert!(matches!(unsafe { Entry(OBJECT << KIND_SHIFT).view() }, View::Damaged));
    }

    #[test]
    fn no_flipped_bit_makes_one_kind_another() {
        for kind in [EMPTY, GHOST, SAME_FILLED, OBJECT] {
            for bit in 0..3 {
                // SAFETY: nothing is owned.
                let view = unsafe { Entry((kind ^ 1 << bit) << KIND_SHIFT).view() };
                assert!(matches!(view, View::Damaged));
            }
        }
    }
}

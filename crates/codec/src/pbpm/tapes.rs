//! Working memory.

use super::data;
use crate::PAGE_WORDS;
use crate::bits::PlaceTape;
use crate::scratch::Carver;

/// Room behind a list for a vector that begins at its end.
const SLACK: usize = 64;

/// A byte for each word, or fewer.
pub(crate) type Tape = [u8; PAGE_WORDS + SLACK];
/// A page's words or fewer.
pub(crate) type Words = [[u8; 4]; PAGE_WORDS + SLACK / 4];

pub(super) const BYTES: usize = 3 * size_of::<Tape>()
    + size_of::<PlaceTape>()
    + 2 * (size_of::<Words>() + 2 * size_of::<Tape>())
    + data::ROOM;

/// The tapes but that of data, one code a byte, and room for lists.
pub(crate) struct Tapes<'a> {
    /// First codes, by word.
    pub first: &'a mut Tape,
    pub second: &'a mut Tape,
    pub indices: &'a mut Tape,
    /// Of words that are not zero.
    pub places: &'a mut PlaceTape,
    /// Two, for what kernels list.
    pub lists: [List<'a>; 2],
}

/// Words that ask the dictionary; of each two numbers.
pub(crate) struct List<'a> {
    pub words: &'a mut Words,
    pub notes: &'a mut Tape,
    pub slots: &'a mut Tape,
}

/// Lengths of the tapes that the first codes do not give, in codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lengths {
    pub second: usize,
    pub indices: usize,
}

impl<'a> Tapes<'a> {
    #[inline]
    pub(super) fn carve(carver: &mut Carver<'a>) -> Option<Tapes<'a>> {
        Some(Tapes {
            first: carver.bytes()?,
            second: carver.bytes()?,
            indices: carver.bytes()?,
            places: carver.numbers()?,
            lists: [List::carve(carver)?, List::carve(carver)?],
        })
    }
}

impl<'a> List<'a> {
    #[inline]
    fn carve(carver: &mut Carver<'a>) -> Option<List<'a>> {
        Some(List { words: carver.numbers()?, notes: carver.bytes()?, slots: carver.bytes()? })
    }
}

//! What a page is written as.

use super::symbols::COPY_MIN;
use crate::PAGE_SIZE;

/// Sequences that a page has at most.
pub(crate) const SEQUENCES_MAX: usize = PAGE_SIZE / COPY_MIN;

/// Literals, then a copy. What follows the last sequence is literals.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    /// How many literals.
    pub(crate) run: usize,
    /// Bytes copied.
    pub(crate) length: usize,
    /// How far back they are.
    pub(crate) distance: usize,
}

/// A sequence in scratch: 16 bits for each number.
pub(crate) type Packed = [u8; 6];

/// Room for all sequences of a page.
pub(crate) type Sequences = [Packed; SEQUENCES_MAX];

impl Sequence {
    #[inline(always)]
    pub(crate) fn pack(self) -> Packed {
        let [a, b] = (self.run as u16).to_le_bytes();
        let [c, d] = (self.length as u16).to_le_bytes();
        let [e, f] = (self.distance as u16).to_le_bytes();
        [a, b, c, d, e, f]
    }

    #[inline(always)]
    pub(crate) fn unpack([a, b, c, d, e, f]: Packed) -> Sequence {
        let number = |low, high| usize::from(u16::from_le_bytes([low, high]));
        Sequence { run: number(a, b), length: number(c, d), distance: number(e, f) }
    }
}

/// The sequences that were packed.
#[inline(always)]
pub(crate) fn unpacked(packed: &[Packed]) -> impl Iterator<Item = Sequence> {
    packed.iter().map(|&packed| Sequence::unpack(packed))
}

//! The patterns, by their codes, and what follows from them.

/// The codes of a word: the first in bits 0 and 1, the second in bits 2 and 3.
pub(crate) const ZZZZ: u8 = 0b00;
pub(crate) const XXXX: u8 = 0b01;
pub(crate) const MMMM: u8 = 0b10;
/// The first code of all that have a second one.
pub(crate) const LONG: u8 = 0b11;
pub(crate) const ZZZX: u8 = 0b0011;
pub(crate) const MMXX: u8 = 0b0111;
pub(crate) const MMMX: u8 = 0b1011;
pub(crate) const ZXZX: u8 = 0b1111;

/// By kind, the bytes of the word that are data: bit *b* stands for byte *b*.
pub(crate) const DATA: [u8; 16] = {
    let mut data = [0; 16];
    data[XXXX as usize] = 0b1111;
    data[ZZZX as usize] = 0b0001;
    data[MMXX as usize] = 0b0011;
    data[MMMX as usize] = 0b0001;
    data[ZXZX as usize] = 0b0101;
    data
};

/// Kinds with an index: bit *k* stands for kind *k*.
pub(crate) const INDEXED: u16 = 1 << MMMM | 1 << MMXX | 1 << MMMX;
/// Kinds whose words enter the dictionary.
pub(crate) const ENTERING: u16 = 1 << XXXX | 1 << MMXX | 1 << MMMX;
/// Kinds for which the dictionary is asked.
pub(crate) const ASKING: u16 = INDEXED | ENTERING;

/// The bytes that are zero in `zxzx`, and in `zzzx` and `zzzz`: a word with others asks.
pub(crate) const ZXZX_ZEROS: u32 = 0xff00_ff00;

//! PBPM: pattern-based partial match, the codec of CRAMES (Yang, Dick, Lekatsas and Chakradhar,
//! *High-performance operating system controlled online memory compression*, ACM TECS 9(4), 2010),
//! sections 4.1 to 4.4, table I and algorithm 1.
//!
//! The page is read as 1,024 little-endian words, each written as four symbols, highest byte first:
//! `z` a zero byte, `m` a byte that equals the dictionary entry's, `x` any byte. The first pattern
//! of this list that a word fits decides:
//!
//! | test | code | index | data | dictionary |
//! |---|---|---|---|---|
//! | `zzzz` | `00` | | | |
//! | `zzzx` | `1100` | | low byte | |
//! | `zxzx` | `1111` | | bytes 0 and 2 | |
//! | `mmmm` | `10` | 4 bits | | |
//! | `mmmx` | `1110` | 4 bits | low byte | takes the word |
//! | `mmxx` | `1101` | 4 bits | low two bytes | takes the word |
//! | `xxxx` | `01` | | the word | takes the word |
//!
//! The dictionary has 16 entries, zero at first, in eight sets of two ways. What the paper leaves
//! open, and the choices made here:
//!
//! - *The third byte*, which chooses the set through [`SET`], is the third from the low end, bits
//!   16 to 23. Section 4.1 gives the reason: the patterns that hashing leaves to consider are
//!   `mmmm`, `mmmx`, `mmxx` and `xmxx`, "only the third byte matches", and that byte is the one all
//!   four share. It also makes every word that could match in its upper half fall in the same set.
//! - *Age* is that of insertion: a full match inserts nothing in algorithm 1, so it renews nothing.
//!   The first insertion into a set goes to way 0, then the ways take turns.
//! - Of two ways that match, the one that differs less is named: the smaller exclusive or with the
//!   word, way 0 if they are equal. An index is `2 * set + way`.
//!
//! Codes, indices and data have tapes of their own (section 4.3): `T_code1` holds the first two
//! bits of each code, `T_code2` the last two of the long ones. The data tape comes first, in one of
//! the three [`Alignment`]s of section 4.4; the others are packed as figure 3 shows and appended.
//! `docs/codecs.md` has the byte layout.
//!
//! What a word finds depends on those of its set before it, all else of a page on the word alone.
//! So there are two ways: one word after the other (`sequential`), and by vectors (in `arch`),
//! which leave no more than the dictionary to a loop over words (`chain`).

mod chain;
mod codes;
mod data;
mod kind;
mod sequential;
mod tapes;
#[cfg(test)]
mod tests;

pub(crate) use chain::{EMPTY, IGNORED, assign, find, find_in_one, recall};
pub(crate) use codes::{Codes, SCALAR_CODES};
pub(crate) use data::Unaligned;
pub(crate) use kind::{
    ASKING, DATA, INDEXED, LONG, MMMM, MMMX, MMXX, XXXX, ZXZX, ZXZX_ZEROS, ZZZX,
};
pub(crate) use tapes::{Lengths, List, Tape, Tapes, Words};

use self::data::{DataTape, SeparateTapes, SingleTape};

use crate::backend::Backend;
use crate::bits::count_two_bit_codes;
use crate::error::{DecodeError, DoesNotFit};
use crate::scratch::Carver;
use crate::{PAGE_WORDS, Page};

/// Bytes of working memory that [`compress`] and [`decompress`] need. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize = tapes::BYTES;

/// How data of one, two and four bytes is laid out: the variants of section 4.4 of the paper. An
/// object says in its header which it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Alignment {
    /// One tape, in the order of the words, whatever that makes of alignment: the fastest where
    /// misaligned access is cheap, as on x86-64 and AArch64.
    Unaligned = 0,
    /// A tape for each of the three sizes, the longest first.
    SeparateTapes = 1,
    /// One tape of words, each of them four single bytes, two pairs or one word.
    SingleTape = 2,
}

impl Alignment {
    /// All of them.
    pub const ALL: &[Alignment] =
        &[Alignment::Unaligned, Alignment::SeparateTapes, Alignment::SingleTape];
}

/// Dictionary set of a word, by its bits 16 to 23.
///
/// The paper has "random indices" (section 4.1). These are 32 runs, each a permutation of the eight
/// sets, so that neighbouring values never meet; `bits::shuffled_runs` of 8.
#[rustfmt::skip]
pub const SET: [u8; 256] = [
    2, 4, 5, 7, 0, 6, 3, 1, 7, 0, 1, 6, 5, 4, 3, 2, 0, 2, 3, 6, 7, 4, 1, 5, 2, 0, 6, 7, 3, 5, 4, 1,
    4, 0, 7, 6, 2, 5, 1, 3, 1, 5, 6, 3, 7, 0, 2, 4, 0, 4, 2, 6, 5, 7, 1, 3, 3, 2, 0, 7, 4, 6, 1, 5,
    3, 2, 0, 7, 5, 1, 6, 4, 6, 5, 4, 2, 1, 0, 3, 7, 1, 2, 3, 7, 5, 4, 0, 6, 1, 2, 6, 0, 7, 4, 3, 5,
    5, 0, 2, 7, 1, 6, 3, 4, 3, 7, 0, 2, 6, 1, 4, 5, 3, 2, 1, 5, 6, 4, 7, 0, 5, 1, 4, 0, 2, 7, 6, 3,
    6, 7, 3, 0, 2, 5, 4, 1, 1, 7, 4, 0, 3, 2, 5, 6, 5, 6, 7, 1, 3, 4, 0, 2, 3, 6, 1, 2, 0, 5, 7, 4,
    3, 6, 7, 2, 5, 1, 0, 4, 0, 4, 7, 1, 5, 6, 3, 2, 3, 4, 5, 2, 7, 6, 1, 0, 1, 0, 4, 7, 3, 6, 5, 2,
    0, 5, 3, 6, 2, 4, 1, 7, 2, 1, 3, 4, 7, 5, 6, 0, 2, 7, 6, 4, 1, 0, 5, 3, 2, 0, 5, 3, 4, 1, 6, 7,
    4, 7, 6, 1, 5, 0, 2, 3, 6, 3, 7, 0, 1, 2, 4, 5, 7, 3, 5, 6, 4, 1, 2, 0, 0, 3, 5, 2, 7, 1, 4, 6,
];

/// Where the header has the alignment, above the length of the data.
const ALIGNMENT_SHIFT: u32 = 13;
const DATA_LENGTH_MASK: u16 = (1 << ALIGNMENT_SHIFT) - 1;

const HEADER: usize = 2;
/// One first code a word, four to a byte.
const CODES1: usize = PAGE_WORDS / 4;

const CODES_A_WORD: usize = 16;
const INDICES_A_WORD: usize = 8;

const SETS: usize = 8;

#[inline]
fn set_of(word: u32) -> u8 {
    // The mask repeats, for the compiler, what the table says.
    SET[usize::from((word >> 16) as u8)] & 7
}

/// The steps that are done by vectors, where the processor has them. All give the same.
pub(crate) struct Kernels {
    /// See [`sequential::write`].
    pub write: fn(&Page, &mut Tapes<'_>, &mut Unaligned<'_>) -> Lengths,
    /// See [`sequential::read`].
    pub read: fn(&mut Tapes<'_>, &mut Unaligned<'_>, &mut Page) -> bool,
    pub codes: &'static Codes,
}

/// The steps in plain code.
pub(crate) static SCALAR: Kernels = Kernels {
    write: |page, tapes, data| sequential::write(page, tapes, data),
    read: |tapes, data, page| sequential::read(tapes, data, page),
    codes: &SCALAR_CODES,
};

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    alignment: Alignment,
    backend: Backend,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let (Kernels { write, codes, .. }, carver) = (backend.pbpm(), Carver(scratch));
    match alignment {
        Alignment::Unaligned => compress_with(page, *write, codes, carver, out),
        Alignment::SeparateTapes => {
            compress_with(page, sequential::write::<SeparateTapes<'_>>, codes, carver, out)
        }
        Alignment::SingleTape => {
            compress_with(page, sequential::write::<SingleTape<'_>>, codes, carver, out)
        }
    }
}

fn compress_with<'a, D: DataTape<'a>>(
    page: &Page,
    write: fn(&Page, &mut Tapes<'_>, &mut D) -> Lengths,
    codes: &Codes,
    mut carver: Carver<'a>,
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let mut tapes = Tapes::carve(&mut carver).ok_or(DoesNotFit)?;
    let mut data = D::empty(carver.bytes().ok_or(DoesNotFit)?);
    let lengths = write(page, &mut tapes, &mut data);

    let data_bytes = data.len();
    let codes1_at = D::HEADER + data_bytes;
    let codes2_at = codes1_at + CODES1;
    let indices_at = codes2_at + 4 * lengths.second.div_ceil(CODES_A_WORD);
    let end = indices_at + 4 * lengths.indices.div_ceil(INDICES_A_WORD);
    let object = out.get_mut(..end).ok_or(DoesNotFit)?;

    let header = (D::ALIGNMENT as u16) << ALIGNMENT_SHIFT | data_bytes as u16;
    object[..D::HEADER].fill(0);
    object[..HEADER].copy_from_slice(&header.to_le_bytes());
    data.write(&mut object[D::HEADER..codes1_at]);
    (codes.pack_twos)(tapes.first, &mut object[codes1_at..codes2_at]);
    // What fills the last word up is zero, not what an earlier page left on the tape.
    tapes.second[lengths.second..][..CODES_A_WORD].fill(0);
    (codes.pack_twos)(tapes.second, &mut object[codes2_at..indices_at]);
    tapes.indices[lengths.indices..][..INDICES_A_WORD].fill(0);
    (codes.pack_fours)(tapes.indices, &mut object[indices_at..]);
    Ok(end)
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the tapes do not have the lengths that codes and header call for, when
/// padding is not zero, when an index names an entry that is not of the word's set, or when the
/// header names no alignment.
pub(crate) fn decompress(
    object: &[u8],
    backend: Backend,
    scratch: &mut [u8; SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let (Kernels { read, codes, .. }, carver) = (backend.pbpm(), Carver(scratch));
    let header = object.first_chunk::<HEADER>().ok_or(DecodeError::Truncated)?;
    match u16::from_le_bytes(*header) >> ALIGNMENT_SHIFT {
        0 => decompress_with(object, *read, codes, carver, page),
        1 => decompress_with(object, sequential::read::<SeparateTapes<'_>>, codes, carver, page),
        2 => decompress_with(object, sequential::read::<SingleTape<'_>>, codes, carver, page),
        _ => Err(DecodeError::Malformed("PBPM alignment")),
    }
}

fn decompress_with<'a, D: DataTape<'a>>(
    object: &[u8],
    read: fn(&mut Tapes<'_>, &mut D, &mut Page) -> bool,
    codes: &Codes,
    mut carver: Carver<'a>,
    page: &mut Page,
) -> Result<(), DecodeError> {
    let mut tapes = Tapes::carve(&mut carver).ok_or(DecodeError::Truncated)?;

    let (header, sections) = object.split_at_checked(D::HEADER).ok_or(DecodeError::Truncated)?;
    let (header, padding) = header.split_first_chunk().ok_or(DecodeError::Truncated)?;
    if padding.iter().any(|&byte| byte != 0) {
        return Err(DecodeError::Malformed("PBPM header padding"));
    }
    let data_bytes = usize::from(u16::from_le_bytes(*header) & DATA_LENGTH_MASK);
    let (data, sections) = sections.split_at_checked(data_bytes).ok_or(DecodeError::Truncated)?;
    let (packed1, sections) =
        sections.split_first_chunk::<CODES1>().ok_or(DecodeError::Truncated)?;

    // The codes give the length of every other tape; after these checks no cursor can run past its
    // tape's end.
    let [_, xxxx_count, mmmm_count, second_count] = count_two_bit_codes(packed1);
    (codes.unpack_twos)(packed1, tapes.first);
    let packed2_bytes = 4 * second_count.div_ceil(CODES_A_WORD);
    let (packed2, packed_indices) =
        sections.split_at_checked(packed2_bytes).ok_or(DecodeError::Truncated)?;
    (codes.unpack_twos)(packed2, tapes.second);
    if tapes.second[second_count..4 * packed2_bytes].iter().any(|&code| code != 0) {
        return Err(DecodeError::Malformed("PBPM second-code padding"));
    }
    // Padding counts as zzzx.
    let [_, mmxx_count, mmmx_count, zxzx_count] = count_two_bit_codes(packed2);
    let zzzx_count = second_count - mmxx_count - mmmx_count - zxzx_count;
    let counts = [zzzx_count + mmmx_count, zxzx_count + mmxx_count, xxxx_count];
    if data_bytes != D::len_of(counts) {
        return Err(DecodeError::Malformed("PBPM data length"));
    }
    let index_count = mmmm_count + mmxx_count + mmmx_count;
    let index_bytes = 4 * index_count.div_ceil(INDICES_A_WORD);
    if packed_indices.len() < index_bytes {
        return Err(DecodeError::Truncated);
    }
    if packed_indices.len() > index_bytes {
        return Err(DecodeError::TrailingBytes);
    }
    (codes.unpack_fours)(packed_indices, tapes.indices);
    if tapes.indices[index_count..2 * index_bytes].iter().any(|&index| index != 0) {
        return Err(DecodeError::Malformed("PBPM index padding"));
    }
    let room = carver.bytes().ok_or(DecodeError::Truncated)?;
    let mut data = D::read(room, data, counts)?;
    if !read(&mut tapes, &mut data, page) {
        return Err(DecodeError::Malformed("PBPM index"));
    }
    data.end()
}

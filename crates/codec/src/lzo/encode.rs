//! The LZO1X-1 encoder: greedy, one hash table look-up a position.

use super::{CARRIED_MAX, COPY_NEAR, COPY_NEAR_LENGTH, END, FIRST_RUN, FIRST_RUN_MAX, RUN_MIN};
use crate::backend::Backend;
use crate::error::DoesNotFit;
use crate::lz::{Output, Table, bytes_at, common_length_by};
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize = 2 * ENTRIES;

const HASH_BITS: u32 = 13;
const ENTRIES: usize = 1 << HASH_BITS;

const MATCH_MIN: usize = 4;
/// Looking for copies ends twenty bytes before the page does.
const SEARCH_END: usize = PAGE_SIZE - 20;
/// The step grows by one each time it passed so many positions (a power of two) without a match.
const SKIP_BITS: u32 = 5;

/// Up to this length and distance a copy takes two bytes.
const SHORT_LENGTH_MAX: usize = 8;
const SHORT_DISTANCE_MAX: usize = 2048;

#[inline]
fn hash_of(word: [u8; 4]) -> usize {
    (u32::from_le_bytes(word).wrapping_mul(0x1824_429d) >> (32 - HASH_BITS)) as usize
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    backend: Backend,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let mut table = Table::<ENTRIES>::clear(scratch).ok_or(DoesNotFit)?;
    let mut out = Output::new(out);
    let compare = backend.lz();
    let mut anchor = 0;
    // The first instruction is a run, which has a shortest length.
    let mut at = RUN_MIN;
    while let Some(from) = search(page, &mut table, anchor, &mut at) {
        literals(&mut out, page, anchor, at)?;
        let (earlier, later) = (from + MATCH_MIN, at + MATCH_MIN);
        let length = MATCH_MIN + common_length_by(compare, page, earlier, later, PAGE_SIZE);
        copy(&mut out, at - from, length)?;
        at += length;
        anchor = at;
    }
    literals(&mut out, page, anchor, PAGE_SIZE)?;
    for byte in END {
        out.push(byte)?;
    }
    Ok(out.len())
}

/// Takes `at` to the next copy and returns where that is copied from, if there is one.
#[inline(always)]
fn search(
    page: &Page,
    table: &mut Table<'_, ENTRIES>,
    anchor: usize,
    at: &mut usize,
) -> Option<usize> {
    let mut look = |at: usize| {
        let word = bytes_at::<MATCH_MIN, PAGE_SIZE>(page, at);
        let from = table.swap(hash_of(word), at);
        (bytes_at(page, from) == word).then_some(from)
    };
    // Most copies are found before the step grows; where the next position is known without working
    // out a step, the processor is at it sooner.
    let same_step = SEARCH_END.min(anchor + (1 << SKIP_BITS));
    while *at < same_step {
        if let Some(from) = look(*at) {
            return Some(from);
        }
        *at += 1;
    }
    while *at < SEARCH_END {
        if let Some(from) = look(*at) {
            return Some(from);
        }
        *at += 1 + ((*at - anchor) >> SKIP_BITS);
    }
    None
}

/// The literals from `start` to `end`, before a copy or the end of the stream.
#[inline(always)]
fn literals(out: &mut Output<'_>, page: &Page, start: usize, end: usize) -> Result<(), DoesNotFit> {
    let length = end - start;
    if out.len() == 0 && length <= FIRST_RUN_MAX {
        out.push((FIRST_RUN + length) as u8)?;
    } else if length <= CARRIED_MAX {
        // The low byte of the copy's 16 bits, or its first of two.
        if let Some(byte) = out.earlier(2) {
            *byte |= length as u8;
        }
    } else {
        extended(out, 0, length - (RUN_MIN - 1), 15)?;
    }
    out.literals(page, start, end)
}

/// An opcode with a length in its lowest bits, `mask`, or after it.
#[inline(always)]
fn extended(
    out: &mut Output<'_>,
    opcode: usize,
    length: usize,
    mask: usize,
) -> Result<(), DoesNotFit> {
    let Some(mut rest) = length.checked_sub(mask + 1) else {
        return out.push((opcode | length) as u8);
    };
    out.push(opcode as u8)?;
    while rest >= 255 {
        out.push(0)?;
        rest -= 255;
    }
    out.push(rest as u8 + 1)
}

#[inline(always)]
fn copy(out: &mut Output<'_>, distance: usize, length: usize) -> Result<(), DoesNotFit> {
    let back = distance - 1;
    if length <= SHORT_LENGTH_MAX && distance <= SHORT_DISTANCE_MAX {
        out.push(((length - 1) << 5 | (back & 7) << 2) as u8)?;
        out.push((back >> 3) as u8)
    } else {
        extended(out, COPY_NEAR, length - 2, COPY_NEAR_LENGTH)?;
        out.push_u16((back << 2) as u16)
    }
}

//! The LZ4 encoder: greedy, one hash table look-up a position.

use super::{LAST_LITERALS, LAST_MATCH_DISTANCE, LENGTH_CONTINUES, MATCH_MIN};
use crate::error::DoesNotFit;
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub const SCRATCH_BYTES: usize = 2 * ENTRIES;

const HASH_BITS: u32 = 12;
const ENTRIES: usize = 1 << HASH_BITS;

/// The step grows by one each time this many positions (a power of two) found no match.
const SKIP_BITS: u32 = 5;

/// The last position where a copy may start, and the end that no copy may pass.
const MATCH_START_MAX: usize = PAGE_SIZE - LAST_MATCH_DISTANCE;
const MATCH_END_MAX: usize = PAGE_SIZE - LAST_LITERALS;

/// Where each hash was last seen in the page.
struct Table<'a>(&'a mut [[u8; 2]; ENTRIES]);

impl<'a> Table<'a> {
    /// A table that has seen nothing, in `scratch`. Position 0 stands for "not seen": the page's
    /// first bytes are as good a candidate as any, and comparing them spares a branch.
    #[inline]
    fn clear(scratch: &'a mut [u8; SCRATCH_BYTES]) -> Option<Table<'a>> {
        scratch.fill(0);
        Some(Table(scratch.as_chunks_mut().0.first_chunk_mut()?))
    }

    /// The last position with `hash`, which `position` replaces.
    #[inline]
    fn swap(&mut self, hash: usize, position: usize) -> usize {
        let entry = &mut self.0[hash % ENTRIES];
        let seen = u16::from_le_bytes(*entry);
        *entry = (position as u16).to_le_bytes();
        usize::from(seen)
    }
}

#[inline]
fn bytes_at<const N: usize>(page: &Page, at: usize) -> [u8; N] {
    // Callers stay within the page; zeros keep the function total without a panic's code.
    match page.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

/// A hash of the five bytes at `at`.
///
/// Five rather than the four of a shortest copy: copies of four save one byte each and come in the
/// way of longer ones. Over heap pages of four programs, with room for three quarters of a page,
/// what is stored changes by -1.4 to +2.7 % and compressing is 4 to 40 % faster.
#[inline]
fn hash_at(page: &Page, at: usize) -> usize {
    let sequence = u64::from_le_bytes(bytes_at(page, at)) << 24;
    (sequence.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub fn compress(
    page: &Page,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let mut table = Table::clear(scratch).ok_or(DoesNotFit)?;
    let mut out = Output { bytes: out, len: 0 };
    let mut anchor = 0;
    table.swap(hash_at(page, 0), 0);
    let mut at = 1;
    loop {
        let mut tries = 1 << SKIP_BITS;
        let mut from;
        loop {
            // That the literals outgrow the room is not known before the end: a copy found late
            // may reach back over many of them.
            if at > MATCH_START_MAX {
                out.last_literals(page, anchor)?;
                return Ok(out.len);
            }
            from = table.swap(hash_at(page, at), at);
            if bytes_at::<4>(page, from) == bytes_at::<4>(page, at) {
                break;
            }
            at += tries >> SKIP_BITS;
            tries += 1;
        }
        while at > anchor && from > 0 && page[at - 1] == page[from - 1] {
            at -= 1;
            from -= 1;
        }
        let length = MATCH_MIN + common_length(page, from + MATCH_MIN, at + MATCH_MIN);
        out.sequence(page, anchor, at, at - from, length)?;
        at += length;
        anchor = at;
        if at <= MATCH_START_MAX {
            table.swap(hash_at(page, at - 2), at - 2);
        }
    }
}

/// Equal bytes from `earlier` and `later` on, up to where copies must end.
#[inline]
fn common_length(page: &Page, earlier: usize, later: usize) -> usize {
    let mut length = 0;
    while later + length + 8 <= MATCH_END_MAX {
        let difference = u64::from_le_bytes(bytes_at(page, earlier + length))
            ^ u64::from_le_bytes(bytes_at(page, later + length));
        if difference != 0 {
            return length + (difference.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    while later + length < MATCH_END_MAX && page[earlier + length] == page[later + length] {
        length += 1;
    }
    length
}

struct Output<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Output<'_> {
    #[inline]
    fn push(&mut self, byte: u8) -> Result<(), DoesNotFit> {
        *self.bytes.get_mut(self.len).ok_or(DoesNotFit)? = byte;
        self.len += 1;
        Ok(())
    }

    /// What of a length is over its field of four bits.
    #[inline]
    fn length_rest(&mut self, length: usize) -> Result<(), DoesNotFit> {
        let Some(mut rest) = length.checked_sub(LENGTH_CONTINUES) else { return Ok(()) };
        while rest >= 255 {
            self.push(255)?;
            rest -= 255;
        }
        self.push(rest as u8)
    }

    #[inline]
    fn literals(&mut self, page: &Page, start: usize, end: usize) -> Result<(), DoesNotFit> {
        const SHORT: usize = 16;
        let length = end - start;
        if length <= SHORT
            && let Some(source) = page.get(start..).and_then(<[u8]>::first_chunk::<SHORT>)
            && let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut)
        {
            // Copying more than asked for, of fixed length, spares a call.
            *place = *source;
        } else {
            let place = self.bytes.get_mut(self.len..self.len + length).ok_or(DoesNotFit)?;
            place.copy_from_slice(&page[start..end]);
        }
        self.len += length;
        Ok(())
    }

    /// Literals from `anchor` up to `at`, then a copy.
    #[inline]
    fn sequence(
        &mut self,
        page: &Page,
        anchor: usize,
        at: usize,
        distance: usize,
        length: usize,
    ) -> Result<(), DoesNotFit> {
        let (literals, copied) = (at - anchor, length - MATCH_MIN);
        let field = |value: usize| value.min(LENGTH_CONTINUES) as u8;
        self.push(field(literals) << 4 | field(copied))?;
        self.length_rest(literals)?;
        self.literals(page, anchor, at)?;
        let place = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut);
        *place.ok_or(DoesNotFit)? = (distance as u16).to_le_bytes();
        self.len += 2;
        self.length_rest(copied)
    }

    fn last_literals(&mut self, page: &Page, anchor: usize) -> Result<(), DoesNotFit> {
        let literals = PAGE_SIZE - anchor;
        self.push((literals.min(LENGTH_CONTINUES) as u8) << 4)?;
        self.length_rest(literals)?;
        self.literals(page, anchor, PAGE_SIZE)
    }
}

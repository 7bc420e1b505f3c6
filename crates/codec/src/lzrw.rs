//! LZRW1-A (Ross Williams 1991), which paper 004 compares PBPM with.
//!
//! Items in groups of 16, each group after a control word (16 bits, little-endian) whose bit *i*
//! says of item *i* whether it is a literal (0, one byte) or a copy (1, two bytes: the upper four
//! bits of the distance and the length less 3, then the lower eight bits of the distance). No copy
//! starts in the last 17 bytes of a page, so that none needs a limit. An object's first byte says
//! whether it is compressed or the page as it is. `docs/codecs.md` has the byte layout.
//!
//! The table is cleared for each page, so that the page alone decides over the object.

use crate::error::{DecodeError, DoesNotFit};
use crate::lz::{Output, Table, bytes_at, common_length, copy};
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub(crate) const SCRATCH_BYTES: usize = 2 * ENTRIES;

const ENTRIES: usize = 1 << 12;

const FLAG_COMPRESSED: u8 = 0;
const FLAG_STORED: u8 = 1;

const ITEMS_A_GROUP: usize = 16;
const COPY_MIN: usize = 3;
const COPY_MAX: usize = 18;

const _: () = {
    // A copy's length has four bits,
    assert!(COPY_MAX - COPY_MIN < 1 << 4);
    // and its distance, which is less than a page, twelve.
    assert!(PAGE_SIZE <= 1 << 12);
};

/// The hash of three bytes, as the format's author defined it.
#[inline]
fn hash_of([first, second, third]: [u8; 3]) -> usize {
    let mixed = (u32::from(first) << 8) ^ (u32::from(second) << 4) ^ u32::from(third);
    (40543u32.wrapping_mul(mixed) >> 4) as usize % ENTRIES
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    // A compressed form as long as the stored one has no use.
    let worth = out.len().min(PAGE_SIZE);
    match compress_items(page, scratch, &mut out[..worth]) {
        Ok(length) => Ok(length),
        Err(DoesNotFit) => {
            let object = out.get_mut(..1 + PAGE_SIZE).ok_or(DoesNotFit)?;
            object[0] = FLAG_STORED;
            object[1..].copy_from_slice(page);
            Ok(1 + PAGE_SIZE)
        }
    }
}

fn compress_items(
    page: &Page,
    scratch: &mut [u8; SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let mut table = Table::<ENTRIES>::clear(scratch).ok_or(DoesNotFit)?;
    let mut out = Output::new(out);
    out.push(FLAG_COMPRESSED)?;
    let mut at = 0;
    while at < PAGE_SIZE {
        let group_at = out.len();
        out.push_u16(0)?;
        let mut control = 0u16;
        for item in 0..ITEMS_A_GROUP {
            if at == PAGE_SIZE {
                break;
            }
            match find(page, &mut table, at) {
                Some((distance, length)) => {
                    control |= 1 << item;
                    out.push((distance >> 8 << 4 | (length - COPY_MIN)) as u8)?;
                    out.push(distance as u8)?;
                    at += length;
                }
                None => {
                    out.push(page[at])?;
                    at += 1;
                }
            }
        }
        out.set_u16(group_at, control);
    }
    Ok(out.len())
}

/// A copy of the bytes at `at`: distance and length.
#[inline]
fn find(page: &Page, table: &mut Table<'_, ENTRIES>, at: usize) -> Option<(usize, usize)> {
    if at + COPY_MAX > PAGE_SIZE {
        return None;
    }
    let start: [u8; COPY_MIN] = bytes_at(page, at);
    let from = table.swap(hash_of(start), at);
    if from == at || bytes_at::<COPY_MIN, PAGE_SIZE>(page, from) != start {
        return None;
    }
    let end = at + COPY_MAX;
    Some((at - from, COPY_MIN + common_length(page, from + COPY_MIN, at + COPY_MIN, end)))
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the object does not hold exactly a page, or a bit of the last control word
/// that belongs to no item is set.
pub(crate) fn decompress(object: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let (&flag, items) = object.split_first().ok_or(DecodeError::Truncated)?;
    match flag {
        FLAG_COMPRESSED => decompress_items(items, page),
        FLAG_STORED => {
            let stored = items.first_chunk().ok_or(DecodeError::Truncated)?;
            if items.len() > PAGE_SIZE {
                return Err(DecodeError::TrailingBytes);
            }
            *page = *stored;
            Ok(())
        }
        _ => Err(DecodeError::Malformed("LZRW1-A flag")),
    }
}

fn decompress_items(mut items: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let mut to = 0;
    while to < PAGE_SIZE {
        let (control, rest) = items.split_first_chunk().ok_or(DecodeError::Truncated)?;
        items = rest;
        let mut control = u16::from_le_bytes(*control);
        for _ in 0..ITEMS_A_GROUP {
            if to == PAGE_SIZE {
                break;
            }
            if control & 1 == 0 {
                let (&literal, rest) = items.split_first().ok_or(DecodeError::Truncated)?;
                items = rest;
                page[to] = literal;
                to += 1;
            } else {
                let (&[first, second], rest) =
                    items.split_first_chunk().ok_or(DecodeError::Truncated)?;
                items = rest;
                let distance = usize::from(first >> 4) << 8 | usize::from(second);
                let length = usize::from(first & 15) + COPY_MIN;
                if distance.wrapping_sub(1) >= to {
                    return Err(DecodeError::BadDistance { distance, decoded_bytes: to });
                }
                if to + length > PAGE_SIZE {
                    return Err(DecodeError::TooLong);
                }
                copy(page, to, distance, length);
                to += length;
            }
            control >>= 1;
        }
        if to == PAGE_SIZE && control != 0 {
            return Err(DecodeError::Malformed("LZRW1-A control word of the last group"));
        }
    }
    if items.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
}

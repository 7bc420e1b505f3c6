//! The LZ4 decoder.

use super::{LAST_LITERALS, LENGTH_CONTINUES, MATCH_MIN};
use crate::error::DecodeError;
use crate::{PAGE_SIZE, Page};

/// Copies of up to this length, and literal runs, are made in one piece of fixed size where there
/// is room, which spares a call and a loop.
const PIECE: usize = 32;

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] unless `object` is one LZ4 block of exactly a page that ends in at least
/// [five literals](super), as the format asks of every encoder.
pub fn decompress(object: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let mut from = 0;
    let mut to = 0;
    loop {
        let token = usize::from(*object.get(from).ok_or(DecodeError::Truncated)?);
        from += 1;

        let mut literals = token >> 4;
        let short = literals < LENGTH_CONTINUES;
        if short
            && let Some(source) = object.get(from..).and_then(<[u8]>::first_chunk::<16>)
            && let Some(place) = page.get_mut(to..).and_then(<[u8]>::first_chunk_mut::<16>)
        {
            *place = *source;
            from += literals;
            to += literals;
        } else {
            if !short {
                literals += length_rest(object, &mut from)?;
            }
            let source = object.get(from..from + literals).ok_or(DecodeError::Truncated)?;
            let place = page.get_mut(to..to + literals).ok_or(DecodeError::TooLong)?;
            place.copy_from_slice(source);
            from += literals;
            to += literals;
            if to == PAGE_SIZE {
                break;
            }
        }

        let distance = object.get(from..).and_then(<[u8]>::first_chunk);
        let distance = usize::from(u16::from_le_bytes(*distance.ok_or(DecodeError::Truncated)?));
        from += 2;
        let mut length = token & 15;
        if length == LENGTH_CONTINUES {
            length += length_rest(object, &mut from)?;
        }
        length += MATCH_MIN;

        if distance.wrapping_sub(1) >= to {
            return Err(DecodeError::BadDistance { distance, decoded_bytes: to });
        }
        if to + length > PAGE_SIZE - LAST_LITERALS {
            return Err(DecodeError::Malformed("LZ4 copy into the last literals"));
        }
        copy(page, to, distance, length);
        to += length;
    }
    if from < object.len() { Err(DecodeError::TrailingBytes) } else { Ok(()) }
}

/// What of a length is over its field of four bits.
#[inline]
fn length_rest(object: &[u8], from: &mut usize) -> Result<usize, DecodeError> {
    let mut length = 0;
    loop {
        let byte = *object.get(*from).ok_or(DecodeError::Truncated)?;
        *from += 1;
        length += usize::from(byte);
        if byte != u8::MAX {
            return Ok(length);
        }
    }
}

/// Copies `length` bytes from `distance` before `to`. Both are inside the page, `distance` is at
/// most `to` and not zero.
#[inline]
fn copy(page: &mut Page, to: usize, distance: usize, length: usize) {
    let end = to + length;
    let mut at = to;
    if distance >= PIECE_STEP && end + PIECE <= PAGE_SIZE {
        while at < end {
            copy_piece::<PIECE_STEP>(page, at - distance, at);
            at += PIECE_STEP;
        }
    } else if distance >= 8 && end + 8 <= PAGE_SIZE {
        while at < end {
            copy_piece::<8>(page, at - distance, at);
            at += 8;
        }
    } else if distance == 1 {
        let byte = page[to - 1];
        page[to..end].fill(byte);
    } else if distance < 8 && end + 8 <= PAGE_SIZE {
        let pattern = repeated(page, to - distance, distance);
        let step = usize::from(REPEAT_STEP[distance & 7]);
        while at < end {
            if let Some(place) = page.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                *place = pattern;
            }
            at += step;
        }
    } else {
        // Near the end of the page nothing may be written past the copy.
        while at < end {
            page[at] = page[at - distance];
            at += 1;
        }
    }
}

/// Bytes copied at a time when the distance allows.
const PIECE_STEP: usize = 16;

#[inline]
fn copy_piece<const N: usize>(page: &mut Page, from: usize, to: usize) {
    // Read in full before it is written; `copy` makes sure that both lie within the page.
    let Some(&source) = page.get(from..).and_then(<[u8]>::first_chunk::<N>) else { return };
    if let Some(place) = page.get_mut(to..).and_then(<[u8]>::first_chunk_mut::<N>) {
        *place = source;
    }
}

/// The `period` bytes at `at` (fewer than eight), repeated to fill eight.
#[inline]
fn repeated(page: &Page, at: usize, period: usize) -> [u8; 8] {
    let bytes = page.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
    let bits = 8 * (period as u32 & 7);
    let once = u64::from_le_bytes(bytes) & ((1u64 << bits) - 1);
    once.wrapping_mul(REPEAT[period & 7]).to_le_bytes()
}

/// By period: a one at each multiple of it below eight bytes. Multiplying repeats the period, since
/// the copies do not overlap and nothing carries.
const REPEAT: [u64; 8] = [
    0,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0001_0000_0100_0001,
    0x0000_0001_0000_0001,
    0x0000_0100_0000_0001,
    0x0001_0000_0000_0001,
    0x0100_0000_0000_0001,
];

/// By period: its largest multiple up to eight, how far one store of eight bytes reaches.
const REPEAT_STEP: [u8; 8] = [8, 8, 8, 6, 8, 5, 6, 7];

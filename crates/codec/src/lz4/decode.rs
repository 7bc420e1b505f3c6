//! The LZ4 decoder.

use super::{LAST_LITERALS, LENGTH_CONTINUES, MATCH_MIN};
use crate::error::DecodeError;
use crate::lz::{copy, copy_short_run};

/// Decompresses `object` into `block`.
///
/// # Errors
/// [`DecodeError`] unless `object` is one LZ4 block of exactly that size that ends in at least
/// [five literals](super), as the format asks of every encoder.
pub(crate) fn decompress<const SIZE: usize>(
    object: &[u8],
    block: &mut [u8; SIZE],
) -> Result<(), DecodeError> {
    let mut from = 0;
    let mut to = 0;
    loop {
        let token = usize::from(*object.get(from).ok_or(DecodeError::Truncated)?);
        from += 1;

        let mut literals = token >> 4;
        let short = literals < LENGTH_CONTINUES;
        if short
            && let Some(source) = object.get(from..)
            && let Some(place) = block.get_mut(to..)
            && copy_short_run(source, place)
        {
            from += literals;
            to += literals;
        } else {
            if !short {
                literals += length_rest(object, &mut from)?;
            }
            let source = object.get(from..from + literals).ok_or(DecodeError::Truncated)?;
            let place = block.get_mut(to..to + literals).ok_or(DecodeError::TooLong)?;
            place.copy_from_slice(source);
            from += literals;
            to += literals;
            if to == SIZE {
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
        if to + length > SIZE - LAST_LITERALS {
            return Err(DecodeError::Malformed("LZ4 copy into the last literals"));
        }
        copy(block, to, distance, length);
        to += length;
    }
    if from < object.len() { Err(DecodeError::TrailingBytes) } else { Ok(()) }
}

/// The part of a length above its field of four bits.
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

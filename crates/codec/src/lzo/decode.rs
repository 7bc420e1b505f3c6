//! The LZO1X decoder.

use super::{
    CARRIED_MAX, COPY_FAR, COPY_NEAR, COPY_NEAR_LENGTH, COPY_SHORT, END, FIRST_RUN, RUN_MIN,
};
use crate::error::DecodeError;
use crate::lz::{SHORT_RUN, copy, copy_short_run};
use crate::{PAGE_SIZE, Page};

/// How the literals before an instruction came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// None: the last instruction was a copy that carried none.
    None,
    /// One to three, carried by a copy.
    Carried,
    /// A run.
    Run,
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] unless `object` is one LZO1X stream of exactly a page, with its end.
pub(crate) fn decompress(object: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let mut from = Input { bytes: object, at: 0 };
    let mut to = 0;
    let mut state = State::None;
    let first = usize::from(*object.first().ok_or(DecodeError::Truncated)?);
    if let Some(length) = first.checked_sub(FIRST_RUN)
        && length > 0
    {
        from.at = 1;
        from.literals(page, &mut to, length)?;
        state = if length > CARRIED_MAX { State::Run } else { State::Carried };
    }
    loop {
        let opcode = from.byte()?;
        // Most frequent first: on heap pages nine copies of ten are short or near.
        let (distance, length, carried) = if opcode >= COPY_SHORT {
            let distance = (from.byte()? << 3) + (opcode >> 2 & 7) + 1;
            (distance, (opcode >> 5) + 1, opcode & 3)
        } else if opcode >= COPY_NEAR {
            let length = from.length(opcode, COPY_NEAR_LENGTH)? + 2;
            let field = from.u16()?;
            ((field >> 2) + 1, length, field & 3)
        } else if opcode >= COPY_FAR {
            let end = from.at.checked_sub(1).and_then(|at| object.get(at..));
            return match end {
                Some(end) if end == END && to == PAGE_SIZE => Ok(()),
                Some(end) if end.len() < END.len() => Err(DecodeError::Truncated),
                Some(end) if !end.starts_with(&END) => {
                    Err(DecodeError::Malformed("LZO copy from beyond a page"))
                }
                _ if to < PAGE_SIZE => Err(DecodeError::Truncated),
                _ => Err(DecodeError::TrailingBytes),
            };
        } else {
            match state {
                State::None => {
                    let length = from.length(opcode, 15)? + RUN_MIN - 1;
                    from.literals(page, &mut to, length)?;
                    state = State::Run;
                    continue;
                }
                State::Carried => ((from.byte()? << 2) + (opcode >> 2) + 1, 2, opcode & 3),
                State::Run => ((from.byte()? << 2) + (opcode >> 2) + 2049, 3, opcode & 3),
            }
        };
        if distance > to {
            return Err(DecodeError::BadDistance { distance, decoded_bytes: to });
        }
        if to + length > PAGE_SIZE {
            return Err(DecodeError::TooLong);
        }
        copy(page, to, distance, length);
        to += length;
        state = State::None;
        if carried > 0 {
            from.literals(page, &mut to, carried)?;
            state = State::Carried;
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    #[inline]
    fn byte(&mut self) -> Result<usize, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(usize::from(byte))
    }

    #[inline]
    fn u16(&mut self) -> Result<usize, DecodeError> {
        let bytes = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        self.at += 2;
        Ok(usize::from(u16::from_le_bytes(*bytes.ok_or(DecodeError::Truncated)?)))
    }

    /// The length in the field `mask` of an opcode. 0 says that it goes on: 255 for each byte of
    /// zero, then one that is not, above what the field can hold.
    #[inline]
    fn length(&mut self, opcode: usize, mask: usize) -> Result<usize, DecodeError> {
        let field = opcode & mask;
        if field != 0 {
            return Ok(field);
        }
        let mut length = mask;
        loop {
            let byte = self.byte()?;
            if byte != 0 {
                return Ok(length + byte);
            }
            length += 255;
        }
    }

    #[inline]
    fn literals(
        &mut self,
        page: &mut Page,
        to: &mut usize,
        length: usize,
    ) -> Result<(), DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let short = length <= SHORT_RUN
            && page.get_mut(*to..).is_some_and(|place| copy_short_run(rest, place));
        if !short {
            let source = rest.get(..length).ok_or(DecodeError::Truncated)?;
            let place = page.get_mut(*to..*to + length).ok_or(DecodeError::TooLong)?;
            place.copy_from_slice(source);
        }
        self.at += length;
        *to += length;
        Ok(())
    }
}

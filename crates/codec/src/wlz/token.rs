//! Tokens: a run of literals, then a copy.

use core::cmp::Ordering;

use super::{Literals, SAME_MIN};
use crate::error::{DecodeError, DoesNotFit};
use crate::lz::Output;
use crate::{PAGE_WORDS, Page};

/// What a token's first byte or two hold: literals in bits 0 to 2; then, from the last distance, the
/// length in five bits; from a new one the length in three and the distance in ten.
const RUN_FIELD: usize = 7;
const SAME_LENGTH_FIELD: usize = 31;
const NEW_LENGTH_FIELD: usize = 7;
const LENGTH_SHIFT: u32 = 3;
const DISTANCE_SHIFT: u32 = 6;

/// A run of literals, then a copy.
#[inline]
pub(super) fn write_token(
    out: &mut Output<'_>,
    run: usize,
    length: usize,
    new_distance: Option<usize>,
) -> Result<(), DoesNotFit> {
    let run_field = run.min(RUN_FIELD);
    let rest = length - SAME_MIN;
    let length_max = match new_distance {
        None => SAME_LENGTH_FIELD,
        Some(_) => NEW_LENGTH_FIELD,
    };
    let head = run_field | rest.min(length_max) << LENGTH_SHIFT;
    match new_distance {
        None => out.push(head as u8)?,
        Some(distance) => out.push_u16((head | distance << DISTANCE_SHIFT) as u16)?,
    }
    out.push_rest(rest, length_max)?;
    out.push_rest(run, RUN_FIELD)
}

/// The tokens as they are read.
pub(super) struct Tokens<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl Tokens<'_> {
    #[inline]
    fn byte(&mut self) -> Result<usize, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(usize::from(byte))
    }

    /// The next token: literals, and words to copy.
    #[inline]
    pub fn next(
        &mut self,
        is_new: bool,
        distance: &mut usize,
    ) -> Result<(usize, usize), DecodeError> {
        let (head, length_field, length_max);
        if let Some(bytes) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<2>) {
            // Whether a distance is new cannot be predicted, so nothing branches on it.
            let new = usize::from(is_new);
            head = usize::from(u16::from_le_bytes(*bytes));
            self.at += 1 + new;
            *distance = if is_new { head >> DISTANCE_SHIFT } else { *distance };
            length_max = if is_new { NEW_LENGTH_FIELD } else { SAME_LENGTH_FIELD };
            length_field = head >> LENGTH_SHIFT & length_max;
        } else if is_new {
            return Err(DecodeError::Truncated);
        } else {
            head = self.byte()?;
            (length_field, length_max) = (head >> LENGTH_SHIFT, SAME_LENGTH_FIELD);
        }
        let length = SAME_MIN + self.number(length_field, length_max)?;
        Ok((self.number(head & RUN_FIELD, RUN_FIELD)?, length))
    }

    /// A number whose field holds `field` of at most `max`.
    #[inline]
    fn number(&mut self, field: usize, max: usize) -> Result<usize, DecodeError> {
        let mut number = field;
        if field == max {
            loop {
                let byte = self.byte()?;
                number += byte;
                if byte != 255 {
                    break;
                }
            }
        }
        Ok(number)
    }
}

/// Puts the first `count` literals and the copies together.
pub(super) fn copy_all(
    literals: &Literals,
    count: usize,
    flags: &[u8],
    token_count: usize,
    mut tokens: Tokens<'_>,
    page: &mut Page,
) -> Result<(), DecodeError> {
    let words = page.as_chunks_mut::<4>().0;
    let (mut from, mut to, mut distance) = (0, 0, 1);
    for nth in 0..token_count {
        let is_new = flags[nth / 8] >> (nth % 8) & 1 != 0;
        let (run, length) = tokens.next(is_new, &mut distance)?;
        if run > count - from {
            return Err(DecodeError::Truncated);
        }
        if to + run + length > PAGE_WORDS {
            return Err(DecodeError::TooLong);
        }
        copy_run(words, to, literals, from, run);
        from += run;
        to += run;
        if distance.wrapping_sub(1) >= to {
            let (distance, decoded_bytes) = (4 * distance, 4 * to);
            return Err(DecodeError::BadDistance { distance, decoded_bytes });
        }
        copy(words, to, distance, length);
        to += length;
    }
    if tokens.at < tokens.bytes.len() {
        return Err(DecodeError::TrailingBytes);
    }
    match (PAGE_WORDS - to).cmp(&(count - from)) {
        Ordering::Less => Err(DecodeError::TooLong),
        Ordering::Greater => Err(DecodeError::Truncated),
        Ordering::Equal => {
            words[to..].copy_from_slice(&literals[from..count]);
            Ok(())
        }
    }
}

/// Words copied at a time where there is room, which spares a call and a loop.
const PIECE: usize = 8;

/// Copies `run` words, and where there is room a few more: what comes next is written over them.
#[inline]
pub(super) fn copy_run(to: &mut [[u8; 4]], at: usize, source: &[[u8; 4]], from: usize, run: usize) {
    if run <= PIECE
        && let Some(piece) = source.get(from..).and_then(<[[u8; 4]]>::first_chunk::<PIECE>)
        && let Some(place) = to.get_mut(at..).and_then(<[[u8; 4]]>::first_chunk_mut)
    {
        *place = *piece;
    } else {
        to[at..at + run].copy_from_slice(&source[from..from + run]);
    }
}

/// Copies words from `distance` before `to`. All lie within the page, and `distance` is not zero.
#[inline]
fn copy(words: &mut [[u8; 4]], to: usize, distance: usize, length: usize) {
    let end = to + length;
    let mut at = to;
    if distance >= PIECE && end + PIECE <= PAGE_WORDS {
        while at < end {
            // Written a little past the copy's end, where nothing is yet.
            let Some(&piece) =
                words.get(at - distance..).and_then(<[[u8; 4]]>::first_chunk::<PIECE>)
            else {
                return;
            };
            if let Some(place) = words.get_mut(at..).and_then(<[[u8; 4]]>::first_chunk_mut) {
                *place = piece;
            }
            at += PIECE;
        }
    } else {
        while at < end {
            words[at] = words[at - distance];
            at += 1;
        }
    }
}

//! The data tapes: section 4.4 of the PBPM paper.

use super::{Alignment, HEADER};
use crate::PAGE_WORDS;
use crate::error::DecodeError;

/// Data of one, two and four bytes, in one of three layouts. Both directions use the same memory.
pub(super) trait DataTape<'a>: Sized {
    const ALIGNMENT: Alignment;
    /// Bytes of the object before the data.
    const HEADER: usize;

    fn empty(room: &'a mut [u8; ROOM]) -> Self;

    /// Adds the low `bytes` (0, 1, 2 or 4) of `value`.
    fn put(&mut self, value: u32, bytes: usize);

    /// Bytes that [`DataTape::write`] writes.
    fn len(&self) -> usize;

    /// Writes all that was put to `to`, which is as long as that.
    fn write(&self, to: &mut [u8]);

    /// The length of what so many pieces of one, two and four bytes make.
    fn len_of(counts: [usize; 3]) -> usize;

    /// The tape of an object, as long as these pieces make it.
    fn read(room: &'a mut [u8; ROOM], from: &[u8], counts: [usize; 3])
    -> Result<Self, DecodeError>;

    /// The next piece of so many bytes (1, 2 or 4), which is there. Above them is anything.
    fn take(&mut self, bytes: usize) -> u32;

    /// After the last piece: is all that belongs to none zero?
    fn end(&self) -> Result<(), DecodeError>;
}

/// Room behind a tape for a whole word stored or loaded at its last byte.
const SLACK: usize = 4;

const WORDS: usize = 4 * PAGE_WORDS + SLACK;
const PAIRS: usize = 2 * PAGE_WORDS + SLACK;
const BYTES: usize = PAGE_WORDS + SLACK;

/// Enough for each layout.
pub(super) const ROOM: usize = WORDS + PAIRS + BYTES;

#[inline]
fn store(tape: &mut [u8], at: usize, value: u32) {
    // Cursors are bounded by the number of words of a page.
    if let Some(place) = tape.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value.to_le_bytes();
    }
}

#[inline]
fn load(tape: &[u8], at: usize) -> u32 {
    tape.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// What fills a tape up to a multiple of four must be zero.
fn check_padding(padding: &[u8]) -> Result<(), DecodeError> {
    if padding.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(DecodeError::Malformed("PBPM data padding"))
    }
}

/// [`Alignment::Unaligned`].
pub(crate) struct Unaligned<'a> {
    pub tape: &'a mut [u8; ROOM],
    pub at: usize,
}

impl<'a> DataTape<'a> for Unaligned<'a> {
    const ALIGNMENT: Alignment = Alignment::Unaligned;
    const HEADER: usize = HEADER;

    #[inline]
    fn empty(tape: &'a mut [u8; ROOM]) -> Self {
        Unaligned { tape, at: 0 }
    }

    #[inline]
    fn put(&mut self, value: u32, bytes: usize) {
        // The remainder tells the compiler that no check is needed.
        store(self.tape, self.at % (4 * PAGE_WORDS), value);
        self.at += bytes;
    }

    #[inline]
    fn len(&self) -> usize {
        self.at
    }

    #[inline]
    fn write(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.tape[..self.at]);
    }

    #[inline]
    fn len_of([bytes, pairs, words]: [usize; 3]) -> usize {
        bytes + 2 * pairs + 4 * words
    }

    #[inline]
    fn read(tape: &'a mut [u8; ROOM], from: &[u8], _: [usize; 3]) -> Result<Self, DecodeError> {
        tape[..from.len()].copy_from_slice(from);
        Ok(Unaligned { tape, at: 0 })
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> u32 {
        let value = load(self.tape, self.at % (4 * PAGE_WORDS));
        self.at += bytes;
        value
    }

    fn end(&self) -> Result<(), DecodeError> {
        Ok(())
    }
}

/// [`Alignment::SeparateTapes`].
pub(super) struct SeparateTapes<'a> {
    words: &'a mut [u8],
    pairs: &'a mut [u8],
    bytes: &'a mut [u8],
    words_at: usize,
    pairs_at: usize,
    bytes_at: usize,
}

impl<'a> DataTape<'a> for SeparateTapes<'a> {
    const ALIGNMENT: Alignment = Alignment::SeparateTapes;
    const HEADER: usize = 4;

    fn empty(room: &'a mut [u8; ROOM]) -> Self {
        let (words, rest) = room.split_at_mut(WORDS);
        let (pairs, bytes) = rest.split_at_mut(PAIRS);
        SeparateTapes { words, pairs, bytes, words_at: 0, pairs_at: 0, bytes_at: 0 }
    }

    #[inline]
    fn put(&mut self, value: u32, bytes: usize) {
        // Stored on each tape, kept on one: no branch on the pattern.
        store(self.words, self.words_at, value);
        store(self.pairs, self.pairs_at, value);
        store(self.bytes, self.bytes_at, value);
        self.words_at += bytes & 4;
        self.pairs_at += bytes & 2;
        self.bytes_at += bytes & 1;
    }

    fn len(&self) -> usize {
        (self.words_at + self.pairs_at + self.bytes_at).next_multiple_of(4)
    }

    fn write(&self, to: &mut [u8]) {
        let (words, rest) = to.split_at_mut(self.words_at);
        let (pairs, rest) = rest.split_at_mut(self.pairs_at);
        let (bytes, padding) = rest.split_at_mut(self.bytes_at);
        words.copy_from_slice(&self.words[..self.words_at]);
        pairs.copy_from_slice(&self.pairs[..self.pairs_at]);
        bytes.copy_from_slice(&self.bytes[..self.bytes_at]);
        padding.fill(0);
    }

    fn len_of([bytes, pairs, words]: [usize; 3]) -> usize {
        (bytes + 2 * pairs + 4 * words).next_multiple_of(4)
    }

    fn read(
        room: &'a mut [u8; ROOM],
        from: &[u8],
        [bytes, pairs, words]: [usize; 3],
    ) -> Result<Self, DecodeError> {
        let tapes = Self::empty(room);
        let (words, rest) = from.split_at(4 * words);
        let (pairs, rest) = rest.split_at(2 * pairs);
        let (bytes, padding) = rest.split_at(bytes);
        tapes.words[..words.len()].copy_from_slice(words);
        tapes.pairs[..pairs.len()].copy_from_slice(pairs);
        tapes.bytes[..bytes.len()].copy_from_slice(bytes);
        check_padding(padding)?;
        Ok(tapes)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> u32 {
        let (tape, at) = match bytes {
            4 => (&*self.words, &mut self.words_at),
            2 => (&*self.pairs, &mut self.pairs_at),
            _ => (&*self.bytes, &mut self.bytes_at),
        };
        let value = load(tape, *at);
        *at += bytes;
        value
    }

    fn end(&self) -> Result<(), DecodeError> {
        Ok(())
    }
}

/// [`Alignment::SingleTape`].
pub(super) struct SingleTape<'a> {
    tape: &'a mut [u8; ROOM],
    /// Where the next word begins.
    next: usize,
    /// Where the next pair and the next byte go; at a multiple of four they need a word first.
    pair_at: usize,
    byte_at: usize,
}

impl SingleTape<'_> {
    /// Where a piece of so many bytes goes, and whether it is the first of its word.
    #[inline]
    fn advance(&mut self, bytes: usize) -> (usize, bool) {
        let cursor = match bytes {
            4 => {
                let at = self.next;
                self.next += 4;
                return (at, true);
            }
            2 => &mut self.pair_at,
            _ => &mut self.byte_at,
        };
        let is_first = *cursor % 4 == 0;
        if is_first {
            *cursor = self.next;
            self.next += 4;
        }
        let at = *cursor;
        *cursor += bytes;
        (at, is_first)
    }
}

impl<'a> DataTape<'a> for SingleTape<'a> {
    const ALIGNMENT: Alignment = Alignment::SingleTape;
    const HEADER: usize = 4;

    fn empty(tape: &'a mut [u8; ROOM]) -> Self {
        SingleTape { tape, next: 0, pair_at: 0, byte_at: 0 }
    }

    #[inline]
    fn put(&mut self, value: u32, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let (at, is_first) = self.advance(bytes);
        let value = value & (u32::MAX >> (32 - 8 * bytes as u32));
        // The first piece of a word clears the places of the others.
        let word = at & !3;
        let others = if is_first { 0 } else { load(self.tape, word) };
        store(self.tape, word, others | value << (8 * (at & 3)));
    }

    fn len(&self) -> usize {
        self.next
    }

    fn write(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.tape[..self.next]);
    }

    fn len_of([bytes, pairs, words]: [usize; 3]) -> usize {
        4 * (words + pairs.div_ceil(2) + bytes.div_ceil(4))
    }

    fn read(tape: &'a mut [u8; ROOM], from: &[u8], _: [usize; 3]) -> Result<Self, DecodeError> {
        tape[..from.len()].copy_from_slice(from);
        Ok(Self::empty(tape))
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> u32 {
        let (at, _) = self.advance(bytes);
        load(self.tape, at)
    }

    fn end(&self) -> Result<(), DecodeError> {
        for at in [self.pair_at, self.byte_at] {
            check_padding(&self.tape[at..at.next_multiple_of(4)])?;
        }
        Ok(())
    }
}

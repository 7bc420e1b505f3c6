//! Parts that the codecs of the Lempel-Ziv family share: finding copies, writing literals, making
//! copies.
//!
//! The parts that LZ4 uses are generic over the size of the block, a page or a
//! [cluster](crate::cluster), so that bounds are constants. Positions have 16 bits.

use crate::Page;
use crate::error::DoesNotFit;

/// Where each hash was last seen in the page.
pub(crate) struct Table<'a, const ENTRIES: usize>(&'a mut [[u8; 2]; ENTRIES]);

impl<'a, const ENTRIES: usize> Table<'a, ENTRIES> {
    /// A table that has seen nothing, in `scratch`. Position 0 stands for "not seen": the page's
    /// first bytes are as good a candidate as any, and comparing them spares a branch.
    #[inline]
    pub(crate) fn clear(scratch: &'a mut [u8]) -> Option<Table<'a, ENTRIES>> {
        scratch.fill(0);
        Some(Table(scratch.as_chunks_mut().0.first_chunk_mut()?))
    }

    /// The last position with `hash`, which `position` replaces.
    #[inline]
    pub(crate) fn swap(&mut self, hash: usize, position: usize) -> usize {
        let entry = &mut self.0[hash % ENTRIES];
        let seen = u16::from_le_bytes(*entry);
        *entry = (position as u16).to_le_bytes();
        usize::from(seen)
    }
}

#[inline]
pub(crate) fn bytes_at<const N: usize, const SIZE: usize>(page: &[u8; SIZE], at: usize) -> [u8; N] {
    // Callers stay within the page; zeros keep the function total without a panic's code.
    match page.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

#[inline]
pub(crate) fn u32_at<const SIZE: usize>(page: &[u8; SIZE], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(page, at))
}

/// A hash of the five bytes at `at`, with so many bits.
#[inline]
pub(crate) fn hash_of_five<const SIZE: usize>(page: &[u8; SIZE], at: usize, bits: u32) -> usize {
    let five = u64::from_le_bytes(bytes_at(page, at)) << 24;
    (five.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - bits)) as usize
}

/// The word at a place counted in words.
#[inline]
pub(crate) fn word_at(page: &Page, place: usize) -> u32 {
    u32_at(page, 4 * place)
}

/// Counts the bytes that are equal from an earlier and from a later place in the page on, up to an
/// end of the later ones.
pub(crate) type Compare = fn(&Page, usize, usize, usize) -> usize;

/// Without vector instructions.
pub(crate) const SCALAR: Compare = compare;

/// Bytes compared inline before a call compares more. Most copies end within them, which the
/// processor predicts well; a result from a vector register it has to wait for.
const IN_PLACE: usize = 24;

/// Counts the bytes that are equal from `earlier` and from `later` on, up to `end` of the later
/// ones: the first of them eight at a time, the others by `compare`.
#[inline]
pub(crate) fn common_length_by(
    compare: Compare,
    page: &Page,
    earlier: usize,
    later: usize,
    end: usize,
) -> usize {
    match by_eights(page, earlier, later, end, IN_PLACE) {
        Ended::At(length) => length,
        Ended::NotBy(length) => length + compare(page, earlier + length, later + length, end),
    }
}

/// The result of a comparison, in bytes.
enum Ended {
    /// So many bytes are equal, and the next one differs.
    At(usize),
    /// All bytes compared so far are equal, so many.
    NotBy(usize),
}

/// Compares up to `most` bytes, eight at a time while there are eight.
#[inline]
fn by_eights<const SIZE: usize>(
    page: &[u8; SIZE],
    earlier: usize,
    later: usize,
    end: usize,
    most: usize,
) -> Ended {
    let mut length = 0;
    while length < most && later + length + 8 <= end {
        let difference = u64::from_le_bytes(bytes_at(page, earlier + length))
            ^ u64::from_le_bytes(bytes_at(page, later + length));
        if difference != 0 {
            return Ended::At(length + first_byte(difference));
        }
        length += 8;
    }
    Ended::NotBy(length)
}

/// The first byte that is not 0.
#[inline]
fn first_byte(difference: u64) -> usize {
    (difference.trailing_zeros() / 8) as usize
}

/// Like [`common_length_by`] in one loop, for encoders that inline it: a call in the loop makes
/// LZ4's 7 % slower.
#[inline]
pub(crate) fn common_length<const SIZE: usize>(
    page: &[u8; SIZE],
    earlier: usize,
    later: usize,
    end: usize,
) -> usize {
    let mut length = match by_eights(page, earlier, later, end, SIZE) {
        Ended::At(length) => return length,
        Ended::NotBy(length) => length,
    };
    while later + length < end && page[earlier + length] == page[later + length] {
        length += 1;
    }
    length
}

/// [`Compare`] in plain code, where copies are long: the slices are checked once.
pub(crate) fn compare(page: &Page, earlier: usize, later: usize, end: usize) -> usize {
    let (Some(from), Some(to)) = (page.get(earlier..), page.get(later..end)) else { return 0 };
    let (from_eights, to_eights) = (from.as_chunks::<8>().0, to.as_chunks::<8>().0);
    let mut length = 0;
    for (from, to) in from_eights.iter().zip(to_eights) {
        let difference = u64::from_le_bytes(*from) ^ u64::from_le_bytes(*to);
        if difference != 0 {
            return length + first_byte(difference);
        }
        length += 8;
    }
    while later + length < end && page[earlier + length] == page[later + length] {
        length += 1;
    }
    length
}

/// Runs of literals up to this length are copied by [`copy_short_run`].
pub(crate) const SHORT_RUN: usize = 16;

/// Copies a run from the front of `source` to that of `place` together with what is behind it: of
/// fixed length, which spares a call. `false` where either has no room for that.
#[inline(always)]
pub(crate) fn copy_short_run(source: &[u8], place: &mut [u8]) -> bool {
    match (source.first_chunk::<SHORT_RUN>(), place.first_chunk_mut()) {
        (Some(source), Some(place)) => {
            *place = *source;
            true
        }
        _ => false,
    }
}

/// The object as it grows.
pub(crate) struct Output<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Output<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Output<'a> {
        Output { bytes, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) -> Result<(), DoesNotFit> {
        *self.bytes.get_mut(self.len).ok_or(DoesNotFit)? = byte;
        self.len += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn push_u16(&mut self, value: u16) -> Result<(), DoesNotFit> {
        let place = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut);
        *place.ok_or(DoesNotFit)? = value.to_le_bytes();
        self.len += 2;
        Ok(())
    }

    /// The part of a number above its field, if the field is full: bytes of 255, then a smaller
    /// one.
    #[inline]
    pub(crate) fn push_rest(&mut self, number: usize, field: usize) -> Result<(), DoesNotFit> {
        let Some(mut rest) = number.checked_sub(field) else { return Ok(()) };
        while rest >= 255 {
            self.push(255)?;
            rest -= 255;
        }
        self.push(rest as u8)
    }

    /// Writes over two bytes at `at`, which were left open.
    #[inline]
    pub(crate) fn set_u16(&mut self, at: usize, value: u16) {
        if let Some(place) = self.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = value.to_le_bytes();
        }
    }

    /// The byte written `back` bytes ago, to be completed.
    #[inline]
    pub(crate) fn earlier(&mut self, back: usize) -> Option<&mut u8> {
        self.bytes.get_mut(self.len.checked_sub(back)?)
    }

    #[inline]
    pub(crate) fn literals(
        &mut self,
        page: &[u8],
        start: usize,
        end: usize,
    ) -> Result<(), DoesNotFit> {
        let length = end - start;
        if length <= SHORT_RUN
            && let Some(source) = page.get(start..)
            && let Some(place) = self.bytes.get_mut(self.len..)
            && copy_short_run(source, place)
        {
            // Done: most are.
        } else {
            let place = self.bytes.get_mut(self.len..self.len + length).ok_or(DoesNotFit)?;
            place.copy_from_slice(&page[start..end]);
        }
        self.len += length;
        Ok(())
    }
}

/// Room behind a copy that is enough to write past its end, which saves a call and a loop.
const PIECE: usize = 32;
/// A step that begins within the copy ends within that room.
const _: () = assert!(PIECE_STEP <= PIECE);

/// Copies `length` bytes from `distance` before `to`. Both are inside the page, `distance` is at
/// most `to` and not zero.
#[inline]
pub(crate) fn copy<const SIZE: usize>(
    page: &mut [u8; SIZE],
    to: usize,
    distance: usize,
    length: usize,
) {
    let end = to + length;
    let mut at = to;
    if distance >= PIECE_STEP && end + PIECE <= SIZE {
        while at < end {
            copy_piece::<PIECE_STEP, SIZE>(page, at - distance, at);
            at += PIECE_STEP;
        }
    } else if distance >= 8 && end + 8 <= SIZE {
        while at < end {
            copy_piece::<8, SIZE>(page, at - distance, at);
            at += 8;
        }
    } else if distance == 1 {
        let byte = page[to - 1];
        page[to..end].fill(byte);
    } else if distance < 8 && end + 8 <= SIZE {
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
fn copy_piece<const N: usize, const SIZE: usize>(page: &mut [u8; SIZE], from: usize, to: usize) {
    // Read in full before it is written; `copy` makes sure that both lie within the page.
    let Some(&source) = page.get(from..).and_then(<[u8]>::first_chunk::<N>) else { return };
    if let Some(place) = page.get_mut(to..).and_then(<[u8]>::first_chunk_mut::<N>) {
        *place = source;
    }
}

/// The `period` bytes at `at` (fewer than eight), repeated to fill eight.
#[inline]
fn repeated(page: &[u8], at: usize, period: usize) -> [u8; 8] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::backend::Backend;

    /// Every backend finds the one byte that is not the same, wherever it is, and the end.
    #[test]
    fn compare_by_every_backend() {
        let (distances, lengths) = if cfg!(miri) { (1..3, 90..99) } else { (1..40, 0..300) };
        let mut page = [0; PAGE_SIZE];
        for later in [distances.end, 1000, PAGE_SIZE - lengths.end, PAGE_SIZE - 40] {
            for different in lengths.clone() {
                let place = (later + different).min(PAGE_SIZE - 1);
                page[place] = 1;
                for distance in distances.clone() {
                    for end in [later + 70, later + 200, PAGE_SIZE - 5, PAGE_SIZE] {
                        let end = end.min(PAGE_SIZE);
                        let expected = place.min(end) - later;
                        for backend in Backend::available() {
                            let (compare, earlier) = (backend.lz(), later - distance);
                            let found = [
                                compare(&page, earlier, later, end),
                                common_length_by(compare, &page, earlier, later, end),
                            ];
                            let name = backend.name();
                            assert_eq!(found, [expected; 2], "{name}: {earlier}, {later}, {end}");
                        }
                    }
                }
                page[place] = 0;
            }
        }
    }
}

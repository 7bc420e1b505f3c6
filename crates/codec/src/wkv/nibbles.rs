//! Bytes in four bits each, when they are among the most frequent fifteen, and what is left of them
//! in the same way once more.

use super::{Kernels, WORDS_BYTES};
use crate::PAGE_SIZE;
use crate::scratch::Carver;

/// Bytes that have a code of their own.
pub(super) const FREQUENT: usize = 15;
/// The code of all others, which escape: they follow as they are.
pub(crate) const ESCAPE: u8 = 15;

/// Which bytes have codes.
pub(crate) struct Codes {
    /// Ascending, by code; zeros behind them where they are fewer.
    frequent: [u8; FREQUENT],
    count: usize,
    /// For each byte its code.
    pub of: [u8; 256],
}

impl Codes {
    /// Each byte that has a code, with its code: for AVX2, which has no large table in registers.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn frequent(&self) -> impl Iterator<Item = (u8, u8)> {
        (0..).zip(self.frequent).take(self.count)
    }
}

/// By code the byte, and one more.
pub(crate) type ByteOf = [u8; FREQUENT + 1];

/// As many bytes as a page has or fewer, and room for a vector more, which is written and read
/// where fewer are meant.
pub(crate) type Bytes = [u8; WORDS_BYTES];

/// Fewer bytes are not worth a table.
const BYTES_MIN: usize = 64;
/// Fours of bytes that are counted, about.
const SAMPLE: usize = 64;

/// Room for what two levels make. What the buffers hold is unspecified.
pub(super) struct Buffers<'a> {
    codes: &'a mut Bytes,
    escapes: &'a mut Bytes,
    codes_of_escapes: &'a mut Bytes,
    escapes_of_escapes: &'a mut Bytes,
}

impl<'a> Buffers<'a> {
    pub(super) fn carve(carver: &mut Carver<'a>) -> Option<Buffers<'a>> {
        Some(Buffers {
            codes: carver.bytes()?,
            escapes: carver.bytes()?,
            codes_of_escapes: carver.bytes()?,
            escapes_of_escapes: carver.bytes()?,
        })
    }
}

/// Scratch for [`Buffers`].
pub(super) const BUFFERS_BYTES: usize = 4 * WORDS_BYTES;

/// Bytes that were packed.
pub(super) struct Packed<'a> {
    first: Level<'a>,
    second: Option<Level<'a>>,
}

struct Level<'a> {
    frequent: [u8; FREQUENT],
    codes: &'a [u8],
    escapes: &'a [u8],
}

impl Level<'_> {
    fn len(&self) -> usize {
        FREQUENT + self.codes.len() + self.escapes.len()
    }
}

/// Length of the first level's escapes, where there is a second.
const ESCAPED_BYTES: usize = 2;

impl Packed<'_> {
    pub(super) fn levels(&self) -> u8 {
        if self.second.is_some() { 2 } else { 1 }
    }

    pub(super) fn len(&self) -> usize {
        match &self.second {
            Some(second) => {
                self.first.len() - self.first.escapes.len() + ESCAPED_BYTES + second.len()
            }
            None => self.first.len(),
        }
    }

    /// Writes what [`unpack`] reads, `len` bytes.
    pub(super) fn write(&self, mut to: &mut [u8]) {
        let mut put = |bytes: &[u8]| {
            if let Some(place) = to.split_off_mut(..bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(&self.first.frequent);
        match &self.second {
            Some(second) => {
                put(&second.frequent);
                put(&(self.first.escapes.len() as u16).to_le_bytes());
                put(self.first.codes);
                put(second.codes);
                put(second.escapes);
            }
            None => {
                put(self.first.codes);
                put(self.first.escapes);
            }
        }
    }
}

/// Packs the first `count` bytes, or `None` when that would not make them fewer. `bytes` goes on to
/// the end of a vector.
pub(super) fn pack<'a>(
    kernels: &Kernels,
    bytes: &[u8],
    count: usize,
    buffers: &'a mut Buffers<'_>,
) -> Option<Packed<'a>> {
    let (first, escaped) = pack_level(kernels, bytes, count, buffers.codes, buffers.escapes)?;
    let Buffers { codes, escapes, codes_of_escapes, escapes_of_escapes } = buffers;
    let second = pack_level(kernels, &escapes[..], escaped, codes_of_escapes, escapes_of_escapes);
    let second = second.map(|(table, left)| Level {
        frequent: table.frequent,
        codes: &codes_of_escapes[..escaped.div_ceil(2)],
        escapes: &escapes_of_escapes[..left],
    });
    let (codes, escapes) = (&codes[..count.div_ceil(2)], &escapes[..escaped]);
    let second = second.filter(|second| ESCAPED_BYTES + second.len() < escaped);
    Some(Packed { first: Level { frequent: first.frequent, codes, escapes }, second })
}

/// Returns which bytes have codes, and how many escape.
fn pack_level(
    kernels: &Kernels,
    bytes: &[u8],
    count: usize,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> Option<(Codes, usize)> {
    let table = most_frequent(kernels, &bytes[..count])?;
    let escaped = (kernels.pack)(bytes, count, &table, codes, escapes);
    (FREQUENT + count.div_ceil(2) + escaped < count).then_some((table, escaped))
}

/// How often each byte was seen.
pub(crate) type Counts = [u16; 256];
/// A bit for each byte.
pub(crate) type ByteSet = [u64; 4];

/// Codes for the most frequent bytes of a sample; `None` when they would save nothing of it.
pub(super) fn most_frequent(kernels: &Kernels, bytes: &[u8]) -> Option<Codes> {
    if bytes.len() < BYTES_MIN {
        return None;
    }
    let mut counts = [0; 256];
    let (fours, _) = bytes.as_chunks::<4>();
    let step = (fours.len() / SAMPLE).max(1);
    for byte in fours.iter().step_by(step).flatten() {
        counts[usize::from(*byte)] += 1;
    }
    let sampled = 4 * fours.len().div_ceil(step);
    let (above, equal) = (kernels.highest)(&counts, sampled as u16);

    let mut codes = Codes { frequent: [0; FREQUENT], count: 0, of: [ESCAPE; 256] };
    let mut coded = 0;
    for byte in ascending(&fill_up(above, equal)) {
        codes.frequent[codes.count] = byte;
        codes.of[usize::from(byte)] = codes.count as u8;
        codes.count += 1;
        coded += usize::from(counts[usize::from(byte)]);
    }
    // A code is half a byte and an escape one and a half.
    (2 * coded > sampled).then_some(codes)
}

/// `set` and the first of `more`, as many as have codes.
fn fill_up(set: ByteSet, more: ByteSet) -> ByteSet {
    let mut left = FREQUENT as u32 - count_of(&set);
    let mut full = set;
    for (full, mut more) in full.iter_mut().zip(more) {
        while left > 0 && more != 0 {
            *full |= more & more.wrapping_neg();
            more &= more - 1;
            left -= 1;
        }
    }
    full
}

fn ascending(set: &ByteSet) -> impl Iterator<Item = u8> {
    (0..4).zip(set).flat_map(|(quarter, &bits)| {
        super::bits_of(bits).map(move |bit| (64 * quarter + bit) as u8)
    })
}

#[inline]
fn count_of(set: &ByteSet) -> u32 {
    set.iter().map(|bits| bits.count_ones()).sum()
}

/// The bytes, fifteen at most, that were seen more often than all others, and those that come next,
/// all seen equally often. The sets are made by `above` and `equal` to a count.
#[inline]
pub(crate) fn search_highest(
    sampled: u16,
    above: impl Fn(u16) -> ByteSet,
    equal: impl Fn(u16) -> ByteSet,
) -> (ByteSet, ByteSet) {
    // Sixteen bytes cannot have more than a sixteenth each.
    let (mut low, mut least) = (0, sampled / (FREQUENT as u16 + 1));
    while low < least {
        let middle = low.midpoint(least);
        if count_of(&above(middle)) <= FREQUENT as u32 { least = middle } else { low = middle + 1 }
    }
    // What was never seen needs no code.
    (above(least), if least == 0 { [0; 4] } else { equal(least) })
}

pub(super) fn highest(counts: &Counts, sampled: u16) -> (ByteSet, ByteSet) {
    let those = |wanted: &dyn Fn(u16) -> bool| {
        let mut set = [0; 4];
        for (byte, &count) in counts.iter().enumerate() {
            set[byte / 64] |= u64::from(wanted(count)) << (byte % 64);
        }
        set
    };
    search_highest(
        sampled,
        |least| those(&|count| count > least),
        |least| those(&|count| count == least),
    )
}

/// Codes so many bytes; returns how many escaped.
pub(super) fn pack_bytes(
    bytes: &[u8],
    count: usize,
    table: &Codes,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> usize {
    let mut escaped = 0;
    for (pair, to) in bytes[..count].chunks(2).zip(codes) {
        let mut code = |nth: usize| {
            let Some(&byte) = pair.get(nth) else { return 0 };
            let code = table.of[usize::from(byte)];
            if code == ESCAPE {
                escapes[escaped] = byte;
                escaped += 1;
            }
            code
        };
        *to = code(0) | code(1) << 4;
    }
    escaped
}

/// What packed bytes are read from.
pub(super) struct Source<'a> {
    /// Goes on behind the end with anything, a page's length and a vector.
    pub padded: &'a super::Padded,
    /// Where it begins and ends.
    pub start: usize,
    pub end: usize,
}

/// Undoes [`pack`] of so many levels, to `count` bytes. `None` when the source is shorter or longer
/// than that, or its padding not zero.
pub(super) fn unpack(
    kernels: &Kernels,
    source: &Source<'_>,
    levels: u8,
    count: usize,
    between: &mut Bytes,
    bytes: &mut Bytes,
) -> Option<()> {
    let padded = |at: usize| super::section::<WORDS_BYTES>(source.padded, at);
    let byte_of = |at: usize| super::section::<{ FREQUENT + 1 }>(source.padded, at);
    let left = |at: usize| source.end.checked_sub(at);
    if levels == 1 {
        let codes_at = source.start + FREQUENT;
        let escapes_at = codes_at + count.div_ceil(2);
        let rest = left(escapes_at)?;
        let codes = padded(codes_at);
        let escaped =
            (kernels.unpack)(codes, padded(escapes_at), count, byte_of(source.start), bytes);
        return (escaped == rest).then_some(());
    }
    let second_at = source.start + FREQUENT;
    let length_at = second_at + FREQUENT;
    let codes_at = length_at + ESCAPED_BYTES;
    let codes_of_escapes_at = codes_at + count.div_ceil(2);
    left(codes_of_escapes_at)?;
    let escaped = usize::from(u16::from_le_bytes(*super::section(source.padded, length_at)));
    let escapes_at = codes_of_escapes_at + escaped.div_ceil(2);
    let rest = left(escapes_at)?;
    if escaped > PAGE_SIZE {
        return None;
    }
    let codes = padded(codes_of_escapes_at);
    if escaped % 2 == 1 && codes[escaped / 2] >> 4 != 0 {
        return None;
    }
    let escapes = padded(escapes_at);
    if (kernels.unpack)(codes, escapes, escaped, byte_of(second_at), between) != rest {
        return None;
    }
    let codes = padded(codes_at);
    let used = (kernels.unpack)(codes, between, count, byte_of(source.start), bytes);
    (used == escaped).then_some(())
}

/// Makes so many bytes; returns how many had escaped.
pub(super) fn unpack_bytes(
    codes: &Bytes,
    escapes: &Bytes,
    count: usize,
    byte_of: &ByteOf,
    bytes: &mut Bytes,
) -> usize {
    let mut escaped = 0;
    for (nth, byte) in bytes[..count].iter_mut().enumerate() {
        let code = codes[nth / 2] >> (4 * (nth % 2)) & 15;
        *byte = if code == ESCAPE {
            escaped += 1;
            escapes[escaped - 1]
        } else {
            byte_of[usize::from(code)]
        };
    }
    escaped
}

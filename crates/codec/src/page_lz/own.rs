//! A code for the literals of one page, for pages that none of the sets is made for.
//!
//! The lengths of its words stand in the object, in four bits each by byte: 0 for bytes that have
//! none, [`ZEROS`] for 2 to 17 such bytes, of which the next four bits tell how many, and
//! [`MANY_ZEROS`] for 18 to 256, of which the next eight bits do.

use super::code::{self, LITERAL_BITS};
use super::sets::Words;
use super::symbols::LITERALS;
use crate::error::DecodeError;

const ZEROS: u8 = 11;
const ZEROS_MIN: usize = 2;
const MANY_ZEROS: u8 = 12;
const MANY_ZEROS_MIN: usize = 18;
const _: () = assert!(LITERAL_BITS < ZEROS as usize);

/// The longest description: a byte in four bits each.
pub(crate) const DESCRIPTION_MAX: usize = LITERALS / 2;

/// By byte, the length of its word, or 0.
pub(crate) type WordLengths = [u8; LITERALS];

/// Bits and bytes that no code for bytes that come so often and no description of it fall below:
/// their entropy, and four bits for each byte that occurs. What it takes is a fraction of what
/// [`lengths`] takes.
pub(crate) fn at_least(counts: &[u16; LITERALS]) -> (u32, usize) {
    let used = counts.iter().filter(|&&count| count > 0).count();
    let total: u32 = counts.iter().map(|&count| u32::from(count)).sum();
    let spent: u32 =
        counts.iter().map(|&count| u32::from(count) * (log2_below(count.into()) + LOG2_OFF)).sum();
    let bits = (total * log2_below(total)).saturating_sub(spent) >> LOG2_POINT;
    (bits, used / 2)
}

/// Binary places of [`log2_below`].
const LOG2_POINT: u32 = 6;
/// It is too small by at most so much, rounding included: a chord's distance from the curve is up
/// to 0.087.
const LOG2_OFF: u32 = 7;

/// The logarithm of a number below 2^16, or a bit less: that of the power of two below it, and from
/// there the chord. 0 of 0.
fn log2_below(number: u32) -> u32 {
    let power = number.max(1).ilog2();
    let rest = (number << LOG2_POINT >> power).saturating_sub(1 << LOG2_POINT);
    (power << LOG2_POINT) + rest
}

/// The lengths of a code for bytes that come so often, none longer than [`LITERAL_BITS`]; `None`
/// for fewer than two different bytes.
pub(crate) fn lengths(counts: &[u16; LITERALS]) -> Option<WordLengths> {
    // Bytes that occur, the rarest first.
    let mut order = [(0u16, 0u8); LITERALS];
    let mut used = 0;
    for (byte, &count) in counts.iter().enumerate() {
        order[used % LITERALS] = (count, byte as u8);
        used += usize::from(count > 0);
    }
    let order = order.get_mut(..used)?;
    if used < 2 {
        return None;
    }
    order.sort_unstable();

    // Huffman's tree by two queues, both ascending: bytes, and what was joined. Nodes are the
    // bytes, then the joins.
    let mut weights = [0u16; 2 * LITERALS];
    let mut parents = [0u16; 2 * LITERALS];
    for (weight, (count, _)) in weights.iter_mut().zip(order.iter()) {
        *weight = *count;
    }
    let (mut byte, mut join) = (0, used);
    for node in used..2 * used - 1 {
        for _ in 0..2 {
            let smallest = if byte < used && (join >= node || weights[byte] <= weights[join]) {
                &mut byte
            } else {
                &mut join
            };
            weights[node] += weights[*smallest];
            parents[*smallest] = node as u16;
            *smallest += 1;
        }
    }
    let mut depths = [0u8; 2 * LITERALS];
    for node in (0..2 * used - 2).rev() {
        depths[node] = depths[usize::from(parents[node])] + 1;
    }

    // No word may be too long: all that are get the greatest length, and others, the rarest first,
    // a bit more until the words are words of a code; what is too much then the most frequent get
    // back.
    const WHOLE: usize = 1 << LITERAL_BITS;
    let depths = &mut depths[..used];
    let mut covered = 0;
    for depth in depths.iter_mut() {
        *depth = (*depth).min(LITERAL_BITS as u8);
        covered += WHOLE >> *depth;
    }
    while covered > WHOLE {
        let longer = depths.iter_mut().find(|depth| usize::from(**depth) < LITERAL_BITS)?;
        *longer += 1;
        covered -= WHOLE >> *longer;
    }
    for depth in depths.iter_mut().rev() {
        while covered + (WHOLE >> *depth) <= WHOLE {
            covered += WHOLE >> *depth;
            *depth -= 1;
        }
    }
    let mut lengths = [0; LITERALS];
    for ((_, byte), depth) in order.iter().zip(depths) {
        lengths[usize::from(*byte)] = *depth;
    }
    Some(lengths)
}

/// Writes the lengths into `out` and returns how many bytes they took.
pub(crate) fn describe(lengths: &WordLengths, out: &mut [u8; DESCRIPTION_MAX]) -> usize {
    let mut fours = 0;
    let mut write = |four: u8| {
        let place = &mut out[fours / 2 % DESCRIPTION_MAX];
        *place = if fours % 2 == 0 { four } else { *place | four << 4 };
        fours += 1;
    };
    let mut at = 0;
    while at < LITERALS {
        let zeros = lengths[at..].iter().take_while(|&&length| length == 0).count();
        if zeros >= MANY_ZEROS_MIN {
            let rest = (zeros - MANY_ZEROS_MIN) as u8;
            write(MANY_ZEROS);
            write(rest & 15);
            write(rest >> 4);
            at += zeros;
        } else if zeros >= ZEROS_MIN {
            write(ZEROS);
            write((zeros - ZEROS_MIN) as u8);
            at += zeros;
        } else {
            write(lengths[at]);
            at += 1;
        }
    }
    fours.div_ceil(2)
}

/// Reads a description from the front of `bytes`, makes a table of the code, and returns how many
/// bytes the description took.
///
/// # Errors
/// When it ends too early, or is not that of a code.
pub(crate) fn read(bytes: &[u8], words: &mut Words) -> Result<usize, DecodeError> {
    let mut lengths = [0; LITERALS];
    let len = read_lengths(bytes, &mut lengths)?;
    code::look_up(&lengths, words);
    Ok(len)
}

fn read_lengths(bytes: &[u8], lengths: &mut WordLengths) -> Result<usize, DecodeError> {
    let mut fours = 0;
    let mut next = || {
        let byte = bytes.get(fours / 2).ok_or(DecodeError::Truncated)?;
        let four = byte >> (4 * (fours % 2)) & 15;
        fours += 1;
        Ok(four)
    };
    *lengths = [0; LITERALS];
    let mut at = 0;
    while at < LITERALS {
        match next()? {
            ZEROS => at += ZEROS_MIN + usize::from(next()?),
            MANY_ZEROS => at += MANY_ZEROS_MIN + usize::from(next()? | next()? << 4),
            length if usize::from(length) <= LITERAL_BITS => {
                lengths[at] = length;
                at += 1;
            }
            _ => return Err(DecodeError::Malformed("page LZ length of a word")),
        }
    }
    let padding = bytes.get(fours / 2).map_or(0, |byte| byte >> 4);
    if at > LITERALS || fours % 2 == 1 && padding != 0 {
        return Err(DecodeError::Malformed("page LZ description of a code"));
    }
    if !code::is_complete(lengths, 1 << LITERAL_BITS) {
        return Err(DecodeError::Malformed("page LZ code"));
    }
    Ok(fours.div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: impl Fn(u16) -> u16) -> [u16; LITERALS] {
        core::array::from_fn(|byte| of(byte as u16))
    }

    #[test]
    fn codes_are_whole_and_read_back() {
        let fibonacci = |byte: u16| {
            let (mut a, mut b) = (1u16, 1u16);
            for _ in 0..byte {
                (a, b) = (b, a.saturating_add(b));
            }
            if byte < 17 { a } else { 0 }
        };
        for counts in [
            counts(|_| 1),
            counts(|byte| 1 + byte / 16),
            counts(|byte| u16::from(byte == 3 || byte == 250)),
            counts(|byte| u16::from(byte % 3 == 0) * byte),
            counts(|byte| if byte < 200 { 1 } else { 40 }),
            counts(|byte| 1 + u16::from(byte == 77) * 3000),
            counts(fibonacci),
        ] {
            let lengths = lengths(&counts).unwrap();
            assert!(code::is_complete(&lengths, 1 << LITERAL_BITS), "{counts:?}");
            for (count, length) in counts.iter().zip(lengths) {
                assert_eq!(*count == 0, length == 0);
            }
            let mut out = [0xee; DESCRIPTION_MAX];
            let len = describe(&lengths, &mut out);
            let mut back = [9; LITERALS];
            assert_eq!(read_lengths(&out, &mut back), Ok(len));
            assert_eq!(back, lengths);
            for cut in 0..len {
                assert_eq!(read_lengths(&out[..cut], &mut back), Err(DecodeError::Truncated));
            }
        }
    }

    #[test]
    fn frequent_bytes_have_short_words() {
        let lengths = lengths(&counts(|byte| {
            [800, 400, 200, 100].get(usize::from(byte)).copied().unwrap_or(0)
        }));
        assert_eq!(lengths.unwrap()[..4], [1, 2, 3, 3]);
    }

    #[test]
    fn one_byte_has_no_code() {
        assert_eq!(lengths(&counts(|byte| u16::from(byte == 5))), None);
        assert_eq!(lengths(&counts(|_| 0)), None);
    }

    #[test]
    fn descriptions_that_are_no_code_are_refused() {
        let mut lengths = [0; LITERALS];
        let mut refused = |bytes: &[u8]| read_lengths(bytes, &mut lengths).unwrap_err();
        // 13 means nothing.
        assert_eq!(refused(&[13]), DecodeError::Malformed("page LZ length of a word"));
        // One word only; more zeros than bytes.
        assert_eq!(refused(&[0xc1, 0xed, 0]), DecodeError::Malformed("page LZ code"));
        assert_eq!(
            refused(&[0x11, 0xfc, 0xff]),
            DecodeError::Malformed("page LZ description of a code")
        );
        // Two words of one bit, and 254 zeros; then with something behind.
        assert_eq!(read_lengths(&[0x11, 0xcc, 0x0e], &mut lengths), Ok(3));
        assert_eq!(
            read_lengths(&[0x11, 0xcc, 0x1e], &mut lengths),
            Err(DecodeError::Malformed("page LZ description of a code"))
        );
    }
}

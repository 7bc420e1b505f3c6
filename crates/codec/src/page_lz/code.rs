//! Prefix codes from the lengths of their words: what an encoder writes and what a decoder looks
//! up.
//!
//! Codes are canonical: words of one length are consecutive numbers in the order of their symbols,
//! after all shorter words. Streams are filled from bit 0 on, so the words are stored mirrored.

/// The longest word for a literal, in bits.
pub const LITERAL_BITS: usize = 10;
/// The longest word for run and length.
pub const TOKEN_BITS: usize = 10;
/// The longest word for a distance.
pub const DISTANCE_BITS: usize = 8;

/// Lengths of words are below this.
const LENGTHS: usize = 16;

/// The word of each symbol, mirrored.
pub(crate) const fn words<const SYMBOLS: usize>(lengths: &[u8; SYMBOLS]) -> [u16; SYMBOLS] {
    let mut counts = [0; LENGTHS];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        counts[lengths[symbol] as usize % LENGTHS] += 1;
        symbol += 1;
    }
    // By length, the next word.
    let mut next = [0u16; LENGTHS];
    let mut length = 2;
    while length < LENGTHS {
        next[length] = (next[length - 1] + counts[length - 1]) << 1;
        length += 1;
    }
    let mut words = [0; SYMBOLS];
    symbol = 0;
    while symbol < SYMBOLS {
        let length = lengths[symbol] as usize % LENGTHS;
        if length > 0 {
            words[symbol] = next[length].reverse_bits() >> (16 - length);
            next[length] += 1;
        }
        symbol += 1;
    }
    words
}

/// For all that a stream may go on with, in as many bits as the longest word has: the symbol, which
/// is below 256, and the length of its word from bit 8 on.
pub(crate) const fn look_up<const SYMBOLS: usize, const ENTRIES: usize>(
    lengths: &[u8; SYMBOLS],
    table: &mut [u16; ENTRIES],
) {
    const { assert!(SYMBOLS <= 256) };
    let words = words(lengths);
    let mut symbol = 0;
    while symbol < SYMBOLS {
        let length = lengths[symbol];
        let entry = symbol as u16 | (length as u16) << 8;
        let mut at = words[symbol] as usize;
        while length > 0 && at < ENTRIES {
            table[at] = entry;
            at += 1 << length;
        }
        symbol += 1;
    }
}

/// Whether every sequence of bits is words of the code, none longer than `entries` have bits: what
/// makes decoders total.
pub(crate) const fn is_complete(lengths: &[u8], entries: usize) -> bool {
    let mut covered = 0;
    let mut symbol = 0;
    while symbol < lengths.len() {
        if lengths[symbol] > 0 {
            covered += entries >> lengths[symbol];
            if 1 << lengths[symbol] > entries {
                return false;
            }
        }
        symbol += 1;
    }
    covered == entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_canonical() {
        // 0, 10, 110, 111 in reading order.
        let lengths = [2, 1, 3, 3];
        assert_eq!(words(&lengths), [0b01, 0, 0b011, 0b111]);
        let mut table = [0u16; 8];
        look_up(&lengths, &mut table);
        assert_eq!(table.map(|entry| entry & 0xff), [1, 0, 1, 2, 1, 0, 1, 3]);
        assert_eq!(table.map(|entry| entry >> 8), [1, 2, 1, 3, 1, 2, 1, 3]);
        assert!(is_complete(&lengths, 8));
        assert!(!is_complete(&lengths, 4));
        assert!(!is_complete(&[1, 2], 4));
        assert!(!is_complete(&[1, 1, 1], 4));
    }
}

//! The sets of codes, and the tables made of them.

mod trained;

use super::code::{self, DISTANCE_BITS, LITERAL_BITS, TOKEN_BITS};
use super::symbols::{DISTANCES, LENGTHS, LITERALS, RECENT, RUNS, TOKENS, distance_class};

/// The lengths of the words of the three codes of a set, in bits.
pub struct Lengths {
    /// By byte.
    pub literals: [u8; LITERALS],
    /// By `run class * LENGTHS.len() + length class`.
    pub tokens: [u8; TOKENS],
    /// By symbol.
    pub distances: [u8; DISTANCES],
}

pub use trained::SETS;

/// By the next bits of a stream, a byte, and the length of its word from bit 8 on.
pub(crate) type Words = [u16; 1 << LITERAL_BITS];

/// What a decoder looks up, by the next bits of a stream.
pub(crate) struct Decoding {
    pub(crate) literals: Words,
    pub(crate) tokens: [Token; 1 << TOKEN_BITS],
    pub(crate) distances: [Distance; 1 << DISTANCE_BITS],
}

/// What is made of a set.
pub(crate) struct Tables {
    pub(crate) decoding: Decoding,
    pub(crate) encoding: Encoding,
}

pub(crate) static TABLES: [Tables; SETS.len()] = {
    let mut all = [const { Tables::of(&SETS[0]) }; SETS.len()];
    let mut nth = 1;
    while nth < SETS.len() {
        all[nth] = Tables::of(&SETS[nth]);
        nth += 1;
    }
    all
};

impl Tables {
    const fn of(lengths: &Lengths) -> Tables {
        Tables { decoding: Decoding::of(lengths), encoding: Encoding::of(lengths) }
    }
}

impl Decoding {
    const fn of(lengths: &Lengths) -> Decoding {
        assert!(code::is_complete(&lengths.literals, 1 << LITERAL_BITS));
        assert!(code::is_complete(&lengths.tokens, 1 << TOKEN_BITS));
        assert!(code::is_complete(&lengths.distances, 1 << DISTANCE_BITS));
        let mut all = Decoding {
            literals: [0; 1 << LITERAL_BITS],
            tokens: [Token::NONE; 1 << TOKEN_BITS],
            distances: [Distance::NONE; 1 << DISTANCE_BITS],
        };
        code::look_up(&lengths.literals, &mut all.literals);
        let mut tokens = [0; 1 << TOKEN_BITS];
        code::look_up(&lengths.tokens, &mut tokens);
        let mut at = 0;
        while at < tokens.len() {
            let symbol = (tokens[at] & 0xff) as usize;
            all.tokens[at] = Token::of(symbol, lengths.tokens[symbol]);
            at += 1;
        }
        let mut distances = [0; 1 << DISTANCE_BITS];
        code::look_up(&lengths.distances, &mut distances);
        at = 0;
        while at < distances.len() {
            let symbol = (distances[at] & 0xff) as usize;
            all.distances[at] = Distance::of(symbol, lengths.distances[symbol]);
            at += 1;
        }
        all
    }
}

/// A run of literals and the length of the copy behind it. A field each: to load one is cheaper
/// than to take it out of a word.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct Token {
    /// Length of the word.
    pub(crate) bits: u8,
    /// Extra bits, and of them those of the run, which come first.
    pub(crate) extra: u8,
    run_extra: u8,
    /// What they come to without.
    run: u8,
    length: u16,
}

impl Token {
    const NONE: Token = Token { bits: 0, extra: 0, run_extra: 0, run: 0, length: 0 };

    const fn of(symbol: usize, bits: u8) -> Token {
        let run = RUNS[symbol / LENGTHS.len()];
        let length = LENGTHS[symbol % LENGTHS.len()];
        Token {
            bits,
            extra: run.extra + length.extra,
            run_extra: run.extra,
            run: run.base as u8,
            length: length.base,
        }
    }

    /// The run and the length, from the extra bits of both.
    #[inline(always)]
    pub(crate) fn numbers(&self, extra: u64) -> (u64, u64) {
        let run = u64::from(self.run) + low(extra, self.run_extra);
        (run, u64::from(self.length) + (extra >> self.run_extra))
    }
}

/// A distance.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct Distance {
    /// Length of the word.
    pub(crate) bits: u8,
    /// Extra bits.
    pub(crate) extra: u8,
    /// Binary zeros below them.
    shift: u8,
    /// Which of those remembered it is, or 3.
    pub(crate) nth: u8,
    /// What it comes to without extra bits.
    base: u16,
}

impl Distance {
    const NONE: Distance = Distance { bits: 0, extra: 0, shift: 0, nth: 0, base: 0 };

    const fn of(symbol: usize, bits: u8) -> Distance {
        if symbol < RECENT {
            return Distance { bits, nth: symbol as u8, ..Distance::NONE };
        }
        let (class, shift) = distance_class(symbol);
        let nth = RECENT as u8;
        Distance { bits, extra: class.extra, shift, nth, base: class.base << shift }
    }

    /// The distance, if it is not one of those remembered.
    #[inline(always)]
    pub(crate) fn number(&self, extra: u64) -> u64 {
        u64::from(self.base) + (extra << self.shift)
    }
}

/// The lowest `count` bits.
#[inline(always)]
pub(crate) fn low(bits: u64, count: u8) -> u64 {
    bits & ((1 << count) - 1)
}

/// What an encoder writes for a symbol.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    pub(crate) bits: u16,
    pub(crate) length: u8,
}

/// The words of a set.
pub(crate) struct Encoding {
    pub(crate) literals: [Word; LITERALS],
    pub(crate) tokens: [Word; TOKENS],
    pub(crate) distances: [Word; DISTANCES],
}

impl Encoding {
    const fn of(lengths: &Lengths) -> Encoding {
        Encoding {
            literals: words(&lengths.literals),
            tokens: words(&lengths.tokens),
            distances: words(&lengths.distances),
        }
    }
}

pub(crate) const fn words<const SYMBOLS: usize>(lengths: &[u8; SYMBOLS]) -> [Word; SYMBOLS] {
    let bits = code::words(lengths);
    let mut words = [Word { bits: 0, length: 0 }; SYMBOLS];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        words[symbol] = Word { bits: bits[symbol], length: lengths[symbol] };
        symbol += 1;
    }
    words
}

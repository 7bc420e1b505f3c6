//! A page as the symbols of its streams, and how often each occurs.

use super::sequence::{Packed, SEQUENCES_MAX, unpacked};
use super::sets::Lengths;
use super::symbols::{
    DISTANCES, LENGTHS, LITERALS, RECENT, RUNS, Recent, TOKENS, distance_class, length_class,
    run_class,
};
use crate::lz::{SHORT_RUN, copy_short_run};
use crate::scratch::Carver;
use crate::{PAGE_SIZE, Page};

/// How often the words of a set would be written.
pub struct Counts {
    /// By byte.
    pub literals: [u16; LITERALS],
    /// By `run class * LENGTHS.len() + length class`.
    pub tokens: [u16; TOKENS],
    /// By symbol.
    pub distances: [u16; DISTANCES],
}

impl Counts {
    /// Bits that this takes with a set.
    pub fn bits(&self, lengths: &Lengths) -> u32 {
        self.literal_bits(&lengths.literals)
            + bits(&self.tokens, &lengths.tokens)
            + bits(&self.distances, &lengths.distances)
    }

    /// Bits that the literals take with words of these lengths.
    pub(crate) fn literal_bits(&self, lengths: &[u8; LITERALS]) -> u32 {
        bits(&self.literals, lengths)
    }
}

/// Bits of so many words of these lengths.
pub(crate) fn bits<const SYMBOLS: usize>(counts: &[u16; SYMBOLS], lengths: &[u8; SYMBOLS]) -> u32 {
    counts.iter().zip(lengths).map(|(&n, &bits)| u32::from(n) * u32::from(bits)).sum()
}

/// Extra bits, from the lowest on, and behind them, from bit [`REST_BITS`] on, how many they are.
pub(crate) type Rest = [u8; 8];
pub(crate) const REST_BITS: u32 = 56;

/// The symbols of a page, in the order of their streams.
pub(crate) struct Listing<'a> {
    literals: &'a mut [u8; PAGE_SIZE + SHORT_RUN],
    literal_count: usize,
    tokens: &'a mut [u8; SEQUENCES_MAX],
    distances: &'a mut [u8; SEQUENCES_MAX],
    rests: &'a mut [Rest; SEQUENCES_MAX],
    sequence_count: usize,
}

/// Scratch for a [`Listing`].
pub(crate) const LISTING_BYTES: usize =
    PAGE_SIZE + SHORT_RUN + SEQUENCES_MAX * (2 + size_of::<Rest>());

impl<'a> Listing<'a> {
    /// Of `page` as `sequences`.
    pub(crate) fn of(
        page: &Page,
        sequences: &[Packed],
        carver: &mut Carver<'a>,
    ) -> Option<(Listing<'a>, Counts)> {
        let mut listing = Listing {
            literals: carver.bytes()?,
            literal_count: 0,
            tokens: carver.bytes()?,
            distances: carver.bytes()?,
            rests: carver.numbers()?,
            sequence_count: sequences.len(),
        };
        let mut counts =
            Counts { literals: [0; LITERALS], tokens: [0; TOKENS], distances: [0; DISTANCES] };
        let mut recent = Recent::at_first();
        let mut at = 0;
        for (nth, sequence) in unpacked(sequences).enumerate() {
            listing.run(page, at, sequence.run);
            at += sequence.run + sequence.length;
            let (run, length) = (run_class(sequence.run), length_class(sequence.length));
            let token = run * LENGTHS.len() + length;
            let symbol = recent.symbol(sequence.distance);
            recent.used(symbol, sequence.distance);
            let (mut rest, mut count) = (0, 0);
            if symbol >= RECENT {
                let (class, shift) = distance_class(symbol);
                rest = (sequence.distance >> shift) as u64 - u64::from(class.base);
                count = class.extra;
            }
            rest |= (sequence.run as u64 - u64::from(RUNS[run].base)) << count;
            count += RUNS[run].extra;
            rest |= (sequence.length as u64 - u64::from(LENGTHS[length].base)) << count;
            count += LENGTHS[length].extra;
            listing.tokens[nth] = token as u8;
            listing.distances[nth] = symbol as u8;
            listing.rests[nth] = (rest | u64::from(count) << REST_BITS).to_le_bytes();
            counts.tokens[token] += 1;
            counts.distances[symbol] += 1;
        }
        listing.run(page, at, PAGE_SIZE - at);
        for &byte in listing.literals() {
            counts.literals[usize::from(byte)] += 1;
        }
        Some((listing, counts))
    }

    /// Takes up a run of literals.
    #[inline(always)]
    fn run(&mut self, page: &Page, start: usize, len: usize) {
        let place = &mut self.literals[self.literal_count..];
        if len > SHORT_RUN || !copy_short_run(&page[start..], place) {
            place[..len].copy_from_slice(&page[start..start + len]);
        }
        self.literal_count += len;
    }

    pub(crate) fn literals(&self) -> &[u8] {
        &self.literals[..self.literal_count]
    }

    /// Of each sequence, run and length.
    pub(crate) fn tokens(&self) -> &[u8] {
        &self.tokens[..self.sequence_count]
    }

    /// Of each sequence.
    pub(crate) fn distances(&self) -> &[u8] {
        &self.distances[..self.sequence_count]
    }

    /// Of each sequence, the extra bits of distance, run and length.
    pub(crate) fn rests(&self) -> &[Rest] {
        &self.rests[..self.sequence_count]
    }
}

//! The distances at which a page agrees with itself best.
//!
//! Each word is given a signature of one byte, and shifted copies of these are compared with them:
//! 64 distances, on a quarter of the page. Of the best few, those are kept that add most to what
//! the others cover.

use super::{Distances, LANES, MULTIPLIER, VECTORS};
use crate::error::DecodeError;
use crate::lz::word_at;
use crate::{PAGE_WORDS, Page};

/// Most strides of a page.
pub(super) const STRIDES_MAX: usize = 4;
/// Bytes that say which stride each vector has, two bits each.
pub(super) const CHOICE_BYTES: usize = VECTORS / 4;

/// Distances that are tried, and may be stored.
pub(crate) const DISTANCE_COUNT: usize = 64;
/// Words of zeros that stand before the page's.
pub(crate) const HISTORY: usize = LANES + 2 * DISTANCE_COUNT;

/// For each word its signature, zero for a zero and odd for any other, after those of `HISTORY`
/// zeros.
pub(crate) type Signatures = [u8; HISTORY + PAGE_WORDS];

/// Distances of which the cover is looked at.
pub(crate) const CANDIDATES: usize = 6;
/// Of the 256 sampled words so many must agree at least: by chance two do, of eight bits.
const COUNT_MIN: u16 = 5;
/// A stride must cover this many words more than those before it.
const GAIN_MIN: u32 = 9;

/// The distance with that number, in words: even, since most records are made of 64-bit fields, and
/// never so short that a vector would be predicted from itself.
#[inline]
pub(crate) const fn distance_of(number: u8) -> u8 {
    LANES as u8 + 2 * (number % DISTANCE_COUNT as u8)
}

/// Where the sampled words begin, 64 each.
pub(crate) const SAMPLED: [usize; 4] = [64, 320, 576, 832];

fn sign(page: &Page, signatures: &mut Signatures) {
    signatures[..HISTORY].fill(0);
    for (place, signature) in signatures[HISTORY..].iter_mut().enumerate() {
        let word = word_at(page, place);
        let hash = (word.wrapping_mul(MULTIPLIER) >> 24) as u8;
        *signature = if word == 0 { 0 } else { hash | 1 };
    }
}

/// For each distance, how many of the sampled words have the signature of the word so far back.
fn correlate(signatures: &Signatures) -> Counts {
    core::array::from_fn(|number| {
        let distance = usize::from(distance_of(number as u8));
        SAMPLED.iter().map(|&start| agreeing(signatures, distance, start, 64)).sum()
    })
}

/// For each vector, how many of its words have the signature of the word so far back.
fn coverage(signatures: &Signatures, distance: u8) -> Cover {
    core::array::from_fn(|vector| {
        let (distance, start) = (usize::from(distance), LANES * vector);
        if distance > start { 0 } else { agreeing(signatures, distance, start, LANES) as u8 }
    })
}

/// How many of `count` words are not zero and have the signature of the word `distance` back.
fn agreeing(signatures: &Signatures, distance: usize, start: usize, count: usize) -> u16 {
    let start = HISTORY + start;
    let (now, back) = (&signatures[start..start + count], &signatures[start - distance..]);
    now.iter().zip(back).map(|(now, back)| u16::from(*now != 0 && now == back)).sum()
}

/// What a page's vectors are predicted from.
#[derive(Clone, Copy)]
pub(crate) struct Strides {
    /// Of the distances, as [`distance_of`] reads them.
    pub numbers: [u8; STRIDES_MAX],
    pub count: usize,
    /// For each vector which of them.
    chosen: [u8; VECTORS],
}

impl Strides {
    pub(super) const NONE: Strides =
        Strides { numbers: [0; STRIDES_MAX], count: 0, chosen: [0; VECTORS] };

    /// For each vector how far back its prediction lies: nowhere before the page.
    pub(super) fn distances(&self) -> Distances {
        if self.count == 0 {
            return [0; VECTORS];
        }
        let distances = self.numbers.map(distance_of);
        core::array::from_fn(|vector| {
            let distance = distances[usize::from(self.chosen[vector]) % STRIDES_MAX];
            if usize::from(distance) > LANES * vector { 0 } else { distance }
        })
    }

    /// Two bits for each vector, four vectors a byte, the first in the lowest bits.
    pub(super) fn choices(&self) -> [u8; CHOICE_BYTES] {
        let (fours, _) = self.chosen.as_chunks::<4>();
        core::array::from_fn(|at| {
            let [a, b, c, d] = fours[at];
            a | b << 2 | c << 4 | d << 6
        })
    }

    /// Reads what `numbers` and `choices` say; of a single stride there is no choice.
    pub(super) fn read(numbers: &[u8], choices: &[u8]) -> Result<Strides, DecodeError> {
        let mut strides = Strides { count: numbers.len(), ..Strides::NONE };
        for (to, &number) in strides.numbers.iter_mut().zip(numbers) {
            if usize::from(number) >= DISTANCE_COUNT {
                return Err(DecodeError::Malformed("WKv stride"));
            }
            *to = number;
        }
        let (fours, _) = strides.chosen.as_chunks_mut::<4>();
        for (four, &byte) in fours.iter_mut().zip(choices) {
            *four = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
        }
        if strides.chosen.iter().any(|&choice| usize::from(choice) >= strides.count.max(1)) {
            return Err(DecodeError::Malformed("WKv choice of a stride"));
        }
        Ok(strides)
    }
}

pub(super) fn choose(page: &Page, signatures: &mut Signatures) -> Strides {
    sign(page, signatures);
    let candidates = Candidates::of(&correlate(signatures));
    let mut covers = [[0; VECTORS]; CANDIDATES];
    for (cover, &number) in covers.iter_mut().zip(candidates.numbers()) {
        *cover = coverage(signatures, distance_of(number));
    }
    Strides::of(&candidates, &covers, gain)
}

/// By number of a distance.
pub(crate) type Counts = [u16; DISTANCE_COUNT];
/// By vector, how many of its words a distance would predict.
pub(crate) type Cover = [u8; VECTORS];

/// Words that `cover` adds to what is covered.
fn gain(cover: &Cover, covered: &Cover) -> u32 {
    cover
        .iter()
        .zip(covered)
        .map(|(cover, covered)| u32::from(cover.saturating_sub(*covered)))
        .sum()
}

/// The numbers of the distances with the highest counts, highest first.
pub(crate) struct Candidates {
    numbers: [u8; CANDIDATES],
    count: usize,
}

impl Candidates {
    fn of(counts: &Counts) -> Candidates {
        let mut ranks = Candidates::ranks(counts);
        Candidates::highest(|| {
            let highest = ranks.iter().copied().max().unwrap_or(0);
            if let Some(number) = Candidates::number(highest) {
                ranks[usize::from(number)] = 0;
            }
            highest
        })
    }

    /// Count and number in one, so that the highest is found without a comparison of both. Of two
    /// counts alike the shorter distance is the higher.
    #[inline]
    pub(crate) fn ranks(counts: &Counts) -> Counts {
        core::array::from_fn(|number| {
            counts[number] << NUMBER_BITS | (DISTANCE_COUNT - 1 - number) as u16
        })
    }

    #[inline]
    fn number(rank: u16) -> Option<u8> {
        let number = DISTANCE_COUNT - 1 - usize::from(rank) % DISTANCE_COUNT;
        (rank >> NUMBER_BITS >= COUNT_MIN).then_some(number as u8)
    }

    /// From ranks, each the highest of those that are left.
    #[inline]
    pub(crate) fn highest(mut next: impl FnMut() -> u16) -> Candidates {
        let mut candidates = Candidates { numbers: [0; CANDIDATES], count: 0 };
        while candidates.count < CANDIDATES
            && let Some(number) = Candidates::number(next())
        {
            candidates.numbers[candidates.count] = number;
            candidates.count += 1;
        }
        candidates
    }

    #[inline]
    pub(crate) fn numbers(&self) -> &[u8] {
        &self.numbers[..self.count]
    }
}

const NUMBER_BITS: u32 = DISTANCE_COUNT.ilog2();

impl Strides {
    /// Those of the candidates that cover the page best together.
    #[inline]
    pub(crate) fn of(
        candidates: &Candidates,
        covers: &[Cover; CANDIDATES],
        gain: impl Fn(&Cover, &Cover) -> u32,
    ) -> Strides {
        let mut strides = Strides::NONE;
        let mut covered = [0; VECTORS];
        while strides.count < STRIDES_MAX {
            let mut best = (0, 0);
            for (nth, cover) in covers.iter().enumerate().take(candidates.count) {
                let gain = gain(cover, &covered);
                best = if gain > best.0 { (gain, nth) } else { best };
            }
            let (gain, nth) = best;
            if gain < GAIN_MIN {
                break;
            }
            let this = strides.count as u8;
            let both = covered.iter_mut().zip(&mut strides.chosen);
            for ((covered, chosen), &cover) in both.zip(&covers[nth]) {
                *chosen = if cover > *covered { this } else { *chosen };
                *covered = cover.max(*covered);
            }
            strides.numbers[strides.count] = candidates.numbers[nth];
            strides.count += 1;
        }
        strides
    }
}

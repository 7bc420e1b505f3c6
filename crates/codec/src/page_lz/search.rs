//! Which copies a page is written as: those that save most, by the lengths of a set's words.

use super::listing::{Counts, LISTING_BYTES, Listing, bits};
use super::sequence::{SEQUENCES_MAX, Sequence, Sequences};
use super::sets::{Lengths, SETS};
use super::symbols::{
    COPY_MIN, LENGTHS, LITERALS, RECENT, RUNS, Recent, distance_class, distance_symbol,
    length_class, run_class,
};
use crate::backend::Backend;
use crate::lz::{Compare, common_length_by, u32_at, word_at};
use crate::scratch::Carver;
use crate::{PAGE_SIZE, Page};

/// The set that fits the page, by the words that are not seen before in it: their bytes are likely
/// to become literals.
pub(crate) fn likely_set(page: &Page, tables: &mut Tables<'_>) -> usize {
    tables.four.fill([0; 2]);
    let mut counts = [0; LITERALS];
    for (bytes, place) in page.as_chunks::<4>().0.iter().zip(0u16..) {
        let word = u32::from_le_bytes(*bytes);
        let seen = &mut tables.four[hash(word)];
        let same = word_at(page, usize::from(u16::from_le_bytes(*seen))) == word;
        *seen = place.to_le_bytes();
        for &byte in bytes {
            counts[usize::from(byte)] += u16::from(!same);
        }
    }
    (0..SETS.len()).min_by_key(|&set| bits(&counts, &SETS[set].literals)).unwrap_or(0)
}

pub(super) const HASH_BITS: u32 = 12;
const ENTRIES: usize = 1 << HASH_BITS;

/// What the time that a sequence takes to decode is worth, in bits. Over pages of ten programs 2
/// save 2 to 12 % of the sequences for 0.1 to 1 % of the bytes.
const PRICE: i32 = 2;

/// Copies of one hash that are looked at.
const DEPTH: usize = 8;

type Numbers<const COUNT: usize> = [[u8; 2]; COUNT];

/// Positions, and what literals cost. Position 0 also stands for none: the page's first bytes are
/// as good a candidate as any.
pub(crate) struct Tables<'a> {
    /// How long copies are compared.
    pub(super) compare: Compare,
    /// The last position of each hash of four bytes, and of three.
    pub(super) four: &'a mut Numbers<ENTRIES>,
    three: &'a mut Numbers<ENTRIES>,
    /// By position, the last one before it with the same hash of four bytes.
    before: &'a mut Numbers<PAGE_SIZE>,
    /// What the literals in front of each position cost together, in bits.
    cost: &'a mut Numbers<{ PAGE_SIZE + 1 }>,
}

/// Scratch for [`Tables`].
pub(crate) const TABLES_BYTES: usize = 2 * (2 * ENTRIES + 2 * PAGE_SIZE + 1);

impl<'a> Tables<'a> {
    pub(crate) fn carve(carver: &mut Carver<'a>, backend: Backend) -> Option<Tables<'a>> {
        Some(Tables {
            compare: backend.lz(),
            four: carver.numbers()?,
            three: carver.numbers()?,
            before: carver.numbers()?,
            cost: carver.numbers()?,
        })
    }

    /// The costs of the page's literals; no position.
    fn begin(&mut self, page: &Page, lengths: &Lengths) {
        self.four.fill([0; 2]);
        self.three.fill([0; 2]);
        let mut cost = 0u16;
        self.cost[0] = [0; 2];
        for (&byte, entry) in page.iter().zip(&mut self.cost[1..]) {
            cost += u16::from(lengths.literals[usize::from(byte)]);
            *entry = cost.to_le_bytes();
        }
    }

    #[inline]
    fn enter(&mut self, page: &Page, position: usize) {
        let word = u32_at(page, position);
        let four = &mut self.four[hash(word)];
        self.before[position] = *four;
        *four = (position as u16).to_le_bytes();
        self.three[hash(word << 8)] = *four;
    }

    /// What the literals from `start` to `end` cost.
    #[inline]
    fn cost(&self, start: usize, end: usize) -> i32 {
        i32::from(u16::from_le_bytes(self.cost[end]))
            - i32::from(u16::from_le_bytes(self.cost[start]))
    }
}

#[inline]
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

#[derive(Clone, Copy, Default)]
struct Match {
    /// Bits saved over literals.
    gain: i32,
    length: usize,
    distance: usize,
}

/// The last position where a copy is looked for: four bytes are read there.
const LAST: usize = PAGE_SIZE - 4;

/// The copy at `at` that saves most, behind `run` literals. All positions before are in the tables.
#[inline(always)]
fn best(
    page: &Page,
    lengths: &Lengths,
    tables: &Tables<'_>,
    recent: &Recent,
    at: usize,
    run: usize,
) -> Match {
    let mut best = Match::default();
    let run = run_class(run);
    let tokens = &lengths.tokens[run * LENGTHS.len()..][..LENGTHS.len()];
    let run_extra = i32::from(RUNS[run].extra);
    let mut consider = |length: usize, distance: usize, symbol: usize, extra: u8| {
        let class = length_class(length);
        let gain = tables.cost(at, at + length)
            - i32::from(tokens[class] + LENGTHS[class].extra + lengths.distances[symbol] + extra)
            - run_extra
            - PRICE;
        if gain > best.gain {
            best = Match { gain, length, distance };
        }
    };
    let word = u32_at(page, at);
    let mut longest = COPY_MIN - 1;
    for symbol in 0..RECENT {
        let distance = recent.get(symbol);
        if distance <= at {
            let earlier = u32_at(page, at - distance);
            if (word ^ earlier) << 8 == 0 {
                let length = common_length_by(tables.compare, page, at - distance, at, PAGE_SIZE);
                longest = longest.max(length);
                consider(length, distance, symbol, 0);
            }
        }
    }
    let mut from = u16::from_le_bytes(tables.three[hash(word << 8)]);
    let mut next = u16::from_le_bytes(tables.four[hash(word)]);
    for _ in 0..=DEPTH {
        let position = usize::from(from);
        // Only copies that are longer than those found are worth a look, since distances grow. What
        // is behind the page is 0 here, which costs no more than a look.
        if position < at && byte_at(page, position + longest) == byte_at(page, at + longest) {
            let length = common_length_by(tables.compare, page, position, at, PAGE_SIZE);
            if length > longest {
                longest = length;
                let distance = at - position;
                let symbol = distance_symbol(distance);
                consider(length, distance, symbol, distance_class(symbol).0.extra);
            }
        }
        if next == 0 || longest >= LONG {
            break;
        }
        from = next;
        next = u16::from_le_bytes(tables.before[usize::from(next) % PAGE_SIZE]);
    }
    best
}

/// A copy of so many bytes is taken without looking for a better one.
const LONG: usize = 48;

fn byte_at(page: &Page, at: usize) -> u8 {
    page.get(at).copied().unwrap_or(0)
}

/// Lists the copies of `page` in `found`, by what they save with a set of codes, and returns their
/// number.
pub(crate) fn search(
    page: &Page,
    lengths: &Lengths,
    tables: &mut Tables<'_>,
    found: &mut Sequences,
) -> usize {
    tables.begin(page, lengths);
    let mut recent = Recent::at_first();
    let mut count = 0;
    let mut anchor = 0;
    let mut at = 0;
    let mut entered = 0;
    while at <= LAST && count < SEQUENCES_MAX {
        for position in entered..at {
            tables.enter(page, position);
        }
        entered = at;
        let mut copy = best(page, lengths, tables, &recent, at, at - anchor);
        if copy.length == 0 {
            at += 1;
            continue;
        }
        // Copies one later, as long as they are better.
        while at < LAST && copy.length < LONG {
            tables.enter(page, at);
            entered = at + 1;
            let later = best(page, lengths, tables, &recent, at + 1, at + 1 - anchor);
            if later.gain <= copy.gain {
                break;
            }
            copy = later;
            at += 1;
        }
        let Match { length, distance, .. } = copy;
        recent.used(recent.symbol(distance), distance);
        found[count] = Sequence { run: at - anchor, length, distance }.pack();
        count += 1;
        at += length;
        anchor = at;
    }
    count
}

/// Bytes of working memory that [`count`] needs.
pub const SCRATCH_BYTES: usize = TABLES_BYTES + size_of::<Sequences>() + LISTING_BYTES;

/// What `page` comes to when its copies are looked for with a set of codes.
pub fn count(page: &Page, lengths: &Lengths, scratch: &mut [u8; SCRATCH_BYTES]) -> Option<Counts> {
    let mut carver = Carver(scratch);
    let mut tables = Tables::carve(&mut carver, Backend::best())?;
    let found = carver.numbers()?;
    let count = search(page, lengths, &mut tables, found);
    Some(Listing::of(page, &found[..count], &mut carver)?.1)
}

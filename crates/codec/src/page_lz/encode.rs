//! Writing an object.

use super::code::LITERAL_BITS;
use super::fast;
use super::listing::{Counts, LISTING_BYTES, Listing, REST_BITS, Rest};
use super::own::{self, DESCRIPTION_MAX, WordLengths};
use super::search::{TABLES_BYTES, Tables, likely_set, search};
use super::sequence::{SEQUENCES_MAX, Sequences};
use super::sets::{self, SETS, TABLES, Word};
use super::{Effort, Header, LITERALS_AT_ONCE, part};
use crate::backend::Backend;
use crate::error::DoesNotFit;
use crate::scratch::Carver;
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub(crate) const COMPRESS_SCRATCH_BYTES: usize = TABLES_BYTES
    + size_of::<Sequences>()
    + LISTING_BYTES
    + 4 * LITERAL_ROOM
    + 2 * WORD_ROOM
    + REST_ROOM;

/// Room for each of the streams, and for what is written behind its end.
const LITERAL_ROOM: usize = (PAGE_SIZE / 4 + LITERALS_AT_ONCE) * LITERAL_BITS / 8 + 8;
const WORD_ROOM: usize = SEQUENCES_MAX * 2 + 8;
const REST_ROOM: usize = SEQUENCES_MAX * 5 + 8;

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    effort: Effort,
    backend: Backend,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    try_compress(page, effort, backend, scratch, out).ok_or(DoesNotFit)
}

fn try_compress(
    page: &Page,
    effort: Effort,
    backend: Backend,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Option<usize> {
    let mut carver = Carver(scratch);
    let mut tables = Tables::carve(&mut carver, backend)?;
    let found = carver.numbers()?;

    let count = match effort {
        Effort::Fast => fast::search(page, &mut tables, found),
        Effort::Full => {
            let likely = likely_set(page, &mut tables);
            search(page, &SETS[likely], &mut tables, found)
        }
    };
    let (listing, counts) = Listing::of(page, &found[..count], &mut carver)?;
    let set = (0..SETS.len()).min_by_key(|&set| counts.bits(&SETS[set]))?;
    let words = &TABLES[set].encoding;

    let mut description = [0; DESCRIPTION_MAX];
    let own = own_code(&counts, set, &mut description);
    let (literal_words, description) = match &own {
        Some((lengths, len)) => (&sets::words(lengths), &description[..*len]),
        None => (&words.literals, &[][..]),
    };
    let mut header = Header {
        set,
        own: own.is_some(),
        sequences: count,
        literals: listing.literals().len(),
        pairs: [0; 3],
    };
    let mut literals = [
        Stream::new(carver.bytes::<LITERAL_ROOM>()?),
        Stream::new(carver.bytes::<LITERAL_ROOM>()?),
        Stream::new(carver.bytes::<LITERAL_ROOM>()?),
        Stream::new(carver.bytes::<LITERAL_ROOM>()?),
    ];
    let mut tokens = Stream::new(carver.bytes::<WORD_ROOM>()?);
    let mut distances = Stream::new(carver.bytes::<WORD_ROOM>()?);
    let mut extra = Stream::new(carver.bytes::<REST_ROOM>()?);
    let part = part(header.literals, header.streams());
    for (stream, part) in literals.iter_mut().zip(listing.literals().chunks(part)) {
        stream.words(part, literal_words);
    }
    tokens.words(listing.tokens(), &words.tokens);
    distances.words(listing.distances(), &words.distances);
    extra.rests(listing.rests());

    let [first, second, third, fourth] = &literals;
    let pairs = [(first, second), (third, fourth), (&tokens, &distances)];
    let lens = pairs.map(|(forward, backward)| forward.len() + backward.len());
    header.pairs = lens;
    let mut at = header.len();
    let len = at + description.len() + lens.iter().sum::<usize>() + extra.len();
    let object = out.get_mut(..len)?;
    object[..at].copy_from_slice(&header.bytes()[..at]);
    object[at..at + description.len()].copy_from_slice(description);
    at += description.len();
    for (forward, backward) in pairs {
        let (forward, backward) = (forward.finish(), backward.finish());
        object[at..at + forward.len()].copy_from_slice(forward);
        at += forward.len() + backward.len();
        for (place, byte) in object[..at].iter_mut().rev().zip(backward) {
            *place = *byte;
        }
    }
    object[at..].copy_from_slice(extra.finish());
    Some(len)
}

/// A code for literals and the length of its description, where it is better than the set's.
fn own_code(
    counts: &Counts,
    set: usize,
    description: &mut [u8; DESCRIPTION_MAX],
) -> Option<(WordLengths, usize)> {
    /// Bytes that must be saved: to make a table of it takes the decoder time.
    const WORTH: usize = 32;
    let set_bits = counts.literal_bits(&SETS[set].literals);
    let saved = |bits: u32, len: usize| set_bits > bits + 8 * (len + WORTH) as u32;
    let (least_bits, least_len) = own::at_least(&counts.literals);
    if !saved(least_bits, least_len) {
        return None;
    }
    let lengths = own::lengths(&counts.literals)?;
    let len = own::describe(&lengths, description);
    saved(counts.literal_bits(&lengths), len).then_some((lengths, len))
}

/// Bits, filled in from the lowest on.
struct Stream<'a> {
    bytes: &'a mut [u8],
    /// Whole bytes written, and bits that are not: less than a byte.
    len: usize,
    pending: u64,
    count: u32,
}

impl<'a> Stream<'a> {
    fn new(bytes: &'a mut [u8]) -> Stream<'a> {
        Stream { bytes, len: 0, pending: 0, count: 0 }
    }

    /// Writes the words of symbols.
    fn words(&mut self, symbols: &[u8], words: &[Word]) {
        for symbols in symbols.chunks(LITERALS_AT_ONCE) {
            let (mut bits, mut count) = (0, 0);
            for &symbol in symbols {
                let word = words[usize::from(symbol)];
                bits |= u64::from(word.bits) << count;
                count += u32::from(word.length);
            }
            self.bits(bits, count);
        }
    }

    fn rests(&mut self, rests: &[Rest]) {
        for &rest in rests {
            let rest = u64::from_le_bytes(rest);
            self.bits(rest & ((1 << REST_BITS) - 1), (rest >> REST_BITS) as u32);
        }
    }

    /// Writes up to 57 bits.
    #[inline(always)]
    fn bits(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.count;
        if let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            *place = self.pending.to_le_bytes();
        }
        let count = self.count + count;
        self.len += (count / 8) as usize;
        self.pending = self.pending.unbounded_shr(count & !7);
        self.count = count % 8;
    }

    /// Bytes of all that was written.
    fn len(&self) -> usize {
        self.len + usize::from(self.count > 0)
    }

    fn finish(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }
}

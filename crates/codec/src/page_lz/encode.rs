//! Writing an object.

use super::code::LITERAL_BITS;
use super::own::{self, DESCRIPTION_MAX, WordLengths};
use super::search::{Counts, TABLES_BYTES, Tables, likely_set, search, symbols};
use super::sequence::{Packed, SEQUENCES_MAX, Sequences, runs, unpacked};
use super::sets::{self, Encoding, SETS, TABLES, Word};
use super::symbols::{
    Class, LENGTHS, LITERALS, RECENT, RUNS, Recent, distance_class, length_class, run_class,
};
use super::{Header, LITERALS_AT_ONCE, part};
use crate::error::DoesNotFit;
use crate::scratch::Carver;
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub const COMPRESS_SCRATCH_BYTES: usize =
    TABLES_BYTES + size_of::<Sequences>() + 4 * LITERAL_ROOM + 2 * WORD_ROOM + EXTRA_ROOM;

/// Room for each of the streams, and for a word more.
const LITERAL_ROOM: usize = (PAGE_SIZE / 4 + LITERALS_AT_ONCE) * LITERAL_BITS / 8 + 8;
const WORD_ROOM: usize = SEQUENCES_MAX * 2 + 8;
const EXTRA_ROOM: usize = SEQUENCES_MAX * 5 + 8;

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub fn compress(
    page: &Page,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    try_compress(page, scratch, out).ok_or(DoesNotFit)
}

fn try_compress(
    page: &Page,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Option<usize> {
    let mut carver = Carver(scratch);
    let mut tables = Tables::carve(&mut carver)?;
    let found = carver.numbers()?;

    let likely = likely_set(page, &mut tables);
    let count = search(page, &SETS[likely], &mut tables, found);
    let sequences = &found[..count];
    let counts = Counts::of(page, sequences);
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
        literals: counts.literals.iter().map(|&count| usize::from(count)).sum(),
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
    let mut extra = Stream::new(carver.bytes::<EXTRA_ROOM>()?);
    let part = part(header.literals, header.streams());
    write_literals(page, sequences, literal_words, part, &mut literals);
    write_sequences(sequences, words, &mut tokens, &mut distances, &mut extra);

    let [first, second, third, fourth] = &mut literals;
    let pairs = [(first, second), (third, fourth), (&mut tokens, &mut distances)];
    let lens = pairs.each_ref().map(|(forward, backward)| forward.len() + backward.len());
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
    let lengths = own::lengths(&counts.literals)?;
    let len = own::describe(&lengths, description);
    let bits = |lengths| counts.literal_bits(lengths);
    (bits(&lengths) + 8 * (len + WORTH) < bits(&SETS[set].literals)).then_some((lengths, len))
}

/// Writes the literals, `part` to each stream.
fn write_literals(
    page: &Page,
    sequences: &[Packed],
    words: &[Word; LITERALS],
    part: usize,
    streams: &mut [Stream<'_>; 4],
) {
    for (written, &byte) in runs(page, sequences).flatten().enumerate() {
        streams[written / part].word(words[usize::from(byte)]);
    }
}

fn write_sequences(
    sequences: &[Packed],
    words: &Encoding,
    tokens: &mut Stream<'_>,
    distances: &mut Stream<'_>,
    extra: &mut Stream<'_>,
) {
    let mut recent = Recent::at_first();
    let mut rest = |number: usize, class: Class| {
        extra.bits(number as u16 - class.base, class.extra);
    };
    for sequence in unpacked(sequences) {
        let (token, symbol) = symbols(sequence, &mut recent);
        tokens.word(words.tokens[token]);
        distances.word(words.distances[symbol]);
        if symbol >= RECENT {
            let (class, shift) = distance_class(symbol);
            rest(sequence.distance >> shift, class);
        }
        rest(sequence.run, RUNS[run_class(sequence.run)]);
        rest(sequence.length, LENGTHS[length_class(sequence.length)]);
    }
}

/// Bits, filled in from the lowest on.
struct Stream<'a> {
    bytes: &'a mut [u8],
    /// Whole bytes written, and bits that are not.
    len: usize,
    pending: u64,
    count: u32,
}

impl<'a> Stream<'a> {
    fn new(bytes: &'a mut [u8]) -> Stream<'a> {
        Stream { bytes, len: 0, pending: 0, count: 0 }
    }

    #[inline]
    fn word(&mut self, word: Word) {
        self.bits(word.bits, word.length);
    }

    #[inline]
    fn bits(&mut self, bits: u16, count: u8) {
        self.pending |= u64::from(bits) << self.count;
        self.count += u32::from(count);
        if self.count >= 32
            && let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut)
        {
            *place = (self.pending as u32).to_le_bytes();
            self.len += 4;
            self.pending >>= 32;
            self.count -= 32;
        }
    }

    /// Bytes of all that was written.
    fn len(&self) -> usize {
        self.len + self.count.div_ceil(8) as usize
    }

    fn finish(&mut self) -> &[u8] {
        let len = self.len();
        let rest = self.pending.to_le_bytes();
        let tail = &mut self.bytes[self.len..len];
        tail.copy_from_slice(&rest[..tail.len()]);
        &self.bytes[..len]
    }
}

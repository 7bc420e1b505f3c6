//! Reading an object: the literals first, from all their streams at once, then the sequences.

use core::cmp::Ordering;

use super::code::{DISTANCE_BITS, LITERAL_BITS, TOKEN_BITS};
use super::own;
use super::sequence::{Packed, Sequence, Sequences, unpacked};
use super::sets::{Decoding, TABLES, Words, low};
use super::symbols::Recent;
use super::{Header, LITERALS_AT_ONCE, OBJECT_MAX, part};
use crate::backend::Backend;
use crate::error::DecodeError;
use crate::lz::{SHORT_RUN, copy, copy_short_run};
use crate::scratch::Carver;
use crate::{PAGE_SIZE, Page};

/// Bytes of working memory that [`decompress`] needs. Contents do not matter.
pub(crate) const DECOMPRESS_SCRATCH_BYTES: usize =
    LITERALS_ROOM + OBJECT_ROOM + size_of::<Sequences>();

/// Runs of literals are copied by pieces, past their end.
pub(crate) const PIECE: usize = SHORT_RUN;
const LITERALS_ROOM: usize = PAGE_SIZE + PIECE;

/// The object behind bytes that may be read and are never used, and before others. It begins in the
/// first part, whose length is a power of two: so the compiler knows that eight bytes from there on
/// are in bounds.
const OBJECT_ROOM: usize = OBJECT_STARTS + 8;
const OBJECT_STARTS: usize = 8192;
const _: () = assert!(8 + OBJECT_MAX <= OBJECT_STARTS);

pub(crate) type Literals = [u8; LITERALS_ROOM];

type Scratch = [u8; DECOMPRESS_SCRATCH_BYTES];

/// A decoder, compiled for some set of instructions.
pub(crate) type Decoder = fn(&[u8], &mut Scratch, &mut Page) -> Result<(), DecodeError>;

/// Without vectors.
pub(crate) static SCALAR: Decoder = |object, scratch, page| {
    decompress_with(object, scratch, page, |plan, page| follow(plan, Progress::default(), page))
};

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] unless `object` is one page, to its last byte.
pub(crate) fn decompress(
    object: &[u8],
    backend: Backend,
    scratch: &mut [u8; DECOMPRESS_SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    backend.page_lz()(object, scratch, page)
}

/// Decompresses, with `follow` to make the page.
#[inline(always)]
pub(crate) fn decompress_with(
    object: &[u8],
    scratch: &mut Scratch,
    page: &mut Page,
    follow: impl Fn(&Plan<'_>, &mut Page) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let header = Header::read(object)?;
    let set = TABLES.get(header.set).ok_or(DecodeError::Malformed("page LZ set of codes"))?;
    let set = &set.decoding;
    let mut carver = Carver(scratch);
    let (Some(literals), Some(bytes), Some(sequences)) =
        (carver.bytes::<LITERALS_ROOM>(), carver.bytes::<OBJECT_ROOM>(), carver.numbers())
    else {
        return Err(DecodeError::TooLong);
    };
    let place = bytes[8..OBJECT_STARTS].get_mut(..object.len());
    place.ok_or(DecodeError::TrailingBytes)?.copy_from_slice(object);

    let mut own = [0; 1 << LITERAL_BITS];
    let mut start = header.len();
    let words = if header.own {
        start += own::read(&object[start..], &mut own)?;
        &own
    } else {
        &set.literals
    };
    let [first, second, third] = header.pairs;
    let (middle, tokens) = (start + first, start + first + second);
    let extra = tokens + third;
    if extra > object.len() {
        return Err(DecodeError::Truncated);
    }
    if header.streams() == 2 {
        read_literals(words, bytes, [start, middle], header.literals, literals)?;
    } else {
        read_literals(words, bytes, [start, middle, middle, tokens], header.literals, literals)?;
    }
    let origins = [tokens, extra, object.len()];
    let plan = read_sequences(set, bytes, origins, &header, literals, sequences)?;
    follow(&plan, page)
}

/// What a stream goes on with from its bit `at` on: at least 57 bits. It begins at byte `origin` of
/// the object or, if it is a backward one, ends there.
#[inline(always)]
fn bits(bytes: &[u8; OBJECT_ROOM], origin: usize, backward: bool, at: usize) -> u64 {
    let from = if backward { origin.wrapping_sub(at / 8) } else { 8 + origin + at / 8 };
    let from = from % OBJECT_STARTS;
    let word = *bytes[from..].first_chunk().unwrap_or(&[0; 8]);
    let word = if backward { u64::from_be_bytes(word) } else { u64::from_le_bytes(word) };
    word >> (at % 8)
}

/// A bit above those of a stream that ends up behind as many zeros as bits were taken: so they need
/// not be counted one word after the other.
const MARK: u64 = 1 << 63;

/// Whether a forward and a backward stream of so many bits fill the bytes from `start` to `end`.
fn meet(start: usize, end: usize, forward: usize, backward: usize) -> Result<(), DecodeError> {
    match (start + forward.div_ceil(8) + backward.div_ceil(8)).cmp(&end) {
        Ordering::Less => Err(DecodeError::TrailingBytes),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(DecodeError::Truncated),
    }
}

/// Reads `count` literals from streams with these origins; every other one runs backward.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the streams take turns")]
fn read_literals<const STREAMS: usize>(
    words: &Words,
    bytes: &[u8; OBJECT_ROOM],
    origins: [usize; STREAMS],
    count: usize,
    literals: &mut Literals,
) -> Result<(), DecodeError> {
    let part = part(count, STREAMS);
    let mut at = [0; STREAMS];
    let whole = count.saturating_sub((STREAMS - 1) * part) / LITERALS_AT_ONCE;
    let (groups, _) = literals.as_chunks_mut::<LITERALS_AT_ONCE>();
    for group in 0..whole {
        let mut next: [u64; STREAMS] =
            core::array::from_fn(|nth| bits(bytes, origins[nth], nth % 2 == 1, at[nth]) | MARK);
        for step in 0..LITERALS_AT_ONCE {
            for nth in 0..STREAMS {
                let literal = words[next[nth] as usize % (1 << LITERAL_BITS)];
                groups[nth * part / LITERALS_AT_ONCE + group][step] = literal as u8;
                next[nth] >>= literal >> 8;
            }
        }
        for nth in 0..STREAMS {
            at[nth] += next[nth].leading_zeros() as usize;
        }
    }
    for nth in 0..STREAMS {
        let end = count.min((nth + 1) * part);
        let start = end.min(nth * part + whole * LITERALS_AT_ONCE);
        for place in &mut literals[start..end] {
            let next = bits(bytes, origins[nth], nth % 2 == 1, at[nth]);
            let literal = words[next as usize % (1 << LITERAL_BITS)];
            *place = literal as u8;
            at[nth] += usize::from(literal >> 8);
        }
    }
    for (origins, at) in origins.chunks_exact(2).zip(at.chunks_exact(2)) {
        meet(origins[0], origins[1], at[0], at[1])?;
    }
    Ok(())
}

/// What a page is made of.
pub(crate) struct Plan<'a> {
    sequences: &'a [Packed],
    pub(crate) literals: &'a Literals,
    /// How many literals there are.
    count: usize,
}

impl Plan<'_> {
    /// The sequences from one on.
    #[inline(always)]
    pub(crate) fn sequences(&self, from: usize) -> impl Iterator<Item = Sequence> {
        unpacked(&self.sequences[from..])
    }
}

/// The streams of sequences: of tokens, forward from byte `tokens` of the object; of distances,
/// back from byte `middle`; of extra bits, forward from there.
struct Streams<'a> {
    bytes: &'a [u8; OBJECT_ROOM],
    tokens: usize,
    middle: usize,
    token_at: usize,
    distance_at: usize,
    extra_at: usize,
    recent: Recent,
}

impl Streams<'_> {
    /// Reads so many sequences; no more than [`AT_ONCE`](Self::AT_ONCE).
    #[inline(always)]
    fn read(&mut self, set: &Decoding, sequences: &mut [Packed]) {
        let mut tokens = bits(self.bytes, self.tokens, false, self.token_at) | MARK;
        let mut distances = bits(self.bytes, self.middle, true, self.distance_at) | MARK;
        for sequence in sequences {
            let token = &set.tokens[tokens as usize % (1 << TOKEN_BITS)];
            tokens >>= token.bits;
            let distance = &set.distances[distances as usize % (1 << DISTANCE_BITS)];
            distances >>= distance.bits;
            // At most 11, 12 and 12 bits. They are taken whether there are any or not: branches
            // would be hard to predict.
            let extra = bits(self.bytes, self.middle, false, self.extra_at);
            self.extra_at += usize::from(distance.extra) + usize::from(token.extra);
            let far = distance.number(low(extra, distance.extra));
            let (run, length) = token.numbers(low(extra >> distance.extra, token.extra));
            let distance = self.recent.take(distance.nth, far) as usize;
            let (run, length) = (run as usize, length as usize);
            *sequence = Sequence { run, length, distance }.pack();
        }
        self.token_at += tokens.leading_zeros() as usize;
        self.distance_at += distances.leading_zeros() as usize;
    }

    /// Words of either kind that 57 bits hold at least.
    const AT_ONCE: usize = 57 / if TOKEN_BITS > DISTANCE_BITS { TOKEN_BITS } else { DISTANCE_BITS };
}

/// Reads the sequences, whose streams begin at these bytes and go on to `end`.
#[inline(always)]
fn read_sequences<'a>(
    set: &Decoding,
    bytes: &[u8; OBJECT_ROOM],
    [tokens, middle, end]: [usize; 3],
    header: &Header,
    literals: &'a Literals,
    sequences: &'a mut Sequences,
) -> Result<Plan<'a>, DecodeError> {
    let recent = Recent::at_first();
    let mut streams =
        Streams { bytes, tokens, middle, token_at: 0, distance_at: 0, extra_at: 0, recent };
    let sequences = &mut sequences[..header.sequences];
    let (groups, rest) = sequences.as_chunks_mut::<{ Streams::AT_ONCE }>();
    for group in groups {
        streams.read(set, group);
    }
    streams.read(set, rest);
    meet(tokens, middle, streams.token_at, streams.distance_at)?;
    meet(middle, end, streams.extra_at, 0)?;
    Ok(Plan { sequences, literals, count: header.literals })
}

/// How far the making of a page has come.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Sequences done.
    pub(crate) done: usize,
    /// Literals taken.
    pub(crate) taken: usize,
    /// Bytes made.
    pub(crate) made: usize,
}

/// Makes the page, or what is left to make of it. That the sequences took no more literals than
/// there are is found out in the end: the literals' room is as large as the page, and what lies
/// there is as good as any byte until then.
pub(crate) fn follow(
    plan: &Plan<'_>,
    mut progress: Progress,
    page: &mut Page,
) -> Result<(), DecodeError> {
    for Sequence { run, length, distance } in plan.sequences(progress.done) {
        let copy_to = progress.made + run;
        if copy_to + length > PAGE_SIZE {
            return Err(DecodeError::TooLong);
        }
        if distance.wrapping_sub(1) >= copy_to {
            return Err(DecodeError::BadDistance { distance, decoded_bytes: copy_to });
        }
        write_run(plan.literals, progress.taken, run, page, progress.made);
        copy(page, copy_to, distance, length);
        progress.taken += run;
        progress.made = copy_to + length;
    }
    let rest = plan.literals[..plan.count].get(progress.taken..).ok_or(DecodeError::TooLong)?;
    match (progress.made + rest.len()).cmp(&PAGE_SIZE) {
        Ordering::Less => Err(DecodeError::Truncated),
        Ordering::Equal => {
            page[progress.made..].copy_from_slice(rest);
            Ok(())
        }
        Ordering::Greater => Err(DecodeError::TooLong),
    }
}

/// Copies `run` literals from `from` on to `to` of the page. Both are within bounds.
#[inline(always)]
fn write_run(literals: &Literals, from: usize, run: usize, page: &mut Page, to: usize) {
    if run > SHORT_RUN || !copy_short_run(&literals[from..], &mut page[to..]) {
        page[to..to + run].copy_from_slice(&literals[from..from + run]);
    }
}

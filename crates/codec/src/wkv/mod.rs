//! WLZ, ramfold's own: a Lempel-Ziv over words, then a word codec over what it leaves.
//!
//! Programs keep 32-bit and 64-bit fields aligned, and records side by side. So copies are looked for
//! at word boundaries only, a quarter of the places that a byte-wise codec tries, and mostly from the
//! distance of the last copy: the stride of an array. Of the heaps of four programs half to two
//! thirds of the words are copied so, by 50 to 140 copies a page.
//!
//! The words that are left, the *literals*, are told apart by two small dictionaries that hold for
//! the page and are stored with it. Nothing in decoding a literal depends on the one before it, so
//! eight at a time can be done:
//!
//! | class | case | what is stored |
//! |---|---|---|
//! | 0 | the word is zero | |
//! | 1 | the upper 20 bits are in the first dictionary | slot, the low 12 bits: 16 bits |
//! | 2 | the upper 16 bits are in the second | the low 16 bits, slot: 20 bits |
//! | 3 | neither | the word |
//!
//! A key has one slot of 16, by a multiplicative hash; which of the keys that share a slot gets it is
//! voted by a sample of the literals. `docs/codecs.md` has the byte layout.

mod literals;
mod parse;
mod token;

pub(crate) use self::literals::{Classified, Dictionary, Sources, Streams};

use self::token::Tokens;
use crate::backend::Backend;
use crate::error::{DecodeError, DoesNotFit};
use crate::lz::bytes_at;
use crate::{PAGE_WORDS, Page};

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub const COMPRESS_SCRATCH_BYTES: usize =
    2 * ENTRIES + LITERAL_BYTES + TOKEN_BYTES_MAX + literals::STREAMS_BYTES;
/// Bytes of working memory that [`decompress`] needs. Contents do not matter.
pub const DECOMPRESS_SCRATCH_BYTES: usize = LITERAL_BYTES;

const HASH_BITS: u32 = 10;
const ENTRIES: usize = 1 << HASH_BITS;

/// A page's words, and room for one group more than are there.
pub(crate) type Literals = [[u8; 4]; PAGE_WORDS + GROUP];
const LITERAL_BYTES: usize = 4 * (PAGE_WORDS + GROUP);

/// A copy covers two words at least, and most bytes of a token are its first two.
const TOKEN_BYTES_MAX: usize = PAGE_WORDS;
type TokenBytes = [u8; TOKEN_BYTES_MAX];
const TOKENS_MAX: usize = PAGE_WORDS / 2;
type Flags = [u8; TOKENS_MAX / 8];

/// Shortest copy from the last distance, in words, and shortest from another.
const SAME_MIN: usize = 2;
const NEW_MIN: usize = 3;

/// Literals that vote, about.
const VOTERS: usize = 128;

const SLOT_BITS: u32 = 4;
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Low bits that a class stores.
pub(crate) const PARTIAL_BITS: u32 = 12;
pub(crate) const HALF_BITS: u32 = 16;

const HEADER: usize = 8;
/// Literals that share two bytes of classes.
pub(crate) const GROUP: usize = 8;

const LITERALS_BITS: u32 = 11;
const TOKENS_BITS: u32 = 10;

const _: () = assert!(PAGE_WORDS < 1 << LITERALS_BITS && TOKENS_MAX < 1 << TOKENS_BITS);

/// Spreads what the hashes of words and keys are taken from, the upper bits.
pub(crate) const MULTIPLIER: u32 = 0x9e37_79b1;

#[inline]
fn hash_of(word: u32, bits: u32) -> usize {
    (word.wrapping_mul(MULTIPLIER) >> (32 - bits)) as usize
}

/// A word's slot in a dictionary of what is above so many low bits.
#[inline]
fn slot_of(word: u32, low_bits: u32) -> usize {
    hash_of(word >> low_bits, SLOT_BITS)
}

#[inline]
fn word_at(page: &Page, place: usize) -> u32 {
    u32::from_le_bytes(bytes_at(page, 4 * place))
}

/// How many of each there are, which says where each section of an object is.
#[derive(Clone, Copy, Default)]
struct Counts {
    literals: usize,
    tokens: usize,
    partial_keys: usize,
    half_keys: usize,
    partials: usize,
    halves: usize,
    misses: usize,
}

/// Where each section begins.
struct Sections {
    classes: usize,
    partial_keys: usize,
    partial_keys_high: usize,
    half_keys: usize,
    partials: usize,
    halves: usize,
    half_slots: usize,
    misses: usize,
    flags: usize,
    tokens: usize,
}

impl Sections {
    #[inline]
    fn of(counts: &Counts) -> Sections {
        let classes = HEADER;
        let partial_keys = classes + 2 * counts.literals.div_ceil(GROUP);
        let partial_keys_high = partial_keys + 2 * counts.partial_keys;
        let half_keys = partial_keys_high + counts.partial_keys.div_ceil(2);
        let partials = half_keys + 2 * counts.half_keys;
        let halves = partials + 2 * counts.partials;
        let half_slots = halves + 2 * counts.halves;
        let misses = half_slots + counts.halves.div_ceil(2);
        let flags = misses + 4 * counts.misses;
        let tokens = flags + counts.tokens.div_ceil(8);
        Sections {
            classes,
            partial_keys,
            partial_keys_high,
            half_keys,
            partials,
            halves,
            half_slots,
            misses,
            flags,
            tokens,
        }
    }
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub fn compress(
    page: &Page,
    backend: Backend,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    try_compress(page, backend, scratch, out).ok_or(DoesNotFit)
}

fn try_compress(
    page: &Page,
    backend: Backend,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Option<usize> {
    let (table, rest) = scratch.split_first_chunk_mut()?;
    let (literals, rest) = rest.split_first_chunk_mut::<LITERAL_BYTES>()?;
    let (tokens, streams) = rest.split_first_chunk_mut()?;
    let literals = literals.as_chunks_mut().0.first_chunk_mut()?;
    let mut streams = Streams::carve(streams.first_chunk_mut()?)?;

    let parsed = parse::parse(page, table, literals, tokens)?;
    let voters = &literals[..parsed.literal_count];
    let partials = Dictionary::vote(voters, PARTIAL_BITS);
    let halves = Dictionary::vote(voters, HALF_BITS);
    let count = parsed.literal_count;
    let found = match backend.avx2() {
        #[cfg(target_arch = "x86_64")]
        Some(avx2) => crate::arch::x86_64::wlz::classify(
            avx2,
            literals,
            count,
            &partials,
            &halves,
            &mut streams,
        ),
        _ => literals::classify(literals, count, &partials, &halves, &mut streams),
    };

    let counts = Counts {
        literals: parsed.literal_count,
        tokens: parsed.token_count,
        partial_keys: found.partial_slots.count_ones() as usize,
        half_keys: found.half_slots.count_ones() as usize,
        partials: found.partials,
        halves: found.halves,
        misses: found.misses,
    };
    let sections = Sections::of(&counts);
    let end = sections.tokens + parsed.token_bytes;
    let object = out.get_mut(..end)?;
    let header = counts.literals as u32 | (counts.tokens as u32) << LITERALS_BITS;
    object[..4].copy_from_slice(&header.to_le_bytes());
    object[4..6].copy_from_slice(&found.partial_slots.to_le_bytes());
    object[6..8].copy_from_slice(&found.half_slots.to_le_bytes());
    let groups = counts.literals.div_ceil(GROUP);
    object[sections.classes..sections.partial_keys]
        .copy_from_slice(streams.classes[..groups].as_flattened());
    object[sections.partial_keys_high..sections.half_keys].fill(0);
    for (nth, slot) in slots_in(found.partial_slots).enumerate() {
        let key = partials.keys[slot];
        put_u16(object, sections.partial_keys + 2 * nth, key as u16);
        object[sections.partial_keys_high + nth / 2] |= ((key >> 16) as u8) << (4 * (nth % 2));
    }
    for (nth, slot) in slots_in(found.half_slots).enumerate() {
        put_u16(object, sections.half_keys + 2 * nth, halves.keys[slot] as u16);
    }
    object[sections.partials..sections.halves]
        .copy_from_slice(streams.partials[..counts.partials].as_flattened());
    object[sections.halves..sections.half_slots]
        .copy_from_slice(streams.halves[..counts.halves].as_flattened());
    streams.half_slots[counts.halves] = 0;
    let pairs = streams.half_slots.as_chunks().0;
    for (byte, [low, high]) in object[sections.half_slots..sections.misses].iter_mut().zip(pairs) {
        *byte = low | high << 4;
    }
    object[sections.misses..sections.flags]
        .copy_from_slice(streams.misses[..counts.misses].as_flattened());
    let flags = &parsed.flags[..sections.tokens - sections.flags];
    object[sections.flags..sections.tokens].copy_from_slice(flags);
    object[sections.tokens..].copy_from_slice(&tokens[..parsed.token_bytes]);
    Some(end)
}

#[inline]
fn put_u16(object: &mut [u8], at: usize, value: u16) {
    object[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// The numbers of the bits that are set, lowest first.
fn slots_in(mut mask: u16) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask.checked_sub(1)?;
        Some(slot)
    })
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when the sections do not have the lengths that header and classes call for, when
/// padding is not zero, or when literals and copies do not make exactly a page.
pub fn decompress(
    object: &[u8],
    backend: Backend,
    scratch: &mut [u8; DECOMPRESS_SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let literals = scratch.as_chunks_mut().0.first_chunk_mut().ok_or(DecodeError::Truncated)?;
    let (sections, counts) = decode_literals(object, backend, literals)?;
    let flags = &object[sections.flags..sections.tokens];
    let tokens = Tokens { bytes: object, at: sections.tokens };
    token::copy_all(literals, counts.literals, flags, counts.tokens, tokens, page)
}

/// Reads all sections but the tokens.
fn decode_literals(
    object: &[u8],
    backend: Backend,
    literals: &mut Literals,
) -> Result<(Sections, Counts), DecodeError> {
    let header = object.first_chunk::<HEADER>().ok_or(DecodeError::Truncated)?;
    let [h0, h1, h2, h3, p0, p1, s0, s1] = *header;
    let header = u32::from_le_bytes([h0, h1, h2, h3]);
    let (partial_slots, half_slots) = (u16::from_le_bytes([p0, p1]), u16::from_le_bytes([s0, s1]));
    let mut counts = Counts {
        literals: (header & ((1 << LITERALS_BITS) - 1)) as usize,
        tokens: (header >> LITERALS_BITS & ((1 << TOKENS_BITS) - 1)) as usize,
        partial_keys: partial_slots.count_ones() as usize,
        half_keys: half_slots.count_ones() as usize,
        ..Counts::default()
    };
    if header >> (LITERALS_BITS + TOKENS_BITS) != 0
        || counts.literals > PAGE_WORDS
        || counts.tokens > TOKENS_MAX
    {
        return Err(DecodeError::Malformed("WLZ header"));
    }
    let class_bytes = 2 * counts.literals.div_ceil(GROUP);
    let classes = object.get(HEADER..HEADER + class_bytes).ok_or(DecodeError::Truncated)?;
    let classes = classes.as_chunks::<2>().0;
    for [low, high] in classes {
        counts.partials += (low & !high).count_ones() as usize;
        counts.halves += (high & !low).count_ones() as usize;
        counts.misses += (low & high).count_ones() as usize;
    }
    let sections = Sections::of(&counts);
    if object.len() < sections.tokens {
        return Err(DecodeError::Truncated);
    }
    let last = counts.literals % GROUP;
    if last != 0
        && let Some([low, high]) = classes.last()
        && (low | high) >> last != 0
    {
        return Err(DecodeError::Malformed("WLZ class padding"));
    }
    let odd_nibble = |count: usize, end: usize| count % 2 == 1 && object[end - 1] >> 4 != 0;
    if odd_nibble(counts.partial_keys, sections.half_keys)
        || odd_nibble(counts.halves, sections.misses)
    {
        return Err(DecodeError::Malformed("WLZ slot padding"));
    }
    let spare_flags = counts.tokens % 8;
    if spare_flags != 0 && object[sections.tokens - 1] >> spare_flags != 0 {
        return Err(DecodeError::Malformed("WLZ flag padding"));
    }

    let u16_at = |at: usize| u32::from(u16::from_le_bytes([object[at], object[at + 1]]));
    let nibble_at = |at: usize, nth: usize| u32::from(object[at + nth / 2] >> (4 * (nth % 2)) & 15);
    let (mut partial_keys, mut half_keys) = ([0; SLOTS], [0; SLOTS]);
    for (nth, slot) in slots_in(partial_slots).enumerate() {
        let high = nibble_at(sections.partial_keys_high, nth) << 16;
        partial_keys[slot] = (high | u16_at(sections.partial_keys + 2 * nth)) << PARTIAL_BITS;
    }
    for (nth, slot) in slots_in(half_slots).enumerate() {
        half_keys[slot] = u16_at(sections.half_keys + 2 * nth) << HALF_BITS;
    }
    let sources = Sources {
        classes,
        partial_keys: &partial_keys,
        half_keys: &half_keys,
        partials: object[sections.partials..sections.halves].as_chunks().0,
        halves: object[sections.halves..sections.half_slots].as_chunks().0,
        half_slots: &object[sections.half_slots..sections.misses],
        misses: object[sections.misses..sections.flags].as_chunks().0,
    };
    match backend.avx2() {
        #[cfg(target_arch = "x86_64")]
        Some(avx2) => crate::arch::x86_64::wlz::expand(avx2, &sources, literals),
        _ => literals::expand(&sources, literals, counts.literals),
    }
    Ok((sections, counts))
}

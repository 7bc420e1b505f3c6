//! WKv, ramfold's word codec: each of its steps handles sixteen words at a time.
//!
//! Programs keep arrays of records, so most words of a heap equal the words one record back. A page
//! has up to four *strides*, the distances at which it equals itself best, and each vector of
//! sixteen words has one of them: its words are *predicted* to equal those so far back. The others,
//! the *literals*, are divided into classes in one step:
//!
//! | class | case | what is stored |
//! |---|---|---|
//! | zero | the word is zero | |
//! | half | its upper 16 bits are predicted rightly | the lower 16 bits |
//! | partial | its upper 20 bits are one of the page's 16 keys | 16 bits: slot and lower 12 bits |
//! | miss | none of these | the word |
//!
//! Many misses are a sign of text or the like: their bytes are stored in four bits each, when they
//! are among the page's fifteen most frequent.
//!
//! No step depends on the result of the one before it, as in a Lempel-Ziv parse or a dictionary
//! that learns. So there is hardly a branch to mispredict, and vectors can be as wide as the
//! processor has them. `strides` finds the distances, `words` classes the words and restores them,
//! `nibbles` codes the misses; `Kernels` are the steps that have vector code, in `arch`.
//! `docs/codecs.md` has the byte layout.

mod nibbles;
mod strides;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use nibbles::{ByteOf, ByteSet, Bytes, Codes, Counts, ESCAPE, search_highest};
pub(crate) use strides::{
    CANDIDATES, Candidates, Counts as DistanceCounts, Cover, DISTANCE_COUNT, HISTORY, SAMPLED,
    Signatures, Strides, distance_of,
};
pub(crate) use words::{Classified, Gathered, Halves, Keys, Literals, Resolved, Sections, Streams};

use core::cmp::Ordering;

use crate::backend::Backend;
use crate::error::{DecodeError, DoesNotFit};
use crate::scratch::Carver;
use crate::{PAGE_SIZE, PAGE_WORDS, Page};

/// Words that share a distance, and a mask.
pub(crate) const LANES: usize = 16;
/// Vectors in a page.
pub(crate) const VECTORS: usize = PAGE_WORDS / LANES;

/// Spreads what the hashes of words and keys are taken from, the upper bits.
pub(crate) const MULTIPLIER: u32 = 0x9e37_79b1;

const SLOT_BITS: u32 = 4;
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Low bits of a word that a partial stores.
pub(crate) const PARTIAL_BITS: u32 = 12;

/// A page's words or fewer, and room for a vector more, which is written and read where fewer are
/// meant.
pub(crate) type Words = [[u8; 4]; PAGE_WORDS + LANES];
pub(crate) const WORDS_BYTES: usize = size_of::<Words>();
/// The like of 16 bits each.
pub(crate) type Values = [[u8; 2]; PAGE_WORDS + LANES];
/// Two bytes for each vector, or for each sixteen literals.
pub(crate) type Masks = [[u8; 2]; VECTORS + 1];
/// How many words back what each vector is predicted from lies; 0: zeros are predicted.
pub(crate) type Distances = [u8; VECTORS];

/// An object, and room for reading behind its end.
pub(crate) type Padded = [u8; PADDED_BYTES];
const PADDED_BYTES: usize = PAGE_SIZE + WORDS_BYTES;

/// Bytes of working memory that [`compress`] needs. Contents do not matter.
pub(crate) const COMPRESS_SCRATCH_BYTES: usize = size_of::<Signatures>()
    + 3 * WORDS_BYTES
    + size_of::<Values>()
    + 3 * size_of::<Masks>()
    + nibbles::BUFFERS_BYTES;
/// Bytes of working memory that [`decompress`] needs. Contents do not matter.
pub(crate) const DECOMPRESS_SCRATCH_BYTES: usize = PADDED_BYTES + 2 * WORDS_BYTES;

/// Whether words are predicted from a stride back, or all words are literals or zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prediction {
    /// Up to four strides for the page.
    Strides,
    /// None: the word codec alone, which is faster.
    Zeros,
}

/// The steps that are done by vectors, where the processor has them. All give the same.
pub(crate) struct Kernels {
    /// Finds the strides.
    pub strides: fn(&Page, &mut Signatures) -> Strides,
    /// Collects the words that are not as predicted.
    pub gather: fn(&Page, &Distances, &mut Masks, &mut Literals<'_>) -> Gathered,
    /// Tells so many literals apart.
    pub classify: fn(&Literals<'_>, usize, &Keys, &mut Streams<'_>) -> Classified,
    /// The most frequent of so many bytes: see [`nibbles::search_highest`].
    pub highest: fn(&Counts, u16) -> (ByteSet, ByteSet),
    /// Codes so many bytes, and returns how many escaped.
    pub pack: fn(&[u8], usize, &Codes, &mut Bytes, &mut Bytes) -> usize,
    /// Makes so many bytes from codes and escapes, and returns how many had escaped.
    pub unpack: fn(&Bytes, &Bytes, usize, &ByteOf, &mut Bytes) -> usize,
    /// Makes so many literals, but for the halves that are predicted, and says which want one.
    pub resolve: fn(&Sections<'_>, usize, &Keys, &mut Bytes, &mut Halves) -> Resolved,
    /// Makes the page of them, and returns how many it took.
    pub scatter: fn(&Sections<'_>, &Distances, &Bytes, &Halves, &mut Page) -> usize,
}

/// The steps in plain code.
pub(crate) static SCALAR: Kernels = Kernels {
    strides: strides::choose,
    gather: words::gather,
    classify: words::classify,
    highest: nibbles::highest,
    pack: nibbles::pack_bytes,
    unpack: nibbles::unpack_bytes,
    resolve: words::resolve,
    scatter: words::scatter,
};

/// With so many misses a page is tried without telling its words apart: then it is text, or noise.
const BARE_MIN: usize = 640;

/// What an object begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    literals: usize,
    values: usize,
    misses: usize,
    strides: usize,
    /// How often misses are packed.
    levels: u8,
    /// Slots whose keys are used: bit *s* stands for slot *s*.
    slots: u16,
    /// Vectors with literals: bit *v* stands for vector *v*.
    vectors: u64,
}

impl Header {
    const BYTES: usize = 16;
    const COUNT_BITS: u32 = 11;
    const STRIDES_AT: u32 = 3 * Header::COUNT_BITS;
    const LEVELS_AT: u32 = Header::STRIDES_AT + 3;
    const SLOTS_AT: u32 = Header::LEVELS_AT + 2;
    const END: u32 = Header::SLOTS_AT + 16;

    fn to_bytes(self) -> [u8; Header::BYTES] {
        let low = self.literals as u64
            | (self.values as u64) << Header::COUNT_BITS
            | (self.misses as u64) << (2 * Header::COUNT_BITS)
            | (self.strides as u64) << Header::STRIDES_AT
            | u64::from(self.levels) << Header::LEVELS_AT
            | u64::from(self.slots) << Header::SLOTS_AT;
        (u128::from(low) | u128::from(self.vectors) << 64).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; Header::BYTES]) -> Result<Header, DecodeError> {
        let both = u128::from_le_bytes(bytes);
        let low = both as u64;
        let count = |nth: u32| (low >> (nth * Header::COUNT_BITS)) as usize & 0x7ff;
        let header = Header {
            literals: count(0),
            values: count(1),
            misses: count(2),
            strides: (low >> Header::STRIDES_AT) as usize & 7,
            levels: (low >> Header::LEVELS_AT) as u8 & 3,
            slots: (low >> Header::SLOTS_AT) as u16,
            vectors: (both >> 64) as u64,
        };
        let possible = header.literals <= PAGE_WORDS
            && header.values + header.misses <= header.literals
            && header.strides <= strides::STRIDES_MAX;
        if low >> Header::END != 0 || header.levels > 2 || !(possible || header.is_bare()) {
            return Err(DecodeError::Malformed("WKv header"));
        }
        Ok(header)
    }

    /// Without levels: the whole page is misses, and nothing is said about them.
    const BARE: Header = Header {
        literals: 0,
        values: 0,
        misses: PAGE_WORDS,
        strides: 0,
        levels: 0,
        slots: 0,
        vectors: 0,
    };

    fn is_bare(&self) -> bool {
        self.levels > 0 && Header { levels: 0, ..*self } == Header::BARE
    }

    /// Where each section begins.
    fn layout(&self) -> Layout {
        let keys_count = self.slots.count_ones() as usize;
        let plane_bytes = self.literals.div_ceil(8);
        let strides = Header::BYTES;
        let choices = strides + self.strides;
        let masks = choices + if self.strides > 1 { strides::CHOICE_BYTES } else { 0 };
        let value_plane = masks + 2 * self.vectors.count_ones() as usize;
        let other_plane = value_plane + plane_bytes;
        let keys = other_plane + plane_bytes;
        let keys_high = keys + 2 * keys_count;
        let values = keys_high + keys_count.div_ceil(2);
        let misses = values + 2 * self.values;
        Layout {
            strides,
            choices,
            masks,
            value_plane,
            other_plane,
            keys,
            keys_high,
            values,
            misses,
        }
    }
}

struct Layout {
    strides: usize,
    choices: usize,
    masks: usize,
    value_plane: usize,
    other_plane: usize,
    keys: usize,
    keys_high: usize,
    values: usize,
    misses: usize,
}

/// Compresses `page` into `out` and returns the object's length.
///
/// # Errors
/// [`DoesNotFit`] when the object would be longer than `out`.
pub(crate) fn compress(
    page: &Page,
    prediction: Prediction,
    backend: Backend,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Result<usize, DoesNotFit> {
    try_compress(page, prediction, backend.wkv(), scratch, out).ok_or(DoesNotFit)
}

fn try_compress(
    page: &Page,
    prediction: Prediction,
    kernels: &Kernels,
    scratch: &mut [u8; COMPRESS_SCRATCH_BYTES],
    out: &mut [u8],
) -> Option<usize> {
    let mut carver = Carver(scratch);
    let signatures = carver.bytes()?;
    let mut literals = Literals { words: carver.numbers()?, predicted: carver.numbers()? };
    let mut streams = Streams {
        value_plane: carver.numbers()?,
        other_plane: carver.numbers()?,
        misses: carver.numbers()?,
        values: carver.numbers()?,
    };
    let masks = carver.numbers()?;
    let mut buffers = nibbles::Buffers::carve(&mut carver)?;

    let strides = match prediction {
        Prediction::Strides => (kernels.strides)(page, signatures),
        Prediction::Zeros => Strides::NONE,
    };
    let gathered = (kernels.gather)(page, &strides.distances(), masks, &mut literals);
    let keys = words::vote(&literals, gathered.literals);
    let classified = (kernels.classify)(&literals, gathered.literals, &keys, &mut streams);
    let mut header = Header {
        literals: gathered.literals,
        values: classified.values,
        misses: classified.misses,
        strides: strides.count,
        levels: 0,
        slots: classified.slots,
        vectors: gathered.vectors,
    };
    let layout = header.layout();
    let miss_bytes = 4 * classified.misses;
    if classified.misses >= BARE_MIN
        && let Some(packed) = nibbles::pack(kernels, page, PAGE_SIZE, &mut buffers)
    {
        // Misses are taken to be like the page.
        let expected = layout.misses + packed.len() * miss_bytes / PAGE_SIZE;
        let end = Header::BYTES + packed.len();
        if end <= expected {
            let header = Header { levels: packed.levels(), ..Header::BARE };
            let object = out.get_mut(..end)?;
            put(object, 0, &header.to_bytes());
            packed.write(&mut object[Header::BYTES..]);
            return Some(end);
        }
    }
    let misses = streams.misses.as_flattened();
    let packed = nibbles::pack(kernels, misses, miss_bytes, &mut buffers);
    header.levels = packed.as_ref().map_or(0, nibbles::Packed::levels);
    let end = layout.misses + packed.as_ref().map_or(miss_bytes, nibbles::Packed::len);
    let object = out.get_mut(..end)?;
    object[..layout.strides].copy_from_slice(&header.to_bytes());
    object[layout.strides..layout.choices].copy_from_slice(&strides.numbers[..strides.count]);
    if layout.choices < layout.masks {
        object[layout.choices..layout.masks].copy_from_slice(&strides.choices());
    }
    let vectors = gathered.vectors.count_ones() as usize;
    put(object, layout.masks, masks[..vectors].as_flattened());
    let plane_bytes = gathered.literals.div_ceil(8);
    put(object, layout.value_plane, &streams.value_plane.as_flattened()[..plane_bytes]);
    put(object, layout.other_plane, &streams.other_plane.as_flattened()[..plane_bytes]);
    object[layout.keys_high..layout.values].fill(0);
    for (nth, slot) in bits_of(u64::from(classified.slots)).enumerate() {
        let key = keys[slot] >> PARTIAL_BITS;
        put(object, layout.keys + 2 * nth, &(key as u16).to_le_bytes());
        object[layout.keys_high + nth / 2] |= ((key >> 16) as u8) << (4 * (nth % 2));
    }
    put(object, layout.values, streams.values[..classified.values].as_flattened());
    match packed {
        Some(packed) => packed.write(&mut object[layout.misses..]),
        None => put(object, layout.misses, &misses[..miss_bytes]),
    }
    Some(end)
}

fn put(object: &mut [u8], at: usize, bytes: &[u8]) {
    object[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The numbers of the bits that are set, lowest first.
fn bits_of(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.checked_sub(1)?;
        Some(bit)
    })
}

/// Decompresses `object` into `page`.
///
/// # Errors
/// [`DecodeError`] when header, masks and classes do not call for exactly the bytes that are there,
/// or padding is not zero.
pub(crate) fn decompress(
    object: &[u8],
    backend: Backend,
    scratch: &mut [u8; DECOMPRESS_SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    let kernels = backend.wkv();
    let header = Header::from_bytes(*object.first_chunk().ok_or(DecodeError::Truncated)?)?;
    let layout = header.layout();
    let misses_at = if header.is_bare() { Header::BYTES } else { layout.misses };
    let rest = object.len().checked_sub(misses_at).ok_or(DecodeError::Truncated)?;
    let miss_bytes = 4 * header.misses;
    if header.levels == 0 {
        match rest.cmp(&miss_bytes) {
            Ordering::Less => return Err(DecodeError::Truncated),
            Ordering::Equal => {}
            Ordering::Greater => return Err(DecodeError::TrailingBytes),
        }
    }
    // From here on sections are read in pieces of a fixed size, over their ends and the object's.
    let mut carver = Carver(scratch);
    let (Some(padded), Some(between), Some(unpacked)) =
        (carver.bytes(), carver.bytes(), carver.bytes())
    else {
        return Err(DecodeError::Truncated);
    };
    padded.get_mut(..object.len()).ok_or(DecodeError::TooLong)?.copy_from_slice(object);

    let misses: &Bytes = if header.levels > 0 {
        let source = nibbles::Source { padded, start: misses_at, end: object.len() };
        nibbles::unpack(kernels, &source, header.levels, miss_bytes, between, unpacked)
            .ok_or(DecodeError::Malformed("WKv packed misses"))?;
        unpacked
    } else {
        section(padded, misses_at)
    };
    if header.is_bare() {
        page.copy_from_slice(&misses[..PAGE_SIZE]);
        return Ok(());
    }
    let strides = Strides::read(
        &object[layout.strides..layout.choices],
        &object[layout.choices..layout.masks],
    )?;
    for plane in [layout.value_plane, layout.other_plane] {
        let spare = header.literals % 8;
        if spare != 0 && object[plane + header.literals / 8] >> spare != 0 {
            return Err(DecodeError::Malformed("WKv plane padding"));
        }
    }
    let keys = read_keys(header.slots, &object[layout.keys..layout.values])?;

    let sections = Sections {
        vectors: header.vectors,
        masks: section(padded, layout.masks),
        value_plane: section(padded, layout.value_plane),
        other_plane: section(padded, layout.other_plane),
        values: section(padded, layout.values),
        misses,
    };
    let Header { literals, values, misses, .. } = header;
    let mut halves = [0; size_of::<Halves>()];
    let resolved = (kernels.resolve)(&sections, literals, &keys, between, &mut halves);
    let taken = (kernels.scatter)(&sections, &strides.distances(), between, &halves, page);
    if (taken, resolved) != (literals, Resolved { values, misses }) {
        return Err(DecodeError::Malformed("WKv counts"));
    }
    Ok(())
}

/// The piece of an object at `at`, which is within it.
fn section<const BYTES: usize>(padded: &Padded, at: usize) -> &[u8; BYTES] {
    const { assert!(BYTES <= WORDS_BYTES) };
    const NOTHING: &[u8; WORDS_BYTES] = &[0; WORDS_BYTES];
    let piece = padded.get(at..).and_then(<[u8]>::first_chunk);
    debug_assert!(piece.is_some());
    piece.or(NOTHING.first_chunk()).unwrap_or(&[0; BYTES])
}

/// The keys, in their places in a word.
fn read_keys(slots: u16, bytes: &[u8]) -> Result<Keys, DecodeError> {
    let count = slots.count_ones() as usize;
    let (lows, highs) = bytes.split_at(2 * count);
    if count % 2 == 1 && highs[count / 2] >> 4 != 0 {
        return Err(DecodeError::Malformed("WKv key padding"));
    }
    let (lows, _) = lows.as_chunks();
    let mut keys = [0; SLOTS];
    for (nth, (slot, low)) in bits_of(u64::from(slots)).zip(lows).enumerate() {
        let high = u32::from(highs[nth / 2] >> (4 * (nth % 2)) & 15);
        keys[slot] = (high << 16 | u32::from(u16::from_le_bytes(*low))) << PARTIAL_BITS;
    }
    Ok(keys)
}

//! Words told apart, and made again.

use super::{
    Bytes, Distances, LANES, MULTIPLIER, Masks, PARTIAL_BITS, SLOT_BITS, SLOTS, VECTORS, Values,
    Words,
};
use crate::lz::bytes_at;
use crate::{PAGE_WORDS, Page};

/// Literals that vote, about.
const VOTERS: usize = 32;

const LOW: u32 = (1 << PARTIAL_BITS) - 1;

/// Upper 20 bits of words, in their places, by slot.
pub(crate) type Keys = [u32; SLOTS];

/// The words that are not as predicted, and what was predicted, in the order of the page.
pub(crate) struct Literals<'a> {
    pub words: &'a mut Words,
    pub predicted: &'a mut Words,
}

/// How many literals there are, and in which vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Gathered {
    pub literals: usize,
    pub vectors: u64,
}

/// What is stored of the literals. What is behind the ends is unspecified.
pub(crate) struct Streams<'a> {
    /// For sixteen literals which are stored in 16 bits.
    pub value_plane: &'a mut Masks,
    /// Which of these have their upper half from the prediction, and which of the others are
    /// misses.
    pub other_plane: &'a mut Masks,
    pub values: &'a mut Values,
    pub misses: &'a mut Words,
}

/// What came of telling literals apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Classified {
    pub values: usize,
    pub misses: usize,
    /// Slots whose keys are used: bit *s* stands for slot *s*.
    pub slots: u16,
}

/// The sections that a page is made of. Each goes on behind its end with anything.
pub(crate) struct Sections<'a> {
    pub vectors: u64,
    pub masks: &'a [u8; 2 * (PAGE_WORDS / LANES + 1)],
    pub value_plane: &'a [u8; PLANE_BYTES],
    pub other_plane: &'a [u8; PLANE_BYTES],
    pub values: &'a [u8; size_of::<Values>()],
    pub misses: &'a Bytes,
}

impl Sections<'_> {
    /// For each vector, which of its words are literals. Without a branch, which would be hard to
    /// predict.
    #[inline(always)]
    pub(crate) fn literals(&self) -> impl Iterator<Item = u16> {
        let mut next = 0;
        (0..VECTORS).map(move |vector| {
            let has_literals = (self.vectors >> vector) as u16 & 1;
            let mask =
                self.masks[2 * next..].first_chunk().map_or(0, |mask| u16::from_le_bytes(*mask));
            next += usize::from(has_literals);
            mask & has_literals.wrapping_neg()
        })
    }
}

/// A bit for each word, and a load more.
pub(crate) const PLANE_BYTES: usize = PAGE_WORDS / 8 + 4;

/// What making literals took of their sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resolved {
    pub values: usize,
    pub misses: usize,
}

/// For each literal whether its upper half is predicted.
pub(crate) type Halves = [u8; PLANE_BYTES];

/// The slot of a word's key.
#[inline]
fn slot_of(word: u32) -> usize {
    ((word >> PARTIAL_BITS).wrapping_mul(MULTIPLIER) >> (32 - SLOT_BITS)) as usize % SLOTS
}

pub(super) fn gather(
    page: &Page,
    distances: &Distances,
    masks: &mut Masks,
    literals: &mut Literals<'_>,
) -> Gathered {
    let mut gathered = Gathered::default();
    let mut vectors = 0;
    for (vector, &distance) in distances.iter().enumerate() {
        let mut mask = 0u16;
        for lane in 0..LANES {
            let place = LANES * vector + lane;
            let (word, predicted) = (bytes_at(page, 4 * place), predicted(page, place, distance));
            if word != predicted {
                literals.words[gathered.literals] = word;
                literals.predicted[gathered.literals] = predicted;
                gathered.literals += 1;
                mask |= 1 << lane;
            }
        }
        if mask != 0 {
            masks[vectors] = mask.to_le_bytes();
            vectors += 1;
            gathered.vectors |= 1 << vector;
        }
    }
    gathered
}

#[inline]
fn predicted(page: &Page, place: usize, distance: u8) -> [u8; 4] {
    match distance {
        0 => [0; 4],
        _ => bytes_at(page, 4 * place.saturating_sub(usize::from(distance))),
    }
}

/// The keys that a sample of the literals votes for: each adds one to its key where that has the
/// slot, and takes one from another's that has it, until it takes its place. Words that need no key
/// have no vote.
pub(super) fn vote(literals: &Literals<'_>, count: usize) -> Keys {
    // Key and votes in one, below the key: as many as the votes are, they stay there. Those that
    // have no vote have slots of their own, which spares a branch.
    const { assert!(PAGE_WORDS < 1 << PARTIAL_BITS) };
    let mut slots = [0; 2 * SLOTS];
    let (words, predicted) = (&literals.words[..count], &literals.predicted[..count]);
    let step = (count / VOTERS).max(1);
    let mut at = 0;
    while at < count {
        let (word, predicted) = (u32::from_le_bytes(words[at]), u32::from_le_bytes(predicted[at]));
        let needs_none = usize::from(word == 0) | usize::from((word ^ predicted) >> 16 == 0);
        let slot = &mut slots[slot_of(word) | needs_none << SLOT_BITS];
        let key = word & !LOW;
        let against = if *slot & LOW == 0 { key | 1 } else { *slot - 1 };
        *slot = if *slot & !LOW == key { *slot + 1 } else { against };
        at += step;
    }
    core::array::from_fn(|slot| slots[slot] & !LOW)
}

pub(super) fn classify(
    literals: &Literals<'_>,
    count: usize,
    keys: &Keys,
    streams: &mut Streams<'_>,
) -> Classified {
    let mut found = Classified::default();
    let (mut value_plane, mut other_plane) = (0u16, 0u16);
    for nth in 0..count {
        let bytes = literals.words[nth];
        let (word, predicted) =
            (u32::from_le_bytes(bytes), u32::from_le_bytes(literals.predicted[nth]));
        let slot = slot_of(word);
        let (value, other) = if word == 0 {
            (None, false)
        } else if (word ^ predicted) >> 16 == 0 {
            (Some(word), true)
        } else if word & !LOW == keys[slot] {
            found.slots |= 1 << slot;
            (Some((slot as u32) << PARTIAL_BITS | word & LOW), false)
        } else {
            streams.misses[found.misses] = bytes;
            found.misses += 1;
            (None, true)
        };
        if let Some(value) = value {
            streams.values[found.values] = (value as u16).to_le_bytes();
            found.values += 1;
        }
        let bit = nth % LANES;
        value_plane |= u16::from(value.is_some()) << bit;
        other_plane |= u16::from(other) << bit;
        if bit == LANES - 1 || nth + 1 == count {
            streams.value_plane[nth / LANES] = value_plane.to_le_bytes();
            streams.other_plane[nth / LANES] = other_plane.to_le_bytes();
            (value_plane, other_plane) = (0, 0);
        }
    }
    found
}

pub(super) fn resolve(
    sections: &Sections<'_>,
    count: usize,
    keys: &Keys,
    literals: &mut Bytes,
    halves: &mut Halves,
) -> Resolved {
    let (values, _) = sections.values.as_chunks();
    let (misses, _) = sections.misses.as_chunks();
    let mut used = Resolved::default();
    for (nth, literal) in literals.as_chunks_mut().0.iter_mut().enumerate().take(count) {
        let bit = |plane: &[u8; PLANE_BYTES]| plane[nth / 8] >> (nth % 8) & 1 == 1;
        let (is_value, other) = (bit(sections.value_plane), bit(sections.other_plane));
        halves[nth / 8] |= u8::from(is_value && other) << (nth % 8);
        *literal = if is_value {
            let value = u32::from(u16::from_le_bytes(values[used.values]));
            used.values += 1;
            let key = keys[(value >> PARTIAL_BITS) as usize % SLOTS];
            if other { value } else { key | value & LOW }.to_le_bytes()
        } else if other {
            used.misses += 1;
            misses[used.misses - 1]
        } else {
            [0; 4]
        };
    }
    used
}

pub(super) fn scatter(
    sections: &Sections<'_>,
    distances: &Distances,
    literals: &Bytes,
    halves: &Halves,
    page: &mut Page,
) -> usize {
    let (literals, _) = literals.as_chunks::<4>();
    let mut taken = 0;
    for (vector, (&distance, mask)) in distances.iter().zip(sections.literals()).enumerate() {
        for lane in 0..LANES {
            let place = LANES * vector + lane;
            let mut word = predicted(page, place, distance);
            if mask >> lane & 1 == 1 {
                let [.., c, d] = word;
                word = literals[taken];
                if halves[taken / 8] >> (taken % 8) & 1 == 1 {
                    word = [word[0], word[1], c, d];
                }
                taken += 1;
            }
            if let Some(to) = page.get_mut(4 * place..).and_then(<[u8]>::first_chunk_mut) {
                *to = word;
            }
        }
    }
    taken
}

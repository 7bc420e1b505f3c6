//! Literals: the words outside of copies, told apart by two dictionaries.

use super::{GROUP, Literals, PARTIAL_BITS, SLOTS, VOTERS, slot_of};
use crate::PAGE_WORDS;

/// The keys of a page's literals, one a slot.
#[derive(Clone, Copy)]
pub(crate) struct Dictionary {
    pub keys: [u32; SLOTS],
    low_bits: u32,
}

impl Dictionary {
    /// The keys that a sample of the literals votes for: each adds one to its key where that has the
    /// slot, and takes one from another's that has it, until it takes its place.
    pub(super) fn vote(literals: &[[u8; 4]], low_bits: u32) -> Dictionary {
        let mut keys = [0; SLOTS];
        let mut votes = [0i32; SLOTS];
        for word in literals.iter().step_by((literals.len() / VOTERS).max(1)) {
            let word = u32::from_le_bytes(*word);
            let (slot, key) = (slot_of(word, low_bits), word >> low_bits);
            let count = votes[slot] + if keys[slot] == key { 1 } else { -1 };
            (keys[slot], votes[slot]) = if count < 0 { (key, 1) } else { (keys[slot], count) };
        }
        Dictionary { keys, low_bits }
    }

    /// The slot that has the word's key.
    #[inline]
    fn find(&self, word: u32) -> Option<usize> {
        let slot = slot_of(word, self.low_bits);
        (self.keys[slot] == word >> self.low_bits).then_some(slot)
    }
}

/// What is stored of the literals, by section, as the encoder gathers it.
pub(crate) struct Streams<'a> {
    /// For eight literals the low bits of their classes, then the high bits.
    pub classes: &'a mut [[u8; 2]; GROUPS],
    pub partials: &'a mut [[u8; 2]; STREAM],
    pub halves: &'a mut [[u8; 2]; STREAM],
    /// One a byte.
    pub half_slots: &'a mut [u8; STREAM],
    pub misses: &'a mut [[u8; 4]; STREAM],
}

/// Groups of a page that is all literals.
pub(crate) const GROUPS: usize = PAGE_WORDS / GROUP;
/// Room for a page's words, and to write a group of eight where one is kept.
pub(crate) const STREAM: usize = PAGE_WORDS + GROUP;

/// Bytes of all streams.
pub(super) const STREAMS_BYTES: usize = 2 * GROUPS + 9 * STREAM;

impl<'a> Streams<'a> {
    pub(super) fn carve(scratch: &'a mut [u8; STREAMS_BYTES]) -> Option<Streams<'a>> {
        let (classes, rest) = scratch.split_first_chunk_mut::<{ 2 * GROUPS }>()?;
        let (partials, rest) = rest.split_first_chunk_mut::<{ 2 * STREAM }>()?;
        let (halves, rest) = rest.split_first_chunk_mut::<{ 2 * STREAM }>()?;
        let (half_slots, misses) = rest.split_first_chunk_mut::<STREAM>()?;
        Some(Streams {
            classes: classes.as_chunks_mut().0.first_chunk_mut()?,
            partials: partials.as_chunks_mut().0.first_chunk_mut()?,
            halves: halves.as_chunks_mut().0.first_chunk_mut()?,
            half_slots,
            misses: misses.as_chunks_mut().0.first_chunk_mut()?,
        })
    }
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Classified {
    pub partials: usize,
    pub halves: usize,
    pub misses: usize,
    /// Slots whose keys are used: bit *s* stands for slot *s*.
    pub partial_slots: u16,
    pub half_slots: u16,
}

/// Tells the first `count` literals apart. What the streams hold behind their ends is unspecified.
pub(super) fn classify(
    literals: &Literals,
    count: usize,
    partials: &Dictionary,
    halves: &Dictionary,
    streams: &mut Streams<'_>,
) -> Classified {
    let mut found = Classified::default();
    for (group, classes) in literals[..count].chunks(GROUP).zip(streams.classes.iter_mut()) {
        let (mut low, mut high) = (0, 0);
        for (bit, word) in group.iter().enumerate() {
            let bytes = *word;
            let word = u32::from_le_bytes(bytes);
            let class = if word == 0 {
                0
            } else if let Some(slot) = partials.find(word) {
                let value = (slot as u32) << PARTIAL_BITS | word & ((1 << PARTIAL_BITS) - 1);
                streams.partials[found.partials] = (value as u16).to_le_bytes();
                found.partials += 1;
                found.partial_slots |= 1 << slot;
                1
            } else if let Some(slot) = halves.find(word) {
                streams.halves[found.halves] = (word as u16).to_le_bytes();
                streams.half_slots[found.halves] = slot as u8;
                found.halves += 1;
                found.half_slots |= 1 << slot;
                2
            } else {
                streams.misses[found.misses] = bytes;
                found.misses += 1;
                3
            };
            low |= (class & 1) << bit;
            high |= (class >> 1) << bit;
        }
        *classes = [low, high];
    }
    found
}

/// The sections that literals are made of again.
pub(crate) struct Sources<'a> {
    pub classes: &'a [[u8; 2]],
    /// Keys in their places in a word.
    pub partial_keys: &'a [u32; SLOTS],
    pub half_keys: &'a [u32; SLOTS],
    pub partials: &'a [[u8; 2]],
    pub halves: &'a [[u8; 2]],
    /// Two a byte.
    pub half_slots: &'a [u8],
    pub misses: &'a [[u8; 4]],
}

/// Makes `count` literals. The sections are as long as the classes call for.
pub(super) fn expand(sources: &Sources<'_>, literals: &mut Literals, count: usize) {
    let mut partials = sources.partials.iter().map(|bytes| u16::from_le_bytes(*bytes));
    let mut halves = sources.halves.iter().map(|bytes| u16::from_le_bytes(*bytes));
    let mut half_slots = sources.half_slots.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let mut misses = sources.misses.iter().copied();
    for (nth, literal) in literals[..count].iter_mut().enumerate() {
        let [low, high] = sources.classes[nth / GROUP];
        let bit = nth % GROUP;
        *literal = match (low >> bit & 1, high >> bit & 1) {
            (0, 0) => [0; 4],
            (_, 0) => {
                let value = u32::from(partials.next().unwrap_or_default());
                let key = sources.partial_keys[(value >> PARTIAL_BITS) as usize];
                (key | value & ((1 << PARTIAL_BITS) - 1)).to_le_bytes()
            }
            (0, _) => {
                let slot = usize::from(half_slots.next().unwrap_or_default()) % SLOTS;
                let low = u32::from(halves.next().unwrap_or_default());
                (sources.half_keys[slot] | low).to_le_bytes()
            }
            _ => misses.next().unwrap_or_default(),
        };
    }
}

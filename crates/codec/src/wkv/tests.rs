//! The kernels of every backend against the plain ones, with counts at which registers are full,
//! empty and anything between.

use std::boxed::Box;
use std::fmt::Display;

use super::nibbles::most_frequent;
use super::words::{PLANE_BYTES, vote};
use super::*;
use crate::lz::word_at;
use crate::numbers::Numbers;

impl Numbers {
    fn bytes<const COUNT: usize>(&mut self) -> Box<[u8; COUNT]> {
        self.bytes_of(Numbers::next)
    }

    /// A few bits, about half of them, or most.
    fn bits<const COUNT: usize>(&mut self) -> Box<[u8; COUNT]> {
        match self.below(3) {
            0 => self.bytes_of(|numbers| numbers.next() & numbers.next()),
            1 => self.bytes(),
            _ => self.bytes_of(|numbers| numbers.next() | numbers.next()),
        }
    }

    fn bytes_of<const COUNT: usize>(
        &mut self,
        eight: impl Fn(&mut Numbers) -> u64,
    ) -> Box<[u8; COUNT]> {
        let mut bytes = Box::new([0; COUNT]);
        for bytes in bytes.chunks_mut(8) {
            bytes.copy_from_slice(&eight(self).to_le_bytes()[..bytes.len()]);
        }
        bytes
    }

    /// Fifteen of these bytes are more than half of them.
    fn bytes_as_in_text<const COUNT: usize>(&mut self) -> Box<[u8; COUNT]> {
        Box::new(core::array::from_fn(|_| {
            let limit = [4, 14, 16, 60, 256][self.below(5)];
            (37 * self.below(limit)) as u8
        }))
    }

    /// A word of any class.
    fn word(&mut self, predicted: u32) -> u32 {
        let low = self.below(1 << 16) as u32;
        match self.below(5) {
            0 => 0,
            1 => predicted,
            2 => predicted ^ low,
            3 => (self.below(24) as u32) << PARTIAL_BITS | low & 0xfff,
            _ => self.next() as u32,
        }
    }

    /// Records, in which many words are as in the record before.
    fn page(&mut self) -> Page {
        let length = [1, 2, 16, 17, 18, 24, 64, 71, 142][self.below(9)];
        let mut page = [0; PAGE_SIZE];
        for place in 0..PAGE_WORDS {
            let back = word_at(&page, place.saturating_sub(length));
            let word = if self.below(3) == 0 { self.word(back) } else { back };
            put(&mut page, 4 * place, &word.to_le_bytes());
        }
        page
    }

    fn distances(&mut self) -> Distances {
        core::array::from_fn(|vector| {
            let distance = strides::distance_of(self.below(DISTANCE_COUNT) as u8);
            if self.below(8) == 0 || usize::from(distance) > LANES * vector { 0 } else { distance }
        })
    }
}

/// Every backend's kernels give what the plain ones give.
#[track_caller]
fn agree<T: PartialEq>(case: impl Display, give: impl Fn(&Kernels) -> T) {
    let expected = give(&SCALAR);
    for backend in Backend::available().filter(|backend| *backend != Backend::SCALAR) {
        assert!(give(backend.wkv()) == expected, "{case} by {}", backend.name());
    }
}

/// Of pages, or of samples.
const TRIES: usize = if cfg!(miri) { 1 } else { 200 };

/// Numbers of words, or of literals; fewer for Miri.
fn counts() -> impl Iterator<Item = usize> {
    let all = (0..=100).chain([500, 512]).chain(PAGE_WORDS - 20..=PAGE_WORDS);
    all.filter(|count| !cfg!(miri) || [0, 1, 13, PAGE_WORDS].contains(count))
}

fn counts_of_bytes() -> impl Iterator<Item = usize> {
    let all = (0..=200).chain(PAGE_SIZE - 70..=PAGE_SIZE);
    all.filter(|count| !cfg!(miri) || [0, 1, 77, PAGE_SIZE].contains(count))
}

/// What is unspecified shall not be equal by chance.
const ANYTHING: u8 = 0xa5;
const ANY_WORDS: Words = [[ANYTHING; 4]; PAGE_WORDS + LANES];
const ANY_VALUES: Values = [[ANYTHING; 2]; PAGE_WORDS + LANES];
const ANY_MASKS: Masks = [[ANYTHING; 2]; VECTORS + 1];
const ANY_BYTES: Bytes = [ANYTHING; WORDS_BYTES];

#[test]
fn strides() {
    let mut numbers = Numbers(1);
    for nth in 0..TRIES {
        let page = numbers.page();
        agree(nth, |kernels| {
            let strides = (kernels.strides)(&page, &mut [ANYTHING; size_of::<Signatures>()]);
            (strides.numbers, strides.count, strides.distances(), strides.choices())
        });
    }
}

#[test]
fn gather() {
    let mut numbers = Numbers(2);
    for nth in 0..TRIES {
        let (page, distances) = (numbers.page(), numbers.distances());
        agree(nth, |kernels| {
            let (mut masks, mut words, mut predicted) = (ANY_MASKS, ANY_WORDS, ANY_WORDS);
            let mut literals = Literals { words: &mut words, predicted: &mut predicted };
            let gathered = (kernels.gather)(&page, &distances, &mut masks, &mut literals);
            let masks = masks[..gathered.vectors.count_ones() as usize].to_vec();
            let [words, predicted] =
                [words, predicted].map(|words| words[..gathered.literals].to_vec());
            (gathered, masks, words, predicted)
        });
    }
}

#[test]
fn classify() {
    let mut numbers = Numbers(3);
    for count in counts() {
        let (mut words, mut predicted) = (ANY_WORDS, ANY_WORDS);
        for (word, predicted) in words.iter_mut().zip(&mut predicted) {
            *predicted = (numbers.next() as u32).to_le_bytes();
            *word = numbers.word(u32::from_le_bytes(*predicted)).to_le_bytes();
        }
        let literals = Literals { words: &mut words, predicted: &mut predicted };
        let keys = vote(&literals, count);
        agree(count, |kernels| {
            let [mut value_plane, mut other_plane] = [ANY_MASKS; 2];
            let (mut values, mut misses) = (ANY_VALUES, ANY_WORDS);
            let mut streams = Streams {
                value_plane: &mut value_plane,
                other_plane: &mut other_plane,
                values: &mut values,
                misses: &mut misses,
            };
            let found = (kernels.classify)(&literals, count, &keys, &mut streams);
            let planes = [value_plane, other_plane]
                .map(|plane| plane.as_flattened()[..count.div_ceil(8)].to_vec());
            (found, planes, values[..found.values].to_vec(), misses[..found.misses].to_vec())
        });
    }
}

#[test]
fn highest() {
    let mut numbers = Numbers(4);
    for _ in 0..TRIES {
        // By `nibbles`, from 16 fours to less than 128.
        let (sampled, kinds) = (64 + numbers.below(448), 1 + numbers.below(256));
        for bytes in [numbers.bytes::<512>(), numbers.bytes_as_in_text::<512>()] {
            let mut counts = [0; 256];
            for byte in &bytes[..sampled] {
                counts[usize::from(*byte) % kinds] += 1;
            }
            agree(sampled, |kernels| (kernels.highest)(&counts, sampled as u16));
        }
    }
}

#[test]
fn pack() {
    let bytes = Numbers(5).bytes_as_in_text::<WORDS_BYTES>();
    let table = most_frequent(&SCALAR, &bytes[..]).expect("fifteen bytes are more than half");
    for count in counts_of_bytes() {
        agree(count, |kernels| {
            let (mut codes, mut escapes) = (ANY_BYTES, ANY_BYTES);
            let escaped = (kernels.pack)(&bytes[..], count, &table, &mut codes, &mut escapes);
            (codes[..count.div_ceil(2)].to_vec(), escapes[..escaped].to_vec())
        });
    }
}

#[test]
fn unpack() {
    let mut numbers = Numbers(6);
    for count in counts_of_bytes() {
        let (codes, escapes) = (numbers.bits(), numbers.bytes());
        let byte_of = numbers.bytes();
        agree(count, |kernels| {
            let mut bytes = ANY_BYTES;
            let escaped = (kernels.unpack)(&codes, &escapes, count, &byte_of, &mut bytes);
            (escaped, bytes[..count].to_vec())
        });
    }
}

#[test]
fn resolve_and_scatter() {
    let mut numbers = Numbers(7);
    for count in counts() {
        let (masks, value_plane, other_plane) = (numbers.bits(), numbers.bits(), numbers.bits());
        let (values, misses) = (numbers.bytes(), numbers.bytes());
        let sections = Sections {
            vectors: u64::from_le_bytes(*numbers.bits()),
            masks: &masks,
            value_plane: &value_plane,
            other_plane: &other_plane,
            values: &values,
            misses: &misses,
        };
        let keys = core::array::from_fn(|_| (numbers.next() as u32) << PARTIAL_BITS);
        let resolve = |kernels: &Kernels| {
            let (mut literals, mut halves) = (ANY_BYTES, [0; PLANE_BYTES]);
            let used = (kernels.resolve)(&sections, count, &keys, &mut literals, &mut halves);
            (used, literals, halves)
        };
        agree(count, |kernels| {
            let (used, literals, halves) = resolve(kernels);
            (used, literals[..4 * count].to_vec(), halves[..count.div_ceil(8)].to_vec())
        });
        let (_, literals, halves) = resolve(&SCALAR);
        let distances = numbers.distances();
        agree(count, |kernels| {
            let mut page = [ANYTHING; PAGE_SIZE];
            let taken = (kernels.scatter)(&sections, &distances, &literals, &halves, &mut page);
            (taken, page)
        });
    }
}

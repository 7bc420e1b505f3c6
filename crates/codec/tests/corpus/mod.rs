//! Pages made from seeds: kinds of data that memory holds, and the shapes that push a codec to its
//! limits. Shared by the tests; not every test uses all of it.
#![allow(dead_code)]

#[macro_use]
mod codecs;

use proptest::prelude::*;
use ramfold_codec::{Codec, Compressor, PAGE_SIZE, Page, compress_scratch_bytes};

/// SplitMix64, so that a page depends on its seed alone.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The object of a page, which compresses.
pub(crate) fn compress(codec: Codec, page: &Page) -> Vec<u8> {
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
    let mut out = vec![0; 2 * PAGE_SIZE];
    let length = compressor.compress(page, &mut out).expect("these pages compress");
    out.truncate(length);
    out
}

/// FNV-1a, 64 bits: enough to notice that an output changed.
pub(crate) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in parts.into_iter().flatten() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

pub(crate) fn from_words(word: impl FnMut(usize) -> u32) -> Page {
    let mut word = word;
    let mut page = [0; PAGE_SIZE];
    for (nth, bytes) in page.chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&word(nth).to_le_bytes());
    }
    page
}

/// A kind's name, and what makes a page of it.
pub(crate) type Kind = (&'static str, fn(&mut Numbers) -> Page);

pub(crate) const KINDS: &[Kind] = &[
    ("zero", |_| [0; PAGE_SIZE]),
    ("ones", |_| [0xff; PAGE_SIZE]),
    ("one byte repeated", |n| [n.next() as u8; PAGE_SIZE]),
    ("one word repeated", |n| {
        let word = n.word();
        from_words(|_| word)
    }),
    ("random", |n| from_words(|_| n.word())),
    ("single bit", |n| {
        let mut page = [0; PAGE_SIZE];
        page[n.below(PAGE_SIZE)] = 1 << n.below(8);
        page
    }),
    ("last byte", |_| {
        let mut page = [0; PAGE_SIZE];
        page[PAGE_SIZE - 1] = 1;
        page
    }),
    ("few words", |n| {
        let mut page = [0; PAGE_SIZE];
        // Around the border between WKdm's forms.
        for _ in 0..n.below(100) {
            let at = 4 * n.below(PAGE_SIZE / 4);
            page[at..at + 4].copy_from_slice(&n.word().to_le_bytes());
        }
        page
    }),
    ("small integers", |n| from_words(|_| (n.below(300)) as u32)),
    ("small 64-bit integers", |n| {
        from_words(|nth| if nth % 2 == 0 { n.below(100_000) as u32 } else { 0 })
    }),
    ("signed integers", |n| from_words(|_| (n.below(200) as i32 - 100) as u32)),
    ("pointers", |n| {
        let heap = 0x7f12_0000_0000 | u64::from(n.word() & 0xfff_f000);
        let mut high = 0;
        from_words(|nth| {
            if nth % 2 == 1 {
                return high;
            }
            let pointer = if n.below(4) == 0 { 0 } else { heap + 16 * n.below(1 << 12) as u64 };
            high = (pointer >> 32) as u32;
            pointer as u32
        })
    }),
    ("text", |n| {
        const WORDS: [&str; 12] = [
            "page", "frame", "of", "the", "codec", "object", "a", "resident", "pool", "\n", "and",
            "memory",
        ];
        let mut page = [b' '; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let word = WORDS[n.below(WORDS.len())].as_bytes();
            let length = word.len().min(PAGE_SIZE - at);
            page[at..at + length].copy_from_slice(&word[..length]);
            at += length + 1;
        }
        page
    }),
    ("doubles", |n| {
        let mut value = 1.0 + n.below(1000) as f64;
        let mut low = None;
        from_words(|_| {
            if let Some(high) = low.take() {
                return high;
            }
            value += n.below(1000) as f64 / 64.0;
            low = Some((value.to_bits() >> 32) as u32);
            value.to_bits() as u32
        })
    }),
    ("floats", |n| from_words(|nth| (n.below(9) as f32 / (1 + nth) as f32).to_bits())),
    ("alternating words", |n| {
        let words = [n.word(), n.word()];
        from_words(|nth| words[nth % 2])
    }),
    ("alternating zero", |n| from_words(|nth| if nth % 2 == 0 { 0 } else { n.word() })),
    ("counting bytes", |_| {
        from_words(|nth| 0x0302_0100u32.wrapping_add(0x0404_0404u32.wrapping_mul(nth as u32)))
    }),
    ("counting words", |n| {
        let start = n.word();
        from_words(|nth| start.wrapping_add(nth as u32))
    }),
    ("stride of 1 KiB", |n| {
        let start = n.word();
        from_words(|nth| start.wrapping_add(1024 * nth as u32))
    }),
    ("partial matches", |n| {
        let base = n.word();
        from_words(|_| base & !0x3ff | n.word() & 0x3ff)
    }),
    ("half matches", |n| {
        let base = n.word();
        from_words(|_| base & 0xffff_0000 | n.word() & 0xffff)
    }),
    ("zero patterns", |n| {
        from_words(|_| match n.below(4) {
            0 => 0,
            1 => n.word() & 0xff,
            2 => n.word() & 0x00ff_00ff,
            _ => n.word(),
        })
    }),
    ("short copies", |n| {
        // Four bytes seen before between four new ones: LZ4's least gain.
        let known = n.word();
        from_words(|nth| if nth % 2 == 0 { known } else { n.word() })
    }),
    ("overlapping copies", |n| {
        let period = 1 + n.below(40);
        let mut page = [0; PAGE_SIZE];
        for at in 0..PAGE_SIZE {
            page[at] = if at < period { n.next() as u8 } else { page[at - period] };
        }
        page
    }),
    ("runs", |n| {
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let length = (1 + n.below(300)).min(PAGE_SIZE - at);
            page[at..at + length].fill(n.next() as u8 & 3);
            at += length;
        }
        page
    }),
    ("random, then repeated", |n| {
        let mut page = from_words(|_| n.word());
        let (first, second) = page.split_at_mut(PAGE_SIZE / 2);
        second.copy_from_slice(first);
        page
    }),
    ("incompressible but for the end", |n| {
        let mut page = from_words(|_| n.word());
        let from = PAGE_SIZE - n.below(64);
        page[from..].fill(0);
        page
    }),
    ("a heap", |n| {
        // Runs of the other shapes, as objects of different types lie side by side.
        let base = n.word() & 0x00ff_f000;
        let mut left = 0;
        let mut shape = 0;
        from_words(|_| {
            if left == 0 {
                left = 1 + n.below(24);
                shape = n.below(6);
            }
            left -= 1;
            match shape {
                0 | 1 => 0,
                2 => base + 8 * n.below(2048) as u32,
                3 => n.below(256) as u32,
                4 => 0x6120_0000 | n.word() & 0x1f1f,
                _ => n.word(),
            }
        })
    }),
];

/// A page of the kind with that name.
pub(crate) fn page_of(kind: &str, seed: u64) -> Page {
    let (_, make) = KINDS.iter().find(|(name, _)| *name == kind).expect("a kind's name");
    make(&mut Numbers::new(seed))
}

/// `count` pages of every kind.
pub(crate) fn pages(seed: u64, count: usize) -> Vec<(&'static str, Page)> {
    let mut numbers = Numbers::new(seed);
    KINDS
        .iter()
        .flat_map(|&(name, make)| (0..count).map(move |_| (name, make)))
        .map(|(name, make)| (name, make(&mut numbers)))
        .collect()
}

/// A page of any kind, or one put together from pieces of two and then changed here and there.
pub(crate) fn any_page() -> impl Strategy<Value = Box<Page>> {
    let kind = (0..KINDS.len(), any::<u64>())
        .prop_map(|(kind, seed)| Box::new(KINDS[kind].1(&mut Numbers::new(seed))));
    let edits = prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..8);
    (kind.clone(), kind, 0..=PAGE_SIZE, edits).prop_map(|(mut page, other, cut, edits)| {
        page[cut..].copy_from_slice(&other[cut..]);
        for (at, byte) in edits {
            page[at] = byte;
        }
        page
    })
}

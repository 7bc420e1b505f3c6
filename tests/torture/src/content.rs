//! What a page must hold, computed from a few bits instead of being stored a second time.
//!
//! A copy of the memory would lie in memory that can be taken away just as well, and would go
//! wrong with it. So each page has a `Content` word in a shared table, and the 4,096 bytes follow
//! from that word and the seed.

use crate::memory::PAGE;
use crate::rng::{Rng, mix};

/// The bytes of one page.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct PageBytes(pub [u8; PAGE]);

impl PageBytes {
    pub(crate) const fn zeroed() -> Self {
        Self([0; PAGE])
    }
}

/// What all contents of a run depend on besides their own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub seed: u64,
    /// Share of pages that are random throughout, in percent.
    pub incompressible_percent: u8,
}

/// The kinds of page that programs have, as far as compression is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Zero,
    SameFilled,
    Text,
    SmallInts,
    Pointers,
    HalfRandom,
    Sparse,
    Random,
}

/// How often each compressible class comes, in sixteenths.
const COMPRESSIBLE: [Class; 16] = [
    Class::Zero,
    Class::SameFilled,
    Class::SameFilled,
    Class::Text,
    Class::Text,
    Class::Text,
    Class::Text,
    Class::SmallInts,
    Class::SmallInts,
    Class::SmallInts,
    Class::Pointers,
    Class::Pointers,
    Class::Pointers,
    Class::HalfRandom,
    Class::HalfRandom,
    Class::Sparse,
];

const WORDS: [&[u8; 8]; 32] = [
    b"memory  ",
    b"of      ",
    b"the     ",
    b"program ",
    b"is      ",
    b"kept    ",
    b"in      ",
    b"pages   ",
    b"and     ",
    b"every   ",
    b"one     ",
    b"must    ",
    b"read    ",
    b"back    ",
    b"as      ",
    b"it      ",
    b"was     ",
    b"written ",
    b"by      ",
    b"a       ",
    b"thread  ",
    b"or      ",
    b"child   ",
    b"which   ",
    b"then    ",
    b"forks   ",
    b"maps    ",
    b"unmaps  ",
    b"moves   ",
    b"locks   ",
    b"waits.  ",
    b"exits.\n ",
];

/// Lengths of `WORDS`, each with the one space behind it.
const LENGTHS: [usize; 32] = {
    let mut lengths = [8; 32];
    let mut word = 0;
    while word < 32 {
        let mut at = 7;
        while at > 0 && WORDS[word][at - 1] == b' ' {
            at -= 1;
        }
        lengths[word] = at + 1;
        word += 1;
    }
    lengths
};

/// The word that a page's bytes follow from.
///
/// Where the page was first written (region, page), a version that grows with each write, the
/// number of partial writes since the last full one, and whether those lie on zeros. It travels
/// with the bytes when a page is copied, so region and page name the origin, not the place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content(u64);

const OVERLAY_SHIFT: u32 = 1;
const VERSION_SHIFT: u32 = 6;
const PAGE_SHIFT: u32 = 30;
const REGION_SHIFT: u32 = 52;
const OVERLAY_MASK: u64 = 0x1f;
const VERSION_MASK: u64 = 0xff_ffff;
const PAGE_MASK: u64 = 0x3f_ffff;
const REGION_MASK: u64 = 0xfff;

/// Partial writes that may lie on one full write.
pub(crate) const OVERLAYS_MAX: u64 = 15;
/// Regions that a content word can name.
pub(crate) const REGIONS_MAX: usize = REGION_MASK as usize + 1;
/// Pages of one region that a content word can name.
pub(crate) const REGION_PAGES_MAX: usize = PAGE_MASK as usize + 1;

impl Content {
    fn origin(region: usize, page: usize, version: u64) -> u64 {
        (region as u64 & REGION_MASK) << REGION_SHIFT
            | (page as u64 & PAGE_MASK) << PAGE_SHIFT
            | (version & VERSION_MASK) << VERSION_SHIFT
    }

    /// A page written from end to end.
    pub(crate) fn full(region: usize, page: usize, version: u64) -> Self {
        Self(Self::origin(region, page, version))
    }

    /// A page of zeros, as fresh memory is.
    pub(crate) fn zero(region: usize, page: usize, version: u64) -> Self {
        Self(Self::origin(region, page, version) | 1)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn region(self) -> usize {
        (self.0 >> REGION_SHIFT & REGION_MASK) as usize
    }

    pub(crate) fn page(self) -> usize {
        (self.0 >> PAGE_SHIFT & PAGE_MASK) as usize
    }

    pub(crate) fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT & VERSION_MASK
    }

    pub(crate) fn overlays(self) -> u64 {
        self.0 >> OVERLAY_SHIFT & OVERLAY_MASK
    }

    pub(crate) fn on_zeros(self) -> bool {
        self.0 & 1 != 0
    }

    /// The content after one more partial write, or nothing when there are `OVERLAYS_MAX` already.
    pub(crate) fn overlaid(self) -> Option<Self> {
        (self.overlays() < OVERLAYS_MAX).then(|| Self(self.0 + (1 << OVERLAY_SHIFT)))
    }

    fn key(self, recipe: Recipe) -> u64 {
        mix(&[recipe.seed, self.0 & !(OVERLAY_MASK << OVERLAY_SHIFT)])
    }

    pub(crate) fn class(self, recipe: Recipe) -> Class {
        if self.on_zeros() {
            return Class::Zero;
        }
        let mut rng = Rng::new(self.key(recipe));
        class_of(&mut rng, recipe)
    }

    /// Computes all bytes of the page.
    pub(crate) fn fill(self, recipe: Recipe, page: &mut PageBytes) {
        if self.on_zeros() {
            page.0.fill(0);
        } else {
            let mut rng = Rng::new(self.key(recipe));
            fill_class(class_of(&mut rng, recipe), &mut rng, &mut page.0);
        }
        for index in 1..=self.overlays() {
            let overlay = self.overlay(recipe, index);
            overlay.fill(&mut page.0[overlay.offset..overlay.offset + overlay.bytes]);
        }
    }

    /// The last partial write of this content: what `overlaid` added.
    pub(crate) fn last_overlay(self, recipe: Recipe) -> Overlay {
        self.overlay(recipe, self.overlays())
    }

    fn overlay(self, recipe: Recipe, index: u64) -> Overlay {
        let mut rng = Rng::new(mix(&[self.key(recipe), index]));
        let bytes = match rng.below(8) {
            0 => 1,
            1..=3 => rng.between(2, 16),
            4..=6 => rng.between(17, 512),
            _ => rng.between(513, PAGE - 1),
        };
        let offset = rng.below(PAGE - bytes + 1);
        Overlay { offset, bytes, key: rng.word() }
    }
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let base = if self.on_zeros() { "zeros" } else { "pattern" };
        write!(
            f,
            "{base} of region {} page {} version {}, {} partial writes",
            self.region(),
            self.page(),
            self.version(),
            self.overlays()
        )
    }
}

/// A partial write: where in the page, and what its bytes follow from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overlay {
    pub offset: usize,
    pub bytes: usize,
    key: u64,
}

impl Overlay {
    /// Computes the bytes; `out` has `self.bytes` of them.
    pub(crate) fn fill(self, out: &mut [u8]) {
        fill_bytes(self.key, out);
    }
}

/// Fills any number of bytes with text or noise that follows from `key`.
pub(crate) fn fill_bytes(key: u64, out: &mut [u8]) {
    let mut rng = Rng::new(key);
    if rng.percent(50) {
        fill_text(&mut rng, out);
    } else {
        fill_random(&mut rng, out);
    }
}

fn class_of(rng: &mut Rng, recipe: Recipe) -> Class {
    if rng.percent(usize::from(recipe.incompressible_percent)) {
        Class::Random
    } else {
        *rng.pick(&COMPRESSIBLE)
    }
}

fn fill_class(class: Class, rng: &mut Rng, out: &mut [u8; PAGE]) {
    match class {
        Class::Zero => out.fill(0),
        Class::SameFilled => {
            let word = if rng.percent(50) {
                u64::from_ne_bytes([rng.word() as u8; 8])
            } else {
                rng.word()
            };
            fill_words(out, || word);
        }
        Class::Text => fill_text(rng, out),
        Class::SmallInts => fill_words(out, || {
            let draw = rng.word();
            draw & 0x3ff | (draw & 0x3ff_0000) << 16
        }),
        Class::Pointers => {
            let base = 0x7f00_0000_0000 | rng.word() & 0xff_ffff_f000;
            fill_words(out, || {
                let draw = rng.word();
                if draw & 7 == 0 { 0 } else { base + (draw >> 3 & 0xf_fff8) }
            });
        }
        Class::HalfRandom => {
            let (first, second) = out.split_at_mut(PAGE / 2);
            fill_random(rng, first);
            fill_text(rng, second);
        }
        Class::Sparse => {
            out.fill(0);
            for _ in 0..rng.between(1, 24) {
                out[rng.below(PAGE)] = rng.word() as u8;
            }
        }
        Class::Random => fill_random(rng, out),
    }
}

fn fill_words(out: &mut [u8], mut next: impl FnMut() -> u64) {
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&next().to_ne_bytes());
    }
}

fn fill_random(rng: &mut Rng, out: &mut [u8]) {
    for piece in out.chunks_mut(8) {
        piece.copy_from_slice(&rng.word().to_ne_bytes()[..piece.len()]);
    }
}

fn fill_text(rng: &mut Rng, out: &mut [u8]) {
    let mut rest = out;
    loop {
        // One draw gives twelve words.
        let mut draw = rng.word();
        for _ in 0..12 {
            let index = (draw & 31) as usize;
            draw >>= 5;
            match rest.first_chunk_mut::<8>() {
                Some(place) => *place = *WORDS[index],
                None => return rest.copy_from_slice(&WORDS[index][..rest.len()]),
            }
            rest = &mut rest[LENGTHS[index]..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { seed: 11, incompressible_percent: 10 };

    fn bytes(content: Content) -> PageBytes {
        let mut page = PageBytes([0xee; PAGE]);
        content.fill(RECIPE, &mut page);
        page
    }

    #[test]
    fn fields_survive_packing() {
        let content = Content::full(0xabc, 0x2f_fff1, 0xab_cdef).overlaid().unwrap();
        assert_eq!(content.region(), 0xabc);
        assert_eq!(content.page(), 0x2f_fff1);
        assert_eq!(content.version(), 0xab_cdef);
        assert_eq!(content.overlays(), 1);
        assert!(!content.on_zeros());
        assert_eq!(Content::from_bits(content.bits()).bits(), content.bits());
    }

    #[test]
    fn contents_are_a_function_of_the_word() {
        for page in 0..200 {
            let content = Content::full(3, page, 9);
            assert_eq!(bytes(content).0, bytes(content).0);
        }
    }

    #[test]
    fn fresh_memory_is_zero() {
        assert!(bytes(Content::zero(1, 2, 3)).0.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn versions_and_places_differ() {
        let differing = (0..100)
            .filter(|&i| bytes(Content::full(1, i, 5)).0 != bytes(Content::full(1, i, 6)).0)
            .count();
        assert!(differing > 90, "{differing}");
        let differing = (0..100)
            .filter(|&i| bytes(Content::full(1, i, 5)).0 != bytes(Content::full(1, i + 1, 5)).0)
            .count();
        assert!(differing > 90, "{differing}");
    }

    #[test]
    fn overlay_changes_its_range_only() {
        for page in 0..300 {
            let before = Content::full(2, page, 1);
            let after = before.overlaid().unwrap();
            let overlay = after.last_overlay(RECIPE);
            let mut expected = bytes(before).0;
            overlay.fill(&mut expected[overlay.offset..overlay.offset + overlay.bytes]);
            assert!(expected == bytes(after).0);
        }
    }

    #[test]
    fn overlays_end() {
        let mut content = Content::zero(0, 0, 0);
        for _ in 0..OVERLAYS_MAX {
            content = content.overlaid().unwrap();
        }
        assert!(content.overlaid().is_none());
        assert!(content.on_zeros());
    }

    #[test]
    fn every_class_comes() {
        let mut seen = std::collections::BTreeMap::new();
        for page in 0..2000 {
            *seen.entry(format!("{:?}", Content::full(0, page, 1).class(RECIPE))).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
        assert!((100..400).contains(&seen["Random"]), "{seen:?}");
        let all = Recipe { incompressible_percent: 100, ..RECIPE };
        assert!((0..100).all(|page| Content::full(0, page, 1).class(all) == Class::Random));
    }
}

//! Page contents that compress like a program's heap.
//!
//! Generated pages follow the layouts that allocators and runtimes leave in
//! anonymous memory: records with type words and pointers into the same region,
//! tables of pointers and hashes, text, small integers, doubles, sparse
//! structures, untouched and incompressible pages. The shares are set so that
//! LZ4 makes 30 to 45 % of a heap (tested below); each page is a function of the
//! seed and its index.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ramfold_codec::PAGE_SIZE;

use super::random::{Random, Zipf, mix};

pub(crate) const PAGE_WORDS: usize = PAGE_SIZE / 8;

/// One page of a heap, aligned as the kernel's pages are.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(
    /// Its bytes.
    pub [u8; PAGE_SIZE],
);

const _: () = assert!(align_of::<Page>() == PAGE_SIZE, "a page fills one page of the kernel");

impl Page {
    /// All bytes are zero.
    pub const ZERO: Self = Self([0; PAGE_SIZE]);

    pub(crate) fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[index * 8..][..8]);
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn set_word(&mut self, index: usize, value: u64) {
        self.0[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }

    /// Wrapping sum of all words: reads the whole page.
    pub(crate) fn sum(&self) -> u64 {
        self.0.chunks_exact(8).fold(0u64, |sum, chunk| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            sum.wrapping_add(u64::from_le_bytes(bytes))
        })
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }
}

/// Where the contents of a heap come from.
pub struct PageSource {
    seed: u64,
    pages: Pages,
}

enum Pages {
    Generated(Ranks),
    /// Raw 4 KiB pages of a file, over and over. After the first time a few words of each are
    /// moved, so that no two pages are the same.
    File {
        file: File,
        page_count: usize,
    },
}

/// Skewed choices that several kinds of pages share.
struct Ranks {
    types: Zipf,
    words: Zipf,
}

/// Kinds of generated pages and their shares in percent.
const KINDS: [(Kind, usize); 9] = [
    (Kind::Records, 26),
    (Kind::Table, 8),
    (Kind::Text, 16),
    (Kind::Integers, 8),
    (Kind::Doubles, 6),
    (Kind::Sparse, 18),
    (Kind::CompactRecords, 6),
    (Kind::Zero, 7),
    (Kind::Random, 5),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reference count, type word, then pointers, small numbers and a hash:
    /// objects of an interpreter with 64-bit words.
    Records,
    /// Hash, key pointer, value pointer: an open-addressing table.
    Table,
    /// Words of a skewed vocabulary with separators.
    Text,
    /// Integers of 32 or 64 bits and small spread.
    Integers,
    /// Doubles: decimal prices, or a random walk with full mantissas.
    Doubles,
    /// Mostly zero, with a few fields a cache line.
    Sparse,
    /// Mark word, 32-bit class and 32-bit references: a managed heap.
    CompactRecords,
    Zero,
    Random,
}

impl PageSource {
    /// Pages that compress like those of a heap.
    pub fn generated(seed: u64) -> Self {
        let ranks = Ranks { types: Zipf::new(60, 1.5), words: Zipf::new(3000, 1.4) };
        Self { seed, pages: Pages::Generated(ranks) }
    }

    /// The raw pages of a file where one is given, or else generated ones.
    ///
    /// # Errors
    /// When the file cannot be opened or holds no page.
    pub(crate) fn of_option(file: Option<&Path>, seed: u64) -> Result<Self> {
        file.map_or_else(|| Ok(Self::generated(seed)), |file| Self::from_file(file, seed))
    }

    fn from_file(path: &Path, seed: u64) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes =
            file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        let page_count = usize::try_from(bytes.len() / PAGE_SIZE as u64)?;
        if page_count == 0 {
            bail!("{} holds not even one page of {PAGE_SIZE} bytes", path.display());
        }
        Ok(Self { seed, pages: Pages::File { file, page_count } })
    }

    /// The contents of page `index`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn page(&self, index: usize) -> Result<Page> {
        let mut page = Page::ZERO;
        match &self.pages {
            Pages::Generated(ranks) => {
                let mut random = self.random(index);
                generate(kind(&mut random), index, ranks, &mut random, &mut page);
            }
            Pages::File { file, page_count } => {
                let offset = (index % page_count) * PAGE_SIZE;
                file.read_exact_at(&mut page.0, offset as u64).context("cannot read --pages")?;
                if index >= *page_count && !page.is_zero() {
                    let mut random = self.random(index);
                    for _ in 0..4 {
                        let word = page.word(random.below(PAGE_WORDS));
                        page.set_word(random.below(PAGE_WORDS), word);
                    }
                }
            }
        }
        Ok(page)
    }

    fn random(&self, index: usize) -> Random {
        Random::new(mix(self.seed ^ mix(index as u64)))
    }
}

fn kind(random: &mut Random) -> Kind {
    let mut ticket = random.below(KINDS.iter().map(|(_, share)| share).sum());
    for (kind, share) in KINDS {
        if ticket < share {
            return kind;
        }
        ticket -= share;
    }
    Kind::Zero
}

fn generate(kind: Kind, index: usize, ranks: &Ranks, random: &mut Random, page: &mut Page) {
    // Pointers lead to the neighbourhood of the page that holds them.
    let here = 0x7f3a_4000_0000 + index as u64 * PAGE_SIZE as u64;
    match kind {
        Kind::Records => records(here, ranks, random, page),
        Kind::Table => table(here, random, page),
        Kind::Text => text(ranks, random, page),
        Kind::Integers => integers(random, page),
        Kind::Doubles => doubles(random, page),
        Kind::Sparse => sparse(here, random, page),
        Kind::CompactRecords => compact_records(here, ranks, random, page),
        Kind::Zero => {}
        Kind::Random => (0..PAGE_WORDS).for_each(|word| page.set_word(word, random.word())),
    }
}

/// A pointer to a 16-byte boundary within 256 KiB around `here`.
fn pointer(here: u64, random: &mut Random) -> u64 {
    here.wrapping_sub(128 << 10) + (random.below(256 << 10) as u64 & !15)
}

fn records(here: u64, ranks: &Ranks, random: &mut Random, page: &mut Page) {
    let mut word = 0;
    while word + 4 <= PAGE_WORDS {
        let type_index = ranks.types.sample(random) as u64;
        // Objects of one type have one size and one layout.
        let fields = 2 + (mix(type_index) % 6) as usize;
        page.set_word(word, 1 + (random.word() & 3) * (random.word() & 1));
        page.set_word(word + 1, 0x55d0_1000_0000 + type_index * 0x1a0);
        for field in 2..2 + fields {
            if word + field >= PAGE_WORDS {
                break;
            }
            // What a field holds is up to the type, how much up to chance.
            let value = match mix(type_index * 8 + field as u64) % 10 {
                0 => pointer(here, random),
                1 => random.below(1000) as u64,
                // Shared objects: none, true, small numbers, interned names.
                2 | 3 => 0x7f3a_0000_1000 + ranks.types.sample(random) as u64 * 32,
                4 => 8 * (1 + random.below(4) as u64),
                _ => 0,
            };
            page.set_word(word + field, value);
        }
        // Sizes round up to 16 bytes, as in most allocators.
        word += (2 + fields).next_multiple_of(2);
    }
}

fn table(here: u64, random: &mut Random, page: &mut Page) {
    for word in (0..PAGE_WORDS - 2).step_by(3) {
        if random.below(2) == 0 {
            continue; // an empty slot
        }
        page.set_word(word, random.word());
        let key = pointer(here, random);
        page.set_word(word + 1, key);
        page.set_word(word + 2, key + 48);
    }
}

fn text(ranks: &Ranks, random: &mut Random, page: &mut Page) {
    // Records with the same keys over and over, as in logs, rows and documents
    // that a program has parsed.
    let keys: Vec<u64> = (0..2 + random.below(5)).map(|_| random.below(3000) as u64).collect();
    let mut written = Vec::with_capacity(PAGE_SIZE + 256);
    while written.len() < PAGE_SIZE {
        for &key in &keys {
            written.extend_from_slice(b"\"");
            push_word(key, &mut written);
            written.extend_from_slice(b"\": \"");
            for _ in 0..1 + random.below(3) {
                push_word(ranks.words.sample(random) as u64, &mut written);
                written.push(b' ');
            }
            written.extend_from_slice(b"\", ");
        }
        written.push(b'\n');
    }
    page.0.copy_from_slice(&written[..PAGE_SIZE]);
}

/// A word is a function of its rank; common words are short.
fn push_word(rank: u64, text: &mut Vec<u8>) {
    const LETTERS: &[u8; 26] = b"etaoinshrdlucmfwypvbgkqjxz";
    let length = 2 + (rank.checked_ilog2().unwrap_or(0) / 2) as usize + (mix(rank) % 4) as usize;
    let mut letters = Random::new(rank);
    text.extend((0..length).map(|_| LETTERS[letters.below(26).min(letters.below(26))]));
}

fn integers(random: &mut Random, page: &mut Page) {
    let width = 4 << random.below(2);
    let scale = 1usize << (2 + random.below(9));
    let base = random.below(1 << 20) * random.below(2);
    for place in (0..PAGE_SIZE).step_by(width) {
        let value = (base + random.below(scale)) as u64;
        page.0[place..][..width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn doubles(random: &mut Random, page: &mut Page) {
    let exact = random.below(4) != 0;
    let mut value = random.unit() * 1000.0;
    for word in 0..PAGE_WORDS {
        value += random.unit() - 0.5;
        let stored = if exact { (value * 2.0).round() / 2.0 } else { value };
        page.set_word(word, stored.to_bits());
    }
}

fn sparse(here: u64, random: &mut Random, page: &mut Page) {
    for line in (0..PAGE_WORDS).step_by(8) {
        page.set_word(line, 1);
        page.set_word(line + 1 + random.below(3), random.below(4096) as u64);
        if random.below(3) == 0 {
            page.set_word(line + 5, pointer(here, random));
        }
    }
}

fn compact_records(here: u64, ranks: &Ranks, random: &mut Random, page: &mut Page) {
    let put = |page: &mut Page, half: usize, value: u32| {
        page.0[half * 4..][..4].copy_from_slice(&value.to_le_bytes());
    };
    let halves = PAGE_SIZE / 4;
    let mut half = 0;
    while half + 6 <= halves {
        let class = ranks.types.sample(random) as u64;
        let fields = 2 + (mix(class ^ 99) % 4) as usize;
        put(page, half, 1);
        put(page, half + 2, 0x0080_0000 + class as u32 * 0x58);
        for field in 3..3 + fields {
            if half + field >= halves {
                break;
            }
            let value = match mix(class * 8 + field as u64) % 6 {
                0 => (pointer(here, random) >> 3) as u32,
                1 => random.below(256) as u32,
                2 => 0x0100_0000 + ranks.types.sample(random) as u32 * 3,
                _ => 0,
            };
            put(page, half + field, value);
        }
        half += (3 + fields).next_multiple_of(2);
    }
}

/// Compressed size of pages in percent of their size, as LZ4 makes it.
pub(crate) fn lz4_percent<'a>(pages: impl Iterator<Item = &'a Page>) -> f64 {
    let mut buffer = vec![0; lz4_flex::block::get_maximum_output_size(PAGE_SIZE)];
    let (mut original, mut compressed) = (0usize, 0usize);
    for page in pages {
        original += PAGE_SIZE;
        compressed += match lz4_flex::block::compress_into(&page.0, &mut buffer) {
            Ok(length) => length.min(PAGE_SIZE),
            Err(_) => PAGE_SIZE,
        };
    }
    if original == 0 { 100.0 } else { compressed as f64 * 100.0 / original as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_pages_compress_like_a_heap() {
        for seed in [1, 2, 77] {
            let source = PageSource::generated(seed);
            let pages: Vec<Page> = (0..2000).map(|index| source.page(index).unwrap()).collect();
            let percent = lz4_percent(pages.iter());
            assert!((30.0..45.0).contains(&percent), "seed {seed}: LZ4 makes {percent} %");
            let zero = pages.iter().filter(|page| page.is_zero()).count();
            assert!((50..150).contains(&zero), "{zero} zero pages of 2000");
        }
    }

    #[test]
    fn kinds_differ_in_compressibility() {
        let Pages::Generated(ranks) = PageSource::generated(1).pages else { unreachable!() };
        let mut random = Random::new(3);
        for (kind, _) in KINDS {
            let pages: Vec<Page> = (0..50)
                .map(|index| {
                    let mut page = Page::ZERO;
                    generate(kind, index, &ranks, &mut random, &mut page);
                    page
                })
                .collect();
            let percent = lz4_percent(pages.iter());
            let expected = match kind {
                Kind::Zero => 0.0..2.0,
                Kind::Sparse => 5.0..30.0,
                Kind::Random => 100.0..100.1,
                _ => 15.0..75.0,
            };
            println!("{kind:?}: {percent:.1} %");
            assert!(expected.contains(&percent), "{kind:?}: LZ4 makes {percent} %");
        }
    }

    #[test]
    fn pages_are_a_function_of_seed_and_index() {
        let (one, same, other) =
            (PageSource::generated(5), PageSource::generated(5), PageSource::generated(6));
        assert!((0..64).all(|index| one.page(index).unwrap().0 == same.page(index).unwrap().0));
        assert!((0..64).any(|index| one.page(index).unwrap().0 != other.page(index).unwrap().0));
    }

    #[test]
    fn file_pages_are_cycled_and_varied() {
        let path = std::env::temp_dir().join(format!("ramfold-pages-{}", std::process::id()));
        let source = PageSource::generated(9);
        let mut bytes = vec![0; PAGE_SIZE];
        let text = (0..).map(|index| source.page(index).unwrap()).find(|page| page.sum() > 1 << 40);
        bytes.extend_from_slice(&text.unwrap().0);
        bytes.extend_from_slice(b"half a page");
        std::fs::write(&path, &bytes).unwrap();
        let file = PageSource::from_file(&path, 1).unwrap();
        assert!(file.page(0).unwrap().is_zero());
        assert!(file.page(2).unwrap().is_zero());
        assert_eq!(file.page(1).unwrap().0[..], bytes[PAGE_SIZE..2 * PAGE_SIZE]);
        assert_ne!(file.page(3).unwrap().0, file.page(1).unwrap().0);
        assert_ne!(file.page(3).unwrap().0, file.page(5).unwrap().0);
        std::fs::write(&path, b"too short").unwrap();
        assert!(PageSource::from_file(&path, 1).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}

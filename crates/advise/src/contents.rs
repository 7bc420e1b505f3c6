//! How small pages become: what the store charges for their objects, codec by codec.
//!
//! Their sum is `pool_total_bytes` of a pool whose spans are full. The index comes on top, with
//! [`INDEX_BYTES`] for each page.

use std::fmt;

use ramfold_codec::{
    Choice, Chosen, Codec, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES, Objective,
    PAGE_SIZE, Page, same_filled,
};
use ramfold_store::charged_bytes;
use ramfold_sys::time::monotonic_ns;
use self_cell::{MutBorrow, self_cell};

use crate::observation::{BLOCK_PAGES, Block};

/// What the index has for a page whose neighbours are stored too, same-filled ones included
/// (`metadata_bytes`): its part of a leaf of 512 bytes, and of the leaf's place in the tables.
pub const INDEX_BYTES: f64 = 512.0 / 64.0 + (8.0 + 16.0 / 0.7) / 64.0;

/// An object larger than this saves too little: the agent leaves the page as it is.
const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;
/// What an object must spare when the agent compresses it once more.
const RECOMPRESSED_BYTES_MIN: usize = 128;
/// What counts for a page that stays as it is.
const STAYS: u16 = PAGE_SIZE as u16;
/// The object of a word whose halves differ. The index itself has the other words.
const WORD_BYTES: usize = 8;

/// Name of what `auto` comes to where pages stay out.
pub const AUTO_DENSE: &str = "auto-dense";

/// The names of codecs, in the order of [`Sampler::sample`].
pub fn codecs() -> Vec<String> {
    let others = Codec::ALL.iter().map(|codec| codec.name());
    [Choice::Auto.name(), AUTO_DENSE].into_iter().chain(others).map(str::to_owned).collect()
}

struct Scratch {
    compress: Vec<Box<[u8]>>,
    decompress: Box<[u8]>,
}

struct Codecs<'a> {
    /// That of `auto`, then those of [`Codec::ALL`].
    chosen: Vec<Chosen<'a>>,
    decompressor: Decompressor<'a>,
}

self_cell!(
    struct Cell {
        owner: MutBorrow<Scratch>,
        #[not_covariant]
        dependent: Codecs,
    }
);

/// Compresses pages with all codecs. `auto` learns from each page for the next ones, as it does in
/// the agent.
pub struct Sampler {
    codecs: Cell,
    object: Box<Page>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").finish_non_exhaustive()
    }
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

/// A codec's time for a page. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CodecTimes {
    /// To compress a page, those included that do not compress.
    pub compress_ns: f64,
    /// To make a page of its object again; 0 where no page became one.
    pub decompress_ns: f64,
}

impl Sampler {
    /// A sampler that has seen no page.
    ///
    /// # Panics
    /// If a codec refuses the memory that it asked for.
    pub fn new() -> Sampler {
        let choices: Vec<Choice> = choices().collect();
        let scratch = Scratch {
            compress: choices.iter().map(|choice| vec![0; choice.scratch_bytes()].into()).collect(),
            decompress: vec![0; MAX_DECOMPRESS_SCRATCH_BYTES].into(),
        };
        let codecs = Cell::new(MutBorrow::new(scratch), |scratch| {
            let Scratch { compress, decompress } = scratch.borrow_mut();
            let chosen = choices.iter().zip(compress).map(|(&choice, scratch)| {
                Chosen::new(choice, scratch).expect("a codec has the memory that it asked for")
            });
            Codecs {
                chosen: chosen.collect(),
                decompressor: Decompressor::new(decompress)
                    .expect("a decompressor has the most memory that any asks for"),
            }
        });
        Sampler { codecs, object: Box::new([0; PAGE_SIZE]) }
    }

    /// What the store charges for the page, by codec. 0: nothing but its entry in the index. 4,096:
    /// the page does not compress by a quarter, and stays as it is.
    pub fn sample(&mut self, page: &Page) -> Vec<u16> {
        if let Some(word) = same_filled(page) {
            let is_pattern = word >> 32 == word & u64::from(u32::MAX);
            let charged = if is_pattern { 0 } else { charged_bytes(WORD_BYTES) as u16 };
            return vec![charged; Codec::ALL.len() + 2];
        }
        let object = &mut self.object[..OBJECT_BYTES_MAX];
        self.codecs.with_dependent_mut(|_, codecs| {
            let mut charged = Vec::with_capacity(Codec::ALL.len() + 2);
            for chosen in &mut codecs.chosen {
                let compressed = chosen.compress(page, Objective::Speed, object);
                charged.push(charge(compressed.ok().map(|(_, length)| length)));
                if let Chosen::Auto(_) = chosen {
                    let dense = compressed.ok().map(|made| denser(chosen, page, made, object));
                    charged.push(charge(dense));
                }
            }
            charged
        })
    }

    /// The same for neighbouring pages.
    pub fn block(&mut self, first_page: u64, at_s: f64, pages: &[Page]) -> Block {
        debug_assert!(pages.len() as u64 <= BLOCK_PAGES);
        let charged_bytes = pages.iter().map(|page| self.sample(page)).collect();
        Block { first_page, at_s, charged_bytes }
    }

    /// Measures each codec's time over these pages, of which the same-filled ones do not count: the
    /// fastest of several rounds, as others use the processor too. In the order of [`codecs`].
    /// `auto-dense` is what compressing once more takes, and what its objects take to be read.
    pub fn time(&mut self, pages: &[Page], rounds: u32) -> Vec<(String, CodecTimes)> {
        let pages: Vec<&Page> = pages.iter().filter(|page| same_filled(page).is_none()).collect();
        let names = codecs().into_iter();
        self.codecs.with_dependent_mut(|_, codecs| {
            let each = [(0, Objective::Speed), (0, Objective::Density)].into_iter();
            let each = each.chain((1..codecs.chosen.len()).map(|nth| (nth, Objective::Speed)));
            let time = |(codec, (nth, objective))| {
                let measured = (0..rounds.max(1)).map(|_| codecs.time(nth, objective, &pages));
                let fastest = measured.reduce(|[a, b], [c, d]| [a.min(c), b.min(d)]);
                let [compress_ns, decompress_ns] = fastest.unwrap_or_default();
                (codec, CodecTimes { compress_ns, decompress_ns })
            };
            names.zip(each).map(time).collect()
        })
    }
}

fn choices() -> impl Iterator<Item = Choice> {
    [Choice::Auto].into_iter().chain(Codec::ALL.iter().map(|&codec| Choice::Only(codec)))
}

fn charge(length: Option<usize>) -> u16 {
    length.map_or(STAYS, |length| charged_bytes(length) as u16)
}

/// The length that an object has when it was compressed once more, as the agent does it.
fn denser(
    auto: &mut Chosen<'_>,
    page: &Page,
    (encoding, length): (Encoding, usize),
    object: &mut [u8],
) -> usize {
    if Objective::of(encoding) != Some(Objective::Speed) {
        return length;
    }
    match auto.compress(page, Objective::Density, object) {
        Ok((_, dense)) if dense + RECOMPRESSED_BYTES_MIN <= length => dense,
        _ => length,
    }
}

impl Codecs<'_> {
    /// Nanoseconds to compress a page and to decompress it.
    fn time(&mut self, nth: usize, objective: Objective, pages: &[&Page]) -> [f64; 2] {
        let mut objects = Vec::with_capacity(pages.len());
        let mut object = [0; OBJECT_BYTES_MAX];
        let mut compress_ns = 0;
        for page in pages {
            let began = monotonic_ns();
            let compressed = self.chosen[nth].compress(page, objective, &mut object);
            compress_ns += monotonic_ns() - began;
            objects.extend(compressed.map(|(encoding, len)| (encoding, object[..len].to_vec())));
        }
        let mut page = [0; PAGE_SIZE];
        let began = monotonic_ns();
        for (encoding, object) in &objects {
            // What is made here can be made again; the codecs' tests see to that.
            let _ = self.decompressor.decompress(*encoding, object, &mut page);
            std::hint::black_box(&page);
        }
        let decompress_ns = monotonic_ns() - began;
        let mean = |total: u64, count| if count == 0 { 0.0 } else { total as f64 / count as f64 };
        [mean(compress_ns, pages.len()), mean(decompress_ns, objects.len())]
    }
}

#[cfg(test)]
mod tests {
    use ramfold_store::{Config, Store};

    use super::*;

    /// Pages of the kinds that programs have.
    fn pages(count: u64) -> Vec<Page> {
        let mut state = 1u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let page = |nth: u64| {
            let mut page = [0; PAGE_SIZE];
            let words = page.as_chunks_mut::<8>().0.iter_mut().enumerate();
            words.for_each(|(at, word)| {
                let value = match nth % 5 {
                    0 => 0x0101_0101_0101_0101,
                    1 => 0x1234_5678,
                    // Pointers, numbers, random bytes.
                    2 => 0x7f00_0000_0000 + (random() >> 50 << 4),
                    3 => (at as u64 * 3 + nth) << (random() & 1),
                    _ => random(),
                };
                *word = value.to_le_bytes();
            });
            page
        };
        (0..count).map(page).collect()
    }

    fn stored(pages: &[Page], choice: Choice, copies: u64) -> Store {
        let store = Store::new(&Config {
            pool_bytes_max: 1 << 30,
            reserve_bytes: 0,
            metadata_bytes_max: 64 << 20,
            spill: None,
        });
        let store = store.unwrap();
        let mut scratch = vec![0; choice.scratch_bytes()];
        let mut codec = Chosen::new(choice, &mut scratch).unwrap();
        let mut object = [0; OBJECT_BYTES_MAX];
        for (nth, page) in pages.iter().enumerate() {
            let keys = (0..copies).map(|copy| copy * pages.len() as u64 + nth as u64);
            if let Some(word) = same_filled(page) {
                keys.for_each(|key| store.store_same_filled(key, word).unwrap());
            } else if let Ok((encoding, len)) = codec.compress(page, Objective::Speed, &mut object)
            {
                keys.for_each(|key| {
                    store.store_object(key, encoding as u8, &object[..len]).unwrap();
                });
            }
        }
        store
    }

    #[test]
    fn what_is_charged_is_what_a_store_takes() {
        const COPIES: u64 = 64;
        let pages = pages(640);
        let mut sampler = Sampler::new();
        let sampled: Vec<_> = pages.iter().map(|page| sampler.sample(page)).collect();
        for name in ["auto", "lz4", "zstd", "wkdm"] {
            let choice: Choice = name.parse().unwrap();
            let nth = codecs().iter().position(|codec| codec == choice.name()).unwrap();
            let charged: u64 =
                sampled.iter().map(|page| page[nth]).filter(|&b| b < STAYS).map(u64::from).sum();
            let statistics = stored(&pages, choice, COPIES).statistics();
            let pool = statistics.pool_total_bytes as f64 / (charged * COPIES) as f64;
            assert!((0.99..1.05).contains(&pool), "{name}: {pool}");
            let out = statistics.objects + statistics.same_filled;
            let stays = sampled.iter().filter(|page| page[nth] == STAYS).count() as u64;
            assert_eq!(out, (pages.len() as u64 - stays) * COPIES, "{name}");
            let index = statistics.metadata_bytes as f64 / (pages.len() as u64 * COPIES) as f64;
            // A small index has tables that are hardly filled.
            assert!((0.95..1.3).contains(&(index / INDEX_BYTES)), "{name}: {index}");
        }
    }

    #[test]
    fn each_kind_of_page_is_told() {
        let pages = pages(5);
        let mut sampler = Sampler::new();
        let sampled: Vec<_> = pages.iter().map(|page| sampler.sample(page)).collect();
        assert!(sampled.iter().all(|page| page.len() == codecs().len()));
        assert_eq!(sampled[0], vec![0; codecs().len()]);
        assert_eq!(sampled[1], vec![charged_bytes(8) as u16; codecs().len()]);
        assert!(sampled[2].iter().all(|&charged| charged > 0));
        assert_eq!(sampled[4], vec![STAYS; codecs().len()]);
        let page = Block { first_page: 9, at_s: 0.5, charged_bytes: sampled[..2].to_vec() };
        assert_eq!(sampler.block(9, 0.5, &pages[..2]), page);
    }

    #[test]
    fn what_stays_out_becomes_smaller_or_stays_as_it_is() {
        let text = include_bytes!("contents.rs");
        let mut sampler = Sampler::new();
        let mut spared = 0;
        for page in text.as_chunks::<PAGE_SIZE>().0 {
            let [auto, dense, ..] = sampler.sample(page)[..] else { panic!("two and more") };
            assert!(dense <= auto);
            spared += auto - dense;
        }
        assert!(spared > 0);
    }

    #[test]
    fn codecs_have_the_names_of_the_command_line() {
        let names = codecs();
        assert_eq!(names[..3], ["auto", "auto-dense", "lz4"]);
        let known: Vec<_> = Choice::names().collect();
        assert!(names.iter().all(|name| name == AUTO_DENSE || known.contains(&&**name)));
        assert_eq!(names.len(), known.len() + 1);
    }

    #[test]
    fn times_are_those_of_pages_with_objects() {
        let pages = pages(20);
        let times = Sampler::new().time(&pages, 2);
        let names: Vec<_> = times.iter().map(|(codec, _)| codec.clone()).collect();
        assert_eq!(names, codecs());
        assert!(times.iter().all(|(_, time)| time.compress_ns > 0.0));
        // Some codecs make no object of any of these pages.
        assert!(times[..4].iter().all(|(_, time)| time.decompress_ns > 0.0));
        let none = Sampler::new().time(&pages[..1], 1);
        assert!(none.iter().all(|(_, time)| (time.compress_ns, time.decompress_ns) == (0.0, 0.0)));
    }
}

//! The patterns of words that PBPM rests on, counted: Figure 2 and Tables I and II of
//! *High-performance operating system controlled online memory compression* (Yang, Dick, Lekatsas,
//! Chakradhar 2010) on other pages.
//!
//! A word is four symbols, the highest byte first: `z` a zero byte, `m` a byte equal to a
//! dictionary entry's, `x` any other. The paper's pages were 64 MB of a Linux workstation's swap.

mod dictionary;
mod report;
mod times;

use anyhow::Result;
use ramfold_codec::{PAGE_SIZE, Page};
use serde::Serialize;

pub(super) use report::{plot, tables};

use dictionary::Dictionary;
use times::AlignmentTimes;

/// Figure 2 and both tables, for the pages of one file.
#[derive(Debug, Serialize)]
pub(super) struct Patterns {
    pub(super) file: String,
    /// Pages that are not same-filled; only these are counted.
    pub(super) pages: usize,
    /// Words by which of their bytes are zero, commonest first; percent of all words.
    pub(super) zero_patterns: Vec<Share>,
    /// What is found of the words that are none of zzzz, zzzx and zxzx, by dictionary.
    pub(super) dictionaries: Vec<DictionaryShares>,
    /// PBPM's codes.
    pub(super) codes: Vec<Code>,
    /// Bytes of PBPM's objects, by the codes' sizes; percent of the pages.
    pub(super) coded_percent: f64,
    /// The paper's alignments of the data.
    pub(super) alignments: Vec<AlignmentTimes>,
}

#[derive(Debug, Serialize)]
pub(super) struct Share {
    pub(super) pattern: String,
    pub(super) percent: f64,
}

/// Percent of all words.
#[derive(Debug, Serialize)]
pub(super) struct DictionaryShares {
    pub(super) entries: usize,
    pub(super) ways: usize,
    pub(super) mmmm: f64,
    pub(super) mmmx: f64,
    pub(super) mmxx: f64,
    pub(super) xmxx: f64,
    pub(super) miss: f64,
}

/// A row of Table I.
#[derive(Debug, Serialize)]
pub(super) struct Code {
    pub(super) code: &'static str,
    pub(super) pattern: &'static str,
    pub(super) bits: u32,
    pub(super) percent: f64,
    pub(super) paper_percent: f64,
}

/// The dictionaries of Figure 2, by entries and ways.
const DICTIONARIES: [(usize, usize); 5] = [(16, 1), (16, 2), (32, 1), (32, 2), (32, 4)];
/// PBPM's.
const OWN: (usize, usize) = (16, 2);

/// Table I: code, pattern, bits, percent.
const TABLE_I: [(&str, &str, u32, f64); 7] = [
    ("00", "zzzz", 2, 38.0),
    ("01", "xxxx", 34, 21.6),
    ("10", "mmmm", 6, 11.2),
    ("1100", "zzzx", 12, 9.3),
    ("1101", "mmxx", 24, 8.9),
    ("1110", "mmmx", 16, 7.7),
    ("1111", "zxzx", 20, 3.1),
];

/// Counts the patterns of these pages, and times PBPM on them: each page `rounds` times, of which
/// the median counts.
///
/// # Errors
/// When a page does not come back.
pub(super) fn count(file: &str, pages: &[Page], rounds: usize) -> Result<Patterns> {
    let zero_patterns = zero_patterns(pages);
    let dictionaries =
        Vec::from(DICTIONARIES.map(|(entries, ways)| dictionary_shares(pages, entries, ways)));
    let codes = codes(&zero_patterns, &dictionaries);
    Ok(Patterns {
        file: file.to_owned(),
        pages: pages.len(),
        coded_percent: codes.iter().map(|code| code.percent * f64::from(code.bits) / 32.0).sum(),
        zero_patterns,
        dictionaries,
        codes,
        alignments: times::measure(pages, rounds)?,
    })
}

/// So many words, in percent of all words of the pages.
fn percent(count: usize, pages: &[Page]) -> f64 {
    100.0 * count as f64 / (pages.len() * PAGE_SIZE / 4) as f64
}

/// Words by which of their bytes are zero, commonest first.
fn zero_patterns(pages: &[Page]) -> Vec<Share> {
    let mut by_zeros = [0; 16];
    for word in pages.iter().flat_map(|page| page.as_chunks::<4>().0) {
        by_zeros[word.iter().rev().fold(0, |mask, byte| mask << 1 | usize::from(*byte == 0))] += 1;
    }
    let symbols = |mask: usize| {
        (0..4).map(|byte| if mask >> (3 - byte) & 1 == 1 { 'z' } else { 'x' }).collect()
    };
    let share =
        |mask: usize| Share { pattern: symbols(mask), percent: percent(by_zeros[mask], pages) };
    let mut shares: Vec<_> = (0..16).map(share).collect();
    shares.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    shares
}

fn dictionary_shares(pages: &[Page], entries: usize, ways: usize) -> DictionaryShares {
    let mut found = [0; 5];
    for page in pages {
        let mut dictionary = Dictionary::new(entries, ways);
        for word in page.as_chunks::<4>().0 {
            let word = u32::from_le_bytes(*word);
            // zzzz, zzzx and zxzx need no dictionary.
            if word & 0xff00_ff00 != 0 {
                found[dictionary.look_up(word) as usize] += 1;
            }
        }
    }
    let [miss, third, two, three, full] = found.map(|count| percent(count, pages));
    let (mmmm, mmmx, mmxx, xmxx) = (full, three, two, third);
    DictionaryShares { entries, ways, mmmm, mmmx, mmxx, xmxx, miss }
}

/// Table I for these words.
fn codes(zero_patterns: &[Share], dictionaries: &[DictionaryShares]) -> Vec<Code> {
    let zeros = |pattern: &str| -> f64 {
        let shares = zero_patterns.iter().filter(|share| share.pattern == pattern);
        shares.map(|share| share.percent).sum()
    };
    let own = dictionaries.iter().find(|shares| (shares.entries, shares.ways) == OWN);
    let of = |pattern: &str| match (pattern, own) {
        ("mmmm", Some(own)) => own.mmmm,
        ("mmmx", Some(own)) => own.mmmx,
        ("mmxx", Some(own)) => own.mmxx,
        ("xxxx", Some(own)) => own.xmxx + own.miss,
        // Its lowest byte may be zero.
        ("zxzx", _) => zeros("zxzx") + zeros("zxzz"),
        _ => zeros(pattern),
    };
    let code = |(code, pattern, bits, paper_percent)| Code {
        code,
        pattern,
        bits,
        percent: of(pattern),
        paper_percent,
    };
    TABLE_I.map(code).into()
}

#[cfg(test)]
mod tests {
    use ramfold_codec::pbpm::Alignment;
    use ramfold_codec::{Codec, Compressor, compress_scratch_bytes};

    use super::super::subjects::ROOM_BYTES;
    use super::*;

    fn page(word: impl Fn(usize) -> u32) -> Page {
        let mut page = [0; PAGE_SIZE];
        for (nth, bytes) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *bytes = word(nth).to_le_bytes();
        }
        page
    }

    #[test]
    fn every_pattern_is_told_apart() {
        let pages = [page(|nth| match nth % 8 {
            0 => 0,
            1 => 0x0000_0012,
            2 => 0x0034_0012,
            3 => 0x5678_9abc,
            4 => 0x5678_9abc,
            5 => 0x5678_9abd,
            6 => 0x5678_1111,
            _ => (nth as u32).wrapping_mul(0x0101_0001).wrapping_add(0x1200),
        })];
        let patterns = count("some", &pages, 1).unwrap();
        let share = |pattern: &str| {
            let share = patterns.zero_patterns.iter().find(|share| share.pattern == pattern);
            share.unwrap().percent
        };
        assert!((share("zzzz") - 12.5).abs() < 1e-9 && (share("zxzx") - 12.5).abs() < 0.2);
        let code = |pattern: &str| {
            patterns.codes.iter().find(|code| code.pattern == pattern).unwrap().percent
        };
        assert!((code("zzzx") - 12.5).abs() < 1e-9, "{}", code("zzzx"));
        assert!(code("mmmm") > 11.0 && code("mmmx") > 11.0 && code("mmxx") > 11.0);
        let all: f64 = patterns.codes.iter().map(|code| code.percent).sum();
        assert!((all - 100.0).abs() < 1e-6, "{all}");
        // What the codes add up to is what the codec writes, but for its header.
        let codec = Codec::Pbpm(Alignment::Unaligned);
        let mut scratch = vec![0; compress_scratch_bytes(codec)];
        let mut compressor = Compressor::new(codec, &mut scratch).unwrap();
        let mut out = [0; ROOM_BYTES];
        let length = compressor.compress(&pages[0], &mut out).unwrap() as f64;
        let expected = patterns.coded_percent / 100.0 * PAGE_SIZE as f64;
        assert!((length - expected).abs() < 16.0, "{length} {expected}");
        assert!(plot(&[patterns]).contains("<svg"));
    }
}

//! The patterns of words that PBPM rests on, counted: Figure 2 and Tables I and II of
//! *High-performance operating system controlled online memory compression* (Yang, Dick, Lekatsas,
//! Chakradhar 2010) on other pages.
//!
//! A word is four symbols, the highest byte first: `z` a zero byte, `m` a byte equal to a
//! dictionary entry's, `x` any other. The paper's pages were 64 MB of a Linux workstation's swap.

use std::time::Instant;

use anyhow::Result;
use ramfold_codec::pbpm::{self, Alignment};
use ramfold_codec::{Aim, Backend, Choice, Codec, PAGE_SIZE, Page};
use serde::Serialize;

use super::subjects::ours::Ours;
use super::subjects::{Object, ROOM_BYTES, Subject, Written};
use crate::harness::statistics::median;
use crate::harness::table;

/// Figure 2 and both tables, for the pages of one file.
#[derive(Debug, Serialize)]
pub(crate) struct Patterns {
    pub(crate) file: String,
    /// Pages that are not same-filled; only these are counted.
    pub(crate) pages: usize,
    /// Words by which of their bytes are zero, commonest first; percent of all words.
    pub(crate) zero_patterns: Vec<Share>,
    /// What is found of the words that are none of zzzz, zzzx and zxzx, by dictionary.
    pub(crate) dictionaries: Vec<DictionaryShares>,
    /// PBPM's codes.
    pub(crate) codes: Vec<Code>,
    /// Bytes of PBPM's objects, by the codes' sizes; percent of the pages.
    pub(crate) coded_percent: f64,
    /// The paper's alignments of the data.
    pub(crate) alignments: Vec<AlignmentTimes>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Share {
    pub(crate) pattern: String,
    pub(crate) percent: f64,
}

/// Percent of all words.
#[derive(Debug, Serialize)]
pub(crate) struct DictionaryShares {
    pub(crate) entries: usize,
    pub(crate) ways: usize,
    pub(crate) mmmm: f64,
    pub(crate) mmmx: f64,
    pub(crate) mmxx: f64,
    pub(crate) xmxx: f64,
    pub(crate) miss: f64,
}

/// A row of Table I.
#[derive(Debug, Serialize)]
pub(crate) struct Code {
    pub(crate) code: &'static str,
    pub(crate) pattern: &'static str,
    pub(crate) bits: u32,
    pub(crate) percent: f64,
    pub(crate) paper_percent: f64,
}

/// A row of Table II: microseconds a page.
#[derive(Debug, Serialize)]
pub(crate) struct AlignmentTimes {
    pub(crate) alignment: &'static str,
    pub(crate) compress_us: Spread,
    pub(crate) decompress_us: Spread,
    pub(crate) paper_compress_us: Spread,
    pub(crate) paper_decompress_us: Spread,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) average: f64,
    pub(crate) deviation: f64,
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

/// Table II, of a 2 GHz Athlon XP: average and deviation to compress, and to decompress.
const TABLE_II: [(Alignment, &str, [f64; 4]); 3] = [
    (Alignment::Unaligned, "not aligned", [12.99, 3.05, 10.94, 3.08]),
    (Alignment::SeparateTapes, "separate tapes", [14.94, 1.79, 10.94, 2.20]),
    (Alignment::SingleTape, "single tape", [16.89, 3.77, 18.26, 4.44]),
];

/// What a dictionary has of a word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Miss,
    /// xmxx
    Third,
    /// mmxx
    Two,
    /// mmmx
    Three,
    /// mmmm
    Full,
}

struct Dictionary {
    ways: usize,
    /// By set; in each the latest first.
    sets: Vec<Vec<u32>>,
    set_of: [usize; 256],
}

impl Dictionary {
    fn new(entries: usize, ways: usize) -> Dictionary {
        let count = entries / ways;
        // The paper has random tables. This one is PBPM's for its own eight sets, and goes on in
        // the same way for others: every set has as many bytes.
        let set_of = std::array::from_fn(|byte| {
            let eighth = usize::from(pbpm::SET[byte]);
            (eighth + 8 * (byte * 167 / 8)) % count
        });
        Dictionary { ways, sets: vec![vec![0; ways]; count], set_of }
    }

    fn look_up(&mut self, word: u32) -> Match {
        let set = &mut self.sets[self.set_of[(word >> 16 & 0xff) as usize]];
        let matches = |entry: &u32| match entry ^ word {
            0 => Match::Full,
            different if different >> 8 == 0 => Match::Three,
            different if different >> 16 == 0 => Match::Two,
            different if different >> 16 & 0xff == 0 => Match::Third,
            _ => Match::Miss,
        };
        let best = set.iter().map(matches).max().unwrap_or(Match::Miss);
        if best != Match::Full {
            // The oldest goes.
            set.insert(0, word);
            set.truncate(self.ways);
        }
        best
    }
}

/// Counts the patterns of these pages, and times PBPM on them: each page `rounds` times, of which
/// the median counts.
///
/// # Errors
/// When a page does not come back.
pub(crate) fn count(file: &str, pages: &[Page], rounds: usize) -> Result<Patterns> {
    let words = || pages.iter().flat_map(|page| page.as_chunks::<4>().0).copied();
    let total = (pages.len() * PAGE_SIZE / 4) as f64;
    let percent = |count: usize| 100.0 * count as f64 / total;

    let mut by_zeros = [0; 16];
    for word in words() {
        by_zeros[word.iter().rev().fold(0, |mask, byte| mask << 1 | usize::from(*byte == 0))] += 1;
    }
    let symbols = |mask: usize| {
        (0..4).map(|byte| if mask >> (3 - byte) & 1 == 1 { 'z' } else { 'x' }).collect()
    };
    let mut zero_patterns: Vec<_> = (0..16)
        .map(|mask| Share { pattern: symbols(mask), percent: percent(by_zeros[mask]) })
        .collect();
    zero_patterns.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    let zeros = |pattern: &str| -> f64 {
        zero_patterns
            .iter()
            .filter(|share| share.pattern == pattern)
            .map(|share| share.percent)
            .sum()
    };

    let dictionaries: Vec<_> = DICTIONARIES
        .iter()
        .map(|&(entries, ways)| {
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
            let [miss, third, two, three, full] = found.map(percent);
            let (mmmm, mmmx, mmxx, xmxx) = (full, three, two, third);
            DictionaryShares { entries, ways, mmmm, mmmx, mmxx, xmxx, miss }
        })
        .collect();

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
    let codes: Vec<_> = TABLE_I
        .map(|(code, pattern, bits, paper_percent)| Code {
            code,
            pattern,
            bits,
            percent: of(pattern),
            paper_percent,
        })
        .into();
    let coded_percent = codes.iter().map(|code| code.percent * f64::from(code.bits) / 32.0).sum();
    let alignments = TABLE_II
        .iter()
        .map(|&(alignment, name, paper)| times(pages, alignment, name, paper, rounds))
        .collect::<Result<_>>()?;
    Ok(Patterns {
        file: file.to_owned(),
        pages: pages.len(),
        zero_patterns,
        dictionaries,
        codes,
        coded_percent,
        alignments,
    })
}

fn times(
    pages: &[Page],
    alignment: Alignment,
    name: &'static str,
    paper: [f64; 4],
    rounds: usize,
) -> Result<AlignmentTimes> {
    let choice = Choice::Only(Codec::Pbpm(alignment));
    let mut subject = Ours::new(name, choice, Aim::Speed, Backend::best())?;
    let (mut compress, mut decompress) = (Vec::new(), Vec::new());
    let mut out = [0; ROOM_BYTES];
    let mut back = [0; PAGE_SIZE];
    for page in pages {
        let (mut there, mut and_back) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            let written = subject.compress(page, &mut out);
            there.push(start.elapsed().as_secs_f64() * 1e6);
            let Some(Written { encoding, len }) = written else { continue };
            let start = Instant::now();
            subject.decompress(Object { encoding, bytes: &out[..len] }, &mut back)?;
            and_back.push(start.elapsed().as_secs_f64() * 1e6);
            anyhow::ensure!(back == *page, "a page came back changed from PBPM, {name}");
        }
        compress.extend(median(&there));
        decompress.extend(median(&and_back));
    }
    let [compress_average, compress_deviation, average, deviation] = paper;
    Ok(AlignmentTimes {
        alignment: name,
        compress_us: Spread::of(&compress),
        decompress_us: Spread::of(&decompress),
        paper_compress_us: Spread { average: compress_average, deviation: compress_deviation },
        paper_decompress_us: Spread { average, deviation },
    })
}

impl Spread {
    fn of(times: &[f64]) -> Spread {
        let count = times.len().max(1) as f64;
        let average = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count;
        Spread { average, deviation: variance.sqrt() }
    }
}

/// The tables for people.
pub(crate) fn tables(patterns: &Patterns) -> String {
    let percent = |value: f64| format!("{value:.1}");
    let mut figure = table::of_numbers(&["words whose bytes are", "%"], 1);
    for share in patterns.zero_patterns.iter().filter(|share| share.percent >= 0.05) {
        figure.add_row([share.pattern.clone(), percent(share.percent)]);
    }
    let mut dictionaries = table::of_numbers(
        &["dictionary", "mmmm", "mmmx", "mmxx", "xmxx", "no match", "matches"],
        1,
    );
    for shares in &patterns.dictionaries {
        let DictionaryShares { entries, ways, mmmm, mmmx, mmxx, xmxx, miss } = *shares;
        let name = match ways {
            1 => format!("{entries} direct-mapped"),
            _ => format!("{entries} {ways}-way"),
        };
        let shares = [mmmm, mmmx, mmxx, xmxx, miss, mmmm + mmmx + mmxx].map(percent);
        dictionaries.add_row([vec![name], shares.to_vec()].concat());
    }
    let mut codes = table::of_numbers(&["code", "pattern", "bits", "%", "paper %"], 1);
    for code in &patterns.codes {
        let (here, paper) = (percent(code.percent), percent(code.paper_percent));
        codes.add_row([code.code, code.pattern, &code.bits.to_string(), &here, &paper]);
    }
    let mut alignments =
        table::of_numbers(&["data", "compress", "decompress", "paper compress", "decompress"], 1);
    for times in &patterns.alignments {
        let spread = |spread: Spread| format!("{:.2} +- {:.2}", spread.average, spread.deviation);
        alignments.add_row([
            times.alignment.to_owned(),
            spread(times.compress_us),
            spread(times.decompress_us),
            spread(times.paper_compress_us),
            spread(times.paper_decompress_us),
        ]);
    }
    format!(
        "{}: {} pages that are not same-filled\n\n\
         Zero bytes (Figure 2), z zero, x not, the highest byte first\n{figure}\n\n\
         Dictionaries (Figure 2), percent of all words\n{dictionaries}\n\n\
         Codes (Table I): {:.1} % of the pages, {:.1} % in the paper\n{codes}\n\n\
         Alignment (Table II), microseconds a page\n{alignments}\n",
        patterns.file,
        patterns.pages,
        patterns.coded_percent,
        TABLE_I.iter().map(|(_, _, bits, percent)| percent * f64::from(*bits) / 32.0).sum::<f64>(),
    )
}

/// Table I as bars: the paper's, and each file's.
pub(crate) fn plot(files: &[Patterns]) -> String {
    use kuva::backend::svg::SvgBackend;
    use kuva::plot::BarPlot;
    use kuva::render::layout::Layout;
    use kuva::render::plots::Plot;
    use kuva::render::render::render_multiple;

    const COLOURS: [&str; 8] = [
        "black",
        "steelblue",
        "darkorange",
        "seagreen",
        "firebrick",
        "mediumpurple",
        "sienna",
        "teal",
    ];
    let mut names = vec!["paper".to_owned()];
    names.extend(files.iter().map(|patterns| short(&patterns.file)));
    let mut bars = BarPlot::new();
    for (nth, (_, pattern, _, paper)) in TABLE_I.iter().enumerate() {
        let here = files.iter().map(|patterns| patterns.codes[nth].percent);
        let heights = [*paper].into_iter().chain(here);
        let colours = COLOURS.iter().cycle();
        let group: Vec<(f64, &str)> = heights.zip(colours.copied()).collect();
        bars = bars.with_group(*pattern, group);
    }
    let bars = bars.with_legend(names.iter().map(String::as_str).collect());
    let plots = vec![Plot::Bar(bars)];
    let layout = Layout::auto_from_plots(&plots)
        .with_title("Patterns of words (PBPM, Table I)")
        .with_y_label("percent of words");
    SvgBackend.render_scene(&render_multiple(plots, layout))
}

fn short(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold_codec::{Compressor, compress_scratch_bytes};

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

//! Sets of codes for the page LZ, from pages.
//!
//! In each round every page goes to the set that takes fewest bits for it, and the codes of each
//! set are made from its pages. After some rounds a set is added: it begins as the codes of the
//! page that save most over all pages.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use ramfold_codec::Page;
use ramfold_codec::page_lz::training::{
    Counts, DISTANCE_BITS, LITERAL_BITS, Lengths, SCRATCH_BYTES, SETS, TOKEN_BITS, count,
};

/// Counts of many pages.
struct Sums {
    literals: Vec<u64>,
    tokens: Vec<u64>,
    distances: Vec<u64>,
}

impl Sums {
    /// Of pages, each with the bits that it takes. A page counts the more the smaller it becomes,
    /// because what is minimised is the mean of relative sizes, not the sum.
    fn of<'a>(all: impl Iterator<Item = (u32, &'a Counts)>) -> Sums {
        let mut sums = Sums { literals: vec![], tokens: vec![], distances: vec![] };
        for (bits, counts) in all {
            let weight = (WEIGHT / bits.max(1)) as u64;
            add(&mut sums.literals, &counts.literals, weight);
            add(&mut sums.tokens, &counts.tokens, weight);
            add(&mut sums.distances, &counts.distances, weight);
        }
        sums
    }

    fn lengths(&self) -> Result<Lengths> {
        let code = |counts: &[u64], longest| -> Vec<u8> {
            // Symbols that were not seen have a word too, short enough that a page of nothing else
            // does not become too large.
            let total: u64 = counts.iter().sum();
            let floor = (total >> 14).max(1);
            word_lengths(&counts.iter().map(|count| count + floor).collect::<Vec<_>>(), longest)
        };
        let lengths = || -> Option<Lengths> {
            Some(Lengths {
                literals: code(&self.literals, LITERAL_BITS).try_into().ok()?,
                tokens: code(&self.tokens, TOKEN_BITS).try_into().ok()?,
                distances: code(&self.distances, DISTANCE_BITS).try_into().ok()?,
            })
        };
        lengths().context("a set got no pages: train with more pages or fewer sets")
    }
}

/// The weight of a page of one bit; large, so that quotients are exact enough.
const WEIGHT: u32 = 1 << 24;

fn add(sums: &mut Vec<u64>, counts: &[u16], weight: u64) {
    sums.resize(counts.len(), 0);
    for (sum, &count) in sums.iter_mut().zip(counts) {
        *sum += weight * u64::from(count);
    }
}

/// The lengths of the words of the best prefix code whose words have at most `longest` bits
/// (package-merge, Larmore and Hirschberg 1990).
fn word_lengths(counts: &[u64], longest: usize) -> Vec<u8> {
    let mut coins: Vec<(u64, Vec<usize>)> =
        counts.iter().enumerate().map(|(symbol, &count)| (count, vec![symbol])).collect();
    coins.sort();
    let mut row = coins.clone();
    for _ in 1..longest {
        let packages = row
            .chunks_exact(2)
            .map(|pair| (pair[0].0 + pair[1].0, [pair[0].1.as_slice(), &pair[1].1].concat()));
        let mut next = coins.clone();
        next.extend(packages);
        next.sort_by_key(|(weight, _)| *weight);
        row = next;
    }
    let mut lengths = vec![0; counts.len()];
    for &symbol in row.iter().take(2 * counts.len() - 2).flat_map(|(_, symbols)| symbols) {
        lengths[symbol] += 1;
    }
    lengths
}

/// Makes `sets` sets, with `rounds` for each number of sets.
///
/// # Errors
/// When there are too few pages.
pub(super) fn train(
    pages: &[Page],
    sets: usize,
    rounds: usize,
    mut progress: impl FnMut(&str),
) -> Result<Vec<Lengths>> {
    ensure!(pages.len() >= 10 * sets, "{} pages are too few for {sets} sets", pages.len());
    let mut scratch = Box::new([0; SCRATCH_BYTES]);
    let mut counted = |page: &Page, lengths: &Lengths| {
        count(page, lengths, &mut scratch).context("the search for copies has too little scratch")
    };
    let first = pages.iter().map(|page| counted(page, &SETS[0])).collect::<Result<Vec<_>>>()?;
    let first = first.iter().map(|counts| (counts.bits(&SETS[0]), counts));
    let mut trained = vec![Sums::of(first).lengths()?];
    loop {
        let mut best = Vec::new();
        for round in 0..rounds {
            best.clear();
            for page in pages {
                let tried = trained.iter().enumerate().map(|(set, lengths)| {
                    let counts = counted(page, lengths)?;
                    Ok((counts.bits(lengths), set, counts))
                });
                let tried = tried.collect::<Result<Vec<_>>>()?;
                best.extend(tried.into_iter().min_by_key(|(bits, ..)| *bits));
            }
            let bits: u64 = best.iter().map(|(bits, ..)| u64::from(*bits)).sum();
            progress(&format!(
                "{} sets, round {}: {:.1} bytes a page",
                trained.len(),
                round + 1,
                bits as f64 / 8.0 / pages.len() as f64
            ));
            for (nth, lengths) in trained.iter_mut().enumerate() {
                let own = best.iter().filter(|(_, set, _)| *set == nth);
                *lengths = Sums::of(own.map(|(bits, _, counts)| (*bits, counts))).lengths()?;
            }
        }
        if trained.len() == sets {
            return Ok(trained);
        }
        // The page whose own codes would save most over all pages, of a spread of them.
        let step = best.len().div_ceil(CANDIDATES);
        let mut added = None;
        for (bits, _, counts) in best.iter().step_by(step) {
            let own = Sums::of([(*bits, counts)].into_iter()).lengths()?;
            let share = |bits: u32, counts: &Counts| {
                bits.saturating_sub(counts.bits(&own)) as f64 / bits as f64
            };
            let saved: f64 = best.iter().map(|(bits, _, counts)| share(*bits, counts)).sum();
            if added.as_ref().is_none_or(|(most, _)| saved > *most) {
                added = Some((saved, own));
            }
        }
        trained.extend(added.map(|(_, own)| own));
    }
}

/// Pages that are tried as the beginning of a set.
const CANDIDATES: usize = 200;

/// The sets as source code.
pub(super) fn source(sets: &[Lengths]) -> Result<String> {
    let mut text = String::from(
        "//! Made by `ramfold-bench train`; docs/codecs.md has the command.\n\n\
         use super::Lengths;\n\n\
         /// The sets: part of the format.\n",
    );
    writeln!(text, "pub static SETS: [Lengths; {}] = [", sets.len())?;
    for set in sets {
        writeln!(
            text,
            "Lengths {{ literals: {:?}, tokens: {:?}, distances: {:?} }},",
            set.literals, set.tokens, set.distances
        )?;
    }
    text.push_str("];\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_short_as_the_limit_lets_them_be() {
        assert_eq!(word_lengths(&[8, 4, 2, 1, 1], 4), [1, 2, 3, 4, 4]);
        assert_eq!(word_lengths(&[8, 4, 2, 1, 1], 3), [1, 3, 3, 3, 3]);
        assert_eq!(word_lengths(&[1; 8], 11), [3; 8]);
    }
}

//! Table II: how long PBPM takes with data aligned in several ways.

use std::time::Instant;

use anyhow::{Result, ensure};
use ramfold_codec::pbpm::Alignment;
use ramfold_codec::{Backend, Choice, Codec, Objective, PAGE_SIZE, Page};
use serde::Serialize;

use super::super::subjects::ours::Ours;
use super::super::subjects::{Object, ROOM_BYTES, Subject, Written};
use crate::harness::statistics::median;

/// A row of Table II: microseconds a page.
#[derive(Debug, Serialize)]
pub(in crate::experiments::codec) struct AlignmentTimes {
    pub(super) alignment: &'static str,
    pub(super) compress_us: Spread,
    pub(super) decompress_us: Spread,
    pub(super) paper_compress_us: Spread,
    pub(super) paper_decompress_us: Spread,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::experiments::codec) struct Spread {
    pub(super) average: f64,
    pub(super) deviation: f64,
}

/// Table II, of a 2 GHz Athlon XP: average and deviation to compress, and to decompress.
const TABLE_II: [(Alignment, &str, [f64; 4]); 3] = [
    (Alignment::Unaligned, "not aligned", [12.99, 3.05, 10.94, 3.08]),
    (Alignment::SeparateTapes, "separate tapes", [14.94, 1.79, 10.94, 2.20]),
    (Alignment::SingleTape, "single tape", [16.89, 3.77, 18.26, 4.44]),
];

/// Times PBPM on these pages with each alignment: each page `rounds` times, of which the median
/// counts.
///
/// # Errors
/// When a page does not come back.
pub(super) fn measure(pages: &[Page], rounds: usize) -> Result<Vec<AlignmentTimes>> {
    TABLE_II
        .iter()
        .map(|&(alignment, name, paper)| times(pages, alignment, name, paper, rounds))
        .collect()
}

fn times(
    pages: &[Page],
    alignment: Alignment,
    name: &'static str,
    paper: [f64; 4],
    rounds: usize,
) -> Result<AlignmentTimes> {
    let choice = Choice::Only(Codec::Pbpm(alignment));
    let mut subject = Ours::new(name, choice, Objective::Speed, Backend::best())?;
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
            ensure!(back == *page, "a page came back changed from PBPM, {name}");
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

//! What codecs take on this machine for a page such as programs have.

use std::collections::BTreeMap;

use ramfold_codec::{
    Choice, Chosen, DecodeError, Decompressor, MAX_DECOMPRESS_SCRATCH_BYTES, Objective, PAGE_SIZE,
    ScratchError,
};
use ramfold_sys::time::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::workload::Content;

/// Times that all pages are compressed and decompressed; the quickest counts, as what disturbs only
/// adds.
const TIMES: usize = 3;
/// Pages of a measurement.
const PAGES: usize = 64;

/// What a codec takes for a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecTimes {
    /// To compress it.
    pub compress_ns: f64,
    /// To decompress it.
    pub decompress_ns: f64,
}

/// Measures all codecs; one that cannot be used here is left out.
pub(super) fn measure() -> BTreeMap<String, CodecTimes> {
    let content = Content::new();
    let choices = Choice::names().filter_map(|name| name.parse().ok());
    let mut named: Vec<(&str, Choice, Objective)> =
        choices.map(|choice: Choice| (choice.name(), choice, Objective::Speed)).collect();
    named.push(("auto-dense", Choice::Auto, Objective::Density));
    let times = named.into_iter().filter_map(|(name, choice, objective)| {
        Some((name.to_owned(), times_of(&content, choice, objective).ok()?))
    });
    times.collect()
}

/// Why there are no times of a codec.
#[derive(Debug)]
enum Error {
    Scratch,
    Decode,
}

impl From<ScratchError> for Error {
    fn from(_: ScratchError) -> Error {
        Error::Scratch
    }
}

impl From<DecodeError> for Error {
    fn from(_: DecodeError) -> Error {
        Error::Decode
    }
}

fn times_of(content: &Content, choice: Choice, objective: Objective) -> Result<CodecTimes, Error> {
    let mut scratch = vec![0; choice.scratch_bytes()];
    let mut chosen = Chosen::new(choice, &mut scratch)?;
    let mut scratch = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let mut decompressor = Decompressor::new(&mut scratch)?;
    let (mut out, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let (mut compress_ns, mut decompress_ns) = (f64::MAX, f64::MAX);
    for _ in 0..TIMES {
        let started = monotonic_ns();
        let mut objects = Vec::with_capacity(PAGES);
        for page in content.pages().take(PAGES) {
            if let Ok((encoding, len)) = chosen.compress(page, objective, &mut out) {
                objects.push((encoding, out[..len].to_vec()));
            }
        }
        let compressed = monotonic_ns();
        for (encoding, object) in &objects {
            decompressor.decompress(*encoding, object, &mut page)?;
        }
        let decompressed = monotonic_ns();
        compress_ns = compress_ns.min((compressed - started) as f64 / PAGES as f64);
        let objects = objects.len().max(1) as f64;
        decompress_ns = decompress_ns.min((decompressed - compressed) as f64 / objects);
    }
    Ok(CodecTimes { compress_ns, decompress_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_compresses_three_to_one() {
        let content = Content::new();
        let mut scratch = vec![0; Choice::Auto.scratch_bytes()];
        let mut auto = Chosen::new(Choice::Auto, &mut scratch).unwrap();
        let mut out = [0; PAGE_SIZE];
        let lengths: Vec<usize> = content
            .pages()
            .map(|page| auto.compress(page, Objective::Speed, &mut out).unwrap().1)
            .collect();
        let ratio = (lengths.len() * PAGE_SIZE) as f64 / lengths.iter().sum::<usize>() as f64;
        assert!((2.7..3.3).contains(&ratio), "{ratio}");
    }

    #[test]
    fn every_codec_has_times() {
        let times = measure();
        for name in Choice::names().chain(["auto-dense"]) {
            let CodecTimes { compress_ns, decompress_ns } = times[name];
            assert!(compress_ns > 10.0 && decompress_ns > 10.0, "{name}: {:?}", times[name]);
        }
    }
}

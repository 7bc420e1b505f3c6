//! What codecs take on this machine for a page such as programs have.

use std::collections::BTreeMap;

use super::workload::Content;
use crate::contents::{CodecTimes, Sampler};

/// Rounds, of which the fastest counts.
const ROUNDS: u32 = 3;
/// Pages of a round.
const PAGES: usize = 64;

/// Measures all codecs.
pub(super) fn measure() -> BTreeMap<String, CodecTimes> {
    let content = Content::new();
    let pages: Vec<_> = content.pages().take(PAGES).copied().collect();
    Sampler::new().time(&pages, ROUNDS).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::codecs;

    #[test]
    fn every_codec_has_times() {
        let times = measure();
        for name in codecs() {
            let CodecTimes { compress_ns, decompress_ns } = times[&name];
            assert!(compress_ns > 10.0 && decompress_ns > 10.0, "{name}: {:?}", times[&name]);
        }
    }

    #[test]
    fn the_workload_compresses_three_to_one() {
        let mut sampler = Sampler::new();
        let (mut pages, mut bytes) = (0, 0);
        for page in Content::new().pages() {
            pages += 1;
            bytes += usize::from(sampler.sample(page)[0]);
        }
        let ratio = (pages * 4096) as f64 / bytes as f64;
        assert!((2.6..3.4).contains(&ratio), "{ratio}");
    }
}

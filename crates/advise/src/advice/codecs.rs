//! How small pages become by each codec, from the sample.

use std::collections::BTreeMap;

use ramfold_model::predict::{PageSizes, SampledBlock, Sizes};
use serde::{Deserialize, Serialize};

use crate::contents::AUTO_DENSE;
use crate::machine::Costs;
use crate::observation::Contents;

pub(super) const PAGE_BYTES: f64 = 4096.0;
/// The codec that `--codec auto` begins with, by its name in a sample.
pub(super) const AUTO: &str = "auto";

/// What a codec makes of the pages, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecFigures {
    /// Bytes that a page is charged in the mean, all pages counted.
    pub charged_bytes: f64,
    /// Bytes of a page by these.
    pub ratio: f64,
    /// Part of the pages that are one repeated word.
    pub same_filled: f64,
    /// Part of the pages that stay as they are.
    pub incompressible: f64,
    /// To compress a page of the calibration on this machine.
    pub compress_ns: Option<f64>,
    /// To decompress it.
    pub decompress_ns: Option<f64>,
}

/// Figures of all codecs of a sample.
pub(super) fn figures(contents: &Contents, costs: &Costs) -> BTreeMap<String, CodecFigures> {
    let of = |(nth, name): (usize, &String)| {
        let mut sizes = contents
            .blocks
            .iter()
            .flat_map(|block| &block.charged_bytes)
            .filter_map(|page| page.get(nth).copied())
            .peekable();
        sizes.peek()?;
        let (mut pages, mut bytes, mut same, mut whole) = (0.0, 0.0, 0.0, 0.0);
        for size in sizes {
            pages += 1.0;
            bytes += f64::from(size);
            same += f64::from(u8::from(size == 0));
            whole += f64::from(u8::from(f64::from(size) >= PAGE_BYTES));
        }
        let times = costs.codecs.get(name);
        let charged_bytes = bytes / pages;
        Some((
            name.clone(),
            CodecFigures {
                charged_bytes,
                // Pages of zeros alone cost an entry each: no ratio is without end.
                ratio: PAGE_BYTES / charged_bytes.max(1.0),
                same_filled: same / pages,
                incompressible: whole / pages,
                compress_ns: times.map(|times| times.compress_ns),
                decompress_ns: times.map(|times| times.decompress_ns),
            },
        ))
    };
    contents.codecs.iter().enumerate().filter_map(of).collect()
}

/// The sizes by blocks of neighbours, as a codec makes them at first and in the end: `auto`
/// compresses once more what stays out. `None` where the sample has not that codec.
pub(super) fn sizes(contents: &Contents, codec: &str) -> Option<Sizes> {
    let column = |codec: &str| contents.codecs.iter().position(|name| name == codec);
    let first = column(codec)?;
    let dense = if codec == AUTO { column(AUTO_DENSE).unwrap_or(first) } else { first };
    let page =
        |sizes: &Vec<u16>| Some(PageSizes { first: *sizes.get(first)?, dense: *sizes.get(dense)? });
    Some(Sizes::new(contents.blocks.iter().map(|block| SampledBlock {
        first_page: block.first_page,
        pages: block.charged_bytes.iter().filter_map(page).collect(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Block;

    #[test]
    fn figures_are_means_over_all_pages() {
        let block = |pages: &[[u16; 2]]| Block {
            first_page: 0,
            at_s: 0.0,
            charged_bytes: pages.iter().map(|page| page.to_vec()).collect(),
        };
        let contents = Contents {
            codecs: vec!["auto".to_owned(), "lzo".to_owned()],
            blocks: vec![block(&[[0, 0], [1024, 2048]]), block(&[[4096, 4096], [1024, 2048]])],
        };
        let figures = figures(&contents, &Costs::usual());
        let auto = figures["auto"];
        assert_eq!(
            (auto.charged_bytes, auto.same_filled, auto.incompressible),
            (1536.0, 0.25, 0.25)
        );
        assert!((auto.ratio - 4096.0 / 1536.0).abs() < 1e-9);
        assert_eq!(figures["lzo"].charged_bytes, 2048.0);
        assert!(auto.compress_ns.unwrap() > 0.0);
    }

    #[test]
    fn auto_has_two_sizes_of_a_page_and_others_one() {
        let contents = Contents {
            codecs: ["lzo", "auto", "auto-dense"].map(str::to_owned).to_vec(),
            blocks: vec![Block { first_page: 8, at_s: 0.0, charged_bytes: vec![vec![3, 2, 1]] }],
        };
        let of = |codec| sizes(&contents, codec).map(|sizes| sizes.of(8));
        assert_eq!(of("auto"), Some(PageSizes { first: 2, dense: 1 }));
        assert_eq!(of("lzo"), Some(PageSizes { first: 3, dense: 3 }));
        assert_eq!(of("none"), None);
    }
}

//! How small each page becomes, from a sample of blocks.

use std::collections::BTreeMap;

use crate::ratio::Blocks;
use crate::simulate::program::PageSizes;
use crate::{PROCESS_SHIFT, PageNumber, hash};

/// Neighbouring pages whose content was compressed.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledBlock {
    /// The first one.
    pub first_page: PageNumber,
    /// Of each that was there.
    pub pages: Vec<PageSizes>,
}

/// Sizes of sampled blocks, by which those of all pages are guessed: a page is like the nearest
/// sampled block of its process, or like any block where there is none.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    blocks: Vec<SampledBlock>,
    /// Where a block begins: which of them.
    by_place: BTreeMap<PageNumber, Vec<u32>>,
}

impl Sizes {
    /// From a sample. The same block may have been sampled at several times.
    pub fn new(blocks: impl IntoIterator<Item = SampledBlock>) -> Sizes {
        let blocks: Vec<SampledBlock> =
            blocks.into_iter().filter(|block| !block.pages.is_empty()).collect();
        let mut by_place: BTreeMap<PageNumber, Vec<u32>> = BTreeMap::new();
        for (nth, block) in blocks.iter().enumerate() {
            by_place.entry(block.first_page).or_default().push(nth as u32);
        }
        Sizes { blocks, by_place }
    }

    /// What all pages are, without a sample.
    pub fn alike(sizes: PageSizes) -> Sizes {
        Sizes::new([SampledBlock { first_page: 0, pages: vec![sizes] }])
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Of a page. Without any sample it does not compress.
    pub fn of(&self, page: PageNumber) -> PageSizes {
        let below = self.by_place.range(..=page).next_back();
        let above = self.by_place.range(page..).next();
        let is_same_process = |place: PageNumber| place >> PROCESS_SHIFT == page >> PROCESS_SHIFT;
        let nearest = [below, above]
            .into_iter()
            .flatten()
            .filter(|(place, _)| is_same_process(**place))
            .min_by_key(|(place, _)| place.abs_diff(page));
        let bits = hash(page) as usize;
        let block = match nearest {
            Some((_, blocks)) => Some(&self.blocks[blocks[bits % blocks.len()] as usize]),
            None => self.blocks.get(bits % self.blocks.len().max(1)),
        };
        let sizes = |block: &SampledBlock| {
            let place = page.wrapping_sub(block.first_page) as usize;
            let pages = &block.pages;
            pages.get(place).copied().unwrap_or_else(|| pages[(bits >> 20) % pages.len()])
        };
        block.map_or(PageSizes::alike(ramfold_codec::PAGE_SIZE as u16), sizes)
    }

    /// The sample, in bytes that a page is charged in the end.
    pub fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for block in &self.blocks {
            let bytes: Vec<f64> =
                block.pages.iter().map(|page| f64::from(page.dense.min(page.first))).collect();
            blocks.note(&bytes);
        }
        blocks
    }

    /// Bytes that a page is charged in the mean, at first and in the end. `None` without a sample.
    pub fn mean_bytes(&self) -> Option<[f64; 2]> {
        let mut sums = [0.0; 3];
        for page in self.blocks.iter().flat_map(|block| &block.pages) {
            sums[0] += f64::from(page.first);
            sums[1] += f64::from(page.dense.min(page.first));
            sums[2] += 1.0;
        }
        (sums[2] > 0.0).then(|| [sums[0] / sums[2], sums[1] / sums[2]])
    }
}

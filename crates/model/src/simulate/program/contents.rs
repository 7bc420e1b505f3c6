//! How small pages become, and for what they are compressed.

use std::collections::{HashMap, HashSet, VecDeque};

use ramfold_codec::{Objective, PAGE_SIZE};
use ramfold_policy::memory::objective::{Objectives, Outcome};

use crate::PageNumber;
use crate::simulate::memory::{Fit, Memory, Objects};
use crate::simulate::watched::Activity;

/// An object of more bytes saves too little: the page stays (`reclaim/compress.rs`).
const OBJECT_BYTES_MAX: u16 = (PAGE_SIZE / 4 * 3) as u16;
/// Bytes that an object must spare when it is compressed once more.
const RECOMPRESSED_BYTES_MIN: u32 = 128;
/// Of the time, as much at most goes into that (`reclaim/recompress.rs`).
const RECOMPRESS_SHARE: f64 = 0.1;
/// What was stored before the last round began is due in this one: that much later in the middle.
const RECOMPRESS_ROUNDS: f64 = 1.5;
/// What is compressed for is thought over after so many pages.
const WEIGHED_PAGES: u64 = 16;

/// What a page's object is charged. 0 where the page is one repeated word, [`PAGE_SIZE`] where it
/// does not compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSizes {
    /// As it is compressed at first.
    pub first: u16,
    /// For density.
    pub dense: u16,
}

impl PageSizes {
    /// Of the same size whatever it is compressed for.
    pub fn alike(bytes: u16) -> PageSizes {
        PageSizes { first: bytes, dense: bytes }
    }
}

/// How long a codec takes for a page, in seconds of a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecTimes {
    /// To compress it at first.
    pub compress_s: f64,
    /// To compress it for density.
    pub dense_compress_s: f64,
    /// To decompress what was compressed at first.
    pub decompress_s: f64,
    /// To decompress what was compressed for density.
    pub dense_decompress_s: f64,
    /// What a fault costs beside that.
    pub fault_s: f64,
    /// Processors that the program may use.
    pub processors: u32,
    /// A page that is out for so long is compressed once more. `None`: never.
    pub recompress_after_s: Option<f64>,
}

impl Default for CodecTimes {
    fn default() -> CodecTimes {
        CodecTimes {
            compress_s: 2e-6,
            dense_compress_s: 20e-6,
            decompress_s: 1e-6,
            dense_decompress_s: 3e-6,
            fault_s: 10e-6,
            processors: 2,
            recompress_after_s: Some(2.0),
        }
    }
}

/// What the simulated program's pages hold.
pub(super) struct Contents<'a> {
    activity: &'a Activity,
    sizes: &'a dyn Fn(PageNumber) -> PageSizes,
    times: CodecTimes,
    objectives: Objectives,
    objective: Objective,
    /// Objects that were compressed for density.
    dense: HashSet<PageNumber>,
    /// What was compressed at first: when, in the order of time. Some have come back since.
    stored: VecDeque<(u64, PageNumber)>,
    stored_us: HashMap<PageNumber, u64>,
    clock_us: u64,
    credit_s: f64,
    compressed: u64,
    compressed_dense: u64,
    dense_back: u64,
    /// Pages that were taken (`true`) or are in memory again, since these were asked for.
    moves: Vec<(PageNumber, bool)>,
}

impl<'a> Contents<'a> {
    pub(super) fn new(
        activity: &'a Activity,
        sizes: &'a dyn Fn(PageNumber) -> PageSizes,
        times: CodecTimes,
    ) -> Contents<'a> {
        let mut objectives = Objectives::default();
        objectives.set_processors(u64::from(times.processors));
        Contents {
            activity,
            sizes,
            times,
            objectives,
            objective: Objective::Speed,
            dense: HashSet::new(),
            stored: VecDeque::new(),
            stored_us: HashMap::new(),
            clock_us: 0,
            credit_s: 0.0,
            compressed: 0,
            compressed_dense: 0,
            dense_back: 0,
            moves: Vec::new(),
        }
    }

    pub(super) fn take_moves(&mut self) -> Vec<(PageNumber, bool)> {
        std::mem::take(&mut self.moves)
    }

    pub(super) fn dense_back(&self) -> u64 {
        self.dense_back
    }

    pub(super) fn compressed(&self) -> u64 {
        self.compressed
    }

    pub(super) fn compressed_dense(&self) -> u64 {
        self.compressed_dense
    }

    fn sizes_of(&self, page: PageNumber) -> PageSizes {
        (self.sizes)(self.activity.name(page).unwrap_or(page))
    }

    /// The pages that this one stands for would be tried now and then.
    fn note_trials(&mut self, sizes: PageSizes) {
        if sizes.first == 0 || sizes.first == sizes.dense {
            return;
        }
        // Enough of them for a verdict come early in any case.
        let trials = (0..self.activity.one_in().clamp(1.0, 64.0) as u32)
            .filter(|_| self.objectives.is_trial());
        if trials.count() == 0 {
            return;
        }
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let outcome = |bytes: u16, compress_s, decompress_s| Outcome {
            bytes: usize::from(if bytes > OBJECT_BYTES_MAX { PAGE_SIZE as u16 } else { bytes }),
            compress_ns: ns(compress_s),
            decompress_ns: ns(decompress_s),
        };
        let times = self.times;
        self.objectives.note(
            outcome(sizes.first, times.compress_s, times.decompress_s),
            outcome(sizes.dense, times.dense_compress_s, times.dense_decompress_s),
        );
    }
}

impl Objects for Contents<'_> {
    fn compress(&mut self, page: PageNumber) -> Fit {
        let sizes = self.sizes_of(page);
        self.note_trials(sizes);
        self.compressed += 1;
        let is_dense = self.objective == Objective::Density && sizes.first != sizes.dense;
        let bytes = if is_dense { sizes.dense } else { sizes.first };
        self.compressed_dense += u64::from(is_dense);
        if bytes > OBJECT_BYTES_MAX {
            return Fit::Stays;
        }
        if is_dense {
            self.dense.insert(page);
        } else if sizes.dense < sizes.first && self.times.recompress_after_s.is_some() {
            self.stored.push_back((self.clock_us, page));
            self.stored_us.insert(page, self.clock_us);
        }
        Fit::Charged(bytes.into())
    }

    fn note_taken(&mut self, page: PageNumber) {
        self.moves.push((page, true));
    }

    fn note_back(&mut self, page: PageNumber) {
        self.moves.push((page, false));
        self.stored_us.remove(&page);
        if self.dense.remove(&page) {
            self.dense_back += 1;
        }
    }
}

/// What the agent does meanwhile: thinks over what to compress for, and compresses once more what
/// has stayed out where there is time for it.
pub(super) fn recompress(memory: &mut Memory<Contents<'_>>, clock_us: u64, outruns: bool) {
    let marks = memory.cap_marks();
    let cost = memory.cost_bytes();
    if memory.objects().compressed.is_multiple_of(WEIGHED_PAGES) || memory.is_stuck() {
        let pool = memory.state().stored_bytes;
        let best = memory.best_objective_of(|contents, out, refaults, cap_pages| {
            contents.objectives.best(out, refaults, cap_pages)
        });
        let takes_most = pool > marks.cap / 3 * 2;
        memory.objects_mut().objective = if takes_most { Objective::Density } else { best };
    }
    let one_in = memory.objects().activity.one_in();
    let contents = memory.objects_mut();
    let elapsed_s = clock_us.saturating_sub(contents.clock_us) as f64 / 1e6;
    contents.clock_us = contents.clock_us.max(clock_us);
    let Some(after_s) = contents.times.recompress_after_s else { return };
    let is_short = (marks.activation..=marks.high).contains(&cost);
    if !is_short || outruns {
        contents.credit_s = 0.0;
        return;
    }
    let due_us = clock_us.saturating_sub((after_s * RECOMPRESS_ROUNDS * 1e6) as u64);
    let page_s = (contents.times.dense_compress_s + contents.times.decompress_s) * one_in;
    contents.credit_s += elapsed_s * RECOMPRESS_SHARE;
    loop {
        let contents = memory.objects_mut();
        let Some(&(stored_us, page)) = contents.stored.front() else { break };
        if stored_us > due_us || contents.credit_s < page_s {
            break;
        }
        contents.stored.pop_front();
        if contents.stored_us.get(&page) != Some(&stored_us) {
            continue;
        }
        contents.stored_us.remove(&page);
        contents.credit_s -= page_s;
        contents.compressed_dense += 1;
        let dense = u32::from(contents.sizes_of(page).dense);
        let is_smaller =
            memory.charged(page).is_some_and(|first| dense + RECOMPRESSED_BYTES_MIN <= first);
        if is_smaller {
            memory.recharge(page, dense);
            memory.objects_mut().dense.insert(page);
        }
    }
    // What is not used now is not saved for later.
    let contents = memory.objects_mut();
    contents.credit_s = contents.credit_s.min(page_s.max(0.05));
}

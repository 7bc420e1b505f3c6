//! What happens with a size of memory, for each kind of what was measured.

use ramfold_model::curve::Estimate;
use ramfold_model::footprint::Footprint;
use ramfold_model::ratio::Blocks;

use super::codecs::{AUTO, blocks};
use crate::contents::{AUTO_DENSE, INDEX_BYTES};
use crate::machine::{Costs, Spread};
use crate::observation::Observation;

const PAGE_BYTES: f64 = 4096.0;
/// What an agent takes itself: tables, stacks, scratch memory, the frames that it keeps free.
const OWN_BYTES: f64 = (5 << 20) as f64;
/// How far a curve of windows may be off, as a part of itself.
const WINDOWS_OFF: f64 = 0.3;

/// What is said of a size of memory. What needs times is `None` where none are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    pub memory_bytes: u64,
    pub resident_bytes: u64,
    pub pool_bytes: u64,
    /// Run time by that with all memory.
    pub slowdown: Option<Estimate>,
    /// Processor time by that with all memory.
    pub processor: Option<f64>,
    /// Faults in a second of the run with all memory.
    pub faults: Option<f64>,
    pub cannot_hold: f64,
}

impl Forecast {
    /// Faults in a second of the run with this memory, which takes longer.
    pub(super) fn faults_in_a_second(&self) -> Option<f64> {
        self.faults.map(|faults| faults / self.slowdown.map_or(1.0, |slowdown| slowdown.value))
    }
}

/// Makes forecasts of one observation.
pub(super) struct Forecaster<'a> {
    observation: &'a Observation,
    costs: &'a Costs,
    /// Sizes of the pages when they have left.
    blocks: Blocks,
    /// Faults in a second by resident pages, where windows were measured.
    footprint: Option<Footprint>,
}

impl<'a> Forecaster<'a> {
    /// `None` where no page was compressed with this codec.
    pub(super) fn new(
        observation: &'a Observation,
        costs: &'a Costs,
        codec: &str,
    ) -> Option<Forecaster<'a>> {
        let contents = &observation.contents;
        // What stays out is compressed once more and harder.
        let dense = (codec == AUTO).then(|| blocks(contents, AUTO_DENSE)).flatten();
        let blocks = dense.or_else(|| blocks(contents, codec))?;
        let windows = observation.windows.iter().map(|window| (window.seconds, window.pages));
        let footprint = (!observation.windows.is_empty()).then(|| Footprint::from_windows(windows));
        Some(Forecaster { observation, costs, blocks, footprint })
    }

    /// With this much memory.
    pub(super) fn at(&self, memory_bytes: u64) -> Forecast {
        let pages = self.observation.need_bytes as f64 / PAGE_BYTES;
        let charged = self.blocks.mean_bytes().unwrap_or(PAGE_BYTES).min(PAGE_BYTES - 1.0);
        let memory = memory_bytes as f64;
        let fits = memory_bytes >= self.observation.need_bytes;
        let each = charged + INDEX_BYTES;
        let spare = memory - OWN_BYTES - pages * each;
        let resident = if fits { pages } else { (spare / (PAGE_BYTES - each)).clamp(0.0, pages) };
        let out = pages - resident;
        let limit = (memory - OWN_BYTES) / pages - INDEX_BYTES;
        let cannot_hold = match (fits, self.blocks.chance_above(limit, pages)) {
            (true, _) => 0.0,
            (false, Some(chance)) => chance,
            (false, None) => f64::from(u8::from(spare < 0.0)),
        };
        let faults = self.footprint.as_ref().map(|footprint| footprint.curve().faults(resident));
        let by = |cost: Spread, part: fn(Spread) -> f64, off: f64| {
            faults.map(|faults| 1.0 + faults * off * part(cost))
        };
        let wall = self.costs.fault.wall_s;
        let slowdown = (|| {
            Some(Estimate {
                value: by(wall, |cost| cost.median, 1.0)?,
                low: by(wall, |cost| cost.low, 1.0 - WINDOWS_OFF)?,
                high: by(wall, |cost| cost.high, 1.0 + WINDOWS_OFF)?,
            })
        })();
        Forecast {
            memory_bytes,
            resident_bytes: (resident * PAGE_BYTES) as u64,
            pool_bytes: (out * charged) as u64,
            slowdown,
            processor: by(self.costs.fault.processor_s, |cost| cost.median, 1.0),
            faults,
            cannot_hold,
        }
    }
}

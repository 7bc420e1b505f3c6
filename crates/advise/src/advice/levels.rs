//! The same memory with zram or with swap on a disk, and condition 7 of paper 003: does a
//! compressed level pay against the disk here?

use std::collections::BTreeMap;

use ramfold_model::curve::{MissCurve, Point};
use ramfold_model::equations::{Condition, Level, Printed, Times, compressed_access};

use super::codecs::CodecFigures;
use super::forecast::Forecast;
use crate::machine::Costs;

const PAGE_BYTES: f64 = 4096.0;
/// What the kernel takes to bring a page back from swap, the codec or the disk apart. Nanoseconds.
const KERNEL_FAULT_NS: f64 = 2500.0;
/// An access to memory, t_DRAM. Nanoseconds.
const MEMORY_NS: f64 = 100.0;
/// What zram compresses with where nothing else is chosen.
const ZRAM_CODEC: &str = "lzo";

/// Faults by resident pages as they were forecast, and what takes their place.
pub(super) struct Levels<'a> {
    curve: MissCurve,
    need_pages: f64,
    costs: &'a Costs,
    /// Of the codec that is advised for.
    codec: Option<CodecFigures>,
    zram: Option<CodecFigures>,
    as_printed: bool,
}

impl<'a> Levels<'a> {
    /// `None` where no faults are known.
    pub(super) fn new(
        forecasts: &[Forecast],
        need_bytes: u64,
        costs: &'a Costs,
        codecs: &BTreeMap<String, CodecFigures>,
        codec: &str,
        as_printed: bool,
    ) -> Option<Levels<'a>> {
        let need_pages = need_bytes as f64 / PAGE_BYTES;
        let mut points = vec![Point { pages: need_pages, faults: 0.0 }];
        for forecast in forecasts {
            let pages = forecast.resident_bytes as f64 / PAGE_BYTES;
            points.push(Point { pages, faults: forecast.faults?.max(0.0) });
        }
        let curve = MissCurve::new(points, 0.0, 0.0);
        let of = |name: &str| codecs.get(name).copied();
        let (codec, zram) = (of(codec), of(ZRAM_CODEC));
        Some(Levels { curve, need_pages, costs, codec, zram, as_printed })
    }

    /// Run time with zram, by that with all memory. The pages that are resident beside its objects
    /// are fewer or more than ramfold's by what its codec makes of them.
    pub(super) fn zram(&self, memory_bytes: u64) -> Option<f64> {
        let figures = self.zram?;
        let charged = figures.charged_bytes.min(PAGE_BYTES - 1.0);
        let spare = memory_bytes as f64 - self.need_pages * charged;
        let resident = (spare / (PAGE_BYTES - charged)).min(self.need_pages);
        let hit_ns = compressed_access(
            KERNEL_FAULT_NS,
            figures.decompress_ns?,
            figures.compress_ns?,
            1.0,
            0.0,
        );
        // Where its objects alone do not fit, zram holds the program as little.
        (resident >= 0.0).then(|| 1.0 + self.curve.faults(resident) * hit_ns / 1e9)
    }

    /// Run time with swap on the disk, by that with all memory: a read for each fault.
    pub(super) fn swap(&self, memory_bytes: u64) -> Option<f64> {
        let read_s = self.costs.disk.as_ref()?.read_s.median;
        let faults = self.curve.faults(memory_bytes as f64 / PAGE_BYTES);
        Some(1.0 + faults * (read_s + KERNEL_FAULT_NS / 1e9))
    }

    /// Condition 7: does the area of the compressed pages pay against the disk?
    pub(super) fn pays(&self, forecast: &Forecast) -> Option<bool> {
        let disk_ns = self.costs.disk.as_ref()?.read_s.median * 1e9;
        let figures = self.codec?;
        let times = Times {
            caches_ns: 0.0,
            memory_ns: MEMORY_NS,
            compressed_ns: self.hit_ns(figures)?,
            disk_ns,
        };
        let memory_pages = forecast.memory_bytes as f64 / PAGE_BYTES;
        let area_pages = forecast.pool_bytes as f64 / PAGE_BYTES;
        let condition =
            Condition::on_curve(&self.curve, memory_pages, area_pages, figures.ratio, times)?;
        Some(condition.holds())
    }

    /// What a hit in the compressed level takes: as measured here, or by the paper's T_Cspeed,
    /// which knows the codec alone and counts compressions as hits.
    fn hit_ns(&self, figures: CodecFigures) -> Option<f64> {
        if !self.as_printed {
            return Some(self.costs.fault.wall_s.median * 1e9);
        }
        let level = |access_ns| Level { hits: 1.0, access_ns };
        let (decompress, compress) = (level(figures.decompress_ns?), level(figures.compress_ns?));
        Some(Printed::compressed_access(decompress, compress, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Disk, Spread};

    fn costs(read_s: f64) -> Costs {
        let spread = Spread { median: read_s, low: read_s, high: read_s };
        Costs { disk: Some(Disk { folder: "/".into(), read_s: spread }), ..Costs::usual() }
    }

    /// A thousand pages, and faults that fall evenly with what is resident.
    fn forecasts() -> Vec<Forecast> {
        let of = |percent: u64| {
            let resident = (percent as f64 - 25.0).max(0.0) / 75.0;
            Forecast {
                memory_bytes: percent * 40960,
                resident_bytes: (resident * 4_096_000.0) as u64,
                pool_bytes: ((1.0 - resident) * 1_024_000.0) as u64,
                slowdown: None,
                processor: None,
                faults: Some((1.0 - resident) * 10_000.0),
                cannot_hold: 0.0,
            }
        };
        (25..=100).step_by(5).map(of).collect()
    }

    fn codecs() -> BTreeMap<String, CodecFigures> {
        let figures = CodecFigures {
            charged_bytes: 1024.0,
            ratio: 4.0,
            same_filled: 0.0,
            incompressible: 0.0,
            compress_ns: Some(3000.0),
            decompress_ns: Some(1500.0),
        };
        [("auto", figures), ("lzo", figures)].map(|(name, of)| (name.to_owned(), of)).into()
    }

    #[test]
    fn a_slow_disk_is_worse_than_compression_and_a_fast_one_is_not() {
        for (read_s, pays) in [(1e-3, true), (1e-6, false)] {
            let (costs, codecs) = (costs(read_s), codecs());
            let forecasts = forecasts();
            let levels =
                Levels::new(&forecasts, 4_096_000, &costs, &codecs, "auto", false).unwrap();
            // Half of the memory: without compression half of the pages, with it a third.
            let half = forecasts.iter().find(|row| row.memory_bytes == 2_048_000).unwrap();
            assert_eq!(levels.pays(half), Some(pays), "{read_s}");
            let swap = levels.swap(2_048_000).unwrap();
            assert!((swap - 1.0 - 5000.0 * (read_s + 2.5e-6)).abs() < 0.01, "{swap}");
            let zram = levels.zram(2_048_000).unwrap();
            let faults = half.faults.unwrap();
            assert!((zram - 1.0 - faults * 7e-6).abs() < 1e-3, "{zram}");
            assert_eq!(levels.zram(1 << 19), None);
        }
    }

    #[test]
    fn as_printed_a_hit_costs_less() {
        let (costs, codecs, forecasts) = (costs(1e-3), codecs(), forecasts());
        let of = |as_printed| {
            let levels =
                Levels::new(&forecasts, 4_096_000, &costs, &codecs, "auto", as_printed).unwrap();
            levels.hit_ns(codecs["auto"]).unwrap()
        };
        assert_eq!(of(true), 2250.0);
        assert!((of(false) - costs.fault.wall_s.median * 1e9).abs() < 1e-6);
    }

    #[test]
    fn without_faults_nothing_is_said() {
        let mut forecasts = forecasts();
        forecasts[0].faults = None;
        let (costs, codecs) = (costs(1e-3), codecs());
        assert!(Levels::new(&forecasts, 4_096_000, &costs, &codecs, "auto", false).is_none());
    }
}

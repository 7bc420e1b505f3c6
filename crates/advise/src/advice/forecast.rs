//! What happens with a size of memory: the model's prediction, fed with what was measured.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ramfold_model::curve::{Estimate, MissCurve};
use ramfold_model::footprint::Footprint;
use ramfold_model::predict::{
    self, Input, Overhead, Prediction, RunTime, Sizes, Swap, Use, make_monotone,
};
use ramfold_model::rounds::Round;
use ramfold_model::simulate::watched::{Activity, Sampling};

use super::AllMemory;
use super::codecs::{AUTO, PAGE_BYTES, sizes};
use crate::contents::AUTO_DENSE;
use crate::contents::CodecTimes;
use crate::lock;
use crate::machine::Costs;
use crate::observation::{BLOCK_PAGES, Observation, Subject};
use crate::progress::Progress;

/// `auto` compresses once more what was out for so long.
const RECOMPRESS_AFTER_S: f64 = 2.0;
/// How far a curve of windows may be off, with a chance of 90 %, as a part of itself.
const WINDOWS_ERROR: f64 = 0.3;
/// What the kernel takes to bring a page back from swap, the codec or the disk apart.
const KERNEL_FAULT_S: f64 = 2.5e-6;
/// What zram compresses with where nothing else is chosen.
const ZRAM_CODEC: &str = "lzo";
/// What moving a page costs the agent at least: measurements are noisy.
const MOVE_S_MIN: f64 = 0.2e-6;
/// What a first access costs while memory is looked after, as a part of a fault by itself: no page
/// is decompressed and none compressed for it, and some pages come with their neighbours. Measured:
/// 10.6 us of 24.5 us for each page of `sort`.
const FIRST_SHARE: f64 = 0.43;

/// What is said of a size of memory. What needs times is `None` where none are known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Forecast {
    pub prediction: Prediction,
    pub has_times: bool,
    /// Processor time by that with all memory.
    pub processor: Option<f64>,
    /// Run time with zram, by that with all memory.
    pub zram: Option<f64>,
    /// The same with swap on the disk.
    pub swap: Option<f64>,
    /// Condition 7 against that.
    pub pays: Option<bool>,
}

impl Forecast {
    pub(super) fn memory_bytes(&self) -> u64 {
        self.prediction.memory_bytes
    }

    /// Where no chance can be stated, nothing is promised.
    pub(super) fn cannot_hold(&self) -> f64 {
        self.prediction.chance_not_held.unwrap_or(1.0)
    }

    pub(super) fn slowdown(&self) -> Option<Estimate> {
        self.has_times.then_some(self.prediction.slowdown)
    }
}

/// Makes forecasts of one observation.
pub(super) struct Forecaster<'a> {
    need_bytes: u64,
    machine: &'a Costs,
    sizes: Sizes,
    zram: Option<(Sizes, CodecTimes)>,
    activity: Option<Activity>,
    rounds: &'a [Round],
    curve: MissCurve,
    run: RunTime,
    costs: predict::Costs,
    recompress_after_s: Option<f64>,
    /// How far the costs may be off, as a part of them.
    costs_error: f64,
    overhead: Overhead,
    has_times: bool,
    as_printed: bool,
}

impl<'a> Forecaster<'a> {
    /// `None` where no page was compressed with this codec.
    pub(super) fn new(
        observation: &'a Observation,
        machine: &'a Costs,
        codec: &str,
        as_printed: bool,
    ) -> Option<Forecaster<'a>> {
        let contents = &observation.contents;
        let zram = sizes(contents, ZRAM_CODEC).zip(machine.codecs.get(ZRAM_CODEC).copied());
        let one_in = u64::from(observation.one_in.max(1));
        let end_us = (observation.seconds * 1e6) as u64;
        let activity = (!observation.events.is_empty()).then(|| {
            let sampling = Sampling { one_in, block_pages: BLOCK_PAGES };
            Activity::new(observation.events.iter().copied(), sampling, end_us)
                .of_pages(observation.need_bytes as f64 / PAGE_BYTES)
        });
        let windows = observation.windows.iter().map(|window| (window.seconds, window.pages));
        let wall = machine.fault.wall_s;
        Some(Forecaster {
            need_bytes: observation.need_bytes,
            machine,
            sizes: sizes(contents, codec)?,
            zram,
            has_times: observation.has_times(),
            overhead: overhead(&observation.subject),
            activity,
            rounds: &observation.rounds,
            curve: Footprint::from_windows(windows).curve(),
            run: run_time(observation),
            costs: costs_with(machine, codec),
            recompress_after_s: (codec == AUTO).then_some(RECOMPRESS_AFTER_S),
            costs_error: (wall.high - wall.low) / 2.0 / wall.median,
            as_printed,
        })
    }

    fn input(&self) -> Input<'_> {
        let pages = match &self.activity {
            Some(activity) => Use::Watched(activity, self.rounds),
            None => Use::Curve {
                curve: &self.curve,
                pages: self.need_bytes as f64 / PAGE_BYTES,
                error: WINDOWS_ERROR,
            },
        };
        Input {
            pages,
            sizes: &self.sizes,
            run: self.run,
            costs: self.costs,
            overhead: self.overhead,
            recompress_after_s: self.recompress_after_s,
        }
    }

    /// With each of these sizes, on all processors; in their order.
    pub(super) fn at(&self, sizes: &[u64], progress: &Progress) -> Vec<Forecast> {
        progress.set_all(sizes.len() as u64);
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(sizes.len()));
        let threads = thread::available_parallelism().map_or(1, usize::from).min(sizes.len());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let nth = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(&memory_bytes) = sizes.get(nth)
                    {
                        let forecast = self.forecast(memory_bytes);
                        lock(&done).push((nth, forecast));
                        progress.add(1);
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|&(nth, _)| nth);
        let mut forecasts: Vec<Forecast> = done.into_iter().map(|(_, forecast)| forecast).collect();
        let mut predictions: Vec<Prediction> =
            forecasts.iter().map(|forecast| forecast.prediction).collect();
        make_monotone(&mut predictions);
        for (forecast, prediction) in forecasts.iter_mut().zip(predictions) {
            forecast.prediction = prediction;
        }
        forecasts
    }

    fn forecast(&self, memory_bytes: u64) -> Forecast {
        let input = self.input();
        let mut prediction = predict::at(&input, memory_bytes);
        let slowdown = prediction.slowdown;
        let off = (slowdown.value - 1.0) * self.costs_error;
        prediction.slowdown = Estimate {
            low: (slowdown.value - (slowdown.value - slowdown.low).hypot(off)).max(1.0),
            high: slowdown.value + (slowdown.high - slowdown.value).hypot(off),
            ..slowdown
        };
        let mut forecast = Forecast {
            prediction,
            has_times: self.has_times,
            processor: None,
            zram: None,
            swap: None,
            pays: None,
        };
        if !self.has_times {
            return forecast;
        }
        let of_run = self.run.processor_s;
        forecast.processor = (of_run > 0.0).then(|| 1.0 + prediction.processor_added_s / of_run);
        forecast.zram = self.zram(&input, memory_bytes);
        if let Some(disk) = &self.machine.disk {
            let swap = Swap {
                read_s: disk.read_s.median + KERNEL_FAULT_S,
                write_s: disk.write_s,
                objects: None,
            };
            let decision = predict::decision(&input, &prediction, &swap);
            forecast.swap = Some(decision.with_swap);
            let condition = if self.as_printed { decision.as_printed } else { decision.condition };
            // With nothing to bring back both sides are the same: nothing pays for nothing.
            forecast.pays = condition
                .filter(|condition| condition.gain > 0.0 || condition.overhead > 0.0)
                .map(|condition| condition.holds());
        }
        forecast
    }

    /// `None` where zram cannot hold the pages that have no room beside its objects.
    fn zram(&self, input: &Input<'_>, memory_bytes: u64) -> Option<f64> {
        let (objects, times) = self.zram.as_ref()?;
        let [charged, _] = objects.mean_bytes()?;
        let is_held = self.need_bytes as f64 / PAGE_BYTES * charged < memory_bytes as f64;
        let swap = Swap {
            read_s: KERNEL_FAULT_S + times.decompress_ns / 1e9,
            write_s: times.compress_ns / 1e9,
            objects: Some(objects),
        };
        is_held.then(|| predict::swapped(input, memory_bytes, &swap).value)
    }
}

/// What an agent costs, which is in the program's memory. A mount's is not in that of its files.
fn overhead(subject: &Subject) -> Overhead {
    let usual = Overhead::default();
    match subject {
        Subject::Files(_) => Overhead { entry_bytes: usual.entry_bytes, ..usual.of_kernel() },
        _ => usual,
    }
}

/// With all of its memory, and without what observation took.
fn run_time(observation: &Observation) -> RunTime {
    let processors = observation.machine.processors;
    match observation.run.and_then(AllMemory::observed) {
        Some(AllMemory { wall_s, processor_s, .. }) => RunTime { wall_s, processor_s, processors },
        // What it does besides is not known: one processor.
        None => RunTime { wall_s: observation.seconds, processor_s: 0.0, processors },
    }
}

/// What was measured with `auto`, for the codec that is asked about.
fn costs_with(machine: &Costs, codec: &str) -> predict::Costs {
    let usual = predict::Costs::default();
    let seconds = |codec: &str| {
        let times = machine.codecs.get(codec);
        times.map(|times| (times.compress_ns / 1e9, times.decompress_ns / 1e9))
    };
    let auto = seconds(AUTO).unwrap_or((usual.compress_s, usual.decompress_s));
    let first = seconds(codec).unwrap_or(auto);
    let dense = match codec {
        AUTO => seconds(AUTO_DENSE).unwrap_or((usual.dense_compress_s, usual.dense_decompress_s)),
        _ => first,
    };
    // One page comes back and another is taken: both are moved.
    let move_s = (machine.fault.processor_s.median - auto.0 - auto.1) / 2.0;
    let (compress_s, decompress_s) = first;
    let more_s = (compress_s - auto.0) + (decompress_s - auto.1);
    let with = |seconds: f64, more_s: f64| (seconds + more_s).max(MOVE_S_MIN);
    predict::Costs {
        fault_s: with(machine.fault.wall_s.median, more_s),
        stream_page_s: with(machine.stream.wall_s.median, more_s),
        first_page_s: machine.fault.wall_s.median * FIRST_SHARE,
        growth_page_s: with(machine.growth.wall_s.median, compress_s - auto.0),
        compress_s,
        dense_compress_s: dense.0,
        decompress_s,
        dense_decompress_s: dense.1,
        move_s: move_s.max(MOVE_S_MIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_codec_makes_faults_slower() {
        let mut machine = Costs::usual();
        let of = |compress_ns, decompress_ns| CodecTimes { compress_ns, decompress_ns };
        machine.codecs.insert(AUTO.to_owned(), of(2000.0, 1000.0));
        machine.codecs.insert("slow".to_owned(), of(20_000.0, 5000.0));
        let (auto, slow) = (costs_with(&machine, AUTO), costs_with(&machine, "slow"));
        assert_eq!(auto.fault_s, machine.fault.wall_s.median);
        assert!((slow.fault_s - auto.fault_s - 22e-6).abs() < 1e-9, "{slow:?}");
        assert_eq!((slow.compress_s, slow.dense_compress_s), (20e-6, 20e-6));
        // An unknown one is like auto.
        assert_eq!(costs_with(&machine, "unknown").fault_s, auto.fault_s);
    }
}

//! Advice from an observation and the costs of the machine: what happens at each size of memory,
//! what is recommended, and what was not seen.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

mod all_memory;
mod codecs;
mod command;
mod forecast;
#[cfg(test)]
mod tests;
mod trial_size;
mod trials;

pub use all_memory::AllMemory;
pub use codecs::CodecFigures;
pub use command::{Limits, Recommended, quoted, quoted_line};
use forecast::{Forecast, Forecaster};
pub use trial_size::trial_limit;
use trials::Measured;

use crate::machine::Costs;
use crate::meter::others_took;
use crate::observation::{Observation, Subject, Trial, WholeRun};
use crate::progress::Progress;

/// Fewer pages in the sample say nothing.
pub const PAGES_MIN: usize = 64;
/// Fewer blocks of neighbouring pages say nothing of how small all become together.
pub const BLOCKS_MIN: usize = ramfold_model::ratio::BLOCKS_MIN;
/// What was looked at for a shorter time says nothing of how it goes on. Seconds.
pub const SECONDS_MIN: f64 = 1.0;
/// A size that is held with a smaller chance of failing can be recommended.
pub const CANNOT_HOLD_MAX: f64 = 0.01;
/// How much longer the program may take at a size that is recommended, where nobody says.
pub const AT_MOST_USUAL: f64 = 1.25;

/// From one row to the next, in percent of the need.
const STEP: u64 = 5;
/// What cannot be held with a greater chance than this ends the rows.
const CANNOT_HOLD_SURE: f64 = 0.99;
/// To how much on both sides of what is to be expected the quotient of two run times of the same
/// program is, with a chance of 90 %: each differs by 8 % (standard deviation) where it matters in
/// which frames its pages lie, as in a virtual machine (docs/results/2026-11-29.md).
const RUNS_APART: f64 = 0.2;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The codec, by its name.
    pub codec: String,
    /// More sizes than those in steps of 5 %.
    pub memory: Vec<u64>,
    /// How much longer the program may take.
    pub at_most: f64,
    /// Whether condition 7 is computed as paper 003 prints it.
    pub as_printed: bool,
}

impl Default for Question {
    fn default() -> Question {
        Question {
            codec: codecs::AUTO.to_owned(),
            memory: Vec::new(),
            at_most: AT_MOST_USUAL,
            as_printed: false,
        }
    }
}

/// Why there is no advice.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Too little was sampled.
    #[error(
        "{pages} pages in {blocks} blocks were sampled, and advice needs {PAGES_MIN} pages in \
         {BLOCKS_MIN} blocks at least: {todo}"
    )]
    FewPages {
        /// Pages of the sample.
        pages: usize,
        /// Blocks that they are in.
        blocks: usize,
        /// What helps.
        todo: &'static str,
    },
    /// It was looked at for too short a time.
    #[error("{seconds:.2} s were observed, and advice needs {SECONDS_MIN} s at least: {todo}")]
    Short {
        /// How long it was observed.
        seconds: f64,
        /// What helps.
        todo: &'static str,
    },
    /// A codec that is not in the sample.
    #[error("no page was compressed with {codec}: the sample has {known}")]
    Codec {
        /// The codec.
        codec: String,
        /// Those that are.
        known: String,
    },
}

/// With a size of memory. Fields that need times are `None` where none are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The memory: what `--memory` takes.
    pub memory_bytes: u64,
    /// As a part of the need.
    pub of_need: f64,
    /// Of that, pages that are there uncompressed.
    pub resident_bytes: u64,
    /// The greatest size of the pool.
    pub pool_bytes: u64,
    /// Low bound of its 90 % interval.
    pub pool_bytes_low: u64,
    /// High bound.
    pub pool_bytes_high: u64,
    /// What is not needed of the need.
    pub saved_bytes: u64,
    /// Run time as a multiple of that with all memory.
    pub slowdown: Option<f64>,
    /// Low bound of the 90 % interval of one run.
    pub slowdown_low: Option<f64>,
    /// High bound.
    pub slowdown_high: Option<f64>,
    /// Processor time as a multiple of that with all memory.
    pub processor: Option<f64>,
    /// Faults on pages that had left, in a second of this run.
    pub faults_per_second: Option<f64>,
    /// Chance that so much memory cannot hold all.
    pub cannot_hold_probability: f64,
    /// Run time with zram and as much memory.
    pub zram_slowdown: Option<f64>,
    /// Run time with swap on the disk and as much memory.
    pub swap_slowdown: Option<f64>,
    /// Condition 7: whether the compressed level pays against the disk.
    pub pays_against_disk: Option<bool>,
}

/// A run of the program under a cap, by which the rows are corrected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The memory.
    pub memory_bytes: u64,
    /// As a part of the need.
    pub of_need: f64,
    /// Run time as a multiple of that with all memory.
    pub run_time: f64,
    /// Whether it was ended then: it would have taken longer.
    pub at_least: bool,
    /// The greatest size of the pool.
    pub pool_bytes: u64,
    /// Faults on pages that had left.
    pub faults: u64,
    /// Processors that others took meanwhile, where none was left.
    #[serde(default)]
    pub others: Option<f64>,
    /// Why it does not count, where it does not.
    pub failed: Option<String>,
}

/// All that is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What of.
    pub subject: Subject,
    /// For how long it was looked at. Seconds.
    pub seconds: f64,
    /// Of a program that ran to its end.
    pub run: Option<WholeRun>,
    /// Of the same: what it takes when nobody looks.
    pub all_memory: Option<AllMemory>,
    /// Greatest size that was seen.
    pub need_bytes: u64,
    /// Pages whose content was looked at.
    pub sampled_pages: usize,
    /// The codec that is advised for.
    pub codec: String,
    /// How much longer the program may take.
    pub at_most: f64,
    /// By the name of the codec.
    pub codecs: BTreeMap<String, CodecFigures>,
    /// What things cost here.
    pub costs: Costs,
    /// From all of the need downwards.
    pub rows: Vec<Row>,
    /// What was tried, in that order.
    #[serde(default)]
    pub trials: Vec<Tried>,
    /// What to do.
    pub recommended: Recommended,
    /// What is not in the figures, each a sentence.
    pub not_seen: Vec<String>,
}

impl Observation {
    /// Whether it is known when pages are used, so that times can be predicted. Of files it is
    /// known to the day.
    pub fn has_times(&self) -> bool {
        let is_run = !matches!(self.subject, Subject::Files(_) | Subject::Pages(_));
        is_run && !(self.events.is_empty() && self.windows.is_empty())
    }
}

impl Advice {
    /// Whether times are predicted.
    pub fn has_times(&self) -> bool {
        self.rows.iter().any(|row| row.slowdown.is_some())
    }

    /// The memory to be tried next; `None` where times are not known, or no other trial would say
    /// more.
    pub fn next_trial(&self) -> Option<u64> {
        trial_size::next(&self.rows, &self.trials, self.at_most)
    }

    /// Run time with all memory. Seconds.
    pub fn free_wall_s(&self) -> Option<f64> {
        // Advice of before has none.
        let all_memory = self.all_memory.or_else(|| self.run.and_then(AllMemory::observed));
        all_memory.map(|all_memory| all_memory.wall_s)
    }
}

/// Advises, by the trials of the observation too.
///
/// # Errors
/// When too little was seen, or the codec is not in the sample.
pub fn advise(
    observation: &Observation,
    costs: &Costs,
    question: &Question,
    progress: &Progress,
) -> Result<Advice, Error> {
    let advisor = Advisor::new(observation, costs, question, progress)?;
    Ok(advisor.advice(&observation.trials))
}

/// What is forecast of an observation, for trials to correct.
#[derive(Debug)]
pub struct Advisor<'a> {
    observation: &'a Observation,
    question: &'a Question,
    /// As they are without trials.
    uncorrected: Advice,
}

impl<'a> Advisor<'a> {
    /// Makes the forecasts.
    ///
    /// # Errors
    /// When too little was seen, or the codec is not in the sample.
    pub fn new(
        observation: &'a Observation,
        costs: &Costs,
        question: &'a Question,
        progress: &Progress,
    ) -> Result<Advisor<'a>, Error> {
        let uncorrected = uncorrected(observation, costs, question, progress)?;
        Ok(Advisor { observation, question, uncorrected })
    }

    /// What is said after these trials.
    pub fn advice(&self, trials: &[Trial]) -> Advice {
        let Advisor { observation, question, .. } = *self;
        let mut advice = self.uncorrected.clone();
        let need_bytes = advice.need_bytes;
        let (with_all, capped): (Vec<&Trial>, Vec<&Trial>) =
            trials.iter().partition(|trial| trial.memory_bytes >= need_bytes);
        if let Some(observed) = advice.all_memory {
            let all_memory = AllMemory::of_runs(&with_all).unwrap_or(observed);
            all_memory::convert(&mut advice.rows, observed, all_memory);
            advice.all_memory = Some(all_memory);
            let capped = capped.iter().filter(|trial| trial.codec == question.codec);
            let counting = capped.clone().filter(|trial| trial.failed.is_none());
            let measured: Vec<Measured> =
                counting.map(|trial| measured(trial, all_memory)).collect();
            trials::correct(&mut advice.rows, need_bytes, &measured);
            advice.trials =
                capped.map(|trial| tried(trial, need_bytes, all_memory.wall_s)).collect();
        }
        // By the mean of many runs: one is slower or faster by chance.
        advice.recommended = recommended(observation, question, &advice.rows, &advice.trials);
        widen_to_one_run(&mut advice.rows);
        advice.not_seen.extend(all_memory::not_seen(&with_all));
        advice.not_seen.extend(not_tried(&advice.trials));
        advice
    }
}

/// The bounds so far are those of the mean of many runs. They stay in order: with less memory the
/// program is never said to be faster.
fn widen_to_one_run(rows: &mut [Row]) {
    let (mut least_low, mut least_high) = (0.0, 0.0);
    for row in rows {
        let (Some(value), Some(low), Some(high)) =
            (row.slowdown, row.slowdown_low, row.slowdown_high)
        else {
            continue;
        };
        let apart = RUNS_APART * value;
        least_low = (value - (value - low).hypot(apart)).max(least_low);
        least_high = (value + (high - value).hypot(apart)).max(least_high);
        (row.slowdown_low, row.slowdown_high) = (Some(least_low), Some(least_high));
    }
}

fn measured(trial: &Trial, all_memory: AllMemory) -> Measured {
    let AllMemory { wall_s, processor_s, .. } = all_memory;
    Measured {
        memory_bytes: trial.memory_bytes,
        slowdown: trial.wall_s / wall_s,
        processor: (processor_s > 0.0).then(|| trial.processor_s / processor_s),
        faults: trial.faults as f64 / wall_s,
        pool_bytes: trial.pool_bytes as f64,
        at_least: trial.at_least,
    }
}

fn tried(trial: &Trial, need_bytes: u64, free_wall_s: f64) -> Tried {
    Tried {
        memory_bytes: trial.memory_bytes,
        of_need: trial.memory_bytes as f64 / need_bytes as f64,
        run_time: trial.wall_s / free_wall_s,
        at_least: trial.at_least,
        pool_bytes: trial.pool_bytes,
        faults: trial.faults,
        others: trial.others,
        failed: trial.failed.clone(),
    }
}

fn uncorrected(
    observation: &Observation,
    costs: &Costs,
    question: &Question,
    progress: &Progress,
) -> Result<Advice, Error> {
    check(observation)?;
    let codec = &question.codec;
    let codecs = codecs::figures(&observation.contents, costs);
    let as_printed = question.as_printed;
    let forecaster = Forecaster::new(observation, costs, codec, as_printed);
    let forecaster = forecaster.ok_or_else(|| Error::Codec {
        codec: codec.clone(),
        known: observation.contents.codecs.join(", "),
    })?;
    let need_bytes = observation.need_bytes;
    let tried = observation.trials.iter().map(|trial| trial.memory_bytes);
    let capped = tried.filter(|&bytes| bytes < need_bytes);
    let asked: Vec<u64> = question.memory.iter().copied().chain(capped).collect();
    let forecasts = forecasts(&forecaster, need_bytes, &asked, progress);
    let rows: Vec<Row> = forecasts.iter().map(|forecast| row(forecast, need_bytes)).collect();
    let mut not_seen = observation.not_seen.clone();
    not_seen.extend(not_known(observation, costs));
    Ok(Advice {
        subject: observation.subject.clone(),
        seconds: observation.seconds,
        run: observation.run,
        all_memory: observation.run.and_then(AllMemory::observed),
        need_bytes,
        sampled_pages: sampled(observation).0,
        codec: codec.clone(),
        at_most: question.at_most,
        codecs,
        costs: costs.clone(),
        rows,
        trials: Vec::new(),
        recommended: Recommended::default(),
        not_seen,
    })
}

/// Pages and blocks of the sample.
fn sampled(observation: &Observation) -> (usize, usize) {
    let blocks = &observation.contents.blocks;
    (blocks.iter().map(|block| block.charged_bytes.len()).sum(), blocks.len())
}

fn check(observation: &Observation) -> Result<(), Error> {
    let (is_run, todo_pages, todo_time) = match observation.subject {
        Subject::Program(_) => (true, "give the program more to do", "give the program more to do"),
        Subject::Process { .. } | Subject::Group(_) => {
            (true, "ask when it has more memory", "let --duration be longer")
        }
        Subject::Pages(_) => (false, "dump a larger process", ""),
        Subject::Files(_) => (false, "name a directory with more data", ""),
    };
    let (pages, blocks) = sampled(observation);
    if pages < PAGES_MIN || blocks < BLOCKS_MIN {
        return Err(Error::FewPages { pages, blocks, todo: todo_pages });
    }
    if is_run && observation.seconds < SECONDS_MIN {
        return Err(Error::Short { seconds: observation.seconds, todo: todo_time });
    }
    let mut traced = HashSet::new();
    let has_many = observation.events.iter().any(|event| {
        traced.insert(event.page);
        traced.len() >= PAGES_MIN
    });
    if !observation.events.is_empty() && !has_many {
        let blocks = traced.len().div_ceil(crate::observation::BLOCK_PAGES as usize);
        return Err(Error::FewPages { pages: traced.len(), blocks, todo: todo_pages });
    }
    Ok(())
}

/// From all of the need in steps down to what surely cannot be held, and those that were asked for.
fn forecasts(
    forecaster: &Forecaster<'_>,
    need_bytes: u64,
    asked: &[u64],
    progress: &Progress,
) -> Vec<Forecast> {
    let steps = (STEP..=100).rev().step_by(STEP as usize);
    let mut sizes: Vec<u64> = steps.map(|percent| part(need_bytes, percent)).collect();
    sizes.extend(asked);
    sizes.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
    sizes.dedup();
    let mut forecasts = forecaster.at(&sizes, progress);
    let mut is_over = false;
    forecasts.retain(|forecast| {
        let is_shown = !is_over || asked.contains(&forecast.memory_bytes());
        is_over |= forecast.cannot_hold() >= CANNOT_HOLD_SURE;
        is_shown
    });
    forecasts
}

fn part(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}

fn row(forecast: &Forecast, need_bytes: u64) -> Row {
    let memory_bytes = forecast.memory_bytes();
    let Forecast { prediction, processor, zram, swap, pays, .. } = forecast;
    let slowdown = forecast.slowdown();
    Row {
        memory_bytes,
        of_need: memory_bytes as f64 / need_bytes as f64,
        resident_bytes: prediction.resident_bytes as u64,
        pool_bytes: prediction.pool_bytes.value as u64,
        pool_bytes_low: prediction.pool_bytes.low as u64,
        pool_bytes_high: prediction.pool_bytes.high as u64,
        saved_bytes: need_bytes.saturating_sub(memory_bytes),
        slowdown: slowdown.map(|of| of.value),
        slowdown_low: slowdown.map(|of| of.low),
        slowdown_high: slowdown.map(|of| of.high),
        processor: *processor,
        faults_per_second: forecast.has_times.then_some(prediction.faults_per_second),
        cannot_hold_probability: forecast.cannot_hold(),
        zram_slowdown: *zram,
        swap_slowdown: *swap,
        pays_against_disk: *pays,
    }
}

/// The least memory that is as good as was asked for.
fn recommended(
    observation: &Observation,
    question: &Question,
    rows: &[Row],
    tried: &[Tried],
) -> Recommended {
    let failed = tried.iter().filter(|trial| trial.failed.is_some());
    let failed_bytes = failed.map(|trial| trial.memory_bytes).max().unwrap_or(0);
    let is_held = |row: &&Row| {
        row.cannot_hold_probability < CANNOT_HOLD_MAX && row.memory_bytes > failed_bytes
    };
    let is_fast = |row: &&Row| row.slowdown_high.is_none_or(|high| high <= question.at_most);
    // All rows above it are good too: what is better below a worse one is chance.
    let good = rows.iter().take_while(|row| is_held(row) && is_fast(row)).last();
    let at_most = question.at_most;
    match good.filter(|row| row.saved_bytes > 0) {
        Some(row) => {
            let reason = match (row.slowdown, row.slowdown_high) {
                (Some(slowdown), Some(high)) => format!(
                    "the least memory with which the program takes {at_most} times as long at \
                     most: {slowdown:.2} times in the mean, which is {high:.2} at worst"
                ),
                _ => "the least memory that holds everything, compressed; how fast it is then is not known"
                    .to_owned(),
            };
            let codec = (question.codec != codecs::AUTO).then_some(question.codec.as_str());
            command::recommend(&observation.subject, row.memory_bytes, codec, reason)
        }
        None => {
            let is_slow =
                rows.iter().find(|row| row.saved_bytes > 0).is_some_and(|row| is_held(&row));
            let reason = if is_slow {
                format!(
                    "with less than its need the program may take more than {at_most} times as \
                     long; --at-most allows more"
                )
            } else if failed_bytes > 0 {
                "a trial with less than its need failed".to_owned()
            } else {
                "it does not compress: less than its need may not hold it".to_owned()
            };
            Recommended { reason, ..Recommended::default() }
        }
    }
}

/// What the figures do not have, by how they were come by.
fn not_known(observation: &Observation, costs: &Costs) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut say = |is_so: bool, sentence: &str| {
        if is_so {
            sentences.push(sentence.to_owned());
        }
    };
    let has_times = observation.has_times();
    say(!has_times, "when pages are used: there are sizes and no run times");
    say(
        has_times && !costs.is_measured,
        "what faults cost on this machine: the calibration did not run, and the times are those of \
         another machine",
    );
    say(
        matches!(observation.subject, Subject::Process { .. } | Subject::Group(_)),
        "what it does at other times than while it was looked at",
    );
    sentences
}

/// What trials leave open.
fn not_tried(tried: &[Tried]) -> Vec<String> {
    let percent = |trial: &Tried| format!("{:.0} %", trial.of_need * 100.0);
    let (failed, counting): (Vec<&Tried>, Vec<&Tried>) =
        tried.iter().partition(|trial| trial.failed.is_some());
    let mut sentences = Vec::new();
    if !counting.is_empty() {
        let sizes: Vec<String> = counting.iter().map(|trial| percent(trial)).collect();
        sentences.push(format!(
            "what it does with other memory than was tried ({} of the need): that is predicted, \
             and corrected by the trials",
            sizes.join(", ")
        ));
    }
    for trial in failed {
        let why = trial.failed.as_deref().unwrap_or_default();
        sentences
            .push(format!("the trial with {} of the need does not count: {why}", percent(trial)));
    }
    for trial in &counting {
        let Some(taken) = trial.others else { continue };
        sentences.push(format!(
            "how long it takes with {} of the need on an idle machine: {}",
            percent(trial),
            others_took(taken, "during the trial")
        ));
    }
    for trial in counting.iter().filter(|trial| trial.at_least) {
        sentences.push(format!(
            "how long it takes with {} of the need: the trial was ended after {:.1} times the run \
             time with all memory",
            percent(trial),
            trial.run_time
        ));
    }
    sentences
}

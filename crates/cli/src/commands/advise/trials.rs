//! `ramfold advise --trials N`: runs the program again, with all memory and under caps.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use ramfold_advise::advice::{Advice, Advisor, trial_limit};
use ramfold_advise::observation::Trial;
use ramfold_advise::trial::{self, Outcome, Plan};
use ramfold_codec::Choice;
use ramfold_launch::Ended;

use super::{Arguments, observe, view};
use crate::commands::run;
use crate::progress_line;
use crate::say::say;

const MIB: f64 = (1 << 20) as f64;
/// A run with all memory has this multiple of the need: then nothing is compressed.
const ALL_MEMORY: u64 = 4;

/// Standard input, and where in it the first run begins.
pub(super) struct Input(Option<(File, u64)>);

impl Input {
    /// As it is now.
    pub(super) fn of_this_process() -> Input {
        let begin = || -> io::Result<(File, u64)> {
            // It has its place in common with all who have it open.
            let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            let place = file.stream_position()?;
            Ok((file, place))
        };
        // A terminal or a pipe has no place.
        Input(begin().ok())
    }

    /// Goes back to where it was.
    fn rewind(&self) -> io::Result<()> {
        let Some((file, place)) = &self.0 else { return Ok(()) };
        let mut file = file;
        file.seek(SeekFrom::Start(*place)).map(drop)
    }
}

/// Runs the program as often as was asked for, each time with the memory that tells most; before
/// and afterwards with all memory, so that what becomes faster or slower meanwhile counts for both.
/// What happens is said. All runs, and the advice after them.
///
/// # Errors
/// When it cannot be set up, the program apart: a trial that fails does not count.
pub(super) fn run(
    arguments: &Arguments,
    advisor: &Advisor<'_>,
    ended: Option<Ended>,
    input: &Input,
) -> anyhow::Result<(Vec<Trial>, Advice)> {
    let advice = advisor.advice(&[]);
    let (Some(_), Some(usual_end)) = (advice.all_memory, ended) else {
        return Ok((Vec::new(), advice));
    };
    if let Ended::Signaled(signal) = usual_end {
        say(format_args!("no trial: signal {signal} ended the program before"));
        return Ok((Vec::new(), advice));
    }
    let codec = arguments.codec.parse()?;
    let mut runs = Runs { arguments, advisor, input, usual_end, codec, trials: Vec::new(), advice };
    runs.all()?;
    Ok((runs.trials, runs.advice))
}

/// Runs so far, and the advice after them.
struct Runs<'a> {
    arguments: &'a Arguments,
    advisor: &'a Advisor<'a>,
    input: &'a Input,
    /// How the program has ended while it was observed.
    usual_end: Ended,
    codec: Choice,
    trials: Vec<Trial>,
    advice: Advice,
}

/// Whether others are wanted.
#[derive(PartialEq)]
enum Then {
    GoOn,
    Stop,
}

impl Runs<'_> {
    fn all(&mut self) -> anyhow::Result<()> {
        let no_other = || say(format_args!("no trial with other memory would tell more"));
        if self.advice.next_trial().is_none() {
            no_other();
            return Ok(());
        }
        if self.with_all_memory()? == Then::Stop {
            return Ok(());
        }
        for nth in 1..=self.arguments.trials {
            let Some(memory_bytes) = self.advice.next_trial() else {
                no_other();
                break;
            };
            if self.with(memory_bytes, nth)? == Then::Stop {
                return Ok(());
            }
        }
        self.with_all_memory().map(drop)
    }

    /// A trial, the `nth`.
    fn with(&mut self, memory_bytes: u64, nth: u8) -> anyhow::Result<Then> {
        let count = self.arguments.trials;
        let row = self.advice.rows.iter().find(|row| row.memory_bytes == memory_bytes);
        let expected = row.and_then(|row| row.slowdown).unwrap_or(1.0);
        let mib = memory_bytes as f64 / MIB;
        let percent = memory_bytes as f64 / self.advice.need_bytes as f64 * 100.0;
        say(format_args!(
            "trial {nth} of {count}: with {mib:.1} MiB ({percent:.0} % of the need), \
             {expected:.2} times as long as with all memory if the prediction is right",
        ));
        let then = self.once(memory_bytes, expected)?;
        if let Some(tried) = self.advice.trials.last() {
            say(format_args!("trial {nth} of {count}: {}", view::outcome(tried)));
        }
        Ok(then)
    }

    /// Where the program does not do the same again, no trial would tell anything.
    fn with_all_memory(&mut self) -> anyhow::Result<Then> {
        say(format_args!("with all memory, not observed"));
        let memory_bytes = self.advice.need_bytes.saturating_mul(ALL_MEMORY);
        let then = self.once(memory_bytes, 1.0)?;
        let Some(run) = self.trials.last() else { return Ok(then) };
        match &run.failed {
            None => say(format_args!("with all memory: {:.2} s", run.wall_s)),
            Some(why) => say(format_args!("with all memory: does not count, because {why}")),
        }
        Ok(if run.failed.is_some() { Then::Stop } else { then })
    }

    /// Runs the program, `expected` times as long as with all memory.
    fn once(&mut self, memory_bytes: u64, expected: f64) -> anyhow::Result<Then> {
        let Some(all_memory) = self.advice.all_memory else { return Ok(Then::Stop) };
        let plan = Plan {
            memory_bytes,
            codec: self.codec,
            expected: seconds(all_memory.wall_s * expected),
            limit: seconds(all_memory.wall_s * trial_limit(self.arguments.at_most)),
            usual_end: self.usual_end,
            usual_processor_s: all_memory.processor_s,
        };
        self.input.rewind().context("going back to the beginning of standard input")?;
        let mut launch = observe::launch(self.arguments)?;
        let mut relay = None;
        let outcome = progress_line::shown("of the time that the run should take", |progress| {
            trial::run(&mut launch, &plan, progress, run::show, |run| {
                relay = observe::pass_signals_on(run);
            })
        });
        drop(relay.transpose().context("handling signals")?);
        let Outcome { mut trial, is_interrupted } = outcome;
        if memory_bytes >= self.advice.need_bytes && trial.at_least && trial.failed.is_none() {
            trial.failed = Some(format!("it was ended after {:.2} s", trial.wall_s));
        }
        self.trials.push(trial);
        self.advice = self.advisor.advice(&self.trials);
        Ok(if is_interrupted { Then::Stop } else { Then::GoOn })
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

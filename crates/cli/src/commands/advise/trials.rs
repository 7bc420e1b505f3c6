//! `ramfold advise --trials N`: runs the program again, under caps.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use ramfold_advise::advice::{Advice, Advisor, trial_limit};
use ramfold_advise::observation::{Observation, Trial};
use ramfold_advise::trial::{self, Outcome, Plan};
use ramfold_codec::Choice;
use ramfold_launch::Ended;

use super::{Arguments, observe, view};
use crate::commands::run;
use crate::progress_line;
use crate::say::say;

const MIB: f64 = (1 << 20) as f64;

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

/// Runs the program as often as was asked for, each time with the memory that tells most. What
/// happens is said. All trials, and the advice after them.
///
/// # Errors
/// When it cannot be set up, the program apart: a trial that fails does not count.
pub(super) fn run(
    arguments: &Arguments,
    advisor: &Advisor<'_>,
    observation: &Observation,
    ended: Option<Ended>,
    input: &Input,
) -> anyhow::Result<(Vec<Trial>, Advice)> {
    let mut trials = Vec::new();
    let mut advice = advisor.advice(&trials);
    let (Some(free), Some(usual_end)) = (observation.run, ended) else {
        return Ok((trials, advice));
    };
    let Some(free_wall_s) = free.free_wall_s() else { return Ok((trials, advice)) };
    if let Ended::Signaled(signal) = usual_end {
        say(format_args!("no trial: signal {signal} ended the program before"));
        return Ok((trials, advice));
    }
    let codec: Choice = arguments.codec.parse()?;
    for nth in 1..=arguments.trials {
        let Some(memory_bytes) = advice.next_trial() else {
            say(format_args!("no trial with other memory would tell more"));
            break;
        };
        let row = advice.rows.iter().find(|row| row.memory_bytes == memory_bytes);
        let expected = row.and_then(|row| row.slowdown).unwrap_or(1.0);
        let mib = memory_bytes as f64 / MIB;
        let percent = memory_bytes as f64 / observation.need_bytes as f64 * 100.0;
        say(format_args!(
            "trial {nth} of {}: with {mib:.1} MiB ({percent:.0} % of the need), {expected:.2} \
             times as long as with all memory if the prediction is right",
            arguments.trials
        ));
        let plan = Plan {
            memory_bytes,
            codec,
            expected: seconds(free_wall_s * expected),
            limit: seconds(free_wall_s * trial_limit(arguments.at_most)),
            usual_end,
            usual_processor_s: free.processor_s,
        };
        input.rewind().context("going back to the beginning of standard input")?;
        let Outcome { trial, is_interrupted } = one(arguments, &plan)?;
        trials.push(trial);
        advice = advisor.advice(&trials);
        if let Some(tried) = advice.trials.last() {
            say(format_args!("trial {nth} of {}: {}", arguments.trials, view::outcome(tried)));
        }
        if is_interrupted {
            break;
        }
    }
    Ok((trials, advice))
}

fn one(arguments: &Arguments, plan: &Plan) -> anyhow::Result<Outcome> {
    let mut launch = observe::launch(arguments)?;
    let mut relay = None;
    let outcome = progress_line::shown("of the time that the trial should take", |progress| {
        trial::run(&mut launch, plan, progress, run::show, |run| {
            relay = observe::pass_signals_on(run);
        })
    });
    drop(relay.transpose().context("handling signals")?);
    Ok(outcome)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

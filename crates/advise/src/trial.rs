//! Runs a program again under a cap, as `ramfold run --memory SIZE` does, to see what was predicted
//! of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ramfold_launch::{Choice, Ended, Launch, Message, Run, Size, Statistics};

use crate::lock;
use crate::meter::Meter;
use crate::observation::Trial;
use crate::progress::Progress;

/// A cap that is passed by a larger part of it was not held: a control group would have a limit so
/// much above it.
pub const PASSED_MAX: f64 = 0.1;
/// With less than this part of the processor time with all memory a program has done less.
const WORK_MIN: f64 = 0.5;
/// Between two looks at how long it has taken.
const LOOK: Duration = Duration::from_millis(200);
/// A program that is asked to end (SIGTERM) has so much time for it. Then it is killed.
const PATIENCE: Duration = Duration::from_secs(5);
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The cap. Bytes.
    pub memory_bytes: u64,
    /// How pages are compressed.
    pub codec: Choice,
    /// How long it is expected to take: for who shows progress.
    pub expected: Duration,
    /// It is ended then.
    pub limit: Duration,
    /// How the program has ended with all memory.
    pub usual_end: Ended,
    /// Its processor time then. Seconds.
    pub usual_processor_s: f64,
}

/// A trial that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was measured.
    pub trial: Trial,
    /// Somebody has ended the program: no other trial is wanted.
    pub is_interrupted: bool,
}

/// Runs the program. `launch` has all about it but the memory, the codec and who takes messages:
/// `on_message` does. `started` is called when it runs.
pub fn run(
    launch: &mut Launch,
    plan: &Plan,
    progress: &Progress,
    on_message: impl Fn(Message) + Send + Sync + 'static,
    started: impl FnOnce(&Arc<Run>),
) -> Outcome {
    let without = Arc::new(Mutex::new(None));
    launch.memory(Size::Bytes(plan.memory_bytes)).codec(plan.codec).on_message({
        let without = Arc::clone(&without);
        move |message| {
            if let Message::RunsWithout(reason) = &message {
                *lock(&without) = Some(reason.to_string());
            }
            on_message(message);
        }
    });
    let trial = Trial {
        memory_bytes: plan.memory_bytes,
        codec: plan.codec.name().to_owned(),
        ..Trial::default()
    };
    let failed = |why: String| {
        let trial = Trial { failed: Some(why), ..trial.clone() };
        Outcome { trial, is_interrupted: false }
    };
    progress.set_all(plan.expected.as_millis() as u64);
    let meter = Meter::start();
    let run = match launch.start() {
        Ok(run) => Arc::new(run),
        Err(error) => return failed(format!("the program did not start: {error}")),
    };
    started(&run);
    let (ended, wall_s, statistics) = match wait(&run, plan, meter.began, progress) {
        End::Itself(Ok(ended)) => (Some(ended), meter.wall_s(), run.statistics()),
        End::Itself(Err(error)) => return failed(error.to_string()),
        End::Late { wall_s, statistics } => (None, wall_s, *statistics),
    };
    let seen = Seen {
        ended,
        without: lock(&without).take(),
        processor_s: meter.children_s(),
        passed_bytes: number(&statistics, "over_cap_bytes_max"),
    };
    // What the program has started goes on where it was ended, and would count as others.
    let others = ended.and_then(|_| meter.others());
    let faults = number(&statistics, "faults");
    let trial = Trial {
        wall_s,
        at_least: ended.is_none(),
        processor_s: seen.processor_s,
        pool_bytes: number(&statistics, "pool_bytes_max"),
        faults: faults.saturating_sub(number(&statistics, "faults_zero_filled")),
        others,
        failed: seen.problem(plan),
        ..trial
    };
    Outcome { is_interrupted: trial.failed.is_some() && ended.is_some_and(is_asked_for), trial }
}

fn number(statistics: &Statistics, name: &str) -> u64 {
    statistics.number(name).unwrap_or_default()
}

/// How a program came to its end.
enum End<E> {
    /// By itself.
    Itself(Result<Ended, E>),
    /// It was ended. What there was by then.
    Late { wall_s: f64, statistics: Box<Statistics> },
}

/// Waits for the program's end, and ends it when it takes too long.
fn wait(
    run: &Run,
    plan: &Plan,
    began: Instant,
    progress: &Progress,
) -> End<ramfold_launch::WaitError> {
    loop {
        let left = plan.limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        if let Some(ended) = run.wait_timeout(left.min(LOOK)) {
            return End::Itself(ended);
        }
        progress.set(began.elapsed().as_millis() as u64);
    }
    let statistics = Box::new(run.statistics());
    let late = End::Late { wall_s: began.elapsed().as_secs_f64(), statistics };
    // One that has just ended needs no signal.
    let _ = run.signal(SIGTERM);
    if run.wait_timeout(PATIENCE).is_none() {
        let _ = run.signal(SIGKILL);
        // How it has ended then is known.
        let _ = run.wait();
    }
    late
}

/// What tells whether a trial counts.
struct Seen {
    /// `None`: it was ended.
    ended: Option<Ended>,
    /// Why there was no agent.
    without: Option<String>,
    processor_s: f64,
    passed_bytes: u64,
}

impl Seen {
    /// Why it does not count.
    fn problem(&self, plan: &Plan) -> Option<String> {
        if let Some(reason) = &self.without {
            return Some(format!("the program ran without ramfold: {reason}"));
        }
        if self.passed_bytes as f64 > plan.memory_bytes as f64 * PASSED_MAX {
            let mib = self.passed_bytes as f64 / f64::from(1 << 20);
            return Some(format!("the program took {mib:.1} MiB more than that"));
        }
        let ended = self.ended?;
        if ended != plan.usual_end {
            let usual = plan.usual_end.shell_status();
            return Some(match ended {
                Ended::Signaled(signal) => format!("signal {signal} ended the program"),
                Ended::Exited(status) => {
                    format!("the program ended with status {status}, and before with {usual}")
                }
            });
        }
        let part = self.processor_s / plan.usual_processor_s.max(f64::MIN_POSITIVE);
        (part < WORK_MIN).then(|| {
            format!(
                "the program took {:.0} % of the processor time that it took with all memory, so \
                 it did not do the same again",
                part * 100.0
            )
        })
    }
}

/// Whether somebody has ended the program, by Ctrl-C for example.
fn is_asked_for(ended: Ended) -> bool {
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    signals.iter().any(|signal| ended.shell_status() == 128 + signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            memory_bytes: 100 << 20,
            codec: Choice::Auto,
            expected: Duration::from_secs(1),
            limit: Duration::from_secs(4),
            usual_end: Ended::Exited(1),
            usual_processor_s: 10.0,
        }
    }

    fn seen() -> Seen {
        Seen { ended: Some(Ended::Exited(1)), without: None, processor_s: 12.0, passed_bytes: 0 }
    }

    #[test]
    fn a_trial_counts_where_the_program_did_the_same_within_the_memory() {
        let problem = |seen: Seen| seen.problem(&plan()).unwrap_or_default();
        assert_eq!(problem(seen()), "");
        assert_eq!(problem(Seen { ended: None, processor_s: 0.1, ..seen() }), "");
        assert_eq!(problem(Seen { passed_bytes: 9 << 20, ..seen() }), "");
        for (seen, told) in [
            (Seen { passed_bytes: 11 << 20, ..seen() }, "11.0 MiB more"),
            (Seen { ended: None, passed_bytes: 11 << 20, ..seen() }, "11.0 MiB more"),
            (Seen { ended: Some(Ended::Signaled(9)), ..seen() }, "signal 9"),
            (Seen { ended: Some(Ended::Exited(0)), ..seen() }, "status 0, and before with 1"),
            (Seen { without: Some("no".to_owned()), ..seen() }, "without ramfold: no"),
            (Seen { processor_s: 4.0, ..seen() }, "40 % of the processor time"),
        ] {
            let problem = problem(seen);
            assert!(problem.contains(told), "{problem}");
        }
    }

    #[test]
    fn who_ends_a_trial_wants_no_other() {
        for (ended, expected) in [
            (Ended::Signaled(SIGINT), true),
            (Ended::Signaled(SIGTERM), true),
            (Ended::Exited(130), true),
            (Ended::Signaled(SIGKILL), false),
            (Ended::Exited(1), false),
        ] {
            assert_eq!(is_asked_for(ended), expected, "{ended:?}");
        }
    }
}

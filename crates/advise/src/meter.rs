//! How long a child process takes, of processors too, and whether others were in its way.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use ramfold_sys::processors::Times;

/// With more processors than this idle in the mean, what is measured had those that it wanted.
const IDLE_MIN: f64 = 0.25;
/// Fewer processors are the noise of any machine: timers, the terminal.
const TAKEN_MIN: f64 = 0.1;
/// And so is a smaller part of all, as times are counted in ticks.
const TAKEN_SHARE_MIN: f64 = 0.01;

/// Counters at the beginning of a measurement.
pub(crate) struct Meter {
    pub(crate) began: Instant,
    /// Processor time of this process. Seconds.
    own_s: f64,
    /// And of its children.
    children_s: f64,
    /// `None` where the system does not show it.
    times: Option<Times>,
}

impl Meter {
    pub(crate) fn start() -> Meter {
        Meter {
            own_s: processor_s(UsageWho::RUSAGE_SELF),
            children_s: processor_s(UsageWho::RUSAGE_CHILDREN),
            times: Times::now().ok(),
            began: Instant::now(),
        }
    }

    pub(crate) fn wall_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Processor time since of all children that have ended. Seconds.
    pub(crate) fn children_s(&self) -> f64 {
        processor_s(UsageWho::RUSAGE_CHILDREN) - self.children_s
    }

    /// Processors that others took since, in the mean: those of other programs where none was idle,
    /// and those that the hypervisor took. `None`: next to none. Processes that nobody has waited
    /// for, as a daemon that the program has started, count as others.
    pub(crate) fn others(&self) -> Option<f64> {
        let times = Times::now().ok()?.since(self.times.as_ref()?);
        let own_s = processor_s(UsageWho::RUSAGE_SELF) - self.own_s;
        taken(&times, own_s + self.children_s(), self.wall_s())
    }
}

/// Says so of a measurement: `when` it was.
pub(crate) fn others_took(taken: f64, when: &str) -> String {
    format!(
        "others (programs or the hypervisor) took {taken:.1} processors {when}, and none was left"
    )
}

fn taken(times: &Times, own_s: f64, seconds: f64) -> Option<f64> {
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let stolen = times.stolen_s;
    let others = (times.busy_s - stolen - own_s).max(0.0);
    let is_full = times.idle_s < IDLE_MIN * seconds;
    let taken = (stolen + if is_full { others } else { 0.0 }) / seconds;
    let all = (times.busy_s + times.idle_s) / seconds;
    (taken >= TAKEN_MIN.max(TAKEN_SHARE_MIN * all)).then_some(taken)
}

fn processor_s(who: UsageWho) -> f64 {
    getrusage(who).map_or(0.0, |usage| {
        let times = [usage.user_time(), usage.system_time()];
        times.iter().map(|time| time.num_microseconds() as f64 / 1e6).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_in_the_way_where_no_processor_is_left() {
        let times = |busy_s, stolen_s, idle_s| Times { busy_s, stolen_s, idle_s };
        let is_about = |taken: Option<f64>, expected: f64| {
            assert!(taken.is_some_and(|taken| (taken - expected).abs() < 1e-9), "{taken:?}");
        };
        // Ten seconds of two processors, of which the program has one.
        is_about(taken(&times(20.0, 0.0, 0.0), 10.0, 10.0), 1.0);
        assert_eq!(taken(&times(15.0, 0.0, 5.0), 10.0, 10.0), None, "half a processor is idle");
        assert_eq!(taken(&times(20.0, 0.0, 0.0), 19.5, 10.0), None, "both are its own");
        is_about(taken(&times(14.0, 2.0, 6.0), 10.0, 10.0), 0.2);
        assert_eq!(taken(&times(640.0, 0.0, 0.0), 637.0, 10.0), None, "0.3 of 64");
        assert_eq!(taken(&Times::default(), 0.0, 0.0), None);
    }
}

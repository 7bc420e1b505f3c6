//! Room for files: in a control group with a limit, the program's code and data files need memory
//! too, and the kernel can only take it from them when ramfold's cap is close to the limit. Where
//! file pages are read again and again, the agents are asked to stay below the cap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramfold_pager::session::Session;
use ramfold_sys::cgroup::{self, Limited};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// More refaults than this in an interval are too many: 4 MB/s of reading what was there before.
const REFAULTS_MAX: u64 = 100;
/// Shares of the cap: what is given up at a time, what is taken back at a time, and what is never
/// given up.
const STEP_DOWN: u64 = 32;
const STEP_UP: u64 = 64;
const KEPT: u64 = 2;
/// Quiet time before something is taken back: half as long when that did no harm (what a program reads
/// as it starts is no reason to stay small for long), twice as long when it did.
const QUIET_FIRST: Duration = Duration::from_secs(2);
const QUIET_MIN: Duration = Duration::from_millis(250);
const QUIET_MAX: Duration = Duration::from_secs(64);

/// Watches until `ended`. The thread that runs this is to be unparked then.
pub fn watch(session: &Session, ended: &AtomicBool) {
    let Some(group) = cgroup::tightest() else { return };
    let mut governor = Governor::new(session.memory_cap_bytes.load(Ordering::Relaxed));
    let mut seen = None;
    while !ended.load(Ordering::Acquire) {
        if session.processes_activated.load(Ordering::Relaxed) > 0 {
            let Some(refaults) = refaults_since(&group, &mut seen) else { return };
            let target = governor.next(refaults, Instant::now());
            session.target_bytes.store(target, Ordering::Relaxed);
        }
        std::thread::park_timeout(INTERVAL);
    }
}

fn refaults_since(group: &Limited, seen: &mut Option<u64>) -> Option<u64> {
    let now = group.refaulted_file_pages()?;
    Some(now.saturating_sub(seen.replace(now).unwrap_or(now)))
}

/// Decides how far below the cap to stay: quickly down, slowly up.
struct Governor {
    cap: u64,
    target: u64,
    quiet_since: Option<Instant>,
    quiet_needed: Duration,
    /// The last step was up, and has done no harm so far.
    tried_up: bool,
}

impl Governor {
    fn new(cap: u64) -> Self {
        Governor { cap, target: cap, quiet_since: None, quiet_needed: QUIET_FIRST, tried_up: false }
    }

    fn next(&mut self, refaults: u64, now: Instant) -> u64 {
        if refaults > REFAULTS_MAX {
            if std::mem::take(&mut self.tried_up) {
                self.quiet_needed = (self.quiet_needed * 2).min(QUIET_MAX);
            }
            self.target = (self.target - self.cap / STEP_DOWN).max(self.cap / KEPT);
            self.quiet_since = None;
        } else if self.target < self.cap {
            let since = *self.quiet_since.get_or_insert(now);
            if now - since >= self.quiet_needed {
                self.target = (self.target + self.cap / STEP_UP).min(self.cap);
                self.quiet_since = None;
                if std::mem::replace(&mut self.tried_up, true) {
                    self.quiet_needed = (self.quiet_needed / 2).max(QUIET_MIN);
                }
            }
        }
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_way_at_once_and_comes_back_ever_faster() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        let mut governor = Governor::new(3200);
        assert_eq!(governor.next(0, at(0.0)), 3200);
        assert_eq!(governor.next(1000, at(1.0)), 3100);
        assert_eq!(governor.next(1000, at(2.0)), 3000);
        assert_eq!(governor.next(5, at(3.0)), 3000);
        assert_eq!(governor.next(5, at(5.0)), 3050);
        assert_eq!(governor.next(5, at(5.1)), 3050);
        assert_eq!(governor.next(5, at(7.1)), 3100);
        assert_eq!(governor.next(5, at(7.2)), 3100);
        assert_eq!(governor.next(5, at(8.2)), 3150);
        // Too early: the next attempt waits twice as long.
        assert_eq!(governor.next(1000, at(8.3)), 3050);
        assert_eq!(governor.next(0, at(9.0)), 3050);
        assert_eq!(governor.next(0, at(9.9)), 3050);
        assert_eq!(governor.next(0, at(10.0)), 3100);
    }

    #[test]
    fn half_of_the_cap_is_kept_and_the_cap_is_never_passed() {
        let start = Instant::now();
        let mut governor = Governor::new(1000);
        for second in 0..100 {
            assert!(governor.next(10_000, start + Duration::from_secs(second)) >= 500);
        }
        for second in 100..100_000 {
            assert!(governor.next(0, start + Duration::from_secs(second)) <= 1000);
        }
        assert_eq!(governor.target, 1000);
    }
}

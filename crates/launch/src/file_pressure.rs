//! Room for files: in a control group with a limit, the program's code and data files need memory
//! too, and the kernel can only take it from them when ramfold's cap is close to the limit. Where
//! file pages are read again and again, the agents are asked to stay below the cap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramfold_session::Session;
use ramfold_sys::cgroup::{self, Limited};

/// Between two looks while there is something to see.
const INTERVAL: Duration = Duration::from_millis(100);
/// And while there is nothing: twice as long from look to look, up to this. An agent that has
/// something to do ends it.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// More refaults than this in an interval are too many: 4 MB/s of reading what was there before.
const REFAULTS_MAX: u64 = 100;
/// Shares of the cap: what is given up at a time, what is taken back at a time, and what is never
/// given up.
const STEP_DOWN: u64 = 32;
const STEP_UP: u64 = 64;
const KEPT: u64 = 2;
/// Quiet time before something is taken back. Half as long each time that it did no harm: what a
/// program reads as it starts is no reason to stay small for long.
const QUIET_FIRST: Duration = Duration::from_secs(2);
const QUIET_MIN: Duration = Duration::from_millis(250);
/// And before what did harm the last time is tried again: twice as long each time that it does.
const QUIET_HARMFUL_FIRST: Duration = Duration::from_secs(4);
const QUIET_HARMFUL_MAX: Duration = Duration::from_secs(64);

/// Watches until `ended`. The thread that runs this is to be unparked then, and
/// [`Session::note_activity`] called; that is to be called too when the cap has changed.
pub(crate) fn watch(session: &Session, ended: &AtomicBool) {
    let Some(group) = cgroup::tightest() else { return };
    let mut governor = Governor::new(session.memory_cap_bytes.load(Ordering::Relaxed));
    let mut intervals = Intervals::default();
    let mut seen = None;
    let mut looked = Instant::now();
    loop {
        let activity = session.activity();
        if ended.load(Ordering::Acquire) {
            return;
        }
        if session.processes_activated.load(Ordering::Relaxed) == 0 {
            session.wait_for_activity(activity, None);
            continue;
        }
        let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
        if cap != governor.cap {
            governor = Governor::new(cap);
        }
        let Some(refaults) = refaults_since(&group, &mut seen) else { return };
        let now = Instant::now();
        let target = governor.next(in_an_interval(refaults, now - looked), now);
        if target < session.target_bytes.swap(target, Ordering::Relaxed) {
            session.wake_agents();
        }
        looked = now;
        session.wait_for_activity(activity, Some(intervals.next(refaults, governor.rests(now))));
        if session.activity() != activity {
            intervals = Intervals::default();
        }
        if let Some(rest) = INTERVAL.checked_sub(looked.elapsed()) {
            std::thread::park_timeout(rest);
        }
    }
}

/// How many of so many refaults there were in each interval of a time.
fn in_an_interval(refaults: u64, time: Duration) -> u64 {
    (refaults as f64 / time.div_duration_f64(INTERVAL).max(1.0)) as u64
}

/// The times from look to look.
struct Intervals {
    last: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Intervals { last: INTERVAL }
    }
}

impl Intervals {
    /// The next one, after a look that found so many refaults. Nothing changes by itself before the
    /// governor has `rests`.
    fn next(&mut self, refaults: u64, rests: Duration) -> Duration {
        self.last = if refaults > 0 { INTERVAL } else { (self.last * 2).min(INTERVAL_MAX) };
        self.last.min(rests).max(INTERVAL)
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
    /// Where a step up did harm.
    harmful: Option<u64>,
    quiet_needed_there: Duration,
}

impl Governor {
    fn new(cap: u64) -> Self {
        Governor {
            cap,
            target: cap,
            quiet_since: None,
            quiet_needed: QUIET_FIRST,
            tried_up: false,
            harmful: None,
            quiet_needed_there: QUIET_HARMFUL_FIRST,
        }
    }

    /// How long nothing changes where there are no refaults.
    fn rests(&self, now: Instant) -> Duration {
        match self.quiet_since {
            Some(since) if self.target < self.cap => {
                self.quiet_needed_now().saturating_sub(now - since)
            }
            _ if self.target < self.cap => INTERVAL,
            _ => Duration::MAX,
        }
    }

    /// What the next step up would come to.
    fn higher(&self) -> u64 {
        (self.target + self.cap / STEP_UP).min(self.cap)
    }

    /// How long it must be quiet before that.
    fn quiet_needed_now(&self) -> Duration {
        let is_harmful = self.harmful.is_some_and(|harmful| self.higher() >= harmful);
        if is_harmful { self.quiet_needed_there } else { self.quiet_needed }
    }

    fn next(&mut self, refaults: u64, now: Instant) -> u64 {
        if refaults > REFAULTS_MAX {
            if std::mem::take(&mut self.tried_up) && self.harmful.replace(self.target).is_some() {
                self.quiet_needed_there = (self.quiet_needed_there * 2).min(QUIET_HARMFUL_MAX);
            }
            self.target = (self.target - self.cap / STEP_DOWN).max(self.cap / KEPT);
            self.quiet_since = None;
        } else {
            let since = *self.quiet_since.get_or_insert(now);
            if now - since >= self.quiet_needed_now() {
                let higher = self.higher();
                if std::mem::replace(&mut self.tried_up, higher > self.target) {
                    self.quiet_needed = (self.quiet_needed / 2).max(QUIET_MIN);
                }
                if self.harmful.is_some_and(|harmful| self.target >= harmful) {
                    // It did none this time.
                    self.harmful = None;
                    self.quiet_needed_there = QUIET_HARMFUL_FIRST;
                }
                self.target = higher;
                self.quiet_since = None;
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
        // Too much: it is tried again later than what is below.
        assert_eq!(governor.next(1000, at(8.3)), 3050);
        assert_eq!(governor.next(0, at(9.0)), 3050);
        assert_eq!(governor.next(0, at(9.5)), 3100);
        assert_eq!(governor.next(0, at(9.6)), 3100);
        assert_eq!(governor.next(0, at(13.5)), 3100);
        assert_eq!(governor.next(0, at(13.6)), 3150);
    }

    #[test]
    fn what_finds_nothing_is_looked_at_ever_less_often() {
        let mut intervals = Intervals::default();
        let mut next = |refaults, rests| intervals.next(refaults, rests).as_millis();
        let most = Duration::MAX;
        assert_eq!([(); 6].map(|()| next(0, most)), [200, 400, 800, 1600, 2000, 2000]);
        // Until the governor is to go up, or something is found.
        assert_eq!(next(0, Duration::from_millis(250)), 250);
        assert_eq!(next(0, Duration::ZERO), 100);
        assert_eq!([next(1, most), next(0, most)], [100, 200]);
        assert_eq!(in_an_interval(90, INTERVAL / 2), 90);
        assert_eq!(in_an_interval(1500, Duration::from_secs(2)), 75);
    }

    #[test]
    fn a_governor_rests_until_it_goes_up() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        let mut governor = Governor::new(3200);
        governor.next(0, at(0.0));
        assert_eq!(governor.rests(at(0.0)), Duration::MAX);
        governor.next(1000, at(1.0));
        assert_eq!(governor.rests(at(1.0)), INTERVAL);
        governor.next(0, at(1.1));
        assert_eq!(governor.rests(at(2.1)), Duration::from_secs(1));
        assert_eq!(governor.rests(at(9.0)), Duration::ZERO);
    }

    /// How many looks, ten a second, find the program short of room for its files.
    fn harms(
        governor: &mut Governor,
        start: Instant,
        seconds: u64,
        needs_below: impl Fn(u64) -> u64,
    ) -> u64 {
        let mut harms = 0;
        for tenth in 0..10 * seconds {
            let harm = governor.target > needs_below(tenth);
            harms += u64::from(harm);
            governor.next(if harm { 1000 } else { 0 }, start + Duration::from_millis(tenth * 100));
        }
        harms
    }

    #[test]
    fn what_does_harm_again_and_again_is_tried_ever_less_often() {
        let mut governor = Governor::new(3200);
        let start = Instant::now();
        let all = harms(&mut governor, start, 1000, |_| 2400);
        assert!(all < 8 + 25, "{all}");
        assert!((2300..=2400).contains(&governor.target), "{}", governor.target);
        // Nor does it stay small for long when that is over.
        harms(&mut governor, start + Duration::from_secs(1000), 200, |_| 3200);
        assert_eq!(governor.target, 3200);
    }

    #[test]
    fn harm_now_and_then_does_not_add_up() {
        let mut governor = Governor::new(3200);
        // A second of it, each two minutes.
        let needs_below = |tenth| if tenth % 1200 < 10 { 2400 } else { 3200 };
        let all = harms(&mut governor, Instant::now(), 3600, needs_below);
        assert!(all >= 30 * 8, "{all}");
        assert_eq!(governor.quiet_needed_there, QUIET_HARMFUL_FIRST);
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

//! Looks at all pages of a program now and then, from outside: which part of them is touched within
//! some milliseconds to seconds of a moment.
//!
//! An agent watches a few pages at a time, and says when each is accessed. This says how fast
//! accesses come on the whole ([`ramfold_model::rounds`]). It is done by another thread than the
//! program's, so where there are several processors it takes hardly any of the program's time. A
//! look at 100 MiB takes 2 ms.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ramfold_codec::PAGE_SIZE;
use ramfold_model::rounds::{Look, Round};
use ramfold_sys::other_process::{OtherProcess, tracks_writes, with_descendants};
use ramfold_sys::time::thread_cpu_ns;

use super::watch::Totals;

/// Times of looks, in milliseconds after the beginning of a round.
const LOOKS_MS: [u64; 10] = [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
/// A round ends when this part of all pages was touched: what is left is seen by watching.
const TOUCHED_ENOUGH: f64 = 0.97;
/// A look that cannot be made until so much later than it was meant to be is left out.
const LATE_PART: u32 = 4;
/// A round lasts no longer than this part of the time that has gone by, and this at least: there
/// are several in each run.
const LONGEST_PART: u32 = 8;
const LONGEST_MIN: Duration = Duration::from_millis(50);
/// Between the beginnings of two rounds at least this part of the time that has gone by.
const APART_PART: u32 = 64;
const APART_MIN: Duration = Duration::from_millis(50);
/// Fewer pages are not worth looking at.
const PAGES_MIN: u64 = 1024;
/// Rounds where more than this part of all lies in huge pages say nothing.
const HUGE_PART: u64 = 16;
/// How often it is asked which processes the program has.
const PROCESSES_EVERY: Duration = Duration::from_millis(250);

/// The thread that looks.
pub(crate) struct Touches {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Round>>,
}

impl Touches {
    /// Begins to look at a process and what it starts. Takes this part of a processor. Times are
    /// those since `began`. `None`: there can be no more threads.
    pub(crate) fn begin(pid: u32, began: Instant, share: f64) -> Option<Touches> {
        let (stop, stopped) = channel();
        let run = move || {
            let mut looking = Looking::new(pid, began, share);
            let mut wait = APART_MIN;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                wait = looking.go_on();
            }
            looking.rounds
        };
        let thread = thread::Builder::new().name("touches".to_owned()).spawn(run).ok()?;
        Some(Touches { stop, thread })
    }

    /// Ends looking.
    pub(crate) fn end(self) -> Vec<Round> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Looking {
    pid: u32,
    began: Instant,
    share: f64,
    is_thorough: bool,
    processes: Vec<OtherProcess>,
    processes_read: Option<Instant>,
    cpu_began_ns: u64,
    rounds: Vec<Round>,
    /// The round that is not at its end yet, when it began, and the next of its looks.
    current: Option<(Round, Instant, usize)>,
    /// It follows another one at once.
    is_second: bool,
}

impl Looking {
    fn new(pid: u32, began: Instant, share: f64) -> Looking {
        Looking {
            pid,
            began,
            share,
            is_thorough: !tracks_writes(),
            processes: Vec::new(),
            processes_read: None,
            cpu_began_ns: thread_cpu_ns(),
            rounds: Vec::new(),
            current: None,
            is_second: false,
        }
    }

    /// Does what is due, and says how long nothing is.
    fn go_on(&mut self) -> Duration {
        let Some((mut round, at, nth)) = self.current.take() else {
            return self.begin_round();
        };
        let (seen, after) = self.look(at);
        // A touch of any part of a huge page counts as one of all.
        if seen.counted > 0 && seen.huge < seen.counted / HUGE_PART {
            round.looks.push(Look {
                after_us: after.as_micros() as u64,
                touched: (seen.touched as u64).min(seen.counted) / PAGE_SIZE as u64,
                pages: seen.counted / PAGE_SIZE as u64,
            });
        }
        let is_enough = seen.touched >= TOUCHED_ENOUGH * seen.counted as f64;
        let elapsed = at.elapsed();
        let is_late = |ms: u64| elapsed > Duration::from_millis(ms + ms / u64::from(LATE_PART));
        let next = (nth + 1..LOOKS_MS.len()).find(|&nth| !is_late(LOOKS_MS[nth]));
        let longest = LONGEST_MIN.max((at - self.began) / LONGEST_PART);
        match next.map(|nth| (nth, Duration::from_millis(LOOKS_MS[nth]))) {
            Some((nth, when)) if !is_enough && when <= longest => {
                self.current = Some((round, at, nth));
                when.saturating_sub(elapsed)
            }
            _ => {
                // Where nothing could be looked at nothing is known.
                if !round.looks.is_empty() {
                    self.rounds.push(round);
                }
                // Where all were touched in a burst, the next one shows how long it is until the
                // next burst.
                self.is_second = is_enough && !self.is_second;
                if self.is_second { self.begin_round() } else { self.rest(at) }
            }
        }
    }

    /// Makes the program's pages untouched, and says when the first look is due.
    fn begin_round(&mut self) -> Duration {
        if self.processes_read.is_none_or(|read| read.elapsed() >= PROCESSES_EVERY) {
            self.processes_read = Some(Instant::now());
            let of_program = with_descendants([self.pid]);
            self.processes =
                of_program.into_iter().filter_map(|pid| OtherProcess::open(pid).ok()).collect();
        }
        let pages: u64 = self
            .processes
            .iter()
            .filter_map(|process| process.status().ok()?.anonymous_bytes)
            .map(|bytes| bytes / PAGE_SIZE as u64)
            .sum();
        if pages < PAGES_MIN {
            return APART_MIN;
        }
        let before = Instant::now();
        // One that has ended, or that may not be looked at, is not.
        let is_thorough = self.is_thorough;
        self.processes.retain(|process| process.forget_touched(is_thorough).is_ok());
        // Each page was forgotten at some moment of this, and is looked at in the same order.
        let at = before + before.elapsed() / 2;
        let at_us = (at - self.began).as_micros() as u64;
        self.current = Some((Round { at_us, pages, looks: Vec::new() }, at, 0));
        Duration::from_millis(LOOKS_MS[0]).saturating_sub(at.elapsed())
    }

    /// All pages, and how long after the beginning of the round.
    fn look(&self, at: Instant) -> (Totals, Duration) {
        let before = Instant::now();
        let mut seen = Totals::default();
        for process in &self.processes {
            // One that ends meanwhile has no pages any more.
            let _ = process.anonymous_mappings(|mapping| seen.add(&mapping, true));
        }
        (seen, before + before.elapsed() / 2 - at)
    }

    /// How long there is no round, after one that began at a time.
    fn rest(&self, at: Instant) -> Duration {
        let spent_s = (thread_cpu_ns() - self.cpu_began_ns) as f64 / 1e9;
        let affordable = self.began + Duration::from_secs_f64(spent_s / self.share.max(1e-6));
        let apart = APART_MIN.max((at - self.began) / APART_PART);
        affordable.max(at + apart).saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Has 32 MiB, and goes over half of it every 20 ms.
    const PROGRAM: &str = "
import mmap, time
m = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(8192):
    m[page * 4096] = 1
print('ready', flush=True)
while True:
    for page in range(4096):
        m[page * 4096] = 2
    time.sleep(0.02)
";

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let found = with_descendants([self.0.id()]);
            for pid in found.iter().skip(1) {
                let _ = Command::new("kill").arg("-9").arg(pid.to_string()).status();
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_program_and_its_children_touch_is_seen() {
        let mut command = Command::new("sh");
        command.args(["-c", "python3 -c \"$0\"; true", PROGRAM]).stdout(Stdio::piped());
        let mut program = Killed(command.spawn().unwrap());
        let stdout = program.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut String::new()).unwrap();
        let touches = Touches::begin(program.0.id(), Instant::now(), 0.5).unwrap();
        thread::sleep(Duration::from_secs(3));
        let rounds = touches.end();
        assert!(rounds.is_sorted_by(|one, next| one.at_us < next.at_us), "{rounds:?}");
        let looks = rounds.iter().flat_map(|round| &round.looks);
        let long: Vec<&Look> = looks.filter(|look| look.after_us > 150_000).collect();
        assert!(!long.is_empty(), "{rounds:?}");
        let remembered = if tracks_writes() { 1600 } else { 0 };
        for look in long {
            assert!((8192..14_000).contains(&look.pages), "{look:?}");
            assert!((4096 - remembered..8000).contains(&look.touched), "{look:?}");
        }
    }

    #[test]
    fn what_is_small_or_gone_has_no_rounds() {
        let mut child = Command::new("sleep").arg("0.2").spawn().unwrap();
        let touches = Touches::begin(child.id(), Instant::now(), 0.5).unwrap();
        child.wait().unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(touches.end(), []);
    }
}

//! What the processes of a run cost while the program sleeps: wakeups, processor time, memory.
//!
//! All processes count: the program, what it forked, and what its memory system runs in them and
//! beside them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Serialize;

use crate::harness::statistics::median_of;
use crate::machine::proc::field;

/// Processes with this name share the memory of another one, which has all of it in its account.
const AGENT: &str = "ramfold-agent";

/// When the processes of a sleeping program are observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// How long it is left alone before.
    pub(crate) settle: Duration,
    pub(crate) length: Duration,
}

/// What all processes of a run did in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Idle {
    /// The length of the window.
    pub(crate) seconds: f64,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// Voluntary and involuntary context switches. A thread that ended within the window is
    /// missing here and in `core_percent`.
    pub(crate) wakeups_per_s: f64,
    /// Processor time as a share of one core.
    pub(crate) core_percent: f64,
    /// The sum of `Pss_Anon` of all processes at the end of the window.
    pub(crate) pss_anon_bytes: u64,
    /// The same by name of the thread.
    pub(crate) names: BTreeMap<String, Share>,
}

/// The share of all threads with one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Share {
    pub(crate) threads: usize,
    pub(crate) wakeups_per_s: f64,
    pub(crate) core_percent: f64,
}

/// Medians of several runs; the names are of the last. `None` where there are none.
pub(crate) fn median(runs: &[Idle]) -> Option<Idle> {
    let count = |of: fn(&Idle) -> usize| median_of(runs, |run| of(run) as f64);
    Some(Idle {
        seconds: median_of(runs, |run| run.seconds)?,
        processes: count(|run| run.processes)? as usize,
        threads: count(|run| run.threads)? as usize,
        wakeups_per_s: median_of(runs, |run| run.wakeups_per_s)?,
        core_percent: median_of(runs, |run| run.core_percent)?,
        pss_anon_bytes: median_of(runs, |run| run.pss_anon_bytes as f64)? as u64,
        names: runs.last()?.names.clone(),
    })
}

/// Looks at a program from time to time until its window has passed.
pub(crate) struct Watch {
    window: Window,
    state: State,
}

enum State {
    /// It has not said that it sleeps.
    Starting,
    Settling {
        until: Instant,
    },
    Watching {
        since: Instant,
        before: Counters,
    },
    Done,
}

impl Watch {
    pub(crate) fn new(window: Window) -> Self {
        Self { window, state: State::Starting }
    }

    /// What is known once the window has passed; `processes` lists all of the run.
    pub(crate) fn look(
        &mut self,
        asleep: bool,
        processes: impl FnOnce() -> Vec<Pid>,
    ) -> Option<Idle> {
        let now = Instant::now();
        match &self.state {
            State::Starting if asleep => {
                self.state = State::Settling { until: now + self.window.settle };
            }
            State::Settling { until } if now >= *until => {
                let before = Counters::read(&processes());
                self.state = State::Watching { since: Instant::now(), before };
            }
            State::Watching { since, before } if now >= *since + self.window.length => {
                let processes = processes();
                let after = Counters::read(&processes);
                let mut idle = after.since(before, since.elapsed().as_secs_f64());
                idle.pss_anon_bytes = pss_anon_bytes(&processes);
                self.state = State::Done;
                return Some(idle);
            }
            _ => {}
        }
        None
    }
}

/// What the kernel has counted for each thread of some processes.
#[derive(Default)]
struct Counters {
    processes: usize,
    threads: HashMap<String, Thread>,
}

#[derive(Default)]
struct Thread {
    name: String,
    switches: u64,
    nanoseconds: u64,
}

impl Counters {
    /// Reads them. Threads that end meanwhile are left out.
    fn read(processes: &[Pid]) -> Self {
        let mut counters = Self::default();
        for pid in processes {
            let folder = format!("/proc/{pid}/task");
            let before = counters.threads.len();
            for task in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let id = task.file_name().to_string_lossy().into_owned();
                if let Some(thread) = Thread::read(&format!("{folder}/{id}")) {
                    counters.threads.insert(id, thread);
                }
            }
            counters.processes += usize::from(counters.threads.len() > before);
        }
        counters
    }

    /// What was counted since `earlier`, `seconds` ago. A thread that was not there began with
    /// nothing.
    fn since(&self, earlier: &Self, seconds: f64) -> Idle {
        let mut names: BTreeMap<String, Share> = BTreeMap::new();
        let none = Thread::default();
        for (id, thread) in &self.threads {
            let before = earlier.threads.get(id).unwrap_or(&none);
            let switches = thread.switches.saturating_sub(before.switches);
            let nanoseconds = thread.nanoseconds.saturating_sub(before.nanoseconds);
            let share = names.entry(thread.name.clone()).or_default();
            share.threads += 1;
            share.wakeups_per_s += switches as f64 / seconds;
            share.core_percent += nanoseconds as f64 / 1e7 / seconds;
        }
        Idle {
            seconds,
            processes: self.processes,
            threads: self.threads.len(),
            wakeups_per_s: names.values().map(|share| share.wakeups_per_s).sum(),
            core_percent: names.values().map(|share| share.core_percent).sum(),
            pss_anon_bytes: 0,
            names,
        }
    }
}

impl Thread {
    /// `folder` is that of a thread in /proc.
    fn read(folder: &str) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let status = text("status")?;
        let switches = field(&status, "voluntary_ctxt_switches")?
            + field(&status, "nonvoluntary_ctxt_switches")?;
        // Time on a processor in nanoseconds, time in the queue, time slices.
        let nanoseconds = text("schedstat")?.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name: text("comm")?.trim_end().to_owned(), switches, nanoseconds })
    }
}

/// Private anonymous bytes of processes, each shared page counted once.
fn pss_anon_bytes(processes: &[Pid]) -> u64 {
    let of = |pid: &Pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        if name.trim_end() == AGENT {
            return None;
        }
        field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss_Anon")
    };
    processes.iter().filter_map(of).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::machine::processes::family;

    /// Far above what anything here takes.
    const PATIENCE: Duration = Duration::from_secs(300);

    /// A shell in a process group of its own, which is killed at the end.
    struct Shell(Child);

    impl Shell {
        fn run(script: &str) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", script]).process_group(0);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // It has started what it starts.
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            Self(child)
        }

        fn pid(&self) -> Pid {
            Pid::from_child(&self.0)
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let group =
                rustix::process::kill_process_group(self.pid(), rustix::process::Signal::KILL);
            let ended = self.0.wait();
            group.and(ended.map_err(|_| rustix::io::Errno::CHILD)).unwrap();
        }
    }

    /// Looks until `enough`, or fails.
    fn look_until(shell: &Shell, enough: impl Fn(&Idle) -> bool) {
        let start = Instant::now();
        let before = Counters::read(&family(shell.pid()));
        loop {
            let seconds = start.elapsed().as_secs_f64();
            let idle = Counters::read(&family(shell.pid())).since(&before, seconds);
            if enough(&idle) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{idle:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_sleeping_process_does_nothing_and_its_memory_is_known() {
        let shell = Shell::run("echo ready; read line");
        let processes = || family(shell.pid());
        let start = Instant::now();
        // It may still be on its way to sleep.
        let idle = loop {
            let mut watch = Watch::new(Window { settle: Duration::ZERO, length: Duration::ZERO });
            assert_eq!(watch.look(false, || unreachable!()), None);
            assert_eq!(watch.look(true, || unreachable!()), None);
            assert_eq!(watch.look(true, processes), None);
            let idle = watch.look(true, processes).unwrap();
            assert_eq!(watch.look(true, || unreachable!()), None);
            if (idle.wakeups_per_s, idle.core_percent) == (0.0, 0.0) {
                break idle;
            }
            assert!(start.elapsed() < PATIENCE, "{idle:?}");
        };
        assert_eq!((idle.processes, idle.threads), (1, 1));
        assert!(idle.pss_anon_bytes > 0, "{idle:?}");
        assert_eq!(idle.names.keys().collect::<Vec<_>>(), ["sh"]);
    }

    #[test]
    fn whatever_runs_beside_a_sleeping_process_counts() {
        // One whose parent has ended, in the group; a child that has left the group.
        let orphan = "(while :; do sleep 0.01; done & )";
        let gone = "setsid sh -c 'while kill -0 $0 2>&-; do :; done' $$ &";
        let shell = Shell::run(&format!("{orphan}; {gone} echo ready; read line"));
        look_until(&shell, |idle| {
            let shells = idle.names.get("sh").map_or(0, |share| share.threads);
            shells >= 3 && idle.wakeups_per_s > 0.0 && idle.core_percent > 0.0
        });
    }

    #[test]
    fn what_threads_did_before_does_not_count() {
        let of = |threads: &[(&str, &str, u64, u64)]| Counters {
            processes: threads.len(),
            threads: threads
                .iter()
                .map(|&(id, name, switches, nanoseconds)| {
                    (id.to_owned(), Thread { name: name.to_owned(), switches, nanoseconds })
                })
                .collect(),
        };
        let before = of(&[("1", "a", 10, 1_000_000), ("2", "a", 10, 0), ("3", "ended", 5, 5)]);
        let after = of(&[("1", "a", 14, 3_000_000), ("2", "a", 11, 0), ("4", "b", 5, 500_000)]);
        let idle = after.since(&before, 2.0);
        assert_eq!((idle.processes, idle.threads, idle.wakeups_per_s), (3, 3, 5.0));
        assert!((idle.core_percent - 0.125).abs() < 1e-12, "{idle:?}");
        let shares = idle.names.iter().map(|(name, share)| (&name[..], share.threads));
        assert!(shares.eq([("a", 2), ("b", 1)]), "{idle:?}");
        assert_eq!(idle.names["a"].wakeups_per_s, 2.5);
        let other = Idle { wakeups_per_s: 7.0, ..idle.clone() };
        assert_eq!(median(&[idle.clone(), other]).unwrap().wakeups_per_s, 6.0);
        assert_eq!(median(&[]), None);
    }
}
